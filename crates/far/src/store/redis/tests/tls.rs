//! Servers that are reached over TLS.

use std::path::PathBuf;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose,
};
use tempfile::TempDir;

use super::*;

/// An authority, and what it has made, as files.
struct Papers {
    dir: TempDir,
    authority: CertifiedIssuer<'static, KeyPair>,
}

impl Papers {
    fn new() -> Papers {
        Papers::of("an authority")
    }

    fn of(name: &str) -> Papers {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let papers = Papers { dir: tempfile::tempdir().unwrap(), authority };
        fs::write(papers.file("ca"), papers.authority.pem()).unwrap();
        papers
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A certificate for `name`, and its key, in files of that name.
    fn make(&self, name: &str) -> [PathBuf; 2] {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.authority).unwrap();
        let files = [self.file(name), self.file(&format!("{name}.key"))];
        fs::write(&files[0], certificate.pem()).unwrap();
        fs::write(&files[1], key.serialize_pem()).unwrap();
        files
    }

    /// A server with a certificate for `name`, and the address of its port with TLS.
    fn server(&self, name: &str, options: &[&str]) -> (Server, String) {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let [certificate, key] = self.make(name);
        let (port_text, ca) = (port.to_string(), self.file("ca"));
        let mut all = vec!["--tls-port", &port_text, "--tls-cert-file", shown(&certificate)];
        all.extend(["--tls-key-file", shown(&key), "--tls-ca-cert-file", shown(&ca)]);
        all.extend(options);
        (Server::start(&all), format!("127.0.0.1:{port}"))
    }

    fn ca(&self) -> String {
        format!("ca={}", self.file("ca").display())
    }
}

fn shown(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn open(url: &str) -> Result<RedisStore, StoreError> {
    connect(url, Duration::from_secs(10), Arc::new(|_| {}))
}

fn is_right(store: &RedisStore) {
    let (mut reads, mut writes) = channels(store);
    for seed in 0..40 {
        let locs = write_now(&mut *writes, &content(seed, SECTOR), 1).unwrap();
        assert_eq!(read_now(&mut *reads, &locs, SECTOR).unwrap(), content(seed, SECTOR), "{seed}");
    }
}

#[test]
fn content_comes_back_over_tls() {
    let papers = Papers::new();
    let options = ["--tls-auth-clients", "no", "--requirepass", "s,cret"];
    let (server, at) = papers.server("127.0.0.1", &options);
    let store = open(&format!("rediss://:s%2Ccret@{at}/2?{}", papers.ca())).unwrap();
    is_right(&store);
    let in_use = redis::cmd("INFO").arg("keyspace").query::<String>(&mut server.ask()).unwrap();
    assert!(in_use.contains("db2:keys=") && !in_use.contains("db0:"), "{in_use}");
    drop(store);
    let said = refusal(open(&format!("rediss://:wrong@{at}?{}", papers.ca())));
    assert!(said.contains("the user or the password is wrong"), "{said}");
}

#[test]
fn client_shows_its_certificate() {
    let papers = Papers::new();
    let (_server, at) = papers.server("127.0.0.1", &["--tls-auth-clients", "yes"]);
    let [certificate, key] = papers.make("client");
    let (ca, files) =
        (papers.ca(), format!("cert={}&key={}", certificate.display(), key.display()));
    is_right(&open(&format!("rediss://{at}?{ca}&{files}")).unwrap());
    let said = refusal(open(&format!("rediss://{at}?{ca}")));
    assert!(said.contains("rediss://HOST?cert=FILE&key=FILE"), "{said}");
    let others = Papers::of("another one");
    let [certificate, key] = others.make("client");
    let files = format!("cert={}&key={}", certificate.display(), key.display());
    let said = refusal(open(&format!("rediss://{at}?{ca}&{files}")));
    assert!(said.contains("does not accept the client's certificate"), "{said}");
    let said = refusal(open(&format!("rediss://{at}?{ca}&cert={}", certificate.display())));
    assert!(said.contains("belong together"), "{said}");
}

#[test]
fn server_that_is_not_the_right_one_is_refused_in_words() {
    let (papers, others, same_name) = (Papers::new(), Papers::of("another one"), Papers::new());
    let (server, at) = papers.server("elsewhere.example", &["--tls-auth-clients", "no"]);
    for (url, reason) in [
        (format!("rediss://{at}?{}", others.ca()), "is not known here"),
        (format!("rediss://{at}?{}", same_name.ca()), "is not known here"),
        (format!("rediss://{at}?{}", papers.ca()), "for another name"),
        (format!("rediss://127.0.0.1:{}?{}", server.port, papers.ca()), "with TLS at this port"),
        (format!("rediss://{at}?ca=/nowhere"), "No such file"),
    ] {
        let said = refusal(open(&url));
        assert!(said.contains(reason), "{url}: {said}");
    }
}

#[test]
fn connection_that_breaks_is_made_again() {
    let papers = Papers::new();
    let (server, at) = papers.server("127.0.0.1", &["--tls-auth-clients", "no"]);
    let store = open(&format!("rediss://{at}?{}", papers.ca())).unwrap();
    is_right(&store);
    let killed: i64 = redis::cmd("CLIENT")
        .arg(&["KILL", "TYPE", "normal", "SKIPME", "yes"])
        .query(&mut server.ask())
        .unwrap();
    assert!(killed > 0, "it has connections");
    is_right(&store);
}
