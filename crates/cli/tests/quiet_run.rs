//! `hiroma quiet run`: programs behave as without it, and leave the file cache as it was.

mod common;

use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::{HIROMA, compile, hiroma_with_default_signals, quiet_library};

const MIB: usize = 1 << 20;
const METHODS: [&str; 2] = ["auto", "fadvise"];

fn quiet(args: &[&str]) -> Command {
    let mut command = hiroma_with_default_signals(["quiet", "run"].iter().chain(args));
    command.env("HIROMA_QUIET_PRELOAD", quiet_library());
    command
}

fn succeed(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

fn there(program: &str) -> bool {
    let found = Command::new("sh")
        .args(["-c", &format!("command -v {program}")])
        .output()
        .is_ok_and(|output| output.status.success());
    if !found {
        hiroma_testkit::skip!(Machine, "there is no {program}");
    }
    found
}

/// A directory on a file system with a device.
fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in("/var/tmp").unwrap()
}

/// Makes a file of pseudo-random bytes, which is on its device and not in the cache.
fn file(path: &Path, bytes: usize) {
    let mut state = 1_u32;
    let content = std::iter::repeat_with(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    });
    fs::write(path, content.take(bytes).collect::<Vec<u8>>()).unwrap();
    forget(path);
}

/// Writes a file to its device and drops it from the cache.
fn forget(path: &Path) {
    let file = File::open(path).unwrap();
    file.sync_all().unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
}

/// Number of bytes of a file that are in the cache.
fn cached(path: &Path) -> usize {
    let output = succeed(Command::new("fincore").args(["-b", "-n", "-o", "RES"]).arg(path));
    String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
}

/// Whether the cache of a file can be read and dropped here.
fn cache_is_seen(dir: &Path) -> bool {
    if !there("fincore") {
        return false;
    }
    let probe = dir.join("probe");
    file(&probe, 4 * MIB);
    let dropped = cached(&probe) < MIB;
    if !dropped {
        hiroma_testkit::skip!(
            Machine,
            "the file system of {} keeps what it is told to drop",
            dir.display()
        );
    }
    dropped
}

/// Retries, because other programs use the machine's memory too: one success in five attempts is
/// enough.
fn holds(what: &str, mut check: impl FnMut() -> Result<(), String>) {
    let mut said = String::new();
    for _ in 0..5 {
        match check() {
            Ok(()) => return,
            Err(reason) => said = reason,
        }
    }
    panic!("{what}: {said}");
}

fn at_most(path: &Path, bytes: usize) -> Result<(), String> {
    let found = cached(path);
    if found <= bytes {
        Ok(())
    } else {
        Err(format!("{} bytes of {} are cached", found, path.display()))
    }
}

#[test]
fn programs_behave_as_without_quiet_run() {
    let dir = directory();
    let path = |name: &str| dir.path().join(name);
    file(&path("from"), 12 * MIB + 4321);
    let content = fs::read(path("from")).unwrap();
    let python = "import os, shutil, mmap\nshutil.copyfile('from', 'to')\nf = open('from', 'rb')\nm = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)\n\
        b = b''.join(iter(lambda: f.read(70001), b''))\nassert b == m[:]\nf.seek(1 << 20)\nassert f.read(100) == b[1 << 20:(1 << 20) + 100]\n\
        g = os.open('more', os.O_RDWR | os.O_CREAT | os.O_TRUNC)\nfor i in range(0, len(b), 65536): os.pwrite(g, b[i:i+65536], i)\n\
        assert os.pread(g, len(b), 0) == b\nos.lseek(g, 0, 0)\nassert os.sendfile(g, f.fileno(), 0, 1 << 20) > 0";
    for method in METHODS {
        for (program, script) in [
            ("cp", "cp from to"),
            ("cat", "cat from > to"),
            ("cat", "cat < from | cat > to"),
            ("dd", "dd if=from of=to bs=300k status=none"),
            ("dd", "dd if=from of=to bs=1M iflag=fullblock oflag=append conv=notrunc status=none"),
            ("tar", "tar cf archive from && mkdir -p d && tar xf archive -C d && mv d/from to"),
            ("rsync", "rsync --inplace -q from to"),
            ("python3", "exec python3 -c \"$PYTHON\""),
        ] {
            if !there(program) {
                continue;
            }
            let _ = fs::remove_file(path("to"));
            forget(&path("from"));
            succeed(
                quiet(&["--method", method, "--", "sh", "-c", script])
                    .current_dir(dir.path())
                    .env("PYTHON", python),
            );
            assert!(
                fs::read(path("to")).unwrap() == content,
                "{method}: {script}: another content"
            );
        }
    }
}

#[test]
fn streamed_data_does_not_stay_cached() {
    let dir = directory();
    if !cache_is_seen(dir.path()) {
        return;
    }
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    file(&from, 32 * MIB);
    for method in METHODS {
        for script in ["cat from", "cp from to", "tar cf to from", "md5sum from"] {
            holds(script, || {
                forget(&from);
                succeed(
                    quiet(&["--method", method, "--", "sh", "-c", script]).current_dir(dir.path()),
                );
                at_most(&from, 20 * MIB)
            });
        }
        // Pages that wait for write-back cannot be dropped; here none wait for long.
        holds("dd", || {
            succeed(
                quiet(&[
                    "--method",
                    method,
                    "--",
                    "sh",
                    "-c",
                    "dd if=from of=to bs=1M conv=fsync && cat to",
                ])
                .current_dir(dir.path()),
            );
            at_most(&to, 20 * MIB)
        });
    }
}

#[test]
fn cached_small_or_reread_files_stay() {
    let dir = directory();
    if !cache_is_seen(dir.path()) {
        return;
    }
    let path = dir.path().join("file");
    let stays = |what: &str, bytes: usize, prepare: &dyn Fn(), script: &str, expected: usize| {
        file(&path, bytes);
        for method in METHODS {
            holds(what, || {
                forget(&path);
                prepare();
                succeed(
                    quiet(&["--method", method, "--", "sh", "-c", script]).current_dir(dir.path()),
                );
                let found = cached(&path);
                if found >= expected {
                    Ok(())
                } else {
                    Err(format!("{method}: {found} of {expected} bytes are cached"))
                }
            });
        }
    };
    let read = |skip: usize, count: usize| {
        let args = ["if=file", "of=/dev/null", "bs=1M", "iflag=fullblock", "status=none"]
            .map(str::to_owned);
        let range = [format!("skip={skip}"), format!("count={count}")];
        succeed(Command::new("dd").args(args.into_iter().chain(range)).current_dir(dir.path()));
    };
    stays("all of it was cached", 32 * MIB, &|| read(0, 32), "cat file", 31 * MIB);
    stays("a part of it was cached", 64 * MIB, &|| read(32, 8), "cat file", 7 * MIB);
    stays("it is small", 4 * MIB, &|| (), "cat file", 3 * MIB);
}

#[test]
fn exit_codes_signals_and_refusals_are_unchanged() {
    let code = |args: &[&str]| quiet(args).output().unwrap();
    assert_eq!(code(&["--", "sh", "-c", "exit 7"]).status.code(), Some(7));
    assert_eq!(code(&["--", "sh", "-c", "kill -USR1 $$"]).status.signal(), Some(10));
    let missing = code(&["--", "no-such-program"]);
    assert_eq!(missing.status.code(), Some(127));
    assert!(!code(&[]).status.success());
    let dir = tempfile::tempdir().unwrap();
    let source = "int main(void) { return 0; }";
    let program: PathBuf = compile(dir.path(), "still", source, &["-static"]);
    let refused = code(&["--", program.to_str().unwrap()]);
    let said = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("statically linked") && said.contains("hiroma quiet serve"), "{said}");
    let mut without = Command::new(HIROMA);
    let said = without
        .args(["quiet", "run", "--", "true"])
        .env("HIROMA_QUIET_PRELOAD", "/no/such.so")
        .output()
        .unwrap();
    assert!(
        String::from_utf8(said.stderr).unwrap().contains("HIROMA_QUIET_PRELOAD names /no/such.so")
    );
}

#[test]
fn job_keeps_cache_bound_and_its_cgroup_disappears() {
    let dir = directory();
    let path = dir.path().join("big");
    File::create(&path).unwrap().set_len(256 * MIB as u64).unwrap();
    let script = format!("cat {} | wc -c; exit 7", path.display());
    let output =
        hiroma_with_default_signals(["quiet", "run", "--cache", "16M", "--", "sh", "-c", &script])
            .output()
            .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(2) && said.contains("no memory control group can be had here") {
        return hiroma_testkit::skip!(Machine, "{said}");
    }
    assert_eq!(
        (output.status.code(), String::from_utf8_lossy(&output.stdout).trim()),
        (Some(7), "268435456"),
        "{said}"
    );
    // The part that the kernel cannot reclaim immediately may remain.
    assert!(cached(&path) < 128 * MIB, "{} bytes are cached", cached(&path));
    assert!(!said.contains("still run"), "{said}");
    let (code, said) =
        common::refusal(["quiet", "run", "--cache", "16M", "--method", "auto", "--", "true"]);
    assert!(code == Some(2) && said.contains("cannot be used with"), "{said}");
}
