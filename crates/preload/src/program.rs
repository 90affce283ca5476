//! What the program's file says: whether Go made it; where its data ends, what it imports and defines, if
//! it is at a fixed address.
//!
//! Contract: reads tables that the kernel and the dynamic linker have mapped, and that never change.
#![allow(unsafe_code)]

use std::arch::asm;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::{ptr, slice};

use hiroma_units::PAGE;
use libc::{Elf64_Phdr, Elf64_Sym, PT_DYNAMIC, PT_LOAD, PT_NOTE, PT_PHDR};

/// From `elf.h` and `dlfcn.h`.
const DT_STRTAB: usize = 5;
const DT_SYMTAB: usize = 6;
const DT_GNU_HASH: usize = 0x6fff_fef5;
const SHN_UNDEF: u16 = 0;
const RTLD_DL_SYMENT: c_int = 1;

/// The program's segments, and how far they are from where its file has them.
fn placed_segments() -> (&'static [Elf64_Phdr], usize) {
    // SAFETY: the kernel's words about the program, and the table that they lead to.
    let all = unsafe {
        let table = libc::getauxval(libc::AT_PHDR) as *const Elf64_Phdr;
        if table.is_null() {
            return (&[], 0);
        }
        slice::from_raw_parts(table, libc::getauxval(libc::AT_PHNUM) as usize)
    };
    match all.iter().find(|segment| segment.p_type == PT_PHDR) {
        Some(own) => (all, (all.as_ptr() as usize).wrapping_sub(own.p_vaddr as usize)),
        None => (&[], 0),
    }
}

/// The program's segments; none if it is not at a fixed address.
fn segments() -> &'static [Elf64_Phdr] {
    match placed_segments() {
        (all, 0) => all,
        _ => &[],
    }
}

/// The function by which C calls Go, which Go's linker exports from every program that has the dynamic
/// linker; zero if there is none.
fn go_entry() -> usize {
    let address: usize;
    // SAFETY: reads the word in which the dynamic linker has put the address, or zero.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        asm!(".weak crosscall2", "mov {0}, qword ptr [rip + crosscall2@GOTPCREL]",
             out(reg) address, options(nostack, readonly, pure));
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        asm!(".weak crosscall2", "adrp {0}, :got:crosscall2",
             "ldr {0}, [{0}, :got_lo12:crosscall2]",
             out(reg) address, options(nostack, readonly, pure));
    }
    address
}

/// Whether one of these notes is the build ID that Go's linker writes.
fn has_go_note(mut notes: &[u8]) -> bool {
    const HEADER_BYTES: usize = 12;
    const NAME: &[u8] = b"Go\0";
    let word = |notes: &[u8], at: usize| {
        let bytes = notes.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        u32::from_ne_bytes(bytes.unwrap_or_default()) as usize
    };
    while notes.len() > HEADER_BYTES {
        let (name_bytes, content_bytes) = (word(notes, 0), word(notes, 4));
        if name_bytes >= NAME.len() && notes[HEADER_BYTES..].starts_with(NAME) {
            return true;
        }
        let bytes = name_bytes.next_multiple_of(4) + content_bytes.next_multiple_of(4);
        notes = notes.get(HEADER_BYTES + bytes..).unwrap_or_default();
    }
    false
}

/// Whether this is a Go program. Its runtime takes its heap from the C library's `mmap`, but forks, gives
/// pages up and changes mappings by the instruction, and its race detector has memory at fixed addresses.
pub fn is_go() -> bool {
    let (all, base) = placed_segments();
    let range = |segment: &Elf64_Phdr| {
        let start = base.wrapping_add(segment.p_vaddr as usize);
        start..start.saturating_add(segment.p_memsz as usize)
    };
    let loads = || all.iter().filter(|segment| segment.p_type == PT_LOAD).map(range);
    let is_loaded = |part: &Range<usize>| {
        !part.is_empty() && loads().any(|load| load.start <= part.start && part.end <= load.end)
    };
    let notes = all.iter().filter(|segment| segment.p_type == PT_NOTE && segment.p_align <= 4);
    // A library that is made of Go exports it, too.
    loads().any(|load| load.contains(&go_entry()))
        || notes.map(range).filter(is_loaded).any(|part| {
            // SAFETY: a part of the program's file, which the kernel has mapped and nobody writes to.
            has_go_note(unsafe { slice::from_raw_parts(part.start as *const u8, part.len()) })
        })
}

/// The page after the program's data; zero if it is not at a fixed address.
pub fn end_of_data() -> usize {
    let loaded = segments().iter().filter(|segment| segment.p_type == PT_LOAD);
    let ends = loaded.map(|segment| (segment.p_vaddr + segment.p_memsz) as usize);
    ends.max().unwrap_or(0).next_multiple_of(PAGE)
}

/// A table that the program's dynamic section names.
fn table(tag: usize) -> Option<usize> {
    let dynamic = segments().iter().find(|segment| segment.p_type == PT_DYNAMIC)?;
    let mut at = dynamic.p_vaddr as *const [usize; 2];
    loop {
        // SAFETY: the section ends with a tag of zero.
        match unsafe { at.read() } {
            [0, _] => return None,
            [found, address] if found == tag => return Some(address),
            // SAFETY: not the last entry.
            _ => at = unsafe { at.add(1) },
        }
    }
}

/// Whether the program takes all of these from a library.
pub fn imports(names: &[&CStr]) -> bool {
    let tables = [DT_SYMTAB, DT_STRTAB, DT_GNU_HASH].map(table);
    let [Some(symbols), Some(strings), Some(hashes)] = tables else { return false };
    // SAFETY: the second word of this table counts the symbols before those that others may look up;
    // what a program imports is among these.
    let imported = unsafe {
        let count = (hashes as *const u32).add(1).read() as usize;
        slice::from_raw_parts(symbols as *const Elf64_Sym, count)
    };
    let is_there = |name: &&CStr| {
        imported.iter().any(|symbol| {
            let text = (strings + symbol.st_name as usize) as *const c_char;
            // SAFETY: a NUL-terminated string of the program's table.
            symbol.st_shndx == SHN_UNDEF && unsafe { CStr::from_ptr(text) } == *name
        })
    };
    names.iter().all(is_there)
}

/// Whether the program itself has this function. One that only takes its address may have a symbol with
/// an address, too.
pub fn defines(name: &CStr) -> bool {
    let mut found = MaybeUninit::<libc::Dl_info>::zeroed();
    let mut symbol = ptr::null_mut::<c_void>();
    // SAFETY: a NUL-terminated string; the symbol lies in the table of a library that stays.
    unsafe {
        let address = libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr());
        (address as usize) < end_of_data()
            && libc::dladdr1(address, found.as_mut_ptr(), &raw mut symbol, RTLD_DL_SYMENT) != 0
            && symbol.cast::<Elf64_Sym>().as_ref().is_some_and(|it| it.st_shndx != SHN_UNDEF)
    }
}

#[cfg(test)]
mod tests {
    use super::{has_go_note, is_go};

    fn note(name: &[u8], content: &[u8]) -> Vec<u8> {
        let mut note = Vec::new();
        [name.len() as u32, content.len() as u32, 4]
            .iter()
            .for_each(|word| note.extend(word.to_ne_bytes()));
        for part in [name, content] {
            note.extend(part);
            note.resize(note.len().next_multiple_of(4), 0);
        }
        note
    }

    #[test]
    fn this_program_is_not_of_go() {
        assert!(!is_go());
    }

    #[test]
    fn go_is_known_by_its_note_among_others() {
        let (gnu, go) = (note(b"GNU\0", &[7; 20]), note(b"Go\0\0", b"build id of 18 byt"));
        assert!(has_go_note(&go));
        assert!(has_go_note(&[&gnu[..], &go].concat()));
        assert!(has_go_note(&[&go[..], &gnu].concat()));
        assert!(!has_go_note(&gnu));
        assert!(!has_go_note(&[note(b"Google\0", b"no"), note(b"G\0", b"o")].concat()));
    }

    #[test]
    fn damaged_notes_are_read_to_their_end_only() {
        let both = [note(b"GNU\0", &[7; 20]), note(b"Go\0\0", b"id")].concat();
        for len in 0..both.len() {
            has_go_note(&both[..len]);
        }
        let mut endless = both;
        endless[..8].fill(0xff);
        assert!(!has_go_note(&endless));
    }
}
