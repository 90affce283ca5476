//! Many runs on a few threads. Results stand in the order of the jobs, so that nothing shows how
//! many threads there were.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

/// Whether everybody should come to an end: set by Ctrl-C, or because something went wrong.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Nobody has asked for an end yet.
    pub fn new() -> Stop {
        Stop::default()
    }

    /// The flag itself, for a signal handler.
    pub fn flag(&self) -> Arc<AtomicBool> {
        self.0.clone()
    }

    /// Asks for it.
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether somebody has.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Does `work` for every job, on `threads` threads, and hands each result to `done` on the caller's
/// thread, in the order in which they come. Once `done` or anybody else sets `stop`, no further job
/// is begun; those that were never begun stay `None`.
pub fn run_all<J: Sync, R: Send>(
    jobs: &[J],
    threads: usize,
    stop: &Stop,
    work: impl Fn(&J) -> R + Sync,
    mut done: impl FnMut(usize, &R),
) -> Vec<Option<R>> {
    let mut results: Vec<Option<R>> = jobs.iter().map(|_| None).collect();
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel();
        for _ in 0..threads.clamp(1, jobs.len().max(1)) {
            let (sender, next, work) = (sender.clone(), &next, &work);
            scope.spawn(move || {
                while !stop.is_set() {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(job) = jobs.get(index) else { break };
                    if sender.send((index, work(job))).is_err() {
                        break;
                    }
                }
            });
        }
        drop(sender);
        for (index, result) in receiver {
            done(index, &result);
            results[index] = Some(result);
        }
    });
    results
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_stand_in_the_order_of_the_jobs_however_many_threads_there_are() {
        let jobs: Vec<u64> = (0..200).collect();
        let alone = run_all(&jobs, 1, &Stop::new(), |job| job * job, |_, _| {});
        for threads in [2, 7, 500] {
            let mut told = 0;
            assert_eq!(
                run_all(&jobs, threads, &Stop::new(), |job| job * job, |_, _| told += 1),
                alone
            );
            assert_eq!(told, 200);
        }
        assert_eq!(alone[14], Some(196));
        assert!(run_all(&[] as &[u64], 2, &Stop::new(), |job| *job, |_, _| {}).is_empty());
    }

    #[test]
    fn after_a_stop_nothing_is_begun() {
        let jobs: Vec<u64> = (0..1000).collect();
        let stop = Stop::new();
        let results = run_all(
            &jobs,
            2,
            &stop,
            |job| *job,
            |index, _| {
                if index == 3 {
                    stop.set()
                }
            },
        );
        assert!(results[3].is_some());
        let begun = results.iter().filter(|result| result.is_some()).count();
        assert!(begun <= 1000);
        let none = run_all(&jobs, 2, &stop, |job| *job, |_, _| {});
        assert!(none.iter().all(Option::is_none));
    }
}
