//! Trackers: which pages of a process were touched.
//!
//! The processor sets a page's accessed bit when it first uses the page's translation. A tracker
//! clears the bits of some ranges and reads them after a while; pages whose bits are set by then
//! were touched in between (HPS, section 4.1.1).

mod bpf;
mod damon;
mod idle;
mod smaps;

use std::{fmt, fs, io};

pub use bpf::BpfTracker;
pub use damon::DamonTracker;
pub use idle::IdleTracker;
pub use smaps::SmapsTracker;

use hiroma_sys::hot::pagemap::Pagemap;
use hiroma_units::EXTENT;

use crate::bits::{self, PageBits};
use crate::error::HotError;
use crate::layout::Layout;
use crate::machine;

/// The ways to read and clear accessed bits, in the order in which they are tried.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[non_exhaustive]
pub enum Backend {
    /// A BPF program reads the page tables; `process_madvise(MADV_COLD)` clears. Exact; needs root.
    Bpf,
    /// The same, cleared by `clear_refs`: all pages in one call, without a flush of translations.
    BpfClearRefs,
    /// The idle page bitmap (`CONFIG_IDLE_PAGE_TRACKING`): one mark for each page frame, without a
    /// flush of translations. Needs root, no BPF.
    IdleBitmap,
    /// DAMON (Linux 6.1 with `CONFIG_DAMON_VADDR` and `CONFIG_DAMON_SYSFS`) samples regions, if no
    /// other user has it. Needs root.
    Damon,
    /// `clear_refs` and the `Referenced` of `smaps`: for each mapping only how much of it was
    /// touched. Needs no privilege.
    Smaps,
}

impl Backend {
    /// All backends, the best first.
    pub const ALL: [Backend; 5] =
        [Backend::Bpf, Backend::BpfClearRefs, Backend::IdleBitmap, Backend::Damon, Backend::Smaps];

    /// The backend with this name.
    pub fn by_name(name: &str) -> Option<Backend> {
        Backend::ALL.into_iter().find(|backend| backend.name() == name)
    }

    /// Name in options and output.
    pub fn name(self) -> &'static str {
        match self {
            Backend::Bpf => "bpf",
            Backend::BpfClearRefs => "bpf-clear-refs",
            Backend::IdleBitmap => "idle-bitmap",
            Backend::Damon => "damon",
            Backend::Smaps => "smaps",
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What was seen of a 2 MiB range.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RangeView {
    /// Its number: address divided by 2 MiB.
    pub range: u64,
    /// Pages that are present.
    pub present: PageBits,
    /// Pages that were touched since they were last cleared; of a huge page all or none.
    pub touched: PageBits,
    /// Whether one huge page maps it.
    pub huge: bool,
}

/// One way to read and clear the accessed bits of one process.
///
/// Ranges are numbers of 2 MiB ranges (address divided by 2 MiB), ascending, without repetition. A
/// range in which nothing is mapped is not an error: its view has no page present.
///
/// # Errors
/// [`HotError::Gone`] if the process ends meanwhile.
pub trait Tracker: Send {
    /// The backend.
    fn backend(&self) -> Backend;

    /// Appends the ranges (ascending) in which a page of `layout` may be present. Cheap even if a
    /// large reserved space is mostly unused.
    fn populated(&mut self, layout: &Layout, out: &mut Vec<u64>) -> Result<(), HotError>;

    /// Forgets what was touched in `ranges`. Pages whose bits cannot be cleared (other processes
    /// map them too) do not count as touched in the next [`Tracker::scan`]. Bits of other ranges
    /// may be cleared as well ([`Tracker::clears_all`]).
    fn clear(&mut self, layout: &Layout, ranges: &[u64]) -> Result<(), HotError>;

    /// Keeps those of `ranges` that are mapped by small pages: [`Tracker::clear_sample`] would
    /// split a huge page. A tracker that cannot clear single pages keeps all.
    fn retain_small(&mut self, _ranges: &mut Vec<u64>) -> Result<(), HotError> {
        Ok(())
    }

    /// Forgets what was touched in `pages` of each of `ranges`, all of which belong to one mapping
    /// each. Appends the ranges of which that cannot be known to `refused`. Returns false if the
    /// tracker cannot clear single pages.
    fn clear_sample(
        &mut self,
        _ranges: &[u64],
        _pages: std::ops::Range<u64>,
        _refused: &mut Vec<u64>,
    ) -> Result<bool, HotError> {
        Ok(false)
    }

    /// Appends a view of each of `ranges`, in their order, as far as they belong to `layout`.
    fn scan(
        &mut self,
        layout: &Layout,
        ranges: &[u64],
        out: &mut Vec<RangeView>,
    ) -> Result<(), HotError>;

    /// Whether clearing some ranges clears all.
    fn clears_all(&self) -> bool;

    /// Whether the tracker distinguishes single pages; otherwise `touched` has the right number of
    /// pages in each range, and they are its first ones.
    fn tells_pages_apart(&self) -> bool;
}

/// What one round cost, in nanoseconds of our processor time, and what it saw.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RoundCost {
    /// Clearing accessed bits.
    pub clear_ns: u64,
    /// Reading them.
    pub scan_ns: u64,
    /// Counting.
    pub count_ns: u64,
    /// Ranges watched.
    pub ranges: u64,
    /// Pages present in them.
    pub present_pages: u64,
    /// Pages touched.
    pub touched_pages: u64,
}

impl RoundCost {
    /// Adds another round.
    pub fn add(&mut self, other: &RoundCost) {
        self.clear_ns += other.clear_ns;
        self.scan_ns += other.scan_ns;
        self.count_ns += other.count_ns;
        self.ranges += other.ranges;
        self.present_pages += other.present_pages;
        self.touched_pages += other.touched_pages;
    }
}

/// Opens the best tracker for process `pid` that works here, or only `only`.
///
/// # Errors
/// [`HotError::NoBackend`] with the reasons if none works, [`HotError::Gone`] if the process has
/// ended.
pub fn open(pid: u32, only: Option<Backend>) -> Result<Box<dyn Tracker>, HotError> {
    let mut reasons = String::new();
    for backend in
        Backend::ALL.into_iter().filter(|&backend| only.is_none_or(|only| only == backend))
    {
        let opened: Result<Box<dyn Tracker>, HotError> = match backend {
            _ if machine::pretended(&format!("no-{backend}")) => Err(HotError::Backend {
                backend: backend.name(),
                reason: "it is said to be missing (HIROMA_HOT_PRETEND)".to_owned(),
            }),
            Backend::Bpf => BpfTracker::open(pid).map(|tracker| Box::new(tracker) as _),
            Backend::BpfClearRefs => {
                BpfTracker::open_clear_refs(pid).map(|tracker| Box::new(tracker) as _)
            }
            Backend::IdleBitmap => IdleTracker::open(pid).map(|tracker| Box::new(tracker) as _),
            Backend::Damon => DamonTracker::open(pid).map(|tracker| Box::new(tracker) as _),
            Backend::Smaps => SmapsTracker::open(pid).map(|tracker| Box::new(tracker) as _),
        };
        match opened {
            Ok(tracker) => return Ok(tracker),
            Err(error) if error.is_gone() => return Err(error),
            Err(error) => {
                let separator = if reasons.is_empty() { "" } else { "\n" };
                reasons.push_str(&format!("{separator}  {backend}: {error}"));
            }
        }
    }
    Err(HotError::NoBackend { pid, reasons })
}

/// Clears the accessed bits of all pages of process `pid` (`proc_pid_clear_refs(5)`). Translations
/// are not flushed.
fn clear_refs(pid: u32) -> Result<(), HotError> {
    fs::write(format!("/proc/{pid}/clear_refs"), "1")
        .map_err(HotError::of(pid, "write /proc/PID/clear_refs"))
}

/// Appends the ranges in which the page map shows a page of `layout`.
fn populated(pagemap: &Pagemap, layout: &Layout, out: &mut Vec<u64>) -> io::Result<()> {
    for span in layout.spans() {
        let first = (span.start / EXTENT as u64).max(out.last().map_or(0, |last| last + 1));
        pagemap.populated(first, (span.start + span.len).div_ceil(EXTENT as u64), out)?;
    }
    Ok(())
}

/// The first `count` of `pages`.
fn first_of(pages: &PageBits, mut count: u64) -> PageBits {
    let mut out = bits::NONE;
    for page in 0..512 {
        if count > 0 && pages[page / 64] >> (page % 64) & 1 == 1 {
            out[page / 64] |= 1 << (page % 64);
            count -= 1;
        }
    }
    out
}
