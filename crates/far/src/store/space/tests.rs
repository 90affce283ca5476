use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

fn take(space: &mut Space, sectors: usize) -> Option<Vec<Loc>> {
    let mut locs = vec![Loc(u32::MAX); sectors];
    space.allocate(&mut locs).ok().map(|()| locs)
}

#[test]
fn whole_chunk_is_aligned_after_small_requests() {
    let mut space = Space::new(8192, 64 << 20);
    take(&mut space, 3).unwrap();
    let locs = take(&mut space, 256).unwrap();
    assert_eq!(
        runs(&locs, usize::MAX).collect::<Vec<_>>(),
        [Run { first: Loc(256), sectors: 256 }]
    );
    assert_eq!(take(&mut space, 2).unwrap(), [Loc(3), Loc(4)]);
}

#[test]
fn sectors_of_any_size_lie_in_one_chunk() {
    let mut space = Space::new(1376, 64 << 20);
    let locs = take(&mut space, 3000).unwrap();
    for loc in &locs {
        assert!(offset_in_chunk(*loc, 1376) + 1376 <= CHUNK_BYTES);
    }
    let chunks: BTreeSet<u32> = locs.iter().map(|&loc| chunk_of(loc, 1376).0).collect();
    assert_eq!(chunks.into_iter().collect::<Vec<_>>(), [0, 1]);
    assert_eq!((chunk_of(Loc(1523), 1376), chunk_of(Loc(1524), 1376)), (ChunkNo(0), ChunkNo(1)));
    assert_eq!(offset_in_chunk(Loc(1525), 1376), 1376);
}

#[test]
fn emptied_chunk_is_reported_once_and_reused() {
    let mut space = Space::new(1 << 20, 4 << 20);
    let (first, second) = (take(&mut space, 2).unwrap(), take(&mut space, 2).unwrap());
    assert_eq!(take(&mut space, 1), None);
    let mut released = Vec::new();
    space.free(&first, &mut released);
    assert_eq!(released, [ChunkNo(0)]);
    assert_eq!(space.occupied_bytes(), 2 << 20);
    assert_eq!(take(&mut space, 2).unwrap(), first);
    space.free(&second[..1], &mut released);
    assert_eq!(released.len(), 1);
}

#[test]
fn a_withheld_chunk_is_not_handed_out() {
    let mut space = Space::new(1 << 20, 4 << 20);
    let locs = take(&mut space, 4).unwrap();
    assert!(!space.withhold(ChunkNo(1)));
    space.free(&locs, &mut Vec::new());
    assert!(space.withhold(ChunkNo(0)));
    assert_eq!((take(&mut space, 2).unwrap()[0], take(&mut space, 1)), (Loc(2), None));
    space.reopen(ChunkNo(0));
    assert_eq!(take(&mut space, 2).unwrap()[0], Loc(0));
}

#[test]
fn a_barred_chunk_gets_nothing_until_it_is_empty() {
    let mut space = Space::new(512 << 10, 6 << 20);
    let locs = take(&mut space, 6).unwrap();
    space.bar(ChunkNo(1), true);
    assert_eq!(take(&mut space, 1).unwrap(), [Loc(8)], "not the gap in the barred one");
    space.bar(ChunkNo(1), false);
    assert_eq!(take(&mut space, 5).unwrap()[3..], [Loc(6), Loc(7)]);
    space.bar(ChunkNo(1), true);
    space.free(&[locs[4], locs[5], Loc(6), Loc(7)], &mut Vec::new());
    assert_eq!(take(&mut space, 1).unwrap(), [Loc(4)], "it was empty");
}

#[test]
fn a_request_that_does_not_fit_takes_nothing() {
    let mut space = Space::new(4096, (2 << 20) + 8 * 4096);
    assert_eq!(take(&mut space, 512 + 9), None);
    assert_eq!((space.live_bytes(), space.occupied_bytes()), (0, 0));
    assert_eq!(take(&mut space, 512 + 8).unwrap().len(), 520);
    assert_eq!(take(&mut space, 1), None);
    space.raise_limit((2 << 20) + 9 * 4096);
    assert_eq!(take(&mut space, 1).unwrap(), [Loc(520)]);
}

#[test]
fn frozen_chunk_is_untouched_until_all_forks_end() {
    let mut space = Space::new(8192, 64 << 20);
    let before = take(&mut space, 2).unwrap();
    let (first, second) = (space.freeze(), space.freeze());
    let mut released = Vec::new();
    space.free(&before, &mut released);
    assert_eq!((space.live_bytes(), space.kept_bytes()), (0, 2 * 8192));
    assert!(take(&mut space, 4).unwrap().iter().all(|loc| loc.0 >= 256));
    space.thaw(first, &mut released);
    assert!(released.is_empty());
    space.thaw(second, &mut released);
    assert_eq!((released, space.kept_bytes()), (vec![ChunkNo(0)], 4 * 8192));
}

#[test]
fn inherited_chunks_are_untouched_until_empty() {
    let mut space = Space::new(8192, 4 << 20);
    let before = take(&mut space, 300).unwrap();
    let freeze = space.freeze();
    space.seal();
    assert_eq!(space.limit_bytes(), 8 << 20);
    let own = take(&mut space, 200).unwrap();
    assert!(own.iter().all(|loc| loc.0 >= 512));
    let mut released = Vec::new();
    space.thaw(freeze, &mut released);
    space.free(&before[..256], &mut released);
    assert_eq!(released, [ChunkNo(0)]);
    assert!(take(&mut space, 256).is_some_and(|locs| locs[0] == Loc(0)));
}

#[test]
fn preferred_chunks_come_before_lower_ones() {
    let mut space = Space::new(8192, 16 << 20);
    let locs = take(&mut space, 4 * 256).unwrap();
    space.free(&locs, &mut Vec::new());
    let preferred = BTreeSet::from([2, 3]);
    let mut out = [Loc(0); 3 * 256];
    space.allocate_preferring(&mut out, &preferred).unwrap();
    assert_eq!([out[0], out[256], out[512]], [Loc(512), Loc(768), Loc(0)]);
    space.free(&out, &mut Vec::new());
    space.allocate_preferring(&mut out[..3], &preferred).unwrap();
    assert_eq!(out[..3], [Loc(512), Loc(513), Loc(514)]);
}

#[test]
fn gaps_of_usable_chunks_are_filled() {
    let mut space = Space::new(1 << 20, 16 << 20);
    let locs = take(&mut space, 10).unwrap();
    space.free(&[locs[1], locs[3], locs[8], locs[9]], &mut Vec::new());
    let mut out = [Loc(0); 3];
    let is_usable = |chunk: ChunkNo| chunk.0 != 0;
    space.allocate_among(&mut out, is_usable).unwrap();
    assert_eq!(out, [Loc(3), Loc(8), Loc(9)]);
    assert_eq!(space.allocate_among(&mut out[..1], is_usable), Err(NoRoom));
    assert_eq!(space.live_bytes(), 9 << 20);
}

#[test]
fn limit_is_raised_within_the_largest_file() {
    let mut space = Space::new(1 << 20, 8 << 20);
    take(&mut space, 6).unwrap();
    let mut child = space.clone();
    child.seal_within(9 << 20);
    assert_eq!(child.limit_bytes(), 9 << 20);
    assert_eq!(take(&mut child, 3).unwrap(), [Loc(6), Loc(7), Loc(8)]);
    assert_eq!(take(&mut child, 1), None);
    // A limit that was lowered: what is there beyond it is read and freed only.
    space.free(&[Loc(4), Loc(5)], &mut Vec::new());
    space.seal_within(3 << 20);
    assert_eq!((take(&mut space, 1), space.limit_bytes()), (None, 6 << 20));
    space.free(&[Loc(0), Loc(1), Loc(2), Loc(3)], &mut Vec::new());
    assert_eq!((take(&mut space, 2), take(&mut space, 1)), (Some(vec![Loc(0), Loc(1)]), None));
}

#[test]
#[should_panic(expected = "not in use")]
fn double_free_panics() {
    let mut space = Space::new(8192, 4 << 20);
    let locs = take(&mut space, 2).unwrap();
    space.free(&[locs[0], locs[0]], &mut Vec::new());
}

#[derive(Clone, Debug)]
enum Op {
    Take(usize),
    Free { from: usize, count: usize },
    Freeze,
    Thaw(usize),
    Raise(u64),
    Seal,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        8 => prop_oneof![1usize..20, Just(64), Just(1), 1usize..150].prop_map(Op::Take),
        8 => (0usize..1000, 1usize..100).prop_map(|(from, count)| Op::Free { from, count }),
        1 => Just(Op::Freeze),
        2 => (0usize..8).prop_map(Op::Thaw),
        1 => (0u64..1000).prop_map(Op::Raise),
        1 => Just(Op::Seal),
    ];
    proptest::collection::vec(op, 1..120)
}

/// The naive model: which sectors are in use, and which are frozen or sealed.
#[derive(Default)]
struct Model {
    live: BTreeSet<u32>,
    /// Chunks of each freeze.
    freezes: BTreeMap<u64, BTreeSet<u32>>,
    sealed: BTreeSet<u32>,
}

impl Model {
    fn chunks_with_content(&self, per_chunk: u32) -> BTreeSet<u32> {
        let frozen = self.freezes.values().flatten().copied();
        self.live.iter().map(|sector| sector / per_chunk).chain(frozen).collect()
    }
}

fn sector() -> impl Strategy<Value = usize> {
    prop_oneof![4 => (12u32..22).prop_map(|shift| 1usize << shift), 1 => (8usize..4096).prop_map(|units| 16 * units)]
}

proptest! {
    #[test]
    fn space_matches_a_naive_map(ops in ops(), sector in sector(), limit_sectors in 1u64..400) {
        let per_chunk = (CHUNK_BYTES / sector) as u32;
        let mut space = Space::new(sector, limit_sectors * sector as u64);
        let mut model = Model::default();
        let mut ids = Vec::new();
        for op in ops {
            let before = model.chunks_with_content(per_chunk);
            let mut released = Vec::new();
            match op {
                Op::Take(count) => match take(&mut space, count) {
                    Some(locs) => for loc in locs {
                        let chunk = loc.0 / per_chunk;
                        prop_assert!(u64::from(loc.0) < space.limit_bytes() / sector as u64);
                        prop_assert!(model.freezes.values().all(|kept| !kept.contains(&chunk)) && !model.sealed.contains(&chunk));
                        prop_assert!(model.live.insert(loc.0));
                    },
                    None => {
                        let usable = (0..(space.limit_bytes() / sector as u64) as u32).filter(|sector| {
                            let chunk = sector / per_chunk;
                            !model.live.contains(sector) && !model.sealed.contains(&chunk) && model.freezes.values().all(|kept| !kept.contains(&chunk))
                        });
                        prop_assert!(usable.count() < count, "there was room for {count}");
                    }
                },
                Op::Free { from, count } => {
                    let victims: Vec<Loc> = model.live.iter().copied().cycle().skip(from % model.live.len().max(1)).take(count.min(model.live.len())).map(Loc).collect();
                    victims.iter().for_each(|loc| { model.live.remove(&loc.0); });
                    space.free(&victims, &mut released);
                }
                Op::Freeze => {
                    model.freezes.insert(ids.len() as u64, before.clone());
                    ids.push(space.freeze());
                }
                Op::Thaw(index) => if let Some(&id) = ids.get(index) {
                    model.freezes.remove(&(index as u64));
                    space.thaw(id, &mut released);
                },
                Op::Raise(sectors) => space.raise_limit(sectors * sector as u64),
                Op::Seal => {
                    model.freezes.clear();
                    model.sealed = model.chunks_with_content(per_chunk);
                    space.seal();
                }
            }
            let after = model.chunks_with_content(per_chunk);
            model.sealed.retain(|chunk| after.contains(chunk));
            if !matches!(op, Op::Seal) {
                let gone: Vec<u32> = before.difference(&after).copied().collect();
                let mut reported: Vec<u32> = released.iter().map(|chunk| chunk.0).collect();
                reported.sort_unstable();
                prop_assert_eq!(reported, gone);
            }
            prop_assert_eq!(space.live_bytes(), model.live.len() as u64 * sector as u64);
            prop_assert_eq!(space.occupied_bytes(), after.len() as u64 * CHUNK_BYTES as u64);
            prop_assert!(space.kept_bytes() >= space.live_bytes() && space.kept_bytes() <= space.occupied_bytes());
        }
    }
}
