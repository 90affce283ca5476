//! Servers that are not alike: one is smaller than others, slow, wrong, or came later.

use super::*;

/// A store of two copies in these servers.
fn copies_in(servers: &[ServerHandle], place: &Place) -> (ReplicatedStore, Lines) {
    let (options, lines) = options(addresses(servers));
    (ReplicatedStore::connect(&options, Scheme::copies(2).unwrap(), place).unwrap(), lines)
}

fn have_heard(lines: &Lines, what: &str) -> bool {
    lines.lock().unwrap().iter().any(|line| line.contains(what))
}

fn is_whole(store: &ReplicatedStore) -> bool {
    let books = store.shared.books();
    let census = books.table.census(books.pool.good());
    census.gone() + census.short() == 0
}

/// The list of members that `hiroma run` writes.
struct Listed {
    place: Place,
    _dir: tempfile::TempDir,
}

impl Listed {
    fn new() -> Listed {
        let dir = tempfile::tempdir().unwrap();
        let members_file = Some(dir.path().join("members"));
        Listed { place: Place { members_file, ..Place::default() }, _dir: dir }
    }

    fn write(&self, servers: &[ServerHandle]) {
        let list: String = addresses(servers).iter().map(|at| format!("{at}\n")).collect();
        std::fs::write(self.place.members_file.as_ref().unwrap(), list).unwrap();
    }
}

#[test]
fn what_is_made_again_goes_to_servers_that_came_after_the_last_write() {
    let listed = Listed::new();
    let mut servers = vec![server(64 << 20), server(64 << 20)];
    let (store, lines) = copies_in(&servers, &listed.place);
    let mut load = Load::new(&store);
    (0..8).for_each(|_| load.write(64));
    servers.push(server(64 << 20));
    listed.write(&servers);
    eventually("the third server's use", || have_heard(&lines, "has joined the pool"));
    for _ in 0..2 {
        let made = store.usage().recopied_bytes;
        servers.remove(0).stop();
        servers.push(server(64 << 20));
        listed.write(&servers);
        eventually("the copies", || store.usage().recopied_bytes > made && is_whole(&store));
        load.read_all();
    }
}

#[test]
fn copies_that_there_is_no_room_for_are_counted_and_told() {
    let listed = Listed::new();
    let mut servers = vec![server(64 << 20), server(8 << 20)];
    let (store, lines) = copies_in(&servers, &listed.place);
    let mut load = Load::new(&store);
    (0..16).for_each(|_| load.write(512));
    load.read_all();
    let few = store.usage().short_bytes;
    assert!(few >= 16 << 20, "{few} bytes of 32 MiB have one copy");
    eventually("the line", || have_heard(&lines, "have only 1 of 2 copies"));
    assert!(store.usage().short_bytes >= 16 << 20);
    servers.push(server(64 << 20));
    listed.write(&servers);
    eventually("the copies", || is_whole(&store));
    eventually("the second line", || have_heard(&lines, "everything has 2 copies again"));
    assert_eq!(store.usage().short_bytes, 0);
    assert!(!have_heard(&lines, "lost"));
    servers.remove(0).stop();
    load.read_all();
}

#[test]
fn the_next_store_gets_what_there_is_no_room_for_everywhere() {
    let servers = [server(64 << 20), server(8 << 20)];
    let place = Place { is_followed: true, ..Place::default() };
    let (store, _) = copies_in(&servers, &place);
    let mut load = Load::new(&store);
    let mut count = 0;
    let error = loop {
        let bytes = content(count, 512 * SECTOR);
        match load.writer.write(Token(1), buf_with(&bytes), &mut [Loc(0); 512]) {
            Ok(()) => one(&mut *load.writer).result.unwrap(),
            Err((_, error)) => break error,
        }
        count += 1;
        assert!(count <= 4, "the small server has room for four");
    };
    assert!(matches!(error, StoreError::Full { .. }), "{error}");
    assert!(count > 0 && is_whole(&store) && store.usage().short_bytes == 0, "{count}");
}

/// Writes 16 sectors. Returns how long that took, and why it was refused.
fn offer(load: &mut Load, store: &ReplicatedStore) -> (Duration, Option<StoreError>) {
    let start = Instant::now();
    let bytes: Vec<u8> = (0..16).flat_map(|at| content(load.next + at, SECTOR)).collect();
    let mut locs = vec![Loc(u32::MAX); 16];
    let error = match load.writer.write(Token(1), buf_with(&bytes), &mut locs) {
        Err((_, error)) => Some(error),
        Ok(()) => match one(&mut *load.writer).result {
            Ok(()) => {
                load.held.extend(locs.iter().map(|loc| loc.0).zip(load.next..));
                load.order.extend(&locs);
                None
            }
            Err(error) => {
                store.free(&locs);
                Some(error)
            }
        },
    };
    load.next += 16;
    (start.elapsed(), error)
}

#[test]
fn the_next_store_gets_at_once_what_servers_that_are_away_cannot_have() {
    for (count, scheme) in [(2, "1+1"), (5, "4+1")] {
        let place = Place { is_followed: true, ..Place::default() };
        let servers = (0..count).map(|_| server(64 << 20)).collect();
        let mut cluster = Cluster::of(servers, scheme, &place);
        let mut load = Load::new(&cluster.store);
        (0..8).for_each(|_| load.write(64));
        // Silent for a while, and back; then gone for good.
        cluster.proxies[0].pause();
        for round in 0..2 {
            let (took, error) = offer(&mut load, &cluster.store);
            assert!(matches!(error, Some(StoreError::Full { .. })), "{scheme} {error:?}");
            assert!(took < Duration::from_millis(600), "{scheme}: not silent for long: {took:?}");
            eventually("the loss", || cluster.heard("lost") || cluster.heard("gone"));
            let start = Instant::now();
            for _ in 0..100 {
                let (_, error) = offer(&mut load, &cluster.store);
                let error = error.expect("a piece has no place").to_string();
                let text = format!("only {} of {count} servers can be used now", count - 1);
                assert!(error.contains(&text), "{error}");
            }
            assert!(start.elapsed() < Duration::from_secs(1), "{scheme}: {:?}", start.elapsed());
            load.read_all();
            if round == 0 {
                cluster.proxies[0].resume();
                eventually("its return", || cluster.heard("is back"));
                eventually("room", || offer(&mut load, &cluster.store).1.is_none());
                assert!(cluster.is_whole());
                cluster.proxies[0].close();
                cluster.servers.remove(0).stop();
            }
        }
    }
}

#[test]
fn servers_that_are_full_and_slow_keep_nobody_waiting() {
    let place = Place { is_followed: true, ..Place::default() };
    let cluster = Cluster::of(vec![server(16 << 20), server(16 << 20)], "1+1", &place);
    let mut load = Load::new(&cluster.store);
    // Not before they are full: a slow one with room is left out for a moment only.
    eventually("no room", || offer(&mut load, &cluster.store).1.is_some());
    cluster.proxies[1].set_delay(Duration::from_millis(100));
    let start = Instant::now();
    for _ in 0..100 {
        assert!(offer(&mut load, &cluster.store).1.is_some());
    }
    // Each second, the slow one is asked again.
    assert!(start.elapsed() < Duration::from_millis(500), "{:?}", start.elapsed());
    load.read_all();
}

#[test]
fn slow_server_is_done_without() {
    let cluster = Cluster::new(2, "1+1");
    let mut load = Load::new(&cluster.store);
    (0..16).for_each(|_| load.write(16));
    cluster.proxies[0].set_delay(Duration::from_millis(20));
    // It is found out by answers that come when the other server has answered.
    (0..100).for_each(|at| load.read(at, 1));
    let mut late = 0;
    for at in 0..256 {
        load.slowest = Duration::ZERO;
        load.read(at, 1);
        late += u32::from(load.slowest >= Duration::from_millis(5));
    }
    assert!(late < 64, "{late} of 256 reads waited for it");
}

#[test]
fn server_that_returns_wrong_bytes_is_not_taken_back_at_once() {
    let cluster = Cluster::new(3, "1+1");
    let mut load = Load::new(&cluster.store);
    (0..32).for_each(|_| load.write(16));
    for at in (0..512).step_by(16) {
        let block = load.order[at].0;
        let row = cluster.store.shared.books().table.row(block);
        let index = row.indices().iter().find(|&index| row.member(index) == Some(Member(0)));
        if let Some(index) = index {
            damage(&cluster.store, block, index);
        }
    }
    eventually("its end", || {
        load.read_all();
        cluster.heard("is not used for the next 10 minutes")
    });
    eventually("the copies", || cluster.is_whole());
    std::thread::sleep(Duration::from_secs(3));
    assert!(!cluster.heard("is back"), "{:?}", cluster.lines.lock().unwrap());
    load.read_all();
}

#[test]
fn server_that_was_wrong_is_read_where_there_is_nothing_else() {
    let mut cluster = Cluster::new(2, "1+1");
    let mut load = Load::new(&cluster.store);
    (0..32).for_each(|_| load.write(16));
    // One piece of each 16 blocks at the first server is wrong.
    for at in (0..512).step_by(16) {
        let block = load.order[at].0;
        let row = cluster.store.shared.books().table.row(block);
        let index = row.indices().iter().find(|&index| row.member(index) == Some(Member(0)));
        damage(&cluster.store, block, index.unwrap());
    }
    eventually("the line", || {
        load.read_all();
        cluster.heard("is not used for the next 10 minutes")
    });
    let right = |at: &usize| {
        let books = cluster.store.shared.books();
        books.table.holders(load.order[*at].0).contains(Member(0))
    };
    let kept: Vec<usize> = (0..512).filter(right).collect();
    assert!(kept.len() >= 480, "{} blocks have a second copy", kept.len());
    cluster.proxies[1].close();
    cluster.servers.remove(1).stop();
    kept.into_iter().filter(|at| at % 16 != 0).for_each(|at| load.read(at, 1));
}
