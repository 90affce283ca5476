//! Assembles frames from received bytes, in pieces of any size.

use crate::message::MAX_BODY;
use crate::{Frame, HEADER_BYTES, Header, Kind, Message, WireError};

/// The frame that is arriving.
pub struct Inbound {
    bytes: [u8; HEADER_BYTES + MAX_BODY],
    filled: usize,
    header: Option<Header>,
    payload_left: usize,
}

impl Default for Inbound {
    fn default() -> Self {
        Inbound::new()
    }
}

impl Inbound {
    /// Initial state: nothing has arrived.
    pub fn new() -> Inbound {
        Inbound { bytes: [0; HEADER_BYTES + MAX_BODY], filled: 0, header: None, payload_left: 0 }
    }

    /// Bytes until the current header or control body is complete; 0 while a payload is expected.
    pub fn missing(&self) -> usize {
        if self.payload_left > 0 {
            return 0;
        }
        HEADER_BYTES + self.header.map_or(0, |header| header.body_bytes()) - self.filled
    }

    /// Whether the frame that is arriving has a body. A frame with a payload has none.
    pub fn is_in_body(&self) -> bool {
        self.header.is_some()
    }

    /// Bytes of payload that have not been received yet. The transport receives them;
    /// [`Inbound::payload_received`] counts them.
    pub fn payload_left(&self) -> usize {
        self.payload_left
    }

    /// Records that this many bytes of the payload were received.
    pub fn payload_received(&mut self, bytes: usize) {
        assert!(bytes <= self.payload_left, "more payload than was announced");
        self.payload_left -= bytes;
    }

    /// Consumes bytes; returns how many were used, and the frame that they completed. Never
    /// consumes bytes of a payload. `allowed` is called as soon as a header is complete, before any
    /// of its body is consumed.
    pub fn feed(
        &mut self,
        bytes: &[u8],
        allowed: impl Fn(Kind) -> Result<(), WireError>,
    ) -> Result<(usize, Option<Frame>), WireError> {
        let mut used = 0;
        loop {
            let take = self.missing().min(bytes.len() - used);
            self.bytes[self.filled..self.filled + take].copy_from_slice(&bytes[used..used + take]);
            self.filled += take;
            used += take;
            if self.payload_left > 0 || self.missing() > 0 {
                return Ok((used, None));
            }
            if let Some(header) = self.header {
                let frame = Message::decode(&header, &self.bytes[HEADER_BYTES..self.filled])?;
                self.filled = 0;
                self.header = None;
                self.payload_left = header.payload_bytes();
                return Ok((used, Some(frame)));
            }
            let header = Header::decode(self.bytes.first_chunk().expect("a header fits"))?;
            allowed(header.kind)?;
            self.header = Some(header);
        }
    }
}
