use proptest::prelude::*;

use super::*;

/// A frame in the naive version: when it was filled, when it was last used, how often.
#[derive(Clone, Copy, Debug)]
struct Naive {
    frame: u32,
    came: u64,
    used: u64,
    uses: u32,
    /// CLOCK: used since the hand passed.
    chance: bool,
}

/// The naive version: a list with linear search.
struct Model {
    kind: ReplacementKind,
    frames: Vec<Naive>,
    time: u64,
}

impl Model {
    fn position(&self, frame: u32) -> usize {
        self.frames.iter().position(|naive| naive.frame == frame).unwrap()
    }

    fn victim(&mut self) -> Option<u32> {
        if self.kind == ReplacementKind::Clock {
            while self.frames.first()?.chance {
                let mut passed = self.frames.remove(0);
                passed.chance = false;
                self.frames.push(passed);
            }
            return Some(self.frames.remove(0).frame);
        }
        let key = |naive: &Naive| match self.kind {
            ReplacementKind::Fifo => (0, naive.came),
            ReplacementKind::Lru => (0, naive.used),
            ReplacementKind::Lfu | ReplacementKind::Clock => (naive.uses, naive.used),
        };
        let victim = self.frames.iter().min_by_key(|naive| key(naive))?.frame;
        let position = self.position(victim);
        Some(self.frames.remove(position).frame)
    }
}

proptest! {
    #[test]
    fn victims_match_a_linear_search(steps in prop::collection::vec((0u8..8, 0u32..12), 1..300)) {
        for kind in [ReplacementKind::Fifo, ReplacementKind::Lru, ReplacementKind::Lfu, ReplacementKind::Clock] {
            let mut ranking = AnyRanking::new(kind);
            let mut model = Model { kind, frames: Vec::new(), time: 0 };
            for &(step, frame) in &steps {
                model.time += 1;
                let there = model.frames.iter().any(|naive| naive.frame == frame);
                match step {
                    0 => prop_assert_eq!(ranking.victim(), model.victim(), "{:?}", kind),
                    1 if there => {
                        ranking.remove(frame);
                        let position = model.position(frame);
                        model.frames.remove(position);
                    }
                    _ if there => {
                        ranking.touch(frame);
                        let (time, position) = (model.time, model.position(frame));
                        let naive = &mut model.frames[position];
                        (naive.used, naive.uses, naive.chance) = (time, naive.uses + 1, true);
                    }
                    _ => {
                        ranking.insert(frame);
                        model.frames.push(Naive { frame, came: model.time, used: model.time, uses: 0, chance: false });
                    }
                }
            }
            while let Some(victim) = ranking.victim() {
                prop_assert_eq!(Some(victim), model.victim(), "{:?}", kind);
            }
            prop_assert!(model.frames.is_empty());
        }
    }
}

#[test]
fn saturated_frequencies_fall_back_to_recency() {
    let mut lfu = Lfu::default();
    lfu.insert(0);
    lfu.insert(1);
    (0..1000).for_each(|_| lfu.touch(1));
    (0..300).for_each(|_| lfu.touch(0));
    assert_eq!(lfu.victim(), Some(1));
}
