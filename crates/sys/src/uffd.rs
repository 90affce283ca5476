//! The complete userfaultfd(2): registration, the ioctls that fill, move, protect and poison pages,
//! and the messages.
//!
//! The ioctls of one descriptor work on the address space of the process that opened it. Ordinary
//! failures are results, not errors: see [`Outcome`]. Sources: `userfaultfd(2)`,
//! `ioctl_userfaultfd(2)`, Linux `include/uapi/linux/userfaultfd.h`.
//!
//! Contract: the structures below have the layout of the kernel's header, and the kernel writes
//! nothing but them. Callers pass ranges by address. The kernel refuses a wrong range (it must be
//! registered), but a *moved* or *copied-over* page changes memory that safe code may have
//! references to. Callers therefore only pass ranges of the arena and of staging, to which no
//! references exist.
#![allow(unsafe_code)]

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering};

use hiroma_units::PAGE;

use rustix::io::Errno;
use rustix::ioctl::{self, Opcode, Updater, opcode};
use rustix::mm::UserfaultfdFlags;

use crate::vm;

const GROUP: u8 = 0xAA;

/// Features of the kernel's userfaultfd, as bits (`UFFD_FEATURE_*`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Features(pub u64);

impl Features {
    pub const EVENT_FORK: Features = Features(1 << 1);
    pub const EVENT_REMAP: Features = Features(1 << 2);
    pub const EVENT_REMOVE: Features = Features(1 << 3);
    pub const EVENT_UNMAP: Features = Features(1 << 6);
    pub const THREAD_ID: Features = Features(1 << 8);
    pub const EXACT_ADDRESS: Features = Features(1 << 11);
    pub const WP_UNPOPULATED: Features = Features(1 << 13);
    pub const POISON: Features = Features(1 << 14);
    pub const WP_ASYNC: Features = Features(1 << 15);
    pub const MOVE: Features = Features(1 << 16);
    /// Write-protect faults on anonymous memory (`UFFD_FEATURE_PAGEFAULT_FLAG_WP`).
    pub const WP: Features = Features(1 << 0);

    const NAMES: [(u64, &'static str); 17] = [
        (0, "WP"),
        (1, "EVENT_FORK"),
        (2, "EVENT_REMAP"),
        (3, "EVENT_REMOVE"),
        (4, "MISSING_HUGETLBFS"),
        (5, "MISSING_SHMEM"),
        (6, "EVENT_UNMAP"),
        (7, "SIGBUS"),
        (8, "THREAD_ID"),
        (9, "MINOR_HUGETLBFS"),
        (10, "MINOR_SHMEM"),
        (11, "EXACT_ADDRESS"),
        (12, "WP_HUGETLBFS_SHMEM"),
        (13, "WP_UNPOPULATED"),
        (14, "POISON"),
        (15, "WP_ASYNC"),
        (16, "MOVE"),
    ];

    /// Whether all of `other` are included.
    pub fn has(self, other: Features) -> bool {
        self.0 & other.0 == other.0
    }

    /// The union of both.
    pub const fn and(self, other: Features) -> Features {
        Features(self.0 | other.0)
    }

    /// Names of the features, as in the kernel's header without the prefix.
    pub fn names(self) -> Vec<&'static str> {
        Self::NAMES
            .iter()
            .filter(|(bit, _)| self.0 >> bit & 1 == 1)
            .map(|&(_, name)| name)
            .collect()
    }
}

/// Why userfaultfd is not available. The message states what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UffdError {
    /// This user may use neither the system call nor the device.
    #[error(
        "this user may not open userfaultfd ({0}): either `sudo setfacl -m u:$USER:rw /dev/userfaultfd` (Linux 6.1 and later) or `sudo sysctl vm.unprivileged_userfaultfd=1` allows it"
    )]
    NotPermitted(io::Error),
    /// The kernel was built without it.
    #[error(
        "this kernel has no userfaultfd ({0}): use a kernel with CONFIG_USERFAULTFD=y, as all of Debian's and Ubuntu's are"
    )]
    NotThere(io::Error),
    /// A required feature is missing.
    #[error(
        "this kernel's userfaultfd lacks {missing}: Linux 5.7 is the oldest that works, 6.8 the oldest that works best"
    )]
    Lacks { missing: String },
    /// Anything else.
    #[error("userfaultfd: {doing}: {source}")]
    Io { doing: &'static str, source: io::Error },
}

/// Which faults a registration reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Watch {
    /// Missing pages.
    Missing,
    /// Writes to protected pages.
    WriteProtect,
    /// Both.
    MissingAndWriteProtect,
}

/// Result of an ioctl that fills or moves pages: how many bytes are done, and why it stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub struct Outcome {
    /// Bytes from the start of the range that are done.
    pub done: usize,
    /// Why it stopped, if there is a rest.
    pub stop: Option<Stop>,
}

/// Why pages could not be filled or moved. All of these are ordinary.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// The address space is changing: an event is waiting to be read, or another thread holds a
    /// lock that the kernel only tries to take (EAGAIN). If something was done, this only states
    /// that there is a rest.
    Again,
    /// A page is present already (EEXIST).
    Exists,
    /// The destination is not registered or not mapped, or (for a move) the source is missing
    /// (ENOENT).
    NotThere,
    /// The address space is gone (ESRCH).
    Dead,
    /// The page is pinned, shared with a forked child, or in use by the kernel (EBUSY).
    Busy,
    /// The mappings do not allow it: different protections, several mappings in one range (EINVAL).
    Invalid,
    /// No memory for page tables or pages (ENOMEM).
    NoMemory,
    /// An error that the manual pages do not document.
    Other(Errno),
}

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Stop {
        match errno {
            Errno::AGAIN => Stop::Again,
            Errno::EXIST => Stop::Exists,
            Errno::NOENT => Stop::NotThere,
            Errno::SRCH => Stop::Dead,
            Errno::BUSY => Stop::Busy,
            Errno::INVAL => Stop::Invalid,
            Errno::NOMEM => Stop::NoMemory,
            other => Stop::Other(other),
        }
    }
}

/// One message of the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Message {
    /// A thread waits for a page.
    Fault { addr: usize, write: bool, write_protect: bool, thread: u32 },
    /// The process forked and this descriptor now belongs to the child's address space.
    Fork { child: RawFd },
    /// A range moved (`mremap`).
    Remap { from: usize, to: usize, len: usize },
    /// A range was discarded (`MADV_DONTNEED` and the like).
    Remove { start: usize, end: usize },
    /// A range was unmapped.
    Unmap { start: usize, end: usize },
}

#[repr(C)]
struct ApiArg {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct RangeArg {
    start: u64,
    len: u64,
}

#[repr(C)]
struct RegisterArg {
    range: RangeArg,
    mode: u64,
    ioctls: u64,
}

/// `uffdio_copy`, `uffdio_move`: same layout.
#[repr(C)]
struct TransferArg {
    dst: u64,
    src: u64,
    len: u64,
    mode: u64,
    done: i64,
}

/// `uffdio_zeropage`, `uffdio_poison`: same layout.
#[repr(C)]
struct FillArg {
    range: RangeArg,
    mode: u64,
    done: i64,
}

#[repr(C)]
struct ProtectArg {
    range: RangeArg,
    mode: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct RawMessage {
    event: u8,
    _reserved: [u8; 7],
    arg: [u64; 3],
}

const API: Opcode = opcode::read_write::<ApiArg>(GROUP, 0x3F);
const REGISTER: Opcode = opcode::read_write::<RegisterArg>(GROUP, 0x00);
const UNREGISTER: Opcode = opcode::read::<RangeArg>(GROUP, 0x01);
const WAKE: Opcode = opcode::read::<RangeArg>(GROUP, 0x02);
const COPY: Opcode = opcode::read_write::<TransferArg>(GROUP, 0x03);
const ZEROPAGE: Opcode = opcode::read_write::<FillArg>(GROUP, 0x04);
const MOVE: Opcode = opcode::read_write::<TransferArg>(GROUP, 0x05);
const WRITEPROTECT: Opcode = opcode::read_write::<ProtectArg>(GROUP, 0x06);
const POISON: Opcode = opcode::read_write::<FillArg>(GROUP, 0x08);
const NEW: Opcode = opcode::none(GROUP, 0x00);

const DONTWAKE: u64 = 1;
const COPY_WRITE_PROTECTED: u64 = 2;
const MOVE_ALLOW_HOLES: u64 = 2;

/// A userfaultfd of this process.
#[derive(Debug)]
pub struct Uffd {
    fd: OwnedFd,
    features: Features,
}

/// The features that the kernel offers to this user.
pub fn probe() -> Result<Features, UffdError> {
    let fd = open_fd()?;
    handshake(fd.as_fd(), Features(0))
}

/// A descriptor of `/dev/userfaultfd` that was passed to this process; -1: none.
static DEVICE: AtomicI32 = AtomicI32::new(-1);

/// The device that creates userfaultfds (Linux 6.1). The owner of a descriptor may create them,
/// whatever privileges it has lost since it was opened.
pub fn open_device() -> Option<OwnedFd> {
    OpenOptions::new().read(true).write(true).open("/dev/userfaultfd").ok().map(OwnedFd::from)
}

/// Keeps a descriptor of the device, for use where it cannot be opened. It stays open.
pub fn keep_device(device: OwnedFd) {
    DEVICE.store(device.into_raw_fd(), Ordering::Relaxed);
}

/// In the child of a fork: the descriptor does not exist here.
pub fn forget_device() {
    DEVICE.store(-1, Ordering::Relaxed);
}

/// Closes the kept descriptor of the device.
pub fn drop_device() {
    let kept = DEVICE.swap(-1, Ordering::Relaxed);
    if kept >= 0 {
        // SAFETY: passed to `keep_device`, and no longer reachable elsewhere.
        drop(unsafe { OwnedFd::from_raw_fd(kept) });
    }
}

/// The kept descriptor of the device.
pub fn device() -> Option<RawFd> {
    Some(DEVICE.load(Ordering::Relaxed)).filter(|&fd| fd >= 0)
}

fn open_fd() -> Result<OwnedFd, UffdError> {
    let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK;
    // SAFETY: creates a descriptor; memory is affected only once ranges are registered.
    let refused = match unsafe { rustix::mm::userfaultfd(flags) } {
        Ok(fd) => return Ok(fd),
        Err(errno) => errno,
    };
    let opened = OpenOptions::new().read(true).write(true).open("/dev/userfaultfd");
    let kept = DEVICE.load(Ordering::Relaxed);
    let device = match &opened {
        Ok(device) => device.as_raw_fd(),
        Err(_) if kept >= 0 => kept,
        Err(_) if refused == Errno::NOSYS => return Err(UffdError::NotThere(refused.into())),
        Err(_) => return Err(UffdError::NotPermitted(refused.into())),
    };
    // SAFETY: USERFAULTFD_IOC_NEW takes the flags by value and returns a new descriptor or -1.
    let fd = unsafe { libc::ioctl(device, NEW as _, flags.bits()) };
    if fd < 0 {
        return Err(UffdError::Io {
            doing: "USERFAULTFD_IOC_NEW",
            source: io::Error::last_os_error(),
        });
    }
    // SAFETY: the kernel just created this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn handshake(fd: BorrowedFd<'_>, wanted: Features) -> Result<Features, UffdError> {
    let mut arg = ApiArg { api: 0xAA, features: wanted.0, ioctls: 0 };
    // SAFETY: UFFDIO_API reads and writes one `uffdio_api`.
    unsafe { ioctl::ioctl(fd, Updater::<API, ApiArg>::new(&mut arg)) }
        .map_err(|errno| UffdError::Io { doing: "UFFDIO_API", source: errno.into() })?;
    Ok(Features(arg.features))
}

fn range(start: usize, len: usize) -> RangeArg {
    RangeArg { start: start as u64, len: len as u64 }
}

fn outcome(result: rustix::io::Result<()>, done: i64, len: usize) -> Outcome {
    match result {
        Ok(()) => Outcome { done: len, stop: None },
        Err(errno) => {
            Outcome { done: usize::try_from(done).unwrap_or(0).min(len), stop: Some(errno.into()) }
        }
    }
}

/// Bytes of pages at the start of two ranges that are present at `dst` and missing at `src`.
fn moved_already(dst: usize, src: usize, len: usize) -> usize {
    let pages = len / PAGE;
    let is_moved =
        |&page: &usize| vm::is_present(dst + page * PAGE) && !vm::is_present(src + page * PAGE);
    (0..pages).take_while(is_moved).count() * PAGE
}

impl Uffd {
    /// Opens a userfaultfd with the features `wanted`, which must all be available.
    pub fn open(wanted: Features) -> Result<Uffd, UffdError> {
        let offered = probe()?;
        if !offered.has(wanted) {
            let missing = Features(wanted.0 & !offered.0).names().join(", ");
            return Err(UffdError::Lacks { missing });
        }
        let fd = open_fd()?;
        handshake(fd.as_fd(), wanted)?;
        Ok(Uffd { fd, features: wanted })
    }

    /// The features with which it was opened.
    pub fn features(&self) -> Features {
        self.features
    }

    /// Registers a range of private anonymous memory of this process.
    pub fn register(&self, start: usize, len: usize, watch: Watch) -> io::Result<()> {
        let mode = match watch {
            Watch::Missing => 1,
            Watch::WriteProtect => 2,
            Watch::MissingAndWriteProtect => 3,
        };
        let mut arg = RegisterArg { range: range(start, len), mode, ioctls: 0 };
        // SAFETY: UFFDIO_REGISTER reads and writes one `uffdio_register`.
        unsafe { ioctl::ioctl(&self.fd, Updater::<REGISTER, RegisterArg>::new(&mut arg)) }
            .map_err(Into::into)
    }

    /// Unregisters a range.
    pub fn unregister(&self, start: usize, len: usize) -> io::Result<()> {
        let mut arg = range(start, len);
        // SAFETY: UFFDIO_UNREGISTER reads one `uffdio_range`.
        unsafe { ioctl::ioctl(&self.fd, Updater::<UNREGISTER, RangeArg>::new(&mut arg)) }
            .map_err(Into::into)
    }

    /// Wakes the threads that wait for pages of a range.
    pub fn wake(&self, start: usize, len: usize) {
        let mut arg = range(start, len);
        // SAFETY: UFFDIO_WAKE reads one `uffdio_range`. It cannot fail for a page-aligned range.
        let _ = unsafe { ioctl::ioctl(&self.fd, Updater::<WAKE, RangeArg>::new(&mut arg)) };
    }

    fn transfer<const OPCODE: Opcode>(
        &self,
        dst: usize,
        src: usize,
        len: usize,
        mode: u64,
    ) -> Outcome {
        let mut arg =
            TransferArg { dst: dst as u64, src: src as u64, len: len as u64, mode, done: 0 };
        // SAFETY: UFFDIO_COPY and UFFDIO_MOVE read and write one structure of this layout; pages:
        // see the module's contract.
        let result =
            unsafe { ioctl::ioctl(&self.fd, Updater::<OPCODE, TransferArg>::new(&mut arg)) };
        outcome(result, arg.done, len)
    }

    /// Fills missing pages at `dst` with a copy of `src`, and wakes the threads that wait for them.
    /// The pages can be write-protected.
    pub fn copy(&self, dst: usize, src: usize, len: usize, write_protected: bool) -> Outcome {
        self.transfer::<COPY>(dst, src, len, if write_protected { COPY_WRITE_PROTECTED } else { 0 })
    }

    /// The same without waking threads; see [`Uffd::wake`].
    pub fn copy_quietly(&self, dst: usize, src: usize, len: usize) -> Outcome {
        self.transfer::<COPY>(dst, src, len, DONTWAKE)
    }

    /// The same with write-protected pages.
    pub fn copy_protected_quietly(&self, dst: usize, src: usize, len: usize) -> Outcome {
        self.transfer::<COPY>(dst, src, len, DONTWAKE | COPY_WRITE_PROTECTED)
    }

    /// Moves the pages at `src` to `dst`, where pages must be missing, and wakes the threads that
    /// wait for them (Linux 6.8). `holes`: missing source pages are skipped.
    pub fn move_pages(&self, dst: usize, src: usize, len: usize, holes: bool) -> Outcome {
        self.relocate(dst, src, len, if holes { MOVE_ALLOW_HOLES } else { 0 })
    }

    /// Moves pages, and also counts those that the kernel moved without reporting it: when memory
    /// is short, Linux 6.18 does not count pages of a batch that it did not complete, and fails
    /// with EEXIST when it retries.
    fn relocate(&self, dst: usize, src: usize, len: usize, mode: u64) -> Outcome {
        let outcome = self.transfer::<MOVE>(dst, src, len, mode);
        let Outcome { done, stop: Some(stop) } = outcome else { return outcome };
        if stop == Stop::Again {
            return outcome;
        }
        match moved_already(dst + done, src + done, len - done) {
            0 => outcome,
            more if done + more == len => Outcome { done: len, stop: None },
            // The reason may or may not apply to the next page.
            more => Outcome { done: done + more, stop: Some(Stop::Again) },
        }
    }

    /// The same without waking threads: none wait at the destination, or they are to be woken
    /// later.
    pub fn move_quietly(&self, dst: usize, src: usize, len: usize, holes: bool) -> Outcome {
        self.relocate(dst, src, len, DONTWAKE | if holes { MOVE_ALLOW_HOLES } else { 0 })
    }

    fn fill<const OPCODE: Opcode>(&self, start: usize, len: usize) -> Outcome {
        let mut arg = FillArg { range: range(start, len), mode: 0, done: 0 };
        // SAFETY: UFFDIO_ZEROPAGE and UFFDIO_POISON read and write one structure of this layout.
        let result = unsafe { ioctl::ioctl(&self.fd, Updater::<OPCODE, FillArg>::new(&mut arg)) };
        outcome(result, arg.done, len)
    }

    /// Maps zero pages where pages are missing, and wakes the threads that wait for them.
    pub fn zero(&self, start: usize, len: usize) -> Outcome {
        self.fill::<ZEROPAGE>(start, len)
    }

    /// Makes every touch of missing pages raise SIGBUS (Linux 6.6).
    pub fn poison(&self, start: usize, len: usize) -> Outcome {
        self.fill::<POISON>(start, len)
    }

    /// Write-protects pages, or removes the protection and wakes the threads that wait.
    pub fn write_protect(&self, start: usize, len: usize, on: bool) -> Result<(), Stop> {
        let mut arg = ProtectArg { range: range(start, len), mode: u64::from(on) };
        // SAFETY: UFFDIO_WRITEPROTECT reads one `uffdio_writeprotect`.
        unsafe { ioctl::ioctl(&self.fd, Updater::<WRITEPROTECT, ProtectArg>::new(&mut arg)) }
            .map_err(Stop::from)
    }

    /// Appends pending messages, at most `most`, at least 1, and at most 16; never blocks.
    pub fn read(&self, out: &mut Vec<Message>, most: usize) -> io::Result<()> {
        let mut raw = [RawMessage::default(); 16];
        let size = size_of::<RawMessage>();
        let most = most.clamp(1, raw.len());
        // SAFETY: `raw` is plain old data of at least that length.
        let bytes =
            unsafe { std::slice::from_raw_parts_mut(raw.as_mut_ptr().cast::<u8>(), size * most) };
        let got = match rustix::io::read(&self.fd, bytes) {
            Ok(got) => got,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        };
        out.extend(raw[..got / size].iter().filter_map(message));
        Ok(())
    }
}

impl AsFd for Uffd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn message(raw: &RawMessage) -> Option<Message> {
    let [a, b, c] = raw.arg;
    match raw.event {
        0x12 => Some(Message::Fault {
            write: a & 1 != 0,
            write_protect: a & 2 != 0,
            addr: b as usize,
            thread: c as u32,
        }),
        0x13 => Some(Message::Fork { child: a as u32 as RawFd }),
        0x14 => Some(Message::Remap { from: a as usize, to: b as usize, len: c as usize }),
        0x15 => Some(Message::Remove { start: a as usize, end: b as usize }),
        0x16 => Some(Message::Unmap { start: a as usize, end: b as usize }),
        _ => None,
    }
}
