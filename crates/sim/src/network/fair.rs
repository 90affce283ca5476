//! Fair sharing: every message is a flow over its route, and all flows have the largest rates at
//! which none can get more without taking from one that has no more than it (max-min fairness).
//!
//! Rates are found by progressive filling, anew at every start and end of a flow, for the flows
//! that share links with it, directly or through others. A flow first waits for the latency of its
//! route; then its bytes are on all of its links at the same time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::fabric::{Cargo, Done, LinkSpec, Signals};
use crate::config::Sharing;

/// Events of this network: the number of a flow that starts, or one of these.
const SOLVE: u32 = u32::MAX;
const END: u32 = u32::MAX - 1;
/// Never.
const NEVER: u64 = u64::MAX;

#[derive(Debug, Default)]
struct Flow {
    message: u32,
    /// Counts flows.
    sequence: u64,
    route: Vec<u32>,
    /// Where the flow is in the list of each link.
    places: Vec<u32>,
    remaining_bytes: f64,
    /// Bytes per ns.
    rate: f64,
    weight: f64,
    /// When `remaining_bytes` was true, ns.
    since_ns: u64,
    end_ns: u64,
    /// Whether its rate is determined in this round.
    fixed: bool,
    round: u64,
}

#[derive(Debug)]
struct Link {
    /// Bytes per ns; 0 while the link has failed.
    capacity: f64,
    /// What it has when it works.
    capacity_up: f64,
    latency_ns: u64,
    /// Flows, and the position of the link on their routes.
    flows: Vec<(u32, u32)>,
    /// Sum of the rates of its flows, since `since_ns`.
    rate: f64,
    since_ns: u64,
    /// Bytes carried since measuring began.
    carried: f64,
    /// While rates are determined: capacity left, weights and number of flows without a rate.
    left: f64,
    weights: f64,
    open: u32,
    round: u64,
}

/// All links and flows.
#[derive(Debug)]
pub struct Fair {
    links: Vec<Link>,
    flows: Vec<Flow>,
    free: Vec<u32>,
    sharing: Sharing,
    /// Links whose flows have changed since rates were last determined.
    dirty: Vec<u32>,
    /// Ends of flows, in the order of their starts; outdated entries differ from the flow's own
    /// `end_ns`.
    ends: BinaryHeap<Reverse<(u64, u64, u32)>>,
    /// The earliest end for which there is an event, ns.
    woken_ns: u64,
    solving: bool,
    round: u64,
    sent: u64,
    #[cfg(test)]
    events: u64,
    /// Reused buffers.
    some_links: Vec<u32>,
    some_flows: Vec<u32>,
    levels: BinaryHeap<Reverse<(u64, u32)>>,
}

impl Fair {
    /// Idle links.
    pub fn new(links: &[LinkSpec], sharing: Sharing) -> Self {
        let links = links.iter().map(|spec| {
            let capacity = spec.bytes_per_s as f64 / 1e9;
            Link {
                capacity,
                capacity_up: capacity,
                latency_ns: spec.latency_ns,
                flows: Vec::new(),
                rate: 0.0,
                since_ns: 0,
                carried: 0.0,
                left: 0.0,
                weights: 0.0,
                open: 0,
                round: 0,
            }
        });
        Fair {
            links: links.collect(),
            flows: Vec::new(),
            free: Vec::new(),
            sharing,
            dirty: Vec::new(),
            ends: BinaryHeap::new(),
            woken_ns: NEVER,
            solving: false,
            round: 0,
            sent: 0,
            #[cfg(test)]
            events: 0,
            some_links: Vec::new(),
            some_flows: Vec::new(),
            levels: BinaryHeap::new(),
        }
    }

    /// A message starts over `route`.
    pub fn send(&mut self, now_ns: u64, cargo: Cargo, route: &[u32], signals: &mut Signals) {
        let number = self.free.pop().unwrap_or_else(|| {
            self.flows.push(Flow::default());
            self.flows.len() as u32 - 1
        });
        let hops = route.len() as u64;
        let latency_ns =
            route.iter().map(|&link| self.links[link as usize].latency_ns).sum::<u64>()
                + hops * cargo.overhead_ns;
        let flow = &mut self.flows[number as usize];
        self.sent += 1;
        (flow.message, flow.sequence) = (cargo.message, self.sent);
        flow.route.clear();
        flow.route.extend_from_slice(route);
        flow.remaining_bytes = cargo.bytes as f64;
        flow.weight = match self.sharing {
            Sharing::Equal => 1.0,
            Sharing::ByLatency => 1.0 / latency_ns.max(1) as f64,
        };
        (flow.rate, flow.end_ns) = (0.0, NEVER);
        signals.wake(now_ns + latency_ns, number);
    }

    /// An event of this network.
    pub fn event(&mut self, now_ns: u64, what: u32, signals: &mut Signals) {
        #[cfg(test)]
        {
            self.events += 1;
        }
        match what {
            SOLVE => self.solve(now_ns, signals),
            END => self.end(now_ns, signals),
            flow => self.start(now_ns, flow, signals),
        }
    }

    fn start(&mut self, now_ns: u64, number: u32, signals: &mut Signals) {
        let flow = &mut self.flows[number as usize];
        flow.since_ns = now_ns;
        flow.places.clear();
        for (position, &link) in (0..).zip(&flow.route) {
            let link = &mut self.links[link as usize];
            flow.places.push(link.flows.len() as u32);
            link.flows.push((number, position));
        }
        // All of them share flows: one leads to the others.
        self.dirty.extend(flow.route.first());
        self.solve_soon(now_ns, signals);
    }

    /// Rates are determined once for all flows that start and end at the same time.
    fn solve_soon(&mut self, now_ns: u64, signals: &mut Signals) {
        if !self.solving {
            self.solving = true;
            signals.wake(now_ns, SOLVE);
        }
    }

    /// Flows whose last byte arrives now end.
    fn end(&mut self, now_ns: u64, signals: &mut Signals) {
        if self.woken_ns != now_ns {
            // An earlier end came in between, whose event has taken over.
            return;
        }
        self.woken_ns = NEVER;
        while let Some(&Reverse((end_ns, _, number))) = self.ends.peek() {
            if self.flows[number as usize].end_ns != end_ns {
                self.ends.pop();
                continue;
            }
            if end_ns > now_ns {
                break;
            }
            self.ends.pop();
            self.remove(number);
            signals.done.push_back(Done::Sent(self.flows[number as usize].message));
            signals.done.push_back(Done::Arrived(self.flows[number as usize].message));
            self.solve_soon(now_ns, signals);
        }
        self.wake_at_next_end(signals);
    }

    fn remove(&mut self, number: u32) {
        let flow = &mut self.flows[number as usize];
        flow.end_ns = NEVER;
        let (route, places) = (std::mem::take(&mut flow.route), std::mem::take(&mut flow.places));
        for (&link, &place) in route.iter().zip(&places) {
            let flows = &mut self.links[link as usize].flows;
            flows.swap_remove(place as usize);
            if let Some(&(moved, position)) = flows.get(place as usize) {
                self.flows[moved as usize].places[position as usize] = place;
            }
            self.dirty.push(link);
        }
        let flow = &mut self.flows[number as usize];
        (flow.route, flow.places) = (route, places);
        self.free.push(number);
    }

    fn wake_at_next_end(&mut self, signals: &mut Signals) {
        while let Some(&Reverse((end_ns, _, number))) = self.ends.peek() {
            if self.flows[number as usize].end_ns != end_ns {
                self.ends.pop();
                continue;
            }
            if end_ns < self.woken_ns {
                self.woken_ns = end_ns;
                signals.wake(end_ns, END);
            }
            break;
        }
    }

    /// Determines the rates of all flows that the changes since the last time may affect.
    fn solve(&mut self, now_ns: u64, signals: &mut Signals) {
        self.solving = false;
        self.round += 1;
        self.gather(now_ns);
        self.fill();
        for place in 0..self.some_flows.len() {
            let number = self.some_flows[place];
            let flow = &self.flows[number as usize];
            if flow.end_ns != NEVER && flow.end_ns <= now_ns {
                // It ends at this very time, and its event follows.
                continue;
            }
            let end_ns = if flow.rate > 0.0 {
                now_ns + (flow.remaining_bytes / flow.rate).ceil().max(0.0) as u64
            } else {
                NEVER
            };
            if end_ns != flow.end_ns {
                let flow = &mut self.flows[number as usize];
                flow.end_ns = end_ns;
                let sequence = flow.sequence;
                if end_ns != NEVER {
                    self.ends.push(Reverse((end_ns, sequence, number)));
                }
            }
        }
        self.wake_at_next_end(signals);
    }

    /// Finds the links and flows that are connected with changed links, and brings their accounts
    /// up to date.
    fn gather(&mut self, now_ns: u64) {
        let Fair { links, flows, dirty, some_links, some_flows, levels, round, .. } = self;
        some_links.clear();
        some_flows.clear();
        levels.clear();
        for number in dirty.drain(..) {
            if std::mem::replace(&mut links[number as usize].round, *round) != *round {
                some_links.push(number);
            }
        }
        let mut next = 0;
        while next < some_links.len() {
            let number = some_links[next];
            next += 1;
            let link = &mut links[number as usize];
            link.settle(now_ns);
            (link.left, link.rate) = (link.capacity, 0.0);
            (link.weights, link.open) = (0.0, link.flows.len() as u32);
            for place in 0..link.flows.len() {
                let (number_of_flow, _) = links[number as usize].flows[place];
                let flow = &mut flows[number_of_flow as usize];
                links[number as usize].weights += flow.weight;
                if flow.round == *round {
                    continue;
                }
                flow.round = *round;
                flow.fixed = false;
                let passed = flow.rate * (now_ns - flow.since_ns) as f64;
                flow.remaining_bytes = (flow.remaining_bytes - passed).max(0.0);
                flow.since_ns = now_ns;
                some_flows.push(number_of_flow);
                for &other in &flow.route {
                    if std::mem::replace(&mut links[other as usize].round, *round) != *round {
                        some_links.push(other);
                    }
                }
            }
            let link = &links[number as usize];
            if link.open > 0 {
                levels.push(Reverse((link.level(), number)));
            }
        }
    }

    /// Progressive filling: the link that is full first determines the rates of its flows, and so
    /// on with what these leave to others.
    fn fill(&mut self) {
        let Fair { links, flows, levels, .. } = self;
        while let Some(Reverse((level, number))) = levels.pop() {
            let link = &links[number as usize];
            if link.open == 0 {
                continue;
            }
            // Levels only rise while others are filled.
            let now = link.level();
            if now > level {
                levels.push(Reverse((now, number)));
                continue;
            }
            let level = f64::from_bits(now);
            for place in 0..link.flows.len() {
                let (number_of_flow, _) = links[number as usize].flows[place];
                let flow = &mut flows[number_of_flow as usize];
                if std::mem::replace(&mut flow.fixed, true) {
                    continue;
                }
                flow.rate = level * flow.weight;
                for &other in &flow.route {
                    let other = &mut links[other as usize];
                    other.open -= 1;
                    other.left = (other.left - flow.rate).max(0.0);
                    other.weights -= flow.weight;
                    other.rate += flow.rate;
                }
            }
        }
    }

    /// A link fails, or works again.
    pub fn set_up(&mut self, now_ns: u64, link: u32, up: bool, signals: &mut Signals) {
        let state = &mut self.links[link as usize];
        state.capacity = if up { state.capacity_up } else { 0.0 };
        self.dirty.push(link);
        self.solve_soon(now_ns, signals);
    }

    /// Resets the measurements.
    pub fn restart_measuring(&mut self, now_ns: u64) {
        for link in &mut self.links {
            link.settle(now_ns);
            link.carried = 0.0;
        }
    }

    /// Time that all links together, and the busiest one, needed at full rate for what they have
    /// carried since measuring began, ns.
    pub fn busy_ns(&mut self, now_ns: u64) -> (u64, u64) {
        self.links.iter_mut().fold((0, 0), |(sum, most), link| {
            link.settle(now_ns);
            let busy_ns = (link.carried / link.capacity_up).round() as u64;
            (sum + busy_ns, busy_ns.max(most))
        })
    }

    /// Heap memory, bytes.
    pub fn heap_bytes(&self) -> usize {
        let links = self.links.iter().map(|link| size_of::<Link>() + link.flows.capacity() * 8);
        let flows = self
            .flows
            .iter()
            .map(|flow| size_of::<Flow>() + (flow.route.capacity() + flow.places.capacity()) * 4);
        links.sum::<usize>() + flows.sum::<usize>() + self.ends.capacity() * 24
    }
}

impl Link {
    /// Brings the account of carried bytes up to `now_ns`.
    fn settle(&mut self, now_ns: u64) {
        self.carried += self.rate * (now_ns - self.since_ns) as f64;
        self.since_ns = now_ns;
    }

    /// The rate for one unit of weight at which the link is full, as bits: those of numbers that
    /// are not negative have the same order.
    fn level(&self) -> u64 {
        (self.left / self.weights.max(f64::MIN_POSITIVE)).max(0.0).to_bits()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Runs the network to `end_ns`, and checks the rates after each event.
    fn run(fair: &mut Fair, signals: &mut Signals, end_ns: u64) -> Vec<(u64, u32)> {
        let mut arrived = Vec::new();
        loop {
            let due = |(place, &(time_ns, _)): (usize, &(u64, u32))| (time_ns, place);
            let Some((time_ns, place)) = signals.wakes.iter().enumerate().map(due).min() else {
                break;
            };
            if time_ns > end_ns {
                break;
            }
            let (_, what) = signals.wakes.remove(place);
            fair.event(time_ns, what, signals);
            if !fair.solving {
                check_rates(fair);
            }
            for done in signals.done.drain(..) {
                if let Done::Arrived(message) = done {
                    arrived.push((time_ns, message));
                }
            }
        }
        arrived
    }

    /// The definition of max-min fairness: every flow has a full link on which no flow has more
    /// for its weight.
    fn check_rates(fair: &Fair) {
        let under_way = |flow: &&Flow| flow.since_ns > 0 && flow.end_ns != NEVER;
        for flow in fair.flows.iter().filter(under_way) {
            let is_bottleneck = |&&number: &&u32| {
                let link = &fair.links[number as usize];
                let flows = || link.flows.iter().map(|&(flow, _)| &fair.flows[flow as usize]);
                let sum: f64 = flows().map(|flow| flow.rate).sum();
                assert!(sum <= link.capacity * (1.0 + 1e-9), "{sum} on {}", link.capacity);
                let most = flows().map(|flow| flow.rate / flow.weight).fold(0.0, f64::max);
                sum >= link.capacity * (1.0 - 1e-9)
                    && flow.rate / flow.weight >= most * (1.0 - 1e-9)
            };
            assert!(flow.route.iter().any(|link| is_bottleneck(&link)), "{flow:?}");
        }
    }

    proptest! {
        #[test]
        fn rates_are_max_min_fair_and_all_bytes_arrive(
            rates in prop::collection::vec(1u64..50, 1..8),
            sends in prop::collection::vec(
                (1u64..2000, prop::collection::btree_set(0usize..8, 1..5), 1u64..5000), 1..40),
            by_latency in any::<bool>(),
        ) {
            let spec = |&rate: &u64| {
                LinkSpec { bytes_per_s: rate * 100_000_000, latency_ns: rate * 7 % 40 }
            };
            let specs: Vec<LinkSpec> = rates.iter().map(spec).collect();
            let sharing = if by_latency { Sharing::ByLatency } else { Sharing::Equal };
            let (mut fair, mut signals) = (Fair::new(&specs, sharing), Signals::default());
            let (mut now_ns, mut arrived, count) = (1, Vec::new(), sends.len());
            let mut alone_ns = Vec::new();
            for (number, (gap_ns, links, bytes)) in sends.into_iter().enumerate() {
                now_ns += gap_ns;
                arrived.extend(run(&mut fair, &mut signals, now_ns));
                let mut route: Vec<u32> =
                    links.iter().map(|link| (link % specs.len()) as u32).collect();
                route.sort_unstable();
                route.dedup();
                let cargo =
                    Cargo { message: number as u32, bytes, overhead_ns: 3, small: false };
                fair.send(now_ns, cargo, &route, &mut signals);
                let slowest = route.iter().map(|&link| specs[link as usize].bytes_per_s).min();
                let latency_ns: u64 =
                    route.iter().map(|&link| specs[link as usize].latency_ns + 3).sum();
                let bytes_ns = bytes as f64 * 1e9 / slowest.unwrap() as f64;
                alone_ns.push((now_ns, latency_ns + bytes_ns.floor() as u64));
            }
            arrived.extend(run(&mut fair, &mut signals, u64::MAX));
            prop_assert_eq!(arrived.len(), count);
            // For each flow a start, a solution and an end, and what is outdated in between.
            prop_assert!(fair.events < 12 * count as u64 + 12, "{} events", fair.events);
            for (there_ns, message) in arrived {
                let (sent_ns, least_ns) = alone_ns[message as usize];
                prop_assert!(there_ns >= sent_ns + least_ns, "faster than alone");
            }
        }
    }

    #[test]
    fn a_failed_link_stops_its_flows_until_it_is_back() {
        let spec = LinkSpec { bytes_per_s: 1_000_000_000, latency_ns: 10 };
        let (mut fair, mut signals) = (Fair::new(&[spec; 2], Sharing::Equal), Signals::default());
        let cargo = Cargo { message: 0, bytes: 1000, overhead_ns: 0, small: false };
        fair.send(0, cargo, &[0, 1], &mut signals);
        assert_eq!(run(&mut fair, &mut signals, 520), []);
        fair.set_up(520, 1, false, &mut signals);
        assert_eq!(run(&mut fair, &mut signals, 10_000), []);
        fair.set_up(10_000, 1, true, &mut signals);
        // Half was through when the link failed.
        assert_eq!(run(&mut fair, &mut signals, u64::MAX), [(10_500, 0)]);
    }
}
