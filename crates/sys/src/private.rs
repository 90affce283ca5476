//! Directories that only their owner can enter, and those in which such directories may be.

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
            "{0} is there already but is not a private directory of yours: if it is yours, \
             `chmod 700 {0}`; if not, set XDG_RUNTIME_DIR to a directory of your own",
            path.display()
        );
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
    }
    Ok(())
}

/// Creates `path`, or accepts it if it is a directory of this user to which no other user can
/// write, so that nobody else can put something in the place of a private directory in it.
pub fn guarded_dir(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o755).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        other => return other,
    }
    let found = fs::symlink_metadata(path)?;
    if !found.is_dir()
        || found.uid() != rustix::process::geteuid().as_raw()
        || found.mode() & 0o022 != 0
    {
        let message = format!(
            "{0} is there already but others could change it: `chown {1} {0}; chmod 755 {0}`",
            path.display(),
            rustix::process::geteuid().as_raw()
        );
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn private_is_not_what_others_enter_and_guarded_not_what_they_change() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("one");
        guarded_dir(&path).unwrap();
        let with = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        for (mode, is_private, is_guarded) in [
            (0o700, true, true),
            (0o755, false, true),
            (0o775, false, false),
            (0o777, false, false),
        ] {
            with(mode);
            assert_eq!(private_dir(&path).is_ok(), is_private, "{mode:o}");
            assert_eq!(guarded_dir(&path).is_ok(), is_guarded, "{mode:o}");
        }
        let said = private_dir(&path).unwrap_err().to_string();
        assert!(said.contains("not a private directory") && !said.contains("rm "), "{said}");
        std::os::unix::fs::symlink(dir.path(), dir.path().join("link")).unwrap();
        assert!(guarded_dir(&dir.path().join("link")).is_err());
    }
}
