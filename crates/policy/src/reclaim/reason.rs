//! Why something is reclaimed or not: what is logged in the journal.

use std::fmt;

use super::PAGE_BYTES;

/// The reason. Amounts in pages of 4 KiB, rates in pages per second.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    /// First observation: counters are valid from the second on.
    First,
    /// The cache does not fill, or too slowly to matter.
    Calm { fill_s: u64 },
    /// Something other than file cache takes the memory.
    NotFiles { fill: u64, held: u64 },
    /// There is enough free memory for what is expected.
    Enough { free: u64, wanted: u64 },
    /// There is not enough: reclaim.
    Filling { fill_s: u64, free: u64, wanted: u64, order: usize },
    /// There is not enough, and the processors are busy: as little as possible.
    FillingBusy { fill_s: u64, free: u64, wanted: u64 },
    /// Enough is free, but in blocks that are too small for the demand.
    Pieces { order: usize, free: u64, wanted: u64, in_all: u64 },
    /// What is inactive is needed, or not written back yet.
    LittleInactive { clean: u64, keep: u64 },
    /// Reclaimed pages were refaulted.
    CameBack { missed: u64, taken: u64, pause_ns: u64 },
    /// The kernel reclaimed less than requested.
    Short { asked: u64, got: u64, pause_ns: u64 },
    /// The pause after one of the two reasons above.
    Paused { until_ns: u64 },
    /// The share of a processor is used up.
    CpuShare { until_ns: u64 },
    /// All that was decided on is done.
    Done,
}

impl Reason {
    /// Whether this is worth a line in the journal each time it begins: it changes what the machine
    /// does, or explains why the daemon does not help.
    pub fn is_notable(&self) -> bool {
        !matches!(
            self,
            Reason::First
                | Reason::Calm { .. }
                | Reason::Enough { .. }
                | Reason::Paused { .. }
                | Reason::Done
        )
    }

    /// Whether nothing is reclaimed for a while although it is wanted.
    pub fn is_pause(&self) -> bool {
        matches!(self, Reason::CameBack { .. } | Reason::Short { .. } | Reason::Paused { .. })
    }

    /// A one-word name for figures.
    pub fn name(&self) -> &'static str {
        match self {
            Reason::First => "first",
            Reason::Calm { .. } => "calm",
            Reason::NotFiles { .. } => "not_files",
            Reason::Enough { .. } => "enough",
            Reason::Filling { .. } => "filling",
            Reason::FillingBusy { .. } => "filling_busy",
            Reason::Pieces { .. } => "pieces",
            Reason::LittleInactive { .. } => "little_inactive",
            Reason::CameBack { .. } => "came_back",
            Reason::Short { .. } => "short",
            Reason::Paused { .. } => "paused",
            Reason::CpuShare { .. } => "cpu_share",
            Reason::Done => "done",
        }
    }

    /// Pages that were free and pages that should have been free, where they were compared.
    pub fn free_and_wanted(&self) -> Option<(u64, u64)> {
        match *self {
            Reason::Enough { free, wanted }
            | Reason::Filling { free, wanted, .. }
            | Reason::FillingBusy { free, wanted, .. }
            | Reason::Pieces { free, wanted, .. } => Some((free, wanted)),
            _ => None,
        }
    }

    /// Whether two reasons differ in their numbers only.
    pub fn is_like(&self, other: &Reason) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}

fn mib(pages: u64) -> u64 {
    pages.saturating_mul(PAGE_BYTES) >> 20
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Reason::First => write!(f, "first look"),
            Reason::Calm { fill_s } => {
                write!(f, "the file cache fills at {} MiB/s only", mib(fill_s))
            }
            Reason::NotFiles { fill, held } => {
                write!(
                    f,
                    "programs take the memory ({} MiB, files {} MiB): left to the kernel",
                    mib(held),
                    mib(fill)
                )
            }
            Reason::Enough { free, wanted } => {
                write!(f, "{} MiB free of {} MiB wanted", mib(free), mib(wanted))
            }
            Reason::Filling { fill_s, free, wanted, order: 0 } => {
                write!(
                    f,
                    "files fill the cache at {} MiB/s; {} MiB free above the watermarks, {} MiB wanted",
                    mib(fill_s),
                    mib(free),
                    mib(wanted)
                )
            }
            Reason::Filling { fill_s, free, wanted, order } => write!(
                f,
                "files fill the cache at {} MiB/s in large blocks; {} MiB free in blocks of order {order}, {} MiB wanted",
                mib(fill_s),
                mib(free),
                mib(wanted)
            ),
            Reason::FillingBusy { fill_s, free, wanted } => write!(
                f,
                "files fill the cache at {} MiB/s, {} of {} MiB free, but all processors are busy: only a little is reclaimed",
                mib(fill_s),
                mib(free),
                mib(wanted)
            ),
            Reason::Pieces { order, free, wanted, in_all } => write!(
                f,
                "free memory is in small pieces: of {} MiB {} MiB in blocks of order {order}, {} MiB wanted",
                mib(in_all),
                mib(free),
                mib(wanted)
            ),
            Reason::LittleInactive { clean, keep } => {
                write!(
                    f,
                    "only {} MiB of clean inactive file cache, {} MiB of it to be kept: left to the kernel",
                    mib(clean),
                    mib(keep)
                )
            }
            Reason::CameBack { missed, taken, pause_ns } => write!(
                f,
                "{} MiB in use came back after {} MiB were reclaimed: pause of {} ms",
                mib(missed),
                mib(taken),
                pause_ns / 1_000_000
            ),
            Reason::Short { asked, got, pause_ns } => {
                write!(
                    f,
                    "the kernel found {} of {} MiB: pause of {} ms",
                    mib(got),
                    mib(asked),
                    pause_ns / 1_000_000
                )
            }
            Reason::Paused { .. } => write!(f, "pausing"),
            Reason::CpuShare { .. } => {
                write!(f, "the share of a processor is used up (cpu_ppm): left to the kernel")
            }
            Reason::Done => write!(f, "done"),
        }
    }
}
