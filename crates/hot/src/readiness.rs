//! Makes the memory of huge pages ready before ranges are collapsed into them, while that helps
//! ([`hiroma_policy::huge::warm`]).

use hiroma_policy::huge::Warming;
use hiroma_sys::cpu::now_ns;
use hiroma_sys::hugearena::SparePage;

/// The state for one process. No method allocates from the heap or takes a lock: it may be used in
/// a signal handler.
#[derive(Debug, Default)]
pub struct Readiness {
    spare: Option<SparePage>,
    warming: Warming,
}

impl Readiness {
    /// Makes memory ready whenever measurements show that it helps; never if no address space for
    /// it can be reserved.
    pub fn new() -> Readiness {
        Readiness { spare: SparePage::new().ok(), warming: Warming::default() }
    }

    /// Never makes memory ready.
    pub fn off() -> Readiness {
        Readiness::default()
    }

    /// Whether the next call of [`Readiness::before`] does anything.
    pub fn is_wanted(&self) -> bool {
        self.spare.is_some() && self.warming.is_wanted()
    }

    /// To be called right before a range is collapsed, on the same thread. Returns how long it took
    /// in nanoseconds, if anything was done.
    pub fn before(&self) -> Option<u64> {
        let spare = self.spare.as_ref().filter(|_| self.warming.is_wanted())?;
        let began = now_ns();
        spare.make_ready();
        Some(now_ns() - began)
    }

    /// Records how long the collapse after that took.
    pub fn note(&mut self, made_ready_ns: Option<u64>, collapse_ns: u64) {
        self.warming.note(made_ready_ns, collapse_ns);
    }
}
