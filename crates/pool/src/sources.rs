//! Where addresses of members come from before any member is known.

use std::fmt;
use std::fs;
use std::net::{Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::str::FromStr;

use crate::etcd::Etcd;

/// The port of members that are named without one.
const PORT: u16 = 7070;

/// A list of members that something else keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Discovery {
    /// A file with a `HOST:PORT` in each line; `#` begins a comment. Read again at each attempt.
    Static(PathBuf),
    /// A name with several addresses.
    Dns(String),
    /// Keys in etcd. A member registers itself there.
    Etcd(Etcd),
}

impl FromStr for Discovery {
    type Err = String;

    fn from_str(text: &str) -> Result<Discovery, String> {
        match text.split_once(':') {
            Some(("static", path)) if !path.is_empty() => Ok(Discovery::Static(path.into())),
            Some(("dns", name)) if !name.is_empty() => Ok(Discovery::Dns(with_port(name))),
            Some(("etcd", place)) if place.starts_with("//") => {
                place.trim_start_matches('/').parse().map(Discovery::Etcd)
            }
            _ => Err(format!(
                "`{text}` is no source of members: static:FILE, dns:NAME[:PORT] or etcd://HOST[:PORT]"
            )),
        }
    }
}

/// The usual port, where none is given. IPv6 addresses have colons of their own.
fn with_port(name: &str) -> String {
    let inner = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(name);
    if inner.parse::<Ipv6Addr>().is_ok() {
        format!("[{inner}]:{PORT}")
    } else if name.contains(':') {
        name.to_owned()
    } else {
        format!("{name}:{PORT}")
    }
}

impl fmt::Display for Discovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Discovery::Static(path) => write!(f, "static:{}", path.display()),
            Discovery::Dns(name) => write!(f, "dns:{name}"),
            Discovery::Etcd(etcd) => etcd.fmt(f),
        }
    }
}

impl Discovery {
    /// The addresses now.
    pub fn addresses(&self) -> Result<Vec<SocketAddr>, String> {
        match self {
            Discovery::Static(path) => {
                let text = fs::read_to_string(path).map_err(|error| format!("{self}: {error}"))?;
                let mut found = Vec::new();
                for line in text.lines() {
                    let line = line.split('#').next().unwrap_or_default().trim();
                    if !line.is_empty() {
                        found
                            .extend(resolve(&with_port(line)).map_err(|e| format!("{self}: {e}"))?);
                    }
                }
                Ok(found)
            }
            Discovery::Dns(name) => resolve(name).map_err(|error| format!("{self}: {error}")),
            Discovery::Etcd(etcd) => etcd.addresses(),
        }
    }
}

/// The addresses of `HOST:PORT`.
pub fn resolve(text: &str) -> Result<Vec<SocketAddr>, String> {
    match text.to_socket_addrs() {
        Ok(addrs) => Ok(addrs.collect()),
        Err(error) => Err(format!("`{text}` is no address of a member: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_names_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("members");
        fs::write(
            &path,
            "# rack 1\n10.0.0.1:7071\n\n10.0.0.2 # the other\n[fd00::1]\nfd00::2\n[fd00::3]:9\n",
        )
        .unwrap();
        let source: Discovery = format!("static:{}", path.display()).parse().unwrap();
        let expected =
            ["10.0.0.1:7071", "10.0.0.2:7070", "[fd00::1]:7070", "[fd00::2]:7070", "[fd00::3]:9"]
                .map(|a| a.parse().unwrap());
        assert_eq!(source.addresses().unwrap(), expected);
        let name: Discovery = "dns:localhost".parse().unwrap();
        assert!(name.addresses().unwrap().iter().all(|a| a.ip().is_loopback() && a.port() == 7070));
        assert!("etcd:x".parse::<Discovery>().is_err() && "static:".parse::<Discovery>().is_err());
        let gone = Discovery::Static(dir.path().join("none")).addresses().unwrap_err();
        assert!(gone.contains("none"), "{gone}");
    }
}
