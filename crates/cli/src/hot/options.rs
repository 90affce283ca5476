//! Options that several subcommands share.

use std::str::FromStr;
use std::time::Duration;

use anyhow::Result;
use hiroma_hot::{Backend, Options, TrialOptions};
use hiroma_policy::huge::Window;
use hiroma_units::{Bytes, SizeSpec, parse_time};

use hiroma_sys::host::memory::Limits;

/// A share of one processor, as in `1%`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    /// In millionths.
    pub ppm: u64,
}

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Share, String> {
        let wrong = || {
            format!("`{text}` is no share: write a percentage above 0 and up to 100, as in 0.5%")
        };
        let number: f64 =
            text.trim().strip_suffix('%').ok_or_else(wrong)?.trim().parse().map_err(|_| wrong())?;
        let ppm = (number * 10_000.0).round();
        if (1.0..=1_000_000.0).contains(&ppm) {
            Ok(Share { ppm: ppm as u64 })
        } else {
            Err(wrong())
        }
    }
}

/// Finds a tracking backend by its name.
pub fn backend(text: &str) -> Result<Backend, String> {
    let names: Vec<&str> = Backend::ALL.iter().map(|backend| backend.name()).collect();
    Backend::by_name(text).ok_or_else(|| {
        format!("there is no way of tracking `{text}`: choose from {}", names.join(", "))
    })
}

/// Shortest and longest round. Below, a pass over the page tables takes longer than the round;
/// above, every page that is used at all was touched.
const WINDOWS: [Duration; 2] = [Duration::from_micros(100), Duration::from_secs(60)];

/// Parses the length of a round.
fn window(text: &str) -> Result<Duration, String> {
    within(text, "round", WINDOWS, "100us and 1m")
}

/// Parses a time from `range`, which `told` says to the user.
fn within(text: &str, what: &str, range: [Duration; 2], told: &str) -> Result<Duration, String> {
    let time = parse_time(text).map_err(|error| error.to_string())?;
    let [shortest, longest] = range;
    if time < shortest || time > longest {
        return Err(format!("a {what} of `{text}` tells nothing: choose between {told}"));
    }
    Ok(time)
}

/// Options of tracking.
#[derive(clap::Args)]
pub struct Tracking {
    /// Share of one processor that tracking may use, in each ten seconds
    #[arg(long, value_name = "PERCENT", default_value = "1%", allow_hyphen_values = true)]
    pub cpu: Share,
    /// Slowdown of the process that tracking may cause, as far as it can be predicted
    #[arg(long, value_name = "PERCENT", default_value = "0.5%", allow_hyphen_values = true)]
    pub slowdown: Share,
    /// Length of a round, 100us to 1m [default: starts at 5ms and adapts to the program]
    #[arg(long, value_name = "TIME", value_parser = window, allow_hyphen_values = true)]
    pub window: Option<Duration>,
    /// Tracking backend to use: bpf, bpf-clear-refs, idle-bitmap, damon, smaps [default: the first
    /// of these that works]
    #[arg(long, value_name = "NAME", value_parser = backend)]
    pub backend: Option<Backend>,
}

impl Tracking {
    /// The same options for an engine.
    pub fn options(&self) -> Options {
        let defaults = Options::default();
        let window =
            self.window.map_or(defaults.window, |window| Window::fixed(window.as_nanos() as u64));
        Options {
            cpu_ppm: self.cpu.ppm,
            slowdown_ppm: self.slowdown.ppm,
            window,
            backend: self.backend,
            ..defaults
        }
    }
}

/// Limits of managing.
#[derive(clap::Args)]
struct Limiting {
    /// Limit of memory in huge pages: a size, or a share of the machine's memory or the cgroup's
    /// limit [default: no limit]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    budget: Option<SizeSpec>,
    /// Allowed growth of the process's memory
    #[arg(long, value_name = "PERCENT", default_value = "0.5%", allow_hyphen_values = true)]
    growth: Share,
    /// Number of hot pages, of 512, that make a range huge
    #[arg(long, value_name = "PAGES", default_value_t = 128, allow_hyphen_values = true, value_parser = clap::value_parser!(u16).range(1..=512))]
    threshold: u16,
    /// Share of one processor that collapsing ranges may use whose pages are all present, in
    /// addition to --cpu (where a hypervisor has taken back free memory, up to 20% more to have it
    /// backed again, while a processor is idle)
    #[arg(long, value_name = "PERCENT", default_value = "5%", allow_hyphen_values = true)]
    collapse: Share,
    /// Stop if the 99th percentile of collapse times exceeds this
    #[arg(long, value_name = "TIME", default_value = "10ms", allow_hyphen_values = true, value_parser = parse_time)]
    stall: Duration,
    /// Print what would be done without doing it
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    measuring: Measuring,
}

/// Shortest and longest turn of a trial.
const TURNS: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(600)];
/// Pairs of turns.
const PAIRS: usize = 6;

fn turn(text: &str) -> Result<Duration, String> {
    within(text, "turn", TURNS, "500ms and 10m")
}

/// Whether to measure what is gained.
#[derive(clap::Args)]
pub struct Measuring {
    /// Measure what huge pages gain, once the process has them: six pairs of turns of TIME with
    /// and without them, on the process itself, which is slower meanwhile. Processor time is
    /// compared with the calls that the process makes. Where nothing is gained, the huge pages are
    /// split, and the process is left alone for an hour
    #[arg(long, value_name = "TIME", value_parser = turn, num_args = 0..=1, require_equals = true, default_missing_value = "5s")]
    measure: Option<Duration>,
}

impl Measuring {
    /// The same for an engine.
    pub fn options(&self) -> Option<TrialOptions> {
        self.measure.map(|turn| TrialOptions { turn_ns: turn.as_nanos() as u64, pairs: PAIRS })
    }
}

/// Options of managing a process, shared by `manage` and `run`.
#[derive(clap::Args)]
pub struct Managing {
    #[command(flatten)]
    limiting: Limiting,
    #[command(flatten)]
    tracking: Tracking,
    /// Print only errors
    #[arg(short, long)]
    pub quiet: bool,
}

impl Managing {
    /// The same options for an engine. `keep`: time after which everything is checked again when
    /// there is nothing to do.
    pub fn options(&self, keep: Option<Duration>) -> Result<Options> {
        let mut options = self.tracking.options();
        self.limiting.apply(&mut options)?;
        options.recheck_ns = keep.map(|pause| pause.as_nanos() as u64);
        Ok(options)
    }
}

impl Limiting {
    /// Sets the limits in `options`.
    fn apply(&self, options: &mut Options) -> Result<()> {
        if let Some(budget) = self.budget {
            let Bytes(bytes) = budget.of(Limits::read().whole());
            options.settings.budget_bytes = bytes;
        }
        options.settings.growth_ppm = self.growth.ppm as u32;
        options.settings.collapse_hot_pages = self.threshold;
        options.collapse_ppm = self.collapse.ppm;
        options.stall_ns = self.stall.as_nanos() as u64;
        options.dry_run = self.dry_run;
        options.trial = self.measuring.options();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_growth_is_not_lost() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            managing: Managing,
        }
        let ppm = |growth: &str| {
            let line = <Line as clap::Parser>::parse_from(["hiroma", "--growth", growth]);
            line.managing.options(None).unwrap().settings.growth_ppm
        };
        assert_eq!((ppm("0.05%"), ppm("0.5%")), (500, 5_000));
    }

    #[test]
    fn shares_are_parsed_and_invalid_ones_refused() {
        assert_eq!("1%".parse(), Ok(Share { ppm: 10_000 }));
        assert_eq!("0.5 %".parse(), Ok(Share { ppm: 5_000 }));
        for text in ["1", "0%", "101%", "-1%", "NaN%", "%", "inf%"] {
            assert!(text.parse::<Share>().is_err(), "{text}");
        }
    }
}
