//! The calls of the pager.

use std::io;

use hiroma_kernel::uffd::{Message, Outcome, Stop};
use hiroma_kernel::vm;
use hiroma_units::PAGE;

use super::{Filled, Model, PUMP, encode, ended, tell};
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
                state.pages.get_mut(page).into_iter().flatten().for_each(|there| there.busy = calls);
            }
            if let Some(there) = state.pages.get_mut(page).into_iter().flatten().find(|there| there.busy > 0) {
                there.busy -= 1;
                return ended(done, len, Stop::Busy);
            }
            match state.pages.get(page).copied().flatten() {
                Some(there) if there.shared || there.in_huge => return ended(done, len, Stop::Busy),
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
            // What has left the frame is a hole there.
            vm::zero(from, PAGE);
            state.holes.insert(from);
            Filled::Page
        })
    }

    fn copy_in(&self, dst: usize, src: usize, len: usize) -> Outcome {
        self.fill(dst, src, len, |_, _, _| Filled::Page)
    }

    fn write_protect(&self, start: usize, len: usize, on: bool) -> Result<(), Stop> {
        let mut state = self.state();
        if state.refuses() {
            return Err(Stop::Again);
        }
        let (first, last) = (state.page(start), state.page(start + len));
        let last = last.min(state.pages.len());
        for number in first.min(last)..last {
            if let Some(page) = &mut state.pages[number] {
                page.protected = on;
                tell(number, format_args!("protected: {on}"));
            }
        }
        Ok(())
    }

    fn copy_page_out(&self, dst: usize, src: usize) {
        let mut state = self.state();
        state.disturb();
        let page = state.page(src);
        tell(page, format_args!("copied out: {:?}", state.pages.get(page)));
        match state.pages.get(page).copied().flatten() {
            Some(there) => encode(there.word, dst),
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
                PUMP.with(|pump| pump.borrow().as_ref().expect("a schedule runs")());
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

    fn is_empty(&self, start: usize, len: usize) -> bool {
        let mut state = self.state();
        state.disturb();
        let (first, last) = (state.page(start), state.page(start + len).min(state.pages.len()));
        state.pages.get(first..last).is_none_or(|pages| pages.iter().all(Option::is_none))
    }

    fn unshare(&self, addr: usize) {
        let mut state = self.state();
        let page = state.page(addr);
        match &mut state.pages[page] {
            Some(there) => there.shared = false,
            None => state.blame(format!("page {page} was touched by the pager and is not there: it would wait for itself")),
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

    fn read(&self, out: &mut Vec<Message>) -> io::Result<()> {
        self.state().read(out);
        Ok(())
    }
}
