//! The mappings of a process (`/proc/PID/maps`, `proc_pid_maps(5)`).

use std::fs;
use std::io;

/// One mapping.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Vma {
    /// First address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    pub writable: bool,
    /// Changes are visible to other processes.
    pub shared: bool,
    /// Whether no file backs it; heap and stack have none.
    pub anonymous: bool,
    /// Its file, or its name in brackets; often empty.
    pub name: String,
}

/// The mappings of process `pid`, by address. Needs permission to trace it (`ptrace(2)`, access
/// mode read).
pub fn of(pid: u32) -> io::Result<Vec<Vma>> {
    let text = fs::read(format!("/proc/{pid}/maps"))?;
    Ok(String::from_utf8_lossy(&text).lines().filter_map(parse).collect())
}

fn parse(line: &str) -> Option<Vma> {
    let mut fields = line.splitn(6, ' ');
    let (start, end) = fields.next()?.split_once('-')?;
    let rights = fields.next()?.as_bytes();
    let inode = fields.nth(2)?;
    let name = fields.next().unwrap_or_default().trim_start();
    Some(Vma {
        start: u64::from_str_radix(start, 16).ok()?,
        end: u64::from_str_radix(end, 16).ok()?,
        writable: rights.get(1) == Some(&b'w'),
        shared: rights.get(3) == Some(&b's'),
        // The kernel's own mappings have names in brackets; their pages do not belong to the
        // program.
        anonymous: inode == "0"
            && !matches!(name, "[vvar]" | "[vvar_vclock]" | "[vdso]" | "[vsyscall]" | "[uprobes]"),
        name: name.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_all_kinds_are_read() {
        let heap = parse(
            "55d0c0a00000-55d0c0c21000 rw-p 00000000 00:00 0                          [heap]",
        )
        .unwrap();
        assert_eq!((heap.start, heap.end), (0x55d0_c0a0_0000, 0x55d0_c0c2_1000));
        assert!(heap.anonymous && heap.writable && !heap.shared && heap.name == "[heap]");
        let plain = parse("7f0000000000-7f0040000000 rw-p 00000000 00:00 0 ").unwrap();
        assert!(plain.anonymous && plain.name.is_empty());
        let file = parse(
            "7f1000000000-7f1000001000 r--s 00001000 08:01 28588786    /tmp/a file (deleted)",
        )
        .unwrap();
        assert!(
            !file.anonymous
                && file.shared
                && !file.writable
                && file.name == "/tmp/a file (deleted)"
        );
        assert!(!parse("7ffd1000-7ffd2000 r-xp 00000000 00:00 0   [vdso]").unwrap().anonymous);
        assert_eq!(parse("nonsense"), None);
    }

    #[test]
    fn this_process_has_a_stack() {
        assert!(
            of(std::process::id())
                .unwrap()
                .iter()
                .any(|vma| vma.name == "[stack]" && vma.anonymous)
        );
    }
}
