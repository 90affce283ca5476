//! The processes of a run: when they arrive, and when the last thread of each has ended.

use crate::config::LoadConfig;
use crate::load::{Arrivals, ThreadPlan};
use crate::random::Normal;

/// Maximum number of accesses that a thread makes in one event: what other nodes do to its node in
/// between takes effect after them.
pub const ACCESSES_AT_ONCE: u32 = 64;

#[derive(Clone, Copy)]
struct Process {
    arrived_ns: u64,
    threads_left: u32,
}

/// See the module's head.
pub struct Processes {
    arrivals: Arrivals,
    processes: Vec<Process>,
    /// Numbers of processes that have ended.
    free: Vec<u32>,
}

impl Processes {
    /// The processes of `seed`.
    pub fn new(config: &LoadConfig, seed: u64) -> Self {
        let arrivals = Arrivals::new(config, seed);
        Processes { arrivals, processes: Vec::new(), free: Vec::new() }
    }

    /// Time from one process to the next, ns.
    pub fn gap_ns(&mut self) -> u64 {
        self.arrivals.gap_ns()
    }

    /// A process arrives: its threads, the node and the plan of each, are pushed to `threads`, which
    /// is empty.
    pub fn arrive(
        &mut self,
        config: &LoadConfig,
        normal: &Normal,
        nodes: u32,
        now_ns: u64,
        threads: &mut Vec<(u32, ThreadPlan)>,
    ) {
        let number = self.free.pop().unwrap_or_else(|| {
            self.processes.push(Process { arrived_ns: 0, threads_left: 0 });
            self.processes.len() as u32 - 1
        });
        self.arrivals.process(config, normal, nodes, number, threads);
        self.processes[number as usize] =
            Process { arrived_ns: now_ns, threads_left: threads.len() as u32 };
    }

    /// A thread of `process` has ended. If it was the last one, the process has ended: returns when
    /// it arrived, ns.
    pub fn thread_ended(&mut self, process: u32) -> Option<u64> {
        let Process { arrived_ns, threads_left } = &mut self.processes[process as usize];
        *threads_left -= 1;
        if *threads_left > 0 {
            return None;
        }
        self.free.push(process);
        Some(*arrived_ns)
    }
}
