//! Whether one fault thread or all of them serve the faults of several threads.
//!
//! More fault threads serve more faults in parallel. But each page that is evicted interrupts every
//! processor that runs the program, and all fault threads change one state under one lock: where
//! about as many pages are evicted as fetched, the threads only wait for each other. Which case
//! applies depends on the machine, the store and the program, so it is measured: faults are counted
//! for a short time with one thread, then with all, and again from time to time.

use hiroma_units::Nanos;

/// Time for which faults are counted with one thread, and with all.
const TRIAL: Nanos = Nanos::from_millis(12);
/// All threads must serve this many times the faults of one, in quarters.
const BETTER_QUARTERS: u64 = 6;
/// Time after which the trial is repeated.
const TERM: Nanos = Nanos::from_millis(1000);
/// Time until the next trial where the last one did not pay; doubles each time.
const PENALTY_MIN: Nanos = Nanos::from_millis(100);
const PENALTY_MAX: Nanos = Nanos::from_millis(6400);

/// Which fault threads serve faults.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answering {
    One,
    All,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    One,
    /// Faults are counted with one thread: start time, and the count at that time.
    CountsOne(Nanos, u64),
    /// The same with all threads; last, what was counted with one: faults, and in which time.
    CountsAll(Nanos, u64, (u64, Nanos)),
    All(Nanos),
}

/// See the module's head.
#[derive(Clone, Debug)]
pub struct Crowd {
    state: State,
    not_before: Nanos,
    penalty: Nanos,
    is_decided: bool,
}

impl Default for Crowd {
    fn default() -> Crowd {
        Crowd { state: State::One, not_before: Nanos(0), penalty: PENALTY_MIN, is_decided: false }
    }
}

impl Crowd {
    /// Without trials: all threads serve faults where several threads fault.
    pub fn decided() -> Crowd {
        Crowd { is_decided: true, ..Crowd::default() }
    }

    /// Before this time, [`Crowd::seen`] changes nothing.
    pub fn not_before(&self) -> Nanos {
        self.not_before
    }

    /// Faults of several threads were seen at `now`. `faults`: served so far.
    pub fn seen(&mut self, now: Nanos, faults: u64) {
        if self.is_decided {
            self.state = State::All(now);
        } else if self.state == State::One && now >= self.not_before {
            self.state = State::CountsOne(now, faults);
        }
    }

    /// Whether all fault threads serve faults.
    pub fn is_all(&self) -> bool {
        matches!(self.state, State::CountsAll(..) | State::All(_))
    }

    /// Whether [`Crowd::look`] is to be called again soon.
    pub fn is_busy(&self) -> bool {
        self.state != State::One
    }

    /// Which threads serve faults from now on.
    pub fn look(&mut self, now: Nanos, faults: u64) -> Answering {
        match self.state {
            State::One => {}
            State::CountsOne(since, from) if now.since(since) >= TRIAL => {
                self.state =
                    State::CountsAll(now, faults, (faults.saturating_sub(from), now.since(since)));
            }
            State::CountsAll(since, from, (one, one_time)) if now.since(since) >= TRIAL => {
                let all = u128::from(faults.saturating_sub(from)) * u128::from(one_time.0) * 4;
                let one =
                    u128::from(one) * u128::from(now.since(since).0) * u128::from(BETTER_QUARTERS);
                if all >= one {
                    (self.state, self.penalty) = (State::All(now), PENALTY_MIN);
                } else {
                    self.state = State::One;
                    self.not_before = Nanos(now.0 + self.penalty.0);
                    self.penalty = Nanos((self.penalty.0 * 2).min(PENALTY_MAX.0));
                }
            }
            State::All(since) if !self.is_decided && now.since(since) >= TERM => {
                self.state = State::CountsOne(now, faults)
            }
            State::CountsOne(..) | State::CountsAll(..) | State::All(_) => {}
        }
        match self.state {
            State::One | State::CountsOne(..) => Answering::One,
            State::CountsAll(..) | State::All(_) => Answering::All,
        }
    }

    /// Faults come from one thread again, or there are none.
    pub fn is_over(&mut self) {
        self.state = State::One;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Lets `ms` milliseconds pass with the given faults in each; returns which threads served
    /// them, for each millisecond.
    fn pass(crowd: &mut Crowd, at: &mut (u64, u64), ms: u64, one: u64, all: u64) -> Vec<Answering> {
        let mut who = Answering::One;
        let mut seen = Vec::new();
        for _ in 0..ms {
            at.0 += MS;
            at.1 += if who == Answering::All { all } else { one };
            crowd.seen(Nanos(at.0), at.1);
            who = crowd.look(Nanos(at.0), at.1);
            seen.push(who);
        }
        seen
    }

    /// In how many of a thousand milliseconds all threads served faults.
    fn permille(seen: &[Answering]) -> usize {
        seen.iter().filter(|&&who| who == Answering::All).count() * 1000 / seen.len()
    }

    #[test]
    fn all_threads_answer_when_throughput_is_higher() {
        let (mut crowd, mut at) = (Crowd::default(), (0, 0));
        let seen = pass(&mut crowd, &mut at, 5000, 60, 120);
        assert!(permille(&seen) > 970, "{}", permille(&seen));
    }

    #[test]
    fn one_thread_answers_when_more_do_not_help() {
        let (mut crowd, mut at) = (Crowd::default(), (0, 0));
        let seen = pass(&mut crowd, &mut at, 60_000, 60, 65);
        assert!(permille(&seen) < 10, "{}", permille(&seen));
    }

    #[test]
    fn decision_follows_changes_in_payoff() {
        let (mut crowd, mut at) = (Crowd::default(), (0, 0));
        pass(&mut crowd, &mut at, 3000, 60, 40);
        let pays = pass(&mut crowd, &mut at, 12_000, 60, 120);
        assert!(permille(&pays[6500..]) > 900);
        let ceased = pass(&mut crowd, &mut at, 12_000, 60, 40);
        assert!(permille(&ceased[2000..]) < 50, "{}", permille(&ceased[2000..]));
    }

    #[test]
    fn no_trials_after_a_decision() {
        let (mut crowd, mut at) = (Crowd::decided(), (0, 0));
        let seen = pass(&mut crowd, &mut at, 5000, 60, 30);
        assert!(seen.iter().all(|&who| who == Answering::All));
    }

    #[test]
    fn ended_crowd_resets_to_one_thread() {
        let (mut crowd, mut at) = (Crowd::default(), (0, 0));
        pass(&mut crowd, &mut at, 100, 60, 120);
        crowd.is_over();
        assert_eq!(crowd.look(Nanos(at.0), at.1), Answering::One);
        assert!(!crowd.is_busy());
    }
}
