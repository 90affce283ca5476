//! Errors of the daemon.

use std::io;
use std::path::PathBuf;

use hiroma_policy::reclaim::OutOfRange;

use crate::settings::show;

/// Why it failed. The message states what the user can do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QuietError {
    #[error("another daemon runs already (it holds {}): change its settings with `hiroma quiet set`, or stop it first", .0.display())]
    Taken(PathBuf),
    #[error("no daemon runs here ({} is not held): start one with `hiroma quiet serve`", .0.display())]
    NotRunning(PathBuf),
    #[error("{}: {source}: the daemon needs a directory that it can write to, see --state", .path.display())]
    State { path: PathBuf, source: io::Error },
    #[error("{}: {reason}: remove the file", .path.display())]
    Damaged { path: PathBuf, reason: String },
    #[error("nothing can be done for quiet here:\n{0}")]
    NoMechanism(String),
    #[error("--metrics {address}: {source}: choose another address")]
    Metrics { address: std::net::SocketAddr, source: io::Error },
    #[error("cannot see how memory is used: {0}")]
    Machine(io::Error),
    #[error("--app-cpus {list}: no processor would be left for reclaim: leave one out")]
    NoHousekeeping { list: String },
    #[error("there is no setting `{key}`: there are {keys}")]
    NoSetting { key: String, keys: String },
    #[error("`{text}` is no value for {key}: write {form}")]
    BadValue { key: String, text: String, form: &'static str },
    #[error("{} {} is not possible: from {} to {}", .0.key, show(.0.key, .0.value), show(.0.key, .0.min), show(.0.key, .0.max))]
    OutOfRange(OutOfRange),
}
