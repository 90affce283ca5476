//! A pool of reserved huge pages that is exhausted. Changes vm.nr_hugepages, and is therefore a
//! separate program.

#[path = "support/pool.rs"]
mod pool;

use hiroma_sys::hugearena::{Backing, HugeArena};
use hiroma_units::EXTENT;
use pool::Pool;

#[test]
fn arena_falls_back_when_reserved_pool_is_full() {
    let Some(pool) = Pool::with(4) else { return };
    let wanted = pool.len();
    let mut arenas = Vec::new();
    // Other processes may have pages of the pool too; it is empty at the latest when all are ours.
    while arenas.last().is_none_or(|arena: &HugeArena| arena.backing() == Backing::Reserved) {
        assert!(arenas.len() as u64 <= wanted, "more reserved pages than there are");
        arenas.push(HugeArena::new(EXTENT).unwrap());
    }
    println!("{} of {wanted} pages of the pool were to be had", arenas.len() - 1);
    for arena in &arenas {
        let huge = arena.populate(0).unwrap();
        assert!(huge || arena.backing() == Backing::Transparent);
        hiroma_sys::vm::zero(arena.base(), EXTENT);
    }
    drop(arenas);
    drop(pool);
}
