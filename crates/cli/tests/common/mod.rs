//! Helpers for the tests of the command: the command itself, the library, and small programs that
//! are compiled during the test.
#![allow(dead_code)]

pub mod hot;
pub mod member;

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The command under test.
pub const HIROMA: &str = env!("CARGO_BIN_EXE_hiroma");

/// The library that `hiroma run` loads into programs; built if the tests were built without it.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| find_library("HIROMA_PRELOAD", "hiroma-preload"))
}

/// The library that `hiroma quiet run` loads into programs.
pub fn quiet_library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| find_library("HIROMA_QUIET_PRELOAD", "hiroma-quiet-preload"))
}

/// The program that `hiroma bench` becomes; it is beside the command. `HIROMA_BENCH` names one that
/// is built already.
pub fn bench() -> &'static Path {
    static BENCH: OnceLock<PathBuf> = OnceLock::new();
    BENCH.get_or_init(|| {
        let Some(given) = env::var_os("HIROMA_BENCH") else {
            return built("hiroma-bench", "hiroma-bench");
        };
        let beside = Path::new(HIROMA).with_file_name("hiroma-bench");
        // Other tests of the same command may be doing so too.
        let link = beside.with_extension(std::process::id().to_string());
        std::os::unix::fs::symlink(given, &link).unwrap();
        std::fs::rename(&link, &beside).unwrap();
        beside
    })
}

fn find_library(variable: &str, package: &str) -> PathBuf {
    env::var_os(variable)
        .map_or_else(|| built(package, &format!("lib{}.so", package.replace('-', "_"))), Into::into)
}

/// Builds a package, and returns the path of its file beside the command.
fn built(package: &str, file: &str) -> PathBuf {
    let dir = Path::new(HIROMA).parent().unwrap();
    let made = dir.join(file);
    // Cargo knows whether the file is up to date. With the features of the whole workspace, as the
    // tests: otherwise half of the dependencies would be built once more.
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or("cargo".into()));
    cargo.args([
        "build",
        "-q",
        "--workspace",
        "--tests",
        "--manifest-path",
        concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"),
    ]);
    match package == file {
        true => cargo.args(["--bin", file]),
        false => cargo.arg("--lib"),
    };
    cargo.arg("--target-dir").arg(dir.parent().unwrap());
    if dir.file_name() == Some(OsStr::new("release")) {
        cargo.arg("--release");
    }
    assert!(cargo.status().unwrap().success(), "{package} does not build");
    assert!(made.exists());
    made
}

/// A command of hiroma with these arguments.
pub fn hiroma<T: AsRef<OsStr>>(args: impl IntoIterator<Item = T>) -> Command {
    let mut command = Command::new(HIROMA);
    command.args(args);
    prepared(command)
}

/// The same with default dispositions for all signals: the parent of the tests may ignore some, as
/// nohup does, and children inherit that.
pub fn hiroma_with_default_signals<T: AsRef<OsStr>>(args: impl IntoIterator<Item = T>) -> Command {
    let mut command = Command::new("env");
    command.args(["--default-signal", HIROMA]).args(args);
    prepared(command)
}

fn prepared(mut command: Command) -> Command {
    command.env("HIROMA_PRELOAD", library()).env_remove("XDG_RUNTIME_DIR").stdin(Stdio::null());
    command
}

/// Runs the command and returns its output and exit status.
pub fn output<T: AsRef<OsStr>>(args: impl IntoIterator<Item = T>) -> Output {
    hiroma(args).output().unwrap()
}

/// Runs the command and returns its exit code and standard error.
pub fn refusal<T: AsRef<OsStr>>(args: impl IntoIterator<Item = T>) -> (Option<i32>, String) {
    let output = output(args);
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

/// Compiles a C program.
pub fn compile(dir: &Path, name: &str, source: &str, flags: &[&str]) -> PathBuf {
    let file = dir.join(format!("{name}.c"));
    fs::write(&file, source).unwrap();
    let program = dir.join(name);
    let status = Command::new("cc")
        .args(["-O1", "-o"])
        .arg(&program)
        .arg(&file)
        .args(flags)
        .status()
        .unwrap();
    assert!(status.success(), "{name} does not compile");
    program
}

/// Waits for a condition that must become true. The time limit only ends a broken test.
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(60), "waited in vain: {what}");
        sleep(Duration::from_millis(5));
    }
}
