//! Ends a simulation before it takes the machine's last memory.

use std::fs;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use hiroma_sys::host::memory::{self, Limits};
use hiroma_sys::host::proc;
use hiroma_units::Bytes;

/// Time between two looks; a run takes some 10 MB in it.
const EVERY: Duration = Duration::from_millis(50);
/// What is left to others.
const LEFT: Bytes = Bytes(256 << 20);

/// What simulations may still take.
#[derive(Default)]
pub struct Memory {
    looked_at: Mutex<Option<Instant>>,
}

impl Memory {
    /// What is lacking, if `more` bytes are not to be had. It looks from time to time, and whenever
    /// much is wanted.
    pub fn lacking(&self, more: u64) -> Option<String> {
        let mut looked_at = self.looked_at.lock().expect("no holder panics");
        if more < LEFT.0 / 4 && looked_at.is_some_and(|at| at.elapsed() < EVERY) {
            return None;
        }
        *looked_at = Some(Instant::now());
        let (available, limits) = (memory::available().ok()?, Limits::read());
        let status = fs::read_to_string("/proc/self/status").ok()?;
        let own = Bytes(proc::value(&status, "VmRSS:")? << 10);
        lacking(own, Bytes(more), available, &limits)
    }
}

fn lacking(own: Bytes, more: Bytes, available: Bytes, limits: &Limits) -> Option<String> {
    if let Some((limit, file)) = &limits.cgroup {
        let left = LEFT.0.min(limit.0 / 8);
        if own.0.saturating_add(more.0).saturating_add(left) > limit.0 {
            return Some(format!(
                "the simulation has {own}, needs {more} more, and its cgroup allows {limit} ({})",
                file.display()
            ));
        }
    }
    (more.0.saturating_add(LEFT.0) > available.0).then(|| {
        format!(
            "the simulation has {own}, needs {more} more, and the machine has {available} available"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn limits(cgroup: Option<u64>) -> Limits {
        let cgroup = cgroup.map(|limit| (Bytes(limit), "/sys/fs/cgroup/memory.max".into()));
        Limits { machine: Bytes(64 * GIB), cgroup }
    }

    #[test]
    fn last_memory_of_machine_or_cgroup_is_not_taken() {
        let look = |own, more, available, cgroup| {
            lacking(Bytes(own), Bytes(more), Bytes(available), &limits(cgroup))
        };
        assert_eq!(look(GIB, 0, GIB, None), None);
        assert_eq!(look(GIB, GIB, 2 * GIB, Some(4 * GIB)), None);
        let said = look(GIB, 0, GIB / 8, None).unwrap();
        assert!(said.contains("has 1GiB") && said.contains("128MiB available"), "{said}");
        let said = look(2 * GIB, 2 * GIB, 8 * GIB, Some(4 * GIB)).unwrap();
        assert!(said.contains("allows 4GiB (/sys/fs/cgroup/memory.max)"), "{said}");
        // Small cgroups are used nearly to the end.
        assert_eq!(look(80 << 20, 0, GIB, Some(100 << 20)), None);
    }
}
