//! The nursery: managed address space that a process uses before it has a pager.
//!
//! Most processes of a script or of a build live for milliseconds and need little memory, and a
//! pager costs each of them several milliseconds. So a process begins without one. Its arena is
//! reserved, and a part of it, the nursery, is ordinary memory. When the process has grown, its
//! pager starts, and takes over the nursery with what is in it: each page that is there is
//! resident.

use std::ops::Range;
use std::sync::Arc;

use hiroma_policy::Origin;
use hiroma_sys::attributes;
use hiroma_sys::hot::pagemap::{PageBits, Pagemap};
use hiroma_sys::maps;
use hiroma_sys::uffd;
use hiroma_sys::vm::{Advise, Reservation};
use hiroma_units::{BlockId, EXTENT, PAGE, PAGES_PER_EXTENT};
use rustix::fs::{Access, access};

use crate::addresses::IntervalSet;
use crate::config::{BlockSize, Config, LOCAL_MIN, StoreSpec};
use crate::core::Core;
use crate::error::PagerError;
use crate::extent::Mode;
use crate::pager::{PROT_RW, reserve_arena};

/// An arena without a pager, part of which is usable.
#[derive(Clone, Debug)]
pub struct Nursery {
    pub(crate) arena: Arc<Reservation>,
    /// mimalloc's part.
    memory: Range<usize>,
    /// Other parts in use.
    more: Mapped,
}

/// What a process without a pager has mapped in its arena, beside mimalloc's part.
#[derive(Clone, Debug, Default)]
pub struct Mapped {
    /// All that is in use.
    pub ranges: Vec<Range<usize>>,
    /// Those where something else is mapped.
    pub foreign: Vec<Range<usize>>,
    /// Those that children do not get.
    pub unforked: Vec<Range<usize>>,
    /// Address space that was reserved for the program's break. What is in use of it is in `ranges`.
    pub reserved: Option<Range<usize>>,
}

impl Nursery {
    /// Whether a process with this configuration may begin without a pager: its blocks are pages,
    /// and no store can fail to be reached later. The first process of a run ends at once if its
    /// pager could not start.
    pub fn suits(config: &Config, is_first: bool) -> bool {
        if is_first && !could_start(config) {
            return false;
        }
        matches!(config.block, BlockSize::Auto)
            && config
                .stores
                .iter()
                .all(|store| matches!(store, StoreSpec::Compressed { .. } | StoreSpec::File { .. }))
    }

    /// Reserves an arena, and makes `len` bytes of it, at a multiple of `align`, readable and
    /// writable.
    pub fn reserve(config: &Config, len: usize, align: usize) -> Result<Nursery, PagerError> {
        let arena = Arc::new(reserve_arena(config.arena_bytes as usize)?);
        let start = arena.base().next_multiple_of(align);
        if start + len > arena.base() + arena.len() {
            return Err(PagerError::io("reserving address space")(
                std::io::ErrorKind::OutOfMemory.into(),
            ));
        }
        let nursery = Nursery { arena, memory: start..start + len, more: Mapped::default() };
        nursery.open(start, len).map_err(PagerError::io("mprotect"))?;
        Ok(nursery)
    }

    /// Makes a part of the arena usable; it is zeros.
    pub fn open(&self, start: usize, len: usize) -> std::io::Result<()> {
        self.arena.protect(start, len, PROT_RW)?;
        self.dumps(start, len);
        Ok(())
    }

    /// Core files have a part from now on.
    pub fn dumps(&self, start: usize, len: usize) {
        let _ = self.arena.advise(start, len, Advise::DoDump);
    }

    /// Changes the protection of a part (`PROT_*`).
    pub fn protect(&self, start: usize, len: usize, prot: i32) -> std::io::Result<()> {
        self.arena.protect(start, len, prot)
    }

    /// Replaces a part by zeros with this protection.
    pub fn renew(&self, start: usize, len: usize, prot: i32) -> std::io::Result<()> {
        self.arena.renew(start, len, prot)?;
        if prot == libc::PROT_NONE {
            let _ = self.arena.advise(start, len, Advise::DontDump);
        }
        Ok(())
    }

    /// Makes a part unusable, and drops its content. Fails where the process has too many mappings.
    pub fn close(&self, start: usize, len: usize) -> std::io::Result<()> {
        self.arena.reclaim(start, len)?;
        let _ = self.arena.advise(start, len, Advise::DontDump);
        Ok(())
    }

    /// Drops the content of a part, which stays as it is otherwise.
    pub fn empty(&self, start: usize, len: usize) -> std::io::Result<()> {
        self.arena.advise(start, len, Advise::Drop)
    }

    /// The same nursery together with other parts that are in use.
    pub fn with(&self, more: Mapped) -> Nursery {
        Nursery { more, ..self.clone() }
    }

    /// The parts of the arena in which nothing else is mapped.
    pub(crate) fn ours(&self) -> Vec<(usize, usize)> {
        let mut foreign = IntervalSet::default();
        self.more.foreign.iter().for_each(|part| foreign.insert(part.start, part.end));
        foreign.gaps(self.arena.base(), self.arena.base() + self.arena.len())
    }

    /// The part for the heap.
    pub fn memory(&self) -> Range<usize> {
        self.memory.clone()
    }

    /// Whether another thread of the program should start the pager, because the calling one has less
    /// of the processors.
    pub fn is_slow_thread() -> bool {
        attributes::is_slow()
    }

    /// First address and length of the arena.
    pub fn arena(&self) -> (usize, usize) {
        (self.arena.base(), self.arena.len())
    }

    /// After a pager could not take it over: forked children have this memory again.
    pub(crate) fn is_left_alone(&self) {
        let mut unforked = IntervalSet::default();
        self.more.unforked.iter().for_each(|part| unforked.insert(part.start, part.end));
        let ours = self.ours();
        for (from, to) in ours.iter().flat_map(|&(from, to)| unforked.gaps(from, to)) {
            let _ = self.arena.advise(from, to - from, Advise::DoFork);
        }
    }
}

fn could_start(config: &Config) -> bool {
    let is_usable = |store: &StoreSpec| match store {
        StoreSpec::File { dir, .. } => access(dir, Access::WRITE_OK | Access::EXEC_OK).is_ok(),
        _ => true,
    };
    config.local_limit_bytes >= LOCAL_MIN.0
        && config.stores.iter().all(is_usable)
        && uffd::probe().is_ok()
}

impl Core {
    /// Takes over a nursery. It has been registered with userfaultfd, so no page of it comes
    /// into being any more; those that are there are resident from now on.
    pub(crate) fn take_over(&mut self, nursery: &Nursery) -> Result<(), PagerError> {
        let failed = || PagerError::io("reading the page map of this process");
        let map = Pagemap::own().map_err(failed())?;
        let (base, end) = (self.arena.base(), self.arena.base() + self.arena.len());
        let areas = maps::areas(base, end)
            .map_err(PagerError::io("reading the mappings of this process"))?;
        // Short mappings share extents.
        let mut extents = IntervalSet::default();
        for part in std::iter::once(&nursery.memory).chain(&nursery.more.ranges) {
            self.claim_as_is(part.start, part.end);
            extents.insert(part.start / EXTENT, part.end.div_ceil(EXTENT));
        }
        let mut claimed = extents.clone();
        if let Some(part) = &nursery.more.reserved {
            self.claim_as_is(part.start, part.end);
            claimed.insert(part.start / EXTENT, part.end.div_ceil(EXTENT));
        }
        for part in &nursery.more.foreign {
            self.addresses.foreign.insert(part.start, part.end);
            self.mark_mixed(part.start, part.end);
        }
        for part in &nursery.more.unforked {
            self.addresses.unforked.set(part.start, part.end, true);
        }
        for area in areas.iter().filter(|area| area.prot != PROT_RW) {
            for (from, to) in claimed.overlaps(area.start / EXTENT, area.end.div_ceil(EXTENT)) {
                let (from, to) = ((from * EXTENT).max(area.start), (to * EXTENT).min(area.end));
                for (from, to) in self.addresses.foreign.gaps(from, to) {
                    self.addresses.special.insert(from, to);
                    self.mark_mixed(from, to);
                    if area.prot & libc::PROT_EXEC != 0 {
                        self.addresses.code.insert(from, to);
                    }
                }
            }
        }
        let mut ranges = Vec::new();
        for (from, to) in extents.overlaps(0, usize::MAX) {
            ranges.clear();
            map.occupied(from as u64, to as u64, &mut ranges).map_err(failed())?;
            for &range in &ranges {
                self.take_over_extent(range, &map.used(range).map_err(failed())?);
            }
        }
        // The process may have forked, by whatever call, or have been forked: pages are shared then.
        self.forked = true;
        let reserved = nursery.more.reserved.as_ref().map_or(0, |part| part.len());
        self.addresses.uncounted = nursery.memory.len() + reserved;
        self.publish();
        Ok(())
    }

    /// The pages of 2 MiB range `range` whose bits are set are resident.
    fn take_over_extent(&mut self, range: u64, used: &PageBits) {
        let first = range as usize * PAGES_PER_EXTENT - self.arena.base() / PAGE;
        self.extents[first / PAGES_PER_EXTENT].mode = Mode::Small;
        let start = self.arena.base() + first * PAGE;
        let foreign = self.addresses.foreign.overlaps(start, start + EXTENT);
        let is_ours = |page: usize| {
            let addr = start + page * PAGE;
            !foreign.iter().any(|&(from, to)| from <= addr && addr < to)
        };
        let is_used = |page: &usize| used[page / 64] >> (page % 64) & 1 == 1 && is_ours(*page);
        let mut page = 0;
        while page < PAGES_PER_EXTENT {
            let run = (page..PAGES_PER_EXTENT).take_while(is_used).count();
            self.admit_fresh(BlockId::new((first + page) as u64, 0), run, Origin::Fresh);
            page += run.max(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use hiroma_sys::vm::{self, touch};

    use super::*;
    use crate::config::parse_stores;
    use crate::{Counter, Pager};

    const MIB: usize = 1 << 20;

    fn config() -> Config {
        let stores = parse_stores("compressed:64M").unwrap();
        Config { local_limit_bytes: 32 << 20, stores, ..Config::default() }
    }

    fn words(start: usize, len: usize) -> Vec<u64> {
        let mut words = vec![0_u64; len / 8];
        vm::copy(words.as_mut_ptr() as usize, start, len);
        words
    }

    #[test]
    fn pages_of_a_nursery_are_resident_and_can_leave() {
        let nursery = Nursery::reserve(&config(), 64 * MIB, 2 * EXTENT).unwrap();
        let heap = nursery.memory();
        let early = heap.end + EXTENT..heap.end + EXTENT + MIB;
        nursery.open(early.start, MIB).unwrap();
        let content: Vec<u64> = (0..MIB as u64 / 8).map(|at| at * 7 + 1).collect();
        // Two parts that end within extents, and a page that was only read.
        let parts = [heap.start + 3 * MIB, heap.start + 40 * MIB + PAGE, early.start];
        for part in parts {
            vm::copy(part, content.as_ptr() as usize, MIB);
        }
        let zero = heap.start + 20 * MIB;
        assert_eq!(words(zero, PAGE)[0], 0);
        let nursery = nursery.with(Mapped { ranges: vec![early.clone()], ..Mapped::default() });
        let pager = Pager::start_late(config(), nursery).unwrap();
        let resident = pager.snapshot().get(Counter::ResidentBytes) as usize;
        assert!((3 * MIB + PAGE..4 * MIB).contains(&resident), "{resident}");
        // The kernel makes a page of its own of the zero page, which the pager has to know of.
        touch(zero, PAGE);
        pager.evict_all().unwrap();
        assert!(pager.snapshot().get(Counter::ResidentBytes) < MIB as u64);
        for part in parts {
            assert_eq!(words(part, MIB), content);
        }
        pager.discard(zero, PAGE).unwrap();
        assert_eq!(words(zero, PAGE), [0; PAGE / 8]);
        pager.unmap(early.start, MIB).unwrap();
        let fresh = pager.map(MIB, PAGE).unwrap();
        assert_eq!(words(fresh, MIB), vec![0; MIB / 8]);
        pager.stop();
    }

    #[test]
    fn protections_and_what_is_foreign_stay_when_the_pager_takes_over() {
        let nursery = Nursery::reserve(&config(), 64 * MIB, 2 * EXTENT).unwrap();
        let start = nursery.memory().end + EXTENT;
        let at = |page: usize| start + page * PAGE;
        // Read-only, with content; reserved; unmapped; something else; not for children; plain.
        nursery.open(start, 40 * PAGE).unwrap();
        let content: Vec<u64> = (0..40 * PAGE as u64 / 8).map(|at| at * 5 + 1).collect();
        vm::copy(start, content.as_ptr() as usize, 40 * PAGE);
        nursery.protect(at(0), 4 * PAGE, libc::PROT_READ).unwrap();
        nursery.protect(at(36), 2 * PAGE, libc::PROT_READ | libc::PROT_EXEC).unwrap();
        nursery.renew(at(4), 4 * PAGE, libc::PROT_NONE).unwrap();
        nursery.close(at(8), 4 * PAGE).unwrap();
        nursery.renew(at(12), 4 * PAGE, PROT_RW | libc::PROT_EXEC).unwrap();
        vm::copy(at(12), content.as_ptr() as usize, PAGE);
        let ranges = vec![at(0)..at(8), at(12)..at(40)];
        let [foreign, unforked] = [at(12)..at(16), at(16)..at(20)].map(|part| Vec::from([part]));
        let taken = nursery.with(Mapped { ranges, foreign, unforked, reserved: None });
        let pager = Pager::start_late(config(), taken).unwrap();
        pager.evict_all().unwrap();
        // Code stays.
        assert_eq!(pager.snapshot().get(Counter::ResidentBytes), 2 * PAGE as u64);
        let protection = |page: usize| pager.protection(at(page)).unwrap() as i32;
        assert_eq!([0, 4, 20].map(protection), [libc::PROT_READ, 0, PROT_RW]);
        assert_eq!(maps::area_at(at(8)).unwrap().prot, 0);
        let page = |page: usize| words(at(page), PAGE);
        let of = |page: usize| &content[page * PAGE / 8..(page + 1) * PAGE / 8];
        assert!(page(3) == of(3) && page(12) == of(0) && page(16) == of(16) && page(39) == of(39));
        assert!(pager.all_mapped(at(4), 4 * PAGE).is_ok());
        assert!(pager.all_mapped(at(8), PAGE).is_err());
        // What was reserved can be used, and so can what was foreign.
        pager.refresh(at(4), 4 * PAGE, PROT_RW).unwrap();
        pager.refresh(at(12), 4 * PAGE, PROT_RW).unwrap();
        for at in [at(4), at(12)] {
            assert_eq!(words(at, 4 * PAGE), vec![0; 4 * PAGE / 8]);
            vm::copy(at, content.as_ptr() as usize, PAGE);
        }
        pager.protect(at(0), 4 * PAGE, PROT_RW).unwrap();
        touch(at(0), PAGE);
        pager.evict_all().unwrap();
        assert!(page(4) == of(0) && page(12) == of(0) && page(20) == of(20));
        pager.unmap(at(0), 8 * PAGE).unwrap();
        pager.unmap(at(12), 28 * PAGE).unwrap();
        pager.stop();
    }

    #[test]
    fn only_pagers_that_cannot_fail_start_late() {
        assert!(Nursery::suits(&config(), true));
        let with = |stores: &str| Config { stores: parse_stores(stores).unwrap(), ..config() };
        assert!(!Nursery::suits(&with("tcp://127.0.0.1:1"), false));
        assert!(!Nursery::suits(&with("file:/no/such/directory"), true));
        assert!(!Nursery::suits(&Config { block: BlockSize::Fixed(65536), ..config() }, false));
        assert!(!Nursery::suits(&Config { local_limit_bytes: 1 << 20, ..config() }, true));
    }
}
