//! The library as seen by C and C++ programs: the header, the exported symbols, and programs that
//! are compiled, linked and run.

mod compiling;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use compiling::{C99, clean, compile, header, lib_dir, library, root, succeed};
use hiroma::export::{OPTIONS_FIELDS, STATS_COUNTERS, STATS_FIELDS, hiroma_options, hiroma_stats};
use hiroma::hot::export as hot;
use hiroma_far::control::Counter;
use tempfile::TempDir;

#[test]
fn c_program_uses_every_function_and_gets_errors() {
    let dir = TempDir::new().unwrap();
    let program = dir.path().join("surface");
    compile(C99, &root().join("crates/capi/tests/c/surface.c"), &program);
    for path in ["full", "fallback"] {
        let output = succeed(clean(&program).env("HIROMA_PATH", path));
        assert_eq!(String::from_utf8_lossy(&output.stdout), "surface: all right\n");
    }
}

#[test]
fn example_sorts_array_larger_than_local_memory() {
    let dir = TempDir::new().unwrap();
    let program = dir.path().join("teramalloc");
    compile(C99, &root().join("examples/c/teramalloc.c"), &program);
    let store = format!("compressed:8M,file:{}:1G", dir.path().display());
    let output =
        succeed(clean(&program).arg("64").env("HIROMA_LOCAL", "24M").env("HIROMA_STORE", store));
    let text = String::from_utf8(output.stdout).unwrap();
    let figure = |name: &str| -> u64 {
        let rest = &text
            [text.find(name).unwrap_or_else(|| panic!("no `{name}` in {text}")) + name.len()..];
        rest.split_whitespace().next().unwrap().parse().unwrap()
    };
    assert_eq!(figure("sorted"), 64 * 1024 * 1024 / 8);
    assert_eq!(figure("local limit"), 24);
    assert!(figure("most local") <= 24 + 16, "{text}");
    assert!(figure("most far") >= 64, "{text}");
}

#[test]
fn invalid_free_aborts_with_a_message() {
    let dir = TempDir::new().unwrap();
    let program = dir.path().join("bad_free");
    compile(C99, &root().join("crates/capi/tests/c/bad_free.c"), &program);
    let output = clean(&program).env("HIROMA_STORE", "compressed").output().unwrap();
    assert!(!output.status.success());
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        text.contains("hiroma: terafree: 0x") && text.contains("was not allocated by hiroma"),
        "{text}"
    );
}

#[test]
fn invalid_environment_is_reported_by_first_call() {
    let dir = TempDir::new().unwrap();
    let program = dir.path().join("teramalloc");
    compile(C99, &root().join("examples/c/teramalloc.c"), &program);
    for (name, value, part) in [
        ("HIROMA_LOCAL", "-1", "greater than zero"),
        ("HIROMA_LOCAL", "1Q", "is not a size"),
        ("HIROMA_STORE", "tape", "is not a store"),
    ] {
        let output = clean(&program).arg("1").env(name, value).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.code() == Some(1) && text.contains(part),
            "{name}={value}: {} {text}",
            output.status
        );
    }
}

#[test]
fn header_compiles_as_c_and_cpp_without_warnings() {
    let dir = TempDir::new().unwrap();
    let source = dir.path().join("only.c");
    fs::write(
        &source,
        "#include <hiroma.h>\n#include <hiroma.h>\nint main(void) { hiroma_stats s; return hiroma_stats_read(&s, sizeof s) == 0; }\n",
    )
    .unwrap();
    for compiler in [
        &["cc", "-std=c99"][..],
        &["cc", "-std=c11"],
        &["g++", "-std=c++11", "-x", "c++"],
        &["g++", "-std=c++20", "-x", "c++"],
    ] {
        let mut command = Command::new(compiler[0]);
        command.args(&compiler[1..]).args([
            "-Wall",
            "-Wextra",
            "-Werror",
            "-pedantic",
            "-fsyntax-only",
            "-I",
        ]);
        succeed(command.arg(root().join("include")).arg(&source));
    }
}

#[test]
fn header_struct_layouts_match_the_library() {
    let mut text = String::from("#include <hiroma.h>\n");
    for (name, fields, size) in [
        ("hiroma_options", OPTIONS_FIELDS, size_of::<hiroma_options>()),
        ("hiroma_stats", STATS_FIELDS, size_of::<hiroma_stats>()),
        ("hps_page", hot::PAGE_FIELDS, size_of::<hiroma_hot::service::protocol::Page>()),
        ("hps_range", hot::RANGE_FIELDS, size_of::<hot::hps_range>()),
        ("hps_functions", hot::FUNCTIONS_FIELDS, size_of::<hot::hps_functions>()),
        ("hiroma_hot_options", hot::HOT_OPTIONS_FIELDS, size_of::<hot::hiroma_hot_options>()),
        ("hiroma_hot_stats", hot::HOT_STATS_FIELDS, size_of::<hot::hiroma_hot_stats>()),
        ("hiroma_arena_stats", hot::ARENA_STATS_FIELDS, size_of::<hot::hiroma_arena_stats>()),
    ] {
        text += &format!("typedef char {name}_size[sizeof({name}) == {size} ? 1 : -1];\n");
        for (field, offset) in fields {
            text += &format!(
                "typedef char {name}_{field}[offsetof({name}, {field}) == {offset} ? 1 : -1];\n"
            );
        }
        let body = header();
        let body = &body[body.find(&format!("typedef struct {name} {{")).unwrap()..];
        let declared = body[..body.find('}').unwrap()]
            .lines()
            .skip(1)
            .filter(|line| line.contains(';'))
            .count();
        assert_eq!(declared, fields.len(), "fields of {name} in the header");
    }
    let dir = TempDir::new().unwrap();
    let source = dir.path().join("layout.c");
    fs::write(&source, text).unwrap();
    succeed(
        Command::new("cc")
            .args(["-std=c99", "-fsyntax-only", "-I"])
            .arg(root().join("include"))
            .arg(source),
    );
}

#[test]
fn every_pager_counter_has_a_field() {
    let expected: Vec<_> = Counter::ALL.iter().map(|counter| (*counter, counter.name())).collect();
    assert_eq!(STATS_COUNTERS, expected);
}

/// Names of the functions that are declared in C text.
fn functions(text: &str) -> BTreeSet<String> {
    let mut code = String::new();
    for part in text.split("/*") {
        code.push_str(part.split_once("*/").map_or(part, |(_, code)| code));
    }
    let words = code.match_indices('(').map(|(at, _)| {
        code[..at].rsplit(|c: char| !(c.is_alphanumeric() || c == '_')).next().unwrap()
    });
    words
        .filter(|word| ["hiroma_", "tera", "hps_"].iter().any(|prefix| word.starts_with(prefix)))
        .map(str::to_owned)
        .collect()
}

#[test]
fn header_exports_and_manual_list_the_same_functions() {
    let declared = functions(&header());
    let output = succeed(Command::new("nm").args(["-D", "--defined-only"]).arg(library()));
    let symbols = String::from_utf8(output.stdout).unwrap();
    let exported: BTreeSet<String> = symbols
        .lines()
        .filter_map(|line| line.split_whitespace().nth(2))
        .map(str::to_owned)
        .collect();
    assert_eq!(declared, exported);
    let page = |name: &str| fs::read_to_string(root().join("docs/man").join(name)).unwrap();
    let (manual, hot) = (page("hiroma.3"), page("hps.3"));
    for name in &declared {
        let about_hot =
            ["hps_", "hiroma_hot_", "hiroma_arena_"].iter().any(|prefix| name.starts_with(prefix));
        let text = if about_hot { &hot } else { &manual };
        assert!(text.contains(&format!("{name}(")), "{name} in the synopsis of its manual page");
    }
    for name in [
        "LOCAL",
        "STORE",
        "BLOCK",
        "REPLACEMENT",
        "ALLOCATION",
        "PREFETCH",
        "STORE_TIMEOUT_MS",
        "KEY_FILE",
        "CONTROL_DIR",
        "PATH",
    ] {
        assert!(manual.contains(&format!("HIROMA_{name}")), "HIROMA_{name} in hiroma(3)");
    }
}

#[test]
fn pkg_config_gives_flags_that_compile_the_example() {
    let prefix = TempDir::new().unwrap();
    let template = fs::read_to_string(root().join("crates/capi/hiroma.pc.in")).unwrap();
    let text = template
        .replace("@PREFIX@", &prefix.path().display().to_string())
        .replace("@LIBDIR@", &lib_dir().display().to_string())
        .replace("@VERSION@", env!("CARGO_PKG_VERSION"));
    assert!(!text.contains('@'), "{text}");
    fs::write(prefix.path().join("hiroma.pc"), text).unwrap();
    symlink(root().join("include").canonicalize().unwrap(), prefix.path().join("include")).unwrap();
    let output = succeed(
        Command::new("pkg-config")
            .env("PKG_CONFIG_PATH", prefix.path())
            .args(["--cflags", "--libs", "hiroma"]),
    );
    let flags = String::from_utf8(output.stdout).unwrap();
    let source = root().join("examples/c/teramalloc.c");
    succeed(
        Command::new("cc")
            .arg(source)
            .args(flags.split_whitespace())
            .arg("-o")
            .arg(prefix.path().join("example")),
    );
    let output = succeed(
        Command::new("pkg-config")
            .env("PKG_CONFIG_PATH", prefix.path())
            .args(["--modversion", "hiroma"]),
    );
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), env!("CARGO_PKG_VERSION"));
}
