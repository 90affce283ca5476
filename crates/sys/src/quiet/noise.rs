//! Which task uses each processor, from the kernel's own tracepoints, by BPF (`noise.bpf.c`): Linux
//! 6.1 or newer with BTF; root.
//!
//! Contract: the map that is shared with the program contains plain numbers, one block for each
//! processor. The kernel changes a block on its processor only, so a thread that is bound there
//! reads sums that do not change while it runs, except by interrupts; any mix of old and new
//! numbers is a valid reading. All accesses are volatile reads and writes of single numbers.
#![allow(unsafe_code)]

use std::fs;
use std::io;
use std::mem::{ManuallyDrop, offset_of};
use std::os::fd::AsFd;

use libbpf_rs::{Link, MapCore, MapFlags, Object, ObjectBuilder, OpenObject};

use super::tasks::TaskKind;
use crate::bpf::{Aligned, Shared, from_bpf, unsupported};
use crate::cpu::{ThreadId, this_thread};

const PARTS: usize = 16;
const NAME: usize = 16;
/// Number of orders of blocks that are distinguished.
pub const ORDERS: usize = 12;
const BTF: &str = "/sys/kernel/btf/vmlinux";

static PROGRAM: &Aligned<[u8]> =
    &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/noise.bpf.o")));

/// As in `noise.bpf.c`.
#[repr(C)]
struct Block {
    ns: [u64; PARTS],
    changes: u64,
    longest_ns: u64,
    longest: [u8; NAME],
    watched: u64,
    since: u64,
    switched: u64,
    task: u32,
    hard: u32,
    soft: u32,
    unused: u32,
    woken: [u64; ORDERS],
    ran: [u64; ORDERS],
    direct: [u64; ORDERS],
}

/// What can use a processor; the numbers are those of `noise.bpf.c`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Owner {
    /// A task that is not measured.
    Task(TaskKind),
    /// Another thread of the process that measures.
    Meter,
    Idle,
    Interrupt,
    SoftInterrupt,
    /// A measured thread that reclaims memory for itself, or compacts it.
    DirectReclaim,
    DirectCompaction,
}

/// All but the measured thread doing its own work, with the numbers of `noise.bpf.c`.
const OWNERS: [(usize, Owner); 12] = [
    (1, Owner::Idle),
    (2, Owner::Task(TaskKind::Kswapd)),
    (3, Owner::Task(TaskKind::Kcompactd)),
    (4, Owner::Task(TaskKind::Khugepaged)),
    (5, Owner::Task(TaskKind::Writeback)),
    (6, Owner::Task(TaskKind::Kernel)),
    (7, Owner::Task(TaskKind::Program)),
    (8, Owner::Meter),
    (9, Owner::Interrupt),
    (10, Owner::SoftInterrupt),
    (11, Owner::DirectReclaim),
    (12, Owner::DirectCompaction),
];

/// Time that others have used on a processor so far, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sums {
    ns: [u64; PARTS],
    /// How often the processor was taken by another owner.
    pub changes: u64,
}

impl Sums {
    /// Sums with these values; for tests of their evaluation.
    pub fn of(owners: &[(Owner, u64)], changes: u64) -> Sums {
        let mut sums = Sums { changes, ..Sums::default() };
        for &(wanted, ns) in owners {
            OWNERS
                .iter()
                .filter(|(_, owner)| *owner == wanted)
                .for_each(|&(at, _)| sums.ns[at] = ns);
        }
        sums
    }

    /// The increase since `before`.
    pub fn since(&self, before: &Sums) -> Sums {
        let mut ns = self.ns;
        ns.iter_mut().zip(before.ns).for_each(|(ns, before)| *ns = ns.saturating_sub(before));
        Sums { ns, changes: self.changes.saturating_sub(before.changes) }
    }

    /// All owners with a time above 0, with their times.
    pub fn owners(&self) -> impl Iterator<Item = (Owner, u64)> + '_ {
        OWNERS.iter().map(|&(at, owner)| (owner, self.ns[at])).filter(|&(_, ns)| ns > 0)
    }

    /// The time of all others together.
    pub fn others_ns(&self) -> u64 {
        self.ns[1..].iter().sum()
    }
}

/// A task that ran on a watched processor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ran {
    pub cpu: usize,
    pub tid: u32,
    pub name: String,
    pub kind: TaskKind,
    pub ns: u64,
}

/// Memory events on all processors, by the order of the requested blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MemoryEvents {
    /// kswapd was woken from sleep.
    pub kswapd_woken: [u64; ORDERS],
    /// kswapd started to work.
    pub kswapd_ran: [u64; ORDERS],
    /// A task entered direct reclaim.
    pub direct_reclaims: [u64; ORDERS],
}

impl MemoryEvents {
    /// The increase since `before`.
    pub fn since(&self, before: &MemoryEvents) -> MemoryEvents {
        let less = |now: &[u64; ORDERS], before: &[u64; ORDERS]| {
            std::array::from_fn(|at| now[at].saturating_sub(before[at]))
        };
        MemoryEvents {
            kswapd_woken: less(&self.kswapd_woken, &before.kswapd_woken),
            kswapd_ran: less(&self.kswapd_ran, &before.kswapd_ran),
            direct_reclaims: less(&self.direct_reclaims, &before.direct_reclaims),
        }
    }
}

/// The programs, attached while this exists.
pub struct Probe {
    blocks: Shared<Block>,
    cpus: usize,
    /// Dropped first: no program runs any more when the maps are freed.
    links: Vec<Link>,
    object: ManuallyDrop<Object>,
}

// SAFETY: libbpf binds nothing to a thread; the maps' calls are system calls on descriptors, and
// blocks are accessed as the contract states.
unsafe impl Send for Probe {}
// SAFETY: as above.
unsafe impl Sync for Probe {}

impl Drop for Probe {
    fn drop(&mut self) {
        self.links.clear();
        // SAFETY: dropped once, here.
        unsafe { ManuallyDrop::drop(&mut self.object) };
    }
}

/// Address of the function with which kernel workers write back dirty pages; 0 if the kernel does
/// not reveal it (`/proc/kallsyms`).
fn writeback_function() -> u64 {
    let symbols = fs::read_to_string("/proc/kallsyms").unwrap_or_default();
    let line = symbols.lines().find(|line| line.split(' ').nth(2) == Some("wb_workfn"));
    line.and_then(|line| u64::from_str_radix(line.split(' ').next()?, 16).ok()).unwrap_or(0)
}

/// Disables programs for tracepoints that the running kernel does not have, and sizes the maps for
/// its processors.
fn fit(open: &mut OpenObject, cpus: usize) -> io::Result<()> {
    let types = fs::read(BTF).map_err(|error| {
        unsupported(&format!("the kernel does not describe its types ({BTF}: {error})"))
    })?;
    // Its strings are concatenated, each terminated by a zero byte.
    let known: std::collections::HashSet<&[u8]> =
        types.split(|&byte| byte == 0).filter(|name| name.starts_with(b"btf_trace_")).collect();
    for mut program in open.progs_mut() {
        let section = program.section().to_string_lossy().into_owned();
        let tracepoint = section.rsplit('/').next().unwrap_or_default();
        if !known.contains(format!("btf_trace_{tracepoint}").as_bytes()) {
            program.set_autoload(false);
        }
    }
    let blocks = open.maps_mut().find(|map| map.name() == "cpus");
    let mut blocks = blocks.ok_or_else(|| unsupported("the BPF program lacks a map"))?;
    blocks
        .set_max_entries(cpus as u32)
        .map_err(|error| from_bpf("making room for the processors", error))
}

impl Probe {
    /// Loads and attaches the programs, and watches `cpus`.
    pub fn open(cpus: &[usize]) -> io::Result<Probe> {
        // The errors contain what libbpf would print.
        libbpf_rs::set_print(None);
        let count = libbpf_rs::num_possible_cpus()
            .map_err(|error| from_bpf("counting processors", error))?;
        let mut open = ObjectBuilder::default()
            .open_memory(&PROGRAM.0)
            .map_err(|error| from_bpf("opening the program", error))?;
        fit(&mut open, count)?;
        let object = open.load().map_err(|error| from_bpf("loading the BPF program", error))?;
        let (len, fd) = {
            let map = object
                .maps()
                .find(|map| map.name() == "cpus")
                .ok_or_else(|| unsupported("the BPF program lacks a map"))?;
            (
                (count * size_of::<Block>()).next_multiple_of(rustix::param::page_size()),
                map.as_fd().try_clone_to_owned()?,
            )
        };
        let blocks = Shared::map(fd.as_fd(), len)?;
        let mut probe =
            Probe { blocks, cpus: count, links: Vec::new(), object: ManuallyDrop::new(object) };
        let config: Vec<u8> = [writeback_function(), u64::from(std::process::id())]
            .iter()
            .flat_map(|number| number.to_ne_bytes())
            .collect();
        probe.update("configs", &0u32.to_ne_bytes(), &config)?;
        for &cpu in cpus {
            let watched = probe
                .field(cpu, offset_of!(Block, watched))
                .ok_or_else(|| unsupported("a processor beyond those possible"))?;
            // SAFETY: a number inside the map.
            unsafe { watched.write_volatile(1) };
        }
        let loaded = probe.object.progs_mut().filter(|program| program.autoload());
        let links: Result<Vec<Link>, _> = loaded.map(|program| program.attach()).collect();
        probe.links = links.map_err(|error| from_bpf("attaching the BPF program", error))?;
        Ok(probe)
    }

    fn update(&self, map: &str, key: &[u8], value: &[u8]) -> io::Result<()> {
        let map = self
            .object
            .maps()
            .find(|known| known.name() == map)
            .ok_or_else(|| unsupported("the BPF program lacks a map"))?;
        map.update(key, value, MapFlags::ANY)
            .map_err(|error| from_bpf("telling the BPF program what to measure", error))
    }

    /// Pointer to a number of a processor's block.
    fn field(&self, cpu: usize, offset: usize) -> Option<*mut u64> {
        debug_assert!(
            offset + size_of::<u64>() <= size_of::<Block>() && offset % size_of::<u64>() == 0
        );
        // SAFETY: inside the mapping, which has a block for each of `cpus` processors.
        (cpu < self.cpus).then(|| unsafe { self.blocks.start().add(cpu).byte_add(offset).cast() })
    }

    fn number(&self, cpu: usize, offset: usize) -> u64 {
        // SAFETY: a number inside the map; see the contract.
        self.field(cpu, offset).map_or(0, |field| unsafe { field.read_volatile() })
    }

    fn numbers<const N: usize>(&self, cpu: usize, offset: usize) -> [u64; N] {
        std::array::from_fn(|at| self.number(cpu, offset + at * size_of::<u64>()))
    }

    /// Measures the calling thread from the next time that it is scheduled, which is before this
    /// returns.
    pub fn measure_this_thread(&self) -> io::Result<()> {
        let ThreadId(tid) = this_thread();
        self.update("measured", &tid.to_ne_bytes(), &0u32.to_ne_bytes())?;
        std::thread::sleep(std::time::Duration::from_micros(100));
        Ok(())
    }

    /// Time that others have used on a processor so far. Must be called on that processor.
    pub fn sums(&self, cpu: usize) -> Sums {
        Sums {
            ns: self.numbers(cpu, offset_of!(Block, ns)),
            changes: self.number(cpu, offset_of!(Block, changes)),
        }
    }

    /// Time that measured threads have used for their own work on a processor so far.
    pub fn own_ns(&self, cpu: usize) -> u64 {
        self.number(cpu, offset_of!(Block, ns))
    }

    /// The longest run of another task on a processor since the last call, and the name of that
    /// task. Must be called on that processor.
    pub fn take_longest(&self, cpu: usize) -> Option<(u64, [u8; NAME])> {
        let longest_ns = self.number(cpu, offset_of!(Block, longest_ns));
        if longest_ns == 0 {
            return None;
        }
        let name: [u64; 2] = self.numbers(cpu, offset_of!(Block, longest));
        // SAFETY: a number inside the map; see the contract.
        unsafe { self.field(cpu, offset_of!(Block, longest_ns))?.write_volatile(0) };
        let mut bytes = [0; NAME];
        bytes
            .chunks_mut(8)
            .zip(name)
            .for_each(|(bytes, part)| bytes.copy_from_slice(&part.to_ne_bytes()));
        Some((longest_ns, bytes))
    }

    /// Memory events so far.
    pub fn memory_events(&self) -> MemoryEvents {
        let sum = |offset: usize| {
            let mut sum = [0; ORDERS];
            for cpu in 0..self.cpus {
                sum.iter_mut()
                    .zip(self.numbers::<ORDERS>(cpu, offset))
                    .for_each(|(sum, number)| *sum += number);
            }
            sum
        };
        MemoryEvents {
            kswapd_woken: sum(offset_of!(Block, woken)),
            kswapd_ran: sum(offset_of!(Block, ran)),
            direct_reclaims: sum(offset_of!(Block, direct)),
        }
    }

    /// All tasks that ran on a watched processor so far, except for measured threads.
    pub fn ran(&self) -> Vec<Ran> {
        let Some(map) = self.object.maps().find(|map| map.name() == "tasks") else {
            return Vec::new();
        };
        let one = |key: Vec<u8>| {
            let value = map.lookup(&key, MapFlags::ANY).ok()??;
            let word = |bytes: &[u8], at: usize| {
                Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
            };
            let part = word(&value, 8)? as usize;
            let kind = OWNERS.iter().find_map(|&(at, owner)| match owner {
                Owner::Task(kind) if at == part => Some(kind),
                _ => None,
            });
            Some(Ran {
                cpu: word(&key, 0)? as usize,
                tid: word(&key, 4)?,
                name: name_of(value.get(16..16 + NAME)?),
                kind: kind.unwrap_or(TaskKind::Program),
                ns: u64::from_ne_bytes(value.get(..8)?.try_into().ok()?),
            })
        };
        map.keys().filter_map(one).collect()
    }
}

/// A task's name as the kernel stores it: zero-terminated.
pub fn name_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.split(|&byte| byte == 0).next().unwrap_or_default()).into_owned()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::{Duration, Instant};

    use super::*;
    use crate::quiet::affinity;

    #[test]
    fn preempting_task_is_observed() {
        let cpu = affinity::of(0).unwrap()[0];
        let probe = match Probe::open(&[cpu]) {
            Ok(probe) => probe,
            Err(error) => return hiroma_testkit::skip!(Machine, "{error}"),
        };
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (probe, stop) = (&probe, &stop);
            scope.spawn(move || {
                affinity::confine(0, &[cpu]).unwrap();
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
            let measured = scope.spawn(move || {
                affinity::confine(0, &[cpu]).unwrap();
                probe.measure_this_thread().unwrap();
                let (before, own) = (probe.sums(cpu), probe.own_ns(cpu));
                probe.take_longest(cpu);
                let had = |owner| {
                    probe.sums(cpu).since(&before).owners().any(|(other, _)| other == owner)
                };
                let began = Instant::now();
                let mut seen = false;
                while !seen && began.elapsed() < Duration::from_secs(60) {
                    seen = had(Owner::Meter) && had(Owner::Interrupt) && probe.own_ns(cpu) > own;
                }
                stop.store(true, Ordering::Relaxed);
                (seen, probe.sums(cpu).since(&before), probe.take_longest(cpu))
            });
            let (seen, sums, longest) = measured.join().unwrap();
            // In another PID namespace the kernel's thread id differs from ours; the test is
            // skipped.
            if probe.own_ns(cpu) == 0 {
                return hiroma_testkit::skip!(
                    Machine,
                    "threads have other numbers here than the kernel's own"
                );
            }
            assert!(seen, "{sums:?}");
            assert!(sums.changes > 0 && sums.others_ns() > 0 && longest.is_some());
        });
        assert!(probe.ran().iter().any(|ran| ran.cpu == cpu && ran.ns > 0 && !ran.name.is_empty()));
    }

    #[test]
    fn names_end_with_a_zero() {
        assert_eq!(name_of(b"kswapd0\0junk\0\0\0\0"), "kswapd0");
        assert_eq!(name_of(&[b'x'; NAME]), "x".repeat(NAME));
    }
}
