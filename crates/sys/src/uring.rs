//! Reads and writes of files through io_uring; the ring owns the buffer while the kernel uses it.
//!
//! Contract: a buffer that was passed to [`Ring::start`] stays in the ring until the kernel has
//! completed every piece of it; dropping the ring waits for that. A ring belongs to the process
//! that made it: in the child of a fork it must not be used, and dropping it there does not affect
//! the parent's.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

use io_uring::{IoUring, opcode, types};
use rustix::process::{Pid, getpid};

use crate::frame::FrameBuf;

/// Direction of a transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// From the file to the buffer.
    Read,
    /// From the buffer to the file.
    Write,
}

/// A range of a buffer and its location in a file.
#[derive(Clone, Debug)]
pub struct Piece {
    /// The file.
    pub file: Arc<File>,
    /// First byte in the file.
    pub offset: u64,
    /// First byte in the buffer.
    pub start: usize,
    /// Length in bytes.
    pub len: usize,
}

/// A completed request. The buffer is returned.
#[derive(Debug)]
pub struct Finished {
    /// The token passed to `start`.
    pub token: u64,
    /// The buffer.
    pub buf: FrameBuf,
    /// Whether every piece was transferred in full; else the first failure.
    pub result: io::Result<()>,
}

struct Request {
    token: u64,
    buf: FrameBuf,
    direction: Direction,
    pieces_left: usize,
    result: io::Result<()>,
}

/// With this many waiting pieces, submission is not delayed further.
const TOGETHER: usize = 32;

/// One submission ring and its requests.
pub struct Ring {
    ring: ManuallyDrop<IoUring>,
    owner: Pid,
    depth: usize,
    requests: Slots<Request>,
    /// Pieces that are not completed, with their request.
    pieces: Slots<(usize, Piece)>,
    /// Of `pieces`: not submitted to the kernel yet.
    waiting: VecDeque<usize>,
    /// Of `pieces`: in the submission queue or under way.
    in_kernel: usize,
    /// Completions of the current round.
    arrived: Vec<(usize, i32)>,
}

impl Ring {
    /// A ring with room for `depth` (a power of two) pieces under way. Fails if the kernel or a
    /// sandbox forbids it.
    pub fn new(depth: u32) -> io::Result<Ring> {
        let ring = IoUring::new(depth)?;
        Ok(Ring {
            ring: ManuallyDrop::new(ring),
            owner: getpid(),
            depth: depth as usize,
            requests: Slots::default(),
            pieces: Slots::default(),
            waiting: VecDeque::new(),
            in_kernel: 0,
            arrived: Vec::new(),
        })
    }

    /// Queues all `pieces` (at least one, none of them empty) of `buf` for transfer. They start at
    /// the next [`Ring::reap`] at the latest: pieces that are submitted together and are adjacent
    /// in the file become one request to the device.
    pub fn start(
        &mut self,
        token: u64,
        direction: Direction,
        buf: FrameBuf,
        pieces: impl IntoIterator<Item = Piece>,
    ) {
        let len = buf.len();
        let request =
            self.requests.put(Request { token, buf, direction, pieces_left: 0, result: Ok(()) });
        let mut count = 0;
        for piece in pieces {
            let is_inside = piece.start.checked_add(piece.len).is_some_and(|end| end <= len);
            assert!(
                is_inside && piece.len > 0,
                "{piece:?} is not a part of a buffer of {len} bytes"
            );
            self.waiting.push_back(self.pieces.put((request, piece)));
            count += 1;
        }
        assert!(count > 0, "a request without pieces");
        self.requests.get(request).pieces_left = count;
        if self.waiting.len() >= TOGETHER {
            self.submit();
        }
    }

    /// Submits and completes requests without blocking; appends completed ones to `out`.
    pub fn reap(&mut self, out: &mut Vec<Finished>) {
        if self.in_kernel == 0 && self.waiting.is_empty() {
            return;
        }
        let mut arrived = std::mem::take(&mut self.arrived);
        arrived.extend(
            self.ring.completion().map(|entry| (entry.user_data() as usize, entry.result())),
        );
        self.in_kernel -= arrived.len();
        for (piece, result) in arrived.drain(..) {
            self.settle(piece, result, out);
        }
        self.arrived = arrived;
        self.submit();
    }

    /// Number of requests that are not completed.
    pub fn in_flight(&self) -> usize {
        self.requests.live
    }

    /// A descriptor that is readable while there is something to reap.
    pub fn fd(&self) -> RawFd {
        self.ring.as_raw_fd()
    }

    /// Submits waiting pieces to the kernel, as many as there is room for. The others are submitted
    /// at the next `reap`.
    fn submit(&mut self) {
        while self.in_kernel < self.depth {
            let Some(index) = self.waiting.pop_front() else { break };
            let (request, piece) = self.pieces.get(index);
            let (request, fd) = (self.requests.get(*request), types::Fd(piece.file.as_raw_fd()));
            let (start, len) =
                (request.buf.bytes_mut()[piece.start..].as_mut_ptr(), piece.len as u32);
            let entry = match request.direction {
                Direction::Read => opcode::Read::new(fd, start, len).offset(piece.offset).build(),
                Direction::Write => opcode::Write::new(fd, start, len).offset(piece.offset).build(),
            };
            // SAFETY: `start` checked that the piece is inside the buffer, which stays in
            // `requests` (and the file in `pieces`) until the completion of this entry was seen;
            // `drop` waits for that. Nothing else accesses the bytes meanwhile.
            let pushed = unsafe { self.ring.submission().push(&entry.user_data(index as u64)) };
            if pushed.is_err() {
                self.waiting.push_front(index);
                break;
            }
            self.in_kernel += 1;
        }
        if !self.ring.submission().is_empty() {
            // EINTR, EAGAIN, EBUSY: entries that were not submitted stay in the queue for the next
            // time.
            let _ = self.ring.submit();
        }
    }

    fn settle(&mut self, index: usize, result: i32, out: &mut Vec<Finished>) {
        let (number, piece) = self.pieces.get(index);
        let (number, request) = (*number, self.requests.get(*number));
        let transferred = usize::try_from(result).unwrap_or(0);
        let error = match result {
            _ if transferred >= piece.len => None,
            0 if request.direction == Direction::Read => Some(io::ErrorKind::UnexpectedEof.into()),
            0 => Some(io::ErrorKind::WriteZero.into()),
            _ if transferred > 0 || [libc::EINTR, libc::EAGAIN].contains(&-result) => {
                piece.offset += transferred as u64;
                piece.start += transferred;
                piece.len -= transferred;
                self.waiting.push_back(index);
                return;
            }
            errno => Some(io::Error::from_raw_os_error(-errno)),
        };
        self.pieces.take(index);
        if let (Some(error), Ok(())) = (error, &request.result) {
            request.result = Err(error);
        }
        request.pieces_left -= 1;
        if request.pieces_left == 0 {
            let Request { token, buf, result, .. } = self.requests.take(number);
            out.push(Finished { token, buf, result });
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if getpid() != self.owner {
            return;
        }
        self.waiting.clear();
        while self.in_kernel > 0 {
            let waited = self.ring.submit_and_wait(1);
            self.in_kernel -= self.ring.completion().count();
            let passing = [libc::EINTR, libc::EAGAIN, libc::EBUSY];
            if waited.is_err_and(|error| {
                !error.raw_os_error().is_some_and(|errno| passing.contains(&errno))
            }) {
                // The descriptor was closed by other code: there is nothing left to wait for.
                break;
            }
        }
        // SAFETY: not used after this; the ring itself is being dropped.
        unsafe { ManuallyDrop::drop(&mut self.ring) };
    }
}

/// Values indexed by small numbers that are reused.
struct Slots<T> {
    slots: Vec<Option<T>>,
    free: Vec<usize>,
    live: usize,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Slots { slots: Vec::new(), free: Vec::new(), live: 0 }
    }
}

impl<T> Slots<T> {
    fn put(&mut self, value: T) -> usize {
        self.live += 1;
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.slots[index] = Some(value);
        index
    }

    fn get(&mut self, index: usize) -> &mut T {
        self.slots[index].as_mut().expect("a slot in use")
    }

    fn take(&mut self, index: usize) -> T {
        self.live -= 1;
        self.free.push(index);
        self.slots[index].take().expect("a slot in use")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(len: u64) -> Arc<File> {
        let path = std::env::temp_dir().join(format!(
            "hiroma-uring-{}-{:?}",
            std::process::id(),
            std::thread::current().id()
        ));
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        file.set_len(len).unwrap();
        Arc::new(file)
    }

    fn ring(depth: u32) -> Option<Ring> {
        Ring::new(depth)
            .inspect_err(|error| {
                hiroma_testkit::skip!(Machine, "io_uring is not allowed here ({error})")
            })
            .ok()
    }

    fn finish(ring: &mut Ring) -> Vec<Finished> {
        let mut out = Vec::new();
        while ring.in_flight() > 0 {
            ring.reap(&mut out);
        }
        out
    }

    #[test]
    fn many_pieces_round_trip_through_a_small_ring() {
        let Some(mut ring) = ring(4) else { return };
        let file = file(1 << 20);
        // Every other page, last page first.
        let pieces = |_| {
            (0..64).map(|n| Piece {
                file: file.clone(),
                offset: (63 - n) * 8192,
                start: n as usize * 4096,
                len: 4096,
            })
        };
        let mut buf = FrameBuf::leak(64 * 4096);
        buf.bytes_mut().chunks_mut(4096).enumerate().for_each(|(n, page)| page.fill(n as u8 + 1));
        ring.start(7, Direction::Write, buf, pieces(()));
        let mut done = finish(&mut ring).pop().unwrap();
        assert!(done.token == 7 && done.result.is_ok());
        done.buf.bytes_mut().fill(0);
        ring.start(8, Direction::Read, done.buf, pieces(()));
        let done = finish(&mut ring).pop().unwrap();
        assert!(done.token == 8 && done.result.is_ok());
        assert!(
            done.buf
                .bytes()
                .chunks(4096)
                .enumerate()
                .all(|(n, page)| page.iter().all(|&byte| byte == n as u8 + 1))
        );
    }

    #[test]
    fn end_of_file_fails_and_returns_the_buffer() {
        let Some(mut ring) = ring(4) else { return };
        let file = file(6000);
        ring.start(
            1,
            Direction::Read,
            FrameBuf::leak(8192),
            [Piece { file, offset: 0, start: 0, len: 8192 }],
        );
        let done = finish(&mut ring).pop().unwrap();
        assert_eq!(
            (done.result.unwrap_err().kind(), done.buf.len()),
            (io::ErrorKind::UnexpectedEof, 8192)
        );
    }

    #[test]
    fn dropping_a_ring_waits_for_pending_requests() {
        let Some(mut ring) = ring(8) else { return };
        let file = file(1 << 20);
        for token in 0..32 {
            let mut buf = FrameBuf::leak(4096);
            buf.bytes_mut().fill(9);
            ring.start(
                token,
                Direction::Write,
                buf,
                [Piece { file: file.clone(), offset: token * 4096, start: 0, len: 4096 }],
            );
        }
        drop(ring);
    }
}
