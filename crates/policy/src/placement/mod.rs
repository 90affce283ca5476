//! Global page placement: which node of a cluster keeps a page that has to leave another one.
//!
//! Every choice of the paper is a file of its own behind a narrow trait; [`Placer`] combines them
//! for one node. The simulator makes this object, and a live node could, from a
//! [`PlacementConfig`]: an event and the time go in, commands are appended to a buffer of the
//! caller. A node knows about others what messages told it, and nothing else.
//!
//! | Module | Question | Paper |
//! |---|---|---|
//! | [`information`] | when peers are told how much is free | 2.1 |
//! | [`view`], [`gradient`] | which nodes are asked: a domain, or neighbours only | 2.1 |
//! | [`replacement`] | which page is evicted | 2.2 |
//! | [`choice`], [`custom`] | which node gets it; by a policy from outside | 2.3 |
//! | [`failure`] | what happens if no frame is free there | 2.3 |
//! | [`reservation`] | whether a frame is reserved before | 2.4 |
//! | [`hearing`], [`member`] | what to believe where messages are lost and nodes fail | |

pub mod choice;
mod config;
pub mod custom;
pub mod failure;
pub mod gradient;
pub mod hearing;
pub mod information;
pub mod member;
mod placer;
pub mod replacement;
pub mod reservation;
pub mod view;

pub use config::{
    FailureKind, InformationKind, PIECES_MAX, PlacementConfig, PlacementKind, ReplacementKind,
    ReservationKind, ScopeKind,
};
pub use custom::{
    CustomPlacement, NodePolicies, PeerState, PlacementPolicy, PolicyError, PolicySource, Request,
};
pub use failure::Arrival;
pub use hearing::Stamp;
pub use hiroma_units::Rng;
pub use placer::{Command, Event, Leaving, Placer, Shared};
pub use view::{Avoid, Neighbourhood, Peer, PeerKind, View};
