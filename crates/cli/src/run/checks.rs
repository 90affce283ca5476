//! What can be known to fail before the program starts: the kernel, the rights, the stores.

use std::fs;
use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use hiroma_pager::config::{Config, PathChoice, StoreSpec};
use hiroma_units::Bytes;
use rustix::fs::statvfs;

use crate::refuse;
use crate::rights::{self, ALLOW_FOR_GOOD, ALLOW_NOW, KernelVersion};

/// How long a server may take to accept a connection before the program starts.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The kernel interface that the pager will take; refuses a machine that cannot do what is wanted.
pub fn machine(config: &Config) -> Result<PathChoice> {
    let running = KernelVersion::running().map_or("this kernel".to_owned(), |version| format!("Linux {version}"));
    match (rights::best_path(), config.path) {
        (Err(why), _) if why.contains("not allowed") => Err(refuse(format!(
            "{why}, and far memory needs it\n  allow it until the next start of the machine:  {ALLOW_NOW}\n  allow it for good:                             {ALLOW_FOR_GOOD}"
        ))),
        (Err(why), _) => Err(refuse(why)),
        (Ok(PathChoice::Fallback), PathChoice::Full) => Err(refuse(format!(
            "--path full needs Linux {}, and this is {running}: leave --path out, or use --path fallback",
            KernelVersion::FULL
        ))),
        (Ok(best), PathChoice::Auto) => Ok(best),
        (Ok(_), asked) => Ok(asked),
    }
}

/// What will be used, for `--verbose`.
pub fn describe(path: PathChoice, config: &Config) -> String {
    let kernel = match path {
        PathChoice::Fallback if config.path == PathChoice::Auto => {
            format!("the fallback path, which is slower (the full path needs Linux {})", KernelVersion::FULL)
        }
        PathChoice::Fallback => "the fallback path".to_owned(),
        _ => "the full path".to_owned(),
    };
    let stores: Vec<String> = config.stores.iter().map(ToString::to_string).collect();
    format!("{} local, then {}; {kernel}", Bytes(config.local_limit_bytes), stores.join(", then "))
}

/// Refuses stores that cannot be used, and a key that cannot be read.
pub fn stores(config: &Config) -> Result<()> {
    if let Some(path) = &config.key_file {
        let key = fs::read(path).map_err(|error| refuse(format!("--key-file {}: cannot read it: {error}", path.display())))?;
        if key.is_empty() {
            return Err(refuse(format!(
                "--key-file {}: the file is empty; make a key with: head -c 32 /dev/urandom | base64 > {0}",
                path.display()
            )));
        }
    }
    for store in &config.stores {
        match store {
            StoreSpec::File { dir, capacity } => file_store(store, dir, *capacity)?,
            StoreSpec::Tcp { servers } => servers.iter().try_for_each(|server| tcp_server(store, server))?,
            _ => {}
        }
    }
    Ok(())
}

fn file_store(store: &StoreSpec, dir: &Path, capacity: Option<Bytes>) -> Result<()> {
    if !dir.is_dir() {
        return Err(refuse(format!("{store}: {} is not a directory: make it, or name another one", dir.display())));
    }
    tempfile::tempfile_in(dir).map_err(|error| {
        refuse(format!("{store}: cannot make a file in {}: {error}; name a directory that you can write to", dir.display()))
    })?;
    let found = statvfs(dir).map_err(|error| refuse(format!("{store}: {}", io::Error::from(error))))?;
    let free = Bytes(found.f_bavail * found.f_frsize);
    match capacity {
        Some(wanted) if wanted > free => {
            Err(refuse(format!("{store}: {} has only {free} free: ask for less, or name another directory", dir.display())))
        }
        None if free.0 == 0 => {
            Err(refuse(format!("{store}: the file system of {} is full: make room, or name another directory", dir.display())))
        }
        _ => Ok(()),
    }
}

fn tcp_server(store: &StoreSpec, server: &str) -> Result<()> {
    let unusable = |error: io::Error| {
        refuse(format!(
            "{store}: the server {server} cannot be reached: {error}; start one there with `hiroma serve --listen {server} --memory SIZE`, or name another store"
        ))
    };
    let addresses = server.to_socket_addrs().map_err(unusable)?;
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in addresses {
        match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
            Ok(_) => return Ok(()),
            Err(error) => last = error,
        }
    }
    Err(unusable(last))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn with_stores(text: &str) -> Config {
        Config { stores: hiroma_pager::config::parse_stores(text).unwrap(), ..Config::default() }
    }

    #[test]
    fn of_two_servers_the_one_that_is_missing_is_named() {
        let here = TcpListener::bind("127.0.0.1:0").unwrap();
        // A port that was free a moment ago, and that nobody is handed by the kernel while the listener above lives.
        let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let here = here.local_addr().unwrap();
        stores(&with_stores(&format!("tcp://{here}"))).unwrap();
        let error = stores(&with_stores(&format!("tcp://{here},{gone}"))).unwrap_err().to_string();
        assert!(error.contains(&format!("the server {gone} cannot be reached")), "{error}");
    }

    #[test]
    fn a_directory_that_is_missing_or_too_small_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        stores(&with_stores(&format!("file:{}", dir.path().display()))).unwrap();
        for (text, wanted) in [
            (format!("file:{}/none", dir.path().display()), "is not a directory"),
            (format!("file:{}:4000T", dir.path().display()), "free"),
        ] {
            let error = stores(&with_stores(&text)).unwrap_err().to_string();
            assert!(error.contains(wanted), "{error}");
        }
    }

    #[test]
    fn a_key_file_must_hold_a_key() {
        let dir = tempfile::tempdir().unwrap();
        let empty = dir.path().join("key");
        fs::write(&empty, "").unwrap();
        for (path, wanted) in [(empty, "empty"), (dir.path().join("none"), "cannot read")] {
            let config = Config { key_file: Some(path), stores: Vec::new(), ..Config::default() };
            assert!(stores(&config).unwrap_err().to_string().contains(wanted));
        }
    }
}
