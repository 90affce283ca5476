//! Page tables read by a BPF program; accessed bits cleared by `process_madvise(MADV_COLD)`, or by `clear_refs` (`proc_pid_clear_refs(5)`).
//!
//! `MADV_COLD` clears what is asked for, flushes translations, and passes over pages that others map. `clear_refs` always clears all, those too,
//! needs no CAP_SYS_NICE, and does not flush: a page whose translation stays in the processor looks untouched until that is replaced.

use std::collections::BTreeMap;

use hiroma_kernel::hot::pagemap::Pagemap;
use hiroma_kernel::hot::target::{Advice, Span, Target};
use hiroma_kernel::hot::walk::Walk;
use hiroma_units::EXTENT;

use super::{Backend, RangeView, Tracker, clear_refs};
use crate::bits::{self, PageBits};
use crate::error::HotError;
use crate::layout::{Layout, pages_in};

const RANGE: u64 = EXTENT as u64;

/// How accessed bits are cleared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Clearing {
    Cold,
    Refs,
}

/// See [`Backend::Bpf`] and [`Backend::BpfClearRefs`].
pub struct BpfTracker {
    target: Target,
    clearing: Clearing,
    walk: Walk,
    pagemap: Pagemap,
    /// Pages that could not be cleared when they were last to be.
    stuck: BTreeMap<u64, PageBits>,
    parts: Vec<Span>,
}

impl BpfTracker {
    /// Gets ready to track process `pid`.
    pub fn open(pid: u32) -> Result<BpfTracker, HotError> {
        let tracker = BpfTracker::with(pid, Clearing::Cold)?;
        // The clearing needs CAP_SYS_NICE; better to know now.
        let nowhere = [Span { start: 0, len: 0 }];
        tracker.target.advise(&nowhere, Advice::Cold).map_err(HotError::of(pid, "process_madvise, which needs CAP_SYS_NICE"))?;
        Ok(tracker)
    }

    /// The same, with all bits cleared at once by `clear_refs`.
    pub fn open_clear_refs(pid: u32) -> Result<BpfTracker, HotError> {
        let tracker = BpfTracker::with(pid, Clearing::Refs)?;
        clear_refs(pid)?;
        Ok(tracker)
    }

    fn with(pid: u32, clearing: Clearing) -> Result<BpfTracker, HotError> {
        let target = Target::open(pid).map_err(HotError::of(pid, "pidfd_open"))?;
        let pagemap = Pagemap::open(pid).map_err(HotError::of(pid, "read /proc/PID/pagemap"))?;
        let walk = Walk::open(pid).map_err(|error| match error.raw_os_error() {
            Some(_) => HotError::of(pid, "read its page tables")(error),
            None => HotError::Backend { backend: backend_of(clearing).name(), reason: error.to_string() },
        })?;
        Ok(BpfTracker { target, clearing, walk, pagemap, stuck: BTreeMap::new(), parts: Vec::new() })
    }

    fn pid(&self) -> u32 {
        self.target.pid()
    }

    /// Gives the advice on all parts. Returns those that the kernel refuses: locked memory, for one.
    fn cool(&self, mut parts: &[Span]) -> Result<Vec<Span>, HotError> {
        let mut all_refused = Vec::new();
        while !parts.is_empty() {
            let mut taken = match self.target.advise(parts, Advice::Cold) {
                Ok(taken) => taken,
                Err(error) => match HotError::of(self.pid(), "clear accessed bits")(error) {
                    HotError::Io { .. } => 0,
                    error => return Err(error),
                },
            };
            let refused = parts.iter().position(|part| {
                let whole = taken >= part.len;
                taken = taken.saturating_sub(part.len);
                !whole
            });
            match refused {
                Some(at) => {
                    all_refused.push(parts[at]);
                    parts = &parts[at + 1..];
                }
                None => break,
            }
        }
        Ok(all_refused)
    }

    /// Finds the pages whose bits are still set because they cannot be cleared: those in parts that were `refused`, and those that others
    /// map. A page that has merely been touched again is mapped by nobody else.
    fn find_stuck(&mut self, layout: &Layout, ranges: &[u64], refused: &[Span]) -> Result<(), HotError> {
        let failed = HotError::of(self.pid(), "read its page tables");
        let mut set: Vec<(u64, PageBits)> = Vec::new();
        self.walk
            .scan(ranges, |range, seen| {
                if !bits::is_empty(&seen.accessed) {
                    set.push((range, seen.accessed));
                }
            })
            .map_err(failed)?;
        for &range in ranges {
            self.stuck.remove(&range);
        }
        for (range, accessed) in set {
            let exclusive = self.pagemap.exclusive(range).map_err(HotError::of(self.pid(), "read /proc/PID/pagemap"))?;
            let stuck = bits::without(&bits::and(&accessed, &layout.pages_of(range)), &exclusive);
            if !bits::is_empty(&stuck) {
                self.stuck.insert(range, stuck);
            }
        }
        for part in refused {
            for range in part.start / RANGE..(part.start + part.len).div_ceil(RANGE) {
                let stuck = self.stuck.entry(range).or_insert(bits::NONE);
                *stuck = bits::or(stuck, &pages_in(range, part));
            }
        }
        Ok(())
    }
}

fn backend_of(clearing: Clearing) -> Backend {
    match clearing {
        Clearing::Cold => Backend::Bpf,
        Clearing::Refs => Backend::BpfClearRefs,
    }
}

impl Tracker for BpfTracker {
    fn backend(&self) -> Backend {
        backend_of(self.clearing)
    }

    fn populated(&mut self, layout: &Layout, out: &mut Vec<u64>) -> Result<(), HotError> {
        let pid = self.pid();
        let mut last = None;
        for span in layout.spans() {
            let first = (span.start / RANGE).max(last.map_or(0, |last: u64| last + 1));
            let end = (span.start + span.len).div_ceil(RANGE);
            if first < end {
                self.walk.populated(first, end, out).map_err(HotError::of(pid, "read its page tables"))?;
                last = Some(end - 1);
            }
        }
        Ok(())
    }

    fn clear(&mut self, layout: &Layout, ranges: &[u64]) -> Result<(), HotError> {
        if self.clearing == Clearing::Refs {
            return clear_refs(self.pid());
        }
        let mut parts = std::mem::take(&mut self.parts);
        parts.clear();
        layout.parts_of(ranges, &mut parts);
        let refused = self.cool(&parts);
        self.parts = parts;
        self.find_stuck(layout, ranges, &refused?)
    }

    fn scan(&mut self, layout: &Layout, ranges: &[u64], out: &mut Vec<RangeView>) -> Result<(), HotError> {
        let failed = HotError::of(self.target.pid(), "read its page tables");
        let stuck = &self.stuck;
        self.walk
            .scan(ranges, |range, seen| {
                let mut view = RangeView { range, present: seen.present, touched: seen.accessed, huge: seen.huge };
                if !seen.huge {
                    let ours = layout.pages_of(range);
                    view.present = bits::and(&view.present, &ours);
                    view.touched = bits::and(&view.touched, &ours);
                }
                if let Some(stuck) = stuck.get(&range) {
                    view.touched = bits::without(&view.touched, stuck);
                }
                out.push(view);
            })
            .map_err(failed)
    }

    fn clears_all(&self) -> bool {
        self.clearing == Clearing::Refs
    }

    fn tells_pages_apart(&self) -> bool {
        true
    }
}
