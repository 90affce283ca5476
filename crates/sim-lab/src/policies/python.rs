//! Placement policies as Python files. `docs/guide/own-policies.md` documents what a file has to
//! define.
//!
//! A simulated machine has one Python process, which has an object for each node. Both sides
//! exchange a line of JSON for each decision. The file draws its random numbers from the node's
//! generator, whose state goes with the request and comes back with the answer.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hiroma_policy::placement::{
    NodePolicies, Peer, PeerState, PlacementPolicy, PolicyError, PolicySource, Request, Rng,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};

/// What runs the file.
const RUNNER: &str = include_str!("runner.py");
/// The interpreter; `PATH` says which one.
const INTERPRETER: &str = "python3";
/// Longest time of one answer, and of the start.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(60);

/// A Python file that was checked.
#[derive(Clone, Debug)]
pub struct Python {
    path: PathBuf,
    /// What it was when it was read: a later change makes another policy.
    content: Arc<str>,
}

impl Python {
    /// Checks a file by starting it once.
    ///
    /// # Errors
    /// If it is not Python or lacks something: what, and what to do.
    pub fn new(path: &Path, content: &[u8]) -> Result<Python, PolicyError> {
        let content = std::str::from_utf8(content)
            .map_err(|_| PolicyError("not a Python file: it is not UTF-8".to_owned()))?;
        let python = Python { path: path.to_owned(), content: content.into() };
        Process::start(&python)?;
        Ok(python)
    }
}

impl PolicySource for Python {
    fn start(&self) -> Result<Box<dyn NodePolicies>, PolicyError> {
        let process = Arc::new(Mutex::new(Process::start(self)?));
        Ok(Box::new(Machine { process, nodes: Mutex::new(0) }))
    }
}

/// The process of one machine.
#[derive(Debug)]
struct Machine {
    process: Arc<Mutex<Process>>,
    nodes: Mutex<u64>,
}

impl NodePolicies for Machine {
    fn node(&self) -> Result<Box<dyn PlacementPolicy>, PolicyError> {
        let mut nodes = self.nodes.lock().expect("no holder panics");
        *nodes += 1;
        Ok(Box::new(Node { process: self.process.clone(), number: *nodes - 1, known: None }))
    }
}

/// One node's object in the process.
#[derive(Debug)]
struct Node {
    process: Arc<Mutex<Process>>,
    number: u64,
    /// What the process was told of the peers that changes only when a node joins.
    known: Option<Known>,
}

/// The distance, frames and speed of each peer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
struct Known {
    hops: Vec<u16>,
    capacity: Vec<u32>,
    page_ns: Vec<u32>,
}

/// A request, as a line of JSON.
#[derive(Serialize)]
struct Question<'a> {
    node: u64,
    rng: u64,
    free: &'a [u32],
    avoid: Vec<u16>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    known: Option<&'a Known>,
}

/// An answer, as a line of JSON.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Answer {
    #[serde(default)]
    peer: Option<i64>,
    #[serde(default)]
    rng: u64,
    #[serde(default)]
    error: Option<String>,
}

impl PlacementPolicy for Node {
    fn choose(
        &mut self,
        request: &Request<'_>,
        rng: &mut Rng,
    ) -> Result<Option<Peer>, PolicyError> {
        let view = request.view();
        let same = |known: &Known| {
            let of_peer = |peer: PeerState| (peer.hops, peer.capacity, peer.page_ns);
            let known = known.hops.iter().zip(&known.capacity).zip(&known.page_ns);
            request.by_number().map(of_peer).eq(known.map(|((&hops, &all), &ns)| (hops, all, ns)))
        };
        let is_new = !self.known.as_ref().is_some_and(same);
        if is_new {
            self.known = Some(Known {
                hops: view.hops().to_vec(),
                capacity: request.by_number().map(|peer| peer.capacity).collect(),
                page_ns: request.by_number().map(|peer| peer.page_ns).collect(),
            });
        }
        let question = Question {
            node: self.number,
            rng: rng.state(),
            free: view.frees(),
            avoid: request.avoid().iter().map(|peer| peer.0).collect(),
            known: self.known.as_ref().filter(|_| is_new),
        };
        let answer = self.process.lock().expect("no holder panics").ask(&question)?;
        *rng = Rng::new(answer.rng);
        match answer.peer {
            None => Ok(None),
            Some(peer) => match u16::try_from(peer) {
                Ok(peer) => Ok(Some(Peer(peer))),
                Err(_) => Err(PolicyError(format!(
                    "answered {peer}: choose has to return the number of a peer, or None for disk"
                ))),
            },
        }
    }
}

/// A Python process and the pipes to it.
#[derive(Debug)]
struct Process {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    line: String,
}

impl Process {
    fn start(python: &Python) -> Result<Process, PolicyError> {
        let mut child = Command::new(INTERPRETER)
            .args(["-c", RUNNER])
            .arg(&python.path)
            // Iteration over sets and dictionaries of texts is the same in every process.
            .env("PYTHONHASHSEED", "0")
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| {
                PolicyError(format!("{INTERPRETER}: {error}: install Python 3, or add it to PATH"))
            })?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let output = BufReader::new(output.expect("it was piped"));
        let mut process = Process { child, input, output, line: String::new() };
        process.ask(&*python.content)?;
        Ok(process)
    }

    fn ask(&mut self, question: &(impl Serialize + ?Sized)) -> Result<Answer, PolicyError> {
        self.line.clear();
        let mut text = serde_json::to_string(question).expect("numbers and texts become JSON");
        text.push('\n');
        let input = self.input.as_mut().expect("it is closed last");
        // A process that has ended is told apart by its missing answer.
        let _ = input.write_all(text.as_bytes()).and_then(|()| input.flush());
        self.wait()?;
        let read = self.output.read_line(&mut self.line);
        if !read.is_ok_and(|length| length > 0) {
            let ended = self.child.wait().map_or_else(|error| error.to_string(), |s| s.to_string());
            return Err(PolicyError(format!(
                "ended without an answer ({ended}): what Python wrote is above"
            )));
        }
        let answer: Answer = serde_json::from_str(&self.line).map_err(|error| {
            PolicyError(format!("gave an answer that is not one: {error}: {}", self.line.trim()))
        })?;
        match answer.error {
            Some(error) => Err(PolicyError(error)),
            None => Ok(answer),
        }
    }

    /// Waits until there is something to read.
    fn wait(&self) -> Result<(), PolicyError> {
        let time = Timespec {
            tv_sec: ANSWER_TIME_MAX.as_secs() as i64,
            tv_nsec: ANSWER_TIME_MAX.subsec_nanos().into(),
        };
        loop {
            let mut fds = [PollFd::new(self.output.get_ref(), PollFlags::IN)];
            match poll(&mut fds, Some(&time)) {
                Err(rustix::io::Errno::INTR) => {}
                Ok(0) => {
                    return Err(PolicyError(format!(
                        "gave no answer for {} s: choose in less time",
                        ANSWER_TIME_MAX.as_secs()
                    )));
                }
                // An error shows when the pipe is read.
                _ => return Ok(()),
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It ends when its input does; one that hangs is killed.
        self.input = None;
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
