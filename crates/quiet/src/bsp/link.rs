//! Processes that meet after each step, over TCP. The first one listens; the others join it and
//! receive its options.
//!
//! All numbers are little-endian. Joining: `magic, ranks` to the first process; when all have
//! joined, `magic, process, ranks of all, steps, step in ns, duration in ns, bytes` back. After
//! each step: `step, thread, stolen ns, part` to the first, `step, goes on, process, thread, stolen
//! ns, part` back, of the rank that arrived last. The first process determines the last rank by its
//! own clock, so the transmission time counts.
//!
//! There is no authentication and no encryption: use it on private networks only.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::{BspError, Options, Rank, STEPS_MAX, Step};
use crate::meter::Part;

const MAGIC: u64 = u64::from_le_bytes(*b"hirobsp1");
/// How long to wait for other processes.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often to check for a stop while waiting.
const LOOK: Duration = Duration::from_millis(100);
/// Maximum number of ranks of a process, and of processes.
const RANKS_MAX: u64 = 65_536;

/// One other process.
struct Peer {
    stream: TcpStream,
    address: SocketAddr,
}

/// The other processes: all of them for the first one, the first for the others.
pub struct Link {
    peers: Vec<Peer>,
    process: u32,
    ranks: u32,
    steps: u64,
}

impl Peer {
    fn new(stream: TcpStream, address: SocketAddr) -> Result<Peer, BspError> {
        let peer = Peer { stream, address };
        let set = peer.stream.set_nodelay(true).and_then(|()| peer.stream.set_nonblocking(false));
        let set = set.and_then(|()| peer.stream.set_write_timeout(Some(PATIENCE)));
        set.map_err(|error| peer.failed(error.to_string()))?;
        Ok(peer)
    }

    fn failed(&self, reason: impl Into<String>) -> BspError {
        BspError::Peer { peer: self.address, reason: reason.into() }
    }

    fn send<const N: usize>(&mut self, words: [u64; N]) -> Result<(), BspError> {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.stream.write_all(&bytes).map_err(|error| {
            self.failed(format!("this process of the run cannot be told anything: {error}"))
        })
    }

    /// Waits for a message, for at most [`PATIENCE`]; fails after a stop.
    fn receive<const N: usize>(&mut self, stop: &AtomicBool) -> Result<[u64; N], BspError> {
        let mut bytes = vec![0; N * 8];
        let (mut got, began) = (0, Instant::now());
        self.stream.set_read_timeout(Some(LOOK)).map_err(|error| self.failed(error.to_string()))?;
        while got < bytes.len() {
            match self.stream.read(&mut bytes[got..]) {
                Ok(0) => {
                    return Err(self.failed("this process of the run has ended: see what it said"));
                }
                Ok(more) => got += more,
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock
                            | io::ErrorKind::TimedOut
                            | io::ErrorKind::Interrupted
                    ) =>
                {
                    if stop.load(Ordering::Relaxed) {
                        return Err(
                            self.failed("interrupted while this process of the run was waited for")
                        );
                    }
                    if began.elapsed() > PATIENCE {
                        let seconds = PATIENCE.as_secs();
                        return Err(self.failed(format!("this process of the run said nothing for {seconds} s: does it still run?")));
                    }
                }
                Err(error) => return Err(self.failed(error.to_string())),
            }
        }
        let mut words = bytes
            .chunks_exact(8)
            .map(|word| word.iter().rev().fold(0, |all, &byte| all << 8 | u64::from(byte)));
        Ok(std::array::from_fn(|_| words.next().unwrap_or(0)))
    }
}

impl Link {
    /// Waits for `processes - 1` others to join, and sends them the options.
    pub fn listen(
        listener: &TcpListener,
        processes: u32,
        options: &Options,
        stop: &AtomicBool,
    ) -> Result<Link, BspError> {
        let address = listener
            .local_addr()
            .map_or_else(|error| error.to_string(), |address| address.to_string());
        let failed = |source| BspError::Address { address: address.clone(), source };
        listener.set_nonblocking(true).map_err(failed)?;
        let mut peers = Vec::new();
        let mut ranks = options.cpus.len() as u64;
        while peers.len() + 1 < processes as usize {
            match listener.accept() {
                Ok((stream, address)) => {
                    let mut peer = Peer::new(stream, address)?;
                    let [magic, theirs] = peer.receive(stop)?;
                    if magic != MAGIC || !(1..=RANKS_MAX).contains(&theirs) {
                        return Err(peer.failed("that is no `hiroma quiet bsp` of this version"));
                    }
                    ranks += theirs;
                    peers.push(peer);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if stop.load(Ordering::Relaxed) {
                        return Err(BspError::Nothing);
                    }
                    std::thread::sleep(LOOK);
                }
                Err(error) => return Err(failed(error)),
            }
        }
        let (step_ns, duration_ns) =
            (options.step.as_nanos() as u64, options.duration.as_nanos() as u64);
        for (index, peer) in peers.iter_mut().enumerate() {
            peer.send([
                MAGIC,
                index as u64 + 1,
                ranks,
                options.steps,
                step_ns,
                duration_ns,
                options.alloc_bytes as u64,
            ])?;
        }
        Ok(Link { peers, process: 0, ranks: ranks.min(u64::from(u32::MAX)) as u32, steps: 0 })
    }

    /// Joins the process that listens at `address`, and adopts its options.
    pub fn join(
        address: SocketAddr,
        options: &mut Options,
        stop: &AtomicBool,
    ) -> Result<Link, BspError> {
        let refused = |error: io::Error| BspError::Peer {
            peer: address,
            reason: format!("{error}: is `hiroma quiet bsp --listen` running there?"),
        };
        let stream = TcpStream::connect_timeout(&address, PATIENCE).map_err(refused)?;
        let mut peer = Peer::new(stream, address)?;
        peer.send([MAGIC, options.cpus.len() as u64])?;
        // Other processes may take any time to join.
        let [magic, process, ranks, steps, step_ns, duration_ns, alloc_bytes] = loop {
            match peer
                .stream
                .set_read_timeout(Some(LOOK))
                .and_then(|()| peer.stream.peek(&mut [0]).map(|_| ()))
            {
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
                    ) =>
                {
                    if stop.load(Ordering::Relaxed) {
                        return Err(BspError::Nothing);
                    }
                }
                _ => break peer.receive(stop)?,
            }
        };
        let makes_sense = magic == MAGIC
            && (1..RANKS_MAX).contains(&process)
            && (1..=STEPS_MAX).contains(&steps)
            && (1..=10_000_000_000).contains(&step_ns)
            && alloc_bytes <= 1 << 40;
        if !makes_sense {
            return Err(peer.failed("that is no `hiroma quiet bsp` of this version"));
        }
        (options.steps, options.step, options.duration) =
            (steps, Duration::from_nanos(step_ns), Duration::from_nanos(duration_ns));
        options.alloc_bytes = alloc_bytes as usize;
        Ok(Link {
            peers: vec![peer],
            process: process as u32,
            ranks: ranks.min(u64::from(u32::MAX)) as u32,
            steps: 0,
        })
    }

    /// Ranks of all processes.
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// Meets the other processes after `step`, which becomes the step of the rank that arrived last
    /// of all. `enough`: the first process ends the run.
    pub(super) fn meet(
        &mut self,
        step: &mut Step,
        enough: bool,
        stop: &AtomicBool,
    ) -> Result<bool, BspError> {
        let number = self.steps;
        self.steps += 1;
        if self.process == 0 {
            self.gather(number, step, enough, stop)
        } else {
            self.report(number, step, stop)
        }
    }

    /// For the first process: the last rank is known when all have arrived.
    fn gather(
        &mut self,
        number: u64,
        step: &mut Step,
        enough: bool,
        stop: &AtomicBool,
    ) -> Result<bool, BspError> {
        let mut missing: Vec<usize> = (0..self.peers.len()).collect();
        let mut here_before = true;
        while !missing.is_empty() {
            let look = if here_before { Duration::ZERO } else { LOOK };
            let come = wait_for_any(&self.peers, &missing, look)
                .map_err(|error| self.peers[missing[0]].failed(error.to_string()))?;
            // None arrived within `LOOK`: receiving from one of them detects a stop and the
            // timeout.
            let come = if come.is_empty() && !here_before { vec![missing[0]] } else { come };
            for index in come {
                let [theirs, thread, stolen_ns, part] = self.peers[index].receive(stop)?;
                if theirs != number {
                    return Err(self.peers[index].failed(format!(
                        "is at step {theirs} instead of {number}: that is a bug"
                    )));
                }
                missing.retain(|&other| other != index);
                if !here_before {
                    step.last = Rank { process: index as u32 + 1, thread: thread as u32 };
                    (step.stolen_ns, step.by) = (stolen_ns, Part::from_code(part));
                }
            }
            here_before = false;
        }
        let part = step.by.map_or(0, Part::code);
        let (process, thread) = (u64::from(step.last.process), u64::from(step.last.thread));
        for peer in &mut self.peers {
            peer.send([number, u64::from(!enough), process, thread, step.stolen_ns, part])?;
        }
        Ok(!enough)
    }

    /// For the other processes.
    fn report(
        &mut self,
        number: u64,
        step: &mut Step,
        stop: &AtomicBool,
    ) -> Result<bool, BspError> {
        let peer = &mut self.peers[0];
        peer.send([
            number,
            u64::from(step.last.thread),
            step.stolen_ns,
            step.by.map_or(0, Part::code),
        ])?;
        let [theirs, goes_on, process, thread, stolen_ns, part] = peer.receive(stop)?;
        if theirs != number {
            return Err(
                peer.failed(format!("is at step {theirs} instead of {number}: that is a bug"))
            );
        }
        step.last = Rank { process: process as u32, thread: thread as u32 };
        (step.stolen_ns, step.by) = (stolen_ns, Part::from_code(part));
        Ok(goes_on != 0)
    }
}

/// Which of `missing` have sent something within `look`.
fn wait_for_any(peers: &[Peer], missing: &[usize], look: Duration) -> io::Result<Vec<usize>> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut waiting: Vec<PollFd> =
        missing.iter().map(|&index| PollFd::new(&peers[index].stream, PollFlags::IN)).collect();
    let look = Timespec { tv_sec: 0, tv_nsec: look.subsec_nanos().into() };
    match poll(&mut waiting, Some(&look)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(errno) => return Err(errno.into()),
    }
    Ok(missing
        .iter()
        .zip(&waiting)
        .filter(|(_, fd)| !fd.revents().is_empty())
        .map(|(&index, _)| index)
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn options() -> Options {
        let second = Duration::from_secs(1);
        Options {
            cpus: vec![0],
            steps: 1,
            duration: second,
            step: second,
            chunk_turns: None,
            alloc_bytes: 0,
            bpf: false,
        }
    }

    #[test]
    fn strangers_and_departed_peers_are_reported() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let stop = AtomicBool::new(false);
        let mut stranger = TcpStream::connect(address).unwrap();
        stranger.write_all(b"GET / HTTP/1.1\r\n").unwrap();
        let said = Link::listen(&listener, 2, &options(), &stop).err().unwrap().to_string();
        assert!(said.contains("no `hiroma quiet bsp` of this version"), "{said}");
        drop(TcpStream::connect(address).unwrap());
        let said = Link::listen(&listener, 2, &options(), &stop).err().unwrap().to_string();
        assert!(said.contains("has ended"), "{said}");
        drop(listener);
        let said = Link::join(address, &mut options(), &stop).err().unwrap().to_string();
        assert!(said.contains("is `hiroma quiet bsp --listen` running there?"), "{said}");
    }

    #[test]
    fn stop_ends_waiting_for_peers() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        assert!(matches!(
            Link::listen(&listener, 2, &options(), &AtomicBool::new(true)),
            Err(BspError::Nothing)
        ));
    }
}
