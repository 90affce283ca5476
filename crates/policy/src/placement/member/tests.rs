use super::*;
use crate::placement::PlacementConfig;
use crate::placement::config::PlacementKind;
use crate::placement::view::Neighbourhood;

const MS: u64 = 1_000_000;

/// Members that all know each other, and the messages between them.
struct Cluster {
    now_ns: u64,
    members: Vec<Member>,
    shared: Arc<Shared>,
    /// Sender, its incarnation, receiver, message.
    wire: Vec<(u32, u32, u32, Note)>,
    /// What shells were told to do, besides sending.
    told: Vec<(u32, Command)>,
    /// Members that do nothing any more.
    gone: Vec<u32>,
}

impl Cluster {
    fn new(count: u32, change: impl FnOnce(&mut PlacementConfig)) -> Self {
        let mut config = PlacementConfig {
            confirm: true,
            placement: PlacementKind::Fill,
            answer_ns: 10 * MS,
            refresh_ns: 50 * MS,
            lease_ns: 800 * MS,
            ..PlacementConfig::default()
        };
        change(&mut config);
        let shared = Arc::new(Shared::new(config, around(count), 16, 1));
        let members = (0..count).map(|me| start(&shared, me, 1, count, 0)).collect();
        let (wire, told, gone) = (Vec::new(), Vec::new(), Vec::new());
        let mut cluster = Cluster { now_ns: 0, members, shared, wire, told, gone };
        cluster.pass(60 * MS, |_| true);
        cluster
    }

    fn event(&mut self, node: u32, event: Event) {
        if self.gone.contains(&node) {
            return;
        }
        let mut out = Vec::new();
        let member = &mut self.members[node as usize];
        member.handle(self.now_ns, event, &mut out);
        let epoch = member.epoch();
        for command in out {
            match command {
                Command::Send { to, note, .. } => self.wire.push((node, epoch, to, note)),
                Command::SendToPeers(note) => {
                    let others = (0..self.members.len() as u32).filter(|&other| other != node);
                    self.wire.extend(others.map(|to| (node, epoch, to, note.clone())));
                }
                other => self.told.push((node, other)),
            }
        }
    }

    /// Delivers all messages that `arrives` lets through; others are lost.
    fn deliver(&mut self, arrives: impl Fn(&Note) -> bool) {
        while !self.wire.is_empty() {
            let (from, epoch, to, note) = self.wire.remove(0);
            if arrives(&note) {
                self.event(to, Event::Received { from, epoch, note });
            }
        }
    }

    /// Lets time pass, with the messages of which `arrives` is true.
    fn pass(&mut self, time_ns: u64, arrives: impl Fn(&Note) -> bool) {
        let until_ns = self.now_ns + time_ns;
        self.deliver(&arrives);
        loop {
            let due = (0..).zip(&self.members).map(|(node, member)| (member.deadline_ns(), node));
            let due = due.filter(|(_, node)| !self.gone.contains(node));
            let Some((due_ns, node)) = due.min().filter(|&(due_ns, _)| due_ns <= until_ns) else {
                break;
            };
            self.now_ns = self.now_ns.max(due_ns);
            self.event(node, Event::Tick);
            self.deliver(&arrives);
        }
        self.now_ns = until_ns;
    }

    /// One more member, which knows all others.
    fn join(&mut self) -> u32 {
        let node = self.members.len() as u32;
        let shared = Arc::new(self.shared.for_others(around(node + 1), 16));
        self.members.push(start(&shared, node, 1, node + 1, self.now_ns));
        self.tell_others(node, &joined(node, 16));
        node
    }

    /// A member goes for good.
    fn leave(&mut self, node: u32) {
        self.gone.push(node);
        self.wire.retain(|&(from, ..)| from != node);
        self.tell_others(node, &Event::Left(node));
    }

    fn tell_others(&mut self, node: u32, event: &Event) {
        let others = (0..self.members.len() as u32).filter(|&other| other != node);
        others.for_each(|other| self.event(other, event.clone()));
    }

    /// What node 0 believes a node to have free.
    fn believed(&self, node: u32) -> u32 {
        let member = &self.members[0];
        member.placer().view().free(member.base.peer(node).expect("a peer"))
    }

    fn is_told_lost(&mut self, page: u64) -> bool {
        let told = std::mem::take(&mut self.told);
        told.iter().any(|(node, told)| {
            *node == 0 && matches!(told, Command::Lost(lost, _) if *lost == page)
        })
    }

    fn restart(&mut self, node: u32) {
        let (epoch, count) = (self.members[node as usize].epoch() + 1, self.members.len() as u32);
        self.members[node as usize] = start(&self.shared, node, epoch, count, self.now_ns);
    }

    fn guests(&self, node: u32) -> usize {
        self.members[node as usize].guests().count()
    }

    fn was_told(&mut self, node: u32, command: &Command) -> bool {
        let found = self.told.contains(&(node, command.clone()));
        self.told.clear();
        found
    }
}

/// The domain of each of `count` members.
fn around(count: u32) -> Neighbourhood {
    Neighbourhood::alike(vec![1; count as usize - 1].into(), 16)
}

fn start(shared: &Arc<Shared>, me: u32, epoch: u32, count: u32, now_ns: u64) -> Member {
    let others = (0..count).filter(|&other| other != me).collect();
    Member::new(shared.clone(), me, epoch, others, u64::from(me) + 1, now_ns)
}

fn joined(node: u32, frames: u32) -> Event {
    Event::Joined { node, kind: PeerKind { hops: 1, frames, page_ns: 1000 } }
}

fn any(_: &Note) -> bool {
    true
}

#[test]
fn frame_is_free_only_when_the_page_is_confirmed() {
    let mut cluster = Cluster::new(3, |_| ());
    cluster.event(0, Event::PageOut(7));
    cluster.pass(50 * MS, |note| !matches!(note, Note::Stored(..)));
    assert!(!cluster.was_told(0, &Command::Gone(7)));
    assert_eq!(cluster.guests(1), 1, "repeated requests keep one guest");
    cluster.pass(100 * MS, any);
    assert!(cluster.was_told(0, &Command::Gone(7)));
    assert_eq!(cluster.members[0].places(7).len(), 1);
}

#[test]
fn page_goes_to_disk_where_nobody_answers() {
    let mut cluster = Cluster::new(3, |_| ());
    cluster.event(0, Event::PageOut(7));
    cluster.pass(5_000 * MS, |note| !matches!(note, Note::Store(_)));
    let version = cluster.told.iter().find_map(|(node, command)| match command {
        Command::WriteDisk(7, version) if *node == 0 => Some(*version),
        _ => None,
    });
    cluster.event(0, Event::DiskWritten(7, version.expect("the page goes to disk")));
    assert!(cluster.was_told(0, &Command::Gone(7)));
    cluster.event(0, Event::PageIn(7));
    assert!(cluster.was_told(0, &Command::ReadDisk(7)));
}

#[test]
fn renewal_replaces_a_lost_answer_and_a_lost_discard() {
    let mut cluster = Cluster::new(3, |_| ());
    cluster.event(0, Event::PageOut(7));
    cluster.pass(20 * MS, |note| !matches!(note, Note::Stored(..)));
    cluster.pass(1_000 * MS, |note| !matches!(note, Note::Stored(..)));
    // Attempts were given up, the page went elsewhere or to disk; nobody keeps it in vain.
    cluster.pass(2_000 * MS, any);
    let places = cluster.members[0].places(7).len();
    assert_eq!(cluster.guests(1) + cluster.guests(2), places);
    cluster.event(0, Event::Drop(7));
    cluster.pass(20 * MS, |note| !matches!(note, Note::Discard(..)));
    cluster.pass(1_000 * MS, |note| !matches!(note, Note::Discard(..)));
    assert_eq!(cluster.guests(1) + cluster.guests(2), 0);
}

#[test]
fn old_discard_does_not_harm_a_newer_placement() {
    let mut cluster = Cluster::new(2, |_| ());
    let out_and_in = |cluster: &mut Cluster| {
        cluster.event(0, Event::PageOut(7));
        cluster.pass(5 * MS, any);
        let (name, number) = cluster.members[1].guest(0, 7).expect("it is kept");
        cluster.event(0, Event::PageIn(7));
        cluster.pass(5 * MS, any);
        assert!(cluster.was_told(0, &Command::Here(7)));
        Note::Discard(name, number)
    };
    let old = out_and_in(&mut cluster);
    cluster.event(0, Event::PageOut(7));
    cluster.pass(5 * MS, any);
    cluster.event(1, Event::Received { from: 0, epoch: 1, note: old });
    assert_eq!(cluster.guests(1), 1);
    cluster.event(0, Event::PageIn(7));
    cluster.pass(5 * MS, any);
    assert!(cluster.was_told(0, &Command::Here(7)));
}

#[test]
fn repeated_store_after_its_end_is_cleaned_up() {
    let mut cluster = Cluster::new(2, |_| ());
    cluster.event(0, Event::PageOut(7));
    let stores: Vec<_> =
        cluster.wire.iter().filter(|(.., note)| note.has_page()).cloned().collect();
    cluster.pass(5 * MS, any);
    cluster.event(0, Event::Drop(7));
    cluster.pass(5 * MS, any);
    cluster.wire.extend(stores);
    cluster.deliver(|note| !matches!(note, Note::Stored(..)));
    assert_eq!(cluster.guests(1), 1);
    cluster.pass(500 * MS, any);
    assert_eq!(cluster.guests(1), 0);
}

#[test]
fn owner_that_restarts_or_is_silent_leaves_no_guests() {
    for restarts in [true, false] {
        let mut cluster = Cluster::new(2, |_| ());
        (0..5).for_each(|page| cluster.event(0, Event::PageOut(page)));
        cluster.pass(5 * MS, any);
        assert_eq!(cluster.guests(1), 5);
        if restarts {
            cluster.restart(0);
            cluster.pass(100 * MS, any);
        } else {
            cluster.pass(600 * MS, |_| false);
            assert_eq!(cluster.guests(1), 5, "the lease is not over");
            cluster.pass(400 * MS, |_| false);
        }
        assert_eq!(cluster.guests(1), 0);
    }
}

#[test]
fn copies_are_at_different_nodes_and_made_again() {
    let mut cluster = Cluster::new(4, |config| config.copies = 2);
    cluster.event(0, Event::PageOut(7));
    cluster.pass(20 * MS, any);
    let before = cluster.members[0].places(7);
    assert!(before.len() == 2 && before[0].0 != before[1].0, "{before:?}");
    cluster.restart(before[0].0);
    cluster.pass(1_000 * MS, any);
    let after = cluster.members[0].places(7);
    assert!(after.len() == 2 && after[0].0 != after[1].0, "{after:?}");
    cluster.restart(after[1].0);
    cluster.event(0, Event::PageIn(7));
    cluster.pass(100 * MS, any);
    assert!(cluster.was_told(0, &Command::Here(7)));
}

#[test]
fn parity_needs_any_of_its_pieces() {
    let mut cluster = Cluster::new(5, |config| config.parity = vec![2, 1]);
    cluster.event(0, Event::PageOut(7));
    cluster.pass(20 * MS, any);
    let places = cluster.members[0].places(7);
    assert_eq!(places.len(), 3);
    cluster.restart(places[0].0);
    cluster.event(0, Event::PageIn(7));
    cluster.pass(100 * MS, any);
    let pieces = cluster.told.iter().filter(|(_, told)| matches!(told, Command::Piece(7, _)));
    assert_eq!(pieces.count(), 2);
    assert!(cluster.was_told(0, &Command::Here(7)));
}

#[test]
fn page_without_a_holder_is_told_lost_and_a_silent_one_given_up() {
    for silent in [false, true] {
        let mut cluster = Cluster::new(2, |config| config.give_up_ns = 3_000 * MS);
        cluster.event(0, Event::PageOut(7));
        cluster.pass(5 * MS, any);
        if !silent {
            cluster.restart(1);
        }
        cluster.told.clear();
        cluster.event(0, Event::PageIn(7));
        cluster.pass(3_000 * MS, |_| !silent);
        let lost = cluster
            .told
            .iter()
            .any(|(node, told)| *node == 0 && matches!(told, Command::Lost(7, _)));
        assert!(lost, "{:?}", cluster.told);
    }
}

#[test]
fn node_that_joins_gets_pages_once_it_reports() {
    for before in [1, 2] {
        let mut cluster = Cluster::new(before, |_| ());
        // Whoever is there already takes no pages.
        (1..before).for_each(|node| cluster.event(node, Event::Drain(true)));
        cluster.pass(20 * MS, any);
        cluster.event(0, Event::PageOut(6));
        assert!(
            cluster.told.iter().any(|(_, told)| matches!(told, Command::WriteDisk(6, _))),
            "{:?}",
            cluster.told
        );
        let node = cluster.join();
        assert_eq!(cluster.believed(node), 0);
        cluster.pass(60 * MS, any);
        assert_eq!(cluster.believed(node), 16);
        cluster.event(0, Event::PageOut(7));
        cluster.pass(20 * MS, any);
        assert_eq!(cluster.guests(node), 1);
        // It also lends from those that were there.
        cluster.event(node, Event::PageOut(8));
        cluster.pass(20 * MS, any);
        assert_eq!(cluster.guests(0), 1);
    }
}

#[test]
fn only_copy_at_a_node_that_left_is_lost() {
    for (waits, leaves) in [(false, true), (true, true), (false, false)] {
        let mut cluster = Cluster::new(2, |_| ());
        cluster.event(0, Event::PageOut(7));
        cluster.pass(5 * MS, any);
        cluster.told.clear();
        if waits {
            cluster.event(0, Event::PageIn(7));
        }
        if leaves {
            cluster.leave(1);
            assert!(cluster.members[0].places(7).is_empty());
        } else {
            // A suspicion may be wrong.
            cluster.event(0, Event::Suspected(1));
        }
        assert_eq!(cluster.believed(1), 0);
        if !waits {
            cluster.event(0, Event::PageIn(7));
        }
        cluster.pass(100 * MS, any);
        assert_eq!(cluster.told.contains(&(0, Command::Here(7))), !leaves);
        assert_eq!(cluster.is_told_lost(7), leaves);
    }
}

#[test]
fn node_that_left_returns_under_its_id_as_an_empty_one() {
    let mut cluster = Cluster::new(4, |config| config.copies = 2);
    cluster.event(0, Event::PageOut(7));
    cluster.pass(20 * MS, any);
    let node = cluster.members[0].places(7)[0].0;
    cluster.leave(node);
    assert_eq!(cluster.members[0].places(7).len(), 1);
    cluster.pass(1_000 * MS, any);
    let places = cluster.members[0].places(7);
    assert!(places.len() == 2 && places.iter().all(|place| place.0 != node), "{places:?}");
    cluster.gone.clear();
    cluster.restart(node);
    cluster.event(0, joined(node, 32));
    let member = &cluster.members[0];
    let (peer, view) = (member.base.peer(node).unwrap(), member.placer().view());
    assert_eq!((view.len(), view.hops()[usize::from(peer.0)], view.capacity(peer)), (3, 1, 32));
    assert_eq!(cluster.believed(node), 0);
    // What its earlier incarnation sent arrives late.
    let late = |sequence| Note::Told { sequence, value: 5 };
    cluster.pass(60 * MS, any);
    assert_eq!(cluster.believed(node), 16);
    cluster.event(0, Event::Received { from: node, epoch: 1, note: late(1_000_000) });
    assert_eq!(cluster.believed(node), 16);
    cluster.event(0, Event::Received { from: node, epoch: 2, note: late(1_000_000) });
    assert_eq!(cluster.believed(node), 5, "the present one is believed");
    // It keeps pages again, and nothing of before.
    assert_eq!(cluster.guests(node), 0);
    cluster.event(0, Event::PageOut(8));
    cluster.pass(20 * MS, any);
    assert!(cluster.members[0].places(8).iter().any(|place| place.0 == node));
    assert_eq!(cluster.guests(node), 1);
    for page in [7, 8] {
        cluster.event(0, Event::PageIn(page));
        cluster.pass(20 * MS, any);
        assert!(cluster.was_told(0, &Command::Here(page)), "{page}");
    }
}

#[test]
fn node_is_emptied_without_loss() {
    let mut cluster = Cluster::new(3, |_| ());
    (0..10).for_each(|page| cluster.event(0, Event::PageOut(page)));
    cluster.pass(20 * MS, any);
    assert_eq!(cluster.guests(1), 10);
    cluster.event(1, Event::Drain(true));
    cluster.pass(1_000 * MS, any);
    assert_eq!((cluster.guests(1), cluster.guests(2)), (0, 10));
    assert!(cluster.was_told(1, &Command::Drained));
    assert!((0..10).all(|page| cluster.members[0].places(page).len() == 1));
}

#[test]
fn host_without_an_answer_spills_to_its_disk() {
    let mut cluster = Cluster::new(2, |_| ());
    cluster.event(0, Event::PageOut(7));
    cluster.pass(5 * MS, any);
    cluster.event(1, Event::Displace { owner: 0, page: 7 });
    cluster.pass(300 * MS, |_| false);
    let (_, number) = cluster.members[1].guest(0, 7).expect("it is kept");
    assert!(cluster.was_told(1, &Command::Spill { owner: 0, page: 7, number }));
    cluster.event(0, Event::PageIn(7));
    cluster.pass(100 * MS, any);
    assert!(cluster.was_told(0, &Command::Here(7)));
}
