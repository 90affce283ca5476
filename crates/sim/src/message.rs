//! Messages between nodes, and the place where those under way are kept.

/// What a message says. The word behind the dash is who sends it to whom.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// `value` free frames, or hops (gradient) - node to its domain.
    Told,
    /// The sender has lost its memory - node to its domain.
    Restarted,
    /// What do you bid? - borrower to lender.
    BidAsked,
    /// `value` frames - lender to borrower.
    Bid,
    /// Set a frame aside - borrower to lender.
    ReservationAsked,
    /// Done (`value` 1) or not (0) - lender to borrower.
    ReservationAnswered,
    /// The frame is not needed - borrower to lender.
    ReservationReleased,
    /// A page to keep - node to lender.
    PageOut,
    /// A page that could not be kept - lender to node.
    PageBack,
    /// A page to write - node to disk.
    PageToDisk,
    /// A page is needed - owner to lender.
    Fetch,
    /// A page is needed - owner to disk.
    FetchFromDisk,
    /// The page - lender or disk to owner.
    PageIn,
    /// The page is not here, ask again later - lender to owner.
    NotHere,
    /// The page is here now (`value`: a disk, with [`ON_DISK`], or a node) - lender or disk to
    /// owner.
    Placed,
    /// The page is not needed any more - owner to lender.
    Discard,
    /// The frame of a page that was sent is free (`value`: [`crate::engine`]'s name for it) - who
    /// has the page to who sent it.
    Taken,
}

impl Kind {
    /// Whether a message of this kind carries a page.
    pub fn has_page(self) -> bool {
        matches!(self, Kind::PageOut | Kind::PageBack | Kind::PageToDisk | Kind::PageIn)
    }
}

/// Mark in a place that is a disk, not a node.
pub const ON_DISK: u32 = 1 << 31;
/// A place that is not known.
pub const UNKNOWN: u32 = u32::MAX;

/// One message. What is not named by its kind means nothing.
#[derive(Clone, Copy, Debug)]
pub struct Message {
    /// What it says.
    pub kind: Kind,
    /// How often the page was sent to be kept.
    pub attempts: u8,
    /// Whether a frame is set aside for the page.
    pub reserved: bool,
    /// Whether it is sent on to the whole domain of its source.
    pub spreads: bool,
    /// Where it is on its way, as the topology counts.
    pub at: u32,
    /// Who sent it.
    pub source: u32,
    /// Who gets it.
    pub target: u32,
    /// Table of the page.
    pub table: u32,
    /// Which thread that table belonged to when the message was sent.
    pub serial: u32,
    /// Number of the page in its table.
    pub page: u32,
    /// How often the page has been sent to be kept, ever: tells newer places from older ones.
    pub moves: u32,
    /// Content of the page: how often it was written.
    pub content: u32,
    /// A number.
    pub value: u32,
}

impl Message {
    /// A message that says nothing but its kind and `value`.
    pub fn new(kind: Kind, source: u32, target: u32, value: u32) -> Self {
        Message {
            kind,
            attempts: 0,
            reserved: false,
            spreads: false,
            at: 0,
            source,
            target,
            table: UNKNOWN,
            serial: 0,
            page: 0,
            moves: 0,
            content: 0,
            value,
        }
    }
}

/// Messages under way, by number.
#[derive(Debug, Default)]
pub struct Messages {
    slots: Vec<Message>,
    free: Vec<u32>,
}

impl Messages {
    /// Keeps a message; its number.
    #[inline]
    pub fn insert(&mut self, message: Message) -> u32 {
        match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize] = message;
                slot
            }
            None => {
                self.slots.push(message);
                self.slots.len() as u32 - 1
            }
        }
    }

    /// A message under way.
    #[inline]
    pub fn get(&self, slot: u32) -> &Message {
        &self.slots[slot as usize]
    }

    /// A message under way.
    #[inline]
    pub fn get_mut(&mut self, slot: u32) -> &mut Message {
        &mut self.slots[slot as usize]
    }

    /// The message has arrived.
    #[inline]
    pub fn remove(&mut self, slot: u32) -> Message {
        self.free.push(slot);
        self.slots[slot as usize]
    }

    /// Messages under way.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Heap memory, bytes.
    pub fn heap_bytes(&self) -> usize {
        self.slots.capacity() * size_of::<Message>() + self.free.capacity() * 4
    }
}
