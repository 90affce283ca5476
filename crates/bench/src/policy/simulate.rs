//! Runs traces through policies, on all processors.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, bail};
use hiroma_far_lab::blocks::Rule;
use hiroma_far_lab::ours::{self, Options, Rules, SCANS};
use hiroma_far_lab::policies::Kind;
use hiroma_far_lab::{Costs, PolicyOutcome, Trace};

/// A policy in a simulation.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Policy {
    /// Chooses the page to evict, page by page.
    Known(Kind),
    /// Chooses what is fetched with a page, under LRU.
    Fetching(Rule),
    /// `hiroma-policy` as the pager drives it.
    Ours(&'static str, Options),
}

const fn blocks(order: u8) -> Options {
    Options { prefetch: true, ..Options::plain(order) }
}

/// Our own policies, by name.
pub const OURS: [(&str, Options); 17] = [
    ("ours", Options::plain(0)),
    ("ours-fifo", Options { fifo: true, ..Options::plain(0) }),
    ("ours-4k", blocks(0)),
    ("ours-8k", blocks(1)),
    ("ours-16k", blocks(2)),
    ("ours-64k", blocks(4)),
    ("ours-2m", blocks(9)),
    ("ours-auto", Options::AUTO),
    ("auto-no-clusters", without(Rules { clusters: false, ..Rules::ALL })),
    ("auto-no-groups", without(Rules { groups: false, ..Rules::ALL })),
    ("auto-no-runs", without(Rules { runs: false, ..Rules::ALL })),
    ("auto-no-zeros", without(Rules { zeros: false, ..Rules::ALL })),
    ("auto-no-prefetch", Options { prefetch: false, ..Options::AUTO }),
    ("auto-no-bits", Options::AUTO_BLIND),
    ("auto-single", without(Rules::NONE)),
    ("ours-4k-bits", Options { scans: SCANS, ..blocks(0) }),
    ("ours-16k-bits", Options { scans: SCANS, ..blocks(2) }),
];

/// `auto` with these rules only.
const fn without(rules: Rules) -> Options {
    Options { rules, ..Options::AUTO }
}

impl Policy {
    /// All policies.
    pub fn all() -> Vec<Policy> {
        let known = Kind::ALL.into_iter().map(Policy::Known);
        let fetching = Rule::ALL.into_iter().skip(1).map(Policy::Fetching);
        known
            .chain(OURS.map(|(name, options)| Policy::Ours(name, options)))
            .chain(fetching)
            .collect()
    }

    /// The policies with these names, or all.
    pub fn named(names: &[String]) -> Result<Vec<Policy>> {
        let all = Policy::all();
        if let Some(name) =
            names.iter().find(|name| all.iter().all(|policy| policy.name() != name.as_str()))
        {
            let known: Vec<&str> = all.iter().map(|policy| policy.name()).collect();
            bail!("no policy {name:?}: known are {}", known.join(", "));
        }
        let is_chosen =
            |policy: &Policy| names.is_empty() || names.iter().any(|name| name == policy.name());
        Ok(all.into_iter().filter(is_chosen).collect())
    }

    pub fn name(self) -> &'static str {
        match self {
            Policy::Known(kind) => kind.name(),
            Policy::Fetching(rule) => rule.name(),
            Policy::Ours(name, _) => name,
        }
    }

    fn simulate(self, trace: &Trace, capacity: usize, costs: &Costs) -> PolicyOutcome {
        match self {
            Policy::Known(kind) => kind.simulate(trace, capacity, costs),
            Policy::Fetching(rule) => rule.simulate(trace, capacity, costs),
            Policy::Ours(_, options) => ours::simulate(trace, capacity, options, costs),
        }
    }
}

/// One program with one share of its pages local.
pub struct Cell {
    pub program: String,
    pub percent: u8,
    pub outcomes: Vec<(Policy, PolicyOutcome)>,
}

impl Cell {
    /// The outcome of a policy.
    pub fn of(&self, name: &str) -> Option<PolicyOutcome> {
        self.outcomes.iter().find(|(policy, _)| policy.name() == name).map(|&(_, outcome)| outcome)
    }
}

/// Properties of a program's trace.
pub struct Program {
    pub name: String,
    pub pages: usize,
    pub steps: usize,
    pub references: u64,
}

/// Reads a trace.
pub fn read(path: &Path) -> Result<Trace> {
    let file = std::fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    Trace::read(&file).with_context(|| format!("reading {}", path.display()))
}

/// Runs policies on all traces.
pub fn run(
    traces: &[(String, PathBuf)],
    at: &[u8],
    policies: &[Policy],
    costs: &Costs,
) -> Result<(Vec<Program>, Vec<Cell>)> {
    let (mut programs, mut cells) = (Vec::new(), Vec::new());
    for (name, path) in traces {
        let trace = read(path)?;
        let work: Vec<(u8, Policy)> = at
            .iter()
            .flat_map(|&percent| policies.iter().map(move |&policy| (percent, policy)))
            .collect();
        let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        let threads = std::thread::available_parallelism().map_or(1, |count| count.get());
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    while let Some(&(percent, policy)) =
                        work.get(next.fetch_add(1, Ordering::Relaxed))
                    {
                        let outcome = policy.simulate(
                            &trace,
                            trace.touched * usize::from(percent) / 100,
                            costs,
                        );
                        if let Ok(mut done) = done.lock() {
                            done.push((percent, policy, outcome));
                        }
                    }
                });
            }
        });
        let done = done.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
        for &percent in at {
            let of = |&policy: &Policy| {
                done.iter()
                    .find(|&&(p, q, _)| p == percent && q.name() == policy.name())
                    .map(|&(_, _, outcome)| (policy, outcome))
            };
            cells.push(Cell {
                program: name.clone(),
                percent,
                outcomes: policies.iter().filter_map(of).collect(),
            });
        }
        programs.push(Program {
            name: name.clone(),
            pages: trace.touched,
            steps: trace.steps.len(),
            references: trace.header.references,
        });
    }
    Ok((programs, cells))
}
