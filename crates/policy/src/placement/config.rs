//! What a user can choose: one value per question of the paper (sections 2.1 to 2.4), with the
//! paper's defaults.

/// When a node tells the others how many frames it has free (section 2.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
pub enum InformationKind {
    /// Every `period_ns`.
    Periodic,
    /// When the free frames reach a high watermark from below or a low one from above.
    #[default]
    OnChange,
    /// Never by itself; who has a page to place asks for bids.
    OnDemand,
}

/// With whom a node exchanges information and pages (section 2.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
pub enum ScopeKind {
    /// Nobody: pages leave to disk only.
    Disk,
    /// The nodes within `domain_radius` hops; every node is the centre of its own domain.
    #[default]
    Domain,
    /// Neighbours only; pages move one hop at a time towards the nearest free frame.
    Gradient,
}

/// Which node of the domain gets a page (section 2.3).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
pub enum PlacementKind {
    /// The one with most free frames.
    MostFree,
    /// The nearest one with a free frame.
    Nearest,
    /// Any with a free frame, each with the same chance.
    #[default]
    Random,
    /// The greatest free frames per hop.
    WeightedNearest,
    /// Two drawn at random, the one of them with more free frames.
    TwoChoices,
    /// In turn.
    RoundRobin,
    /// The first in a fixed order until it is full.
    Fill,
}

impl PlacementKind {
    /// All of them.
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
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
pub enum FailureKind {
    /// It takes the place of another page there, which is paged out in turn.
    Replace,
    /// It goes back to where it came from, which chooses again.
    Return,
    /// The node where it arrived chooses again.
    #[default]
    Cascade,
    /// It goes to disk.
    Disk,
}

/// When a frame at another node is set aside (section 2.4).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
pub enum ReservationKind {
    /// Never: a page is sent on the strength of what is known.
    #[default]
    None,
    /// When a page has to leave; it waits for the answer.
    OnDemand,
    /// Before: `reserve_frames` are held ready all the time.
    InAdvance,
}

/// Which of a node's pages, its own and guests alike, leaves (section 2.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
pub enum ReplacementKind {
    /// The one that came first.
    Fifo,
    /// The one not used for longest.
    #[default]
    Lru,
    /// The one used least often since it came.
    Lfu,
    /// The first that was not used since the hand last passed.
    Clock,
}

/// All choices of global page placement.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(default, deny_unknown_fields)
)]
pub struct PlacementConfig {
    /// With whom pages and information are exchanged.
    pub scope: ScopeKind,
    /// Hops from the centre of a domain to its border.
    pub domain_radius: u32,
    /// Nodes in a domain besides its centre, at most: the nearest ones.
    pub peers_max: u32,
    /// When others are told.
    pub information: InformationKind,
    /// Time between two messages of periodic information, ns.
    pub period_ns: u64,
    /// Free frames, in thousandths of a node's memory: reached from below, the others are told.
    pub high_permille: Vec<u32>,
    /// Free frames, in thousandths of a node's memory: reached from above, the others are told.
    pub low_permille: Vec<u32>,
    /// Who gets a page.
    pub placement: PlacementKind,
    /// What happens to a page that finds no frame.
    pub on_failure: FailureKind,
    /// Times a page is sent on before it goes to disk.
    pub attempts_max: u32,
    /// When frames are set aside.
    pub reservation: ReservationKind,
    /// Frames that a node holds ready at others with reservation in advance.
    pub reserve_frames: u32,
    /// Who leaves.
    pub replacement: ReplacementKind,
    /// Whether a node takes what it sent itself off its picture of the receiver.
    pub count_own_sends: bool,
}

impl Default for PlacementConfig {
    /// Table 1 of the paper; watermarks and period from section 4. The paper's watermarks are 87.5
    /// % and 100 % (high), 75 % and 0 % (low) of local memory, which is taken to mean memory in
    /// use: read as free frames, a node that was full once would be thought full until nearly all
    /// of it is free again.
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
        }
    }
}
