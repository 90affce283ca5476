//! Cutting blocks into pieces, and putting them together again.
//!
//! Piece `i` of several blocks is their pieces `i`, one after the other, so that each member gets
//! one request for adjacent blocks. The code works on columns of bytes: what is computed of several
//! blocks at once is the same as of each by itself.

use hiroma_policy::redundancy::{PIECES_MAX, Scheme};
use reed_solomon_erasure::galois_8::ReedSolomon;

/// Pieces have whole multiples of this many bytes.
const UNIT_BYTES: usize = 16;

/// How blocks of one size are cut.
pub struct Code {
    scheme: Scheme,
    sector_bytes: usize,
    piece_bytes: usize,
    /// None: all pieces are copies.
    reed_solomon: Option<ReedSolomon>,
}

/// A piece of some blocks, and its index.
pub struct Shard<'a> {
    pub index: usize,
    pub bytes: &'a mut [u8],
}

impl Code {
    pub fn new(scheme: Scheme, sector_bytes: usize) -> Code {
        let (data, parity) = scheme.parts();
        let code = || ReedSolomon::new(data, parity).expect("a scheme has data and parity");
        Code {
            scheme,
            sector_bytes,
            piece_bytes: match scheme.is_cut() {
                true => sector_bytes.div_ceil(data).next_multiple_of(UNIT_BYTES),
                false => sector_bytes,
            },
            reed_solomon: scheme.is_cut().then(code),
        }
    }

    /// Bytes of one piece of one block.
    pub fn piece_bytes(&self) -> usize {
        self.piece_bytes
    }

    /// The part of a block that its piece `index` contains.
    fn part(&self, index: usize) -> std::ops::Range<usize> {
        let end = |at: usize| (at * self.piece_bytes).min(self.sector_bytes);
        end(index)..end(index + 1)
    }

    /// Cuts blocks. `out` gets all pieces of them by index.
    pub fn cut(&self, blocks: &[u8], out: &mut [u8]) {
        let len = blocks.len() / self.sector_bytes * self.piece_bytes;
        let (data, parity) = out.split_at_mut(self.scheme.needed() * len);
        for (index, piece) in data.chunks_exact_mut(len).enumerate() {
            let blocks = blocks.chunks_exact(self.sector_bytes);
            for (to, block) in piece.chunks_exact_mut(self.piece_bytes).zip(blocks) {
                let from = &block[self.part(index)];
                to[..from.len()].copy_from_slice(from);
                to[from.len()..].fill(0);
            }
        }
        let Some(code) = &self.reed_solomon else { return };
        let data: Vec<&[u8]> = data.chunks_exact(len).collect();
        let mut parity: Vec<&mut [u8]> = parity.chunks_exact_mut(len).collect();
        code.encode_sep(&data, &mut parity).expect("as many pieces as the code has, of one length");
    }

    /// Puts blocks together from as many of their pieces as are needed. `scratch` is memory for
    /// pieces that are not there.
    pub fn join(&self, shards: Vec<Shard<'_>>, scratch: &mut Vec<u8>, blocks: &mut [u8]) {
        let needed = self.scheme.needed();
        let len = blocks.len() / self.sector_bytes * self.piece_bytes;
        let mut all: [Option<&mut [u8]>; PIECES_MAX] = std::array::from_fn(|_| None);
        let mut missing = needed;
        for Shard { index, bytes } in shards {
            missing -= usize::from(index < needed);
            all[index] = Some(bytes);
        }
        scratch.resize(missing * len, 0);
        let mut spare = scratch.chunks_exact_mut(len);
        let pieces = all[..self.scheme.pieces()].iter_mut().enumerate();
        let mut pieces: Vec<(&mut [u8], bool)> = pieces
            .map(|(index, piece)| match piece.take() {
                Some(piece) => (piece, true),
                None if index < needed => (spare.next().expect("one for each"), false),
                None => (&mut [][..], false),
            })
            .collect();
        if let (Some(code), true) = (&self.reed_solomon, missing > 0) {
            code.reconstruct_data(&mut pieces)
                .expect("as many pieces as are needed, of one length");
        }
        for (index, (piece, _)) in pieces[..needed].iter().enumerate() {
            let blocks = blocks.chunks_exact_mut(self.sector_bytes);
            for (from, block) in piece.chunks_exact(self.piece_bytes).zip(blocks) {
                let to = &mut block[self.part(index)];
                to.copy_from_slice(&from[..to.len()]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::model::content;

    #[test]
    fn any_pieces_that_suffice_give_blocks_back() {
        for (scheme, sector_bytes, blocks) in [
            ("4+1", 4096, 1),
            ("4+1", 8192, 3),
            ("3+2", 4096, 1),
            ("3+2", 4096, 16),
            ("5+3", 65536, 2),
        ] {
            let scheme: Scheme = scheme.parse().unwrap();
            let code = Code::new(scheme, sector_bytes);
            let content = content(7, blocks * sector_bytes);
            let len = blocks * code.piece_bytes();
            let mut pieces = vec![0; scheme.pieces() * len];
            code.cut(&content, &mut pieces);
            for set in 0u32..1 << scheme.pieces() {
                if set.count_ones() as usize != scheme.needed() {
                    continue;
                }
                let mut copy = pieces.clone();
                let shards = copy.chunks_exact_mut(len).enumerate();
                let shards = shards.filter(|(index, _)| set >> index & 1 == 1);
                let shards = shards.map(|(index, bytes)| Shard { index, bytes }).collect();
                let mut back = vec![0xaa; content.len()];
                code.join(shards, &mut Vec::new(), &mut back);
                assert!(back == content, "{scheme} of {sector_bytes}: {set:b}");
            }
        }
    }

    #[test]
    fn pieces_are_hardly_larger_than_their_share() {
        let piece = |scheme: &str, bytes| Code::new(scheme.parse().unwrap(), bytes).piece_bytes();
        assert_eq!((piece("4+1", 4096), piece("4+1", 2 << 20)), (1024, 512 << 10));
        assert_eq!((piece("3+2", 4096), piece("1+1", 4096)), (1376, 4096));
    }
}
