//! Directories that every user has.

use std::path::PathBuf;

/// The directory for files that live as long as the user's session (`$XDG_RUNTIME_DIR`), if there
/// is one.
pub fn runtime() -> Option<PathBuf> {
    std::env::var_os("XDG_RUNTIME_DIR")
        .map(PathBuf::from)
        .filter(|dir| dir.is_absolute() && dir.is_dir())
}
