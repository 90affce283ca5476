//! `clear_refs` and the `Referenced` of `smaps` (`proc_pid_smaps(5)`): how much of each mapping was
//! touched, not which pages.
//!
//! For cooperating programs this is enough: with one mapping for each 2 MiB (alternating
//! `MADV_DONTDUMP` keeps the kernel from joining them) it shows how many pages of each range are
//! hot. In a larger mapping the touched pages are assumed to be spread evenly over the present
//! ones. It needs only the right to trace the process. Clearing does not flush translations, so a
//! page that stays in the TLB can look untouched for a while.

use std::collections::BTreeMap;
use std::fs;

use hiroma_sys::hot::pagemap::Pagemap;
use hiroma_units::{EXTENT, PAGE};

use super::{Backend, RangeView, Tracker, clear_refs, first_of};
use crate::bits::{self, PageBits};
use crate::error::HotError;
use crate::layout::Layout;

const RANGE: u64 = EXTENT as u64;
/// A mapping that is larger than this and mostly empty is not searched for present pages.
const SPARSE_BYTES: u64 = 16 << 30;

/// See [`Backend::Smaps`].
pub struct SmapsTracker {
    pid: u32,
    pagemap: Pagemap,
    /// Present pages, as of the beginning of the pass.
    present: BTreeMap<u64, PageBits>,
}

/// One mapping in `smaps`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Mapping {
    start: u64,
    end: u64,
    resident_pages: u64,
    referenced_pages: u64,
    huge_pages: u64,
}

impl SmapsTracker {
    /// Opens a tracker of process `pid`.
    pub fn open(pid: u32) -> Result<SmapsTracker, HotError> {
        let tracker = SmapsTracker {
            pid,
            pagemap: Pagemap::open(pid).map_err(HotError::of(pid, "read /proc/PID/pagemap"))?,
            present: BTreeMap::new(),
        };
        tracker.mappings()?;
        clear_refs(pid)?;
        Ok(tracker)
    }

    fn mappings(&self) -> Result<Vec<Mapping>, HotError> {
        let text = fs::read(format!("/proc/{}/smaps", self.pid))
            .map_err(HotError::of(self.pid, "read /proc/PID/smaps"))?;
        Ok(parse(&String::from_utf8_lossy(&text)))
    }
}

fn parse(text: &str) -> Vec<Mapping> {
    let mut found: Vec<Mapping> = Vec::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let Some(first) = words.next() else { continue };
        let pages =
            words.next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) * 1024 / PAGE as u64;
        match (first, found.last_mut()) {
            ("Rss:", Some(last)) => last.resident_pages = pages,
            ("Referenced:", Some(last)) => last.referenced_pages = pages,
            ("AnonHugePages:", Some(last)) => last.huge_pages = pages,
            _ => {
                let bounds = first.split_once('-').and_then(|(start, end)| {
                    Some((u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?))
                });
                if let Some((start, end)) = bounds {
                    found.push(Mapping { start, end, ..Mapping::default() });
                }
            }
        }
    }
    found
}

impl Tracker for SmapsTracker {
    fn backend(&self) -> Backend {
        Backend::Smaps
    }

    fn populated(&mut self, layout: &Layout, out: &mut Vec<u64>) -> Result<(), HotError> {
        self.present.clear();
        for mapping in self.mappings()? {
            let len = mapping.end - mapping.start;
            let sparse = len > SPARSE_BYTES && mapping.resident_pages * PAGE as u64 * 8 < len;
            if mapping.resident_pages == 0 || sparse {
                continue;
            }
            for range in mapping.start / RANGE..mapping.end.div_ceil(RANGE) {
                if !layout.holds_part(range) || self.present.contains_key(&range) {
                    continue;
                }
                let present = self
                    .pagemap
                    .present(range)
                    .map_err(HotError::of(self.pid, "read /proc/PID/pagemap"))?;
                let present = bits::and(&present, &layout.pages_of(range));
                if !bits::is_empty(&present) {
                    self.present.insert(range, present);
                }
            }
        }
        out.extend(self.present.keys());
        Ok(())
    }

    fn clear(&mut self, _layout: &Layout, _ranges: &[u64]) -> Result<(), HotError> {
        clear_refs(self.pid)
    }

    fn scan(
        &mut self,
        _layout: &Layout,
        ranges: &[u64],
        out: &mut Vec<RangeView>,
    ) -> Result<(), HotError> {
        let mappings = self.mappings()?;
        for &range in ranges {
            let (start, end) = (range * RANGE, (range + 1) * RANGE);
            let present = self.present.get(&range).copied().unwrap_or(bits::NONE);
            let there = u64::from(bits::count(&present));
            let from = mappings.partition_point(|mapping| mapping.end <= start);
            let (mut touched, mut huge) = (0, false);
            for mapping in mappings[from..].iter().take_while(|mapping| mapping.start < end) {
                // Of a larger mapping, this range's share of what is resident.
                let inside = (mapping.end.min(end) - mapping.start.max(start)) / PAGE as u64;
                let resident = mapping.resident_pages.max(1);
                touched += (mapping.referenced_pages * there.min(inside)).div_ceil(resident);
                huge |= mapping.start <= start
                    && end <= mapping.end
                    && mapping.huge_pages >= mapping.resident_pages
                    && there == 512;
            }
            let touched =
                if huge && touched > 0 { present } else { first_of(&present, touched.min(there)) };
            out.push(RangeView { range, present, touched, huge });
        }
        Ok(())
    }

    fn clears_all(&self) -> bool {
        true
    }

    fn tells_pages_apart(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_each_mapping_are_read() {
        let text = "7f0000000000-7f0000200000 rw-p 00000000 00:00 0 \nSize:               2048 kB\nRss:                1024 kB\n\
                    Referenced:          512 kB\nAnonHugePages:         0 kB\nVmFlags: rd wr\n\
                    7f0000200000-7f0000400000 rw-p 00000000 00:00 0 [heap]\nRss: 2048 kB\nReferenced: 0 kB\nAnonHugePages: 2048 kB\n";
        let found = parse(text);
        assert_eq!(found.len(), 2);
        assert_eq!(
            (found[0].resident_pages, found[0].referenced_pages, found[0].huge_pages),
            (256, 128, 0)
        );
        assert_eq!((found[1].start, found[1].huge_pages), (0x7f00_0020_0000, 512));
    }
}
