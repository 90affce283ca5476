//! `hiroma pool`: who lends memory, and who uses it.

mod authority;
mod web;

use std::fs;
use std::io::{Write, stdout};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Subcommand;
use hiroma_command::refuse;
use hiroma_far_server::load_key;
use hiroma_far_wire::Key;
use hiroma_pool::{Answer, ClientView, Health, MemberView, Request, ask, ask_any, resolve};
use hiroma_sys::transport;
use hiroma_units::Bytes;
use serde::{Deserialize, Serialize};

/// Show a pool: its members, the memory that they lend, and their clients.
///
/// Any member is a way in: one is asked for all that it knows, and then each one for its clients.
/// BY is what carries a client's blocks: tcp, or memory that client and member share.
/// Of a client with copies or parity, TOO FEW is how many of its blocks have fewer than it wants.
/// Without --pool the members are those of the environment variable HIROMA_POOL (HOST:PORT[,...]),
/// or of ~/.config/hiroma/pool.toml:
///
///   members = ["10.0.0.1:7070", "10.0.0.2:7070"]
///   key-file = "/etc/hiroma.key"
#[derive(clap::Args)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Examples:
  hiroma pool --pool 10.0.0.1:7070 --key-file hiroma.key
  hiroma pool --watch
  hiroma pool --web :8080
  hiroma pool --json | jq '.members[].free_bytes'
  hiroma pool drain 10.0.0.2:7070        before that machine is restarted
  hiroma pool init                       an authority, where each machine is to have its own identity
  hiroma pool invite node7               the identity of one machine, for --key-file there"
)]
pub struct Args {
    #[command(flatten)]
    entry: Entry,
    /// Print everything as JSON
    #[arg(long)]
    json: bool,
    /// Show it again each second
    #[arg(long)]
    watch: bool,
    /// Serve a page about the pool at http://ADDRESS/: HOST:PORT, or :PORT for this machine alone.
    /// There is no password: whoever reaches the address can read it
    #[arg(long, value_name = "ADDRESS", value_parser = hiroma_metrics::parse_address)]
    web: Option<SocketAddr>,
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Subcommand)]
enum Action {
    Init(authority::Init),
    Invite(authority::Invite),
    /// Let a member take no new blocks, and wait until clients have nothing there any more: programs
    /// move theirs to other members, or to the store that follows these
    Drain {
        /// Name or address of the member
        #[arg(value_name = "MEMBER")]
        member: String,
        /// Do not wait
        #[arg(long)]
        no_wait: bool,
    },
    /// Let a member that is being drained take blocks again
    Undrain {
        /// Name or address of the member
        #[arg(value_name = "MEMBER")]
        member: String,
    },
}

/// The way into a pool.
#[derive(clap::Args)]
struct Entry {
    /// Members to ask; the first one that answers is enough
    #[arg(long, value_name = "HOST:PORT[,...]", value_delimiter = ',', global = true)]
    pool: Vec<String>,
    /// File with the pool's shared key, or with this machine's identity (`hiroma pool invite`)
    #[arg(long, value_name = "FILE", global = true)]
    key_file: Option<PathBuf>,
}

/// How long one member is waited for.
const LIMIT: Duration = Duration::from_secs(2);
/// Members that are asked for their clients at the same time.
const ASKED_AT_A_TIME: usize = 32;
/// Members that are remembered as ways in.
const WAYS_MAX: usize = 8;
/// Clients that are named in one line.
const NAMED_MAX: usize = 8;

/// The contents of pool.toml.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Saved {
    #[serde(default)]
    members: Vec<String>,
    key_file: Option<PathBuf>,
}

/// Members to ask, and the key.
pub struct Way {
    members: Vec<String>,
    pub key_file: Option<PathBuf>,
}

impl Way {
    /// From options, else from the environment, else from the user's file.
    pub fn find(pool: &[String], key_file: Option<&Path>) -> Result<Way> {
        let saved = read_saved()?;
        let variable = std::env::var("HIROMA_POOL").unwrap_or_default();
        let members = if !pool.is_empty() {
            pool.to_vec()
        } else if !variable.is_empty() {
            variable.split(',').map(str::to_owned).collect()
        } else {
            saved.members
        };
        if members.is_empty() {
            return Err(refuse(
                "no pool is known: name a member by --pool HOST:PORT, in HIROMA_POOL, or in ~/.config/hiroma/pool.toml as members = [\"HOST:PORT\"]",
            ));
        }
        Ok(Way { members, key_file: key_file.map(Path::to_owned).or(saved.key_file) })
    }

    fn key(&self) -> Result<Option<Key>> {
        let key = self.key_file.as_deref().map(load_key).transpose();
        key.map_err(|error| refuse(error.to_string()))
    }

    /// Asks these members first from now on.
    pub fn begin_with(&mut self, members: &[MemberView]) {
        let alive = members.iter().filter(|member| member.health == Health::Alive);
        let mut first: Vec<String> = alive.map(|member| member.address.to_string()).collect();
        first.truncate(WAYS_MAX);
        self.members.retain(|member| !first.contains(member));
        self.members.truncate(WAYS_MAX);
        self.members.splice(0..0, first);
    }

    /// What the first member that answers knows of all.
    pub fn members(&self) -> Result<Vec<MemberView>> {
        let mut addrs = Vec::new();
        for member in &self.members {
            match resolve(member) {
                Ok(found) => addrs.extend(found),
                // Another one may be enough.
                Err(_) if self.members.len() > 1 => {}
                Err(error) => return Err(refuse(format!("--pool {error}"))),
            }
        }
        match ask_any(&addrs, self.key()?.as_ref(), &Request::Members, LIMIT) {
            Some(Ok(Answer::Members(members))) => Ok(members),
            Some(Err(error)) => Err(refuse(format!("the pool does not answer: {error}"))),
            _ => Err(refuse("the pool does not answer: another answer than members came")),
        }
    }
}

fn read_saved() -> Result<Saved> {
    let base = std::env::var_os("XDG_CONFIG_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".config")));
    let Some(path) = base.map(|base| base.join("hiroma/pool.toml")) else {
        return Ok(Saved::default());
    };
    let Ok(text) = fs::read_to_string(&path) else { return Ok(Saved::default()) };
    toml::from_str(&text).map_err(|error| {
        let reason = error.message().to_owned();
        refuse(format!("{}: {reason}; it has members and key-file", path.display()))
    })
}

/// The pool, for people and tools.
#[derive(Serialize)]
struct PoolView {
    members: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    #[serde(flatten)]
    member: MemberView,
    /// None: it did not answer.
    clients: Option<Vec<ClientView>>,
    /// Why not.
    #[serde(skip_serializing_if = "Option::is_none")]
    trouble: Option<String>,
    /// Time until its answer.
    answer_us: Option<u64>,
}

fn look(way: &Way) -> Result<PoolView> {
    let (members, key) = (way.members()?, way.key()?);
    let mut rows = Vec::with_capacity(members.len());
    for some in members.chunks(ASKED_AT_A_TIME) {
        thread::scope(|scope| {
            let asked: Vec<_> = some
                .iter()
                .map(|member| scope.spawn(|| row(member.clone(), key.as_ref())))
                .collect();
            rows.extend(asked.into_iter().filter_map(|thread| thread.join().ok()));
        });
    }
    Ok(PoolView { members: rows })
}

fn row(member: MemberView, key: Option<&Key>) -> Row {
    if member.health == Health::Dead {
        return Row { member, clients: None, trouble: None, answer_us: None };
    }
    let start = Instant::now();
    match ask(member.address, key, &Request::Clients, LIMIT) {
        Ok(Answer::Clients(clients)) => {
            let answer_us = Some(start.elapsed().as_micros() as u64);
            Row { member, clients: Some(clients), trouble: None, answer_us }
        }
        Ok(_) => Row { member, clients: None, trouble: None, answer_us: None },
        Err(error) => {
            Row { member, clients: None, trouble: Some(error.to_string()), answer_us: None }
        }
    }
}

/// Runs the command.
pub fn main(args: &Args) -> Result<ExitCode> {
    match &args.action {
        Some(Action::Init(init)) => return authority::init(init),
        Some(Action::Invite(invite)) => return authority::invite(invite),
        _ => {}
    }
    let way = Way::find(&args.entry.pool, args.entry.key_file.as_deref())?;
    match &args.action {
        Some(Action::Drain { member, no_wait }) => return drain(&way, member, !no_wait),
        Some(Action::Undrain { member }) => {
            let (name, _) = set_draining(&way, member, false)?;
            print(&format!("{name} takes blocks again"));
            return Ok(ExitCode::SUCCESS);
        }
        _ => {}
    }
    if let Some(address) = args.web {
        return web::serve(way, address);
    }
    loop {
        let pool = look(&way)?;
        if args.json {
            print(&serde_json::to_string(&pool)?);
        } else {
            let clear = if args.watch { "\x1b[H\x1b[2J" } else { "" };
            print(&format!("{clear}{}", table(&pool)));
        }
        if !args.watch {
            return Ok(ExitCode::SUCCESS);
        }
        thread::sleep(Duration::from_secs(1));
    }
}

/// The member with this name or address. The dead are remembered for a while: one that was started
/// again at another address is listed twice.
fn find(members: &[MemberView], wanted: &str) -> Result<SocketAddr> {
    let named = |m: &&MemberView| m.name == wanted || m.address.to_string() == wanted;
    let of_host = |m: &&MemberView| m.address.ip().to_string() == wanted;
    let (dead, alive): (Vec<_>, Vec<_>) =
        members.iter().partition(|member| member.health == Health::Dead);
    let found = |some: &[&MemberView]| -> Vec<SocketAddr> {
        let exact: Vec<_> = some.iter().copied().filter(named).collect();
        let found = match exact.is_empty() {
            true => some.iter().copied().filter(of_host).collect(),
            false => exact,
        };
        found.iter().map(|member| member.address).collect()
    };
    match (&found(&alive)[..], &found(&dead)[..]) {
        ([address], _) => Ok(*address),
        ([], [address, ..]) => {
            Err(refuse(format!("{wanted} ({address}) is dead: there is nothing to drain")))
        }
        ([], []) => {
            let names: Vec<_> = alive.iter().map(|member| member.name.as_str()).collect();
            Err(refuse(format!("no member is called {wanted}: there are {}", names.join(", "))))
        }
        (several, _) => {
            let several: Vec<_> = several.iter().map(SocketAddr::to_string).collect();
            let several = several.join(", ");
            Err(refuse(format!("several members are called {wanted}: name one of {several}")))
        }
    }
}

fn set_draining(way: &Way, wanted: &str, draining: bool) -> Result<(SocketAddr, u64)> {
    let addr = find(&way.members()?, wanted)?;
    match ask(addr, way.key()?.as_ref(), &Request::Drain(draining), LIMIT) {
        Ok(Answer::Draining { used_bytes }) => Ok((addr, used_bytes)),
        Ok(_) => Err(refuse(format!("{addr} did not say whether it drains"))),
        Err(error) => Err(refuse(error.to_string())),
    }
}

fn drain(way: &Way, wanted: &str, wait: bool) -> Result<ExitCode> {
    let mut last = None;
    loop {
        let (addr, used_bytes) = set_draining(way, wanted, true)?;
        if used_bytes == 0 {
            print(&emptied(addr, &clients_of(way, addr)?));
            return Ok(ExitCode::SUCCESS);
        }
        if last != Some(used_bytes) {
            print(&format!("{addr} takes no new blocks; clients have {}", Bytes(used_bytes)));
            last = Some(used_bytes);
        }
        if !wait {
            return Ok(ExitCode::SUCCESS);
        }
        thread::sleep(Duration::from_millis(500));
    }
}

/// Clients of one member.
fn clients_of(way: &Way, addr: SocketAddr) -> Result<Vec<ClientView>> {
    match ask(addr, way.key()?.as_ref(), &Request::Clients, LIMIT) {
        Ok(Answer::Clients(clients)) => Ok(clients),
        Ok(_) => Err(refuse(format!("{addr} did not say who its clients are"))),
        Err(error) => Err(refuse(error.to_string())),
    }
}

/// What is said about a member that has no blocks any more. A client that has stored nothing there
/// yet still counts on it, unless it has copies; which ones have is not known here.
fn emptied(addr: SocketAddr, clients: &[ClientView]) -> String {
    let connected = clients.iter().filter(|client| client.connections > 0);
    let names: Vec<_> = connected
        .map(|client| match client.name.as_str() {
            "" => client.peer.clone(),
            name => format!("{} ({name})", client.peer),
        })
        .collect();
    let empty = format!("{addr} is empty, and takes no blocks");
    let are = match names.len() {
        0 => return format!("{empty}: it can be stopped"),
        1 => "1 client is".to_owned(),
        count => format!("{count} clients are"),
    };
    let mut named = names[..names.len().min(NAMED_MAX)].join(", ");
    if names.len() > NAMED_MAX {
        named += &format!(" and {} more", names.len() - NAMED_MAX);
    }
    format!(
        "{empty}; {are} still connected: {named}; one that has neither another member nor a store behind them ends when this member stops"
    )
}

/// What carries the content of a client.
fn carrier(client: &ClientView) -> &'static str {
    match (client.connections, client.shared_connections) {
        (0, _) => "-",
        (_, 0) => transport::TCP,
        _ => transport::SHARED_MEMORY,
    }
}

fn state(row: &Row) -> &'static str {
    match (row.member.health, &row.trouble) {
        (Health::Alive | Health::Suspect, Some(_)) => "no answer",
        _ => row.member.state(),
    }
}

fn table(pool: &PoolView) -> String {
    let alive = || pool.members.iter().filter(|row| row.member.health != Health::Dead);
    let sum = |of: fn(&MemberView) -> u64| Bytes(alive().map(|row| of(&row.member)).sum());
    let mut lines = vec![format!(
        "{} members, {} lent, {} free",
        alive().count(),
        sum(|member| member.lent_bytes),
        sum(|member| member.free_bytes)
    )];
    let mut rows = vec![
        ["MEMBER", "ADDRESS", "STATE", "LENT", "FREE", "ON DISK", "CLIENTS", "LABELS"]
            .map(str::to_owned),
    ];
    for row in &pool.members {
        let member = &row.member;
        let labels: Vec<_> = member.labels.iter().map(|(k, v)| format!("{k}={v}")).collect();
        rows.push([
            member.name.clone(),
            member.address.to_string(),
            state(row).to_owned(),
            Bytes(member.lent_bytes).to_string(),
            Bytes(member.free_bytes).to_string(),
            Bytes(member.spilled_bytes).to_string(),
            row.clients.as_ref().map_or("-".to_owned(), |clients| clients.len().to_string()),
            labels.join(","),
        ]);
    }
    lines.extend(aligned(&rows));
    let titles =
        ["CLIENT", "TENANT", "MEMBER", "BY", "USES", "TOO FEW", "QUOTA", "READ", "WRITTEN"];
    let mut clients = vec![titles.map(str::to_owned)];
    for row in &pool.members {
        for client in row.clients.iter().flatten() {
            let name = if client.name.is_empty() { "-" } else { &client.name };
            clients.push([
                client.peer.clone(),
                name.to_owned(),
                row.member.name.clone(),
                carrier(client).to_owned(),
                Bytes(client.used_bytes).to_string(),
                client.short_blocks.map_or("-".to_owned(), |blocks| blocks.to_string()),
                client.quota_bytes.map_or("-".to_owned(), |bytes| Bytes(bytes).to_string()),
                Bytes(client.read_bytes).to_string(),
                Bytes(client.written_bytes).to_string(),
            ]);
        }
    }
    if clients.len() > 1 {
        lines.push(String::new());
        lines.extend(aligned(&clients));
    }
    let troubles = pool.members.iter().filter_map(|row| row.trouble.clone());
    lines.extend(troubles.map(|trouble| format!("note: {trouble}")));
    lines.join("\n")
}

/// Columns of equal width.
fn aligned<const N: usize>(rows: &[[String; N]]) -> Vec<String> {
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..N).map(width).collect();
    let line = |row: &[String; N]| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

/// Writes to standard output. Whoever reads it may have seen enough.
fn print(text: &str) {
    let _ = writeln!(stdout(), "{text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(name: &str, address: &str, health: Health) -> MemberView {
        MemberView {
            name: name.to_owned(),
            address: address.parse().unwrap(),
            incarnation: 1,
            boot: 1,
            health,
            lent_bytes: 0,
            free_bytes: 0,
            spilled_bytes: 0,
            pressure_percent: 0,
            refusing: false,
            draining: false,
            version: 2,
            labels: Vec::new(),
            sequence: 0,
            heard_ms_ago: 0,
        }
    }

    #[test]
    fn members_that_live_are_found_before_dead_ones() {
        let members = [
            member("a", "10.0.0.1:1", Health::Dead),
            member("a", "10.0.0.1:2", Health::Alive),
            member("b", "10.0.0.2:1", Health::Dead),
            member("c", "10.0.0.3:1", Health::Suspect),
            member("d", "10.0.0.3:2", Health::Alive),
        ];
        let found = |wanted: &str| {
            let found = find(&members, wanted).map(|address| address.to_string());
            found.unwrap_or_else(|error| format!("{error:#}"))
        };
        assert_eq!(found("a"), "10.0.0.1:2");
        assert_eq!(found("10.0.0.1"), "10.0.0.1:2");
        assert_eq!(found("c"), "10.0.0.3:1");
        for dead in ["b", "10.0.0.2", "10.0.0.1:1"] {
            assert!(found(dead).contains("is dead: there is nothing to drain"), "{}", found(dead));
        }
        assert!(found("10.0.0.3").contains("name one of 10.0.0.3:1, 10.0.0.3:2"));
        assert!(found("e").contains("no member is called e"));
    }

    fn client(number: u64, name: &str, connections: usize) -> ClientView {
        let peer = format!("10.0.0.9:{number}");
        let json = serde_json::json!({
            "number": number, "name": name, "peer": peer, "connections": connections,
            "used_bytes": 0, "read_bytes": 0, "written_bytes": 0, "reads": 0, "writes": 0,
        });
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn whoever_is_still_connected_is_named() {
        let addr = "10.0.0.1:7070".parse().unwrap();
        let text = emptied(addr, &[client(1, "gone", 0)]);
        assert_eq!(text, "10.0.0.1:7070 is empty, and takes no blocks: it can be stopped");
        let text = emptied(addr, &[client(1, "alice", 2), client(2, "", 1)]);
        assert!(text.contains("2 clients are still connected: 10.0.0.9:1 (alice), 10.0.0.9:2;"));
        assert!(text.ends_with("a store behind them ends when this member stops"), "{text}");
        let many: Vec<_> = (0..20).map(|number| client(number, "", 1)).collect();
        let text = emptied(addr, &many);
        assert!(text.contains("20 clients are") && text.contains("and 12 more"), "{text}");
    }
}
