//! When a link is busy.

/// The times of one link that carries one thing at a time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Line {
    /// When it becomes free, ns.
    pub free_ns: u64,
    /// How long it was busy since measuring began, ns; all of what it carries now is included.
    busy_ns: u64,
}

impl Line {
    /// It carries something for `busy_ns`, from `start_ns` on.
    pub fn carry(&mut self, start_ns: u64, busy_ns: u64) {
        self.free_ns = start_ns + busy_ns;
        self.busy_ns += busy_ns;
    }

    /// Resets the measurement; what is being carried at `now_ns` counts from then on.
    pub fn restart_measuring(&mut self, now_ns: u64) {
        self.busy_ns = self.free_ns.saturating_sub(now_ns);
    }

    fn busy_ns(&self, now_ns: u64) -> u64 {
        self.busy_ns.saturating_sub(self.free_ns.saturating_sub(now_ns))
    }
}

/// Busy time of all lines and of the busiest one since measuring began, ns.
pub fn busy_ns<'a>(lines: impl Iterator<Item = &'a Line>, now_ns: u64) -> (u64, u64) {
    lines.fold((0, 0), |(sum, most), line| {
        let busy_ns = line.busy_ns(now_ns);
        (sum + busy_ns, busy_ns.max(most))
    })
}
