//! Checkers outside the model. They observe what physically happens to pages, frames and messages,
//! keep their own accounts, and report a broken rule: no page is lost, in two places or has old
//! content; no node has more pages than frames; every fault is answered; as many messages are
//! received as sent.

use crate::error::Violation;
use crate::message::{Message, ON_DISK};

/// Where a page is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// Nowhere: never written, or discarded on purpose.
    Nowhere,
    /// Taken from one place and not yet put in another; never between events.
    Moving,
    /// In a frame of a node.
    Frame(u32),
    /// In hand: at a node that has no frame for it.
    Hand(u32),
    /// In a message.
    Message(u32),
    /// On a disk.
    Disk(u32),
    /// At the program itself (replayed recordings: no frame is simulated).
    Program,
    /// Lost with a failed node, and known to be lost.
    Lost,
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    place: Place,
    content: u32,
}

/// The accounts of the checkers. All methods do nothing when checking is off.
#[derive(Debug)]
pub struct Checker {
    on: bool,
    pages: Vec<Vec<Seen>>,
    /// Pages in the frames of each node.
    in_frames: Vec<u32>,
    /// Frames of each node.
    frames: Vec<u32>,
    sent: u64,
    received: u64,
    faults: u64,
    checks: u64,
    objection: Option<String>,
}

impl Checker {
    /// Accounts for `nodes` empty nodes of `frames` frames each.
    pub fn new(on: bool, nodes: u32, frames: impl Fn(u32) -> u32) -> Self {
        Checker {
            on,
            pages: Vec::new(),
            in_frames: if on { vec![0; nodes as usize] } else { Vec::new() },
            frames: if on { (0..nodes).map(frames).collect() } else { Vec::new() },
            sent: 0,
            received: 0,
            faults: 0,
            checks: 0,
            objection: None,
        }
    }

    /// The number of checks made.
    pub fn checks(&self) -> u64 {
        self.checks
    }

    /// Whether a rule was broken.
    #[inline]
    pub fn objects(&self) -> bool {
        self.objection.is_some()
    }

    /// Takes the first violation, with its time and event.
    pub fn violation(&mut self, now_ns: u64, event: u64) -> Option<Violation> {
        self.objection.take().map(|what| Violation { now_ns, event, what })
    }

    fn object(&mut self, what: impl FnOnce() -> String) {
        self.objection.get_or_insert_with(what);
    }

    /// Registers table `table` with `pages` pages that were never written.
    pub fn table(&mut self, table: u32, pages: u32) {
        if self.on {
            let table = table as usize;
            if table >= self.pages.len() {
                self.pages.resize_with(table + 1, Vec::new);
            }
            if let Some(page) = self.pages[table].iter().position(|seen| {
                !matches!(seen.place, Place::Nowhere | Place::Lost | Place::Disk(_))
            }) {
                let place = self.pages[table][page].place;
                self.object(|| {
                    format!("table {table} is used again while its page {page} is at {place:?}")
                });
            }
            self.pages[table].clear();
            self.pages[table].resize(pages as usize, Seen { place: Place::Nowhere, content: 0 });
        }
    }

    /// Takes a page from `place`.
    #[inline]
    pub fn take(&mut self, table: u32, page: u32, place: Place) {
        if self.on {
            self.checks += 1;
            let seen = &mut self.pages[table as usize][page as usize];
            let was = std::mem::replace(&mut seen.place, Place::Moving);
            if was != place {
                self.object(|| {
                    format!(
                        "page {page} of table {table} is taken from {place:?} but is at {was:?}"
                    )
                });
            }
            if let Place::Frame(node) = place {
                self.in_frames[node as usize] = self.in_frames[node as usize].saturating_sub(1);
            }
        }
    }

    /// Puts a page that was taken in `place`.
    #[inline]
    pub fn put(&mut self, table: u32, page: u32, place: Place, content: u32) {
        if self.on {
            self.checks += 1;
            let seen = &mut self.pages[table as usize][page as usize];
            let (was, latest) = (std::mem::replace(&mut seen.place, place), seen.content);
            if !matches!(was, Place::Moving | Place::Nowhere) {
                self.object(|| {
                    format!("page {page} of table {table} is in two places: {was:?} and {place:?}")
                });
            }
            if content != latest && place != Place::Nowhere {
                self.object(|| {
                    format!("page {page} of table {table} is put to {place:?} with content {content}, but was written {latest} times")
                });
            }
            if let Place::Frame(node) = place {
                self.in_frames[node as usize] += 1;
                let (pages, frames) = (self.in_frames[node as usize], self.frames[node as usize]);
                if pages > frames {
                    self.object(|| format!("node {node} holds {pages} pages in {frames} frames"));
                }
            }
        }
    }

    /// Drops a page that was not written since it was read. The copy at `left` has to have
    /// `content`; zeros are content 0.
    pub fn drop_clean(&mut self, table: u32, page: u32, place: Place, content: u32, left: Place) {
        self.take(table, page, place);
        self.put(table, page, left, content);
    }

    /// Records that a page that was taken is lost with a node, and known to be lost.
    pub fn lost(&mut self, table: u32, page: u32) {
        if self.on {
            self.pages[table as usize][page as usize].place = Place::Lost;
        }
    }

    /// Records a write to a page.
    #[inline]
    pub fn write(&mut self, table: u32, page: u32, node: u32) {
        if self.on {
            let seen = &mut self.pages[table as usize][page as usize];
            seen.content += 1;
            let place = seen.place;
            if place != Place::Frame(node) && place != Place::Program {
                self.object(|| {
                    format!(
                        "page {page} of table {table} is written at node {node} but is at {place:?}"
                    )
                });
            }
        }
    }

    /// Records that a message was sent.
    #[inline]
    pub fn sent(&mut self) {
        self.sent += 1;
    }

    /// Records that a message was received and is finished.
    #[inline]
    pub fn received(&mut self, slot: u32, message: &Message) {
        if self.on {
            self.received += 1;
            if message.kind.has_page() {
                // Handling the message may have freed the table, which another thread may use by
                // now.
                let place = self.pages[message.table as usize]
                    .get(message.page as usize)
                    .map(|seen| seen.place);
                if place == Some(Place::Message(slot)) {
                    let Message { kind, table, page, target, .. } = *message;
                    self.object(|| format!("page {page} of table {table} was lost at node {target}: nobody took it from a {kind:?}"));
                }
            }
        }
    }

    /// Records that a thread waits for a page.
    pub fn fault(&mut self) {
        self.faults += 1;
    }

    /// Records that the thread continues, or has ended.
    pub fn answered(&mut self) {
        if self.on && self.faults == 0 {
            self.object(|| "a fault was answered twice".to_owned());
        }
        self.faults = self.faults.saturating_sub(1);
    }

    /// At any time between events: every page of a live table that was written is in one place, and
    /// there where the model believes it to be, as far as that says (`believed`).
    pub fn audit_table(&mut self, table: u32, believed: impl Fn(usize) -> Option<Place>) {
        let Some(pages) = self.pages.get(table as usize).filter(|_| self.on) else { return };
        self.checks += pages.len() as u64;
        let wrong = pages.iter().enumerate().find_map(|(page, seen)| {
            let is_wrong = match (seen.place, believed(page)) {
                (Place::Moving, _) => true,
                (Place::Nowhere, _) if seen.content > 0 => true,
                (place, Some(believed)) => place != believed,
                (Place::Frame(_) | Place::Hand(_) | Place::Lost, None) => true,
                _ => false,
            };
            is_wrong.then(|| {
                let believed = believed(page);
                format!("page {page} of table {table} is at {:?}, and is believed to be at {believed:?} (none: elsewhere)", seen.place)
            })
        });
        if let Some(wrong) = wrong {
            self.object(|| wrong);
        }
    }

    /// A page of a thread that has ended is still in a frame, and nobody will discard it.
    pub fn forgotten(&mut self, table: u32, page: u32, node: u32) {
        self.object(|| {
            format!("page {page} of table {table} is still at node {node}, although its thread has ended, and nobody discards it")
        });
    }

    /// To be called when nothing is under way: none of the pages of a table whose thread has ended
    /// may exist.
    pub fn guests_of_dead(&mut self, table: u32, count: u32) {
        self.checks += 1;
        if count > 0 {
            self.object(|| format!("{count} pages of table {table} still exist, although its thread has ended and nothing is under way"));
        }
    }

    /// To be called when nothing is under way: the owner of a page knows at which node it is.
    pub fn known_at_rest(&mut self, table: u32, page: u32, known: Option<u32>, at: Option<u32>) {
        self.checks += 1;
        let is_on_disk = at.is_none() && known.is_some_and(|known| known & ON_DISK != 0);
        if known != at && !is_on_disk {
            self.object(|| {
                format!("page {page} of table {table} is at node {at:?}, its owner believes {known:?}, and nothing is under way")
            });
        }
    }

    /// To be called when nothing is under way: every frame of `node` that is in use has to contain
    /// a page, and the frames that it has promised are those that other nodes have reserved.
    pub fn at_rest(&mut self, node: u32, used: u32, promised: u32, reserved: u32) {
        if self.on {
            self.checks += 1;
            if promised != reserved {
                self.object(|| {
                    format!("node {node} has promised {promised} frames, others have reserved {reserved}, and nothing is under way")
                });
            }
            let pages = self.in_frames[node as usize];
            if used != pages {
                self.object(|| format!("node {node} has {used} frames in use for {pages} pages, and nothing is under way"));
            }
        }
    }

    /// Compares the accounts with the model's: messages under way, faults waiting, pages in frames
    /// by node.
    pub fn audit(&mut self, under_way: usize, waiting: u64, mut in_frames: impl FnMut(u32) -> u32) {
        if !self.on {
            return;
        }
        let (sent, received, faults) = (self.sent, self.received, self.faults);
        if sent != received + under_way as u64 {
            self.object(|| {
                format!(
                    "{sent} messages were sent, {received} received, but {under_way} are under way"
                )
            });
        }
        if faults != waiting {
            self.object(|| format!("{faults} faults are not answered, but {waiting} threads wait"));
        }
        for node in 0..self.in_frames.len() as u32 {
            let (seen, model) = (self.in_frames[node as usize], in_frames(node));
            self.checks += 1;
            if seen != model {
                self.object(|| {
                    format!(
                        "node {node} has {model} pages in its frames, but {seen} pages are there"
                    )
                });
            }
        }
    }
}
