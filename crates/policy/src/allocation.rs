//! Which of several servers gets the next 2 MiB of far memory.

/// How servers are filled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AllocationKind {
    /// One server after the other, in the order in which they were named.
    Simple,
    /// One chunk from each server in turn; full servers are skipped.
    RoundRobin,
}

/// Chooses servers one chunk at a time.
#[derive(Clone, Debug)]
pub struct Allocator {
    kind: AllocationKind,
    next: usize,
}

impl Allocator {
    /// An allocator that starts at the first server.
    pub fn new(kind: AllocationKind) -> Self {
        Allocator { kind, next: 0 }
    }

    /// The server that gets the next chunk, where server `i` has room for `free_chunks[i]`; none if
    /// all are full.
    ///
    /// A server that cannot be reached is given as full.
    pub fn choose(&mut self, free_chunks: &[u32]) -> Option<usize> {
        let has_room = |&server: &usize| free_chunks[server] > 0;
        match self.kind {
            AllocationKind::Simple => (0..free_chunks.len()).find(has_room),
            AllocationKind::RoundRobin => {
                let servers = free_chunks.len();
                let start = if self.next < servers { self.next } else { 0 };
                let chosen = (start..servers).chain(0..start).find(has_room)?;
                self.next = chosen + 1;
                Some(chosen)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(kind: AllocationKind, mut free: Vec<u32>) -> Vec<usize> {
        let mut allocator = Allocator::new(kind);
        std::iter::from_fn(|| {
            let server = allocator.choose(&free)?;
            free[server] -= 1;
            Some(server)
        })
        .collect()
    }

    #[test]
    fn simple_fills_servers_in_order() {
        assert_eq!(fill(AllocationKind::Simple, vec![2, 0, 3]), [0, 0, 2, 2, 2]);
    }

    #[test]
    fn round_robin_skips_full_servers() {
        assert_eq!(fill(AllocationKind::RoundRobin, vec![2, 1, 3]), [0, 1, 2, 0, 2, 2]);
    }

    #[test]
    fn every_chunk_is_allocated_exactly_once() {
        for kind in [AllocationKind::Simple, AllocationKind::RoundRobin] {
            assert_eq!(fill(kind, vec![7, 0, 5, 1]).len(), 13);
            assert!(fill(kind, vec![]).is_empty());
            assert!(fill(kind, vec![0, 0]).is_empty());
        }
    }

    #[test]
    fn round_robin_survives_the_loss_of_servers() {
        let mut allocator = Allocator::new(AllocationKind::RoundRobin);
        for _ in 0..3 {
            allocator.choose(&[9, 9, 9]);
        }
        assert_eq!(allocator.choose(&[9]), Some(0));
    }
}
