//! Messages between nodes, and the table of those under way.

/// What a message means. After the dash: its sender and its receiver.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// `value` free frames, or hops (gradient) - node to its domain.
    Told,
    /// The sender has lost its memory - node to its domain.
    Restarted,
    /// Request for a bid (`value`: the round) - borrower to lender.
    BidAsked,
    /// `value` frames (`page`: the round) - lender to borrower.
    Bid,
    /// Request `value` to reserve a frame - borrower to lender.
    ReservationAsked,
    /// Answer to request `value`: `reserved` or not - lender to borrower.
    ReservationAnswered,
    /// The frame of request `value` is not needed - borrower to lender.
    ReservationReleased,
    /// A page to store (`value`: the request for its frame, if `reserved`) - node to lender.
    PageOut,
    /// A page that could not be stored - lender to node.
    PageBack,
    /// A page to write - node to disk.
    PageToDisk,
    /// Request for a page - owner to lender.
    Fetch,
    /// Request for a page - owner to disk.
    FetchFromDisk,
    /// The page - lender or disk to owner.
    PageIn,
    /// The page is not here, ask again later - lender to owner.
    NotHere,
    /// The page is here now (`value`: a disk, with [`ON_DISK`], or a node) - lender or disk to
    /// owner.
    Placed,
    /// The page is no longer needed - owner to lender.
    Discard,
    /// The frame of a page that was sent is free (`value`: [`crate::engine`]'s identifier of it) -
    /// the node that took the page to the node that sent it.
    Taken,
}

impl Kind {
    /// Whether a message of this kind carries a page.
    pub fn has_page(self) -> bool {
        matches!(self, Kind::PageOut | Kind::PageBack | Kind::PageToDisk | Kind::PageIn)
    }
}

/// Flag of a place that is a disk, not a node.
pub const ON_DISK: u32 = 1 << 31;
/// An unknown place.
pub const UNKNOWN: u32 = u32::MAX;

/// One message. Fields that its kind does not mention are meaningless.
#[derive(Clone, Copy, Debug)]
pub struct Message {
    /// What it means.
    pub kind: Kind,
    /// How often the page was sent to a lender in this page-out.
    pub attempts: u8,
    /// Whether a frame is reserved for the page.
    pub reserved: bool,
    /// Whether it is forwarded to the whole domain of its source.
    pub spreads: bool,
    /// Its position on the route, in the topology's terms.
    pub at: u32,
    /// Its sender.
    pub source: u32,
    /// Its receiver.
    pub target: u32,
    /// Table of the page.
    pub table: u32,
    /// Which thread the table belonged to when the message was sent.
    pub serial: u32,
    /// Number of the page in its table.
    pub page: u32,
    /// How often the page has been sent to a lender in total: distinguishes newer places from older
    /// ones.
    pub moves: u32,
    /// Content of the page: how often it was written.
    pub content: u32,
    /// Depends on the kind.
    pub value: u32,
}

impl Message {
    /// A message with nothing but its kind and `value`.
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
    /// Stores a message. Returns its number.
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

    /// The message with number `slot`.
    #[inline]
    pub fn get(&self, slot: u32) -> &Message {
        &self.slots[slot as usize]
    }

    /// The message with number `slot`.
    #[inline]
    pub fn get_mut(&mut self, slot: u32) -> &mut Message {
        &mut self.slots[slot as usize]
    }

    /// Removes a message that has arrived.
    #[inline]
    pub fn remove(&mut self, slot: u32) -> Message {
        self.free.push(slot);
        self.slots[slot as usize]
    }

    /// The messages under way. Slow.
    pub fn under_way(&self) -> impl Iterator<Item = &Message> {
        let mut is_free = vec![false; self.slots.len()];
        self.free.iter().for_each(|&slot| is_free[slot as usize] = true);
        self.slots.iter().zip(is_free).filter(|(_, is_free)| !is_free).map(|(message, _)| message)
    }

    /// Number of messages under way.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Heap memory, bytes.
    pub fn heap_bytes(&self) -> usize {
        self.slots.capacity() * size_of::<Message>() + self.free.capacity() * 4
    }
}
