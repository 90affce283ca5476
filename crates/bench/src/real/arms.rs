//! The arms: the destination of memory that does not fit, its requirements, and what is counted as
//! its memory.

use std::time::Duration;

use anyhow::Result;
use hiroma_far::LOCAL_MIN;

use super::cells::{Attempt, NATIVE};
use crate::children::{Server, hiroma_word};
use crate::peers::{Cgroup, SwapArea, SwapKind, SwapOn, SwapTraffic, Zswap};

/// Room for everything that a program may put into a swap area or a store.
const ROOM_BYTES: u64 = 8 << 30;
/// Limit of a group that only counts.
const NO_LIMIT_BYTES: u64 = 1 << 50;
/// Minimum limit of a swapped program.
const SWAPPED_LEAST_BYTES: u64 = 4 << 20;
/// Fixed block sizes that auto is compared with.
pub const BLOCKS: [&str; 6] = ["4K", "8K", "16K", "32K", "64K", "2M"];
/// Time between two samples of the memory.
pub const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Destination of memory that does not fit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arm {
    /// None: all of it is resident.
    Native,
    /// Swapped by the kernel to compressed memory, under a control group's limit.
    Zram,
    /// Swapped by the kernel to a file.
    SwapFile,
    /// Swapped by the kernel to a file, with compressed memory in front of it.
    Zswap,
    /// `hiroma run` with compressed memory alone, in addition to the limit.
    Compressed,
    /// `hiroma run` with compressed memory alone, within the limit.
    NoDisk,
    /// `hiroma run` with a file alone.
    File,
    /// `hiroma run` with its defaults: compressed memory within the limit, and a file.
    Default,
    /// As `Default`, without accessed bits: what a user without that right gets.
    Blind,
    /// `hiroma run` over TCP to a memory server on this machine.
    Tcp,
    /// As `Compressed`, with one of the block sizes; none for auto.
    Block(Option<usize>),
    /// `hiroma run` with a limit that is never reached.
    Roomy,
}

/// The arms that can be selected.
pub const CHOICES: [Arm; 9] = [
    Arm::Zram,
    Arm::SwapFile,
    Arm::Zswap,
    Arm::Compressed,
    Arm::NoDisk,
    Arm::File,
    Arm::Default,
    Arm::Blind,
    Arm::Tcp,
];

impl Arm {
    /// Name in keys, tables and options.
    pub fn name(self) -> &'static str {
        match self {
            Arm::Native => NATIVE,
            Arm::Zram => "zram",
            Arm::SwapFile => "swap-file",
            Arm::Zswap => "zswap",
            Arm::Compressed => "compressed",
            Arm::NoDisk => "no-disk",
            Arm::File => "file",
            Arm::Default => "default",
            Arm::Blind => "blind",
            Arm::Tcp => "tcp",
            Arm::Block(None) => "auto",
            Arm::Block(Some(at)) => BLOCKS[at],
            Arm::Roomy => "roomy",
        }
    }

    /// Parses the name of a selectable arm.
    pub fn parse(name: &str) -> Result<Arm, String> {
        let names = CHOICES.map(Arm::name).join(", ");
        CHOICES
            .into_iter()
            .find(|arm| arm.name() == name)
            .ok_or(format!("`{name}` is none of {names}"))
    }

    /// Whether the arm uses `hiroma run`.
    pub fn is_ours(self) -> bool {
        matches!(
            self,
            Arm::Compressed
                | Arm::NoDisk
                | Arm::File
                | Arm::Default
                | Arm::Blind
                | Arm::Tcp
                | Arm::Block(_)
                | Arm::Roomy
        )
    }

    /// Whether evicted memory stays in memory of this machine, in addition to the limit.
    pub fn is_beside(self) -> bool {
        matches!(self, Arm::Zram | Arm::Zswap | Arm::Compressed)
    }

    /// The smallest limit that the arm accepts.
    pub fn least(self) -> u64 {
        if self.is_ours() { LOCAL_MIN.0 } else { SWAPPED_LEAST_BYTES }
    }

    /// Description of the arm on this machine; an error if it is not possible here.
    pub fn look(self) -> Result<Option<String>> {
        let area = |kind| SwapArea::make(kind, 16 << 20).map(|area| area.description);
        Ok(match self {
            Arm::Zram => Some(area(SwapKind::Zram)?),
            Arm::SwapFile => Some(area(SwapKind::File)?),
            Arm::Zswap => Some(format!(
                "{} in front of a {}",
                Zswap::switch_on()?.description,
                area(SwapKind::File)?
            )),
            _ => None,
        })
    }
}

/// The resources that an arm needs, set up for one run, and removed when dropped.
pub struct Place {
    // Dropped in this order: swapping ends before its area and before zswap; groups are removed
    // when no process is in them.
    on: Option<SwapOn>,
    area: Option<SwapArea>,
    zswap: Option<Zswap>,
    server: Option<(Server, Cgroup)>,
    pub cgroup: Cgroup,
    arm: Arm,
    limit: u64,
    before: SwapTraffic,
}

impl Place {
    /// Sets up one run of `arm` with a resident limit of `limit` bytes.
    pub fn make(arm: Arm, limit: u64) -> Result<Place> {
        let kind = match arm {
            Arm::Zram => Some(SwapKind::Zram),
            Arm::SwapFile | Arm::Zswap => Some(SwapKind::File),
            _ => None,
        };
        let zswap = if arm == Arm::Zswap { Some(Zswap::switch_on()?) } else { None };
        let area = kind.map(|kind| SwapArea::make(kind, ROOM_BYTES)).transpose()?;
        let server = if arm == Arm::Tcp {
            let cgroup = Cgroup::make(NO_LIMIT_BYTES)?;
            Some((Server::start_in(&cgroup, ROOM_BYTES)?, cgroup))
        } else {
            None
        };
        let cgroup = Cgroup::make(if kind.is_some() { limit } else { NO_LIMIT_BYTES })?;
        let on = area.as_ref().map(SwapArea::switch_on).transpose()?;
        Ok(Place { on, area, zswap, server, cgroup, arm, limit, before: SwapTraffic::now() })
    }

    /// Words that precede the program: `hiroma run` and its options. Statistics are written to
    /// `stats`.
    pub fn front(&self, stats: &str) -> Result<Vec<String>> {
        if !self.arm.is_ours() {
            return Ok(Vec::new());
        }
        let (this, limit) = (hiroma_word()?, self.limit.to_string());
        // Of all processes together, like the limit of a control group.
        let mut front: Vec<String> =
            [&this, "run", "--quiet", "--local", &limit, "--total", &limit, "--stats", stats]
                .map(str::to_owned)
                .into();
        let mut option = |name: &str, value: String| front.extend([name.to_owned(), value]);
        match self.arm {
            Arm::Compressed | Arm::Block(_) => {
                option("--store", format!("compressed:{ROOM_BYTES}"))
            }
            Arm::NoDisk => option("--store", "compressed".to_owned()),
            Arm::File => option("--store", "file:/var/tmp".to_owned()),
            Arm::Tcp => {
                let server = self.server.as_ref().map_or("", |(server, _)| &server.address);
                option("--store", format!("tcp://{server}"));
                // The server is here, and what is measured is TCP.
                option("--transport", "tcp".to_owned());
            }
            _ => {}
        }
        if let Arm::Block(Some(at)) = self.arm {
            option("--block", BLOCKS[at].to_owned());
        }
        if self.arm == Arm::Blind {
            front.push("--no-accessed-bits".to_owned());
        }
        front.push("--".to_owned());
        Ok(front)
    }

    /// Samples the present memory, and updates the maxima.
    pub fn look(&self, most: &mut Attempt) {
        let beside = self.area.as_ref().map_or(0, SwapArea::memory_bytes)
            + self.zswap.as_ref().map_or(0, Zswap::memory_bytes);
        most.total_bytes = most.total_bytes.max(self.cgroup.memory_bytes() + beside);
        most.compressed_bytes = most.compressed_bytes.max(beside);
        most.remote_bytes = most
            .remote_bytes
            .max(self.server.as_ref().map_or(0, |(_, cgroup)| cgroup.memory_bytes()));
    }

    /// Number of pages that were swapped in since it was set up.
    pub fn pages_in(&self) -> u64 {
        if self.on.is_some() { SwapTraffic::now().since(self.before).pages_in } else { 0 }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // Remaining processes would be swapped in first.
        self.cgroup.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arm_names_are_unique() {
        let all = CHOICES
            .into_iter()
            .chain([Arm::Native, Arm::Roomy, Arm::Block(None)])
            .chain((0..BLOCKS.len()).map(|at| Arm::Block(Some(at))));
        let names: std::collections::BTreeSet<_> = all.map(Arm::name).collect();
        assert_eq!(names.len(), CHOICES.len() + 3 + BLOCKS.len());
        assert!(CHOICES.iter().all(|arm| Arm::parse(arm.name()) == Ok(*arm)));
        assert!(Arm::parse("zran").unwrap_err().contains("swap-file"));
    }
}
