//! Members of a pool of memory servers: who is there, and what each of them says of itself.
//!
//! [`Node`] is one member's part in it, without sockets, clocks and threads. [`Membership`] runs it
//! over UDP. [`ask`] asks a member over a connection for what it knows.

mod ask;
mod book;
mod codec;
mod etcd;
mod guard;
mod live;
mod node;
mod report;
mod sources;
mod view;

pub use ask::{AskError, ask, ask_any};
pub use guard::{POOL_VERSION, Refusal};
pub use live::{JoinError, Membership, Options};
pub use node::{DATAGRAM_BYTES_MAX, Event, MEMBERS_MAX, Node, Settings};
pub use report::{Condition, Id, LabelError, Report, check_name, parse_labels};
pub use sources::{Discovery, resolve};
pub use view::{Answer, ClientView, Health, MemberView, Request};
