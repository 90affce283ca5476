//! The time that a run reports as lost, for a program whose correct result is known.

mod common;

use std::fs;
use std::path::Path;

use common::{compile, hiroma, refusal};
use serde_json::Value;

const MIB: u64 = 1 << 20;

/// Goes round 64 MiB of incompressible memory, in sequential or in random order, for a given number
/// of rounds.
const CYCLE: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
int main(int count, char **words) {
    size_t pages = (size_t)64 << 8, rounds = atoi(words[1]);
    unsigned long *memory = mmap(0, pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), seed = 1, wrong = 0;
    for (size_t i = 0; i < pages * 512; i++) memory[i] = seed = seed * 6364136223846793005UL + 1442695040888963407UL;
    unsigned long *first = malloc(pages * 8);
    for (size_t page = 0; page < pages; page++) first[page] = memory[page * 512];
    for (size_t round = 0; round < rounds; round++)
        for (size_t at = 0; at < pages; at++) {
            size_t page = count > 2 ? at * 7919 % pages : at;
            wrong += memory[page * 512] != first[page];
        }
    printf("%p\n%s\n", memory, wrong ? "wrong" : "right");
    return wrong != 0;
}
"#;

/// Runs the program; returns its output, the messages of `hiroma run`, and the statistics.
fn run(dir: &Path, options: &[&str], words: &[&str]) -> (String, String, Value) {
    let program = compile(dir, "cycle", CYCLE, &[]);
    let file = dir.join("stats.json");
    let store = format!("file:{}", dir.display());
    let mut command = hiroma(["run", "--store", &store, "--stats"]);
    command.arg(&file).args(options).arg("--").arg(program).args(words);
    let output = command.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    let told = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && told.ends_with("right\n"), "{told}{said}");
    (told, said, serde_json::from_slice(&fs::read(&file).unwrap()).unwrap())
}

/// Share of the fetches that remains with `mib` of local memory.
fn left_at(stats: &Value, name: &str, mib: u64) -> f64 {
    let points = stats["total"]["miss_ratio_curve"].as_array().unwrap();
    let mut reached =
        points.iter().filter(|point| point["local_bytes"].as_u64().unwrap() <= mib * MIB);
    reached.next_back().map_or(1.0, |point| point[name].as_f64().unwrap())
}

#[test]
fn cycle_is_fetched_until_it_fits() {
    let dir = tempfile::tempdir().unwrap();
    for options in [
        &["--local", "32M", "--block", "4K"][..],
        &["--local", "32M", "--no-prefetch", "--replacement", "fifo"],
    ] {
        let (_, said, stats) = run(dir.path(), options, &["3"]);
        let total = &stats["total"];
        assert!(total["fetched_bytes"].as_u64().unwrap() > 64 * MIB, "{stats}");
        // 64 MiB, and the memory that the pager keeps free. The buckets of the curve are 19 % to 25
        // % of the memory above the limit.
        for name in ["fetched_left", "waited_left"] {
            assert!(
                left_at(&stats, name, 80) < 0.05,
                "{name} {options:?} {:?}",
                total["miss_ratio_curve"]
            );
        }
        assert!(
            left_at(&stats, "fetched_left", 52) > 0.6,
            "{options:?} {:?}",
            total["miss_ratio_curve"]
        );
        let share = stats["loss"]["waiting_share"].as_f64().unwrap();
        assert!(
            share > 0.01 && share <= 1.0 && said.contains(" % of the time waiting for far memory"),
            "{said}"
        );
        let advised = stats["loss"]["advice"]["local_bytes"].as_u64().unwrap() / MIB;
        assert!((56..=80).contains(&advised), "{said}");
        assert!(stats["loss"]["advice"]["estimated_waiting_share"].as_f64().unwrap() < share / 3.0);

        // The advice is right: with that limit little is fetched.
        let fetched = |stats: &Value| stats["total"]["fetched_bytes"].as_u64().unwrap();
        let advised = format!("{}M", advised + 8);
        let (_, _, enough) = run(dir.path(), &["--local", &advised], &["3"]);
        assert!(
            fetched(&enough) < fetched(&stats) / 3,
            "{} of {}",
            fetched(&enough),
            fetched(&stats)
        );
    }
}

#[test]
fn fitting_program_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (_, said, stats) = run(dir.path(), &["--local", "128M"], &["2"]);
    assert!(!said.contains("waiting for far memory") && stats["loss"].is_null(), "{said}");
    assert_eq!(stats["total"]["miss_ratio_curve"].as_array().unwrap().len(), 0);
}

#[test]
fn estimated_waits_exceed_service_times_and_add_up() {
    let dir = tempfile::tempdir().unwrap();
    let (_, _, stats) =
        run(dir.path(), &["--local", "32M", "--block", "4K", "--no-prefetch"], &["1", "mixed"]);
    let total = &stats["total"];
    let number = |name: &str| total[name].as_u64().unwrap();
    for quantile in ["p50", "p90", "p99"] {
        assert!(
            number(&format!("estimated_wait_ns_{quantile}"))
                >= number(&format!("fault_latency_ns_{quantile}")),
            "{total}"
        );
    }
    assert!(total["waking_costs"]["apart"]["until_on_ns"].as_u64().unwrap() > 0, "{total}");
    // There is one thread, so its total waiting time is the time in which any thread waited, and at
    // most that of the run. Beside other programs, the costs of waking are estimates from other
    // moments, and may be several times what they were.
    let far = number("waited_fetched_ns") + number("waited_staged_ns") + number("waited_room_ns");
    assert!(far <= 3 * number("waiting_ns") && number("waiting_ns") <= 3 * far, "{total}");
    assert!((number("waiting_ns") as f64) < stats["elapsed_s"].as_f64().unwrap() * 1e9, "{stats}");
    assert!(number("waited_fetched_ns") as f64 >= number("faults_fetched") as f64 * 1e3, "{total}");
}

/// Elements that are not closed at the end, or that are closed without having been opened.
fn unbalanced(html: &str) -> Vec<String> {
    let mut open: Vec<String> = Vec::new();
    let mut rest = html;
    while let Some(start) = rest.find('<') {
        let end = start
            + rest[start..]
                .find('>')
                .unwrap_or_else(|| panic!("a tag without an end: {}", &rest[start..]));
        let tag = &rest[start + 1..end];
        rest = &rest[end + 1..];
        let name = tag.trim_start_matches('/').split([' ', '/', '\n']).next().unwrap().to_owned();
        match tag {
            _ if tag.starts_with('!')
                || tag.ends_with('/')
                || ["meta", "br"].contains(&name.as_str()) => {}
            _ if tag.starts_with('/') && open.last() == Some(&name) => drop(open.pop()),
            _ if tag.starts_with('/') => return vec![format!("/{name} in {open:?}")],
            _ => open.push(name),
        }
    }
    open
}

#[test]
fn report_is_one_self_contained_page() {
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("run & more.html");
    let (told, said, stats) =
        run(dir.path(), &["--local", "32M", "--report", page.to_str().unwrap()], &["2", "<b>"]);
    let html = fs::read_to_string(&page).unwrap();
    assert!(html.starts_with("<!DOCTYPE html>") && html.trim_end().ends_with("</html>"));
    assert_eq!(unbalanced(&html), Vec::<String>::new());
    for outside in ["<script", "<link", "<img", "<iframe", "@import", "url(", "src=", "href="] {
        assert!(!html.contains(outside), "{outside}");
    }
    let addresses = html.matches("://").count();
    assert_eq!(addresses, html.matches("xmlns=\"http://www.w3.org/2000/svg\"").count());
    assert!(!html.contains("<b>") && html.contains("&lt;b&gt;"));
    for heading in [
        "Memory over time",
        "Faults over time",
        "What more local memory would have changed",
        "Regions that fault most",
        "How long faults were waited for",
        "Totals",
    ] {
        let section = html
            .split("<section>")
            .find(|section| section.contains(&format!("<h2>{heading}</h2>")));
        let section = section.unwrap_or_else(|| panic!("no section {heading}"));
        assert!(
            section.contains("<p") && (section.contains("<polyline") || section.contains("<td")),
            "{heading}: {section}"
        );
    }
    for axis in [
        "time since the start (s)",
        "memory (MiB)",
        "faults (per second)",
        "share of the time (%)",
        "local memory (--local) (MiB)",
    ] {
        assert!(html.contains(axis), "{axis}");
    }
    // The summary, and the mapping in which the program waited most.
    let summary = said.lines().last().unwrap().strip_prefix("hiroma: ").unwrap();
    assert!(html.contains(summary), "{summary}");
    let memory =
        u64::from_str_radix(told.lines().next().unwrap().trim_start_matches("0x"), 16).unwrap();
    let ranges = stats["total"]["ranges"].as_array().cloned().unwrap_or_default();
    let process = &stats["processes"][0]["ranges"];
    let most =
        process.as_array().unwrap().iter().max_by_key(|range| range["faults"].as_u64()).unwrap();
    let (start, bytes) = (most["start"].as_u64().unwrap(), most["bytes"].as_u64().unwrap());
    assert!(
        start < memory + 64 * MIB && memory < start + bytes,
        "{memory:#x} {process} {ranges:?}"
    );
    assert!(html.contains(&format!("{:#x}", most["mapping"].as_u64().unwrap())));
}

#[test]
fn unwritable_report_is_refused_before_start() {
    let dir = tempfile::tempdir().unwrap();
    let mark = dir.path().join("started");
    let nowhere = dir.path().join("missing").join("run.html");
    let (code, said) = refusal([
        "run",
        "--report",
        nowhere.to_str().unwrap(),
        "--",
        "touch",
        mark.to_str().unwrap(),
    ]);
    assert_eq!(code, Some(2));
    assert!(
        said.contains("--report")
            && said.contains("run.html")
            && said.contains("choose another place"),
        "{said}"
    );
    assert!(!mark.exists());
}
