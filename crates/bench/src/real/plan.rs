//! The measurements: groups of items, their memory sizes and arms, and what is equal between the
//! arms.

use std::path::Path;

use anyhow::Result;

use super::arms::{Arm, BLOCKS};
use super::load::Load;
use super::postgres::Postgres;
use super::programs;
use super::work::{Item, Work};

const MIB: usize = 1 << 20;
/// Minimum total of a target: `hiroma run` and a small program fit.
pub const TARGET_LEAST_BYTES: u64 = 24 << 20;
/// Time limit of a load; a load that is stopped counts as this time.
pub const LOAD_SECONDS: f64 = 100.0;
/// Numbers of threads of the sweep.
const THREADS: [usize; 4] = [1, 2, 4, 8];

/// The groups, as `--items` names them.
pub const GROUPS: [&str; 6] = ["programs", "servers", "threads", "bad", "fits", "blocks"];

/// Amount of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Size {
    /// Percentage of what the kernel counts natively.
    Percent(u8),
    /// Number of bytes.
    Bytes(u64),
    /// More than it uses.
    Roomy,
}

/// What is the same in all arms.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Equal {
    /// The total memory, compressed or not.
    Total,
    /// The resident memory; compressed memory is added to it, and reported.
    Resident,
}

/// Items that are measured together.
pub struct Group {
    pub name: &'static str,
    pub items: Vec<(Item, Vec<Size>)>,
    pub arms: Vec<Arm>,
    pub equal: Equal,
    /// Whether native runs are included.
    pub natively: bool,
}

impl Size {
    /// Name in keys and tables.
    pub fn name(self) -> String {
        match self {
            Size::Percent(percent) => format!("{percent}%"),
            Size::Bytes(bytes) => format!("{}M", bytes >> 20),
            Size::Roomy => "roomy".to_owned(),
        }
    }

    /// Size in bytes.
    pub fn bytes(self, native: u64) -> u64 {
        match self {
            Size::Percent(percent) => native * u64::from(percent) / 100,
            Size::Bytes(bytes) => bytes,
            Size::Roomy => native * 2 + (256 << 20),
        }
    }
}

/// The user's selection.
pub struct Choice<'a> {
    pub groups: &'a [String],
    pub only: &'a [String],
    pub at: &'a [u8],
    pub arms: &'a [Arm],
    pub threads: &'a [u8],
    pub python: &'a Path,
    pub command: Vec<String>,
}

impl Choice<'_> {
    fn wants(&self, group: &str) -> bool {
        self.groups.iter().any(|name| name == group)
    }

    fn wants_item(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == name)
    }

    /// The groups with the available items, and the reasons why others are missing. Input files of
    /// programs are written to `dir`.
    pub fn groups(&self, dir: &Path) -> Result<(Vec<Group>, Vec<String>)> {
        let percents: Vec<Size> = self.at.iter().map(|&percent| Size::Percent(percent)).collect();
        if let Some(name) = self.command.first() {
            let name =
                Path::new(name).file_name().unwrap_or_default().to_string_lossy().into_owned();
            let item = Item { name, work: Work::Program(self.command.clone()) };
            let items = vec![(item, percents)];
            return Ok((
                vec![Group {
                    name: "programs",
                    items,
                    arms: self.arms.to_vec(),
                    equal: Equal::Total,
                    natively: true,
                }],
                Vec::new(),
            ));
        }
        let (known, mut missing) = programs::find(&|name| self.wants_item(name), self.python, dir)?;
        let mut groups = Vec::new();
        for name in GROUPS.into_iter().filter(|name| self.wants(name)) {
            let programs = |sizes: &[Size]| {
                known.iter().map(|item| (item.clone(), sizes.to_vec())).collect::<Vec<_>>()
            };
            let against_zram = vec![Arm::Zram, Arm::Compressed];
            let (items, arms, equal) = match name {
                "programs" => (programs(&percents), self.arms.to_vec(), Equal::Total),
                "servers" => {
                    (self.servers(&percents, dir, &mut missing), self.arms.to_vec(), Equal::Total)
                }
                "threads" => (sweep(self.threads), against_zram, Equal::Resident),
                "bad" => (bad(), vec![Arm::Zram, Arm::Compressed, Arm::Default], Equal::Resident),
                "fits" => {
                    let touch = Item {
                        name: "first-touch".into(),
                        work: Work::Load(Load::FirstTouch { bytes: 256 * MIB, rounds: 5 }),
                    };
                    let argv = ["/bin/sh", "-c", SHELL].map(str::to_owned).to_vec();
                    let shell = Item { name: "shell".into(), work: Work::Program(argv) };
                    let mut items = vec![(touch, vec![Size::Roomy]), (shell, vec![Size::Roomy])];
                    items.extend(programs(&[Size::Roomy]));
                    (items, vec![Arm::Roomy], Equal::Resident)
                }
                _ => {
                    let blocks = (0..BLOCKS.len()).map(|at| Arm::Block(Some(at)));
                    (
                        programs(&[Size::Percent(50)]),
                        std::iter::once(Arm::Block(None)).chain(blocks).collect(),
                        Equal::Resident,
                    )
                }
            };
            let items: Vec<_> =
                items.into_iter().filter(|(item, _)| self.wants_item(&item.name)).collect();
            groups.push(Group { name, items, arms, equal, natively: name != "threads" });
        }
        if groups.iter().any(|group| ["programs", "fits", "blocks"].contains(&group.name)) {
            programs::write_inputs(dir)?;
        } else {
            missing.retain(|reason| reason.starts_with("redis") || reason.starts_with("postgres"));
        }
        Ok((groups, missing))
    }

    fn servers(
        &self,
        percents: &[Size],
        dir: &Path,
        missing: &mut Vec<String>,
    ) -> Vec<(Item, Vec<Size>)> {
        let mut items = Vec::new();
        match programs::in_path("redis-server") {
            Some(_) => items.push(Item { name: "redis".into(), work: Work::Redis }),
            None => missing.push("redis is skipped: redis-server is not installed".into()),
        }
        match Postgres::find() {
            Ok(programs) => items.push(Item {
                name: "postgres".into(),
                work: Work::Postgres(Postgres::at(programs, dir)),
            }),
            Err(reason) => missing.push(format!("postgres is skipped: {reason:#}")),
        }
        items.into_iter().map(|item| (item, percents.to_vec())).collect()
    }
}

/// A script as `configure` is one: 900 processes, 600 of which execute a program.
const SHELL: &str =
    "i=0; while [ $i -lt 300 ]; do x=$(echo $i | sed s/1/2/); /bin/true; i=$((i+1)); done; echo $x";

/// Half a gigabyte, of which a quarter is local.
fn sweep(threads: &[u8]) -> Vec<(Item, Vec<Size>)> {
    let both = [("random-read", false), ("random-write", true)];
    let counts: Vec<usize> = if threads.is_empty() {
        THREADS.to_vec()
    } else {
        threads.iter().map(|&count| count.into()).collect()
    };
    let items = both.into_iter().flat_map(|(kind, writes)| {
        counts.clone().into_iter().map(move |threads| {
            let load = Load::Threads {
                bytes: 512 * MIB,
                threads,
                writes,
                settle_ms: 3000,
                timed_ms: 4000,
            };
            Item { name: format!("{kind}-t{threads}"), work: Work::Load(load) }
        })
    });
    items.map(|item| (item, vec![Size::Bytes(128 << 20)])).collect()
}

/// Loads that may be bad for far memory.
fn bad() -> Vec<(Item, Vec<Size>)> {
    let half = Size::Percent(50);
    let tiny = Size::Bytes(16 << 20);
    let loads = [
        ("shifting", Load::Shifting { bytes: 384 * MIB }, half),
        ("once", Load::Once { bytes: 768 * MIB }, Size::Bytes(128 << 20)),
        ("incompressible", Load::Noise { bytes: 384 * MIB, accesses: 200_000 }, half),
        ("tiny-256m", Load::Skewed { bytes: 256 * MIB, accesses: 200_000 }, tiny),
        ("tiny-1g", Load::Skewed { bytes: 1024 * MIB, accesses: 200_000 }, tiny),
    ];
    loads
        .into_iter()
        .map(|(name, load, size)| (Item { name: name.into(), work: Work::Load(load) }, vec![size]))
        .collect()
}

/// Names that `--only` accepts.
pub fn names() -> Vec<String> {
    let loads = sweep(&[]).into_iter().chain(bad()).map(|(item, _)| item.name);
    let others = ["redis", "postgres", "first-touch", "shell"].map(str::to_owned);
    programs::names().map(str::to_owned).chain(others).chain(loads).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice<'a>(groups: &'a [String], only: &'a [String]) -> Choice<'a> {
        Choice {
            groups,
            only,
            at: &[75, 25],
            arms: &[Arm::Zram, Arm::Default],
            threads: &[],
            python: Path::new("/nowhere"),
            command: Vec::new(),
        }
    }

    #[test]
    fn names_are_unique_and_resolvable() {
        let names = names();
        let distinct: std::collections::BTreeSet<_> = names.iter().collect();
        assert_eq!(distinct.len(), names.len());
        let dir = tempfile::tempdir().unwrap();
        let (groups, only) = (
            ["threads".to_owned(), "bad".to_owned()],
            ["random-read-t2".to_owned(), "once".to_owned()],
        );
        let (groups, missing) = choice(&groups, &only).groups(dir.path()).unwrap();
        let found: Vec<_> = groups
            .iter()
            .flat_map(|group| group.items.iter().map(|(item, _)| item.name.as_str()))
            .collect();
        assert_eq!((found, missing.len()), (vec!["random-read-t2", "once"], 0));
    }

    #[test]
    fn user_command_replaces_everything() {
        let dir = tempfile::tempdir().unwrap();
        let choice = Choice { command: vec!["/bin/sort".into(), "-u".into()], ..choice(&[], &[]) };
        let (groups, _) = choice.groups(dir.path()).unwrap();
        assert_eq!(
            (groups.len(), groups[0].items[0].0.name.as_str(), groups[0].items[0].1.len()),
            (1, "sort", 2)
        );
    }

    #[test]
    fn sizes_are_shares_of_native() {
        assert_eq!(
            (Size::Percent(25).bytes(400), Size::Bytes(7).bytes(400), Size::Percent(75).name()),
            (100, 7, "75%".to_owned())
        );
    }
}
