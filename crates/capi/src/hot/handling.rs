//! Handling of active pages: decided for each 2 MiB, carried out, and counted. Runs in a signal
//! handler, so nothing here allocates or locks.

use hiroma_hot::Readiness;
use hiroma_hot::service::protocol::{HandlingResult, Page};
use hiroma_sys::cpu::now_ns;
use hiroma_sys::hugearena::collapse;
use hiroma_units::EXTENT;

/// Time that a function of the program should take at most.
pub const SLICE_NS: u64 = 500_000;
/// A function that still returns "more" after this number of slices (10 s) is abandoned.
const SLICES_MAX: u32 = 20_000;

/// A range that the kernel refuses this many times is left alone until it is reported again.
const COLLAPSE_TRIES: u32 = 3;

/// Why a range did not become huge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Refused {
    /// It may succeed later.
    ForNow,
    /// It cannot be huge at this address: it crosses the edge of a mapping, or the mapping does not
    /// allow it.
    ForGood,
}

/// The program's decision about a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Choice {
    /// Apply the library's default rule.
    Default,
    Collapse,
    Compact,
    Leave,
}

/// Result of a call of the program's function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Slice {
    Done,
    More,
    Failed,
}

/// The program's functions, and what is done between slices.
pub trait Program {
    /// Applies the program's own rule.
    fn decide(&self, range: &[Page]) -> Choice;
    /// Whether the program can move objects.
    fn can_compact(&self) -> bool;
    /// Moves objects out of the range until the deadline.
    fn compact(&self, range: &[Page], deadline_ns: u64) -> Slice;
    /// Lets other threads run before the next slice.
    fn rest(&self);
}

/// Handles fetched pages (in address order). `may_collapse` is the number of ranges that may still
/// become huge; ranges that do become huge are subtracted.
pub fn handle(
    pages: &[Page],
    collapse_pages: usize,
    may_collapse: &mut u64,
    readiness: &mut Readiness,
    program: &impl Program,
) -> HandlingResult {
    let mut outcome = HandlingResult::default();
    let range_of = |page: &Page| page.address / EXTENT as u64;
    for range in pages.chunk_by(|a, b| range_of(a) == range_of(b)) {
        let begin = now_ns();
        let choice = match program.decide(range) {
            Choice::Default if range.len() >= collapse_pages && *may_collapse > 0 => {
                Choice::Collapse
            }
            Choice::Default if range.len() < collapse_pages && program.can_compact() => {
                Choice::Compact
            }
            Choice::Default => Choice::Leave,
            chosen => chosen,
        };
        outcome.call_ns_max = outcome.call_ns_max.max(now_ns().saturating_sub(begin));
        let done = match choice {
            Choice::Collapse if *may_collapse == 0 => {
                outcome.left += 1;
                true
            }
            Choice::Collapse => {
                match make_huge((range[0].address & !(EXTENT as u64 - 1)) as usize, readiness) {
                    Ok(()) => {
                        outcome.collapsed += 1;
                        *may_collapse -= 1;
                        true
                    }
                    Err(Refused::ForGood) if program.can_compact() => {
                        compact(range, program, &mut outcome)
                    }
                    Err(_) => false,
                }
            }
            Choice::Compact if program.can_compact() => compact(range, program, &mut outcome),
            _ => {
                outcome.left += 1;
                true
            }
        };
        outcome.failed += u64::from(!done);
    }
    outcome
}

/// Collapses 2 MiB. The kernel returns EAGAIN or EBUSY while pages move between its lists, which
/// clearing their accessed bits also causes.
fn make_huge(address: usize, readiness: &mut Readiness) -> Result<(), Refused> {
    for again in 0..COLLAPSE_TRIES {
        if again > 0 {
            std::thread::yield_now();
        }
        let made_ready_ns = readiness.before();
        let began = now_ns();
        match collapse(address, EXTENT) {
            Ok(()) => {
                readiness.note(made_ready_ns, now_ns() - began);
                return Ok(());
            }
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                return Err(Refused::ForGood);
            }
            Err(_) => {}
        }
    }
    Err(Refused::ForNow)
}

/// Has the program move the objects of a range, in slices. False if that failed.
fn compact(range: &[Page], program: &impl Program, outcome: &mut HandlingResult) -> bool {
    for _ in 0..SLICES_MAX {
        let begin = now_ns();
        let slice = program.compact(range, begin + SLICE_NS);
        outcome.call_ns_max = outcome.call_ns_max.max(now_ns().saturating_sub(begin));
        match slice {
            Slice::Done => {
                outcome.compacted += 1;
                return true;
            }
            Slice::Failed => return false,
            Slice::More => program.rest(),
        }
    }
    false
}

#[cfg(test)]
mod tests {
    #![allow(unsafe_code)]
    use std::cell::RefCell;
    use std::ptr;

    use hiroma_sys::hugearena::HugeArena;
    use rustix::mm::{MprotectFlags, mprotect};

    use super::*;

    struct Recorded {
        choice: Choice,
        slices: RefCell<Vec<Slice>>,
        can: bool,
        calls: RefCell<Vec<(u64, usize)>>,
    }

    impl Program for Recorded {
        fn decide(&self, _: &[Page]) -> Choice {
            self.choice
        }
        fn can_compact(&self) -> bool {
            self.can
        }
        fn compact(&self, range: &[Page], _: u64) -> Slice {
            self.calls.borrow_mut().push((range[0].address, range.len()));
            self.slices.borrow_mut().pop().unwrap_or(Slice::Done)
        }
        fn rest(&self) {}
    }

    fn program(choice: Choice, slices: &[Slice]) -> Recorded {
        Recorded {
            choice,
            slices: RefCell::new(slices.to_vec()),
            can: true,
            calls: RefCell::default(),
        }
    }

    /// Pages at addresses where nothing can be huge: collapsing them fails.
    fn pages(range: u64, count: u64) -> Vec<Page> {
        (0..count)
            .map(|page| Page { address: (range << 21) + (page << 12), count: 1, reserved: 0 })
            .collect()
    }

    #[test]
    fn quarter_hot_collapses_and_less_is_compacted() {
        let all = [pages(1, 127), pages(2, 128), pages(5, 3)].concat();
        let program = program(Choice::Default, &[]);
        let outcome = handle(&all, 128, &mut 10, &mut Readiness::off(), &program);
        assert_eq!(*program.calls.borrow(), [(1 << 21, 127), (5 << 21, 3)]);
        // Nothing is mapped in the second range.
        assert_eq!(
            (outcome.compacted, outcome.collapsed, outcome.failed, outcome.left),
            (2, 0, 1, 0)
        );
    }

    #[test]
    fn objects_of_uncollapsible_ranges_are_moved() {
        let arena = HugeArena::new(2 * EXTENT).unwrap();
        // Half of the first range becomes a separate mapping.
        let half = ptr::with_exposed_provenance_mut(arena.base());
        // SAFETY: memory of the arena, which nothing else uses.
        unsafe { mprotect(half, EXTENT / 2, MprotectFlags::READ) }.unwrap();
        let all = pages((arena.base() / EXTENT) as u64, 200);
        let mut program = program(Choice::Collapse, &[]);
        let outcome = handle(&all, 128, &mut 10, &mut Readiness::off(), &program);
        assert_eq!((outcome.collapsed, outcome.compacted, outcome.failed), (0, 1, 0));
        assert_eq!(*program.calls.borrow(), [(arena.base() as u64, 200)]);
        program.can = false;
        let mut may_collapse = 10;
        let outcome = handle(&all, 128, &mut may_collapse, &mut Readiness::off(), &program);
        assert_eq!((outcome.compacted, outcome.failed, may_collapse), (0, 1, 10));
    }

    #[test]
    fn collapse_needs_share_and_compaction_needs_function() {
        let all = [pages(1, 500), pages(2, 5)].concat();
        let mut program = program(Choice::Default, &[]);
        program.can = false;
        let outcome = handle(&all, 128, &mut 0, &mut Readiness::off(), &program);
        assert_eq!((outcome.left, outcome.failed), (2, 0));
        program.choice = Choice::Collapse;
        assert_eq!(handle(&all, 128, &mut 0, &mut Readiness::off(), &program).left, 2);
        program.choice = Choice::Compact;
        assert_eq!(handle(&all, 128, &mut 9, &mut Readiness::off(), &program).left, 2);
    }

    #[test]
    fn function_is_called_until_done_or_call_limit() {
        let all = pages(1, 5);
        let some = program(Choice::Compact, &[Slice::More, Slice::More]);
        assert_eq!(
            (
                handle(&all, 128, &mut 0, &mut Readiness::off(), &some).compacted,
                some.calls.borrow().len()
            ),
            (1, 3)
        );
        let failing = program(Choice::Compact, &[Slice::Failed]);
        assert_eq!(handle(&all, 128, &mut 0, &mut Readiness::off(), &failing).failed, 1);
        let endless = program(Choice::Compact, &vec![Slice::More; SLICES_MAX as usize + 1]);
        assert_eq!(handle(&all, 128, &mut 0, &mut Readiness::off(), &endless).failed, 1);
    }
}
