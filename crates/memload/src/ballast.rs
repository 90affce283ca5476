//! Memory that the hypervisor keeps backed for measurements.
//!
//! A hypervisor reclaims the memory that its guest leaves free: with free page reporting (Linux
//! 5.7, `mm/page_reporting.c`) within two seconds. The next touch of such memory takes up to 30
//! times as long, and which run of a comparison pays for it is chance. Therefore memory is held,
//! touched, and released a little ahead of the measured program as it grows.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result};
use hiroma_sys::host::memory;
use hiroma_sys::workload::Region;
use hiroma_units::Bytes;

/// Number of bytes that are released at a time.
const CHUNK: u64 = 32 << 20;
/// Number of bytes that are kept backed and free ahead of the program. It grows by 7 GB/s at most,
/// so it can take a seventh of a GB between two checks.
const AHEAD: u64 = 384 << 20;
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Held memory. A thread releases it as other programs need it.
pub struct Ballast {
    shared: Arc<Shared>,
    letting_go: Option<JoinHandle<()>>,
}

struct Shared {
    wanted: usize,
    held: Mutex<Held>,
    stopping: AtomicBool,
}

#[derive(Default)]
struct Held {
    chunks: Vec<Region>,
    /// Free memory of the machine when all of the memory was held.
    free_at_load: u64,
}

impl Ballast {
    /// Takes up to `wanted` bytes, at most half of the machine's available memory.
    pub fn new(wanted: Bytes) -> Result<Ballast> {
        let most = memory::available()?.0 / 2;
        let shared = Arc::new(Shared {
            wanted: (wanted.0.min(most) / CHUNK) as usize,
            held: Mutex::default(),
            stopping: AtomicBool::new(false),
        });
        shared.load()?;
        let of_thread = Arc::clone(&shared);
        let letting_go = thread::Builder::new()
            .name("ballast".into())
            .spawn(move || {
                while !of_thread.stopping.load(Ordering::Relaxed) {
                    thread::sleep(LOOK_EVERY);
                    of_thread.held().keep_ahead(memory::free().0);
                }
            })
            .context("starting a thread that lets memory go")?;
        Ok(Ballast { shared, letting_go: Some(letting_go) })
    }

    /// Takes all of the memory again. Called before every run.
    pub fn load(&self) -> Result<()> {
        self.shared.load()
    }
}

impl Drop for Ballast {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::Relaxed);
        if let Some(thread) = self.letting_go.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn load(&self) -> Result<()> {
        let mut held = self.held();
        while held.chunks.len() < self.wanted {
            let chunk =
                Region::map(CHUNK as usize).context("taking memory that is to stay backed")?;
            chunk.populate();
            held.chunks.push(chunk);
        }
        held.free_at_load = memory::free().0;
        let free = held.free_at_load;
        held.keep_ahead(free);
        Ok(())
    }
}

impl Held {
    /// Releases memory until `AHEAD` bytes are free beyond what others took since everything was
    /// held; `free` is the present amount.
    fn keep_ahead(&mut self, free: u64) {
        let missing = (self.free_at_load + AHEAD).saturating_sub(free);
        let left = self.chunks.len().saturating_sub(missing.div_ceil(CHUNK) as usize);
        self.chunks.truncate(left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(chunks: usize, free_at_load: u64) -> Held {
        Held { chunks: (0..chunks).map(|_| Region::map(4096).unwrap()).collect(), free_at_load }
    }

    #[test]
    fn ballast_releases_taken_amount_plus_headroom() {
        let free = 4 << 30;
        let mut full = held(100, free);
        full.keep_ahead(free);
        assert_eq!(full.chunks.len(), 88);
        // Released and not taken by others: that is enough.
        full.keep_ahead(free + AHEAD);
        assert_eq!(full.chunks.len(), 88);
        full.keep_ahead(free + AHEAD - 10 * CHUNK);
        assert_eq!(full.chunks.len(), 78);
        full.keep_ahead(0);
        assert!(full.chunks.is_empty());
    }

    #[test]
    fn ballast_is_refilled_for_the_next_run() {
        let ballast = Ballast::new(Bytes(512 << 20)).unwrap();
        let count = || ballast.shared.held().chunks.len();
        // Memory use by other programs can only cause more to be released.
        assert!(count() <= 4, "{}", count());
        ballast.shared.held().chunks.clear();
        ballast.load().unwrap();
        assert_eq!(ballast.shared.wanted, 16);
        assert!(count() <= 4, "{}", count());
    }
}
