//! The messages of the kernel, and the threads that it blocks.

use hiroma_sys::uffd::Message;
use hiroma_units::PAGE;

use super::program::Doing;
use super::{State, tell};

impl State {
    pub(super) fn fault(&mut self, at: usize, page: usize, write: Option<u64>) {
        let protected = self.pages[page].is_some();
        tell(page, format_args!("thread {at} faults, write {write:x?}, protected {protected}"));
        self.messages.push_back(Message::Fault {
            addr: self.base + page * PAGE,
            write: write.is_some(),
            write_protect: protected,
            thread: at as u32 + 1,
        });
        self.threads[at].doing = Doing::Waits(page, write);
    }

    /// Wakes the threads that wait for these pages, and removes their unread messages.
    pub fn wake(&mut self, start: usize, len: usize) {
        let (first, last) = (self.page(start), self.page(start + len - 1));
        for at in 0..self.threads.len() {
            if let Doing::Waits(page, write) = self.threads[at].doing {
                if first <= page && page <= last {
                    self.threads[at].doing = Doing::Touch(page, write);
                    tell(page, format_args!("thread {at} is woken"));
                    let thread = at as u32 + 1;
                    self.messages.retain(|message| !matches!(message, Message::Fault { thread: of, .. } if *of == thread));
                }
            }
        }
    }

    /// The pager reads some of the messages. A thread that waited for its event to be read may
    /// continue.
    pub fn read(&mut self, out: &mut Vec<Message>, most: usize) {
        for _ in 0..1 + self.random.below(most.min(4)) {
            let Some(message) = self.messages.pop_front() else { break };
            out.push(message);
            if let Message::Remove { start, end } = message {
                (self.page(start)..self.page(end))
                    .for_each(|page| tell(page, "its removal is read"));
                self.removal_was_read(start, end);
            }
            match message {
                Message::Remap { .. } => self.changing -= 1,
                Message::Unmap { start, end } => self.unmapping_was_read(start, end),
                _ => {}
            }
        }
        self.disturb();
    }

    fn removal_was_read(&mut self, start: usize, end: usize) {
        if self.own == Some((start, end)) {
            // The pager's thread continues immediately.
            self.own = None;
            self.changing -= 1;
            return;
        }
        for at in 0..self.threads.len() {
            if let Doing::Told(from, to) = self.threads[at].doing {
                if self.addr(from) == start && self.addr(to - 1) + PAGE == end {
                    self.threads[at].doing = Doing::MayDiscard(from, to);
                }
            }
        }
    }
}
