//! When a frame at another node is reserved (section 2.4): the borrower's side in two files, the
//! lender's side here.

mod in_advance;
mod on_demand;

pub use in_advance::{InAdvance, Reserved};
pub use on_demand::OnDemand;

/// A frame promised to a node.
#[derive(Clone, Copy, Debug)]
struct Promise {
    node: u32,
    id: u64,
    until_ns: u64,
    /// Whether it was used or released: it is remembered, so that a repeated request promises no
    /// second frame.
    is_over: bool,
}

/// Frames that a node has promised to others, each by the request of a node (the shell's name for
/// it).
#[derive(Clone, Debug, Default)]
pub struct Promises {
    all: Vec<Promise>,
    open: u32,
}

impl Promises {
    /// Frames promised.
    pub fn count(&self) -> u32 {
        self.open
    }

    /// Promises a frame to request `id` of `node` until `until_ns` if `free` (without frames already
    /// promised) is not 0. Returns whether it is promised. A repeated request gets the same frame,
    /// or none if that was used.
    pub fn ask(&mut self, node: u32, id: u64, free: u32, until_ns: u64) -> bool {
        if let Some(promise) = self.find(node, id) {
            return !promise.is_over;
        }
        if free > 0 {
            self.all.push(Promise { node, id, until_ns, is_over: false });
            self.open += 1;
        }
        free > 0
    }

    fn find(&mut self, node: u32, id: u64) -> Option<&mut Promise> {
        self.all.iter_mut().find(|promise| promise.node == node && promise.id == id)
    }

    /// `node` uses or releases the frame of request `id`. With `remember`, a late copy of the
    /// request promises none until the lease ends. Returns whether there was a frame.
    pub fn take(&mut self, node: u32, id: u64, remember: bool) -> bool {
        let Some(place) =
            self.all.iter().position(|promise| promise.node == node && promise.id == id)
        else {
            return false;
        };
        let was_open = !std::mem::replace(&mut self.all[place].is_over, true);
        self.open -= u32::from(was_open);
        if !remember {
            self.all.swap_remove(place);
        }
        was_open
    }

    /// Request `id` of `node` will not be used, even if it arrives only now.
    pub fn release(&mut self, node: u32, id: u64, until_ns: Option<u64>) -> bool {
        let was_open = self.take(node, id, until_ns.is_some());
        if let Some(until_ns) = until_ns {
            if self.find(node, id).is_none() {
                self.all.push(Promise { node, id, until_ns, is_over: true });
            }
        }
        was_open
    }

    /// `node` has lost its memory: promises to it are cancelled. Returns the number of frames that
    /// become free.
    pub fn forget(&mut self, node: u32) -> u32 {
        self.retain(|promise| promise.node != node)
    }

    /// Cancels promises whose lease has ended. Returns the number of frames that become free.
    pub fn expire(&mut self, now_ns: u64) -> u32 {
        self.retain(|promise| promise.until_ns > now_ns)
    }

    fn retain(&mut self, keep: impl Fn(&Promise) -> bool) -> u32 {
        let before = self.open;
        self.all.retain(keep);
        self.open = self.all.iter().filter(|promise| !promise.is_over).count() as u32;
        before - self.open
    }

    /// When the next lease ends, ns.
    pub fn deadline_ns(&self) -> Option<u64> {
        self.all.iter().map(|promise| promise.until_ns).min()
    }

    /// Heap memory, bytes.
    pub fn heap_bytes(&self) -> usize {
        self.all.capacity() * size_of::<Promise>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn promises_equal_requests_minus_takes(steps in prop::collection::vec((0u8..5, 0u32..4, 0u64..6), 0..200)) {
            use std::collections::BTreeSet;
            let (mut promises, mut naive, frames) = (Promises::default(), BTreeSet::new(), 6);
            for (step, node, id) in steps {
                let free = frames - promises.count();
                match step {
                    0 | 1 => {
                        let granted = free > 0 || naive.contains(&(node, id));
                        prop_assert_eq!(promises.ask(node, id, free, 9), granted);
                        if granted {
                            naive.insert((node, id));
                        }
                    }
                    2 | 3 => prop_assert_eq!(promises.take(node, id, false), naive.remove(&(node, id))),
                    _ => {
                        let before = naive.len();
                        naive.retain(|&(other, _)| other != node);
                        prop_assert_eq!(promises.forget(node), (before - naive.len()) as u32);
                    }
                }
                prop_assert_eq!(promises.count(), naive.len() as u32);
            }
        }
    }

    #[test]
    fn repeated_requests_promise_one_frame() {
        let mut promises = Promises::default();
        assert!((0..62).all(|_| promises.ask(7, 1, 62 - promises.count(), 50)));
        assert_eq!(promises.count(), 1);
        assert!(promises.take(7, 1, true) && !promises.take(7, 1, true));
        assert!(!promises.ask(7, 1, 62, 50), "the request is over");
        assert_eq!((promises.count(), promises.deadline_ns()), (0, Some(50)));
        promises.expire(50);
        assert_eq!(promises.deadline_ns(), None);
    }

    #[test]
    fn release_overtakes_its_request() {
        let mut promises = Promises::default();
        assert!(!promises.release(7, 1, Some(50)));
        assert!(!promises.ask(7, 1, 9, 60));
        assert_eq!(promises.count(), 0);
    }

    #[test]
    fn promise_ends_with_its_lease() {
        let mut promises = Promises::default();
        assert!(promises.ask(7, 1, 9, 60) && promises.ask(8, 1, 9, 90));
        assert_eq!((promises.expire(59), promises.expire(60), promises.count()), (0, 1, 1));
    }
}
