//! From accesses and system calls, as they occur, to a trace.

use crate::filter::{Filter, Touch};
use crate::space::{Call, Change, Space};
use crate::trace::{Encoder, Event, Header};

/// Pages of the filter: no memory that is studied is smaller.
pub const WINDOW: usize = 32;

/// Records the actions of a program as a trace.
pub struct Recorder {
    space: Space,
    filter: Filter,
    encoder: Encoder,
    pages: PageSet,
    references: u64,
    window: usize,
}

/// The pages that were seen: one bit each, in the order of the arena.
#[derive(Default)]
struct PageSet {
    words: rustc_hash::FxHashMap<u64, u64>,
    count: u64,
}

impl PageSet {
    fn insert(&mut self, page: u64) {
        let word = self.words.entry(page / 64).or_default();
        self.count += u64::from(*word >> (page % 64) & 1 == 0);
        *word |= 1 << (page % 64);
    }
}

impl Default for Recorder {
    fn default() -> Self {
        Recorder::new(WINDOW)
    }
}

impl Recorder {
    /// A recorder without events; the filter has `window` pages.
    pub fn new(window: usize) -> Recorder {
        Recorder {
            space: Space::new(),
            filter: Filter::new(window),
            encoder: Encoder::new(),
            pages: PageSet::default(),
            references: 0,
            window,
        }
    }

    /// The program loads from or stores to a page; its number is its address divided by 4,096.
    pub fn touch(&mut self, page: u64, write: bool) {
        if let Some(page) = self.space.place(page) {
            let (encoder, pages) = (&mut self.encoder, &mut self.pages);
            self.filter.touch(page, write, &mut |touch| keep(encoder, pages, touch));
        }
    }

    /// A system call of the program has succeeded.
    pub fn call(&mut self, call: &Call) {
        let (filter, encoder, pages) = (&mut self.filter, &mut self.encoder, &mut self.pages);
        self.space.on_call(call, &mut |change| {
            filter.flush(&mut |touch| keep(encoder, pages, touch));
            encoder.push(match change {
                Change::Map { page, pages } => Event::Map { page, pages },
                Change::Discard { page, pages } => Event::Discard { page, pages },
            });
        });
    }

    /// Adds a number of loads and stores, of any memory.
    pub fn references(&mut self, count: u64) {
        self.references += count;
    }

    /// Returns the file.
    pub fn finish(mut self, program: &str, command: &[String]) -> Vec<u8> {
        let (encoder, pages) = (&mut self.encoder, &mut self.pages);
        self.filter.flush(&mut |touch| keep(encoder, pages, touch));
        let header = Header {
            program: program.to_owned(),
            command: command.to_vec(),
            references: self.references,
            pages: self.pages.count,
            events: self.encoder.events(),
            window: self.window as u64,
        };
        self.encoder.finish(&header)
    }
}

fn keep(encoder: &mut Encoder, pages: &mut PageSet, touch: Touch) {
    pages.insert(touch.page);
    encoder.push(if touch.write {
        Event::Write { page: touch.page }
    } else {
        Event::Read { page: touch.page }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{StepKind, Trace};

    #[test]
    fn trace_covers_only_live_anonymous_memory() {
        let mut recorder = Recorder::default();
        recorder.call(&Call { number: 9, args: [0, 8192, 3, 0x22, u64::MAX], result: 0x10000 });
        recorder.touch(0x10, true);
        recorder.touch(0x999, true);
        recorder.touch(0x11, false);
        recorder.touch(0x10, false);
        recorder.call(&Call { number: 11, args: [0x10000, 4096, 0, 0, 0], result: 0 });
        recorder.touch(0x10, false);
        recorder.references(77);
        let trace = Trace::read(&recorder.finish("x", &[])).unwrap();
        let steps: Vec<(u32, StepKind)> =
            trace.steps.iter().map(|step| (step.page(), step.what())).collect();
        assert_eq!(
            steps,
            [
                (0, StepKind::Write),
                (1, StepKind::Read),
                (0, StepKind::Read),
                (0, StepKind::Discard)
            ]
        );
        assert_eq!((trace.header.references, trace.header.pages), (77, 2));
    }
}
