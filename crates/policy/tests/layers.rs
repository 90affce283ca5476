//! The layering that ARCHITECTURE.md states: which crate may depend on which, what pure crates must
//! not use, where unsafe code may be.

use std::fs;
use std::path::{Path, PathBuf};

/// Crates that a crate must not depend on although they come before it in ARCHITECTURE.md's list.
const MUST_NOT_KNOW: &[(&str, &[&str])] = &[
    ("units", &[]),
    ("metrics", &["units"]),
    ("policy", &[]),
    ("far-lab", &[]),
    ("far-wire", &["policy"]),
    ("sys", &["policy", "far-wire"]),
    ("far", &[]),
    ("far-server", &["far"]),
    ("pool", &["policy", "far", "far-server"]),
    ("report", &["policy", "far-wire", "sys", "far", "far-server"]),
    ("hot", &["far-wire", "far", "far-server"]),
    ("quiet", &["far-wire", "far", "far-server", "hot"]),
    ("sim", &["far-wire", "sys", "far", "far-server", "hot", "report", "quiet"]),
    ("sim-lab", &["far-wire", "sys", "far", "far-server", "hot", "quiet"]),
    (
        "memload",
        &["policy", "far-wire", "far", "far-server", "hot", "report", "quiet", "sim", "sim-lab"],
    ),
    (
        "testkit",
        &[
            "units",
            "policy",
            "far-lab",
            "far-wire",
            "sys",
            "far",
            "far-server",
            "hot",
            "report",
            "quiet",
            "sim",
            "sim-lab",
            "memload",
        ],
    ),
    (
        "command",
        &[
            "policy",
            "far-wire",
            "sys",
            "far",
            "far-server",
            "hot",
            "quiet",
            "sim",
            "sim-lab",
            "memload",
        ],
    ),
    ("run", &["far-wire", "far-server", "quiet", "sim", "memload"]),
    ("capi", &["policy", "far-wire", "far-server", "report", "sim", "sim-lab"]),
    ("preload", &["policy", "far-wire", "far-server", "report", "sim", "sim-lab", "capi"]),
    (
        "quiet-preload",
        &[
            "units",
            "policy",
            "far-wire",
            "sys",
            "far",
            "far-server",
            "hot",
            "report",
            "quiet",
            "sim",
            "sim-lab",
            "memload",
            "capi",
            "preload",
        ],
    ),
    (
        "spark-jni",
        &[
            "units",
            "policy",
            "far-wire",
            "sys",
            "far",
            "far-server",
            "hot",
            "report",
            "quiet",
            "sim",
            "sim-lab",
            "memload",
            "capi",
            "preload",
            "quiet-preload",
        ],
    ),
    ("cli", &["capi", "preload", "quiet-preload", "spark-jni"]),
    (
        "bench",
        &["far-server", "sim", "sim-lab", "capi", "preload", "quiet-preload", "spark-jni", "cli"],
    ),
];

/// Crates without IO, clocks and threads.
const PURE: &[&str] = &["units", "policy", "far-lab", "far-wire", "sim"];

/// Crates that may contain unsafe code, and only in modules with `#![allow(unsafe_code)]`.
const MAY_BE_UNSAFE: &[&str] = &["sys", "capi", "preload", "quiet-preload", "spark-jni"];

const IMPURE: &[&str] = &[
    "Instant",
    "SystemTime",
    "std::thread",
    "std::net",
    "std::fs",
    "std::env",
    "std::process",
    "RandomState",
    "HashMap",
    "HashSet",
    "thread_local",
    "rustix",
    "libc",
];

fn workspace() -> PathBuf {
    let here = fs::canonicalize(env!("CARGO_MANIFEST_DIR")).expect("this crate has a directory");
    here.ancestors().nth(2).expect("crates/policy lies two levels below the workspace").to_owned()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Crates in the order of ARCHITECTURE.md's table.
fn layers() -> Vec<String> {
    let text = read(&workspace().join("ARCHITECTURE.md"));
    let table = text.split("| Crate |").nth(1).expect("ARCHITECTURE.md has a table of crates");
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    rows.filter_map(|row| row.split('|').nth(1)).map(|name| name.trim().to_owned()).collect()
}

/// Directories in crates/ that are crates.
fn crates() -> Vec<String> {
    let directory = fs::read_dir(workspace().join("crates")).expect("crates/ can be listed");
    let paths = directory.map(|entry| entry.expect("crates/ can be listed").path());
    let mut names: Vec<String> = paths
        .filter(|path| path.join("Cargo.toml").exists())
        .filter_map(|path| Some(path.file_name()?.to_str()?.to_owned()))
        .collect();
    names.sort();
    names
}

/// Crates of this workspace that a manifest depends on, without dev-dependencies.
fn dependencies(manifest: &str) -> Vec<String> {
    let mut section = String::new();
    let mut found = Vec::new();
    for line in manifest.lines().map(str::trim) {
        if line.starts_with('[') {
            section = line.trim_matches(['[', ']']).to_owned();
            if let Some((kind, name)) = section.rsplit_once('.') {
                if kind.ends_with("dependencies") && !kind.ends_with("dev-dependencies") {
                    found.extend(name.strip_prefix("hiroma-").map(str::to_owned));
                }
            }
        } else if section.ends_with("dependencies") && !section.ends_with("dev-dependencies") {
            let name = line.split(['.', '=', ' ']).next().unwrap_or_default();
            found.extend(name.strip_prefix("hiroma-").map(str::to_owned));
        }
    }
    found
}

/// Rust files below `directory`.
fn sources(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let mut files = Vec::new();
    for path in entries.map(|entry| entry.expect("sources can be listed").path()) {
        if path.is_dir() {
            files.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files.sort();
    files
}

/// The code without comments and without the content of string literals.
fn code_only(source: &str) -> String {
    let chars: Vec<char> = source.chars().collect();
    let starts = |at: usize, text: &str| {
        text.chars().enumerate().all(|(i, c)| chars.get(at + i) == Some(&c))
    };
    let mut code = String::with_capacity(source.len());
    let mut at = 0;
    while at < chars.len() {
        let word_before = at > 0 && (chars[at - 1].is_alphanumeric() || chars[at - 1] == '_');
        let hashes = chars[at + 1..].iter().take_while(|&&c| c == '#').count();
        if starts(at, "//") {
            at += chars[at..].iter().position(|&c| c == '\n').unwrap_or(chars.len() - at);
        } else if starts(at, "/*") {
            let mut depth = 0;
            loop {
                depth += i32::from(starts(at, "/*")) - i32::from(at > 0 && starts(at - 1, "*/"));
                at += 1;
                if depth == 0 || at >= chars.len() {
                    break;
                }
            }
        } else if chars[at] == 'r' && !word_before && chars.get(at + 1 + hashes) == Some(&'"') {
            let end: String =
                std::iter::once('"').chain(std::iter::repeat_n('#', hashes)).collect();
            at += 2 + hashes;
            while at < chars.len() && !starts(at, &end) {
                at += 1;
            }
            at += end.len();
            code.push_str("\"\"");
        } else if chars[at] == '"' {
            at += 1;
            while at < chars.len() && chars[at] != '"' {
                at += 1 + usize::from(chars[at] == '\\');
            }
            at += 1;
            code.push_str("\"\"");
        } else if chars[at] == '\''
            && (chars.get(at + 1) == Some(&'\\') || chars.get(at + 2) == Some(&'\''))
        {
            at += if chars[at + 1] == '\\' { 3 } else { 2 };
            while at < chars.len() && chars[at] != '\'' {
                at += 1;
            }
            at += 1;
            code.push_str("' '");
        } else {
            code.push(chars[at]);
            at += 1;
        }
    }
    code
}

/// Whether `word` (a word or a path) occurs in `code` as a whole, not as part of a longer word.
fn uses(code: &str, word: &str) -> bool {
    let in_word = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(word).any(|(at, _)| {
        let before = code[..at].chars().next_back();
        let after = code[at + word.len()..].chars().next();
        !before.is_some_and(in_word) && !after.is_some_and(in_word)
    })
}

/// `file: what` for each of `words` that a source of `crate_name` uses; `only` selects files by
/// their code.
fn offences(crate_name: &str, words: &[&str], only: impl Fn(&str) -> bool) -> Vec<String> {
    let root = workspace();
    let mut found = Vec::new();
    for path in sources(&root.join("crates").join(crate_name).join("src")) {
        let code = code_only(&read(&path));
        if only(&code) {
            let shown = path.strip_prefix(&root).unwrap_or(&path).display();
            found.extend(
                words
                    .iter()
                    .filter(|word| uses(&code, word))
                    .map(|word| format!("{shown}: {word}")),
            );
        }
    }
    found
}

#[test]
fn every_crate_is_listed_in_architecture_and_here() {
    let mut layers = layers();
    let mut known: Vec<String> = MUST_NOT_KNOW.iter().map(|(name, _)| (*name).to_owned()).collect();
    layers.sort();
    known.sort();
    assert_eq!(
        layers,
        crates(),
        "ARCHITECTURE.md's table of crates and the directories in crates/ differ"
    );
    assert_eq!(known, crates(), "MUST_NOT_KNOW in this test and the directories in crates/ differ");
}

#[test]
fn dependencies_point_up_the_list_only() {
    let layers = layers();
    let mut wrong = Vec::new();
    for (place, name) in layers.iter().enumerate() {
        let manifest = read(&workspace().join("crates").join(name).join("Cargo.toml"));
        let forbidden = MUST_NOT_KNOW
            .iter()
            .find(|(known, _)| known == name)
            .map_or(&[][..], |(_, forbidden)| forbidden);
        for dependency in dependencies(&manifest) {
            if !layers[..place].contains(&dependency) || forbidden.contains(&dependency.as_str()) {
                wrong.push(format!("{name} must not depend on {dependency}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// TLS calls back for the wall clock, with which it compares certificates.
const CLOCK_OF_CERTIFICATES: &str = "crates/far-wire/src/identity.rs: rustix";

#[test]
fn pure_crates_use_no_impure_apis() {
    let mut found: Vec<String> =
        PURE.iter().flat_map(|name| offences(name, IMPURE, |_| true)).collect();
    found.retain(|offence| offence != CLOCK_OF_CERTIFICATES);
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn policies_use_no_floats() {
    let found = offences("policy", &["f32", "f64"], |_| true);
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn unsafe_code_is_in_named_leaf_modules_only() {
    let mut found = Vec::new();
    for name in crates() {
        let allowed = MAY_BE_UNSAFE.contains(&name.as_str());
        found.extend(offences(&name, &["unsafe"], |code| {
            !(allowed && code.contains("#![allow(unsafe_code)]"))
        }));
        if !allowed {
            found.extend(offences(&name, &["allow(unsafe_code)", "expect(unsafe_code)"], |_| true));
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn every_crate_inherits_workspace_lints() {
    for name in crates() {
        let manifest = read(&workspace().join("crates").join(&name).join("Cargo.toml"));
        assert!(
            manifest.contains("[lints]\nworkspace = true"),
            "crates/{name}/Cargo.toml lacks [lints] workspace = true"
        );
    }
}

#[test]
fn checks_detect_violations() {
    let source = r####"
        // unsafe Instant
        /* f64 /* nested */ f64 */
        let text = "HashMap \" f32"; let raw = r#"unsafe "quoted" "#; let quote = '"'; let tick = '\'';
        type Fx = FxHashMap<u64, u64>;
        fn lifetimes<'a>(x: &'a str) -> &'a str { x }
    "####;
    let code = code_only(source);
    for word in ["unsafe", "Instant", "f64", "f32", "HashMap"] {
        assert!(!uses(&code, word), "{word} in {code}");
    }
    assert!(uses(&code, "FxHashMap") && uses(&code, "lifetimes"));
    let bad = code_only(
        "let a = '\\n'; use std::collections::HashMap; /* x */ unsafe { f(\"\") } let x: f64 = 1.0;",
    );
    for word in ["unsafe", "f64", "HashMap", "std::collections::HashMap"] {
        assert!(uses(&bad, word), "{word} in {bad}");
    }
    let manifest = "[dependencies]\nhiroma-units.workspace = true\nserde = \"1\"\n[dev-dependencies]\nhiroma-cli = { path = \"x\" }\n\
        [target.'cfg(unix)'.dependencies]\nhiroma-sys = { path = \"y\" }\n[dependencies.hiroma-far-wire]\npath = \"z\"\n";
    assert_eq!(dependencies(manifest), ["units", "sys", "far-wire"]);
}
