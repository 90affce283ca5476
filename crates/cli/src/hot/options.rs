//! Options that the subcommands share.

use std::str::FromStr;
use std::time::Duration;

use anyhow::Result;
use hiroma_hot::{Backend, Options};
use hiroma_policy::huge::Window;
use hiroma_units::{Bytes, SizeSpec, parse_time};

use hiroma_kernel::host::memory::Limits;

/// A share of one processor, as in `1%`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    /// Millionths.
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

/// A way of tracking by its name.
pub fn backend(text: &str) -> Result<Backend, String> {
    let names: Vec<&str> = Backend::ALL.iter().map(|backend| backend.name()).collect();
    Backend::by_name(text).ok_or_else(|| {
        format!("there is no way of tracking `{text}`: choose from {}", names.join(", "))
    })
}

/// Shortest and longest round: below, a pass over the page tables takes longer than it; above,
/// every page that is used at all was touched.
const WINDOWS: [Duration; 2] = [Duration::from_micros(100), Duration::from_secs(60)];

/// How long a round watches.
fn window(text: &str) -> Result<Duration, String> {
    let time = parse_time(text).map_err(|error| error.to_string())?;
    let [shortest, longest] = WINDOWS;
    if time < shortest || time > longest {
        return Err(format!("a round of `{text}` tells nothing: choose between 100us and 1m"));
    }
    Ok(time)
}

/// How to track.
#[derive(clap::Args)]
pub struct Tracking {
    /// Share of one processor that tracking may take
    #[arg(long, value_name = "PERCENT", default_value = "1%")]
    pub cpu: Share,
    /// By how much the process may be slowed down by being tracked, as far as that can be told
    /// beforehand
    #[arg(long, value_name = "PERCENT", default_value = "0.5%")]
    pub slowdown: Share,
    /// How long a round watches, 100us to 1m [default: begins with 5ms and fits itself to the
    /// program]
    #[arg(long, value_name = "TIME", value_parser = window)]
    pub window: Option<Duration>,
    /// Only this way of tracking: bpf, bpf-clear-refs, idle-bitmap, damon, smaps [default: the
    /// first of these that works]
    #[arg(long, value_name = "NAME", value_parser = backend)]
    pub backend: Option<Backend>,
}

impl Tracking {
    /// Options of an engine that say the same.
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

/// What may be done.
#[derive(clap::Args)]
struct Limiting {
    /// Memory that may be in huge pages: a size, or a share of the machine's memory or the cgroup's
    /// limit [default: no limit]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    budget: Option<SizeSpec>,
    /// By how much the process may grow
    #[arg(long, value_name = "PERCENT", default_value = "0.5%")]
    growth: Share,
    /// Hot pages of 512 that make a range huge
    #[arg(long, value_name = "PAGES", default_value_t = 128, value_parser = clap::value_parser!(u16).range(1..=512))]
    threshold: u16,
    /// Stop when collapsing takes longer than this (99th percentile)
    #[arg(long, value_name = "TIME", default_value = "10ms", value_parser = parse_time)]
    stall: Duration,
    /// Say what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,
}

/// How a process is managed, whoever started it.
#[derive(clap::Args)]
pub struct Managing {
    #[command(flatten)]
    limiting: Limiting,
    #[command(flatten)]
    tracking: Tracking,
    /// Say nothing but errors
    #[arg(short, long)]
    pub quiet: bool,
}

impl Managing {
    /// Options of an engine that say the same; `keep`: when there is nothing to do, everything is
    /// looked at again after this.
    pub fn options(&self, keep: Option<Duration>) -> Result<Options> {
        let mut options = self.tracking.options();
        self.limiting.apply(&mut options)?;
        options.recheck_ns = keep.map(|pause| pause.as_nanos() as u64);
        Ok(options)
    }
}

impl Limiting {
    /// Puts the limits into `options`.
    fn apply(&self, options: &mut Options) -> Result<()> {
        if let Some(budget) = self.budget {
            let Bytes(bytes) = budget.of(Limits::read()?.whole());
            options.settings.budget_bytes = bytes;
        }
        options.settings.growth_permille = (self.growth.ppm / 1000) as u32;
        options.settings.collapse_hot_pages = self.threshold;
        options.stall_ns = self.stall.as_nanos() as u64;
        options.dry_run = self.dry_run;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_read_and_nonsense_is_refused() {
        assert_eq!("1%".parse(), Ok(Share { ppm: 10_000 }));
        assert_eq!("0.5 %".parse(), Ok(Share { ppm: 5_000 }));
        for text in ["1", "0%", "101%", "-1%", "NaN%", "%", "inf%"] {
            assert!(text.parse::<Share>().is_err(), "{text}");
        }
    }
}
