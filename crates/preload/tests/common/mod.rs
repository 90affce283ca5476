//! Compiles the test programs and runs them with the library preloaded.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use hiroma_far::config::{CONFIG_ENV, Config, PathChoice, StoreSpec};

/// The library under test: what `HIROMA_PRELOAD` names, else it is built, which Cargo does not do
/// for integration tests.
pub fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        if let Some(given) = std::env::var_os("HIROMA_PRELOAD") {
            return given.into();
        }
        let test = std::env::current_exe().unwrap();
        let profile_dir = test.ancestors().nth(2).unwrap();
        let mut build = Command::new(env!("CARGO"));
        build
            // The features are those with which the workspace is tested.
            .args(["build", "--quiet", "--workspace", "--lib", "--tests", "--target-dir"])
            .arg(profile_dir.parent().unwrap());
        if profile_dir.ends_with("release") {
            build.arg("--release");
        }
        assert!(build.current_dir(env!("CARGO_MANIFEST_DIR")).status().unwrap().success());
        let library = profile_dir.join("libhiroma_preload.so");
        assert!(library.exists(), "{}", library.display());
        library
    })
}

/// Compiles `tests/programs/NAME.c`.
pub fn compile(name: &str, options: &[&str]) -> PathBuf {
    static DIR: OnceLock<tempfile::TempDir> = OnceLock::new();
    let program = DIR
        .get_or_init(|| tempfile::tempdir().unwrap())
        .path()
        .join(format!("{name}-{:?}", std::thread::current().id()).replace(['(', ')'], "-"));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/programs/{name}.c"));
    // Without builtins, because the compiler removes allocations that it recognizes.
    let output = Command::new("cc")
        .args(["-std=gnu11", "-O1", "-g", "-Wall", "-Werror", "-fno-builtin", "-pthread", "-o"])
        .arg(&program)
        .arg(source)
        .args(options)
        .output()
        .expect("a C compiler is needed for these tests: apt-get install gcc");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}

/// A configuration with `local` bytes of local memory and a compressed store.
pub fn config(local: u64) -> Config {
    Config {
        local_limit_bytes: local,
        stores: vec![StoreSpec::Compressed { capacity: Some(hiroma_units::Bytes(4 << 30)) }],
        ..Config::default()
    }
}

/// `program` with the library preloaded, and with `config` in its environment.
pub fn preloaded(program: impl AsRef<OsStr>, config: Option<&Config>) -> Command {
    // `timeout` kills a program that hangs. The limit is generous, so that a slow machine does not
    // look like a hang.
    let mut command = Command::new("timeout");
    command.args(["--signal=KILL", "300"]);
    command.arg("env").arg(format!("LD_PRELOAD={}", library().display()));
    if let Some(config) = config {
        command.arg(format!("{CONFIG_ENV}={}", serde_json::to_string(config).unwrap()));
    }
    command.arg(program).env_remove(CONFIG_ENV);
    command
}

/// Runs the command and asserts exit code 0.
pub fn succeed(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{command:?}\n{}\nstdout: {}\nstderr: {}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

/// Compiles and runs a test program on both kernel paths; it must print `ok`, and nothing on
/// standard error.
pub fn passes(name: &str, local: u64, arguments: &[&str]) {
    passes_saying(name, local, arguments, "");
}

/// The same, with `what` on standard error.
pub fn passes_saying(name: &str, local: u64, arguments: &[&str], what: &str) {
    let program = compile(name, &[]);
    for path in [PathChoice::Auto, PathChoice::Fallback] {
        let config = Config { path, ..config(local) };
        let output = succeed(preloaded(&program, Some(&config)).args(arguments));
        assert_eq!(
            (
                String::from_utf8_lossy(&output.stdout).as_ref(),
                String::from_utf8_lossy(&output.stderr).as_ref()
            ),
            ("ok\n", what),
            "{name}, {path:?}"
        );
    }
}
