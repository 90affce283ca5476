//! Messages of the membership protocol as bytes, and who may become a member.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use bytes::{Buf, BufMut};
use foca::{Codec, Header, Member, Message, State};

use crate::report::{Id, Malformed, get_id, put_id};

/// The members that are known, to bound their number.
#[derive(Default)]
pub struct Roll {
    /// Known identities, once there are as many as are taken; empty before.
    known: HashSet<Id>,
}

impl Roll {
    /// Takes note of the members that there are. From `max` on, no other one is taken.
    pub fn set(&mut self, members: impl ExactSizeIterator<Item = Id>, max: usize) {
        self.clear();
        if members.len() >= max {
            self.known.extend(members);
        }
    }

    /// All are taken.
    pub fn clear(&mut self) {
        self.known.clear();
    }

    fn takes(&self, id: &Id) -> bool {
        self.known.is_empty() || self.known.contains(id)
    }
}

/// Encodes and decodes; refuses strangers while the table is full.
pub struct Wire {
    pub roll: Arc<Mutex<Roll>>,
}

impl Wire {
    fn checked(&self, id: Id) -> Result<Id, Malformed> {
        let roll = self.roll.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if roll.takes(&id) { Ok(id) } else { Err(Malformed("more members than are taken")) }
    }
}

fn number(buf: &mut impl Buf) -> Result<u8, Malformed> {
    if buf.has_remaining() { Ok(buf.get_u8()) } else { Err(Malformed("a message")) }
}

fn short(buf: &mut impl Buf) -> Result<u16, Malformed> {
    if buf.remaining() >= 2 { Ok(buf.get_u16()) } else { Err(Malformed("a message")) }
}

impl Codec<Id> for Wire {
    type Error = Malformed;

    fn encode_header(
        &mut self,
        header: &Header<Id>,
        mut buf: impl BufMut,
    ) -> Result<(), Malformed> {
        // Nothing may be written where not all fits.
        if buf.remaining_mut() < 3 * 27 + 4 {
            return Err(Malformed("no room for a header"));
        }
        put_id(&header.src, &mut buf);
        buf.put_u16(header.src_incarnation);
        put_id(&header.dst, &mut buf);
        let mut put = |kind: u8, number: Option<u8>, other: Option<&Id>| {
            buf.put_u8(kind);
            number.into_iter().for_each(|number| buf.put_u8(number));
            other.into_iter().for_each(|id| put_id(id, &mut buf));
        };
        match &header.message {
            Message::Ping(number) => put(1, Some(*number), None),
            Message::Ack(number) => put(2, Some(*number), None),
            Message::PingReq { target, probe_number } => put(3, Some(*probe_number), Some(target)),
            Message::IndirectPing { origin, probe_number } => {
                put(4, Some(*probe_number), Some(origin));
            }
            Message::IndirectAck { target, probe_number } => {
                put(5, Some(*probe_number), Some(target));
            }
            Message::ForwardedAck { origin, probe_number } => {
                put(6, Some(*probe_number), Some(origin));
            }
            Message::Announce => put(7, None, None),
            Message::Feed => put(8, None, None),
            Message::Gossip => put(9, None, None),
            Message::Broadcast => put(10, None, None),
            Message::TurnUndead => put(11, None, None),
        }
        Ok(())
    }

    fn decode_header(&mut self, mut buf: impl Buf) -> Result<Header<Id>, Malformed> {
        let src = self.checked(get_id(&mut buf)?)?;
        let src_incarnation = short(&mut buf)?;
        let dst = get_id(&mut buf)?;
        let kind = number(&mut buf)?;
        let probe_number = if kind <= 6 { number(&mut buf)? } else { 0 };
        let message = match kind {
            1 => Message::Ping(probe_number),
            2 => Message::Ack(probe_number),
            3 => Message::PingReq { target: get_id(&mut buf)?, probe_number },
            4 => Message::IndirectPing { origin: get_id(&mut buf)?, probe_number },
            5 => Message::IndirectAck { target: get_id(&mut buf)?, probe_number },
            6 => Message::ForwardedAck { origin: get_id(&mut buf)?, probe_number },
            7 => Message::Announce,
            8 => Message::Feed,
            9 => Message::Gossip,
            10 => Message::Broadcast,
            11 => Message::TurnUndead,
            _ => return Err(Malformed("a message")),
        };
        Ok(Header { src, src_incarnation, dst, message })
    }

    fn encode_member(
        &mut self,
        member: &Member<Id>,
        mut buf: impl BufMut,
    ) -> Result<(), Malformed> {
        if buf.remaining_mut() < 27 + 3 {
            return Err(Malformed("no room for a member"));
        }
        put_id(member.id(), &mut buf);
        buf.put_u16(member.incarnation());
        buf.put_u8(match member.state() {
            State::Alive => 0,
            State::Suspect => 1,
            State::Down => 2,
        });
        Ok(())
    }

    fn decode_member(&mut self, mut buf: impl Buf) -> Result<Member<Id>, Malformed> {
        let id = self.checked(get_id(&mut buf)?)?;
        let incarnation = short(&mut buf)?;
        let state = match number(&mut buf)? {
            0 => State::Alive,
            1 => State::Suspect,
            2 => State::Down,
            _ => return Err(Malformed("a state")),
        };
        Ok(Member::new(id, incarnation, state))
    }
}
