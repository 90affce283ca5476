//! The checker (`examples/checker`) for a bounded time in each configuration, and its canary.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, OnceLock, PoisonError};

use hiroma_server::{ServeOptions, ServerHandle, serve};

/// One at a time: each run has sixteen threads.
static ONE: Mutex<()> = Mutex::new(());

/// The checker, built with the profile of this test.
fn checker() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let exe = std::env::current_exe().unwrap();
        let profile_dir = exe.ancestors().nth(2).unwrap();
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--package", "hiroma-pager", "--example", "checker", "--target-dir"]);
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
    format!("{}{}", String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout))
}

fn run(args: &[&str]) -> Output {
    let program = checker();
    let _alone = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    Command::new(program).args(args).output().unwrap()
}

fn figure(text: &str, name: &str) -> u64 {
    let figure = text.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    figure.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
}

/// Runs the checker; it has to find nothing, and to have moved memory to the store and back meanwhile.
fn finds_nothing(store: &str, path: &str, block: &str) {
    let output = run(&["--seconds", "8", "--store", store, "--path", path, "--block", block]);
    let text = text(&output);
    assert!(output.status.success(), "{}\n{text}", output.status);
    for name in ["faults_fetched", "written_bytes", "fetched_bytes", "fork", "resize"] {
        assert!(figure(&text, name) > 0, "{name}: nothing was tested\n{text}");
    }
    assert!(path == "auto" || text.contains(&format!("path={path} ")), "{text}");
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

/// A memory server inside this test, and the store that leads to it.
fn server() -> (ServerHandle, String) {
    let options = ServeOptions { listen: "127.0.0.1:0".to_owned(), memory_bytes: 2 << 30, ..ServeOptions::default() };
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
fn damage_is_found_and_told_apart() {
    for (canary, diagnosis) in [("zero", "SILENT ZERO"), ("stale", "LOST WRITE"), ("misplaced", "MISPLACED")] {
        let output = run(&["--seconds", "2", "--limit", "512M", "--without", "fork,evict_all,limit", "--canary", canary]);
        let text = text(&output);
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains(diagnosis) && text.contains("seed") && text.contains("expected 0x"), "{canary}: {text}");
    }
}
