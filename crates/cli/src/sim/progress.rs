//! Progress of a simulation: nothing for two seconds, then a bar with the remaining time on a
//! terminal, and an occasional line elsewhere.

use std::io::IsTerminal;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// Time for which no progress is shown.
const PATIENCE: Duration = Duration::from_secs(2);
/// Time between two lines where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(15);

/// Progress through a number of runs, reported from any thread.
pub struct Progress {
    total: f64,
    start: Instant,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    done: f64,
    bar: Option<ProgressBar>,
    line_at: Option<Instant>,
}

impl Progress {
    /// Progress through `total` runs or other units.
    pub fn new(total: f64) -> Progress {
        Progress { total: total.max(1e-9), start: Instant::now(), state: Mutex::default() }
    }

    /// Adds `runs` to the completed ones.
    pub fn advance(&self, runs: f64) {
        let mut state = self.state.lock().expect("no holder panics");
        state.done += runs;
        let elapsed = self.start.elapsed();
        if elapsed < PATIENCE {
            return;
        }
        let share = (state.done / self.total).clamp(0.0, 1.0);
        if std::io::stderr().is_terminal() {
            let bar = state.bar.get_or_insert_with(bar);
            bar.set_position((share * 1000.0) as u64);
            bar.set_prefix(left(elapsed, share));
        } else if state.line_at.is_none_or(|at| at.elapsed() >= LINE_EVERY) {
            state.line_at = Some(Instant::now());
            eprintln!("[{:3.0} %] {}", share * 100.0, left(elapsed, share));
        }
    }

    /// The completed runs, as a share of the total.
    pub fn share(&self) -> f64 {
        self.state.lock().expect("no holder panics").done / self.total
    }

    /// Prints a note to standard error without disturbing the bar.
    pub fn note(&self, text: &str) {
        let state = self.state.lock().expect("no holder panics");
        match &state.bar {
            Some(bar) => bar.suspend(|| eprintln!("{text}")),
            None => eprintln!("{text}"),
        }
    }

    /// Prints a result without disturbing the bar.
    pub fn print(&self, text: &str) {
        let state = self.state.lock().expect("no holder panics");
        match &state.bar {
            Some(bar) => bar.suspend(|| println!("{text}")),
            None => println!("{text}"),
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Ok(State { bar: Some(bar), .. }) = self.state.get_mut() {
            bar.finish_and_clear();
        }
    }
}

fn bar() -> ProgressBar {
    let bar = ProgressBar::new(1000);
    if let Ok(style) = ProgressStyle::with_template("{bar:24} {percent:>3} %  {prefix}") {
        bar.set_style(style);
    }
    bar
}

/// The remaining time, if the rest proceeds at the present rate.
fn left(elapsed: Duration, share: f64) -> String {
    if share <= 0.0 {
        return "time left unknown".to_owned();
    }
    let left = elapsed.as_secs_f64() * (1.0 - share) / share;
    if left > 90.0 {
        format!("about {:.0} min left", left / 60.0)
    } else {
        format!("about {left:.0} s left")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_left_follows_from_completed_share() {
        assert_eq!(left(Duration::from_secs(10), 0.5), "about 10 s left");
        assert_eq!(left(Duration::from_secs(60), 0.1), "about 9 min left");
        assert_eq!(left(Duration::from_secs(60), 0.0), "time left unknown");
    }
}
