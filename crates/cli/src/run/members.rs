//! Members of a pool as servers of a program: which ones it begins with, and those that come later.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use anyhow::Result;
use hiroma_command::refuse;
use hiroma_far::config::MEMBERS_FILE;
use hiroma_pool::MemberView;

use crate::pool::Way;

/// How often the pool is asked for its members.
const ASK_EVERY: Duration = Duration::from_secs(5);

/// A member's value of a label.
fn value<'a>(member: &'a MemberView, label: &str) -> Option<&'a str> {
    let labels = member.labels.iter();
    labels.filter(|(name, _)| name == label).map(|(_, value)| value.as_str()).next()
}

/// The members that take blocks, `count_max` at most: those with most free memory first, because
/// where servers are filled one after the other, few of them matter then. If not all can be taken,
/// they are of as many different values of `label` (else hosts) as there are.
pub fn servers_of(
    members: &[MemberView],
    label: Option<&str>,
    count_max: usize,
) -> Result<Vec<String>> {
    let mut takers: Vec<_> = members.iter().filter(|member| member.takes_blocks()).collect();
    takers.sort_by_key(|member| (std::cmp::Reverse(member.free_bytes), member.address));
    if takers.is_empty() {
        return Err(refuse(format!(
            "none of the pool's {} members takes blocks now: they are full, draining, short of memory themselves, or gone (`hiroma pool` shows which)",
            members.len()
        )));
    }
    if takers.len() > count_max {
        let mut taken = BTreeMap::<String, usize>::new();
        let mut turn = |member: &MemberView| {
            let named = label.and_then(|label| value(member, label));
            let domain = named.map_or_else(|| member.address.ip().to_string(), str::to_owned);
            let count = taken.entry(domain).or_default();
            *count += 1;
            *count
        };
        let mut turns: Vec<_> = takers.into_iter().map(|member| (turn(member), member)).collect();
        turns.sort_by_key(|(turn, _)| *turn);
        takers = turns.into_iter().map(|(_, member)| member).take(count_max).collect();
    }
    Ok(takers.iter().map(|member| member.address.to_string()).collect())
}

/// The label by which blocks are kept apart if nothing else is said: one that tells all members that
/// take blocks where they are, and not the same of all.
pub fn common_label(members: &[MemberView]) -> Option<String> {
    let tells = |label: &&str| {
        let takers = members.iter().filter(|member| member.takes_blocks());
        let values: Option<BTreeSet<&str>> = takers.map(|member| value(member, label)).collect();
        values.is_some_and(|values| values.len() > 1)
    };
    ["rack", "host"].iter().copied().find(tells).map(str::to_owned)
}

/// Members by their value of a label.
pub fn domains_of(members: &[MemberView], label: &str) -> Result<Vec<(String, String)>> {
    let labelled =
        |member: &MemberView| Some((member.address.to_string(), value(member, label)?.to_owned()));
    let domains: Vec<_> = members.iter().filter_map(labelled).collect();
    if domains.is_empty() {
        return Err(refuse(format!(
            "--apart {label}: no member of the pool has that label (`hiroma serve --label {label}=VALUE` gives it one, `hiroma pool` shows them)"
        )));
    }
    Ok(domains)
}

/// How a member is named in the list for the pager.
fn line(member: &MemberView, label: Option<&str>, tenant: Option<&str>) -> String {
    let tenant = tenant.map_or_else(String::new, |tenant| format!("{tenant}@"));
    let domain = label.and_then(|label| value(member, label));
    let domain = domain.map_or_else(String::new, |domain| format!(" {domain}"));
    format!("{tenant}{}{domain}\n", member.address)
}

/// A thread that lists for the program's pager the members that take blocks now. It ends when this
/// is dropped, after the question that it is waiting for: nobody waits for it.
pub struct Follower(#[expect(dead_code, reason = "the thread sees when it is dropped")] Sender<()>);

/// Whom it asks, and how it names members.
pub struct Following {
    pub way: Way,
    pub label: Option<String>,
    pub tenant: Option<String>,
}

impl Follower {
    /// Starts it for the run with this directory.
    pub fn start(mut following: Following, dir: &Path) -> Follower {
        let (stop, stopped) = channel();
        let path = dir.join(MEMBERS_FILE);
        thread::spawn(move || {
            let mut written = String::new();
            while stopped.recv_timeout(ASK_EVERY) == Err(RecvTimeoutError::Timeout) {
                following.look(&path, &mut written);
            }
        });
        Follower(stop)
    }
}

impl Following {
    fn look(&mut self, path: &PathBuf, written: &mut String) {
        // The program goes on with the members that it knows.
        let Ok(members) = self.way.members() else { return };
        self.way.begin_with(&members);
        let takers = members.iter().filter(|member| member.takes_blocks());
        let list: String = takers
            .map(|member| line(member, self.label.as_deref(), self.tenant.as_deref()))
            .collect();
        let new = path.with_extension("new");
        if list != *written && fs::write(&new, &list).and_then(|()| fs::rename(&new, path)).is_ok()
        {
            *written = list;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Members of these racks, each with less free memory than the one before.
    fn members(racks: &[&str]) -> Vec<MemberView> {
        let member = |(number, rack): (usize, &&str)| {
            serde_json::from_value(serde_json::json!({
                "name": number.to_string(), "address": format!("10.0.0.{number}:7070"),
                "incarnation": 1, "boot": 1, "health": "alive",
                "lent_bytes": 1 << 30, "free_bytes": 1000 - number, "spilled_bytes": 0,
                "pressure_percent": 0, "refusing": false, "draining": false, "version": 1,
                "labels": [["rack", rack]], "sequence": 1, "heard_ms_ago": 0,
            }))
            .unwrap()
        };
        racks.iter().enumerate().map(member).collect()
    }

    #[test]
    fn label_that_all_members_have_keeps_blocks_apart() {
        assert_eq!(common_label(&members(&["r1", "r1", "r2"])).as_deref(), Some("rack"));
        assert_eq!(common_label(&members(&["r1", "r1"])), None, "hosts tell more");
        let mut some = members(&["r1", "r2", "r3"]);
        some[1].labels = vec![("host".to_owned(), "a".to_owned())];
        assert_eq!(common_label(&some), None);
        for (number, member) in some.iter_mut().enumerate() {
            member.labels.push(("host".to_owned(), number.to_string()));
        }
        assert_eq!(common_label(&some).as_deref(), Some("host"));
        some[1].draining = true;
        assert_eq!(common_label(&some).as_deref(), Some("rack"), "it takes no blocks");
        assert_eq!(common_label(&[]), None);
    }

    #[test]
    fn few_of_many_members_are_in_different_racks() {
        let members = members(&["r1", "r1", "r1", "r2", "r3"]);
        let servers = |label, count_max| {
            let servers = servers_of(&members, label, count_max).unwrap();
            let numbers = servers.iter().map(|at| at[7..8].parse().unwrap());
            numbers.collect::<Vec<u32>>()
        };
        assert_eq!(servers(Some("rack"), 5), [0, 1, 2, 3, 4], "by free memory");
        assert_eq!(servers(Some("rack"), 4), [0, 3, 4, 1]);
        assert_eq!(servers(None, 4), [0, 1, 2, 3], "all hosts differ");
        assert!(domains_of(&members, "row").unwrap_err().to_string().contains("--label row="));
        assert_eq!(domains_of(&members, "rack").unwrap()[3].1, "r2");
        assert_eq!(line(&members[3], Some("rack"), Some("us")), "us@10.0.0.3:7070 r2\n");
        assert_eq!(line(&members[3], None, None), "10.0.0.3:7070\n");
    }
}
