//! The arms: where memory goes that does not fit, what that needs of the machine, and what is
//! counted as its memory.

use std::time::Duration;

use anyhow::Result;
use hiroma_pager::LOCAL_MIN;

use super::cells::{Attempt, NATIVE};
use crate::children::{Server, hiroma_word};
use crate::peers::{Cgroup, SwapArea, SwapKind, SwapOn, SwapTraffic, Zswap};

/// Room for all that a program may put into a swap area or a store.
const ROOM_BYTES: u64 = 8 << 30;
/// A group that counts and does not limit.
const NO_LIMIT_BYTES: u64 = 1 << 50;
/// A swapped program gets at least so much.
const SWAPPED_LEAST_BYTES: u64 = 4 << 20;
/// Sizes of fixed blocks that auto is compared with.
pub const BLOCKS: [&str; 5] = ["4K", "8K", "16K", "64K", "2M"];
/// How often memory is looked at.
pub const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Where memory goes that does not fit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arm {
    /// Nowhere: all of it is there.
    Native,
    /// Swapped by the kernel to compressed memory, under a control group's limit.
    Zram,
    /// The same to a file.
    SwapFile,
    /// The same with compressed memory in front of it.
    Zswap,
    /// `hiroma run` with compressed memory alone, beside the limit.
    Compressed,
    /// `hiroma run` with compressed memory alone, within the limit.
    NoDisk,
    /// `hiroma run` as it comes: compressed memory within the limit, and a file.
    Default,
    /// `hiroma run` over TCP to a memory server on this machine.
    Tcp,
    /// As `Compressed`, with one of the sizes of blocks, or none.
    Block(Option<usize>),
    /// `hiroma run` with a limit that is never reached.
    Roomy,
}

/// Those that can be asked for.
pub const CHOICES: [Arm; 7] =
    [Arm::Zram, Arm::SwapFile, Arm::Zswap, Arm::Compressed, Arm::NoDisk, Arm::Default, Arm::Tcp];

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
            Arm::Default => "default",
            Arm::Tcp => "tcp",
            Arm::Block(None) => "auto",
            Arm::Block(Some(at)) => BLOCKS[at],
            Arm::Roomy => "roomy",
        }
    }

    /// Its name, back.
    pub fn parse(name: &str) -> Result<Arm, String> {
        let names = CHOICES.map(Arm::name).join(", ");
        CHOICES
            .into_iter()
            .find(|arm| arm.name() == name)
            .ok_or(format!("`{name}` is none of {names}"))
    }

    /// Whether it is `hiroma run`.
    pub fn is_ours(self) -> bool {
        matches!(
            self,
            Arm::Compressed | Arm::NoDisk | Arm::Default | Arm::Tcp | Arm::Block(_) | Arm::Roomy
        )
    }

    /// Whether what leaves stays in memory of this machine, beside the limit.
    pub fn is_beside(self) -> bool {
        matches!(self, Arm::Zram | Arm::Zswap | Arm::Compressed)
    }

    /// The least limit that it takes.
    pub fn least(self) -> u64 {
        if self.is_ours() { LOCAL_MIN.0 } else { SWAPPED_LEAST_BYTES }
    }

    /// What it is here, or why it cannot be here.
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

/// What an arm needs, set up for one run, and taken down when it goes.
pub struct Place {
    // Dropped in this order: swapping ends before its area and before zswap; groups go when nobody
    // is in them.
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
    /// For one run of `arm`, of which `limit` bytes are resident.
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

    /// What stands before the program: `hiroma run` and its options. Statistics go to `stats`.
    pub fn front(&self, stats: &str) -> Result<Vec<String>> {
        if !self.arm.is_ours() {
            return Ok(Vec::new());
        }
        let this = hiroma_word()?;
        let mut front: Vec<String> =
            [&this, "run", "--quiet", "--local", &self.limit.to_string(), "--stats", stats]
                .map(str::to_owned)
                .into();
        let mut option = |name: &str, value: String| front.extend([name.to_owned(), value]);
        match self.arm {
            Arm::Compressed | Arm::Block(_) => {
                option("--store", format!("compressed:{ROOM_BYTES}"))
            }
            Arm::NoDisk => option("--store", "compressed".to_owned()),
            Arm::Tcp => option(
                "--store",
                format!("tcp://{}", self.server.as_ref().map_or("", |(server, _)| &server.address)),
            ),
            _ => {}
        }
        if let Arm::Block(Some(at)) = self.arm {
            option("--block", BLOCKS[at].to_owned());
        }
        front.push("--".to_owned());
        Ok(front)
    }

    /// Looks at the memory that is taken now, and keeps the most.
    pub fn look(&self, most: &mut Attempt) {
        let beside = self.area.as_ref().map_or(0, SwapArea::memory_bytes)
            + self.zswap.as_ref().map_or(0, Zswap::memory_bytes);
        most.total_bytes = most.total_bytes.max(self.cgroup.memory_bytes() + beside);
        most.compressed_bytes = most.compressed_bytes.max(beside);
        most.remote_bytes = most
            .remote_bytes
            .max(self.server.as_ref().map_or(0, |(_, cgroup)| cgroup.memory_bytes()));
    }

    /// Pages that came back from swap since it was made.
    pub fn pages_in(&self) -> u64 {
        if self.on.is_some() { SwapTraffic::now().since(self.before).pages_in } else { 0 }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // What is left there would be read back from swap first.
        self.cgroup.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arms_have_names_of_their_own() {
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
