//! The socket at which the service listens.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};

/// Whether a process listens there without holding the lock, because the lock file was removed.
pub fn answers(path: &Path) -> bool {
    let attempt = || -> Result<(), Errno> {
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        connect(&socket, &SocketAddrUnix::new(path)?)
    };
    attempt().is_ok()
}

/// A listening socket at `path`. All users may connect to root's (credentials decide what they may
/// do), only the user to its own.
pub fn bound(path: &Path) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    bind(&listener, &SocketAddrUnix::new(path)?)?;
    let mode = if rustix::process::geteuid().is_root() { 0o666 } else { 0o600 };
    fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    listen(&listener, 64)?;
    Ok(listener)
}
