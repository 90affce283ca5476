//! What an experiment wants to be run, as data: the runner interleaves it, the experiment reads the
//! results.

use hiroma_pager::config::{Allocation, BlockSize, ReplacementKind};

use super::params::Params;
use crate::job::Task;
use crate::peers::SwapKind;

/// One thing to run some times.
#[derive(Clone, Debug)]
pub struct Run {
    /// Name of its results.
    pub key: String,
    pub place: Place,
    pub work: Work,
    /// Roughly how long one repetition takes here: for the progress bar and what is left of the
    /// time.
    pub seconds: f64,
    /// Killed after this time.
    pub limit: TimeLimit,
    /// Measured once, however many repetitions the others get: it takes too long.
    pub once: bool,
}

/// Where it runs.
#[derive(Clone, Debug)]
pub enum Place {
    /// With all the memory it wants.
    Native,
    /// With our far memory.
    Ours(Ours),
    /// Limited by a control group, with swap.
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
}

/// Where far memory is; sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    Compressed { capacity: u64 },
    Tcp { servers: usize, each: u64, allocation: Allocation },
}

/// How much memory may be local.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Local {
    Bytes(u64),
    /// A share of the peak of the run with this key, which must come before.
    Percent(f64, &'static str),
    /// Everything that the run with this key used, and what surrounds it: nothing has to leave.
    Everything(&'static str),
}

/// What runs.
#[derive(Clone, Debug)]
pub enum Work {
    Task(Task),
    /// GNU sort of one of the texts.
    Sort(Text),
    /// A plain TCP stream of so many bytes.
    Stream(u64),
}

/// A text to sort.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Text {
    /// Random numbers: the experiment's main text.
    Numbers,
    /// A part of it.
    FewNumbers,
    /// Lines of 70 letters.
    LongLines,
}

/// When a run is given up.
#[derive(Clone, Copy, Debug)]
pub enum TimeLimit {
    Seconds(f64),
    /// So many times the median of the run with this key, which must come before.
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

    /// The defaults of `hiroma run` on compressed memory with room for `far` bytes that do not
    /// compress.
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
        }
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

/// Room for so many bytes and what surrounds them.
pub fn roomy(bytes: u64) -> u64 {
    bytes + bytes / 4 + (64 << 20)
}

impl Run {
    /// How often it is measured.
    pub fn repetitions(&self, params: &Params) -> usize {
        if self.once { 1 } else { params.repetitions }
    }

    /// Roughly how long all repetitions take here.
    pub fn seconds_in_all(&self, params: &Params) -> f64 {
        self.seconds * self.repetitions(params) as f64
    }

    /// A run of a task of our own.
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

    /// The same on both peers, as `KEY zram` and `KEY swap file`.
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

/// A block size as people write it.
pub fn block_name(block: BlockSize) -> String {
    match block {
        BlockSize::Auto => "auto".to_owned(),
        BlockSize::Fixed(bytes) => size_name(bytes as usize),
    }
}

/// `4K`, `2M`.
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

    /// Keys of the runs that it needs results of.
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
        if let TimeLimit::Times(_, key) = self.limit {
            keys.push(key);
        }
        keys
    }
}
