//! Identities of members, and what a member says of itself, as bytes of bounded length.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use bytes::{Buf, BufMut};

/// Maximum length of a member's name.
pub const NAME_MAX: usize = 63;
/// Maximum number of labels of a member.
pub const LABELS_MAX: usize = 8;
/// Maximum length of all labels of a member, written as `key=value` with a separator.
pub const LABEL_BYTES_MAX: usize = 192;
/// Maximum length of an encoded report.
pub const REPORT_BYTES_MAX: usize =
    19 + 8 + 8 + 4 + 2 + 12 + 2 + 1 + NAME_MAX + 1 + LABEL_BYTES_MAX;

/// Where a member is, and which of the processes that were there it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Id {
    /// Address for datagrams and, with the same port, for connections.
    pub addr: SocketAddr,
    /// Grows with every restart, and when a member that was believed dead returns.
    pub incarnation: u64,
}

impl foca::Identity for Id {
    type Addr = SocketAddr;

    fn renew(&self) -> Option<Id> {
        Some(Id { incarnation: self.incarnation.saturating_add(1), ..*self })
    }

    fn addr(&self) -> SocketAddr {
        self.addr
    }

    fn win_addr_conflict(&self, adversary: &Id) -> bool {
        self.incarnation > adversary.incarnation
    }
}

/// Bytes of a datagram that make no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the content makes no sense ({0})")]
pub struct Malformed(pub &'static str);

/// Takes `count` bytes from the front, if there are so many.
fn need(buf: &impl Buf, count: usize, what: &'static str) -> Result<(), Malformed> {
    if buf.remaining() < count { Err(Malformed(what)) } else { Ok(()) }
}

pub(crate) fn put_id(id: &Id, buf: &mut impl BufMut) {
    match id.addr.ip() {
        IpAddr::V4(ip) => {
            buf.put_u8(4);
            buf.put_slice(&ip.octets());
        }
        IpAddr::V6(ip) => {
            buf.put_u8(6);
            buf.put_slice(&ip.octets());
        }
    }
    buf.put_u16(id.addr.port());
    buf.put_u64(id.incarnation);
}

pub(crate) fn get_id(buf: &mut impl Buf) -> Result<Id, Malformed> {
    const WHAT: &str = "an address";
    need(buf, 1, WHAT)?;
    let ip: IpAddr = match buf.get_u8() {
        4 => {
            need(buf, 4, WHAT)?;
            Ipv4Addr::from(buf.get_u32()).into()
        }
        6 => {
            need(buf, 16, WHAT)?;
            Ipv6Addr::from(buf.get_u128()).into()
        }
        _ => return Err(Malformed(WHAT)),
    };
    need(buf, 10, WHAT)?;
    let addr = SocketAddr::new(ip, buf.get_u16());
    Ok(Id { addr, incarnation: buf.get_u64() })
}

/// What changes about a member while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Condition {
    /// Chunks of 2 MiB that it lends.
    pub lent_chunks: u32,
    /// Of these, chunks that nobody has.
    pub free_chunks: u32,
    /// Chunks of clients that lie in a file of the member, because its machine needs the memory.
    pub spilled_chunks: u32,
    /// Share of time in which something on its machine waited for memory, in percent.
    pub pressure: u8,
    /// It takes no new blocks at present, because its machine needs the memory.
    pub refusing: bool,
    /// It is being emptied.
    pub draining: bool,
}

/// What a member says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Its identity when it said so.
    pub id: Id,
    /// Random, from the start of its process. It tells a restart from a return.
    pub boot: u64,
    /// Grows with every report.
    pub sequence: u32,
    /// Its name.
    pub name: String,
    /// Highest version of the block protocol that it speaks.
    pub version: u16,
    /// How it is.
    pub condition: Condition,
    /// Its labels, in the order of their keys.
    pub labels: Vec<(String, String)>,
}

/// Why a name or a label is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LabelError {
    /// A name.
    #[error(
        "`{0}` is not a name for a member: 1 to {NAME_MAX} letters, digits and . _ : [ ] - are taken"
    )]
    Name(String),
    /// A label.
    #[error("`{0}` is not a label: write KEY=VALUE, with letters, digits and . _ -")]
    Label(String),
    /// Too many.
    #[error(
        "too many labels: at most {LABELS_MAX}, with {LABEL_BYTES_MAX} bytes together, fit a datagram"
    )]
    TooMany,
    /// A key twice.
    #[error("the label {0} is given twice: give it once")]
    Twice(String),
}

fn is_word(text: &str, more: &str) -> bool {
    (1..=NAME_MAX).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || more.as_bytes().contains(&b))
}

/// Checks a member's name.
pub fn check_name(name: &str) -> Result<(), LabelError> {
    if is_word(name, "._:[]-") { Ok(()) } else { Err(LabelError::Name(name.to_owned())) }
}

/// Reads `KEY=VALUE` labels; returns them in the order of their keys.
pub fn parse_labels(texts: &[String]) -> Result<Vec<(String, String)>, LabelError> {
    let mut labels = Vec::new();
    for text in texts {
        let wrong = || LabelError::Label(text.clone());
        let (key, value) = text.split_once('=').ok_or_else(wrong)?;
        if !is_word(key, "._-") || !is_word(value, "._-") {
            return Err(wrong());
        }
        labels.push((key.to_owned(), value.to_owned()));
    }
    labels.sort();
    if let Some(pair) = labels.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        return Err(LabelError::Twice(pair[0].0.clone()));
    }
    if labels.len() > LABELS_MAX || label_bytes(&labels) > LABEL_BYTES_MAX {
        return Err(LabelError::TooMany);
    }
    Ok(labels)
}

fn label_bytes(labels: &[(String, String)]) -> usize {
    labels.iter().map(|(key, value)| key.len() + value.len() + 2).sum()
}

fn put_text(text: &str, buf: &mut impl BufMut) {
    buf.put_u8(text.len() as u8);
    buf.put_slice(text.as_bytes());
}

fn get_text(buf: &mut impl Buf, what: &'static str) -> Result<String, Malformed> {
    need(buf, 1, what)?;
    let len = buf.get_u8() as usize;
    need(buf, len, what)?;
    let bytes = buf.copy_to_bytes(len);
    let text = std::str::from_utf8(&bytes).map_err(|_| Malformed(what))?;
    Ok(text.to_owned())
}

impl Report {
    /// Appends the report to `buf`.
    pub(crate) fn encode(&self, buf: &mut impl BufMut) {
        put_id(&self.id, buf);
        buf.put_u64(self.boot);
        buf.put_u32(self.sequence);
        buf.put_u16(self.version);
        let Condition { lent_chunks, free_chunks, spilled_chunks, pressure, refusing, draining } =
            self.condition;
        for chunks in [lent_chunks, free_chunks, spilled_chunks] {
            buf.put_u32(chunks);
        }
        buf.put_u8(pressure);
        buf.put_u8(u8::from(refusing) | u8::from(draining) << 1);
        put_text(&self.name, buf);
        buf.put_u8(self.labels.len() as u8);
        for (key, value) in &self.labels {
            put_text(key, buf);
            put_text(value, buf);
        }
    }

    /// Reads a report. Everything is checked as if a user had written it.
    pub(crate) fn decode(buf: &mut impl Buf) -> Result<Report, Malformed> {
        const WHAT: &str = "a report";
        let id = get_id(buf)?;
        need(buf, 8 + 4 + 2 + 12 + 2, WHAT)?;
        let (boot, sequence, version) = (buf.get_u64(), buf.get_u32(), buf.get_u16());
        let [lent_chunks, free_chunks, spilled_chunks] = [(); 3].map(|()| buf.get_u32());
        let (pressure, flags) = (buf.get_u8(), buf.get_u8());
        let name = get_text(buf, "a name")?;
        check_name(&name).map_err(|_| Malformed("a name"))?;
        need(buf, 1, WHAT)?;
        let count = buf.get_u8() as usize;
        if count > LABELS_MAX || pressure > 100 || free_chunks > lent_chunks {
            return Err(Malformed(WHAT));
        }
        let mut labels = Vec::with_capacity(count);
        for _ in 0..count {
            let (key, value) = (get_text(buf, "a label")?, get_text(buf, "a label")?);
            if !is_word(&key, "._-") || !is_word(&value, "._-") {
                return Err(Malformed("a label"));
            }
            labels.push((key, value));
        }
        if label_bytes(&labels) > LABEL_BYTES_MAX {
            return Err(Malformed("the labels"));
        }
        let condition = Condition {
            lent_chunks,
            free_chunks,
            spilled_chunks,
            pressure,
            refusing: flags & 1 != 0,
            draining: flags & 2 != 0,
        };
        Ok(Report { id, boot, sequence, name, version, condition, labels })
    }

    /// Whether it is as bounded as one that came in a datagram.
    pub(crate) fn is_valid(&self) -> bool {
        let texts = self.labels.iter().flat_map(|(key, value)| [key, value]).chain([&self.name]);
        let mut bytes = Vec::new();
        self.sequence > 0 && texts.into_iter().all(|text| text.len() <= NAME_MAX) && {
            self.encode(&mut bytes);
            Report::decode(&mut &bytes[..]).as_ref() == Ok(self)
        }
    }

    /// Whether this was said after `other`, by the same member or a later one at its address.
    pub(crate) fn is_newer_than(&self, other: &Report) -> bool {
        (self.id.incarnation, self.sequence) > (other.id.incarnation, other.sequence)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(crate) fn report(addr: &str, incarnation: u64, name: &str) -> Report {
        Report {
            id: Id { addr: addr.parse().unwrap(), incarnation },
            boot: incarnation,
            sequence: 1,
            name: name.to_owned(),
            version: 1,
            condition: Condition { lent_chunks: 10, free_chunks: 3, ..Condition::default() },
            labels: vec![("rack".to_owned(), "r1".to_owned())],
        }
    }

    proptest! {
        #[test]
        fn reports_round_trip_within_their_bound(
            v6: bool, incarnation: u64, numbers in any::<[u32; 3]>(), flags in any::<[bool; 2]>(),
            name in "[a-z0-9.:-]{1,63}", labels in proptest::collection::btree_map("[a-z]{1,8}", "[a-z]{1,8}", 0..8),
        ) {
            let mut report = report(if v6 { "[2001:db8::1]:7070" } else { "10.0.0.1:7070" }, incarnation, &name);
            report.labels = labels.into_iter().collect();
            report.condition = Condition {
                lent_chunks: numbers[0].max(numbers[1]), free_chunks: numbers[0].min(numbers[1]),
                spilled_chunks: numbers[2], pressure: 7, refusing: flags[0], draining: flags[1],
            };
            let mut bytes = Vec::new();
            report.encode(&mut bytes);
            prop_assert!(bytes.len() <= REPORT_BYTES_MAX);
            prop_assert_eq!(Report::decode(&mut &bytes[..]), Ok(report));
            for len in 0..bytes.len() {
                prop_assert!(Report::decode(&mut &bytes[..len]).is_err());
            }
        }

        #[test]
        fn garbage_is_no_report_and_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = Report::decode(&mut &bytes[..]);
        }
    }

    #[test]
    fn labels_and_names_are_checked() {
        let labels = |texts: &[&str]| {
            parse_labels(&texts.iter().map(|t| (*t).to_owned()).collect::<Vec<_>>())
        };
        assert_eq!(
            labels(&["rack=r1", "host=a"]).unwrap(),
            [("host".to_owned(), "a".to_owned()), ("rack".to_owned(), "r1".to_owned())]
        );
        assert!(labels(&["rack"]).is_err() && labels(&["rack=a b"]).is_err());
        assert_eq!(labels(&["a=1", "a=2"]), Err(LabelError::Twice("a".to_owned())));
        let many: Vec<String> = (0..9).map(|n| format!("k{n}=v")).collect();
        assert_eq!(parse_labels(&many), Err(LabelError::TooMany));
        assert!(check_name("10.0.0.1:7070").is_ok() && check_name("").is_err());
        assert!(check_name("a b").is_err() && check_name(&"x".repeat(64)).is_err());
    }
}
