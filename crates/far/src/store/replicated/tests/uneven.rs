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
