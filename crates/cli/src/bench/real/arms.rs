//! One run of one program in one arm: its time, its output, and all the memory that it took, as the kernel counts it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};

use super::programs::Program;
use crate::bench::children::{Failed, Interrupt, Running, check, same_content, this_program};
use crate::bench::job::{Job, Memory, Task};
use crate::bench::peers::{ALLOWANCE_BYTES, Cgroup, SwapArea, SwapKind, SwapTraffic};

/// Room for all that a program may put into a swap area or a store.
const ROOM_BYTES: u64 = 8 << 30;

/// Under a group's limit Linux 6.18 kills now and then while hardly anything is swapped: only who is killed every time counts as killed.
const TRIES: usize = 3;

/// Where memory goes that does not fit.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Arm {
    /// Nowhere: all of it is there.
    Native,
    /// Swapped by the kernel under a control group's limit.
    Swap(SwapKind),
    /// `hiroma run` with compressed memory beside the limit, so that as much is resident as in the peers.
    Compressed,
    /// `hiroma run` as it comes: compressed memory within the limit, and a file.
    Default,
}

impl Arm {
    /// Name in keys, tables and options.
    pub fn name(self) -> &'static str {
        match self {
            Arm::Native => "native",
            Arm::Swap(SwapKind::Zram) => "zram",
            Arm::Swap(SwapKind::File) => "swap-file",
            Arm::Compressed => "compressed",
            Arm::Default => "default",
        }
    }

    /// Its name, back.
    pub fn parse(name: &str) -> Result<Arm, String> {
        let arms = [Arm::Swap(SwapKind::Zram), Arm::Swap(SwapKind::File), Arm::Compressed, Arm::Default];
        let names = arms.map(Arm::name).join(", ");
        arms.into_iter().find(|arm| arm.name() == name).ok_or(format!("`{name}` is none of {names}"))
    }
}

/// What a run came to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ran {
    pub seconds: f64,
    /// Peak resident set of the first process.
    pub peak_bytes: u64,
    /// Peak of everything: resident, compressed, tables, and cached pages of files.
    pub total_bytes: u64,
    /// Pages of 4 KiB that came back because somebody waited.
    pub pages_in: u64,
}

/// Runs programs.
pub struct Runner<'a> {
    dir: PathBuf,
    interrupt: &'a Interrupt,
}

impl<'a> Runner<'a> {
    /// Keeps outputs in `dir`.
    pub fn new(dir: &Path, interrupt: &'a Interrupt) -> Runner<'a> {
        Runner { dir: dir.to_owned(), interrupt }
    }

    /// Runs `program` natively once; its output is what the others are compared with.
    pub fn native(&self, program: &Program, limit: Duration) -> Result<Ran, Failed> {
        let output = self.dir.join(format!("{}.native", program.name));
        self.inside(None, &program.argv, &output, limit)
    }

    /// Runs `program` with `local` bytes of memory; fails if it prints something else than natively.
    pub fn limited(&self, program: &Program, arm: Arm, local: u64, limit: Duration) -> Result<Ran, Failed> {
        let output = self.dir.join("output");
        let ran = match arm {
            Arm::Native => return self.native(program, limit),
            Arm::Swap(kind) => {
                let mut tries = (0..TRIES).map(|_| self.swapped(program, kind, local, &output, limit));
                let last = tries.find(|ran| !matches!(ran, Err(Failed::OutOfMemory)));
                last.unwrap_or(Err(Failed::OutOfMemory))?
            }
            Arm::Compressed => self.far(program, local, Some(format!("compressed:{ROOM_BYTES}")), &output, limit)?,
            Arm::Default => self.far(program, local, None, &output, limit)?,
        };
        if !same_content(&self.dir.join(format!("{}.native", program.name)), &output)? {
            return Err(anyhow!("its output is not as the native one").into());
        }
        Ok(ran)
    }

    fn swapped(&self, program: &Program, kind: SwapKind, local: u64, output: &Path, limit: Duration) -> Result<Ran, Failed> {
        let area = SwapArea::make(kind, ROOM_BYTES)?;
        let cgroup = Cgroup::make(local + ALLOWANCE_BYTES)?;
        let on = area.switch_on()?;
        let before = SwapTraffic::now();
        let ran = self.inside(Some(&cgroup), &program.argv, output, limit);
        let pages_in = SwapTraffic::now().since(before).pages_in;
        let (total_bytes, killed) = (cgroup.peak_bytes() + area.memory_bytes_max(), cgroup.kills() > 0);
        drop(on);
        if killed {
            return Err(Failed::OutOfMemory);
        }
        Ok(Ran { pages_in, total_bytes, ..ran? })
    }

    fn far(&self, program: &Program, local: u64, store: Option<String>, output: &Path, limit: Duration) -> Result<Ran, Failed> {
        let stats = self.dir.join("stats.json");
        let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
        let this = this_program()?.to_str().context("this program's name is not UTF-8")?.to_owned();
        let mut argv = words(&[&this, "run", "--quiet", "--local", &local.to_string(), "--stats"]);
        argv.push(stats.to_str().context("a directory whose name is not UTF-8")?.to_owned());
        argv.extend(store.into_iter().flat_map(|store| ["--store".to_owned(), store]));
        argv.push("--".to_owned());
        argv.extend(program.argv.iter().cloned());
        // Not a limit: a group counts what is in it.
        let cgroup = Cgroup::make(1 << 50)?;
        let ran = self.inside(Some(&cgroup), &argv, output, limit)?;
        let text = fs::read_to_string(&stats).context("reading the statistics of hiroma run")?;
        let stats: serde_json::Value = serde_json::from_str(&text).context("the statistics of hiroma run are not JSON")?;
        let pages_in = stats["total"]["fetched_bytes"].as_u64().unwrap_or(0) / 4096;
        Ok(Ran { pages_in, total_bytes: cgroup.peak_bytes(), ..ran })
    }

    fn inside(&self, cgroup: Option<&Cgroup>, argv: &[String], output: &Path, limit: Duration) -> Result<Ran, Failed> {
        let task = Task::Program { argv: argv.to_vec() };
        let job = Job { memory: Memory::Native, cgroup: cgroup.map(|cgroup| cgroup.path().to_owned()), task };
        let job = serde_json::to_string(&job).map_err(anyhow::Error::from)?;
        let mut command = Command::new(this_program()?);
        command.args(["bench", "workload", &job]).stdout(fs::File::create(output)?).stderr(Stdio::piped());
        let ended = Running::start(&mut command)?.wait(limit, self.interrupt)?;
        check(&ended)?;
        Ok(Ran { seconds: ended.seconds, peak_bytes: ended.peak_bytes, ..Ran::default() })
    }
}
