//! Buffers of a channel's own, for what is on its way besides the callers' buffers.

use std::io;

use hiroma_sys::frame::FrameBuf;
use hiroma_sys::vm::{self, Access, Reservation};
use hiroma_units::PAGE;

/// Smaller buffers are cut from pieces of memory of this size.
const PIECE_BYTES: usize = 256 << 10;

/// Buffers in sizes of powers of two. They are kept for reuse until the channel is dropped; there are
/// as many as have been in use at a time.
#[derive(Default)]
pub struct Spares {
    /// Addresses of the idle ones, by the logarithm of their size.
    idle: [Vec<usize>; 32],
    memory: Vec<Reservation>,
    bytes: usize,
}

fn class_of(len: usize) -> usize {
    len.max(PAGE).next_power_of_two()
}

impl Spares {
    /// A buffer of `len` bytes, with any content.
    pub fn take(&mut self, len: usize) -> io::Result<FrameBuf> {
        let class = class_of(len);
        let idle = &mut self.idle[class.ilog2() as usize];
        if idle.is_empty() {
            let memory = Reservation::new(class.max(PIECE_BYTES), PAGE, Access::ReadWrite)?;
            idle.extend((memory.base()..memory.base() + memory.len()).step_by(class).rev());
            self.bytes += memory.len();
            self.memory.push(memory);
        }
        let addr = idle.pop().expect("there is one now");
        Ok(vm::lend(addr, len))
    }

    /// Returns a buffer.
    pub fn put(&mut self, buf: FrameBuf) {
        self.idle[class_of(buf.len()).ilog2() as usize].push(buf.addr());
    }

    /// Bytes of all buffers.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}
