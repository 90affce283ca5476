//! A plain TCP stream over loopback, one process sending and one receiving 2 MiB at a time: the
//! upper bound for a network store.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::Instant;

use anyhow::{Context, Result};

use super::job::TaskResult;

const BLOCK: usize = 2 << 20;

/// Sends `bytes` to `port`.
pub fn source(port: u16, bytes: u64) -> Result<TaskResult> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))
        .context("connecting to the receiving process")?;
    let block = vec![0x5au8; BLOCK];
    let start = Instant::now();
    let mut left = bytes;
    while left > 0 {
        let part = left.min(BLOCK as u64) as usize;
        stream.write_all(&block[..part])?;
        left -= part as u64;
    }
    Ok(TaskResult { seconds: start.elapsed().as_secs_f64(), bytes, ..TaskResult::default() })
}

/// Accepts one connection and reads all of it; prints the port to connect to as the first line.
pub fn sink() -> Result<TaskResult> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    println!("{}", listener.local_addr()?.port());
    let (mut stream, _) = listener.accept()?;
    let mut block = vec![0u8; BLOCK];
    let start = Instant::now();
    let mut bytes = 0;
    loop {
        match stream.read(&mut block)? {
            0 => break,
            part => bytes += part as u64,
        }
    }
    Ok(TaskResult { seconds: start.elapsed().as_secs_f64(), bytes, ..TaskResult::default() })
}
