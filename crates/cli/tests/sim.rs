//! `hiroma sim` from outside: what it refuses, and with which exit code.

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use common::output;
use hiroma_testkit::skip;

/// A cluster that simulates in no time.
const SMALL: &str = "nodes = 16\ndisk.count = 2\npolicy.domain_radius = 2\nload.arrivals_per_s = 40\nrun.warmup_ns = \"1ms\"\nrun.duration_ns = \"20ms\"\n";

fn hiroma(directory: &Path, args: &[&str]) -> (Option<i32>, String, String) {
    let args = args.iter().map(|arg| arg.replace("DIR", directory.to_str().unwrap()));
    let output = output(["sim".to_owned()].into_iter().chain(args));
    let text = |bytes: Vec<u8>| {
        String::from_utf8(bytes).unwrap().replace(directory.to_str().unwrap(), "DIR")
    };
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn mistakes_in_files_are_refused_with_their_line() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
    write("c.toml", "[disk]\ncount = 300\n");
    write("s.toml", "[grid]\nnode.frames = [0]\n");
    write("t.bin", "\x7fELF and so on");
    for (args, message) in [
        (
            &["run", "DIR/c.toml"][..],
            "hiroma: DIR/c.toml:2: `disk.count`: 300 disks at 256 nodes; allowed are 1 to 256\n",
        ),
        (
            &["compare", "DIR/c.toml"],
            "hiroma: DIR/c.toml:2: `disk.count`: 300 disks at 256 nodes; allowed are 1 to 256\n",
        ),
        (
            &["sweep", "DIR/s.toml", "--out", "DIR/out"],
            "hiroma: DIR/s.toml:2: `node.frames`: 0 is out of range; allowed are 2 to 16777216\n",
        ),
        (
            &["replay", "DIR/t.bin"],
            "hiroma: DIR/t.bin: not a trace: it begins with “\\x7fELF and”, and a trace with HIROTRC; the name of a trace in CSV ends in .csv\n",
        ),
        (
            &["run", "DIR/none.toml"],
            "hiroma: DIR/none.toml: No such file or directory (os error 2)\n",
        ),
        (
            &["run", "paper", "--json", "DIR/no/such/place"],
            "hiroma: DIR/no/such/place: No such file or directory (os error 2): choose another place\n",
        ),
    ] {
        let (code, _, errors) = hiroma(dir.path(), args);
        assert_eq!((code, errors.as_str()), (Some(2), message), "{args:?}");
    }
    assert!(!dir.path().join("out").exists(), "nothing was begun");
}

#[test]
fn run_prints_its_seed_and_is_reproducible() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("c.toml"), SMALL).unwrap();
    let (code, text, errors) = hiroma(
        dir.path(),
        &["run", "DIR/c.toml", "--seed", "7", "--json", "DIR/1.json", "--csv", "DIR/tables"],
    );
    assert_eq!(code, Some(0), "{errors}");
    assert!(text.starts_with("seed 7\n"), "{text}");
    hiroma(
        dir.path(),
        &["run", "DIR/c.toml", "--seed", "7", "--jobs", "3", "--json", "DIR/2.json"],
    );
    assert_eq!(
        fs::read(dir.path().join("1.json")).unwrap(),
        fs::read(dir.path().join("2.json")).unwrap()
    );
    let tables: Vec<String> = fs::read_dir(dir.path().join("tables"))
        .unwrap()
        .map(|file| fs::read_to_string(file.unwrap().path()).unwrap())
        .collect();
    assert!(tables.iter().any(|table| table.contains("\npage-outs,")), "{tables:?}");
}

#[test]
fn failed_check_has_its_own_exit_code() {
    let dir = tempfile::tempdir().unwrap();
    // As in the simulator's own tests: pages are lost, and the checkers detect it.
    fs::write(
        dir.path().join("c.toml"),
        SMALL.replace("20ms", "400ms") + "run.canary = \"lose_page\"\n",
    )
    .unwrap();
    let (code, _, errors) = hiroma(dir.path(), &["run", "DIR/c.toml", "--seed", "1"]);
    assert_eq!(code, Some(4), "{errors}");
    assert!(errors.contains("seed 1: wrong at event "), "{errors}");
}

#[test]
fn settings_are_explained_as_in_the_guide() {
    let dir = tempfile::tempdir().unwrap();
    let (code, page, _) = hiroma(dir.path(), &["explain", "--markdown"]);
    let guide = "../../docs/guide/cluster-settings.md";
    assert_eq!(code, Some(0));
    assert!(
        page == fs::read_to_string(guide).unwrap(),
        "write it anew: hiroma sim explain --markdown > docs/guide/cluster-settings.md"
    );
    let (_, one, _) = hiroma(dir.path(), &["explain", "policy.placement"]);
    assert!(one.contains("two_choices") && one.contains("\"random\" in the preset"), "{one}");
    let (code, _, errors) = hiroma(dir.path(), &["explain", "nonsense"]);
    assert!(code == Some(2) && errors.contains("there is no setting `nonsense`"), "{errors}");
}

/// All bugs that can be built into a cluster without faults.
const CANARIES: [&str; 11] = [
    "lose_page",
    "keep_copy",
    "overfill_node",
    "drop_answer",
    "stale_content",
    "vanish_page",
    "skip_placed",
    "leak_frame",
    "keep_guest_frame",
    "drop_discard",
    "keep_reservation",
];

#[test]
fn every_canary_fails_run_and_compare() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = "nodes = 16\ndisk.count = 2\npolicy.domain_radius = 2\nload.arrivals_per_s = 60\n\
        run.warmup_ns = \"50ms\"\nrun.duration_ns = \"300ms\"\n";
    let reserving = "policy.placement = \"two_choices\"\npolicy.reservation = \"in_advance\"\n";
    let crowded = cluster.replace("= 60", "= 200");
    for canary in CANARIES {
        // A node that reserves frames is never sent more pages than it has frames.
        let cluster = match canary {
            "overfill_node" => crowded.clone(),
            _ => format!("{cluster}{reserving}"),
        };
        fs::write(dir.path().join("c.toml"), format!("{cluster}run.canary = \"{canary}\"\n"))
            .unwrap();
        for command in ["run", "compare"] {
            let (code, _, errors) = hiroma(dir.path(), &[command, "DIR/c.toml", "--seed", "1"]);
            assert!(matches!(code, Some(3 | 4)), "{canary}, {command}: {code:?} {errors}");
        }
    }
}

#[test]
fn every_canary_fails_a_sweep() {
    let dir = tempfile::tempdir().unwrap();
    let sweep = |canary: &str, more: &str| {
        let text = format!(
            "seeds = 1\n[cluster]\nnodes = 16\ndisk.count = 2\npolicy.domain_radius = 2\n\
             policy.placement = \"two_choices\"\nrun.warmup_ns = \"50ms\"\n\
             run.duration_ns = \"300ms\"\nrun.canary = \"{canary}\"\n{more}\n\
             [grid]\nload.arrivals_per_s = [60, 200]\n"
        );
        fs::write(dir.path().join("s.toml"), text).unwrap();
        let out = format!("DIR/{canary}");
        hiroma(dir.path(), &["sweep", "DIR/s.toml", "--out", &out])
    };
    for canary in CANARIES {
        // A node that reserves frames is never sent more pages than it has frames.
        let more = match canary {
            "keep_reservation" => "policy.reservation = \"in_advance\"",
            _ => "",
        };
        let (code, _, errors) = sweep(canary, more);
        assert!(matches!(code, Some(3 | 4)), "{canary}: {code:?} {errors}");
    }
    let (code, _, errors) = sweep("keep_reservation", "");
    assert!(code == Some(2) && errors.contains("cannot act without reservations"), "{errors}");
    let (code, _, errors) = sweep("vanish_page", "policy.scope = \"disk\"");
    assert!(code == Some(2) && errors.contains("cannot act where pages go to disks"), "{errors}");
}

#[test]
fn canaries_fail_the_experiments_or_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    for command in ["paper", "readings"] {
        let (code, _, errors) = hiroma(dir.path(), &[command, "--canary", "stale_content"]);
        assert_eq!(code, Some(4), "{command}: {errors}");
        let (code, _, errors) = hiroma(dir.path(), &[command, "--canary", "never_repeat"]);
        let refused = "NeverRepeat can only be found with policy.confirm = true";
        assert!(code == Some(2) && errors.contains(refused), "{command}: {errors}");
        let (code, _, errors) = hiroma(dir.path(), &[command, "--canary", "parrot"]);
        assert!(code == Some(2) && errors.contains("`lose_page`"), "{command}: {errors}");
    }
}

/// A load of 16 nodes that page out more than all of them can keep, and fetch everything back.
fn recording() -> String {
    let mut table = "# page_bytes=4096 nodes=16 lost=0\ntime_ns,node,kind,page\n".to_owned();
    for page in 0..40 {
        (0..16).for_each(|node| table += &format!("{},{node},page_out,{page}\n", page * 1_000_000));
    }
    for page in 0..40 {
        let time_ns = 400_000_000 + page * 20_000_000;
        (0..16).for_each(|node| table += &format!("{time_ns},{node},page_in,{page}\n"));
    }
    table
}

#[test]
fn every_canary_fails_a_replay_or_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("t.csv"), recording()).unwrap();
    let replay = |settings: &str| {
        let cluster = format!(
            "nodes = 16\nnode.frames = 16\ndisk.count = 2\npolicy.domain_radius = 2\n{settings}"
        );
        fs::write(dir.path().join("c.toml"), cluster).unwrap();
        hiroma(dir.path(), &["replay", "DIR/t.csv", "--cluster", "DIR/c.toml"])
    };
    let reserving = "policy.placement = \"two_choices\"\npolicy.reservation = \"in_advance\"\n";
    for settings in ["", reserving] {
        let (code, _, errors) = replay(settings);
        assert_eq!(code, Some(0), "{errors}");
    }
    for (canary, settings) in [
        ("lose_page", ""),
        ("keep_copy", ""),
        // A node that reserves frames is never sent more pages than it has frames.
        ("overfill_node", ""),
        ("drop_answer", ""),
        ("stale_content", ""),
        ("vanish_page", ""),
        ("skip_placed", ""),
        ("leak_frame", ""),
        ("keep_reservation", reserving),
    ] {
        let (code, _, errors) = replay(&format!("{settings}run.canary = \"{canary}\"\n"));
        assert!(matches!(code, Some(3 | 4)), "{canary}: {code:?} {errors}");
    }
    for canary in ["drop_discard", "keep_guest_frame"] {
        let (code, _, errors) = replay(&format!("run.canary = \"{canary}\"\n"));
        assert_eq!(code, Some(2), "{canary}: {errors}");
        assert!(errors.contains("cannot act while a recording is replayed"), "{errors}");
    }
}

#[test]
fn a_recording_is_replayed_by_the_policy_that_is_named() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("t.csv"), recording()).unwrap();
    fs::copy("../../examples/policies/nearest.wat", dir.path().join("p.wat")).unwrap();
    let replay = |args: &[&str]| {
        let all = [&["replay", "DIR/t.csv"], args].concat();
        hiroma(dir.path(), &all)
    };
    let told = |args: &[&str]| {
        let (code, told, errors) = replay(args);
        assert_eq!(code, Some(0), "{args:?}: {errors}");
        told
    };
    let (plain, fill) = (told(&[]), told(&["--policy", "fill"]));
    assert!(plain.contains("placement random") && fill.contains("placement fill"), "{fill}");
    let figures = |told: &str| told.split_once("\n\n").unwrap().1.to_owned();
    assert_ne!(figures(&plain), figures(&fill));
    assert_eq!(plain, told(&["--policy", "random"]));
    let own = told(&["--policy", "wasm:DIR/p.wat"]);
    assert!(own.contains("placement wasm:p.wat@"), "{own}");
    let ranked = told(&["--compare", "--policy", "wasm:DIR/p.wat"]);
    assert!(ranked.contains(" wasm:p.wat@") && ranked.contains("two choices"), "{ranked}");
    for (args, message) in [
        (&["--policy", "best"][..], "--policy best: there is no `best`, use one of "),
        (&["--policy", "fill", "--policy", "random"], "add --compare"),
        (&["--compare", "--policy", "fill"], "it takes part anyway"),
    ] {
        let (code, _, errors) = replay(args);
        assert!(code == Some(2) && errors.contains(message), "{args:?}: {errors}");
    }
}

#[test]
fn shards_of_a_sweep_are_merged() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("c.toml"), SMALL).unwrap();
    fs::write(
        dir.path().join("s.toml"),
        "cluster = \"c.toml\"\nseeds = 2\n[grid]\nload.arrivals_per_s = [20, 40]\n",
    )
    .unwrap();
    let sweep = |shard: &str| {
        hiroma(dir.path(), &["sweep", "DIR/s.toml", "--out", "DIR/out", "--shard", shard])
    };
    assert_eq!(sweep("1/2").1, "2 runs done, 0 were there already; results in DIR/out\n");
    let (code, told, _) = hiroma(dir.path(), &["merge", "DIR/out"]);
    assert_eq!(code, Some(7));
    let first = "Note: 2 of 4 runs are missing, the first is load.arrivals_per_s = 20, seed 2.";
    assert!(told.contains(first), "{told}");
    assert!(told.contains("Missing in shard 2/2: 2 of 2 runs"), "{told}");
    assert_eq!(sweep("2/2").1, "2 runs done, 0 were there already; results in DIR/out\n");
    assert_eq!(sweep("2/2").1, "0 runs done, 2 were there already; results in DIR/out\n");
    let (code, text, _) =
        hiroma(dir.path(), &["merge", "DIR/out", "--csv", "DIR/m.csv", "--html", "DIR/m.html"]);
    assert_eq!(code, Some(0));
    assert!(text.starts_with("2 cells, seeds 1 to 2."), "{text}");
    assert_eq!(fs::read_to_string(dir.path().join("m.csv")).unwrap().lines().count(), 3);
    assert!(fs::read_to_string(dir.path().join("m.html")).unwrap().contains("<svg"));
    assert_eq!(sweep("3/2").0, Some(2));
}

#[test]
fn what_a_user_may_not_have_meant_is_noted() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("c.toml"), SMALL.replace("nodes = 16", "nodes = 7")).unwrap();
    let (code, told, _) = hiroma(dir.path(), &["run", "DIR/c.toml", "--seed", "1"]);
    assert_eq!(code, Some(0));
    assert!(told.contains("Note: 7 x 1 has a side of one node"), "{told}");
    assert!(told.contains("Note: no process ended"), "{told}");
    let (code, told, _) = hiroma(dir.path(), &["compare", "DIR/c.toml", "--seeds", "1"]);
    assert_eq!(code, Some(0));
    assert!(told.contains("Note: 7 x 1 has a side of one node"), "{told}");
    assert!(told.contains("Note: no process ended"), "{told}");
    let sweep = "cluster = \"c.toml\"\nseeds = 1\n[grid]\nload.arrivals_per_s = [10, 20]\n";
    fs::write(dir.path().join("s.toml"), sweep).unwrap();
    let (code, told, _) = hiroma(dir.path(), &["sweep", "DIR/s.toml", "--out", "DIR/out"]);
    assert_eq!(code, Some(0));
    assert!(told.contains("Note: 7 x 1 has a side of one node"), "{told}");
    let empty = "Note: in 2 of 2 cells no process ended";
    assert!(told.contains(empty), "{told}");
    let (_, told, _) = hiroma(dir.path(), &["merge", "DIR/out"]);
    assert!(told.contains(empty), "{told}");
}

#[test]
fn traces_in_csv_are_replayed_as_in_binary() {
    let dir = tempfile::tempdir().unwrap();
    let mut table = "time_ns,node,kind,page\n".to_owned();
    for page in 0..50 {
        table += &format!("{},0,page_out,{page}\n", page * 100_000);
    }
    for page in 0..25 {
        table += &format!("{},0,page_in,{page}\n", 20_000_000 + page * 1_000_000);
    }
    fs::write(dir.path().join("t.csv"), &table).unwrap();
    let (code, told, errors) = hiroma(dir.path(), &["convert", "DIR/t.csv", "DIR/t.bin"]);
    assert_eq!(code, Some(0), "{errors}");
    assert_eq!(told, "50 page-outs, 25 page-ins and 0 drops of one node, pages of 4096 bytes\n");
    let (code, one, errors) = hiroma(dir.path(), &["replay", "DIR/t.csv"]);
    assert_eq!(code, Some(0), "{errors}");
    assert_eq!(one, hiroma(dir.path(), &["replay", "DIR/t.bin"]).1);
    hiroma(dir.path(), &["convert", "DIR/t.bin", "DIR/back.csv"]);
    let back = fs::read_to_string(dir.path().join("back.csv")).unwrap();
    assert_eq!(back, format!("# page_bytes=4096 nodes=1 lost=0\n{table}"));
    fs::write(dir.path().join("t.csv"), table.replace("0,page_in,7", "0,page-in,7")).unwrap();
    let (code, _, errors) = hiroma(dir.path(), &["replay", "DIR/t.csv"]);
    assert_eq!(code, Some(2));
    assert_eq!(
        errors,
        "hiroma: DIR/t.csv:59:3: `kind`: there is no `page-in`, use page_out, page_in or drop\n"
    );
}

#[test]
fn own_policies_take_part_and_fail_with_their_exit_code() {
    let dir = tempfile::tempdir().unwrap();
    let nearest = fs::read_to_string("../../examples/policies/nearest.wat").unwrap();
    fs::write(dir.path().join("c.toml"), SMALL).unwrap();
    fs::write(dir.path().join("p.wat"), &nearest).unwrap();
    let compare = ["compare", "DIR/c.toml", "--seeds", "1", "--policy", "wasm:DIR/p.wat"];
    let (code, told, errors) = hiroma(dir.path(), &compare);
    assert!(code == Some(0) && told.contains(" wasm:p.wat@"), "{told}{errors}");
    let broken = nearest.replace("(local.get $chosen)))", "(i32.const 77)))");
    assert_ne!(broken, nearest);
    fs::write(dir.path().join("p.wat"), broken).unwrap();
    let cluster = SMALL.replace("20ms", "200ms") + "policy.placement = \"wasm:p.wat\"\n";
    for more in ["", "policy.confirm = true\n", "faults.loss = 0.1\n"] {
        fs::write(dir.path().join("c.toml"), cluster.clone() + more).unwrap();
        let (code, _, errors) = hiroma(dir.path(), &["run", "DIR/c.toml"]);
        assert_eq!(code, Some(6), "{more}{errors}");
        assert!(errors.contains("answered 77: choose has to return 0 to "), "{more}{errors}");
    }
    let (code, _, errors) = hiroma(dir.path(), &["compare", "DIR/c.toml", "--policy", "fill"]);
    assert!(code == Some(2) && errors.contains("it takes part anyway"), "{errors}");
}

/// A sweep of six runs, and its results as JSON, run without shards.
fn small_sweep(dir: &Path) -> String {
    fs::write(dir.join("c.toml"), SMALL).unwrap();
    fs::write(
        dir.join("s.toml"),
        "cluster = \"c.toml\"\nseeds = 3\n[grid]\nload.arrivals_per_s = [20, 40]\n",
    )
    .unwrap();
    hiroma(dir, &["sweep", "DIR/s.toml", "--out", "DIR/alone"]);
    hiroma(dir, &["merge", "DIR/alone", "--json", "DIR/alone.json"]);
    fs::read_to_string(dir.join("alone.json")).unwrap()
}

#[test]
fn slurm_script_runs_shards_and_merges_them() {
    let dir = tempfile::tempdir().unwrap();
    let alone = small_sweep(dir.path());
    let write = ["sweep", "DIR/s.toml", "--out", "DIR/a b", "--on", "slurm", "--shards", "4"];
    let (code, told, errors) = hiroma(dir.path(), &write);
    assert_eq!(code, Some(0), "{errors}");
    assert!(told.starts_with("6 runs in 4 shards; start them with\n\n  bash '"), "{told}");
    let script = dir.path().join("a b/sweep-slurm.sh");
    match Command::new("shellcheck").arg(&script).output() {
        Ok(checked) => assert!(checked.status.success(), "{checked:?}"),
        Err(_) => {
            skip!(Machine, "the script for Slurm is not checked: shellcheck is not installed")
        }
    }
    // A scheduler that starts nothing: it tells what it was asked for.
    let bin = dir.path().join("bin");
    fs::create_dir(&bin).unwrap();
    let log = dir.path().join("sbatch.log");
    let fake = format!(
        "#!/bin/sh\nfor word; do echo \"$word\" >>'{}'; done\necho '17;cluster'\n",
        log.display()
    );
    fs::write(bin.join("sbatch"), fake).unwrap();
    fs::set_permissions(bin.join("sbatch"), fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let bash = |args: &[&str], task: Option<&str>| {
        let mut command = Command::new("bash");
        command.arg(&script).args(args).env("PATH", &path).env_remove("SLURM_ARRAY_TASK_ID");
        if let Some(task) = task {
            command.env("SLURM_ARRAY_TASK_ID", task);
        }
        let output = command.output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let (code, told, errors) = bash(&["submit", "--time=1:00"], None);
    assert_eq!(code, Some(0), "{errors}");
    assert!(told.starts_with("job 17 runs the 4 shards, job 17 merges them"), "{told}");
    let asked = fs::read_to_string(&log).unwrap();
    assert_eq!(asked.matches("--time=1:00\n").count(), 2);
    let wrapped = asked.lines().last().unwrap().to_owned();
    assert!(asked.contains("--dependency=afterany:17\n") && wrapped.ends_with(" merge"), "{asked}");
    // What the scheduler would do, with one task that never ran.
    for task in ["1", "2", "4"] {
        let (code, _, errors) = bash(&[], Some(task));
        assert_eq!(code, Some(0), "{errors}");
    }
    let merged = Command::new("sh").args(["-c", &wrapped]).output().unwrap();
    assert_eq!(merged.status.code(), Some(7));
    assert!(
        String::from_utf8(merged.stdout).unwrap().contains("Missing in shard 3/4: 1 of 1 runs")
    );
    assert_eq!(bash(&[], Some("3")).0, Some(0));
    assert_eq!(bash(&["merge"], None).0, Some(0));
    let merged = fs::read_to_string(dir.path().join("a b/merged.json")).unwrap();
    assert_eq!(merged, alone);
    let (code, _, errors) = bash(&[], None);
    assert!(code == Some(1) && errors.contains("submit the script with sbatch"), "{errors}");
}

/// More shards than one array may have tasks, in a directory whose name Slurm would take for a
/// pattern.
#[test]
fn a_slurm_cluster_runs_shards_and_merges_them() {
    let dir = tempfile::tempdir().unwrap();
    // Other clusters are there for other work.
    if std::env::var_os("HIROMA_TEST_SLURM").is_none() {
        skip!(Machine, "sweeps on Slurm: make test-slurm starts a cluster for them");
        return;
    }
    let alone = small_sweep(dir.path());
    let write = ["sweep", "DIR/s.toml", "--out", "DIR/a %a", "--on", "slurm", "--shards", "6"];
    let (code, _, errors) = hiroma(dir.path(), &write);
    assert_eq!(code, Some(0), "{errors}");
    let out = dir.path().join("a %a");
    let script = out.join("sweep-slurm.sh");
    // As if there were a thousand times as many shards.
    let text = fs::read_to_string(&script).unwrap();
    let few = text.replace("--array=1-6", "--array=1-4").replace("\ntasks=6\n", "\ntasks=4\n");
    assert_ne!(few, text);
    fs::write(&script, few).unwrap();
    // Shards, and then the merge. First, nothing can be run.
    let submit = || {
        let submitted = Command::new("bash").arg(&script).args(["submit", "--time=9"]).output();
        let submitted = submitted.unwrap();
        let told = String::from_utf8(submitted.stdout).unwrap();
        assert!(
            submitted.status.success() && told.contains("runs the 6 shards"),
            "{told}{}",
            String::from_utf8_lossy(&submitted.stderr)
        );
        let job = |word: &str| {
            let after = told.split_once(word).unwrap().1;
            after.split([' ', ';']).next().unwrap().to_owned()
        };
        let (array, merge) = (job("job "), job(", job "));
        let wait = Command::new("timeout")
            .args([
                "120",
                "bash",
                "-c",
                "while squeue -h -j $0 2>/dev/null | grep -q .; do sleep 0.5; done",
                &merge,
            ])
            .status();
        assert!(wait.unwrap().success(), "the merge has not ended: {told}");
        (array, merge)
    };
    let log = |name: String| fs::read_to_string(out.join(&name)).unwrap_or(name);
    let hidden = dir.path().join("s.toml.hidden");
    fs::rename(dir.path().join("s.toml"), &hidden).unwrap();
    let (array, merge) = submit();
    assert!(log(format!("slurm-{array}_3.log")).contains("s.toml"), "{array}");
    assert!(log(format!("slurm-{merge}.log")).contains("has no results yet"), "{merge}");
    fs::rename(&hidden, dir.path().join("s.toml")).unwrap();
    let (array, _) = submit();
    for (task, runs) in [(1, 2), (2, 2), (3, 1), (4, 1)] {
        let log = log(format!("slurm-{array}_{task}.log"));
        assert_eq!(log.matches("1 runs done, 0 were there already").count(), runs, "{log}");
    }
    assert_eq!(fs::read_to_string(out.join("merged.json")).unwrap(), alone);
    let (array, _) = submit();
    let log = log(format!("slurm-{array}_1.log"));
    assert!(log.contains("0 runs done, 1 were there already"), "{log}");
    assert_eq!(fs::read_to_string(out.join("merged.json")).unwrap(), alone);
}

#[test]
fn ray_runs_shards_and_merges_them() {
    let dir = tempfile::tempdir().unwrap();
    let ray = Command::new("python3").args(["-c", "import ray"]).output();
    if !ray.is_ok_and(|ray| ray.status.success()) {
        skip!(Machine, "sweeps on Ray: python3 has no package ray (pip install ray)");
        return;
    }
    let alone = small_sweep(dir.path());
    let write = ["sweep", "DIR/s.toml", "--out", "DIR/out", "--on", "ray", "--shards", "3"];
    let (code, told, errors) = hiroma(dir.path(), &write);
    assert_eq!(code, Some(0), "{errors}");
    assert!(told.ends_with("/out/sweep_ray.py'\n"), "{told}");
    let run = || {
        let script = dir.path().join("out/sweep_ray.py");
        let output = Command::new("python3").arg(script).env_remove("RAY_ADDRESS").output();
        let output = output.unwrap();
        let told = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{told}{}", String::from_utf8_lossy(&output.stderr));
        told
    };
    let told = run();
    for shard in 1..=3 {
        assert!(
            told.contains(&format!("shard {shard}/3 done: 2 runs done, 0 were there already")),
            "{told}"
        );
    }
    let merged = || fs::read_to_string(dir.path().join("out/merged.json")).unwrap();
    assert_eq!(merged(), alone);
    assert!(run().contains("shard 2/3 done: 0 runs done, 2 were there already"));
    assert_eq!(merged(), alone);
}
