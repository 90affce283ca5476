//! Looks at a range once more right before it is collapsed: since it was scanned, the process may
//! have freed pages of it, or made a child that shares them. A collapse would bring the former
//! back, and copy the latter.

use hiroma_sys::hot::pagemap::Pagemap;
use hiroma_sys::hot::target::{Advice, Span};
use hiroma_units::{EXTENT, PAGE, PAGES_PER_EXTENT};

use super::Engine;
use super::memo::Memo;
use crate::bits::{self, PageBits};
use crate::error::HotError;
use crate::machine;

/// Surveys in which a range is left out after pages of it were found to be shared: a collapse would
/// copy them for one of the processes.
const SHARED_SURVEYS: u8 = 16;

/// The page map of the process.
pub(super) struct Map {
    pagemap: Pagemap,
    /// Whether it distinguishes the shared zero page from others (Linux 6.7).
    knows_zeros: bool,
}

/// What a collapse of a range would do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fit {
    /// It would add this many pages, which is allowed.
    Fits { missing: u16 },
    /// It would copy pages that other processes map too.
    Shared,
    /// It would add too much memory, or nothing is there any more.
    Gone,
}

/// How many pages may be added for a range: more than `free` of them only within `room_bytes`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Growth {
    pub(super) free: u16,
    pub(super) room_bytes: u64,
}

/// Judges a range by its page map. `zeros`: pages that may map the shared zero page although they
/// look present; they count as missing where no other page can be meant.
fn fit(present: &PageBits, exclusive: &PageBits, zeros: &PageBits, growth: Growth) -> Fit {
    let strange = bits::without(present, exclusive);
    if !bits::is_empty(&bits::without(&strange, zeros)) {
        return Fit::Shared;
    }
    let own = bits::count(&bits::and(present, exclusive));
    let missing = PAGES_PER_EXTENT as u16 - own;
    let added_bytes = u64::from(missing.saturating_sub(growth.free)) * PAGE as u64;
    if own == 0 || added_bytes > growth.room_bytes {
        return Fit::Gone;
    }
    Fit::Fits { missing }
}

impl Engine {
    /// Memory of the process as far as it is known, without what collapsing has added.
    pub(super) fn resident_bytes(&self) -> u64 {
        let accounts = &self.accounts;
        let seen = self.pass.present_pages * PAGE as u64;
        accounts.resident_at_begin.max(accounts.resident_now).max(seen)
    }

    /// Passes do not see all of it: surveys judge the completely present ranges.
    pub(super) fn note_resident(&mut self) {
        if let Ok(bytes) = machine::resident_bytes(self.target.pid()) {
            self.accounts.resident_now = bytes.saturating_sub(self.accounts.grown_bytes);
        }
    }

    /// Bytes that collapsing may still add to the process's memory.
    pub(super) fn growth_room(&self) -> u64 {
        let ppm = u128::from(self.options.settings.growth_ppm);
        let most = u128::from(self.resident_bytes()) * ppm / 1_000_000;
        most.min(u128::from(u64::MAX)) as u64 - self.accounts.grown_bytes.min(most as u64)
    }

    /// The page map, opened when it is needed first.
    fn map(&mut self, range: u64) -> Result<&Map, HotError> {
        let failed = HotError::of(self.target.pid(), "read /proc/PID/pagemap");
        if self.map.is_none() {
            let pagemap = Pagemap::open(self.target.pid()).map_err(failed)?;
            let knows_zeros = pagemap.huge(range, range + 1).is_ok();
            self.map = Some(Map { pagemap, knows_zeros });
        }
        Ok(self.map.as_ref().expect("just opened"))
    }

    /// Looks at a range, and remembers if it is shared. What else has changed counts from now on.
    pub(super) fn look(&mut self, range: u64, growth: Growth) -> Result<Fit, HotError> {
        let pid = self.target.pid();
        let failed = || HotError::of(pid, "read /proc/PID/pagemap");
        self.map(range)?;
        let Some(map) = &self.map else { return Ok(Fit::Gone) };
        let present = map.pagemap.present(range).map_err(failed())?;
        let exclusive = map.pagemap.exclusive(range).map_err(failed())?;
        // Trackers know which pages are zeros. What they have not seen to be present may be one.
        let zeros = match self.heat.range(range).filter(|_| !map.knows_zeros) {
            Some(heat) => bits::without(&bits::ALL, &heat.present),
            None => bits::NONE,
        };
        let fit = fit(&present, &exclusive, &zeros, growth);
        match fit {
            Fit::Shared => self.memos.entry(range).or_default().shared = SHARED_SURVEYS,
            Fit::Gone => {
                if let Some(heat) = self.heat.range_mut(range) {
                    heat.present = present;
                }
            }
            Fit::Fits { .. } => {}
        }
        Ok(fit)
    }

    /// Splits a range of ours for a trial.
    pub(super) fn split_for_trial(&mut self, range: u64) -> Result<(), HotError> {
        if self.memos.get(&range).is_none_or(|memo| !memo.ours) {
            return Ok(());
        }
        self.split_mapping(range)?;
        let failed = HotError::of(self.target.pid(), "read /proc/PID/pagemap");
        let present = self.map(range)?.pagemap.present(range).map_err(failed)?;
        let memo = self.memos.entry(range).or_default();
        (memo.is_split, memo.lacked) = (true, PAGES_PER_EXTENT as u16 - bits::count(&present));
        Ok(())
    }

    /// Makes a range huge again that was split for a trial. Returns false if it was changed
    /// meanwhile so that it stays split, and is no longer ours.
    pub(super) fn collapse_again(&mut self, range: u64) -> Result<bool, HotError> {
        let is_split = |memo: &Memo| memo.ours && memo.is_split;
        let Some(memo) = self.memos.get(&range).copied().filter(is_split) else {
            return Ok(true);
        };
        // Splitting it gave back pages of zeros, which it had before.
        let free = memo.added_pages.max(memo.lacked);
        let growth = Growth { free, room_bytes: self.growth_room() };
        let fit = if self.is_never { Fit::Gone } else { self.look(range, growth)? };
        let span = Span { start: range * EXTENT as u64, len: EXTENT as u64 };
        let missing = match fit {
            Fit::Fits { missing } => {
                self.target.advise(&[span], Advice::Collapse).is_ok().then_some(missing)
            }
            Fit::Shared | Fit::Gone => None,
        };
        let memo = self.memos.entry(range).or_default();
        (memo.ours, memo.is_split) = (missing.is_some(), false);
        match missing {
            Some(missing) => {
                let added = missing.saturating_sub(free);
                memo.added_pages += added;
                self.accounts.grown_bytes += u64::from(added) * PAGE as u64;
            }
            None => {
                if let Some(heat) = self.heat.range_mut(range) {
                    heat.forget();
                }
            }
        }
        Ok(missing.is_some())
    }
}

#[cfg(test)]
mod tests {
    use hiroma_sys::vm::{Access, Advise, Reservation};

    use super::*;
    use crate::options::Options;

    const ROOM: Growth = Growth { free: 0, room_bytes: u64::MAX };

    fn first(pages: usize) -> PageBits {
        std::array::from_fn(|word| match pages.saturating_sub(word * 64) {
            0 => 0,
            rest @ 1..64 => (1 << rest) - 1,
            _ => u64::MAX,
        })
    }

    /// An engine of this process; none, and a reported skip, without the rights.
    fn engine() -> Option<Engine> {
        let options = Options { ledger: None, ..Options::default() };
        match Engine::new(std::process::id(), options, 0) {
            Ok(engine) => Some(engine),
            Err(error) => {
                hiroma_testkit::skip!(Machine, "{error}");
                None
            }
        }
    }

    #[test]
    fn range_that_does_not_become_huge_again_spoils_a_trial() {
        let memory = Reservation::new(EXTENT, EXTENT, Access::ReadWrite).unwrap();
        hiroma_sys::vm::fill(memory.base(), EXTENT, 1);
        let Some(mut engine) = engine() else { return };
        let range = (memory.base() / EXTENT) as u64;
        let memo = engine.memos.entry(range).or_default();
        (memo.ours, memo.is_split) = (true, true);
        // The page map does not show that.
        memory.advise(memory.base(), EXTENT, Advise::NoHuge).unwrap();
        assert!(!engine.collapse_again(range).unwrap());
        assert_eq!(engine.usage().huge_bytes, 0);
    }

    #[test]
    fn growth_is_a_share_of_what_passes_do_not_see_too() {
        let Some(mut engine) = engine() else { return };
        engine.accounts.resident_at_begin = 0;
        assert_eq!(engine.growth_room(), 0);
        engine.note_resident();
        assert!(engine.growth_room() > 0);
    }

    #[test]
    fn shared_pages_are_not_copied() {
        let all = fit(&bits::ALL, &bits::ALL, &bits::NONE, ROOM);
        assert_eq!(all, Fit::Fits { missing: 0 });
        assert_eq!(fit(&bits::ALL, &first(511), &bits::NONE, ROOM), Fit::Shared);
        // It is the page of zeros, where that cannot be seen.
        let zeros = bits::without(&bits::ALL, &first(500));
        assert_eq!(fit(&bits::ALL, &first(511), &zeros, ROOM), Fit::Fits { missing: 1 });
        assert_eq!(fit(&bits::ALL, &first(499), &zeros, ROOM), Fit::Shared);
    }

    #[test]
    fn freed_pages_count_as_growth() {
        let with = |pages, free, room_pages| {
            let growth = Growth { free, room_bytes: room_pages * PAGE as u64 };
            fit(&first(pages), &first(pages), &bits::NONE, growth)
        };
        assert_eq!(with(512, 0, 0), Fit::Fits { missing: 0 });
        assert_eq!(with(300, 0, 211), Fit::Gone);
        assert_eq!(with(300, 0, 212), Fit::Fits { missing: 212 });
        assert_eq!(with(300, 212, 0), Fit::Fits { missing: 212 });
        assert_eq!(with(300, 211, 0), Fit::Gone);
        assert_eq!(with(0, 512, u64::MAX / 8192), Fit::Gone);
    }
}
