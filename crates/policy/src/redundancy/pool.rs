//! What is known of each member, and who gets a block or is asked for one.
//!
//! A member is *up* while it answers; *suspect* when its connection is down, or when a request has
//! waited for [`SUSPECT_AFTER_NS`]; *lost* when that has lasted for [`LOST_AFTER_NS`] while another
//! member was up; *dead* when its content cannot come back. A suspect member is asked last and gets
//! no blocks. What a lost one holds is made again elsewhere, and so is what a *draining* one holds,
//! which still answers reads and is to be emptied. Suspicion frees nothing: a member that
//! answers again is up, with all pieces that are still current.

use super::quantile::{Mean, Quantile95};
use super::{Indices, MEMBERS_MAX, Member, Members, PIECES_MAX, Row};

/// A member that has not answered for this long is suspect.
pub const SUSPECT_AFTER_NS: u64 = 250_000_000;
/// A member that has been suspect for this long is lost.
pub const LOST_AFTER_NS: u64 = 750_000_000;
/// Minimum time before a second member is asked.
const HEDGE_MIN_NS: u64 = 5_000_000;
/// A member that was full is tried again after this time.
const FULL_PAUSE_NS: u64 = 1_000_000_000;
/// If no thread has looked at the members for this long, the reason is that this process stood
/// still, and the time does not count as theirs.
const STOOD_STILL_NS: u64 = 500_000_000;
/// Blocks follow each other to the same members for this many bytes, so that they can be read
/// together.
const TOGETHER_BYTES: u64 = 2 << 20;
/// A member whose answers were wrong this often is not used any more.
const WRONG_MAX: u32 = 16;
/// A member that is slower than others by this much, and by half, is asked for a piece only if there
/// is no other one.
const SLOWER_NS: u64 = 100_000;
/// Reads of more bytes than this have a percentile of their own.
const SMALL_BYTES: usize = 32 << 10;

/// Whether a member can be relied on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Health {
    /// No member has this number.
    Vacant,
    /// It answers.
    Up,
    /// It may only be slow.
    Suspect,
    /// Its blocks are made again elsewhere; it may come back with them.
    Lost,
    /// Its content is gone.
    Dead,
}

/// What the user is told, and what the store acts on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// It does not answer now.
    Suspected(Member),
    /// It is given up for now.
    Lost(Member),
    /// It answers again, with its content.
    Back(Member),
    /// Its content is gone.
    Died(Member),
    /// It is to be emptied, or not any more.
    Draining(Member, bool),
    /// It was wrong too often, and has what nobody else has.
    Distrusted(Member),
}

#[derive(Clone, Copy, Debug)]
struct State {
    health: Health,
    label: u32,
    cut_off: bool,
    draining: bool,
    distrusted: bool,
    answered_ns: u64,
    suspect_since_ns: u64,
    full_until_ns: u64,
    /// Estimated bytes free.
    room: u64,
    latency: Mean,
    small: Quantile95,
    large: Quantile95,
    wrong: u32,
}

impl State {
    /// It gets no blocks, and its pieces are made again elsewhere.
    fn is_left(&self) -> bool {
        self.draining || self.distrusted
    }
}

const VACANT: State = State {
    health: Health::Vacant,
    label: 0,
    cut_off: false,
    draining: false,
    distrusted: false,
    answered_ns: 0,
    suspect_since_ns: 0,
    full_until_ns: 0,
    room: u64::MAX / 2,
    latency: Mean::ZERO,
    small: Quantile95::ZERO,
    large: Quantile95::ZERO,
    wrong: 0,
};

/// See the module documentation.
#[derive(Clone, Debug)]
pub struct Pool {
    states: [State; MEMBERS_MAX],
    changes: Vec<Change>,
    looked_ns: u64,
    forgiven_ns: u64,
    /// Members in the order in which they get blocks now, and for how many more bytes.
    order: Vec<Member>,
    together_left: u64,
    /// How often that order has changed.
    ranked: u32,
    turn: u32,
    /// Members without which no block can be read.
    needed: usize,
}

impl Pool {
    /// No members yet. Blocks are read from `needed` members at a time.
    pub fn new(needed: usize) -> Pool {
        Pool {
            needed,
            ranked: 0,
            states: [VACANT; MEMBERS_MAX],
            changes: Vec::with_capacity(MEMBERS_MAX),
            looked_ns: 0,
            forgiven_ns: 0,
            order: Vec::with_capacity(MEMBERS_MAX),
            together_left: 0,
            turn: 0,
        }
    }

    /// A member joins. Members with the same label fail together. `None` if there are too many.
    pub fn join(&mut self, now_ns: u64, label: u32) -> Option<Member> {
        let vacant = self.states.iter().position(|state| state.health == Health::Vacant)?;
        self.states[vacant] = State { health: Health::Up, label, answered_ns: now_ns, ..VACANT };
        self.together_left = 0;
        Some(Member(vacant as u8))
    }

    /// No block refers to a dead member any more: its number can be given to another one.
    pub fn retire(&mut self, member: Member) {
        assert_eq!(self.health(member), Health::Dead, "only the dead are retired");
        self.states[member.index()] = VACANT;
    }

    /// The health of a member.
    pub fn health(&self, member: Member) -> Health {
        self.states[member.index()].health
    }

    /// Members with a health that `wanted` accepts.
    fn with(&self, wanted: impl Fn(Health) -> bool) -> Members {
        let numbers = 0..MEMBERS_MAX as u8;
        numbers.map(Member).filter(|&member| wanted(self.health(member))).collect()
    }

    /// Members that answer.
    pub fn up(&self) -> Members {
        self.with(|health| health == Health::Up)
    }

    /// Members that take blocks if they have room.
    pub fn takers(&self) -> Members {
        self.up().iter().filter(|member| !self.states[member.index()].is_left()).collect()
    }

    /// Of these, the members that had room when they were last asked.
    pub fn open(&self, now_ns: u64) -> Members {
        let is_open = |member: &Member| self.states[member.index()].full_until_ns <= now_ns;
        self.takers().iter().filter(is_open).collect()
    }

    /// Members whose pieces count as copies: the others' are made again.
    pub fn good(&self) -> Members {
        let answering = self.with(|health| matches!(health, Health::Up | Health::Suspect));
        answering.iter().filter(|member| !self.states[member.index()].is_left()).collect()
    }

    /// Members that are to be emptied, or are distrusted, and may still have their content.
    pub fn draining(&self) -> Members {
        self.living().iter().filter(|member| self.states[member.index()].is_left()).collect()
    }

    /// Members that are distrusted and may still have their content.
    pub fn distrusted(&self) -> Members {
        self.living().iter().filter(|member| self.states[member.index()].distrusted).collect()
    }

    /// A member says whether it is to be emptied.
    pub fn drains(&mut self, member: Member, draining: bool) {
        let state = &mut self.states[member.index()];
        if state.draining != draining {
            state.draining = draining;
            self.together_left = 0;
            self.changes.push(Change::Draining(member, draining));
        }
    }

    /// Members that may still have their content.
    pub fn living(&self) -> Members {
        self.with(|health| matches!(health, Health::Up | Health::Suspect | Health::Lost))
    }

    /// Members that are gone for good.
    pub fn dead(&self) -> Members {
        self.with(|health| health == Health::Dead)
    }

    /// A member answered a request after `waited_ns`.
    pub fn answered(&mut self, member: Member, now_ns: u64, waited_ns: u64, read: Option<usize>) {
        let state = &mut self.states[member.index()];
        if let Some(bytes) = read {
            if bytes <= SMALL_BYTES {
                state.latency.observe(waited_ns);
                state.small.observe(waited_ns);
            } else {
                state.large.observe(waited_ns);
            }
        }
        self.alive(member, now_ns);
    }

    /// A member answered a read that others had served by then, after at least `waited_ns`. That it is
    /// slower than it was shows in such answers alone: those that come in time are the quick ones.
    /// When others are asked instead follows from answers in time, so a slow member is not waited for
    /// longer. A silence of which its health tells is none of its speed.
    pub fn answered_late(&mut self, member: Member, now_ns: u64, waited_ns: u64, bytes: usize) {
        let state = &mut self.states[member.index()];
        let is_slower = (state.latency.value()..=SUSPECT_AFTER_NS).contains(&waited_ns);
        if bytes <= SMALL_BYTES && is_slower {
            state.latency.observe(waited_ns);
        }
        self.alive(member, now_ns);
    }

    /// A member has shown at `at_ns` that it lives.
    pub fn alive(&mut self, member: Member, at_ns: u64) {
        let state = &mut self.states[member.index()];
        state.answered_ns = state.answered_ns.max(at_ns);
        let since = state.suspect_since_ns;
        if matches!(state.health, Health::Suspect | Health::Lost) && at_ns > since {
            let was_lost = state.health == Health::Lost;
            state.cut_off = false;
            state.health = Health::Up;
            self.together_left = 0;
            if was_lost {
                self.changes.push(Change::Back(member));
            }
        }
    }

    /// A request to a member has waited since `since_ns`.
    pub fn waits(&mut self, member: Member, now_ns: u64, since_ns: u64) {
        let state = &self.states[member.index()];
        let from_ns = since_ns.max(state.answered_ns).max(self.forgiven_ns);
        if state.health == Health::Up && now_ns.saturating_sub(from_ns) > SUSPECT_AFTER_NS {
            self.suspect(member, now_ns);
        }
    }

    /// The connection to a member is down.
    pub fn cut_off(&mut self, member: Member, now_ns: u64) {
        self.states[member.index()].cut_off = true;
        if self.health(member) == Health::Up {
            self.suspect(member, now_ns);
        }
    }

    /// Whether the connection to a member was down when it was last looked at.
    pub fn is_cut_off(&self, member: Member) -> bool {
        self.states[member.index()].cut_off
    }

    fn suspect(&mut self, member: Member, now_ns: u64) {
        let state = &mut self.states[member.index()];
        (state.health, state.suspect_since_ns) = (Health::Suspect, now_ns);
        self.together_left = 0;
        self.changes.push(Change::Suspected(member));
    }

    /// The content of a member is gone.
    pub fn died(&mut self, member: Member) {
        if !matches!(self.health(member), Health::Dead | Health::Vacant) {
            self.states[member.index()].health = Health::Dead;
            self.together_left = 0;
            self.changes.push(Change::Died(member));
        }
    }

    /// A member returned other bytes than were sent there, or an error. Returns whether that was too
    /// often: then it is not to be used any more.
    pub fn wrong(&mut self, member: Member) -> bool {
        let state = &mut self.states[member.index()];
        state.wrong = state.wrong.saturating_add(1);
        state.wrong >= WRONG_MAX
    }

    /// A member that was wrong too often has what nobody else has: it gets no blocks, and what is there
    /// is read last and made again elsewhere.
    pub fn distrust(&mut self, member: Member) {
        let state = &mut self.states[member.index()];
        if !std::mem::replace(&mut state.distrusted, true) {
            self.together_left = 0;
            self.changes.push(Change::Distrusted(member));
        }
    }

    /// A member had no room.
    pub fn full(&mut self, member: Member, now_ns: u64) {
        self.states[member.index()].full_until_ns = now_ns + FULL_PAUSE_NS;
        self.together_left = 0;
    }

    /// A member has about `bytes` free.
    pub fn room(&mut self, member: Member, bytes: u64) {
        self.states[member.index()].room = bytes;
    }

    /// Time passes. What has changed is appended to `out`.
    pub fn tick(&mut self, now_ns: u64, out: &mut Vec<Change>) {
        if self.looked_ns > 0 && now_ns.saturating_sub(self.looked_ns) > STOOD_STILL_NS {
            self.forgiven_ns = now_ns;
            for state in &mut self.states {
                state.suspect_since_ns = state.suspect_since_ns.max(now_ns);
            }
        }
        self.looked_ns = self.looked_ns.max(now_ns);
        // If too few answer, the reason is probably on this side, and nothing could be made again.
        if self.up().len() >= self.needed {
            for member in self.with(|health| health == Health::Suspect).iter() {
                let state = &mut self.states[member.index()];
                if now_ns.saturating_sub(state.suspect_since_ns) > LOST_AFTER_NS {
                    state.health = Health::Lost;
                    self.changes.push(Change::Lost(member));
                }
            }
        }
        out.append(&mut self.changes);
    }

    /// The member for one more piece, of `bytes`, of a block, apart from `taken`: of those with the
    /// fewest pieces at members with their label the one with most room, and nobody twice as slow
    /// as needed.
    pub fn target(&mut self, now_ns: u64, bytes: u64, taken: Members) -> Option<Member> {
        // A question about no bytes is answered from the members of now, too.
        if self.together_left < bytes.max(1) {
            self.rank();
            self.together_left = TOGETHER_BYTES.max(bytes);
        }
        let labels = |member: Member| self.states[member.index()].label;
        let fits = |&member: &Member| {
            let state = &self.states[member.index()];
            let takes = state.health == Health::Up && !state.is_left();
            takes && state.full_until_ns <= now_ns && !taken.contains(member)
        };
        let beside =
            |member: &Member| taken.iter().filter(|&at| labels(at) == labels(*member)).count();
        let chosen = self.order.iter().copied().filter(fits).min_by_key(beside)?;
        let state = &mut self.states[chosen.index()];
        state.room = state.room.saturating_sub(bytes);
        if taken.is_empty() {
            self.together_left -= bytes;
        }
        Some(chosen)
    }

    /// A member that may come back, for a block that no other one takes now.
    pub fn last_resort(&self, now_ns: u64, taken: Members) -> Option<Member> {
        let fits = |&member: &Member| {
            let state = &self.states[member.index()];
            !taken.contains(member) && !state.distrusted && state.full_until_ns <= now_ns
        };
        let living = self.living().iter().filter(fits);
        living.min_by_key(|member| self.states[member.index()].suspect_since_ns)
    }

    /// Changes whenever other members are the first ones to get blocks.
    pub fn round(&self) -> usize {
        self.ranked as usize
    }

    fn rank(&mut self) {
        self.ranked = self.ranked.wrapping_add(1);
        let up = self.up();
        let latency = |member: Member| self.states[member.index()].latency.value();
        let quickest = up.iter().map(latency).filter(|&ns| ns > 0).min().unwrap_or(0);
        self.order.clear();
        self.order.extend(up.iter());
        let states = &self.states;
        self.order.sort_by_key(|&member| {
            let state = &states[member.index()];
            let is_slow = state.latency.value() > 8 * quickest + HEDGE_MIN_NS;
            (is_slow, std::cmp::Reverse(state.room), member)
        });
    }

    /// Orders members by whether to expect an answer.
    fn reliability(&self, member: Member) -> u8 {
        match self.health(member) {
            _ if self.states[member.index()].distrusted => 3,
            Health::Up => 0,
            Health::Suspect => 1,
            _ => 2,
        }
    }

    /// The member of `holders` to ask first: of those that are up the quickest, in turn with those
    /// that are about as quick; then suspect ones, then lost ones.
    pub fn source(&mut self, holders: Members) -> Option<Member> {
        self.turn = self.turn.wrapping_add(1);
        let living = Members(holders.0 & self.living().0);
        let rank = |member: Member| self.reliability(member);
        let best = living.iter().map(rank).min()?;
        let latency = |member: Member| self.states[member.index()].latency.value();
        let among = living.iter().filter(|&member| rank(member) == best);
        let quickest = among.clone().map(latency).min()?;
        let near = among.filter(|&member| latency(member) <= quickest + quickest / 4 + 1);
        let near: Members = near.collect();
        if self.turn % 64 == 0 {
            // The others are asked now and then, to notice when they have become quicker.
            let others = living.iter().filter(|&member| rank(member) == best);
            return others.max_by_key(|&member| latency(member));
        }
        near.iter().nth(self.turn as usize / 16 % near.len())
    }

    /// The `count` pieces of `row` to ask for first, if there are so many: copies as
    /// [`Pool::source`] says; else those of members that are up, with few exceptions only of those that are
    /// not much slower than others, and of these the first ones, which need no computing.
    pub fn sources(&mut self, row: &Row, count: usize) -> Indices {
        if self.needed == 1 {
            let member = self.source(row.members());
            let mut indices = row.indices().iter();
            return indices
                .find(|&at| member.is_some() && row.member(at) == member)
                .into_iter()
                .collect();
        }
        self.turn = self.turn.wrapping_add(1);
        let living = row.at(self.living());
        let latency = |member: Member| self.states[member.index()].latency.value();
        let quickest = living.members().iter().map(latency).filter(|&ns| ns > 0).min().unwrap_or(0);
        // Slow ones are asked now and then, to notice when they have become quicker.
        let limit = if self.turn % 64 == 0 { u64::MAX } else { 2 * quickest + SLOWER_NS };
        let cost = |index: usize| {
            let member = living.member(index).expect("one that has it");
            (self.reliability(member), latency(member) > limit, index)
        };
        let mut costs: [_; PIECES_MAX] = [(u8::MAX, true, 0); PIECES_MAX];
        let indices = living.indices();
        costs.iter_mut().zip(indices.iter()).for_each(|(to, index)| *to = cost(index));
        let costs = &mut costs[..indices.len()];
        costs.sort_unstable();
        costs.iter().take(count).map(|&(_, _, index)| index).collect()
    }

    /// After how long a second member is asked for what this one was asked for.
    pub fn hedge_after_ns(&self, member: Member, bytes: usize) -> u64 {
        let state = &self.states[member.index()];
        let usual = if bytes <= SMALL_BYTES { state.small } else { state.large };
        usual.value().saturating_mul(2).clamp(HEDGE_MIN_NS, SUSPECT_AFTER_NS)
    }
}
