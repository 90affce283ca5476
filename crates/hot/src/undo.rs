//! Splits what an earlier manager made huge.

use hiroma_sys::hot::target::{Advice, Span, Target};
use hiroma_units::PAGE;

use crate::error::HotError;
use crate::ledger::{self, Entry, Ledger, LedgerDir};

/// Splits all huge pages that were made, and not split since, according to the ledger of process
/// `pid`. Returns how many.
///
/// # Errors
/// [`HotError::NoLedger`] if it was never managed, [`HotError::Managed`] if it still is.
pub fn undo(dir: &LedgerDir, pid: u32) -> Result<u64, HotError> {
    let target = Target::open(pid).map_err(|_| HotError::NoProcess { pid })?;
    let entries = Ledger::read(dir, pid)?;
    let mut ledger = Ledger::take(dir, pid, target.started())?;
    let mut undone = 0;
    for address in ledger::huge_ranges(&entries).into_keys() {
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
