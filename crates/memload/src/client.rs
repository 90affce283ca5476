//! One connection to a memcached server, in its text protocol, with several requests in flight.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use crate::value::ValueError;

/// Time limit of an answer: a server that hangs is reported instead of waited for without end.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// Address of the server: `HOST:PORT` or `unix:PATH`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    Tcp(String),
    Unix(PathBuf),
}

impl FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Endpoint, String> {
        match text.strip_prefix("unix:") {
            Some("") => Err("unix: needs the path of a socket".to_owned()),
            Some(path) => Ok(Endpoint::Unix(path.into())),
            None if text
                .rsplit_once(':')
                .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok()) =>
            {
                Ok(Endpoint::Tcp(text.to_owned()))
            }
            None => Err(format!("`{text}` is not HOST:PORT or unix:PATH")),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Tcp(address) => f.write_str(address),
            Endpoint::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Why a load ended early.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("cannot connect to memcached at {endpoint}: {source}")]
    Connect { endpoint: Endpoint, source: io::Error },
    #[error("the connection to memcached broke: {0}")]
    Io(#[from] io::Error),
    #[error("memcached answered `{answer}` to {request}")]
    Answer { request: String, answer: String },
    #[error("WRONG VALUE for key {key}: {source}")]
    Wrong { key: String, source: ValueError },
    #[error("{0}")]
    Spec(String),
}

enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    fn reader(&mut self) -> &mut dyn Read {
        match self {
            Socket::Tcp(socket) => socket,
            Socket::Unix(socket) => socket,
        }
    }

    fn writer(&mut self) -> &mut dyn Write {
        match self {
            Socket::Tcp(socket) => socket,
            Socket::Unix(socket) => socket,
        }
    }
}

/// A connection to the server.
pub struct Connection {
    socket: Socket,
    out: Vec<u8>,
    buffer: Vec<u8>,
    /// The part of the buffer that was received and not parsed yet.
    start: usize,
    end: usize,
}

impl Connection {
    /// Connects to the server.
    pub fn open(endpoint: &Endpoint) -> Result<Connection, LoadError> {
        let socket = match endpoint {
            Endpoint::Tcp(address) => TcpStream::connect(address).and_then(|socket| {
                socket.set_nodelay(true)?;
                socket.set_read_timeout(Some(ANSWER_TIMEOUT))?;
                socket.set_write_timeout(Some(ANSWER_TIMEOUT))?;
                Ok(Socket::Tcp(socket))
            }),
            Endpoint::Unix(path) => UnixStream::connect(path).and_then(|socket| {
                socket.set_read_timeout(Some(ANSWER_TIMEOUT))?;
                socket.set_write_timeout(Some(ANSWER_TIMEOUT))?;
                Ok(Socket::Unix(socket))
            }),
        };
        let socket =
            socket.map_err(|source| LoadError::Connect { endpoint: endpoint.clone(), source })?;
        Ok(Connection { socket, out: Vec::new(), buffer: vec![0; 64 << 10], start: 0, end: 0 })
    }

    /// Queues a `get`.
    pub fn get(&mut self, key: &str) {
        self.out.extend_from_slice(b"get ");
        self.out.extend_from_slice(key.as_bytes());
        self.out.extend_from_slice(b"\r\n");
    }

    /// Queues a `set`.
    pub fn set(&mut self, key: &str, value: &[u8]) {
        self.out.extend_from_slice(format!("set {key} 0 0 {}\r\n", value.len()).as_bytes());
        self.out.extend_from_slice(value);
        self.out.extend_from_slice(b"\r\n");
    }

    /// Number of queued bytes.
    pub fn prepared_bytes(&self) -> usize {
        self.out.len()
    }

    /// Sends the queued requests.
    pub fn flush(&mut self) -> Result<(), LoadError> {
        self.socket.writer().write_all(&self.out)?;
        self.out.clear();
        Ok(())
    }

    /// Reads the answer to a `set`. An error if the value was not stored.
    pub fn stored(&mut self, key: &str) -> Result<(), LoadError> {
        let line = self.line()?;
        match &self.buffer[line.clone()] {
            b"STORED" => Ok(()),
            other => Err(LoadError::Answer {
                request: format!("set {key}"),
                answer: String::from_utf8_lossy(other).into_owned(),
            }),
        }
    }

    /// Reads the answer to a `get`: the value, if the server has it.
    pub fn value(&mut self, key: &str) -> Result<Option<&[u8]>, LoadError> {
        let line = self.line()?;
        let text = &self.buffer[line];
        if text == b"END" {
            return Ok(None);
        }
        let Some(len) = value_length(text, key) else {
            return Err(LoadError::Answer {
                request: format!("get {key}"),
                answer: String::from_utf8_lossy(text).into_owned(),
            });
        };
        // The value, followed by "\r\nEND\r\n".
        let whole = len + 7;
        self.fill(whole)?;
        let value = self.start..self.start + len;
        self.start += whole;
        if &self.buffer[value.end..value.end + 7] != b"\r\nEND\r\n" {
            return Err(LoadError::Answer {
                request: format!("get {key}"),
                answer: "a value that does not end where it should".to_owned(),
            });
        }
        Ok(Some(&self.buffer[value]))
    }

    /// Results of the `stats` command, or of one of its subcommands.
    pub fn stats(&mut self, part: &str) -> Result<Vec<(String, String)>, LoadError> {
        self.out.extend_from_slice(format!("stats {part}").trim_end().as_bytes());
        self.out.extend_from_slice(b"\r\n");
        self.flush()?;
        let mut stats = Vec::new();
        loop {
            let line = self.line()?;
            let text = String::from_utf8_lossy(&self.buffer[line]).into_owned();
            if text == "END" {
                return Ok(stats);
            }
            let mut words = text.splitn(3, ' ');
            match (words.next(), words.next(), words.next()) {
                (Some("STAT"), Some(name), value) => {
                    stats.push((name.to_owned(), value.unwrap_or_default().to_owned()))
                }
                _ => return Err(LoadError::Answer { request: "stats".to_owned(), answer: text }),
            }
        }
    }

    /// Takes a line out of the buffer, without its line end.
    fn line(&mut self) -> Result<std::ops::Range<usize>, LoadError> {
        let mut looked = 0;
        loop {
            let found = self.buffer[self.start + looked..self.end]
                .windows(2)
                .position(|pair| pair == b"\r\n");
            if let Some(at) = found {
                let line = self.start..self.start + looked + at;
                self.start = line.end + 2;
                return Ok(line);
            }
            let have = self.end - self.start;
            looked = have.saturating_sub(1);
            self.fill(have + 1)?;
        }
    }

    /// Reads until `wanted` bytes are in the buffer.
    fn fill(&mut self, wanted: usize) -> Result<(), LoadError> {
        if self.end - self.start >= wanted {
            return Ok(());
        }
        self.buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        if self.buffer.len() < wanted {
            self.buffer.resize(wanted.next_power_of_two(), 0);
        }
        while self.end < wanted {
            match self.socket.reader().read(&mut self.buffer[self.end..]) {
                Ok(0) => {
                    return Err(io::Error::new(
                        io::ErrorKind::UnexpectedEof,
                        "memcached closed it",
                    )
                    .into());
                }
                Ok(count) => self.end += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Err(
                        io::Error::new(io::ErrorKind::TimedOut, "no answer for 60 s").into()
                    );
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// The length in a line `VALUE key flags length`, if it has this form.
fn value_length(line: &[u8], key: &str) -> Option<usize> {
    let mut words = std::str::from_utf8(line).ok()?.strip_prefix("VALUE ")?.split(' ');
    if words.next() != Some(key) {
        return None;
    }
    words.nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_parsed_and_invalid_ones_refused() {
        assert_eq!("127.0.0.1:11211".parse(), Ok(Endpoint::Tcp("127.0.0.1:11211".into())));
        assert_eq!("unix:/tmp/s".parse(), Ok(Endpoint::Unix("/tmp/s".into())));
        for text in ["", "unix:", "host", ":1", "host:", "host:99999"] {
            assert!(text.parse::<Endpoint>().is_err(), "{text}");
        }
    }

    #[test]
    fn value_line_must_name_the_key() {
        assert_eq!(value_length(b"VALUE k 0 512", "k"), Some(512));
        assert_eq!(value_length(b"VALUE j 0 512", "k"), None);
        assert_eq!(value_length(b"VALUE k 0 x", "k"), None);
        assert_eq!(value_length(b"ERROR", "k"), None);
    }
}
