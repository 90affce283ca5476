//! The runs of an experiment, as data: the runner interleaves them, and the experiment reads the
//! results.

use hiroma_far::config::{Allocation, BlockSize, ReplacementKind, Seal};
use hiroma_policy::redundancy::Scheme;

use super::params::Params;
use crate::job::Task;
use crate::peers::SwapKind;

/// One thing to run, with repetitions.
#[derive(Clone, Debug)]
pub struct Run {
    /// Key of its results.
    pub key: String,
    pub place: Place,
    pub work: Work,
    /// Estimated duration in seconds of one repetition here, for the progress bar and the remaining
    /// time.
    pub seconds: f64,
    /// Time limit after which it is killed.
    pub limit: TimeLimit,
    /// Measured once, however many repetitions the others get, because it takes too long.
    pub once: bool,
}

/// The memory that a run gets.
#[derive(Clone, Debug)]
pub enum Place {
    /// As much memory as it needs.
    Native,
    /// Our far memory.
    Ours(Ours),
    /// A limit of a control group, with swap.
    Swap(SwapKind, Local),
}

/// A configuration of our pager.
#[derive(Clone, Copy, Debug)]
pub struct Ours {
    pub store: Store,
    pub local: Local,
    pub block: BlockSize,
    pub replacement: ReplacementKind,
    pub prefetch: bool,
    /// Of how many pieces blocks in servers consist.
    pub scheme: Scheme,
    pub seal: Seal,
    /// One of the servers is killed when half of the time has passed that the run with this key
    /// took, which must come before.
    pub kill: Option<&'static str>,
}

/// Store of the far memory; sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    Compressed { capacity: u64 },
    Tcp { servers: usize, each: u64, allocation: Allocation },
}

/// Limit of local memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Local {
    Bytes(u64),
    /// A percentage of the peak of the run with this key, which must come before.
    Percent(f64, &'static str),
    /// All memory that the run with this key used, with a reserve: nothing has to be evicted.
    Everything(&'static str),
}

/// The work of a run.
#[derive(Clone, Debug)]
pub enum Work {
    Task(Task),
    /// GNU sort of a text.
    Sort(Text),
    /// A plain TCP stream of this number of bytes.
    Stream(u64),
}

/// A text to sort.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Text {
    /// Random numbers: the experiment's main text.
    Numbers,
    /// A part of it.
    FewNumbers,
    /// Lines of 70 letters each.
    LongLines,
}

/// When a run is stopped.
#[derive(Clone, Copy, Debug)]
pub enum TimeLimit {
    Seconds(f64),
    /// A multiple of the median of the run with this key, which must come before.
    Times(f64, &'static str),
}

impl Ours {
    /// The defaults of `hiroma run` on one memory server with room for `far` bytes.
    pub fn tcp(local: u64, far: u64) -> Ours {
        Ours::on(
            Store::Tcp { servers: 1, each: roomy(far), allocation: Allocation::Simple },
            Local::Bytes(local),
        )
    }

    /// The defaults of `hiroma run` on compressed memory with room for `far` incompressible bytes.
    pub fn compressed(local: u64, far: u64) -> Ours {
        Ours::on(Store::Compressed { capacity: roomy(far) }, Local::Bytes(local))
    }

    /// The defaults of `hiroma run`.
    pub fn on(store: Store, local: Local) -> Ours {
        Ours {
            store,
            local,
            block: BlockSize::Auto,
            replacement: ReplacementKind::Lru,
            prefetch: true,
            scheme: Scheme::ONE,
            seal: Seal::Auto,
            kill: None,
        }
    }

    /// With blocks in so many pieces.
    pub fn scheme(mut self, scheme: Scheme) -> Ours {
        self.scheme = scheme;
        self
    }

    /// With blocks sealed, or not.
    pub fn seal(mut self, seal: Seal) -> Ours {
        self.seal = seal;
        self
    }

    /// With a death in the middle.
    pub fn kill(mut self, key: &'static str) -> Ours {
        self.kill = Some(key);
        self
    }

    /// With this block size.
    pub fn block(mut self, block: BlockSize) -> Ours {
        self.block = block;
        self
    }

    /// Without prefetching.
    pub fn without_prefetch(mut self) -> Ours {
        self.prefetch = false;
        self
    }

    /// With this replacement.
    pub fn replacement(mut self, replacement: ReplacementKind) -> Ours {
        self.replacement = replacement;
        self
    }
}

/// Room for `bytes` bytes and overhead.
pub fn roomy(bytes: u64) -> u64 {
    bytes + bytes / 4 + (64 << 20)
}

impl Run {
    /// Number of repetitions.
    pub fn repetitions(&self, params: &Params) -> usize {
        if self.once { 1 } else { params.repetitions }
    }

    /// Estimated duration of all repetitions, in seconds.
    pub fn seconds_in_all(&self, params: &Params) -> f64 {
        self.seconds * self.repetitions(params) as f64
    }

    /// A run of a task of the bench.
    pub fn task(key: impl Into<String>, place: Place, task: Task, seconds: f64) -> Run {
        Run {
            key: key.into(),
            place,
            work: Work::Task(task),
            seconds,
            limit: TimeLimit::Seconds(seconds * 10.0 + 30.0),
            once: false,
        }
    }

    /// The same run on both peers, with the keys `KEY zram` and `KEY swap file`.
    pub fn peers(key: &str, local: Local, task: &Task, seconds: f64) -> Vec<Run> {
        [SwapKind::Zram, SwapKind::File]
            .into_iter()
            .map(|kind| {
                Run::task(
                    format!("{key} {}", kind.name()),
                    Place::Swap(kind, local),
                    task.clone(),
                    seconds,
                )
            })
            .collect()
    }
}

/// A block size as text.
pub fn block_name(block: BlockSize) -> String {
    match block {
        BlockSize::Auto => "auto".to_owned(),
        BlockSize::Fixed(bytes) => size_name(bytes as usize),
    }
}

/// A size as text: `4K`, `2M`.
pub fn size_name(bytes: usize) -> String {
    let units = [(40, "T"), (30, "G"), (20, "M")];
    let (shift, unit) = units
        .into_iter()
        .find(|&(shift, _)| bytes >= 1 << shift && bytes % (1 << shift) == 0)
        .unwrap_or((10, "K"));
    format!("{}{unit}", bytes >> shift)
}

impl Run {
    /// Whether it needs swap.
    pub fn is_peer(&self) -> bool {
        matches!(self.place, Place::Swap(..))
    }

    /// Keys of the runs whose results it needs.
    #[cfg(test)]
    pub fn needs(&self) -> Vec<&'static str> {
        let local = match self.place {
            Place::Native => None,
            Place::Ours(Ours { local, .. }) | Place::Swap(_, local) => Some(local),
        };
        let mut keys = Vec::new();
        if let Some(Local::Percent(_, key) | Local::Everything(key)) = local {
            keys.push(key);
        }
        if let Place::Ours(Ours { kill: Some(key), .. }) = self.place {
            keys.push(key);
        }
        if let TimeLimit::Times(_, key) = self.limit {
            keys.push(key);
        }
        keys
    }
}
