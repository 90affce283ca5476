//! How a connection goes on in memory that client and server share.

use std::io;

use hiroma_far_wire::{ErrorCode, Kind, Message, Purpose, WireError};

use super::Connection;
use crate::Server;
use crate::ending::End;
use crate::session::Lane;

impl<'a> Connection<'a> {
    /// Invites a client on this machine to take rings.
    pub(super) fn offer_rings(&mut self) {
        match self.server.rings.offer(&self.stream) {
            Ok(offer) => {
                let invitation = offer.invitation();
                self.offer = Some(offer);
                self.say(&Message::OfferRings { name: invitation.name, secret: invitation.secret });
            }
            Err(error) => self.stay_with_tcp(&error),
        }
    }

    /// The client has come to take rings: the connection goes on there, or stays as it is.
    pub(super) fn take_rings(&mut self, lane: &Lane, purpose: Purpose) -> Result<(), End> {
        let server: &'a Server = self.server;
        let taken = match self.offer.take() {
            // What it has sent already would be lost.
            Some(offer) if self.rx_start == self.rx_end => {
                server.rings.hand_over(offer, purpose, &self.stream)
            }
            _ => {
                return Err(
                    WireError::Unexpected { kind: Kind::TakeRings, expected: "a request" }.into()
                );
            }
        };
        match taken {
            Ok((transport, place)) => {
                // A client that goes on finds itself counted.
                lane.set_shared();
                self.say(&Message::Ack);
                self.flush()?;
                self.transport = Box::new(transport);
                self.rings = Some(place);
            }
            Err(error) => self.stay_with_tcp(&error),
        }
        Ok(())
    }

    fn stay_with_tcp(&mut self, error: &io::Error) {
        let text = format!("no shared memory: {error}");
        self.say(&Message::Error { code: ErrorCode::Other(0), text });
    }
}
