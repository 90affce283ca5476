//! When a node tells its peers how many frames it has free (section 2.1): one file per way.

mod on_change;
mod on_demand;
mod periodic;

pub use on_change::{OnChange, Watermarks};
pub use on_demand::Bids;
pub use periodic::Periodic;

/// A way to decide when peers are informed.
pub trait Information {
    /// Free frames are now `free`. Returns whether peers must be told.
    fn free_changed(&mut self, free: u32) -> bool;

    /// The time is `now_ns`. Returns whether peers must be told. Early calls do no harm.
    fn tick(&mut self, now_ns: u64) -> bool;

    /// When [`tick`](Information::tick) next has something to do, ns.
    fn deadline_ns(&self) -> Option<u64>;
}

/// Any of the ways.
#[derive(Clone, Debug)]
pub enum AnyInformation {
    /// See [`Periodic`].
    Periodic(Periodic),
    /// See [`OnChange`].
    OnChange(OnChange),
    /// Never by itself; see [`Bids`].
    OnDemand,
}

impl Information for AnyInformation {
    #[inline]
    fn free_changed(&mut self, free: u32) -> bool {
        match self {
            AnyInformation::OnChange(on_change) => on_change.free_changed(free),
            AnyInformation::Periodic(_) | AnyInformation::OnDemand => false,
        }
    }

    fn tick(&mut self, now_ns: u64) -> bool {
        match self {
            AnyInformation::Periodic(periodic) => periodic.tick(now_ns),
            AnyInformation::OnChange(_) | AnyInformation::OnDemand => false,
        }
    }

    fn deadline_ns(&self) -> Option<u64> {
        match self {
            AnyInformation::Periodic(periodic) => periodic.deadline_ns(),
            AnyInformation::OnChange(_) | AnyInformation::OnDemand => None,
        }
    }
}
