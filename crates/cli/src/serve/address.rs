//! Where a server listens: an address that the members of its pool can reach.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};

use anyhow::Result;
use hiroma_command::refuse;
use hiroma_pool::{Discovery, resolve};

/// Where a server listens that is in no pool, or whose pool is on this machine.
const HERE: &str = "127.0.0.1:7070";
const PORT: u16 = 7070;

/// Where to listen, if `given` is what the user has said. What cannot reach a member of the pool is
/// refused: others would believe the server dead, and it would believe them gone.
pub fn to_listen_on(
    given: Option<&str>,
    join: &[String],
    discovery: Option<&Discovery>,
) -> Result<String> {
    let text = given.unwrap_or(HERE);
    let is_here = match text.to_socket_addrs() {
        Ok(mut addrs) => addrs.all(|addr| addr.ip().is_loopback()),
        // It is refused where it is used.
        Err(_) => false,
    };
    if !is_here || join.is_empty() && discovery.is_none() {
        return Ok(text.to_owned());
    }
    let mut members = Vec::new();
    for member in join {
        members.extend(resolve(member).map_err(refuse)?);
    }
    if let Some(source) = discovery {
        members.extend(source.addresses().map_err(refuse)?);
    }
    match given {
        Some(given) => check_reach(given, &members).map(|()| given.to_owned()),
        None => towards_one_of(&members),
    }
}

/// Refuses an address of this machine alone if all members are elsewhere.
fn check_reach(given: &str, members: &[SocketAddr]) -> Result<()> {
    let from = given.to_socket_addrs()?.next();
    let reaches = |to: &SocketAddr| from.is_some_and(|from| source_towards(from.ip(), *to).is_ok());
    match members.first() {
        Some(first) if !members.iter().any(reaches) => Err(refuse(format!(
            "--listen {given} is an address of this machine alone, and {first} is not on it: leave --listen out, or give an address of this machine that the members of the pool reach"
        ))),
        _ => Ok(()),
    }
}

/// The address from which this machine reaches a member.
fn towards_one_of(members: &[SocketAddr]) -> Result<String> {
    let Some(first) = members.first() else {
        return Err(refuse(
            "no member of the pool is known yet, so this server does not know at which of its machine's addresses others reach it: say so by --listen HOST:PORT",
        ));
    };
    if members.iter().all(|member| member.ip().is_loopback()) {
        return Ok(HERE.to_owned());
    }
    let mut reason = String::new();
    for member in members.iter().filter(|member| !member.ip().is_loopback()) {
        let any: IpAddr = match member {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        match source_towards(any, *member) {
            Ok(mut source) => {
                source.set_port(PORT);
                return Ok(source.to_string());
            }
            Err(error) => reason = error.to_string(),
        }
    }
    Err(refuse(format!(
        "there is no way from this machine to {first} ({reason}): correct the network or --join, or say by --listen HOST:PORT at which address the members of the pool reach this server"
    )))
}

/// The address that datagrams to `to` would have as their source. Nothing is sent.
fn source_towards(from: IpAddr, to: SocketAddr) -> io::Result<SocketAddr> {
    let socket = UdpSocket::bind((from, 0))?;
    socket.connect(to)?;
    socket.local_addr()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Addresses for documents: nobody has them.
    const ELSEWHERE: &str = "192.0.2.1:7070";

    fn chosen(given: Option<&str>, join: &[&str]) -> Result<String, String> {
        let join: Vec<String> = join.iter().map(|&text| text.to_owned()).collect();
        to_listen_on(given, &join, None).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_said_holds_where_it_can_work() {
        assert_eq!(chosen(None, &[]).unwrap(), HERE);
        assert_eq!(chosen(None, &["127.0.0.1:1"]).unwrap(), HERE);
        assert_eq!(chosen(Some("127.0.0.1:0"), &[]).unwrap(), "127.0.0.1:0");
        assert_eq!(chosen(Some("127.0.0.1:0"), &["127.0.0.1:1"]).unwrap(), "127.0.0.1:0");
        // One that is here is enough to begin with.
        let some = ["127.0.0.1:1", ELSEWHERE];
        assert_eq!(chosen(Some("127.0.0.1:0"), &some).unwrap(), "127.0.0.1:0");
        assert_eq!(chosen(Some("0.0.0.0:1"), &[ELSEWHERE]).unwrap(), "0.0.0.0:1");
        assert_eq!(chosen(Some("nonsense"), &[ELSEWHERE]).unwrap(), "nonsense");
    }

    #[test]
    fn address_that_members_elsewhere_cannot_reach_is_refused() {
        let refused = chosen(Some("127.0.0.1:0"), &[ELSEWHERE]).unwrap_err();
        assert!(refused.contains("of this machine alone") && refused.contains(ELSEWHERE));
        assert!(chosen(None, &["nonsense"]).unwrap_err().contains("no address of a member"));
        let dir = tempfile::tempdir().unwrap();
        let empty = dir.path().join("members");
        std::fs::write(&empty, "").unwrap();
        let refused = to_listen_on(None, &[], Some(&Discovery::Static(empty))).unwrap_err();
        assert!(refused.to_string().contains("--listen HOST:PORT"), "{refused}");
    }

    #[test]
    fn the_address_towards_the_pool_is_chosen() {
        match chosen(None, &[ELSEWHERE]) {
            Ok(address) => {
                let address: SocketAddr = address.parse().unwrap();
                assert!(!address.ip().is_loopback() && !address.ip().is_unspecified());
                assert_eq!(address.port(), PORT);
                // This machine's own address is one, too.
                let own = SocketAddr::new(address.ip(), 9).to_string();
                assert_eq!(chosen(None, &[&own]).unwrap(), address.to_string());
            }
            // A machine without a network.
            Err(refused) => assert!(refused.contains("no way from this machine"), "{refused}"),
        }
    }
}
