//! The network namespace in which the pager opens its connections (`network_namespaces(7)`): the
//! one in which the program began.
//!
//! A child that is forked into another namespace has its helper there too, and reaches no server
//! from it. Who has the right to (`CAP_SYS_ADMIN` in both) goes back; a child that gave its rights
//! away, as sandboxes do, cannot.

use std::fs::File;
use std::os::fd::{AsFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicI32, Ordering};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

const HERE: &str = "/proc/thread-self/ns/net";

/// The namespace's descriptor; -1: none.
static KEPT: AtomicI32 = AtomicI32::new(-1);

/// Keeps a descriptor of the calling thread's namespace, for those to whom it is handed over.
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

/// Brings the calling thread, and those that it will start, into the namespace that was handed
/// over, if it is in another one.
pub fn enter(namespace: OwnedFd) {
    let namespace = File::from(namespace);
    let number = |file: &File| file.metadata().ok().map(|data| (data.dev(), data.ino()));
    let is_elsewhere = File::open(HERE).ok().is_none_or(|here| number(&here) != number(&namespace));
    if is_elsewhere
        && move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).is_err()
    {
        // The connection will fail with a reason that the user can understand.
        return;
    }
    KEPT.store(namespace.into_raw_fd(), Ordering::Relaxed);
}

/// In the child of a fork: the descriptor is not here.
pub fn forget() {
    KEPT.store(-1, Ordering::Relaxed);
}

/// The descriptor that is kept.
pub fn kept() -> Option<RawFd> {
    Some(KEPT.load(Ordering::Relaxed)).filter(|&fd| fd >= 0)
}
