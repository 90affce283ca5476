//! A process that touches memory in a known way, for evaluating trackers and for measuring the gain
//! of huge pages.
//!
//! It maps its memory, fills what the pattern uses, prints one line (JSON, [`Ready`]), and then
//! executes the lines on its standard input: `run N` does N sets and answers with one line
//! ([`Done`]); `loop` continues until `stop`, which is answered too; `phase N` selects the hot part
//! from then on (answered by an empty [`Done`]). It exits at the end of input.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use hiroma_memload::ballast::Ballast;
use hiroma_sys::vm::{Access, Advise, Reservation};
use hiroma_sys::workload::Region;
use hiroma_units::Rng;
use hiroma_units::{EXTENT, PAGE, PAGES_PER_EXTENT};
use serde::{Deserialize, Serialize};

use crate::children::this_program;

/// Number of stored draws of a zipf distribution: so much larger than the number of pages of a GiB
/// that the number of draws of a page is hardly random.
const DRAWS: usize = 1 << 23;
const SEED: u64 = 7;

/// The touched pages and their order.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    /// All pages, in order.
    Sequential,
    /// All pages, in a random order, each once in a set.
    Random,
    /// A random third of the 2 MiB ranges, in a random order. Of the rest, every tenth page was
    /// touched once: 40 % of the memory is in use.
    Skewed,
    /// All pages are in use, and a random third of the 2 MiB ranges is touched repeatedly; another
    /// third in each phase.
    Moving,
    /// A random third of the pages.
    Scattered,
    /// Draws from a zipf distribution (.99) over all pages, with the ranks at random places.
    Zipf,
}

/// The pages that the kernel may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pages {
    /// According to the machine's setting.
    Default,
    /// Only small pages.
    Small,
    /// Huge pages at the first touch, as with transparent huge pages set to always.
    Huge,
    /// Small pages at the first touch; afterwards khugepaged may collapse them.
    Later,
}

/// Options of the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Load {
    pub bytes: usize,
    pub pattern: Pattern,
    pub pages: Pages,
    /// Fork an idle child that shares all of the memory.
    #[serde(default)]
    pub forks: bool,
    /// Disable huge pages with `PR_SET_THP_DISABLE`.
    #[serde(default)]
    pub refuses_huge: bool,
    /// The third that is hot with [`Pattern::Moving`].
    #[serde(default)]
    pub phase: u64,
}

impl Load {
    /// A process that neither forks nor disables huge pages.
    pub fn new(bytes: usize, pattern: Pattern, pages: Pages) -> Load {
        Load { bytes, pattern, pages, forks: false, refuses_huge: false, phase: 0 }
    }
}

/// The first answer.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Ready {
    /// Address of the memory; 2 MiB aligned.
    pub base: u64,
}

/// Results of some sets.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Done {
    pub sets: u64,
    pub touches: u64,
    pub seconds: f64,
    /// Processor time, in seconds.
    pub cpu_seconds: f64,
}

impl Done {
    /// Touches per second of processor time, in millions.
    pub fn touches_per_cpu_us(&self) -> f64 {
        self.touches as f64 / (self.cpu_seconds * 1e6)
    }

    /// As in the paper: whole pages per second, in GB/s.
    pub fn gb_per_s(&self) -> f64 {
        (self.touches as usize * PAGE) as f64 / self.seconds / 1e9
    }
}

/// A fixed hash of a number.
fn mixed(number: u64) -> u64 {
    Rng::new(number ^ SEED).next_u64()
}

impl Load {
    fn pages(&self) -> usize {
        self.bytes / PAGE
    }

    /// Whether the pattern repeatedly touches page `page` of the memory (not for [`Pattern::Zipf`],
    /// which touches all).
    pub fn is_hot(&self, page: usize) -> bool {
        match self.pattern {
            Pattern::Sequential | Pattern::Random | Pattern::Zipf => true,
            Pattern::Skewed => mixed((page / PAGES_PER_EXTENT) as u64) % 3 == 0,
            Pattern::Moving => mixed((page / PAGES_PER_EXTENT) as u64) % 3 == self.phase % 3,
            Pattern::Scattered => mixed(page as u64) % 3 == 0,
        }
    }

    /// Whether the page is touched at all.
    fn is_used(&self, page: usize) -> bool {
        match self.pattern {
            Pattern::Skewed => self.is_hot(page) || page % 10 == 0,
            _ => true,
        }
    }

    /// The tenth of the pages that is touched most in a set.
    pub fn hottest_tenth(&self) -> BTreeSet<u32> {
        let mut touches = vec![0u32; self.pages()];
        self.order().iter().for_each(|&page| touches[page as usize] += 1);
        let mut pages: Vec<u32> = (0..self.pages() as u32).collect();
        pages.sort_by_key(|&page| std::cmp::Reverse(touches[page as usize]));
        pages.truncate(self.pages() / 10);
        pages.into_iter().collect()
    }

    /// The pages in the order of their zipf rank.
    fn by_rank(&self) -> Vec<u32> {
        let mut pages: Vec<u32> = (0..self.pages() as u32).collect();
        shuffle(&mut pages);
        pages
    }

    /// The touches of one set; for a zipf distribution those of several sets.
    fn order(&self) -> Vec<u32> {
        if self.pattern == Pattern::Zipf {
            return self.draws();
        }
        let mut pages: Vec<u32> =
            (0..self.pages() as u32).filter(|&page| self.is_hot(page as usize)).collect();
        if self.pattern != Pattern::Sequential {
            shuffle(&mut pages);
        }
        pages
    }

    fn draws(&self) -> Vec<u32> {
        let ranks = self.by_rank();
        let mut sum = 0.0;
        let cumulative: Vec<f64> = (1..=ranks.len())
            .map(|rank| {
                sum += (rank as f64).powf(-0.99);
                sum
            })
            .collect();
        let mut random = Rng::new(SEED);
        (0..DRAWS)
            .map(|_| {
                let at = random.next_u64() as f64 / u64::MAX as f64 * sum;
                ranks[cumulative.partition_point(|&upto| upto < at).min(ranks.len() - 1)]
            })
            .collect()
    }
}

fn shuffle(pages: &mut [u32]) {
    let mut random = Rng::new(SEED);
    for at in (1..pages.len()).rev() {
        pages.swap(at, random.below_u64(at as u64 + 1) as usize);
    }
}

/// Runs the process.
pub fn main(job: &str) -> Result<ExitCode> {
    let load: Load = serde_json::from_str(job).context("the job of a load is not readable")?;
    // The process is useless without its parent.
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    if load.refuses_huge {
        hiroma_sys::hot::child::disable_huge_pages()?;
    }
    let memory = Reservation::new(load.bytes, EXTENT, Access::ReadWrite)?;
    match load.pages {
        Pages::Default => {}
        Pages::Small | Pages::Later => {
            memory.advise(memory.base(), memory.len(), Advise::NoHuge)?
        }
        Pages::Huge => memory.advise(memory.base(), memory.len(), Advise::Huge)?,
    }
    let region = Region::adopt(memory.base(), memory.len())?;
    for page in (0..load.pages()).filter(|&page| load.is_used(page)) {
        region.write(page * PAGE, &[page as u64]);
    }
    if load.pages == Pages::Later {
        memory.advise(memory.base(), memory.len(), Advise::Huge)?;
    }
    if load.forks {
        hiroma_sys::hot::child::fork_idle()?;
    }
    let (send, commands) = channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            if send.send(line).is_err() {
                break;
            }
        }
    });
    answer(&Ready { base: memory.base() as u64 })?;
    serve(&region, load, &commands)?;
    // A final check: nothing may have changed.
    for page in (0..load.pages()).filter(|&page| load.is_used(page)) {
        ensure!(region.read(page * PAGE) == page as u64, "page {page} has changed");
    }
    Ok(ExitCode::SUCCESS)
}

fn answer(what: &impl Serialize) -> Result<()> {
    let mut line = serde_json::to_string(what)?;
    line.push('\n');
    let mut out = std::io::stdout();
    out.write_all(line.as_bytes())?;
    out.flush()?;
    Ok(())
}

fn serve(region: &Region, mut load: Load, commands: &Receiver<String>) -> Result<()> {
    let mut scratch = 0u64;
    let mut order = load.order();
    while let Ok(command) = commands.recv() {
        if let Some(phase) = command.strip_prefix("phase ") {
            load.phase = phase.parse().context("a phase is a number")?;
            order = load.order();
            answer(&Done::default())?;
            continue;
        }
        let wanted: Option<u64> = command.strip_prefix("run ").and_then(|sets| sets.parse().ok());
        let (began, cpu) = (Instant::now(), hiroma_sys::cpu::thread_ns());
        let mut sets = 0;
        while wanted.is_none_or(|wanted| sets < wanted) {
            for (turn, &page) in order.iter().enumerate() {
                // A different cache line of the page each time, so that translations are scarce,
                // and not the lines of one cache set.
                let line = (turn * 7 + page as usize) % (PAGE / 64 - 1) + 1;
                let offset = page as usize * PAGE + line * 64;
                let word = region.read(offset).wrapping_add(1);
                region.write(offset, &[word]);
                scratch = scratch.wrapping_add(word);
            }
            sets += 1;
            if wanted.is_none() {
                match commands.try_recv() {
                    Ok(_) => break,
                    Err(TryRecvError::Empty) => {}
                    Err(TryRecvError::Disconnected) => return Ok(()),
                }
            }
        }
        let cpu_seconds = (hiroma_sys::cpu::thread_ns() - cpu) as f64 / 1e9;
        answer(&Done {
            sets,
            touches: sets * order.len() as u64,
            seconds: began.elapsed().as_secs_f64(),
            cpu_seconds,
        })?;
    }
    std::hint::black_box(scratch);
    Ok(())
}

/// A running load, as seen by its parent. It is killed when dropped.
pub struct Loaded {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    pub base: u64,
    pub load: Load,
}

impl Loaded {
    /// First takes free memory back from the hypervisor, so that the process does not pay for that;
    /// then starts the process, and waits until its memory is filled.
    pub fn start(load: Load, ballast: &Ballast) -> Result<Loaded> {
        ballast.load()?;
        let mut command = Command::new(this_program()?);
        command
            .arg("huge-load")
            .arg(serde_json::to_string(&load)?)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().context("starting a load")?;
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().context("a load without output")?);
        let mut loaded = Loaded { child, input, output, base: 0, load };
        loaded.base = loaded.answer::<Ready>()?.base;
        Ok(loaded)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    fn tell(&mut self, line: &str) -> Result<()> {
        let input = self.input.as_mut().context("the load was ended")?;
        writeln!(input, "{line}").and_then(|()| input.flush()).context("the load has ended")
    }

    fn answer<T: for<'a> Deserialize<'a>>(&mut self) -> Result<T> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        serde_json::from_str(&line).with_context(|| format!("the load answered `{}`", line.trim()))
    }

    /// Does `sets` sets.
    pub fn run(&mut self, sets: u64) -> Result<Done> {
        self.tell(&format!("run {sets}"))?;
        self.answer()
    }

    /// Starts touching without end.
    pub fn go(&mut self) -> Result<()> {
        self.tell("loop")
    }

    /// Stops it after [`Loaded::go`].
    pub fn stop(&mut self) -> Result<Done> {
        self.tell("stop")?;
        self.answer()
    }

    /// Makes another part hot. The load must not be working.
    pub fn change_phase(&mut self, phase: u64) -> Result<()> {
        self.load.phase = phase;
        self.tell(&format!("phase {phase}"))?;
        self.answer::<Done>().map(drop)
    }

    /// Resident bytes.
    pub fn resident_bytes(&self) -> Result<u64> {
        Ok(hiroma_hot::machine::resident_bytes(self.pid())?)
    }

    /// Ends the process; fails if its memory has changed.
    pub fn end(mut self) -> Result<()> {
        self.input = None;
        let status = self.child.wait()?;
        ensure!(status.success(), "a load found its memory changed, or failed: {status}");
        Ok(())
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        self.input = None;
        let limit = Instant::now() + Duration::from_secs(2);
        while Instant::now() < limit {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skewed_heats_a_third_and_zipf_few() {
        let load = |pattern| Load::new(256 << 20, pattern, Pages::Default);
        let share = |pattern| load(pattern).order().len() as f64 / load(pattern).pages() as f64;
        assert_eq!((share(Pattern::Sequential), share(Pattern::Random)), (1.0, 1.0));
        assert!(
            (0.2..0.45).contains(&share(Pattern::Skewed))
                && (0.3..0.36).contains(&share(Pattern::Scattered))
        );
        let moving = |phase| Load { phase, ..load(Pattern::Moving) };
        let both = (0..moving(0).pages())
            .filter(|&page| moving(0).is_hot(page) && moving(1).is_hot(page))
            .count();
        assert_eq!(both, 0);
        let zipf = load(Pattern::Zipf);
        let top: BTreeSet<u32> = zipf.by_rank()[..zipf.pages() / 10].iter().copied().collect();
        let drawn = zipf.hottest_tenth();
        assert_eq!(drawn.len(), top.len());
        // The pages that are drawn most are nearly those with the highest probability.
        assert!(drawn.intersection(&top).count() * 100 > top.len() * 90);
        let hits = zipf.order().iter().filter(|page| top.contains(page)).count();
        assert!(hits * 10 > DRAWS * 7, "{hits}");
    }
}
