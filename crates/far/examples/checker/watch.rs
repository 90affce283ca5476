//! The watcher: changes the limit while the others work, verifies that it is respected, and detects
//! when the threads make no more progress.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use hiroma_far::control::Counter;

use crate::Checker;
use crate::words::{LINE_WORDS, PAGE_LINES, Random, word};
use crate::work::OPS;

/// How far local memory may exceed the limit.
const SLACK: u64 = 16 << 20;
/// A thread that finishes no operation for this long hangs. (Sixteen threads share few cores, and
/// children run beside them.)
const PATIENCE: Duration = Duration::from_secs(90);
/// Lines that a canary damages, and how many are tried to find them.
const CANARY_LINES: usize = 100;
const CANARY_TRIES: usize = 20_000;

pub fn run(checker: &Checker) {
    let mut random = Random::new(checker.options.seed, 1 << 32);
    let normal = checker.options.config.local_limit_bytes;
    let mut limit = Limit { now: normal, before: normal, lowered: Instant::now(), highest: normal };
    let mut seen = vec![(0, Instant::now()); checker.options.threads];
    let mut round = 0u64;
    let mut damaged = checker.options.canary.as_deref().is_none_or(|kind| kind == "early");
    while !checker.stop.load(Relaxed) {
        std::thread::sleep(Duration::from_millis(2));
        round += 1;
        limit.check(checker);
        if round % 150 == 0 && !damaged {
            damaged = canary(checker, &mut random);
        }
        if round % 64 == 0 {
            // The kernel counts while memory moves, and moving pages can be counted twice: only
            // what is seen repeatedly is there.
            let mut arena = arena_rss(checker);
            for _ in 0..5 {
                if arena > limit.allowed() {
                    arena = arena.min(arena_rss(checker));
                }
            }
            if arena > limit.allowed() {
                checker.fail(
                    "watcher",
                    &format!(
                        "{arena} bytes of the arena are resident by smaps, limit {} (before: {})",
                        limit.now, limit.before
                    ),
                );
            }
        }
        if random.once_in(100) && !checker.options.without.iter().any(|name| name == "limit") {
            let bytes =
                (normal / 2 + random.next() % (normal * 3 / 2)).max(hiroma_far::LOCAL_MIN.0);
            limit.set(checker, bytes >> 12 << 12);
        }
        for (thread, seen) in seen.iter_mut().enumerate() {
            let progress = &checker.progress[thread];
            let done = progress.done.load(Relaxed);
            let op = progress.op.load(Relaxed);
            if done != seen.0 || op == usize::MAX {
                *seen = (done, Instant::now());
            } else if seen.1.elapsed() > PATIENCE {
                let addr = progress.addr.load(Relaxed);
                checker.fail(
                    "watcher",
                    &format!("thread {thread} hangs in {} at {addr:#x}", OPS[op].0),
                );
            }
        }
    }
    limit.check(checker);
    let most = checker.pager.snapshot().get(Counter::LocalBytesMax);
    if most > limit.highest + SLACK {
        checker.fail(
            "watcher",
            &format!("local bytes have been {most}, the highest limit was {}", limit.highest),
        );
    }
}

struct Limit {
    now: u64,
    /// The previous limit, until the new one has been reached.
    before: u64,
    lowered: Instant,
    highest: u64,
}

impl Limit {
    fn allowed(&self) -> u64 {
        self.now.max(self.before) + SLACK
    }

    fn check(&mut self, checker: &Checker) {
        let local = checker.pager.snapshot().get(Counter::LocalBytes);
        if local > self.allowed() {
            checker.fail(
                "watcher",
                &format!("local bytes are {local}, limit {} (before: {})", self.now, self.before),
            );
        }
        if local <= self.now + SLACK {
            self.before = self.now;
        } else if self.lowered.elapsed() > PATIENCE {
            checker.fail(
                "watcher",
                &format!("local bytes are {local} and never reached the limit of {}", self.now),
            );
        }
    }

    fn set(&mut self, checker: &Checker, bytes: u64) {
        self.before = self.allowed() - SLACK;
        self.now = bytes;
        self.highest = self.highest.max(bytes);
        self.lowered = Instant::now();
        if let Err(error) = checker.pager.set_limit(bytes) {
            checker.fail("watcher", &format!("set_limit to {bytes}: {error}"));
        }
    }
}

/// Damages some pages according to `--canary`. A checker that does not detect that detects nothing.
fn canary(checker: &Checker, random: &mut Random) -> bool {
    let Some(kind) = checker.options.canary.as_deref() else { return true };
    let _all_stand_still = checker.gate.write().unwrap();
    let written_again = |(page, line): &(usize, usize)| {
        let version = checker.page(*page).version(*line);
        version > 4 && version & 3 != 3
    };
    let mut any = || {
        (
            checker.line_pages + random.below(checker.pages - checker.line_pages),
            random.below(PAGE_LINES),
        )
    };
    let chosen: Vec<_> = std::iter::repeat_with(&mut any)
        .take(CANARY_TRIES)
        .filter(written_again)
        .take(CANARY_LINES)
        .collect();
    if chosen.len() < CANARY_LINES {
        return false;
    }
    for (page, line) in chosen {
        let page = checker.page(page);
        let (at, version) = (line * LINE_WORDS, page.version(line));
        let place = page.index + at as u64;
        page.spoil(
            at,
            if kind == "zero" {
                0
            } else {
                word(
                    place + if kind == "misplaced" { 512 } else { 0 },
                    version - if kind == "stale" { 4 } else { 0 },
                )
            },
        );
    }
    true
}

/// Resident bytes of the arena, as reported by the kernel.
fn arena_rss(checker: &Checker) -> u64 {
    let (base, len) = checker.pager.arena();
    let text = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
    let (mut inside, mut total) = (false, 0);
    for line in text.lines() {
        if let Some((start, _)) = line
            .split_once('-')
            .filter(|(start, _)| !start.is_empty() && start.bytes().all(|b| b.is_ascii_hexdigit()))
        {
            inside = usize::from_str_radix(start, 16)
                .is_ok_and(|start| start >= base && start - base < len);
        } else if let Some(kib) = line.strip_prefix("Rss:").filter(|_| inside) {
            total += kib.trim().trim_end_matches("kB").trim().parse::<u64>().unwrap_or(0) << 10;
        }
    }
    total
}
