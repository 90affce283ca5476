//! What a page about a pool shows: the pool as it is, how fast its clients read and write, and what
//! has happened. Looks at the pool go in, with the time; there is no clock here.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use hiroma_pool::{ClientView, Health, MemberView};
use serde::Serialize;

use crate::pool::{PoolView, Row, state};

/// Events and samples that are kept.
const EVENTS_MAX: usize = 200;
const SAMPLES_MAX: usize = 120;

/// Something that happened.
#[derive(Clone, Debug, Serialize)]
pub struct Event {
    at_ms: u64,
    text: String,
}

/// How fast all clients together read and write.
#[derive(Clone, Copy, Debug, Serialize)]
struct Sample {
    at_ms: u64,
    read_per_s: u64,
    written_per_s: u64,
}

/// A member, as the page shows it.
#[derive(Clone, Debug, Serialize)]
struct Shown {
    #[serde(flatten)]
    member: MemberView,
    state: &'static str,
    used_bytes: u64,
    promised_bytes: u64,
    clients: Option<usize>,
    answer_us: Option<u64>,
    read_per_s: u64,
    written_per_s: u64,
}

/// What one client has at one member.
#[derive(Clone, Debug, Serialize)]
struct Place {
    member: String,
    used_bytes: u64,
}

/// A client: the sessions of one name, or of one machine.
#[derive(Clone, Debug, Default, Serialize)]
struct Client {
    name: String,
    sessions: usize,
    used_bytes: u64,
    places: Vec<Place>,
}

/// All that the page shows.
#[derive(Clone, Debug, Default, Serialize)]
pub struct State {
    at_ms: u64,
    trouble: Option<String>,
    members: Vec<Shown>,
    clients: Vec<Client>,
    rates: VecDeque<Sample>,
    events: VecDeque<Event>,
}

/// What was last known of a member.
struct Known {
    boot: u64,
    state: &'static str,
    /// By their numbers: who it is, and what it has read and written.
    clients: BTreeMap<u64, (String, u64, u64)>,
}

/// What is remembered between two looks.
#[derive(Default)]
pub struct History {
    known: BTreeMap<SocketAddr, Known>,
    looked_ms: Option<u64>,
    pub state: State,
}

/// The client's name, or the machine that it comes from.
fn name_of(client: &ClientView) -> String {
    if client.name.is_empty() {
        let host = client.peer.rsplit_once(':').map_or(&client.peer[..], |(host, _)| host);
        host.to_owned()
    } else {
        client.name.clone()
    }
}

impl History {
    /// Takes a look at the pool.
    pub fn take(&mut self, pool: &PoolView, at_ms: u64) {
        let passed_ms = self.looked_ms.map(|before| at_ms.saturating_sub(before).max(1));
        let is_first = passed_ms.is_none();
        self.state.at_ms = at_ms;
        self.state.trouble = None;
        let mut total = Sample { at_ms, read_per_s: 0, written_per_s: 0 };
        let mut members = Vec::with_capacity(pool.members.len());
        for row in &pool.members {
            let (read, written) = self.traffic(row);
            let per_s = |bytes: u64| passed_ms.map_or(0, |ms| bytes.saturating_mul(1000) / ms);
            let shown = shown(row, per_s(read), per_s(written));
            total.read_per_s += shown.read_per_s;
            total.written_per_s += shown.written_per_s;
            members.push(shown);
            if !is_first {
                self.note_changes(row, at_ms);
            }
            self.remember(row);
        }
        if is_first {
            self.note(at_ms, format!("the pool is watched: {} members are known", members.len()));
        } else {
            push(&mut self.state.rates, total, SAMPLES_MAX);
        }
        self.forget(pool, at_ms);
        self.looked_ms = Some(at_ms);
        members.sort_by(|one, other| one.member.name.cmp(&other.member.name));
        self.state.members = members;
        self.state.clients = clients(pool);
    }

    /// Nobody could be asked.
    pub fn fail(&mut self, reason: &str, at_ms: u64) {
        self.state.at_ms = at_ms;
        if self.state.trouble.as_deref() != Some(reason) {
            self.note(at_ms, reason.to_owned());
        }
        self.state.trouble = Some(reason.to_owned());
    }

    fn note(&mut self, at_ms: u64, text: String) {
        push(&mut self.state.events, Event { at_ms, text }, EVENTS_MAX);
    }

    /// Bytes that clients of a member have read and written since the last look. A client that has
    /// come since then counts from its start, if the member is the same process.
    fn traffic(&self, row: &Row) -> (u64, u64) {
        let known = self.known.get(&row.member.address);
        let Some(known) = known.filter(|known| known.boot == row.member.boot) else {
            return (0, 0);
        };
        row.clients.iter().flatten().fold((0, 0), |(read, written), client| {
            let before = known.clients.get(&client.number);
            let (read_before, written_before) = before.map_or((0, 0), |(_, r, w)| (*r, *w));
            (
                read + client.read_bytes.saturating_sub(read_before),
                written + client.written_bytes.saturating_sub(written_before),
            )
        })
    }

    fn note_changes(&mut self, row: &Row, at_ms: u64) {
        let (name, now) = (&row.member.name, state(row));
        let mut lines = Vec::new();
        match self.known.get(&row.member.address) {
            None => lines.push(format!("{name} has joined ({})", row.member.address)),
            Some(known) => {
                let has_restarted = known.boot != row.member.boot && known.boot != 0;
                if has_restarted && row.member.boot != 0 {
                    lines.push(format!("{name} has restarted: what was in it is gone"));
                } else if known.state != now {
                    lines.push(change(name, known.state, now));
                }
                if !has_restarted && row.clients.is_some() {
                    lines.extend(comings(name, &known.clients, row));
                }
            }
        }
        lines.into_iter().for_each(|line| self.note(at_ms, line));
    }

    fn remember(&mut self, row: &Row) {
        let clients = match &row.clients {
            Some(clients) => clients
                .iter()
                .map(|client| {
                    (client.number, (name_of(client), client.read_bytes, client.written_bytes))
                })
                .collect(),
            // It did not answer: its clients are those that it had.
            None => {
                let known = self.known.remove(&row.member.address);
                known.map(|known| known.clients).unwrap_or_default()
            }
        };
        let known = Known { boot: row.member.boot, state: state(row), clients };
        self.known.insert(row.member.address, known);
    }

    /// Members that are not listed any more.
    fn forget(&mut self, pool: &PoolView, at_ms: u64) {
        let listed = |at: &SocketAddr| pool.members.iter().any(|row| row.member.address == *at);
        let gone: Vec<_> = self.known.keys().filter(|at| !listed(at)).copied().collect();
        for at in gone {
            self.known.remove(&at);
            self.note(at_ms, format!("{at} is forgotten by the pool"));
        }
    }
}

fn push<T>(list: &mut VecDeque<T>, item: T, most: usize) {
    if list.len() >= most {
        list.pop_front();
    }
    list.push_back(item);
}

fn change(name: &str, before: &str, now: &str) -> String {
    match (before, now) {
        (_, "dead") => format!("{name} is dead: what was in it is gone"),
        (_, "suspect") => format!("{name} is suspected: another member had no answer from it"),
        (_, "no answer") => format!("{name} does not answer"),
        (_, "draining") => format!("{name} is being drained: it takes no new blocks"),
        (_, "short") => format!("{name} is short of memory: it takes no new blocks now"),
        ("draining" | "short", _) => format!("{name} takes blocks again"),
        _ => format!("{name} is back"),
    }
}

fn comings(name: &str, before: &BTreeMap<u64, (String, u64, u64)>, row: &Row) -> Vec<String> {
    let clients = || row.clients.iter().flatten();
    let new = clients().filter(|client| !before.contains_key(&client.number));
    let mut lines: Vec<_> = new.map(|client| format!("{} uses {name}", name_of(client))).collect();
    let gone = before.iter().filter(|(number, _)| clients().all(|c| c.number != **number));
    lines.extend(gone.map(|(_, (who, ..))| format!("{who} has left {name}")));
    lines
}

fn shown(row: &Row, read_per_s: u64, written_per_s: u64) -> Shown {
    let member = row.member.clone();
    let taken = member.lent_bytes.saturating_sub(member.free_bytes);
    // Without an answer of its own it is not known what is used and what promised.
    let used_bytes = match &row.clients {
        Some(clients) => clients.iter().map(|client| client.used_bytes).sum(),
        None => taken,
    };
    let used_bytes = if member.health == Health::Dead { 0 } else { used_bytes };
    let taken = if member.health == Health::Dead { 0 } else { taken };
    Shown {
        state: state(row),
        used_bytes,
        promised_bytes: taken.saturating_sub(used_bytes),
        clients: row.clients.as_ref().map(Vec::len),
        answer_us: row.answer_us,
        read_per_s,
        written_per_s,
        member,
    }
}

/// Clients, those with most memory first.
fn clients(pool: &PoolView) -> Vec<Client> {
    let mut by_name: BTreeMap<String, Client> = BTreeMap::new();
    for row in &pool.members {
        for view in row.clients.iter().flatten() {
            let name = name_of(view);
            let client =
                by_name.entry(name.clone()).or_insert_with(|| Client { name, ..Client::default() });
            client.sessions += 1;
            client.used_bytes += view.used_bytes;
            match client.places.iter_mut().find(|place| place.member == row.member.name) {
                Some(place) => place.used_bytes += view.used_bytes,
                None => client
                    .places
                    .push(Place { member: row.member.name.clone(), used_bytes: view.used_bytes }),
            }
        }
    }
    let mut clients: Vec<_> = by_name.into_values().collect();
    clients.sort_by_key(|client| std::cmp::Reverse(client.used_bytes));
    clients
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn member(name: &str, port: u16, boot: u64) -> MemberView {
        serde_json::from_value(json!({
            "name": name, "address": format!("127.0.0.1:{port}"), "incarnation": 1, "boot": boot,
            "health": "alive", "lent_bytes": 100, "free_bytes": 40, "spilled_bytes": 0,
            "pressure_percent": 0, "refusing": false, "draining": false, "version": 1,
            "labels": [["rack", "r1"]], "sequence": 1, "heard_ms_ago": 0,
        }))
        .unwrap()
    }

    fn client(number: u64, peer: &str, read_bytes: u64) -> ClientView {
        ClientView {
            tenant_bytes: 0,
            quota_bytes: None,
            short_blocks: None,
            weight: 1,
            number,
            name: String::new(),
            peer: peer.to_owned(),
            connections: 1,
            shared_connections: 0,
            used_bytes: 50,
            read_bytes,
            written_bytes: 7,
            reads: 1,
            writes: 1,
        }
    }

    fn pool(rows: Vec<(MemberView, Option<Vec<ClientView>>)>) -> PoolView {
        let row = |(member, clients)| Row { member, clients, trouble: None, answer_us: Some(1) };
        PoolView { members: rows.into_iter().map(row).collect() }
    }

    fn texts(history: &History) -> Vec<&str> {
        history.state.events.iter().map(|event| &event.text[..]).collect()
    }

    #[test]
    fn rates_are_those_between_two_looks() {
        let mut history = History::default();
        let a = || member("a", 1, 5);
        history.take(&pool(vec![(a(), Some(vec![client(1, "10.0.0.9:5", 1000)]))]), 10_000);
        assert_eq!(history.state.members[0].read_per_s, 0);
        let two = vec![client(1, "10.0.0.9:5", 5000), client(2, "10.0.0.9:6", 600)];
        history.take(&pool(vec![(a(), Some(two))]), 12_000);
        let shown = &history.state.members[0];
        assert_eq!((shown.read_per_s, shown.written_per_s), (2300, 3));
        assert_eq!((shown.used_bytes, shown.promised_bytes), (100, 0));
        assert_eq!(history.state.rates.back().unwrap().read_per_s, 2300);
        let client_of = &history.state.clients[0];
        assert_eq!(
            (&client_of.name[..], client_of.sessions, client_of.used_bytes),
            ("10.0.0.9", 2, 100)
        );
        // Another process at the same address begins at zero.
        let new = Some(vec![client(1, "10.0.0.9:7", 9_000_000)]);
        history.take(&pool(vec![(member("a", 1, 6), new)]), 13_000);
        assert_eq!(history.state.members[0].read_per_s, 0);
        assert!(texts(&history).last().unwrap().contains("restarted"));
    }

    #[test]
    fn what_happened_is_told_once_and_in_order() {
        let mut history = History::default();
        let (a, b) = (member("a", 1, 5), member("b", 2, 6));
        history.take(&pool(vec![(a.clone(), Some(vec![]))]), 0);
        history.take(&pool(vec![(a.clone(), Some(vec![])), (b.clone(), Some(vec![]))]), 1000);
        let used = Some(vec![client(3, "10.0.0.9:5", 0)]);
        history.take(&pool(vec![(a.clone(), used), (b.clone(), Some(vec![]))]), 2000);
        let draining = MemberView { draining: true, ..b.clone() };
        for at_ms in [3000, 4000] {
            history.take(&pool(vec![(a.clone(), Some(vec![])), (draining.clone(), None)]), at_ms);
        }
        let dead = MemberView { health: Health::Dead, ..b };
        history.take(&pool(vec![(a.clone(), Some(vec![])), (dead, None)]), 5000);
        let (a_shown, b_shown) = (&history.state.members[0], &history.state.members[1]);
        assert_eq!((a_shown.used_bytes, a_shown.promised_bytes), (0, 60));
        assert_eq!((b_shown.used_bytes, b_shown.promised_bytes, b_shown.state), (0, 0, "dead"));
        history.fail("the pool does not answer", 6000);
        history.fail("the pool does not answer", 7000);
        assert_eq!(history.state.trouble.as_deref(), Some("the pool does not answer"));
        history.take(&pool(vec![(a, Some(vec![]))]), 8000);
        assert_eq!(
            texts(&history),
            [
                "the pool is watched: 1 members are known",
                "b has joined (127.0.0.1:2)",
                "10.0.0.9 uses a",
                "10.0.0.9 has left a",
                "b is being drained: it takes no new blocks",
                "b is dead: what was in it is gone",
                "the pool does not answer",
                "127.0.0.1:2 is forgotten by the pool",
            ]
        );
        assert_eq!(history.state.trouble, None);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut history = History::default();
        for look in 0..2000 {
            history.take(&pool(vec![(member("a", 1, look + 1), Some(vec![]))]), look * 1000);
        }
        assert_eq!(history.state.events.len(), EVENTS_MAX);
        assert_eq!(history.state.rates.len(), SAMPLES_MAX);
    }
}
