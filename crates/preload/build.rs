//! Link options of the library that gets preloaded.

fn main() {
    // Our constructor runs before those of all other libraries, so that what they allocate is
    // managed as well.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,initfirst");
    // No symbol is looked up while the pager works: the dynamic linker's tables may lie in managed
    // memory.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,now");
    println!("cargo:rerun-if-changed=build.rs");
}
