//! Samples: groups of sectors that are watched for a while, to see which of their sectors are needed.
//!
//! A fault opens a sample of the group around it. Until it closes, faults in the group fetch single
//! sectors, so that each sector that is needed shows itself by a fault. Groups are numbered through
//! all extents.

/// One group that is watched.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    pub group: u64,
    /// Position of the fault that opened it.
    pub at: u64,
    /// Positions that were far then, and those that were faulted on since.
    pub far: u16,
    pub used: u16,
    opened: u64,
}

/// The samples that are open. A group has one place, which it may share with others.
#[derive(Clone, Debug)]
pub struct Samples {
    open: Vec<Option<Sample>>,
    faults: u64,
    seed: u32,
}

impl Samples {
    /// At most `most` samples at a time.
    pub fn new(most: usize) -> Samples {
        Samples { open: vec![None; most], faults: 0, seed: 1 }
    }

    fn place_of(&self, group: u64) -> usize {
        (group.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize % self.open.len()
    }

    /// Counts a fault. Returns samples that were open for more than `window` faults, and are closed
    /// now: what is needed later would not have stayed local for it in most cases.
    pub fn on_fault(&mut self, group: u64, window: u64) -> impl Iterator<Item = Sample> + use<> {
        self.faults += 1;
        let faults = self.faults;
        let places = [faults as usize % self.open.len(), self.place_of(group)];
        let is_old = |sample: &mut Sample| faults - sample.opened > window;
        places.map(|place| self.open[place].take_if(is_old)).into_iter().flatten()
    }

    /// The open sample of a group.
    pub fn of(&mut self, group: u64) -> Option<&mut Sample> {
        let place = self.place_of(group);
        self.open[place].as_mut().filter(|sample| sample.group == group)
    }

    /// Whether this fault is to open a sample: one in `every` whose place is free, by chance.
    pub fn is_chosen(&mut self, group: u64, every: u32) -> bool {
        if self.open[self.place_of(group)].is_some() {
            return false;
        }
        self.seed = self.seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (self.seed >> 16) % every == 0
    }

    /// Opens a sample for the last fault, at position `at` of a group. `far`: the positions that
    /// are far (bit 0: the first).
    pub fn open(&mut self, group: u64, at: u64, far: u16) {
        let place = self.place_of(group);
        self.open[place] = Some(Sample { group, at, far, used: 0, opened: self.faults });
    }

    /// Faults in this group are answered by other means: its sample would see too little.
    pub fn forget(&mut self, group: u64) {
        let place = self.place_of(group);
        self.open[place].take_if(|sample| sample.group == group);
    }
}
