//! Files that are written atomically: complete or not at all.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

/// Prefix of the names of unfinished files.
pub const UNFINISHED: &str = ".unfinished-";

/// A file that is written under another name beside its target, and is renamed when it is complete.
pub struct AtomicFile {
    file: NamedTempFile,
    target: PathBuf,
}

impl AtomicFile {
    /// Creates a file that will become `target`.
    pub fn create(target: &Path) -> io::Result<AtomicFile> {
        let directory = match target.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let mut prefix = OsString::from(UNFINISHED);
        prefix.push(target.file_name().ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidInput, "not the name of a file")
        })?);
        let file = tempfile::Builder::new()
            .prefix(&prefix)
            .permissions(readable_by_all())
            .tempfile_in(directory)?;
        Ok(AtomicFile { file, target: target.to_owned() })
    }

    /// Syncs the content to disk and renames the file to its target, replacing an existing file.
    pub fn publish(self) -> io::Result<()> {
        self.file.as_file().sync_all()?;
        self.file.persist(&self.target).map_err(|error| error.error)?;
        Ok(())
    }
}

impl Write for AtomicFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Seek for AtomicFile {
    fn seek(&mut self, position: SeekFrom) -> io::Result<u64> {
        self.file.seek(position)
    }
}

/// Writes `content` to `path` atomically.
pub fn write_atomically(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = AtomicFile::create(path)?;
    file.write_all(content)?;
    file.publish()
}

/// Removes unfinished files of interrupted runs in `directory`. Returns how many files were
/// removed.
///
/// Only removes files that have not been modified for `age`: another shard may be writing right
/// now.
pub fn remove_unfinished(directory: &Path, age: std::time::Duration) -> io::Result<usize> {
    let mut removed = 0;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let old = |entry: &fs::DirEntry| {
            entry
                .metadata()?
                .modified()?
                .elapsed()
                .map_err(io::Error::other)
                .map(|since| since >= age)
        };
        if entry.file_name().to_string_lossy().starts_with(UNFINISHED)
            && old(&entry).unwrap_or(false)
        {
            fs::remove_file(entry.path())?;
            removed += 1;
        }
    }
    Ok(removed)
}

/// Temporary files are readable only by their owner by default; results should be readable by every
/// user who may read the directory.
fn readable_by_all() -> fs::Permissions {
    std::os::unix::fs::PermissionsExt::from_mode(0o644)
}

/// Opens `path` for appending without writing, to detect early whether it can be written.
pub fn check_writable(path: &Path) -> io::Result<()> {
    let existed = path.exists();
    File::options().append(true).create(true).open(path)?;
    if !existed {
        fs::remove_file(path)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn unpublished_file_leaves_old_one_untouched() {
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().join("result");
        write_atomically(&target, b"old").unwrap();
        let mut file = AtomicFile::create(&target).unwrap();
        file.write_all(b"half").unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"old");
        drop(file);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
        write_atomically(&target, b"new").unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"new");
    }

    #[test]
    fn old_unfinished_files_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join(format!("{UNFINISHED}x")), b"half").unwrap();
        fs::write(directory.path().join("result"), b"whole").unwrap();
        assert_eq!(remove_unfinished(directory.path(), Duration::from_secs(3600)).unwrap(), 0);
        assert_eq!(remove_unfinished(directory.path(), Duration::ZERO).unwrap(), 1);
        assert!(directory.path().join("result").exists());
    }

    #[test]
    fn writability_check_changes_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("report.json");
        check_writable(&path).unwrap();
        assert!(!path.exists());
        fs::write(&path, b"old").unwrap();
        check_writable(&path).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert!(check_writable(&directory.path().join("missing/report.json")).is_err());
    }
}
