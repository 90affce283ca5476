//! The network namespace in which the pager opens its connections (`network_namespaces(7)`): the
//! one in which the program started.
//!
//! A child that is forked into another namespace has its helper there too, from where it reaches no
//! server. With the privilege (`CAP_SYS_ADMIN` in both) the helper returns; a child that dropped
//! its privileges, as sandboxes do, cannot.

use std::fs::File;
use std::os::fd::{AsFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicI32, Ordering};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

const HERE: &str = "/proc/thread-self/ns/net";

/// The namespace's descriptor; -1: none.
static KEPT: AtomicI32 = AtomicI32::new(-1);

/// Opens a descriptor of the calling thread's namespace and keeps it, to be handed over to others.
/// Without `/proc` there is none.
pub fn keep_ours() {
    if let (None, Some(here)) = (kept(), open_ours()) {
        KEPT.store(here.into_raw_fd(), Ordering::Relaxed);
    }
}

/// A descriptor of the calling thread's namespace.
pub fn open_ours() -> Option<OwnedFd> {
    File::open(HERE).ok().map(OwnedFd::from)
}

/// Moves the calling thread, and those that it will start, into the namespace that was handed over,
/// if it is in another one.
pub fn enter(namespace: OwnedFd) {
    let namespace = File::from(namespace);
    let number = |file: &File| file.metadata().ok().map(|data| (data.dev(), data.ino()));
    let is_elsewhere = File::open(HERE).ok().is_none_or(|here| number(&here) != number(&namespace));
    if is_elsewhere
        && move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).is_err()
    {
        // The connection will fail with a reason that users can understand.
        return;
    }
    KEPT.store(namespace.into_raw_fd(), Ordering::Relaxed);
}

/// In the child of a fork: the descriptor does not exist here.
pub fn forget() {
    KEPT.store(-1, Ordering::Relaxed);
}

/// The descriptor that is kept open.
pub fn kept() -> Option<RawFd> {
    Some(KEPT.load(Ordering::Relaxed)).filter(|&fd| fd >= 0)
}
