//! Experiments with the simulator: read from files, run many times on a few threads, and reported
//! with confidence intervals.
//!
//! | Module | What it does |
//! |---|---|
//! | [`settings`], [`cluster`], [`presets`] | files to configurations; errors with their line |
//! | [`policies`] | placement policies of users |
//! | [`lab`], [`jobs`] | runs, several at the same time |
//! | [`forecast`] | memory and time that runs take, before they begin |
//! | [`single`], [`compare`], [`replay`] | one cluster; all policies on it; a recorded load |
//! | [`picture`] | one run over time, by node, and where time goes |
//! | [`sweep`] | a grid of settings, in shards that run anywhere |
//! | [`paper`] | every experiment of the paper, and some beyond |
//! | [`notes`] | what a user may not have meant |
//! | [`figures`], [`stats`] | numbers of a run; means with intervals, paired differences |
//! | [`trace`] | recorded page-outs; `docs/internals/trace-format.md` |
//!
//! Files and output depend only on the configuration and the seeds: not on the number of threads,
//! shards or interruptions.

pub mod cluster;
pub mod compare;
pub mod figures;
pub mod forecast;
pub mod jobs;
pub mod keys;
pub mod lab;
pub mod networks;
pub mod notes;
pub mod paper;
pub mod picture;
pub mod policies;
pub mod presets;
pub mod replay;
pub mod settings;
pub mod single;
pub mod sweep;
pub mod trace;
