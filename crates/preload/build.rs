//! Link options of the preloaded library.

fn main() {
    // Our constructor runs before those of all other libraries, so that their allocations are
    // managed as well.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,initfirst");
    // No symbol is resolved while the pager works: the dynamic linker's tables may be in managed
    // memory.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,now");
    link_unwinder();
    println!("cargo:rerun-if-changed=build.rs");
}

/// Links libgcc's unwinder statically. The standard library asks for the shared one, which every
/// process that is started would have to load: a tenth of a millisecond, most of it `cpuid` in a
/// virtual machine.
fn link_unwinder() {
    let is_gnu = std::env::var("CARGO_CFG_TARGET_ENV").is_ok_and(|env| env == "gnu");
    let dir = std::env::var("OUT_DIR").expect("cargo sets it");
    let script = std::path::Path::new(&dir).join("libgcc_s.so");
    if is_gnu && std::fs::write(script, "INPUT ( -lgcc_eh -lgcc )\n").is_ok() {
        println!("cargo:rustc-link-search=native={dir}");
    }
}
