//! The machine's pool of reserved huge pages, enlarged for a test and restored afterwards.

use std::fs::{self, File};

use rustix::fs::{FlockOperation, flock};

const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
const SURPLUS: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_overcommit_hugepages";

/// Restores the pool on drop, also when the test fails.
pub struct Pool {
    before: u64,
    _lock: File,
}

fn number(path: &str) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

impl Pool {
    /// The pool with `more` additional pages. None, with a reported reason, if that is not
    /// possible.
    pub fn with(more: u64) -> Option<Pool> {
        // One at a time on this machine, or the second would restore what the first had set.
        let lock = File::create(std::env::temp_dir().join("hiroma-test-huge-pool.lock")).unwrap();
        flock(&lock, FlockOperation::LockExclusive).unwrap();
        let (Some(before), Some(surplus)) = (number(POOL), number(SURPLUS)) else {
            hiroma_testkit::skip!(Machine, "this kernel has no reserved huge pages");
            return None;
        };
        if surplus != 0 {
            hiroma_testkit::skip!(Machine, "the pool grows by itself ({SURPLUS})");
            return None;
        }
        let pool = Pool { before, _lock: lock };
        if let Err(error) = fs::write(POOL, (before + more).to_string()) {
            hiroma_testkit::skip!(Machine, "{POOL}: {error}");
            return None;
        }
        if pool.len() < before + more {
            hiroma_testkit::skip!(Machine, "this machine has no {more} huge pages to reserve now");
            return None;
        }
        Some(pool)
    }

    /// Pages in it, used or not.
    pub fn len(&self) -> u64 {
        number(POOL).unwrap()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let _ = fs::write(POOL, self.before.to_string());
    }
}
