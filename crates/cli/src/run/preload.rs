//! Where the library is that brings far memory into a program.

use std::env;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::prepend;
use crate::refuse;

const LIBRARY: &str = "libhiroma_preload.so";

/// Names another library than the one beside the executable.
pub const PRELOAD_ENV: &str = "HIROMA_PRELOAD";

/// Finds the library: as `HIROMA_PRELOAD` says, else beside the executable, else where `make install` puts it.
pub fn find() -> Result<PathBuf> {
    if let Some(path) = env::var_os(PRELOAD_ENV).filter(|path| !path.is_empty()).map(PathBuf::from) {
        let found = path.is_file().then(|| path.canonicalize()).transpose()?;
        return found.ok_or_else(|| refuse(format!("{PRELOAD_ENV} names {}, which is not there: correct it, or unset it", path.display())));
    }
    let executable = env::current_exe().context("cannot find out where this executable is")?;
    let places = places(&executable);
    places.iter().find(|path| path.is_file()).cloned().ok_or_else(|| {
        let looked: Vec<String> = places.iter().map(|path| path.display().to_string()).collect();
        refuse(format!("{LIBRARY} is missing (looked for {}): run `make build` or `make install`, or set {PRELOAD_ENV}", looked.join(", ")))
    })
}

fn places(executable: &Path) -> Vec<PathBuf> {
    let dir = executable.parent().unwrap_or(Path::new("/"));
    let mut places = vec![dir.join(LIBRARY)];
    // Test executables lie one level deeper, in target/*/deps.
    places.extend(dir.parent().map(|above| above.join("lib/hiroma").join(LIBRARY)));
    places
}

/// What `LD_PRELOAD` shall be: our library, then what was there. A path that the dynamic linker would split is reached through `dir`.
pub fn list(library: &Path, dir: &Path) -> Result<OsString> {
    let splits = |path: &Path| path.as_os_str().as_bytes().iter().any(|byte| matches!(byte, b' ' | b':'));
    if !splits(library) {
        return Ok(prepend(library, "LD_PRELOAD"));
    }
    let link = dir.join(LIBRARY);
    symlink(library, &link).with_context(|| format!("cannot make the link {}", link.display()))?;
    if splits(&link) {
        return Err(refuse(format!(
            "the dynamic linker cannot take the path {}: set XDG_RUNTIME_DIR to one without spaces and colons",
            link.display()
        )));
    }
    Ok(prepend(&link, "LD_PRELOAD"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_in_a_path_with_spaces_is_reached_through_a_link() {
        let dir = tempfile::tempdir().unwrap();
        let awkward = dir.path().join("a dir: with");
        std::fs::create_dir(&awkward).unwrap();
        let library = awkward.join(LIBRARY);
        std::fs::write(&library, "here").unwrap();
        let list = list(&library, dir.path()).unwrap();
        let first = list.to_str().unwrap().split(':').next().unwrap();
        assert_eq!(std::fs::read_to_string(first).unwrap(), "here");
        assert!(!first.contains(' '));
    }

    #[test]
    fn an_installed_command_finds_the_library_below_its_prefix() {
        assert!(places(Path::new("/usr/local/bin/hiroma")).contains(&PathBuf::from("/usr/local/lib/hiroma/libhiroma_preload.so")));
    }
}
