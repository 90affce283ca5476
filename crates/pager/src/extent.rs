//! What is known of each extent and of each sector in it.

use hiroma_policy::granularity::ExtentHistory;
use hiroma_units::{Loc, PAGES_PER_EXTENT};
use zerocopy::FromZeros;

/// How an extent's content comes and goes. Decided when the first piece of it becomes local, forgotten with the last.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromZeros)]
#[repr(u8)]
pub enum Mode {
    /// Nothing of it is local.
    Away = 0,
    /// 2 MiB at a time.
    Huge = 1,
    /// Sector by sector.
    Small = 2,
}

/// Flags of an extent.
pub mod flag {
    /// Huge mode, and mapped into the program.
    pub const RESIDENT: u8 = 1;
    /// The program discarded pages by itself: resident pages may be missing, and read as zeros then.
    pub const HOLES: u8 = 2;
    /// There may be a page table beneath: a huge page moved in would be split.
    pub const PAGE_TABLE: u8 = 4;
    /// Several mappings lie in it (protections, foreign memory): sector by sector only.
    pub const MIXED: u8 = 8;
    /// Its residence began without anything in the store.
    pub const BORN_FRESH: u8 = 16;
    /// Its page table is being given back; faults wait.
    pub const RECLAIMING: u8 = 32;
}

/// One extent. All zero is an extent that was never used.
#[derive(FromZeros)]
#[repr(C)]
pub struct Extent {
    detail: Option<Box<Detail>>,
    pub history: ExtentHistory,
    pub mode: Mode,
    pub flags: u8,
    /// Times it was rescued from staging in this residence.
    pub rescues: u8,
    _pad: u8,
    /// Blocks of it in frames.
    pub in_frames: u16,
    /// Small mode: sectors mapped into the program.
    pub resident_sectors: u16,
}

/// Where the content of the sectors is.
pub struct Detail {
    resident: [u64; PAGES_PER_EXTENT / 64],
    /// For each sector: its checksum, or its word.
    sums: Box<[u64]>,
    /// For each sector: where the far copy is.
    places: Places,
    far_sectors: u16,
}

/// Places of the sectors of one extent.
enum Places {
    /// One after the other, from this one on: what a write of the whole extent leaves behind.
    Run(u32),
    Each(Box<[u32]>),
}

impl Places {
    fn get(&self, sector: usize) -> u32 {
        match self {
            Places::Run(first) => first + sector as u32,
            Places::Each(places) => places[sector],
        }
    }

    fn replace(&mut self, sector: usize, sectors: usize, place: u32) -> u32 {
        let before = self.get(sector);
        if before != place {
            if let Places::Run(first) = *self {
                *self = Places::Each((first..).take(sectors).collect());
            }
            if let Places::Each(places) = self {
                places[sector] = place;
            }
        }
        before
    }
}

const NOWHERE: u32 = u32::MAX;
const PATTERN: u32 = u32::MAX - 1;

/// The far copy of a sector. It may be older than what is local.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Copy {
    /// There is none: the sector reads as zeros, unless it is local.
    None,
    /// One word, repeated.
    Pattern(u64),
    /// In the store, with this checksum.
    Stored { loc: Loc, sum: u64 },
}

impl Extent {
    pub fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    pub fn set(&mut self, flag: u8, on: bool) {
        self.flags = if on { self.flags | flag } else { self.flags & !flag };
    }

    /// Whether nothing of it is local.
    pub fn is_away(&self) -> bool {
        !self.has(flag::RESIDENT) && self.in_frames == 0 && self.resident_sectors == 0
    }

    /// Sectors that have a far copy.
    pub fn far_sectors(&self) -> usize {
        self.detail.as_ref().map_or(0, |detail| detail.far_sectors as usize)
    }

    /// The far copy of a sector.
    pub fn copy(&self, sector: usize) -> Copy {
        self.detail.as_ref().map_or(Copy::None, |detail| match detail.places.get(sector) {
            NOWHERE => Copy::None,
            PATTERN => Copy::Pattern(detail.sums[sector]),
            loc => Copy::Stored { loc: Loc(loc), sum: detail.sums[sector] },
        })
    }

    /// Sets the far copy of a sector and returns the place of the one before, if that was in the store.
    pub fn set_copy(&mut self, sector: usize, sectors: usize, copy: Copy) -> Option<Loc> {
        if copy == Copy::None && self.detail.is_none() {
            return None;
        }
        let detail = self.detail_mut(sectors);
        let (place, sum) = match copy {
            Copy::None => (NOWHERE, 0),
            Copy::Pattern(word) => (PATTERN, word),
            Copy::Stored { loc, sum } => (loc.0, sum),
        };
        let before = detail.places.replace(sector, sectors, place);
        detail.sums[sector] = sum;
        detail.far_sectors = detail.far_sectors + u16::from(place < PATTERN) - u16::from(before < PATTERN);
        (before < PATTERN).then_some(Loc(before))
    }

    /// Small mode: whether a sector is mapped into the program.
    pub fn is_resident(&self, sector: usize) -> bool {
        self.detail.as_ref().is_some_and(|detail| detail.resident[sector / 64] >> (sector % 64) & 1 == 1)
    }

    /// Small mode: says whether a sector is mapped into the program.
    pub fn set_resident(&mut self, sector: usize, sectors: usize, on: bool) {
        let detail = self.detail_mut(sectors);
        let word = &mut detail.resident[sector / 64];
        let before = *word >> (sector % 64) & 1 == 1;
        *word = *word & !(1 << (sector % 64)) | u64::from(on) << (sector % 64);
        self.resident_sectors = self.resident_sectors + u16::from(on) - u16::from(before);
    }

    fn detail_mut(&mut self, sectors: usize) -> &mut Detail {
        self.detail.get_or_insert_with(|| {
            Box::new(Detail {
                resident: [0; PAGES_PER_EXTENT / 64],
                sums: vec![0; sectors].into_boxed_slice(),
                places: Places::Each(vec![NOWHERE; sectors].into_boxed_slice()),
                far_sectors: 0,
            })
        })
    }

    /// Forgets what is known of sectors, once nothing is local and nothing is far. True if there was something to free.
    pub fn shrink(&mut self) -> bool {
        let unused = self.detail.as_ref().is_some_and(|detail| {
            detail.far_sectors == 0
                && detail.resident == [0; PAGES_PER_EXTENT / 64]
                && matches!(&detail.places, Places::Each(places) if places.iter().all(|&place| place == NOWHERE))
        });
        if unused {
            self.detail = None;
        }
        unused
    }

    /// Whether the far copy is known to lie in one piece.
    pub fn is_run(&self) -> bool {
        self.detail.as_ref().is_some_and(|detail| matches!(detail.places, Places::Run(_)))
    }

    /// If the far copy lies in one piece, gives up the table of its places.
    pub fn compact(&mut self) -> bool {
        let Some(detail) = &mut self.detail else { return false };
        let Places::Each(places) = &detail.places else { return false };
        let first = places[0];
        let run =
            places.len() > 1 && first < PATTERN - places.len() as u32 && places.iter().zip(first..).all(|(&place, next)| place == next);
        if run {
            detail.places = Places::Run(first);
        }
        run
    }

    /// Whether sector tables exist, for the account of metadata.
    pub fn has_detail(&self) -> bool {
        self.detail.is_some()
    }
}

/// Bytes of tables for one extent with `sectors` sectors that is (partly) far or in small mode.
pub fn detail_bytes(sectors: usize) -> usize {
    size_of::<Detail>() + sectors * 12 + 3 * 16
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(loc: u32) -> Copy {
        Copy::Stored { loc: Loc(loc), sum: u64::from(loc) + 7 }
    }

    #[test]
    fn an_extent_in_one_piece_needs_no_table_and_answers_the_same() {
        let mut extent = Extent::new_zeroed();
        (0..256).for_each(|sector| assert_eq!(extent.set_copy(sector, 256, stored(1000 + sector as u32)), None));
        assert!(extent.compact() && extent.is_run());
        assert_eq!((extent.copy(0), extent.copy(255), extent.far_sectors()), (stored(1000), stored(1255), 256));
        assert_eq!(extent.set_copy(3, 256, Copy::Pattern(9)), Some(Loc(1003)));
        assert_eq!((extent.is_run(), extent.copy(3), extent.copy(4), extent.far_sectors()), (false, Copy::Pattern(9), stored(1004), 255));
        assert!(!extent.compact());
    }

    #[test]
    fn an_extent_of_which_nothing_is_left_gives_its_tables_back() {
        let mut extent = Extent::new_zeroed();
        extent.set_copy(5, 256, stored(1));
        extent.set_resident(6, 256, true);
        assert!(!extent.shrink());
        assert_eq!(extent.set_copy(5, 256, Copy::None), Some(Loc(1)));
        assert!(!extent.shrink());
        extent.set_resident(6, 256, false);
        assert!(extent.shrink() && extent.is_away() && !extent.has_detail());
    }
}
