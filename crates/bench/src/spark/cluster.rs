//! One job in its own cluster: a driver, and executors as separate processes (`local-cluster`).

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::answers::Answers;
use super::jars::Jars;
use super::pages::Executor;
use super::spec::{Policy, Spec};
use crate::children::{Failed, Interrupt, Running};
use crate::undo::{Guard, Undo};

/// Prefix of a job's answers.
const ANSWER: &str = "@ ";
/// Time limit for executors to end after their driver.
const END_MAX: Duration = Duration::from_secs(20);
const MAIN: &str = "io.hiroma.spark.bench.Job";
/// The options that Spark's own scripts add for JDK 17 and newer
/// (`org.apache.spark.launcher.JavaModuleOptions`).
const OPENED: [&str; 13] = [
    "java.lang",
    "java.lang.invoke",
    "java.lang.reflect",
    "java.io",
    "java.net",
    "java.nio",
    "java.util",
    "java.util.concurrent",
    "java.util.concurrent.atomic",
    "sun.nio.ch",
    "sun.nio.cs",
    "sun.security.action",
    "sun.util.calendar",
];

/// A running job.
pub struct Session<'a> {
    input: Option<ChildStdin>,
    answers: Answers<'a>,
    pub pids: Vec<u32>,
    running: Option<Running>,
    // Dropped last: processes write there.
    home: Home,
}

/// The directory of one cluster, which is removed with it unless something failed.
struct Home(PathBuf, Option<Guard>);

#[derive(Deserialize)]
struct Looked {
    executors: Vec<Executor>,
}

#[derive(Deserialize)]
struct Timed {
    seconds: Vec<f64>,
}

impl Home {
    fn new() -> anyhow::Result<Home> {
        let dir = tempfile::Builder::new()
            .prefix("hiroma-spark-")
            .tempdir()
            .context("making a directory for a cluster")?;
        let guard = Guard::new(Undo::DirRemove(dir.path().to_owned()));
        let path = dir.keep();
        fs::create_dir(path.join("jars")).context("making a directory for a cluster")?;
        Ok(Home(path, Some(guard)))
    }

    fn errors(&self) -> PathBuf {
        self.0.join("driver.err")
    }

    /// Keeps the directory with the output of the processes.
    fn keep(&mut self) {
        if let Some(guard) = self.1.take() {
            guard.disarm();
        }
    }
}

fn command(jars: &Jars, spec: &Spec, java_options: &str, home: &Path) -> Command {
    let mut command = Command::new(&jars.java);
    command.args(["-Xmx640m", "-cp"]).arg(format!(
        "{}:{}:{}",
        jars.plugin.display(),
        jars.jobs.display(),
        jars.class_path
    ));
    command.args(OPENED.map(|package| format!("--add-opens=java.base/{package}=ALL-UNNAMED")));
    for (key, value) in settings(jars, spec, java_options, home) {
        command.arg(format!("-D{key}={value}"));
    }
    command.arg(MAIN).args([spec.workload.name(), spec.storage.name()]);
    // Two partitions for each executor: enough to spread, and few enough that each is large.
    command.args(
        [spec.executors * 2, (spec.bytes >> 20) as u32, spec.executors]
            .map(|number| number.to_string()),
    );
    command
        .env("SPARK_HOME", home)
        .env("SPARK_DIST_CLASSPATH", &jars.class_path)
        .env("SPARK_SCALA_VERSION", jars.scala())
        .env("SPARK_LOCAL_IP", "127.0.0.1");
    command
}

/// Spark's settings, the same for every policy; `stock` is without the plugin.
fn settings(
    jars: &Jars,
    spec: &Spec,
    java_options: &str,
    home: &Path,
) -> Vec<(&'static str, String)> {
    let mib = spec.heap_bytes >> 20;
    let mut settings = vec![
        ("spark.master", format!("local-cluster[{},1,{mib}]", spec.executors)),
        ("spark.executor.memory", format!("{mib}m")),
        ("spark.driver.host", "127.0.0.1".to_owned()),
        ("spark.ui.enabled", "false".to_owned()),
        ("spark.local.dir", home.display().to_string()),
        // Every executor stores its share, even if one of them is late.
        ("spark.scheduler.minRegisteredResourcesRatio", "1.0".to_owned()),
        ("spark.scheduler.maxRegisteredResourcesWaitingTime", "120s".to_owned()),
        ("spark.locality.wait", "60s".to_owned()),
    ];
    let mut shipped = jars.jobs.display().to_string();
    if spec.policy != Policy::Stock {
        shipped = format!("{},{shipped}", jars.plugin.display());
        settings.extend([
            ("spark.plugins", "io.hiroma.spark.HiromaPlugin".to_owned()),
            ("spark.hiroma.policy", spec.policy.name().to_owned()),
        ]);
    }
    if !java_options.is_empty() {
        settings.push(("spark.executor.extraJavaOptions", java_options.to_owned()));
    }
    settings.push(("spark.jars", shipped));
    if spec.storage.is_off_heap() {
        let bytes = spec.bytes / u64::from(spec.executors) * 2;
        settings.extend([
            ("spark.memory.offHeap.enabled", "true".to_owned()),
            ("spark.memory.offHeap.size", bytes.to_string()),
        ]);
    }
    settings
}

impl<'a> Session<'a> {
    /// Starts a cluster and waits until all of its executors are ready.
    pub fn start(
        jars: &Jars,
        spec: &Spec,
        java_options: &str,
        limit: Duration,
        interrupt: &'a Interrupt,
    ) -> Result<Session<'a>, Failed> {
        let home = Home::new()?;
        let errors = fs::File::create(home.errors())?;
        let (mut running, input) = Running::start_with_input(
            command(jars, spec, java_options, &home.0).stdout(Stdio::piped()).stderr(errors),
        )?;
        let output = running.take_stdout().context("a driver without an output")?;
        let answers = Answers::of(output, ANSWER, limit, interrupt);
        let mut session =
            Session { input: Some(input), answers, pids: Vec::new(), running: Some(running), home };
        let executors = session.answer::<Looked>("starting")?.executors;
        session.pids = executors.iter().map(|executor| executor.pid).collect();
        if let Some(executor) =
            executors.iter().find(|executor| executor.policy != spec.policy.in_force())
        {
            session.home.keep();
            return Err(anyhow!(
                "the policy in force in executor process {} is `{}` and not `{}`: its log below {} says why",
                executor.pid,
                executor.policy,
                spec.policy.in_force(),
                session.home.0.join("work").display()
            )
            .into());
        }
        Ok(session)
    }

    fn answer<T: DeserializeOwned>(&mut self, what: &str) -> Result<T, Failed> {
        match self.answers.next()? {
            Some(line) => {
                Ok(serde_json::from_str(&line)
                    .with_context(|| format!("a job answered `{line}`"))?)
            }
            None => {
                self.home.keep();
                let text = fs::read_to_string(self.home.errors()).unwrap_or_default();
                Err(anyhow!(
                    "the job failed ({what}): {}; see {}",
                    reason(&text),
                    self.home.0.display()
                )
                .into())
            }
        }
    }

    fn ask<T: DeserializeOwned>(&mut self, line: &str) -> Result<T, Failed> {
        if let Some(input) = &mut self.input {
            // A job that has ended is detected by its missing answer.
            let _ = writeln!(input, "{line}").and_then(|()| input.flush());
        }
        self.answer(line)
    }

    /// Caches the data; returns the seconds that this took.
    pub fn cache(&mut self) -> Result<f64, Failed> {
        Ok(self.ask::<Timed>("cache")?.seconds.first().copied().unwrap_or(f64::NAN))
    }

    /// Iterates over the data `count` times; returns the seconds of each iteration.
    pub fn iterate(&mut self, count: usize) -> Result<Vec<f64>, Failed> {
        Ok(self.ask::<Timed>(&format!("iterate {count}"))?.seconds)
    }

    /// Has all cached data moved to old regions, where it stays.
    pub fn settle(&mut self) -> Result<(), Failed> {
        self.ask::<Looked>("settle").map(drop)
    }

    /// The addresses of the cached data in each executor.
    pub fn look(&mut self) -> Result<Vec<Executor>, Failed> {
        Ok(self.ask::<Looked>("look")?.executors)
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        self.input = None;
        // An orderly exit is not needed: the group is killed. Its memory must be free before the
        // next cluster starts.
        self.running = None;
        let start = Instant::now();
        while self.pids.iter().any(|pid| Path::new(&format!("/proc/{pid}/cmdline")).exists())
            && start.elapsed() < END_MAX
        {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// The line of a driver's errors that describes the failure.
fn reason(errors: &str) -> &str {
    // A named exception is more informative than what was logged because of it.
    let of_kind =
        |kinds: &[&str]| errors.lines().find(|line| kinds.iter().any(|kind| line.contains(kind)));
    of_kind(&["Exception: ", "Error: "])
        .or_else(|| of_kind(&["ERROR"]))
        .or(errors.lines().last())
        .unwrap_or("it said nothing")
        .trim()
}

#[cfg(test)]
mod tests {
    use super::super::spec::{Storage, Workload};
    use super::*;

    fn spec(policy: Policy, storage: Storage) -> Spec {
        Spec {
            workload: Workload::Micro,
            storage,
            policy,
            bytes: 256 << 20,
            executors: 2,
            heap_bytes: 1 << 30,
        }
    }

    #[test]
    fn policies_differ_only_in_policy() {
        let jars = Jars {
            plugin: "p.jar".into(),
            jobs: "j.jar".into(),
            class_path: "s.jar".into(),
            java: "java".into(),
        };
        let of = |policy| settings(&jars, &spec(policy, Storage::Serialised), "", Path::new("/h"));
        let differing: Vec<_> = of(Policy::Off)
            .into_iter()
            .zip(of(Policy::Part))
            .filter(|(off, part)| off != part)
            .collect();
        assert_eq!(differing.len(), 1, "{differing:?}");
        assert_eq!(differing[0].1, ("spark.hiroma.policy", "part".to_owned()));
        assert!(of(Policy::Stock).iter().all(|(key, _)| !key.contains("hiroma")
            && !key.contains("plugins")
            && !key.contains("Java")));
        let off_heap = settings(&jars, &spec(Policy::Part, Storage::OffHeap), "", Path::new("/h"));
        assert!(off_heap.contains(&("spark.memory.offHeap.size", (256u64 << 20).to_string())));
    }

    #[test]
    fn an_exception_or_an_error_is_the_reason() {
        assert_eq!(
            reason("INFO a\n ERROR c: x\njava.io.IOException: d\n at e\n"),
            "java.io.IOException: d"
        );
        assert_eq!(reason("INFO a\n ERROR c: x\nb\n"), "ERROR c: x");
        assert_eq!((reason("a\nb\n"), reason("")), ("b", "it said nothing"));
    }
}
