//! Shows what is running and how long it will take: a bar on a terminal, lines elsewhere.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// Progress through work whose parts have estimated durations.
pub struct Progress {
    bar: Option<ProgressBar>,
    start: Instant,
    total: f64,
    done: f64,
    /// When the current part began, and its estimated duration in seconds.
    part: Option<(Instant, f64)>,
}

impl Progress {
    /// Progress through work of about `total` seconds.
    pub fn new(total: f64) -> Progress {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new((total * 10.0) as u64);
            if let Ok(style) = ProgressStyle::with_template("{bar:24} {percent:>3} %  {msg}") {
                bar.set_style(style);
            }
            bar.enable_steady_tick(Duration::from_millis(250));
            bar
        });
        Progress { bar, start: Instant::now(), total, done: 0.0, part: None }
    }

    /// Announces what starts now.
    pub fn starts(&self, what: &str) {
        let (left, reached) = (self.left(), self.reached());
        match &self.bar {
            Some(bar) => {
                bar.set_position((reached * 10.0) as u64);
                bar.set_message(format!("{left}  {what}"));
            }
            None => eprintln!("[{:3.0} %] {left}  {what}", 100.0 * reached / self.total.max(0.1)),
        }
    }

    /// Marks the beginning of a part of about `seconds`, during which time counts as progress.
    pub fn begins(&mut self, seconds: f64) {
        self.part = Some((Instant::now(), seconds));
    }

    /// Counts a part of about `seconds` as done.
    pub fn done(&mut self, seconds: f64) {
        self.done += seconds;
        self.part = None;
        if let Some(bar) = &self.bar {
            bar.set_position((self.done * 10.0) as u64);
        }
    }

    /// Completed work, in seconds of the estimate; of the current part, the time that has passed.
    fn reached(&self) -> f64 {
        self.done
            + self
                .part
                .map_or(0.0, |(began, seconds)| of_part(began.elapsed().as_secs_f64(), seconds))
    }

    /// The remaining time, corrected by the error of the estimate so far.
    fn left(&self) -> String {
        let (elapsed, in_part) = (
            self.start.elapsed().as_secs_f64(),
            self.part.map_or(0.0, |(began, _)| began.elapsed().as_secs_f64()),
        );
        let pace = if self.done > 5.0 { (elapsed - in_part) / self.done } else { 1.0 };
        let left = (self.total - self.reached()).max(0.0) * pace;
        if left > 90.0 {
            format!("about {:.0} min left", left / 60.0)
        } else {
            format!("about {left:.0} s left")
        }
    }

    /// Prints a message that remains on the screen.
    pub fn say(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.println(line),
            None => eprintln!("{line}"),
        }
    }

    /// Prints a result.
    pub fn print(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| println!("{text}")),
            None => println!("{text}"),
        }
    }
}

/// Seconds of a part of `seconds` that count as done after `elapsed` seconds: never all of them.
fn of_part(elapsed: f64, seconds: f64) -> f64 {
    elapsed.min(0.95 * seconds)
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elapsed_time_advances_a_part_without_ending_it() {
        assert_eq!((of_part(10.0, 100.0), of_part(1000.0, 100.0)), (10.0, 95.0));
        let mut progress = Progress::new(100.0);
        progress.begins(40.0);
        assert!(progress.reached() < 38.5);
        progress.done(40.0);
        assert_eq!(progress.reached(), 40.0);
    }
}
