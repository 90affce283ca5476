//! Files that a simulation reads: traces, settings of a cluster, and plans of sweeps. Each is taken
//! as a whole or refused with a reason.
#![no_main]

use std::path::Path;

use hiroma_sim_lab::settings::Settings;
use hiroma_sim_lab::sweep::Plan;
use hiroma_sim_lab::trace::Trace;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = Trace::read_from(&mut &data[..], data.len() as u64, Path::new("input"));
    let Ok(text) = std::str::from_utf8(data) else { return };
    match Settings::parse("input", text) {
        Err(error) => assert!(!error.to_string().is_empty()),
        // What is named is looked for nowhere.
        Ok(settings) => drop(Plan::of(settings, Path::new("/nonexistent"))),
    }
});
