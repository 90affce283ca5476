//! What a user may write after an option, and the configuration that a process passes to its
//! children.
#![no_main]

use hiroma_far::Config;
use hiroma_far::config::{BlockSize, StoreSpec, parse_local, parse_stores};
use hiroma_units::{Bytes, SizeSpec};
use libfuzzer_sys::fuzz_target;

/// What is understood must be understood in the same way once it is written out.
fn comes_back<T: std::str::FromStr + ToString + PartialEq>(text: &str) {
    if let Ok(value) = text.parse::<T>() {
        let written = value.to_string();
        assert!(written.parse::<T>().is_ok_and(|again| again == value), "{text:?} was written as {written:?}");
    }
}

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    comes_back::<StoreSpec>(text);
    let _ = (text.parse::<BlockSize>(), text.parse::<Bytes>(), text.parse::<SizeSpec>(), parse_stores(text));
    if let Ok(bytes) = parse_local(text, Bytes(16 << 30)) {
        assert!(bytes.0 > 0);
    }
    if let Ok(config) = serde_json::from_str::<Config>(text) {
        let written = serde_json::to_string(&config).expect("a configuration is JSON");
        serde_json::from_str::<Config>(&written).expect("what was written is read");
    }
});
