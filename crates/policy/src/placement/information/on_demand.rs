//! Bidding: a node that has a page to place asks all peers, and chooses when all have answered.

/// The bids that one node waits for. Pages that have to leave meanwhile share the answers.
#[derive(Clone, Debug, Default)]
pub struct Bids {
    missing: u32,
}

impl Bids {
    /// Whether answers are missing.
    pub fn under_way(&self) -> bool {
        self.missing > 0
    }

    /// Requests to `peers` peers are being sent.
    pub fn ask(&mut self, peers: u32) {
        debug_assert_eq!(self.missing, 0, "one round of bids at a time");
        self.missing = peers;
    }

    /// A peer answered, or cannot be reached. Returns whether that was the last one.
    pub fn answered(&mut self) -> bool {
        let was = self.missing;
        self.missing = was.saturating_sub(1);
        was == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_ends_once_at_last_answer() {
        let mut bids = Bids::default();
        bids.ask(3);
        let ends: Vec<bool> = (0..5).map(|_| bids.answered()).collect();
        assert_eq!(ends, [false, false, true, false, false]);
        assert!(!bids.under_way());
    }
}
