//! Tests of the file store.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use proptest::prelude::*;
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::blocks::{Reserved, WARM_CHUNKS_MAX};
use super::*;
use crate::store::model::{
    buf_with, check, check_concurrently, content, ops, read_now, wait, write_now,
};

/// A directory on a real disk, and one on an in-memory file system.
fn dirs() -> [tempfile::TempDir; 2] {
    ["/var/tmp", "/dev/shm"].map(|dir| tempfile::tempdir_in(dir).unwrap())
}

fn store(sector_bytes: usize, capacity_bytes: u64) -> FileStore {
    FileStore::new(Path::new("/var/tmp"), sector_bytes, Some(capacity_bytes)).unwrap()
}

fn blocks_bytes(store: &FileStore) -> u64 {
    store.shared.books().files.last().unwrap().file.metadata().unwrap().blocks() * 512
}

/// What fork does to a store: the same open files, and memory of its own.
fn forked(parent: &FileStore) -> FileStore {
    let books = parent.shared.books();
    let (files, chunks, warm) = (books.files.clone(), books.chunks.clone(), books.warm.clone());
    let shared = Shared {
        name: parent.shared.name.clone(),
        sector_bytes: parent.shared.sector_bytes,
        dir: parent.shared.dir.try_clone().unwrap(),
        books: Mutex::new(Books {
            space: books.space.clone(),
            files,
            chunks,
            warm,
            no_blocks: None,
            no_space: None,
        }),
        use_ring: parent.shared.use_ring,
        pool: Mutex::new(None),
        clerk: Mutex::new(None),
        can_reserve: AtomicBool::new(true),
        parts: Arc::clone(&parent.shared.parts),
        part_bytes: parent.shared.part_bytes,
    };
    FileStore { shared: Arc::new(shared) }
}

/// A child of a process with this store, as it is after its adoption.
fn child_of(parent: &FileStore) -> FileStore {
    let child = forked(parent);
    let freeze = child.shared.books().space.freeze();
    Frozen { shared: Arc::clone(&child.shared), freeze }.adopt().unwrap();
    child
}

#[test]
fn unusable_directory_is_refused_with_advice() {
    let error = FileStore::new(Path::new("/nowhere/at/all"), 8192, None).err().unwrap();
    assert!(error.to_string().contains("name a directory that exists"), "{error}");
    let error = FileStore::new(Path::new("/proc"), 8192, Some(1 << 20)).err().unwrap();
    assert!(error.to_string().contains("may write to"), "{error}");
    let error = FileStore::new(Path::new("/var/tmp"), 8192, Some(100)).err().unwrap();
    assert!(error.to_string().contains("100B only"), "{error}");
}

#[test]
fn directory_stays_empty_while_in_use() {
    for dir in dirs() {
        let store = FileStore::new(dir.path(), 8192, Some(1 << 20)).unwrap();
        let mut channel = store.open(Purpose::Write).unwrap();
        write_now(&mut *channel, &content(3, 8192), 1).unwrap();
        let _named = scratch::create_and_unlink(&store.shared.dir, OFlags::empty()).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}

#[test]
fn adjacent_sectors_are_transferred_in_one_request() {
    let store = store(8192, 64 << 20);
    let (mut locs, mut pieces) = (vec![Loc(0); 700], Vec::new());
    store.shared.allocate(&mut locs, &mut pieces).unwrap();
    assert_eq!(pieces.len(), 1);
    pieces.clear();
    store.shared.books().pieces(&[locs[3], locs[4], locs[9], locs[8]], &mut pieces);
    let lens: Vec<usize> = pieces.iter().map(|piece| piece.len).collect();
    assert_eq!(lens, [16384, 8192, 8192]);
}

#[test]
fn many_concurrent_requests_all_complete() {
    for use_ring in [true, false] {
        let store =
            FileStore::with_engine(Path::new("/var/tmp"), 4096, Some(64 << 20), use_ring).unwrap();
        let mut channel = store.open(Purpose::Write).unwrap();
        let mut all = Vec::new();
        for index in 0..500 {
            let mut locs = [Loc(0)];
            channel
                .write(Token(index), buf_with(&content(index * 4 + 3, 4096)), &mut locs)
                .unwrap();
            all.push(locs[0]);
        }
        assert_eq!(channel.in_flight(), 500);
        let mut bufs = Vec::new();
        while channel.in_flight() > 0 {
            bufs.extend(
                wait(&mut *channel).into_iter().map(|done| (done.result.unwrap(), done.buf).1),
            );
        }
        for (index, mut buf) in bufs.into_iter().enumerate() {
            buf.bytes_mut().fill(0);
            channel.read(Token(index as u64), &all[index..=index], buf);
        }
        while channel.in_flight() > 0 {
            for done in wait(&mut *channel) {
                assert!(done.buf.bytes() == content(done.token.0 * 4 + 3, 4096));
            }
        }
    }
}

#[test]
fn emptied_chunks_are_punched_out_of_the_file() {
    let store = store(64 << 10, 256 << 20);
    let mut channel = store.open(Purpose::Write).unwrap();
    let locs: Vec<Loc> = (0..80)
        .flat_map(|seed| write_now(&mut *channel, &content(seed, 2 << 20), 32).unwrap())
        .collect();
    assert!(blocks_bytes(&store) >= 160 << 20);
    store.free(&locs[..2400]);
    store.shared.settle_clerk();
    assert!(
        blocks_bytes(&store) <= (WARM_CHUNKS_MAX as u64 + 5 + 1) << 21,
        "{} bytes are left",
        blocks_bytes(&store)
    );
    assert_eq!(read_now(&mut *channel, &locs[2400..2560], 64 << 10).unwrap().len(), 160 << 16);
    let again = write_now(&mut *channel, &content(99, 2 << 20), 32).unwrap();
    assert!(read_now(&mut *channel, &again, 64 << 10).unwrap() == content(99, 2 << 20));
}

#[test]
fn forked_stores_share_old_content_and_write_separately() {
    let parent = store(8192, 16 << 20);
    let mut channel = parent.open(Purpose::Write).unwrap();
    let before = write_now(&mut *channel, &content(3, 8192 * 100), 100).unwrap();
    let guard = parent.prepare_fork().unwrap();
    let child = forked(&parent);
    let freeze = child.shared.books().space.freeze();
    let adopted = Frozen { shared: Arc::clone(&child.shared), freeze };
    adopted.adopt().unwrap();
    let mut child_channel = child.open(Purpose::Read).unwrap();

    // The parent replaces all it has, and fills its remaining room; the child does the same.
    parent.free(&before);
    let mut parents = Vec::new();
    while let Some(locs) = write_now(&mut *channel, &content(7, 8192 * 10), 10) {
        parents.push(locs);
    }
    let childs: Vec<_> = (0..50)
        .map(|seed| (seed, write_now(&mut *child_channel, &content(seed, 8192 * 10), 10).unwrap()))
        .collect();
    assert!(read_now(&mut *child_channel, &before, 8192).unwrap() == content(3, 8192 * 100));
    for (seed, locs) in &childs {
        assert!(read_now(&mut *child_channel, locs, 8192).unwrap() == content(*seed, 8192 * 10));
    }
    for locs in &parents {
        assert!(read_now(&mut *channel, locs, 8192).unwrap() == content(7, 8192 * 10));
    }
    child.free(&before);
    drop((adopted, child_channel, child));
    assert!(write_now(&mut *channel, &content(7, 8192 * 10), 10).is_none());
    drop(guard);
    assert!(write_now(&mut *channel, &content(7, 8192 * 10), 10).is_some());
}

#[test]
fn blocks_kept_for_a_child_are_not_overwritten() {
    let parent = store(8192, 64 << 20);
    let mut channel = parent.open(Purpose::Write).unwrap();
    let adopt = |child: &FileStore| {
        let freeze = child.shared.books().space.freeze();
        let adopted = Frozen { shared: Arc::clone(&child.shared), freeze };
        adopted.adopt().unwrap();
        adopted
    };
    // Whole chunks, which the parent frees while the first child reads them.
    let before = write_now(&mut *channel, &content(3, 8192 * 512), 512).unwrap();
    let _kept_for_first = parent.prepare_fork().unwrap();
    let first = forked(&parent);
    let _first_adopted = adopt(&first);
    parent.free(&before);
    let _kept_for_second = parent.prepare_fork().unwrap();
    let second = forked(&parent);
    let _second_adopted = adopt(&second);
    let mut second_channel = second.open(Purpose::Write).unwrap();
    for _ in 0..100 {
        write_now(&mut *second_channel, &content(9, 8192 * 16), 16).unwrap();
    }
    let mut first_channel = first.open(Purpose::Read).unwrap();
    assert!(read_now(&mut *first_channel, &before, 8192).unwrap() == content(3, 8192 * 512));
}

/// Sectors whose content identifies their write.
fn marked(seed: u64, sectors: usize) -> Vec<u8> {
    seed.to_le_bytes().repeat(sectors * 1024)
}

/// One process of a family, with the expected content of its store.
struct Member {
    store: FileStore,
    channel: Box<dyn Channel>,
    wrote: Vec<(Vec<Loc>, u64)>,
    parent: usize,
    /// The parent's guard for this child.
    kept: Option<Box<dyn ForkGuard>>,
    ended: bool,
}

impl Member {
    fn check(&mut self) {
        for (locs, seed) in &self.wrote {
            assert!(
                read_now(&mut *self.channel, locs, 8192).unwrap() == marked(*seed, locs.len()),
                "of seed {seed}"
            );
        }
    }
}

#[derive(Clone, Debug)]
enum FamilyOp {
    Write { sectors: usize },
    Free { from: usize },
    Fork,
    End,
}

fn family_op() -> impl Strategy<Value = (usize, FamilyOp)> {
    let op = prop_oneof![
        5 => prop_oneof![1usize..32, 200usize..300].prop_map(|sectors| FamilyOp::Write { sectors }),
        5 => any::<usize>().prop_map(|from| FamilyOp::Free { from }),
        2 => Just(FamilyOp::Fork),
        1 => Just(FamilyOp::End),
    ];
    (any::<usize>(), op)
}

fn fork(family: &mut Vec<Member>, at: usize) {
    let parent = &family[at];
    let kept = parent.store.prepare_fork().unwrap();
    let store = forked(&parent.store);
    let freeze = store.shared.books().space.freeze();
    let adopted = Frozen { shared: Arc::clone(&store.shared), freeze };
    adopted.adopt().unwrap();
    std::mem::forget(adopted);
    let channel = store.open(Purpose::Write).unwrap();
    let wrote = parent.wrote.clone();
    family.push(Member { store, channel, wrote, parent: at, kept: Some(kept), ended: false });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Parents free and write while their children read the earlier content, children of children
    /// too, in any order.
    #[test]
    fn every_forked_process_reads_its_own_content(ops in proptest::collection::vec(family_op(), 1..50)) {
        let store = store(8192, 64 << 20);
        let channel = store.open(Purpose::Write).unwrap();
        let mut family = vec![Member { store, channel, wrote: Vec::new(), parent: 0, kept: None, ended: false }];
        for (number, (who, op)) in ops.into_iter().enumerate() {
            let alive: Vec<usize> = (0..family.len()).filter(|&at| !family[at].ended).collect();
            let at = alive[who % alive.len()];
            match op {
                FamilyOp::Write { sectors } => {
                    let seed = (number * 100 + at) as u64;
                    if let Some(locs) = write_now(&mut *family[at].channel, &marked(seed, sectors), sectors) {
                        family[at].wrote.push((locs, seed));
                    }
                }
                FamilyOp::Free { from } => {
                    let member = &mut family[at];
                    if !member.wrote.is_empty() {
                        let (locs, _) = member.wrote.swap_remove(from % member.wrote.len());
                        member.store.free(&locs);
                    }
                }
                FamilyOp::Fork if alive.len() < 5 => fork(&mut family, at),
                // A process stays as long as its children do.
                FamilyOp::End if at > 0 && alive.iter().all(|&other| other == 0 || family[other].parent != at) => {
                    family[at].check();
                    family[at].ended = true;
                    drop(family[at].kept.take());
                }
                FamilyOp::Fork | FamilyOp::End => {}
            }
        }
        family.iter_mut().filter(|member| !member.ended).for_each(Member::check);
    }
}

/// An in-memory file system of 8 MiB that is unmounted when the value is dropped; `None` without
/// the right to mount.
struct TinyDisk(PathBuf);

impl TinyDisk {
    fn mount() -> Option<TinyDisk> {
        let dir = tempfile::tempdir().unwrap().keep();
        let output = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=8m", "hiroma-test"])
            .arg(&dir)
            .output();
        match output {
            Ok(output) if output.status.success() => return Some(TinyDisk(dir)),
            Ok(output) => {
                hiroma_testkit::skip!(
                    Machine,
                    "mounting is not allowed here: {}",
                    String::from_utf8_lossy(&output.stderr).trim()
                )
            }
            Err(error) => hiroma_testkit::skip!(Machine, "there is no mount command here: {error}"),
        }
        std::fs::remove_dir(dir).unwrap();
        None
    }
}

impl Drop for TinyDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[test]
fn full_disk_fails_the_write_without_loss() {
    let Some(disk) = TinyDisk::mount() else { return };
    let store = FileStore::new(&disk.0, 8192, Some(64 << 20)).unwrap();
    let mut channel = store.open(Purpose::Write).unwrap();
    let mut written = Vec::new();
    let error = loop {
        let (bytes, mut locs) = (content(written.len() as u64 * 4 + 3, 64 << 10), [Loc(0); 8]);
        match channel.write(Token(0), buf_with(&bytes), &mut locs) {
            Ok(()) => wait(&mut *channel).pop().unwrap().result.unwrap(),
            Err((buf, error)) => {
                assert!(buf.bytes() == bytes);
                break error;
            }
        }
        written.push((locs, bytes));
    };
    assert!(
        matches!(error, StoreError::Full { .. })
            && error.to_string().contains("no space is left on its file system"),
        "{error}"
    );
    assert!(written.len() >= 96, "{} of 128 writes fit", written.len());
    assert_eq!(store.usage().far_bytes, written.len() as u64 * 65536);
    for (locs, bytes) in &written {
        assert!(read_now(&mut *channel, locs, 8192).unwrap() == *bytes);
    }
    store.free(&written[0].0);
    assert!(write_now(&mut *channel, &written[1].1, 8).is_some(), "what was freed is used again");
}

#[test]
fn disk_full_of_other_files_leaves_the_room_in_reserved_chunks() {
    let Some(disk) = TinyDisk::mount() else { return };
    let store = FileStore::new(&disk.0, 8192, Some(64 << 20)).unwrap();
    let mut channel = store.open(Purpose::Write).unwrap();
    let before: Vec<Vec<Loc>> = (0..3)
        .map(|seed| write_now(&mut *channel, &content(seed * 4 + 3, 2 << 20), 256).unwrap())
        .collect();
    // Another file takes the rest.
    let other = std::fs::write(disk.0.join("other"), vec![1; 8 << 20]);
    assert!(other.is_err(), "there is room for 8 MiB more");
    let (gaps, kept): (Vec<Loc>, Vec<Loc>) = before.concat().iter().partition(|loc| loc.0 % 2 == 0);
    store.free(&gaps);
    // A whole chunk would need blocks that there are not.
    let bytes = content(15, 2 << 20);
    let locs = write_now(&mut *channel, &bytes, 256).expect("room in gaps");
    assert!(locs.iter().all(|loc| loc.0 % 2 == 0 && loc.0 < 3 * 256));
    assert!(read_now(&mut *channel, &locs, 8192).unwrap() == bytes);
    assert!(write_now(&mut *channel, &content(19, 128 * 8192), 128).is_some());
    assert!(write_now(&mut *channel, &content(19, 8192), 1).is_none());
    let whole: Vec<u8> = (0..3).flat_map(|seed| content(seed * 4 + 3, 2 << 20)).collect();
    let odd: Vec<u8> = whole.chunks(8192).skip(1).step_by(2).flatten().copied().collect();
    assert!(read_now(&mut *channel, &kept, 8192).unwrap() == odd);
    // When the other file is gone, there is more again.
    std::fs::remove_file(disk.0.join("other")).unwrap();
    assert!(write_now(&mut *channel, &content(19, 64 << 10), 8).is_some());
}

#[test]
fn only_a_file_system_that_cannot_reserve_is_not_asked_again() {
    for error in [Errno::OPNOTSUPP, Errno::NOSYS, Errno::INVAL] {
        assert_eq!(Reserved::failed_with(error), Reserved::Never);
    }
    for error in [Errno::NOSPC, Errno::DQUOT, Errno::FBIG] {
        assert_eq!(Reserved::failed_with(error), Reserved::Full);
    }
    for error in [Errno::IO, Errno::NOMEM, Errno::PERM, Errno::TXTBSY] {
        assert_eq!(Reserved::failed_with(error), Reserved::NotNow);
    }
}

#[test]
fn write_that_found_no_space_makes_the_store_full_for_a_while() {
    let store = store(8192, 64 << 20);
    let mut channel = store.open(Purpose::Write).unwrap();
    assert!(matches!(store.shared.no_space_for_a_write(), StoreError::Full { .. }));
    assert!(write_now(&mut *channel, &content(3, 8192), 1).is_none());
    store.shared.books().no_space = Instant::now().checked_sub(Duration::from_secs(2));
    assert!(write_now(&mut *channel, &content(3, 8192), 1).is_some());
}

#[test]
fn children_that_can_make_no_file_write_to_their_parents() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let parent = FileStore::new(dir.path(), 8192, Some(64 << 20)).unwrap();
    dir.close().unwrap();
    let mut channel = parent.open(Purpose::Write).unwrap();
    let before = write_now(&mut *channel, &content(1, 4 << 20), 512).unwrap();
    let _guard = parent.prepare_fork().unwrap();
    let first = child_of(&parent);
    let others = [child_of(&parent), child_of(&first)];
    let all = [&parent, &first, &others[0], &others[1]];
    let written = all.iter().enumerate().map(|(number, store)| {
        let mut channel = store.open(Purpose::Write).unwrap();
        let own = content(10 + number as u64, 16 << 20);
        (write_now(&mut *channel, &own, 2048).unwrap(), own)
    });
    let written: Vec<_> = written.collect();
    let files = |store: &FileStore| store.shared.books().files.clone();
    let bases = all.map(|store| files(store).last().unwrap().base);
    assert!(bases.iter().all(|base| bases.iter().filter(|other| *other == base).count() == 1));
    for (store, (locs, own)) in all.iter().zip(&written) {
        let mut channel = store.open(Purpose::Read).unwrap();
        assert!(read_now(&mut *channel, locs, 8192).unwrap() == *own);
        assert!(read_now(&mut *channel, &before, 8192).unwrap() == content(1, 4 << 20));
    }
    // What a child frees is punched out of its own part.
    first.free(&written[1].0);
    first.shared.settle_clerk();
    let mut channel = others[0].open(Purpose::Read).unwrap();
    assert!(read_now(&mut *channel, &written[2].0, 8192).unwrap() == written[2].1);
}

/// Names this test to the process that runs it with limited files.
const LIMITED: &str = "HIROMA_TEST_LIMITED_FILES";

#[test]
fn child_is_adopted_within_the_limit_of_files() {
    if std::env::var_os(LIMITED).is_none() {
        let name = "store::file::tests::child_is_adopted_within_the_limit_of_files";
        let status = Command::new("sh")
            .args(["-c", "ulimit -f 131072 && exec \"$0\" \"$@\""])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", name])
            .env(LIMITED, "64 MiB")
            .status()
            .unwrap();
        assert!(status.success(), "with limited files: {status}");
        return;
    }
    let parent = store(8192, 1 << 40);
    assert_eq!(parent.usage().capacity_bytes, 64 << 20);
    let mut channel = parent.open(Purpose::Write).unwrap();
    let before = write_now(&mut *channel, &content(3, 8 << 20), 1024).unwrap();
    let _guard = parent.prepare_fork().unwrap();
    let child = forked(&parent);
    let freeze = child.shared.books().space.freeze();
    let adopted = Frozen { shared: Arc::clone(&child.shared), freeze };
    adopted.adopt().unwrap();
    let mut channel = child.open(Purpose::Write).unwrap();
    let mut written = 0;
    while write_now(&mut *channel, &content(7, 2 << 20), 256).is_some() {
        written += 2;
    }
    assert_eq!(written, 56, "all but what the parent has");
    assert!(read_now(&mut *channel, &before, 8192).unwrap() == content(3, 8 << 20));
}

#[test]
fn default_capacity_is_most_of_free_space() {
    let Some(disk) = TinyDisk::mount() else { return };
    let store = FileStore::new(&disk.0, 8192, None).unwrap();
    assert!((7 << 20..8 << 20).contains(&store.usage().capacity_bytes), "{:?}", store.usage());
}

#[test]
fn threads_with_own_channels_do_not_interfere() {
    for use_ring in [true, false] {
        for dir in dirs() {
            check_concurrently(
                &FileStore::with_engine(dir.path(), 8192, Some(16 << 20), use_ring).unwrap(),
                8192,
                3,
                200,
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn store_matches_a_naive_map(ops in ops(20, 60), shift in 12u32..18, capacity in 1u64..16, use_ring: bool) {
        for dir in dirs() {
            check(&FileStore::with_engine(dir.path(), 1 << shift, Some(capacity << 20), use_ring).unwrap(), 1 << shift, &ops);
        }
    }
}
