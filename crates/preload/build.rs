//! Link options of the preloaded library.

fn main() {
    // Our constructor runs before those of all other libraries, so that their allocations are
    // managed as well.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,initfirst");
    // No symbol is resolved while the pager works: the dynamic linker's tables may be in managed
    // memory.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,now");
    println!("cargo:rerun-if-changed=build.rs");
}
