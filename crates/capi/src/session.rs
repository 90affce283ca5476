//! The far memory of this process: one pager, the regions in its arena, and the shared heap behind
//! `teramalloc`.
//!
//! One pager serves all regions, because the local limit applies to the process: two pagers could
//! not exchange room. The options of the first region start the pager; later ones must agree with
//! them or be unset.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::sync::{
    Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
};

use hiroma_far::config::Config;
use hiroma_far::control::Snapshot;
use hiroma_far::{Advice, Pager};
use hiroma_units::{EXTENT, PAGE};

use crate::error::CapiError;
use crate::heap::{Allocated, Heap, Resized, SMALL_MAX, Unused};
use crate::options::{self, Request};

/// `teramalloc` maps allocations of this size and more separately; smaller ones share regions.
const OWN_MAP_MIN: usize = 1 << 20;
/// Address space of each region that `teramalloc` divides.
const SHARED_REGION_BYTES: usize = 1 << 30;
/// Maximum of all sizes: beyond the address space, and small enough that rounding up cannot
/// overflow.
const SIZE_MAX: usize = 1 << 47;

static SESSION: OnceLock<Session> = OnceLock::new();
static START: Mutex<()> = Mutex::new(());
/// Locked for reading by every call, and for writing across a fork: so no lock of ours is held by a
/// thread that does not exist in the child.
static GATE: RwLock<()> = RwLock::new(());

thread_local! {
    static FORKING: RefCell<Option<RwLockWriteGuard<'static, ()>>> = const { RefCell::new(None) };
}

/// The pager of this process and its regions.
pub struct Session {
    pager: Pager,
    config: Config,
    regions: RwLock<Regions>,
    tera: Mutex<Tera>,
}

#[derive(Default)]
struct Regions {
    last_id: usize,
    by_id: HashMap<usize, Arc<Region>>,
    id_by_base: BTreeMap<usize, usize>,
}

/// The allocations of `teramalloc`.
#[derive(Default)]
struct Tera {
    shared: BTreeMap<usize, Arc<Region>>,
    own: BTreeMap<usize, usize>,
}

/// A stretch of the arena that a heap divides.
pub struct Region {
    base: usize,
    bytes: usize,
    heap: Mutex<Heap>,
}

/// Result of a reallocation. The caller copies the bytes if required, then frees the old
/// allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moved {
    /// The allocation is at this address, with its content.
    There(usize),
    /// The new allocation is at `to`; the first `bytes` bytes at `from` must be copied there, and
    /// `from` freed.
    Copy { from: usize, to: usize, bytes: usize },
}

/// Enters the library: blocks forks until the guard is dropped. A thread must not enter twice.
pub fn enter() -> RwLockReadGuard<'static, ()> {
    GATE.read().unwrap_or_else(PoisonError::into_inner)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Called before a fork of this process, in the forking thread.
pub fn before_fork() {
    let gate = GATE.write().unwrap_or_else(PoisonError::into_inner);
    if let Some(session) = SESSION.get() {
        // Stacks and the C library's own memory are local here, so no address has to stay local for
        // the fork.
        session.pager.before_fork(&[]);
    }
    FORKING.with(|forking| *forking.borrow_mut() = Some(gate));
}

/// Called after the fork, in the parent.
pub fn after_fork_in_parent() {
    if let Some(session) = SESSION.get() {
        session.pager.after_fork_in_parent();
    }
    FORKING.with(|forking| forking.borrow_mut().take());
}

/// Called after the fork, in the child.
pub fn after_fork_in_child() {
    if let Some(session) = SESSION.get() {
        session.pager.after_fork_in_child();
    }
    FORKING.with(|forking| forking.borrow_mut().take());
}

impl Session {
    /// The session of this process, if far memory was started.
    pub fn running() -> Result<&'static Session, CapiError> {
        SESSION.get().ok_or_else(|| {
            CapiError::Invalid("far memory is not in use yet: create a region first".to_owned())
        })
    }

    /// The session of this process, which is started with `request` if necessary; `on_start` runs
    /// once, after the start.
    pub fn start(
        request: &Request,
        on_start: impl FnOnce(),
    ) -> Result<&'static Session, CapiError> {
        let starting = lock(&START);
        if let Some(session) = SESSION.get() {
            drop(starting);
            options::agree(request, &session.config)?;
            return Ok(session);
        }
        let config = options::config_for(request)?;
        let pager = Pager::start(config.clone())?;
        let session = SESSION.get_or_init(|| Session {
            pager,
            config,
            regions: RwLock::default(),
            tera: Mutex::default(),
        });
        on_start();
        Ok(session)
    }

    /// Creates a region of `bytes` bytes (rounded up to pages), and returns its id, which is never
    /// reused.
    pub fn create_region(&self, bytes: usize) -> Result<usize, CapiError> {
        let region = self.map_region(bytes)?;
        let mut regions = self.regions.write().unwrap_or_else(PoisonError::into_inner);
        regions.last_id += 1;
        let id = regions.last_id;
        regions.id_by_base.insert(region.base, id);
        regions.by_id.insert(id, region);
        Ok(id)
    }

    fn map_region(&self, bytes: usize) -> Result<Arc<Region>, CapiError> {
        if bytes == 0 || bytes > SIZE_MAX {
            return Err(CapiError::Invalid(format!(
                "a region of {bytes} bytes makes no sense: use at least one byte and at most 128 TiB"
            )));
        }
        let bytes = bytes.next_multiple_of(PAGE);
        let base = self.pager.map(bytes, PAGE)?;
        Ok(Arc::new(Region { base, bytes, heap: Mutex::new(Heap::new(base, bytes)) }))
    }

    /// Destroys a region and everything in it.
    pub fn destroy_region(&self, id: usize) -> Result<(), CapiError> {
        let mut regions = self.regions.write().unwrap_or_else(PoisonError::into_inner);
        let region = regions.by_id.remove(&id).ok_or(CapiError::NoRegion)?;
        regions.id_by_base.remove(&region.base);
        drop(regions);
        Ok(self.pager.unmap(region.base, region.bytes)?)
    }

    /// The region with this id.
    pub fn region(&self, id: usize) -> Result<Arc<Region>, CapiError> {
        let regions = self.regions.read().unwrap_or_else(PoisonError::into_inner);
        regions.by_id.get(&id).cloned().ok_or(CapiError::NoRegion)
    }

    /// Allocates memory in `region`.
    pub fn allocate(
        &self,
        region: &Region,
        size: usize,
        align: usize,
    ) -> Result<Allocated, CapiError> {
        let align = check_align(align)?;
        let fits = size <= region.bytes && align <= SIZE_MAX;
        let room = if fits { lock(&region.heap).allocate(size, align) } else { None };
        room.ok_or(CapiError::NoRoom { bytes: size, region: region.bytes })
    }

    /// Frees an allocation in `region`; the content of its pages is discarded, local and far.
    pub fn free(&self, region: &Region, addr: usize) -> Result<(), CapiError> {
        let unused =
            lock(&region.heap).release(addr).map_err(|_| CapiError::NotAllocated { addr })?;
        unused.map_or(Ok(()), |unused| self.give_back(region, unused))
    }

    fn give_back(&self, region: &Region, unused: Unused) -> Result<(), CapiError> {
        // Only zero pages may be handed out again; pages that could not be discarded are lost to
        // the region.
        self.pager.discard(unused.addr, unused.bytes)?;
        lock(&region.heap).give_back(unused);
        Ok(())
    }

    /// Resizes an allocation in `region`.
    pub fn reallocate(
        &self,
        region: &Region,
        addr: usize,
        size: usize,
    ) -> Result<Moved, CapiError> {
        let resized =
            lock(&region.heap).resize(addr, size).map_err(|_| CapiError::NotAllocated { addr })?;
        match resized {
            Resized::Done => Ok(Moved::There(addr)),
            Resized::Cut(unused) => self.give_back(region, unused).map(|()| Moved::There(addr)),
            Resized::MustMove { usable } => {
                let to = self.allocate(region, size, 16)?.addr;
                Ok(Moved::Copy { from: addr, to, bytes: usable.min(size) })
            }
        }
    }

    /// Allocates memory outside the program's regions: `teramalloc`.
    pub fn tera_allocate(&self, size: usize) -> Result<Allocated, CapiError> {
        if size > SIZE_MAX {
            return Err(CapiError::NoRoom { bytes: size, region: self.pager.arena().1 });
        }
        if size >= OWN_MAP_MIN {
            let bytes = size.next_multiple_of(PAGE);
            let addr = self.pager.map(bytes, PAGE)?;
            lock(&self.tera).own.insert(addr, bytes);
            return Ok(Allocated { addr, zeroed: true });
        }
        let mut tera = lock(&self.tera);
        if let Some(room) =
            tera.shared.values().find_map(|region| lock(&region.heap).allocate(size, 16))
        {
            return Ok(room);
        }
        let region = self.map_region(SHARED_REGION_BYTES)?;
        let room = self.allocate(&region, size, 16)?;
        tera.shared.insert(region.base, region);
        Ok(room)
    }

    /// Frees such an allocation: `terafree`.
    pub fn tera_free(&self, addr: usize) -> Result<(), CapiError> {
        let mut tera = lock(&self.tera);
        if let Some(bytes) = tera.own.remove(&addr) {
            drop(tera);
            return Ok(self.pager.unmap(addr, bytes)?);
        }
        let region = tera.shared_at(addr)?;
        drop(tera);
        self.free(&region, addr)
    }

    /// Resizes such an allocation; large ones move without being copied.
    pub fn tera_reallocate(&self, addr: usize, size: usize) -> Result<Moved, CapiError> {
        let mut tera = lock(&self.tera);
        if (OWN_MAP_MIN..=SIZE_MAX).contains(&size) {
            if let Some(&old) = tera.own.get(&addr) {
                let bytes = size.next_multiple_of(PAGE);
                let to = self.pager.resize(addr, old, bytes, true)?;
                tera.own.remove(&addr);
                tera.own.insert(to, bytes);
                return Ok(Moved::There(to));
            }
        }
        let usable = match tera.own.get(&addr) {
            Some(&old) => old,
            None => {
                let region = tera.shared_at(addr)?;
                let usable = lock(&region.heap)
                    .usable(addr)
                    .map_err(|_| CapiError::NotAllocated { addr })?;
                if size < OWN_MAP_MIN && (size <= usable || usable > SMALL_MAX) {
                    drop(tera);
                    return self.reallocate(&region, addr, size);
                }
                usable
            }
        };
        drop(tera);
        let to = self.tera_allocate(size)?.addr;
        Ok(Moved::Copy { from: addr, to, bytes: usable.min(size) })
    }

    /// Advises the pager how `bytes` bytes from `addr` will be used.
    pub fn advise(&self, addr: usize, bytes: usize, advice: Advice) -> Result<(), CapiError> {
        self.check_range(addr, bytes)?;
        let start = addr / PAGE * PAGE;
        // Advice about what is not mapped is no error here.
        let _ = self.pager.advise(start, (addr + bytes).next_multiple_of(PAGE) - start, advice);
        Ok(())
    }

    /// Discards all whole pages among `bytes` bytes from `addr`; they read as zeros afterwards.
    pub fn discard(&self, addr: usize, bytes: usize) -> Result<(), CapiError> {
        self.check_range(addr, bytes)?;
        let (start, end) = (addr.next_multiple_of(PAGE), (addr + bytes) / PAGE * PAGE);
        if start < end {
            self.pager.discard(start, end - start)?;
        }
        Ok(())
    }

    fn check_range(&self, addr: usize, bytes: usize) -> Result<(), CapiError> {
        let (base, len) = self.pager.arena();
        let inside = addr >= base && bytes <= len && addr - base <= len - bytes;
        if inside {
            Ok(())
        } else {
            Err(CapiError::Invalid(format!(
                "{bytes} bytes from {addr:#x} are not all in far memory"
            )))
        }
    }

    /// Changes the local limit.
    pub fn set_limit(&self, bytes: u64) -> Result<(), CapiError> {
        if bytes == 0 {
            return Err(CapiError::Invalid(
                "a local limit of 0 bytes makes no sense: leave the program at least some megabytes".to_owned(),
            ));
        }
        Ok(self.pager.set_limit(bytes)?)
    }

    /// The current counters.
    pub fn snapshot(&self) -> Snapshot {
        self.pager.snapshot()
    }
}

impl Tera {
    fn shared_at(&self, addr: usize) -> Result<Arc<Region>, CapiError> {
        let region = self.shared.range(..=addr).next_back().map(|(_, region)| region);
        region
            .filter(|region| addr < region.base + region.bytes)
            .cloned()
            .ok_or(CapiError::NotAllocated { addr })
    }
}

impl Region {
    /// Address of the first byte.
    pub fn base(&self) -> usize {
        self.base
    }

    /// Length in bytes, a multiple of the page size.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

fn check_align(align: usize) -> Result<usize, CapiError> {
    if align.is_power_of_two() && align <= EXTENT * 512 {
        return Ok(align);
    }
    Err(CapiError::Invalid(format!(
        "an alignment of {align} makes no sense: use a power of two up to 1 GiB"
    )))
}
