//! Lines for standard error, written by a thread of their own: whoever logs never waits for a
//! terminal that is held (Ctrl-S), or for a reader that does not read.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use hiroma_far_server::Log;

/// Lines that wait at most.
const LINES_MAX: usize = 1024;
/// How long the last lines may take at the end.
const PATIENCE: Duration = Duration::from_secs(1);
/// A full queue is tried again after this time, at the end.
const AGAIN: Duration = Duration::from_millis(10);

enum Entry {
    Line(String),
    /// Answered when everything before it has been written.
    Flush(Sender<()>),
}

/// The queue's end for those who log. When this is dropped, the lines that wait are written, unless
/// nobody takes them.
pub struct Journal {
    queue: SyncSender<Entry>,
    dropped: Arc<AtomicU64>,
}

impl Journal {
    /// Starts the thread.
    pub fn start(out: impl Write + Send + 'static) -> io::Result<Journal> {
        let (queue, entries) = sync_channel(LINES_MAX);
        let work = move || write_all(out, &entries);
        thread::Builder::new().name("hiroma-log".to_owned()).spawn(work)?;
        Ok(Journal { queue, dropped: Arc::default() })
    }

    /// What takes lines. It drops them when too many wait, and says so when there is room again.
    pub fn log(&self) -> Log {
        let (queue, dropped) = (self.queue.clone(), Arc::clone(&self.dropped));
        Arc::new(move |line: &str| {
            let is_told = tell_dropped(&queue, &dropped);
            if !is_told || queue.try_send(Entry::Line(line.to_owned())).is_err() {
                dropped.fetch_add(1, Ordering::Relaxed);
            }
        })
    }

    fn flush(&self) {
        let deadline = Instant::now() + PATIENCE;
        let (done, is_done) = channel();
        let flush = || Entry::Flush(done.clone());
        while !tell_dropped(&self.queue, &self.dropped) || self.queue.try_send(flush()).is_err() {
            if Instant::now() >= deadline {
                return;
            }
            thread::sleep(AGAIN);
        }
        let _ = is_done.recv_timeout(deadline.saturating_duration_since(Instant::now()));
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.flush();
    }
}

/// Says in the place of dropped lines how many they were. Returns whether there is nothing left to
/// say about them.
fn tell_dropped(queue: &SyncSender<Entry>, dropped: &AtomicU64) -> bool {
    let count = dropped.swap(0, Ordering::Relaxed);
    if count == 0 {
        return true;
    }
    let line = format!("{count} lines were dropped here: nobody took what was written");
    let is_told = queue.try_send(Entry::Line(line)).is_ok();
    if !is_told {
        dropped.fetch_add(count, Ordering::Relaxed);
    }
    is_told
}

fn write_all(mut out: impl Write, entries: &Receiver<Entry>) {
    for entry in entries {
        match entry {
            // The server continues when nothing reads standard error any more.
            Entry::Line(line) => {
                drop(out.write_all(format!("hiroma serve: {line}\n").as_bytes()));
            }
            Entry::Flush(done) => drop(done.send(())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn nobody_waits_for_a_reader_that_does_not_read() {
        const LINES: u64 = 20_000;
        let (near, far) = UnixStream::pair().unwrap();
        let journal = Journal::start(near).unwrap();
        let log = journal.log();
        (0..LINES).for_each(|number| log(&format!("line {number}")));
        // The reader comes late; what it misses is counted.
        let reader = thread::spawn(move || {
            let lines = BufReader::new(far).lines().map(Result::unwrap);
            lines.take_while(|line| line != "hiroma serve: the end").collect::<Vec<_>>()
        });
        while journal.dropped.load(Ordering::Relaxed) > 0 {
            tell_dropped(&journal.queue, &journal.dropped);
            thread::sleep(AGAIN);
        }
        let end = || Entry::Line("the end".to_owned());
        journal.queue.send(end()).unwrap();
        let lines = reader.join().unwrap();
        let dropped: u64 = lines
            .iter()
            .filter(|line| line.contains("were dropped here"))
            .map(|line| line.split(' ').nth(2).unwrap().parse::<u64>().unwrap())
            .sum();
        let told = lines.iter().filter(|line| line.contains("serve: line ")).count() as u64;
        assert!(dropped > 0);
        assert_eq!(told + dropped, LINES);
    }

    #[test]
    fn last_lines_are_written_before_the_end() {
        let (near, far) = UnixStream::pair().unwrap();
        let journal = Journal::start(near).unwrap();
        journal.log()("stopped");
        drop(journal);
        far.set_nonblocking(true).unwrap();
        let mut line = String::new();
        BufReader::new(far).read_line(&mut line).unwrap();
        assert_eq!(line, "hiroma serve: stopped\n");
    }

    #[test]
    fn the_end_does_not_wait_long_for_a_reader() {
        let (near, _far) = UnixStream::pair().unwrap();
        let journal = Journal::start(near).unwrap();
        let log = journal.log();
        (0..20_000).for_each(|_| log("a line that nobody reads"));
        let start = Instant::now();
        drop(journal);
        assert!(start.elapsed() < 5 * PATIENCE);
    }
}
