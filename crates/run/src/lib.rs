//! Programs that are started with one of our libraries, seen from outside: whether a program can
//! load it, its signals, what its pagers report while it runs and after it has ended, and the
//! report about the run. `hiroma run` and `hiroma quiet run` put these together.

pub mod accessed;
pub mod budget;
pub mod herald;
pub mod loss;
pub mod metrics;
pub mod outside;
pub mod preload;
pub mod processes;
pub mod program;
pub mod record;
pub mod report;
pub mod rundir;
pub mod series;
pub mod signals;
pub mod stats;
pub mod watch;
