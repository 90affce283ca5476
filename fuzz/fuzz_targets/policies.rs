//! Events of the pager in any order, as its policies see them: nothing panics, and nobody is told
//! to leave who is not there, nor too often.
#![no_main]

use std::collections::HashMap;

use hiroma_policy::{Fifo, Hint, Lru, Origin, Replacement};
use hiroma_units::BlockId;
use libfuzzer_sys::fuzz_target;

fn play(policy: &mut dyn Replacement, data: &[u8]) {
    let mut owed: HashMap<BlockId, usize> = HashMap::new();
    let mut last = None;
    for pair in data.chunks_exact(2) {
        let order = if pair[0] & 64 == 0 { 0 } else { 9 };
        let block = BlockId::new(u64::from(pair[1]) << order, order);
        let mut owe = |block| *owed.entry(block).or_default() += 1;
        match pair[0] % 8 {
            0 | 1 => {
                owe(block);
                policy.admitted(block, [Origin::Fresh, Origin::Demand, Origin::Stream, Origin::Rescued][usize::from(pair[0] >> 4 & 3)]);
            }
            2 => {
                owe(block);
                policy.admitted(block, Origin::Prefetch);
            }
            3 => {
                owe(block);
                policy.hinted(block, Hint::Cold);
            }
            4 => policy.hinted(block, Hint::Hot),
            5 => {
                if let Some(block) = last.take() {
                    owe(block);
                    policy.put_back(block);
                }
            }
            6 => policy.compact(&mut |block| block.page() % 3 != 0),
            _ => {
                last = policy.next_victim();
                if let Some(block) = last {
                    let left = owed.get_mut(&block).expect("a victim that was never admitted");
                    *left = left.checked_sub(1).expect("a victim that was handed out too often");
                }
            }
        }
    }
    let mut handed = 0;
    while policy.next_victim().is_some() {
        handed += 1;
        assert!(handed <= 2 * data.len() + 2, "it never ends");
    }
    assert!(policy.is_empty());
}

fuzz_target!(|data: &[u8]| {
    play(&mut Lru::new(), data);
    play(&mut Fifo::new(), data);
});
