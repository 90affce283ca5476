//! One frame of a connection.

use hiroma_far_wire::{Header, Kind, Message};

use crate::store::tcp::channel::Requests;

/// A request to a server.
pub enum Ask {
    /// Reads or writes a part of a request's buffer.
    Transfer { request: usize, at: usize, write: bool },
    /// Any other request; the answer is stored if `keep_answer`.
    Control { message: Message, keep_answer: bool },
}

/// One frame that is to be sent or waits for its answer.
pub struct Part {
    pub id: u64,
    pub addr: u64,
    pub len: usize,
    pub ask: Ask,
}

impl Part {
    pub fn encode(&self, version: u16, out: &mut Vec<u8>) {
        match &self.ask {
            Ask::Transfer { write, .. } => {
                let kind = if *write { Kind::Write } else { Kind::Read };
                out.extend_from_slice(
                    &Header { version, kind, id: self.id, addr: self.addr, len: self.len as u32 }
                        .encode(),
                );
            }
            Ask::Control { message, .. } => message.encode(version, self.id, out),
        }
    }

    pub fn payload<'a>(&self, requests: &'a Requests) -> &'a [u8] {
        match self.ask {
            Ask::Transfer { request, at, write: true } => requests.source(request, at, self.len),
            _ => &[],
        }
    }
}
