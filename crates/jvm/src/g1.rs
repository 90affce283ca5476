//! The heap of the G1 collector as the JVM has it: where it is, and what each region is used for (OpenJDK,
//! `src/hotspot/share/gc/g1/vmStructs_g1.hpp`; JDK 22 put `G1` before the names).

use crate::Error;
use crate::memory::Memory;
use crate::vmstructs::VmStructs;

const MANAGER: &[&str] = &["G1HeapRegionManager", "HeapRegionManager"];
const REGION: &[&str] = &["G1HeapRegion", "HeapRegion"];
const TYPE: &[&str] = &["G1HeapRegionType", "HeapRegionType"];
/// Regions of 1 MiB to 512 MiB, of which G1 wants about 2,048; with 1 MiB each this is a heap of 1 TiB.
const REGIONS_MAX: u64 = 1 << 20;

/// What a region is used for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Free,
    /// Eden or survivor.
    Young,
    /// One object larger than half a region, or a part of one.
    Humongous,
    Old,
}

impl Kind {
    /// The number that `Native.java` uses.
    pub fn number(self) -> i64 {
        match self {
            Kind::Free => 0,
            Kind::Young => 1,
            Kind::Humongous => 2,
            Kind::Old => 3,
        }
    }
}

/// A region: objects lie in `bottom..top`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    pub bottom: u64,
    pub top: u64,
    pub end: u64,
    pub kind: Kind,
}

/// Where the things are that describe a G1 heap.
#[derive(Clone, Copy, Debug)]
pub struct G1 {
    base: u64,
    len: u64,
    /// Address of the pointers to the regions, and how many there are.
    table: u64,
    regions: u64,
    bottom: u64,
    top: u64,
    end: u64,
    tag: u64,
    masks: Masks,
}

#[derive(Clone, Copy, Debug)]
struct Masks {
    free: i32,
    young: i32,
    humongous: i32,
}

impl Masks {
    fn kind(&self, tag: i32) -> Kind {
        if tag == self.free {
            Kind::Free
        } else if tag & self.young != 0 {
            Kind::Young
        } else if tag & self.humongous != 0 {
            Kind::Humongous
        } else {
            // Old, and the regions of the archive, which never move either.
            Kind::Old
        }
    }
}

impl G1 {
    /// Finds the heap. The caller has made sure that the JVM runs with G1: the tables look the same if it does not.
    pub fn find(memory: &impl Memory, tables: &VmStructs) -> Result<G1, Error> {
        let heap = memory.u64(tables.field(&["Universe"], "_collectedHeap")?.address)?;
        let reserved = heap + tables.field(&["CollectedHeap"], "_reserved")?.offset;
        let base = memory.u64(reserved + tables.field(&["MemRegion"], "_start")?.offset)?;
        let words = memory.u64(reserved + tables.field(&["MemRegion"], "_word_size")?.offset)?;
        let manager = heap + tables.field(&["G1CollectedHeap"], "_hrm")?.offset;
        let table = manager + tables.field(MANAGER, "_regions")?.offset;
        let in_type = tables.field(TYPE, "_tag")?.offset;
        let g1 = G1 {
            base,
            len: words.saturating_mul(8),
            table: memory.u64(table + tables.field(&["G1HeapRegionTable"], "_base")?.offset)?,
            regions: memory.u64(table + tables.field(&["G1HeapRegionTable"], "_length")?.offset)?,
            bottom: tables.field(REGION, "_bottom")?.offset,
            top: tables.field(REGION, "_top")?.offset,
            end: tables.field(REGION, "_end")?.offset,
            tag: tables.field(REGION, "_type")?.offset + in_type,
            masks: Masks {
                free: tables.constant(TYPE, "FreeTag")?,
                young: tables.constant(TYPE, "YoungMask")?,
                humongous: tables.constant(TYPE, "HumongousMask")?,
            },
        };
        if g1.regions == 0 || g1.regions > REGIONS_MAX || g1.len == 0 || g1.len % g1.regions != 0 {
            return Err(Error::Unlikely(format!("{} bytes in {} regions", g1.len, g1.regions)));
        }
        Ok(g1)
    }

    /// First address and bytes of what is reserved for the heap.
    pub fn heap(&self) -> (u64, u64) {
        (self.base, self.len)
    }

    /// Bytes of a region.
    pub fn region_bytes(&self) -> u64 {
        self.len / self.regions
    }

    /// All regions that are there, from low addresses to high ones. The JVM goes on meanwhile: each region is as it was at some moment
    /// during the call.
    pub fn regions(&self, memory: &impl Memory) -> Result<Vec<Region>, Error> {
        let mut found = Vec::new();
        for number in 0..self.regions {
            let at = memory.u64(self.table + number * 8)?;
            // Never committed so far.
            if at == 0 {
                continue;
            }
            let region = Region {
                bottom: memory.u64(at + self.bottom)?,
                top: memory.u64(at + self.top)?,
                end: memory.u64(at + self.end)?,
                kind: self.masks.kind(memory.u32(at + self.tag)? as i32),
            };
            let expected = self.base + number * self.region_bytes();
            if region.bottom != expected || region.end != expected + self.region_bytes() || !(expected..=region.end).contains(&region.top) {
                return Err(Error::Unlikely(format!("region {number} should be at {expected:#x} and is {region:x?}")));
            }
            found.push(region);
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vmstructs::Field;

    /// Memory of a made-up JVM.
    struct Words(Vec<(u64, u64)>);

    impl Memory for Words {
        fn read(&self, address: u64, to: &mut [u8]) -> Result<(), Error> {
            let word = self.0.iter().find(|(at, _)| *at == address).map(|(_, word)| word.to_ne_bytes());
            let word = word.ok_or(Error::Unreadable { address, source: std::io::ErrorKind::NotFound.into() })?;
            to.copy_from_slice(&word[..to.len()]);
            Ok(())
        }
    }

    const MIB: u64 = 1 << 20;
    const BASE: u64 = 0x7000_0000;

    /// A heap of four regions of 1 MiB, the third of which was never committed.
    fn jvm(prefix: &str) -> (Words, VmStructs) {
        let at = |offset| Field { offset, address: 0 };
        let name = |plain: &str| format!("{prefix}{plain}");
        let tables = VmStructs::for_test(
            &[
                ("Universe", "_collectedHeap", Field { offset: 0, address: 0x100 }),
                ("CollectedHeap", "_reserved", at(16)),
                ("MemRegion", "_start", at(0)),
                ("MemRegion", "_word_size", at(8)),
                ("G1CollectedHeap", "_hrm", at(64)),
                (&name("HeapRegionManager"), "_regions", at(32)),
                ("G1HeapRegionTable", "_base", at(0)),
                ("G1HeapRegionTable", "_length", at(8)),
                (&name("HeapRegion"), "_bottom", at(0)),
                (&name("HeapRegion"), "_end", at(8)),
                (&name("HeapRegion"), "_top", at(16)),
                (&name("HeapRegion"), "_type", at(24)),
                (&name("HeapRegionType"), "_tag", at(0)),
            ],
            &[(&name("HeapRegionType::FreeTag"), 0), (&name("HeapRegionType::YoungMask"), 2), (&name("HeapRegionType::HumongousMask"), 4)],
        );
        let mut words = vec![(0x100, 0x200), (0x210, BASE), (0x218, 4 * MIB / 8), (0x260, 0x300), (0x268, 4)];
        for (number, tag) in [(0, 5), (1, 16), (3, 2)] {
            let (region, bottom) = (0x1000 + 0x100 * number, BASE + number * MIB);
            words.extend([(0x300 + 8 * number, region), (region, bottom), (region + 8, bottom + MIB)]);
            words.extend([(region + 16, bottom + 100), (region + 24, tag)]);
        }
        words.push((0x310, 0));
        (Words(words), tables)
    }

    #[test]
    fn regions_are_found_under_old_and_new_names() {
        for prefix in ["", "G1"] {
            let (memory, tables) = jvm(prefix);
            let g1 = G1::find(&memory, &tables).unwrap();
            assert_eq!(g1.heap(), (BASE, 4 * MIB));
            let found = g1.regions(&memory).unwrap();
            let kinds: Vec<(u64, Kind)> = found.iter().map(|region| ((region.bottom - BASE) / MIB, region.kind)).collect();
            assert_eq!(kinds, [(0, Kind::Humongous), (1, Kind::Old), (3, Kind::Young)]);
            assert_eq!(found[0].top, BASE + 100);
        }
    }

    #[test]
    fn a_heap_that_is_not_as_expected_is_an_error() {
        let (mut memory, tables) = jvm("");
        let g1 = G1::find(&memory, &tables).unwrap();
        let bottom = memory.0.iter_mut().find(|(at, _)| *at == 0x1100).unwrap();
        bottom.1 += 4096;
        assert!(matches!(g1.regions(&memory), Err(Error::Unlikely(_))));

        let (mut memory, tables) = jvm("");
        memory.0.iter_mut().find(|(at, _)| *at == 0x268).unwrap().1 = 3;
        assert!(matches!(G1::find(&memory, &tables), Err(Error::Unlikely(_))));

        let (memory, _) = jvm("");
        let error = G1::find(&memory, &VmStructs::default()).unwrap_err();
        assert!(error.to_string().contains("Universe::_collectedHeap"), "{error}");
    }
}
