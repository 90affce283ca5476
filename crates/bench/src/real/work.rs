//! What is run: a program whose output is compared, a load that times itself, or a server with a
//! client that times requests.

use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};

use super::arms::{Arm, LOOK_EVERY, Place};
use super::cells::{Attempt, End, Faults, NATIVE};
use super::load::Load;
use super::postgres::Postgres;
use super::redis;
use crate::children::{Failed, Interrupt, Running, check, command_in, this_program};
use crate::job::{Job, Memory, Task, TaskResult};

/// Under a group's limit Linux 6.18 occasionally kills a process while hardly anything is swapped:
/// only an item that is killed every time counts as killed.
const TRIES: usize = 3;

/// Something to measure.
#[derive(Clone, Debug)]
pub struct Item {
    pub name: String,
    pub work: Work,
}

/// Kind of work.
#[derive(Clone, Debug)]
pub enum Work {
    Program(Vec<String>),
    Load(Load),
    Redis,
    Postgres(Postgres),
}

/// The surroundings of a run.
pub struct Scene<'a> {
    pub place: &'a Place,
    pub dir: &'a Path,
    /// Time limit.
    pub limit: Duration,
    pub interrupt: &'a Interrupt,
}

/// Runs items.
pub struct Runner<'a> {
    pub dir: PathBuf,
    pub interrupt: &'a Interrupt,
}

/// Length and hash of the output until its end.
fn digest(mut output: impl Read) -> std::io::Result<String> {
    let (mut hasher, mut length, mut buffer) = (DefaultHasher::new(), 0u64, vec![0; 1 << 16]);
    loop {
        match output.read(&mut buffer)? {
            0 => return Ok(format!("{length} {:016x}", hasher.finish())),
            count => {
                hasher.write(&buffer[..count]);
                length += count as u64;
            }
        }
    }
}

impl Scene<'_> {
    /// Starts `argv` in the arm. `outer` precedes `hiroma run`; statistics are written to
    /// `stats_dir`.
    pub fn start(
        &self,
        outer: &[String],
        argv: &[String],
        output: Stdio,
        stats_dir: &Path,
    ) -> Result<Running> {
        let stats = stats_dir.join("stats.json");
        let front =
            self.place.front(stats.to_str().context("a directory whose name is not UTF-8")?)?;
        let all: Vec<String> = outer.iter().chain(&front).chain(argv).cloned().collect();
        Running::start(command_in(&self.place.cgroup, &all)?.stdout(output))
    }
}

impl Runner<'_> {
    /// Runs `item` once in `arm` with a resident limit of `limit` bytes, for at most `patience`. An
    /// error means that it could not be tried.
    pub fn run(
        &self,
        item: &Item,
        arm: Arm,
        limit: u64,
        patience: Duration,
    ) -> Result<Attempt, Failed> {
        let mut last = Attempt::default();
        for _ in 0..TRIES {
            last = self.once(item, arm, limit, patience)?;
            if last.end != Some(End::Killed) {
                break;
            }
        }
        Ok(last)
    }

    fn once(
        &self,
        item: &Item,
        arm: Arm,
        limit: u64,
        patience: Duration,
    ) -> Result<Attempt, Failed> {
        let place = Place::make(arm, limit)?;
        let mut attempt = Attempt::default();
        let ended = AtomicBool::new(false);
        let start = Instant::now();
        let result = thread::scope(|scope| {
            let (place, ended, most) = (&place, &ended, &mut attempt);
            scope.spawn(move || {
                while !ended.load(Ordering::Relaxed) {
                    place.look(most);
                    thread::sleep(LOOK_EVERY);
                }
            });
            let scene = Scene { place, dir: &self.dir, limit: patience, interrupt: self.interrupt };
            let result = self.drive(item, arm, &scene);
            ended.store(true, Ordering::Relaxed);
            result
        });
        attempt.wall_seconds = start.elapsed().as_secs_f64();
        let killed = place.cgroup.kills() > 0;
        match result {
            Err(Failed::Interrupted) => return Err(Failed::Interrupted),
            _ if killed => attempt.end = Some(End::Killed),
            Err(Failed::OutOfMemory) => attempt.end = Some(End::Killed),
            Err(Failed::TimeLimit(_)) => attempt.end = Some(End::Stopped),
            Err(Failed::Other(error)) => attempt.end = Some(End::Failed(format!("{error:#}"))),
            Ok(done) => {
                let TaskResult { seconds, count, latency, .. } = done;
                (attempt.seconds, attempt.count, attempt.latency) = (seconds, count, latency);
            }
        }
        if arm.is_ours() {
            self.note_statistics(item, &mut attempt);
        } else {
            attempt.pages_in = place.pages_in();
        }
        Ok(attempt)
    }

    fn drive(&self, item: &Item, arm: Arm, scene: &Scene) -> Result<TaskResult, Failed> {
        match &item.work {
            Work::Program(argv) => self.program(&item.name, argv, arm, scene),
            Work::Load(load) => self.load(load, scene),
            Work::Redis => redis::drive(scene),
            Work::Postgres(postgres) => postgres.drive(scene),
        }
    }

    /// The output is read through a pipe: as a file it would be memory of the group, and would be
    /// read back from the disk.
    fn program(
        &self,
        name: &str,
        argv: &[String],
        arm: Arm,
        scene: &Scene,
    ) -> Result<TaskResult, Failed> {
        let native = self.dir.join(format!("{name}.{NATIVE}"));
        let start = Instant::now();
        let mut running = scene.start(&[], argv, Stdio::piped(), &self.dir)?;
        let output = running.take_stdout().context("a program without an output")?;
        let (seconds, digest) = thread::scope(|scope| {
            let digest = scope.spawn(move || digest(output));
            let ended = running.wait(scene.limit, self.interrupt);
            let seconds = start.elapsed().as_secs_f64();
            // Remaining processes have the pipe open, too.
            scene.place.cgroup.clear();
            let digest = digest.join();
            check(&ended?)?;
            let digest = digest.map_err(|_| anyhow!("reading the output panicked"))?;
            Ok::<_, Failed>((seconds, digest.context("reading the output")?))
        })?;
        if arm == Arm::Native && !native.exists() {
            fs::write(&native, &digest)?;
        } else if fs::read_to_string(&native)? != digest {
            return Err(anyhow!("its output is not as the native one").into());
        }
        Ok(TaskResult { seconds, ..TaskResult::default() })
    }

    fn load(&self, load: &Load, scene: &Scene) -> Result<TaskResult, Failed> {
        let this = this_program()?.to_str().context("this program's name is not UTF-8")?.to_owned();
        let job = Job { memory: Memory::Native, cgroup: None, task: Task::Load(load.clone()) };
        let job = serde_json::to_string(&job).context("a job is always JSON")?;
        let output = self.dir.join("output");
        let argv = [this, "workload".to_owned(), job];
        let running = scene.start(&[], &argv, fs::File::create(&output)?.into(), &self.dir)?;
        check(&running.wait(scene.limit, self.interrupt)?)?;
        let text = fs::read_to_string(&output)?;
        Ok(serde_json::from_str(text.trim())
            .with_context(|| format!("a load answered `{text}`"))?)
    }

    /// Adds what the statistics of `hiroma run` say; nothing if it was killed.
    fn note_statistics(&self, item: &Item, attempt: &mut Attempt) {
        let dir =
            if let Work::Postgres(postgres) = &item.work { postgres.dir() } else { &self.dir };
        let path = dir.join("stats.json");
        let text = fs::read_to_string(&path).unwrap_or_default();
        let _ = fs::remove_file(path);
        let stats: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        let number = |name: &str| stats["total"][name].as_u64();
        attempt.pages_in = number("fetched_bytes").unwrap_or(0) / 4096;
        attempt.faults = number("faults_fetched")
            .zip(number("faults_staged"))
            .map(|(fetched, staged)| Faults { fetched, staged });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_differ_by_length_and_content() {
        let of = |bytes: &[u8]| digest(bytes).unwrap();
        assert_eq!(of(b"as it was"), of(b"as it was"));
        assert!(
            of(b"as it was") != of(b"as it is!")
                && of(b"\0") != of(b"\0\0")
                && of(&[1; 200_000]) != of(&[1; 200_001])
        );
    }
}
