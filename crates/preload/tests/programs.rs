//! Runs C programs under the library, which check the guarantees that C gives.

mod common;
mod libc_calls;

use std::process::Command;

use common::{compile, config, library, passes, passes_saying, preloaded, succeed};

const MIB: u64 = 1 << 20;
/// Warning for `mappings` after it has insisted on an address.
const INSISTED: &str = "hiroma: the program takes 64MiB of address space where it wants it and nowhere else (Java's ZGC does): \
                        what it keeps there is not far and not in --local\n";

#[test]
fn malloc_family_meets_its_contract() {
    passes("malloc_family", 1024 * MIB, &["managed"]);
}

#[test]
fn mmap_family_meets_its_contract() {
    passes_saying("mappings", 1024 * MIB, &[], INSISTED);
}

#[test]
fn both_families_meet_contracts_under_memory_pressure() {
    passes("malloc_family", 32 * MIB, &["managed"]);
    passes_saying("mappings", 32 * MIB, &[], INSISTED);
}

#[test]
fn parent_and_child_keep_their_data() {
    passes("processes", 256 * MIB, &[]);
    passes("processes", 32 * MIB, &[]);
}

#[test]
fn threads_share_blocks_and_keep_their_stacks_local() {
    passes("threads", 64 * MIB, &[]);
}

#[test]
fn signal_storm_does_no_harm() {
    passes("signals", 64 * MIB, &[]);
}

#[test]
fn own_allocator_is_served_through_mmap() {
    passes("own_allocator", 64 * MIB, &[]);
}

#[test]
fn data_beyond_the_limit_is_intact() {
    passes("far_more", 48 * MIB, &["192"]);
}

#[test]
fn without_configuration_calls_go_to_libc() {
    let program = compile("malloc_family", &[]);
    let output = succeed(preloaded(&program, None).arg("plain"));
    assert_eq!(output.stdout, b"ok\n");
}

#[test]
fn unreadable_configuration_aborts_with_a_message() {
    let output = preloaded("/bin/true", None)
        .env(hiroma_far::config::CONFIG_ENV, "{nonsense")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(75));
    assert!(
        String::from_utf8_lossy(&output.stderr).starts_with("hiroma: cannot read HIROMA_CONFIG"),
        "{output:?}"
    );
}

#[test]
fn ordinary_programs_run_unchanged() {
    let config = config(256 * MIB);
    for line in [
        "seq 200000 | sort -R | sort -n | md5sum",
        "ls -la / | wc -l",
        "awk 'BEGIN { for (i = 0; i < 300000; i++) a[i] = i * 2; print a[299999] }'",
        "seq 300000 | gzip -9 | gzip -d | md5sum",
        "seq 300000 | xz -T2 | xz -d | md5sum",
        "perl -e '@a = map { $_ * 3 } 1..300000; print scalar(@a), $a[-1]'",
    ] {
        let wanted = succeed(Command::new("bash").args(["-c", line]));
        let got = succeed(preloaded("bash", Some(&config)).args(["-c", line]));
        assert_eq!(
            (got.stdout, String::from_utf8_lossy(&got.stderr).into_owned()),
            (wanted.stdout, String::new()),
            "{line}"
        );
    }
}

#[test]
fn library_has_no_dependency_touching_managed_memory() {
    let symbols =
        succeed(Command::new("nm").args(["--dynamic", "--undefined-only"]).arg(library())).stdout;
    let symbols = String::from_utf8(symbols).unwrap();
    // The dynamic linker's lookup of thread-local storage may walk tables in managed memory.
    assert!(!symbols.contains("__tls_get_addr"), "{symbols}");
    let dynamic =
        String::from_utf8(succeed(Command::new("readelf").arg("--dynamic").arg(library())).stdout)
            .unwrap();
    assert!(dynamic.contains("INITFIRST") && dynamic.contains("NOW"), "{dynamic}");
    let exported = String::from_utf8(
        succeed(Command::new("nm").args(["--dynamic", "--defined-only"]).arg(library())).stdout,
    )
    .unwrap();
    for name in [
        "malloc",
        "free",
        "mmap",
        "mmap64",
        "munmap",
        "mremap",
        "madvise",
        "mprotect",
        "mlock",
        "syscall",
        "posix_memalign",
        "malloc_usable_size",
    ] {
        assert!(
            exported.lines().any(|line| line.ends_with(&format!(" T {name}"))),
            "{name} is not exported"
        );
    }
}

#[test]
fn a_program_linked_to_jemalloc_is_served() {
    let options = ["-Wl,--no-as-needed", "-l:libjemalloc.so.2"];
    let linked = Command::new("sh")
        .args(["-c", "ldconfig -p | grep -q libjemalloc.so.2"])
        .status()
        .unwrap()
        .success();
    if !linked {
        hiroma_testkit::skip!(Machine, "no libjemalloc.so.2 on this machine");
        return;
    }
    let program = compile("threads", &options);
    let output = succeed(&mut preloaded(&program, Some(&config(64 * MIB))));
    assert_eq!(output.stdout, b"ok\n");
}
