//! The codecs of compressed memory.

use hiroma_sys::codec::{self, ZstdDecoder, ZstdEncoder};

/// Bytes in front of the compressed content: its length, and in the highest bit the codec.
pub const HEADER: usize = 2;
pub const IS_ZSTD: u16 = 1 << 15;

/// Compresses and decompresses pieces, one after the other.
pub struct Packer {
    /// One compressed piece, after its header.
    pub scratch: Vec<u8>,
    /// The last piece compressed badly, so the next one may too: a quarter of it is tried first,
    /// which saves most of the work.
    is_wary: bool,
    /// Bytes of objects that were stored for the current write.
    pub stored: usize,
    /// Use Zstandard, not LZ4.
    pub is_dense: bool,
    /// Allocated at their first use.
    encoder: Option<ZstdEncoder>,
    decoder: Option<ZstdDecoder>,
}

impl Packer {
    pub fn new(piece_bytes: usize) -> Packer {
        Packer {
            scratch: vec![0; HEADER + codec::packed_bytes_max(piece_bytes)],
            is_wary: false,
            stored: 0,
            is_dense: false,
            encoder: None,
            decoder: None,
        }
    }

    /// Compresses `piece` into the scratch buffer. Returns the length of the object if that is at
    /// most `object_bytes_max`.
    pub fn pack(&mut self, piece: &[u8], object_bytes_max: usize) -> Option<usize> {
        let quarter = &piece[..piece.len() / 4];
        if self.is_wary && self.packed_len(quarter) > quarter.len() - quarter.len() / 16 {
            return None;
        }
        let packed = self.packed_len(piece);
        self.is_wary = HEADER + packed > object_bytes_max;
        if self.is_wary {
            return None;
        }
        let header = packed as u16 | if self.is_dense { IS_ZSTD } else { 0 };
        self.scratch[..HEADER].copy_from_slice(&header.to_le_bytes());
        Some(HEADER + packed)
    }

    fn packed_len(&mut self, bytes: &[u8]) -> usize {
        let out = &mut self.scratch[HEADER..];
        if self.is_dense {
            self.encoder.get_or_insert_with(ZstdEncoder::new).pack(bytes, out)
        } else {
            codec::lz4_pack(bytes, out)
        }
    }

    /// Decompresses an object of `len` bytes in the scratch buffer.
    pub fn unpack(&mut self, len: usize, is_zstd: bool, piece: &mut [u8]) -> Option<usize> {
        let packed = &self.scratch[HEADER..len];
        if is_zstd {
            self.decoder.get_or_insert_with(ZstdDecoder::new).unpack(packed, piece)
        } else {
            codec::lz4_unpack(packed, piece)
        }
    }
}
