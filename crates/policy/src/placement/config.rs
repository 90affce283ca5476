//! The choices of a user: one value per question of the paper (sections 2.1 to 2.4), with the
//! paper's defaults.

use super::custom::CustomPlacement;

/// When a node tells its peers how many frames it has free (section 2.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize, schemars::JsonSchema),
    serde(rename_all = "snake_case")
)]
pub enum InformationKind {
    /// Every `period_ns`.
    Periodic,
    /// When the free frames reach a high watermark from below or a low one from above.
    #[default]
    OnChange,
    /// Never by itself; a node that has a page to place requests bids.
    OnDemand,
}

/// The nodes with which a node exchanges information and pages (section 2.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize, schemars::JsonSchema),
    serde(rename_all = "snake_case")
)]
pub enum ScopeKind {
    /// None: pages go to disk only.
    Disk,
    /// The nodes within `domain_radius` hops; every node is the centre of its own domain.
    #[default]
    Domain,
    /// Neighbours only; pages move one hop at a time towards the nearest free frame.
    Gradient,
}

/// Which node of the domain gets a page (section 2.3).
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize, schemars::JsonSchema),
    serde(rename_all = "snake_case")
)]
pub enum PlacementKind {
    /// The one with most free frames.
    MostFree,
    /// The nearest one with a free frame.
    Nearest,
    /// Any with a free frame, each with the same probability.
    #[default]
    Random,
    /// The greatest free frames per hop.
    WeightedNearest,
    /// The one of two drawn at random that has more free frames.
    TwoChoices,
    /// One after the other.
    RoundRobin,
    /// The first in a fixed order until it is full.
    Fill,
    /// The one that a policy from outside of this crate chooses. Files name it in another way than
    /// the others.
    #[cfg_attr(feature = "serde", serde(untagged, skip_deserializing), schemars(skip))]
    Custom(CustomPlacement),
}

impl PlacementKind {
    /// All that are part of this crate.
    pub const ALL: [PlacementKind; 7] = [
        PlacementKind::MostFree,
        PlacementKind::Nearest,
        PlacementKind::Random,
        PlacementKind::WeightedNearest,
        PlacementKind::TwoChoices,
        PlacementKind::RoundRobin,
        PlacementKind::Fill,
    ];
}

/// What happens to a page that arrives where no frame is free (section 2.3).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize, schemars::JsonSchema),
    serde(rename_all = "snake_case")
)]
pub enum FailureKind {
    /// It replaces another page there, which is paged out in turn.
    Replace,
    /// It is returned to its sender, which chooses again.
    Return,
    /// The node where it arrived chooses again.
    #[default]
    Cascade,
    /// It goes to disk.
    Disk,
}

/// When a frame at another node is reserved (section 2.4).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize, schemars::JsonSchema),
    serde(rename_all = "snake_case")
)]
pub enum ReservationKind {
    /// Never: a page is sent on the basis of the view.
    #[default]
    None,
    /// When a page has to leave the node; the page waits for the answer.
    OnDemand,
    /// Before: `reserve_frames` frames are reserved all the time.
    InAdvance,
}

/// Which of a node's pages, its own and guests alike, is evicted (section 2.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize, schemars::JsonSchema),
    serde(rename_all = "snake_case")
)]
pub enum ReplacementKind {
    /// The one that arrived first.
    Fifo,
    /// The one whose last use is longest ago.
    #[default]
    Lru,
    /// The one used least often since it arrived.
    Lfu,
    /// The first that was not used since the hand last passed.
    Clock,
}

/// All choices of global page placement.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize, schemars::JsonSchema),
    serde(default, deny_unknown_fields)
)]
pub struct PlacementConfig {
    /// The nodes with which pages and information are exchanged.
    pub scope: ScopeKind,
    /// Hops from the centre of a domain to its border.
    pub domain_radius: u32,
    /// Maximum number of nodes in a domain besides its centre: the nearest ones.
    pub peers_max: u32,
    /// When peers are informed.
    pub information: InformationKind,
    /// Time between two messages of periodic information, ns.
    pub period_ns: u64,
    /// Free frames, in thousandths of a node's memory: when reached from below, peers are informed.
    pub high_permille: Vec<u32>,
    /// Free frames, in thousandths of a node's memory: when reached from above, peers are informed.
    pub low_permille: Vec<u32>,
    /// Which node gets a page: one of the words, or a policy of your own (`wasm:FILE`,
    /// `python:FILE`).
    pub placement: PlacementKind,
    /// What happens to a page that finds no frame.
    pub on_failure: FailureKind,
    /// How often a page is sent on before it goes to disk.
    pub attempts_max: u32,
    /// When frames are reserved.
    pub reservation: ReservationKind,
    /// Frames that a node keeps reserved at others, with reservation in advance.
    pub reserve_frames: u32,
    /// Which page is evicted.
    pub replacement: ReplacementKind,
    /// Whether a node subtracts the pages that it sent itself from its view of the receiver.
    pub count_own_sends: bool,
    /// Whether messages may be lost, repeated and reordered: page-outs are confirmed, questions
    /// have deadlines, promises and guests have leases. On where `faults` are.
    pub confirm: bool,
    /// With `confirm`: time until a question without an answer is repeated, ns; doubled each time.
    pub answer_ns: u64,
    /// With `confirm`: time for which a promised frame, or a guest, is kept without a word from the
    /// node that it is for, ns.
    pub lease_ns: u64,
    /// With `confirm`: longest time between two reports of free frames, ns. A peer that is silent
    /// for four times as long is unknown.
    pub refresh_ns: u64,
    /// With `confirm`: time after which a page is given up whose holders do not answer, ns.
    pub give_up_ns: u64,
    /// With `confirm`: nodes that keep a page at the same time.
    pub copies: u32,
    /// With `confirm`, instead of copies: `[data, parity]`. A page is cut in so many pieces, and so
    /// many more are computed; any `data` of them give it back.
    pub parity: Vec<u32>,
}

/// Most pieces of a page.
pub const PIECES_MAX: u32 = 8;

impl PlacementConfig {
    /// Pieces of a page that are needed to read it, and pieces that are kept.
    pub fn pieces(&self) -> (u8, u8) {
        match self.parity[..] {
            [data, parity] => (data as u8, (data + parity) as u8),
            _ => (1, self.copies as u8),
        }
    }
}

impl Default for PlacementConfig {
    /// Table 1 of the paper; watermarks and period from section 4. The paper's watermarks are 87.5
    /// % and 100 % (high), 75 % and 0 % (low) of local memory, which is taken to mean memory in
    /// use: if they were free frames, a node that was full once would be considered full until
    /// nearly all of it is free again.
    fn default() -> Self {
        PlacementConfig {
            scope: ScopeKind::default(),
            domain_radius: 4,
            peers_max: 128,
            information: InformationKind::default(),
            period_ns: 1_000_000,
            high_permille: vec![250, 1000],
            low_permille: vec![125, 0],
            placement: PlacementKind::default(),
            on_failure: FailureKind::default(),
            attempts_max: 8,
            reservation: ReservationKind::default(),
            reserve_frames: 1,
            replacement: ReplacementKind::default(),
            count_own_sends: false,
            confirm: false,
            answer_ns: 20_000_000,
            lease_ns: 2_000_000_000,
            refresh_ns: 100_000_000,
            give_up_ns: 30_000_000_000,
            copies: 1,
            parity: Vec::new(),
        }
    }
}
