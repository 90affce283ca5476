//! The daemon and its clients, over a real socket. A script replaces the tracker, so that every
//! notice has one right answer; the last test uses the real engine.

mod support;

use std::fs;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use hiroma_hot::service::client::{Client, ClientError, status};
use hiroma_hot::service::daemon::ServeError;
use hiroma_hot::service::protocol::{HandlingResult, Mode, Page, Registration};
use hiroma_hot::service::watch::Engines;
use hiroma_policy::huge::shares::Use;
use rustix::io::Errno;
use support::{EXTENT, Script, Served, pages, scripted, until};
use tempfile::TempDir;

fn wish() -> Registration {
    Registration {
        pid: 0,
        mode: Mode::Notified,
        signal: 0,
        eventfd: true,
        count_min: 0,
        pages_min: 1,
        budget_bytes: 0,
    }
}

fn refused(error: &ClientError) -> Errno {
    match error {
        ClientError::Refused { errno, .. } => Errno::from_raw_os_error(*errno),
        other => panic!("{other}"),
    }
}

/// A process that waits to be killed.
struct Sleeper(Child);

impl Sleeper {
    fn start() -> Sleeper {
        Sleeper(Command::new("sleep").arg("600").stdin(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn announced(client: &Client) -> u64 {
    let mut number = [0; 8];
    let mut event = fs::File::from(client.event().unwrap().try_clone_to_owned().unwrap());
    let mut got = false;
    until("the eventfd", || {
        got = event.read(&mut number).is_ok();
        got
    });
    u64::from_ne_bytes(number)
}

#[test]
fn process_is_notified_and_fetches_with_any_buffer() {
    let dir = TempDir::new().unwrap();
    let script = Arc::new(Script::default());
    let open = Arc::clone(&script);
    let served = Served::start(&dir.path().join("s"), move || scripted(open)).unwrap();
    let client = Client::register(Some(&served.path), &wish()).unwrap();
    assert_eq!((client.backend(), client.share_ranges()), ("script", 100));
    let all = [pages(3, 40), pages(9, 30), pages(20, 512)].concat();
    script.pages.lock().unwrap().insert(std::process::id(), all.clone());
    assert_eq!(announced(&client), all.len() as u64);
    // Much smaller than the number of pages: nothing is lost, and no range that fits is cut.
    let mut buffer = [Page::default(); 64];
    let mut seen = Vec::new();
    let mut sizes = Vec::new();
    loop {
        let fetched = client.fetch(&mut buffer).unwrap();
        seen.extend_from_slice(&buffer[..fetched.pages]);
        sizes.push(fetched.pages);
        assert_eq!(fetched.left as usize, all.len() - seen.len());
        assert_eq!(fetched.may_collapse, 100);
        if fetched.left == 0 {
            break;
        }
    }
    assert_eq!(seen, all);
    assert_eq!(sizes[..2], [40, 30]);
    assert_eq!(client.fetch(&mut []).unwrap().pages, 0);
    client
        .handled(&HandlingResult { collapsed: 1, compacted: 1, left: 1, failed: 0, call_ns_max: 5 })
        .unwrap();
    assert_eq!(client.fetch(&mut buffer).unwrap().may_collapse, 99);
    let text = status(Some(&served.path)).unwrap();
    assert!(
        text.contains(&format!("process {}: notified, tracked by script", std::process::id())),
        "{text}"
    );
    assert!(text.contains("it made 1 ranges huge, moved the objects of 1, left 1"), "{text}");
}

#[test]
fn pages_arising_during_handling_are_announced_later() {
    let dir = TempDir::new().unwrap();
    let script = Arc::new(Script::default());
    let open = Arc::clone(&script);
    let served = Served::start(&dir.path().join("s"), move || scripted(open)).unwrap();
    let client = Client::register(Some(&served.path), &wish()).unwrap();
    let set = |pages: Vec<Page>| script.pages.lock().unwrap().insert(std::process::id(), pages);
    set(pages(1, 5));
    announced(&client);
    let mut buffer = vec![Page::default(); 1000];
    assert_eq!(client.fetch(&mut buffer).unwrap().pages, 5);
    set([pages(1, 5), pages(2, 7)].concat());
    until("the new pages", || status(Some(&served.path)).unwrap().contains("7 pages wait"));
    let mut number = [0; 8];
    assert!(
        rustix::io::read(client.event().unwrap(), &mut number).is_err(),
        "told while it was handling"
    );
    client.handled(&HandlingResult::default()).unwrap();
    assert_eq!(announced(&client), 7);
    assert_eq!(client.fetch(&mut buffer).unwrap().pages, 7);
}

#[test]
fn registration_checks_target_process_and_user() {
    let dir = TempDir::new().unwrap();
    let script = Arc::new(Script::default());
    let open = Arc::clone(&script);
    let served = Served::start(&dir.path().join("s"), move || scripted(open)).unwrap();
    let register = |wish: &Registration| Client::register(Some(&served.path), wish);
    let other = Sleeper::start();
    let theirs = Registration { pid: other.0.id(), ..wish() };
    // Another process of the same user, without a signal: it would not know what the signal means.
    let signal = hiroma_sys::notify::realtime_signals().0 + 3;
    assert_eq!(refused(&register(&Registration { signal, ..theirs }).unwrap_err()), Errno::PERM);
    let first = register(&theirs).unwrap();
    assert_eq!(refused(&register(&theirs).unwrap_err()), Errno::BUSY);
    drop(first);
    until("leaving", || script.watches.load(Ordering::SeqCst) == 0);
    drop(register(&theirs).unwrap());
    assert_eq!(
        refused(&register(&Registration { pid: i32::MAX as u32, ..wish() }).unwrap_err()),
        Errno::SRCH
    );
    if rustix::process::geteuid().is_root() {
        not_of_another_user(&served.path, dir.path());
    } else {
        let error = register(&Registration { pid: 1, ..wish() }).unwrap_err();
        assert_eq!(refused(&error), Errno::PERM);
        assert!(error.to_string().contains("belongs to another user"), "{error}");
    }
}

/// As user `nobody`, process 1 cannot be registered.
fn not_of_another_user(socket: &Path, dir: &Path) {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).unwrap();
    let program = dir.join("test");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let mut command = Command::new(&program);
    command
        .args(["--ignored", "--exact", "as_nobody", "--nocapture"])
        .env("SERVICE_TEST_SOCKET", socket)
        .uid(65534)
        .gid(65534);
    match command.output() {
        Ok(output) => {
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout))
        }
        Err(error) => hiroma_testkit::skip!(Machine, "cannot become nobody: {error}"),
    }
}

#[test]
#[ignore = "started by registration_checks_target_process_and_user"]
fn as_nobody() {
    let Some(path) = std::env::var_os("SERVICE_TEST_SOCKET") else { return };
    let error =
        Client::register(Some(Path::new(&path)), &Registration { pid: 1, ..wish() }).unwrap_err();
    assert_eq!(refused(&error), Errno::PERM);
    Client::register(Some(Path::new(&path)), &wish()).unwrap();
}

#[test]
fn second_daemon_refused_and_stale_socket_replaced() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("s");
    let nothing = || scripted(Arc::new(Script::default()));
    let first = Served::start(&path, nothing).unwrap();
    assert!(matches!(Served::start(&path, nothing), Err(ServeError::Taken(_))));
    // Removing the lock file does not let a second daemon replace the first.
    fs::remove_file(dir.path().join("s.lock")).unwrap();
    assert!(matches!(Served::start(&path, nothing), Err(ServeError::Taken(_))));
    status(Some(&path)).unwrap();
    drop(first);
    assert!(!path.exists());
    // The socket that a killed daemon leaves behind.
    drop(UnixDatagram::bind(&path).unwrap());
    assert!(path.exists());
    drop(Served::start(&path, nothing).unwrap());
    fs::write(&path, "precious").unwrap();
    assert!(matches!(Served::start(&path, nothing), Err(ServeError::NoSocket(_))));
    assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    let nowhere = dir.path().join("no/such/dir/s");
    assert!(matches!(Served::start(&nowhere, nothing), Err(ServeError::Listen { .. })));
    assert!(matches!(Client::register(Some(&nowhere), &wish()), Err(ClientError::NoDaemon { .. })));
    let long = dir.path().join("x".repeat(200));
    assert!(matches!(Client::register(Some(&long), &wish()), Err(ClientError::NoDaemon { .. })));
}

#[test]
fn ended_processes_and_failed_watches_leave_nothing() {
    let dir = TempDir::new().unwrap();
    let script = Arc::new(Script::default());
    let open = Arc::clone(&script);
    let served = Served::start(&dir.path().join("s"), move || scripted(open)).unwrap();
    let other = Sleeper::start();
    let client =
        Client::register(Some(&served.path), &Registration { pid: other.0.id(), ..wish() })
            .unwrap();
    drop(other);
    until("the end of the process", || script.watches.load(Ordering::SeqCst) == 0);
    assert!(served.said("has ended"));
    assert!(client.fetch(&mut [Page::default(); 8]).is_err());
    let client = Client::register(Some(&served.path), &wish()).unwrap();
    *script.fails.lock().unwrap() = Some("collapsing takes too long".to_owned());
    until("the failure", || script.watches.load(Ordering::SeqCst) == 0);
    assert!(served.said("is let go: collapsing takes too long"));
    assert!(client.handled(&HandlingResult::default()).is_err());
}

#[test]
fn client_detects_daemon_exit_and_registers_again() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("s");
    let script = Arc::new(Script::default());
    let again = || {
        let script = Arc::clone(&script);
        move || scripted(script)
    };
    let served = Served::start(&path, again()).unwrap();
    let client = Client::register(Some(&path), &wish()).unwrap();
    drop(served);
    assert!(client.fetch(&mut [Page::default(); 8]).is_err());
    let served = Served::start(&path, again()).unwrap();
    let client = Client::register(Some(&path), &wish()).unwrap();
    script.pages.lock().unwrap().insert(std::process::id(), pages(1, 3));
    assert_eq!(announced(&client), 3);
    drop(served);
}

#[test]
fn malformed_messages_do_not_affect_other_clients() {
    use rustix::net::{
        AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with,
    };
    let dir = TempDir::new().unwrap();
    let script = Arc::new(Script::default());
    let open = Arc::clone(&script);
    let served = Served::start(&dir.path().join("s"), move || scripted(open)).unwrap();
    let client = Client::register(Some(&served.path), &wish()).unwrap();
    let raw = || {
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .unwrap();
        connect(&socket, &SocketAddrUnix::new(&served.path).unwrap()).unwrap();
        socket
    };
    let good = wish().to_header();
    let mut later = good;
    later.version = 77;
    let mut unknown = good;
    unknown.kind = 999;
    let fetch = hiroma_hot::service::protocol::Header::new(
        hiroma_hot::service::protocol::Kind::Fetch,
        [u64::MAX; 6],
    );
    for message in [later, unknown, fetch] {
        let socket = raw();
        hiroma_hot::service::protocol::send(socket.as_fd(), &message, &[], None).unwrap();
        let (answer, _, _) =
            hiroma_hot::service::protocol::receive(socket.as_fd(), &mut [0; 1000]).unwrap();
        assert_eq!(answer.kind, hiroma_hot::service::protocol::Kind::Refused as u16);
    }
    let socket = raw();
    rustix::io::write(&socket, b"GET / HTTP/1.1\r\n\r\n").unwrap();
    // A peer that sends requests and never receives the answers is dropped, and blocks no other.
    let greedy = raw();
    rustix::io::ioctl_fionbio(&greedy, true).unwrap();
    let ask = hiroma_hot::service::protocol::Header::new(
        hiroma_hot::service::protocol::Kind::Status,
        [0; 6],
    );
    until("the greedy one to be let go", || {
        matches!(
            hiroma_hot::service::protocol::send(greedy.as_fd(), &ask, &[], None),
            Err(Errno::PIPE | Errno::CONNRESET)
        )
    });
    let twice = Client::register(Some(&served.path), &wish()).unwrap_err();
    assert_eq!(refused(&twice), Errno::BUSY);
    script.pages.lock().unwrap().insert(std::process::id(), pages(1, 3));
    assert_eq!(announced(&client), 3);
}

#[test]
fn budget_is_shared_by_use_and_idle_yield() {
    let dir = TempDir::new().unwrap();
    let script = Arc::new(Script::default());
    let open = Arc::clone(&script);
    let served = Served::start(&dir.path().join("s"), move || scripted(open)).unwrap();
    let (one, two) = (Sleeper::start(), Sleeper::start());
    let set = |sleeper: &Sleeper, active, wanted, idle| {
        script.uses.lock().unwrap().insert(sleeper.0.id(), Use { active, wanted, idle });
    };
    let budget = |sleeper: &Sleeper| script.budgets.lock().unwrap().get(&sleeper.0.id()).copied();
    let managed =
        |sleeper: &Sleeper| Registration { pid: sleeper.0.id(), mode: Mode::Managed, ..wish() };
    let first = Client::register(Some(&served.path), &managed(&one)).unwrap();
    until("all for the first", || budget(&one) == Some(100));
    set(&one, 90, 0, 0);
    set(&two, 0, 80, 0);
    let second = Client::register(
        Some(&served.path),
        &Registration { budget_bytes: 30 * EXTENT, ..managed(&two) },
    )
    .unwrap();
    // A fair share is half each, but the second requested only 30.
    until("a fair share", || budget(&one) == Some(50) && budget(&two) == Some(30));
    set(&one, 0, 0, 50);
    until("the idle to give way", || budget(&one).is_some_and(|ranges| ranges <= 34));
    drop(second);
    until("all for the first again", || budget(&one) == Some(100));
    drop(first);
}

#[test]
#[ignore = "a process to be watched by real_engine_collapses_hot_ranges"]
fn touches_memory() {
    let mut memory = vec![1u8; 24 << 20];
    println!("ready");
    // The first two thirds, until the process is killed.
    loop {
        for page in (0..16 << 20).step_by(4096) {
            memory[page] = memory[page].wrapping_add(1);
        }
        std::hint::black_box(&mut memory);
    }
}

fn huge_bytes(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let kib = text.lines().find_map(|line| {
        line.strip_prefix("AnonHugePages:")?.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()
    });
    kib.unwrap_or(0) * 1024
}

#[test]
fn real_engine_collapses_hot_ranges() {
    let dir = TempDir::new().unwrap();
    let engines = Engines { backend: None, ledger: None, trial: None };
    let served = Served::start(&dir.path().join("s"), move || engines.into_open()).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--ignored", "--exact", "touches_memory"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let toucher = Sleeper(command.spawn().unwrap());
    let pid = toucher.0.id();
    let before = huge_bytes(pid);
    let wish = Registration { pid, mode: Mode::Managed, ..wish() };
    let client = match Client::register(Some(&served.path), &wish) {
        Ok(client) => client,
        Err(ClientError::Refused { reason, .. }) => {
            hiroma_testkit::skip!(Machine, "{reason}");
            return;
        }
        Err(error) => panic!("{error}"),
    };
    println!("tracked by {}", client.backend());
    until("huge pages, or word that the machine gives none", || {
        huge_bytes(pid) >= before + (8 << 20) || served.said("is let go")
    });
    let text = status(Some(&served.path)).unwrap();
    println!("{text}");
}
