//! Forks: the child verifies that its memory is unchanged, changes it, and verifies its changes,
//! while the parent continues.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::page::{self, Page};
use crate::words::PAGE_LINES;
use crate::work::Worker;
use crate::{EXTENT, PAGE};

/// Maximum number of children at a time.
const CHILDREN: usize = 2;
/// A child that takes longer than this hangs.
const PATIENCE: Duration = Duration::from_secs(120);

/// A child that was not reaped yet.
pub struct Child {
    pid: i32,
    since: Instant,
}

/// Forks, unless there are enough children. Half of the forks wait until all threads have stopped:
/// only then is every word of the child known. In the others the threads continue to write, and the
/// child only verifies the memory of its own thread.
pub fn fork(worker: &mut Worker) {
    let checker = worker.checker;
    if worker.child.is_some() || checker.children.fetch_add(1, Ordering::Relaxed) >= CHILDREN {
        if worker.child.is_none() {
            checker.children.fetch_sub(1, Ordering::Relaxed);
        }
        return;
    }
    let quiet = worker.random.once_in(2);
    let _forking = checker.forking.lock().unwrap();
    let all_stand_still = quiet.then(|| checker.gate.write().unwrap());
    let pid = fork_once(worker, quiet, 0);
    drop(all_stand_still);
    worker.child = Some(Child { pid, since: Instant::now() });
}

fn fork_once(worker: &mut Worker, quiet: bool, depth: u32) -> i32 {
    let pager = &worker.checker.pager;
    let fresh = Fresh::new(worker);
    pager.before_fork(&[]);
    match page::fork() {
        0 => {
            fresh.write();
            if worker.checker.options.canary.as_deref() == Some("early") {
                // Other threads may have taken the access to their pages away.
                let first = worker.checker.line_pages + worker.thread;
                let mine = (first..worker.checker.pages).step_by(worker.checker.options.threads);
                mine.for_each(|number| worker.checker.page(number).touch());
            }
            pager.after_fork_in_child();
            fresh.verify_and_discard(worker);
            live(worker, quiet, depth);
            page::exit_now(0)
        }
        pid if pid < 0 => worker
            .checker
            .fail(&worker.name(), &format!("fork: {}", std::io::Error::last_os_error())),
        pid => {
            pager.after_fork_in_parent();
            fresh.unmap(worker);
            pid
        }
    }
}

/// Number of pages that a child writes before it has a pager.
const FRESH_PAGES: usize = 6;

/// A mapping that was never accessed before the fork. No other shares its extent: what was evicted
/// together with a neighbour is elsewhere, and a child must not access that before it has a pager.
struct Fresh {
    addr: usize,
    versions: Vec<AtomicU32>,
}

impl Fresh {
    fn new(worker: &Worker) -> Fresh {
        let addr = worker.checker.pager.map(EXTENT, EXTENT).unwrap_or_else(|error| {
            worker.checker.fail(&worker.name(), &format!("map before a fork: {error}"))
        });
        let versions = (0..FRESH_PAGES * PAGE_LINES).map(|_| AtomicU32::new(0)).collect();
        Fresh { addr, versions }
    }

    /// Every second page.
    fn pages(&self) -> impl Iterator<Item = Page<'_>> {
        (0..FRESH_PAGES).step_by(2).map(|number| Page {
            addr: self.addr + number * PAGE,
            index: 1 << 35 | (number * PAGE / 8) as u64,
            versions: &self.versions[number * PAGE_LINES..(number + 1) * PAGE_LINES],
        })
    }

    fn write(&self) {
        self.pages().for_each(|page| page.write(0..PAGE_LINES, 1));
    }

    fn verify_and_discard(&self, worker: &Worker) {
        for page in self.pages() {
            worker.check(&page, page.verify(0..PAGE_LINES));
            if let Err(error) = worker.checker.pager.discard(page.addr, PAGE) {
                let text = format!("discard of what was written before the pager: {error}");
                worker.checker.fail(&worker.name(), &text);
            }
            page.expect_zeros();
            worker.check(&page, page.verify(0..PAGE_LINES));
        }
    }

    fn unmap(&self, worker: &Worker) {
        if let Err(error) = worker.checker.pager.unmap(self.addr, EXTENT) {
            worker.checker.fail(&worker.name(), &format!("unmap after a fork: {error}"));
        }
    }
}

/// Runs a child.
fn live(worker: &mut Worker, quiet: bool, depth: u32) {
    verify(worker, quiet);
    if depth == 0 && worker.random.once_in(3) {
        let pid = fork_once(worker, quiet, depth + 1);
        write(worker, quiet);
        match page::reap(pid, true) {
            Some(0) => {}
            status => worker
                .checker
                .fail(&worker.name(), &format!("the child's child ended with status {status:?}")),
        }
    } else {
        write(worker, quiet);
    }
    verify(worker, quiet);
}

fn write(worker: &mut Worker, quiet: bool) {
    let checker = worker.checker;
    for _ in 0..300 {
        let number = checker.line_pages + worker.random.below(checker.pages - checker.line_pages);
        let mine = (number - checker.line_pages) % checker.options.threads == worker.thread;
        if quiet || mine {
            let version = worker.next_version();
            checker.page(number).write(0..PAGE_LINES, version);
        }
        if worker.random.once_in(20) && (quiet || mine) {
            let page = checker.page(number);
            if let Err(error) = checker.pager.discard(page.addr, PAGE) {
                checker.fail(&worker.name(), &format!("discard in a child: {error}"));
            }
            page.expect_zeros();
        }
    }
}

fn verify(worker: &Worker, quiet: bool) {
    let checker = worker.checker;
    if !quiet {
        return worker.verify_mine();
    }
    for number in 0..checker.pages {
        let page = checker.page(number);
        worker.check(&page, page.verify(0..PAGE_LINES));
    }
    checker.own.iter().for_each(|own| worker.verify_maps(&own.lock().unwrap()));
}

/// Checks whether the child has ended, and how.
pub fn reap(worker: &mut Worker, wait: bool) {
    let Some(Child { pid, since }) = worker.child else { return };
    let status = loop {
        let status = page::reap(pid, false);
        if status.is_some() || !wait || since.elapsed() > PATIENCE {
            break status;
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    match status {
        Some(0) => {
            worker.child = None;
            worker.checker.children.fetch_sub(1, Ordering::Relaxed);
        }
        Some(status) => worker.checker.fail(
            &worker.name(),
            &format!("child {pid} ended with wait status {status:#x} (see above)"),
        ),
        None if since.elapsed() > PATIENCE => {
            page::kill(pid);
            worker.checker.fail(&worker.name(), &format!("child {pid} hangs"));
        }
        None => {}
    }
}
