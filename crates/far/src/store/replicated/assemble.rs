//! From pieces to blocks: whether they are right, and which of them is not.

use hiroma_policy::redundancy::Member;
use hiroma_sys::vm;

use super::channel::{Attempt, ReplicatedChannel};
use super::code::Shard;
use super::reads::{Got, Part};
use crate::content;
use crate::store::StoreError;

impl ReplicatedChannel {
    /// Puts the blocks of a part into the caller's buffer, if its pieces give what was stored.
    /// Pieces that are known to be wrong are forgotten.
    pub(super) fn put_together(&mut self, number: usize) -> Result<(), StoreError> {
        if self.shared.scheme.is_cut() { self.join(number) } else { self.take_copy(number) }
    }

    fn error_of_pieces(&self) -> StoreError {
        self.shared.io_error("reading", "a server returned other bytes than were sent there")
    }

    /// The same for the copy that has come last.
    fn take_copy(&mut self, number: usize) -> Result<(), StoreError> {
        let Some(part) = self.parts.get_mut(number) else { return Ok(()) };
        let Some(got) = part.got.pop() else { return Err(self.error_of_pieces()) };
        let (addr, len, home) = (part.addr, part.len, part.home);
        let from = got.buf.as_ref().map_or(addr, |buf| buf.addr());
        let sector = self.shared.sector_bytes;
        let mut wrong = Vec::new();
        if let Some(part) = self.parts.get(number) {
            let is_right = |at: usize| self.is_right(part, at, from + at * sector);
            wrong.extend((0..part.blocks.len()).filter(|&at| !is_right(at)));
        }
        if !wrong.is_empty() {
            self.forget(number, &got, &wrong);
            self.keep_spare(got.buf);
            return Err(self.error_of_pieces());
        }
        if home.is_some_and(|home| !self.abandon(home)) {
            // The caller's buffer is still in use: this answer comes too early.
            self.keep_spare(got.buf);
            return Err(self.error_of_pieces());
        }
        if from != addr {
            vm::copy(addr, from, len);
        }
        self.keep_spare(got.buf);
        Ok(())
    }

    /// Whether a block of a part has the right checksum.
    fn is_right(&self, part: &Part, at: usize, addr: usize) -> bool {
        let bytes = vm::lend(addr, self.shared.sector_bytes);
        let sum_of = if part.blocks.len() > 1 { content::checksum_cold } else { content::checksum };
        sum_of(&self.shared.key, bytes.bytes()) == part.blocks[at].sum
    }

    /// Puts blocks together. If the pieces are too many, the right ones among them are searched for.
    fn join(&mut self, number: usize) -> Result<(), StoreError> {
        let needed = self.shared.scheme.needed();
        let Some(part) = self.parts.get_mut(number) else { return Ok(()) };
        let mut got = std::mem::take(&mut part.got);
        let (addr, len) = (part.addr, part.len);
        let mut blocks = vm::lend(addr, len);
        let sector = self.shared.sector_bytes;
        // The last one is new: without it, all was tried.
        let last = got.len() - 1;
        let mut found = false;
        for others in subsets(last, needed - 1) {
            let is_chosen = |at: usize| at == last || others >> at & 1 == 1;
            let chosen = got.iter_mut().enumerate().filter(|(at, _)| is_chosen(*at));
            let shards = chosen.filter_map(|(_, got)| {
                Some(Shard { index: got.index, bytes: got.buf.as_mut()?.bytes_mut() })
            });
            let mut scratch = std::mem::take(&mut self.scratch);
            self.shared.code.join(shards.collect(), &mut scratch, blocks.bytes_mut());
            self.scratch = scratch;
            let Some(part) = self.parts.get(number) else { break };
            if (0..part.blocks.len()).all(|at| self.is_right(part, at, addr + at * sector)) {
                found = true;
                break;
            }
        }
        if found && got.len() > needed {
            self.forget_others(number, &got, blocks.bytes());
        }
        if let Some(part) = self.parts.get_mut(number) {
            part.got = got;
        }
        if found { Ok(()) } else { Err(self.error_of_pieces()) }
    }

    /// Forgets the pieces that are not those of `blocks`.
    fn forget_others(&mut self, number: usize, got: &[Got], blocks: &[u8]) {
        let (pieces, piece_bytes) = (self.shared.scheme.pieces(), self.shared.code.piece_bytes());
        let len = blocks.len() / self.shared.sector_bytes * piece_bytes;
        let mut right = std::mem::take(&mut self.scratch);
        right.resize(pieces * len, 0);
        self.shared.code.cut(blocks, &mut right);
        for got in got {
            let right = right[got.index * len..][..len].chunks(piece_bytes);
            let Some(bytes) = got.buf.as_ref().map(|buf| buf.bytes()) else { continue };
            let pairs = bytes.chunks(piece_bytes).zip(right).enumerate();
            let wrong: Vec<usize> =
                pairs.filter(|(_, (is, should))| is != should).map(|(at, _)| at).collect();
            if !wrong.is_empty() {
                self.forget(number, got, &wrong);
            }
        }
        self.scratch = right;
    }

    /// Forgets a member's piece of the blocks `wrong` of a part.
    fn forget(&mut self, number: usize, got: &Got, wrong: &[usize]) {
        let Some(part) = self.parts.get(number) else { return };
        let mut books = self.shared.books();
        let member: Member = got.member;
        if books.serial(member) != got.serial {
            return;
        }
        let mut is_current = false;
        for &at in wrong {
            is_current |= books.wrong(&part.blocks[at], got.index, member, got.places[at]);
        }
        if is_current {
            books.was_wrong(member, "it returned other bytes than were sent there");
        }
    }
}

impl ReplicatedChannel {
    /// A member answered with an error when it was asked for a piece of a part. What others have too
    /// is made again elsewhere; of the rest it is the last hope.
    pub(super) fn failed(&self, number: usize, attempt: &Attempt, error: &StoreError) {
        let Attempt { member, index, ref places, .. } = *attempt;
        let Some(part) = self.parts.get(number) else { return };
        let mut books = self.shared.books();
        if books.serial(member) != attempt.serial {
            return;
        }
        let mut is_current = false;
        for (wanted, &place) in part.blocks.iter().zip(places) {
            if books.is_elsewhere(wanted, member) {
                is_current |= books.wrong(wanted, index, member, place);
            }
        }
        if is_current {
            books.was_wrong(member, &error.to_string());
        }
    }
}

/// All sets of `count` of the numbers below `from`, as bits.
fn subsets(from: usize, count: usize) -> impl Iterator<Item = u32> {
    (0..1u32 << from).filter(move |set| set.count_ones() as usize == count)
}

#[cfg(test)]
mod tests {
    use super::subsets;

    #[test]
    fn subsets_are_all_of_their_size() {
        assert_eq!(subsets(3, 3).collect::<Vec<_>>(), [0b111]);
        assert_eq!(subsets(4, 3).collect::<Vec<_>>(), [0b0111, 0b1011, 0b1101, 0b1110]);
        assert_eq!(subsets(5, 2).count(), 10);
        assert_eq!(subsets(0, 0).count(), 1);
    }
}
