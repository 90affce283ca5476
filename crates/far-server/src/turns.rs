//! One client with many connections does not take all processors from another one.
//!
//! Each connection has its own thread, and the kernel shares processors between threads: a tenant
//! with eight busy connections would get eight times as much as one with a single one. So while
//! several tenants have requests, no tenant copies in more threads at a time than its share of the
//! processors by weight. A turn is held while bytes are copied, never while a socket is waited for:
//! a slow client holds up nobody.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

use hiroma_policy::lending::share::threads;

use crate::session::lock;
use crate::tenant::Tenant;

/// Tenants are seen as busy at the same time if their requests are no further apart than this.
const TOGETHER_MS: u64 = 100;

/// What all connections share.
pub struct Turns {
    processors: usize,
    /// The number of the tenant that asked last.
    last: AtomicU64,
    /// When it was another one than before.
    changed_ms: AtomicU64,
}

/// The turns of one tenant.
#[derive(Default)]
pub struct Running {
    threads: Mutex<usize>,
    ended: Condvar,
}

/// The right to copy; it ends on drop.
pub struct Turn<'a>(Option<&'a Running>);

impl Turns {
    pub fn new() -> Turns {
        Turns {
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            last: AtomicU64::new(0),
            changed_ms: AtomicU64::new(0),
        }
    }

    /// Waits for a turn of the tenant. `weights` is the sum over all tenants that are there.
    pub fn take<'a>(&self, tenant: &'a Tenant, weights: u64, now_ms: u64) -> Turn<'a> {
        if self.last.swap(tenant.number, Ordering::Relaxed) != tenant.number {
            // The first one counts from time zero.
            self.changed_ms.store(now_ms, Ordering::Relaxed);
        }
        let is_contended =
            now_ms.saturating_sub(self.changed_ms.load(Ordering::Relaxed)) < TOGETHER_MS;
        if !is_contended {
            return Turn(None);
        }
        let most = threads(self.processors, tenant.weight, weights);
        let running = &tenant.running;
        let waited = running
            .ended
            .wait_while(lock(&running.threads), |threads| *threads >= most)
            .unwrap_or_else(PoisonError::into_inner);
        let mut threads = waited;
        *threads += 1;
        Turn(Some(running))
    }
}

impl Turn<'_> {
    /// Nobody else is busy: it may be held for any time.
    pub fn is_free(&self) -> bool {
        self.0.is_none()
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if let Some(running) = self.0 {
            *lock(&running.threads) -= 1;
            running.ended.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;

    use super::*;
    use crate::tenant::Quotas;

    #[test]
    fn tenant_copies_in_its_share_of_threads_while_another_one_does() {
        let tenant = |number| -> Arc<Tenant> {
            Tenant::new(number, "", [127, 0, 0, 1].into(), &Quotas::default())
        };
        let (greedy, modest) = (tenant(1), tenant(2));
        let turns = Turns { processors: 4, last: AtomicU64::new(1), changed_ms: AtomicU64::new(0) };
        // Alone, it is not bounded.
        let all: Vec<_> = (0..16).map(|_| turns.take(&greedy, 1, 1_000)).collect();
        drop(all);
        let most = AtomicUsize::new(0);
        let now = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            drop(turns.take(&modest, 2, 2_000));
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..20 {
                        let turn = turns.take(&greedy, 2, 2_001);
                        most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        std::thread::sleep(Duration::from_micros(50));
                        now.fetch_sub(1, Ordering::SeqCst);
                        drop(turn);
                    }
                });
            }
            // The other one never waits for it.
            (0..1000).for_each(|_| drop(turns.take(&modest, 2, 2_001)));
        });
        assert_eq!(most.load(Ordering::SeqCst), 2);
    }
}
