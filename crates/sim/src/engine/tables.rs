//! Page tables: what a node knows about its thread's pages (the paper's extended page table), and
//! where the pages actually are.

use crate::message::UNKNOWN;

/// What the owner knows about a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// Never written: zeros.
    Fresh,
    /// In a frame of the owner.
    Resident,
    /// In the memory attached to the owner.
    Near,
    /// On its way out, still at the owner.
    Leaving,
    /// At another node: [`Page::holder`], which may be unknown for a while.
    Away,
    /// On the disk [`Page::holder`].
    OnDisk,
}

/// Where a page actually is. Only the machine uses it, to find frames; no decision depends on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Whereabouts {
    /// Nowhere, or on a disk.
    Elsewhere,
    /// In frame [`Page::frame`] of node [`Page::node`].
    Frame,
    /// In the hands of node [`Page::node`].
    Hand,
    /// In a message.
    Message,
    /// Lost with a node.
    Lost,
}

/// One page.
#[derive(Clone, Copy, Debug)]
pub struct Page {
    /// What the owner knows.
    pub state: State,
    /// Where it actually is.
    pub whereabouts: Whereabouts,
    /// Whether a disk has its content as of when it was last read or written there.
    pub saved: bool,
    /// Frame, if it is in one.
    pub frame: u32,
    /// Node, if it is at one.
    pub node: u32,
    /// Its place according to the owner.
    pub holder: u32,
    /// How often it was sent to a lender: travels with the page.
    pub moves: u32,
    /// The same, as far as the owner knows.
    pub moves_known: u32,
    /// Content on disk or in hand: how often it was written.
    pub content: u32,
    /// The disk that has it, if saved.
    pub disk: u32,
    /// The frame that it left and that stays in use until a node or disk has taken it (number and
    /// epoch of the node); [`NO_HOLD`] if none.
    pub held: u32,
}

/// No frame waits until the page is taken.
pub const NO_HOLD: u32 = u32::MAX;

impl Page {
    const FRESH: Page = Page {
        state: State::Fresh,
        whereabouts: Whereabouts::Elsewhere,
        saved: false,
        frame: 0,
        node: UNKNOWN,
        holder: UNKNOWN,
        moves: 0,
        moves_known: 0,
        content: 0,
        disk: 0,
        held: NO_HOLD,
    };

    /// Whether the page is outside of its owner at a place where it has to be discarded eventually.
    pub fn is_out(&self, owner: u32) -> bool {
        match self.whereabouts {
            Whereabouts::Frame => self.node != owner,
            Whereabouts::Hand | Whereabouts::Message => true,
            Whereabouts::Elsewhere | Whereabouts::Lost => false,
        }
    }
}

/// The pages of one thread.
#[derive(Debug)]
pub struct Table {
    /// The node of the thread.
    pub node: u32,
    /// Counts the threads that used this table: identifies messages of earlier ones.
    pub serial: u32,
    /// Whether the thread has not ended.
    pub live: bool,
    /// After the thread has ended: number of pages that still exist.
    pub out: u32,
    /// Pages.
    pub pages: Vec<Page>,
}

/// All tables, by number.
#[derive(Debug, Default)]
pub struct Tables {
    all: Vec<Table>,
    free: Vec<u32>,
    fresh: u64,
}

impl Tables {
    /// Pages of tables that were created since this was last forgotten.
    pub fn fresh(&self) -> u64 {
        self.fresh
    }

    /// Counts fresh pages anew.
    pub fn forget_fresh(&mut self) {
        self.fresh = 0;
    }

    /// A table of `pages` fresh pages for `node`.
    pub fn create(&mut self, node: u32, pages: u32) -> u32 {
        let table = self.free.pop().unwrap_or_else(|| {
            self.all.push(Table { node, serial: 0, live: true, out: 0, pages: Vec::new() });
            self.all.len() as u32 - 1
        });
        let entry = &mut self.all[table as usize];
        (entry.node, entry.live, entry.out) = (node, true, 0);
        entry.serial = entry.serial.wrapping_add(1);
        entry.pages.clear();
        entry.pages.resize(pages as usize, Page::FRESH);
        self.fresh += u64::from(pages);
        table
    }

    /// All tables.
    pub fn all(&self) -> &[Table] {
        &self.all
    }

    /// A table.
    #[inline]
    pub fn get(&self, table: u32) -> &Table {
        &self.all[table as usize]
    }

    /// A table.
    #[inline]
    pub fn get_mut(&mut self, table: u32) -> &mut Table {
        &mut self.all[table as usize]
    }

    /// A page.
    #[inline]
    pub fn page(&mut self, table: u32, page: u32) -> &mut Page {
        &mut self.all[table as usize].pages[page as usize]
    }

    /// Ends the thread of a table; `out` of its pages still exist.
    pub fn end(&mut self, table: u32, out: u32) {
        let entry = &mut self.all[table as usize];
        (entry.live, entry.out) = (false, out);
        if out == 0 {
            self.free.push(table);
        }
    }

    /// Removes one page of a table whose thread has ended; the last one frees the table.
    pub fn gone(&mut self, table: u32) {
        let entry = &mut self.all[table as usize];
        debug_assert!(!entry.live && entry.out > 0);
        entry.out -= 1;
        if entry.out == 0 {
            self.free.push(table);
        }
    }

    /// Heap memory, bytes.
    pub fn heap_bytes(&self) -> usize {
        self.all
            .iter()
            .map(|table| size_of::<Table>() + table.pages.capacity() * size_of::<Page>())
            .sum()
    }
}
