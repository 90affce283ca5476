//! Traces of page-outs and page-ins: a fixed header and records of 24 bytes, little-endian.
//! `docs/internals/trace-format.md` is the specification.
//!
//! A file is accepted or refused as a whole: its length, its count, its checksums, the order of its
//! times and the fields of each record have to match. A live client records with [`TraceWriter`]:
//! its state does not grow with the number of records, and the file gets its final name only when
//! it is complete.

mod text;

use std::fs::File;
use std::hash::Hasher;
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use twox_hash::XxHash3_64;

use hiroma_report::atomic::AtomicFile;
pub use hiroma_sim::{TraceKind, TraceRecord};
pub use text::is_csv;

/// The first eight bytes of every trace.
pub const MAGIC: [u8; 8] = *b"HIROTRC\n";
/// The version of the format that this code writes, and the only one that it reads.
pub const VERSION: u16 = 1;
/// Bytes of the header.
pub const HEADER_BYTES: usize = 64;
/// Bytes of a record.
pub const RECORD_BYTES: usize = 24;
/// Maximum number of nodes of a trace.
pub const NODES_MAX: u32 = 1 << 24;

/// A whole trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// Number of nodes; every record's node is below it.
    pub nodes: u32,
    /// Bytes of one page.
    pub page_bytes: u64,
    /// Records that the recording has lost: the trace is incomplete by that many.
    pub lost: u64,
    pub records: Vec<TraceRecord>,
}

/// Why a trace was not read or written. No part of it has been used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    #[error("{path}: {source}", path = .path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("{path}: not a trace: it begins with {found}, and a trace with HIROTRC; the name of a trace in CSV ends in .csv", path = .path.display())]
    Foreign { path: PathBuf, found: String },
    #[error("{path}: a trace of version {version}; this program reads version {VERSION}: record it again", path = .path.display())]
    Version { path: PathBuf, version: u16 },
    #[error("{path}: {what}: the trace is damaged or was cut short; copy or record it again", path = .path.display())]
    Damaged { path: PathBuf, what: String },
    #[error("{path}: {what} in {first}: these traces do not go together", path = .path.display(), first = .first.display())]
    Apart { path: PathBuf, first: PathBuf, what: String },
    #[error("{path}:{place}: {what}", path = .path.display())]
    Text { path: PathBuf, place: String, what: String },
    #[error("{path}: the record cannot be written: {what}", path = .path.display())]
    Record { path: PathBuf, what: String },
}

struct Header {
    page_bytes: u64,
    nodes: u32,
    count: u64,
    content_hash: u64,
    lost: u64,
}

impl Header {
    fn to_bytes(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
        bytes[10..12].copy_from_slice(&(RECORD_BYTES as u16).to_le_bytes());
        bytes[12..16].copy_from_slice(&self.nodes.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.page_bytes.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.count.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.content_hash.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.lost.to_le_bytes());
        let hash = XxHash3_64::oneshot(&bytes[..HEADER_BYTES - 8]);
        bytes[HEADER_BYTES - 8..].copy_from_slice(&hash.to_le_bytes());
        bytes
    }

    fn of_bytes(bytes: &[u8; HEADER_BYTES], path: &Path) -> Result<Header, TraceError> {
        let damaged =
            |what: &str| TraceError::Damaged { path: path.to_owned(), what: what.to_owned() };
        if bytes[..8] != MAGIC {
            return Err(TraceError::Foreign {
                path: path.to_owned(),
                found: format!("“{}”", bytes[..8].escape_ascii()),
            });
        }
        let version = u16::from_le_bytes([bytes[8], bytes[9]]);
        if version != VERSION {
            return Err(TraceError::Version { path: path.to_owned(), version });
        }
        if XxHash3_64::oneshot(&bytes[..HEADER_BYTES - 8]) != u64_at(bytes, HEADER_BYTES - 8) {
            return Err(damaged("the header does not fit its checksum"));
        }
        let header = Header {
            nodes: u32_at(bytes, 12),
            page_bytes: u64_at(bytes, 16),
            count: u64_at(bytes, 24),
            content_hash: u64_at(bytes, 32),
            lost: u64_at(bytes, 40),
        };
        let rest_is_zero = bytes[48..HEADER_BYTES - 8].iter().all(|&byte| byte == 0);
        if usize::from(u16::from_le_bytes([bytes[10], bytes[11]])) != RECORD_BYTES || !rest_is_zero
        {
            return Err(damaged("the header has fields that version 1 does not know"));
        }
        check_shape(header.nodes, header.page_bytes).map_err(|what| damaged(&what))?;
        Ok(header)
    }
}

fn check_shape(nodes: u32, page_bytes: u64) -> Result<(), String> {
    if !(1..=NODES_MAX).contains(&nodes) {
        return Err(format!("a trace of {nodes} nodes, and 1 to {NODES_MAX} are possible"));
    }
    if !page_bytes.is_power_of_two() || page_bytes > 1 << 40 {
        return Err(format!(
            "pages of {page_bytes} bytes, and powers of two up to 1 TiB are possible"
        ));
    }
    Ok(())
}

fn bytes_of_record(record: TraceRecord) -> [u8; RECORD_BYTES] {
    let mut bytes = [0; RECORD_BYTES];
    bytes[0..8].copy_from_slice(&record.time_ns.to_le_bytes());
    bytes[8..16].copy_from_slice(&record.page.to_le_bytes());
    bytes[16..20].copy_from_slice(&record.node.to_le_bytes());
    bytes[20] = match record.kind {
        TraceKind::PageOut => 1,
        TraceKind::PageIn => 2,
        TraceKind::Drop => 3,
    };
    bytes
}

fn record_of_bytes(bytes: &[u8; RECORD_BYTES]) -> Result<TraceRecord, String> {
    let kind = match bytes[20] {
        1 => TraceKind::PageOut,
        2 => TraceKind::PageIn,
        3 => TraceKind::Drop,
        other => {
            return Err(format!(
                "kind {other}, and 1 (page-out), 2 (page-in) and 3 (drop) are possible"
            ));
        }
    };
    if bytes[21..] != [0, 0, 0] {
        return Err("fields that version 1 does not know".to_owned());
    }
    Ok(TraceRecord {
        time_ns: u64_at(bytes, 0),
        page: u64_at(bytes, 8),
        node: u32_at(bytes, 16),
        kind,
    })
}

/// Checks whether `record` can follow one of time `after_ns` in a trace of `nodes` nodes.
fn check(record: &TraceRecord, nodes: u32, after_ns: u64) -> Result<(), String> {
    if record.node >= nodes {
        return Err(format!("node {} in a trace of nodes 0 to {}", record.node, nodes - 1));
    }
    if record.time_ns < after_ns {
        return Err(format!("time {} ns after time {after_ns} ns", record.time_ns));
    }
    Ok(())
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

impl Trace {
    /// Reads a whole trace, or refuses it. A file whose name ends in `.csv` is read as CSV.
    pub fn read(path: &Path) -> Result<Trace, TraceError> {
        if is_csv(path) {
            return Trace::read_csv(path);
        }
        let failed = |source| TraceError::Io { path: path.to_owned(), source };
        let file = File::open(path).map_err(failed)?;
        let length = file.metadata().map_err(failed)?.len();
        Trace::read_from(&mut BufReader::with_capacity(1 << 20, file), length, path)
    }

    /// Reads a whole trace of `length` bytes; `path` is only for messages.
    pub fn read_from(input: &mut impl Read, length: u64, path: &Path) -> Result<Trace, TraceError> {
        let failed = |source| TraceError::Io { path: path.to_owned(), source };
        let damaged = |what: String| TraceError::Damaged { path: path.to_owned(), what };
        let mut bytes = [0; HEADER_BYTES];
        let got = read_up_to(input, &mut bytes).map_err(failed)?;
        if got < HEADER_BYTES {
            let foreign = got < 8 || bytes[..8] != MAGIC;
            let found = if got == 0 {
                "nothing".to_owned()
            } else {
                format!("“{}”", bytes[..got.min(8)].escape_ascii())
            };
            return Err(match foreign {
                true => TraceError::Foreign { path: path.to_owned(), found },
                false => damaged(format!("{got} bytes, and the header alone has {HEADER_BYTES}")),
            });
        }
        let header = Header::of_bytes(&bytes, path)?;
        let expected = (HEADER_BYTES as u128) + u128::from(header.count) * RECORD_BYTES as u128;
        if u128::from(length) != expected {
            return Err(damaged(format!(
                "{length} bytes, and {} records need {expected}",
                header.count
            )));
        }
        let mut records = Vec::with_capacity(header.count as usize);
        let (mut hash, mut last_ns) = (XxHash3_64::new(), 0);
        for number in 0..header.count {
            let mut bytes = [0; RECORD_BYTES];
            input.read_exact(&mut bytes).map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => {
                    damaged(format!("it ends in record {number} of {}", header.count))
                }
                _ => failed(error),
            })?;
            hash.write(&bytes);
            let record = record_of_bytes(&bytes)
                .and_then(|record| check(&record, header.nodes, last_ns).map(|()| record));
            let record = record.map_err(|what| damaged(format!("record {number}: {what}")))?;
            last_ns = record.time_ns;
            records.push(record);
        }
        if hash.finish() != header.content_hash {
            return Err(damaged("the records do not fit their checksum".to_owned()));
        }
        Ok(Trace { nodes: header.nodes, page_bytes: header.page_bytes, lost: header.lost, records })
    }

    /// Writes a whole trace to `path`, which appears when it is complete.
    pub fn write(&self, path: &Path) -> Result<(), TraceError> {
        let mut writer = TraceWriter::create(path, self.nodes, self.page_bytes)?;
        for record in &self.records {
            writer.append(*record)?;
        }
        writer.set_lost(self.lost);
        writer.finish()
    }

    /// Number of records of one kind.
    pub fn count(&self, kind: TraceKind) -> usize {
        self.records.iter().filter(|record| record.kind == kind).count()
    }

    /// Joins several traces into one: the nodes of each follow those of the previous one, and all
    /// begin at the same time.
    pub fn join(traces: Vec<(PathBuf, Trace)>) -> Result<Trace, TraceError> {
        let mut traces = traces.into_iter();
        let Some((first, mut whole)) = traces.next() else {
            return Ok(Trace { nodes: 1, page_bytes: 1, lost: 0, records: Vec::new() });
        };
        for (path, trace) in traces {
            let refused =
                |what: String| TraceError::Apart { path: path.clone(), first: first.clone(), what };
            if trace.page_bytes != whole.page_bytes {
                return Err(refused(format!(
                    "pages of {} bytes and of {} bytes",
                    trace.page_bytes, whole.page_bytes
                )));
            }
            let before = whole.nodes;
            whole.nodes = before
                .checked_add(trace.nodes)
                .filter(|nodes| *nodes <= NODES_MAX)
                .ok_or_else(|| {
                    refused(format!(
                        "{} and {before} nodes, and {NODES_MAX} are possible together",
                        trace.nodes
                    ))
                })?;
            whole.lost += trace.lost;
            whole.records.extend(
                trace
                    .records
                    .into_iter()
                    .map(|record| TraceRecord { node: before + record.node, ..record }),
            );
        }
        whole.records.sort_by_key(|record| record.time_ns);
        Ok(whole)
    }
}

fn read_up_to(input: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut got = 0;
    while got < buffer.len() {
        match input.read(&mut buffer[got..]) {
            Ok(0) => break,
            Ok(count) => got += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(got)
}

/// Records a trace, event by event.
///
/// Until [`finish`](TraceWriter::finish) the records are in a file of another name beside the
/// target, which is removed when the writer is dropped.
pub struct TraceWriter {
    path: PathBuf,
    output: BufWriter<AtomicFile>,
    header: Header,
    hash: XxHash3_64,
    last_ns: u64,
}

impl TraceWriter {
    /// Begins a trace of `nodes` nodes with pages of `page_bytes` bytes (a power of two).
    pub fn create(path: &Path, nodes: u32, page_bytes: u64) -> Result<TraceWriter, TraceError> {
        check_shape(nodes, page_bytes)
            .map_err(|what| TraceError::Record { path: path.to_owned(), what })?;
        let failed = |source| TraceError::Io { path: path.to_owned(), source };
        let mut output =
            BufWriter::with_capacity(1 << 16, AtomicFile::create(path).map_err(failed)?);
        output.write_all(&[0; HEADER_BYTES]).map_err(failed)?;
        let header = Header { page_bytes, nodes, count: 0, content_hash: 0, lost: 0 };
        Ok(TraceWriter {
            path: path.to_owned(),
            output,
            header,
            hash: XxHash3_64::new(),
            last_ns: 0,
        })
    }

    /// Appends a record.
    ///
    /// # Errors
    /// If the node does not exist, or the time is before the previous record's.
    pub fn append(&mut self, record: TraceRecord) -> Result<(), TraceError> {
        check(&record, self.header.nodes, self.last_ns)
            .map_err(|what| TraceError::Record { path: self.path.clone(), what })?;
        let bytes = bytes_of_record(record);
        self.output
            .write_all(&bytes)
            .map_err(|source| TraceError::Io { path: self.path.clone(), source })?;
        self.hash.write(&bytes);
        self.header.count += 1;
        self.last_ns = record.time_ns;
        Ok(())
    }

    /// Raises the number of nodes to `nodes`, for a recording that discovers nodes as it goes.
    /// Never lowers it: existing records may refer to those nodes.
    pub fn set_nodes(&mut self, nodes: u32) {
        self.header.nodes = nodes.clamp(self.header.nodes, NODES_MAX);
    }

    /// Sets the number of records that could not be recorded.
    pub fn set_lost(&mut self, lost: u64) {
        self.header.lost = lost;
    }

    /// Number of records so far.
    pub fn count(&self) -> u64 {
        self.header.count
    }

    /// Completes the trace and gives the file its name.
    pub fn finish(mut self) -> Result<(), TraceError> {
        self.header.content_hash = self.hash.finish();
        let bytes = self.header.to_bytes();
        let complete = move || {
            self.output.seek(SeekFrom::Start(0))?;
            self.output.write_all(&bytes)?;
            self.output.into_inner().map_err(io::IntoInnerError::into_error)?.publish()
        };
        let path = self.path.clone();
        complete().map_err(|source| TraceError::Io { path, source })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn record(time_ns: u64, node: u32, page: u64) -> TraceRecord {
        TraceRecord { time_ns, node, page, kind: TraceKind::PageOut }
    }

    fn example() -> Trace {
        let mut records = vec![record(0, 0, 1), record(5, 1, 9), record(5, 0, u64::MAX)];
        records.push(TraceRecord { time_ns: 80, node: 1, page: 9, kind: TraceKind::PageIn });
        Trace { nodes: 2, page_bytes: 8192, lost: 0, records }
    }

    fn bytes_of(trace: &Trace) -> Vec<u8> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("trace.bin");
        trace.write(&path).unwrap();
        std::fs::read(path).unwrap()
    }

    fn read(bytes: &[u8]) -> Result<Trace, TraceError> {
        Trace::read_from(&mut &*bytes, bytes.len() as u64, Path::new("t.bin"))
    }

    fn any_trace() -> impl Strategy<Value = Trace> {
        let kind =
            prop::sample::select(vec![TraceKind::PageOut, TraceKind::PageIn, TraceKind::Drop]);
        let event = (0..1000u64, 0..7u32, any::<u64>(), kind);
        (prop::collection::vec(event, 0..50), 0..20u32, any::<u64>()).prop_map(
            |(events, page_order, lost)| {
                let mut time_ns = 0;
                let records = events.into_iter().map(|(gap_ns, node, page, kind)| {
                    time_ns += gap_ns;
                    TraceRecord { time_ns, node, page, kind }
                });
                Trace { nodes: 7, page_bytes: 4096 << page_order, lost, records: records.collect() }
            },
        )
    }

    #[test]
    fn bytes_match_the_specification() {
        let bytes = bytes_of(&example());
        assert_eq!(bytes.len(), 64 + 4 * 24);
        assert_eq!(&bytes[..24], b"HIROTRC\n\x01\0\x18\0\x02\0\0\0\0\x20\0\0\0\0\0\0");
        assert_eq!(&bytes[24..32], &4u64.to_le_bytes());
        assert_eq!(u64_at(&bytes, 32), XxHash3_64::oneshot(&bytes[64..]));
        assert_eq!(u64_at(&bytes, 56), XxHash3_64::oneshot(&bytes[..56]));
        assert_eq!(
            &bytes[64 + 24..64 + 48],
            b"\x05\0\0\0\0\0\0\0\x09\0\0\0\0\0\0\0\x01\0\0\0\x01\0\0\0"
        );
    }

    #[test]
    fn errors_name_file_and_problem() {
        let whole = bytes_of(&example());
        let message = |bytes: &[u8]| read(bytes).unwrap_err().to_string();
        assert_eq!(
            message(b""),
            "t.bin: not a trace: it begins with nothing, and a trace with HIROTRC; the name of a trace in CSV ends in .csv"
        );
        assert_eq!(
            message(b"\x7fELF"),
            "t.bin: not a trace: it begins with “\\x7fELF”, and a trace with HIROTRC; the name of a trace in CSV ends in .csv"
        );
        assert_eq!(
            message(&whole[..whole.len() - 1]),
            "t.bin: 159 bytes, and 4 records need 160: the trace is damaged or was cut short; copy or record it again"
        );
        assert_eq!(
            message(&whole[..20]),
            "t.bin: 20 bytes, and the header alone has 64: the trace is damaged or was cut short; copy or record it again"
        );
        let mut newer = whole.clone();
        newer[8] = 2;
        assert_eq!(
            message(&newer),
            "t.bin: a trace of version 2; this program reads version 1: record it again"
        );
    }

    #[test]
    fn a_writer_refuses_records_that_a_reader_would() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("trace.bin");
        let mut writer = TraceWriter::create(&path, 2, 4096).unwrap();
        writer.append(record(10, 1, 1)).unwrap();
        for (bad, why) in [
            (record(10, 2, 1), "node 2 in a trace of nodes 0 to 1"),
            (record(9, 1, 1), "time 9 ns after time 10 ns"),
        ] {
            assert!(writer.append(bad).unwrap_err().to_string().ends_with(why));
        }
        writer.finish().unwrap();
        assert_eq!(
            Trace::read(&path).unwrap().records,
            [record(10, 1, 1)],
            "what was refused left no mark"
        );
        assert!(
            TraceWriter::create(&path, 0, 4096).is_err()
                && TraceWriter::create(&path, 1, 5000).is_err()
        );
    }

    #[test]
    fn dead_writer_leaves_no_trace() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("trace.bin");
        let mut writer = TraceWriter::create(&path, 2, 4096).unwrap();
        writer.append(record(10, 1, 1)).unwrap();
        drop(writer);
        assert!(!path.exists() && std::fs::read_dir(directory.path()).unwrap().next().is_none());
    }

    proptest! {
        #[test]
        fn trace_round_trips(trace in any_trace()) {
            prop_assert_eq!(read(&bytes_of(&trace)).unwrap(), trace);
        }

        #[test]
        fn truncated_or_extended_trace_is_refused(trace in any_trace(), cut in 1..1000usize, more in prop::collection::vec(any::<u8>(), 1..50)) {
            let mut bytes = bytes_of(&trace);
            prop_assert!(read(&bytes[..bytes.len() - cut.min(bytes.len())]).is_err());
            bytes.extend(more);
            prop_assert!(read(&bytes).is_err());
        }

        #[test]
        fn trace_with_any_flipped_bit_is_refused(trace in any_trace(), place in any::<prop::sample::Index>(), bit in 0..8u8) {
            let mut bytes = bytes_of(&trace);
            let at = place.index(bytes.len());
            bytes[at] ^= 1 << bit;
            prop_assert!(read(&bytes).is_err());
        }

        #[test]
        fn foreign_bytes_are_refused_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), with_magic in any::<bool>()) {
            let bytes = if with_magic { [&MAGIC[..], &bytes].concat() } else { bytes };
            prop_assert!(read(&bytes).is_err());
        }

        #[test]
        fn file_shorter_than_its_header_says_is_refused(trace in any_trace(), less in 1..100usize) {
            let bytes = bytes_of(&trace);
            let short = &bytes[..bytes.len().saturating_sub(less)];
            prop_assert!(Trace::read_from(&mut &*short, bytes.len() as u64, Path::new("t.bin")).is_err());
        }
    }
}
