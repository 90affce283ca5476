//! `redis://[USER:PASSWORD@]HOST[:PORT][/DB][?size=SIZE&ttl=TIME&password-file=FILE]`; over TLS
//! `rediss://`, with `ca=FILE&cert=FILE&key=FILE` in addition.

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
    /// Files for TLS, if it is to be used.
    tls: Option<TlsFiles>,
}

/// Files with certificates and a key, all PEM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// Of the authorities that may have made the server's certificate; else the system's.
    pub ca: Option<PathBuf>,
    /// The client's certificate and private key, where the server wants to see one.
    pub cert: Option<PathBuf>,
    pub key: Option<PathBuf>,
}

/// Why an address is invalid. The text contains no password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not the address of a Redis server: {0}; write {FORM}")]
pub struct RedisAddressError(String);

const FORM: &str = "redis://[USER:PASSWORD@]HOST[:PORT][/DB][?size=SIZE&ttl=TIME&password-file=FILE], with % and two hexadecimal digits for special characters in a password; with TLS rediss://HOST[?ca=FILE&cert=FILE&key=FILE]";

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

    /// The same with the paths of its files changed, if it has any.
    ///
    /// # Errors
    /// Those of `change`.
    pub fn with_files<E>(
        mut self,
        change: impl Fn(&Path) -> Result<PathBuf, E>,
    ) -> Result<Self, E> {
        let tls = self.tls.as_mut().map(|tls| [&mut tls.ca, &mut tls.cert, &mut tls.key]);
        let files = tls.into_iter().flatten().chain([&mut self.password_file]);
        for file in files.filter_map(Option::as_mut) {
            *file = change(file)?;
        }
        Ok(self)
    }

    /// Files for TLS, if it is to be used.
    pub fn tls(&self) -> Option<&TlsFiles> {
        self.tls.as_ref()
    }

    /// Name or address of the server.
    pub fn host(&self) -> String {
        match self.connection().addr() {
            ConnectionAddr::Tcp(host, _) => host.clone(),
            _ => unreachable!("other kinds are refused when it is made"),
        }
    }

    fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "rediss" } else { "redis" }
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
            0 => format!("{}://{}", self.scheme(), self.server()),
            db => format!("{}://{}/{db}", self.scheme(), self.server()),
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
            "ca" | "cert" | "key" => {
                let Some(tls) = &mut self.tls else {
                    return Err(format!("{name}= is for TLS: write rediss://"));
                };
                if value.is_empty() {
                    return Err(format!("{name}= names no file"));
                }
                let file = match name {
                    "ca" => &mut tls.ca,
                    "cert" => &mut tls.cert,
                    _ => &mut tls.key,
                };
                *file = Some(PathBuf::from(value));
            }
            _ => {
                return Err(format!(
                    "`{name}` is not an option: there are size, ttl and password-file, and with TLS ca, cert and key"
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
        let tls = ["rediss", "valkeys"].contains(&scheme).then(TlsFiles::default);
        if tls.is_none() && scheme != "redis" && scheme != "valkey" {
            return Err(RedisAddressError(format!("{scheme}:// is not supported")));
        }
        let plain = &scheme[..scheme.len() - usize::from(tls.is_some())];
        let base = &format!("{plain}{}", &base[scheme.len()..]);
        // The client's own words, which name the part and do not repeat it.
        base.as_str()
            .into_connection_info()
            .map_err(|error| RedisAddressError(error.to_string()))?;
        let mut address =
            RedisAddress { base: base.to_owned(), size: None, ttl: None, password_file: None, tls };
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
        let tls = self.tls.iter().flat_map(|tls| {
            let named = [("ca", &tls.ca), ("cert", &tls.cert), ("key", &tls.key)];
            named.map(|(name, file)| Some(format!("{name}={}", file.as_ref()?.display())))
        });
        let options: Vec<String> =
            size.into_iter().chain(ttl).chain(file).chain(tls.flatten()).collect();
        let mark = if options.is_empty() { "" } else { "?" };
        let (scheme, rest) = self.base.split_once("://").unwrap_or(("redis", &self.base));
        let secure = if self.tls.is_some() { "s" } else { "" };
        write!(f, "{scheme}{secure}://{rest}{mark}{}", options.join("&"))
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
        let moved = address.with_files(|_| Ok::<_, ()>("/else".into())).unwrap();
        assert!(moved.to_string().ends_with("password-file=/else"));
    }

    #[test]
    fn tls_has_files_of_its_own() {
        let text = "rediss://:word@host:1/2?size=4096&ca=ca.pem&cert=c.pem&key=k.pem";
        let address: RedisAddress = text.parse().unwrap();
        assert_eq!((address.to_string().as_str(), address.host().as_str()), (text, "host"));
        assert_eq!(address.shown(), "rediss://host:1/2");
        let moved = address.with_files(|file| Ok::<_, ()>(Path::new("/at").join(file))).unwrap();
        assert_eq!(moved.tls().unwrap().key.as_deref(), Some(Path::new("/at/k.pem")));
        assert!("valkeys://host".parse::<RedisAddress>().unwrap().tls().is_some());
    }

    #[test]
    fn invalid_addresses_are_refused_in_words() {
        for (text, reason) in [
            ("redis://host?ca=/ca.pem", "ca= is for TLS: write rediss://"),
            ("rediss://host?key=", "names no file"),
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
