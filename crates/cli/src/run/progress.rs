//! The live line of `--progress`.

use std::io::{IsTerminal, stderr};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use hiroma_command::show;
use hiroma_far::control::{Counter, Snapshot};
use hiroma_units::Bytes;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use hiroma_run::watch::Watch;

/// When to show the live line.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum When {
    /// Only if standard error is a terminal.
    Auto,
    /// Without a terminal too: one plain line every second.
    Always,
}

/// The thread that draws the line.
pub struct Progress {
    stop: Sender<()>,
    thread: JoinHandle<()>,
}

impl Progress {
    /// Starts to draw. None: `when` is `Auto` and standard error is not a terminal.
    pub fn start(when: When, watch: Arc<Mutex<Watch>>) -> Option<Progress> {
        let terminal = stderr().is_terminal();
        if !terminal && matches!(when, When::Auto) {
            return None;
        }
        let (stop, stopped) = channel();
        let period = Duration::from_millis(if terminal { 250 } else { 1000 });
        let thread = thread::spawn(move || {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            bar.set_style(
                ProgressStyle::with_template("{spinner} {wide_msg}")
                    .unwrap_or_else(|_| ProgressStyle::default_spinner()),
            );
            let mut rates = Rates::default();
            while stopped.recv_timeout(period) == Err(RecvTimeoutError::Timeout) {
                let mut watch = watch.lock().unwrap_or_else(PoisonError::into_inner);
                watch.update();
                let line = line(&watch, &mut rates);
                drop(watch);
                if terminal {
                    bar.set_message(line);
                    bar.tick();
                } else {
                    show::say(&line);
                }
            }
            bar.finish_and_clear();
        });
        Some(Progress { stop, thread })
    }

    /// Removes the line.
    pub fn stop(self) {
        drop(self.stop);
        let _ = self.thread.join();
    }
}

/// The counters at the last update.
#[derive(Default)]
struct Rates {
    last: Option<(Instant, Snapshot)>,
}

fn line(watch: &Watch, rates: &mut Rates) -> String {
    let Some(total) = watch.total() else {
        return "no managed memory yet".to_owned();
    };
    let now = Instant::now();
    let (mut faults_per_s, earlier) = (0, rates.last.replace((now, total.clone())));
    if let Some((then, before)) = &earlier {
        let faults = total.get(Counter::Faults).saturating_sub(before.get(Counter::Faults));
        faults_per_s = (faults as f64 / now.duration_since(*then).as_secs_f64()) as u64;
    }
    let p99 = total
        .wait_quantile_since(earlier.as_ref().map(|(_, before)| before), 0.99)
        .map_or("-".to_owned(), show::latency);
    let (stored, capacity) =
        (watch.now(Counter::StoredBytes), watch.now(Counter::StoreCapacityBytes));
    let fill = (stored * 100).checked_div(capacity).unwrap_or(0);
    format!(
        "local {} of {}, far {}, {} faults/s, p99 {p99}, store {fill}% of {}",
        Bytes(watch.now(Counter::LocalBytes)),
        Bytes(watch.now(Counter::LimitBytes)),
        Bytes(watch.now(Counter::FarBytes)),
        show::count(faults_per_s),
        Bytes(capacity)
    )
}
