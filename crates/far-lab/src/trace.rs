//! The file format of a page trace, and the trace in memory.
//!
//! A file is `HIROMAPT`, a version, the header, and events in blocks compressed by lz4. An event is
//! a varint: the distance to the page of the previous event (zigzag), with the kind of event in the
//! two lowest bits; mappings and discards are followed by their length.

use hiroma_units::PAGES_PER_EXTENT;
use rustc_hash::FxHashMap;

use crate::space::BRK_PAGES;

/// Events on pages of the arena.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    Read { page: u64 },
    Write { page: u64 },
    Discard { page: u64, pages: u64 },
    Map { page: u64, pages: u64 },
}

/// Description of a recording.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Header {
    /// Name of the program.
    pub program: String,
    pub command: Vec<String>,
    /// Loads, stores and modifications of the program, in all of its memory.
    pub references: u64,
    /// Different pages that were touched.
    pub pages: u64,
    /// Touches and discards in the file.
    pub events: u64,
    /// Pages of the filter that the touches went through.
    pub window: u64,
}

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    #[error("this is no page trace")]
    Foreign,
    #[error("this page trace is of another version ({0})")]
    Version(u64),
    #[error("this page trace is damaged or cut off")]
    Damaged,
}

const MAGIC: &[u8; 8] = b"HIROMAPT";
const VERSION: u64 = 1;
/// Bytes of events that are compressed as one block.
const BLOCK: usize = 1 << 20;
const BLOCK_MAX: usize = BLOCK + 64;

/// Writes events.
#[derive(Default)]
pub struct Encoder {
    done: Vec<u8>,
    block: Vec<u8>,
    last: u64,
    events: u64,
}

fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn take(bytes: &mut &[u8]) -> Result<u64, TraceError> {
    let (mut value, mut shift) = (0, 0);
    loop {
        let (&byte, rest) = bytes.split_first().ok_or(TraceError::Damaged)?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(value);
        }
        shift += 7;
        if shift > 63 {
            return Err(TraceError::Damaged);
        }
    }
}

fn take_bytes<'a>(bytes: &mut &'a [u8], len: u64) -> Result<&'a [u8], TraceError> {
    let (taken, rest) = bytes
        .split_at_checked(usize::try_from(len).map_err(|_| TraceError::Damaged)?)
        .ok_or(TraceError::Damaged)?;
    *bytes = rest;
    Ok(taken)
}

fn take_text(bytes: &mut &[u8]) -> Result<String, TraceError> {
    let len = take(bytes)?;
    Ok(String::from_utf8_lossy(take_bytes(bytes, len)?).into_owned())
}

impl Encoder {
    /// An encoder without events.
    pub fn new() -> Encoder {
        Encoder::default()
    }

    /// Appends an event.
    pub fn push(&mut self, event: Event) {
        let (page, kind, pages) = match event {
            Event::Read { page } => (page, 0, None),
            Event::Write { page } => (page, 1, None),
            Event::Discard { page, pages } => (page, 2, Some(pages)),
            Event::Map { page, pages } => (page, 3, Some(pages)),
        };
        let distance = page.wrapping_sub(self.last) as i64;
        let zigzag = (distance << 1 ^ distance >> 63) as u64;
        put(&mut self.block, zigzag << 2 | kind);
        if let Some(pages) = pages {
            put(&mut self.block, pages);
        }
        self.last = page;
        self.events += 1;
        if self.block.len() >= BLOCK {
            self.end_block();
        }
    }

    /// Events so far.
    pub fn events(&self) -> u64 {
        self.events
    }

    fn end_block(&mut self) {
        let packed = lz4_flex::block::compress(&self.block);
        put(&mut self.done, self.block.len() as u64);
        put(&mut self.done, packed.len() as u64);
        self.done.extend(packed);
        self.block.clear();
    }

    /// Returns the file.
    pub fn finish(mut self, header: &Header) -> Vec<u8> {
        if !self.block.is_empty() {
            self.end_block();
        }
        let mut file = MAGIC.to_vec();
        put(&mut file, VERSION);
        for text in std::iter::once(&header.program).chain(&header.command) {
            put(&mut file, text.len() as u64);
            file.extend(text.as_bytes());
            if std::ptr::eq(text, &header.program) {
                put(&mut file, header.command.len() as u64);
            }
        }
        for number in [header.references, header.pages, self.events, header.window] {
            put(&mut file, number);
        }
        file.extend(&self.done);
        file
    }
}

/// Decodes a file; `on_event` receives all events in order.
pub fn decode(file: &[u8], mut on_event: impl FnMut(Event)) -> Result<Header, TraceError> {
    let mut bytes = file.strip_prefix(MAGIC.as_slice()).ok_or(TraceError::Foreign)?;
    let version = take(&mut bytes)?;
    if version != VERSION {
        return Err(TraceError::Version(version));
    }
    let program = take_text(&mut bytes)?;
    let words = take(&mut bytes)?;
    let command = (0..words).map(|_| take_text(&mut bytes)).collect::<Result<_, _>>()?;
    let [references, pages, events, window] =
        [take(&mut bytes)?, take(&mut bytes)?, take(&mut bytes)?, take(&mut bytes)?];
    let (mut last, mut seen) = (0u64, 0);
    while !bytes.is_empty() {
        let (len, packed) = (take(&mut bytes)?, take(&mut bytes)?);
        if len > BLOCK_MAX as u64 {
            return Err(TraceError::Damaged);
        }
        let packed = take_bytes(&mut bytes, packed)?;
        let block =
            lz4_flex::block::decompress(packed, len as usize).map_err(|_| TraceError::Damaged)?;
        let mut rest = block.as_slice();
        while !rest.is_empty() {
            let word = take(&mut rest)?;
            let zigzag = word >> 2;
            last = last.wrapping_add(zigzag >> 1 ^ (zigzag & 1).wrapping_neg());
            seen += 1;
            on_event(match word & 3 {
                0 => Event::Read { page: last },
                1 => Event::Write { page: last },
                2 => Event::Discard { page: last, pages: take(&mut rest)? },
                _ => Event::Map { page: last, pages: take(&mut rest)? },
            });
        }
    }
    if seen != events {
        return Err(TraceError::Damaged);
    }
    Ok(Header { program, command, references, pages, events, window })
}

/// One step of a trace in memory: a page, and in the two lowest bits what happens to it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Step(u32);

/// What happens to a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StepKind {
    Read,
    Write,
    Discard,
}

impl Step {
    pub fn new(page: u32, what: StepKind) -> Step {
        Step(page << 2 | what as u32)
    }

    pub fn page(self) -> u32 {
        self.0 >> 2
    }

    pub fn what(self) -> StepKind {
        match self.0 & 3 {
            0 => StepKind::Read,
            1 => StepKind::Write,
            _ => StepKind::Discard,
        }
    }
}

/// A trace, ready to be simulated. Extents that were never touched are left out, so that pages are
/// numbered nearly without gaps.
#[derive(Clone, Default)]
pub struct Trace {
    pub header: Header,
    pub steps: Vec<Step>,
    /// Pages in all extents.
    pub arena_pages: usize,
    /// Number of the mapping in which each extent begins.
    pub regions: Vec<u32>,
    /// Pages that the program maps at some time. What it did not ask for is never there.
    pub plain: Vec<bool>,
    /// Different pages that are touched.
    pub touched: usize,
}

impl Trace {
    /// Reads a file.
    pub fn read(file: &[u8]) -> Result<Trace, TraceError> {
        let mut events = Vec::new();
        let header = decode(file, |event| events.push(event))?;
        Ok(Trace::of(header, &events))
    }

    /// A trace of events.
    pub fn of(header: Header, events: &[Event]) -> Trace {
        let extent = PAGES_PER_EXTENT as u64;
        let mut used: Vec<u64> = Vec::new();
        let mut starts = vec![0u64];
        for event in events {
            match *event {
                Event::Read { page } | Event::Write { page }
                    if used.last() != Some(&(page / extent)) =>
                {
                    used.push(page / extent)
                }
                Event::Map { page, .. } => starts.push(page),
                _ => {}
            }
            if used.len() > 1 << 20 {
                used.sort_unstable();
                used.dedup();
            }
        }
        used.sort_unstable();
        used.dedup();
        starts.sort_unstable();
        let places: FxHashMap<u64, u32> =
            used.iter().enumerate().map(|(at, &extent)| (extent, at as u32)).collect();
        let regions = used
            .iter()
            .map(|number| starts.partition_point(|&start| start <= number * extent) as u32)
            .collect();
        let place = |page: u64| {
            places.get(&(page / extent)).map(|&at| at * extent as u32 + (page % extent) as u32)
        };
        let mut trace = Trace {
            header,
            steps: Vec::with_capacity(events.len()),
            arena_pages: used.len() * PAGES_PER_EXTENT,
            regions,
            plain: Vec::new(),
            touched: 0,
        };
        let mut touched = vec![false; trace.arena_pages];
        for event in events {
            match *event {
                Event::Read { page } | Event::Write { page } => {
                    let Some(page) = place(page) else { continue };
                    let what = if matches!(event, Event::Write { .. }) {
                        StepKind::Write
                    } else {
                        StepKind::Read
                    };
                    trace.touched +=
                        usize::from(!std::mem::replace(&mut touched[page as usize], true));
                    trace.steps.push(Step::new(page, what));
                }
                // Pages that were not touched yet have no content to lose.
                Event::Discard { page, pages } => {
                    let first = used.partition_point(|&number| (number + 1) * extent <= page);
                    let last = used.partition_point(|&number| number * extent < page + pages);
                    for (at, number) in used.iter().enumerate().take(last).skip(first) {
                        let start = number * extent;
                        let (from, to) =
                            (page.max(start) - start, (page + pages).min(start + extent) - start);
                        let lost = (from..to)
                            .map(|offset| (at as u64 * extent + offset) as u32)
                            .filter(|&page| touched[page as usize]);
                        trace.steps.extend(lost.map(|page| Step::new(page, StepKind::Discard)));
                    }
                }
                Event::Map { .. } => {}
            }
        }
        trace.plain = plain(events, &used, &touched);
        trace
    }
}

/// Which pages of the extents `used` are mapped by the program at some time.
fn plain(events: &[Event], used: &[u64], touched: &[bool]) -> Vec<bool> {
    let extent = PAGES_PER_EXTENT as u64;
    let (mut is_known, mut has_brk) = (false, false);
    let mut plain = vec![false; touched.len()];
    for event in events {
        let &Event::Map { page, pages } = event else { continue };
        (is_known, has_brk) = (true, has_brk || (page, pages) == (0, BRK_PAGES));
        let first = used.partition_point(|&number| (number + 1) * extent <= page);
        let end = used.partition_point(|&number| number * extent < page + pages);
        for (at, number) in used.iter().enumerate().take(end).skip(first) {
            let (start, place) = (number * extent, at * PAGES_PER_EXTENT);
            let (from, to) = (page.max(start) - start, (page + pages).min(start + extent) - start);
            plain[place + from as usize..place + to as usize].fill(true);
        }
    }
    if !is_known {
        plain.fill(true);
    }
    if has_brk {
        // It grows as it is used, and was recorded with all that it may become.
        let end = used.partition_point(|&number| number * extent < BRK_PAGES) * PAGES_PER_EXTENT;
        let last = touched[..end].iter().rposition(|&touched| touched);
        plain[last.map_or(0, |last| last + 1)..end].fill(false);
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            program: "sort".into(),
            command: vec!["sort".into(), "-n".into()],
            references: 1 << 40,
            pages: 3,
            events: 0,
            window: 16,
        }
    }

    #[test]
    fn trace_file_round_trips_and_damage_is_found() {
        let events: Vec<Event> = (0..300_000u64)
            .map(|at| match at % 7 {
                0 => Event::Write { page: at * at % 100_003 },
                1 => Event::Discard { page: at, pages: at % 5 + 1 },
                2 => Event::Map { page: at + (1 << 22), pages: 1000 },
                _ => Event::Read { page: at / 3 },
            })
            .collect();
        let mut encoder = Encoder::new();
        events.iter().for_each(|&event| encoder.push(event));
        let file = encoder.finish(&header());
        let mut back = Vec::new();
        let read = decode(&file, |event| back.push(event)).unwrap();
        assert_eq!(read, Header { events: 300_000, ..header() });
        assert!(back == events);
        assert!(matches!(decode(&file[..file.len() - 1], |_| {}), Err(TraceError::Damaged)));
        assert!(matches!(decode(b"HIROMA", |_| {}), Err(TraceError::Foreign)));
        assert!(matches!(decode(b"HIROMAPT\x09", |_| {}), Err(TraceError::Version(9))));
    }

    #[test]
    fn untouched_extents_get_no_page_numbers() {
        let events = [
            Event::Map { page: 0, pages: 4096 },
            Event::Map { page: 5120, pages: 1024 },
            Event::Write { page: 5 },
            Event::Read { page: 5121 },
            Event::Discard { page: 0, pages: 6000 },
            Event::Read { page: 5122 },
        ];
        let trace = Trace::of(header(), &events);
        let steps: Vec<(u32, StepKind)> =
            trace.steps.iter().map(|step| (step.page(), step.what())).collect();
        assert_eq!(
            steps,
            [
                (5, StepKind::Write),
                (513, StepKind::Read),
                (5, StepKind::Discard),
                (513, StepKind::Discard),
                (514, StepKind::Read)
            ]
        );
        assert_eq!(
            (trace.arena_pages, trace.touched, trace.regions.clone()),
            (1024, 3, vec![2, 3])
        );
    }
}
