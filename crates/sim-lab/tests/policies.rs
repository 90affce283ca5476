//! Placement policies of users: the same results as the built-in ones where they decide the same,
//! and what is said about those that cannot be used.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use hiroma_policy::placement::{Peer, PlacementPolicy, PolicyError, Request, Rng};
use hiroma_sim::{Config, Outcome, RunError};
use hiroma_sim_lab::cluster::{cluster_of, cluster_with};
use hiroma_sim_lab::compare::{compare, entrants_with};
use hiroma_sim_lab::figures::Figures;
use hiroma_sim_lab::jobs::Stop;
use hiroma_sim_lab::lab::{Lab, LabError, jobs_of};
use hiroma_sim_lab::policies::Policies;
use hiroma_sim_lab::settings::Settings;
use hiroma_sim_lab::sweep::{self, Plan, Shard, Store};
use hiroma_testkit::skip;

const SMALL: &str = "nodes = 16\ndisk.count = 2\npolicy.domain_radius = 2\nload.arrivals_per_s = 60\n\
    run.warmup_ns = \"5ms\"\nrun.duration_ns = \"150ms\"\n";

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/policies")
}

fn text(placement: &str) -> String {
    format!("{SMALL}policy.placement = \"{placement}\"\n")
}

/// A small cluster with an example's policy, or a built-in one.
fn cluster(placement: &str) -> Config {
    cluster_with(
        Settings::parse(&in_examples("c.toml"), &text(placement)).unwrap(),
        &Policies::new(),
    )
    .unwrap()
}

fn in_examples(file: &str) -> String {
    examples().join(file).to_str().unwrap().to_owned()
}

fn with_lab<T>(threads: usize, work: impl FnOnce(&Lab<'_>) -> T) -> T {
    let stop = Stop::new();
    work(&Lab { threads, stop: &stop, advance: &|_| (), lacking: &|_| None, instead: &|_| None })
}

fn outcomes(config: &Config, threads: usize) -> Result<Vec<Outcome>, LabError> {
    let jobs = jobs_of(&[("the cluster".to_owned(), Arc::new(config.clone()))], &[1, 2, 3]);
    with_lab(threads, |lab| lab.run_all(&jobs))
}

fn has_python() -> bool {
    let found = Command::new("python3").arg("--version").output().is_ok();
    if !found {
        skip!(Machine, "policies in Python: python3 is not installed");
    }
    found
}

/// A cluster beside a policy's file in `directory`.
fn settings_with(directory: &Path, name: &str, content: &str) -> Settings {
    fs::write(directory.join(name), content).unwrap();
    let scheme = if name.ends_with(".py") { "python" } else { "wasm" };
    let file = directory.join("c.toml");
    Settings::parse(file.to_str().unwrap(), &text(&format!("{scheme}:{name}"))).unwrap()
}

/// What is said about a policy's file that is refused.
fn refusal(name: &str, content: &str) -> String {
    let directory = tempfile::tempdir().unwrap();
    let error = cluster_of(settings_with(directory.path(), name, content)).unwrap_err().0;
    error.replace(directory.path().to_str().unwrap(), "DIR")
}

/// What is said about a policy that fails in a run.
fn failure(name: &str, content: &str) -> String {
    failure_of(name, content, |_| ())
}

/// The same with another configuration.
fn failure_of(name: &str, content: &str, change: impl FnOnce(&mut Config)) -> String {
    let directory = tempfile::tempdir().unwrap();
    let mut config = cluster_of(settings_with(directory.path(), name, content)).unwrap();
    change(&mut config);
    match outcomes(&config, 1).unwrap_err() {
        LabError::Failed { error: RunError::Policy(failure), .. } => {
            failure.what.replace(directory.path().to_str().unwrap(), "DIR")
        }
        other => panic!("{other}"),
    }
}

/// The example in text form with one part replaced.
fn changed(from: &str, to: &str) -> String {
    let text = fs::read_to_string(examples().join("nearest.wat")).unwrap();
    assert!(text.contains(from), "{from}");
    text.replace(from, to)
}

#[test]
fn wasm_policy_gives_what_the_same_built_in_policy_gives() {
    let built_in = outcomes(&cluster("nearest"), 1).unwrap();
    assert!(built_in.iter().all(|outcome| outcome.placed_remote > 100));
    assert_eq!(outcomes(&cluster("wasm:nearest.wat"), 1).unwrap(), built_in);
    assert_eq!(outcomes(&cluster("wasm:nearest.wat"), 3).unwrap(), built_in);
    assert_ne!(outcomes(&cluster("random"), 1).unwrap(), built_in);
}

#[test]
fn python_policy_gives_what_the_same_built_in_policy_gives() {
    if !has_python() {
        return;
    }
    let built_in = outcomes(&cluster("nearest"), 1).unwrap();
    assert_eq!(outcomes(&cluster("python:nearest.py"), 1).unwrap(), built_in);
    assert_eq!(outcomes(&cluster("python:nearest.py"), 3).unwrap(), built_in);
    // With a state of each node.
    let roomy = outcomes(&cluster("python:roomy.py"), 1).unwrap();
    assert_eq!(outcomes(&cluster("python:roomy.py"), 3).unwrap(), roomy);
    assert_ne!(roomy, built_in);
}

/// Half of the nodes take a page in a fifth of the time.
const UNLIKE: &str = "node.class = [{nodes = \"0-3, 12-15\", page_handler_ns = 1000}]\n";

/// What nodes that differ have placed where: outcomes with `placement`.
fn on_unlike_nodes(placement: &str) -> Vec<Outcome> {
    let text = format!("{}{UNLIKE}", text(placement));
    let settings = Settings::parse(&in_examples("c.toml"), &text).unwrap();
    outcomes(&cluster_of(settings).unwrap(), 1).unwrap()
}

#[test]
fn policies_see_how_fast_peers_are() {
    let built_in = on_unlike_nodes("nearest");
    assert_eq!(on_unlike_nodes("wasm:nearest.wat"), built_in);
    if has_python() {
        assert_eq!(on_unlike_nodes("python:nearest.py"), built_in);
    }
    // Without speeds it decides otherwise, as a module of the first version does.
    let directory = tempfile::tempdir().unwrap();
    let first = changed(
        "(i32.const 2))\n\n  (func (export \"peers",
        "(i32.const 1))\n\n  (func (export \"peers",
    )
    .replace("(i32.const 20)", "(i32.const 16)")
    .replace("(i32.load offset=16 (local.get $at))", "(i32.const 0)");
    fs::write(directory.path().join("first.wat"), first).unwrap();
    let file = directory.path().join("c.toml");
    let run = |more: &str| {
        let text = format!("{}{more}", text("wasm:first.wat"));
        let settings = Settings::parse(file.to_str().unwrap(), &text).unwrap();
        outcomes(&cluster_of(settings).unwrap(), 1).unwrap()
    };
    assert_ne!(run(UNLIKE), built_in);
    assert_eq!(run(""), outcomes(&cluster("nearest"), 1).unwrap());
}

/// The buffer of a module grows, a file is told of the new peer, and numbers are not places any more.
#[test]
fn own_policies_bear_peers_that_join() {
    let joining = "policy.confirm = true\npolicy.refresh_ns = \"5ms\"\n\
        event = [{time_ns = \"40ms\", kind = \"node_joins\", which = \"5\"}]\n";
    let with = |placement: &str, more: &str| {
        let text = format!("{}{UNLIKE}{more}", text(placement));
        let settings = Settings::parse(&in_examples("c.toml"), &text).unwrap();
        outcomes(&cluster_of(settings).unwrap(), 1).unwrap()
    };
    let built_in = with("nearest", joining);
    assert_ne!(built_in, with("nearest", "policy.confirm = true\npolicy.refresh_ns = \"5ms\"\n"));
    assert_eq!(with("wasm:nearest.wat", joining), built_in);
    if has_python() {
        assert_eq!(with("python:nearest.py", joining), built_in);
    }
}

#[test]
fn reservations_and_bids_use_own_policies_too() {
    for more in [
        "policy.reservation = \"on_demand\"",
        "policy.reservation = \"in_advance\"",
        "policy.information = \"on_demand\"",
    ] {
        let outcomes = |placement: &str| {
            let text = format!("{}{more}\n", text(placement));
            let settings = Settings::parse(&in_examples("c.toml"), &text).unwrap();
            outcomes(&cluster_of(settings).unwrap(), 2).unwrap()
        };
        assert_eq!(outcomes("wasm:nearest.wat"), outcomes("nearest"), "{more}");
    }
}

#[test]
fn rust_example_decides_as_its_description_says() {
    let directory = tempfile::tempdir().unwrap();
    let module = directory.path().join("roomy.wasm");
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let built = Command::new(rustc)
        .args(["--target", "wasm32-unknown-unknown", "--crate-type", "cdylib", "-O", "-o"])
        .arg(&module)
        .arg(examples().join("roomy.rs"))
        .output();
    if !built.is_ok_and(|output| output.status.success()) {
        skip!(
            Machine,
            "examples/policies/roomy.rs: rustc has no target wasm32-unknown-unknown (rustup target add)"
        );
        return;
    }
    #[derive(Debug)]
    struct Roomy;
    impl PlacementPolicy for Roomy {
        fn choose(
            &mut self,
            request: &Request<'_>,
            rng: &mut Rng,
        ) -> Result<Option<Peer>, PolicyError> {
            let roomy = request.candidates().find(|peer| peer.free * 4 >= peer.capacity);
            let most = request.candidates().map(|peer| peer.free).max();
            let equal: Vec<Peer> = request
                .candidates()
                .filter(|peer| Some(peer.free) == most)
                .map(|peer| peer.peer)
                .collect();
            Ok(match roomy {
                Some(roomy) => Some(roomy.peer),
                None if equal.is_empty() => None,
                None => Some(equal[rng.below(equal.len() as u32) as usize]),
            })
        }
    }
    let mut policies = Policies::new();
    policies.register("roomy", || Roomy);
    let same = cluster_with(Settings::parse("c.toml", &text("roomy")).unwrap(), &policies).unwrap();
    let name = format!("wasm:{}", module.display());
    assert_eq!(outcomes(&cluster(&name), 2).unwrap(), outcomes(&same, 1).unwrap());
}

#[test]
fn registered_policies_are_named_in_files() {
    #[derive(Debug)]
    struct Last;
    impl PlacementPolicy for Last {
        fn choose(
            &mut self,
            request: &Request<'_>,
            _: &mut Rng,
        ) -> Result<Option<Peer>, PolicyError> {
            Ok(request.candidates().last().map(|peer| peer.peer))
        }
    }
    let mut policies = Policies::new();
    policies.register("last", || Last);
    let read = |placement: &str| {
        cluster_with(Settings::parse("c.toml", &text(placement)).unwrap(), &policies)
    };
    let outcome = &outcomes(&read("last").unwrap(), 1).unwrap()[0];
    assert!(outcome.transfer_hops.mean().unwrap() > 1.9, "the last peer is the farthest");
    let error = read("lost").unwrap_err().0;
    assert!(
        error.starts_with(
            "c.toml:7: `policy.placement`: there is no `lost`, use one of `most_free`, "
        )
    );
    assert!(error.ends_with("`fill`, `last`, `wasm:FILE`, `python:FILE`"), "{error}");
}

#[test]
fn comparisons_and_sweeps_take_own_policies() {
    let policies = Policies::new();
    let own = policies.find("wasm:nearest.wat", &examples()).unwrap().unwrap();
    let label = own.label().to_owned();
    assert!(label.starts_with("wasm:nearest.wat@") && label.len() == 33, "{label}");
    let base = cluster("random");
    let ranked = |threads| {
        with_lab(threads, |lab| {
            compare(&base, entrants_with(&base, std::slice::from_ref(&own)), &[1, 2], lab)
        })
        .unwrap()
    };
    let comparison = ranked(1);
    assert_eq!(comparison.to_json(), ranked(3).to_json());
    let runs = |name: &str| {
        &comparison.ranked.iter().find(|ranked| ranked.entrant.name == name).unwrap().runs
    };
    assert_eq!(runs(&format!("{label}, on change")), runs("nearest, on change"));

    let directory = tempfile::tempdir().unwrap();
    let grid = format!(
        "seeds = 2\n[cluster]\n{}\n[grid]\npolicy.placement = [\"nearest\", \"wasm:nearest.wat\"]\n",
        SMALL
    );
    let plan =
        Plan::with(Settings::parse(&in_examples("s.toml"), &grid).unwrap(), &examples(), &policies);
    let plan = plan.unwrap();
    let store = Store::open(directory.path(), &plan).unwrap();
    with_lab(2, |lab| sweep::run(&plan, Shard::ALL, &store, lab)).unwrap();
    let (all, _): (Vec<Vec<Figures>>, _) = store.load_all().unwrap();
    assert_eq!(all[0], all[1]);
    // Another content is another sweep.
    let other = directory.path().join("other");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("nearest.wat"), changed("128 KiB", "128 kiB")).unwrap();
    let settings = Settings::parse(other.join("s.toml").to_str().unwrap(), &grid).unwrap();
    let changed = Plan::with(settings, &other, &Policies::new()).unwrap();
    assert_ne!(changed.manifest().fingerprint, plan.manifest().fingerprint);
}

#[test]
fn modules_that_cannot_be_used_are_refused_with_what_to_do() {
    let said = refusal("p.wasm", "\u{7f}ELF");
    assert!(
        said.starts_with(
            "DIR/c.toml:7: `policy.placement`: DIR/p.wasm: not a WebAssembly module: "
        ),
        "{said}"
    );
    for (from, to, message) in [
        (
            "(export \"choose\")",
            "",
            "does not export `choose`, (peers: i32) -> i32: the number of the peer, or -1 for disk",
        ),
        ("(export \"memory\") ", "", "does not export `memory`, its memory"),
        (
            "(export \"peers_buffer\") (param $peers i32)",
            "(export \"peers_buffer\")",
            "does not export `peers_buffer`, (peers: i32) -> i32",
        ),
        (
            "\"random_below\"",
            "\"random_under\"",
            "imports `hiroma.random_under`, which a policy does not have",
        ),
        (
            "(memory (export \"memory\") 2)",
            "(memory (export \"memory\") 1000)",
            "may have 16 MiB of memory",
        ),
        (
            "(i32.const 2))\n\n  (func (export \"peers",
            "(i32.const 3))\n\n  (func (export \"peers",
            "is of version 3 of the interface, and this program has versions 1 and 2",
        ),
        (
            "(export \"placement_abi\") (result i32)",
            "(export \"placement_abi\") (result i32) (loop $ever (br $ever))",
            "used up its fuel in placement_abi",
        ),
        (
            "(memory (export",
            "(start $ever) (func $ever (loop $on (br $on))) (memory (export",
            "used up its fuel at its start",
        ),
    ] {
        let said = refusal("p.wat", &changed(from, to));
        assert!(said.contains(message), "{to}: {said}");
    }
    let missing = cluster_of(Settings::parse("c.toml", &text("wasm:none.wasm")).unwrap());
    let said = missing.unwrap_err().0;
    assert!(said.contains("none.wasm: No such file"), "{said}");
}

#[test]
fn modules_that_fail_end_the_run_with_what_they_did() {
    let begin = "(local.set $chosen (i32.const -1))";
    for (to, message) in [
        (
            "(loop $ever (br $ever))",
            "used up its fuel in choose: a decision has 10000000 instructions",
        ),
        ("unreachable", "failed in choose: "),
        ("(return (i32.const 99))", "answered 99: choose has to return 0 to "),
        ("(return (i32.const -7))", "answered -7: choose has to return 0 to "),
        (
            "(drop (call $random_below (i32.const 0)))",
            "random_below(0): there is no number below 0",
        ),
        ("(drop (i32.load (i32.const 131072)))", "failed in choose: "),
    ] {
        let said = failure("p.wat", &changed(begin, &format!("{to} {begin}")));
        assert!(
            said.starts_with("the policy `wasm:p.wat@") && said.contains(message),
            "{to}: {said}"
        );
        let confirmed = failure_of("p.wat", &changed(begin, &format!("{to} {begin}")), |config| {
            config.policy.confirm = true;
        });
        assert!(confirmed.contains(message), "{to}: {confirmed}");
    }
    let said = failure(
        "p.wat",
        &changed("(i32.const 0))\n\n  ;; A peer", "(i32.const 131000))\n\n  ;; A peer"),
    );
    assert!(said.contains("beyond its memory"), "{said}");
    // More memory than is allowed is not given, which a policy may bear.
    let grow = "(if (i32.ne (memory.grow (i32.const 1000)) (i32.const -1)) (then unreachable))";
    let text = changed(begin, &format!("{grow} {begin}"));
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("p.wat"), text).unwrap();
    let bears = cluster(&format!("wasm:{}", directory.path().join("p.wat").display()));
    assert_eq!(outcomes(&bears, 1).unwrap(), outcomes(&cluster("nearest"), 1).unwrap());
}

#[test]
fn python_files_that_cannot_be_used_are_refused() {
    if !has_python() {
        return;
    }
    for (content, message) in [
        ("def choose(peers, random)\n    return 0\n", "failed: DIR/p.py:1: SyntaxError: "),
        ("x = 1\n", "it defines neither choose(peers, random) nor a class Policy"),
        ("import nothing_of_that_name\n", "failed: DIR/p.py:1: ModuleNotFoundError: "),
        ("import os\nos._exit(3)\n", "ended without an answer (exit status: 3)"),
    ] {
        let said = refusal("p.py", content);
        assert!(said.contains(message), "{content}: {said}");
    }
    for (content, message) in [
        (
            "def choose(peers, random):\n    return 1 / 0\n",
            "failed: DIR/p.py:2: ZeroDivisionError: ",
        ),
        (
            "def choose(peers, random):\n    return 'a'\n",
            "choose returned 'a': return the number of a peer",
        ),
        ("def choose(peers, random):\n    return 999\n", "chose peer 999, and the node has "),
        (
            "def choose(peers, random):\n    return -2\n",
            "answered -2: choose has to return the number",
        ),
        (
            "import os\ndef choose(peers, random):\n    os._exit(4)\n",
            "ended without an answer (exit status: 4)",
        ),
    ] {
        let said = failure("p.py", content);
        assert!(
            said.starts_with("the policy `python:p.py@") && said.contains(message),
            "{content}: {said}"
        );
    }
}
