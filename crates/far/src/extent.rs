//! The state of each extent and of each sector in it.

use hiroma_policy::PageBits;
use hiroma_policy::granularity::ExtentHistory;
use hiroma_units::{Loc, PAGES_PER_EXTENT};
use zerocopy::FromZeros;

/// The unit in which an extent is moved. Chosen when the first piece of it becomes local, and
/// forgotten when the last piece is no longer local.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromZeros)]
#[repr(u8)]
pub enum Mode {
    /// Nothing of it is local.
    Away = 0,
    /// Moved as a whole (2 MiB).
    Huge = 1,
    /// Moved sector by sector.
    Small = 2,
}

/// Flags of an extent.
pub mod flag {
    /// Huge mode, and mapped into the program.
    pub const RESIDENT: u8 = 1;
    /// The program discarded pages by system calls of its own: resident pages may be missing, and
    /// then read as zeros.
    pub const HOLES: u8 = 2;
    /// There may be a page table: a huge page that is moved in would be split.
    pub const PAGE_TABLE: u8 = 4;
    /// It spans several mappings (protections, foreign memory): sector by sector only.
    pub const MIXED: u8 = 8;
    /// Nothing of it was in the store when it became local.
    pub const BORN_FRESH: u8 = 16;
    /// Its page table is being freed; faults wait.
    pub const RECLAIMING: u8 = 32;
    /// Some of what is far of it could not be read: sector by sector only, so that whoever needs others
    /// gets them.
    pub const BROKEN: u8 = 64;
}

/// Sectors of a cluster, as a power of two. Only sectors of one page form clusters.
pub const CLUSTER_ORDER: u8 = 3;
/// All sectors of a cluster.
pub const CLUSTER_BITS: u8 = ((1u16 << (1 << CLUSTER_ORDER)) - 1) as u8;
const CLUSTERS_PER_EXTENT: usize = PAGES_PER_EXTENT >> CLUSTER_ORDER;
const _: () = assert!(1 << CLUSTER_ORDER == hiroma_policy::clusters::CLUSTER);

/// One extent. An all-zero value is an extent that was never used.
#[derive(Clone, FromZeros)]
#[repr(C)]
pub struct Extent {
    detail: Option<Box<Detail>>,
    pub history: ExtentHistory,
    pub mode: Mode,
    pub flags: u8,
    /// Number of times that it was rescued from staging since it became local, or since it was
    /// broken up.
    pub rescues: u8,
    /// Broken up: number of its sectors that were staged since, plus one, until it is judged. 0:
    /// not broken up, or judged.
    pub broken_stagings: u8,
    /// Number of its blocks in frames.
    pub in_frames: u16,
    /// Small mode: number of sectors mapped into the program.
    pub resident_sectors: u16,
}

/// The locations of the sectors.
#[derive(Clone)]
pub struct Detail {
    resident: [u64; PAGES_PER_EXTENT / 64],
    /// Clusters (`1 << CLUSTER_ORDER` sectors) that move as one block.
    clusters: [u64; CLUSTERS_PER_EXTENT / 64],
    copies: Copies,
    far_sectors: u16,
}

/// Far copies of the sectors of one extent: a location, and the checksum or the word.
#[derive(Clone)]
enum Copies {
    /// For few sectors, in order; the others have none. Typical of a mapping with scattered
    /// accesses.
    Few(Vec<Entry>),
    Each {
        places: Box<[u32]>,
        sums: Box<[u64]>,
    },
    /// Consecutive locations, starting at `first`: the result of a write of the whole extent.
    Run {
        first: u32,
        sums: Box<[u64]>,
    },
}

#[derive(Clone, Copy)]
struct Entry {
    sum: u64,
    place: u32,
    sector: u16,
}

/// If more than this many sectors, a twelfth of an extent at 8 KiB, have copies, there is a table
/// for all.
const FEW_MAX: usize = 21;

impl Copies {
    /// Location and sum of a sector.
    fn get(&self, sector: usize) -> (u32, u64) {
        match self {
            Copies::Few(entries) => {
                match entries.binary_search_by_key(&sector, |entry| entry.sector.into()) {
                    Ok(at) => (entries[at].place, entries[at].sum),
                    Err(_) => (NOWHERE, 0),
                }
            }
            Copies::Each { places, sums } => (places[sector], sums[sector]),
            Copies::Run { first, sums } => (first + sector as u32, sums[sector]),
        }
    }

    /// Sets them; returns the previous location.
    fn replace(&mut self, sector: usize, sectors: usize, place: u32, sum: u64) -> u32 {
        let before = self.get(sector).0;
        match self {
            Copies::Few(entries) => {
                match entries.binary_search_by_key(&sector, |entry| entry.sector.into()) {
                    Ok(at) if place == NOWHERE => drop(entries.remove(at)),
                    Ok(at) => (entries[at].place, entries[at].sum) = (place, sum),
                    Err(_) if place == NOWHERE => {}
                    Err(at) if entries.len() < FEW_MAX => {
                        entries.insert(at, Entry { sum, place, sector: sector as u16 })
                    }
                    Err(_) => {
                        self.spread(sectors);
                        self.replace(sector, sectors, place, sum);
                    }
                }
            }
            Copies::Run { .. } if place != before => {
                self.spread(sectors);
                self.replace(sector, sectors, place, sum);
            }
            Copies::Run { sums, .. } => sums[sector] = sum,
            Copies::Each { places, sums } => (places[sector], sums[sector]) = (place, sum),
        }
        before
    }

    /// Gives every sector its own entry.
    fn spread(&mut self, sectors: usize) {
        let (places, sums) =
            (0..sectors).map(|sector| self.get(sector)).unzip::<u32, u64, Vec<_>, Vec<_>>();
        *self = Copies::Each { places: places.into(), sums: sums.into() };
    }

    /// Sets the bits of the sectors that have copies.
    fn mark(&self, bits: &mut PageBits) {
        match self {
            Copies::Few(entries) => entries.iter().for_each(|entry| {
                bits[entry.sector as usize / 64] |= 1 << (entry.sector % 64);
            }),
            Copies::Each { places, .. } => {
                let stored = places.iter().enumerate().filter(|(_, place)| **place != NOWHERE);
                stored.for_each(|(sector, _)| bits[sector / 64] |= 1 << (sector % 64));
            }
            Copies::Run { .. } => *bits = ALL_PAGES,
        }
    }

    fn is_empty(&self) -> bool {
        match self {
            Copies::Few(entries) => entries.is_empty(),
            Copies::Each { places, .. } => places.iter().all(|&place| place == NOWHERE),
            Copies::Run { .. } => false,
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Copies::Few(entries) => entries.capacity() * size_of::<Entry>(),
            Copies::Each { places, sums } => places.len() * 4 + sums.len() * 8,
            Copies::Run { sums, .. } => sums.len() * 8,
        }
    }
}

const NOWHERE: u32 = u32::MAX;
const PATTERN: u32 = u32::MAX - 1;

/// The far copy of a sector. It may be older than the local content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Copy {
    /// No copy: the sector reads as zeros, unless it is local.
    None,
    /// One repeated word.
    Pattern(u64),
    /// In the store, with this checksum.
    Stored { loc: Loc, sum: u64 },
}

/// The bits of all pages of an extent.
pub const ALL_PAGES: PageBits = [u64::MAX; PAGES_PER_EXTENT / 64];

/// The first of `from..to` whose bit is set.
pub fn next_used(bits: &PageBits, from: usize, to: usize) -> Option<usize> {
    let mut at = from;
    while at < to {
        let rest = bits[at / 64] >> (at % 64);
        if rest != 0 {
            return Some(at + rest.trailing_zeros() as usize).filter(|&at| at < to);
        }
        at = (at / 64 + 1) * 64;
    }
    None
}

impl Extent {
    pub fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    pub fn set(&mut self, flag: u8, on: bool) {
        self.flags = if on { self.flags | flag } else { self.flags & !flag };
    }

    /// Whether nothing of it is anywhere: all of it reads as zeros.
    pub fn is_empty(&self) -> bool {
        self.detail.is_none() && self.mode == Mode::Away && self.is_away()
    }

    /// Whether it is empty, and nothing else is known of it.
    pub fn is_unused(&self) -> bool {
        self.is_empty() && self.flags == 0
    }

    /// The sectors of which anything is anywhere: a bit each, and perhaps some more.
    pub fn used_sectors(&self) -> PageBits {
        if self.has(flag::RESIDENT) || self.in_frames > 0 {
            return ALL_PAGES;
        }
        let Some(detail) = &self.detail else { return PageBits::default() };
        let mut used = detail.resident;
        detail.copies.mark(&mut used);
        used
    }

    /// Whether nothing of it is local.
    pub fn is_away(&self) -> bool {
        !self.has(flag::RESIDENT) && self.in_frames == 0 && self.resident_sectors == 0
    }

    /// Number of sectors that have a far copy.
    pub fn far_sectors(&self) -> usize {
        self.detail.as_ref().map_or(0, |detail| detail.far_sectors as usize)
    }

    /// The far copy of a sector.
    pub fn copy(&self, sector: usize) -> Copy {
        self.detail.as_ref().map_or(Copy::None, |detail| match detail.copies.get(sector) {
            (NOWHERE, _) => Copy::None,
            (PATTERN, word) => Copy::Pattern(word),
            (loc, sum) => Copy::Stored { loc: Loc(loc), sum },
        })
    }

    /// Sets the far copy of a sector and returns the previous location, if that was in the store.
    pub fn set_copy(&mut self, sector: usize, sectors: usize, copy: Copy) -> Option<Loc> {
        if copy == Copy::None && self.detail.is_none() {
            return None;
        }
        let detail = self.detail_mut();
        let (place, sum) = match copy {
            Copy::None => (NOWHERE, 0),
            Copy::Pattern(word) => (PATTERN, word),
            Copy::Stored { loc, sum } => (loc.0, sum),
        };
        let before = detail.copies.replace(sector, sectors, place, sum);
        detail.far_sectors =
            detail.far_sectors + u16::from(place < PATTERN) - u16::from(before < PATTERN);
        (before < PATTERN).then_some(Loc(before))
    }

    /// Whether any of it is mapped into the program.
    pub fn has_resident(&self) -> bool {
        self.has(flag::RESIDENT) || self.resident_sectors > 0
    }

    /// Small mode: whether a sector is mapped into the program.
    pub fn is_resident(&self, sector: usize) -> bool {
        self.detail
            .as_ref()
            .is_some_and(|detail| detail.resident[sector / 64] >> (sector % 64) & 1 == 1)
    }

    /// The pages that are mapped into the program. A sector has 2^`order` pages.
    pub fn resident_pages(&self, order: u8) -> PageBits {
        if self.has(flag::RESIDENT) {
            return ALL_PAGES;
        }
        let Some(detail) = self.detail.as_ref().filter(|_| self.resident_sectors > 0) else {
            return PageBits::default();
        };
        if order == 0 {
            return detail.resident;
        }
        let mut pages = PageBits::default();
        (0..PAGES_PER_EXTENT)
            .filter(|page| self.is_resident(page >> order))
            .for_each(|page| pages[page / 64] |= 1 << (page % 64));
        pages
    }

    /// Small mode: records whether `count` sectors from `first` on are mapped into the program.
    pub fn set_resident(&mut self, first: usize, count: usize, on: bool) {
        let (mut set, mut cleared) = (0, 0);
        let detail = self.detail_mut();
        for sector in first..first + count {
            let word = &mut detail.resident[sector / 64];
            let before = *word >> (sector % 64) & 1 == 1;
            *word = *word & !(1 << (sector % 64)) | u64::from(on) << (sector % 64);
            (set, cleared) = (set + u16::from(on), cleared + u16::from(before));
        }
        self.resident_sectors = self.resident_sectors + set - cleared;
    }

    /// Small mode: which sectors of the cluster that contains a sector are mapped into the program.
    pub fn resident_in_cluster(&self, sector: usize) -> u8 {
        self.detail.as_ref().map_or(0, |detail| {
            let first = sector >> CLUSTER_ORDER << CLUSTER_ORDER;
            (detail.resident[first / 64] >> (first % 64)) as u8 & CLUSTER_BITS
        })
    }

    /// Small mode: whether the cluster that contains a sector moves as one block.
    pub fn is_cluster(&self, sector: usize) -> bool {
        self.detail.as_ref().is_some_and(|detail| {
            let cluster = sector >> CLUSTER_ORDER;
            detail.clusters[cluster / 64] >> (cluster % 64) & 1 == 1
        })
    }

    /// Sets whether it does.
    pub fn set_cluster(&mut self, sector: usize, on: bool) {
        let cluster = sector >> CLUSTER_ORDER;
        let word = &mut self.detail_mut().clusters[cluster / 64];
        *word = *word & !(1 << (cluster % 64)) | u64::from(on) << (cluster % 64);
    }

    fn detail_mut(&mut self) -> &mut Detail {
        let empty = || {
            Box::new(Detail {
                resident: [0; PAGES_PER_EXTENT / 64],
                clusters: [0; CLUSTERS_PER_EXTENT / 64],
                copies: Copies::Few(Vec::new()),
                far_sectors: 0,
            })
        };
        self.detail.get_or_insert_with(empty)
    }

    /// Frees the table of sectors if nothing is local and nothing is far.
    pub fn shrink(&mut self) {
        let unused = self.detail.as_ref().is_some_and(|detail| {
            detail.far_sectors == 0
                && detail.resident == [0; PAGES_PER_EXTENT / 64]
                && detail.copies.is_empty()
        });
        if unused {
            self.detail = None;
        }
    }

    /// Frees the table of locations if the far copy is contiguous.
    pub fn compact(&mut self) {
        let Some(detail) = &mut self.detail else { return };
        let Copies::Each { places, sums } = &mut detail.copies else { return };
        let first = places[0];
        let run = places.len() > 1
            && first < PATTERN - places.len() as u32
            && places.iter().zip(first..).all(|(&place, next)| place == next);
        if run {
            detail.copies = Copies::Run { first, sums: std::mem::take(sums) };
        }
    }

    /// Bytes of its tables.
    pub fn table_bytes(&self) -> usize {
        self.detail.as_ref().map_or(0, |detail| size_of::<Detail>() + 16 + detail.copies.bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(loc: u32) -> Copy {
        Copy::Stored { loc: Loc(loc), sum: u64::from(loc) + 7 }
    }

    #[test]
    fn contiguous_extent_needs_no_table() {
        let mut extent = Extent::new_zeroed();
        (0..256).for_each(|sector| {
            assert_eq!(extent.set_copy(sector, 256, stored(1000 + sector as u32)), None)
        });
        let before = extent.table_bytes();
        extent.compact();
        assert_eq!(before - extent.table_bytes(), 4 * 256);
        assert_eq!(
            (extent.copy(0), extent.copy(255), extent.far_sectors()),
            (stored(1000), stored(1255), 256)
        );
        assert_eq!(extent.set_copy(3, 256, Copy::Pattern(9)), Some(Loc(1003)));
        assert_eq!(
            (extent.copy(3), extent.copy(4), extent.far_sectors()),
            (Copy::Pattern(9), stored(1004), 255)
        );
        extent.compact();
        assert_eq!(extent.table_bytes(), before);
    }

    #[test]
    fn empty_extent_frees_its_tables() {
        let mut extent = Extent::new_zeroed();
        extent.set_copy(5, 256, stored(1));
        extent.set_resident(6, 1, true);
        extent.shrink();
        assert_eq!(extent.set_copy(5, 256, Copy::None), Some(Loc(1)));
        extent.shrink();
        assert!(extent.is_resident(6));
        extent.set_resident(6, 1, false);
        extent.shrink();
        assert!(extent.is_away() && extent.table_bytes() == 0);
    }

    #[test]
    fn pages_of_resident_sectors() {
        let mut extent = Extent::new_zeroed();
        assert_eq!(extent.resident_pages(0), PageBits::default());
        [0, 63, 64].into_iter().for_each(|sector| extent.set_resident(sector, 1, true));
        let pages = |bits: PageBits| bits.iter().map(|word| word.count_ones()).sum::<u32>();
        assert_eq!(extent.resident_pages(0)[..3], [1 | 1 << 63, 1, 0]);
        assert_eq!(extent.resident_pages(2)[..5], [0xf, 0, 0, 0xf << 60, 0xf]);
        extent.set(flag::RESIDENT, true);
        assert_eq!(pages(extent.resident_pages(9)), 512);
    }

    #[test]
    fn sparse_and_dense_tables_agree() {
        let mut extent = Extent::new_zeroed();
        let mut expected = [Copy::None; 256];
        let mut numbers = hiroma_units::Rng::new(1);
        for step in 0..4000u32 {
            let random = numbers.next_u64() as u32;
            // First few sectors, then many, then few again.
            let spread = if (1000..2000).contains(&step) { 256 } else { 16 };
            let sector = (random >> 8) as usize % spread;
            let copy = match random >> 28 {
                0..6 => Copy::None,
                6..8 => Copy::Pattern(u64::from(random)),
                _ => stored(random >> 4),
            };
            let before = match std::mem::replace(&mut expected[sector], copy) {
                Copy::Stored { loc, .. } => Some(loc),
                _ => None,
            };
            assert_eq!(extent.set_copy(sector, 256, copy), before);
            assert!((0..256).all(|sector| extent.copy(sector) == expected[sector]), "step {step}");
            let far = expected.iter().filter(|copy| matches!(copy, Copy::Stored { .. })).count();
            assert_eq!(extent.far_sectors(), far);
            assert!(step > 1000 || extent.table_bytes() < 800);
        }
    }
}
