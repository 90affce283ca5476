//! A file for chunks that the machine has no memory for: written and read as a whole or in part, with
//! a checksum for each 4 KiB.
//!
//! The file has no name, so nothing is left behind. Whole chunks bypass the page cache where the file
//! system allows it: memory is short when they are written.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Mutex;

use hiroma_far_wire::CHUNK;
use hiroma_sys::hugepool::{HugePool, PoolRange};
use hiroma_sys::scratch;
use hiroma_units::PAGE;
use rustix::fs::{Advice, FallocateFlags, fadvise, fallocate, statvfs};
use twox_hash::XxHash3_64;

use crate::session::lock;

/// Bytes that are summed at a time.
const PIECE: usize = 128 << 10;
/// Pages of a chunk.
pub const PAGES: usize = CHUNK / PAGE;

/// A chunk in the file.
pub struct Filed {
    slot: u32,
    sums: Box<[u64; PAGES]>,
}

/// See the module documentation.
pub struct Spill {
    /// For whole chunks.
    direct: File,
    file: File,
    slots: Mutex<Slots>,
}

struct Slots {
    free: Vec<u32>,
    /// Slots from here on have never been used.
    untouched: u32,
    max: u32,
}

impl Spill {
    /// A file in `dir`, of up to `most` bytes, or of half of what is free there.
    pub fn open(dir: &Path, most: Option<u64>) -> io::Result<Spill> {
        let file = File::from(scratch::create(&scratch::directory(dir)?, false)?);
        Spill::of(file, dir, most)
    }

    fn of(file: File, dir: &Path, most: Option<u64>) -> io::Result<Spill> {
        // Where that is not possible, the page cache takes some of the memory that is to be freed.
        let direct = match scratch::again_direct(&file) {
            Some(direct) => direct.into(),
            None => file.try_clone()?,
        };
        let most = match most {
            Some(most) => most,
            None => {
                let free = statvfs(dir)?;
                free.f_bavail * free.f_frsize / 2
            }
        };
        let max = u32::try_from(most / CHUNK as u64).unwrap_or(u32::MAX);
        let slots = Mutex::new(Slots { free: Vec::new(), untouched: 0, max });
        Ok(Spill { direct, file, slots })
    }

    fn take_slot(&self) -> Option<u32> {
        let mut slots = lock(&self.slots);
        if let Some(slot) = slots.free.pop() {
            return Some(slot);
        }
        let slot = slots.untouched;
        slots.untouched += u32::from(slot < slots.max);
        (slot < slots.max).then_some(slot)
    }

    /// Writes a chunk of the pool. Nobody may change it meanwhile.
    pub fn store(&self, pool: &HugePool, at: usize) -> io::Result<Filed> {
        let slot = self.take_slot().ok_or(io::ErrorKind::StorageFull)?;
        let stored = self.store_at(pool, at, slot);
        if stored.is_err() {
            self.free(slot);
        }
        stored
    }

    fn store_at(&self, pool: &HugePool, at: usize, slot: u32) -> io::Result<Filed> {
        let sums = sums_of(pool, at)?;
        let mut done = 0;
        while done < CHUNK {
            let range = PoolRange { at: at + done, len: CHUNK - done };
            match pool.write_to(self.direct.as_fd(), range, offset(slot) + done as u64) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => done += written,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Filed { slot, sums })
    }

    /// Reads a chunk back into the pool. What is there then is right, or it is an error.
    pub fn load(&self, filed: &Filed, pool: &HugePool, at: usize) -> io::Result<()> {
        let mut done = 0;
        while done < CHUNK {
            let range = PoolRange { at: at + done, len: CHUNK - done };
            match pool.read_from(self.direct.as_fd(), range, offset(filed.slot) + done as u64) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => done += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if sums_of(pool, at)? == filed.sums { Ok(()) } else { Err(damaged()) }
    }

    /// Bytes of a chunk.
    pub fn read(&self, filed: &Filed, at: usize, len: usize) -> io::Result<Vec<u8>> {
        let (first, end) = (at / PAGE, (at + len).div_ceil(PAGE));
        let mut bytes = self.read_pages(filed, first, end)?;
        bytes.truncate(at + len - first * PAGE);
        bytes.drain(..at - first * PAGE);
        Ok(bytes)
    }

    fn read_pages(&self, filed: &Filed, first: usize, end: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; (end - first) * PAGE];
        let from = offset(filed.slot) + (first * PAGE) as u64;
        self.file.read_exact_at(&mut bytes, from)?;
        let _ = fadvise(
            &self.file,
            from,
            std::num::NonZeroU64::new(bytes.len() as u64),
            Advice::DontNeed,
        );
        let sums = &filed.sums[first..end];
        let fits =
            bytes.chunks(PAGE).zip(sums).all(|(page, sum)| XxHash3_64::oneshot(page) == *sum);
        if fits { Ok(bytes) } else { Err(damaged()) }
    }

    /// Replaces bytes of a chunk.
    pub fn write(&self, filed: &mut Filed, at: usize, bytes: &[u8]) -> io::Result<()> {
        let (first, end) = (at / PAGE, (at + bytes.len()).div_ceil(PAGE));
        let is_whole = at % PAGE == 0 && bytes.len() % PAGE == 0;
        let mut pages = if is_whole { bytes.to_vec() } else { self.read_pages(filed, first, end)? };
        if !is_whole {
            pages[at - first * PAGE..][..bytes.len()].copy_from_slice(bytes);
        }
        self.file.write_all_at(&pages, offset(filed.slot) + (first * PAGE) as u64)?;
        for (sum, page) in filed.sums[first..end].iter_mut().zip(pages.chunks(PAGE)) {
            *sum = XxHash3_64::oneshot(page);
        }
        Ok(())
    }

    /// A chunk is not needed any more.
    pub fn forget(&self, filed: &Filed) {
        self.free(filed.slot);
    }

    fn free(&self, slot: u32) {
        // Where holes are not possible, the space is used again.
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let _ = fallocate(&self.file, flags, offset(slot), CHUNK as u64);
        lock(&self.slots).free.push(slot);
    }
}

fn offset(slot: u32) -> u64 {
    u64::from(slot) * CHUNK as u64
}

fn damaged() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the disk returns other bytes than were written")
}

/// The checksums of the pages of a chunk.
fn sums_of(pool: &HugePool, at: usize) -> io::Result<Box<[u64; PAGES]>> {
    let mut sums = Box::new([0; PAGES]);
    let mut piece = vec![0; PIECE];
    for (index, sums) in sums.chunks_mut(PIECE / PAGE).enumerate() {
        pool.copy_out(PoolRange { at: at + index * PIECE, len: PIECE }, &mut piece)?;
        for (sum, page) in sums.iter_mut().zip(piece.chunks(PAGE)) {
            *sum = XxHash3_64::oneshot(page);
        }
    }
    Ok(sums)
}

#[cfg(test)]
mod tests {
    use rustix::fs::OFlags;

    use super::*;

    fn content(seed: u8) -> Vec<u8> {
        (0..CHUNK).map(|at| (at / 3) as u8 ^ (at >> 12) as u8 ^ seed).collect()
    }

    #[test]
    fn chunks_come_back_as_they_were() {
        let pool = HugePool::new(2 * CHUNK).unwrap();
        let most = Some(3 * CHUNK as u64);
        let open = |dir: &str| Spill::open(Path::new(dir), most).unwrap();
        // As on file systems where every file has a name at first.
        let dir = Path::new("/var/tmp");
        let place = scratch::directory(dir).unwrap();
        let named = scratch::create_and_unlink(&place, OFlags::empty()).unwrap();
        let named = Spill::of(named.into(), dir, most).unwrap();
        let spills = [open("/var/tmp"), open("/dev/shm"), named];
        for (number, spill) in spills.iter().enumerate() {
            pool.copy_in(0, &content(1)).unwrap();
            pool.copy_in(CHUNK, &content(2)).unwrap();
            let first = spill.store(&pool, 0).unwrap();
            let mut second = spill.store(&pool, CHUNK).unwrap();
            assert!(spill.read(&first, 0, CHUNK).unwrap() == content(1));
            assert!(spill.read(&first, 5000, 9000).unwrap() == content(1)[5000..14000]);
            // In part, on the edges of pages and across them.
            let mut expected = content(2);
            for (at, len) in [(8192, 4096), (100, 50), (4090, 12), (CHUNK - 1, 1)] {
                let bytes = vec![0xee; len];
                spill.write(&mut second, at, &bytes).unwrap();
                expected[at..at + len].copy_from_slice(&bytes);
            }
            spill.load(&second, &pool, 0).unwrap();
            let mut back = vec![0; CHUNK];
            pool.copy_out(PoolRange { at: 0, len: CHUNK }, &mut back).unwrap();
            assert!(back == expected, "{number}");
            // Slots are used again, and there are no more than allowed.
            let third = spill.store(&pool, 0).unwrap();
            assert!(spill.store(&pool, 0).is_err());
            spill.forget(&third);
            assert_eq!(spill.store(&pool, 0).unwrap().slot, third.slot);
        }
    }

    #[test]
    fn damage_on_the_disk_is_an_error() {
        let pool = HugePool::new(CHUNK).unwrap();
        let spill = Spill::open(Path::new("/var/tmp"), None).unwrap();
        pool.copy_in(0, &content(1)).unwrap();
        let mut filed = spill.store(&pool, 0).unwrap();
        spill.file.write_all_at(&[0xff; 3], 10_000).unwrap();
        let is_damaged = |result: io::Result<()>| {
            result.is_err_and(|error| error.kind() == io::ErrorKind::InvalidData)
        };
        assert!(is_damaged(spill.read(&filed, 8192, 4096).map(drop)));
        assert!(is_damaged(spill.read(&filed, 0, CHUNK).map(drop)));
        assert!(is_damaged(spill.load(&filed, &pool, 0)));
        assert!(is_damaged(spill.write(&mut filed, 8200, &[1; 8])));
        assert!(spill.read(&filed, 0, 8192).unwrap() == content(1)[..8192]);
    }
}
