//! Reads page tables with a BPF program; clears accessed bits with `process_madvise(MADV_COLD)`, or
//! with `clear_refs` (`proc_pid_clear_refs(5)`).
//!
//! `MADV_COLD` clears the given ranges, flushes translations, and skips pages that other processes
//! map. `clear_refs` always clears all pages, those included, needs no CAP_SYS_NICE, and does not
//! flush: a page whose translation stays in the processor looks untouched until the translation is
//! replaced.

use std::collections::BTreeMap;

use hiroma_sys::hot::pagemap::Pagemap;
use hiroma_sys::hot::target::{Advice, Span, Target};
use hiroma_sys::hot::walk::Walk;
use hiroma_units::{EXTENT, PAGE};

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
    /// Pages that could not be cleared by the last attempt.
    stuck: BTreeMap<u64, PageBits>,
    parts: Vec<Span>,
}

impl BpfTracker {
    /// Opens a tracker of process `pid`.
    pub fn open(pid: u32) -> Result<BpfTracker, HotError> {
        let tracker = BpfTracker::with(pid, Clearing::Cold)?;
        // Clearing needs CAP_SYS_NICE; fail early without it.
        let nowhere = [Span { start: 0, len: 0 }];
        tracker
            .target
            .advise(&nowhere, Advice::Cold)
            .map_err(HotError::of(pid, "process_madvise, which needs CAP_SYS_NICE"))?;
        Ok(tracker)
    }

    /// The same, with all bits cleared in one call by `clear_refs`.
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
            None => HotError::Backend {
                backend: backend_of(clearing).name(),
                reason: error.to_string(),
            },
        })?;
        Ok(BpfTracker {
            target,
            clearing,
            walk,
            pagemap,
            stuck: BTreeMap::new(),
            parts: Vec::new(),
        })
    }

    fn pid(&self) -> u32 {
        self.target.pid()
    }

    /// Clears the accessed bits of all `parts`. Returns what the kernel refuses, for example locked
    /// memory.
    fn cool(&self, parts: &mut [Span]) -> Result<Vec<Span>, HotError> {
        advise_all(parts, |parts| match self.target.advise(parts, Advice::Cold) {
            Ok(taken) => Ok(taken),
            Err(error) => match HotError::of(self.pid(), "clear accessed bits")(error) {
                HotError::Io { .. } => Ok(0),
                error => Err(error),
            },
        })
    }

    /// Finds the pages whose bits are still set because they cannot be cleared: those in `refused`,
    /// and those that other processes map. A page that has only been touched again is mapped by no
    /// other process.
    fn find_stuck(
        &mut self,
        layout: &Layout,
        ranges: &[u64],
        refused: &[Span],
    ) -> Result<(), HotError> {
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
            let exclusive = self
                .pagemap
                .exclusive(range)
                .map_err(HotError::of(self.pid(), "read /proc/PID/pagemap"))?;
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

/// Passes all `parts` to `advise`, which returns how many bytes it took before the first that it
/// refuses, and is called again from there. If it takes nothing, the rest of that part is refused,
/// and the next part follows. Returns what was refused.
fn advise_all(
    parts: &mut [Span],
    mut advise: impl FnMut(&[Span]) -> Result<u64, HotError>,
) -> Result<Vec<Span>, HotError> {
    let mut refused = Vec::new();
    let mut at = 0;
    while at < parts.len() {
        let mut taken = advise(&parts[at..])?;
        let nothing = taken == 0;
        while at < parts.len() && taken >= parts[at].len {
            taken -= parts[at].len;
            at += 1;
        }
        let Some(part) = parts.get_mut(at) else { break };
        *part = Span { start: part.start + taken, len: part.len - taken };
        if nothing {
            refused.push(*part);
            at += 1;
        }
    }
    Ok(refused)
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
                self.walk
                    .populated(first, end, out)
                    .map_err(HotError::of(pid, "read its page tables"))?;
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
        let refused = self.cool(&mut parts);
        self.parts = parts;
        self.find_stuck(layout, ranges, &refused?)
    }

    fn retain_small(&mut self, ranges: &mut Vec<u64>) -> Result<(), HotError> {
        let failed = HotError::of(self.pid(), "read its page tables");
        self.walk.retain_small(ranges).map_err(failed)
    }

    fn clear_sample(
        &mut self,
        ranges: &[u64],
        pages: std::ops::Range<u64>,
        refused: &mut Vec<u64>,
    ) -> Result<bool, HotError> {
        if self.clearing == Clearing::Refs {
            return Ok(false);
        }
        let mut parts = std::mem::take(&mut self.parts);
        parts.clear();
        let (first, len) = (pages.start * PAGE as u64, (pages.end - pages.start) * PAGE as u64);
        parts.extend(ranges.iter().map(|&range| Span { start: range * RANGE + first, len }));
        let failed = self.cool(&mut parts);
        self.parts = parts;
        refused.extend(failed?.iter().map(|part| part.start / RANGE));
        Ok(true)
    }

    fn scan(
        &mut self,
        layout: &Layout,
        ranges: &[u64],
        out: &mut Vec<RangeView>,
    ) -> Result<(), HotError> {
        let failed = HotError::of(self.target.pid(), "read its page tables");
        let stuck = &self.stuck;
        self.walk
            .scan(ranges, |range, seen| {
                let mut view = RangeView {
                    range,
                    present: seen.present,
                    touched: seen.accessed,
                    huge: seen.huge,
                };
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

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use hiroma_sys::hot::maps::Vma;
    use hiroma_sys::vm::{Access, Advise, Reservation, touch};
    use proptest::prelude::*;

    use super::*;

    const GIB: usize = 1 << 30;

    #[test]
    fn partial_advice_refuses_the_rest_and_clears_later() {
        let span = |start, len| Span { start, len };
        // 3 GiB of one mapping, of which 2 are taken; another call does not take the rest either.
        let gib = GIB as u64;
        let mut parts = [span(0, 4096), span(gib, 3 * gib), span(8 * gib, gib)];
        let mut asked = Vec::new();
        let refused = advise_all(&mut parts, |parts| {
            asked.push(parts[0].start);
            Ok(match parts[0].start {
                0 => 4096 + 2 * gib,
                at if at == 3 * gib => 0,
                _ => parts.iter().map(|part| part.len).sum(),
            })
        });
        assert_eq!(refused.unwrap(), [span(3 * gib, gib)]);
        assert_eq!(asked, [0, 3 * gib, 8 * gib]);
    }

    proptest! {
        #[test]
        fn each_page_is_either_cleared_or_refused(
            lens in prop::collection::vec(1u64..40, 0..8), locked in prop::collection::vec(any::<bool>(), 320), most in 1u64..60,
        ) {
            // Parts have a gap of one page between them; a locked page ends a call, and a call
            // takes at most `most` pages.
            let mut start = 0;
            let mut parts: Vec<Span> = lens.iter().map(|&len| { start += len + 1; Span { start: start - len - 1, len } }).collect();
            let all: Vec<u64> = parts.iter().flat_map(|part| part.start..part.start + part.len).collect();
            let mut cleared = Vec::new();
            let refused = advise_all(&mut parts, |parts| {
                let pages = parts.iter().flat_map(|part| part.start..part.start + part.len);
                let taken: Vec<u64> = pages.take(most as usize).take_while(|&page| !locked[page as usize]).collect();
                cleared.extend(&taken);
                Ok(taken.len() as u64)
            }).unwrap();
            prop_assert!(refused.iter().all(|part| locked[part.start as usize]));
            let mut seen: Vec<u64> = refused.iter().flat_map(|part| part.start..part.start + part.len).chain(cleared).collect();
            seen.sort_unstable();
            prop_assert_eq!(seen, all);
        }
    }

    #[test]
    fn locked_memory_hides_no_neighbouring_pages() {
        let mut tracker = match BpfTracker::open(std::process::id()) {
            Ok(tracker) => tracker,
            Err(error) => return hiroma_testkit::skip!(Bpf, "{error}"),
        };
        // The layout is older than the lock, as in a pass that began earlier: it shows one mapping
        // of 5 GiB and a small one after it. One page of each 2 MiB is in use.
        let large = 5 * GIB;
        let memory = Reservation::new(large + 2 * EXTENT, EXTENT, Access::ReadWrite).unwrap();
        memory.advise(memory.base(), memory.len(), Advise::NoHuge).unwrap();
        let vma = |from: usize, upto: usize| {
            let (start, end) = ((memory.base() + from) as u64, (memory.base() + upto) as u64);
            Vma { start, end, writable: true, shared: false, anonymous: true, name: String::new() }
        };
        let layout = Layout::of(&[vma(0, large), vma(large + EXTENT, memory.len())]);
        if let Err(error) = memory.lock(memory.base() + large / 2, PAGE) {
            return hiroma_testkit::skip!(Machine, "no memory may be locked here: {error}");
        }
        let first = (memory.base() / EXTENT) as u64;
        let ranges: Vec<u64> = (first..first + (memory.len() / EXTENT) as u64).collect();
        // A call covers 1 GiB, so 2 GiB are taken before the call that meets the locked page.
        let hidden = first + (2 * GIB / EXTENT) as u64..=first + (large / EXTENT) as u64;
        let touch_all = || ranges.iter().for_each(|range| touch(*range as usize * EXTENT, PAGE));
        let only_the_first = std::array::from_fn(|word| u64::from(word == 0));
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            touch_all();
            tracker.clear(&layout, &ranges).unwrap();
            touch_all();
            let mut views = Vec::new();
            tracker.scan(&layout, &ranges, &mut views).unwrap();
            let expected =
                |range: &u64| if hidden.contains(range) { bits::NONE } else { only_the_first };
            let wrong: Vec<u64> = views
                .iter()
                .filter(|view| view.touched != expected(&view.range))
                .map(|view| view.range - ranges[0])
                .collect();
            if views.len() == ranges.len() && wrong.is_empty() {
                break;
            }
            // Other users, DAMON for example, may clear a bit as well, but not repeatedly.
            assert!(
                Instant::now() < deadline,
                "{} of {} ranges are seen wrongly: {wrong:?}",
                wrong.len(),
                ranges.len()
            );
        }
    }
}
