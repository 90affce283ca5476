//! Memory of huge pages made ready before they are collapsed into, as long as that helps
//! ([`hiroma_policy::huge::warm`]).

use hiroma_kernel::hugearena::SparePage;
use hiroma_kernel::notify::monotonic_ns;
use hiroma_policy::huge::Warming;

/// For one process. Nothing here allocates from the heap or locks: it may be used in a signal
/// handler.
#[derive(Debug, Default)]
pub struct Readiness {
    spare: Option<SparePage>,
    warming: Warming,
}

impl Readiness {
    /// Makes memory ready whenever that is seen to help; where there is no address space for it,
    /// never.
    pub fn new() -> Readiness {
        Readiness { spare: SparePage::new().ok(), warming: Warming::default() }
    }

    /// Never does.
    pub fn off() -> Readiness {
        Readiness::default()
    }

    /// To be called right before a range is collapsed, on the same thread. How long it took in
    /// nanoseconds, if anything was done.
    pub fn before(&self) -> Option<u64> {
        let spare = self.spare.as_ref().filter(|_| self.warming.is_wanted())?;
        let began = monotonic_ns();
        spare.make_ready();
        Some(monotonic_ns() - began)
    }

    /// Takes note of how long collapsing took after that.
    pub fn note(&mut self, made_ready_ns: Option<u64>, collapse_ns: u64) {
        self.warming.note(made_ready_ns, collapse_ns);
    }
}
