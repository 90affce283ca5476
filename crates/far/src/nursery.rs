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
use hiroma_sys::uffd;
use hiroma_sys::vm::{Advise, Reservation};
use hiroma_units::{BlockId, EXTENT, PAGE, PAGES_PER_EXTENT};
use rustix::fs::{Access, access};

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
    /// Other parts in use, in whole extents of their own.
    more: Vec<Range<usize>>,
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
        let nursery = Nursery { arena, memory: start..start + len, more: Vec::new() };
        nursery.open(start, len).map_err(PagerError::io("mprotect"))?;
        Ok(nursery)
    }

    /// Makes a part of the arena usable; it is zeros.
    pub fn open(&self, start: usize, len: usize) -> std::io::Result<()> {
        self.arena.protect(start, len, PROT_RW)?;
        let _ = self.arena.advise(start, len, Advise::DoDump);
        Ok(())
    }

    /// Makes a part unusable, and drops its content.
    pub fn close(&self, start: usize, len: usize) {
        // If this fails, the part is not used again, because it is not empty.
        let _ = self.arena.reclaim(start, len);
        let _ = self.arena.advise(start, len, Advise::DontDump);
    }

    /// The same nursery together with other parts that have been opened.
    pub fn with(&self, more: impl Iterator<Item = Range<usize>>) -> Nursery {
        Nursery { more: more.collect(), ..self.clone() }
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
        let _ = self.arena.advise(self.arena.base(), self.arena.len(), Advise::DoFork);
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
        for part in std::iter::once(&nursery.memory).chain(&nursery.more) {
            self.claim(part.start, part.end)?;
            let mut ranges = Vec::new();
            let end = part.end.div_ceil(EXTENT) as u64;
            map.occupied((part.start / EXTENT) as u64, end, &mut ranges).map_err(failed())?;
            for range in ranges {
                self.take_over_extent(range, &map.used(range).map_err(failed())?);
            }
        }
        self.addresses.uncounted = nursery.memory.len();
        self.publish();
        Ok(())
    }

    /// The pages of 2 MiB range `range` whose bits are set are resident.
    fn take_over_extent(&mut self, range: u64, used: &PageBits) {
        let first = range as usize * PAGES_PER_EXTENT - self.arena.base() / PAGE;
        self.extents[first / PAGES_PER_EXTENT].mode = Mode::Small;
        for page in (0..PAGES_PER_EXTENT).filter(|&page| used[page / 64] >> (page % 64) & 1 == 1) {
            self.admit(BlockId::new((first + page) as u64, 0), Origin::Fresh);
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
        let more = std::iter::once(early.clone());
        let pager = Pager::start_late(config(), nursery.with(more)).unwrap();
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
    fn only_pagers_that_cannot_fail_start_late() {
        assert!(Nursery::suits(&config(), true));
        let with = |stores: &str| Config { stores: parse_stores(stores).unwrap(), ..config() };
        assert!(!Nursery::suits(&with("tcp://127.0.0.1:1"), false));
        assert!(!Nursery::suits(&with("file:/no/such/directory"), true));
        assert!(!Nursery::suits(&Config { block: BlockSize::Fixed(65536), ..config() }, false));
        assert!(!Nursery::suits(&Config { local_limit_bytes: 1 << 20, ..config() }, true));
    }
}
