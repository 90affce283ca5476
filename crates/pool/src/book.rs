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
}

impl Book {
    /// Takes note of a report; returns whether it is news.
    pub fn hear(&mut self, report: Report, max: usize) -> bool {
        let addr = report.id.addr;
        match self.heard.get(&addr) {
            Some(heard) if !report.is_newer_than(&heard.report) => return false,
            None if self.heard.len() >= max => return false,
            _ => {}
        }
        self.heard.insert(addr, Heard { report, at_ms: self.now_ms });
        true
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
        sender: Option<&Id>,
    ) -> Result<Option<ReportKey>, Malformed> {
        let report = Report::decode(&mut data)?;
        let addr = report.id.addr;
        let mut book = self.book.lock().unwrap_or_else(PoisonError::into_inner);
        // An own report is passed on even if it was said directly before.
        let news = book.hear(report, self.max) || sender.is_none();
        Ok(news.then_some(ReportKey(addr)))
    }
}
