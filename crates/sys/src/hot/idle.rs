//! The idle page bitmap (Documentation/admin-guide/mm/idle_page_tracking.rst) and
//! `/proc/kpageflags` (…/pagemap.rst): one bit and 64 flags for each page frame of the machine.
//!
//! Marking a frame clears the accessed bits of all mappings of it and marks it as idle; the kernel
//! clears the mark when it next finds one of these bits set. Only the first frame of a larger folio
//! can be marked, and only frames on an LRU list. Translations are not flushed.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The bitmap, in kernels with `CONFIG_IDLE_PAGE_TRACKING`.
pub const BITMAP: &str = "/sys/kernel/mm/page_idle/bitmap";
/// The flags of page frames.
pub const FLAGS: &str = "/proc/kpageflags";

/// `KPF_LRU`: can be marked, unless it is a [`TAIL`].
pub const LRU: u64 = 1 << 5;
/// `KPF_COMPOUND_HEAD`: the first frame of a larger folio.
pub const HEAD: u64 = 1 << 15;
/// `KPF_COMPOUND_TAIL`: any other frame of it.
pub const TAIL: u64 = 1 << 16;

const FRAMES_PER_WORD: u64 = 64;
const WORD: usize = 8;
/// sysfs transfers at most one page per call.
const WORDS_MAX: usize = 4096 / WORD;
/// Words and flags between two wanted ones are read as well if there are no more than this: cheaper
/// than another call.
const WORDS_BETWEEN: u64 = 1;
const FLAGS_BETWEEN: u64 = 8;

/// The two open files.
#[derive(Debug)]
pub struct IdleBitmap {
    bitmap: File,
    flags: File,
}

impl IdleBitmap {
    /// Opens both ([`BITMAP`] and [`FLAGS`]). Needs root.
    pub fn open(bitmap: &Path, flags: &Path) -> io::Result<IdleBitmap> {
        let named = |path: &Path, error: io::Error| {
            io::Error::new(error.kind(), format!("{}: {error}", path.display()))
        };
        Ok(IdleBitmap {
            bitmap: OpenOptions::new()
                .read(true)
                .write(true)
                .open(bitmap)
                .map_err(|error| named(bitmap, error))?,
            flags: File::open(flags).map_err(|error| named(flags, error))?,
        })
    }

    /// Marks `frames` (ascending, without duplicates). Frames that cannot be marked are silently
    /// skipped.
    pub fn mark(&self, frames: &[u64]) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(WORDS_MAX * WORD);
        each_stretch(frames, FRAMES_PER_WORD, WORDS_BETWEEN, |words, inside| {
            let mut marks = vec![0u64; (words.end - words.start) as usize];
            for frame in inside {
                marks[(frame / FRAMES_PER_WORD - words.start) as usize] |=
                    1 << (frame % FRAMES_PER_WORD);
            }
            bytes.clear();
            bytes.extend(marks.iter().flat_map(|word| word.to_ne_bytes()));
            match self.bitmap.write_at(&bytes, words.start * WORD as u64) {
                Ok(_) => Ok(()),
                // After the last frame of the machine's own memory.
                Err(error) if error.raw_os_error() == Some(libc::ENXIO) => Ok(()),
                Err(error) => Err(error),
            }
        })
    }

    /// Whether each of `frames` (ascending, without duplicates) is marked, and was not touched
    /// since; in their order.
    pub fn idle(&self, frames: &[u64]) -> io::Result<Vec<bool>> {
        let mut idle = Vec::with_capacity(frames.len());
        each_stretch(frames, FRAMES_PER_WORD, WORDS_BETWEEN, |words, inside| {
            let marks = read(&self.bitmap, &words)?;
            let is_marked = |frame: &u64| {
                marks[(frame / FRAMES_PER_WORD - words.start) as usize] >> (frame % FRAMES_PER_WORD)
                    & 1
                    == 1
            };
            idle.extend(inside.iter().map(is_marked));
            Ok(())
        })?;
        Ok(idle)
    }

    /// The flags of `frames` (ascending, without duplicates), in their order; 0 where there is no
    /// memory.
    pub fn flags(&self, frames: &[u64]) -> io::Result<Vec<u64>> {
        let mut flags = Vec::with_capacity(frames.len());
        each_stretch(frames, 1, FLAGS_BETWEEN, |stretch, inside| {
            let read = read(&self.flags, &stretch)?;
            flags.extend(inside.iter().map(|frame| read[(frame - stretch.start) as usize]));
            Ok(())
        })?;
        Ok(flags)
    }
}

/// Reads the words of `stretch`; zeros after the end of the file.
fn read(file: &File, stretch: &Range<u64>) -> io::Result<Vec<u64>> {
    let mut bytes = vec![0u8; (stretch.end - stretch.start) as usize * WORD];
    let mut at = 0;
    while at < bytes.len() {
        match file.read_at(&mut bytes[at..], stretch.start * WORD as u64 + at as u64)? {
            0 => break,
            read => at += read,
        }
    }
    Ok(bytes
        .chunks_exact(WORD)
        .map(|word| u64::from_ne_bytes(word.try_into().expect("eight bytes")))
        .collect())
}

/// Calls `act` for ranges of words that cover all `frames`, `per_word` to a word, with the frames
/// in each. At most `between` consecutive words contain none.
fn each_stretch(
    frames: &[u64],
    per_word: u64,
    between: u64,
    mut act: impl FnMut(Range<u64>, &[u64]) -> io::Result<()>,
) -> io::Result<()> {
    let mut from = 0;
    while from < frames.len() {
        let first = frames[from] / per_word;
        let (mut upto, mut last) = (from + 1, first);
        while let Some(word) = frames.get(upto).map(|frame| frame / per_word) {
            if word > last + 1 + between || word - first >= WORDS_MAX as u64 {
                break;
            }
            (last, upto) = (word, upto + 1);
        }
        act(first..last + 1, &frames[from..upto])?;
        from = upto;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// Files in place of the kernel's, with flags equal to the frame's number.
    fn stand_in(frames: u64) -> (tempfile::TempDir, IdleBitmap) {
        let dir = tempfile::tempdir().unwrap();
        let (bitmap, flags) = (dir.path().join("bitmap"), dir.path().join("kpageflags"));
        std::fs::write(&bitmap, vec![0; frames as usize / 8]).unwrap();
        std::fs::write(&flags, (0..frames).flat_map(u64::to_ne_bytes).collect::<Vec<u8>>())
            .unwrap();
        let opened = IdleBitmap::open(&bitmap, &flags).unwrap();
        (dir, opened)
    }

    proptest! {
        #[test]
        fn each_frame_is_in_one_bounded_stretch(
            frames in prop::collection::btree_set(0u64..200_000, 0..400), per_word in prop::sample::select(vec![1u64, 64]), between in 0u64..9,
        ) {
            let frames: Vec<u64> = frames.into_iter().collect();
            let mut seen = Vec::new();
            each_stretch(&frames, per_word, between, |words, inside| {
                assert!(words.end - words.start <= WORDS_MAX as u64);
                assert!(inside.iter().all(|frame| words.contains(&(frame / per_word))));
                assert!(words.end - words.start <= inside.len() as u64 * (1 + between));
                seen.extend_from_slice(inside);
                Ok(())
            }).unwrap();
            prop_assert_eq!(seen, frames);
        }

        #[test]
        fn only_marked_frames_are_idle(marked in prop::collection::btree_set(0u64..40_000, 0..300)) {
            let (_dir, idle) = stand_in(40_000);
            idle.mark(&marked.iter().copied().collect::<Vec<u64>>()).unwrap();
            let all: Vec<u64> = (0..40_000).collect();
            let found: BTreeSet<u64> = all.iter().zip(idle.idle(&all).unwrap()).filter(|(_, idle)| *idle).map(|(frame, _)| *frame).collect();
            prop_assert_eq!(found, marked);
        }
    }

    #[test]
    fn frames_beyond_the_last_are_not_idle() {
        let (_dir, idle) = stand_in(6400);
        let frames = [10, 6399, 6400, 1 << 30];
        assert_eq!(idle.flags(&frames).unwrap(), [10, 6399, 0, 0]);
        assert_eq!(idle.idle(&frames).unwrap(), [false; 4]);
    }

    #[test]
    fn missing_file_is_named() {
        let error = IdleBitmap::open(Path::new("/nowhere/bitmap"), Path::new(FLAGS)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert!(error.to_string().contains("/nowhere/bitmap"), "{error}");
    }
}
