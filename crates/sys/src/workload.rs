//! Memory for measurements: filled, read word by word, paged out, and queried for residency.
//!
//! Contract: a [`Region`] is a range of private memory of this process that is mapped readable and
//! writable. It is accessed only with volatile loads and stores of aligned words inside its bounds,
//! never through references, so it does not matter that pages are evicted and faulted in meanwhile.
//! A caller that adopts a range keeps it mapped while the region is used and has no references into
//! it.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::ptr::{self, NonNull};

use hiroma_units::PAGE;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

const WORD: usize = size_of::<u64>();

/// A range of memory for measurements.
pub struct Region {
    start: NonNull<u64>,
    len: usize,
    owned: bool,
}

// SAFETY: the memory belongs to the process, not to a thread, and is accessed here through the
// region only.
unsafe impl Send for Region {}

impl Region {
    /// Maps `len` bytes of ordinary anonymous memory.
    pub fn map(len: usize) -> io::Result<Region> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let start = unsafe {
            mmap_anonymous(ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags)?
        };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Region { start, len, owned: true })
    }

    /// Uses `len` bytes at `addr` that were mapped elsewhere, after checking in `/proc/self/maps`
    /// that they are.
    pub fn adopt(addr: usize, len: usize) -> io::Result<Region> {
        let refused = |reason: &str| {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{len} bytes at {addr:#x} cannot be measured with: {reason}"),
            )
        };
        if addr % PAGE != 0 || len % PAGE != 0 || len == 0 {
            return Err(refused("they are not whole pages"));
        }
        let start = NonNull::new(ptr::with_exposed_provenance_mut(addr))
            .ok_or_else(|| refused("there is nothing at zero"))?;
        let end = addr.checked_add(len).ok_or_else(|| refused("they wrap around"))?;
        if !is_mapped(addr, end)? {
            return Err(refused("they are not mapped readable, writable and private throughout"));
        }
        Ok(Region { start, len, owned: false })
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the region is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The words from byte `offset` on.
    ///
    /// # Panics
    /// Unless the range is inside the region and consists of whole words.
    fn words(&self, offset: usize, len: usize) -> *mut u64 {
        let fits = offset.checked_add(len).is_some_and(|end| end <= self.len);
        assert!(
            fits && offset % WORD == 0 && len % WORD == 0,
            "{len} bytes at {offset} of a region of {}",
            self.len
        );
        // SAFETY: inside the region, as was just checked.
        unsafe { self.start.as_ptr().add(offset / WORD) }
    }

    /// Reads one word at byte `offset`.
    #[inline]
    pub fn read(&self, offset: usize) -> u64 {
        let word = self.words(offset, WORD);
        // SAFETY: an aligned word inside the region.
        unsafe { word.read_volatile() }
    }

    /// Writes `content` from byte `offset` on.
    pub fn write(&self, offset: usize, content: &[u64]) {
        let start = self.words(offset, size_of_val(content));
        for (index, &word) in content.iter().enumerate() {
            // SAFETY: an aligned word inside the region.
            unsafe { start.add(index).write_volatile(word) };
        }
    }

    /// Adds up all words of `len` bytes from byte `offset` on, wrapping.
    pub fn sum(&self, offset: usize, len: usize) -> u64 {
        let start = self.words(offset, len);
        let count = len / WORD;
        let mut sums = [0u64; 4];
        let mut index = 0;
        while index + 4 <= count {
            for (lane, sum) in sums.iter_mut().enumerate() {
                // SAFETY: an aligned word inside the region: `index + lane` is below `count`.
                *sum = sum.wrapping_add(unsafe { start.add(index + lane).read_volatile() });
            }
            index += 4;
        }
        // SAFETY: as above, for the remaining words, three at most.
        let rest = (index..count).map(|index| unsafe { start.add(index).read_volatile() });
        sums.into_iter().chain(rest).fold(0, u64::wrapping_add)
    }

    /// Touches every page, on huge pages where the kernel has any.
    pub fn populate(&self) {
        // SAFETY: advice on our own mapping that changes no content; a kernel without huge pages
        // refuses it, which is harmless.
        let _ = unsafe { madvise(self.start.as_ptr().cast(), self.len, Advice::LinuxHugepage) };
        (0..self.len).step_by(PAGE).for_each(|offset| self.write(offset, &[1]));
    }

    /// Requests that the kernel reclaim `len` bytes from `offset` on (to swap, if there is any).
    pub fn page_out(&self, offset: usize, len: usize) -> io::Result<()> {
        let start = self.words(offset, len);
        // SAFETY: page-out preserves the content; inside the region.
        unsafe { madvise(start.cast(), len, Advice::LinuxPageOut)? };
        Ok(())
    }

    /// Pages of the region that are in memory, including the swap cache.
    pub fn resident_pages(&self) -> io::Result<usize> {
        const STEP: usize = 64 << 20;
        let mut present = vec![0u8; STEP / PAGE];
        let mut count = 0;
        for offset in (0..self.len).step_by(STEP) {
            let len = STEP.min(self.len - offset);
            // SAFETY: mincore only reads the state; the vector has room for one byte for each page
            // of the range.
            let result =
                unsafe { libc::mincore(self.words(offset, len).cast(), len, present.as_mut_ptr()) };
            if result != 0 {
                return Err(io::Error::last_os_error());
            }
            count += present[..len.div_ceil(PAGE)].iter().filter(|&&byte| byte & 1 != 0).count();
        }
        Ok(count)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if self.owned {
            // SAFETY: mapped by `map`, and there are no references into it.
            let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
        }
    }
}

/// Whether all bytes from `start` to `end` are mapped readable, writable and private.
fn is_mapped(start: usize, end: usize) -> io::Result<bool> {
    let mut reached = start;
    for line in BufReader::new(File::open("/proc/self/maps")?).lines() {
        let line = line?;
        let mut fields = line.split(' ');
        let (Some(range), Some(rights)) = (fields.next(), fields.next()) else { continue };
        let bounds = range
            .split_once('-')
            .map(|(low, high)| (usize::from_str_radix(low, 16), usize::from_str_radix(high, 16)));
        let Some((Ok(low), Ok(high))) = bounds else { continue };
        if low <= reached && reached < high {
            if !(rights.starts_with("rw") && rights.ends_with('p')) {
                return Ok(false);
            }
            reached = high;
        }
        if reached >= end {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_values_are_read_and_summed() {
        let region = Region::map(64 * PAGE).unwrap();
        region.write(8, &[1, 2, 3, u64::MAX]);
        assert_eq!((region.read(16), region.read(0)), (2, 0));
        assert_eq!(region.sum(0, region.len()), 5);
        assert_eq!(region.sum(8, 24), 6);
        assert_eq!(region.sum(24, 0), 0);
    }

    #[test]
    fn pages_are_resident_once_touched() {
        let region = Region::map(64 * PAGE).unwrap();
        assert_eq!(region.resident_pages().unwrap(), 0);
        region.write(0, &[1]);
        region.write(9 * PAGE, &[1]);
        assert_eq!(region.resident_pages().unwrap(), 2);
    }

    #[test]
    fn only_whole_writable_pages_are_adopted() {
        let region = Region::map(4 * PAGE).unwrap();
        region.write(0, &[7]);
        let addr = region.start.as_ptr().expose_provenance();
        assert_eq!(Region::adopt(addr, 4 * PAGE).unwrap().read(0), 7);
        assert!(Region::adopt(addr + 8, PAGE).is_err());
        assert!(Region::adopt(0, PAGE).is_err());
        assert!(Region::adopt(usize::MAX - PAGE + 1, 2 * PAGE).is_err());
        let code = (Region::map as fn(usize) -> io::Result<Region>) as usize / PAGE * PAGE;
        assert!(Region::adopt(code, PAGE).is_err(), "program text is not writable");
    }

    #[test]
    #[should_panic(expected = "16 bytes at 4088 of a region of 4096")]
    fn nothing_outside_the_region_is_touched() {
        Region::map(PAGE).unwrap().sum(PAGE - 8, 16);
    }
}
