//! Redis with a client: known values, sequential reads and writes, and the latency of each.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use hiroma_units::Rng;

use super::work::Scene;
use crate::children::{Failed, Running};
use crate::job::{Latency, TaskResult};

const KEYS: u64 = 150_000;
const REQUESTS: u64 = 40_000;
/// Number of requests that are sent before the first answer is read, while the server is filled.
const BATCH: u64 = 500;

/// A connection.
struct Client {
    stream: BufReader<UnixStream>,
    line: String,
}

/// A value of about a kilobyte, like a session or a profile; different for each version.
fn value(key: u64, version: u32) -> Vec<u8> {
    let mut random = Rng::new(key * 31 + u64::from(version));
    let mut text =
        format!("{{\"id\": {key}, \"version\": {version}, \"name\": \"user {key}\", \"items\": [");
    for _ in 0..12 + key % 16 {
        text += &format!(
            "{{\"product\": {}, \"count\": {}, \"state\": \"in stock\"}}, ",
            random.below_u64(1_000_000),
            random.below_u64(9)
        );
    }
    (text + "]}").into_bytes()
}

impl Client {
    fn connect(socket: &Path, server: &mut Running, limit: Duration) -> Result<Client, Failed> {
        let start = Instant::now();
        while start.elapsed() < limit {
            if let Ok(stream) = UnixStream::connect(socket) {
                let mut client = Client {
                    stream: BufReader::with_capacity(1 << 16, stream),
                    line: String::new(),
                };
                // A hanging server is detected by a missing answer.
                client.stream.get_ref().set_read_timeout(Some(limit))?;
                client.send(b"*1\r\n$4\r\nPING\r\n")?;
                if client.status()? == "PONG" {
                    return Ok(client);
                }
            }
            if server.has_ended() {
                return Err(anyhow::anyhow!("redis-server ended as it started").into());
            }
            thread::sleep(Duration::from_millis(10));
        }
        Err(Failed::TimeLimit(limit.as_secs_f64()))
    }

    fn send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.stream.get_mut().write_all(bytes)
    }

    fn line(&mut self) -> Result<&str> {
        self.line.clear();
        ensure!(self.stream.read_line(&mut self.line)? > 0, "redis-server closed the connection");
        Ok(self.line.trim_end())
    }

    fn status(&mut self) -> Result<String> {
        let line = self.line()?;
        let status =
            line.strip_prefix('+').with_context(|| format!("redis-server answered `{line}`"))?;
        Ok(status.to_owned())
    }

    fn bulk(&mut self) -> Result<Vec<u8>> {
        let line = self.line()?;
        let Some(length) = line.strip_prefix('$').and_then(|length| length.parse::<usize>().ok())
        else {
            bail!("redis-server answered `{line}`")
        };
        let mut value = vec![0; length + 2];
        self.stream.read_exact(&mut value)?;
        value.truncate(length);
        Ok(value)
    }
}

fn set(key: u64, version: u32) -> Vec<u8> {
    let (name, value) = (format!("key:{key}"), value(key, version));
    let mut bytes = format!("*3\r\n$3\r\nSET\r\n${}\r\n{name}\r\n${}\r\n", name.len(), value.len())
        .into_bytes();
    bytes.extend(value);
    bytes.extend(b"\r\n");
    bytes
}

fn get(key: u64) -> Vec<u8> {
    let name = format!("key:{key}");
    format!("*2\r\n$3\r\nGET\r\n${}\r\n{name}\r\n", name.len()).into_bytes()
}

/// Starts the server, fills it, times requests, and checks every value that is read.
pub fn drive(scene: &Scene) -> Result<TaskResult, Failed> {
    let socket = scene.dir.join("redis.socket");
    let _ = std::fs::remove_file(&socket);
    let words = |path: &Path| {
        path.to_str().context("a directory whose name is not UTF-8").map(str::to_owned)
    };
    let mut argv: Vec<String> =
        ["redis-server", "--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"]
            .map(str::to_owned)
            .into();
    argv.extend([words(&socket)?, "--dir".to_owned(), words(scene.dir)?]);
    let start = Instant::now();
    let mut server = scene.start(&[], &argv, Stdio::null(), scene.dir)?;
    let outcome = match requests(scene, &socket, &mut server, start) {
        // An answer was missing.
        Err(Failed::Other(_)) if start.elapsed() >= scene.limit => {
            Err(Failed::TimeLimit(scene.limit.as_secs_f64()))
        }
        outcome => outcome,
    };
    // The statistics are written at an orderly exit.
    if outcome.is_ok() {
        server.end(Duration::from_secs(20))?;
    }
    outcome
}

fn requests(
    scene: &Scene,
    socket: &Path,
    server: &mut Running,
    start: Instant,
) -> Result<TaskResult, Failed> {
    let in_time = || match () {
        () if scene.interrupt.came() => Err(Failed::Interrupted),
        () if start.elapsed() > scene.limit => Err(Failed::TimeLimit(scene.limit.as_secs_f64())),
        () => Ok(()),
    };
    let mut client = Client::connect(socket, server, scene.limit)?;
    for first in (0..KEYS).step_by(BATCH as usize) {
        in_time()?;
        let batch: Vec<u8> = (first..first + BATCH).flat_map(|key| set(key, 0)).collect();
        client.send(&batch)?;
        for _ in 0..BATCH {
            client.status()?;
        }
    }
    let mut random = Rng::new(6);
    let mut versions = vec![0u32; KEYS as usize];
    let mut nanos = Vec::with_capacity(REQUESTS as usize);
    for request in 0..REQUESTS {
        if request % 64 == 0 {
            in_time()?;
        }
        // Four of five requests are for a fifth of the keys.
        let rank = if random.below_u64(5) < 4 {
            random.below_u64(KEYS / 5)
        } else {
            random.below_u64(KEYS)
        };
        let key = rank * 7919 % KEYS;
        let writes = request % 10 == 0;
        let version = &mut versions[key as usize];
        *version += u32::from(writes);
        let (bytes, expected) =
            (if writes { set(key, *version) } else { get(key) }, value(key, *version));
        let sent = Instant::now();
        client.send(&bytes)?;
        let right = if writes { client.status()? == "OK" } else { client.bulk()? == expected };
        nanos.push(sent.elapsed().as_nanos() as u64);
        if !right {
            return Err(anyhow::anyhow!("the value of key:{key} came back changed").into());
        }
    }
    // Excludes the client's work between requests.
    let seconds = nanos.iter().sum::<u64>() as f64 / 1e9;
    Ok(TaskResult {
        seconds,
        count: REQUESTS,
        latency: Latency::of(nanos),
        ..TaskResult::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_use_resp_and_values_encode_versions() {
        assert_eq!(get(12), b"*2\r\n$3\r\nGET\r\n$6\r\nkey:12\r\n");
        let text = String::from_utf8(set(1, 2)).unwrap();
        assert!(
            text.starts_with("*3\r\n$3\r\nSET\r\n$5\r\nkey:1\r\n$") && text.ends_with("]}\r\n")
        );
        assert_ne!(value(1, 0), value(1, 1));
        assert_eq!(value(1, 1), value(1, 1));
    }
}
