//! Addresses of members in etcd. Each member has a key there with a lease: when it dies, its key
//! expires. The API is etcd's JSON gateway, `/v3`, over HTTP (etcd 3.4 and newer).

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

/// How long one request waits for one server of etcd.
const REQUEST_LIMIT: Duration = Duration::from_secs(2);
/// A member's key expires after this time without a renewal.
const LEASE_S: u64 = 10;
/// How often a member renews its lease.
pub const RENEW_EVERY: Duration = Duration::from_secs(3);
/// Members that are read at most: more than a pool has.
const MEMBERS_MAX: u64 = 10_000;
/// Where etcd listens, if no port is given.
const PORT: u16 = 2379;
/// Before the keys, if no prefix is given.
const PREFIX: &str = "hiroma";

/// `HOST[:PORT][,HOST[:PORT]...][/PREFIX]`: servers of one etcd, which are tried in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Etcd {
    servers: Vec<String>,
    prefix: String,
}

impl FromStr for Etcd {
    type Err = String;

    fn from_str(text: &str) -> Result<Etcd, String> {
        let (servers, prefix) = text.split_once('/').unwrap_or((text, PREFIX));
        let with_port = |server: &str| match server.contains(':') {
            true => server.to_owned(),
            false => format!("{server}:{PORT}"),
        };
        let servers: Vec<String> = servers.split(',').map(with_port).collect();
        let prefix = prefix.trim_matches('/');
        // Without a host.
        if servers.iter().any(|server| server.starts_with(':')) || prefix.is_empty() {
            return Err(format!("`etcd://{text}`: write etcd://HOST[:PORT][,HOST...][/PREFIX]"));
        }
        Ok(Etcd { servers, prefix: prefix.to_owned() })
    }
}

impl fmt::Display for Etcd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "etcd://{}/{}", self.servers.join(","), self.prefix)
    }
}

impl Etcd {
    /// Before the names of all keys.
    fn place(&self) -> String {
        format!("{}/members/", self.prefix)
    }

    /// The answer of the first server that gives one.
    fn request(&self, what: &str, body: &Value) -> Result<Value, String> {
        let config = ureq::Agent::config_builder().timeout_global(Some(REQUEST_LIMIT));
        // Addresses inside of a cluster are not reached through a proxy.
        let agent: ureq::Agent = config.proxy(None).build().into();
        let mut reason = String::new();
        for server in &self.servers {
            let sent = agent.post(format!("http://{server}/v3/{what}")).send_json(body);
            match sent.and_then(|mut answer| answer.body_mut().read_json()) {
                Ok(answer) => return Ok(answer),
                Err(error) => reason = format!("{server}: {error}"),
            }
        }
        Err(format!("{self} does not answer ({reason})"))
    }

    /// The members that have a lease now.
    pub fn addresses(&self) -> Result<Vec<SocketAddr>, String> {
        let first = self.place();
        // The next string that does not begin like the first one: `/` is followed by `0`.
        let end = format!("{}0", first.trim_end_matches('/'));
        let body = json!({
            "key": STANDARD.encode(first),
            "range_end": STANDARD.encode(end),
            "limit": MEMBERS_MAX.to_string(),
        });
        let answer = self.request("kv/range", &body)?;
        let values = answer["kvs"].as_array().into_iter().flatten();
        let address = |entry: &Value| -> Option<SocketAddr> {
            let bytes = STANDARD.decode(entry["value"].as_str()?).ok()?;
            // What somebody else has put there is left out.
            String::from_utf8(bytes).ok()?.parse().ok()
        };
        Ok(values.filter_map(address).collect())
    }
}

/// A member's key, as long as it is renewed.
pub struct Registration {
    etcd: Etcd,
    address: SocketAddr,
    /// A number, which JSON has as text.
    lease: Option<String>,
}

impl Registration {
    /// Nothing is registered yet.
    pub fn new(etcd: Etcd, address: SocketAddr) -> Registration {
        Registration { etcd, address, lease: None }
    }

    /// Renews the lease; where there is none, or it has expired, the member is registered.
    pub fn renew(&mut self) -> Result<(), String> {
        if let Some(lease) = &self.lease {
            let answer = self.etcd.request("lease/keepalive", &json!({ "ID": lease }))?;
            // A lease that is not there any more has no time left.
            if answer["result"]["TTL"].as_str().is_some_and(|ttl| ttl != "0") {
                return Ok(());
            }
        }
        self.lease = None;
        let answer = self.etcd.request("lease/grant", &json!({ "TTL": LEASE_S.to_string() }))?;
        let lease = answer["ID"].as_str().ok_or_else(|| {
            format!("{}: the answer is not that of etcd 3.4 or newer: {answer}", self.etcd)
        })?;
        let body = json!({
            "key": STANDARD.encode(format!("{}{}", self.etcd.place(), self.address)),
            "value": STANDARD.encode(self.address.to_string()),
            "lease": lease,
        });
        self.etcd.request("kv/put", &body)?;
        self.lease = Some(lease.to_owned());
        Ok(())
    }

    /// Removes the key.
    pub fn revoke(&mut self) {
        if let Some(lease) = self.lease.take() {
            // It expires by itself.
            let _ = self.etcd.request("lease/revoke", &json!({ "ID": lease }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_etcd_have_servers_and_a_prefix() {
        let etcd: Etcd = "a,b:9/rack/one/".parse().unwrap();
        assert_eq!(etcd.to_string(), "etcd://a:2379,b:9/rack/one");
        assert_eq!(etcd.place(), "rack/one/members/");
        assert_eq!("h".parse::<Etcd>().unwrap().to_string(), "etcd://h:2379/hiroma");
        for wrong in ["", "a,,b", "a/", ":2379"] {
            assert!(wrong.parse::<Etcd>().is_err(), "{wrong}");
        }
    }
}
