//! `hiroma pool --web`: a page about the pool, for people.

mod history;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use hiroma_command::refuse;
use hiroma_metrics::{Endpoint, Page};
use hiroma_pool::Health;

use super::{Way, look, print};
use history::History;

/// The page: it has all that it needs in it.
const PAGE: &str = include_str!("web/page.html");
/// Interval of the looks at the pool.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Members that are remembered as ways in.
const WAYS_MAX: usize = 64;

/// Serves the page until the process is ended.
pub fn serve(mut way: Way, address: SocketAddr) -> Result<ExitCode> {
    // Mistakes in options are better said now than in the page.
    let first = look(&way)?;
    let named = way.members.clone();
    let mut history = History::default();
    history.take(&first, now_ms());
    let shown = Arc::new(Mutex::new(serde_json::to_vec(&history.state)?));
    let page = Arc::clone(&shown);
    let endpoint = Endpoint::with_pages(address, move |path| answer(path, &page))
        .map_err(|error| refuse(format!("--web {address}: cannot listen there: {error}")))?;
    print(&format!("the pool is shown at http://{}/", endpoint.address()));
    loop {
        thread::sleep(LOOK_EVERY);
        match look(&way) {
            Ok(pool) => {
                // If the members that the user named are gone, others are still ways in.
                let alive = pool.members.iter().filter(|row| row.member.health == Health::Alive);
                let alive = alive.map(|row| row.member.address.to_string());
                let others = alive.filter(|at| !named.contains(at)).take(WAYS_MAX);
                way.members = named.iter().cloned().chain(others).collect();
                history.take(&pool, now_ms());
            }
            Err(error) => history.fail(&format!("{error:#}"), now_ms()),
        }
        let json = serde_json::to_vec(&history.state)?;
        *shown.lock().unwrap_or_else(PoisonError::into_inner) = json;
    }
}

fn answer(path: &str, shown: &Mutex<Vec<u8>>) -> Option<Page> {
    match path {
        "/" => Some(Page { kind: "text/html; charset=utf-8", body: Ok(PAGE.into()) }),
        "/pool.json" => {
            let json = shown.lock().unwrap_or_else(PoisonError::into_inner).clone();
            Some(Page { kind: "application/json", body: Ok(json) })
        }
        _ => None,
    }
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}
