//! What is fetched ahead of need.
//!
//! Several streams are followed at the same time, each by the place that it has reached and the
//! place up to which blocks were requested. A fault that no stream explains is compared with the
//! last unexplained ones: three blocks in a row, upwards or downwards, make a stream (four for
//! whole extents, which are so few that rows also occur by chance); so do four pages at equal
//! distances; so does a distance that has the majority among the recent ones (the idea of Leap,
//! which finds a trend in spite of noise).
//!
//! A stream starts with a window of one block and doubles it from window to window. All blocks of a
//! window may be mapped as soon as they are fetched, except the one in the middle: the fault on it
//! shows that the stream continues, and the next window is requested while half of this one is
//! still ahead. So a stream costs one short fault per window. Blocks that are evicted unused halve
//! the window; a window of zero mutes the stream for a while.
//!
//! Streams are tracked in pages, because extents change between huge and small mode on the way.

use hiroma_units::PAGES_PER_EXTENT;

/// A block worth fetching now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PrefetchRequest {
    /// The page at which the stream enters the block, counted from the start of the arena: the
    /// block's first page, except where a downward stream of small blocks requests a whole extent.
    /// It may be outside of any mapping: the caller checks.
    pub page: u64,
    /// Pages of the block, as in the fault that led here; but a dense stream of small blocks that
    /// enters the next extent requests all of it (512). The caller fetches the extent if it is
    /// completely far and its mode can be chosen, else the sector at `page`.
    pub unit: u16,
    /// The block must be fetched but not mapped: the fault on it is needed.
    pub leave_unmapped: bool,
}

/// Unexplained faults that are remembered.
const RECENT: usize = 64;
/// How many of them are compared for whole extents: these are few, and form rows by chance.
const RECENT_HUGE: usize = 16;
/// How many of them are searched for equal distances.
const RECENT_STRIDE: usize = 16;
/// Distances that take part in the vote.
const VOTERS: usize = 32;
/// A larger stride uses too little of an extent for it to be fetched whole.
const DENSE_STRIDE_PAGES: u64 = 16;
/// Largest window of whole extents, and of small blocks.
const WINDOW_HUGE_PAGES: u16 = 4096;
const WINDOW_SMALL_PAGES: u16 = 128;
/// Window of blocks that are large but smaller than extents.
const WINDOW_BLOCKS_MIN: u16 = 8;
/// Faults of a stream without prefetch after its window has shrunk to zero.
const MUTE_FAULTS: u8 = 4;
const MUTE_FAULTS_MAX: u8 = 64;
/// Part of the bound on what is ahead that each stream has for itself.
const OWN_SHARE: u64 = 8;
const TRUST_MAX: i16 = 64;

const HUGE: u16 = PAGES_PER_EXTENT as u16;

#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    /// The place that the program is known to have reached.
    head: u64,
    /// The last place that was requested; equal to `head` if nothing is ahead.
    edge: u64,
    /// Pages from one place to the next.
    step: i64,
    /// Pages per block at the last fault.
    unit: u16,
    /// Blocks in the last window.
    window: u16,
    /// Blocks that were evicted unused since the window last changed.
    wasted: u16,
    /// Faults to ignore before the next request.
    muted: u8,
    /// Value of `muted` the next time.
    mute_next: u8,
    /// Whether it visits every block, rather than one at each step.
    dense: bool,
    live: bool,
    /// Fault count at the last fault of this stream, and the usual distance between its faults.
    seen: u32,
    gap: u32,
}

/// Follows streams of faults and decides what to fetch ahead of them.
#[derive(Clone, Debug)]
pub struct Prefetcher {
    streams: Box<[Stream]>,
    /// Pages of the last faults that no stream explained, and the fault counts at the time; a ring.
    recent: [u64; RECENT],
    recent_ticks: [u32; RECENT],
    recent_len: usize,
    recent_next: usize,
    tick: u32,
    /// Falls when blocks are evicted unused, rises when they are used; below zero, new streams must
    /// prove themselves first.
    trust: i16,
    /// Maximum number of pages that may be ahead of all streams together.
    ahead_max_pages: u64,
}

impl Prefetcher {
    /// A prefetcher that follows up to `max_streams` streams (16 is usual).
    pub fn new(max_streams: usize) -> Self {
        Prefetcher {
            streams: vec![Stream::default(); max_streams.max(1)].into_boxed_slice(),
            recent: [0; RECENT],
            recent_ticks: [0; RECENT],
            recent_len: 0,
            recent_next: 0,
            tick: 0,
            trust: 0,
            ahead_max_pages: u64::MAX,
        }
    }

    /// Limits what may be ahead of all streams together; an eighth of local memory is usual.
    /// Otherwise blocks fetched ahead of one stream would push out those fetched ahead of another.
    pub fn set_ahead_max_pages(&mut self, pages: u64) {
        self.ahead_max_pages = pages;
    }

    /// A fault on page `page` of the arena, in an extent whose blocks have `unit` pages (a power of
    /// two up to 512). Appends blocks worth fetching now, nearest first, at most `budget`.
    ///
    /// To be called for faults on far blocks and on blocks that were prefetched and left unmapped;
    /// not for rescues.
    pub fn on_fault(
        &mut self,
        page: u64,
        unit: u16,
        budget: usize,
        out: &mut Vec<PrefetchRequest>,
    ) {
        debug_assert!(unit.is_power_of_two() && unit <= HUGE);
        self.tick = self.tick.wrapping_add(1);
        let tick = self.tick;
        let index = match self
            .streams
            .iter()
            .position(|stream| stream.is_alive(tick) && stream.explains(page, unit))
        {
            Some(index) => {
                if !self.streams[index].advance(page, unit, tick) {
                    return;
                }
                index
            }
            None => {
                let found = self.detect(page, unit);
                self.remember(page);
                let Some(stream) = found else { return };
                let index = self.replaceable();
                self.streams[index] = stream;
                index
            }
        };
        let ahead: u64 = self
            .streams
            .iter()
            .filter(|stream| stream.is_alive(tick))
            .map(Stream::ahead_pages)
            .sum();
        // Each stream has a small part that the others cannot take: they may have ended without
        // this being known yet.
        let own =
            (self.ahead_max_pages / OWN_SHARE).saturating_sub(self.streams[index].ahead_pages());
        let room = self.ahead_max_pages.saturating_sub(ahead).max(own) / u64::from(unit);
        self.streams[index].request(budget.min(room as usize), out);
    }

    /// Whether `page` continues a stream that is dense enough to be worth whole extents. To be
    /// called before `on_fault`.
    pub fn is_stream(&self, page: u64) -> bool {
        let worth = |stream: &Stream| {
            stream.muted == 0 && (stream.dense || stream.step.unsigned_abs() <= DENSE_STRIDE_PAGES)
        };
        self.streams
            .iter()
            .any(|stream| stream.is_alive(self.tick) && worth(stream) && stream.covers(page))
    }

    /// A prefetched block was used.
    pub fn used(&mut self, page: u64) {
        self.trust = (self.trust + 1).min(TRUST_MAX);
        if let Some(stream) = self.streams.iter_mut().find(|stream| stream.requested(page)) {
            stream.wasted = stream.wasted.saturating_sub(1);
        }
    }

    /// A prefetched block was evicted without having been used.
    pub fn wasted(&mut self, page: u64) {
        self.trust = (self.trust - 2).max(-TRUST_MAX);
        if let Some(stream) = self.streams.iter_mut().find(|stream| stream.requested(page)) {
            stream.shrink();
        }
    }

    fn remember(&mut self, page: u64) {
        self.recent[self.recent_next] = page;
        self.recent_ticks[self.recent_next] = self.tick;
        self.recent_next = (self.recent_next + 1) % RECENT;
        self.recent_len = (self.recent_len + 1).min(RECENT);
    }

    /// Index of the unexplained fault of age `age` (0: the last one).
    fn at(&self, age: usize) -> usize {
        (self.recent_next + RECENT - 1 - age) % RECENT
    }

    /// The stream that `page` and the faults before it form, if any.
    fn detect(&self, page: u64, unit: u16) -> Option<Stream> {
        let (step, dense, age) = self
            .row(page, unit)
            .or_else(|| self.stride(page, unit))
            .or_else(|| self.majority(unit))?;
        let head = if dense { page & !(u64::from(unit) - 1) } else { page };
        Some(Stream {
            head,
            edge: head,
            step,
            unit,
            muted: if self.trust < 0 { MUTE_FAULTS } else { 0 },
            mute_next: MUTE_FAULTS,
            dense,
            live: true,
            seen: self.tick,
            gap: self.tick.wrapping_sub(self.recent_ticks[self.at(age)]).max(1),
            ..Stream::default()
        })
    }

    /// Consecutive blocks: returns step, dense, and the age of the previous one.
    fn row(&self, page: u64, unit: u16) -> Option<(i64, bool, usize)> {
        let shift = unit.trailing_zeros();
        let block = page >> shift;
        let horizon = if unit == HUGE { RECENT_HUGE } else { RECENT };
        // Ages of the last faults on the blocks 1, 2, 3 below, and 1, 2, 3 above.
        let mut ages = [usize::MAX; 6];
        for age in (0..self.recent_len.min(horizon)).rev() {
            let below = block.wrapping_sub(self.recent[self.at(age)] >> shift);
            if below.wrapping_add(3) > 6 {
                continue; // neither: by far the usual case
            }
            let above = below.wrapping_neg();
            if below.wrapping_sub(1) < 3 {
                ages[below as usize - 1] = age;
            } else if above.wrapping_sub(1) < 3 {
                ages[above as usize + 2] = age;
            }
        }
        let in_row = |ages: &[usize]| {
            let third = if unit == HUGE { ages[2] } else { usize::MAX - 1 };
            ages[0] < ages[1] && ages[1] < third && third != usize::MAX
        };
        if in_row(&ages[..3]) {
            Some((i64::from(unit), true, ages[0]))
        } else if in_row(&ages[3..]) {
            Some((-i64::from(unit), true, ages[3]))
        } else {
            None
        }
    }

    /// Four pages at equal distances, in order, with other faults between them.
    fn stride(&self, page: u64, unit: u16) -> Option<(i64, bool, usize)> {
        let horizon = self.recent_len.min(RECENT_STRIDE);
        let mut pages = [u64::MAX; RECENT_STRIDE];
        for (age, slot) in pages[..horizon].iter_mut().enumerate() {
            *slot = self.recent[self.at(age)];
        }
        for age in 0..horizon {
            let step = page.wrapping_sub(pages[age]);
            if (step as i64).unsigned_abs() < u64::from(unit) {
                continue;
            }
            let Some(second) =
                pages[age + 1..horizon].iter().position(|&p| p == pages[age].wrapping_sub(step))
            else {
                continue;
            };
            let second = age + 1 + second;
            if pages[second + 1..horizon].contains(&pages[second].wrapping_sub(step)) {
                return Some((step as i64, false, age));
            }
        }
        None
    }

    /// The distance between consecutive faults that more than half of the recent ones have, if any
    /// (Boyer and Moore's vote).
    fn majority(&self, unit: u16) -> Option<(i64, bool, usize)> {
        if self.recent_len <= VOTERS {
            return None;
        }
        let distance =
            |age: usize| self.recent[self.at(age)].wrapping_sub(self.recent[self.at(age + 1)]);
        // Where one distance has the majority, the last three hardly ever all differ. This saves
        // counting for each random fault.
        let (last, second, third) = (distance(0), distance(1), distance(2));
        if last != second && last != third && second != third {
            return None;
        }
        let (mut candidate, mut votes) = (0u64, 0u32);
        for age in 0..VOTERS {
            let vote = distance(age);
            if votes == 0 {
                candidate = vote;
            }
            votes = if vote == candidate { votes + 1 } else { votes - 1 };
        }
        let count = (0..VOTERS).filter(|&age| distance(age) == candidate).count();
        let moves = (candidate as i64).unsigned_abs() >= u64::from(unit);
        (moves && count * 2 > VOTERS).then_some((candidate as i64, false, 0))
    }

    /// The slot for a new stream: a free one, or that of the stream that has been silent longest
    /// relative to its own rhythm.
    fn replaceable(&self) -> usize {
        let tick = self.tick;
        let silence = |stream: &Stream| {
            if stream.is_alive(tick) {
                tick.wrapping_sub(stream.seen) / (stream.gap + 1)
            } else {
                u32::MAX
            }
        };
        let mut best = 0;
        for index in 1..self.streams.len() {
            if silence(&self.streams[index]) > silence(&self.streams[best]) {
                best = index;
            }
        }
        best
    }
}

impl Stream {
    /// A stream that has been silent for much longer than is usual for it has ended.
    fn is_alive(&self, tick: u32) -> bool {
        self.live && tick.wrapping_sub(self.seen) <= self.gap.saturating_mul(8).saturating_add(32)
    }

    /// Distance of `page` from `from` in the direction of the stream.
    fn along(&self, from: u64, page: u64) -> i64 {
        let distance = page.wrapping_sub(from) as i64;
        if self.step < 0 { -distance } else { distance }
    }

    /// Pages that were requested and not reached yet.
    fn ahead_pages(&self) -> u64 {
        let places = self.head.abs_diff(self.edge) / self.step.unsigned_abs().max(1);
        places * u64::from(self.unit)
    }

    /// Whether this stream would fault on `page`.
    fn explains(&self, page: u64, unit: u16) -> bool {
        let place = page & !(u64::from(unit) - 1);
        let requested = self.along(self.head, self.edge);
        if self.dense {
            let unit = i64::from(unit.max(self.unit));
            // A program with larger records may skip small blocks now and then.
            let slack = if unit < i64::from(HUGE) { 4 * unit } else { unit };
            let ahead = self.along(self.head, place);
            return 0 <= ahead && ahead <= requested + slack;
        }
        let ahead = self.along(self.head, page);
        let step = self.step.unsigned_abs() as i64;
        0 <= ahead && ahead <= requested + 2 * step && ahead % step == 0
    }

    /// Whether `page` is where this stream continues.
    fn covers(&self, page: u64) -> bool {
        self.explains(page, self.unit)
    }

    /// Whether `page` may have been requested for this stream recently.
    fn requested(&self, page: u64) -> bool {
        if !self.live {
            return false;
        }
        let span = self.step.unsigned_abs() as i64 * (2 * i64::from(self.window) + 2);
        let behind_edge = self.along(page, self.edge);
        -i64::from(self.unit) < behind_edge && behind_edge <= span
    }

    /// The program has reached `page`. Returns whether it is time to request more.
    fn advance(&mut self, page: u64, unit: u16, tick: u32) -> bool {
        let place = if self.dense { page & !(u64::from(unit) - 1) } else { page };
        let moved = place != self.head;
        let silence = tick.wrapping_sub(self.seen);
        self.gap = (self.gap.saturating_mul(3).saturating_add(silence) / 4).max(1);
        self.seen = tick;
        if unit != self.unit {
            self.window = (u32::from(self.window) * u32::from(self.unit) / u32::from(unit))
                .min(u32::from(u16::MAX)) as u16;
            self.unit = unit;
            if self.dense {
                self.step = self.step.signum() * i64::from(unit);
            }
        }
        self.head = place;
        if self.along(place, self.edge) < 0 {
            self.edge = place;
        }
        if self.muted > 0 {
            self.muted -= u8::from(moved);
            return false;
        }
        let ahead = self.along(place, self.edge) / self.step.unsigned_abs() as i64;
        moved && ahead * 2 <= i64::from(self.window)
    }

    /// Requests the next window.
    fn request(&mut self, budget: usize, out: &mut Vec<PrefetchRequest>) {
        if self.muted > 0 {
            return;
        }
        let wanted = self.window.saturating_mul(2).clamp(1, self.window_max());
        let blocks = usize::from(wanted).min(budget);
        let first = out.len();
        let mask = !(u64::from(self.unit) - 1);
        let (mut edge, mut last, mut cut) = (self.edge, self.edge & mask, false);
        while out.len() - first < blocks {
            let Some(next) = edge.checked_add_signed(self.step) else { break };
            let enters_extent =
                self.dense && self.unit < HUGE && next / u64::from(HUGE) != edge / u64::from(HUGE);
            edge = next;
            if enters_extent {
                // Left unmapped: the fault on it shows how the extent was fetched, and the stream
                // continues in that size.
                out.push(PrefetchRequest { page: next & mask, unit: HUGE, leave_unmapped: true });
                cut = true;
                break;
            }
            // Small steps may hit the same block twice.
            if next & mask != last {
                last = next & mask;
                out.push(PrefetchRequest { page: last, unit: self.unit, leave_unmapped: false });
            }
        }
        let requested = out.len() - first;
        if requested > 0 {
            out[first + (requested - 1) / 2].leave_unmapped = true;
            self.edge = edge;
            self.window = if cut { wanted } else { requested as u16 };
        }
    }

    /// A requested block was evicted unused. The window halves when half of it has been.
    fn shrink(&mut self) {
        self.wasted += 1;
        if self.wasted < (self.window / 2).max(1) {
            return;
        }
        self.wasted = 0;
        self.window /= 2;
        if self.window == 0 {
            self.muted = self.mute_next;
            self.mute_next = self.mute_next.saturating_mul(2).min(MUTE_FAULTS_MAX);
        }
    }

    fn window_max(&self) -> u16 {
        match self.unit {
            HUGE => WINDOW_HUGE_PAGES / HUGE,
            unit => (WINDOW_SMALL_PAGES / unit).max(WINDOW_BLOCKS_MIN),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(prefetcher: &mut Prefetcher, page: u64, unit: u16) -> Vec<u64> {
        let mut out = Vec::new();
        prefetcher.on_fault(page, unit, 64, &mut out);
        out.iter().map(|request| request.page).collect()
    }

    #[test]
    fn three_sequential_blocks_start_a_doubling_window() {
        let mut prefetcher = Prefetcher::new(16);
        assert!(run(&mut prefetcher, 100, 2).is_empty());
        assert!(run(&mut prefetcher, 102, 2).is_empty());
        assert_eq!(run(&mut prefetcher, 104, 2), [106]);
        assert_eq!(run(&mut prefetcher, 106, 2), [108, 110]);
        assert_eq!(run(&mut prefetcher, 108, 2), [112, 114, 116, 118]);
    }
}
