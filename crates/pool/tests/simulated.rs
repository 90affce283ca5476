//! Many members in one process, over a simulated network: what membership costs, how fast news
//! travels, and what does not get in.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::{Ipv4Addr, SocketAddr};

use hiroma_far_wire::Key;
use hiroma_pool::{
    Condition, DATAGRAM_BYTES_MAX, Health, Id, MemberView, Node, Refusal, Report, Settings,
};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// Header of IPv4 and UDP.
const BELOW_BYTES: usize = 28;

fn address(number: usize) -> SocketAddr {
    let [_, a, b, c] = (number as u32).to_be_bytes();
    (Ipv4Addr::new(10, a, b, c), 7070).into()
}

fn node(number: usize, incarnation: u64, boot: u64) -> Node {
    let condition = Condition { lent_chunks: 1000, free_chunks: 1000, ..Condition::default() };
    let report = Report {
        id: Id { addr: address(number), incarnation },
        boot,
        sequence: 1,
        name: format!("machine-{number}"),
        version: 1,
        condition,
        labels: vec![("rack".to_owned(), format!("r{}", number / 20))],
    };
    let key = Some(Key::from_file_content(b"0123456789abcdef").unwrap());
    let mut secret = [7; 32];
    secret[..8].copy_from_slice(&boot.to_le_bytes());
    Node::new(Settings { report, key, secret })
}

/// A datagram on its way: when it arrives, a number for order, from, to, content.
type Flight = Reverse<(u64, u64, usize, usize, Vec<u8>)>;

struct Net {
    nodes: Vec<Option<Node>>,
    flying: BinaryHeap<Flight>,
    rng: SmallRng,
    now_ms: u64,
    count: u64,
    sent_bytes: u64,
    loss_percent: u32,
}

impl Net {
    fn new(members: usize) -> Net {
        let nodes = (0..members).map(|n| Some(node(n, 1000, n as u64 + 1))).collect();
        let rng = SmallRng::seed_from_u64(1);
        Net {
            nodes,
            flying: BinaryHeap::new(),
            rng,
            now_ms: 0,
            count: 0,
            sent_bytes: 0,
            loss_percent: 1,
        }
    }

    fn number(addr: SocketAddr) -> usize {
        let SocketAddr::V4(addr) = addr else { panic!("{addr}") };
        u32::from_be_bytes(addr.ip().octets()) as usize & 0xff_ffff
    }

    fn send(&mut self, from: usize) {
        let Some(node) = &mut self.nodes[from] else { return };
        for (to, bytes) in node.take_out() {
            assert!(bytes.len() <= DATAGRAM_BYTES_MAX);
            self.sent_bytes += (bytes.len() + BELOW_BYTES) as u64;
            if self.rng.random_range(0..100) >= self.loss_percent {
                self.count += 1;
                let at = self.now_ms + self.rng.random_range(1..5);
                let to = Net::number(to);
                self.flying.push(Reverse((at, self.count, from, to, bytes)));
            }
        }
    }

    /// Member `number` joins through member 0, as it does over a connection.
    fn join(&mut self, number: usize) {
        let members = self.nodes[0].as_ref().unwrap().members(self.now_ms);
        let now_ms = self.now_ms;
        self.nodes[number].as_mut().unwrap().learn(&members, now_ms);
        self.send(number);
    }

    fn run(&mut self, ms: u64) {
        let end = self.now_ms + ms;
        while self.now_ms < end {
            self.now_ms += 1;
            while self.flying.peek().is_some_and(|Reverse((at, ..))| *at <= self.now_ms) {
                let Some(Reverse((_, _, from, to, bytes))) = self.flying.pop() else { break };
                if let Some(node) = &mut self.nodes[to] {
                    // One that is overtaken by many others counts as a repetition.
                    let received = node.receive(address(from), &bytes, self.now_ms);
                    assert!(matches!(received, Ok(()) | Err(Refusal::Replay)), "{received:?}");
                    self.send(to);
                }
            }
            for number in 0..self.nodes.len() {
                let Some(node) = &mut self.nodes[number] else { continue };
                if node.next_ms() <= self.now_ms {
                    node.tick(self.now_ms);
                    self.send(number);
                }
            }
        }
    }

    /// Runs until it holds of member `number` as all others see it (of many, every twentieth);
    /// returns how long that took.
    fn until(&mut self, number: usize, most_ms: u64, holds: impl Fn(&MemberView) -> bool) -> u64 {
        let start = self.now_ms;
        let step = if self.nodes.len() > 100 { 20 } else { 1 };
        loop {
            let sees = |node: &Node| {
                let members = node.members(self.now_ms);
                members.iter().any(|member| member.address == address(number) && holds(member))
            };
            let watched = (0..self.nodes.len()).step_by(step).filter(|n| *n != number);
            let blind = watched.filter(|n| !self.nodes[*n].as_ref().is_none_or(sees)).count();
            if blind == 0 {
                return self.now_ms - start;
            }
            assert!(self.now_ms < start + most_ms, "{blind} do not see it");
            self.run(100);
        }
    }
}

fn joined(members: usize) -> Net {
    let mut net = Net::new(members);
    for number in 1..members {
        net.join(number);
        if number % 10 == 0 {
            net.run(100);
        }
    }
    net.run(20_000);
    let missing: usize =
        net.nodes.iter().flatten().map(|node| members - node.members(net.now_ms).len()).sum();
    println!("{members} members: {missing} of {} pairs unknown after 20 s", members * members);
    assert!(missing * 100 <= members * members, "{missing}");
    // Members ask one another for all that they know, now and then.
    for number in (0..3 * members).map(|n| n % members) {
        let other = net.rng.random_range(0..members);
        let told = net.nodes[other].as_ref().unwrap().members(net.now_ms);
        let now_ms = net.now_ms;
        net.nodes[number].as_mut().unwrap().learn(&told, now_ms);
        net.send(number);
        net.run(5);
    }
    net.run(30_000);
    for (n, node) in net.nodes.iter().enumerate() {
        let seen = node.as_ref().unwrap().members(net.now_ms);
        let alive = seen.iter().filter(|m| m.health != Health::Dead && m.sequence > 0).count();
        assert_eq!((alive, seen.len()), (members, members), "member {n} knows all");
    }
    net
}

#[test]
fn thousand_members_cost_little_and_news_travels() {
    let mut net = joined(1000);
    // Free memory changes all the time at every member, as it does in a pool that is used.
    net.sent_bytes = 0;
    let seconds = 30;
    for second in 0..seconds {
        for node in net.nodes.iter_mut().flatten() {
            let free_chunks = net.rng.random_range(0..1000);
            let condition = Condition { lent_chunks: 1000, free_chunks, ..Condition::default() };
            node.set_condition(condition, net.now_ms);
        }
        net.run(1000);
        let _ = second;
    }
    let bytes_per_s = net.sent_bytes / 1000 / seconds;
    println!("1000 members, free memory changing each second: {bytes_per_s} B/s per member");
    assert!(bytes_per_s < 5000, "{bytes_per_s}");

    let draining =
        Condition { draining: true, ..net.nodes[5].as_ref().unwrap().report().condition };
    let now_ms = net.now_ms;
    net.nodes[5].as_mut().unwrap().set_condition(draining, now_ms);
    let told_ms = net.until(5, 60_000, |member| member.draining);
    println!("1000 members: all know of a drain after {told_ms} ms");
    net.nodes[7] = None;
    let dead_ms = net.until(7, 60_000, |member| member.health == Health::Dead);
    println!("1000 members: all know of a death after {dead_ms} ms");
}

#[test]
fn restarted_member_is_another_one_and_clocks_may_jump_back() {
    let mut net = joined(20);
    let before = net.nodes[0].as_ref().unwrap().members(0)[3].clone();
    // The new process has a clock that is behind that of the old one: a smaller incarnation.
    net.nodes[3] = Some(node(3, 1, 5000));
    net.join(3);
    let boot = 5000;
    net.until(3, 20_000, |member| member.boot == boot && member.health == Health::Alive);
    let after = net.nodes[0].as_ref().unwrap().members(0)[3].clone();
    assert!(after.incarnation > before.incarnation && after.boot != before.boot);
    assert_eq!(after.name, before.name);
}

#[test]
fn partitioned_member_comes_back_by_itself_as_the_same_process() {
    let mut net = joined(20);
    let away = net.nodes[4].take();
    net.until(4, 30_000, |member| member.health == Health::Dead);
    net.nodes[4] = away;
    let boot = 5;
    let back = net.until(4, 200_000, |m| m.boot == boot && m.health == Health::Alive);
    println!("back {back} ms after the partition has healed");
}

/// Twenty members that join through the one before them, each some time after it, from a seed.
fn chained(seed: u64) -> Net {
    let mut net = Net::new(20);
    net.rng = SmallRng::seed_from_u64(seed);
    for number in 1..net.nodes.len() {
        let told = net.nodes[number - 1].as_ref().unwrap().members(net.now_ms);
        let now_ms = net.now_ms;
        net.nodes[number].as_mut().unwrap().learn(&told, now_ms);
        net.send(number);
        net.run(20);
    }
    net
}

#[test]
fn gossip_alone_reaches_nearly_all_soon() {
    let (mut joins_ms, mut deaths_ms) = (Vec::new(), Vec::new());
    for seed in 0..50 {
        let mut net = chained(seed);
        let all = (0..net.nodes.len()).map(|n| net.until(n, 60_000, |m| m.health == Health::Alive));
        joins_ms.push(all.sum::<u64>());
        net.run(5000);
        net.nodes[5] = None;
        deaths_ms.push(net.until(5, 60_000, |member| member.health == Health::Dead));
    }
    // Simulated time, and the same on every machine.
    for (what, mut ms, most_ms) in [("joins", joins_ms, 2000), ("deaths", deaths_ms, 8000)] {
        ms.sort_unstable();
        let (half, most) = (ms[ms.len() / 2], ms[ms.len() * 9 / 10]);
        println!("20 members: all know of {what} after {half} ms, in 9 of 10 cases {most} ms");
        assert!(most <= most_ms, "{what}: {most} ms");
    }
}
