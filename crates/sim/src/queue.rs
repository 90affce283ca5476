//! The event queue: a 4-ary heap of 16-byte entries in the order (time, sequence).

/// Bits of a payload.
const PAYLOAD_BITS: u32 = 36;
/// Bits of a sequence number.
const SEQUENCE_BITS: u32 = 44;
/// Children of a heap node: four entries are one cache line.
const ARITY: usize = 4;

/// What waits for its time. Entries at the same time come out in the order in which they were put in.
#[derive(Debug, Default)]
pub struct Queue {
    /// time << 80 | sequence << 36 | payload: one comparison orders everything.
    heap: Vec<u128>,
    sequence: u64,
}

impl Queue {
    /// Puts `payload` (36 bits) in for `time_ns` (48 bits).
    #[inline]
    pub fn push(&mut self, time_ns: u64, payload: u64) {
        debug_assert!(payload >> PAYLOAD_BITS == 0 && time_ns >> 48 == 0);
        self.sequence += 1;
        debug_assert!(self.sequence >> SEQUENCE_BITS == 0);
        let entry = u128::from(time_ns) << (PAYLOAD_BITS + SEQUENCE_BITS) | u128::from(self.sequence) << PAYLOAD_BITS | u128::from(payload);
        let mut hole = self.heap.len();
        self.heap.push(entry);
        while hole > 0 {
            let parent = (hole - 1) / ARITY;
            if self.heap[parent] < entry {
                break;
            }
            self.heap[hole] = self.heap[parent];
            hole = parent;
        }
        self.heap[hole] = entry;
    }

    /// Takes the next entry out: its time in ns and its payload.
    #[inline]
    pub fn pop(&mut self) -> Option<(u64, u64)> {
        let last = self.heap.pop()?;
        let next = match self.heap.first_mut() {
            None => last,
            Some(first) => {
                let next = std::mem::replace(first, last);
                self.sift_down(last);
                next
            }
        };
        Some(((next >> (PAYLOAD_BITS + SEQUENCE_BITS)) as u64, next as u64 & ((1 << PAYLOAD_BITS) - 1)))
    }

    #[inline]
    fn sift_down(&mut self, entry: u128) {
        let heap = self.heap.as_mut_slice();
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
                let (place, &least) = rest.min_by_key(|(_, entry)| **entry).unwrap_or((0, &heap[first]));
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

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// Heap memory, bytes.
    pub fn heap_bytes(&self) -> usize {
        self.heap.capacity() * 16
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn entries_come_out_by_time_and_then_in_the_order_they_came_in(steps in prop::collection::vec(prop::option::weighted(0.7, 0u64..50), 0..400)) {
            let (mut queue, mut naive) = (Queue::default(), Vec::<(u64, u64)>::new());
            for (number, step) in steps.into_iter().enumerate() {
                match step {
                    Some(time) => {
                        queue.push(time, number as u64);
                        naive.push((time, number as u64));
                    }
                    None => {
                        naive.sort_unstable();
                        let expected = (!naive.is_empty()).then(|| naive.remove(0));
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
}
