//! Directories that only their owner can enter.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;

/// Creates `path`, or accepts it if it is a directory of this user that no other user can enter.
pub fn private_dir(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        other => return other,
    }
    let found = fs::symlink_metadata(path)?;
    if !found.is_dir()
        || found.uid() != rustix::process::geteuid().as_raw()
        || found.mode() & 0o077 != 0
    {
        let message = format!(
            "{0} is there already but is not a private directory of yours: remove it (rm -r {0}), or set XDG_RUNTIME_DIR",
            path.display()
        );
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
    }
    Ok(())
}
