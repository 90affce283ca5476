//! Configurations that cannot work are refused before the program starts, with a reason, a remedy
//! and an exit code.

mod common;

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use common::{compile, hiroma, refusal};

/// Compares the whole text that a user sees.
fn assert_refused(args: &[&str], code: i32, text: &str) {
    let (found, stderr) = refusal(args);
    assert_eq!((found, stderr.trim_end()), (Some(code), text), "{args:?}");
}

/// Compares the first line, which is the error; the rest is clap's usage text.
fn assert_usage_error(args: &[&str], text: &str) {
    let (found, stderr) = refusal(args);
    assert_eq!((found, stderr.lines().next()), (Some(2), Some(text)), "{args:?}: {stderr}");
}

#[test]
fn invalid_sizes_are_usage_errors() {
    let not_positive = |text: &str| {
        format!(
            "error: invalid value '{text}' for '--local <SIZE>': `{text}` is not a usable size: it must be greater than zero"
        )
    };
    assert_usage_error(&["run", "--local", "0", "--", "true"], &not_positive("0"));
    assert_usage_error(&["run", "--local", "-1", "--", "true"], &not_positive("-1"));
    let not_a_size = "is not a size: write a number and a unit, like 512M, 1G or 1.5G (units are K, M, G, T; binary)";
    assert_usage_error(
        &["run", "--local", "1Q", "--", "true"],
        &format!("error: invalid value '1Q' for '--local <SIZE>': `1Q` {not_a_size}"),
    );
    assert_usage_error(
        &["ctl", "1", "--local", "x"],
        &format!("error: invalid value 'x' for '--local <SIZE>': `x` {not_a_size}"),
    );
    assert_usage_error(
        &["run", "--local", "101%", "--", "true"],
        "error: invalid value '101%' for '--local <SIZE>': `101%` is not a share of memory: write a percentage above 0% and up to 100%",
    );
    assert_usage_error(
        &["run", "--local", "9999999T", "--", "true"],
        "error: invalid value '9999999T' for '--local <SIZE>': `9999999T` is too large: the largest size is 8388607T",
    );
    assert_usage_error(
        &["run", "--block", "3K", "--", "true"],
        "error: invalid value '3K' for '--block <SIZE>': `3K` is not a block size: use auto, or a power of two from 4K to 4M",
    );
}

#[test]
fn invalid_store_and_server_sizes_are_usage_errors() {
    let not_positive = "`0` is not a usable size: it must be greater than zero";
    let not_a_size = "`1Q` is not a size: write a number and a unit, like 512M, 1G or 1.5G (units are K, M, G, T; binary)";
    assert_usage_error(
        &["serve", "--memory", "0"],
        &format!("error: invalid value '0' for '--memory <SIZE|auto>': {not_positive}"),
    );
    assert_usage_error(
        &["serve", "--memory", "1Q"],
        &format!("error: invalid value '1Q' for '--memory <SIZE|auto>': {not_a_size}"),
    );
    for (store, reason) in [("compressed:0", not_positive), ("file:/tmp:1Q", not_a_size)] {
        let text = format!("error: invalid value '{store}' for '--store <LIST>': {reason}");
        assert_usage_error(&["run", "--store", store, "--", "true"], &text);
    }
    let text = "error: invalid value 'tcp://a:70000' for '--store <LIST>': `a:70000` is not a server address: write HOST:PORT, as in tcp://10.0.0.2:7070";
    assert_usage_error(&["run", "--store", "tcp://a:70000", "--", "true"], text);
}

#[test]
fn useless_tenants_quotas_and_leases_are_refused() {
    let serve = |option: &'static str, value: &'static str, shown: &str, reason: &str| {
        let text = format!("error: invalid value '{value}' for '{option} <{shown}>': {reason}");
        assert_usage_error(&["serve", "--memory", "64M", option, value], &text);
    };
    let quota = "[NAME=]SIZE";
    serve("--quota", "a=1K", quota, "1KiB is too little: memory is lent in chunks of 2MiB");
    let name = "is not a name for a tenant: 1 to 63 letters, digits and . _ - are taken, a letter or digit first";
    serve("--quota", "a b=1G", quota, &format!("`a b` {name}"));
    serve("--weight", "a=0", "NAME=N", "`0` is not a weight: 1 to 1000");
    serve("--weight", "3", "NAME=N", "write NAME=N, as in alice=3");
    let lease = "a lease is 2s to 24h: within less, a client that lives could not be told from one that does not";
    serve("--lease", "1s", "TIME", lease);
    let text = "hiroma: --tenant alice is about servers, and none is named: add tcp://HOST:PORT to --store or use --pool, or leave --tenant out";
    assert_refused(&["run", "--tenant", "alice", "--", "true"], 2, text);
    let (code, stderr) = refusal([
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--memory",
        "auto",
        "--spill",
        "/does/not/exist",
    ]);
    assert_eq!(code, Some(2));
    assert!(stderr.contains("--spill /does/not/exist: cannot make a file there"), "{stderr}");
}

#[test]
fn impossible_copies_and_parity_are_refused() {
    let zero = "at least one piece of data and one of parity are needed, as in 4+1";
    for text in ["4+0", "0+1"] {
        let told = format!("error: invalid value '{text}' for '--parity <K+M>': {text}: {zero}");
        assert_usage_error(&["run", "--parity", text, "--", "true"], &told);
    }
    assert_usage_error(
        &["run", "--parity", "12+5", "--", "true"],
        "error: invalid value '12+5' for '--parity <K+M>': 12+5: a block has at most 16 pieces, and these are 17",
    );
    let text = "hiroma: --copies 9 is not possible: use 1 to 8";
    assert_refused(&["run", "--copies", "9", "--", "true"], 2, text);
    let text = "hiroma: --parity 4+1 and --copies 2: blocks are either cut or copied; leave one of the two out";
    assert_refused(&["run", "--parity", "4+1", "--copies", "2", "--", "true"], 2, text);
    let text = "hiroma: --store: --parity 4+1 is about servers, and none is named: add tcp://HOST:PORT,HOST:PORT to --store, or leave --parity out";
    assert_refused(&["run", "--parity", "4+1", "--", "true"], 2, text);
    let store = "tcp://127.0.0.1:9,127.0.0.1:9";
    let text = "hiroma: tcp://127.0.0.1:9,127.0.0.1:9: --parity 4+1 needs 5 servers, and 2 are named: name more, or ask for fewer pieces";
    assert_refused(&["run", "--parity", "4+1", "--store", store, "--", "true"], 2, text);
}

#[test]
fn too_small_limit_is_refused() {
    assert_refused(
        &["run", "--local", "1M", "--", "true"],
        2,
        "hiroma: --local 1MiB is too little to work with: give at least 16MiB",
    );
}

#[test]
fn invalid_stores_are_usage_errors() {
    assert_usage_error(
        &["run", "--store", "memory", "--", "true"],
        "error: invalid value 'memory' for '--store <LIST>': `memory` is not a store: use compressed[:SIZE], file:DIR[:SIZE], tcp://HOST:PORT[,HOST:PORT...] or redis://HOST[:PORT], several joined by commas",
    );
    assert_usage_error(
        &["run", "--store", "tcp://host", "--", "true"],
        "error: invalid value 'tcp://host' for '--store <LIST>': `host` is not a server address: write HOST:PORT, as in tcp://10.0.0.2:7070",
    );
}

#[test]
fn unusable_program_gives_shell_exit_codes() {
    let dir = tempfile::tempdir().unwrap();
    assert_refused(
        &["run", "--", "no-such-program"],
        127,
        "hiroma: `no-such-program` was not found: give its path, or a name that is in PATH",
    );
    assert_refused(
        &["run", "--", "./no-such-program"],
        127,
        "hiroma: `./no-such-program` was not found: give its path, or a name that is in PATH",
    );
    let text = dir.path().join("text");
    fs::write(&text, "#!/bin/sh\n").unwrap();
    let text = text.to_str().unwrap();
    assert_refused(
        &["run", "--", text],
        126,
        &format!("hiroma: `{text}` is not executable: chmod +x {text}"),
    );
    let (code, _) = refusal(["run", "--", dir.path().to_str().unwrap()]);
    assert_eq!(code, Some(126));
}

#[test]
fn a_static_program_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    for (name, flags) in [("static", &["-static"][..]), ("static-pie", &["-static-pie", "-fPIE"])] {
        let program = compile(dir.path(), name, "int main(void) { return 0; }", flags);
        let program = program.to_str().unwrap();
        let text = format!(
            "hiroma: `{program}` is statically linked: it never asks the C library for memory, so far memory cannot reach it; link it dynamically, or use a dynamically linked build of it"
        );
        assert_refused(&["run", "--", program], 2, &text);
    }
}

#[test]
fn go_program_is_recognised_by_section_or_note() {
    let dir = tempfile::tempdir().unwrap();
    let section = r#"__attribute__((section(".go.buildinfo"))) const char info[] = "\xff Go buildinf:"; int main(void) { return info[0] == 0; }"#;
    let note = r#"__asm__(".pushsection .note.go.buildid,\"a\",@note\n.long 4,4,4\n.asciz \"Go\\0\"\n.long 1\n.popsection"); int main(void) { return 0; }"#;
    let text = |program: &str| {
        format!(
            "hiroma: `{program}` is a Go program: Go makes its own system calls, so far memory cannot reach it; run it without hiroma"
        )
    };
    for (name, source) in [("section", section), ("note", note)] {
        let program = compile(dir.path(), name, source, &[]);
        let program = program.to_str().unwrap();
        assert_refused(&["run", "--", program], 2, &text(program));
    }
    // The effect of `strip --strip-section-headers`: only the program headers remain.
    let mut stripped = fs::read(dir.path().join("note")).unwrap();
    stripped[40..48].fill(0);
    stripped[58..64].fill(0);
    let path = dir.path().join("stripped");
    fs::write(&path, stripped).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    assert_refused(&["run", "--", path.to_str().unwrap()], 2, &text(path.to_str().unwrap()));
}

#[test]
fn a_musl_program_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let program = compile(
        dir.path(),
        "musl",
        "int main(void) { return 0; }",
        &["-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1"],
    );
    let (code, stderr) = refusal(["run", "--", program.to_str().unwrap()]);
    assert!(
        code == Some(2) && stderr.contains("is linked against musl (/lib/ld-musl-x86_64.so.1)"),
        "{stderr}"
    );
}

#[test]
fn unreachable_server_is_named() {
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (code, stderr) = refusal(["run", "--store", &format!("tcp://{gone}"), "--", "true"]);
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.contains(&gone.to_string()) && stderr.contains("hiroma serve"), "{stderr}");
}

#[test]
fn unreachable_server_of_two_is_named() {
    let mut server = hiroma(["serve", "--listen", "127.0.0.1:0", "--memory", "64M"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let lines = BufReader::new(server.stdout.take().unwrap()).lines();
    let here = lines
        .map_while(Result::ok)
        .find_map(|line| Some(line.split_once("ready on ")?.1.split(',').next()?.to_owned()));
    let here = here.expect("the server is ready");
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let (code, stderr) = refusal(["run", "--store", &format!("tcp://{here},{gone}"), "--", "true"]);
    server.kill().unwrap();
    server.wait().unwrap();
    assert!(
        code == Some(2) && stderr.contains(&gone) && stderr.contains("hiroma serve"),
        "{stderr}"
    );
}

#[test]
fn missing_file_store_directory_is_refused() {
    let text = "hiroma: file:/no/such/place: /no/such/place is not a directory: make it, or name another one";
    assert_refused(&["run", "--store", "file:/no/such/place", "--", "true"], 2, text);
}

#[test]
fn unwritable_statistics_are_refused_before_start() {
    let (code, stderr) = refusal([
        "run",
        "--stats",
        "/no/such/place/stats.json",
        "--",
        "sh",
        "-c",
        "echo started >&2",
    ]);
    assert!(code == Some(2) && !stderr.contains("started"), "{stderr}");
}

#[test]
fn missing_preload_library_is_reported() {
    let output = hiroma(["run", "--", "true"])
        .env("HIROMA_PRELOAD", "/no/such/library.so")
        .output()
        .unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(
        stderr,
        "hiroma: HIROMA_PRELOAD names /no/such/library.so, which is not there: correct it, or unset it\n"
    );
}

#[test]
fn serving_beyond_loopback_needs_a_key() {
    let (code, stderr) = refusal(["serve", "--listen", "0.0.0.0:0", "--memory", "64M"]);
    assert!(code == Some(2) && stderr.contains("--key-file"), "{stderr}");
    let (code, stderr) = refusal(["serve", "--memory", "4000T"]);
    assert!(code == Some(2) && stderr.contains("lend less"), "{stderr}");
    let (code, stderr) = refusal(["serve", "--listen", "nonsense", "--memory", "64M"]);
    assert!(code == Some(2) && stderr.contains("write HOST:PORT"), "{stderr}");
    let (code, stderr) = refusal([
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--memory",
        "64M",
        "--key-file",
        "/no/such/key",
    ]);
    assert!(code == Some(2) && stderr.contains("make one with"), "{stderr}");
}

#[test]
fn member_that_the_pool_cannot_reach_is_refused() {
    // An address for documents, which nobody has.
    let join = ["serve", "--memory", "64M", "--join", "192.0.2.1:7070"];
    let listening = [&join[..], &["--listen", "127.0.0.1:0"]].concat();
    let text = "hiroma: --listen 127.0.0.1:0 is an address of this machine alone, and 192.0.2.1:7070 is not on it: leave --listen out, or give an address of this machine that the members of the pool reach";
    assert_refused(&listening, 2, text);
    // The address that is chosen needs a key; without a network there is none to choose.
    let (code, stderr) = refusal(join);
    let is_said = stderr.contains("--key-file") || stderr.contains("no way from this machine");
    assert!(code == Some(2) && is_said && !stderr.contains("127.0.0.1:7070"), "{stderr}");
}

#[test]
fn ctl_explains_why_a_process_is_unreachable() {
    let nobody = u32::MAX / 2;
    assert_refused(
        &["ctl", &nobody.to_string()],
        1,
        &format!("hiroma: there is no process {nobody}"),
    );
    let me = std::process::id();
    assert_refused(
        &["ctl", &me.to_string(), "--local", "1G"],
        1,
        &format!(
            "hiroma: process {me} is not under hiroma, and neither is a child of it: start it with `hiroma run -- PROGRAM`"
        ),
    );
}

#[test]
fn spark_experiments_report_missing_parts_up_front() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().to_str().unwrap();
    common::bench();
    let (code, stderr) = refusal(["bench", "spark", "--jvm", dir]);
    assert!(
        code == Some(2) && stderr.contains(dir) && stderr.contains("make spark-jars"),
        "{stderr}"
    );
    let (code, stderr) = refusal(["bench", "spark", "--jvm", dir, "--only", "figure-4"]);
    assert!(
        code == Some(2) && stderr.contains("storage, sizes, workloads, inside, timeline"),
        "{stderr}"
    );
}
