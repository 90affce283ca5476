//! What a machine lends of its memory, and to whom.
//!
//! | Part | Decides |
//! |---|---|
//! | [`Lending`] | how much memory may hold what belongs to guests, and how much of it is given back now |
//! | [`share`] | how much of what is lent a tenant gets |
//!
//! The machine's own programs come first. A part of the memory is *kept* for them: it is not lent,
//! so that a program that takes memory suddenly finds some while guests' blocks are still on their
//! way out.

pub mod share;

const MIB: u64 = 1 << 20;
/// Of all memory, the part that is kept for the machine's own programs, and its bounds.
const KEPT: u64 = 8;
const KEEP_MIN: u64 = 64 * MIB;
const KEEP_MAX: u64 = 4096 * MIB;
/// How long memory has to be plentiful until more is lent than before.
const CALM_NS: u64 = 5_000_000_000;
/// Share of time in which threads waited for memory, in thousandths, that is too much.
const STALLED_PERMILLE: u64 = 100;
/// The part of what guests have that is given back at a time when there is too much waiting.
const PRESSED_PART: u64 = 16;
/// Pauses between two looks, while there is plenty and while there is not.
const PAUSE_NS: u64 = 100_000_000;
const PAUSE_SHORT_NS: u64 = 20_000_000;

/// What was seen of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Reading {
    /// Memory that can still be used without swapping, and without reaching a limit.
    pub available_bytes: u64,
    /// Time in which threads waited for memory, summed up; zero if the kernel does not tell.
    pub stalled_us: u64,
    /// Memory that holds what belongs to guests.
    pub held_bytes: u64,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Orders {
    /// Memory that may hold what belongs to guests.
    pub allowed_bytes: u64,
    /// Of what it holds now, how much is to be given back at once.
    pub give_back_bytes: u64,
    /// The machine needs its memory: guests that can are to move away.
    pub is_short: bool,
    /// Time until the next look.
    pub pause_ns: u64,
}

/// How much a machine lends. See the module documentation.
#[derive(Clone, Debug)]
pub struct Lending {
    keep_bytes: u64,
    is_short: bool,
    /// Since when there has been plenty.
    calm_since_ns: Option<u64>,
    /// Time and stalled time at the last look.
    last: Option<(u64, u64)>,
}

impl Lending {
    /// For a machine, or a group of processes, with so much memory.
    pub fn new(whole_bytes: u64) -> Lending {
        let keep_bytes = (whole_bytes / KEPT).clamp(KEEP_MIN.min(whole_bytes / 4), KEEP_MAX);
        Lending { keep_bytes, is_short: false, calm_since_ns: None, last: None }
    }

    /// What is kept for the machine's own programs.
    pub fn keep_bytes(&self) -> u64 {
        self.keep_bytes
    }

    /// Decides what is lent from now on.
    pub fn look(&mut self, now_ns: u64, seen: &Reading) -> Orders {
        let (keep, available, held) = (self.keep_bytes, seen.available_bytes, seen.held_bytes);
        let stalled = self.stalled_permille(now_ns, seen.stalled_us);
        // Others on the machine may wait within limits of their own, while there is plenty here.
        let is_pressed = stalled >= STALLED_PERMILLE && available < 2 * keep;
        let lacking = keep.saturating_sub(available);
        let mut give_back = if available < keep / 4 * 3 { lacking } else { 0 };
        if is_pressed {
            give_back = give_back.max(held / PRESSED_PART);
        }
        self.note(now_ns, give_back > 0, available >= keep / 4 * 5 && !is_pressed);
        let give_back_bytes = give_back.min(held);
        let more = if self.is_short { 0 } else { available.saturating_sub(keep) };
        Orders {
            allowed_bytes: held - give_back_bytes + more,
            give_back_bytes,
            is_short: self.is_short,
            pause_ns: if available < 2 * keep { PAUSE_SHORT_NS } else { PAUSE_NS },
        }
    }

    /// Memory is short from the moment in which some is given back until there has been plenty for
    /// a while: what is lent does not go up and down with each breath of a program.
    fn note(&mut self, now_ns: u64, gives_back: bool, is_plenty: bool) {
        self.calm_since_ns = match self.calm_since_ns {
            _ if !is_plenty => None,
            since => since.or(Some(now_ns)),
        };
        let is_calm = self.calm_since_ns.is_some_and(|since| now_ns - since >= CALM_NS);
        self.is_short = gives_back || (self.is_short && !is_calm);
    }

    fn stalled_permille(&mut self, now_ns: u64, stalled_us: u64) -> u64 {
        let Some((then_ns, then_us)) = self.last.replace((now_ns, stalled_us)) else { return 0 };
        let passed_us = now_ns.saturating_sub(then_ns) / 1000;
        stalled_us.saturating_sub(then_us).saturating_mul(1000) / passed_us.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;
    const SECOND: u64 = 1_000_000_000;

    fn reading(available_bytes: u64, held_bytes: u64) -> Reading {
        Reading { available_bytes, held_bytes, stalled_us: 0 }
    }

    #[test]
    fn what_is_free_is_lent_except_for_what_is_kept() {
        let mut lending = Lending::new(16 * GIB);
        assert_eq!(lending.keep_bytes(), 2 * GIB);
        let orders = lending.look(0, &reading(10 * GIB, 0));
        let expected = Orders {
            allowed_bytes: 8 * GIB,
            give_back_bytes: 0,
            is_short: false,
            pause_ns: PAUSE_NS,
        };
        assert_eq!(orders, expected);
        // What guests have taken of it changes nothing.
        assert_eq!(lending.look(SECOND, &reading(7 * GIB, 3 * GIB)).allowed_bytes, 8 * GIB);
        // What own programs take is not lent any more; while some of it is left, nobody moves.
        let orders = lending.look(2 * SECOND, &reading(2 * GIB - MIB, 3 * GIB));
        assert_eq!((orders.allowed_bytes, orders.give_back_bytes), (3 * GIB, 0));
        assert_eq!((orders.is_short, orders.pause_ns), (false, PAUSE_SHORT_NS));
    }

    #[test]
    fn lack_is_made_good_at_once_and_lending_resumes_after_a_while() {
        let mut lending = Lending::new(16 * GIB);
        let orders = lending.look(0, &reading(GIB, 5 * GIB));
        assert_eq!((orders.give_back_bytes, orders.allowed_bytes), (GIB, 4 * GIB));
        assert!(orders.is_short);
        // It was given back: nothing more is taken, and nothing more is lent.
        let orders = lending.look(SECOND / 50, &reading(2 * GIB, 4 * GIB));
        assert_eq!((orders.give_back_bytes, orders.allowed_bytes), (0, 4 * GIB));
        assert!(orders.is_short);
        for (at, short) in [(1, true), (4, true), (5, true), (6, false)] {
            let orders = lending.look(at * SECOND, &reading(6 * GIB, 4 * GIB));
            assert_eq!(orders.is_short, short, "after {at} s");
            assert_eq!(orders.allowed_bytes, if short { 4 * GIB } else { 8 * GIB });
        }
    }

    #[test]
    fn no_more_is_given_back_than_there_is() {
        let mut lending = Lending::new(16 * GIB);
        let orders = lending.look(0, &reading(0, GIB));
        assert_eq!((orders.give_back_bytes, orders.allowed_bytes), (GIB, 0));
        assert_eq!(lending.look(1, &reading(0, 0)).give_back_bytes, 0);
    }

    #[test]
    fn waiting_for_memory_takes_some_back_before_it_is_gone() {
        let mut lending = Lending::new(16 * GIB);
        let stalled = |stalled_us, available_bytes| Reading {
            available_bytes,
            held_bytes: 4 * GIB,
            stalled_us,
        };
        assert!(!lending.look(0, &stalled(0, 3 * GIB)).is_short);
        assert!(!lending.look(SECOND, &stalled(50_000, 3 * GIB)).is_short, "5 % is usual");
        let orders = lending.look(2 * SECOND, &stalled(250_000, 3 * GIB));
        assert_eq!((orders.give_back_bytes, orders.is_short), (4 * GIB / PRESSED_PART, true));
        let mut lending = Lending::new(16 * GIB);
        lending.look(0, &stalled(0, 8 * GIB));
        assert!(!lending.look(SECOND, &stalled(900_000, 8 * GIB)).is_short, "it is not our memory");
    }

    #[test]
    fn small_groups_keep_less() {
        assert_eq!(Lending::new(128 * MIB).keep_bytes(), 32 * MIB);
        assert_eq!(Lending::new(256 * MIB).keep_bytes(), 64 * MIB);
        assert_eq!(Lending::new(1024 * GIB).keep_bytes(), 4 * GIB);
    }
}
