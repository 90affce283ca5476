//! How a new connection to a server on this machine goes on in memory that both share
//! ([`hiroma_sys::transport::offer`]).
//!
//! It stays with TCP wherever that fails. Control requests always do: they are few.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use hiroma_far_wire::{Message, Purpose, RINGS_VERSION, WireError};
use hiroma_sys::fds;
use hiroma_sys::transport::offer::{self, Invitation};
use hiroma_sys::transport::ring::End;
use hiroma_sys::transport::shared::SharedMemory;
use hiroma_sys::transport::tcp::Tcp;

use super::greeting::refusal;
use super::{Link, State, Trouble};
use crate::config::TransportChoice;

/// What the next answer from the server is to.
pub enum Stage {
    /// The greeting, and the opening of the session.
    Opening,
    /// Rings were asked for.
    Asked,
    /// We have gone where the server offers them.
    Came(OwnedFd),
}

impl Link {
    /// Asks for rings if that makes sense. False: it does not.
    pub(super) fn ask_for_rings(&mut self) -> bool {
        let State::Greeting { stream, wire, stage, .. } = &mut self.state else { return false };
        let makes_sense = self.shared.transport == TransportChoice::Auto
            && !self.stays_with_tcp
            && self.purpose != Purpose::Control
            && wire.version() >= RINGS_VERSION
            && !fds::are_few()
            && offer::is_worth_trying(stream);
        if makes_sense {
            *stage = Stage::Asked;
            Message::AskRings.encode(wire.version(), 0, &mut self.greeting);
        }
        makes_sense
    }

    /// The server has answered.
    pub(super) fn go_on_with_rings(&mut self, answer: Message) -> Result<(), Trouble> {
        let State::Greeting { stream, wire, since, attempt, pause, stage } = self.take_state()
        else {
            return Ok(());
        };
        match (stage, answer) {
            (Stage::Asked, Message::OfferRings { name, secret }) => {
                if let Ok(bell) = offer::come(&Invitation { name, secret }) {
                    Message::TakeRings.encode(wire.version(), 0, &mut self.greeting);
                    let stage = Stage::Came(bell);
                    self.state = State::Greeting { stream, wire, since, attempt, pause, stage };
                    return Ok(());
                }
            }
            (Stage::Came(bell), Message::Ack) => {
                let stream = Arc::new(stream);
                let ends = offer::take(&bell).map_err(|error| {
                    // The server is in shared memory already.
                    self.stays_with_tcp = true;
                    Trouble::Broken(format!("no shared memory: {error}"))
                })?;
                let transport = SharedMemory::new(End::Client, ends, bell, stream);
                self.go_up(Box::new(transport), wire);
                return Ok(());
            }
            (_, Message::Error { .. }) => {}
            (_, other) => {
                let error = WireError::Unexpected { kind: other.kind(), expected: "rings" };
                return Err(refusal(&self.shared, self.server, self.addr, &error));
            }
        }
        self.go_up(Box::new(Tcp(Arc::new(stream))), wire);
        Ok(())
    }
}
