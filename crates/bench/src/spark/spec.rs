//! Specification of a job: workload, storage, policy, sizes.

/// The computation on the cached data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Workload {
    /// The paper's microbenchmark.
    Micro,
    PageRank,
    KMeans,
}

/// How the data is cached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Storage {
    Serialised,
    OffHeap,
    #[value(name = "dataframe")]
    DataFrame,
    Deserialised,
}

/// Which pages are huge.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Policy {
    /// Spark with its defaults: no plugin, no settings.
    Stock,
    /// No huge pages, with the settings that the plugin requires.
    Off,
    Entire,
    PartOld,
    Part,
}

impl Workload {
    /// Name in jobs, keys and tables.
    pub fn name(self) -> &'static str {
        match self {
            Workload::Micro => "micro",
            Workload::PageRank => "pagerank",
            Workload::KMeans => "k-means",
        }
    }
}

impl Storage {
    pub const ALL: [Storage; 4] =
        [Storage::Serialised, Storage::OffHeap, Storage::DataFrame, Storage::Deserialised];

    /// Name in jobs and tables.
    pub fn name(self) -> &'static str {
        match self {
            Storage::Serialised => "serialised",
            Storage::OffHeap => "off-heap",
            Storage::DataFrame => "dataframe",
            Storage::Deserialised => "deserialised",
        }
    }

    /// Name in keys of figures.
    pub fn key(self) -> String {
        self.name().replace('-', "_")
    }

    pub fn is_off_heap(self) -> bool {
        self == Storage::OffHeap
    }
}

impl Policy {
    /// The paper's four policies.
    pub const FOUR: [Policy; 4] = [Policy::Off, Policy::Entire, Policy::PartOld, Policy::Part];
    /// The four, and Spark with its defaults.
    pub const ALL: [Policy; 5] =
        [Policy::Stock, Policy::Off, Policy::Entire, Policy::PartOld, Policy::Part];

    /// Value of `spark.hiroma.policy`.
    pub fn name(self) -> &'static str {
        match self {
            Policy::Stock => "stock",
            Policy::Off => "off",
            Policy::Entire => "entire",
            Policy::PartOld => "part-old",
            Policy::Part => "part",
        }
    }

    /// The policy that an executor must report.
    pub fn in_force(self) -> &'static str {
        if self == Policy::Stock { "" } else { self.name() }
    }
}

/// One job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spec {
    pub workload: Workload,
    pub storage: Storage,
    pub policy: Policy,
    /// Data of all executors together, before it is stored.
    pub bytes: u64,
    pub executors: u32,
    /// Heap size of each executor.
    pub heap_bytes: u64,
}
