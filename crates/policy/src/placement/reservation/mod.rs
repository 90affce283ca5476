//! When a frame at another node is reserved (section 2.4): the borrower's side in two files, the
//! lender's side here.

mod in_advance;
mod on_demand;

pub use in_advance::InAdvance;
pub use on_demand::OnDemand;

/// Frames that a node has promised to others.
#[derive(Clone, Debug, Default)]
pub struct Promises {
    /// The borrowers, one entry for each frame; the number is the shell's name for a node.
    to: Vec<u32>,
}

impl Promises {
    /// Frames promised.
    pub fn count(&self) -> u32 {
        self.to.len() as u32
    }

    /// Promises a frame to `node` if `free` (without frames already promised) is not 0. Returns
    /// whether it did.
    pub fn ask(&mut self, node: u32, free: u32) -> bool {
        if free > 0 {
            self.to.push(node);
        }
        free > 0
    }

    /// `node` uses or releases a frame promised to it. Returns whether there was one.
    pub fn take(&mut self, node: u32) -> bool {
        let place = self.to.iter().position(|&holder| holder == node);
        place.map(|place| self.to.swap_remove(place)).is_some()
    }

    /// `node` has lost its memory: promises to it are cancelled. Returns the number of frames that
    /// become free.
    pub fn forget(&mut self, node: u32) -> u32 {
        let before = self.count();
        self.to.retain(|&holder| holder != node);
        before - self.count()
    }

    /// Heap memory, bytes.
    pub fn heap_bytes(&self) -> usize {
        self.to.capacity() * 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn promises_equal_requests_minus_takes(steps in prop::collection::vec((0u8..5, 0u32..4), 0..200)) {
            let (mut promises, mut naive, frames) = (Promises::default(), [0u32; 4], 6);
            for (step, node) in steps {
                let (holder, free) = (node as usize, frames - promises.count());
                match step {
                    0 | 1 => {
                        prop_assert_eq!(promises.ask(node, free), free > 0);
                        naive[holder] += u32::from(free > 0);
                    }
                    2 | 3 => {
                        prop_assert_eq!(promises.take(node), naive[holder] > 0);
                        naive[holder] = naive[holder].saturating_sub(1);
                    }
                    _ => prop_assert_eq!(promises.forget(node), std::mem::take(&mut naive[holder])),
                }
                prop_assert_eq!(promises.count(), naive.iter().sum::<u32>());
            }
        }
    }
}
