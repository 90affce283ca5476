//! Traces as CSV: to look at, to edit, and to make from other tools' recordings.
//!
//! ```text
//! # page_bytes=4096 nodes=2 lost=0
//! time_ns,node,kind,page
//! 1000,0,page_out,17
//! 5000,1,page_in,0x2a
//! ```
//!
//! The first line may be missing: then pages have 4096 bytes, and there are as many nodes as the
//! records name. Columns may come in any order.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::Path;

use csv::{ReaderBuilder, StringRecord, Trim};
use hiroma_report::atomic::AtomicFile;
use hiroma_sim::{TraceKind, TraceRecord};

use super::{NODES_MAX, Trace, TraceError, check, check_shape};

/// Bytes of a page where the file does not say it.
const PAGE_BYTES: u64 = 4096;
/// The columns, in the order in which they are written.
const COLUMNS: [&str; 4] = ["time_ns", "node", "kind", "page"];
/// Kinds of records and their words.
const KINDS: [(TraceKind, &str); 3] =
    [(TraceKind::PageOut, "page_out"), (TraceKind::PageIn, "page_in"), (TraceKind::Drop, "drop")];

/// Whether a file of that name is CSV.
pub fn is_csv(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("csv"))
}

/// What the first lines say about the whole trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Shape {
    page_bytes: Option<u64>,
    nodes: Option<u64>,
    lost: u64,
}

/// What is wrong with a record, and in which of the file's columns.
#[derive(Debug)]
struct Wrong {
    column: Option<usize>,
    what: String,
}

/// The place in the record of each of [`COLUMNS`].
struct Columns([usize; COLUMNS.len()]);

impl Trace {
    /// Reads a trace from a CSV file, or refuses it with the line and the column.
    pub fn read_csv(path: &Path) -> Result<Trace, TraceError> {
        let failed = |source| TraceError::Io { path: path.to_owned(), source };
        let shape = Shape::read(BufReader::new(File::open(path).map_err(failed)?))
            .map_err(|error| refused(path, error))?;
        let file = BufReader::with_capacity(1 << 20, File::open(path).map_err(failed)?);
        let mut reader = ReaderBuilder::new()
            .comment(Some(b'#'))
            .flexible(true)
            .has_headers(false)
            .trim(Trim::All)
            .from_reader(file);
        let result = read_records(&mut reader, shape.nodes);
        let end = reader.position().byte();
        let (nodes, records) = result.map_err(|error| match error {
            Failed::Io(source) => failed(source),
            Failed::Wrong(wrong) => match line_at(path, end) {
                Ok(line) => refused(path, (line, wrong)),
                Err(source) => failed(source),
            },
        })?;
        let trace = Trace {
            nodes: shape.nodes.map_or(nodes, |nodes| nodes as u32),
            page_bytes: shape.page_bytes.unwrap_or(PAGE_BYTES),
            lost: shape.lost,
            records,
        };
        Ok(trace)
    }

    /// Writes the trace to `path` as CSV; the file appears when it is complete.
    pub fn write_csv(&self, path: &Path) -> Result<(), TraceError> {
        let failed = |source| TraceError::Io { path: path.to_owned(), source };
        let file = AtomicFile::create(path).map_err(failed)?;
        let complete = || {
            let mut output = BufWriter::with_capacity(1 << 16, file);
            let Trace { nodes, page_bytes, lost, .. } = self;
            writeln!(output, "# page_bytes={page_bytes} nodes={nodes} lost={lost}")?;
            let mut writer = csv::Writer::from_writer(output);
            writer.write_record(COLUMNS)?;
            for record in &self.records {
                let (_, kind) = KINDS[record.kind as usize];
                writer.write_record([
                    record.time_ns.to_string().as_str(),
                    record.node.to_string().as_str(),
                    kind,
                    record.page.to_string().as_str(),
                ])?;
            }
            let output = writer.into_inner().map_err(|error| error.into_error())?;
            output.into_inner().map_err(|error| error.into_error())?.publish()
        };
        complete().map_err(failed)
    }
}

enum Failed {
    Io(io::Error),
    Wrong(Wrong),
}

impl From<Wrong> for Failed {
    fn from(wrong: Wrong) -> Self {
        Failed::Wrong(wrong)
    }
}

impl From<csv::Error> for Failed {
    fn from(error: csv::Error) -> Self {
        match error.into_kind() {
            csv::ErrorKind::Io(error) => Failed::Io(error),
            csv::ErrorKind::Utf8 { .. } => {
                Failed::Wrong(Wrong::of_line("it is not UTF-8: save the file as UTF-8".to_owned()))
            }
            other => Failed::Wrong(Wrong::of_line(format!("{other:?}"))),
        }
    }
}

impl Wrong {
    fn of_line(what: String) -> Self {
        Wrong { column: None, what }
    }
}

fn refused(path: &Path, (line, wrong): (u64, Wrong)) -> TraceError {
    let column = wrong.column.map_or(String::new(), |column| format!(":{}", column + 1));
    TraceError::Text { path: path.to_owned(), place: format!("{line}{column}"), what: wrong.what }
}

/// The number of records' nodes (the greatest and one) and the records.
fn read_records(
    reader: &mut csv::Reader<impl Read>,
    nodes: Option<u64>,
) -> Result<(u32, Vec<TraceRecord>), Failed> {
    let mut row = StringRecord::new();
    if !reader.read_record(&mut row)? {
        let what = format!("the file is empty: its first line is {}", COLUMNS.join(","));
        return Err(Wrong::of_line(what).into());
    }
    let columns = Columns::of(&row)?;
    let (mut records, mut last_ns, mut most) = (Vec::new(), 0, 0);
    let allowed = nodes.map_or(NODES_MAX, |nodes| nodes as u32);
    while reader.read_record(&mut row)? {
        let record = columns.record(&row)?;
        check(&record, allowed, last_ns).map_err(|what| Wrong {
            column: Some(columns.0[usize::from(record.node < allowed) ^ 1]),
            what: match record.node < allowed {
                true => format!("{what}: sort the file by time_ns"),
                false => format!(
                    "{what}: write the number of nodes into the first line, or leave it out"
                ),
            },
        })?;
        last_ns = record.time_ns;
        most = most.max(record.node);
        records.push(record);
    }
    Ok((most + 1, records))
}

impl Columns {
    fn of(header: &StringRecord) -> Result<Columns, Wrong> {
        let names = COLUMNS.join(", ");
        let unknown = header.iter().position(|name| !COLUMNS.contains(&name));
        if let Some(column) = unknown {
            let what = format!(
                "there is no column `{}`: the first line names the columns {names}, and no others",
                &header[column]
            );
            return Err(Wrong { column: Some(column), what });
        }
        let mut places = [0; COLUMNS.len()];
        for (place, name) in places.iter_mut().zip(COLUMNS) {
            let mut found = (0..header.len()).filter(|&column| &header[column] == name);
            *place = found.next().ok_or_else(|| {
                Wrong::of_line(format!("the column `{name}` is missing: needed are {names}"))
            })?;
            if let Some(twice) = found.next() {
                let what = format!("the column `{name}` is there twice: leave one out");
                return Err(Wrong { column: Some(twice), what });
            }
        }
        Ok(Columns(places))
    }

    fn record(&self, row: &StringRecord) -> Result<TraceRecord, Wrong> {
        if row.len() != COLUMNS.len() {
            return Err(Wrong::of_line(format!(
                "{} values, and the first line names {} columns: write one value for each, with commas between them",
                row.len(),
                COLUMNS.len()
            )));
        }
        let [time, node, kind, page] = self.0;
        let wrong = |column: usize, what: String| Wrong { column: Some(column), what };
        let number = |column: usize, name: &str, most: u64| match whole(&row[column]) {
            Some(number) if number <= most => Ok(number),
            _ => Err(wrong(
                column,
                format!("`{name}`: `{}` is not a whole number from 0 to {most}", &row[column]),
            )),
        };
        let word = KINDS.iter().find(|(_, word)| *word == &row[kind]);
        let (record_kind, _) = word.ok_or_else(|| {
            wrong(
                kind,
                format!("`kind`: there is no `{}`, use page_out, page_in or drop", &row[kind]),
            )
        })?;
        Ok(TraceRecord {
            time_ns: number(time, "time_ns", hiroma_sim::TIME_MAX_NS)?,
            node: number(node, "node", u64::from(NODES_MAX) - 1)? as u32,
            kind: *record_kind,
            page: number(page, "page", u64::MAX)?,
        })
    }
}

/// A whole number, decimal or with `0x`.
fn whole(text: &str) -> Option<u64> {
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) if digits.starts_with('+') => None,
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None if text.starts_with('+') => None,
        None => text.parse().ok(),
    }
}

impl Shape {
    /// Reads the comments at the head of a file: words of the form `name=value` in lines with `#`.
    fn read(mut input: impl io::BufRead) -> Result<Shape, (u64, Wrong)> {
        let mut shape = Shape::default();
        for line in 1.. {
            let mut text = Vec::new();
            // An error of reading comes again with the records.
            let length = input.read_until(b'\n', &mut text).unwrap_or(0);
            let text = String::from_utf8_lossy(&text);
            let Some(comment) = text.trim_start().strip_prefix('#').filter(|_| length > 0) else {
                break;
            };
            for (name, value) in comment.split_whitespace().filter_map(|word| word.split_once('='))
            {
                shape.set(name, value).map_err(|what| (line, Wrong::of_line(what)))?;
            }
        }
        Ok(shape)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        if !["page_bytes", "nodes", "lost"].contains(&name) {
            return Ok(());
        }
        let number =
            whole(value).ok_or_else(|| format!("`{name}`: `{value}` is not a whole number"))?;
        match name {
            "page_bytes" => {
                check_shape(1, number)?;
                self.page_bytes = Some(number);
            }
            "nodes" => {
                let nodes = u32::try_from(number).unwrap_or(u32::MAX);
                check_shape(nodes, PAGE_BYTES)?;
                self.nodes = Some(nodes.into());
            }
            _ => self.lost = number,
        }
        Ok(())
    }
}

/// The line of the record that ends at byte `end`.
fn line_at(path: &Path, end: u64) -> io::Result<u64> {
    let mut before = BufReader::new(File::open(path)?).take(end.saturating_sub(1));
    let (mut line, mut bytes) = (1, [0; 1 << 16]);
    loop {
        match before.read(&mut bytes)? {
            0 => return Ok(line),
            length => line += bytes[..length].iter().filter(|&&byte| byte == b'\n').count() as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> Result<Trace, String> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("t.csv");
        fs::write(&path, text).unwrap();
        Trace::read(&path).map_err(|error| {
            error.to_string().replace(&format!("{}/", directory.path().display()), "")
        })
    }

    fn record() -> impl Strategy<Value = TraceRecord> {
        let kind = prop::sample::select(KINDS.map(|(kind, _)| kind).to_vec());
        (0..1000u64, 0..5u32, kind, any::<u64>())
            .prop_map(|(time_ns, node, kind, page)| TraceRecord { time_ns, node, kind, page })
    }

    proptest! {
        #[test]
        fn traces_survive_csv_and_binary(mut records in prop::collection::vec(record(), 0..60), pages in 0u32..30, lost in any::<u64>()) {
            records.sort_by_key(|record| record.time_ns);
            let trace = Trace { nodes: 5, page_bytes: 1 << pages, lost, records };
            let directory = tempfile::tempdir().unwrap();
            let (text, binary) = (directory.path().join("t.csv"), directory.path().join("t.bin"));
            trace.write_csv(&text).unwrap();
            let back = Trace::read(&text).unwrap();
            prop_assert_eq!(&back, &trace);
            back.write(&binary).unwrap();
            prop_assert_eq!(Trace::read(&binary).unwrap(), trace);
        }
    }

    #[test]
    fn tables_of_other_tools_are_read() {
        let trace =
            read("page, kind ,node,time_ns\r\n0x10,page_out,2,5\r\n\r\n 16,page_in,2,9").unwrap();
        assert_eq!((trace.nodes, trace.page_bytes, trace.lost), (3, 4096, 0));
        let out = TraceRecord { time_ns: 5, node: 2, kind: TraceKind::PageOut, page: 16 };
        let back = TraceRecord { time_ns: 9, kind: TraceKind::PageIn, ..out };
        assert_eq!(trace.records, [out, back]);
        let trace =
            read("# made by hand, nodes=7\n# page_bytes=0x1000 lost=3\ntime_ns,node,kind,page\n")
                .unwrap();
        assert_eq!(
            (trace.nodes, trace.page_bytes, trace.lost, trace.records.len()),
            (7, 4096, 3, 0)
        );
    }

    #[test]
    fn mistakes_are_reported_with_line_and_column() {
        const HEAD: &str = "time_ns,node,kind,page\n";
        for (text, message) in [
            ("", "t.csv:1: the file is empty: its first line is time_ns,node,kind,page"),
            (
                "time,node,kind,page\n",
                "t.csv:1:1: there is no column `time`: the first line names the columns time_ns, node, kind, page, and no others",
            ),
            (
                "time_ns,node,page\n",
                "t.csv:1: the column `kind` is missing: needed are time_ns, node, kind, page",
            ),
            (
                "time_ns,node,kind,node\n",
                "t.csv:1:4: the column `node` is there twice: leave one out",
            ),
            (
                &format!("{HEAD}1,2,page_out,3\n\n# more\n2,3,pageout,4\n"),
                "t.csv:5:3: `kind`: there is no `pageout`, use page_out, page_in or drop",
            ),
            (
                &format!("{HEAD}1,2,drop,3\r\n2,3,drop,-4"),
                "t.csv:3:4: `page`: `-4` is not a whole number from 0 to 18446744073709551615",
            ),
            (
                &format!("{HEAD}1.5,2,drop,3\n"),
                "t.csv:2:1: `time_ns`: `1.5` is not a whole number from 0 to 140737488355328",
            ),
            (
                &format!("{HEAD}1,2,drop\n"),
                "t.csv:2: 3 values, and the first line names 4 columns: write one value for each, with commas between them",
            ),
            (
                &format!("{HEAD}9,0,drop,1\n8,0,drop,1\n"),
                "t.csv:3:1: time 8 ns after time 9 ns: sort the file by time_ns",
            ),
            (
                &format!("# nodes=2\n{HEAD}9,2,drop,1\n"),
                "t.csv:3:2: node 2 in a trace of nodes 0 to 1: write the number of nodes into the first line, or leave it out",
            ),
            (
                &format!("# x\n# page_bytes=4000\n{HEAD}"),
                "t.csv:2: pages of 4000 bytes, and powers of two up to 1 TiB are possible",
            ),
            (&format!("# nodes=many\n{HEAD}"), "t.csv:1: `nodes`: `many` is not a whole number"),
        ] {
            assert_eq!(read(text).unwrap_err(), message, "{text:?}");
        }
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("t.csv");
        fs::write(&path, b"time_ns,node,kind,page\n1,2,drop,3\n1,2,dr\xffp,3\n").unwrap();
        let said = Trace::read(&path).unwrap_err().to_string();
        assert!(said.ends_with("t.csv:3: it is not UTF-8: save the file as UTF-8"), "{said}");
    }
}
