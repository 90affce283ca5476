//! Compiles C programs against the library that was built with the test.
#![allow(dead_code)] // Each test uses its part.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use tempfile::TempDir;

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

pub fn header() -> String {
    ["hps.h", "hiroma.h"]
        .map(|name| fs::read_to_string(root().join("include").join(name)).unwrap())
        .concat()
}

/// The shared library that was built with this test.
pub fn library() -> PathBuf {
    let exe = std::env::current_exe().unwrap();
    let dirs = exe.ancestors().skip(1).take(2);
    dirs.map(|dir| dir.join("libhiroma.so"))
        .find(|path| path.exists())
        .expect("libhiroma.so beside the tests")
}

/// A directory with the library under the names that the linker and the loader look for.
pub fn lib_dir() -> &'static Path {
    static DIR: OnceLock<TempDir> = OnceLock::new();
    let dir = DIR.get_or_init(|| {
        let dir = TempDir::new().unwrap();
        for name in ["libhiroma.so", "libhiroma.so.0"] {
            symlink(library(), dir.path().join(name)).unwrap();
        }
        dir
    });
    dir.path()
}

pub fn succeed(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = [&output.stdout[..], &output.stderr[..]]
        .map(|bytes| String::from_utf8_lossy(bytes).into_owned())
        .concat();
    assert!(output.status.success(), "{command:?}: {}\n{text}", output.status);
    output
}

pub fn compile(compiler: &[&str], source: &Path, target: &Path) {
    let mut command = Command::new(compiler[0]);
    command.args(&compiler[1..]).args([
        "-Wall",
        "-Wextra",
        "-Werror",
        "-pedantic",
        "-O1",
        "-pthread",
    ]);
    command.arg("-I").arg(root().join("include")).arg(source).arg("-o").arg(target);
    command
        .arg("-L")
        .arg(lib_dir())
        .arg("-lhiroma")
        .arg(format!("-Wl,-rpath,{}", lib_dir().display()));
    succeed(&mut command);
}

pub fn clean(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.env_clear();
    command
}

pub const C99: &[&str] = &["cc", "-std=c99", "-D_POSIX_C_SOURCE=200809L"];
