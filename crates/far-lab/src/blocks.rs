//! How much is fetched at a time, under LRU: blocks of one size, and pages with others fetched
//! beside them.

use crate::costs::{Costs, PolicyOutcome};
use crate::links::Links;
use crate::trace::{StepKind, Trace};

/// What is fetched with a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    /// The block of `1 << order` pages that contains it; it is also evicted as one.
    Block { order: u8 },
    /// The pages evicted just before and after it, in an aligned window of eight: what the kernel
    /// does for a swap area.
    LeftTogether,
    /// Its neighbours in the address space, as many as earlier ones have proved useful, up to
    /// eight: what the kernel does for fast swap devices. A page that was fetched this way and is
    /// used costs a short fault, which makes the use visible.
    Neighbours,
}

impl Rule {
    pub const ALL: [Rule; 7] = [
        Rule::Block { order: 0 },
        Rule::Block { order: 1 },
        Rule::Block { order: 2 },
        Rule::Block { order: 4 },
        Rule::Block { order: 9 },
        Rule::LeftTogether,
        Rule::Neighbours,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Rule::Block { order: 0 } => "lru-4k",
            Rule::Block { order: 1 } => "lru-8k",
            Rule::Block { order: 2 } => "lru-16k",
            Rule::Block { order: 4 } => "lru-64k",
            Rule::Block { order: 9 } => "lru-2m",
            Rule::Block { .. } => "lru-block",
            Rule::LeftTogether => "lru-swap-window",
            Rule::Neighbours => "lru-vma-window",
        }
    }

    /// Runs a trace with room for `capacity` pages.
    pub fn simulate(self, trace: &Trace, capacity: usize, costs: &Costs) -> PolicyOutcome {
        match self {
            Rule::Block { order } => Blocks::new(trace, capacity, order, costs).run(),
            _ => Windows::new(trace, capacity, self, costs).run(),
        }
    }
}

/// Touched since it became resident.
const USED: u8 = 1;
const DIRTY: u8 = 2;
const FAR: u8 = 4;
/// Fetched from the store.
const CAME: u8 = 8;
/// Touched since it was discarded: the block has content to keep.
const ALIVE: u8 = 16;
/// Resident, for pages that are fetched alone.
const THERE: u8 = 32;

/// Blocks of one size.
struct Blocks<'a> {
    trace: &'a Trace,
    costs: &'a Costs,
    order: u8,
    capacity: usize,
    flags: Vec<u8>,
    there: Vec<bool>,
    alive: Vec<u16>,
    links: Links,
    outcome: PolicyOutcome,
}

impl<'a> Blocks<'a> {
    fn new(trace: &'a Trace, capacity: usize, order: u8, costs: &'a Costs) -> Blocks<'a> {
        let blocks = trace.arena_pages >> order;
        Blocks {
            trace,
            costs,
            order,
            capacity: (capacity >> order).max(1),
            flags: vec![0; trace.arena_pages],
            there: vec![false; blocks],
            alive: vec![0; blocks],
            links: Links::new(blocks, 1),
            outcome: PolicyOutcome::default(),
        }
    }

    fn pages(&self, block: u32) -> std::ops::Range<usize> {
        (block as usize) << self.order..(block as usize + 1) << self.order
    }

    fn run(mut self) -> PolicyOutcome {
        for step in &self.trace.steps {
            let (page, block) = (step.page() as usize, step.page() >> self.order);
            if step.what() == StepKind::Discard {
                self.discard(page, block);
                continue;
            }
            if self.there[block as usize] {
                self.links.remove(0, block);
                self.links.push_front(0, block);
            } else {
                self.fetch(block);
            }
            let before = self.flags[page];
            self.alive[block as usize] += u16::from(before & ALIVE == 0);
            self.flags[page] =
                before | ALIVE | USED | if step.what() == StepKind::Write { DIRTY } else { 0 };
        }
        self.outcome.wasted +=
            self.flags.iter().filter(|&&flags| flags & (CAME | USED) == CAME).count() as u64;
        self.outcome
    }

    fn fetch(&mut self, block: u32) {
        if self.links.len(0) == self.capacity {
            if let Some(victim) = self.links.pop_back(0) {
                self.leave(victim);
            }
        }
        let pages = self.pages(block);
        let far =
            self.flags[pages.clone()].iter().filter(|&&flags| flags & FAR != 0).count() as u64;
        for flags in &mut self.flags[pages.clone()] {
            *flags = *flags & (FAR | ALIVE) | if *flags & FAR != 0 { CAME } else { 0 };
        }
        match far {
            0 => self.outcome.fresh(self.costs, pages.len() as u64),
            _ => self.outcome.fetch(self.costs, far),
        }
        self.there[block as usize] = true;
        self.links.push_front(0, block);
    }

    fn leave(&mut self, block: u32) {
        self.there[block as usize] = false;
        let (mut written, mut dropped) = (0, 0);
        for flags in
            &mut self.flags[(block as usize) << self.order..(block as usize + 1) << self.order]
        {
            self.outcome.wasted += u64::from(*flags & (CAME | USED) == CAME);
            written += u64::from(*flags & DIRTY != 0);
            dropped += u64::from(*flags & DIRTY == 0 && *flags & (USED | FAR) != 0);
            *flags = *flags & ALIVE | if *flags & (DIRTY | FAR) != 0 { FAR } else { 0 };
        }
        self.outcome.leave(self.costs, written, dropped);
    }

    fn discard(&mut self, page: usize, block: u32) {
        let flags = std::mem::take(&mut self.flags[page]);
        self.outcome.wasted += u64::from(flags & (CAME | USED) == CAME);
        if flags & ALIVE != 0 {
            self.alive[block as usize] -= 1;
            if self.alive[block as usize] == 0 && std::mem::take(&mut self.there[block as usize]) {
                self.links.remove(0, block);
            }
        }
    }
}

const WINDOW: u64 = 8;
const NO_SLOT: u32 = u32::MAX;

/// The kernel's readahead state of each mapping.
#[derive(Clone, Copy, Default)]
struct Readahead {
    last: u64,
    window: u64,
    hits: u64,
}

/// Single pages, and others fetched with them.
struct Windows<'a> {
    trace: &'a Trace,
    costs: &'a Costs,
    rule: Rule,
    capacity: usize,
    flags: Vec<u8>,
    links: Links,
    /// Position of each page in the order of eviction, and the pages in that order.
    slot: Vec<u32>,
    slots: Vec<u32>,
    mappings: Vec<Readahead>,
    outcome: PolicyOutcome,
}

impl<'a> Windows<'a> {
    fn new(trace: &'a Trace, capacity: usize, rule: Rule, costs: &'a Costs) -> Windows<'a> {
        let mappings = trace.regions.iter().max().map_or(0, |&region| region as usize + 1);
        Windows {
            trace,
            costs,
            rule,
            capacity: capacity.max(WINDOW as usize),
            flags: vec![0; trace.arena_pages],
            links: Links::new(trace.arena_pages, 1),
            slot: vec![NO_SLOT; trace.arena_pages],
            slots: Vec::new(),
            mappings: vec![Readahead::default(); mappings],
            outcome: PolicyOutcome::default(),
        }
    }

    fn run(mut self) -> PolicyOutcome {
        for step in &self.trace.steps {
            let page = step.page();
            let before = self.flags[page as usize];
            if step.what() == StepKind::Discard {
                if before & THERE != 0 {
                    self.links.remove(0, page);
                }
                self.outcome.wasted += u64::from(before & (CAME | USED) == CAME);
                (self.flags[page as usize], self.slot[page as usize]) = (0, NO_SLOT);
                continue;
            }
            if before & THERE != 0 {
                self.links.remove(0, page);
                self.links.push_front(0, page);
                if before & (CAME | USED) == CAME && self.rule == Rule::Neighbours {
                    self.outcome.staged(self.costs);
                    self.mapping(page).hits += 1;
                }
            } else if before & FAR != 0 {
                self.bring(page);
                let beside = self.beside(page);
                let count = beside.len() as u64;
                beside.into_iter().for_each(|page| self.bring(page));
                self.links.remove(0, page);
                self.links.push_front(0, page);
                self.outcome.fetch(self.costs, count + 1);
            } else {
                self.make_room();
                self.links.push_front(0, page);
                self.outcome.fresh(self.costs, 1);
            }
            self.flags[page as usize] |=
                THERE | USED | if step.what() == StepKind::Write { DIRTY } else { 0 };
        }
        self.outcome.wasted +=
            self.flags.iter().filter(|&&flags| flags & (CAME | USED) == CAME).count() as u64;
        self.outcome
    }

    fn mapping(&mut self, page: u32) -> &mut Readahead {
        &mut self.mappings[self.trace.regions[page as usize / 512] as usize]
    }

    /// Fetches a far page.
    fn bring(&mut self, page: u32) {
        self.make_room();
        self.links.push_front(0, page);
        self.flags[page as usize] = FAR | THERE | CAME;
    }

    fn make_room(&mut self) {
        if self.links.len(0) < self.capacity {
            return;
        }
        let Some(victim) = self.links.pop_back(0) else { return };
        let flags = &mut self.flags[victim as usize];
        let dirty = *flags & DIRTY != 0;
        self.outcome.wasted += u64::from(*flags & (CAME | USED) == CAME);
        self.outcome.leave(self.costs, u64::from(dirty), u64::from(!dirty));
        if dirty || *flags & FAR != 0 && self.slot[victim as usize] == NO_SLOT {
            self.slot[victim as usize] = self.slots.len() as u32;
            self.slots.push(victim);
        }
        *flags = if *flags & (DIRTY | FAR) != 0 { FAR } else { 0 };
    }

    /// The pages that are fetched with a page.
    fn beside(&mut self, page: u32) -> Vec<u32> {
        let is_away = |flags: &[u8], page: u32| flags[page as usize] & (FAR | THERE) == FAR;
        if self.rule == Rule::LeftTogether {
            let slot = self.slot[page as usize] as usize;
            let first = slot / WINDOW as usize * WINDOW as usize;
            let slots = first..(first + WINDOW as usize).min(self.slots.len());
            let pages = slots
                .map(|slot| (slot as u32, self.slots[slot]))
                .filter(|&(slot, page)| self.slot[page as usize] == slot);
            return pages
                .map(|(_, page)| page)
                .filter(|&page| is_away(&self.flags, page))
                .collect();
        }
        let state = self.mapping(page);
        let at = u64::from(page);
        let adjacent = at.abs_diff(state.last) == 1;
        let wanted = match state.hits {
            0 if !adjacent => 1,
            hits => (hits + 2).next_power_of_two().min(WINDOW),
        };
        let window = wanted.max(state.window / 2).max(1);
        let first = if at == state.last + 1 {
            at
        } else if state.last == at + 1 {
            (at + 1).saturating_sub(window)
        } else {
            at.saturating_sub((window - 1) / 2)
        };
        *state = Readahead { last: at, window, hits: 0 };
        let region = self.trace.regions[page as usize / 512];
        let end = (first + window).min(self.trace.arena_pages as u64);
        let near = (first..end).map(|page| page as u32).filter(|&near| near != page);
        near.filter(|&near| {
            self.trace.regions[near as usize / 512] == region && is_away(&self.flags, near)
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::policies::Kind;
    use crate::trace::{Event, Header};

    fn trace(steps: &[(u64, u8)]) -> Trace {
        let event = |&(page, kind): &(u64, u8)| match kind {
            0 => Event::Discard { page, pages: 1 },
            1..4 => Event::Write { page },
            _ => Event::Read { page },
        };
        Trace::of(Header::default(), &steps.iter().map(event).collect::<Vec<_>>())
    }

    fn written_then_read(reads: &[u64]) -> Trace {
        let writes = (0..64).map(|page| (page, 1));
        trace(&writes.chain(reads.iter().map(|&page| (page, 9))).collect::<Vec<_>>())
    }

    #[test]
    fn blocks_fetch_neighbours_and_count_waste() {
        let trace = written_then_read(&[0, 1, 2, 3, 40, 44]);
        let outcome = Rule::Block { order: 2 }.simulate(&trace, 8, &Costs::default());
        assert_eq!(
            (outcome.fresh, outcome.fetches, outcome.pages_in, outcome.wasted),
            (16, 3, 12, 6)
        );
        assert_eq!(outcome.pages_out, 64, "all was written once");
    }

    #[test]
    fn pages_evicted_together_return_together() {
        let trace = written_then_read(&[3, 0, 1, 2]);
        let outcome = Rule::LeftTogether.simulate(&trace, 16, &Costs::default());
        assert_eq!((outcome.fetches, outcome.pages_in, outcome.wasted), (1, 8, 4));
    }

    #[test]
    fn neighbours_are_fetched_where_useful() {
        let upwards: Vec<u64> = (0..40).collect();
        let outcome =
            Rule::Neighbours.simulate(&written_then_read(&upwards), 16, &Costs::default());
        assert!(outcome.fetches < 16 && outcome.staged > 20, "{outcome:?}");
        let scattered: Vec<u64> = (0..40).map(|at| at * 29 % 64).collect();
        let outcome =
            Rule::Neighbours.simulate(&written_then_read(&scattered), 16, &Costs::default());
        assert!(outcome.wasted < 4, "{outcome:?}");
    }

    proptest! {
        #[test]
        fn blocks_of_a_page_are_lru(
            capacity in 1usize..24,
            steps in proptest::collection::vec((0u64..48, 0u8..40), 1..600),
        ) {
            let trace = trace(&steps);
            let costs = Costs::default();
            let outcome = Rule::Block { order: 0 }.simulate(&trace, capacity, &costs);
            prop_assert_eq!(outcome, Kind::Lru.simulate(&trace, capacity, &costs));
        }
    }
}
