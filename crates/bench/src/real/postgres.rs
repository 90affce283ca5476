//! PostgreSQL with pgbench: queries that sort and group in the private memory of each connection.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{Gid, Uid, chown};

use super::work::Scene;
use crate::children::{Failed, Interrupt, Running, check};
use crate::job::{Latency, TaskResult};

const PORT: &str = "5432";
const CLIENTS: &str = "2";
/// Number of transactions of each client.
const TRANSACTIONS: &str = "15";
/// Time limit of the setup.
const PATIENCE: Duration = Duration::from_secs(120);

/// The table: written once, before anything is measured, and only read afterwards.
const TABLE: &str = "create table t as select i, (i * 7919::bigint) % 1000003 k, 'name ' || ((i * 31) % 200003) n from generate_series(1, 400000) i";
/// The queries of a client: a sort and a grouping, in private memory, from a random start.
const SCRIPT: &str = "\\set low random(1, 100000)\n\
                      select max(k) from (select k from t where i > :low order by n, k offset 200000) s;\n\
                      select count(*), max(c) from (select n, count(*) c from t where i > :low group by n) s;\n";

/// A data directory, and the commands to start the programs.
#[derive(Clone, Debug)]
pub struct Postgres {
    programs: PathBuf,
    dir: PathBuf,
    /// PostgreSQL refuses to run as root: words that run it as another user who may use
    /// userfaultfd.
    outer: Vec<String>,
}

impl Postgres {
    /// Directory with the newest installed version.
    pub fn find() -> Result<PathBuf> {
        let dirs = fs::read_dir("/usr/lib/postgresql")
            .context("postgres is not installed (postgresql)")?;
        let mut dirs: Vec<PathBuf> = dirs.flatten().map(|entry| entry.path().join("bin")).collect();
        dirs.sort();
        let complete = |dir: &&PathBuf| {
            ["initdb", "postgres", "pgbench", "psql"].iter().all(|name| dir.join(name).exists())
        };
        dirs.iter()
            .rev()
            .find(complete)
            .cloned()
            .context("postgres is not installed completely (postgresql, postgresql-contrib)")
    }

    /// A data directory below `dir`, which is not made yet.
    pub fn at(programs: PathBuf, dir: &Path) -> Postgres {
        let rights =
            fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd").unwrap_or_default();
        let mut outer = vec!["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"];
        if rights.trim() != "1" {
            outer.extend(["--inh-caps", "+sys_ptrace", "--ambient-caps", "+sys_ptrace"]);
        }
        outer.push("--");
        Postgres {
            programs,
            dir: dir.join("postgres"),
            outer: outer.into_iter().map(str::to_owned).collect(),
        }
    }

    /// Directory of its files.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Makes the data, unless it exists.
    pub fn prepare(&self, interrupt: &Interrupt) -> Result<(), Failed> {
        if self.dir.join("script").exists() {
            return Ok(());
        }
        fs::create_dir_all(&self.dir)?;
        chown(&self.dir, Some(Uid::from_raw(65534)), Some(Gid::from_raw(65534)))
            .map_err(std::io::Error::from)?;
        let data = self.word(&self.dir.join("data"))?;
        let initdb = [
            self.program("initdb")?,
            "-D".into(),
            data,
            "--no-sync".into(),
            "-A".into(),
            "trust".into(),
            "-U".into(),
            "postgres".into(),
        ];
        let ended =
            Running::start(self.command(&initdb).stdout(Stdio::null()).stderr(Stdio::piped()))?
                .wait(PATIENCE, interrupt)?;
        check(&ended)?;
        let mut server = Running::start(
            self.command(&self.server()?).stdout(Stdio::null()).stderr(Stdio::null()),
        )?;
        self.ready(&mut server, PATIENCE, interrupt)?;
        self.ask(TABLE)?;
        // Otherwise the first query that reads would write.
        self.ask("vacuum analyze t")?;
        check(&server.end(PATIENCE)?)?;
        fs::write(self.dir.join("script"), SCRIPT)?;
        Ok(())
    }

    fn command(&self, argv: &[String]) -> Command {
        let mut command = Command::new(&self.outer[0]);
        command.args(&self.outer[1..]).args(argv).current_dir(&self.dir);
        command
    }

    fn word(&self, path: &Path) -> Result<String> {
        path.to_str().context("a directory whose name is not UTF-8").map(str::to_owned)
    }

    fn program(&self, name: &str) -> Result<String> {
        self.word(&self.programs.join(name))
    }

    fn server(&self) -> Result<Vec<String>> {
        let dir = self.word(&self.dir)?;
        let settings = [
            "listen_addresses=",
            "fsync=off",
            "shared_buffers=32MB",
            "autovacuum=off",
            "work_mem=200MB",
            "max_parallel_workers_per_gather=0",
            "jit=off",
            "logging_collector=off",
        ];
        let mut argv = vec![
            self.program("postgres")?,
            "-D".into(),
            format!("{dir}/data"),
            "-k".into(),
            dir,
            "-p".into(),
            PORT.into(),
        ];
        argv.extend(settings.into_iter().flat_map(|setting| ["-c".to_owned(), setting.to_owned()]));
        Ok(argv)
    }

    fn client(&self, name: &str) -> Command {
        let mut command = Command::new(self.programs.join(name));
        command
            .arg("-h")
            .arg(&self.dir)
            .args(["-p", PORT, "-U", "postgres"])
            .current_dir(&self.dir)
            .stdin(Stdio::null());
        command
    }

    fn ask(&self, query: &str) -> Result<()> {
        let output = self
            .client("psql")
            .args(["-d", "postgres", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-c", query])
            .output()?;
        ensure!(
            output.status.success(),
            "psql: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
        Ok(())
    }

    fn ready(
        &self,
        server: &mut Running,
        limit: Duration,
        interrupt: &Interrupt,
    ) -> Result<(), Failed> {
        let start = Instant::now();
        while self.ask("select 1").is_err() {
            if interrupt.came() {
                return Err(Failed::Interrupted);
            }
            if server.has_ended() {
                return Err(anyhow::anyhow!("postgres ended as it started").into());
            }
            if start.elapsed() > limit {
                return Err(Failed::TimeLimit(limit.as_secs_f64()));
            }
            thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// Starts the server, and runs pgbench.
    pub fn drive(&self, scene: &Scene) -> Result<TaskResult, Failed> {
        self.clean()?;
        let start = Instant::now();
        let mut server = scene.start(&self.outer, &self.server()?, Stdio::null(), &self.dir)?;
        self.ready(&mut server, scene.limit, scene.interrupt)?;
        let mut command = self.client("pgbench");
        command.args([
            "-n",
            "-f",
            "script",
            "-c",
            CLIENTS,
            "-j",
            "1",
            "-t",
            TRANSACTIONS,
            "--random-seed=1",
            "-l",
            "--log-prefix=log",
            "postgres",
        ]);
        let client = Running::start(command.stdout(Stdio::null()).stderr(Stdio::piped()))?;
        let ended = client.wait(scene.limit.saturating_sub(start.elapsed()), scene.interrupt)?;
        check(&ended)?;
        // When all clients have left it ends, and its statistics are written.
        server.end(Duration::from_secs(20))?;
        let micros = self.logged()?;
        let wanted =
            CLIENTS.parse::<usize>().unwrap_or(0) * TRANSACTIONS.parse::<usize>().unwrap_or(0);
        if micros.len() != wanted {
            return Err(anyhow::anyhow!(
                "pgbench did {} of {wanted} transactions: {}",
                micros.len(),
                ended.errors
            )
            .into());
        }
        let latency = Latency::of(micros.iter().map(|us| us * 1000).collect());
        Ok(TaskResult {
            seconds: ended.seconds,
            count: wanted as u64,
            latency,
            ..TaskResult::default()
        })
    }

    fn logs(&self) -> Result<Vec<PathBuf>> {
        let files = fs::read_dir(&self.dir)?.flatten().map(|entry| entry.path());
        Ok(files
            .filter(|path| {
                path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("log."))
            })
            .collect())
    }

    /// Removes the files of an earlier run.
    fn clean(&self) -> Result<()> {
        for path in self.logs()? {
            fs::remove_file(path)?;
        }
        let _ = fs::remove_file(self.dir.join("stats.json"));
        Ok(())
    }

    /// Duration of each transaction in microseconds: the third word of a line of pgbench's log.
    fn logged(&self) -> Result<Vec<u64>> {
        let mut micros = Vec::new();
        for path in self.logs()? {
            for line in fs::read_to_string(path)?.lines() {
                let Some(us) = line.split(' ').nth(2).and_then(|word| word.parse().ok()) else {
                    bail!("pgbench logged `{line}`")
                };
                micros.push(us);
            }
        }
        Ok(micros)
    }
}
