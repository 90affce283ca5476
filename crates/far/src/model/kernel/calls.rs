//! The calls that the pager makes to the kernel.

use std::io;

use hiroma_sys::hot::pagemap::PageBits;
use hiroma_sys::uffd::{Message, Outcome, Stop};
use hiroma_sys::vm;
use hiroma_units::{PAGE, PAGES_PER_EXTENT};

use super::{Filled, Model, PUMPS, encode, ended, tell};
use crate::memory::Memory;

impl Memory for Model {
    fn move_out(&self, dst: usize, src: usize, len: usize) -> Outcome {
        let mut state = self.state();
        for done in (0..len).step_by(PAGE) {
            if state.refuses() {
                return ended(done, len, Stop::Again);
            }
            let page = state.page(src + done);
            if state.random.one_in(40 + 8 * len / PAGE) {
                let calls = 1 + state.random.below(4);
                state
                    .pages
                    .get_mut(page)
                    .into_iter()
                    .flatten()
                    .for_each(|there| there.busy = calls);
            }
            if let Some(there) =
                state.pages.get_mut(page).into_iter().flatten().find(|there| there.busy > 0)
            {
                there.busy -= 1;
                return ended(done, len, Stop::Busy);
            }
            if state.is_unmapped(page) {
                return ended(done, len, Stop::NotThere);
            }
            if let Some(stop) = state.keeps(page) {
                return ended(done, len, stop);
            }
            match state.pages.get(page).copied().flatten() {
                Some(there) => {
                    encode(there.word, dst + done);
                    state.holes.remove(&(dst + done));
                    tell(page, format_args!("moved out: {:#x}", there.word));
                    state.pages[page] = None;
                }
                None => {
                    vm::zero(dst + done, PAGE);
                    state.holes.insert(dst + done);
                }
            }
        }
        ended(len, len, Stop::Again)
    }

    fn move_in(&self, dst: usize, src: usize, len: usize, holes: bool) -> Outcome {
        self.fill(dst, src, len, |state, word, from| {
            if state.holes.contains(&from) && word == 0 {
                return if holes { Filled::Hole } else { Filled::Stopped(Stop::NotThere) };
            }
            // Shared with a child, in its staging area.
            if state.forked && state.random.one_in(4) {
                return Filled::Stopped(Stop::Busy);
            }
            let swapped = state.is_swapped_in_staging();
            if let Some(stop) = swapped.then(|| state.swap_keeps()).flatten() {
                return Filled::Stopped(stop);
            }
            // The frame's page has moved and leaves a hole.
            vm::zero(from, PAGE);
            state.holes.insert(from);
            Filled::Page { protected: false, swapped }
        })
    }

    fn copy_in(&self, dst: usize, src: usize, len: usize) -> Outcome {
        self.fill(dst, src, len, |_, _, _| Filled::Page { protected: false, swapped: false })
    }

    fn copy_in_protected(&self, dst: usize, src: usize) -> Outcome {
        self.fill(dst, src, PAGE, |_, _, _| Filled::Page { protected: true, swapped: false })
    }

    fn write_protect(&self, start: usize, len: usize, on: bool) -> Result<(), Stop> {
        let mut state = self.state();
        if state.refuses() {
            return Err(Stop::Again);
        }
        let (first, last) = (state.page(start), state.page(start + len));
        let last = last.min(state.pages.len());
        for number in first.min(last)..last {
            if state.is_foreign(number) {
                return Err(Stop::NotThere);
            }
            if let Some(page) = &mut state.pages[number] {
                page.protected = on;
                tell(number, format_args!("protected: {on}"));
            }
        }
        Ok(())
    }

    fn copy_present_out(&self, dst: usize, src: usize) {
        let mut state = self.state();
        let page = state.page(src);
        state.fill_foreign(page);
        tell(page, format_args!("copied out: {:?}", state.pages.get(page)));
        match state.pages.get_mut(page) {
            Some(Some(there)) => {
                there.swapped = false;
                encode(there.word, dst);
            }
            Some(None) => state.blame(format!(
                "page {page} was copied out and is not there: the pager would wait for itself"
            )),
            None => vm::zero(dst, PAGE),
        }
    }

    fn discard(&self, start: usize, len: usize) -> io::Result<()> {
        let mut state = self.state();
        if state.has_events {
            state.messages.push_back(Message::Remove { start, end: start + len });
            state.changing += 1;
            state.own = Some((start, start + len));
            while state.own.is_some() {
                state.disturb();
                drop(state);
                let pump = PUMPS.with(|pumps| pumps.borrow()[self.number].clone());
                pump();
                state = self.state();
            }
            state.disturb();
        }
        for addr in (start..start + len).step_by(PAGE) {
            let page = state.page(addr);
            if page >= state.pages.len() {
                break;
            }
            state.disturb();
            state.pages[page] = None;
            tell(page, "dropped for the pager");
        }
        Ok(())
    }

    fn is_huge(&self, _start: usize) -> bool {
        true
    }

    fn pages_there(&self, start: usize, end: usize, out: &mut Vec<(u64, PageBits)>) -> bool {
        let state = self.state();
        let pages = state.page(start)..state.page(end).min(state.pages.len());
        for page in pages.filter(|&page| state.pages[page].is_some()) {
            let at = state.base / PAGE + page;
            let extent = (at / PAGES_PER_EXTENT) as u64;
            if out.last().is_none_or(|last| last.0 != extent) {
                out.push((extent, PageBits::default()));
            }
            let bits = &mut out.last_mut().expect("pushed").1;
            bits[at % PAGES_PER_EXTENT / 64] |= 1 << (at % 64);
        }
        true
    }

    fn has_swap(&self) -> bool {
        self.state().has_swap
    }

    fn is_absent(&self, start: usize, len: usize) -> bool {
        let mut state = self.state();
        state.disturb();
        let (first, last) = (state.page(start), state.page(start + len).min(state.pages.len()));
        state
            .pages
            .get(first..last)
            .is_none_or(|pages| pages.iter().flatten().all(|there| there.swapped))
    }

    fn unshare(&self, addr: usize) {
        let mut state = self.state();
        state.disturb();
        if state.random.one_in(8) {
            state.reclaim();
        }
        let page = state.page(addr);
        state.fill_foreign(page);
        match &mut state.pages[page] {
            Some(there) => (there.shared, there.swapped) = (false, false),
            None => state.blame(format!(
                "page {page} was touched by the pager and is not there: it would wait for itself"
            )),
        }
    }

    fn split(&self, addr: usize) {
        let mut state = self.state();
        let page = state.page(addr);
        if let Some(there) = &mut state.pages[page] {
            there.in_huge = false;
        }
    }

    fn protection(&self, _addr: usize) -> Option<(usize, i32)> {
        None
    }

    fn protect(&self, _start: usize, _len: usize, _prot: i32) -> io::Result<()> {
        Ok(())
    }

    fn wake(&self, start: usize, len: usize) {
        self.state().wake(start, len);
    }

    fn has_messages(&self) -> bool {
        !self.state().messages.is_empty()
    }

    fn read(&self, out: &mut Vec<Message>, most: usize) -> io::Result<()> {
        self.state().read(out, most);
        Ok(())
    }
}
