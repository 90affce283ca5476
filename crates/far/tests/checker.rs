//! Runs the checker (`examples/checker`) for a bounded time in each configuration, and its canary.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use hiroma_far_server::{ServeOptions, ServerHandle, serve};

/// One run at a time: each has sixteen threads.
static ONE: Mutex<()> = Mutex::new(());
/// Time limit of a run, and of its children beyond it. Only a run that hangs takes this long.
const PATIENCE: Duration = Duration::from_secs(400);
const PATIENCE_CHILDREN: Duration = Duration::from_secs(30);

/// The checker, built with the profile of this test.
fn checker() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let exe = std::env::current_exe().unwrap();
        let profile_dir = exe.ancestors().nth(2).unwrap();
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args([
            "build",
            "--quiet",
            // The features are those with which the workspace is tested.
            "--workspace",
            "--example",
            "checker",
            "--target-dir",
        ]);
        cargo.arg(profile_dir.parent().unwrap()).current_dir(env!("CARGO_MANIFEST_DIR"));
        if profile_dir.ends_with("release") {
            cargo.arg("--release");
        }
        let output = cargo.output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        profile_dir.join("examples/checker")
    })
}

fn text(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stderr),
        String::from_utf8_lossy(&output.stdout)
    )
}

/// Runs the checker until it ends. A run that hangs, or a child that it left behind, is killed and
/// reported with all output. Output goes to files, so that no one waits for a pipe to close.
fn run(args: &[&str]) -> Output {
    let program = checker();
    let _alone = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    bounded(Command::new(program).args(args), PATIENCE, PATIENCE_CHILDREN)
        .unwrap_or_else(|text| panic!("{args:?}: {text}"))
}

/// See [`run`]; the error is the reason and the output.
fn bounded(
    command: &mut Command,
    patience: Duration,
    patience_children: Duration,
) -> Result<Output, String> {
    let dir = tempfile::tempdir().unwrap();
    let [out, err] = ["out", "err"].map(|name| dir.path().join(name));
    let file = |path: &Path| Stdio::from(File::create(path).unwrap());
    let mut child = command
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(file(&out))
        .stderr(file(&err))
        .spawn()
        .unwrap();
    let group = Pid::from_child(&child);
    let mut until = Instant::now() + patience;
    let (mut ended, mut hung) = (false, None);
    loop {
        if !ended && child.try_wait().unwrap().is_some() {
            ended = true;
            until = Instant::now() + patience_children;
        }
        let alive = members(group);
        if ended && alive.is_empty() {
            break;
        }
        if hung.is_none() && Instant::now() > until {
            let what = if ended { "left children behind that do not end" } else { "did not end" };
            hung =
                Some(format!("it {what}; processes that were still there:\n{}", alive.join("\n")));
            // The group exists while a member does, and contains no other processes.
            let _ = kill_process_group(group, Signal::KILL);
        }
        sleep(Duration::from_millis(10));
    }
    let read = |path| fs::read(path).unwrap();
    let output = Output { status: child.wait().unwrap(), stdout: read(&out), stderr: read(&err) };
    match hung {
        Some(hung) => Err(format!("{hung}\n{}", text(&output))),
        None => Ok(output),
    }
}

/// The processes of a group that have not ended, each with the wait channels of its threads.
fn members(group: Pid) -> Vec<String> {
    let processes = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    let member = |path: PathBuf| {
        let stat = fs::read_to_string(path.join("stat")).ok()?;
        // After the name, which may contain anything: state, parent, group.
        let (_, rest) = stat.rsplit_once(')')?;
        let mut fields = rest.split_whitespace();
        let (state, in_group) = (fields.next()?, fields.nth(1)?);
        if in_group.parse() != Ok(group.as_raw_nonzero().get()) || state == "Z" {
            return None;
        }
        let threads = fs::read_dir(path.join("task")).ok()?.flatten();
        let waits =
            threads.map(|task| fs::read_to_string(task.path().join("wchan")).unwrap_or_default());
        Some(format!("{} {state} {}", path.display(), waits.collect::<Vec<_>>().join(" ")))
    };
    processes.filter_map(member).collect()
}

fn figure(text: &str, name: &str) -> u64 {
    let figure =
        text.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    figure.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
}

/// Runs the checker, which must find no difference, and must have moved memory to the store and
/// back meanwhile. A machine that is too busy for that gets more time.
fn finds_nothing(store: &str, path: &str, block: &str) {
    const TESTED: [&str; 5] =
        ["faults_fetched", "written_bytes", "fetched_bytes", "fork", "resize"];
    for seconds in ["8", "30", "120"] {
        let output =
            run(&["--seconds", seconds, "--store", store, "--path", path, "--block", block]);
        let text = text(&output);
        assert!(output.status.success(), "{}\n{text}", output.status);
        assert!(path == "auto" || text.contains(&format!("path={path} ")), "{text}");
        let untested = TESTED.iter().find(|name| figure(&text, name) == 0);
        match untested {
            None => return,
            Some(name) if seconds == "120" => panic!("{name}: nothing was tested\n{text}"),
            Some(_) => {}
        }
    }
}

#[test]
fn compressed_memory_with_blocks_chosen_while_running() {
    finds_nothing("compressed:2G", "full", "auto");
}

#[test]
fn compressed_memory_in_small_blocks() {
    finds_nothing("compressed:2G", "full", "4K");
}

#[test]
fn compressed_memory_in_whole_extents() {
    finds_nothing("compressed:2G", "full", "2M");
}

#[test]
fn a_file() {
    let dir = tempfile::tempdir().unwrap();
    finds_nothing(&format!("file:{}:2G", dir.path().display()), "full", "auto");
}

#[test]
fn compressed_memory_that_overflows_into_a_file() {
    let dir = tempfile::tempdir().unwrap();
    finds_nothing(&format!("compressed:16M,file:{}:2G", dir.path().display()), "full", "auto");
}

/// A memory server inside this test, and its store specification.
fn server() -> (ServerHandle, String) {
    let options = ServeOptions {
        listen: "127.0.0.1:0".to_owned(),
        memory_bytes: 2 << 30,
        ..ServeOptions::default()
    };
    let server = serve(options).unwrap();
    let store = format!("tcp://{}", server.local_addr());
    (server, store)
}

#[test]
fn a_server() {
    let (server, store) = server();
    finds_nothing(&store, "full", "auto");
    server.stop();
}

#[test]
fn a_server_in_small_blocks() {
    let (server, store) = server();
    finds_nothing(&store, "full", "4K");
    server.stop();
}

#[test]
fn the_path_of_older_kernels() {
    finds_nothing("compressed:2G", "fallback", "auto");
}

#[test]
fn the_path_of_older_kernels_in_small_blocks() {
    finds_nothing("compressed:2G", "fallback", "4K");
}

#[test]
fn hung_run_is_ended_with_its_children() {
    let second = Duration::from_secs(1);
    let error =
        bounded(Command::new("sh").args(["-c", "echo waiting; sleep 1000"]), second, second)
            .unwrap_err();
    assert!(error.contains("did not end") && error.contains("waiting"), "{error}");
    let error =
        bounded(Command::new("sh").args(["-c", "sleep 1001 & echo gone"]), 60 * second, second)
            .unwrap_err();
    assert!(error.contains("left children behind") && error.contains("gone"), "{error}");
    let fine =
        bounded(Command::new("sh").args(["-c", "sleep 0.1 & exit 3"]), 60 * second, 60 * second)
            .unwrap();
    assert_eq!(fine.status.code(), Some(3));
}

#[test]
fn damage_is_found_and_classified() {
    for (canary, diagnosis) in
        [("zero", "SILENT ZERO"), ("stale", "LOST WRITE"), ("misplaced", "MISPLACED")]
    {
        // It ends as soon as it has found a difference.
        let output = run(&[
            "--seconds",
            "120",
            "--limit",
            "512M",
            "--without",
            "fork,evict_all,limit",
            "--canary",
            canary,
        ]);
        let text = text(&output);
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(
            text.contains(diagnosis) && text.contains("seed") && text.contains("expected 0x"),
            "{canary}: {text}"
        );
    }
}

#[test]
fn memory_that_a_child_accesses_before_its_pager_starts_is_no_silent_zero() {
    for path in ["full", "fallback"] {
        let output = run(&["--seconds", "120", "--canary", "early", "--path", path]);
        let text = text(&output);
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains("between the fork and the pager's start"), "{text}");
        assert!(text.contains("wait status 0x4b00") && !text.contains("ZERO"), "{text}");
    }
}
