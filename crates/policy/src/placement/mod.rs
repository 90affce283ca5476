//! Global page placement: which node of a cluster keeps a page that has to leave another one.

mod config;

pub use config::{FailureKind, InformationKind, PlacementConfig, PlacementKind, ReplacementKind, ReservationKind, ScopeKind};
