//! Compiles the BPF programs: one walks page tables, one reports which tasks use the processors.

use std::env;
use std::path::PathBuf;
use std::process::Command;

const SOURCES: [(&str, &str); 2] =
    [("src/hot/walk.bpf.c", "walk.bpf.o"), ("src/quiet/noise.bpf.c", "noise.bpf.o")];

fn main() {
    println!("cargo:rerun-if-env-changed=CLANG");
    for (source, object) in SOURCES {
        println!("cargo:rerun-if-changed={source}");
        compile(source, object);
    }
}

fn compile(source: &str, object: &str) {
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    let object = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join(object);
    // -g for the type information with which the program adapts to the running kernel.
    let built = Command::new(&clang)
        .args(["-g", "-O2", "-Wall", "-Werror", "-target", "bpf", "-c", source, "-o"])
        .arg(&object)
        .status();
    match built {
        Ok(status) if status.success() => {}
        Ok(status) => panic!(
            "{clang} could not compile {source} ({status}): clang 14 or newer with its BPF target is needed"
        ),
        Err(error) => panic!(
            "{source} has to be compiled with clang, and {clang} could not be started ({error}): \
             `make deps-build`, or sudo apt-get install clang libelf-dev zlib1g-dev pkg-config make; CLANG= names another compiler"
        ),
    }
}
