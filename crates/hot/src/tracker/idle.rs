//! The idle page bitmap: page frames are marked, and lose the mark when a page that maps them is
//! touched.
//!
//! It covers page frames, not processes. Each page is therefore looked up in `/proc/PID/pagemap`,
//! and counts only if no other process maps its frame; of a larger folio the kernel marks the first
//! frame alone, and one bit represents all its pages. Clearing does not flush translations: a page
//! that stays in the TLB looks untouched until it is replaced there. Unlike `MADV_COLD`, this does
//! not mislead reclaim: the kernel remembers for it what was touched.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use hiroma_sys::hot::idle::{BITMAP, FLAGS, HEAD, IdleBitmap, LRU, TAIL};
use hiroma_sys::hot::pagemap::{PageEntry, Pagemap};
use hiroma_sys::vm::{self, Access, Reservation};
use hiroma_units::{EXTENT, PAGE, PAGES_PER_EXTENT};

use super::{Backend, RangeView, Tracker, populated};
use crate::bits::{self, PageBits};
use crate::error::HotError;
use crate::layout::Layout;

/// Orders of folios (powers of two of pages), up to that of a huge page.
const ORDERS: std::ops::RangeInclusive<u32> = 1..=PAGES_PER_EXTENT.trailing_zeros();

/// See [`Backend::IdleBitmap`].
pub struct IdleTracker {
    pid: u32,
    pagemap: Pagemap,
    idle: IdleBitmap,
    /// The frame of the shared zero page, which maps where pages were only read.
    zeros: u64,
    /// The ranges that are being watched.
    watched: BTreeMap<u64, Watched>,
}

/// A page that is present and private to its process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Page {
    /// Its index in the range.
    at: u16,
    frame: u64,
    /// The frame that carries its mark; none where the kernel sets no mark.
    mark: Option<u64>,
}

/// The pages of a range at the last check.
#[derive(Clone, Debug, Default)]
struct Watched {
    present: PageBits,
    pages: Vec<Page>,
}

impl Watched {
    /// Whether one folio of 2 MiB fills it.
    fn is_one_folio(&self) -> bool {
        let Some(first) = self.pages.first() else { return false };
        let all =
            self.pages.len() == PAGES_PER_EXTENT && first.frame % PAGES_PER_EXTENT as u64 == 0;
        all && self.pages.iter().enumerate().all(|(at, page)| {
            page.frame == first.frame + at as u64 && page.mark == Some(first.frame)
        })
    }
}

impl IdleTracker {
    /// Opens a tracker of process `pid`.
    pub fn open(pid: u32) -> Result<IdleTracker, HotError> {
        IdleTracker::with(pid, Path::new(BITMAP), Path::new(FLAGS))
    }

    fn with(pid: u32, bitmap: &Path, flags: &Path) -> Result<IdleTracker, HotError> {
        let failed =
            |reason: String| HotError::Backend { backend: Backend::IdleBitmap.name(), reason };
        let idle = IdleBitmap::open(bitmap, flags).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => failed(format!(
                "this kernel has no idle page tracking (CONFIG_IDLE_PAGE_TRACKING): {error}"
            )),
            io::ErrorKind::PermissionDenied => failed(format!("root is needed: {error}")),
            _ => failed(error.to_string()),
        })?;
        let Some(zeros) = frame_of_zeros().map_err(|error| failed(error.to_string()))? else {
            return Err(failed(
                "the kernel does not tell us page frames: CAP_SYS_ADMIN is needed".to_owned(),
            ));
        };
        let pagemap = Pagemap::open(pid).map_err(HotError::of(pid, "read /proc/PID/pagemap"))?;
        Ok(IdleTracker { pid, pagemap, idle, zeros, watched: BTreeMap::new() })
    }

    fn failed(&self, error: io::Error) -> HotError {
        HotError::of(self.pid, "use the idle page bitmap")(error)
    }

    /// The pages of `range` now, without marks.
    fn look(&self, layout: &Layout, range: u64) -> Result<Watched, HotError> {
        let entries = self
            .pagemap
            .entries(range)
            .map_err(HotError::of(self.pid, "read /proc/PID/pagemap"))?;
        let ours = layout.pages_of(range);
        let mut seen = Watched::default();
        let is_ours = |at: usize, entry: &PageEntry| {
            entry.is_present()
                && entry.frame() != Some(self.zeros)
                && ours[at / 64] >> (at % 64) & 1 == 1
        };
        for (at, entry) in entries.iter().enumerate().filter(|(at, entry)| is_ours(*at, entry)) {
            seen.present[at / 64] |= 1 << (at % 64);
            if let Some(frame) = entry.frame().filter(|_| entry.is_exclusive()) {
                seen.pages.push(Page { at: at as u16, frame, mark: None });
            }
        }
        Ok(seen)
    }

    /// Finds the frames that carry the marks of `pages`.
    fn find_marks(&self, pages: &mut [&mut Page]) -> io::Result<()> {
        pages.sort_unstable_by_key(|page| page.frame);
        let frames: Vec<u64> = pages.iter().map(|page| page.frame).collect();
        let flags = self.idle.flags(&frames)?;
        // The first frame of the folio that contains the previous frame.
        let (mut head, mut before) = (None, None);
        for (page, &flags) in pages.iter_mut().zip(&flags) {
            let follows = before.is_some_and(|before| before + 1 == page.frame);
            head = match flags {
                flags if flags & TAIL == 0 => Some(page.frame).filter(|_| flags & LRU != 0),
                _ if follows => head,
                _ => self.head_of(page.frame)?,
            };
            (page.mark, before) = (head, Some(page.frame));
        }
        Ok(())
    }

    /// The first frame of the folio that contains the tail frame `tail`. Folios are aligned to
    /// their size.
    fn head_of(&self, tail: u64) -> io::Result<Option<u64>> {
        for order in ORDERS {
            let candidate = tail & !((1 << order) - 1);
            let flags = self.idle.flags(&[candidate])?[0];
            if flags & HEAD != 0 {
                return Ok(Some(candidate).filter(|_| flags & LRU != 0));
            }
        }
        Ok(None)
    }

    /// Whether one huge page maps `range`, whose pages are one folio of 2 MiB. Before Linux 6.7 no
    /// interface reports whether it is mapped as a whole; it is assumed to be, because one bit
    /// represents all of it in either case.
    fn is_huge(&self, range: u64, seen: &Watched) -> bool {
        seen.is_one_folio() && self.pagemap.huge(range, range + 1).unwrap_or(true)
    }
}

/// The frame of the zero page, found with a page of our own that is only read; none where the
/// kernel does not report frames.
fn frame_of_zeros() -> io::Result<Option<u64>> {
    let page = Reservation::new(PAGE, PAGE, Access::ReadWrite)?;
    let mut word = 0u64;
    vm::copy(std::ptr::from_mut(&mut word) as usize, page.base(), size_of::<u64>());
    std::hint::black_box(word);
    let entries: [PageEntry; PAGES_PER_EXTENT] =
        Pagemap::open(std::process::id())?.entries((page.base() / EXTENT) as u64)?;
    Ok(entries[page.base() % EXTENT / PAGE].frame())
}

impl Tracker for IdleTracker {
    fn backend(&self) -> Backend {
        Backend::IdleBitmap
    }

    fn populated(&mut self, layout: &Layout, out: &mut Vec<u64>) -> Result<(), HotError> {
        populated(&self.pagemap, layout, out)
            .map_err(HotError::of(self.pid, "read /proc/PID/pagemap"))
    }

    fn clear(&mut self, layout: &Layout, ranges: &[u64]) -> Result<(), HotError> {
        self.watched.clear();
        for &range in ranges {
            let seen = self.look(layout, range)?;
            self.watched.insert(range, seen);
        }
        let mut watched = std::mem::take(&mut self.watched);
        let mut pages: Vec<&mut Page> =
            watched.values_mut().flat_map(|seen| &mut seen.pages).collect();
        self.find_marks(&mut pages).map_err(|error| self.failed(error))?;
        let marks: BTreeSet<u64> = pages.iter().filter_map(|page| page.mark).collect();
        self.idle.mark(&Vec::from_iter(marks)).map_err(|error| self.failed(error))?;
        self.watched = watched;
        Ok(())
    }

    fn scan(
        &mut self,
        layout: &Layout,
        ranges: &[u64],
        out: &mut Vec<RangeView>,
    ) -> Result<(), HotError> {
        // A page may have moved to another frame. A moved page took its mark along; a new one has
        // none and was therefore touched.
        let mut seen = ranges
            .iter()
            .map(|&range| self.look(layout, range))
            .collect::<Result<Vec<Watched>, HotError>>()?;
        let mut unknown = Vec::new();
        for (range, now) in ranges.iter().zip(&mut seen) {
            let mut before =
                self.watched.get(range).map_or(&[][..], |watched| &watched.pages).iter().peekable();
            for page in &mut now.pages {
                while before.next_if(|before| before.at < page.at).is_some() {}
                match before.peek() {
                    Some(before) if (before.at, before.frame) == (page.at, page.frame) => {
                        page.mark = before.mark
                    }
                    _ => unknown.push(page),
                }
            }
        }
        self.find_marks(&mut unknown).map_err(|error| self.failed(error))?;
        let marks: Vec<u64> = Vec::from_iter(
            seen.iter()
                .flat_map(|seen| &seen.pages)
                .filter_map(|page| page.mark)
                .collect::<BTreeSet<u64>>(),
        );
        let idle = self.idle.idle(&marks).map_err(|error| self.failed(error))?;
        for (&range, seen) in ranges.iter().zip(&seen) {
            let huge = self.is_huge(range, seen);
            let mut view = RangeView {
                range,
                present: if huge { bits::ALL } else { seen.present },
                touched: bits::NONE,
                huge,
            };
            for page in &seen.pages {
                let touched = page
                    .mark
                    .is_some_and(|mark| marks.binary_search(&mark).is_ok_and(|at| !idle[at]));
                view.touched[page.at as usize / 64] |= u64::from(touched) << (page.at % 64);
            }
            out.push(view);
        }
        Ok(())
    }

    fn clears_all(&self) -> bool {
        false
    }

    fn tells_pages_apart(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, OpenOptions};
    use std::os::unix::fs::FileExt;
    use std::path::PathBuf;

    use hiroma_sys::hot::maps::Vma;
    use hiroma_sys::hot::target::{Advice, Span, Target};
    use hiroma_sys::vm::{Advise, touch};
    use hiroma_sys::workload::Region;

    use super::*;

    /// This process, tracked through a file in place of the bitmap; marks in it remain until
    /// `touched` clears them. Frames and flags are the kernel's own.
    struct StandIn {
        dir: tempfile::TempDir,
        tracker: IdleTracker,
    }

    impl StandIn {
        fn new() -> Option<StandIn> {
            let dir = tempfile::tempdir().unwrap();
            fs::write(dir.path().join("bitmap"), []).unwrap();
            match IdleTracker::with(
                std::process::id(),
                &dir.path().join("bitmap"),
                Path::new(FLAGS),
            ) {
                Ok(tracker) => Some(StandIn { dir, tracker }),
                Err(error) => {
                    hiroma_testkit::skip!(Machine, "{error}");
                    None
                }
            }
        }

        fn bitmap(&self) -> PathBuf {
            self.dir.path().join("bitmap")
        }

        /// Does what the kernel does when it finds that page `at` of `range` was touched.
        fn touched(&self, range: u64, at: usize) {
            let frame = self.tracker.pagemap.entries(range).unwrap()[at].frame().unwrap();
            let file = OpenOptions::new().read(true).write(true).open(self.bitmap()).unwrap();
            let mut byte = [0];
            file.read_exact_at(&mut byte, frame / 8).unwrap();
            assert_eq!(byte[0] >> (frame % 8) & 1, 1, "page {at} was not marked");
            byte[0] &= !(1 << (frame % 8));
            file.write_all_at(&byte, frame / 8).unwrap();
        }
    }

    fn layout_of(memory: &Reservation) -> Layout {
        let (start, end) = (memory.base() as u64, (memory.base() + memory.len()) as u64);
        Layout::of(&[Vma {
            start,
            end,
            writable: true,
            shared: false,
            anonymous: true,
            name: String::new(),
        }])
    }

    fn scanned(tracker: &mut IdleTracker, layout: &Layout, ranges: &[u64]) -> Vec<RangeView> {
        let mut views = Vec::new();
        tracker.scan(layout, ranges, &mut views).unwrap();
        views
    }

    #[test]
    fn missing_idle_tracking_is_reported() {
        let Err(error) =
            IdleTracker::with(std::process::id(), Path::new("/nowhere/bitmap"), Path::new(FLAGS))
        else {
            panic!("opened")
        };
        assert!(error.to_string().contains("CONFIG_IDLE_PAGE_TRACKING"), "{error}");
    }

    #[test]
    fn small_pages_without_idle_mark_were_touched() {
        let Some(mut stand_in) = StandIn::new() else { return };
        let memory = Reservation::new(3 * EXTENT, EXTENT, Access::ReadWrite).unwrap();
        memory.advise(memory.base(), memory.len(), Advise::NoHuge).unwrap();
        // All of the first range, every third page of the second, nothing of the third.
        touch(memory.base(), EXTENT);
        (0..512).step_by(3).for_each(|page| touch(memory.base() + EXTENT + page * PAGE, PAGE));
        // A page that is only read: the shared zero page is mapped there.
        let _ = Region::adopt(memory.base(), memory.len()).unwrap().read(EXTENT + PAGE);
        let (layout, first) = (layout_of(&memory), (memory.base() / EXTENT) as u64);
        let mut ranges = Vec::new();
        stand_in.tracker.populated(&layout, &mut ranges).unwrap();
        assert_eq!(ranges, [first, first + 1]);
        // Pages that were first touched a moment ago may not be on an LRU list yet and cannot be
        // watched; the pages that this test checks are never among them.
        let mut unwatched = usize::MAX;
        for _ in 0..3 {
            stand_in.tracker.clear(&layout, &ranges).unwrap();
            let pages = stand_in.tracker.watched.values().flat_map(|seen| &seen.pages);
            unwatched = pages.filter(|page| page.mark.is_none()).count();
        }
        assert!(unwatched < 128, "{unwatched} pages cannot be watched");
        let watched = |range: u64, at: u16| {
            stand_in.tracker.watched[&range]
                .pages
                .iter()
                .any(|page| page.at == at && page.mark.is_some())
        };
        let mut expected = [bits::NONE; 2];
        for (range, at) in [(0, 0), (0, 1), (0, 63), (0, 64), (0, 511), (1, 3), (1, 300), (1, 510)]
        {
            if watched(first + range, at) {
                stand_in.touched(first + range, at.into());
                expected[range as usize][at as usize / 64] |= 1 << (at % 64);
            }
        }
        let views = scanned(&mut stand_in.tracker, &layout, &ranges);
        assert_eq!(views.iter().map(|view| view.touched).collect::<Vec<_>>(), expected);
        assert_eq!((bits::count(&views[0].present), bits::count(&views[1].present)), (512, 171));
        // Marked again, and nothing was touched since.
        stand_in.tracker.clear(&layout, &ranges).unwrap();
        assert!(
            scanned(&mut stand_in.tracker, &layout, &ranges)
                .iter()
                .all(|view| bits::is_empty(&view.touched) && !view.huge)
        );
    }

    #[test]
    fn huge_page_has_one_bit_until_split() {
        let Some(mut stand_in) = StandIn::new() else { return };
        let memory = Reservation::new(EXTENT, EXTENT, Access::ReadWrite).unwrap();
        memory.advise(memory.base(), memory.len(), Advise::Huge).unwrap();
        // Splitting would replace pages of zeros by the shared zero page (Linux 6.12), which is
        // private to no process.
        let region = Region::adopt(memory.base(), memory.len()).unwrap();
        (0..EXTENT).step_by(PAGE).for_each(|offset| region.write(offset, &[1 + offset as u64]));
        let (layout, range) = (layout_of(&memory), (memory.base() / EXTENT) as u64);
        stand_in.tracker.clear(&layout, &[range]).unwrap();
        let view = scanned(&mut stand_in.tracker, &layout, &[range])[0];
        if !view.huge {
            return hiroma_testkit::skip!(Machine, "no huge page was to be had");
        }
        assert_eq!((view.present, view.touched), (bits::ALL, bits::NONE));
        stand_in.touched(range, 0);
        assert_eq!(scanned(&mut stand_in.tracker, &layout, &[range])[0].touched, bits::ALL);
        // Advice on one page splits it: now each page has its own mark.
        let one_page = [Span { start: memory.base() as u64, len: PAGE as u64 }];
        Target::open(std::process::id()).unwrap().advise(&one_page, Advice::Cold).unwrap();
        stand_in.tracker.clear(&layout, &[range]).unwrap();
        stand_in.touched(range, 17);
        let view = scanned(&mut stand_in.tracker, &layout, &[range])[0];
        assert_eq!((view.huge, view.touched), (false, [1 << 17, 0, 0, 0, 0, 0, 0, 0]));
    }

    #[test]
    fn exited_process_is_gone() {
        let Some(stand_in) = StandIn::new() else { return };
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let mut tracker =
            IdleTracker::with(child.id(), &stand_in.bitmap(), Path::new(FLAGS)).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let memory = Reservation::new(EXTENT, EXTENT, Access::ReadWrite).unwrap();
        let range = (memory.base() / EXTENT) as u64;
        assert!(tracker.clear(&layout_of(&memory), &[range]).unwrap_err().is_gone());
    }
}
