//! Loads that touch memory in one way each. They use memory from `malloc`, like any program, so
//! that the same binary runs in all arms.

use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use hiroma_units::PAGE;
use hiroma_units::Rng;
use serde::{Deserialize, Serialize};

use crate::job::TaskResult;

const PAGE_WORDS: usize = PAGE / 8;
/// The low half of a word identifies its position, the high half counts how often it was written.
const PLACE: u64 = u32::MAX as u64;
/// Duration of each pattern.
const PATTERN: Duration = Duration::from_secs(1);
/// Number of touches that each pattern is charged for, the same for all.
const PATTERN_TOUCHES: f64 = 50_000.0;

/// A load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Load {
    /// Threads that read or write a word of random pages: first to settle, then timed.
    Threads { bytes: usize, threads: usize, writes: bool, settle_ms: u64, timed_ms: u64 },
    /// A different pattern each second.
    Shifting { bytes: usize },
    /// Writes each page once, and returns only to a few, to check them.
    Once { bytes: usize },
    /// Random reads and writes of incompressible memory.
    Noise { bytes: usize, accesses: u64 },
    /// Four of five accesses go to a fifth of the pages.
    Skewed { bytes: usize, accesses: u64 },
    /// Touches fresh memory, frees it, and repeats that.
    FirstTouch { bytes: usize, rounds: usize },
}

/// Runs a load.
pub fn run(load: &Load) -> Result<TaskResult> {
    match *load {
        Load::Threads { bytes, threads, writes, settle_ms, timed_ms } => in_threads(
            &Words::filled(bytes, compressible),
            threads,
            writes,
            [settle_ms, timed_ms].map(Duration::from_millis),
        ),
        Load::Shifting { bytes } => shifting(&Words::filled(bytes, compressible)),
        Load::Once { bytes } => once(bytes),
        Load::Noise { bytes, accesses } => {
            random(&Words::filled(bytes, noise), accesses, |random, pages| random.below_u64(pages))
        }
        Load::Skewed { bytes, accesses } => {
            random(&Words::filled(bytes, compressible), accesses, skewed)
        }
        Load::FirstTouch { bytes, rounds } => first_touch(bytes, rounds),
    }
}

/// Content of word `at`: bytes 0 to 3 identify its position, and three of 16 bytes are random,
/// about as compressible as typical data.
fn compressible(at: usize) -> u64 {
    let page = (at / PAGE_WORDS) as u64;
    if at % 2 == 0 { page } else { mixed(at as u64) >> 40 }
}

/// Random in the low half, too; the high half is noise that writes add to.
fn noise(at: usize) -> u64 {
    mixed(at as u64)
}

fn mixed(number: u64) -> u64 {
    Rng::new(number).next_u64()
}

/// Memory whose content is known for each word.
struct Words {
    words: Vec<AtomicU64>,
    content: fn(usize) -> u64,
}

impl Words {
    fn filled(bytes: usize, content: fn(usize) -> u64) -> Words {
        Words { words: (0..bytes / 8).map(|at| AtomicU64::new(content(at))).collect(), content }
    }

    fn pages(&self) -> u64 {
        (self.words.len() / PAGE_WORDS) as u64
    }

    /// Reads a word of a page. False: its content is wrong.
    fn read(&self, page: u64, word: u64) -> bool {
        let at = page as usize * PAGE_WORDS + word as usize;
        (self.words[at].load(Relaxed) ^ (self.content)(at)) & PLACE == 0
    }

    /// Changes the high half of a word, so that a comparison of contents finds the page changed.
    /// False: the content was wrong.
    fn write(&self, page: u64, word: u64) -> bool {
        let at = page as usize * PAGE_WORDS + word as usize;
        (self.words[at].fetch_add(PLACE + 1, Relaxed) ^ (self.content)(at)) & PLACE == 0
    }
}

fn outcome(seconds: f64, count: u64, wrong: u64) -> Result<TaskResult> {
    ensure!(wrong == 0, "{wrong} of {count} words came back changed");
    Ok(TaskResult { seconds, count, bytes: count * PAGE as u64, ..TaskResult::default() })
}

fn in_threads(
    words: &Words,
    threads: usize,
    writes: bool,
    [settle, timed]: [Duration; 2],
) -> Result<TaskResult> {
    let together = Barrier::new(threads);
    let one = |seed: u64| {
        let mut random = Rng::new(seed);
        let mut wrong = 0;
        let mut during = |time: Duration| {
            let (start, mut count) = (Instant::now(), 0u64);
            // The clock is read rarely: reading it costs as much as a resident access.
            while count % 16 != 0 || start.elapsed() < time {
                let (page, word) =
                    (random.below_u64(words.pages()), random.below_u64(PAGE_WORDS as u64));
                wrong += u64::from(!if writes {
                    words.write(page, word)
                } else {
                    words.read(page, word)
                });
                count += 1;
            }
            (count, start.elapsed())
        };
        together.wait();
        during(settle);
        together.wait();
        let (count, took) = during(timed);
        (count, took.as_secs_f64(), wrong)
    };
    let each: Vec<_> = thread::scope(|scope| {
        let started: Vec<_> =
            (0..threads).map(|seed| scope.spawn(move || one(seed as u64 + 1))).collect();
        started.into_iter().filter_map(|thread| thread.join().ok()).collect()
    });
    ensure!(each.len() == threads, "a thread panicked");
    let seconds = each.iter().map(|&(_, seconds, _)| seconds).fold(0.0, f64::max);
    outcome(
        seconds,
        each.iter().map(|&(count, ..)| count).sum(),
        each.iter().map(|&(.., wrong)| wrong).sum(),
    )
}

/// Measures the time that the same number of touches takes in each pattern.
fn shifting(words: &Words) -> Result<TaskResult> {
    let pages = words.pages();
    let mut random = Rng::new(8);
    let (mut seconds, mut count, mut wrong) = (0.0, 0, 0);
    for pattern in 0..8 {
        let (start, mut at) = (Instant::now(), 0u64);
        while at % 16 != 0 || start.elapsed() < PATTERN {
            let page = match pattern % 4 {
                0 => at,
                1 => random.below_u64(pages),
                2 => at * 17,
                // A working set that fits, at a different place each time.
                _ => pattern * pages / 8 + random.below_u64(pages / 8),
            } % pages;
            let word = at % PAGE_WORDS as u64;
            wrong += u64::from(!if at % 4 == 0 {
                words.write(page, word)
            } else {
                words.read(page, word)
            });
            at += 1;
        }
        seconds += start.elapsed().as_secs_f64() / at as f64 * PATTERN_TOUCHES;
        count += at;
    }
    outcome(seconds, count, wrong)
}

fn once(bytes: usize) -> Result<TaskResult> {
    let start = Instant::now();
    let words = Words::filled(bytes, compressible);
    let seconds = start.elapsed().as_secs_f64();
    let wrong = (0..words.pages())
        .step_by(997)
        .filter(|&page| !words.read(page, page % PAGE_WORDS as u64))
        .count();
    outcome(seconds, words.pages(), wrong as u64)
}

fn skewed(random: &mut Rng, pages: u64) -> u64 {
    let fifth = pages / 5;
    // Neighbours in rank are not neighbours in memory.
    let rank = if random.below_u64(5) < 4 {
        random.below_u64(fifth)
    } else {
        fifth + random.below_u64(pages - fifth)
    };
    rank * 4099 % pages
}

fn random(words: &Words, accesses: u64, next: fn(&mut Rng, u64) -> u64) -> Result<TaskResult> {
    let mut random = Rng::new(3);
    let start = Instant::now();
    let mut wrong = 0;
    for at in 0..accesses {
        let (page, word) = (next(&mut random, words.pages()), random.below_u64(PAGE_WORDS as u64));
        wrong +=
            u64::from(!if at % 4 == 0 { words.write(page, word) } else { words.read(page, word) });
    }
    outcome(start.elapsed().as_secs_f64(), accesses, wrong)
}

/// The first round is not counted: memory that the hypervisor has not backed yet is much more
/// expensive in any arm.
fn first_touch(bytes: usize, rounds: usize) -> Result<TaskResult> {
    let (mut seconds, mut wrong) = (Vec::new(), 0);
    for round in 0..=rounds {
        let mut memory = vec![0u8; bytes];
        let start = Instant::now();
        for at in (0..bytes).step_by(PAGE) {
            wrong += u64::from(black_box(memory[at + 8]) != 0);
            memory[at] = 1;
        }
        if round > 0 {
            seconds.push(start.elapsed().as_secs_f64());
        }
        black_box(&memory);
    }
    seconds.sort_by(f64::total_cmp);
    outcome(seconds[seconds.len() / 2], (bytes / PAGE) as u64, wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_load_does_its_accesses_and_verifies_words() {
        let bytes = 4 << 20;
        let outcome =
            run(&Load::Threads { bytes, threads: 2, writes: true, settle_ms: 5, timed_ms: 20 })
                .unwrap();
        assert!(outcome.count > 100 && outcome.seconds >= 0.02);
        for load in [Load::Noise { bytes, accesses: 5000 }, Load::Skewed { bytes, accesses: 5000 }]
        {
            assert_eq!(run(&load).unwrap().count, 5000);
        }
        assert_eq!(run(&Load::Once { bytes }).unwrap().count, 1024);
        assert_eq!(run(&Load::FirstTouch { bytes, rounds: 2 }).unwrap().count, 1024);
    }

    #[test]
    fn corrupted_words_are_detected_but_written_ones_pass() {
        let words = Words::filled(8 * PAGE, noise);
        assert!(words.write(3, 9) && words.write(3, 9) && words.read(3, 9));
        words.words[3 * PAGE_WORDS + 9].fetch_add(1, Relaxed);
        assert!(!words.read(3, 9) && words.read(3, 10));
        let mut random = Rng::new(1);
        let mut seen = vec![0; 1000];
        (0..100_000).for_each(|_| seen[skewed(&mut random, 1000) as usize] += 1);
        seen.sort_unstable();
        assert!(seen[800..].iter().sum::<i32>() > 70_000);
    }
}
