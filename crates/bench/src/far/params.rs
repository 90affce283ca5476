//! Sizes of the experiments.

use super::plan::size_name;

/// Sizes, in bytes unless stated otherwise.
#[derive(Clone, Debug)]
pub struct Params {
    pub quick: bool,
    pub repetitions: usize,
    /// Memory that streams read; a quarter of it is local.
    pub region: usize,
    /// The same for peers, whose speed does not depend on it.
    pub peer_region: usize,
    /// Number of lines of the text of numbers.
    pub lines: u64,
    /// Time that a sort may take before it is stopped, in times native.
    pub patience: f64,
    pub reserved: usize,
    pub touched: usize,
    pub reserve_local: u64,
}

impl Params {
    /// Sizes for a full run, for a quick run, or for a run with the paper's text.
    pub fn new(quick: bool, full_sort: bool) -> Params {
        let lines = match (full_sort, quick) {
            (true, _) => 56_000_000,
            (false, false) => 14_000_000,
            (false, true) => 2_200_000,
        };
        let full = Params {
            quick,
            repetitions: 3,
            region: 1 << 30,
            peer_region: 512 << 20,
            lines,
            patience: if full_sort { 10.0 } else { 5.0 },
            reserved: 1 << 40,
            touched: 4 << 30,
            reserve_local: 512 << 20,
        };
        if quick {
            Params {
                region: 256 << 20,
                peer_region: 256 << 20,
                touched: 1 << 30,
                reserve_local: 128 << 20,
                patience: full.patience.min(4.0),
                ..full
            }
        } else {
            full
        }
    }

    /// Size of the region for streams of blocks of `block` bytes: at most 16,384 blocks, which
    /// suffices for small blocks.
    pub fn region_for(&self, block: usize) -> usize {
        self.region.min(block.saturating_mul(16_384)).max(32 << 20)
    }

    /// Description for the report.
    pub fn describe(&self) -> String {
        format!(
            "Streams read {} ({} with swap peers) with a quarter of it local; {} repetitions; sorts of {:.1} million lines; {} reserved and {} of it touched.",
            size_name(self.region),
            size_name(self.peer_region),
            self.repetitions,
            self.lines as f64 / 1e6,
            size_name(self.reserved),
            size_name(self.touched),
        )
    }
}
