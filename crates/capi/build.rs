//! Gives `libhiroma.so` its soname, and keeps it loaded: pager threads would not survive `dlclose`.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libhiroma.so.0");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
