//! Explores all orders in which writes, answers, crashes, disconnections and changes of belief can
//! happen to a few blocks in three servers, with the table that the store uses
//! (`docs/internals/consistency.md`). The random schedules beside the table go further; this leaves
//! out nothing up to its bounds.

#[path = "consistency/world.rs"]
mod world;

use std::collections::BTreeSet;

use hiroma_policy::redundancy::{Members, Scheme};
use stateright::{Checker, HasDiscoveries, Model, Property};

use world::{Belief, Budget, Content, Mistake, SERVERS, World};

const RECORDED: &str = "what is recorded as a piece is one";
const ONE_USE: &str = "a place has one use";
const NOT_GIVEN_UP: &str = "no piece is given up while its server runs";
const READABLE: &str = "what was written can be read";
const ABANDONED: &str = "an abandoned write is carried out";
const MADE_AGAIN: &str = "a piece is made again";

/// What can happen next.
#[derive(Clone, Debug, PartialEq)]
enum Event {
    Write(Members),
    Free(u32),
    MakeAgain { block: u32, server: usize },
    Execute { request: usize, is_garbage: bool },
    Answer(usize),
    Abandon(usize),
    Disconnect(usize),
    Crash(usize),
    Learn(usize),
    Believe(usize, Belief),
}

struct Store {
    scheme: Scheme,
    budget: Budget,
    mistake: Mistake,
}

impl Store {
    fn requests(&self, world: &World, events: &mut Vec<Event>) {
        for (at, request) in world.requests.iter().enumerate() {
            let runs = world.servers[request.server].runs;
            if runs && request.is_done {
                events.push(Event::Answer(at));
            }
            if runs && !request.is_done {
                events.push(Event::Execute { request: at, is_garbage: false });
                if request.is_abandoned {
                    events.push(Event::Execute { request: at, is_garbage: true });
                }
            }
            if world.can_be_abandoned(request) {
                events.push(Event::Abandon(at));
            }
        }
    }

    fn servers(&self, world: &World, events: &mut Vec<Event>) {
        for (at, server) in world.servers.iter().enumerate() {
            if !server.runs {
                events.push(Event::Learn(at));
            }
            if server.runs && world.budget.crashes > 0 {
                events.push(Event::Crash(at));
            }
            if world.budget.disconnects > 0 {
                events.push(Event::Disconnect(at));
            }
            if world.budget.beliefs > 0 {
                let next: &[_] = match server.belief {
                    Belief::Up => &[Belief::Suspect],
                    Belief::Suspect => &[Belief::Up, Belief::Lost],
                    Belief::Lost => &[Belief::Up],
                };
                events.extend(next.iter().map(|&belief| Event::Believe(at, belief)));
            }
        }
    }

    fn blocks(&self, world: &World, events: &mut Vec<Event>) {
        if world.budget.writes > 0 {
            let pieces = self.scheme.pieces();
            let choices = (1..1u64 << SERVERS).map(Members);
            let are_up = |targets: &Members| targets.0 & !world.up().0 == 0;
            let choices = choices.filter(|targets| targets.len() == pieces).filter(are_up);
            events.extend(choices.map(Event::Write));
        }
        if world.budget.frees > 0 {
            events.extend(world.written().map(Event::Free));
        }
        for (block, targets) in world.missing() {
            let servers = targets.iter().map(|member| member.index());
            events.extend(servers.map(|server| Event::MakeAgain { block, server }));
        }
    }
}

impl Model for Store {
    type State = World;
    type Action = Event;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(self.scheme, self.budget.clone())]
    }

    fn actions(&self, world: &World, events: &mut Vec<Event>) {
        self.requests(world, events);
        self.servers(world, events);
        self.blocks(world, events);
    }

    fn next_state(&self, before: &World, event: Event) -> Option<World> {
        let mut world = before.clone();
        let mut is_possible = true;
        match event.clone() {
            Event::Write(targets) => is_possible = world.write(targets),
            Event::Free(block) => world.free_written(block),
            Event::MakeAgain { block, server } => is_possible = world.make_again(block, server),
            Event::Execute { request, is_garbage } => world.execute(request, is_garbage),
            Event::Answer(at) => world.answer(at, self.mistake),
            Event::Abandon(at) => world.abandon(at, self.mistake),
            Event::Disconnect(server) => world.disconnect(server),
            Event::Crash(server) => world.crash(server),
            Event::Learn(server) => world.learn(server),
            Event::Believe(server, belief) => world.believe(server, belief),
        }
        world.requests.sort();
        let has_fewer = |block: u32| {
            let is_same = before.table.is_live(block)
                && before.table.version(block) == world.table.version(block);
            is_same && world.pieces_left(block) < before.pieces_left(block)
        };
        world.gave_up |= !matches!(event, Event::Crash(_)) && world.blocks().any(has_fewer);
        is_possible.then_some(world)
    }

    fn properties(&self) -> Vec<Property<Store>> {
        vec![
            Property::always(RECORDED, |_, world: &World| recorded_pieces_are_there(world)),
            Property::always(ONE_USE, |_, world: &World| places_have_one_use(world)),
            Property::always(NOT_GIVEN_UP, |_, world: &World| !world.gave_up),
            Property::always(READABLE, |store: &Store, world: &World| {
                let are_spared = world.budget.crashes == store.budget.crashes;
                let needed = store.scheme.needed();
                !are_spared || world.written().all(|block| world.pieces_left(block) >= needed)
            }),
            Property::sometimes(ABANDONED, |_, world: &World| {
                let has_garbage =
                    |server: &world::Server| server.memory.contains(&Content::Garbage);
                world.servers.iter().any(has_garbage)
            }),
            Property::sometimes(MADE_AGAIN, |store: &Store, world: &World| {
                let is_whole = |block| world.pieces_left(block) == store.scheme.pieces();
                world.budget.crashes == 0
                    && world.budget.writes == 0
                    && world.written().any(is_whole)
            }),
        ]
    }
}

fn recorded_pieces_are_there(world: &World) -> bool {
    world.blocks().all(|block| {
        let (row, version) = (world.table.row(block), world.table.version(block));
        row.indices().iter().all(|index| {
            let member = row.member(index).expect("it is in the row");
            let place = world.table.place(block, member).expect("it has a place");
            let server = &world.servers[member.index()];
            !server.runs || server.memory[place as usize] == world.content(block, version, index)
        })
    })
}

fn places_have_one_use(world: &World) -> bool {
    let mut used = BTreeSet::new();
    let recorded = world.blocks().flat_map(|block| world.table.pieces(block).collect::<Vec<_>>());
    let recorded = recorded.map(|piece| (piece.member.index(), piece.place as usize));
    let requested = world.requests.iter().map(|request| (request.server, request.place));
    recorded.chain(requested).all(|(server, place)| {
        used.insert((server, place)) && !world.servers[server].is_free[place]
    })
}

fn explore(
    scheme: &str,
    budget: Budget,
    mistake: Mistake,
    until: HasDiscoveries,
) -> impl Checker<Store> {
    let scheme = scheme.parse().expect("a scheme");
    let store = Store { scheme, budget, mistake };
    store.checker().finish_when(until).threads(2).spawn_bfs().join()
}

/// Each with all orders of everything that it allows.
const BUDGETS: [Budget; 4] = [
    Budget { writes: 2, frees: 1, crashes: 1, beliefs: 0, disconnects: 0 },
    Budget { writes: 2, frees: 1, crashes: 0, beliefs: 1, disconnects: 1 },
    Budget { writes: 1, frees: 0, crashes: 1, beliefs: 2, disconnects: 1 },
    Budget { writes: 2, frees: 1, crashes: 1, beliefs: 1, disconnects: 0 },
];

fn is_right_in_every_order(scheme: &str) {
    let mut seen = BTreeSet::new();
    for budget in BUDGETS {
        let checker = explore(scheme, budget, Mistake::None, HasDiscoveries::AnyFailures);
        println!("{scheme}: {} states", checker.unique_state_count());
        for property in [RECORDED, ONE_USE, NOT_GIVEN_UP, READABLE] {
            if let Some(path) = checker.discovery(property) {
                panic!("{scheme}: not so: {property}: {:?}", path.into_actions());
            }
        }
        seen.extend(checker.discoveries().into_keys());
    }
    assert_eq!(seen, BTreeSet::from([ABANDONED, MADE_AGAIN]), "what the runs must reach");
}

#[test]
fn copies_are_right_in_every_order() {
    is_right_in_every_order("1+1");
}

#[test]
fn parity_is_right_in_every_order() {
    is_right_in_every_order("2+1");
}

/// Explores a store with a mistake until `property` is found not to hold.
fn is_caught(mistake: Mistake, property: &'static str) {
    let until = HasDiscoveries::AnyOf(BTreeSet::from([property]));
    for budget in BUDGETS {
        if explore("1+1", budget, mistake, until.clone()).discovery(property).is_some() {
            return;
        }
    }
    panic!("{mistake:?} was not caught");
}

#[test]
fn a_store_that_records_abandoned_writes_is_caught() {
    is_caught(Mistake::RecordsAbandoned, RECORDED);
}

#[test]
fn a_store_that_uses_places_of_abandoned_writes_is_caught() {
    is_caught(Mistake::FreesAbandoned, ONE_USE);
}

#[test]
fn a_store_that_repeats_what_was_answered_is_caught() {
    is_caught(Mistake::RepeatsAnswered, ONE_USE);
}
