//! What members have said of themselves.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use foca::{BroadcastHandler, Invalidates};

use crate::report::{Id, Malformed, Report};

/// The newest report of each member.
#[derive(Default)]
pub struct Book {
    pub heard: HashMap<SocketAddr, Heard>,
    pub now_ms: u64,
}

/// A report, and when it arrived.
pub struct Heard {
    pub report: Report,
    pub at_ms: u64,
    /// Incarnation and sequence number of the last report that was passed on. What a member tells
    /// directly is newer than what others pass on, and must not end that.
    passed: (u64, u32),
}

impl Book {
    /// Takes note of a report; returns whether it is newer than what was known.
    pub fn hear(&mut self, report: Report, max: usize) -> bool {
        let (addr, at_ms) = (report.id.addr, self.now_ms);
        let full = self.heard.len() >= max;
        match self.heard.get_mut(&addr) {
            Some(heard) if !report.is_newer_than(&heard.report) => return false,
            Some(heard) => (heard.report, heard.at_ms) = (report, at_ms),
            None if full => return false,
            None => {
                self.heard.insert(addr, Heard { report, at_ms, passed: (0, 0) });
            }
        }
        true
    }

    /// Takes note of a report that is being passed on; returns whether to pass it on.
    fn pass(&mut self, report: Report, max: usize) -> bool {
        let (addr, this) = (report.id.addr, (report.id.incarnation, report.sequence));
        self.hear(report, max);
        match self.heard.get_mut(&addr) {
            Some(heard) if heard.passed < this => {
                heard.passed = this;
                true
            }
            _ => false,
        }
    }
}

/// Passes on the reports that are news.
pub struct Reports {
    pub book: Arc<Mutex<Book>>,
    pub max: usize,
}

/// Of the reports that are being passed on, a newer one replaces an older one.
pub struct ReportKey(SocketAddr);

impl Invalidates for ReportKey {
    fn invalidates(&self, other: &ReportKey) -> bool {
        self.0 == other.0
    }
}

impl BroadcastHandler<Id> for Reports {
    type Key = ReportKey;
    type Error = Malformed;

    fn receive_item(
        &mut self,
        mut data: &[u8],
        _: Option<&Id>,
    ) -> Result<Option<ReportKey>, Malformed> {
        let report = Report::decode(&mut data)?;
        let addr = report.id.addr;
        let mut book = self.book.lock().unwrap_or_else(PoisonError::into_inner);
        let news = book.pass(report, self.max);
        Ok(news.then_some(ReportKey(addr)))
    }
}
