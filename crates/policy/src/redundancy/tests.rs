//! The parts alone, and all of them in random schedules.

use super::*;

const MS: u64 = 1_000_000;

fn pool(members: u32) -> (Pool, Vec<Member>) {
    let mut pool = Pool::new(1);
    let members = (0..members).map(|label| pool.join(0, label).unwrap()).collect();
    (pool, members)
}

fn changes(pool: &mut Pool, now_ns: u64) -> Vec<Change> {
    let mut out = Vec::new();
    pool.tick(now_ns, &mut out);
    out
}

#[test]
fn silence_makes_suspect_then_lost_and_an_answer_ends_both() {
    let (mut pool, members) = pool(2);
    let (quiet, well) = (members[0], members[1]);
    let mut seen = Vec::new();
    for ms in (0..2000).step_by(50) {
        pool.waits(quiet, ms * MS, 0);
        pool.alive(well, ms * MS);
        seen.extend(changes(&mut pool, ms * MS));
    }
    assert_eq!(seen, [Change::Suspected(quiet), Change::Lost(quiet)]);
    assert_eq!(pool.good(), [well].into_iter().collect());
    assert_eq!(pool.source([quiet].into_iter().collect()), Some(quiet), "the last one is asked");
    pool.answered(quiet, 2001 * MS, 2001 * MS, Some(4096));
    assert_eq!(changes(&mut pool, 2001 * MS), [Change::Back(quiet)]);
    assert_eq!(pool.health(quiet), Health::Up);
}

#[test]
fn nobody_is_lost_while_nobody_is_up_or_after_a_standstill() {
    let (mut pool, members) = pool(2);
    for ms in (0..20_000).step_by(50) {
        members.iter().for_each(|&member| pool.cut_off(member, ms * MS));
        changes(&mut pool, ms * MS);
    }
    assert!(members.iter().all(|&member| pool.health(member) == Health::Suspect));

    let (mut pool, members) = self::pool(2);
    changes(&mut pool, 1);
    changes(&mut pool, 60_000 * MS);
    pool.waits(members[0], 60_001 * MS, 0);
    assert_eq!(pool.health(members[0]), Health::Up);
}

#[test]
fn targets_have_different_labels_room_and_health() {
    let mut pool = Pool::new(1);
    let label = [0, 0, 1];
    let members: Vec<Member> = label.map(|label| pool.join(0, label).unwrap()).to_vec();
    members.iter().zip([300, 200, 100]).for_each(|(&member, mib)| pool.room(member, mib << 20));
    let first = pool.target(0, 4096, Members::default()).unwrap();
    let second = pool.target(0, 4096, [first].into_iter().collect()).unwrap();
    assert_eq!((first, second), (members[0], members[2]));
    pool.full(members[2], 0);
    assert_eq!(pool.target(0, 4096, [first].into_iter().collect()), Some(members[1]));
    pool.cut_off(members[1], 0);
    assert_eq!(pool.target(0, 4096, [first].into_iter().collect()), None);
    let third = pool.target(2_000 * MS, 4096, [first].into_iter().collect());
    assert_eq!(third, Some(members[2]), "full only for a while");
}

#[test]
fn blocks_stay_together_and_then_spread_by_room() {
    let (mut pool, members) = pool(3);
    members.iter().for_each(|&member| pool.room(member, 1 << 30));
    let mut got = [0u64; 3];
    let mut turns = 0;
    let mut last = None;
    for _ in 0..3 * 512 * 10 {
        let member = pool.target(0, 4096, Members::default()).unwrap();
        got[member.index()] += 1;
        turns += u32::from(last.replace(member) != Some(member));
    }
    assert_eq!(got, [5120, 5120, 5120]);
    assert!(turns <= 30, "{turns}");
}

#[test]
fn the_quickest_copy_is_read_and_equal_ones_in_turn() {
    let (mut pool, members) = pool(3);
    for _ in 0..100 {
        for (&member, us) in members.iter().zip([100, 105, 900]) {
            pool.answered(member, MS, us * 1000, Some(4096));
        }
    }
    let all: Members = members.iter().copied().collect();
    let mut asked = [0; 3];
    (0..640).for_each(|_| asked[pool.source(all).unwrap().index()] += 1);
    assert!(asked[0] > 250 && asked[1] > 250 && (1..=20).contains(&asked[2]), "{asked:?}");
    pool.cut_off(members[0], 2 * MS);
    (0..64).for_each(|_| assert_ne!(pool.source(all), Some(members[0])));
    assert!(pool.hedge_after_ns(members[2], 4096) >= 5 * MS);
}

#[test]
fn members_that_have_joined_since_the_last_write_take_what_is_made_again() {
    let (mut pool, members) = pool(1);
    let first: Members = members.iter().copied().collect();
    assert_eq!(pool.target(0, 4096, Members::default()), Some(members[0]));
    let new = pool.join(1, 1).unwrap();
    assert_eq!(pool.target(1, 0, first), Some(new), "asked about no bytes, as the search does");
    pool.drains(new, true);
    assert_eq!(pool.target(2, 0, first), None);
}

#[test]
fn members_whose_answers_come_late_are_asked_last() {
    let (mut pool, members) = pool(2);
    let (quick, slow) = (members[0], members[1]);
    for _ in 0..100 {
        members.iter().for_each(|&member| pool.answered(member, MS, MS / 10, Some(4096)));
    }
    let all: Members = members.iter().copied().collect();
    let asked = |pool: &mut Pool| (0..640).filter(|_| pool.source(all) == Some(slow)).count();
    assert!(asked(&mut pool) > 250, "they are alike");
    // From now on the other one is asked instead each time, and wins.
    for _ in 0..3 {
        pool.answered(quick, 2 * MS, 5 * MS, Some(4096));
        pool.answered_late(slow, 2 * MS, 20 * MS, 4096);
    }
    (0..100).for_each(|_| pool.answered(quick, 3 * MS, MS / 10, Some(4096)));
    assert!((1..=20).contains(&asked(&mut pool)), "only to notice when it has become quicker");
    assert_eq!(pool.hedge_after_ns(slow, 4096), 5 * MS, "nobody waits longer for it");
    (0..50).for_each(|_| pool.answered(slow, 4 * MS, MS / 10, Some(4096)));
    assert!(asked(&mut pool) > 250, "it is quick again");
    pool.answered_late(slow, 9_000 * MS, 8_000 * MS, 4096);
    assert!(asked(&mut pool) > 250, "it stood still, and is not slow");
}

#[test]
fn wrong_answers_end_a_member() {
    let (mut pool, members) = pool(2);
    assert!((0..15).all(|_| !pool.wrong(members[1])));
    assert!(pool.wrong(members[1]));
    pool.died(members[1]);
    assert_eq!(changes(&mut pool, 1), [Change::Died(members[1])]);
    pool.retire(members[1]);
    assert_eq!(pool.join(2, 9), Some(members[1]));
}

#[test]
fn distrusted_member_gets_nothing_and_is_read_last() {
    let (mut pool, members) = pool(3);
    pool.distrust(members[0]);
    pool.distrust(members[0]);
    assert_eq!(changes(&mut pool, 1), [Change::Distrusted(members[0])]);
    let all: Members = members.iter().copied().collect();
    assert!(!pool.good().contains(members[0]) && pool.draining().contains(members[0]));
    assert!((0..100).all(|_| pool.target(2, 4096, Members::default()) != Some(members[0])));
    assert!((0..100).all(|_| pool.source(all) != Some(members[0])));
    assert_eq!(pool.source(Members(1 << members[0].0)), Some(members[0]), "nobody else has it");
    members[1..].iter().for_each(|&member| pool.died(member));
    assert_eq!(pool.last_resort(2, Members::default()), None);
}

#[test]
fn stale_needless_and_displaced_pieces_come_back() {
    let mut table = Table::new(Scheme::copies(2).unwrap(), 100);
    let mut blocks = [0; 3];
    table.allocate(&mut blocks).unwrap();
    let good: Members = [Member(0), Member(1), Member(2)].into_iter().collect();
    let piece = |member, place| Piece { member: Member(member), place };
    let version = table.version(blocks[0]);
    let mut add = |version, index, piece, good| table.add(blocks[0], version, index, piece, good);
    assert_eq!(add(version, 0, piece(0, 7), good), Ok(None));
    assert_eq!(add(version, 1, piece(0, 8), good), Err(Refused::Needless), "it has one");
    assert_eq!(add(version, 0, piece(1, 8), good), Err(Refused::Needless), "another one has it");
    assert_eq!(add(version, 1, piece(1, 9), good), Ok(None));
    let without: Members = [Member(1), Member(2)].into_iter().collect();
    assert_eq!(add(version, 0, piece(2, 1), without), Ok(Some(piece(0, 7))));
    assert_eq!(add(version - 1, 0, piece(0, 1), without), Err(Refused::Stale));
    let mut freed = Vec::new();
    table.free(blocks[0], |piece| freed.push(piece));
    assert_eq!(freed, [piece(2, 1), piece(1, 9)]);
    assert_eq!(table.add(blocks[0], version, 0, piece(0, 1), good), Err(Refused::Stale));
    let mut again = [0];
    table.allocate(&mut again).unwrap();
    assert_eq!(again[0], blocks[0]);
    assert_eq!(table.add(again[0], version, 0, piece(0, 1), good), Err(Refused::Stale));
    assert_eq!((0..3).map(|at| table.held(Member(at))).sum::<u64>(), 0);
}

#[test]
fn missing_finds_what_has_fewest_copies_first() {
    let mut table = Table::new(Scheme::copies(3).unwrap(), 1000);
    let mut blocks = [0; 6];
    table.allocate(&mut blocks).unwrap();
    let good: Members = (0..4).map(Member).collect();
    let holders: [&[u8]; 6] = [&[0, 1, 2], &[0, 1], &[0, 1], &[2], &[], &[3, 1]];
    for (&block, members) in blocks.iter().zip(holders) {
        for (index, &member) in members.iter().enumerate() {
            let piece = Piece { member: Member(member), place: block };
            table.add(block, table.version(block), index, piece, good).unwrap();
        }
        table.settle(block, table.version(block));
    }
    let mut out = Vec::new();
    assert_eq!(table.missing(0, (good, good), 1, 10, |_| false, &mut out), None);
    assert_eq!(out, [blocks[3]]);
    out.clear();
    assert_eq!(table.missing(0, (good, good), 2, 10, |_| false, &mut out), Some(blocks[3]));
    assert_eq!(out, [blocks[1], blocks[2]]);
    let without_one: Members = [Member(0), Member(2), Member(3)].into_iter().collect();
    let census = table.census(without_one);
    assert_eq!([0, 1, 2, 3].map(|pieces| census.with(pieces)), [1, 4, 1, 0]);
    assert_eq!((census.gone(), census.short(), census.least()), (1, 5, 1));
    table.purge(Member(1));
    assert_eq!((table.held(Member(1)), table.holders(blocks[5]).len()), (0, 1));
}

#[test]
fn missing_pieces_of_cut_blocks_are_found_while_enough_are_left() {
    let mut table = Table::new("3+2".parse().unwrap(), 1000);
    let mut blocks = [0; 4];
    table.allocate(&mut blocks).unwrap();
    let good: Members = (0..6).map(Member).collect();
    // The same members with other pieces are another group.
    let rows: [&[u8]; 4] = [&[0, 1, 2, 3, 4], &[0, 1, 2], &[0, 1], &[1, 0, 2]];
    for (&block, members) in blocks.iter().zip(rows) {
        for (index, &member) in members.iter().enumerate() {
            let piece = Piece { member: Member(member), place: block };
            table.add(block, table.version(block), index, piece, good).unwrap();
        }
        table.settle(block, table.version(block));
    }
    let mut out = Vec::new();
    assert_eq!(table.missing(0, (good, good), 3, 10, |_| false, &mut out), Some(blocks[3]));
    assert_eq!(out, [blocks[1]], "of the third one, two pieces are too few");
    let census = table.census(good);
    assert_eq!((census.gone(), census.short(), census.least()), (1, 2, 3));
    let row = table.row(blocks[3]);
    assert_eq!((row.member(0), row.member(3)), (Some(Member(1)), None));
    assert_eq!(row.common(&table.row(blocks[1])).indices(), [2].into_iter().collect());
}

#[test]
fn pieces_are_asked_of_members_that_answer_soon() {
    let mut pool = Pool::new(4);
    let members: Vec<Member> = (0..5).map(|label| pool.join(0, label).unwrap()).collect();
    let mut table = Table::new("4+1".parse().unwrap(), 10);
    let mut block = [0];
    table.allocate(&mut block).unwrap();
    for (index, &member) in members.iter().enumerate() {
        let piece = Piece { member, place: 0 };
        table.add(block[0], table.version(block[0]), index, piece, pool.good()).unwrap();
    }
    let row = table.row(block[0]);
    let set = |indices: &[usize]| indices.iter().copied().collect::<Indices>();
    assert_eq!(pool.sources(&row, 4), set(&[0, 1, 2, 3]), "no computing");
    for _ in 0..50 {
        for (&member, us) in members.iter().zip([100, 100, 900, 100, 100]) {
            pool.answered(member, MS, us * 1000, Some(1024));
        }
    }
    let mut asked = 0;
    for _ in 0..64 {
        asked += u32::from(pool.sources(&row, 4).contains(2));
    }
    assert_eq!(asked, 1, "a slow one now and then");
    pool.cut_off(members[0], 2 * MS);
    assert_eq!(pool.sources(&row, 4), set(&[1, 2, 3, 4]), "a slow one rather than a silent one");
    assert_eq!(pool.sources(&row, 5), set(&[0, 1, 2, 3, 4]));
    members[..2].iter().for_each(|&member| pool.cut_off(member, 2 * MS));
    (0..40).for_each(|at| _ = changes(&mut pool, (2 + at * 50) * MS));
    assert_eq!(pool.health(members[0]), Health::Suspect, "with three, nothing can be made again");
}
mod schedules;
