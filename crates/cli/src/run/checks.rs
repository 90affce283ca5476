//! Checks that find failures before the program starts: the kernel, the rights, the stores.

use std::io;
use std::path::Path;

use anyhow::Result;
use hiroma_command::refuse;
use hiroma_far::config::{Config, PathChoice, StoreSpec};
use hiroma_sys::cpu;
use hiroma_units::Bytes;
use rustix::fs::statvfs;

use crate::rights::{self, ALLOW_FOR_GOOD, ALLOW_NOW, KernelVersion};

/// Any sector size will do to check whether a store can be opened.
const PROBE_SECTOR_BYTES: usize = 8192;

/// The kernel interface that the pager will use. Refuses a machine that cannot do what `config`
/// requires.
pub fn machine(config: &Config) -> Result<PathChoice> {
    let running = KernelVersion::running()
        .map_or("this kernel".to_owned(), |version| format!("Linux {version}"));
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

/// The kernel interface and the stores that will be used, for `--verbose`.
pub fn describe(path: PathChoice, config: &Config) -> String {
    let kernel = match path {
        PathChoice::Fallback if config.path == PathChoice::Auto => {
            format!(
                "the fallback path, which is slower (the full path needs Linux {})",
                KernelVersion::FULL
            )
        }
        PathChoice::Fallback => "the fallback path".to_owned(),
        _ => "the full path".to_owned(),
    };
    let stores: Vec<String> = config.stores.iter().map(StoreSpec::shown).collect();
    format!("{} local, then {}; {kernel}", Bytes(config.local_limit_bytes), stores.join(", then "))
}

/// What makes faults slower here than they could be, in the words of `hiroma doctor`.
pub fn lacks(path: PathChoice, config: &Config) -> Vec<String> {
    let mut lacks = Vec::new();
    if path == PathChoice::Fallback && config.path == PathChoice::Auto {
        lacks.push(format!("pages cannot be moved before Linux {}", KernelVersion::FULL));
    }
    if !cpu::may_raise_from_idle() {
        lacks.push("threads may not come back from SCHED_IDLE".to_owned());
    }
    let has_file = config.stores.iter().any(|store| matches!(store, StoreSpec::File { .. }));
    if let (true, Err(error)) = (has_file, io_uring::IoUring::new(4)) {
        lacks.push(format!("io_uring is not available ({error})"));
    }
    lacks
}

/// Refuses stores that cannot be used: opens them as the program will, and closes them again.
pub fn stores(config: &Config) -> Result<()> {
    for store in &config.stores {
        if let StoreSpec::File { dir, capacity } = store {
            file_store(store, dir, *capacity)?;
        }
    }
    hiroma_far::store::open(config, PROBE_SECTOR_BYTES)
        .map(drop)
        .map_err(|error| refuse(error.to_string()))
}

/// Checks the directory of a file store before the store is made in it.
fn file_store(store: &StoreSpec, dir: &Path, capacity: Option<Bytes>) -> Result<()> {
    if !dir.is_dir() {
        return Err(refuse(format!(
            "{store}: {} is not a directory: make it, or name another one",
            dir.display()
        )));
    }
    tempfile::tempfile_in(dir).map_err(|error| {
        refuse(format!(
            "{store}: cannot make a file in {}: {error}; name a directory that you can write to",
            dir.display()
        ))
    })?;
    let found =
        statvfs(dir).map_err(|error| refuse(format!("{store}: {}", io::Error::from(error))))?;
    let free = Bytes(found.f_bavail * found.f_frsize);
    match capacity {
        Some(wanted) if wanted > free => Err(refuse(format!(
            "{store}: {} has only {free} free: ask for less, or name another directory",
            dir.display()
        ))),
        None if free.0 == 0 => Err(refuse(format!(
            "{store}: the file system of {} is full: make room, or name another directory",
            dir.display()
        ))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hiroma_far_server::{ServeOptions, serve};
    use std::fs;
    use std::net::TcpListener;

    fn with_stores(text: &str) -> Config {
        Config { stores: hiroma_far::config::parse_stores(text).unwrap(), ..Config::default() }
    }

    #[test]
    fn missing_server_of_two_is_named() {
        let server = serve(ServeOptions {
            listen: "127.0.0.1:0".into(),
            memory_bytes: 64 << 20,
            ..ServeOptions::default()
        })
        .unwrap();
        let here = server.local_addr();
        let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        stores(&with_stores(&format!("tcp://{here}"))).unwrap();
        let error = stores(&with_stores(&format!("tcp://{here},{gone}"))).unwrap_err().to_string();
        assert!(
            error.contains(&gone.to_string()) && !error.contains(&format!("tcp://{here}:")),
            "{error}"
        );
    }

    #[test]
    fn server_refuses_missing_or_wrong_key() {
        let dir = tempfile::tempdir().unwrap();
        let key = |name: &str, content: &str| {
            fs::write(dir.path().join(name), content).unwrap();
            dir.path().join(name)
        };
        let (right, wrong) = (
            key("right", "0123456789abcdef0123456789abcdef"),
            key("wrong", "fedcba9876543210fedcba9876543210"),
        );
        let options = ServeOptions {
            listen: "127.0.0.1:0".into(),
            memory_bytes: 64 << 20,
            ..ServeOptions::default()
        };
        let server = serve(ServeOptions { key_file: Some(right.clone()), ..options }).unwrap();
        let with_key = |key_file| Config {
            key_file,
            ..with_stores(&format!("tcp://{}", server.local_addr()))
        };
        stores(&with_key(Some(right))).unwrap();
        for key_file in [None, Some(wrong), Some(key("empty", "")), Some(dir.path().join("none"))] {
            let error = stores(&with_key(key_file)).unwrap_err().to_string();
            assert!(error.contains("key"), "{error}");
        }
    }

    #[test]
    fn missing_or_too_small_directory_is_refused() {
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
}
