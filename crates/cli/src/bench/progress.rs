//! What is running and how long it will take: a bar on a terminal, lines elsewhere.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// Progress through work whose parts have estimated times.
pub struct Progress {
    bar: Option<ProgressBar>,
    start: Instant,
    total: f64,
    done: f64,
}

impl Progress {
    /// For work of about `total` seconds.
    pub fn new(total: f64) -> Progress {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new((total * 10.0) as u64);
            if let Ok(style) = ProgressStyle::with_template("{bar:24} {percent:>3} %  {msg}") {
                bar.set_style(style);
            }
            bar.enable_steady_tick(Duration::from_millis(250));
            bar
        });
        Progress { bar, start: Instant::now(), total, done: 0.0 }
    }

    /// Says what starts now.
    pub fn starts(&self, what: &str) {
        let left = self.left();
        match &self.bar {
            Some(bar) => bar.set_message(format!("{left}  {what}")),
            None => eprintln!("[{:3.0} %] {left}  {what}", 100.0 * self.done / self.total.max(0.1)),
        }
    }

    /// Counts a part of about `seconds` as done.
    pub fn done(&mut self, seconds: f64) {
        self.done += seconds;
        if let Some(bar) = &self.bar {
            bar.set_position((self.done * 10.0) as u64);
        }
    }

    /// The estimate, corrected by how wrong it has been so far.
    fn left(&self) -> String {
        let elapsed = self.start.elapsed().as_secs_f64();
        let pace = if self.done > 5.0 { elapsed / self.done } else { 1.0 };
        let left = (self.total - self.done).max(0.0) * pace;
        if left > 90.0 { format!("about {:.0} min left", left / 60.0) } else { format!("about {left:.0} s left") }
    }

    /// Tells the user something that stays.
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

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
