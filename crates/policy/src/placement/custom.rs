//! Placement policies that are not part of this crate: written by a user of it, or loaded from a
//! file.
//!
//! A policy answers one question: which peer gets the page that has to leave this node. Everything
//! else (messages, reservations, failures, replacement) stays with [`Placer`](super::Placer), so
//! that results of own and built-in policies can be compared.
//!
//! Three objects: a [`CustomPlacement`] is what a configuration names. A simulated machine starts
//! it once ([`PolicySource::start`]). Each node of the machine then has a [`PlacementPolicy`] of its
//! own, made at its first decision.
//!
//! ```
//! use hiroma_policy::placement::{
//!     CustomPlacement, Peer, PlacementPolicy, PolicyError, Request, Rng,
//! };
//!
//! /// The peer that would be left with the greatest share of its memory free.
//! #[derive(Debug, Default)]
//! struct LeastLoaded;
//!
//! impl PlacementPolicy for LeastLoaded {
//!     fn choose(
//!         &mut self,
//!         request: &Request<'_>,
//!         _: &mut Rng,
//!     ) -> Result<Option<Peer>, PolicyError> {
//!         let share = |free: u32, capacity: u32| u64::from(free) * 1000 / u64::from(capacity);
//!         let best = request.candidates().max_by_key(|peer| share(peer.free, peer.capacity));
//!         Ok(best.map(|peer| peer.peer))
//!     }
//! }
//!
//! let placement = CustomPlacement::new("least_loaded", LeastLoaded::default);
//! assert_eq!(placement.label(), "least_loaded");
//! ```

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, OnceLock};

use super::Rng;
use super::choice::Choice;
use super::view::{Avoid, Peer, View};

/// Why a policy gave no answer that can be used: what happened, and what to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PolicyError(pub String);

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for PolicyError {}

/// What a node knows about one peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PeerState {
    /// The peer.
    pub peer: Peer,
    /// Its free frames as far as known: messages are late, and the number may be wrong by now.
    pub free: u32,
    /// All of its frames.
    pub capacity: u32,
    /// Hops to it.
    pub hops: u16,
    /// Its speed: the time in which it takes a page, or gives one back, when nothing else waits
    /// there, ns; 0 if nobody knows.
    pub page_ns: u32,
    /// Whether the page must not go there: it came from there, or its owner is there.
    pub avoid: bool,
}

impl PeerState {
    /// Whether the page may go there.
    pub fn is_candidate(&self) -> bool {
        self.free > 0 && !self.avoid
    }
}

/// A page has to leave the node: what is known at this moment.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    view: &'a View,
    avoid: Avoid,
}

impl<'a> Request<'a> {
    /// A page that must not go to `avoid`, with the view of its node.
    pub fn new(view: &'a View, avoid: Avoid) -> Self {
        Request { view, avoid }
    }

    /// All peers, nearest first; the same peers in the same order at every request of a node while
    /// none joins.
    pub fn peers(&self) -> impl Iterator<Item = PeerState> + 'a {
        let request = *self;
        request.view.nearest_first().map(move |peer| request.state(peer))
    }

    /// All peers by their numbers: those that were there from the beginning nearest first, then those
    /// that joined. A peer keeps its number.
    pub fn by_number(&self) -> impl Iterator<Item = PeerState> + 'a {
        let request = *self;
        (0..request.len() as u16).map(move |peer| request.state(Peer(peer)))
    }

    fn state(&self, peer: Peer) -> PeerState {
        let Request { view, avoid } = *self;
        PeerState {
            peer,
            free: view.free(peer),
            capacity: view.capacity(peer),
            hops: view.hops()[usize::from(peer.0)],
            page_ns: view.page_ns(peer),
            avoid: avoid.has(peer),
        }
    }

    /// The peers that the page may go to: those with a free frame as far as known, without those to
    /// be avoided.
    pub fn candidates(&self) -> impl Iterator<Item = PeerState> + 'a {
        self.peers().filter(PeerState::is_candidate)
    }

    /// Number of peers.
    pub fn len(&self) -> usize {
        self.view.len()
    }

    /// Whether the node has no peers.
    pub fn is_empty(&self) -> bool {
        self.view.is_empty()
    }

    /// The view, for the ways to choose of this crate ([`Choice`]).
    pub fn view(&self) -> &'a View {
        self.view
    }

    /// The peers to be avoided.
    pub fn avoid(&self) -> Avoid {
        self.avoid
    }
}

/// A placement policy of one node.
///
/// The answer must depend on nothing but the requests so far and on numbers drawn from `rng`: not on
/// the clock, on addresses, or on state that nodes share. Then the same seed gives the same result
/// on any machine with any number of threads.
pub trait PlacementPolicy: fmt::Debug + Send {
    /// Decides which of [`Request::candidates`] gets the page; none sends it to disk.
    ///
    /// # Errors
    /// If the policy cannot decide. The run ends, and the message is shown.
    fn choose(&mut self, request: &Request<'_>, rng: &mut Rng)
    -> Result<Option<Peer>, PolicyError>;
}

/// The policies of the nodes of one machine.
pub trait NodePolicies: fmt::Debug + Send + Sync {
    /// The policy of one more node.
    fn node(&self) -> Result<Box<dyn PlacementPolicy>, PolicyError>;
}

/// Starts a policy for machines, one after the other or several at the same time.
pub trait PolicySource: fmt::Debug + Send + Sync {
    /// Starts it for one machine.
    fn start(&self) -> Result<Box<dyn NodePolicies>, PolicyError>;
}

/// A policy as a configuration names it. Two of the same label are the same policy.
#[derive(Clone)]
pub struct CustomPlacement {
    label: Arc<str>,
    source: Arc<dyn PolicySource>,
}

impl CustomPlacement {
    /// A policy of this program: `policy` makes that of one node.
    pub fn new<P: PlacementPolicy + 'static>(
        label: impl Into<Arc<str>>,
        policy: impl Fn() -> P + Send + Sync + 'static,
    ) -> Self {
        let make = move || Box::new(policy()) as Box<dyn PlacementPolicy>;
        CustomPlacement::from_source(label, Functions(Arc::new(make)))
    }

    /// A policy that is started once for each machine. The label identifies it in files of results:
    /// of a policy that was read from a file it includes a checksum.
    pub fn from_source(label: impl Into<Arc<str>>, source: impl PolicySource + 'static) -> Self {
        CustomPlacement { label: label.into(), source: Arc::new(source) }
    }

    /// Its name in configurations and results.
    pub fn label(&self) -> &str {
        &self.label
    }
}

impl fmt::Debug for CustomPlacement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CustomPlacement").field(&self.label).finish()
    }
}

impl PartialEq for CustomPlacement {
    fn eq(&self, other: &Self) -> bool {
        self.label == other.label
    }
}

impl Eq for CustomPlacement {}

impl Hash for CustomPlacement {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.label.hash(state);
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for CustomPlacement {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.label)
    }
}

/// A function that makes policies.
struct Functions(Arc<dyn Fn() -> Box<dyn PlacementPolicy> + Send + Sync>);

impl fmt::Debug for Functions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Functions")
    }
}

impl NodePolicies for Functions {
    fn node(&self) -> Result<Box<dyn PlacementPolicy>, PolicyError> {
        Ok((self.0)())
    }
}

impl PolicySource for Functions {
    fn start(&self) -> Result<Box<dyn NodePolicies>, PolicyError> {
        Ok(Box::new(Functions(self.0.clone())))
    }
}

/// A policy that was started for one machine, and its first error.
#[derive(Debug)]
pub struct CustomRun {
    label: Arc<str>,
    nodes: Option<Box<dyn NodePolicies>>,
    failure: OnceLock<PolicyError>,
}

impl CustomRun {
    /// Starts `placement`.
    pub fn start(placement: &CustomPlacement) -> Self {
        let failure = OnceLock::new();
        let nodes = match placement.source.start() {
            Ok(nodes) => Some(nodes),
            Err(error) => {
                let what = format!("the policy `{}` cannot be started: {error}", placement.label);
                failure.get_or_init(|| PolicyError(what));
                None
            }
        };
        CustomRun { label: placement.label.clone(), nodes, failure }
    }

    /// The first error: no answer after it can be relied on.
    pub fn failure(&self) -> Option<&PolicyError> {
        self.failure.get()
    }

    fn fail(&self, error: PolicyError) {
        self.failure
            .get_or_init(|| PolicyError(format!("the policy `{}` {}", self.label, error.0)));
    }
}

/// The part of a custom policy that belongs to one node.
#[derive(Debug)]
pub struct Custom {
    run: Arc<CustomRun>,
    policy: Option<Box<dyn PlacementPolicy>>,
}

impl Custom {
    /// A node of the machine that `run` was started for.
    pub fn new(run: Arc<CustomRun>) -> Self {
        Custom { run, policy: None }
    }

    fn ask(&mut self, request: &Request<'_>, rng: &mut Rng) -> Result<Option<Peer>, PolicyError> {
        let Some(nodes) = &self.run.nodes else { return Ok(None) };
        let policy = match &mut self.policy {
            Some(policy) => policy,
            none => none.insert(nodes.node()?),
        };
        let chosen = policy.choose(request, rng)?;
        match chosen.and_then(|peer| refusal(request, peer)) {
            Some(what) => Err(PolicyError(what)),
            None => Ok(chosen),
        }
    }
}

/// Why a page cannot go to `peer`, if it cannot.
fn refusal(request: &Request<'_>, peer: Peer) -> Option<String> {
    let Some(state) = request.by_number().nth(usize::from(peer.0)) else {
        let peers = request.len();
        return Some(format!(
            "chose peer {}, and the node has {peers} peers: the first is 0",
            peer.0
        ));
    };
    if state.avoid {
        return Some(format!(
            "chose peer {}, which the page came from or belongs to: leave out peers that are to be avoided",
            peer.0
        ));
    }
    (state.free == 0).then(|| {
        format!(
            "chose peer {}, which has no free frame as far as the node knows: choose another one, or disk",
            peer.0
        )
    })
}

impl Choice for Custom {
    /// None also after an error, which [`CustomRun::failure`] has.
    fn choose(&mut self, view: &View, avoid: Avoid, rng: &mut Rng) -> Option<Peer> {
        if self.run.failure().is_some() {
            return None;
        }
        self.ask(&Request::new(view, avoid), rng).unwrap_or_else(|error| {
            self.run.fail(error);
            None
        })
    }
}

#[cfg(test)]
mod tests;
