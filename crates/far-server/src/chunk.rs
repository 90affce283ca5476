//! One chunk on loan: in memory, or in the file where its machine needs the memory.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, TryLockError};

use hiroma_far_wire::CHUNK;
use hiroma_sys::hugepool::PoolRange;

use crate::pool::Pool;
use crate::spill::Filed;
use crate::tenant::Tenant;

/// Where the content of a chunk is.
pub enum Place {
    /// At this number in the pool.
    Memory(u32),
    File(Filed),
    /// The file returned something else.
    Lost,
}

/// See the module documentation. It is returned on drop.
pub struct Chunk {
    pub(super) pool: Arc<Pool>,
    pub(super) id: u64,
    pub(super) owner: u64,
    pub(super) tenant: Arc<Tenant>,
    /// Held for reading while content is in use where it is; a chunk in use does not move.
    pub(super) place: RwLock<Place>,
    pub(super) is_in_memory: AtomicBool,
    used_ms: AtomicU64,
}

/// A range of a chunk in memory.
pub fn range(number: u32, at: usize, len: usize) -> PoolRange {
    assert!(at <= CHUNK && len <= CHUNK - at, "outside the chunk");
    PoolRange { at: number as usize * CHUNK + at, len }
}

impl Chunk {
    pub fn new(pool: Arc<Pool>, id: u64, number: u32, owner: u64, tenant: Arc<Tenant>) -> Chunk {
        Chunk {
            used_ms: AtomicU64::new(pool.now_ms()),
            pool,
            id,
            owner,
            tenant,
            place: RwLock::new(Place::Memory(number)),
            is_in_memory: AtomicBool::new(true),
        }
    }

    /// Where the content is; it stays there while this is held.
    pub fn place(&self) -> RwLockReadGuard<'_, Place> {
        self.used_ms.store(self.pool.now_ms(), Ordering::Relaxed);
        self.place.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// When it was last used.
    pub fn used_ms(&self) -> u64 {
        self.used_ms.load(Ordering::Relaxed)
    }

    /// Bytes that are in the file.
    pub fn read_filed(&self, filed: &Filed, at: usize, len: usize) -> io::Result<Vec<u8>> {
        self.pool.spill()?.read(filed, at, len)
    }

    /// Writes bytes, wherever the content is.
    pub fn write(&self, at: usize, bytes: &[u8]) -> io::Result<()> {
        let mut place = self.place.write().unwrap_or_else(PoisonError::into_inner);
        match &mut *place {
            Place::Memory(number) => {
                self.pool.memory.copy_in(range(*number, at, bytes.len()).at, bytes)
            }
            Place::File(filed) => self.pool.spill()?.write(filed, at, bytes),
            Place::Lost => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Moves the content to the file, unless it is in use. Returns whether memory was freed.
    pub fn to_file(&self) -> io::Result<bool> {
        let mut place = match self.place.try_write() {
            Ok(place) => place,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(false),
        };
        let Place::Memory(number) = *place else { return Ok(false) };
        let filed = self.pool.spill()?.store(&self.pool.memory, range(number, 0, CHUNK).at)?;
        *place = Place::File(filed);
        self.is_in_memory.store(false, Ordering::SeqCst);
        self.pool.went_to_file(number);
        Ok(true)
    }

    /// Brings the content back to memory, if it is not in use and there is room. Returns whether it
    /// did.
    pub fn to_memory(&self) -> io::Result<bool> {
        let Ok(mut place) = self.place.try_write() else { return Ok(false) };
        let Place::File(filed) = &*place else { return Ok(false) };
        let Some(number) = self.pool.number_for_filed() else { return Ok(false) };
        let loaded = self.pool.spill()?.load(filed, &self.pool.memory, range(number, 0, CHUNK).at);
        match loaded {
            Ok(()) => {
                self.pool.spill()?.forget(filed);
                *place = Place::Memory(number);
                self.is_in_memory.store(true, Ordering::SeqCst);
                Ok(true)
            }
            Err(error) => {
                self.pool.number_unused(number);
                if error.kind() == io::ErrorKind::InvalidData {
                    self.pool.forget(filed);
                    *place = Place::Lost;
                }
                Err(error)
            }
        }
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        self.pool.unlist(self.id);
        match self.place.get_mut().unwrap_or_else(PoisonError::into_inner) {
            Place::Memory(number) => self.pool.give_back(*number, self.owner),
            Place::File(filed) => self.pool.forget(filed),
            Place::Lost => {}
        }
        self.tenant.used.fetch_sub(1, Ordering::SeqCst);
    }
}
