//! Pools whose members know each other by identities: `hiroma pool init`, `hiroma pool invite`.

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Output;
use std::thread::sleep;
use std::time::{Duration, Instant};

use common::hiroma;
use common::member::Member;

fn in_dir(dir: &Path, args: &[&str]) -> Output {
    hiroma(args).current_dir(dir).output().unwrap()
}

fn done(dir: &Path, args: &[&str]) -> String {
    let out = in_dir(dir, args);
    assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

fn refused(dir: &Path, args: &[&str]) -> String {
    let out = in_dir(dir, args);
    assert_eq!(out.status.code(), Some(2), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stderr).unwrap()
}

fn members(address: &str, key: &str) -> usize {
    let out = hiroma(["pool", "--json", "--pool", address, "--key-file", key]).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let pool: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    let members = pool["members"].as_array().unwrap();
    members.iter().filter(|m| m["health"] == "alive" && m["sequence"].as_u64() > Some(0)).count()
}

#[test]
fn members_with_identities_of_one_authority_are_a_pool_and_others_are_turned_away() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let file = |name: &str| dir.join(name).display().to_string();
    done(dir, &["pool", "init"]);
    done(dir, &["pool", "init", "other.pem"]);
    let told = done(dir, &["pool", "invite", "one"]);
    assert!(told.contains("one.pem") && told.contains("--key-file"), "{told}");
    done(dir, &["pool", "invite", "two", "--out", "second.pem"]);
    done(dir, &["pool", "invite", "user", "--valid", "2h"]);
    done(dir, &["pool", "invite", "stranger", "--authority", "other.pem"]);
    done(dir, &["pool", "invite", "late", "--valid", "1s"]);
    for secret in ["hiroma-authority.pem", "one.pem"] {
        let mode = fs::metadata(dir.join(secret)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{secret}");
    }
    // The pool's key for datagrams, as a shared key.
    let one = fs::read_to_string(dir.join("one.pem")).unwrap();
    let secret = one.lines().find_map(|line| line.strip_prefix("pool-key: ")).unwrap();
    fs::write(dir.join("secret"), secret).unwrap();

    let first = Member::start("256M", "127.0.0.1:0", &["--key-file", &file("one.pem")]);
    let at = first.address.as_str();
    let second =
        Member::start("256M", "127.0.0.1:0", &["--key-file", &file("second.pem"), "--join", at]);
    let start = Instant::now();
    while members(&second.address, &file("user.pem")) < 2 {
        assert!(start.elapsed() < Duration::from_secs(20), "the two have not found each other");
        sleep(Duration::from_millis(100));
    }

    // Programs: 200 MiB of data in 64 MiB.
    let work = "import sys; a=[bytes([i%251])*1000 + i.to_bytes(8,'big') for i in range(100000)]; \
                assert all(a[i][-8:]==i.to_bytes(8,'big') for i in range(100000)); print('right')";
    let user = file("user.pem");
    let run = ["run", "--local", "64M", "--pool", at, "--store", "compressed:1M", "--copies", "2"];
    let run = [&run[..], &["--seal", "on", "--key-file", &user, "python3", "-c", work]].concat();
    assert!(done(dir, &run).contains("right"));

    // Who is none of them.
    let ask = |key: &str| refused(dir, &["pool", "--pool", at, "--key-file", &file(key)]);
    assert!(ask("stranger.pem").contains("another pool's authority"));
    assert!(ask("secret").contains("identities"));
    assert!(refused(dir, &["pool", "--pool", at]).contains("identities"));
    let join = |key: &str| {
        let args = ["serve", "--memory", "64M", "--listen", "127.0.0.1:0", "--join", at];
        refused(dir, &[&args[..], &["--key-file", &file(key)]].concat())
    };
    assert!(join("stranger.pem").contains("another pool's authority"));
    assert!(join("secret").contains("identities"));
    while start.elapsed() < Duration::from_secs(3) {
        sleep(Duration::from_millis(100));
    }
    let expired = ask("late.pem");
    assert!(expired.contains("expired") && expired.contains("hiroma pool invite"), "{expired}");
    // A server with a shared key, asked by someone with an identity.
    let plain = Member::start("256M", "127.0.0.1:0", &["--key-file", &file("secret")]);
    let asked = ["pool", "--pool", &plain.address, "--key-file", &user];
    assert!(refused(dir, &asked).contains("the server has a shared key"));
    assert_eq!(members(at, &user), 2);
}

#[test]
fn authorities_and_identities_that_make_no_sense_are_refused_in_words() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    assert!(refused(dir, &["pool", "invite", "one"]).contains("hiroma pool init"));
    done(dir, &["pool", "init", "a.pem"]);
    assert!(refused(dir, &["pool", "init", "a.pem"]).contains("exists"));
    assert!(refused(dir, &["pool", "init", "/proc/none/a.pem"]).contains("/proc/none/a.pem"));
    let invite = ["pool", "invite", "--authority", "a.pem"];
    let with = |more: &[&'static str]| refused(dir, &[&invite[..], more].concat());
    assert!(with(&["a/b"]).contains("letters"));
    assert!(with(&["a", "--valid", "never"]).contains("90days"));
    assert!(with(&["a", "--valid", "0s"]).contains("more than nothing"));
    done(dir, &["pool", "init", "brief.pem", "--valid", "1h"]);
    let year = ["pool", "invite", "a", "--authority", "brief.pem", "--out", "brief-a.pem"];
    done(dir, &year);
    let identity = fs::read_to_string(dir.join("brief-a.pem")).unwrap();
    let in_two_hours = std::time::SystemTime::now() + std::time::Duration::from_secs(7200);
    let until = identity.lines().next().unwrap().rsplit_once(" until ").unwrap().1;
    let until = humantime::parse_rfc3339(until.split('.').next().unwrap()).unwrap();
    assert!(until < in_two_hours, "no longer than the authority that made it");
    done(dir, &["pool", "init", "old.pem", "--valid", "1s"]);
    std::thread::sleep(std::time::Duration::from_millis(2100));
    let old = ["pool", "invite", "a", "--authority", "old.pem"];
    assert!(refused(dir, &old).contains("has expired"));
    done(dir, &[&invite[..], &["a", "--out", "one.pem"]].concat());
    assert!(with(&["a", "--out", "one.pem"]).contains("exists"));
    assert!(
        refused(dir, &["pool", "invite", "b", "--authority", "one.pem"])
            .contains("not the authority")
    );
    let whole = fs::read_to_string(dir.join("one.pem")).unwrap();
    for (from, to) in [
        ("pool-key: ", "pool key "),
        ("BEGIN PRIVATE KEY", "BEGIN PRIVATE"),
        ("BEGIN CERTIFICATE", "BEGIN CERT"),
        ("-----END CERTIFICATE-----", ""),
    ] {
        fs::write(dir.join("broken.pem"), whole.replacen(from, to, 1)).unwrap();
        let serve = ["serve", "--memory", "64M", "--listen", "127.0.0.1:0"];
        let told = refused(dir, &[&serve[..], &["--key-file", "broken.pem"]].concat());
        assert!(told.contains("broken.pem") && told.contains("no identity"), "{from}: {told}");
    }
}
