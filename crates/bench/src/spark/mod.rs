//! `hiroma bench spark`: the experiments of the paper on Spark's cached data.

mod answers;
mod cluster;
pub mod fragment;
mod fragmented;
mod grid;
mod inside;
mod interval;
mod jars;
mod pages;
mod spec;
mod storage;
mod timeline;

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use hiroma_command::files::Files;
use hiroma_command::machine;
use hiroma_memload::ballast::Ballast;
use hiroma_report::{Report, Section};
use hiroma_sys::host::memory;
use hiroma_units::Bytes;

use self::cluster::Session;
use self::fragment::{Fragmented, Settled};
use self::jars::Jars;
use self::spec::{Policy, Spec, Storage, Workload};
use super::children::{Failed, Interrupt};
use super::progress::Progress;
use super::{Named, choose, undo};

/// Run the paper's experiments on Spark's cached data and huge pages on this machine.
///
/// Each job runs in its own cluster: a driver, and executors as separate processes, with a stock
/// Spark that Maven has fetched (`make spark-jars`). Every policy runs in every round. Requires
/// root, to inspect the executors' pages from outside, and transparent huge pages set to madvise.
#[derive(clap::Args)]
pub struct SparkArgs {
    #[command(flatten)]
    files: Files,
    /// Use less data and one round, which shows that everything works but proves nothing
    #[arg(long)]
    quick: bool,
    /// Run only these experiments: storage, sizes, workloads, inside, timeline, fragmented, tlb
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    only: Vec<String>,
    /// Use only these ways of caching in the experiments `storage` and `inside`
    #[arg(long, value_enum, value_name = "NAME,...", value_delimiter = ',')]
    storages: Vec<Storage>,
    /// Use only these policies (`inside` compares pages, not policies); `stock` is Spark with its
    /// defaults
    #[arg(long, value_enum, value_name = "NAME,...", value_delimiter = ',')]
    policies: Vec<Policy>,
    /// Number of rounds, in each of which every policy runs once [default: 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: Option<u16>,
    /// Amount of cached data, of all executors together [default: 512M]
    #[arg(long, value_name = "SIZE")]
    size: Option<Bytes>,
    /// Heap size of each executor [default: 1G, and more for more data]
    #[arg(long, value_name = "SIZE")]
    heap: Option<Bytes>,
    /// Additional options of the executors' JVMs, for every policy, such as
    /// -XX:MaxTenuringThreshold=15
    #[arg(long, value_name = "OPTIONS", default_value = "", allow_hyphen_values = true)]
    java_options: String,
    /// Directory `spark` of Hiroma's source tree, in which `make spark-jars` was run [default:
    /// spark]
    #[arg(long, value_name = "DIR")]
    jvm: Option<PathBuf>,
}

const QUICK: &str = "quick: smaller than what the goal is for";
const EXECUTORS: u32 = 2;
const MIB: u64 = 1 << 20;
/// Memory of a driver, and of a JVM in addition to its heap.
const BESIDE_HEAPS: u64 = 2048 * MIB;
/// Time limit of one answer of a job.
const ANSWER_MAX: Duration = Duration::from_secs(600);

/// Sizes and repetitions.
#[derive(Clone, Debug)]
pub struct Params {
    pub quick: bool,
    pub rounds: usize,
    pub bytes: u64,
    pub heap_bytes: u64,
    pub storages: Vec<Storage>,
    pub policies: Vec<Policy>,
    /// Sizes of figure 4.
    pub sizes: Vec<u64>,
    pub warm_iterations: usize,
    pub iterations: usize,
    /// Rounds of the comparison inside a JVM.
    pub inside_rounds: usize,
    pub inside_iterations: usize,
    pub inside_jobs: usize,
    pub watched_iterations: usize,
    pub workload_storages: &'static [Storage],
    pub java_options: String,
}

impl Params {
    fn new(args: &SparkArgs) -> Params {
        let full = Params {
            quick: false,
            rounds: 3,
            bytes: 512 * MIB,
            heap_bytes: 0,
            storages: if args.storages.is_empty() {
                Storage::ALL.into()
            } else {
                args.storages.clone()
            },
            policies: if args.policies.is_empty() {
                Policy::ALL.into()
            } else {
                args.policies.clone()
            },
            sizes: Vec::new(),
            warm_iterations: 3,
            iterations: 8,
            inside_rounds: 12,
            inside_iterations: 3,
            inside_jobs: usize::MAX,
            watched_iterations: 8,
            workload_storages: &[Storage::Serialised, Storage::Deserialised],
            java_options: args.java_options.clone(),
        };
        let quick = Params {
            quick: true,
            rounds: 1,
            bytes: 128 * MIB,
            warm_iterations: 1,
            iterations: 2,
            inside_rounds: 2,
            inside_iterations: 1,
            inside_jobs: 1,
            watched_iterations: 2,
            workload_storages: &[Storage::Serialised],
            ..full.clone()
        };
        let mut params = if args.quick { quick } else { full };
        params.rounds = args.rounds.map_or(params.rounds, usize::from);
        params.bytes = args.size.map_or(params.bytes, |size| size.0.div_ceil(MIB) * MIB);
        params.sizes = [params.bytes / 4, params.bytes / 2, params.bytes * 3 / 2]
            .map(|bytes| bytes / MIB * MIB)
            .into();
        params.heap_bytes =
            args.heap.map_or_else(|| heap_for(params.bytes), |heap| heap.0.div_ceil(MIB) * MIB);
        params
    }

    /// The selected ones of the paper's four policies.
    pub fn four(&self) -> Vec<Policy> {
        Policy::FOUR.into_iter().filter(|policy| self.policies.contains(policy)).collect()
    }
}

/// A heap size whose storage memory fits an executor's share of `bytes` with a reserve, including
/// the headers of small objects: Spark uses 60 % of the heap above 300 MiB for storage and
/// execution, and data is not spread evenly.
fn heap_for(bytes: u64) -> u64 {
    let share = bytes / u64::from(EXECUTORS);
    ((share * 5 / 2 + 384 * MIB).max(1 << 30)).div_ceil(256 * MIB) * 256 * MIB
}

/// The surroundings of every experiment.
pub struct Ground<'a> {
    jars: Jars,
    pub params: Params,
    free: RefCell<Free<'a>>,
    interrupt: &'a Interrupt,
}

/// The state of memory that is available to a cluster.
enum Free<'a> {
    /// It is kept backed by the hypervisor.
    Backed(Ballast),
    /// It is fragmented.
    Fragmented(Fragmented<'a>),
}

impl<'a> Ground<'a> {
    /// A job of the default size.
    pub fn spec(&self, workload: Workload, storage: Storage, policy: Policy) -> Spec {
        Spec {
            workload,
            storage,
            policy,
            bytes: self.params.bytes,
            executors: EXECUTORS,
            heap_bytes: self.params.heap_bytes,
        }
    }

    /// Starts a job, after restoring the initial state of memory.
    pub fn start(&self, spec: &Spec) -> Result<Session<'a>, Failed> {
        match &mut *self.free.borrow_mut() {
            Free::Backed(ballast) => ballast.load()?,
            Free::Fragmented(fragmented) => drop(fragmented.settle()?),
        }
        // Figure 4 has larger sizes.
        let heap_bytes = spec.heap_bytes.max(heap_for(spec.bytes));
        Session::start(
            &self.jars,
            &Spec { heap_bytes, ..*spec },
            &self.params.java_options,
            ANSWER_MAX,
            self.interrupt,
        )
    }

    /// Fragments memory for the jobs of `work`; `huge` bytes remain on huge pages.
    pub fn fragmented<T>(
        &self,
        huge: u64,
        work: impl FnOnce(Settled) -> Result<T, Failed>,
    ) -> Result<T, Failed> {
        self.free.replace(Free::Backed(Ballast::new(Bytes(0))?));
        let small = heaps_of(self.params.heap_bytes) + BESIDE_HEAPS;
        let (fragmented, settled) =
            Fragmented::start(fragment::Job { small, huge }, self.interrupt)?;
        self.free.replace(Free::Fragmented(fragmented));
        let done = work(settled);
        self.free.replace(Free::Backed(Ballast::new(Bytes(0))?));
        self.free.replace(Free::Backed(Ballast::new(ballast_for(self.params.heap_bytes))?));
        done
    }
}

/// Heap size of all executors together.
fn heaps_of(heap_bytes: u64) -> u64 {
    u64::from(EXECUTORS) * heap_bytes
}

fn ballast_for(heap_bytes: u64) -> Bytes {
    Bytes(heaps_of(heap_bytes) + 512 * MIB)
}

struct Experiment {
    name: &'static str,
    seconds: fn(&Ground<'_>) -> f64,
    run: fn(&Ground<'_>, &mut Progress, &mut Report) -> Result<(), Failed>,
}

impl Named for Experiment {
    fn name(&self) -> &'static str {
        self.name
    }
}

fn grid_seconds(ground: &Ground<'_>, specs: &[Spec]) -> f64 {
    ground.params.rounds as f64
        * specs.iter().map(|spec| grid::seconds_of(ground, spec)).sum::<f64>()
}

/// The experiment that needs more memory than the others.
const SIZES: &str = "sizes";

const EXPERIMENTS: [Experiment; 7] = [
    Experiment {
        name: "storage",
        seconds: |ground| grid_seconds(ground, &storage::specs(ground)),
        run: storage::run,
    },
    Experiment {
        name: SIZES,
        seconds: |ground| grid_seconds(ground, &storage::size_specs(ground)),
        run: storage::run_sizes,
    },
    Experiment {
        name: "workloads",
        seconds: |ground| grid_seconds(ground, &storage::workload_specs(ground)),
        run: storage::run_workloads,
    },
    Experiment {
        name: "inside",
        seconds: |ground| inside::jobs(&ground.params).len() as f64 * inside::seconds_of(ground),
        run: inside::run,
    },
    Experiment {
        name: "timeline",
        seconds: |ground| ground.params.four().len() as f64 * timeline::seconds_of(ground),
        run: timeline::run,
    },
    Experiment { name: "fragmented", seconds: fragmented::seconds_of, run: fragmented::run },
    Experiment { name: "tlb", seconds: |_| 0.0, run: tlb },
];

/// Runs the experiments.
pub fn run(args: &SparkArgs) -> Result<ExitCode> {
    let chosen = choose(&EXPERIMENTS, &args.only)?;
    args.files.check()?;
    let jars = Jars::find(args.jvm.as_deref())?;
    if !rustix::process::geteuid().is_root() {
        bail!("only root sees which pages of executors are huge from outside: run it with sudo");
    }
    let mut params = Params::new(args);
    if !chosen.iter().any(|experiment| experiment.name == SIZES) {
        params.sizes.clear();
    }
    let machine = machine::look();
    if !machine.remarks.iter().any(|remark| remark == "transparent huge pages: madvise") {
        bail!(
            "transparent huge pages must be set to madvise: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"
        );
    }
    let most = params
        .sizes
        .iter()
        .chain([&params.bytes])
        .map(|&bytes| heap_for(bytes))
        .max()
        .unwrap_or(0)
        .max(params.heap_bytes);
    let needed = heaps_of(most) + BESIDE_HEAPS;
    let available = memory::available()?;
    if available.0 < needed {
        bail!(
            "{} of memory are available and {} are needed: a smaller --size, or a smaller --heap",
            available,
            Bytes(needed)
        );
    }
    let leftovers = undo::undo_leftovers();
    if leftovers > 0 {
        eprintln!("put back {leftovers} things that a bench that was killed had left");
    }
    undo::undo_on_panic();
    let interrupt = Interrupt::listen()?;
    let mut report = Report {
        title: "Spark's cached data on huge pages on this machine".into(),
        machine,
        made_at: machine::now(),
        preamble: preamble(&params, &jars),
        ..Report::default()
    };
    eprintln!("touching memory once");
    let ground = Ground {
        jars,
        params,
        free: RefCell::new(Free::Backed(Ballast::new(ballast_for(most))?)),
        interrupt: &interrupt,
    };
    let outcome = measure(&ground, &chosen, &args.files, &mut report);
    undo::undo_all();
    let interrupted = match outcome {
        Ok(()) => false,
        Err(Failed::Interrupted) => true,
        Err(failed) => return Err(failed.into()),
    };
    if ground.params.quick {
        super::forget_goals(&mut report, QUICK);
    }
    super::deliver(report, &args.files)?;
    Ok(if interrupted { ExitCode::from(hiroma_command::INTERRUPTED) } else { ExitCode::SUCCESS })
}

fn measure(
    ground: &Ground<'_>,
    chosen: &[&Experiment],
    files: &Files,
    report: &mut Report,
) -> Result<(), Failed> {
    let mut progress =
        Progress::new(chosen.iter().map(|experiment| (experiment.seconds)(ground)).sum());
    for experiment in chosen {
        let before = report.sections.len();
        match (experiment.run)(ground, &mut progress, report) {
            Err(Failed::Interrupted) => {
                progress.say("interrupted: what there is so far");
                return Err(Failed::Interrupted);
            }
            Err(failed) => {
                let error = anyhow::Error::from(failed);
                progress.say(&format!("{}: {error:#}", experiment.name));
                report.preamble.push(format!("Experiment {} failed: {error:#}", experiment.name));
            }
            Ok(()) => {}
        }
        for section in &report.sections[before..] {
            progress.print(&format!("\n{}", section.to_text()));
        }
        // The results are saved, whatever happens to the next experiment.
        keep(ground, files, report.clone())?;
    }
    Ok(())
}

fn keep(ground: &Ground<'_>, files: &Files, mut report: Report) -> Result<()> {
    if ground.params.quick {
        super::forget_goals(&mut report, QUICK);
    }
    files.write(|| report.to_json(), || report.clone())
}

fn preamble(params: &Params, jars: &Jars) -> Vec<String> {
    vec![
        format!(
            "Spark {} with a stock JVM ({}). {EXECUTORS} executors of one processor and {} each, in processes of their own, {} of data; driver and \
             executors share this machine. {} rounds, in each of which every policy has its turn, in JVMs of its own; medians with the smallest and the largest.",
            jars.spark(),
            jars.java.display(),
            Bytes(params.heap_bytes),
            Bytes(params.bytes),
            params.rounds
        ),
        "Paper: Spark 3.2 and a changed OpenJDK 11, four executors of one processor and 20 GB on two machines, 2, 4 and 12 GB of data. Memory was kept backed by \
         the hypervisor until it was taken."
            .to_owned(),
    ]
}

/// Figure 5.
fn tlb(_: &Ground<'_>, _: &mut Progress, report: &mut Report) -> Result<(), Failed> {
    report.sections.push(Section {
        title: "TLB misses (figure 5)".into(),
        text: vec![tlb_words(Path::new("/sys/bus/event_source/devices"))],
        ..Section::default()
    });
    Ok(())
}

fn tlb_words(devices: &Path) -> String {
    let counters = ["cpu", "cpu_core"].iter().any(|name| devices.join(name).exists());
    if counters {
        "Not measured by this bench: this machine has counters; `perf stat -e dTLB-loads,dTLB-load-misses -p PID` shows them for an executor.".to_owned()
    } else {
        format!(
            "Not measured: the processor shows no performance counters here (nothing called cpu in {}).",
            devices.display()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heap_holds_three_times_the_data() {
        assert_eq!(heap_for(128 * MIB), 1 << 30);
        for mib in [512, 1024, 3072] {
            let storage = (heap_for(mib * MIB) - 300 * MIB) * 6 / 10;
            assert!(storage * 2 > mib * MIB * 5 / 4, "{mib}");
        }
    }

    #[test]
    fn counter_advice_depends_on_the_machine() {
        let dir = tempfile::tempdir().unwrap();
        assert!(tlb_words(dir.path()).contains("no performance counters"));
        std::fs::create_dir(dir.path().join("cpu")).unwrap();
        assert!(tlb_words(dir.path()).contains("perf stat"));
    }
}
