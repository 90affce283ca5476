//! Splits what an earlier manager made huge.

use hiroma_sys::hot::pagemap::Pagemap;
use hiroma_sys::hot::target::{Advice, Span, Target};
use hiroma_units::{EXTENT, PAGE};

use crate::error::HotError;
use crate::ledger::{self, Entry, Ledger, LedgerDir};

/// Splits all huge pages that were made, and not split since, according to the ledger of process
/// `pid`. Returns how many.
///
/// # Errors
/// [`HotError::NoLedger`] if it was never managed, [`HotError::Managed`] if it still is.
pub fn undo(dir: &LedgerDir, pid: u32) -> Result<u64, HotError> {
    let target = Target::open(pid).map_err(|_| HotError::NoProcess { pid })?;
    // An earlier process may have had this number.
    let entries = Ledger::read_of(dir, pid, target.started())?;
    let pagemap = Pagemap::open(pid).ok();
    let mut ledger = Ledger::take(dir, pid, target.started())?;
    let mut undone = 0;
    for address in ledger::huge_ranges(&entries).into_keys() {
        let range = address / EXTENT as u64;
        // Where the kernel does not tell (before Linux 6.7) it counts as huge.
        if pagemap.as_ref().is_some_and(|map| matches!(map.huge(range, range + 1), Ok(false))) {
            continue;
        }
        // Advice on a part of a huge page splits it.
        match target.advise(&[Span { start: address, len: PAGE as u64 }], Advice::Cold) {
            Ok(_) => {
                undone += 1;
                ledger.note(&Entry::Split {
                    at_ms: 0,
                    address,
                    why: "undone".to_owned(),
                    took_ns: 0,
                });
            }
            Err(error) => match HotError::of(pid, "split a huge page")(error) {
                // It is no longer mapped.
                HotError::Io { .. } => {}
                error => return Err(error),
            },
        }
    }
    Ok(undone)
}

#[cfg(test)]
mod tests {
    use hiroma_sys::vm::{Access, Reservation};

    use super::*;

    #[test]
    fn only_huge_pages_of_this_very_process_are_split() {
        let temp = tempfile::tempdir().unwrap();
        let dir = LedgerDir::at(temp.path().join("run"));
        let own = std::process::id();
        let started = Target::open(own).unwrap().started();
        let memory = Reservation::new(EXTENT, EXTENT, Access::ReadWrite).unwrap();
        memory.advise(memory.base(), EXTENT, hiroma_sys::vm::Advise::NoHuge).unwrap();
        hiroma_sys::vm::fill(memory.base(), EXTENT, 1);
        let collapse = Entry::Collapse {
            at_ms: 1,
            address: memory.base() as u64,
            hot_pages: 200,
            present_pages: 512,
            windows: 8,
            added_bytes: 0,
            took_ns: 1,
            ready_ns: 0,
        };
        // Another process had the number before.
        Ledger::take(&dir, own, started - 1).unwrap().note(&collapse);
        assert!(matches!(undo(&dir, own), Err(HotError::NoLedger { .. })));
        Ledger::take(&dir, own, started).unwrap().note(&collapse);
        let range = memory.base() as u64 / EXTENT as u64;
        match Pagemap::open(own).unwrap().huge(range, range + 1) {
            // It is on small pages already.
            Ok(huge) => assert_eq!((huge, undo(&dir, own).unwrap()), (false, 0)),
            Err(error) => hiroma_testkit::skip!(Machine, "no PAGEMAP_SCAN: {error}"),
        }
    }
}
