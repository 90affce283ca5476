//! Starts child processes, and waits for them with a time limit, while checking for Ctrl-C and
//! recording their memory.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::job::{Job, Memory, Task, TaskResult};
use super::peers::Cgroup;
use super::undo::{Guard, Undo};

/// Time between two checks of a child's memory and of interrupts.
const LOOK_EVERY: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

/// Set by SIGINT, SIGTERM and SIGHUP.
#[derive(Clone, Default)]
pub struct Interrupt(Arc<AtomicBool>);

/// Why a run has no result.
#[derive(Debug, thiserror::Error)]
pub enum Failed {
    #[error("not done within {0:.0} s")]
    TimeLimit(f64),
    #[error("killed for want of memory")]
    OutOfMemory,
    #[error("interrupted")]
    Interrupted,
    #[error(transparent)]
    Other(#[from] anyhow::Error),
}

impl From<std::io::Error> for Failed {
    fn from(error: std::io::Error) -> Failed {
        Failed::Other(error.into())
    }
}

impl Interrupt {
    /// Handles SIGINT, SIGTERM and SIGHUP from now on.
    pub fn listen() -> Result<Interrupt> {
        let interrupt = Interrupt::default();
        for signal in
            [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP]
        {
            signal_hook::flag::register(signal, interrupt.0.clone())
                .context("listening to signals")?;
        }
        Ok(interrupt)
    }

    /// Whether a signal arrived.
    pub fn came(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A child in a process group of its own, which is killed when this is dropped.
pub struct Running {
    child: Child,
    kill: Option<Guard>,
}

/// How a child ended.
pub struct Ended {
    pub seconds: f64,
    pub peak_bytes: u64,
    pub status: ExitStatus,
    pub errors: String,
}

impl Running {
    /// Starts `command`.
    pub fn start(command: &mut Command) -> Result<Running> {
        Running::start_as_it_is(command.stdin(Stdio::null()))
    }

    /// Starts `command` and also returns its standard input.
    pub fn start_with_input(command: &mut Command) -> Result<(Running, ChildStdin)> {
        let mut running = Running::start_as_it_is(command.stdin(Stdio::piped()))?;
        let input = running.child.stdin.take().context("a child without an input")?;
        Ok((running, input))
    }

    fn start_as_it_is(command: &mut Command) -> Result<Running> {
        let name = command.get_program().to_string_lossy().into_owned();
        let child = command.process_group(0).spawn().with_context(|| format!("starting {name}"))?;
        let kill = Guard::new(Undo::GroupKill(child.id() as i32));
        Ok(Running { child, kill: Some(kill) })
    }

    /// The child's process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The child's standard output, if it is a pipe. Returns it only once.
    pub fn take_stdout(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// Whether the child has ended.
    pub fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Sends SIGTERM to the child and waits until it has ended; kills it after `limit`.
    pub fn end(self, limit: Duration) -> Result<Ended, Failed> {
        let _ = rustix::process::kill_process(
            Pid::from_child(&self.child),
            rustix::process::Signal::TERM,
        );
        self.wait(limit, &Interrupt::default())
    }

    /// Waits until the child has ended; kills it after `limit` or on an interrupt.
    pub fn wait(mut self, limit: Duration, interrupt: &Interrupt) -> Result<Ended, Failed> {
        let start = Instant::now();
        let mut errors = self.child.stderr.take();
        let mut peak_bytes = 0;
        let pid = Pid::from_child(&self.child);
        let end = pidfd_open(pid, PidfdFlags::empty()).map_err(std::io::Error::from)?;
        let status = loop {
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            if interrupt.came() {
                return Err(Failed::Interrupted);
            }
            if start.elapsed() > limit {
                return Err(Failed::TimeLimit(limit.as_secs_f64()));
            }
            peak_bytes = peak_bytes.max(peak_of(self.child.id()));
            // Wakes rarely, because the processor time that it takes is the measured program's.
            let _ = poll(&mut [PollFd::new(&end, PollFlags::IN)], Some(&LOOK_EVERY));
        };
        let seconds = start.elapsed().as_secs_f64();
        // The child has ended and was reaped: its process id is no longer ours to kill.
        if let Some(kill) = self.kill.take() {
            kill.disarm();
        }
        let mut text = Vec::new();
        if let Some(errors) = &mut errors {
            let _ = errors.take(1 << 16).read_to_end(&mut text);
        }
        Ok(Ended {
            seconds,
            peak_bytes,
            status,
            errors: String::from_utf8_lossy(&text).trim().to_owned(),
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.kill.take().is_some() {
            // Dropping the guard has killed the group.
            let _ = self.child.wait();
        }
    }
}

/// Peak resident set of a process so far.
fn peak_of(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()).unwrap_or(0)
        << 10
}

/// Path of this program.
pub fn this_program() -> Result<PathBuf> {
    std::env::current_exe().context("finding this program's own file")
}

/// Path of the measured command, which is installed beside this program.
pub fn hiroma() -> Result<PathBuf> {
    let beside = this_program()?.with_file_name("hiroma");
    ensure!(
        beside.exists(),
        "{} is missing: the benches measure the command that lies beside them",
        beside.display()
    );
    Ok(beside)
}

/// The same as a word of a command line.
pub fn hiroma_word() -> Result<String> {
    hiroma()?
        .into_os_string()
        .into_string()
        .map_err(|name| anyhow!("the name of the command is not UTF-8: {name:?}"))
}

fn job_command(job: &Job) -> Result<Command> {
    let mut command = Command::new(this_program()?);
    command
        .arg("workload")
        .arg(serde_json::to_string(job)?)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    Ok(command)
}

/// Runs `job` in a child and returns its outcome.
pub fn run_job(job: &Job, limit: Duration, interrupt: &Interrupt) -> Result<TaskResult, Failed> {
    let mut running = Running::start(&mut job_command(job)?)?;
    let out = running.child.stdout.take();
    let ended = running.wait(limit, interrupt)?;
    check(&ended)?;
    let mut outcome = read_outcome(out)?;
    outcome.peak_bytes = ended.peak_bytes;
    Ok(outcome)
}

fn read_outcome(out: Option<ChildStdout>) -> Result<TaskResult> {
    let mut text = String::new();
    out.context("a measuring process without an output")?.read_to_string(&mut text)?;
    let line = text.lines().last().unwrap_or_default();
    serde_json::from_str(line).with_context(|| format!("a measuring process answered `{line}`"))
}

/// Ok if the child succeeded.
pub fn check(ended: &Ended) -> Result<(), Failed> {
    match ended.status.signal() {
        _ if ended.status.success() => Ok(()),
        Some(9) => Err(Failed::OutOfMemory),
        _ => {
            let reason = ended.errors.lines().last().unwrap_or("it said nothing").to_owned();
            Err(anyhow!("a measured program failed ({}): {reason}", ended.status).into())
        }
    }
}

/// Sends `bytes` from one process to another; returns the receiver's outcome.
pub fn run_stream(
    bytes: u64,
    limit: Duration,
    interrupt: &Interrupt,
) -> Result<TaskResult, Failed> {
    let job = |task| Job { memory: Memory::Native, cgroup: None, task };
    let mut sink = Running::start(&mut job_command(&job(Task::StreamSink))?)?;
    let mut out = BufReader::new(sink.child.stdout.take().context("no output")?);
    let mut line = String::new();
    out.read_line(&mut line)?;
    let port = line.trim().parse().with_context(|| {
        format!("the receiving process said `{}` where its port should be", line.trim())
    })?;
    run_job(&job(Task::StreamSource { port, bytes }), limit, interrupt)?;
    check(&sink.wait(limit, interrupt)?)?;
    line.clear();
    out.read_line(&mut line)?;
    serde_json::from_str(&line)
        .context("reading what the receiving process found")
        .map_err(Failed::Other)
}

/// A memory server, which is killed when this is dropped.
pub struct Server {
    _running: Running,
    pub address: String,
}

impl Server {
    /// Starts `hiroma serve` with `memory` bytes on a free port and waits until it prints its
    /// address.
    pub fn start(memory: u64) -> Result<Server> {
        let mut command = Command::new(hiroma()?);
        command.args(serve_words(memory));
        Server::start_as(&mut command, memory)
    }

    /// The same in a control group.
    pub fn start_in(cgroup: &Cgroup, memory: u64) -> Result<Server> {
        let argv: Vec<String> =
            std::iter::once(hiroma_word()?).chain(serve_words(memory)).collect();
        Server::start_as(&mut command_in(cgroup, &argv)?, memory)
    }

    fn start_as(command: &mut Command, memory: u64) -> Result<Server> {
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut running = Running::start(command)?;
        let mut line = String::new();
        BufReader::new(running.child.stdout.take().context("a server without an output")?)
            .read_line(&mut line)?;
        match address_in(&line) {
            Some(address) => Ok(Server { _running: running, address }),
            None => bail!(
                "the memory server did not start; `hiroma serve --listen 127.0.0.1:0 --memory {memory}` shows why"
            ),
        }
    }
}

fn serve_words(memory: u64) -> [String; 6] {
    ["serve", "--quiet", "--listen", "127.0.0.1:0", "--memory", &memory.to_string()]
        .map(str::to_owned)
}

/// A command that enters `cgroup`, executes `argv`, and ends with this program.
pub fn command_in(cgroup: &Cgroup, argv: &[String]) -> Result<Command> {
    let job = Job {
        memory: Memory::Native,
        cgroup: Some(cgroup.path().to_owned()),
        task: Task::Program { argv: argv.to_vec() },
    };
    let mut command = Command::new(this_program()?);
    command
        .args(["workload", &serde_json::to_string(&job)?])
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    Ok(command)
}

/// The address in the line that a server prints when it is ready.
fn address_in(line: &str) -> Option<String> {
    let words = line.split(|c: char| !(c.is_ascii_digit() || c == '.' || c == ':'));
    words
        .map(|word| word.trim_matches([':', '.']))
        .find(|word| word.parse::<std::net::SocketAddrV4>().is_ok())
        .map(str::to_owned)
}

/// Whether two files have the same content.
pub fn same_content(one: &Path, other: &Path) -> Result<bool> {
    let open =
        |path: &Path| fs::File::open(path).with_context(|| format!("opening {}", path.display()));
    let (mut one, mut other) = (open(one)?, open(other)?);
    if one.metadata()?.len() != other.metadata()?.len() {
        return Ok(false);
    }
    let (mut left, mut right) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    loop {
        let count = one.read(&mut left)?;
        if count == 0 {
            return Ok(true);
        }
        other.read_exact(&mut right[..count])?;
        if left[..count] != right[..count] {
            return Ok(false);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stderr(Stdio::piped());
        command
    }

    #[test]
    fn overdue_child_is_killed_with_its_children() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pid");
        let running =
            Running::start(&mut shell(&format!("sleep 1000 & echo $! > {}; wait", file.display())))
                .unwrap();
        let result = running.wait(Duration::from_millis(500), &Interrupt::default());
        assert!(matches!(result, Err(Failed::TimeLimit(_))));
        let pid: i32 = fs::read_to_string(file).unwrap().trim().parse().unwrap();
        let state = || fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let gone = || state().is_empty() || state().contains(") Z");
        assert!(
            (0..500).any(|_| gone() || {
                thread::sleep(Duration::from_millis(10));
                false
            }),
            "{}",
            state()
        );
    }

    #[test]
    fn failure_quotes_the_last_output() {
        let ended = Running::start(&mut shell("echo first >&2; echo no room >&2; exit 3"))
            .unwrap()
            .wait(Duration::from_secs(60), &Interrupt::default())
            .ok()
            .unwrap();
        assert!(check(&ended).unwrap_err().to_string().contains("no room"));
        let ended = Running::start(&mut shell("kill -9 $$"))
            .unwrap()
            .wait(Duration::from_secs(60), &Interrupt::default())
            .ok()
            .unwrap();
        assert!(matches!(check(&ended), Err(Failed::OutOfMemory)));
    }

    #[test]
    fn server_address_is_read_from_output() {
        for line in [
            "hiroma: serving 1GiB on 127.0.0.1:4711\n",
            "tcp://127.0.0.1:4711",
            "listening on 127.0.0.1:4711.",
        ] {
            assert_eq!(address_in(line).as_deref(), Some("127.0.0.1:4711"), "{line}");
        }
        assert_eq!(address_in("hiroma: no room for 1.5 things at 10:30"), None);
    }

    #[test]
    fn an_interrupt_ends_the_wait() {
        let interrupt = Interrupt::default();
        interrupt.0.store(true, Ordering::Relaxed);
        let result = Running::start(&mut shell("sleep 1000"))
            .unwrap()
            .wait(Duration::from_secs(1000), &interrupt);
        assert!(matches!(result, Err(Failed::Interrupted)));
    }

    #[test]
    fn files_are_equal_only_if_every_byte_is() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        fs::write(&a, vec![1; 3 << 20]).unwrap();
        let mut other = vec![1; 3 << 20];
        fs::write(&b, &other).unwrap();
        assert!(same_content(&a, &b).unwrap());
        *other.last_mut().unwrap() = 2;
        fs::write(&b, &other).unwrap();
        assert!(!same_content(&a, &b).unwrap());
        fs::write(&b, &other[1..]).unwrap();
        assert!(!same_content(&a, &b).unwrap());
    }
}
