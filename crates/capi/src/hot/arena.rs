//! Memory for hot objects: allocations in an arena whose 2 MiB extents become huge pages when they
//! are first used.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use hiroma_sys::hugearena::{Backing, HugeArena};
use hiroma_units::EXTENT;

use crate::error::CapiError;
use crate::heap::Heap;

/// An arena that the program created.
pub struct Arena {
    memory: HugeArena,
    inner: Mutex<Inner>,
}

struct Inner {
    heap: Heap,
    /// Sizes of the allocations, by address.
    sizes: BTreeMap<usize, usize>,
    used_bytes: usize,
    extents: Vec<Extent>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Extent {
    Empty,
    Small,
    Huge,
}

/// Use of an arena.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArenaUse {
    pub bytes: u64,
    pub used_bytes: u64,
    /// Bytes in extents that have memory.
    pub populated_bytes: u64,
    /// The part of `populated_bytes` that is on huge pages.
    pub huge_bytes: u64,
    pub reserved: bool,
}

static ARENAS: RwLock<BTreeMap<usize, Arc<Arena>>> = RwLock::new(BTreeMap::new());

/// Creates an arena of `bytes` bytes, rounded up to 2 MiB. Its handle is its first address.
pub fn create(bytes: usize) -> Result<usize, CapiError> {
    let len =
        bytes.checked_next_multiple_of(EXTENT).filter(|&len| len > 0 && len <= isize::MAX as usize);
    let len =
        len.ok_or_else(|| CapiError::Invalid(format!("an arena of {bytes} bytes makes no sense")))?;
    let memory = HugeArena::new(len).map_err(|source| CapiError::Hot {
        errno: source.raw_os_error().unwrap_or(libc::ENOMEM),
        message: format!("no address space for an arena of {bytes} bytes: {source}"),
    })?;
    let base = memory.base();
    let inner = Inner {
        heap: Heap::new(base, len),
        sizes: BTreeMap::new(),
        used_bytes: 0,
        extents: vec![Extent::Empty; len / EXTENT],
    };
    let arena = Arc::new(Arena { memory, inner: Mutex::new(inner) });
    ARENAS.write().unwrap_or_else(PoisonError::into_inner).insert(base, arena);
    Ok(base)
}

/// The arena of a handle.
pub fn of(handle: usize) -> Result<Arc<Arena>, CapiError> {
    let found = ARENAS.read().unwrap_or_else(PoisonError::into_inner).get(&handle).cloned();
    found.ok_or_else(|| {
        CapiError::Invalid(
            "this is not an arena: it was destroyed already, or the pointer is wrong".to_owned(),
        )
    })
}

/// Destroys an arena and everything in it.
pub fn destroy(handle: usize) -> Result<(), CapiError> {
    of(handle)?;
    ARENAS.write().unwrap_or_else(PoisonError::into_inner).remove(&handle);
    Ok(())
}

impl Arena {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Allocates `size` bytes at a multiple of `align`; their extents are populated now.
    pub fn allocate(&self, align: usize, size: usize) -> Result<usize, CapiError> {
        if !align.is_power_of_two() || align > EXTENT {
            return Err(CapiError::Invalid(format!(
                "alignment {align} is not a power of two up to 2 MiB"
            )));
        }
        let mut inner = self.lock();
        let room = inner
            .heap
            .allocate(size, align)
            .ok_or(CapiError::NoRoom { bytes: size, region: self.memory.len() })?;
        let (first, last) = self.extents_of(room.addr, size);
        for number in first..=last {
            if inner.extents[number] != Extent::Empty {
                continue;
            }
            match self.memory.populate(number) {
                Ok(huge) => inner.extents[number] = if huge { Extent::Huge } else { Extent::Small },
                Err(source) => {
                    let _ = inner
                        .heap
                        .release(room.addr)
                        .map(|unused| unused.map(|unused| inner.heap.give_back(unused)));
                    return Err(CapiError::Hot {
                        errno: source.raw_os_error().unwrap_or(libc::ENOMEM),
                        message: format!("no memory for the arena: {source}"),
                    });
                }
            }
        }
        inner.sizes.insert(room.addr, size.max(1));
        inner.used_bytes += size.max(1);
        Ok(room.addr)
    }

    /// Frees an allocation. Extents without any allocation release their memory, except in the
    /// reserved pool: that stays ours anyway.
    pub fn release(&self, addr: usize) -> Result<(), CapiError> {
        let mut inner = self.lock();
        let size = inner.sizes.remove(&addr).ok_or(CapiError::NotAllocated { addr })?;
        inner.used_bytes -= size;
        let unused = inner.heap.release(addr).map_err(|_| CapiError::NotAllocated { addr })?;
        if let Some(unused) = unused {
            inner.heap.give_back(unused);
        }
        let (first, last) = self.extents_of(addr, size);
        for number in first..=last {
            if self.memory.backing() == Backing::Transparent
                && !inner.in_use(self.memory.base() + number * EXTENT)
                && self.memory.release(number).is_ok()
            {
                inner.extents[number] = Extent::Empty;
            }
        }
        Ok(())
    }

    fn extents_of(&self, addr: usize, size: usize) -> (usize, usize) {
        let at = addr - self.memory.base();
        (at / EXTENT, (at + size.max(1) - 1) / EXTENT)
    }

    /// The present use of the arena.
    pub fn usage(&self) -> ArenaUse {
        let inner = self.lock();
        let count = |wanted: &dyn Fn(&Extent) -> bool| {
            (inner.extents.iter().filter(|&extent| wanted(extent)).count() * EXTENT) as u64
        };
        ArenaUse {
            bytes: self.memory.len() as u64,
            used_bytes: inner.used_bytes as u64,
            populated_bytes: count(&|&extent| extent != Extent::Empty),
            huge_bytes: count(&|&extent| extent == Extent::Huge),
            reserved: self.memory.backing() == Backing::Reserved,
        }
    }
}

impl Inner {
    /// Whether an allocation touches the extent at `start`.
    fn in_use(&self, start: usize) -> bool {
        let before = self.sizes.range(..start + EXTENT).next_back();
        // Allocations do not overlap: the last one that begins before the end of the extent is the
        // one that reaches furthest.
        before.is_some_and(|(&addr, &size)| addr + size > start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn extents_are_populated_on_use_and_released_empty() {
        let handle = create(3 * EXTENT - 5).unwrap();
        let arena = of(handle).unwrap();
        assert_eq!(arena.usage().populated_bytes, 0);
        let large = arena.allocate(4096, EXTENT + 4096).unwrap();
        assert_eq!(arena.usage().populated_bytes, 2 * EXTENT as u64);
        let small = arena.allocate(16, 600).unwrap();
        assert!(small < large || small >= large + EXTENT + 4096);
        assert!(matches!(arena.allocate(16, 3 * EXTENT), Err(CapiError::NoRoom { .. })));
        arena.release(large).unwrap();
        assert!(matches!(arena.release(large), Err(CapiError::NotAllocated { .. })));
        assert!(matches!(arena.release(small + 1), Err(CapiError::NotAllocated { .. })));
        arena.release(small).unwrap();
        let used = arena.usage();
        assert_eq!((used.used_bytes, used.bytes), (0, 3 * EXTENT as u64));
        assert!(used.reserved || used.populated_bytes == 0);
        destroy(handle).unwrap();
        assert!(destroy(handle).is_err());
    }

    #[test]
    fn invalid_arena_sizes_and_alignments_are_refused() {
        assert!(create(0).is_err() && create(usize::MAX).is_err() && create(1 << 62).is_err());
        let handle = create(1).unwrap();
        let arena = of(handle).unwrap();
        for align in [0, 3, EXTENT * 2] {
            assert!(arena.allocate(align, 1).is_err());
        }
        assert_eq!(arena.allocate(EXTENT, 1).unwrap() % EXTENT, 0);
        destroy(handle).unwrap();
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn allocated_extents_keep_their_memory(steps in proptest::collection::vec((any::<bool>(), 1usize..3_000_000, 0usize..40), 1..40)) {
            let handle = create(16 << 20).unwrap();
            let arena = of(handle).unwrap();
            let mut live: Vec<(usize, usize)> = Vec::new();
            for (free, size, which) in steps {
                if free && !live.is_empty() {
                    let (addr, _) = live.remove(which % live.len());
                    arena.release(addr).unwrap();
                } else if let Ok(addr) = arena.allocate(64, size) {
                    for &(other, len) in &live {
                        prop_assert!(addr + size <= other || other + len <= addr, "{addr:#x} and {other:#x} overlap");
                    }
                    live.push((addr, size));
                }
                let used = arena.usage();
                prop_assert_eq!(used.used_bytes, live.iter().map(|&(_, size)| size as u64).sum::<u64>());
                let inner = arena.lock();
                for &(addr, size) in &live {
                    let (first, last) = arena.extents_of(addr, size);
                    prop_assert!(inner.extents[first..=last].iter().all(|&extent| extent != Extent::Empty));
                }
            }
            destroy(handle).unwrap();
        }
    }
}
