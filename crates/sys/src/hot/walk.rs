//! The page tables of another process, read through a BPF program that copies them (`walk.bpf.c`).
//! x86-64, four and five levels.
//!
//! Contract: the kernel writes the two maps that are shared with the program only while
//! [`Walk::copy`] runs, which needs exclusive access; so references into them that were returned
//! end before. Addresses found in page tables are dereferenced by the program only, with
//! `bpf_probe_read_kernel`: it cannot crash the kernel; at worst it reads something that is no
//! longer a page table.
#![allow(unsafe_code)]

use std::fs;
use std::io::{self, Read};
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::OnceLock;

use hiroma_units::{PAGE, PAGES_PER_EXTENT};
use libbpf_rs::libbpf_sys as sys;
use libbpf_rs::{MapCore, Object, ObjectBuilder};

use super::entries::{ACCESSED, ENTRIES, PRESENT, PROT_NONE, Table, bits_of};
use super::pagemap::PageBits;
use crate::bpf::{Aligned, Shared, from_bpf, unsupported};

/// Maximum number of pages per run of the program that copies. The kernel's memory for them, a
/// quarter of a MiB for each process that is read, is charged to our control group.
const PAGES_MAX: usize = 64;
/// Maximum number of ranges per run of the program that scans: their tables are still in a
/// processor cache when their bits are extracted.
const RANGES_MAX: usize = 64;
/// Candidates for the base of the direct map, 1 GiB each: as much memory as four levels can map.
const BASES_MAX: u64 = 1 << 16;
const GIB: u64 = 1 << 30;

/// Bits of page table entries (Intel SDM volume 3, section 5.5).
const DIRTY: u64 = 1 << 6;
const LARGE: u64 = 1 << 7;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

/// As in `walk.bpf.c`.
#[repr(C)]
struct Request {
    count: u64,
    pgd: u64,
    address: [u64; PAGES_MAX],
}

/// As in `walk.bpf.c`.
#[repr(C)]
struct Looked {
    count: u64,
    levels: u64,
    direct_map: u64,
    pgd: u64,
    known: u64,
    table: u64,
    range: [u64; RANGES_MAX],
    entry: [u64; RANGES_MAX],
    again: [u64; RANGES_MAX],
}

static PROGRAM: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/walk.bpf.o")));

/// Base address of the kernel's direct map of all memory, and number of levels of page tables. The
/// same for all processes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Geometry {
    direct_map: u64,
    levels: u32,
}

static GEOMETRY: OnceLock<Geometry> = OnceLock::new();

/// What is mapped in a 2 MiB range.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RangeBits {
    /// Pages that are present.
    pub present: PageBits,
    /// Pages whose accessed bit is set; of a huge page all or none.
    pub accessed: PageBits,
    /// Whether one huge page maps it.
    pub huge: bool,
}

/// The page tables of one process.
pub struct Walk {
    /// Keeps the program and its maps alive.
    _object: ManuallyDrop<Object>,
    copies: OwnedFd,
    looks: OwnedFd,
    request: Shared<Request>,
    looked: Shared<Looked>,
    pages: Shared<Table>,
    geometry: Geometry,
    /// Reused from scan to scan.
    tables: Vec<u64>,
}

// SAFETY: the object is not used after it was loaded, only dropped; libbpf binds nothing to a
// thread.
unsafe impl Send for Walk {}

impl Drop for Walk {
    fn drop(&mut self) {
        // SAFETY: dropped once, here.
        unsafe { ManuallyDrop::drop(&mut self._object) };
    }
}

impl Walk {
    /// Prepares to read the page tables of process `pid`.
    pub fn open(pid: u32) -> io::Result<Walk> {
        if !cfg!(target_arch = "x86_64") {
            return Err(unsupported("page tables are read on x86-64 only"));
        }
        let geometry = match GEOMETRY.get() {
            Some(known) => *known,
            None => {
                let found = find_geometry()?;
                *GEOMETRY.get_or_init(|| found)
            }
        };
        Walk::load(pid, geometry)
    }

    fn load(pid: u32, geometry: Geometry) -> io::Result<Walk> {
        // The errors contain what libbpf would print.
        libbpf_rs::set_print(None);
        let opened = ObjectBuilder::default()
            .open_memory(&PROGRAM.0)
            .map_err(|error| from_bpf("opening the program", error))?;
        let object = opened.load().map_err(|error| from_bpf("loading the BPF program", error))?;
        let map = |name: &str, len: usize| {
            let found = object.maps().find(|map| map.name() == name);
            found
                .ok_or_else(|| unsupported("the BPF program lacks a map"))
                .map(|map| (map.as_fd().as_raw_fd(), len))
        };
        let maps = (
            map("requests", size_of::<Request>())?,
            map("looks", size_of::<Looked>())?,
            map("pages", PAGES_MAX * PAGE)?,
        );
        // SAFETY: the object holds the descriptors open while they are used here.
        let (request, looked, pages) = unsafe {
            let request =
                Shared::map(BorrowedFd::borrow_raw(maps.0.0), maps.0.1.next_multiple_of(PAGE))?;
            let looked =
                Shared::map(BorrowedFd::borrow_raw(maps.1.0), maps.1.1.next_multiple_of(PAGE))?;
            (request, looked, Shared::map(BorrowedFd::borrow_raw(maps.2.0), maps.2.1)?)
        };
        let link = |name: &str| {
            let found = object.progs().find(|program| program.name() == name);
            found
                .ok_or_else(|| unsupported("the BPF object lacks a program"))
                .and_then(|program| attach(program.as_fd(), pid))
        };
        let (copies, looks) = (link("walk")?, link("look")?);
        Ok(Walk {
            _object: ManuallyDrop::new(object),
            copies,
            looks,
            request,
            looked,
            pages,
            geometry,
            tables: Vec::new(),
        })
    }

    fn request(&mut self) -> &mut Request {
        // SAFETY: mapped, as large as a `Request`, and by the contract not in use elsewhere now.
        // Any bits are a valid `Request`.
        unsafe { &mut *self.request.start() }
    }

    fn looked(&mut self) -> &mut Looked {
        // SAFETY: mapped, as large as a `Looked`, and by the contract not in use elsewhere now. Any
        // bits are a valid `Looked`.
        unsafe { &mut *self.looked.start() }
    }

    fn page(&self, index: usize) -> &Table {
        assert!(index < PAGES_MAX, "a page outside the map");
        // SAFETY: inside the mapping, as was just checked; the kernel does not write while `self`
        // is borrowed.
        unsafe { &*self.pages.start().add(index) }
    }

    /// Copies the pages of kernel memory at `addresses`; returns the address of the top table.
    /// `ESRCH` if the process has no memory (any more).
    fn copy(&mut self, addresses: &[u64]) -> io::Result<u64> {
        let request = self.request();
        (request.count, request.pgd) = (addresses.len() as u64, 0);
        request.address[..addresses.len()].copy_from_slice(addresses);
        run(self.copies.as_fd())?;
        match self.request().pgd {
            0 => Err(io::Error::from_raw_os_error(libc::ESRCH)),
            pgd => Ok(pgd),
        }
    }

    /// Whether page `index` of the last copy could be read.
    fn was_read(&mut self, index: usize) -> bool {
        self.request().address[index] != 0
    }

    /// Finds for each of `ranges` (ascending) the table whose entries map 2 MiB each; 0 if there is
    /// none. The result is in `tables`.
    fn find_tables(&mut self, ranges: &[u64]) -> io::Result<()> {
        let mut tables = std::mem::take(&mut self.tables);
        let mut entries = vec![0; ranges.len()];
        let top = self.copy(&[])?;
        tables.clear();
        tables.resize(ranges.len(), top);
        // A range's number consists of nine bits per level, the lowest for the table whose entries
        // map 2 MiB.
        for level in (1..self.geometry.levels - 1).rev() {
            self.follow(ranges, &tables, 9 * level, &mut entries)?;
            for (table, &entry) in tables.iter_mut().zip(&entries) {
                *table =
                    if is_table(entry) { self.geometry.direct_map + (entry & ADDRESS) } else { 0 };
            }
        }
        self.tables = tables;
        Ok(())
    }

    /// Reads for each range the entry in its table; consecutive ranges share tables.
    fn follow(
        &mut self,
        ranges: &[u64],
        tables: &[u64],
        shift: u32,
        entries: &mut [u64],
    ) -> io::Result<()> {
        let mut batch: Vec<u64> = Vec::with_capacity(PAGES_MAX);
        let mut begin = 0;
        while begin < ranges.len() {
            batch.clear();
            let mut end = begin;
            while end < ranges.len() {
                if tables[end] != 0 && batch.last() != Some(&tables[end]) {
                    if batch.len() == PAGES_MAX {
                        break;
                    }
                    batch.push(tables[end]);
                }
                end += 1;
            }
            if !batch.is_empty() {
                self.copy(&batch)?;
            }
            let mut page = 0;
            for at in begin..end {
                if tables[at] == 0 {
                    entries[at] = 0;
                    continue;
                }
                if tables[at] != batch[page] {
                    page += 1;
                }
                let index = (ranges[at] >> shift) as usize % ENTRIES;
                entries[at] = if self.was_read(page) { self.page(page)[index] } else { 0 };
            }
            begin = end;
        }
        Ok(())
    }

    /// Calls `see` with each of `ranges` (numbers of 2 MiB ranges, ascending) and what is mapped
    /// there. A range that changes while it is read is reported as empty. `ESRCH` when the process
    /// ends.
    pub fn scan(&mut self, ranges: &[u64], mut see: impl FnMut(u64, &RangeBits)) -> io::Result<()> {
        let Geometry { direct_map, levels } = self.geometry;
        for ranges in ranges.chunks(RANGES_MAX) {
            let looked = self.looked();
            (looked.count, looked.levels, looked.direct_map, looked.pgd) =
                (ranges.len() as u64, levels.into(), direct_map, 0);
            looked.range[..ranges.len()].copy_from_slice(ranges);
            run(self.looks.as_fd())?;
            if self.looked().pgd == 0 {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
            for (index, &range) in ranges.iter().enumerate() {
                let (entry, again) = (self.looked().entry[index], self.looked().again[index]);
                let bits = match () {
                    // A table that was removed meanwhile may have been reused for anything by the
                    // time it was copied.
                    () if (entry ^ again) & !(ACCESSED | DIRTY) != 0 => RangeBits::default(),
                    () if is_table(entry) => {
                        let (present, accessed) = bits_of(self.page(index));
                        RangeBits { present, accessed, huge: false }
                    }
                    () if is_there(entry) && entry & LARGE != 0 => {
                        let all = [u64::MAX; PAGES_PER_EXTENT / 64];
                        let accessed =
                            if entry & ACCESSED != 0 { all } else { PageBits::default() };
                        RangeBits { present: all, accessed, huge: true }
                    }
                    () => RangeBits::default(),
                };
                see(range, &bits);
            }
        }
        Ok(())
    }

    /// Appends those of the ranges `first..end` in which something may be mapped. Reads little
    /// where a large address space is sparsely used.
    pub fn populated(&mut self, first: u64, end: u64, out: &mut Vec<u64>) -> io::Result<()> {
        // One of 512 ranges, all of which one table maps, represents all of them.
        let mut at = first;
        while at < end {
            let heads: Vec<u64> = (at / ENTRIES as u64..end.div_ceil(ENTRIES as u64))
                .take(PAGES_MAX)
                .map(|table| (table * ENTRIES as u64).max(first))
                .collect();
            let next = (heads[heads.len() - 1] / ENTRIES as u64 + 1) * ENTRIES as u64;
            self.find_tables(&heads)?;
            let tables = std::mem::take(&mut self.tables);
            let mut there: Vec<(u64, u64)> = heads
                .iter()
                .zip(&tables)
                .filter(|(_, table)| **table != 0)
                .map(|(&head, &table)| (head, table))
                .collect();
            self.tables = tables;
            there.dedup_by_key(|(_, table)| *table);
            let addresses: Vec<u64> = there.iter().map(|(_, table)| *table).collect();
            if !addresses.is_empty() {
                self.copy(&addresses)?;
            }
            for (page, &(head, _)) in there.iter().enumerate() {
                let begin = head / ENTRIES as u64 * ENTRIES as u64;
                if self.was_read(page) {
                    let table = self.page(page);
                    let used = (0..ENTRIES as u64)
                        .filter(|&index| table[index as usize] != 0)
                        .map(|index| begin + index);
                    out.extend(used.filter(|range| (first..end).contains(range)));
                }
            }
            at = next;
        }
        Ok(())
    }

    /// Keeps those of `ranges` (ascending) that are mapped by small pages. Of each only the entry
    /// is read that maps 2 MiB.
    pub fn retain_small(&mut self, ranges: &mut Vec<u64>) -> io::Result<()> {
        self.find_tables(ranges)?;
        let tables = std::mem::take(&mut self.tables);
        let mut entries = vec![0; ranges.len()];
        let read = self.follow(ranges, &tables, 0, &mut entries);
        self.tables = tables;
        read?;
        let mut entries = entries.into_iter();
        ranges.retain(|_| entries.next().is_some_and(is_table));
        Ok(())
    }
}

fn is_table(entry: u64) -> bool {
    entry & PRESENT != 0 && entry & LARGE == 0
}

fn is_there(entry: u64) -> bool {
    entry & PRESENT != 0 || entry & PROT_NONE != 0
}

/// Runs once the program that is linked to a task.
fn run(link: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: creates a descriptor from a descriptor.
    let fd = unsafe { sys::bpf_iter_create(link.as_raw_fd()) };
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: just created, and owned by no one else.
    let mut run = unsafe { fs::File::from_raw_fd(fd) };
    // Reading runs the program; it prints nothing.
    run.read(&mut [0u8; 8]).map(drop)
}

/// Binds the program to one task (`bpf_iter_link_info.task.tid`, Linux 6.1).
fn attach(program: BorrowedFd<'_>, pid: u32) -> io::Result<OwnedFd> {
    let mut info = sys::bpf_iter_link_info::default();
    info.task.tid = pid;
    // SAFETY: all zeros are valid options.
    let mut options: sys::bpf_link_create_opts = unsafe { std::mem::zeroed() };
    options.sz = size_of::<sys::bpf_link_create_opts>() as _;
    options.iter_info = &mut info;
    options.iter_info_len = size_of::<sys::bpf_iter_link_info>() as u32;
    // SAFETY: `options` and what it points to live for the call.
    let fd = unsafe { sys::bpf_link_create(program.as_raw_fd(), 0, sys::BPF_TRACE_ITER, &options) };
    match fd {
        0.. => {
            // SAFETY: just created, and owned by no one else.
            Ok(unsafe { OwnedFd::from_raw_fd(fd) })
        }
        _ if -fd == libc::EINVAL => Err(unsupported(
            "this kernel cannot look at one task with BPF: Linux 6.1 or newer is needed",
        )),
        _ => Err(io::Error::from_raw_os_error(-fd)),
    }
}

/// Finds the direct map by walking our own page tables: with the right base and number of levels
/// they lead to a page of known content.
fn find_geometry() -> io::Result<Geometry> {
    let known = Box::new(Aligned4k(std::array::from_fn(|at| {
        (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ std::process::id() as u64
    })));
    let page = &raw const *known as u64 / PAGE as u64;
    let mut walk = Walk::load(std::process::id(), Geometry { direct_map: 0, levels: 4 })?;
    let top = walk.copy(&[])?;
    for step in 0..BASES_MAX {
        let Some(direct_map) =
            (top & !(GIB - 1)).checked_sub(step * GIB).filter(|base| base >> 55 != 0)
        else {
            break;
        };
        for levels in [4, 5] {
            let geometry = Geometry { direct_map, levels };
            if leads_to(&mut walk, geometry, top, page, &known.0)? {
                return Ok(geometry);
            }
        }
    }
    Err(unsupported("the kernel's direct map was not found"))
}

#[repr(C, align(4096))]
struct Aligned4k(Table);

/// Whether our page `page` (address divided by 4 KiB) has `content`, as seen through page tables
/// read with `geometry`.
fn leads_to(
    walk: &mut Walk,
    geometry: Geometry,
    top: u64,
    page: u64,
    content: &Table,
) -> io::Result<bool> {
    let mut table = top;
    for level in (0..geometry.levels).rev() {
        walk.copy(&[table])?;
        let entry = walk.page(0)[(page >> (9 * level)) as usize % ENTRIES];
        if !walk.was_read(0) || entry & PRESENT == 0 {
            return Ok(false);
        }
        table = geometry.direct_map.wrapping_add(entry & ADDRESS);
        if level > 0 && entry & LARGE != 0 {
            // Within a huge page: the rest of the number is an offset.
            let whole = (PAGE as u64) << (9 * level);
            table = (table & !(whole - 1)) | ((page & ((1 << (9 * level)) - 1)) * PAGE as u64);
            break;
        }
    }
    walk.copy(&[table])?;
    Ok(walk.was_read(0) && walk.page(0) == content)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use hiroma_units::EXTENT;

    use super::*;
    use crate::hot::target::{Advice, Span, Target};
    use crate::vm::{Access, Advise, Reservation, touch};

    /// The walk of this process; none, and a reported skip, if this user has no permission.
    fn ours() -> Option<Walk> {
        match Walk::open(std::process::id()) {
            Ok(walk) => Some(walk),
            Err(error) => {
                hiroma_testkit::skip!(Machine, "{error}");
                None
            }
        }
    }

    fn look(walk: &mut Walk, range: u64) -> RangeBits {
        let mut found = None;
        walk.scan(&[range], |_, bits| found = Some(*bits)).unwrap();
        found.unwrap()
    }

    fn pages(bits: &PageBits) -> BTreeSet<usize> {
        (0..PAGES_PER_EXTENT).filter(|page| bits[page / 64] >> (page % 64) & 1 == 1).collect()
    }

    #[test]
    fn walk_sees_touched_pages_until_cleared() {
        let Some(mut walk) = ours() else { return };
        let memory = Reservation::new(2 * EXTENT, EXTENT, Access::ReadWrite).unwrap();
        memory.advise(memory.base(), memory.len(), Advise::NoHuge).unwrap();
        let touched: BTreeSet<usize> = [0, 1, 63, 64, 130, 511].into();
        touched.iter().for_each(|page| touch(memory.base() + page * PAGE, PAGE));
        let range = (memory.base() / EXTENT) as u64;
        let bits = look(&mut walk, range);
        assert_eq!(
            (pages(&bits.present), pages(&bits.accessed), bits.huge),
            (touched.clone(), touched.clone(), false)
        );
        assert_eq!(look(&mut walk, range + 1), RangeBits::default());
        let target = Target::open(std::process::id()).unwrap();
        target
            .advise(&[Span { start: memory.base() as u64, len: EXTENT as u64 }], Advice::Cold)
            .unwrap();
        touch(memory.base() + 130 * PAGE, PAGE);
        let bits = look(&mut walk, range);
        assert_eq!((pages(&bits.present), pages(&bits.accessed)), (touched, [130].into()));
    }

    #[test]
    fn partial_advice_splits_a_huge_page() {
        let Some(mut walk) = ours() else { return };
        let memory = Reservation::new(EXTENT, EXTENT, Access::ReadWrite).unwrap();
        // Pages of zeros may be gone when it is split (Linux 6.12).
        (0..EXTENT)
            .step_by(PAGE)
            .for_each(|offset| crate::vm::fill(memory.base() + offset, PAGE, 1));
        let target = Target::open(std::process::id()).unwrap();
        let span = Span { start: memory.base() as u64, len: EXTENT as u64 };
        if let Err(error) = target.advise(&[span], Advice::Collapse) {
            hiroma_testkit::skip!(Machine, "this machine makes no huge page now: {error}");
            return;
        }
        let range = (memory.base() / EXTENT) as u64;
        assert!(look(&mut walk, range).huge);
        let small = |walk: &mut Walk| {
            let mut ranges = vec![range - 1, range, range + 1];
            walk.retain_small(&mut ranges).unwrap();
            ranges.contains(&range)
        };
        assert!(!small(&mut walk));
        match crate::hot::pagemap::Pagemap::open(std::process::id()).unwrap().huge(range, range + 1)
        {
            Ok(huge) => assert!(huge),
            Err(error) => hiroma_testkit::skip!(Machine, "no PAGEMAP_SCAN: {error}"),
        }
        target.advise(&[Span { len: PAGE as u64, ..span }], Advice::Cold).unwrap();
        let bits = look(&mut walk, range);
        assert!(!bits.huge && small(&mut walk));
        assert_eq!(pages(&bits.present).len(), PAGES_PER_EXTENT);
    }

    #[test]
    fn populated_ranges_are_found_in_large_reservation() {
        let Some(mut walk) = ours() else { return };
        let memory = Reservation::new(64 << 30, EXTENT, Access::ReadWrite).unwrap();
        let wanted = [3usize, 4, 700, 20_000];
        wanted.iter().for_each(|range| touch(memory.base() + range * EXTENT, PAGE));
        let first = (memory.base() / EXTENT) as u64;
        let mut found = Vec::new();
        walk.populated(first, first + (memory.len() / EXTENT) as u64, &mut found).unwrap();
        let wanted: Vec<u64> = wanted.iter().map(|&range| first + range as u64).collect();
        assert_eq!(found, wanted);
        // What is mapped by huge pages, where the machine makes them by itself, is left out.
        let mut small: Vec<u64> = (first..first + (memory.len() / EXTENT) as u64).collect();
        walk.retain_small(&mut small).unwrap();
        let of_small = |&range: &u64| !look(&mut walk, range).huge;
        assert_eq!(small, wanted.into_iter().filter(of_small).collect::<Vec<u64>>());
    }

    #[test]
    fn walking_an_exited_process_fails_cleanly() {
        if ours().is_none() {
            return;
        }
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let mut walk = Walk::open(child.id()).unwrap();
        walk.scan(&[1], |_, _| {}).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(walk.scan(&[1], |_, _| {}).unwrap_err().raw_os_error(), Some(libc::ESRCH));
    }
}
