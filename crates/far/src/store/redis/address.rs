//! `redis://[USER:PASSWORD@]HOST[:PORT][/DB][?size=SIZE&ttl=TIME&password-file=FILE]`.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use hiroma_units::{Bytes, parse_time};
use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo};

/// Shortest expiry: it is renewed four times in this time.
const TTL_MIN: Duration = Duration::from_secs(1);

/// A Redis server as the user names it.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisAddress {
    /// The address without what follows `?`; it may contain a password.
    base: String,
    /// Maximum of bytes to store there.
    pub size: Option<Bytes>,
    /// Time after which the server deletes what a client has left.
    pub ttl: Option<Duration>,
    /// The file with the password: the list of processes shows command lines to everybody.
    password_file: Option<PathBuf>,
}

/// Why an address is invalid. The text contains no password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not the address of a Redis server: {0}; write {FORM}")]
pub struct RedisAddressError(String);

const FORM: &str = "redis://[USER:PASSWORD@]HOST[:PORT][/DB][?size=SIZE&ttl=TIME&password-file=FILE], with % and two hexadecimal digits for special characters in a password";

impl RedisAddress {
    /// Whether `text` can only be meant as such an address.
    pub fn is_meant(text: &str) -> bool {
        let scheme = text.split_once("://").map_or("", |(scheme, _)| scheme);
        ["redis", "valkey"].iter().any(|name| scheme.starts_with(name))
    }

    fn connection(&self) -> ConnectionInfo {
        self.base.as_str().into_connection_info().expect("it was checked when it was made")
    }

    /// How to connect and to log in, for the client. Reads the password if it is in a file.
    ///
    /// # Errors
    /// In words, if there is no password in that file.
    pub fn login(&self) -> Result<ConnectionInfo, String> {
        let connection = self.connection();
        let Some(file) = &self.password_file else { return Ok(connection) };
        let refused = |what: &str| format!("password-file {}: {what}", file.display());
        let text = std::fs::read_to_string(file).map_err(|error| refused(&error.to_string()))?;
        let password = text.lines().next().unwrap_or_default();
        if password.is_empty() {
            return Err(refused("its first line is empty; write the password there"));
        }
        let settings = connection.redis_settings().clone().set_password(password);
        Ok(connection.set_redis_settings(settings))
    }

    /// The same with the path of its password's file changed, if it has one.
    ///
    /// # Errors
    /// Those of `change`.
    pub fn with_password_file<E>(
        mut self,
        change: impl FnOnce(&Path) -> Result<PathBuf, E>,
    ) -> Result<Self, E> {
        self.password_file = self.password_file.as_deref().map(change).transpose()?;
        Ok(self)
    }

    /// `HOST:PORT`.
    pub fn server(&self) -> String {
        match self.connection().addr() {
            ConnectionAddr::Tcp(host, port) if host.contains(':') => format!("[{host}]:{port}"),
            ConnectionAddr::Tcp(host, port) => format!("{host}:{port}"),
            _ => unreachable!("other kinds are refused when it is made"),
        }
    }

    /// The text for messages: without user and password.
    pub fn shown(&self) -> String {
        match self.connection().redis_settings().db() {
            0 => format!("redis://{}", self.server()),
            db => format!("redis://{}/{db}", self.server()),
        }
    }

    fn file(&self, value: &str) -> Result<PathBuf, String> {
        if value.is_empty() {
            return Err("password-file= names no file".to_owned());
        }
        if self.connection().redis_settings().password().is_some() {
            return Err("the password is in the address and in a file: leave one out".to_owned());
        }
        Ok(PathBuf::from(value))
    }

    fn option(&mut self, name: &str, value: &str) -> Result<(), String> {
        match name {
            "size" => {
                let size: Bytes = value.parse().map_err(|error| format!("{error}"))?;
                if size.0 == 0 {
                    return Err("size=0 leaves no room".to_owned());
                }
                self.size = Some(size);
            }
            "ttl" => {
                let ttl = parse_time(value).map_err(|error| error.to_string())?;
                if ttl < TTL_MIN {
                    return Err(format!("ttl={value} is too short: use 1s or more"));
                }
                self.ttl = Some(ttl);
            }
            "password-file" => self.password_file = Some(self.file(value)?),
            _ => {
                return Err(format!(
                    "`{name}` is not an option: there are size, ttl and password-file"
                ));
            }
        }
        Ok(())
    }
}

impl FromStr for RedisAddress {
    type Err = RedisAddressError;

    fn from_str(text: &str) -> Result<Self, RedisAddressError> {
        let (base, options) = text.split_once('?').unwrap_or((text, ""));
        let scheme = base.split_once("://").map_or("", |(scheme, _)| scheme);
        if scheme == "rediss" || scheme == "valkeys" {
            return Err(RedisAddressError(
                "TLS is not supported; use redis:// through a tunnel (stunnel, ssh -L, WireGuard)"
                    .to_owned(),
            ));
        }
        if scheme != "redis" && scheme != "valkey" {
            return Err(RedisAddressError(format!("{scheme}:// is not supported")));
        }
        // The client's own words, which name the part and do not repeat it.
        base.into_connection_info().map_err(|error| RedisAddressError(error.to_string()))?;
        let mut address =
            RedisAddress { base: base.to_owned(), size: None, ttl: None, password_file: None };
        for option in options.split('&').filter(|option| !option.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            address.option(name, value).map_err(RedisAddressError)?;
        }
        Ok(address)
    }
}

impl fmt::Display for RedisAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = self.size.map(|size| format!("size={}", size.0));
        let ttl = self.ttl.map(|ttl| format!("ttl={}ms", ttl.as_millis()));
        let file = self.password_file.as_ref();
        let file = file.map(|file| format!("password-file={}", file.display()));
        let options: Vec<String> = size.into_iter().chain(ttl).chain(file).collect();
        let mark = if options.is_empty() { "" } else { "?" };
        write!(f, "{}{mark}{}", self.base, options.join("&"))
    }
}

impl fmt::Debug for RedisAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_an_address_are_found() {
        let address: RedisAddress =
            "redis://me:s%2Ccret@[::1]:6380/3?size=4G&ttl=5s".parse().unwrap();
        let connection = address.connection();
        let settings = connection.redis_settings();
        assert_eq!((settings.username(), settings.password()), (Some("me"), Some("s,cret")));
        assert_eq!((address.server().as_str(), settings.db()), ("[::1]:6380", 3));
        assert_eq!(
            (address.size, address.ttl),
            (Some(Bytes(4 << 30)), Some(Duration::from_secs(5)))
        );
        let plain: RedisAddress = "valkey://host".parse().unwrap();
        assert_eq!(plain.shown(), "redis://host:6379");
    }

    #[test]
    fn messages_show_no_password() {
        let address: RedisAddress = "redis://me:secret@host/2?size=1G".parse().unwrap();
        assert_eq!(address.shown(), "redis://host:6379/2");
        assert!(!format!("{address:?}").contains("secret"));
    }

    #[test]
    fn password_comes_from_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("password");
        let text = format!("redis://me@host/2?size=4096&password-file={}", file.display());
        let address: RedisAddress = text.parse().unwrap();
        assert_eq!(address.to_string(), text);
        assert!(address.login().unwrap_err().contains("No such file"));
        std::fs::write(&file, "\n").unwrap();
        assert!(address.login().unwrap_err().contains("write the password there"));
        std::fs::write(&file, "s,c%&ret\n").unwrap();
        let login = address.login().unwrap();
        let settings = login.redis_settings();
        assert_eq!((settings.username(), settings.password()), (Some("me"), Some("s,c%&ret")));
        let moved = address.with_password_file(|_| Ok::<_, ()>("/else".into())).unwrap();
        assert!(moved.to_string().ends_with("password-file=/else"));
    }

    #[test]
    fn invalid_addresses_are_refused_in_words() {
        for (text, reason) in [
            ("rediss://host", "TLS is not supported"),
            ("redis+cluster://host", "redis+cluster:// is not supported"),
            ("redis://", "write redis://"),
            ("redis://host/x", "Invalid database number"),
            ("redis://host?size=0", "leaves no room"),
            ("redis://host?ttl=10ms", "too short"),
            ("redis://host?password-file=", "names no file"),
            ("redis://:one@host?password-file=/two", "leave one out"),
            ("redis://host?sise=4G", "`sise` is not an option"),
        ] {
            assert!(RedisAddress::is_meant(text), "{text}");
            let error = text.parse::<RedisAddress>().unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
