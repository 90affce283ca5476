//! Results of a policy, and the time that they take.

/// Times in nanoseconds. Where blocks move, the first page and the others have different costs; the
/// model is a line through both.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Costs {
    /// A fault that fetches one page: wake-ups and context switches, and one page copied and
    /// decoded.
    pub fetch_ns: u64,
    /// Each further page of the same fetch.
    pub fetch_more_ns: u64,
    /// A first touch of one page: the fault, without a fetch.
    pub fresh_ns: u64,
    /// Each further page of zeros that is mapped with it.
    pub fresh_more_ns: u64,
    /// A fault on what is still in memory: staged, or prefetched and not mapped.
    pub staged_ns: u64,
    /// The first page of a fetch that no thread waits for.
    pub ahead_ns: u64,
    /// Evicting an unchanged page: alone, and each page in a run of 16.
    pub clean_alone_ns: u64,
    pub clean_in_run_ns: u64,
    /// The same for a page that has to be written back.
    pub dirty_alone_ns: u64,
    pub dirty_in_run_ns: u64,
}

impl Default for Costs {
    /// Measured on two virtual processors with compressed memory as the store.
    fn default() -> Costs {
        Costs {
            fetch_ns: 13_000,
            fetch_more_ns: 3_000,
            fresh_ns: 9_000,
            fresh_more_ns: 300,
            staged_ns: 6_000,
            ahead_ns: 4_000,
            clean_alone_ns: 2_500,
            clean_in_run_ns: 600,
            dirty_alone_ns: 7_000,
            dirty_in_run_ns: 5_000,
        }
    }
}

/// Pages in the run with which the costs in runs were measured.
const RUN: u64 = 16;

impl Costs {
    /// Cost of writing or dropping a run of pages: the line through one page alone and a run of 16.
    fn leaving_ns(pages: u64, alone_ns: u64, in_run_ns: u64) -> u64 {
        let each = (RUN * in_run_ns).saturating_sub(alone_ns) / (RUN - 1);
        if pages == 0 { 0 } else { alone_ns + (pages - 1) * each }
    }

    /// Unchanged pages that are evicted together.
    pub fn clean_ns(&self, pages: u64) -> u64 {
        Costs::leaving_ns(pages, self.clean_alone_ns, self.clean_in_run_ns)
    }

    /// Changed pages that are evicted together.
    pub fn dirty_ns(&self, pages: u64) -> u64 {
        Costs::leaving_ns(pages, self.dirty_alone_ns, self.dirty_in_run_ns)
    }
}

/// Why a page was fetched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    /// A fault on the page.
    Fault,
    /// It belongs to a block of a fixed size, or to an extent.
    Block,
    Cluster,
    Group,
    Run,
    /// Requested by the prefetcher, or as the rest of an extent.
    Ahead,
}

impl Reason {
    pub const ALL: [Reason; 6] =
        [Reason::Fault, Reason::Block, Reason::Cluster, Reason::Group, Reason::Run, Reason::Ahead];

    pub fn name(self) -> &'static str {
        match self {
            Reason::Fault => "fault",
            Reason::Block => "block",
            Reason::Cluster => "cluster",
            Reason::Group => "group",
            Reason::Run => "run",
            Reason::Ahead => "ahead",
        }
    }
}

/// The results of a policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PolicyOutcome {
    /// Faults on pages that were never written, or were discarded.
    pub fresh: u64,
    /// Faults that fetch: the misses.
    pub fetches: u64,
    /// Pages that were mapped or staged when they came: a sum over `fetches`. Of `ours` only.
    pub local_pages_at_fetches: u64,
    /// Faults on pages that are still in memory.
    pub staged: u64,
    /// Fetches that no thread waits for.
    pub ahead: u64,
    /// Pages fetched from the store, and written to it.
    pub pages_in: u64,
    pub pages_out: u64,
    /// Pages that were evicted unchanged.
    pub pages_dropped: u64,
    /// Pages that were fetched and never used before they were evicted or the program ended.
    pub wasted: u64,
    /// Pages that were fetched, and those of `wasted`, by [`Reason`]. Of `ours` only.
    pub came_by: [u64; Reason::ALL.len()],
    pub wasted_by: [u64; Reason::ALL.len()],
    /// Pages of zeros that were mapped with a block and never used before they were evicted. Of
    /// `ours` only.
    pub zeros_wasted: u64,
    pub time_ns: u64,
}

impl PolicyOutcome {
    /// A first touch that maps `pages` pages of zeros.
    pub(crate) fn fresh(&mut self, costs: &Costs, pages: u64) {
        self.fresh += 1;
        self.time_ns += costs.fresh_ns + costs.fresh_more_ns * pages.saturating_sub(1);
    }

    /// A fault fetches `pages` pages.
    pub(crate) fn fetch(&mut self, costs: &Costs, pages: u64) {
        self.fetches += 1;
        self.pages_in += pages;
        self.time_ns += costs.fetch_ns + costs.fetch_more_ns * pages.saturating_sub(1);
    }

    /// `pages` pages are fetched that no thread waits for.
    pub(crate) fn ahead(&mut self, costs: &Costs, pages: u64) {
        self.ahead += 1;
        self.pages_in += pages;
        self.time_ns += costs.ahead_ns + costs.fetch_more_ns * pages.saturating_sub(1);
    }

    /// A fault finds the page in memory.
    pub(crate) fn staged(&mut self, costs: &Costs) {
        self.staged += 1;
        self.time_ns += costs.staged_ns;
    }

    /// Pages are evicted: `written` changed ones and `dropped` unchanged ones.
    pub(crate) fn leave(&mut self, costs: &Costs, written: u64, dropped: u64) {
        self.pages_out += written;
        self.pages_dropped += dropped;
        self.time_ns += costs.dirty_ns(written) + costs.clean_ns(dropped);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_of_sixteen_costs_the_measured_time() {
        let costs = Costs::default();
        assert_eq!((costs.clean_ns(0), costs.clean_ns(1), costs.dirty_ns(1)), (0, 2_500, 7_000));
        assert!(
            (9_590..=9_600).contains(&costs.clean_ns(16))
                && (79_990..=80_000).contains(&costs.dirty_ns(16))
        );
    }
}
