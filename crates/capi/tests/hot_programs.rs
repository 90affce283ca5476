//! C programs that a daemon in this process notifies of their active pages; the test dictates what
//! the daemon's tracker finds.

mod compiling;
#[path = "../../sys/tests/support/pool.rs"]
mod pool;
#[path = "../../hot/tests/support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Stdio};
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use std::thread::sleep;
use std::time::Duration;

use compiling::{C99, clean, compile, root};
use hiroma_hot::service::daemon::CALL_NS_MAX;
use pool::Pool;
use support::{EXTENT, Script, Served, pages, scripted, until};
use tempfile::TempDir;

fn program() -> &'static Path {
    static PROGRAM: OnceLock<(TempDir, PathBuf)> = OnceLock::new();
    let (_, path) = PROGRAM.get_or_init(|| {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("hot");
        compile(&["cc", "-std=gnu11"], &root().join("crates/capi/tests/c/hot.c"), &path);
        (dir, path)
    });
    path
}

/// A daemon and a program that registers with it.
struct Run {
    dir: TempDir,
    script: Arc<Script>,
    served: Option<Served>,
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Run {
    fn start(mode: &str) -> Run {
        let dir = TempDir::new().unwrap();
        let script = Arc::new(Script::default());
        let served = Some(serve(&dir, &script));
        let mut command = clean(program());
        command
            .arg(mode)
            .env("HIROMA_HOT_SOCKET", dir.path().join("s"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        Run { dir, script, served, child, out }
    }

    /// Waits until the program prints the address of its memory. Returns the first range.
    fn ready(&mut self) -> u64 {
        let mut line = String::new();
        self.out.read_line(&mut line).unwrap();
        let Some(address) = line.trim().strip_prefix("ready 0x") else {
            panic!("the program said: {line}")
        };
        u64::from_str_radix(address, 16).unwrap() / EXTENT
    }

    /// Waits until the program is ready, and makes 5, 200 and 5 pages of three ranges active.
    fn make_active(&mut self) {
        let first = self.ready();
        let all = [pages(first, 5), pages(first + 2, 200), pages(first + 4, 5)].concat();
        let found = BTreeMap::from([(self.child.id(), all)]);
        *self.script.pages.lock().unwrap() = found;
    }

    fn ends_well(mut self) {
        let mut rest = String::new();
        self.out.read_to_string(&mut rest).unwrap();
        let status = self.child.wait().unwrap();
        assert!(status.success() && rest.ends_with("all right\n"), "{status}: {rest}");
        until("the daemon to let it go", || self.script.watches.load(Ordering::SeqCst) == 0);
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn serve(dir: &TempDir, script: &Arc<Script>) -> Served {
    let open = Arc::clone(script);
    Served::patient(&dir.path().join("s"), 100_000_000, move || scripted(open)).unwrap()
}

#[test]
fn signal_handler_decides_and_compacts_in_slices() {
    let mut run = Run::start("handler");
    run.make_active();
    run.ends_well();
}

#[test]
fn waiting_thread_decides_and_compacts() {
    let mut run = Run::start("thread");
    run.make_active();
    run.ends_well();
}

#[test]
fn program_fetches_into_its_own_small_buffer() {
    let mut run = Run::start("event");
    run.ready();
    run.script.pages.lock().unwrap().insert(run.child.id(), pages(7, 200));
    run.ends_well();
}

#[test]
fn a_function_may_end_tracking() {
    let mut run = Run::start("stop");
    run.make_active();
    run.ends_well();
}

#[test]
fn crashing_function_ends_only_its_program() {
    let mut run = Run::start("crash");
    run.make_active();
    let status = run.child.wait().unwrap();
    assert_eq!(status.signal(), Some(11), "{status}");
    until("the daemon to notice", || run.script.watches.load(Ordering::SeqCst) == 0);
    // The daemon serves other programs as before.
    let mut next = Run::start("arena");
    next.child.wait().unwrap();
    // Whether the program "has left" or "has ended" depends on what the daemon notices first: that
    // its socket closed, or that it ended.
    assert!(run.served.as_ref().unwrap().said(&format!("process {} has", run.child.id())));
}

#[test]
fn blocked_function_is_reported_and_later_resumes() {
    let mut run = Run::start("block");
    run.make_active();
    let (served, pid) = (run.served.take().unwrap(), run.child.id());
    until("word of it", || served.said(&format!("process {pid} has been handling pages")));
    // On a busy machine the word may come before the function has begun.
    let mut line = String::new();
    run.out.read_line(&mut line).unwrap();
    assert_eq!(line, "blocks\n");
    sleep(2 * Duration::from_nanos(CALL_NS_MAX));
    let mut input = run.child.stdin.take().unwrap();
    input.write_all(b"xx").unwrap();
    until("word of how long it took", || served.said("a function of it took"));
    drop(input);
    run.ends_well();
}

#[test]
fn program_notices_daemon_exit_and_registers_again() {
    let mut run = Run::start("restart");
    run.ready();
    drop(run.served.take());
    run.served = Some(serve(&run.dir, &run.script));
    run.make_active();
    run.ends_well();
}

#[test]
fn program_is_left_alone_after_exec() {
    let mut run = Run::start("exec");
    let first = run.ready();
    until("the daemon to let it go", || run.script.watches.load(Ordering::SeqCst) == 0);
    run.script.pages.lock().unwrap().insert(run.child.id(), pages(first, 5));
    // The present program of the process ends by itself, not by a signal.
    drop(run.child.stdin.take());
    let status = run.child.wait().unwrap();
    assert!(status.success(), "{status}");
}

#[test]
fn misuse_returns_errno_and_children_must_register() {
    Run::start("misuse").ends_well();
}

#[test]
fn example_moves_hot_records_together() {
    let dir = TempDir::new().unwrap();
    let example = dir.path().join("hot_records");
    compile(C99, &root().join("examples/c/hot_records.c"), &example);
    // Without a daemon the program reports that, and works anyway.
    let mut command = clean(&example);
    let output =
        command.arg("0").env("HIROMA_HOT_SOCKET", dir.path().join("none")).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success()
            && text.contains("no `hiroma hot serve`")
            && text.contains("sum right"),
        "{text}"
    );
}

#[test]
fn arena_allocates_and_frees() {
    Run::start("arena").ends_well();
}

#[test]
fn arena_uses_the_reserved_pool_when_large_enough() {
    // More than this test needs: the other tests here have arenas too.
    let Some(pool) = Pool::with(20) else { return };
    Run::start("reserved").ends_well();
    drop(pool);
}
