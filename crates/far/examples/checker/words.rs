//! Words that identify themselves: the place that they were written to, and the version. So a wrong
//! word can be diagnosed.

/// Bytes that are written and recorded together.
pub const LINE: usize = 64;
/// Words in a line.
pub const LINE_WORDS: usize = LINE / 8;
/// Lines in a page.
pub const PAGE_LINES: usize = 4096 / LINE;
/// Versions are smaller than this.
pub const VERSIONS: u32 = 1 << VERSION_BITS;

const VERSION_BITS: u32 = 28;
const CONSTANT: u64 = 0x9e37_79b9_7f4a_7c15;

/// The word for place `index` at `version`. Version 0 is zeros. Every fourth version is the same
/// word everywhere (a block of one repeated word), every fourth one compresses, and the others do
/// not.
pub fn word(index: u64, version: u32) -> u64 {
    let plain = index << VERSION_BITS | u64::from(version);
    match version & 3 {
        _ if version == 0 => 0,
        3 => u64::from(version).wrapping_mul(CONSTANT),
        1 => plain,
        _ => mix(plain),
    }
}

/// Explains a word that should not be there.
pub fn diagnose(found: u64, index: u64, expected: u32) -> String {
    if found == 0 {
        return format!("SILENT ZERO: zeros where version {expected} was written");
    }
    let Some((place, version)) = origin(found) else {
        return format!("GARBAGE: no word that anybody wrote (wanted version {expected})");
    };
    match place {
        Some(place) if place != index => {
            format!(
                "MISPLACED: version {version} of word {place:#x}, which is {} words away",
                place as i64 - index as i64
            )
        }
        _ if expected == 0 => format!("STALE: version {version} is back after it was discarded"),
        _ if version < expected => {
            format!("LOST WRITE: version {version}, but {expected} was written over it")
        }
        _ => format!("FOREIGN: version {version}, but {expected} is the newest"),
    }
}

/// Place (None for words that are the same everywhere) and version of a word.
fn origin(found: u64) -> Option<(Option<u64>, u32)> {
    let split = |plain: u64| (plain >> VERSION_BITS, (plain & u64::from(VERSIONS - 1)) as u32);
    let constant = found.wrapping_mul(inverse(CONSTANT));
    if constant < u64::from(VERSIONS) && constant & 3 == 3 {
        return Some((None, constant as u32));
    }
    let mixed = split(unmix(found));
    let plain = split(found);
    // Neither test is certain alone: a mixed word may look plain. Small versions are more likely.
    [plain, mixed]
        .into_iter()
        .zip([|v: u32| v & 3 == 1, |v: u32| v & 1 == 0 && v != 0])
        .filter(|((_, version), fits)| fits(*version))
        .map(|((place, version), _)| (Some(place), version))
        .min_by_key(|&(place, _)| place)
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

fn unmix(mut z: u64) -> u64 {
    z = (z ^ z >> 31 ^ z >> 62).wrapping_mul(inverse(0x94d0_49bb_1331_11eb));
    z = (z ^ z >> 27 ^ z >> 54).wrapping_mul(inverse(0xbf58_476d_1ce4_e5b9));
    z ^ z >> 30 ^ z >> 60
}

/// The multiplicative inverse of the odd number `of`.
fn inverse(of: u64) -> u64 {
    (0..6).fold(of, |x, _| x.wrapping_mul(2u64.wrapping_sub(of.wrapping_mul(x))))
}

/// A small generator; one per thread, all derived from one seed.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64, stream: u64) -> Random {
        Random(mix(seed ^ mix(stream.wrapping_add(CONSTANT))))
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(CONSTANT);
        mix(self.0)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        ((u128::from(self.next()) * end as u128) >> 64) as usize
    }

    /// A number from 1 to `max`; small ones are more frequent.
    pub fn skewed(&mut self, max: usize) -> usize {
        let cut = self.below(max) + 1;
        self.below(cut) + 1
    }

    /// True once in `n`.
    pub fn once_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

/// Verifies that the checker can find what it looks for.
pub fn self_test() {
    for (index, version) in
        [(0, 1), (5, 2), (1 << 35 | 77, 1000), (0x1234, 4097), (9, VERSIONS - 4)]
    {
        assert_eq!(
            origin(word(index, version)),
            Some((Some(index), version)),
            "{index:#x} {version}"
        );
        assert!(diagnose(word(index, version), index + 512, version).starts_with("MISPLACED"));
        assert!(diagnose(word(index, version), index, version + 1).starts_with("LOST WRITE"));
        assert!(diagnose(word(index, version), index, 0).starts_with("STALE"));
    }
    assert!(diagnose(word(3, 7), 3, 8).starts_with("LOST WRITE"));
    assert!(diagnose(0, 3, 8).starts_with("SILENT ZERO"));
}
