//! How the local memory of a run is divided among its processes.
//!
//! Each process has a limit of its own, which its pager keeps. The limits add up to the total, or
//! less: memory that nobody presses for stays free. A process that begins takes from those that
//! have more than an even part. Later, memory moves to where it saves most waiting for its size,
//! by the curve of each process (utility-based partitioning, Qureshi and Patt, MICRO 2006), and
//! from where least is done with it: from processes that do nothing, and from those that wait most
//! of the time. So where the working sets of all do not fit, some get theirs, and after a while it
//! is the turn of others, as with LRU for all of the memory.

use std::collections::BTreeMap;

use crate::loss::ppm;

/// What a process that is not pressed may grow by until the next division, as a part of an even
/// part.
const HEADROOM_PART: u64 = 4;
/// A process that is younger than this many divisions does not give for what others would gain:
/// what it needs is not known yet.
const YOUNG: u32 = 4;
/// One that has received keeps it for this many divisions, unless it does nothing.
const TURN: u32 = 20;
/// The number of turns that others had counts up to this.
const AGE_MAX: u32 = 16;
/// Share of the time, in millionths, from which on a process that waits is pressed.
const PRESSED_PPM: u64 = 10_000;
/// One that runs for less of the time, and does not wait, does nothing.
const IDLE_PPM: u64 = 5_000;
/// A new process has reached its limit when less than this part of it is left.
const REACHED_PART: u64 = 16;
/// Memory moves where it saves this many times what is lost.
const TIMES: u64 = 2;
/// A process that does nothing gives this part of what it has at a time: it may go on.
const GIVES_PART: u64 = 4;
/// Less than this part of the total is not worth moving.
const WORTH_PART: u64 = 64;
/// How much of a limit is not the program's.
const OWN_PART: u64 = 8;
/// Limits are multiples of this.
const UNIT: u64 = 1 << 20;

/// What is known about one process.
#[derive(Clone, Debug)]
pub struct Process {
    pub pid: u32,
    pub limit_bytes: u64,
    pub local_bytes: u64,
    /// The most that it may get.
    pub most_bytes: u64,
    /// Time in which a thread waited for far memory, since the start.
    pub waited_ns: u64,
    /// Processor time of the program, since the start.
    pub run_ns: u64,
    /// Bytes written to stores, since the start.
    pub written_bytes: u64,
    /// Bytes more, and how much of the waiting these would have saved, in millionths.
    pub saves: Vec<(u64, u64)>,
}

/// Divides the total.
#[derive(Clone, Debug)]
pub struct Budget {
    total_bytes: u64,
    least_bytes: u64,
    known: BTreeMap<u32, Known>,
}

#[derive(Clone, Copy, Default, Debug)]
struct Known {
    waited_ns: u64,
    run_ns: u64,
    written_bytes: u64,
    divisions: u32,
    /// Divisions until the end of its turn, and since its beginning.
    turn: u32,
    age: u32,
    /// Recent shares of the time, in millionths.
    waits_ppm: u64,
    runs_ppm: u64,
}

/// One process while limits are chosen.
struct Part<'a> {
    process: &'a Process,
    bytes: u64,
    known: Known,
    is_pressed: bool,
    /// Has given or received in this division: its curve is another one now.
    is_settled: bool,
}

/// Bytes for a process, and the time that they save.
#[derive(Clone, Copy)]
struct Wish {
    to: usize,
    bytes: u64,
    /// Millionths of the time that each MiB saves, times 2^8.
    saves: u64,
}

fn for_each_mib(ppm: u64, bytes: u64) -> u64 {
    (ppm << 8) / (bytes / UNIT).max(1)
}

impl Part<'_> {
    /// Gives up what it has above `floor`, up to `wanted`.
    fn give(&mut self, floor: u64, wanted: u64) -> u64 {
        let given = self.bytes.saturating_sub(floor).min(wanted);
        self.bytes -= given;
        given
    }

    /// A multiple of the unit, or exactly the most.
    fn limit(&self) -> u64 {
        if self.bytes == self.process.most_bytes { self.bytes } else { self.bytes / UNIT * UNIT }
    }

    fn is_idle(&self) -> bool {
        self.known.runs_ppm < IDLE_PPM && self.known.waits_ppm < PRESSED_PPM
    }

    /// What each MiB that it has serves, as [`Wish::saves`]. That of a process that waits most of
    /// the time serves little.
    fn serves(&self) -> u64 {
        if self.is_idle() { 0 } else { for_each_mib(self.known.runs_ppm, self.process.local_bytes) }
    }

    /// How much of its memory others may get for something that saves `saves`. Who is not pressed
    /// keeps what it uses and `headroom`.
    fn gives(&self, saves: u64, least: u64, headroom: u64) -> u64 {
        let has = self.bytes.saturating_sub(least);
        let used = self.process.local_bytes;
        if self.is_idle() {
            return has.min(self.bytes.saturating_sub(used - used / GIVES_PART));
        }
        let known = &self.known;
        if known.divisions < YOUNG || known.turn > 0 || self.serves() * TIMES > saves {
            let unused = self.bytes.saturating_sub(used + headroom);
            return if self.is_pressed { 0 } else { has.min(unused) };
        }
        has
    }
}

impl Budget {
    /// A total, of which each process gets `least_bytes` or more even where that is too much.
    pub fn new(total_bytes: u64, least_bytes: u64) -> Budget {
        Budget { total_bytes, least_bytes, known: BTreeMap::new() }
    }

    /// The limit of each process, in the order of `processes`. `elapsed_ns`: since the last call.
    pub fn divide(&mut self, processes: &[Process], elapsed_ns: u64) -> Vec<u64> {
        let mut parts: Vec<Part> =
            processes.iter().map(|process| self.observe(process, elapsed_ns)).collect();
        self.known.retain(|pid, _| processes.iter().any(|process| process.pid == *pid));
        self.take_back(&mut parts);
        let free = self.free(&parts);
        if free > 0 {
            self.hand_out(&mut parts, free);
        }
        while let Some(to) = self.shift(&mut parts) {
            (parts[to].known.turn, parts[to].known.age) = (TURN, 0);
            self.known.insert(parts[to].process.pid, parts[to].known);
        }
        parts.iter().map(Part::limit).collect()
    }

    fn observe<'a>(&mut self, process: &'a Process, elapsed_ns: u64) -> Part<'a> {
        let &Process { waited_ns, run_ns, written_bytes, .. } = process;
        let before = self.known.get(&process.pid).copied();
        let new = Known { waited_ns, run_ns, written_bytes, ..Known::default() };
        let known = before.unwrap_or(new);
        let share = |now: u64, before: u64| {
            ppm(now.saturating_sub(before), elapsed_ns.max(1)).min(1_000_000)
        };
        let waits_ppm = share(waited_ns, known.waited_ns);
        let next = Known {
            divisions: known.divisions.saturating_add(1),
            turn: known.turn.saturating_sub(1),
            age: known.age.saturating_add(1),
            waits_ppm: (known.waits_ppm + waits_ppm) / 2,
            runs_ppm: (known.runs_ppm + share(run_ns, known.run_ns)) / 2,
            ..new
        };
        self.known.insert(process.pid, next);
        let reached = process.limit_bytes - process.limit_bytes / REACHED_PART;
        let presses = match before {
            None => process.local_bytes >= reached,
            Some(before) => written_bytes > before.written_bytes,
        };
        Part {
            process,
            bytes: process.limit_bytes.min(process.most_bytes).max(self.least_bytes),
            known: next,
            is_pressed: presses || waits_ppm >= PRESSED_PPM,
            is_settled: false,
        }
    }

    fn headroom(&self, count: usize) -> u64 {
        self.total_bytes / count.max(1) as u64 / HEADROOM_PART
    }

    fn worth(&self) -> u64 {
        (self.total_bytes / WORTH_PART).max(UNIT)
    }

    fn free(&self, parts: &[Part]) -> u64 {
        self.total_bytes.saturating_sub(parts.iter().map(|part| part.bytes).sum())
    }

    /// Where the limits are more than the total: unused ones go first, then what is above an even
    /// part, then all but the least; those that gain least from it give first.
    fn take_back(&self, parts: &mut [Part]) {
        let sum: u64 = parts.iter().map(|part| part.bytes).sum();
        let mut over = sum.saturating_sub(self.total_bytes);
        let even = (self.total_bytes / parts.len().max(1) as u64).max(self.least_bytes);
        let least = self.least_bytes;
        let mut order: Vec<&mut Part> = parts.iter_mut().collect();
        order.sort_by_key(|part| (part.is_pressed, part.serves()));
        for part in &mut order {
            let unused = (part.process.local_bytes + even / HEADROOM_PART).max(least);
            over -= if part.is_pressed { 0 } else { part.give(unused, over) };
        }
        for floor in [even, least] {
            // A new process has no gain yet: the largest gives first.
            order.sort_by_key(|part| std::cmp::Reverse(part.bytes));
            for part in &mut order {
                over -= part.give(floor, over);
            }
        }
    }

    /// Free memory goes to those that are pressed for it, evenly; others get room to grow.
    fn hand_out(&self, parts: &mut [Part], mut free: u64) {
        let headroom = self.headroom(parts.len());
        for part in parts.iter_mut().filter(|part| !part.is_pressed) {
            let goal = (part.process.local_bytes + headroom).min(part.process.most_bytes);
            let more = goal.saturating_sub(part.bytes).min(free);
            part.bytes += more;
            free -= more;
        }
        let mut wanting: Vec<&mut Part> = parts.iter_mut().filter(|part| part.is_pressed).collect();
        wanting.sort_by_key(|part| part.process.most_bytes.saturating_sub(part.bytes));
        let count = wanting.len() as u64;
        for (at, part) in wanting.into_iter().enumerate() {
            let most = part.process.most_bytes.saturating_sub(part.bytes);
            let more = (free / (count - at as u64)).min(most);
            part.bytes += more;
            free -= more;
        }
    }

    /// Fulfils the wish that saves most for its size. Returns whose.
    fn shift(&self, parts: &mut [Part]) -> Option<usize> {
        let mut wishes: Vec<Wish> =
            (0..parts.len()).flat_map(|at| self.wishes(at, &parts[at], parts.len())).collect();
        wishes.sort_by_key(|wish| std::cmp::Reverse((wish.saves, wish.bytes)));
        wishes.into_iter().find_map(|wish| self.fulfil(parts, wish).then_some(wish.to))
    }

    fn wishes(&self, to: usize, part: &Part, count: usize) -> Vec<Wish> {
        let most = part.process.most_bytes.saturating_sub(part.bytes);
        let known = &part.known;
        // The curve is not known at once either.
        if most < UNIT
            || part.is_settled
            || known.waits_ppm < PRESSED_PPM
            || known.divisions < YOUNG
        {
            return Vec::new();
        }
        // Who has little, or has had no turn for long, comes before others in the end.
        let has_little = part.bytes < self.total_bytes / count as u64;
        let times = if has_little { TIMES } else { 1 } + u64::from((known.age / TURN).min(AGE_MAX));
        let wish = |&(bytes, saved_ppm): &(u64, u64)| {
            // A part of each limit is the pager's own, and kept free.
            let bytes = (bytes + bytes / OWN_PART).max(self.worth()).next_multiple_of(UNIT);
            let saves = for_each_mib(known.waits_ppm * saved_ppm / 1_000_000 * times, bytes);
            // Of much, a part saves a part.
            let bytes = bytes.min(self.total_bytes / 2 / UNIT * UNIT).min(most);
            (saves > 0).then_some(Wish { to, bytes, saves })
        };
        part.process.saves.iter().filter_map(wish).collect()
    }

    /// Takes from those that do least with what they have. False: it is not to be had.
    fn fulfil(&self, parts: &mut [Part], wish: Wish) -> bool {
        let mut order: Vec<usize> = (0..parts.len()).filter(|&at| at != wish.to).collect();
        order.sort_by_key(|&at| (parts[at].serves(), parts[at].process.pid));
        let headroom = self.headroom(parts.len());
        let mut missing = wish.bytes.saturating_sub(self.free(parts));
        let (mut gifts, mut is_free) = (Vec::new(), true);
        for at in order {
            let part = &parts[at];
            let gift = part.gives(wish.saves, self.least_bytes, headroom).min(missing);
            is_free &= gift == 0 || part.is_idle() || !part.is_pressed;
            missing -= gift;
            gifts.push((at, gift));
        }
        // In its turn it gets no more from those that work.
        if !is_free && parts[wish.to].known.turn > 0 {
            return false;
        }
        // Less than all of it may save nothing, but costs nothing where nobody works with it.
        let got = wish.bytes - missing;
        if missing > 0 && !(is_free && got >= self.worth()) {
            return false;
        }
        for (at, gift) in gifts {
            parts[at].bytes -= gift;
            parts[at].is_settled |= gift > 0;
        }
        parts[wish.to].bytes += got;
        parts[wish.to].is_settled = true;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const TICK_NS: u64 = 50_000_000;

    /// Processes with working sets, that wait for the part that is not local.
    struct World {
        budget: Budget,
        processes: Vec<(Process, u64)>,
        /// Does nothing.
        idle: Option<u32>,
        is_cyclic: bool,
    }

    impl World {
        fn new(total: u64) -> World {
            World {
                budget: Budget::new(total * MIB, 16 * MIB),
                processes: Vec::new(),
                idle: None,
                is_cyclic: false,
            }
        }

        fn start(&mut self, pid: u32, limit: u64, working_set: u64) {
            let process = Process {
                pid,
                limit_bytes: limit * MIB,
                local_bytes: 0,
                most_bytes: 1 << 40,
                waited_ns: 0,
                run_ns: 0,
                written_bytes: 0,
                saves: Vec::new(),
            };
            self.processes.push((process, working_set * MIB));
        }

        fn tick(&mut self) -> Vec<u64> {
            for (process, working_set) in &mut self.processes {
                process.local_bytes = process.limit_bytes.min(*working_set);
                if self.idle == Some(process.pid) {
                    continue;
                }
                let absent = *working_set - process.local_bytes;
                let missed = if self.is_cyclic && absent > 0 { *working_set } else { absent };
                let waits = TICK_NS * missed / (*working_set).max(1);
                process.waited_ns += waits;
                process.run_ns += TICK_NS - waits;
                process.written_bytes += absent;
                process.saves = vec![(absent, 1_000_000)];
                if !self.is_cyclic {
                    process.saves.push((absent / 2, 500_000));
                }
            }
            let seen: Vec<Process> =
                self.processes.iter().map(|(process, _)| process.clone()).collect();
            let limits = self.budget.divide(&seen, TICK_NS);
            for ((process, _), &limit) in self.processes.iter_mut().zip(&limits) {
                process.limit_bytes = limit;
            }
            limits.iter().map(|limit| limit / MIB).collect()
        }

        fn ticks(&mut self, count: u32) -> Vec<u64> {
            (0..count).map(|_| self.tick()).last().unwrap()
        }
    }

    #[test]
    fn one_process_has_all_of_it_when_it_needs_it() {
        let mut world = World::new(1024);
        world.start(1, 1024, 4096);
        assert_eq!(world.ticks(3), [1024]);
    }

    #[test]
    fn a_child_gets_its_part_at_once() {
        let mut world = World::new(1024);
        world.start(1, 1024, 2048);
        world.tick();
        world.start(2, 1024, 2048);
        assert_eq!(world.tick(), [512, 512]);
    }

    #[test]
    fn a_process_that_only_waits_for_its_child_gives_nearly_all() {
        let mut world = World::new(1024);
        world.start(1, 1024, 2048);
        world.tick();
        world.start(2, 1024, 2048);
        world.tick();
        world.idle = Some(1);
        let limits = world.ticks(30);
        assert!(limits[0] <= 64 && limits[1] >= 960, "{limits:?}");
        // It goes on, and gets an even part again.
        world.idle = None;
        let limits = world.ticks(60);
        assert!((300..=700).contains(&limits[0]), "{limits:?}");
    }

    #[test]
    fn small_processes_leave_their_part_to_a_large_one() {
        let mut world = World::new(1024);
        (1..=4).for_each(|pid| world.start(pid, 1024, 20));
        world.start(5, 1024, 4096);
        let limits = world.ticks(20);
        assert!(limits[4] >= 720 && limits[..4].iter().all(|&limit| limit >= 20), "{limits:?}");
        assert!(limits.iter().sum::<u64>() <= 1024);
    }

    #[test]
    fn where_not_all_fit_some_do_and_then_others() {
        let mut world = World::new(200);
        (1..=6).for_each(|pid| world.start(pid, 200, 65));
        // It goes through its data again and again: less than all of it saves nothing.
        world.is_cyclic = true;
        let mut had_theirs = [false; 6];
        for _ in 0..40 {
            let limits = world.ticks(10);
            let fit: Vec<usize> = (0..6).filter(|&at| limits[at] >= 65).collect();
            assert!(!fit.is_empty(), "{limits:?}");
            fit.into_iter().for_each(|at| had_theirs[at] = true);
        }
        assert_eq!(had_theirs, [true; 6]);
    }

    #[test]
    fn more_processes_than_the_total_has_room_for_get_the_least() {
        let mut world = World::new(64);
        (1..=10).for_each(|pid| world.start(pid, 64, 100));
        assert!(world.ticks(5).iter().all(|&limit| limit == 16));
    }

    #[test]
    fn the_total_is_kept_whoever_comes_and_goes() {
        let mut world = World::new(1000);
        let mut seed = 12345u64;
        for round in 0..500u32 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            if world.processes.len() < 12 && (seed >> 40) % 3 == 0 {
                world.start(round + 1, 1000, (seed >> 33) % 900 + 10);
            } else if world.processes.len() > 2 && (seed >> 45) % 5 == 0 {
                let at = (seed >> 50) as usize % world.processes.len();
                world.processes.remove(at);
            }
            let limits = world.tick();
            assert!(limits.iter().sum::<u64>() <= 1000, "{limits:?}");
            assert!(limits.iter().all(|&limit| limit >= 16), "{limits:?}");
        }
    }

    #[test]
    fn a_maximum_is_not_rounded() {
        let mut world = World::new(1000);
        world.start(1, 1000, 4000);
        world.processes[0].0.most_bytes = 17_800_001;
        world.tick();
        assert_eq!(world.processes[0].0.limit_bytes, 17_800_001);
    }

    #[test]
    fn nobody_gets_more_than_its_own_maximum() {
        let mut world = World::new(1000);
        world.start(1, 1000, 4000);
        world.processes[0].0.most_bytes = 100 * MIB;
        world.start(2, 100, 4000);
        assert_eq!(world.ticks(3), [100, 900]);
    }
}
