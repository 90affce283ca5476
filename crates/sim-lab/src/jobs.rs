//! Many runs on a few threads. Results are in the order of the jobs, so that they do not depend on
//! the number of threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

/// Whether all runs should end: set by Ctrl-C, or after an error.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// A flag that is not set.
    pub fn new() -> Stop {
        Stop::default()
    }

    /// The flag itself, for a signal handler.
    pub fn flag(&self) -> Arc<AtomicBool> {
        self.0.clone()
    }

    /// Requests the end.
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether the end was requested.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Executes `work` for every job on `threads` threads, and passes each result to `done` on the
/// caller's thread, in order of completion. Once `stop` is set, by `done` or otherwise, no further
/// job is started; the results of jobs that were never started are `None`.
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
    fn results_keep_job_order_for_any_thread_count() {
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
    fn no_job_starts_after_a_stop() {
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
