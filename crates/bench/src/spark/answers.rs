//! Answer lines of a process, read with a time limit while checking for Ctrl-C.

use std::io::{BufRead, BufReader};
use std::process::ChildStdout;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use crate::children::{Failed, Interrupt};

const LISTEN_EVERY: Duration = Duration::from_millis(100);

/// Answers of one process.
pub struct Answers<'a> {
    lines: Receiver<String>,
    limit: Duration,
    interrupt: &'a Interrupt,
}

impl<'a> Answers<'a> {
    /// The lines of `output` that begin with `mark`, each within `limit`.
    pub fn of(
        output: ChildStdout,
        mark: &'static str,
        limit: Duration,
        interrupt: &'a Interrupt,
    ) -> Answers<'a> {
        let (send, lines) = channel();
        std::thread::spawn(move || {
            let lines = BufReader::new(output).lines().map_while(Result::ok);
            for line in lines.filter_map(|line| line.strip_prefix(mark).map(str::to_owned)) {
                if send.send(line).is_err() {
                    break;
                }
            }
        });
        Answers { lines, limit, interrupt }
    }

    /// The next answer, without its mark; none if the process has ended.
    pub fn next(&self) -> Result<Option<String>, Failed> {
        let start = Instant::now();
        loop {
            match self.lines.recv_timeout(LISTEN_EVERY) {
                Ok(line) => return Ok(Some(line)),
                Err(RecvTimeoutError::Disconnected) => return Ok(None),
                Err(RecvTimeoutError::Timeout) if self.interrupt.came() => {
                    return Err(Failed::Interrupted);
                }
                Err(RecvTimeoutError::Timeout) if start.elapsed() > self.limit => {
                    return Err(Failed::TimeLimit(self.limit.as_secs_f64()));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }
}
