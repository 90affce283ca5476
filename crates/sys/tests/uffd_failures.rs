//! How the ioctls of userfaultfd fail on the running kernel: each ordinary failure is provoked, and
//! must be reported as the corresponding [`Stop`]. Tests are skipped with a reason if the kernel or
//! the user's privileges lack something.
//!
//! Contract: memory of these tests belongs to the test alone; between `fork` and `_exit` nothing is
//! allocated and no lock is taken.
#![allow(unsafe_code)]

#[path = "support/forked.rs"]
mod forked;

use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use hiroma_sys::uffd::{Features, Message, Outcome, Stop, Uffd, Watch, probe};
use hiroma_sys::vm::{self, Access, Advise, Reservation};
use hiroma_sys::wait;

use self::forked::{Forked, exit_code, fork, map_file, pipe, tempfile, unmap};

const PAGE: usize = 4096;
const PAGES: usize = 16;
const WORD: u64 = 0x1122_3344_5566_7788;
/// Limit for a broken run; no test takes this long.
const PATIENCE: Duration = Duration::from_secs(20);

/// One test at a time: a child that one of them forks shares the pages of all.
static ONE: Mutex<()> = Mutex::new(());

/// A descriptor and a registered range of `PAGES` pages, all missing; and as much memory with
/// content, which is not registered.
struct Scene {
    uffd: Uffd,
    far: Reservation,
    near: Reservation,
    _alone: MutexGuard<'static, ()>,
}

fn reservation() -> Reservation {
    let area = Reservation::new(PAGES * PAGE, 2 << 20, Access::ReadWrite).unwrap();
    // Huge pages would make a range of one page behave like one of 512.
    let _ = area.advise(area.base(), area.len(), Advise::NoHuge);
    area
}

/// None, with a reported reason, if the kernel or this user does not support `wanted`.
fn scene(wanted: Features, watch: Watch) -> Option<Scene> {
    let alone = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let uffd = match Uffd::open(wanted) {
        Ok(uffd) => uffd,
        Err(error) => {
            hiroma_testkit::skip!(Uffd, "{error}");
            return None;
        }
    };
    let (far, near) = (reservation(), reservation());
    vm::fill(near.base(), near.len(), WORD);
    uffd.register(far.base(), far.len(), watch).unwrap();
    Some(Scene { uffd, far, near, _alone: alone })
}

impl Scene {
    fn dst(&self, page: usize) -> usize {
        self.far.base() + page * PAGE
    }

    fn src(&self, page: usize) -> usize {
        self.near.base() + page * PAGE
    }

    fn copy(&self, page: usize, pages: usize) -> Outcome {
        self.uffd.copy(self.dst(page), self.src(page), pages * PAGE, false)
    }

    fn move_in(&self, page: usize, pages: usize) -> Outcome {
        self.uffd.move_pages(self.dst(page), self.src(page), pages * PAGE, false)
    }

    /// The ioctls that fill missing pages, as far as this kernel has them, by name.
    fn fillers(&self) -> Vec<(&'static str, Filler)> {
        let mut all: Vec<(&'static str, Filler)> = vec![
            ("COPY", Scene::copy),
            ("ZEROPAGE", |scene, page, pages| scene.uffd.zero(scene.dst(page), pages * PAGE)),
        ];
        let offered = probe().unwrap();
        if offered.has(Features::MOVE) {
            all.push(("MOVE", Scene::move_in));
        } else {
            hiroma_testkit::skip!(Machine, "MOVE, which this kernel lacks (Linux 6.8)");
        }
        if offered.has(Features::POISON) {
            all.push(("POISON", |scene, page, pages| {
                scene.uffd.poison(scene.dst(page), pages * PAGE)
            }));
        } else {
            hiroma_testkit::skip!(Machine, "POISON, which this kernel lacks (Linux 6.6)");
        }
        all
    }

    /// Makes a registered page present.
    fn present(&self, page: usize) {
        assert_eq!(self.uffd.zero(self.dst(page), PAGE), all_of(1));
    }

    /// Makes registered pages missing, whatever they were.
    fn missing(&self) {
        self.far.advise(self.far.base(), self.far.len(), Advise::Drop).unwrap();
    }
}

type Filler = fn(&Scene, usize, usize) -> Outcome;

fn all_of(pages: usize) -> Outcome {
    Outcome { done: pages * PAGE, stop: None }
}

fn stopped(pages: usize, stop: Stop) -> Outcome {
    Outcome { done: pages * PAGE, stop: Some(stop) }
}

fn word(addr: usize) -> u64 {
    // SAFETY: the tests read only mapped memory of their own.
    unsafe { (addr as *const u64).read_volatile() }
}

fn with_move(watch: Watch) -> Option<Scene> {
    scene(Features::MOVE, watch)
}

/// Waits for a message and returns it.
fn next_message(uffd: &Uffd) -> Message {
    use std::os::fd::AsFd;
    let (mut out, until) = (Vec::new(), Instant::now() + PATIENCE);
    while out.is_empty() {
        assert!(Instant::now() < until, "no message came");
        wait::readable(&[uffd.as_fd().as_raw_fd()], 100);
        uffd.read(&mut out, usize::MAX).unwrap();
    }
    assert_eq!(out.len(), 1, "{out:?}");
    out[0]
}

// What fills pages
// ------------------------------------------------------------------------------

#[test]
fn filling_a_present_page_returns_exists() {
    let Some(scene) = scene(Features::default(), Watch::Missing) else { return };
    for (name, fill) in scene.fillers() {
        scene.present(3);
        assert_eq!(fill(&scene, 3, 1), stopped(0, Stop::Exists), "{name}");
        assert_eq!(word(scene.dst(3)), 0, "{name}: the page that was there has changed");
        scene.missing();
    }
}

#[test]
fn filling_stops_at_first_present_page() {
    let Some(scene) = scene(Features::default(), Watch::Missing) else { return };
    for (name, fill) in scene.fillers() {
        scene.present(2);
        assert_eq!(fill(&scene, 0, 6), stopped(2, Stop::Again), "{name}");
        // When called again from there, the kernel reports the reason; after it, it continues.
        assert_eq!(fill(&scene, 2, 4), stopped(0, Stop::Exists), "{name}");
        assert_eq!(fill(&scene, 3, 3), all_of(3), "{name}");
        scene.missing();
    }
}

#[test]
fn filling_an_unmapped_range_returns_not_there() {
    let Some(scene) = scene(Features::default(), Watch::Missing) else { return };
    let hole = reservation();
    let gone = hole.base();
    drop(hole);
    for (name, outcome) in [
        ("COPY", scene.uffd.copy(gone, scene.src(0), PAGE, false)),
        ("ZEROPAGE", scene.uffd.zero(gone, PAGE)),
    ] {
        assert_eq!(outcome, stopped(0, Stop::NotThere), "{name}");
    }
    let offered = probe().unwrap();
    if offered.has(Features::MOVE) {
        assert_eq!(
            scene.uffd.move_pages(gone, scene.src(0), PAGE, false),
            stopped(0, Stop::NotThere)
        );
        assert_eq!(word(scene.src(0)), WORD, "nothing was moved away");
    }
    if offered.has(Features::POISON) {
        assert_eq!(scene.uffd.poison(gone, PAGE), stopped(0, Stop::NotThere));
    }
}

#[test]
fn filling_an_unregistered_range_is_refused() {
    let Some(scene) = scene(Features::default(), Watch::Missing) else { return };
    let stranger = reservation();
    let refused = |name: &str, outcome: Outcome, stop: Stop| {
        assert_eq!(outcome, stopped(0, stop), "{name}");
        assert_eq!(word(stranger.base()), 0, "{name}");
        vm::zero(stranger.base(), PAGE);
        stranger.advise(stranger.base(), PAGE, Advise::Drop).unwrap();
    };
    refused("COPY", scene.uffd.copy(stranger.base(), scene.src(0), PAGE, false), Stop::NotThere);
    refused("ZEROPAGE", scene.uffd.zero(stranger.base(), PAGE), Stop::NotThere);
    let offered = probe().unwrap();
    if offered.has(Features::MOVE) {
        refused(
            "MOVE",
            scene.uffd.move_pages(stranger.base(), scene.src(0), PAGE, false),
            Stop::Invalid,
        );
    }
    if offered.has(Features::POISON) {
        refused("POISON", scene.uffd.poison(stranger.base(), PAGE), Stop::NotThere);
    }
}

#[test]
fn unaligned_ranges_are_invalid() {
    let Some(scene) = scene(Features::default(), Watch::MissingAndWriteProtect) else { return };
    let (dst, src) = (scene.dst(0), scene.src(0));
    let invalid = stopped(0, Stop::Invalid);
    for (dst, len) in [(dst + 8, PAGE), (dst, 0), (dst, 100), (dst, usize::MAX & !(PAGE - 1))] {
        assert_eq!(scene.uffd.copy(dst, src, len, false), invalid, "COPY {dst:#x} {len:#x}");
        assert_eq!(scene.uffd.zero(dst, len), invalid, "ZEROPAGE {dst:#x} {len:#x}");
        assert_eq!(
            scene.uffd.write_protect(dst, len, true),
            Err(Stop::Invalid),
            "WRITEPROTECT {dst:#x} {len:#x}"
        );
        assert!(
            scene.uffd.register(dst, len, Watch::Missing).is_err(),
            "REGISTER {dst:#x} {len:#x}"
        );
        assert!(scene.uffd.unregister(dst, len).is_err(), "UNREGISTER {dst:#x} {len:#x}");
        let offered = probe().unwrap();
        if offered.has(Features::MOVE) {
            assert_eq!(
                scene.uffd.move_pages(dst, src, len, false),
                invalid,
                "MOVE {dst:#x} {len:#x}"
            );
        }
        if offered.has(Features::POISON) {
            assert_eq!(scene.uffd.poison(dst, len), invalid, "POISON {dst:#x} {len:#x}");
        }
        // Has no result; it must do no harm.
        scene.uffd.wake(dst, len);
    }
    assert_eq!(scene.copy(0, 1), all_of(1));
}

#[test]
fn copy_from_unreadable_memory_fails_with_fault() {
    let Some(scene) = scene(Features::default(), Watch::Missing) else { return };
    scene.near.protect(scene.src(2), PAGE, libc::PROT_NONE).unwrap();
    assert_eq!(scene.copy(0, 4), stopped(2, Stop::Again));
    assert_eq!(scene.copy(2, 1), stopped(0, Stop::Other(rustix::io::Errno::FAULT)));
    scene.near.protect(scene.src(2), PAGE, libc::PROT_READ).unwrap();
    assert_eq!(scene.copy(2, 2), all_of(2));
    assert_eq!(word(scene.dst(3)), WORD);
}

#[test]
fn pending_event_blocks_filling_until_read() {
    let Some(scene) = scene(Features::EVENT_REMOVE, Watch::MissingAndWriteProtect) else { return };
    for (name, fill) in scene.fillers() {
        thread::scope(|scope| {
            // Blocks until the event has been read.
            let removal =
                scope.spawn(|| scene.far.advise(scene.dst(8), PAGE, Advise::Drop).unwrap());
            let until = Instant::now() + PATIENCE;
            let mut seen = 0;
            // The event arrives asynchronously; until then the ioctl works, on pages that are left.
            while fill(&scene, 0, 1) != stopped(0, Stop::Again) {
                seen += 1;
                assert!(Instant::now() < until, "{name}: the kernel never asked to try again");
                thread::sleep(Duration::from_millis(1));
            }
            assert!(seen == 0 || fill(&scene, 1, 1) == stopped(0, Stop::Again), "{name}");
            assert_eq!(fill(&scene, 4, 2), stopped(0, Stop::Again), "{name}");
            if name == "COPY" {
                assert_eq!(scene.uffd.write_protect(scene.dst(0), PAGE, true), Err(Stop::Again));
            }
            assert_eq!(
                next_message(&scene.uffd),
                Message::Remove { start: scene.dst(8), end: scene.dst(9) }
            );
            removal.join().unwrap();
        });
        assert_eq!(fill(&scene, 4, 2), all_of(2), "{name}");
        // Empties it without an event for each page.
        scene.uffd.unregister(scene.far.base(), scene.far.len()).unwrap();
        scene.missing();
        scene
            .uffd
            .register(scene.far.base(), scene.far.len(), Watch::MissingAndWriteProtect)
            .unwrap();
        vm::fill(scene.near.base(), scene.near.len(), WORD);
    }
}

// Moving
// ------------------------------------------------------------------------------

#[test]
fn move_stops_at_holes_unless_allowed() {
    let Some(scene) = with_move(Watch::Missing) else { return };
    scene.near.advise(scene.src(2), PAGE, Advise::Drop).unwrap();
    assert_eq!(scene.move_in(0, 5), stopped(2, Stop::Again));
    assert_eq!(scene.move_in(2, 3), stopped(0, Stop::NotThere));
    assert_eq!(scene.uffd.move_pages(scene.dst(2), scene.src(2), 3 * PAGE, true), all_of(3));
    assert_eq!((word(scene.dst(1)), word(scene.dst(3))), (WORD, WORD));
    assert_eq!(word(scene.src(3)), 0, "what was moved is gone from where it was");
}

#[test]
fn already_moved_pages_count_as_moved() {
    // When memory is short, Linux 6.18 moves pages without counting them, and then fails because
    // they are present. Here they are moved explicitly.
    let Some(scene) = with_move(Watch::Missing) else { return };
    assert_eq!(scene.move_in(0, 3), all_of(3));
    assert_eq!(scene.move_in(0, 3), all_of(3));
    assert_eq!(scene.move_in(0, 8), stopped(3, Stop::Again));
    assert_eq!(scene.move_in(3, 5), all_of(5));
    assert_eq!((word(scene.dst(0)), word(scene.dst(7))), (WORD, WORD));
    // What is present on both sides was not moved.
    vm::fill(scene.src(0), PAGE, !WORD);
    assert_eq!(scene.move_in(0, 8), stopped(0, Stop::Exists));
    assert_eq!((word(scene.src(0)), word(scene.dst(0))), (!WORD, WORD));
}

#[test]
fn move_between_incompatible_mappings_is_invalid() {
    let Some(scene) = with_move(Watch::Missing) else { return };
    scene.near.protect(scene.near.base(), PAGE, libc::PROT_READ).unwrap();
    assert_eq!(scene.move_in(0, 1), stopped(0, Stop::Invalid), "source read-only");
    assert_eq!(scene.move_in(0, 2), stopped(0, Stop::Invalid), "a source of two mappings");
    assert_eq!(scene.move_in(1, 1), all_of(1));
    scene.far.protect(scene.dst(4), PAGE, libc::PROT_READ).unwrap();
    assert_eq!(scene.move_in(4, 1), stopped(0, Stop::Invalid), "destination read-only");
    assert_eq!(scene.move_in(3, 2), stopped(0, Stop::Invalid), "a destination of two mappings");
    assert_eq!(word(scene.src(4)), WORD);
    let Some(file) = tempfile() else { return };
    let mapped = map_file(&file);
    let outcome = scene.uffd.move_pages(scene.dst(6), mapped, PAGE, false);
    assert_eq!(outcome, stopped(0, Stop::Invalid), "a file as the source");
    unmap(mapped);
}

#[test]
fn move_of_forked_pages_is_busy_until_written() {
    let Some(scene) = with_move(Watch::Missing) else { return };
    let child = Forked::waiting();
    assert_eq!(scene.move_in(0, 1), stopped(0, Stop::Busy));
    vm::touch(scene.src(0), 2 * PAGE);
    assert_eq!(scene.move_in(0, 1), all_of(1));
    // One private page, and then a shared one.
    assert_eq!(scene.move_in(1, 2), stopped(1, Stop::Again));
    assert_eq!(scene.move_in(2, 1), stopped(0, Stop::Busy));
    child.ends();
    assert_eq!((word(scene.dst(0)), word(scene.dst(1)), word(scene.src(2))), (WORD, WORD, WORD));
}

#[test]
fn move_of_a_pinned_page_is_busy() {
    let Some(scene) = with_move(Watch::Missing) else { return };
    let ring = match io_uring::IoUring::new(2) {
        Ok(ring) => ring,
        Err(error) => {
            return hiroma_testkit::skip!(
                Machine,
                "io_uring is not allowed here ({error}), so nothing can be pinned"
            );
        }
    };
    let pinned = libc::iovec { iov_base: scene.src(1) as *mut _, iov_len: PAGE };
    // SAFETY: the memory stays mapped until the buffers are unregistered below.
    if let Err(error) = unsafe { ring.submitter().register_buffers(&[pinned]) } {
        return hiroma_testkit::skip!(Machine, "nothing can be pinned here ({error})");
    }
    assert_eq!(scene.move_in(0, 3), stopped(1, Stop::Again));
    assert_eq!(scene.move_in(1, 2), stopped(0, Stop::Busy));
    vm::touch(scene.src(1), PAGE);
    assert_eq!(scene.move_in(1, 2), stopped(0, Stop::Busy), "a write does not let go of it");
    assert_eq!(scene.move_in(2, 1), all_of(1));
    ring.submitter().unregister_buffers().unwrap();
    drop(ring);
    // The kernel releases the pin a little later.
    let until = Instant::now() + PATIENCE;
    while scene.move_in(1, 1) == stopped(0, Stop::Busy) {
        assert!(Instant::now() < until, "the page stays pinned");
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(word(scene.dst(1)), WORD);
}

// Write protection
// ------------------------------------------------------------------------------

#[test]
fn write_protecting_an_unregistered_range_returns_not_there() {
    let Some(scene) = scene(Features::default(), Watch::Missing) else { return };
    assert_eq!(scene.copy(0, 1), all_of(1));
    assert_eq!(
        scene.uffd.write_protect(scene.dst(0), PAGE, true),
        Err(Stop::NotThere),
        "watched for missing pages only"
    );
    assert_eq!(
        scene.uffd.write_protect(scene.src(0), PAGE, true),
        Err(Stop::NotThere),
        "not watched at all"
    );
    let hole = reservation();
    let gone = hole.base();
    drop(hole);
    assert_eq!(scene.uffd.write_protect(gone, PAGE, true), Err(Stop::NotThere), "not mapped");
}

#[test]
fn write_protected_copy_needs_write_protect_registration() {
    let Some(scene) = scene(Features::default(), Watch::Missing) else { return };
    let outcome = scene.uffd.copy(scene.dst(0), scene.src(0), PAGE, true);
    assert_eq!(outcome, stopped(0, Stop::Invalid));
    assert_eq!(scene.copy(0, 1), all_of(1));
}

#[test]
fn writer_waits_until_write_protection_is_lifted() {
    let Some(scene) = scene(Features::default(), Watch::MissingAndWriteProtect) else { return };
    assert_eq!(scene.uffd.copy(scene.dst(0), scene.src(0), PAGE, true), all_of(1));
    let addr = scene.dst(0);
    thread::scope(|scope| {
        let writer = scope.spawn(move || vm::fill(addr, 8, 5));
        let message = next_message(&scene.uffd);
        assert!(
            matches!(message, Message::Fault { addr: at, write: true, write_protect: true, .. } if at / PAGE == addr / PAGE),
            "{message:?}"
        );
        assert_eq!(word(addr), WORD);
        // Woken while the protection is still in place, it faults again.
        scene.uffd.wake(addr, PAGE);
        assert!(matches!(next_message(&scene.uffd), Message::Fault { write_protect: true, .. }));
        assert_eq!(scene.uffd.write_protect(addr, PAGE, false), Ok(()));
        writer.join().unwrap();
    });
    assert_eq!(word(addr), 5);
}

// Registration and waking
// ------------------------------------------------------------------------------

#[test]
fn missing_kernel_feature_is_named() {
    let Some(_scene) = scene(Features::default(), Watch::Missing) else { return };
    let offered = probe().unwrap();
    if offered.has(Features::MOVE) {
        return hiroma_testkit::skip!(Machine, "this kernel lacks nothing that could be asked for");
    }
    let error = Uffd::open(Features::MOVE.and(Features::EVENT_REMOVE)).unwrap_err().to_string();
    assert!(error.contains("lacks MOVE:"), "{error}");
}

#[test]
fn range_registered_elsewhere_is_busy_until_unregistered() {
    let Some(scene) = scene(Features::default(), Watch::Missing) else { return };
    let other = Uffd::open(Features::default()).unwrap();
    let error = other.register(scene.dst(4), PAGE, Watch::Missing).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EBUSY));
    scene.uffd.unregister(scene.dst(4), PAGE).unwrap();
    other.register(scene.dst(4), PAGE, Watch::Missing).unwrap();
    assert_eq!(other.copy(scene.dst(4), scene.src(4), PAGE, false), all_of(1));
}

#[test]
fn holes_and_files_cannot_be_registered() {
    let Some(scene) = scene(Features::default(), Watch::Missing) else { return };
    let hole = reservation();
    let gone = hole.base();
    drop(hole);
    assert!(scene.uffd.register(gone, PAGE, Watch::Missing).is_err());
    assert!(scene.uffd.unregister(gone, PAGE).is_err());
    // Unregistering what is not registered is no failure.
    scene.uffd.unregister(scene.src(0), PAGE).unwrap();
    let Some(file) = tempfile() else { return };
    let mapped = map_file(&file);
    let error = scene.uffd.register(mapped, PAGE, Watch::Missing).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
    unmap(mapped);
}

#[test]
fn woken_thread_refaults_until_range_is_unregistered() {
    let Some(scene) = scene(Features::default(), Watch::Missing) else { return };
    scene.uffd.wake(scene.dst(0), PAGES * PAGE);
    let addr = scene.dst(5);
    thread::scope(|scope| {
        let reader = scope.spawn(move || word(addr));
        for _ in 0..3 {
            assert!(
                matches!(next_message(&scene.uffd), Message::Fault { addr: at, .. } if at / PAGE == addr / PAGE)
            );
            scene.uffd.wake(addr, PAGE);
        }
        scene.uffd.unregister(scene.far.base(), scene.far.len()).unwrap();
        assert_eq!(reader.join().unwrap(), 0);
    });
}

#[test]
fn quiet_copy_does_not_wake_the_thread() {
    let Some(scene) = scene(Features::default(), Watch::Missing) else { return };
    let addr = scene.dst(5);
    thread::scope(|scope| {
        let reader = scope.spawn(move || word(addr));
        assert!(matches!(next_message(&scene.uffd), Message::Fault { .. }));
        assert_eq!(scene.uffd.copy_quietly(addr, scene.src(5), PAGE), all_of(1));
        thread::sleep(Duration::from_millis(50));
        assert!(!reader.is_finished());
        scene.uffd.wake(addr, PAGE);
        assert_eq!(reader.join().unwrap(), WORD);
    });
}

// The address space is gone
// ------------------------------------------------------------------------------

/// Number of ioctls on a descriptor that outlived its address space.
const DEAD_RESULTS: usize = 7;

#[test]
fn every_ioctl_fails_after_process_exit() {
    let Some(scene) = scene(Features::default(), Watch::MissingAndWriteProtect) else { return };
    drop(scene.uffd);
    let (mut results, to_test) = pipe();
    let (mut alive, life) = pipe();
    let (far, near) = (scene.far.base(), scene.near.base());
    let forked = fork(|| {
        // The owner of the address space: it registers it, leaves the descriptor to a child, and
        // ends.
        let Ok(uffd) = Uffd::open(Features::default()) else { return 2 };
        if uffd.register(far, PAGES * PAGE, Watch::MissingAndWriteProtect).is_err() {
            return 3;
        }
        let heir = fork(|| {
            // SAFETY: this process's copy of its parent's end, which is not in use any more.
            unsafe { libc::close(life.as_raw_fd()) };
            // When the parent ends, its end of the pipe is closed.
            let _ = alive.read(&mut [0]);
            let ended = |outcome: Outcome| u8::from(outcome.done != 0) << 7 | code(outcome.stop);
            uffd.wake(far, PAGE);
            let said = [
                ended(uffd.copy(far, near, PAGE, false)),
                ended(uffd.zero(far, PAGE)),
                ended(uffd.move_pages(far, near, PAGE, false)),
                ended(uffd.poison(far, PAGE)),
                code(uffd.write_protect(far, PAGE, true).err()),
                u8::from(uffd.register(far, PAGE, Watch::Missing).is_err()),
                u8::from(uffd.unregister(far, PAGE).is_err()),
            ];
            let _ = (&to_test).write_all(&said);
            0
        });
        // Not waited for: it outlives this process.
        i32::from(heir < 0)
    });
    drop((to_test, life));
    assert_eq!(exit_code(forked), 0, "the process that was to watch its memory could not");
    let mut said = Vec::new();
    results.read_to_end(&mut said).unwrap();
    let (dead, invalid) = (code(Some(Stop::Dead)), code(Some(Stop::Invalid)));
    // A move never crosses address spaces, so it is refused before anything else is checked; so are
    // ioctls that the kernel lacks.
    let poison = if probe().unwrap().has(Features::POISON) { dead } else { invalid };
    let expected: [u8; DEAD_RESULTS] = [dead, dead, invalid, poison, dead, 1, 1];
    assert_eq!(said, expected);
}

/// A [`Stop`] as a number, for a pipe.
fn code(stop: Option<Stop>) -> u8 {
    match stop {
        None => 0,
        Some(Stop::Again) => 1,
        Some(Stop::Exists) => 2,
        Some(Stop::NotThere) => 3,
        Some(Stop::Dead) => 4,
        Some(Stop::Busy) => 5,
        Some(Stop::Invalid) => 6,
        Some(Stop::NoMemory) => 7,
        Some(Stop::Other(_)) => 8,
    }
}
