//! Opens stores from the user's specification.

use std::sync::Arc;

use hiroma_policy::redundancy::Scheme;
use hiroma_units::Bytes;

use super::chain::ChainStore;
use super::compressed::CompressedStore;
use super::file::FileStore;
use super::redis::{RedisOptions, RedisStore};
use super::replicated::{Place, ReplicatedStore};
use super::sealed::SealedStore;
use super::tcp::{Lost, TcpOptions, TcpStore, split_tenant};
use super::{Store, StoreError};
use crate::config::{Config, MEMBERS_FILE, Seal, StoreSpec};

/// Smallest and largest sector.
const SECTOR_BYTES: std::ops::RangeInclusive<usize> = 4096..=2 << 20;

/// Opens the stores of `config` as one store.
pub fn open(config: &Config, sector_bytes: usize) -> Result<Arc<dyn Store>, StoreError> {
    assert!(
        sector_bytes.is_power_of_two() && SECTOR_BYTES.contains(&sector_bytes),
        "not a sector size: {sector_bytes}"
    );
    let is_servers = |spec: &StoreSpec| matches!(spec, StoreSpec::Tcp { .. });
    if config.scheme != Scheme::ONE && !config.stores.iter().any(is_servers) {
        let (option, value) = match config.scheme.is_cut() {
            true => ("--parity", config.scheme.to_string()),
            false => ("--copies", config.scheme.pieces().to_string()),
        };
        let reason = format!(
            "{option} {value} is about servers, and none is named: add tcp://HOST:PORT,HOST:PORT to --store, or leave {option} out"
        );
        return Err(StoreError::Config { store: "--store".to_owned(), reason });
    }
    let one = |(at, spec)| open_one(spec, config, sector_bytes, at + 1 == config.stores.len());
    let mut stores = config.stores.iter().enumerate().map(one).collect::<Result<Vec<_>, _>>()?;
    match stores.len() {
        1 => Ok(stores.remove(0)),
        _ => Ok(Arc::new(ChainStore::new(stores, sector_bytes)?)),
    }
}

fn open_one(
    spec: &StoreSpec,
    config: &Config,
    sector_bytes: usize,
    is_last: bool,
) -> Result<Arc<dyn Store>, StoreError> {
    let capacity = |capacity: &Option<Bytes>| capacity.map(|bytes| bytes.0);
    Ok(match spec {
        StoreSpec::Compressed { capacity: bytes } => {
            let store = match capacity(bytes) {
                Some(bytes) => CompressedStore::new(sector_bytes, bytes)?,
                None => CompressedStore::within(sector_bytes, config.local_limit_bytes, !is_last)?,
            };
            Arc::new(store)
        }
        StoreSpec::File { dir, capacity: bytes } => {
            Arc::new(FileStore::new(dir, sector_bytes, capacity(bytes))?)
        }
        StoreSpec::Redis(address) => {
            let store = Arc::new(RedisStore::connect(RedisOptions {
                address: address.clone(),
                sector_bytes,
                timeout: config.store_timeout,
                resolved: config.resolved.clone(),
                log: Arc::new(crate::fatal::warn),
                lost: Arc::new(|error| crate::fetch::lost(error)),
            })?);
            seal(store, &[address.server()], config, sector_bytes)?
        }
        StoreSpec::Tcp { servers } => {
            let store = open_servers(servers, config, sector_bytes, is_last)?;
            seal(store, servers, config, sector_bytes)?
        }
    })
}

/// Seals what goes to a store in `servers`, if that is wanted.
fn seal(
    store: Arc<dyn Store>,
    servers: &[String],
    config: &Config,
    sector_bytes: usize,
) -> Result<Arc<dyn Store>, StoreError> {
    if seals(servers, config) {
        Ok(Arc::new(SealedStore::new(store, sector_bytes, config.arena_bytes)?))
    } else {
        Ok(store)
    }
}

/// Whether what goes to these servers is sealed.
fn seals(servers: &[String], config: &Config) -> bool {
    match config.seal {
        Seal::On => true,
        Seal::Off => false,
        Seal::Auto => !are_here(servers, config),
    }
}

/// Whether all servers have addresses of this machine.
fn are_here(servers: &[String], config: &Config) -> bool {
    let addresses = |server: &String| {
        let known = config.resolved.iter().find(|(name, _)| name == server);
        let address = split_tenant(server).1;
        known.map(|(_, addresses)| addresses.clone()).or_else(|| Some(vec![address.parse().ok()?]))
    };
    servers.iter().all(|server| {
        addresses(server).is_some_and(|all| all.iter().all(|address| address.ip().is_loopback()))
    })
}

fn open_servers(
    servers: &[String],
    config: &Config,
    sector_bytes: usize,
    is_last: bool,
) -> Result<Arc<dyn Store>, StoreError> {
    // Of one list of servers each has a part; where members join, each block has a place of its own.
    let is_one = config.scheme == Scheme::ONE && !config.joins;
    let lost: Lost = match is_one {
        true => Arc::new(|error| crate::fetch::lost(error)),
        false => Arc::new(|_| {}),
    };
    let options = TcpOptions {
        servers: servers.to_vec(),
        sector_bytes,
        allocation: config.allocation,
        timeout: config.store_timeout,
        key_file: config.key_file.clone(),
        resolved: config.resolved.clone(),
        log: Arc::new(crate::fatal::warn),
        lost,
        is_redundant: !is_one,
        is_return: false,
        is_followed: !is_last,
        transport: config.transport,
    };
    if is_one {
        return Ok(Arc::new(TcpStore::connect_with(options)?));
    }
    let place = Place {
        domains: config.domains.clone(),
        members_file: config.control_dir.as_ref().map(|dir| dir.join(MEMBERS_FILE)),
        has_begun: config.has_begun,
        is_only_here: config.seal == Seal::Auto && !seals(servers, config),
        is_followed: !is_last,
    };
    Ok(Arc::new(ReplicatedStore::connect(&options, config.scheme, &place)?))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::config::parse_stores;
    use crate::store::Purpose;
    use crate::store::model::{content, read_now, write_now};

    fn config(stores: &str) -> Config {
        Config {
            stores: parse_stores(stores).unwrap(),
            local_limit_bytes: 64 << 20,
            ..Config::default()
        }
    }

    #[test]
    fn default_store_is_compressed_memory_then_file() {
        let store =
            open(&Config { local_limit_bytes: 64 << 20, ..Config::default() }, 8192).unwrap();
        assert_eq!(store.name(), "compressed,file:/var/tmp");
        assert!(store.usage().capacity_bytes > 32 << 20);
        let alone = open(&config("compressed"), 8192).unwrap();
        assert_eq!(
            (alone.name(), alone.usage().capacity_bytes),
            ("compressed".to_owned(), 48 << 20)
        );
    }

    #[test]
    fn servers_of_other_machines_are_sealed() {
        let is_sealed = |seal, stores: &str, resolved: &[(&str, &str)]| {
            let resolved = resolved
                .iter()
                .map(|(name, ip)| (name.to_string(), vec![format!("{ip}:7070").parse().unwrap()]));
            let config = Config { seal, resolved: resolved.collect(), ..config(stores) };
            let StoreSpec::Tcp { servers } = &config.stores[0] else { panic!("{stores}") };
            seals(servers, &config)
        };
        assert!(!is_sealed(Seal::Auto, "tcp://127.0.0.1:7070,[::1]:7070", &[]));
        assert!(is_sealed(Seal::Auto, "tcp://127.0.0.1:7070,10.0.0.2:7070", &[]));
        assert!(!is_sealed(Seal::Auto, "tcp://near:7070", &[("near:7070", "127.0.0.1")]));
        assert!(is_sealed(Seal::Auto, "tcp://near:7070", &[("near:7070", "10.0.0.2")]));
        assert!(is_sealed(Seal::Auto, "tcp://unknown:7070", &[]));
        assert!(is_sealed(Seal::On, "tcp://127.0.0.1:7070", &[]));
        assert!(!is_sealed(Seal::Off, "tcp://10.0.0.2:7070", &[]));
    }

    #[test]
    fn every_local_store_supports_every_sector_size() {
        for stores in ["compressed:32M", "file:/var/tmp:32M", "compressed:1M,file:/dev/shm:32M"] {
            for sector_bytes in (12..=21).map(|shift| 1usize << shift) {
                let store = open(&config(stores), sector_bytes).unwrap();
                let mut channel = store.open(Purpose::Write).unwrap();
                for seed in 0..4 {
                    let bytes = content(seed, 2 * sector_bytes);
                    let locs = write_now(&mut *channel, &bytes, 2).unwrap();
                    assert!(
                        read_now(&mut *channel, &locs, sector_bytes).unwrap() == bytes,
                        "{stores} {sector_bytes}"
                    );
                }
            }
        }
    }

    #[test]
    fn open_errors_state_the_reason() {
        let missing = StoreSpec::File { dir: PathBuf::from("/nowhere"), capacity: None };
        let error =
            open(&Config { stores: vec![missing], ..Config::default() }, 8192).err().unwrap();
        assert!(error.to_string().starts_with("file:/nowhere: it cannot be used"), "{error}");
        let error = open(&Config { stores: Vec::new(), ..Config::default() }, 8192).err().unwrap();
        assert!(error.to_string().contains("use one to 4"), "{error}");
    }
}
