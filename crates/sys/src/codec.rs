//! LZ4 and Zstandard for small pieces, through their C libraries, which never allocate here.
//!
//! Contract: the state of an encoder and a decoder is in memory that they own, is set up once with
//! `ZSTD_initStatic*`, and is used by one thread at a time. So the libraries allocate nothing:
//! their `malloc` would be the program's, whose memory the pager must not touch. LZ4 has its table
//! on the stack (16 KiB).
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::ptr::NonNull;

use zstd_sys::{
    ZSTD_CCtx, ZSTD_CCtx_setParameter, ZSTD_DCtx, ZSTD_DCtx_setParameter, ZSTD_compress2,
    ZSTD_decompressDCtx, ZSTD_estimateCCtxSize_usingCParams, ZSTD_estimateDCtxSize,
    ZSTD_getCParams, ZSTD_initStaticCCtx, ZSTD_initStaticDCtx, ZSTD_isError,
};

/// Longest piece.
pub const PIECE_BYTES_MAX: usize = 16 << 10;
/// The fastest level with entropy coding, which compresses memory better than LZ4.
const LEVEL: i32 = 1;
/// `ZSTD_f_zstd1_magicless`: saves four bytes for each piece.
const MAGICLESS: i32 = 1;

/// Maximum compressed size of a piece of `len` bytes.
pub const fn packed_bytes_max(len: usize) -> usize {
    // LZ4_COMPRESSBOUND and ZSTD_COMPRESSBOUND of small pieces; the larger of the two.
    let (lz4, zstd) = (len + len / 255 + 16, len + (len >> 8) + 64);
    if lz4 > zstd { lz4 } else { zstd }
}

/// Compresses `piece` with LZ4 into `out`, which has room for `packed_bytes_max`; returns the
/// compressed length.
pub fn lz4_pack(piece: &[u8], out: &mut [u8]) -> usize {
    assert!(
        piece.len() <= PIECE_BYTES_MAX && out.len() >= packed_bytes_max(piece.len()),
        "a small piece, and room for it"
    );
    // SAFETY: both lengths are those of the slices, and fit.
    let len = unsafe {
        lz4_sys::LZ4_compress_default(
            piece.as_ptr().cast(),
            out.as_mut_ptr().cast(),
            piece.len() as i32,
            out.len() as i32,
        )
    };
    assert!(len > 0, "there is room for the worst case");
    len as usize
}

/// Decompresses the output of `lz4_pack`. Returns the length of the piece, or none if `packed` is
/// damaged or `piece` too small.
pub fn lz4_unpack(packed: &[u8], piece: &mut [u8]) -> Option<usize> {
    // SAFETY: both lengths are those of the slices; the library checks each access against them.
    let len = unsafe {
        lz4_sys::LZ4_decompress_safe(
            packed.as_ptr().cast(),
            piece.as_mut_ptr().cast(),
            packed.len() as i32,
            piece.len() as i32,
        )
    };
    usize::try_from(len).ok()
}

/// Memory for a state of the library, aligned as it requires.
type Room = Box<[MaybeUninit<u64>]>;

fn room(bytes: usize) -> Room {
    Box::new_uninit_slice(bytes.div_ceil(8))
}

/// Compresses pieces with Zstandard.
pub struct ZstdEncoder {
    context: NonNull<ZSTD_CCtx>,
    room: Room,
}

// SAFETY: the context is a part of `room`, which the encoder owns, and is only accessed through
// `&mut self`.
unsafe impl Send for ZstdEncoder {}

impl ZstdEncoder {
    #[expect(clippy::new_without_default, reason = "it takes up memory")]
    pub fn new() -> ZstdEncoder {
        // SAFETY: plain functions of their arguments.
        let bytes = unsafe {
            ZSTD_estimateCCtxSize_usingCParams(ZSTD_getCParams(LEVEL, PIECE_BYTES_MAX as u64, 0))
        };
        let mut room = room(bytes);
        // SAFETY: the memory is ours, is aligned to 8 bytes, and lives as long as the context; a
        // box's content does not move.
        let context = unsafe { ZSTD_initStaticCCtx(room.as_mut_ptr().cast(), room.len() * 8) };
        let context = NonNull::new(context).expect("the library estimated its own need");
        for (parameter, value) in [
            (zstd_sys::ZSTD_cParameter::ZSTD_c_compressionLevel, LEVEL),
            (zstd_sys::ZSTD_cParameter::ZSTD_c_contentSizeFlag, 0),
            (zstd_sys::ZSTD_cParameter::ZSTD_c_experimentalParam2, MAGICLESS),
        ] {
            // SAFETY: the context has been set up.
            let code = unsafe { ZSTD_CCtx_setParameter(context.as_ptr(), parameter, value) };
            assert!(!is_error(code), "the library knows its parameters");
        }
        ZstdEncoder { context, room }
    }

    /// Compresses `piece` into `out`, which has room for `packed_bytes_max`; returns the compressed
    /// length.
    pub fn pack(&mut self, piece: &[u8], out: &mut [u8]) -> usize {
        assert!(
            piece.len() <= PIECE_BYTES_MAX && out.len() >= packed_bytes_max(piece.len()),
            "a small piece, and room for it"
        );
        // SAFETY: the context has been set up, and both lengths are those of the slices.
        let code = unsafe {
            ZSTD_compress2(
                self.context.as_ptr(),
                out.as_mut_ptr().cast(),
                out.len(),
                piece.as_ptr().cast(),
                piece.len(),
            )
        };
        assert!(!is_error(code), "there is room for the worst case");
        code
    }

    /// Size of its state.
    pub fn state_bytes(&self) -> usize {
        self.room.len() * 8
    }
}

/// Decompresses pieces that `ZstdEncoder` compressed.
pub struct ZstdDecoder {
    context: NonNull<ZSTD_DCtx>,
    room: Room,
}

// SAFETY: as above.
unsafe impl Send for ZstdDecoder {}

impl ZstdDecoder {
    #[expect(clippy::new_without_default, reason = "it takes up memory")]
    pub fn new() -> ZstdDecoder {
        // SAFETY: a plain function.
        let mut room = room(unsafe { ZSTD_estimateDCtxSize() });
        // SAFETY: the memory is ours, is aligned to 8 bytes, and lives as long as the context; a
        // box's content does not move.
        let context = unsafe { ZSTD_initStaticDCtx(room.as_mut_ptr().cast(), room.len() * 8) };
        let context = NonNull::new(context).expect("the library estimated its own need");
        // SAFETY: the context has been set up.
        let code = unsafe {
            ZSTD_DCtx_setParameter(
                context.as_ptr(),
                zstd_sys::ZSTD_dParameter::ZSTD_d_experimentalParam1,
                MAGICLESS,
            )
        };
        assert!(!is_error(code), "the library knows its parameters");
        ZstdDecoder { context, room }
    }

    /// Returns the length of the piece, or none if `packed` is damaged or `piece` too small.
    pub fn unpack(&mut self, packed: &[u8], piece: &mut [u8]) -> Option<usize> {
        // SAFETY: the context has been set up, and both lengths are those of the slices; the
        // library checks each access against them.
        let code = unsafe {
            ZSTD_decompressDCtx(
                self.context.as_ptr(),
                piece.as_mut_ptr().cast(),
                piece.len(),
                packed.as_ptr().cast(),
                packed.len(),
            )
        };
        (!is_error(code)).then_some(code)
    }

    /// Size of its state.
    pub fn state_bytes(&self) -> usize {
        self.room.len() * 8
    }
}

fn is_error(code: usize) -> bool {
    // SAFETY: a plain function.
    unsafe { ZSTD_isError(code) != 0 }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn states_are_small() {
        let (encoder, decoder) = (ZstdEncoder::new(), ZstdDecoder::new());
        assert!(encoder.state_bytes() < 256 << 10, "{}", encoder.state_bytes());
        assert!(decoder.state_bytes() < 256 << 10, "{}", decoder.state_bytes());
    }

    proptest! {
        #[test]
        fn packed_content_round_trips(words in proptest::collection::vec(0u8..9, 1..PIECE_BYTES_MAX), noise in any::<bool>()) {
            let piece: Vec<u8> =
                words.iter().enumerate().map(|(at, word)| if noise { (at as u8).wrapping_mul(167) ^ word } else { *word }).collect();
            let mut packed = vec![0; packed_bytes_max(piece.len())];
            let mut back = vec![0; piece.len()];
            let (mut encoder, mut decoder) = (ZstdEncoder::new(), ZstdDecoder::new());
            for _ in 0..2 {
                let len = encoder.pack(&piece, &mut packed);
                back.fill(1);
                prop_assert_eq!(decoder.unpack(&packed[..len], &mut back), Some(piece.len()));
                prop_assert!(back == piece);
                let len = lz4_pack(&piece, &mut packed);
                back.fill(1);
                prop_assert_eq!(lz4_unpack(&packed[..len], &mut back), Some(piece.len()));
                prop_assert!(back == piece);
            }
        }

        #[test]
        fn damage_is_detected_or_changes_only_bytes(packed in proptest::collection::vec(any::<u8>(), 0..300), len in 0usize..5000) {
            let mut piece = vec![0; len];
            prop_assert!(lz4_unpack(&packed, &mut piece).is_none_or(|unpacked| unpacked <= len));
            prop_assert!(ZstdDecoder::new().unpack(&packed, &mut piece).is_none_or(|unpacked| unpacked <= len));
        }
    }
}
