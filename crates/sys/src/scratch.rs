//! Files without a name, for content that ends with its process.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use hiroma_units::PAGE;
use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, StatxFlags, fcntl_getfl, fcntl_setfl, open, openat, statx, unlinkat,
};

use crate::cpu;

/// Creates an unnamed empty file in a directory: for direct I/O, if that is wanted and the file
/// system takes it for pages.
pub fn create(dir: impl AsFd, is_direct: bool) -> io::Result<OwnedFd> {
    let dir = dir.as_fd();
    let extras: &[OFlags] =
        if is_direct { &[OFlags::DIRECT, OFlags::empty()] } else { &[OFlags::empty()] };
    let unnamed = |extra: OFlags| {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::TMPFILE | OFlags::EXCL | extra;
        openat(dir, ".", flags, Mode::RUSR | Mode::WUSR)
    };
    let found = extras.iter().find_map(|&extra| unnamed(extra).ok());
    let file = match found {
        Some(file) => file,
        None => first_named(dir, extras)?,
    };
    if is_direct && !takes_pages(&file) {
        fcntl_setfl(&file, fcntl_getfl(&file)? & !OFlags::DIRECT)?;
    }
    Ok(file)
}

fn first_named(dir: impl AsFd, extras: &[OFlags]) -> io::Result<OwnedFd> {
    let mut refused = None;
    for &extra in extras {
        match create_and_unlink(&dir, extra) {
            Ok(file) => return Ok(file),
            Err(error) => refused = Some(error),
        }
    }
    Err(refused.map_or_else(|| io::ErrorKind::InvalidInput.into(), io::Error::from))
}

/// For file systems without unnamed files (NFS, older overlays): one that had a name for a moment.
pub fn create_and_unlink(dir: impl AsFd, extra: OFlags) -> rustix::io::Result<OwnedFd> {
    let dir = dir.as_fd();
    let name = format!(".hiroma-{}-{:x}", std::process::id(), cpu::now_ns());
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::CREATE | OFlags::EXCL | extra;
    let file = openat(dir, &name, flags, Mode::RUSR | Mode::WUSR);
    // If O_DIRECT is refused, the file may have been created all the same.
    let _ = unlinkat(dir, &name, AtFlags::empty());
    file
}

/// The same file once more, for direct I/O; none where it is not possible for pages.
pub fn again_direct(file: impl AsFd) -> Option<OwnedFd> {
    let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::DIRECT;
    open(path, flags, Mode::empty()).ok().filter(|again| takes_pages(again))
}

/// Whether direct I/O of pages works, as far as the kernel (Linux 6.1) reports that.
fn takes_pages(file: impl AsFd) -> bool {
    match statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN) {
        Ok(stat) if stat.stx_mask & StatxFlags::DIOALIGN.bits() != 0 => {
            let page = 1..=PAGE as u32;
            page.contains(&stat.stx_dio_mem_align) && page.contains(&stat.stx_dio_offset_align)
        }
        _ => true,
    }
}

/// Opens a directory to create files in.
pub fn directory(path: &std::path::Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(openat(CWD, path, flags, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use std::fs::{File, read_dir};
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn files_have_no_name_and_keep_what_is_written() {
        for place in ["/var/tmp", "/dev/shm"] {
            let held = tempfile::tempdir_in(place).unwrap();
            let dir = directory(held.path()).unwrap();
            let files = [
                create(&dir, false).unwrap(),
                create_and_unlink(&dir, OFlags::empty()).unwrap(),
                first_named(&dir, &[OFlags::empty()]).unwrap(),
            ];
            let _direct = create(&dir, true).unwrap();
            for file in files {
                let again = again_direct(&file).is_some();
                let file = File::from(file);
                file.write_all_at(b"content", 3).unwrap();
                let mut bytes = [0; 7];
                file.read_exact_at(&mut bytes, 3).unwrap();
                assert_eq!(&bytes, b"content", "{place}, directly too: {again}");
            }
            assert_eq!(read_dir(held.path()).unwrap().count(), 0, "{place}");
        }
        let nowhere = directory(std::path::Path::new("/proc")).unwrap();
        assert!(create(&nowhere, true).is_err() && directory("/no/such".as_ref()).is_err());
    }
}
