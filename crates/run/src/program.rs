//! Checks whether a program can use far memory, before it starts.
//!
//! The library is loaded through `LD_PRELOAD`, so the dynamic linker must honour it: static
//! programs have no dynamic linker, Go programs bypass the C library, and for set-user-id programs
//! the linker ignores the library.

use std::env;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read, Seek};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use hiroma_command::Failure;
use object::elf::{self, FileHeader64};
use object::read::ReadCache;
use object::read::elf::{FileHeader, ProgramHeader, Sym};
use object::{Endianness, ReadRef};
use rustix::fs::{Access, access};

/// Why a program cannot run, or cannot run with far memory. Every message includes a remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProgramError {
    #[error("`{0}` was not found: give its path, or a name that is in PATH")]
    NotFound(String),
    #[error("`{0}` is a directory, not a program")]
    Directory(String),
    #[error("`{0}` is not executable: chmod +x {0}")]
    NotExecutable(String),
    #[error("`{path}` cannot be read, so whether it can work is unknown: {reason}")]
    Unreadable { path: String, reason: String },
    #[error(
        "`{0}` is neither a program nor a script that starts with #!: run it with its interpreter, as in `hiroma run -- sh {0}`"
    )]
    NoFormat(String),
    #[error(
        "the interpreter `{interpreter}` of `{script}` was not found: install it, or correct the script's first line"
    )]
    NoInterpreter { script: String, interpreter: String },
    #[error(
        "`{0}` is statically linked: it never asks the C library for memory, so far memory cannot reach it; link it dynamically, or use a dynamically linked build of it"
    )]
    Static(String),
    #[error(
        "`{0}` is a Go program: Go makes its own system calls, so far memory cannot reach it; run it without hiroma"
    )]
    Go(String),
    #[error(
        "`{path}` is built with a sanitizer ({which}), which brings its own malloc and its own idea of where memory is: run it without hiroma, or use a build without the sanitizer"
    )]
    Sanitizer { path: String, which: String },
    #[error(
        "`{0}` runs programs on a processor of its own making, where LD_PRELOAD means the program inside: run it without hiroma"
    )]
    Emulator(String),
    #[error(
        "`{path}` is linked against musl ({linker}): only programs of the GNU C library can have far memory; use a build for glibc"
    )]
    Musl { path: String, linker: String },
    #[error(
        "`{path}` is a program for {found}, hiroma is for {own}: use a build of the program for {own}"
    )]
    Machine { path: String, found: String, own: &'static str },
    #[error(
        "`{path}` changes its user or its rights when it starts ({why}), and then ignores LD_PRELOAD: run it as the user it changes to, or use a copy without that ({remedy})"
    )]
    Privileged { path: String, why: &'static str, remedy: String },
    #[error(
        "the script `{0}` leads to a script that leads to a script too often: run the last interpreter yourself"
    )]
    TooDeep(String),
}

impl ProgramError {
    /// Why a program that does start has no far memory, in a few words. `None`: it does not start.
    pub fn without_far_memory(&self) -> Option<String> {
        Some(match self {
            ProgramError::Static(_) => "static".to_owned(),
            ProgramError::Go(_) => "Go".to_owned(),
            ProgramError::Sanitizer { which, .. } => format!("sanitizer {which}"),
            ProgramError::Emulator(_) => "emulator".to_owned(),
            ProgramError::Musl { .. } => "musl".to_owned(),
            ProgramError::Machine { found, .. } => found.clone(),
            ProgramError::Privileged { why, .. } => (*why).to_owned(),
            ProgramError::Unreadable { .. } => "cannot be read".to_owned(),
            ProgramError::NotFound(_)
            | ProgramError::Directory(_)
            | ProgramError::NotExecutable(_)
            | ProgramError::NoFormat(_)
            | ProgramError::NoInterpreter { .. }
            | ProgramError::TooDeep(_) => return None,
        })
    }

    /// The exit code that shells use for the error, or ours for a refusal.
    pub fn code(&self) -> u8 {
        match self {
            ProgramError::NotFound(_) | ProgramError::NoInterpreter { .. } => 127,
            ProgramError::Directory(_)
            | ProgramError::NotExecutable(_)
            | ProgramError::NoFormat(_) => 126,
            _ => hiroma_command::REFUSED,
        }
    }
}

const OWN_MACHINE: (u16, &str) = if cfg!(target_arch = "aarch64") {
    (elf::EM_AARCH64, "64-bit ARM")
} else {
    (elf::EM_X86_64, "x86-64")
};

/// Finds the program called `name` as a shell would.
pub fn find(name: &OsStr) -> Result<PathBuf, ProgramError> {
    let shown = || name.to_string_lossy().into_owned();
    if name.as_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        return if path.exists() { Ok(path) } else { Err(ProgramError::NotFound(shown())) };
    }
    let path = env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    let candidates: Vec<PathBuf> =
        env::split_paths(&path).map(|dir| dir.join(name)).filter(|path| path.is_file()).collect();
    let runnable = candidates.iter().find(|path| access(*path, Access::EXEC_OK).is_ok());
    runnable
        .or(candidates.first())
        .filter(|_| !name.is_empty())
        .cloned()
        .ok_or_else(|| ProgramError::NotFound(shown()))
}

/// Checks the program at `path`, and the interpreters that it leads to.
pub fn check(path: &Path) -> Result<(), ProgramError> {
    check_at_depth(path, 0)
}

fn check_at_depth(path: &Path, depth: u32) -> Result<(), ProgramError> {
    let shown = path.display().to_string();
    // The kernel follows four interpreters, then returns ELOOP.
    if depth > 4 {
        return Err(ProgramError::TooDeep(shown));
    }
    let unreadable = |error: std::io::Error| ProgramError::Unreadable {
        path: path.display().to_string(),
        reason: error.to_string(),
    };
    let found = fs::metadata(path).map_err(|_| ProgramError::NotFound(shown.clone()))?;
    if found.is_dir() {
        return Err(ProgramError::Directory(shown));
    }
    if access(path, Access::EXEC_OK).is_err() {
        return Err(ProgramError::NotExecutable(shown));
    }
    check_privileges(path, &found)?;
    let mut file = File::open(path).map_err(unreadable)?;
    let mut head = [0; 256];
    let len = read_up_to(&mut file, &mut head).map_err(unreadable)?;
    match &head[..len] {
        [b'#', b'!', line @ ..] => check_script(path, line, depth),
        [0x7f, b'E', b'L', b'F', ..] if len >= 64 => check_elf(path, &head, file),
        _ => Err(ProgramError::NoFormat(shown)),
    }
}

fn read_up_to(file: &mut File, head: &mut [u8]) -> std::io::Result<usize> {
    let len = file.take(head.len() as u64).read(head)?;
    file.rewind()?;
    Ok(len)
}

/// Whether a program of this name runs others on a processor of its own making.
fn is_emulator(name: &[u8]) -> bool {
    // QEMU's other programs: machines, and what serves them.
    const OTHERS: [&[u8]; 9] = [
        b"system-",
        b"img",
        b"io",
        b"nbd",
        b"ga",
        b"pr-helper",
        b"storage-daemon",
        b"edid",
        b"bridge-helper",
    ];
    let is_user_mode = |rest: &[u8]| !OTHERS.iter().any(|other| rest.starts_with(other));
    name.starts_with(b"valgrind")
        || [&b"box64"[..], b"FEXInterpreter"].contains(&name)
        || name.strip_prefix(b"qemu-").is_some_and(is_user_mode)
}

/// The dynamic linker ignores `LD_PRELOAD` for a program that gains rights which its user lacks.
fn check_privileges(path: &Path, found: &fs::Metadata) -> Result<(), ProgramError> {
    let (user, group) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let privileged = |why, remedy| {
        Err(ProgramError::Privileged { path: path.display().to_string(), why, remedy })
    };
    if found.mode() & 0o4000 != 0 && found.uid() != user {
        return privileged("set-user-id bit", "chmod u-s".to_owned());
    }
    if found.mode() & 0o2010 == 0o2010 && found.gid() != group {
        return privileged("set-group-id bit", "chmod g-s".to_owned());
    }
    if user != 0 && rustix::fs::getxattr(path, "security.capability", &mut [0; 64]).is_ok() {
        return privileged("file capabilities", format!("setcap -r {}", path.display()));
    }
    Ok(())
}

fn check_script(path: &Path, line: &[u8], depth: u32) -> Result<(), ProgramError> {
    let line = line.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let mut words =
        line.split(|byte| matches!(byte, b' ' | b'\t' | b'\r')).filter(|word| !word.is_empty());
    let Some(interpreter) = words.next().map(|word| Path::new(OsStr::from_bytes(word))) else {
        return Err(ProgramError::NoFormat(path.display().to_string()));
    };
    let missing = |name: &OsStr| ProgramError::NoInterpreter {
        script: path.display().to_string(),
        interpreter: name.to_string_lossy().into_owned(),
    };
    if !interpreter.exists() {
        return Err(missing(interpreter.as_os_str()));
    }
    check_at_depth(interpreter, depth + 1)?;
    if interpreter.file_name() != Some(OsStr::new("env")) {
        return Ok(());
    }
    // `env` executes the first word that is neither an option nor an assignment. These options have
    // their argument in the next word.
    let is_next = |word: &[u8]| matches!(word, b"-u" | b"--unset" | b"-C" | b"--chdir");
    let name = loop {
        match words.next() {
            None => return Ok(()),
            Some(word) if is_next(word) => drop(words.next()),
            Some(word) if word.starts_with(b"-") || word.contains(&b'=') => {}
            Some(word) => break OsStr::from_bytes(word),
        }
    };
    check_at_depth(&find(name).map_err(|_| missing(name))?, depth + 1)
}

fn check_elf(path: &Path, head: &[u8; 256], file: File) -> Result<(), ProgramError> {
    let shown = path.display().to_string();
    let (own, own_name) = OWN_MACHINE;
    let machine = u16::from_le_bytes([head[18], head[19]]);
    let of_own_machine =
        head[4] == elf::ELFCLASS64 && head[5] == elf::ELFDATA2LSB && machine == own;
    if !of_own_machine {
        return Err(ProgramError::Machine {
            path: shown,
            found: machine_name(head),
            own: own_name,
        });
    }
    let facts =
        ElfFacts::read(&ReadCache::new(file)).map_err(|error| ProgramError::Unreadable {
            path: shown.clone(),
            reason: format!("damaged ELF file: {error}"),
        })?;
    if facts.go {
        return Err(ProgramError::Go(shown));
    }
    if let Some(which) = facts.sanitizer {
        return Err(ProgramError::Sanitizer { path: shown, which });
    }
    if path.file_name().is_some_and(|name| is_emulator(name.as_bytes())) {
        return Err(ProgramError::Emulator(shown));
    }
    match facts.linker {
        Some(linker) if linker.contains("ld-musl") => {
            Err(ProgramError::Musl { path: shown, linker })
        }
        Some(linker) if !Path::new(&linker).exists() => {
            Err(ProgramError::NoInterpreter { script: shown, interpreter: linker })
        }
        Some(_) => Ok(()),
        // The dynamic linker has no interpreter itself, but it reads LD_PRELOAD when it is started
        // as a program.
        None if path.file_name().is_some_and(|name| name.as_bytes().starts_with(b"ld-linux")) => {
            Ok(())
        }
        None => Err(ProgramError::Static(shown)),
    }
}

fn machine_name(head: &[u8; 256]) -> String {
    let machine = if head[5] == elf::ELFDATA2LSB {
        u16::from_le_bytes([head[18], head[19]])
    } else {
        u16::from_be_bytes([head[18], head[19]])
    };
    let name = match machine {
        elf::EM_386 => "32-bit x86",
        elf::EM_X86_64 if head[4] == elf::ELFCLASS32 => "x32",
        elf::EM_X86_64 => "x86-64",
        elf::EM_ARM => "32-bit ARM",
        elf::EM_AARCH64 => "64-bit ARM",
        elf::EM_RISCV => "RISC-V",
        elf::EM_PPC64 => "64-bit POWER",
        elf::EM_S390 => "IBM Z",
        other => return format!("another machine (ELF machine number {other})"),
    };
    name.to_owned()
}

struct ElfFacts {
    linker: Option<String>,
    go: bool,
    /// The sanitizer function that it calls.
    sanitizer: Option<String>,
}

/// Functions that instrumented code calls first.
const SANITIZERS: [&[u8]; 5] =
    [b"__asan_init", b"__tsan_init", b"__msan_init", b"__hwasan_init", b"__lsan_init"];

impl ElfFacts {
    fn read<'data, R: ReadRef<'data>>(data: R) -> object::Result<ElfFacts> {
        let header = FileHeader64::<Endianness>::parse(data)?;
        let endian = header.endian()?;
        let (mut linker, mut go, mut sanitizer) = (None, false, None);
        for segment in header.program_headers(endian, data)? {
            if let Some(name) = segment.interpreter(endian, data)? {
                linker = Some(String::from_utf8_lossy(name).into_owned());
            }
            // Malformed notes do not keep a program from running.
            if let Ok(Some(mut notes)) = segment.notes(endian, data) {
                while let Ok(Some(note)) = notes.next() {
                    go |= note.name() == b"Go";
                }
            }
        }
        if let Ok(sections) = header.sections(endian, data) {
            go |= [&b".go.buildinfo"[..], b".note.go.buildid"]
                .iter()
                .any(|name| sections.section_by_name(endian, name).is_some());
            if let Ok(symbols) = sections.symbols(endian, data, elf::SHT_DYNSYM) {
                let mut names =
                    symbols.iter().filter_map(|symbol| symbol.name(endian, symbols.strings()).ok());
                let found = names.find(|name| SANITIZERS.contains(name));
                sanitizer = found.map(|name| String::from_utf8_lossy(name).into_owned());
            }
        }
        Ok(ElfFacts { linker, go, sanitizer })
    }
}

/// The error for a program that could not be started, with the exit code that shells use.
pub fn start_failure(program: &Path, error: &io::Error) -> anyhow::Error {
    let code = if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 };
    Failure { code, message: format!("cannot start `{}`: {error}", program.display()) }.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn emulators_are_known_by_name() {
        assert!(
            [&b"valgrind.bin"[..], b"qemu-x86_64", b"qemu-aarch64-static"]
                .map(is_emulator)
                .iter()
                .all(|it| *it)
        );
        assert!(
            ![&b"qemu-system-x86_64"[..], b"qemu-img", b"qemu"]
                .map(is_emulator)
                .iter()
                .any(|it| *it)
        );
    }
    use std::os::unix::fs::PermissionsExt;

    fn program(dir: &Path, name: &str, content: &[u8]) -> PathBuf {
        let path = dir.join(name);
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    #[test]
    fn ordinary_programs_are_accepted() {
        for name in ["sh", "sort", "env"] {
            check(&find(OsStr::new(name)).unwrap()).unwrap();
        }
        check(&env::current_exe().unwrap()).unwrap();
    }

    #[test]
    fn a_script_is_judged_by_its_interpreters() {
        let dir = tempfile::tempdir().unwrap();
        check(&program(dir.path(), "good", b"#! /bin/sh -e\ntrue\n")).unwrap();
        check(&program(dir.path(), "env", b"#!/usr/bin/env -S A=b sh -e\ntrue\n")).unwrap();
        check(&program(dir.path(), "env", b"#!/usr/bin/env -S -u A -C / sh\ntrue\n")).unwrap();
        let missing = check(&program(dir.path(), "missing", b"#!/nonexistent/perl\n")).unwrap_err();
        assert_eq!(missing.code(), 127);
        let no_env = check(&program(dir.path(), "no-env", b"#!/usr/bin/env no-such-interpreter\n"))
            .unwrap_err();
        assert!(
            matches!(no_env, ProgramError::NoInterpreter { interpreter, .. } if interpreter == "no-such-interpreter")
        );
        let itself = dir.path().join("loop");
        let text = format!("#!{}\n", itself.display());
        assert!(matches!(
            check(&program(dir.path(), "loop", text.as_bytes())),
            Err(ProgramError::TooDeep(_))
        ));
    }

    #[test]
    fn text_empty_files_and_directories_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(check(&program(dir.path(), "text", b"echo\n")).unwrap_err().code(), 126);
        assert_eq!(check(&program(dir.path(), "empty", b"")).unwrap_err().code(), 126);
        assert_eq!(check(&program(dir.path(), "bare", b"#!\n")).unwrap_err().code(), 126);
        assert!(matches!(check(dir.path()), Err(ProgramError::Directory(_))));
        let plain = dir.path().join("plain");
        fs::write(&plain, "#!/bin/sh\n").unwrap();
        assert!(matches!(check(&plain), Err(ProgramError::NotExecutable(_))));
    }

    #[test]
    fn damaged_or_foreign_elf_files_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let good = fs::read(find(OsStr::new("true")).unwrap()).unwrap();
        let mut foreign = good.clone();
        foreign[4] = elf::ELFCLASS32;
        foreign[18..20].copy_from_slice(&elf::EM_386.to_le_bytes());
        let error = check(&program(dir.path(), "foreign", &foreign)).unwrap_err();
        assert!(error.to_string().contains("32-bit x86"), "{error}");
        // Every header byte in turn, and many truncations of the file.
        for at in 0..64 + 56 * 13 {
            let mut damaged = good.clone();
            damaged[at] ^= 0xff;
            let _ = check(&program(dir.path(), "damaged", &damaged));
        }
        for len in (4..1024).step_by(7) {
            let _ = check(&program(dir.path(), "short", &good[..len]));
        }
    }

    #[test]
    fn foreign_set_user_id_program_is_refused() {
        if rustix::process::getuid().is_root() {
            let dir = tempfile::tempdir().unwrap();
            let path =
                program(dir.path(), "su", &fs::read(find(OsStr::new("true")).unwrap()).unwrap());
            std::os::unix::fs::chown(&path, Some(65534), None).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o4755)).unwrap();
            assert!(matches!(check(&path), Err(ProgramError::Privileged { .. })));
        } else {
            let su = find(OsStr::new("su")).expect("every system has a set-user-id su");
            assert!(matches!(
                check(&su),
                Err(ProgramError::Privileged { .. } | ProgramError::Unreadable { .. })
            ));
        }
    }
}
