//! What the kernel, the program and the store do to the pager's state, and in which order. The
//! program's bytes must be its own.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|tape: &[u8]| hiroma_far::model::fuzz(tape));
