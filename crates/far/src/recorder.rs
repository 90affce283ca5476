//! The last events of each extent, for debugging. Compiled in with the feature `recorder` only;
//! without it, recording costs nothing.

/// An event, what it happened to, and two numbers that depend on the event.
#[cfg(feature = "recorder")]
#[derive(Clone, Copy, Debug)]
struct Note {
    at_ns: u64,
    what: &'static str,
    /// Page of the arena.
    page: u64,
    a: usize,
    b: usize,
}

/// The last notes.
#[derive(Default)]
pub struct Recorder {
    #[cfg(feature = "recorder")]
    notes: std::collections::VecDeque<Note>,
}

/// Maximum number of notes.
#[cfg(feature = "recorder")]
const NOTES_MAX: usize = 4_000_000;

impl Recorder {
    #[cfg(feature = "recorder")]
    pub fn note(&mut self, what: &'static str, page: u64, a: usize, b: usize) {
        if self.notes.len() == NOTES_MAX {
            self.notes.pop_front();
        }
        self.notes.push_back(Note { at_ns: hiroma_sys::cpu::now_ns(), what, page, a, b });
    }

    #[cfg(all(test, not(feature = "recorder")))]
    pub fn note(&mut self, what: &'static str, page: u64, a: usize, b: usize) {
        crate::model::tell_extent(page, format_args!("{what} {a:#x} {b:#x}"));
    }

    #[cfg(all(not(test), not(feature = "recorder")))]
    #[inline(always)]
    pub fn note(&mut self, _what: &'static str, _page: u64, _a: usize, _b: usize) {}

    /// The notes of the extent that contains a page, oldest first, one a line.
    pub fn of_extent(&self, page: u64) -> String {
        #[cfg(feature = "recorder")]
        return self
            .notes
            .iter()
            .filter(|note| note.page / 512 == page / 512)
            .map(|note| {
                format!(
                    "{} {} page {} {:#x} {:#x}\n",
                    note.at_ns,
                    note.what,
                    note.page % 512,
                    note.a,
                    note.b
                )
            })
            .collect();
        #[cfg(not(feature = "recorder"))]
        {
            let _ = page;
            String::new()
        }
    }

    /// Writes the notes of the extent that contains a page to a file, for use before the process is
    /// ended.
    pub fn save_extent(&self, page: u64) {
        let text = self.of_extent(page);
        if !text.is_empty() {
            let file =
                std::env::temp_dir().join(format!("recent.{}", crate::host::program_in_proc()));
            let _ = std::fs::write(file, format!("page {}\n{text}", page % 512));
        }
    }
}
