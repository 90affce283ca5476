//! What the user is told.

use hiroma_policy::redundancy::Scheme;
use hiroma_units::Bytes;

/// What is left after a loss.
pub struct Left {
    /// Servers that answer.
    pub servers: usize,
    /// Content that cannot be read from the others, and content that has too few pieces there.
    pub gone: Bytes,
    pub short: Bytes,
    /// The fewest pieces of a block that can be read.
    pub least: usize,
}

/// All that a block should have.
pub fn all(scheme: Scheme) -> String {
    match scheme.is_cut() {
        true => format!("all {} pieces", scheme.pieces()),
        false => scheme.to_string(),
    }
}

fn servers(count: usize) -> String {
    format!("{count} other {}", if count == 1 { "server" } else { "servers" })
}

/// A server is to be emptied, or not any more.
pub fn draining(scheme: Scheme, is_so: bool, name: &str, bytes: Bytes, others: usize) -> String {
    if !is_so {
        return format!("{name} is not drained any more, and is used again");
    }
    let here = match scheme.is_cut() {
        true => format!("{bytes} in pieces"),
        false => bytes.to_string(),
    };
    let others_are = servers(others);
    if others < scheme.pieces() {
        let verb = if others == 1 { "is" } else { "are" };
        format!(
            "{name} is to be emptied, but {others_are} {verb} too few for {}: {here} stay there until another one is up",
            all(scheme)
        )
    } else {
        format!("{name} is to be emptied: {here} are moved to {others_are}")
    }
}

/// A server was lost.
pub fn loss(scheme: Scheme, what: &str, left: &Left) -> String {
    let Left { servers: count, gone, short, least } = *left;
    let (others, pieces, needed) = (servers(count), scheme.pieces(), scheme.needed());
    let is_cut = scheme.is_cut();
    if gone.0 > 0 && is_cut {
        format!(
            "{what}; {gone} have fewer than the {needed} pieces that are needed at the {others}"
        )
    } else if gone.0 > 0 {
        format!("{what}; {gone} have no copy at the {others}")
    } else if short.0 == 0 {
        format!("{what}; everything has {} elsewhere", all(scheme))
    } else if count < pieces {
        let kept = match is_cut {
            true => format!("{least} of {pieces} pieces of {short}, of which {needed} are needed"),
            false => format!("{least} copy of {short}"),
        };
        let verb = if count == 1 { "is" } else { "are" };
        format!(
            "{what}; the program goes on with {kept}: {others} {verb} too few for {}",
            all(scheme)
        )
    } else if is_cut {
        format!(
            "{what}; the program goes on with at least {least} of {pieces} pieces of everything, of which {needed} are needed, and those of {short} are being made again at {others}"
        )
    } else {
        format!(
            "{what}; the program goes on with at least {least} copy of everything, and {short} are being copied again to {others}"
        )
    }
}

/// A server was wrong too often: it gets no blocks for a while, and is read last.
pub fn left_out(name: &str, reason: &str, lasts_ns: u64) -> String {
    format!(
        "{name} is not used for the next {} minutes: {reason}; what it has is made again elsewhere; look after its memory, its disk and the network to it",
        lasts_ns / 60_000_000_000
    )
}

/// Why blocks have fewer pieces than they should although enough servers are there.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Few {
    /// They take no more.
    NoRoom,
    /// The same, and another store gets those blocks.
    Moved,
    /// What they have cannot be read.
    Unreadable,
}

/// Blocks have fewer pieces than they should.
pub fn few(scheme: Scheme, name: &str, short: Bytes, least: usize, why: Few) -> String {
    let pieces = scheme.pieces();
    let kept = match scheme.is_cut() {
        true => format!("{least} of {pieces} pieces, of which {} are needed", scheme.needed()),
        false => format!("{least} of {pieces} copies"),
    };
    match why {
        Few::NoRoom => format!(
            "{name}: the servers have no room for more, so {short} have only {kept}: what is missing is made as soon as there is room, so lend more memory there, or add a server"
        ),
        Few::Moved => format!(
            "{name}: the servers have no room for more, so {short} have only {kept}: they are moved to the store that follows"
        ),
        Few::Unreadable => format!(
            "{name}: {short} have only {kept}, and some of them cannot be read there: it is tried again each 5 s, so look after these servers"
        ),
    }
}

/// Everything has what it should have.
pub fn whole(scheme: Scheme, name: &str) -> String {
    format!("{name}: everything has {} again", all(scheme))
}

/// A block cannot be read.
pub fn too_few(scheme: Scheme) -> String {
    match scheme.is_cut() {
        true => format!(
            "too many of the servers that had its pieces are gone: {} are needed",
            scheme.needed()
        ),
        false => "all servers that had it are gone".to_owned(),
    }
}
