//! A queue of frames from which any frame can be moved or removed in constant time: links are
//! indexed by frame number.

const NONE: u32 = u32::MAX;

/// Links of one frame, and a number that the order may use.
#[derive(Clone, Copy, Debug)]
struct Link {
    before: u32,
    after: u32,
    /// Uses (LFU) or whether it was used (CLOCK).
    mark: u32,
}

/// Links of all frames, shared by the queues of one order. Grows with the highest frame seen.
#[derive(Clone, Debug, Default)]
pub struct Links(Vec<Link>);

/// One queue: oldest in front.
#[derive(Clone, Copy, Debug)]
pub struct Queue {
    first: u32,
    last: u32,
}

impl Default for Queue {
    fn default() -> Self {
        Queue { first: NONE, last: NONE }
    }
}

impl Links {
    /// The number stored for `frame`.
    #[inline]
    pub fn mark(&self, frame: u32) -> u32 {
        self.0[frame as usize].mark
    }

    /// Changes the number stored for `frame`.
    #[inline]
    pub fn set_mark(&mut self, frame: u32, mark: u32) {
        self.0[frame as usize].mark = mark;
    }

    /// Heap memory, bytes.
    pub fn heap_bytes(&self) -> usize {
        self.0.capacity() * size_of::<Link>()
    }
}

impl Queue {
    /// The frame in front.
    #[inline]
    pub fn first(&self) -> Option<u32> {
        (self.first != NONE).then_some(self.first)
    }

    /// Puts `frame`, which is in no queue, at the end with `mark`.
    #[inline]
    pub fn push(&mut self, links: &mut Links, frame: u32, mark: u32) {
        let place = frame as usize;
        if place >= links.0.len() {
            links.0.resize(place + 1, Link { before: NONE, after: NONE, mark: 0 });
        }
        links.0[place] = Link { before: self.last, after: NONE, mark };
        match self.last {
            NONE => self.first = frame,
            last => links.0[last as usize].after = frame,
        }
        self.last = frame;
    }

    /// Removes `frame`, which is in this queue.
    #[inline]
    pub fn remove(&mut self, links: &mut Links, frame: u32) {
        let Link { before, after, .. } = links.0[frame as usize];
        match before {
            NONE => self.first = after,
            before => links.0[before as usize].after = after,
        }
        match after {
            NONE => self.last = before,
            after => links.0[after as usize].before = before,
        }
    }

    /// Moves `frame`, which is in this queue, to its end.
    #[inline]
    pub fn move_to_end(&mut self, links: &mut Links, frame: u32) {
        if self.last != frame {
            let mark = links.mark(frame);
            self.remove(links, frame);
            self.push(links, frame, mark);
        }
    }
}
