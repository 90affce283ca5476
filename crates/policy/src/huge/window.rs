//! How long a round watches.
//!
//! An accessed bit states whether a page was touched, not how often. Over a long window all pages
//! in use look the same; over a short one few pages are seen. The window that ranks pages best is
//! one in which a part of them is touched.

/// A window that adapts to the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    ns: u64,
    min_ns: u64,
    max_ns: u64,
}

/// Above this share of the present pages (in 1/1000) the window does not show well enough which are
/// hotter.
const MANY_PERMILLE: u64 = 600;
/// Below it, the window sees too few pages.
const FEW_PERMILLE: u64 = 50;

impl Window {
    /// Begins with `ns`, and stays between `min_ns` and `max_ns`.
    pub fn new(ns: u64, min_ns: u64, max_ns: u64) -> Window {
        Window { ns: ns.clamp(min_ns, max_ns.max(min_ns)), min_ns, max_ns: max_ns.max(min_ns) }
    }

    /// A window of constant length.
    pub fn fixed(ns: u64) -> Window {
        Window { ns, min_ns: ns, max_ns: ns }
    }

    /// Length in nanoseconds.
    pub fn ns(&self) -> u64 {
        self.ns
    }

    /// Reports that `touched` of `present` pages were touched within one window.
    pub fn learn(&mut self, touched: u64, present: u64) {
        if present == 0 {
            return;
        }
        if touched * 1000 > present * MANY_PERMILLE {
            self.ns = (self.ns / 2).max(self.min_ns);
        } else if touched * 1000 < present * FEW_PERMILLE {
            self.ns = self.ns.saturating_mul(2).min(self.max_ns);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn window_length_follows_touched_fraction() {
        let mut window = Window::new(8, 2, 100);
        window.learn(90, 100);
        assert_eq!(window.ns(), 4);
        (0..9).for_each(|_| window.learn(100, 100));
        assert_eq!(window.ns(), 2);
        window.learn(30, 100);
        assert_eq!(window.ns(), 2);
        (0..9).for_each(|_| window.learn(0, 100));
        assert_eq!(window.ns(), 100);
        let mut fixed = Window::fixed(7);
        fixed.learn(0, 100);
        assert_eq!(fixed.ns(), 7);
    }
}
