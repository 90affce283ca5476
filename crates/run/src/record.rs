//! Records page-outs and page-ins (`--trace`): reads records from the rings of all processes of a
//! run, while they live and after they end, and writes them as a trace that `hiroma sim replay`
//! runs.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::Result;
use hiroma_command::{files, refuse, show};
use hiroma_far::config::Config;
use hiroma_far::trace::{Moved, Record, Ring, page_bytes};
use hiroma_sim_lab::trace::{TraceError, TraceKind, TraceRecord, TraceWriter};
use hiroma_sys::cpu;
use serde_json::{Value, json};

use crate::processes;

/// Time between two reads of the rings.
const PERIOD: Duration = Duration::from_millis(5);

/// The thread that writes.
pub struct Recording {
    stop: Sender<()>,
    thread: JoinHandle<Writer>,
}

/// A ring and the state of its process.
struct Source {
    ring: Ring,
    pid: u32,
    /// Node of the process in the trace; none until it records something.
    node: Option<u32>,
}

struct Writer {
    path: PathBuf,
    dir: PathBuf,
    start_ns: u64,
    last_ns: u64,
    page_bytes: u64,
    sources: Vec<Source>,
    nodes: u32,
    /// Number of records by kind, and number of records that were lost because a ring was full, of
    /// processes that have ended.
    counts: [u64; 3],
    lost: u64,
    taken: Vec<Record>,
    batch: Vec<TraceRecord>,
    /// An error after the first failure.
    output: Result<TraceWriter, TraceError>,
}

impl Recording {
    /// Starts a trace at `path` of the processes that make their rings in `dir`.
    pub fn start(path: &Path, dir: &Path, config: &Config) -> Result<Recording> {
        files::check(path).map_err(|error| refuse(format!("--trace {error}")))?;
        let page_bytes = page_bytes(config.block);
        let output = TraceWriter::create(path, 1, page_bytes)
            .map_err(|error| refuse(format!("--trace {error}")))?;
        let start_ns = cpu::now_ns();
        let mut writer = Writer {
            path: path.to_owned(),
            dir: dir.to_owned(),
            start_ns,
            last_ns: 0,
            page_bytes,
            sources: Vec::new(),
            nodes: 0,
            counts: [0; 3],
            lost: 0,
            taken: Vec::new(),
            batch: Vec::new(),
            output: Ok(output),
        };
        let (stop, stopped) = channel();
        let thread = thread::spawn(move || {
            while stopped.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
                writer.round();
            }
            writer.round();
            writer
        });
        Ok(Recording { stop, thread })
    }

    /// Ends without a trace, because the program did not start.
    pub fn abandon(self) {
        drop(self.stop);
        // The writer removes what was written so far when it is dropped.
        let _ = self.thread.join();
    }

    /// Ends the trace, and prints where it is or why there is none. Returns its counts for the
    /// statistics.
    pub fn finish(self, quiet: bool) -> Option<Value> {
        drop(self.stop);
        let writer = self.thread.join().ok()?;
        let lost =
            writer.lost + writer.sources.iter().map(|source| source.ring.lost()).sum::<u64>();
        let (path, counts) = (writer.path.display().to_string(), writer.counts);
        let finished = writer.output.and_then(|mut output| {
            output.set_lost(lost);
            output.finish()
        });
        if let Err(error) = finished {
            show::say(&format!("--trace {error}: there is no trace"));
            return None;
        }
        let [outs, ins, drops] = counts;
        if !quiet {
            let nodes = if writer.nodes == 1 {
                "one node".to_owned()
            } else {
                format!("{} nodes", writer.nodes)
            };
            let [outs, ins, drops] = counts.map(show::count);
            show::say(&format!(
                "trace {path}: {outs} page-outs, {ins} page-ins, {drops} drops of {nodes}; hiroma sim replay runs it"
            ));
        }
        if lost > 0 {
            show::say(&format!(
                "trace {path}: {} records are missing: the program was faster than what writes them down",
                show::count(lost)
            ));
        }
        Some(json!({
            "nodes": writer.nodes, "page_bytes": writer.page_bytes,
            "page_outs": outs, "page_ins": ins, "drops": drops, "lost": lost,
        }))
    }
}

impl Writer {
    /// Reads all rings, and writes the records ordered by time.
    fn round(&mut self) {
        self.find_rings();
        let mut sources = std::mem::take(&mut self.sources);
        sources.retain_mut(|source| {
            // Checked before the last records are read: a process that has ended adds none after
            // them.
            let alive = processes::is_alive(source.pid);
            let sound = self.take(source);
            if !alive || !sound {
                self.lost += source.ring.lost();
            }
            alive && sound
        });
        self.sources = sources;
        self.batch.sort_by_key(|record| record.time_ns);
        self.write();
    }

    /// Opens new rings. The name of an open ring is removed, because it is not needed any more and
    /// no later cleanup is required then.
    fn find_rings(&mut self) {
        for (path, pid) in Ring::list(&self.dir) {
            match Ring::open(&path) {
                Ok(Some(ring)) => {
                    let _ = fs::remove_file(&path);
                    self.sources.push(Source { ring, pid, node: None });
                }
                // The ring is being made, or its process ended while making it.
                Ok(None) => {}
                Err(error) => {
                    let _ = fs::remove_file(&path);
                    show::say(&format!(
                        "process {pid} is not in the trace: {}: {error}",
                        path.display()
                    ));
                }
            }
        }
    }

    /// Reads the records of a ring. False: the ring cannot be read any further.
    fn take(&mut self, source: &mut Source) -> bool {
        self.taken.clear();
        let result = source.ring.take(&mut self.taken);
        if !self.taken.is_empty() && source.node.is_none() {
            source.node = Some(self.nodes);
            self.nodes += 1;
        }
        let (start_ns, node) = (self.start_ns, source.node.unwrap_or_default());
        self.batch.extend(self.taken.iter().map(|record| TraceRecord {
            time_ns: record.time_ns.saturating_sub(start_ns),
            node,
            kind: kind(record.moved),
            page: record.page,
        }));
        if let Err(error) = &result {
            show::say(&format!("process {} is in the trace up to here only: {error}", source.pid));
        }
        result.is_ok()
    }

    fn write(&mut self) {
        let (nodes, mut failure) = (self.nodes, None);
        if let Ok(output) = &mut self.output {
            output.set_nodes(nodes);
            for record in &self.batch {
                // This record may have entered its ring late: its own node's later records follow
                // it, but records of other nodes with later times may precede it.
                self.last_ns = self.last_ns.max(record.time_ns);
                if let Err(error) = output.append(TraceRecord { time_ns: self.last_ns, ..*record })
                {
                    failure = Some(error);
                    break;
                }
                self.counts[record.kind as usize] += 1;
            }
        }
        if let Some(error) = failure {
            self.output = Err(error);
        }
        self.batch.clear();
    }
}

fn kind(moved: Moved) -> TraceKind {
    match moved {
        Moved::Out => TraceKind::PageOut,
        Moved::In => TraceKind::PageIn,
        Moved::Dropped => TraceKind::Drop,
    }
}
