//! A pool of reserved huge pages that runs out. Changes vm.nr_hugepages, and is therefore a program of its own.

use std::fs::{self, File};

use hiroma_kernel::hugearena::{Backing, HugeArena};
use hiroma_units::EXTENT;
use rustix::fs::{FlockOperation, flock};

const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
const SURPLUS: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_overcommit_hugepages";

/// Puts the pool back, also when the test fails.
struct Pool {
    before: String,
}

impl Drop for Pool {
    fn drop(&mut self) {
        let _ = fs::write(POOL, self.before.trim());
    }
}

#[test]
fn when_the_reserved_pool_is_full_an_arena_takes_other_memory() {
    // One at a time on this machine, or the second would put back what the first had set.
    let lock = File::create(std::env::temp_dir().join("hiroma-test-huge-pool.lock")).unwrap();
    flock(&lock, FlockOperation::LockExclusive).unwrap();
    let (Ok(before), Ok(surplus)) = (fs::read_to_string(POOL), fs::read_to_string(SURPLUS)) else {
        println!("skipped: this kernel has no reserved huge pages");
        return;
    };
    if surplus.trim() != "0" {
        println!("skipped: the pool grows by itself ({SURPLUS})");
        return;
    }
    let wanted = before.trim().parse::<u64>().unwrap() + 4;
    let pool = Pool { before };
    if let Err(error) = fs::write(POOL, wanted.to_string()) {
        println!("skipped: {POOL}: {error}");
        return;
    }
    let mut arenas = Vec::new();
    // Others may have pages of the pool too; it is empty at the latest when all are ours.
    while arenas.last().is_none_or(|arena: &HugeArena| arena.backing() == Backing::Reserved) {
        assert!(arenas.len() as u64 <= wanted, "more reserved pages than there are");
        arenas.push(HugeArena::new(EXTENT).unwrap());
    }
    println!("{} of {wanted} pages of the pool were to be had", arenas.len() - 1);
    for arena in &arenas {
        let huge = arena.populate(0).unwrap();
        assert!(huge || arena.backing() == Backing::Transparent);
        hiroma_kernel::vm::zero(arena.base(), EXTENT);
    }
    drop(arenas);
    drop(pool);
}
