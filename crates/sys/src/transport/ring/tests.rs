//! Contract: a test that damages the control lines does so through atomics, inside of the region.
#![allow(unsafe_code)]

use proptest::prelude::*;
use rustix::fs::ftruncate;

use super::*;

const SIZES: Sizes = Sizes { to_server: PAGE, to_client: 2 * PAGE };

/// The server's and the client's end.
fn pair() -> ((Writer, Reader), (Writer, Reader)) {
    let (file, writer, reader) = create(SIZES).unwrap();
    ((writer, reader), open(&file, SIZES).unwrap())
}

fn silent() -> impl FnMut() {
    || panic!("nobody waits")
}

fn put(writer: &mut Writer, bytes: &[u8]) -> usize {
    writer.write(&[IoSlice::new(bytes)], &mut silent()).unwrap()
}

fn get(reader: &mut Reader, most: usize) -> Vec<u8> {
    let mut bytes = vec![0; most];
    let got = reader.read(&mut [IoSliceMut::new(&mut bytes)], &mut silent()).unwrap();
    bytes.truncate(got);
    bytes
}

#[test]
fn empty_and_full_rings_say_so() {
    let ((_, mut reader), (mut writer, _)) = pair();
    assert!(get(&mut reader, 10).is_empty());
    assert_eq!(put(&mut writer, &vec![7; PAGE + 1]), PAGE);
    assert_eq!(put(&mut writer, &[8]), 0);
    assert_eq!(get(&mut reader, 2 * PAGE), vec![7; PAGE]);
    assert_eq!(put(&mut writer, &[8, 9]), 2);
    assert_eq!(get(&mut reader, PAGE), [8, 9]);
}

proptest! {
    #[test]
    fn bytes_arrive_in_order_across_the_end(steps in prop::collection::vec((0usize..9000, 0usize..9000), 1..60)) {
        let ((mut writer, _), (_, mut reader)) = pair();
        let (mut sent, mut received) = (0u64, 0u64);
        let byte = |at: u64| (at * 31 % 251) as u8;
        for (write, read) in steps {
            let bytes: Vec<u8> = (sent..sent + write as u64).map(byte).collect();
            let (first, second) = bytes.split_at(write / 3);
            let parts = [IoSlice::new(first), IoSlice::new(second)];
            let taken = writer.write(&parts, &mut silent()).unwrap();
            let room = SIZES.to_client - (sent - received) as usize;
            prop_assert_eq!(taken, write.min(room));
            sent += taken as u64;
            let got = get(&mut reader, read);
            prop_assert_eq!(got.len(), read.min((sent - received) as usize));
            let expected: Vec<u8> = (received..received + got.len() as u64).map(byte).collect();
            prop_assert_eq!(&got, &expected);
            received += got.len() as u64;
        }
    }
}

#[test]
fn who_waits_is_woken_once() {
    let ((mut writer, mut server_reader), (_, mut reader)) = pair();
    let mut rung = 0;
    assert!(reader.announce());
    for _ in 0..2 {
        writer.write(&[IoSlice::new(b"x")], &mut || rung += 1).unwrap();
    }
    assert_eq!(rung, 1);
    assert!(reader.withdraw(), "it was rung for");
    assert!(!reader.announce(), "there are bytes");
    assert!(!reader.withdraw());
    // A writer is woken when half of the ring is free.
    get(&mut reader, 2);
    assert_eq!(put(&mut writer, &vec![1; SIZES.to_client + 1]), SIZES.to_client);
    assert!(writer.announce());
    let mut out = vec![0; SIZES.to_client / 2 - 1];
    for (most, woken) in [(out.len(), 1), (1, 2), (1, 2)] {
        reader.read(&mut [IoSliceMut::new(&mut out[..most])], &mut || rung += 1).unwrap();
        assert_eq!(rung, woken);
    }
    assert!(!writer.announce() && get(&mut server_reader, 1).is_empty());
}

#[test]
fn impossible_positions_end_the_connection() {
    for position in [1 << 40, u64::MAX, SIZES.to_client as u64 + 1, 1 << 63] {
        let ((server, _), (_, mut reader)) = pair();
        server.0.control().tail.0.store(position, Ordering::Release);
        let mut out = [0; 64];
        assert_eq!(reader.read(&mut [IoSliceMut::new(&mut out)], &mut silent()), Err(Damaged));
        assert!(!reader.announce());
    }
    for position in [1, 1 << 40, u64::MAX, SIZES.to_client as u64 + 1] {
        let ((mut writer, _), (_, reader)) = pair();
        assert_eq!(put(&mut writer, &vec![1; SIZES.to_client]), SIZES.to_client);
        reader.0.control().head.0.store(position.wrapping_add(1 << 20), Ordering::Release);
        assert_eq!(writer.write(&[IoSlice::new(b"x")], &mut silent()), Err(Damaged));
    }
}

/// The peer writes whatever it likes while we read: what arrives is wrong, and nothing else happens.
#[test]
fn peer_that_writes_anything_does_no_harm() {
    let (file, mut writer, mut reader) = create(SIZES).unwrap();
    let region = Region::map(&file, SIZES.total()).unwrap();
    let address = region.start.as_ptr() as usize;
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut state = 88172645463325252u64;
            while !stop.load(Ordering::Relaxed) {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                let at = (state as usize >> 8) % (SIZES.total() / 8) * 8;
                // Small numbers are possible positions now and then.
                let value = if state & 1 == 0 { state } else { state >> 50 };
                // SAFETY: an aligned word of the region.
                unsafe { &*((address + at % CONTROL_BYTES) as *const AtomicU64) }
                    .store(value, Ordering::Relaxed);
            }
        });
        let (mut out, mut ends) = (vec![0; 3 * PAGE], 0);
        let since = std::time::Instant::now();
        while ends < 1000 && since.elapsed().as_secs() < 20 {
            let read = reader.read(&mut [IoSliceMut::new(&mut out)], &mut || ());
            let written = writer.write(&[IoSlice::new(&out[..100])], &mut || ());
            ends += u32::from(read.is_err()) + u32::from(written.is_err());
            if read.is_err() {
                reader.0.seen = reader.0.own;
            }
            if written.is_err() {
                writer.0.seen = writer.0.own;
            }
        }
        stop.store(true, Ordering::Relaxed);
        assert!(ends >= 1000, "damage was noticed {ends} times only");
    });
}

#[test]
fn memory_that_could_vanish_is_refused() {
    let plain = memfd_create("plain", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&plain, SIZES.total() as u64).unwrap();
    assert!(open(&plain, SIZES).is_err(), "it is not sealed");
    fcntl_add_seals(&plain, SealFlags::SHRINK).unwrap();
    assert!(open(&plain, SIZES).is_ok());
    for sizes in [
        Sizes { to_server: 2 * PAGE, to_client: PAGE * 2 },
        Sizes { to_server: 3 * PAGE, to_client: 0 },
        Sizes { to_server: usize::MAX, to_client: 4 },
        Sizes { to_server: 0, to_client: SIZES.total() - CONTROL_BYTES },
    ] {
        assert!(open(&plain, sizes).is_err(), "{sizes:?}");
    }
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
    if let Ok(huge) = memfd_create("huge", flags) {
        let sizes = Sizes { to_server: 1 << 20, to_client: 1 << 20 };
        let _ = ftruncate(&huge, sizes.total() as u64);
        let _ = fcntl_add_seals(&huge, SealFlags::SHRINK);
        assert!(open(&huge, sizes).is_err());
    }
    let (file, ..) = create(SIZES).unwrap();
    assert!(ftruncate(&file, 0).is_err(), "it is sealed");
}

#[test]
fn pool_content_passes_through() {
    let pool = HugePool::new(hiroma_units::EXTENT).unwrap();
    let ((mut writer, _), (_, mut reader)) = pair();
    let content: Vec<u8> = (0..5000).map(|at| (at % 253) as u8).collect();
    pool.copy_in(100, &content).unwrap();
    let range = PoolRange { at: 100, len: 5000 };
    assert_eq!(writer.write_from(b"head", &pool, range, &mut silent()).unwrap(), 5004);
    let mut head = [0; 4];
    reader.read(&mut [IoSliceMut::new(&mut head)], &mut silent()).unwrap();
    let to = PoolRange { at: 70_000, len: 4990 };
    let mut tail = [0; 32];
    assert_eq!(reader.read_to(&pool, to, &mut tail, &mut silent()).unwrap(), 5000);
    let mut back = vec![0; 4990];
    pool.copy_out(to, &mut back).unwrap();
    assert!(&head == b"head" && back == content[..4990] && tail[..10] == content[4990..]);
}
