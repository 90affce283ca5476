//! `hiroma ctl`: reads the statistics of a running program and changes its limit, through its
//! control page.

use std::io::{ErrorKind, Write, stdout};
use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use hiroma_command::show;
use hiroma_far::control::{ControlPage, Counter, Snapshot};
use hiroma_units::{Bytes, SizeSpec};
use serde_json::Value;

use crate::run::local_limit;
use hiroma_run::stats::process_json;
use hiroma_run::{processes, rundir};

/// Show the statistics of a running program, or change its limit.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  hiroma ctl 4711                 what process 4711 and its children have where
  hiroma ctl 4711 --local 2G      let each of them keep 2 GiB in local memory from now on
  hiroma ctl 4711 --json          all counters")]
pub struct Args {
    /// Process id of the program, or of its `hiroma run`; its children are included
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pid: u32,
    /// New local limit: a size or a share of memory, as for `hiroma run`
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    local: Option<SizeSpec>,
    /// Print all counters as JSON
    #[arg(long)]
    json: bool,
}

/// Longest time that a pager may take to apply a new limit.
const PATIENCE: Duration = Duration::from_secs(5);

/// Changes the limit if one is given, then shows the statistics.
pub fn main(args: Args) -> Result<ExitCode> {
    let limit = args.local.map(|local| local_limit("--local", local)).transpose()?;
    let pages = find_pages(args.pid)?;
    if let Some(limit) = limit {
        set_limit(&pages, limit)?;
    }
    let snapshots: Vec<(u32, Snapshot)> =
        pages.iter().map(|(pid, page)| (*pid, page.snapshot())).collect();
    let mut out = stdout().lock();
    if args.json {
        let processes: Vec<Value> =
            snapshots.iter().map(|(pid, snapshot)| process_json(*pid, snapshot)).collect();
        writeln!(out, "{}", serde_json::to_string_pretty(&processes)?)?;
    } else {
        snapshots
            .iter()
            .try_for_each(|(pid, snapshot)| writeln!(out, "{}", describe(*pid, snapshot)))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The control pages of `root` and of its descendants.
fn find_pages(root: u32) -> Result<Vec<(u32, ControlPage)>> {
    let Ok(owner) = processes::owner(root) else {
        bail!("there is no process {root}");
    };
    let mut pages = Vec::new();
    // Processes that are small so far.
    let mut small = 0;
    for pid in processes::tree(root) {
        let dir = match processes::control_dir(pid) {
            Ok(Some(dir)) => dir,
            Ok(None) => continue,
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                match known_dir(owner, pid) {
                    Some(dir) => dir,
                    None if pid == root && owner != rustix::process::geteuid().as_raw() => {
                        bail!(
                            "process {root} belongs to user {owner}: run this as that user, or with sudo"
                        )
                    }
                    None => continue,
                }
            }
            // The process has just ended, or is a zombie.
            Err(_) => continue,
        };
        match ControlPage::open(&dir, pid) {
            Ok(page) => pages.push((pid, page)),
            Err(error) if error.kind() == ErrorKind::NotFound => small += 1,
            Err(error) => {
                return Err(error).with_context(|| {
                    format!("cannot open the control page of process {pid} in {}", dir.display())
                });
            }
        }
    }
    if pages.is_empty() && small > 0 {
        bail!(
            "process {root} has no pager yet, because it uses less than half of its limit (`hiroma run --manage-from`): try again when it has grown"
        );
    }
    if pages.is_empty() {
        bail!(
            "process {root} is not under hiroma, and neither is a child of it: start it with `hiroma run -- PROGRAM`"
        );
    }
    Ok(pages)
}

/// The run directory that has a page for `pid`. For processes whose `/proc/PID/maps` cannot be read
/// (programs can forbid that).
fn known_dir(owner: u32, pid: u32) -> Option<std::path::PathBuf> {
    let runs = rundir::parents(owner)
        .into_iter()
        .filter_map(|parent| std::fs::read_dir(parent).ok())
        .flatten()
        .flatten();
    runs.map(|run| run.path()).find(|dir| ControlPage::path(dir, pid).exists())
}

fn set_limit(pages: &[(u32, ControlPage)], limit: Bytes) -> Result<()> {
    pages.iter().for_each(|(_, page)| page.request_limit(limit.0));
    let deadline = Instant::now() + PATIENCE;
    // `hiroma run` replaces the request where a total leaves less.
    let in_force = |(pid, page): &(u32, ControlPage)| {
        page.get(Counter::LimitBytes) == limit.0
            || page.requested_limit() != Some(limit.0)
            || !processes::is_alive(*pid)
    };
    while let Some((pid, _)) = pages.iter().find(|page| !in_force(page)) {
        if Instant::now() > deadline {
            bail!(
                "process {pid} has not taken over the limit of {limit} within {PATIENCE:?}: is it stopped, or waiting for a store?"
            );
        }
        sleep(Duration::from_millis(2));
    }
    Ok(())
}

fn describe(pid: u32, snapshot: &Snapshot) -> String {
    let bytes = |counter| Bytes(snapshot.get(counter));
    let short = match snapshot.stores.short_bytes {
        0 => String::new(),
        short => format!(", {} with too few copies or pieces", Bytes(short)),
    };
    let latency = |quantile| snapshot.wait_quantile(quantile).map_or("-".to_owned(), show::latency);
    format!(
        "{pid}: local {} (limit {}, max {}), far {} ({} in the stores, of {}{short}), {} faults (estimated wait p50 {}, p99 {}), fetched {}, written {}",
        bytes(Counter::LocalBytes),
        bytes(Counter::LimitBytes),
        bytes(Counter::LocalBytesMax),
        bytes(Counter::FarBytes),
        bytes(Counter::StoredBytes),
        bytes(Counter::StoreCapacityBytes),
        show::count(snapshot.get(Counter::Faults)),
        latency(0.5),
        latency(0.99),
        bytes(Counter::FetchedBytes),
        bytes(Counter::WrittenBytes),
    )
}

#[cfg(test)]
mod tests {
    use hiroma_far::control::Stores;

    use super::*;

    #[test]
    fn missing_copies_are_shown() {
        let dir = tempfile::tempdir().unwrap();
        let page = ControlPage::create(dir.path(), false).unwrap();
        assert!(!describe(1, &page.snapshot()).contains("too few"));
        page.set_stores(Stores { short_bytes: 2 << 20, ..Stores::default() });
        let told = describe(1, &page.snapshot());
        assert!(told.contains("of 0B, 2MiB with too few copies or pieces)"), "{told}");
    }
}
