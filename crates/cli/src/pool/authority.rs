//! The small authority of a pool: it makes identities for machines.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use hiroma_command::refuse;
use hiroma_far_wire::{Key, MEMBER_NAME, POOL_KEY_LINE};
use hiroma_sys::sockets;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use time::OffsetDateTime;

/// Longest name of a machine.
const NAME_MAX: usize = 64;
/// Clocks of machines may differ by this much.
const CLOCKS_DIFFER: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(86_400);

/// Make the authority of a new pool, in one file. Whoever has that file can make identities
#[derive(clap::Args)]
pub struct Init {
    /// File to make
    #[arg(default_value = "hiroma-authority.pem")]
    file: PathBuf,
    /// How long the authority, and so each identity that it makes, is valid
    #[arg(long, value_name = "TIME", default_value = "10years", value_parser = validity)]
    valid: Duration,
}

/// Make the identity of one machine, for --key-file of `hiroma serve`, `hiroma run` and `hiroma
/// pool` there
#[derive(clap::Args)]
pub struct Invite {
    /// Name of the machine, for people
    #[arg(value_parser = name)]
    name: String,
    /// File of the pool's authority
    #[arg(long, value_name = "FILE", default_value = "hiroma-authority.pem")]
    authority: PathBuf,
    /// File to make; default: NAME.pem
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// How long the identity is valid
    #[arg(long, value_name = "TIME", default_value = "1year", value_parser = validity)]
    valid: Duration,
}

fn validity(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text)
        .map_err(|error| format!("{error}; a time is, for example, 90days or 1year"))?;
    if time.is_zero() || time > 100 * 365 * DAY {
        return Err("more than nothing and at most a hundred years".to_owned());
    }
    Ok(time)
}

fn name(text: &str) -> Result<String, String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    if text.is_empty() || text.len() > NAME_MAX || text.starts_with('.') || !text.chars().all(fits)
    {
        return Err(format!("1 to {NAME_MAX} letters, digits, - . and _"));
    }
    Ok(text.to_owned())
}

/// Begins the line of an authority's file that says until when it is valid, in seconds since 1970: TLS
/// does not look at that of an authority.
const UNTIL_LINE: &str = "# Valid until: ";

/// Certificates are valid from a little before now on; no longer than `most`.
fn set_validity(params: &mut CertificateParams, valid: Duration, most: Option<OffsetDateTime>) {
    let now = OffsetDateTime::now_utc();
    params.not_before = now - CLOCKS_DIFFER;
    params.not_after = most.map_or(now + valid, |most| most.min(now + valid));
}

/// All authorities have this name: their keys tell them apart.
fn authority_params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "authority of a pool of hiroma");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params
}

/// Writes a new file that only its owner can read.
fn write_new(path: &Path, content: &str) -> Result<()> {
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let mut file = match file {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            return Err(refuse(format!("{} exists: choose another file", path.display())));
        }
        Err(error) => {
            return Err(refuse(format!("cannot make {}: {error}", path.display())));
        }
    };
    let written = file.write_all(content.as_bytes()).and_then(|()| file.sync_all());
    written.with_context(|| format!("cannot write {}", path.display()))
}

/// `hiroma pool init`.
pub fn init(args: &Init) -> Result<ExitCode> {
    let mut params = authority_params();
    set_validity(&mut params, args.valid, None);
    let until = params.not_after.unix_timestamp();
    let key = KeyPair::generate().context("cannot make a key")?;
    let certificate = params.self_signed(&key).context("cannot make the certificate")?;
    let secret: [u8; 32] = sockets::random();
    let secret: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
    let text = format!(
        "# The authority of a pool of hiroma. Secret: whoever has it can make identities.\n{UNTIL_LINE}{until}\n{POOL_KEY_LINE}{secret}\n{}{}",
        certificate.pem(),
        key.serialize_pem()
    );
    write_new(&args.file, &text)?;
    super::print(&format!(
        "{} is the authority of a new pool; keep it, and a copy, where only you can read it.\nNow make an identity for each machine: hiroma pool invite NAME --authority {}",
        args.file.display(),
        args.file.display()
    ));
    Ok(ExitCode::SUCCESS)
}

/// The first part of a PEM file with this label, with its lines.
fn part<'a>(text: &'a str, label: &str) -> Option<&'a str> {
    let (begin, end) = (format!("-----BEGIN {label}-----"), format!("-----END {label}-----"));
    let from = text.find(&begin)?;
    let to = from + text[from..].find(&end)? + end.len();
    Some(&text[from..to])
}

/// `hiroma pool invite`.
pub fn invite(args: &Invite) -> Result<ExitCode> {
    let shown = args.authority.display();
    let text = std::fs::read_to_string(&args.authority).map_err(|error| {
        refuse(format!("cannot read the authority {shown}: {error}; `hiroma pool init` makes one"))
    })?;
    let broken =
        || refuse(format!("{shown} is not the authority of a pool: `hiroma pool init` makes one"));
    // An identity has two.
    if text.matches("-----BEGIN CERTIFICATE-----").count() != 1 {
        return Err(broken());
    }
    let authority = part(&text, "CERTIFICATE").ok_or_else(broken)?;
    let authority_key = part(&text, "PRIVATE KEY").ok_or_else(broken)?;
    let authority_key = KeyPair::from_pem(authority_key).map_err(|_| broken())?;
    let secret = text.lines().find_map(|line| line.strip_prefix(POOL_KEY_LINE));
    let secret = secret.ok_or_else(broken)?.trim();

    let mut params = CertificateParams::new([MEMBER_NAME.to_owned()])?;
    params.distinguished_name.push(DnType::CommonName, args.name.as_str());
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let most = text.lines().find_map(|line| line.strip_prefix(UNTIL_LINE));
    let most = most.ok_or_else(broken)?.trim().parse().map_err(|_| broken())?;
    let most = OffsetDateTime::from_unix_timestamp(most).map_err(|_| broken())?;
    if most < OffsetDateTime::now_utc() {
        return Err(refuse(format!(
            "{shown} has expired: make a new authority by `hiroma pool init`, and new identities"
        )));
    }
    set_validity(&mut params, args.valid, Some(most));
    let until = humantime::format_rfc3339_seconds(params.not_after.into()).to_string();
    let key = KeyPair::generate().context("cannot make a key")?;
    let certificate = params
        .signed_by(&key, &Issuer::from_params(&authority_params(), &authority_key))
        .context("cannot make the certificate")?;
    let text = format!(
        "# The identity of {} in a pool of hiroma, until {until}. Secret.\n{POOL_KEY_LINE}{secret}\n{}{authority}\n{}",
        args.name,
        certificate.pem(),
        key.serialize_pem()
    );
    Key::from_file_content(text.as_bytes()).map_err(|error| refuse(format!("{shown}: {error}")))?;
    let out = args.out.clone().unwrap_or_else(|| PathBuf::from(format!("{}.pem", args.name)));
    write_new(&out, &text)?;
    super::print(&format!(
        "{} is the identity of {} until {until}: move it there, and name it by --key-file",
        out.display(),
        args.name
    ));
    Ok(ExitCode::SUCCESS)
}
