//! What a member knows of all, and requests to members, as JSON.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

/// Whether a member is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Health {
    /// It answers.
    Alive,
    /// It did not answer at least one member.
    Suspect,
    /// It was silent for too long, or has left.
    Dead,
}

/// One member, as another one knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberView {
    /// Its name; its address while it has not said more.
    pub name: String,
    /// Address for connections and datagrams.
    pub address: SocketAddr,
    /// Grows with each restart.
    pub incarnation: u64,
    /// Random number of its process: the same after a return, another after a restart.
    pub boot: u64,
    /// Whether it is there.
    pub health: Health,
    /// What it lends.
    pub lent_bytes: u64,
    /// Of this, what nobody has.
    pub free_bytes: u64,
    /// Of what clients have, what lies in a file of the member.
    pub spilled_bytes: u64,
    /// Share of time in which its machine waited for memory, in percent.
    pub pressure_percent: u8,
    /// It takes no new blocks at present.
    pub refusing: bool,
    /// It is being emptied.
    pub draining: bool,
    /// Highest version of the block protocol that it speaks.
    pub version: u16,
    /// Its labels.
    pub labels: Vec<(String, String)>,
    /// Number of its last report; 0: none was heard yet.
    pub sequence: u32,
    /// Age of its last report.
    pub heard_ms_ago: u64,
}

impl MemberView {
    /// What [`MemberView::state`] can be.
    pub const STATES: [&str; 5] = ["alive", "suspect", "dead", "draining", "short"];

    /// How it is, in a word.
    pub fn state(&self) -> &'static str {
        match self.health {
            Health::Dead => "dead",
            Health::Suspect => "suspect",
            Health::Alive if self.draining => "draining",
            Health::Alive if self.refusing => "short",
            Health::Alive => "alive",
        }
    }

    /// Whether new blocks should go there.
    pub fn takes_blocks(&self) -> bool {
        self.health == Health::Alive
            && self.sequence > 0
            && !self.refusing
            && !self.draining
            && self.free_bytes > 0
    }
}

/// One client of a member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientView {
    /// Its number at the member.
    pub number: u64,
    /// Its name; empty if it gave none.
    pub name: String,
    /// Where it connects from.
    pub peer: String,
    /// Open connections.
    pub connections: usize,
    /// Of these, in memory that client and member share.
    #[serde(default)]
    pub shared_connections: usize,
    /// Bytes that it has at the member.
    pub used_bytes: u64,
    /// Bytes that its tenant has there or that are set aside for it: all clients of the same name,
    /// or all unnamed ones of the same machine.
    #[serde(default)]
    pub tenant_bytes: u64,
    /// What its tenant may have there at most.
    #[serde(default)]
    pub quota_bytes: Option<u64>,
    /// How many of its blocks have fewer copies or pieces than it wants, at all members together; none:
    /// it keeps no more than one.
    #[serde(default)]
    pub short_blocks: Option<u64>,
    /// Its tenant's weight when memory is short.
    #[serde(default)]
    pub weight: u32,
    /// Bytes and requests so far.
    pub read_bytes: u64,
    pub written_bytes: u64,
    pub reads: u64,
    pub writes: u64,
}

/// A request to a member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Request {
    /// What it knows of all members.
    Members,
    /// Its own clients.
    Clients,
    /// To take no new blocks and be emptied, or (`false`) to be a member as before.
    Drain(bool),
}

/// The answer to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// All members, itself first.
    Members(Vec<MemberView>),
    /// Its clients.
    Clients(Vec<ClientView>),
    /// It was done; bytes that clients still have there.
    Draining { used_bytes: u64 },
    /// It cannot answer.
    Error(String),
}
