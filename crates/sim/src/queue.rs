//! The event queue, in the order (time, sequence): buckets for the near future, each of which is
//! sorted when its time comes, and a heap for later entries. The width of the buckets adapts to the
//! load; the order does not depend on it.

/// Bits of a payload.
const PAYLOAD_BITS: u32 = 36;
/// Bits of a sequence number.
const SEQUENCE_BITS: u32 = 44;
/// The last time, ns.
const TIME_LAST_NS: u64 = (1 << (128 - PAYLOAD_BITS - SEQUENCE_BITS)) - 1;
/// Children of a heap node: four entries are one cache line.
const ARITY: usize = 4;

/// Buckets of the near future.
const BUCKETS: usize = 1024;
/// The narrowest and the widest bucket, as powers of two of ns.
const SHIFTS: std::ops::RangeInclusive<u32> = 6..=36;
/// The width is reconsidered after this many opened buckets.
const OPENED_PER_LOOK: u64 = 4096;
/// No entry.
const NONE: u32 = u32::MAX;

/// Entries: time << 80 | sequence << 36 | payload. One comparison orders everything.
fn bucket_of(entry: u128, shift: u32) -> u64 {
    (entry >> (PAYLOAD_BITS + SEQUENCE_BITS)) as u64 >> shift
}

/// The pending entries. Entries with the same time are removed in the order in which they were
/// inserted.
#[derive(Debug)]
pub struct Queue {
    sequence: u64,
    /// The open bucket, latest entry first; and the entries for it, or for an earlier time, that
    /// were inserted after it was opened.
    open: Vec<u128>,
    late: Heap,
    /// The buckets after it, as lists in `entries`: the first entry of each, and one bit for each
    /// bucket that is not empty.
    first: Box<[u32]>,
    filled: [u64; BUCKETS / 64],
    entries: Vec<u128>,
    next: Vec<u32>,
    free: u32,
    near: usize,
    /// Entries after the last bucket.
    far: Heap,
    /// Number of the open bucket since time 0.
    bucket: u64,
    /// Width of a bucket, as a power of two of ns.
    shift: u32,
    /// Since the width was last reconsidered: buckets opened, entries in them, entries that had to
    /// wait in `far`.
    opened: u64,
    in_opened: u64,
    from_far: u64,
}

impl Default for Queue {
    fn default() -> Queue {
        Queue {
            sequence: 0,
            open: Vec::new(),
            late: Heap::default(),
            first: vec![NONE; BUCKETS].into(),
            filled: [0; BUCKETS / 64],
            entries: Vec::new(),
            next: Vec::new(),
            free: NONE,
            near: 0,
            far: Heap::default(),
            bucket: 0,
            shift: 12,
            opened: 0,
            in_opened: 0,
            from_far: 0,
        }
    }
}

impl Queue {
    /// Inserts `payload` (36 bits) for `time_ns`. What is later than the last time that can be told
    /// (48 bits, three days) happens then: no run lasts longer than half of it.
    #[inline]
    pub fn push(&mut self, time_ns: u64, payload: u64) {
        debug_assert!(payload >> PAYLOAD_BITS == 0);
        let time_ns = time_ns.min(TIME_LAST_NS);
        self.sequence += 1;
        debug_assert!(self.sequence >> SEQUENCE_BITS == 0);
        let entry = u128::from(time_ns) << (PAYLOAD_BITS + SEQUENCE_BITS)
            | u128::from(self.sequence) << PAYLOAD_BITS
            | u128::from(payload);
        self.put(entry);
    }

    #[inline]
    fn put(&mut self, entry: u128) {
        let bucket = bucket_of(entry, self.shift);
        if bucket <= self.bucket {
            self.late.push(entry);
        } else if bucket < self.bucket + BUCKETS as u64 {
            self.put_near(bucket as usize % BUCKETS, entry);
        } else {
            self.far.push(entry);
        }
    }

    #[inline]
    fn put_near(&mut self, place: usize, entry: u128) {
        let before = self.first[place];
        let at = self.free;
        if at == NONE {
            self.first[place] = self.entries.len() as u32;
            self.entries.push(entry);
            self.next.push(before);
        } else {
            self.free = self.next[at as usize];
            (self.entries[at as usize], self.next[at as usize]) = (entry, before);
            self.first[place] = at;
        }
        self.filled[place / 64] |= 1 << (place % 64);
        self.near += 1;
    }

    /// Removes the next entry. Returns its time in ns and its payload.
    #[inline]
    pub fn pop(&mut self) -> Option<(u64, u64)> {
        if self.open.is_empty() && self.late.is_empty() && !self.open_next() {
            return None;
        }
        let next = match (self.open.last(), self.late.first()) {
            (Some(open), Some(late)) if late < *open => self.late.pop()?,
            (Some(_), _) => self.open.pop()?,
            (None, _) => self.late.pop()?,
        };
        Some((
            (next >> (PAYLOAD_BITS + SEQUENCE_BITS)) as u64,
            next as u64 & ((1 << PAYLOAD_BITS) - 1),
        ))
    }

    /// Payloads of at most `count` entries that are next, as far as that is known.
    #[inline]
    pub fn ahead(&self, count: usize) -> impl Iterator<Item = u64> + '_ {
        self.open.iter().rev().take(count).map(|entry| *entry as u64 & ((1 << PAYLOAD_BITS) - 1))
    }

    /// Opens the next bucket that is not empty. Returns false if the queue is empty.
    fn open_next(&mut self) -> bool {
        if self.opened == OPENED_PER_LOOK {
            self.choose_width();
            // The open bucket may have become wider, and no longer be empty.
            if !self.late.is_empty() {
                return true;
            }
        }
        self.bucket = match self.far.first() {
            // All buckets are empty: skip to the first entry in `far`.
            Some(entry) if self.near == 0 => bucket_of(entry, self.shift),
            None if self.near == 0 => return false,
            _ => self.next_filled(),
        };
        while let Some(entry) = self.far.first() {
            let bucket = bucket_of(entry, self.shift);
            if bucket >= self.bucket + BUCKETS as u64 {
                break;
            }
            self.far.pop();
            self.from_far += 1;
            self.put_near(bucket as usize % BUCKETS, entry);
        }
        let place = self.bucket as usize % BUCKETS;
        self.filled[place / 64] &= !(1 << (place % 64));
        let mut at = std::mem::replace(&mut self.first[place], NONE);
        while at != NONE {
            self.open.push(self.entries[at as usize]);
            let next = std::mem::replace(&mut self.next[at as usize], self.free);
            self.free = at;
            at = next;
        }
        self.near -= self.open.len();
        self.opened += 1;
        self.in_opened += self.open.len() as u64;
        self.open.sort_unstable_by(|a, b| b.cmp(a));
        true
    }

    /// The first bucket after the open one that is not empty; there has to be one.
    fn next_filled(&self) -> u64 {
        let from = (self.bucket + 1) as usize % BUCKETS;
        let words = self.filled.len();
        let of_first = self.filled[from / 64] & !0 << (from % 64);
        let place = if of_first != 0 {
            from / 64 * 64 + of_first.trailing_zeros() as usize
        } else {
            let rest = (1..=words)
                .map(|step| (from / 64 + step) % words)
                .find(|&word| self.filled[word] != 0);
            rest.map_or(from, |word| word * 64 + self.filled[word].trailing_zeros() as usize)
        };
        self.bucket + 1 + ((place + BUCKETS - from) % BUCKETS) as u64
    }

    /// The width is right if few entries share a bucket and few have to wait in `far`.
    fn choose_width(&mut self) {
        let crowd = self.in_opened / self.opened;
        let shift = match (crowd, self.from_far * 8 > self.in_opened) {
            (0..12, true) => self.shift + 1,
            (12.., false) | (48.., true) => self.shift - 1,
            _ => self.shift,
        };
        (self.opened, self.in_opened, self.from_far) = (0, 0, 0);
        if shift == self.shift || !SHIFTS.contains(&shift) {
            return;
        }
        let mut all: Vec<u128> = Vec::with_capacity(self.near);
        for first in &mut self.first {
            let mut at = std::mem::replace(first, NONE);
            while at != NONE {
                all.push(self.entries[at as usize]);
                at = self.next[at as usize];
            }
        }
        (self.near, self.free, self.filled) = (0, NONE, [0; BUCKETS / 64]);
        self.entries.clear();
        self.next.clear();
        // The start of the open bucket; no pending entry is before its end.
        self.bucket = self.bucket << self.shift >> shift;
        self.shift = shift;
        let far = std::mem::take(&mut self.far);
        all.into_iter().chain(far.0).for_each(|entry| self.put(entry));
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.open.len() + self.late.0.len() + self.near + self.far.0.len()
    }

    /// Heap memory, bytes.
    pub fn heap_bytes(&self) -> usize {
        let entries = self.open.capacity()
            + self.late.0.capacity()
            + self.far.0.capacity()
            + self.entries.capacity();
        16 * entries + 4 * (self.next.capacity() + self.first.len())
    }
}

/// A 4-ary heap.
#[derive(Debug, Default)]
struct Heap(Vec<u128>);

impl Heap {
    #[inline]
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[inline]
    fn first(&self) -> Option<u128> {
        self.0.first().copied()
    }

    #[inline]
    fn push(&mut self, entry: u128) {
        let mut hole = self.0.len();
        self.0.push(entry);
        while hole > 0 {
            let parent = (hole - 1) / ARITY;
            if self.0[parent] < entry {
                break;
            }
            self.0[hole] = self.0[parent];
            hole = parent;
        }
        self.0[hole] = entry;
    }

    #[inline]
    fn pop(&mut self) -> Option<u128> {
        let last = self.0.pop()?;
        Some(match self.0.first_mut() {
            None => last,
            Some(first) => {
                let next = std::mem::replace(first, last);
                self.sift_down(last);
                next
            }
        })
    }

    #[inline]
    fn sift_down(&mut self, entry: u128) {
        let heap = self.0.as_mut_slice();
        let mut hole = 0;
        loop {
            let first = hole * ARITY + 1;
            let (child, least) = if let Some(four) = heap.get(first..first + ARITY) {
                let left = usize::from(four[1] < four[0]);
                let right = 2 + usize::from(four[3] < four[2]);
                let best = if four[right] < four[left] { right } else { left };
                (first + best, four[best])
            } else if first < heap.len() {
                let rest = heap[first..].iter().enumerate();
                let (place, &least) =
                    rest.min_by_key(|(_, entry)| **entry).unwrap_or((0, &heap[first]));
                (first + place, least)
            } else {
                break;
            };
            if entry < least {
                break;
            }
            heap[hole] = least;
            hole = child;
        }
        heap[hole] = entry;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn entries_leave_by_time_then_insertion_order(steps in prop::collection::vec(prop::option::weighted(0.7, 0u64..50), 0..400)) {
            let (mut queue, mut naive, mut now) = (Queue::default(), Vec::<(u64, u64)>::new(), 0);
            for (number, step) in steps.into_iter().enumerate() {
                match step {
                    Some(gap) => {
                        // Some together, some in the next buckets, some after all of them; mostly
                        // none in the past.
                        let time = now + gap * gap * gap * gap * 97;
                        queue.push(time, number as u64);
                        naive.push((time, number as u64));
                    }
                    None => {
                        naive.sort_unstable();
                        let expected = (!naive.is_empty()).then(|| naive.remove(0));
                        now = expected.map_or(now, |(time, _)| time.saturating_sub(5));
                        prop_assert_eq!(queue.pop(), expected);
                    }
                }
                prop_assert_eq!(queue.len(), naive.len());
            }
            naive.sort_unstable();
            for expected in naive {
                prop_assert_eq!(queue.pop(), Some(expected));
            }
        }
    }

    #[test]
    fn times_without_end_come_last() {
        let mut queue = Queue::default();
        for (number, time_ns) in [1 << 48, 5, u64::MAX, (1 << 47) + 1].into_iter().enumerate() {
            queue.push(time_ns, number as u64);
        }
        let order: Vec<u64> =
            std::iter::from_fn(|| queue.pop()).map(|(_, number)| number).collect();
        assert_eq!(order, [1, 3, 0, 2]);
    }

    #[test]
    fn bucket_width_follows_load_without_changing_order() {
        let mut queue = Queue::default();
        let mut random = hiroma_policy::placement::Rng::new(1);
        let mut widths = std::collections::BTreeSet::new();
        for (spread_ns, rounds) in [(1u64 << 30, 60_000), (1 << 14, 60_000), (1 << 34, 60_000)] {
            let mut last = (0, 0);
            for number in 0..1000 {
                queue.push(last.0 + number, number);
            }
            for number in 0..rounds {
                let next = queue.pop().unwrap();
                assert!(next.0 >= last.0, "{next:?} after {last:?}");
                last = next;
                queue.push(next.0 + random.below_u64(spread_ns), number);
                widths.insert(queue.shift);
            }
            while queue.pop().is_some() {}
        }
        assert!(widths.len() > 3, "{widths:?}");
        assert_eq!(queue.len(), 0);
    }
}
