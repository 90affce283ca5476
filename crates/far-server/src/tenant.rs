//! Whose memory it is: the tenant to which the memory of its sessions is counted.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use hiroma_far_wire::CHUNK;
use hiroma_policy::lending::share::Holding;

use crate::registry::TenantStats;
use crate::session::lock;
use crate::turns::Running;

/// What tenants may have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Quotas {
    /// For each tenant that has no quota of its own, in bytes.
    pub default_bytes: Option<u64>,
    /// Quotas of tenants, in bytes.
    pub bytes: BTreeMap<String, u64>,
    /// Weights of tenants; others have 1.
    pub weights: BTreeMap<String, u32>,
}

/// One tenant. The counts change under the pool's lock.
pub struct Tenant {
    pub number: u64,
    /// Its name; that of an unnamed one is the address of its machine.
    pub name: String,
    pub is_named: bool,
    /// Chunks that it may have at most.
    pub quota: Option<usize>,
    pub weight: u32,
    /// Chunks with its data, in memory or not.
    pub used: AtomicUsize,
    /// Chunks set aside for it.
    pub reserved: AtomicUsize,
    pub sessions: AtomicUsize,
    /// What it had when memory became short, and for the how many-th time that was.
    held_then: Mutex<(u64, usize)>,
    pub running: Running,
}

impl Tenant {
    /// The tenant of this name; without one, all clients of a machine are one.
    pub fn new(number: u64, name: &str, peer: IpAddr, quotas: &Quotas) -> Arc<Tenant> {
        let bytes = quotas.bytes.get(name).copied().or(quotas.default_bytes);
        Arc::new(Tenant {
            number,
            name: Tenant::name_of(name, peer),
            is_named: !name.is_empty(),
            quota: bytes.map(|bytes| (bytes / CHUNK as u64) as usize),
            weight: quotas.weights.get(name).copied().unwrap_or(1),
            used: AtomicUsize::new(0),
            reserved: AtomicUsize::new(0),
            sessions: AtomicUsize::new(0),
            held_then: Mutex::default(),
            running: Running::default(),
        })
    }

    pub fn name_of(name: &str, peer: IpAddr) -> String {
        if name.is_empty() { peer.to_string() } else { name.to_owned() }
    }

    /// The name that its clients gave; empty if they gave none.
    pub fn given_name(&self) -> &str {
        if self.is_named { &self.name } else { "" }
    }

    pub fn stats(&self) -> TenantStats {
        let bytes = |chunks: usize| (chunks * CHUNK) as u64;
        TenantStats {
            number: self.number,
            name: self.name.clone(),
            is_named: self.is_named,
            sessions: self.sessions.load(Ordering::SeqCst),
            used_bytes: bytes(self.used.load(Ordering::SeqCst)),
            reserved_bytes: bytes(self.reserved.load(Ordering::SeqCst)),
            quota_bytes: self.quota.map(bytes),
            weight: self.weight,
        }
    }

    /// What it had when memory became short for the `shortage`-th time: it gets nothing in between
    /// without asking.
    pub fn held_then(&self, shortage: u64) -> usize {
        let mut then = lock(&self.held_then);
        if then.0 != shortage {
            *then = (shortage, self.held());
        }
        then.1
    }

    pub fn held(&self) -> usize {
        self.used.load(Ordering::SeqCst) + self.reserved.load(Ordering::SeqCst)
    }

    pub fn holding(&self) -> Holding {
        Holding {
            held: self.held() as u64,
            quota: self.quota.map(|chunks| chunks as u64),
            weight: self.weight,
        }
    }

    /// Chunks that the quota leaves; none: there is no quota.
    pub fn under_quota(&self) -> Option<usize> {
        self.quota.map(|quota| quota.saturating_sub(self.held()))
    }
}
