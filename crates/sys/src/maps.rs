//! Mappings of this process, from `/proc/self/maps`, by `PROCMAP_QUERY` (Linux
//! 6.11) where available.
//!
//! Contract: the structure below has the layout of the kernel's header (`include/uapi/linux/fs.h`),
//! and the kernel writes nothing else.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsFd;

use rustix::ioctl::{self, Opcode, Updater, opcode};

/// One mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Area {
    pub start: usize,
    pub end: usize,
    /// `PROT_*`.
    pub prot: i32,
}

#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    query_flags: u64,
    query_addr: u64,
    vma_start: u64,
    vma_end: u64,
    vma_flags: u64,
    vma_page_size: u64,
    vma_offset: u64,
    inode: u64,
    dev_major: u32,
    dev_minor: u32,
    vma_name_size: u32,
    build_id_size: u32,
    vma_name_addr: u64,
    build_id_addr: u64,
}

const QUERY: Opcode = opcode::read_write::<Query>(b'f', 17);

/// The mapping at `addr`.
pub fn area_at(addr: usize) -> Option<Area> {
    let maps = File::open("/proc/self/maps").ok()?;
    let mut query =
        Query { size: size_of::<Query>() as u64, query_addr: addr as u64, ..Query::default() };
    // SAFETY: PROCMAP_QUERY reads and writes one structure of this layout; no buffers for names are
    // passed.
    match unsafe { ioctl::ioctl(maps.as_fd(), Updater::<QUERY, Query>::new(&mut query)) } {
        Ok(()) => Some(Area {
            start: query.vma_start as usize,
            end: query.vma_end as usize,
            prot: (query.vma_flags & 7) as i32,
        }),
        Err(rustix::io::Errno::NOENT) => None,
        Err(_) => area_in_text(&std::fs::read_to_string("/proc/self/maps").ok()?, addr),
    }
}

/// The mappings that touch `start..end`, in order.
pub fn areas(start: usize, end: usize) -> io::Result<Vec<Area>> {
    let text = std::fs::read_to_string("/proc/self/maps")?;
    Ok(text.lines().filter_map(area).filter(|area| area.start < end && start < area.end).collect())
}

fn area_in_text(text: &str, addr: usize) -> Option<Area> {
    text.lines().filter_map(area).find(|area| area.start <= addr && addr < area.end)
}

fn area(line: &str) -> Option<Area> {
    let mut fields = line.split(' ');
    let (start, end) = fields.next()?.split_once('-')?;
    let (start, end) =
        (usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?);
    let rights = fields.next()?.as_bytes();
    let bit = |at: usize, set: u8, value: i32| if rights.get(at) == Some(&set) { value } else { 0 };
    let prot = bit(0, b'r', libc::PROT_READ)
        | bit(1, b'w', libc::PROT_WRITE)
        | bit(2, b'x', libc::PROT_EXEC);
    Some(Area { start, end, prot })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm::{Access, Reservation};

    #[test]
    fn both_methods_agree() {
        let memory = Reservation::new(4 * 4096, 4096, Access::ReadWrite).unwrap();
        memory.protect(memory.base() + 4096, 4096, libc::PROT_READ).unwrap();
        memory.protect(memory.base() + 8192, 4096, libc::PROT_NONE).unwrap();
        let text = std::fs::read_to_string("/proc/self/maps").unwrap();
        for (page, prot) in [(1, libc::PROT_READ), (2, libc::PROT_NONE)] {
            let addr = memory.base() + page * 4096;
            assert_eq!(area_at(addr + 5), Some(Area { start: addr, end: addr + 4096, prot }));
            assert_eq!(area_in_text(&text, addr + 5), area_at(addr));
        }
        assert_eq!(area_at(8), None);
        let (from, to) = (memory.base() + 4096, memory.base() + 3 * 4096);
        let areas = areas(from, to).unwrap();
        let prots: Vec<_> = areas.iter().map(|area| area.prot).collect();
        assert_eq!(prots, [libc::PROT_READ, libc::PROT_NONE]);
    }
}
