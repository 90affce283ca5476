//! Memory with few huge pages: a process holds all memory that a cluster does not need, and one
//! pinned small page in each 2 MiB of the rest; only the requested amount remains on huge pages.
//!
//! The process is the first that the kernel kills when memory runs out, and it ends with its
//! parent. It prints a line (JSON, [`Settled`]) when memory is in the requested state, restores
//! that state for each line on its input, and ends at the end of its input.

use std::io::{self, BufRead, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{ChildStdin, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use hiroma_sys::hoard::Hoard;
use hiroma_sys::host::memory;
use hiroma_units::{Bytes, EXTENT};
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, memfd_create};
use serde::{Deserialize, Serialize};

use super::answers::Answers;
use crate::children::{Failed, Interrupt, Running, this_program};
use crate::with_parent;

/// The memory to leave.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Job {
    /// Bytes of memory in which no huge page can be made.
    pub small: u64,
    /// Bytes of memory in huge pages.
    pub huge: u64,
}

/// The available memory.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Settled {
    pub huge: u64,
    pub available: u64,
}

/// Memory that stays available to other processes while memory is being taken.
const FLOOR: u64 = 768 << 20;
const STEP: u64 = 64 << 20;
/// After this number of refusals in a row the kernel has no more huge pages.
const REFUSALS_MAX: u32 = 8;
/// Time limit of an answer. Huge pages that a hypervisor has to back first take some milliseconds
/// each.
const ANSWER_MAX: Duration = Duration::from_secs(300);
const MARK: &str = "@ ";

/// The process, as seen by its parent.
pub struct Fragmented<'a> {
    input: ChildStdin,
    answers: Answers<'a>,
    _running: Running,
}

impl<'a> Fragmented<'a> {
    /// Fragments memory.
    pub fn start(job: Job, interrupt: &'a Interrupt) -> Result<(Fragmented<'a>, Settled), Failed> {
        let mut command = with_parent::command(&this_program()?)?;
        command.arg("fragment").arg(serde_json::to_string(&job).context("writing a job")?);
        let (mut running, input) = Running::start_with_input(command.stdout(Stdio::piped()))?;
        let output = running.take_stdout().context("a process without an output")?;
        let fragmented = Fragmented {
            input,
            answers: Answers::of(output, MARK, ANSWER_MAX, interrupt),
            _running: running,
        };
        let settled = fragmented.answer()?;
        Ok((fragmented, settled))
    }

    /// Restores the state of memory at the start.
    pub fn settle(&mut self) -> Result<Settled, Failed> {
        // A process that has ended is detected by its missing answer.
        let _ = writeln!(self.input).and_then(|()| self.input.flush());
        self.answer()
    }

    fn answer(&self) -> Result<Settled, Failed> {
        let line = self.answers.next()?.ok_or_else(|| {
            anyhow!("the process that fragments memory has ended: memory ran short")
        })?;
        Ok(serde_json::from_str(&line)
            .with_context(|| format!("the process that fragments memory answered `{line}`"))?)
    }
}

/// Slots by their content.
struct Holder {
    hoard: Hoard,
    empty: Vec<usize>,
    huge: Vec<usize>,
    /// A file in memory, for memory that is not available as huge pages.
    rest: OwnedFd,
    rest_bytes: u64,
}

impl Holder {
    fn new(slots: usize) -> io::Result<Holder> {
        let rest = memfd_create("hiroma-rest", MemfdFlags::CLOEXEC)?;
        Ok(Holder {
            hoard: Hoard::new(slots)?,
            empty: (0..slots).rev().collect(),
            huge: Vec::new(),
            rest,
            rest_bytes: 0,
        })
    }

    /// Takes a huge page. False: there was none, or no room for it.
    fn take_huge(&mut self) -> Result<bool> {
        let Some(&slot) = self.empty.last() else { return Ok(false) };
        let huge = self.hoard.take_huge(slot)?;
        if huge {
            self.huge.extend(self.empty.pop());
        }
        Ok(huge)
    }

    /// Takes all memory, as huge pages as far as possible: small pages of files in memory can be
    /// moved to make room for huge ones.
    fn take_all(&mut self) -> Result<()> {
        self.take_all_huge()?;
        while memory::available()?.0 > FLOOR + STEP {
            fallocate(&self.rest, FallocateFlags::empty(), self.rest_bytes, STEP)
                .context("taking memory")?;
            self.rest_bytes += STEP;
        }
        Ok(())
    }

    fn take_all_huge(&mut self) -> Result<()> {
        let mut refusals = 0;
        while refusals < REFUSALS_MAX && memory::available()?.0 > FLOOR {
            refusals = if self.take_huge()? { 0 } else { refusals + 1 };
        }
        Ok(())
    }

    /// Makes `bytes` unusable for huge pages.
    fn crumble(&mut self, bytes: u64) -> Result<()> {
        let count = (bytes / EXTENT as u64) as usize;
        ensure!(
            self.huge.len() >= count,
            "the kernel gave only {} on huge pages",
            Bytes((self.huge.len() * EXTENT) as u64)
        );
        let slots = self.huge.split_off(self.huge.len() - count);
        self.hoard.crumble(&slots).context("pinning pages with io_uring")
    }

    /// Leaves `bytes` on huge pages to other processes: takes all huge pages, and frees that many.
    fn settle(&mut self, bytes: u64) -> Result<Settled> {
        self.take_all_huge()?;
        let count = self.huge.len().min((bytes / EXTENT as u64) as usize);
        for slot in self.huge.split_off(self.huge.len() - count) {
            self.hoard.empty(slot)?;
            self.empty.push(slot);
        }
        Ok(Settled { huge: (count * EXTENT) as u64, available: memory::available()?.0 })
    }
}

/// The process itself.
pub fn main(job: &str) -> Result<ExitCode> {
    let job: Job = serde_json::from_str(job).context("a job that cannot be read")?;
    std::fs::write("/proc/self/oom_score_adj", "1000")
        .context("becoming the first victim of the OOM killer")?;
    let whole = memory::Limits::read().machine.0;
    let mut holder = Holder::new(((whole + job.small) / EXTENT as u64) as usize)
        .context("reserving addresses")?;
    // File cache would be in the way everywhere, and its pages would be reclaimed one by one.
    for setting in ["drop_caches", "compact_memory"] {
        let _ = std::fs::write(Path::new("/proc/sys/vm").join(setting), "1");
    }
    holder.take_all()?;
    holder.crumble(job.small)?;
    answer(holder.settle(job.huge)?)?;
    for line in io::stdin().lock().lines() {
        line?;
        answer(holder.settle(job.huge)?)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn answer(settled: Settled) -> Result<()> {
    println!("{MARK}{}", serde_json::to_string(&settled)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taken_memory_can_be_released() {
        let mut holder = Holder::new(4).unwrap();
        match holder.take_huge() {
            Ok(true) => {}
            Ok(false) => {
                return hiroma_testkit::skip!(Machine, "the kernel has no huge page at the moment");
            }
            Err(error) => {
                return hiroma_testkit::skip!(
                    Machine,
                    "{error:#} (Linux 6.7 tells which pages are huge)"
                );
            }
        }
        assert!(holder.crumble(2 * EXTENT as u64).unwrap_err().to_string().contains("2MiB"));
        let settled = holder.settle(EXTENT as u64).unwrap();
        assert_eq!((settled.huge, holder.huge.len() + holder.empty.len()), (EXTENT as u64, 4));
    }
}
