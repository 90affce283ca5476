//! The servers that a store may use: those that it was started with, and members that have joined
//! the pool since, which `hiroma run` lists in a file ([`crate::config::MEMBERS_FILE`]).

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;

use super::SERVERS_MAX;
use crate::store::tcp::{TcpOptions, split_tenant};

/// One server that may be used.
#[derive(Clone)]
pub struct Server {
    /// How to connect to it alone.
    pub options: TcpOptions,
    /// Servers with the same number fail together.
    pub label: u32,
    /// It has joined since, and was never connected to.
    pub is_new: bool,
    domain: Option<String>,
}

impl Server {
    /// Its address, without the tenant.
    pub fn address(&self) -> &str {
        split_tenant(&self.options.servers[0]).1
    }

    /// Where it is: what it shares with others, else its host.
    fn place(&self) -> (bool, &str) {
        match &self.domain {
            Some(domain) => (true, domain),
            None => (false, self.address().rsplit_once(':').map_or("", |(host, _)| host)),
        }
    }
}

/// All of them.
pub struct Roster {
    servers: Vec<Server>,
    /// Options of one that comes.
    base: TcpOptions,
    next_label: u32,
    /// Where members are listed that have come, and what was read there last.
    file: Option<PathBuf>,
    read: String,
    /// The vacant numbers at that time.
    vacant: Vec<usize>,
    /// What is stored leaves this machine readable, so servers elsewhere must not be used.
    is_only_here: bool,
}

impl Roster {
    /// The servers of `base`. `domains` names what some of them share.
    pub fn new(
        base: TcpOptions,
        domains: &[(String, String)],
        file: Option<PathBuf>,
        is_only_here: bool,
    ) -> Roster {
        let (servers, read) = (base.servers.clone(), String::new());
        let mut roster = Roster {
            servers: Vec::new(),
            base,
            next_label: 0,
            file,
            read,
            vacant: Vec::new(),
            is_only_here,
        };
        for server in servers {
            let address = split_tenant(&server).1;
            let listed = domains.iter().find(|(at, _)| at == address);
            let server = roster.server(&server, listed.map(|(_, name)| name.clone()), false);
            roster.servers.push(server);
        }
        roster
    }

    /// Those that fail together have the label of the first of them.
    fn server(&mut self, text: &str, domain: Option<String>, is_new: bool) -> Server {
        let options = TcpOptions { servers: vec![text.to_owned()], ..self.base.clone() };
        let mut server = Server { options, label: self.next_label, is_new, domain };
        match self.servers.iter().find(|other| other.place() == server.place()) {
            Some(other) => server.label = other.label,
            None => self.next_label += 1,
        }
        server
    }

    /// A server by its number.
    pub fn get(&self, number: usize) -> &Server {
        &self.servers[number]
    }

    /// Numbers of all servers.
    pub fn numbers(&self) -> std::ops::Range<usize> {
        0..self.servers.len()
    }

    /// A server was connected to.
    pub fn was_reached(&mut self, number: usize) {
        self.servers[number].is_new = false;
    }

    /// A server could not be reached when the store was opened.
    pub fn was_missed(&mut self, number: usize) {
        self.servers[number].is_new = true;
    }

    /// Which of the servers without a member to try next: the first one that is listed, because the
    /// pool knows that it is there, while silent ones take time. The list may be old or missing, so now
    /// and then it is whichever was not tried for the longest time.
    pub fn next_to_try(&self, vacant: &[usize], turn: u32) -> Option<usize> {
        let is_listed = |server: &&usize| {
            let address = self.servers[**server].address();
            let mut listed = self.read.lines().filter_map(|line| line.split(' ').next());
            listed.any(|text| split_tenant(text).1 == address)
        };
        let listed = vacant.iter().find(is_listed).filter(|_| turn % 4 != 0);
        listed.or(vacant.first()).copied()
    }

    /// Reads the list again, and returns the numbers of servers that are new. They take the numbers
    /// of servers in `vacant` that are not listed any more, where there are too many.
    pub fn read(&mut self, vacant: &[usize]) -> Vec<usize> {
        let Some(text) = self.file.as_ref().and_then(|file| fs::read_to_string(file).ok()) else {
            return Vec::new();
        };
        // A member is gone from the list before its place is vacant.
        let mut sorted = vacant.to_vec();
        sorted.sort_unstable();
        if text == self.read && sorted == self.vacant {
            return Vec::new();
        }
        (self.read, self.vacant) = (text.clone(), sorted);
        let listed: Vec<(&str, Option<&str>)> = text
            .lines()
            .map(|line| match line.split_once(' ') {
                Some((server, domain)) => (server, Some(domain)),
                None => (line, None),
            })
            .collect();
        let is_listed = |server: &Server| {
            listed.iter().any(|(text, _)| split_tenant(text).1 == server.address())
        };
        let gone = |&&number: &&usize| !is_listed(&self.servers[number]);
        let mut places: Vec<usize> = vacant.iter().filter(gone).copied().collect();
        let mut new = Vec::new();
        for (text, domain) in listed {
            let address = split_tenant(text).1;
            let Ok(parsed) = address.parse::<SocketAddr>() else { continue };
            let is_far = self.is_only_here && !parsed.ip().is_loopback();
            if is_far || self.servers.iter().any(|server| server.address() == address) {
                continue;
            }
            let server = self.server(text, domain.map(str::to_owned), true);
            if self.servers.len() < SERVERS_MAX {
                new.push(self.servers.len());
                self.servers.push(server);
            } else if let Some(place) = places.pop() {
                self.servers[place] = server;
                new.push(place);
            }
        }
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::replicated::tests::options;

    fn roster(servers: &[&str], domains: &[(&str, &str)], file: Option<PathBuf>) -> Roster {
        let base = options(servers.iter().map(|&at| at.to_owned()).collect()).0;
        let domains: Vec<_> =
            domains.iter().map(|&(at, name)| (at.to_owned(), name.to_owned())).collect();
        Roster::new(base, &domains, file, true)
    }

    fn labels(roster: &Roster) -> Vec<u32> {
        roster.numbers().map(|number| roster.get(number).label).collect()
    }

    #[test]
    fn servers_of_one_domain_or_host_have_one_label() {
        let servers = ["a:1", "us@b:1", "b:2", "c:1", "d:1"];
        assert_eq!(labels(&roster(&servers, &[], None)), [0, 1, 1, 2, 3]);
        let domains = [("a:1", "r1"), ("b:1", "r2"), ("c:1", "r1")];
        assert_eq!(labels(&roster(&servers, &domains, None)), [0, 1, 2, 0, 3]);
    }

    #[test]
    fn servers_that_the_pool_knows_are_tried_before_silent_ones() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("members");
        let servers = ["127.0.0.1:1", "127.0.0.1:2", "us@127.0.0.1:3"];
        let mut roster = roster(&servers, &[], Some(file.clone()));
        assert_eq!(
            (roster.next_to_try(&[1, 2, 0], 1), roster.next_to_try(&[], 1)),
            (Some(1), None)
        );
        fs::write(&file, "us@127.0.0.1:3 r1\n127.0.0.1:4\n").unwrap();
        assert_eq!(roster.read(&[0, 1, 2]), [3]);
        assert_eq!(
            (1..5).map(|turn| roster.next_to_try(&[0, 1, 2], turn).unwrap()).sum::<usize>(),
            6
        );
        assert_eq!(roster.next_to_try(&[0, 1, 2], 4), Some(0), "the list may be old");
        assert_eq!(roster.next_to_try(&[1, 0], 1), Some(1), "none of these is listed");
    }

    #[test]
    fn members_that_come_are_found_once_and_take_the_place_of_those_that_went() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("members");
        let mut roster = roster(&["127.0.0.1:1", "127.0.0.1:2"], &[], Some(file.clone()));
        assert_eq!(roster.read(&[]), [0; 0], "there is no list");
        let list = "127.0.0.1:1\nus@127.0.0.1:3 r9\n10.0.0.1:4\nnonsense\n";
        fs::write(&file, list).unwrap();
        assert_eq!(roster.read(&[]), [2], "others are known, elsewhere, or no addresses");
        assert_eq!(roster.get(2).address(), "127.0.0.1:3");
        assert_eq!(labels(&roster), [0, 0, 1]);
        assert_eq!(roster.read(&[]), [0; 0], "nothing has changed");
        let many: String = (10..40).map(|port| format!("127.0.0.1:{port}\n")).collect();
        fs::write(&file, &many).unwrap();
        assert_eq!(roster.read(&[]).len(), SERVERS_MAX - 3);
        fs::write(&file, many + "127.0.0.1:50\n").unwrap();
        assert_eq!(roster.read(&[1]), [1], "the second server is gone");
        assert_eq!(roster.get(1).address(), "127.0.0.1:23");
    }
}
