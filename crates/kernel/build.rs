//! Compiles the BPF program that walks page tables.

use std::env;
use std::path::PathBuf;
use std::process::Command;

const SOURCE: &str = "src/hot/walk.bpf.c";

fn main() {
    println!("cargo:rerun-if-changed={SOURCE}");
    println!("cargo:rerun-if-env-changed=CLANG");
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    let object = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("walk.bpf.o");
    // -g for the type information with which the program fits itself to the running kernel.
    let built = Command::new(&clang).args(["-g", "-O2", "-Wall", "-Werror", "-target", "bpf", "-c", SOURCE, "-o"]).arg(&object).status();
    match built {
        Ok(status) if status.success() => {}
        Ok(status) => panic!("{clang} could not compile {SOURCE} ({status}): clang 14 or newer with its BPF target is needed"),
        Err(error) => panic!(
            "{SOURCE} has to be compiled with clang, and {clang} could not be started ({error}): \
             `make deps-build`, or sudo apt-get install clang libelf-dev zlib1g-dev pkg-config make; CLANG= names another compiler"
        ),
    }
}
