//! A placement policy for `hiroma sim` in Rust, as a WebAssembly module: the nearest peer with at
//! least a quarter of its memory free; without one, the peer with the most free frames.
//!
//! ```text
//! rustup target add wasm32-unknown-unknown
//! rustc --target wasm32-unknown-unknown --crate-type cdylib -O roomy.rs -o roomy.wasm
//! ```
//!
//! docs/guide/own-policies.md describes the interface.

/// What the host writes about a peer.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Peer {
    free: u32,
    capacity: u32,
    hops: u32,
    flags: u32,
}

#[link(wasm_import_module = "hiroma")]
extern "C" {
    fn random_below(bound: u32) -> u32;
}

/// The instance belongs to one node: its state needs no lock.
static mut PEERS: Vec<Peer> = Vec::new();

#[no_mangle]
pub extern "C" fn placement_abi() -> i32 {
    1
}

/// Room for so many peers; called once.
#[no_mangle]
pub extern "C" fn peers_buffer(peers: usize) -> *mut Peer {
    let room = vec![Peer { free: 0, capacity: 0, hops: 0, flags: 0 }; peers];
    // SAFETY: WebAssembly has one thread here, and no reference to the list outlives a call.
    unsafe {
        PEERS = room;
        (*std::ptr::addr_of_mut!(PEERS)).as_mut_ptr()
    }
}

/// The number of the peer that gets the page, or -1 for disk.
#[no_mangle]
pub extern "C" fn choose(_: usize) -> i32 {
    // SAFETY: as above; the host has written only values of `Peer` into the buffer.
    let peers = unsafe { &*std::ptr::addr_of!(PEERS) };
    let candidate = |peer: &&(usize, Peer)| peer.1.free > 0 && peer.1.flags == 0;
    let all: Vec<(usize, Peer)> = peers.iter().copied().enumerate().collect();
    let roomy = |peer: &&(usize, Peer)| peer.1.free * 4 >= peer.1.capacity;
    let mut best = all.iter().filter(candidate).find(roomy);
    if best.is_none() {
        let most = all.iter().filter(candidate).map(|peer| peer.1.free).max().unwrap_or(0);
        let equal: Vec<_> = all.iter().filter(candidate).filter(|peer| peer.1.free == most).collect();
        // Nodes of the same view do not all choose the same peer.
        if !equal.is_empty() {
            // SAFETY: the host's function takes any number but 0, and has no other effect.
            best = Some(equal[unsafe { random_below(equal.len() as u32) } as usize]);
        }
    }
    best.map_or(-1, |&(number, _)| number as i32)
}
