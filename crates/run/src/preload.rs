//! Finds the library that provides far memory to a program.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use hiroma_command::refuse;

/// A library that is loaded into programs, and the environment variable that overrides its path.
#[derive(Clone, Copy)]
pub struct Library {
    name: &'static str,
    variable: &'static str,
}

/// Provides far memory.
const FAR: Library = Library { name: "libhiroma_preload.so", variable: "HIROMA_PRELOAD" };
/// Keeps file streams out of the file cache.
pub const QUIET: Library =
    Library { name: "libhiroma_quiet_preload.so", variable: "HIROMA_QUIET_PRELOAD" };

/// Finds the far memory library.
pub fn find() -> Result<PathBuf> {
    find_library(FAR)
}

/// Finds a library: at the path in its environment variable, else beside the executable, else where
/// `make install` installs it.
pub fn find_library(library: Library) -> Result<PathBuf> {
    let Library { name, variable } = library;
    if let Some(path) = env::var_os(variable).filter(|path| !path.is_empty()).map(PathBuf::from) {
        let found = path.is_file().then(|| path.canonicalize()).transpose()?;
        return found.ok_or_else(|| {
            refuse(format!(
                "{variable} names {}, which is not there: correct it, or unset it",
                path.display()
            ))
        });
    }
    let executable = env::current_exe().context("cannot find out where this executable is")?;
    let places = places(&executable, name);
    places.iter().find(|path| path.is_file()).cloned().ok_or_else(|| {
        let looked: Vec<String> = places.iter().map(|path| path.display().to_string()).collect();
        refuse(format!("{name} is missing (looked for {}): run `make build` or `make install`, or set {variable}", looked.join(", ")))
    })
}

fn places(executable: &Path, name: &str) -> Vec<PathBuf> {
    let dir = executable.parent().unwrap_or(Path::new("/"));
    let mut places = vec![dir.join(name)];
    // Test executables are one level deeper, in target/*/deps.
    places.extend(dir.parent().map(|above| above.join("lib/hiroma").join(name)));
    places
}

/// More than directories lie in one another.
const ABOVE_ALL: usize = 40;

/// An absolute path as only glibc's dynamic linker follows it, which puts the directory of the program
/// for `$ORIGIN`. musl's would load the library, and end the program because of the symbols that it has
/// not; a file that is not there it ignores.
fn for_glibc(path: &Path) -> OsString {
    let mut name = OsString::from("$ORIGIN");
    name.push("/..".repeat(ABOVE_ALL));
    name.push(path);
    name
}

/// What glibc's dynamic linker takes for `$ORIGIN` where `/proc/self/exe` cannot be read.
const ORIGIN_ENV: &str = "LD_ORIGIN_PATH";

/// Lets the dynamic linker load `library` into a command and its children.
pub fn set(command: &mut Command, library: &Path, dir: &Path) -> Result<()> {
    command.env("LD_PRELOAD", list(library, dir)?);
    if env::var_os(ORIGIN_ENV).is_none() {
        command.env(ORIGIN_ENV, "/");
    }
    Ok(())
}

/// The value of `LD_PRELOAD`: our library, followed by the present value. If the dynamic linker
/// would split the library's path, a symbolic link in `dir` replaces it.
fn list(library: &Path, dir: &Path) -> Result<OsString> {
    let splits =
        |path: &Path| path.as_os_str().as_bytes().iter().any(|byte| matches!(byte, b' ' | b':'));
    if !splits(library) {
        return Ok(prepend(&for_glibc(library), "LD_PRELOAD"));
    }
    let link = dir.join("preload.so");
    symlink(library, &link).with_context(|| format!("cannot make the link {}", link.display()))?;
    if splits(&link) {
        return Err(refuse(format!(
            "the dynamic linker cannot take the path {}: set XDG_RUNTIME_DIR to one without spaces and colons",
            link.display()
        )));
    }
    Ok(prepend(&for_glibc(&link), "LD_PRELOAD"))
}

/// A value for lists like `LD_PRELOAD`: `first`, followed by the present value of the variable.
fn prepend(first: &OsStr, variable: &str) -> OsString {
    let mut list = first.to_owned();
    if let Some(rest) = env::var_os(variable).filter(|rest| !rest.is_empty()) {
        list.push(":");
        list.push(rest);
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn library_path_with_spaces_is_linked() {
        let dir = tempfile::tempdir().unwrap();
        let awkward = dir.path().join("a dir: with");
        std::fs::create_dir(&awkward).unwrap();
        let library = awkward.join(FAR.name);
        std::fs::write(&library, "here").unwrap();
        let list = list(&library, dir.path()).unwrap();
        let first = list.to_str().unwrap().split(':').next().unwrap();
        let first = first.strip_prefix("$ORIGIN").unwrap().trim_start_matches("/..");
        assert_eq!(std::fs::read_to_string(first).unwrap(), "here");
        assert!(!first.contains(' '));
    }

    #[test]
    fn installed_command_finds_library_below_its_prefix() {
        assert!(
            places(Path::new("/usr/local/bin/hiroma"), FAR.name)
                .contains(&PathBuf::from("/usr/local/lib/hiroma/libhiroma_preload.so"))
        );
    }
}
