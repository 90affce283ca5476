//! Which processes the daemon manages although they have not registered: rules in a file, and the
//! processes of the machine that they choose.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use hiroma_sys::cpu::now_ns;
use hiroma_sys::host::proc;
use hiroma_units::{Bytes, PAGE};
use nix::unistd::User;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use wildmatch::WildMatch;

use crate::machine;

/// Processes with less resident memory are left alone, unless a rule sets another limit: what
/// watching them costs is more than huge pages can save.
const RESIDENT_MIN: Bytes = Bytes(64 << 20);
/// Younger processes are left alone: most end soon.
const AGE_NS_MIN: u64 = 2_000_000_000;
/// A process is named by its parents up to this many generations before.
const GENERATIONS_MAX: usize = 16;

/// One rule. All conditions that are given must hold; the first rule that fits decides.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Name of the program's file or of its first thread; `*` and `?` stand for other characters.
    pub name: Option<String>,
    /// Name or number of its user.
    pub user: Option<String>,
    /// Its control group, or one above it, as a path; `*` and `?` as above.
    pub cgroup: Option<String>,
    /// Its systemd service, slice or scope.
    pub unit: Option<String>,
    /// Least resident memory, as a size.
    #[serde(default, deserialize_with = "size")]
    pub resident_min: Option<Bytes>,
    /// Whether it is left alone.
    #[serde(default)]
    pub leave: bool,
    /// Whether the rule holds for the children of what it fits, too.
    #[serde(default = "yes")]
    pub children: bool,
    /// Limit of memory in huge pages for each process.
    #[serde(default, deserialize_with = "size")]
    pub budget: Option<Bytes>,
}

impl Rule {
    /// The least resident memory. A process that is managed already is let go at half of it, so
    /// that none comes and goes all the time: what is known of it is lost each time.
    fn resident_min(&self, is_managed: bool) -> Bytes {
        let Bytes(bytes) = self.resident_min.unwrap_or(RESIDENT_MIN);
        Bytes(if is_managed { bytes / 2 } else { bytes })
    }
}

fn yes() -> bool {
    true
}

fn size<'de, D: Deserializer<'de>>(text: D) -> Result<Option<Bytes>, D::Error> {
    let text = String::deserialize(text)?;
    text.parse().map(Some).map_err(D::Error::custom)
}

/// The rules of a file.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rules {
    #[serde(default, rename = "rule")]
    pub rules: Vec<Rule>,
}

/// Why a file of rules is not used.
#[derive(Debug, thiserror::Error)]
pub enum RulesError {
    #[error("{}: {source}", .path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{}: {source}", .path.display())]
    Parse { path: PathBuf, source: Box<toml::de::Error> },
    #[error("{}: rule {number} names no process: give it name, user, cgroup or unit", .path.display())]
    Empty { path: PathBuf, number: usize },
    #[error("{}: rule {number}: there is no user `{user}`", .path.display())]
    User { path: PathBuf, number: usize, user: String },
}

impl Rules {
    /// Reads the rules in `path` (TOML, one `[[rule]]` each).
    ///
    /// # Errors
    /// As [`RulesError`] lists them.
    pub fn read(path: &Path) -> Result<Rules, RulesError> {
        let text = fs::read_to_string(path)
            .map_err(|source| RulesError::Read { path: path.to_owned(), source })?;
        let mut rules: Rules = toml::from_str(&text).map_err(|source| RulesError::Parse {
            path: path.to_owned(),
            source: Box::new(source),
        })?;
        for (at, rule) in rules.rules.iter_mut().enumerate() {
            let number = at + 1;
            if rule.name.is_none()
                && rule.user.is_none()
                && rule.cgroup.is_none()
                && rule.unit.is_none()
            {
                return Err(RulesError::Empty { path: path.to_owned(), number });
            }
            if let Some(user) = rule.user.take() {
                let number_of = user.parse().ok().or_else(|| uid_of(&user));
                let uid: u32 =
                    number_of.ok_or(RulesError::User { path: path.to_owned(), number, user })?;
                rule.user = Some(uid.to_string());
            }
        }
        Ok(rules)
    }

    /// No process with less resident memory can be chosen.
    fn resident_min(&self) -> Bytes {
        self.rules.iter().map(|rule| rule.resident_min(true)).min().unwrap_or(Bytes(u64::MAX))
    }

    /// The rule for a process, of which the parents' facts are `family`: the process itself first.
    fn rule(&self, family: &[&Facts], is_managed: bool) -> Option<&Rule> {
        let own = family.first()?;
        self.rules.iter().find(|rule| {
            own.resident >= rule.resident_min(is_managed)
                && family
                    .iter()
                    .take(if rule.children { family.len() } else { 1 })
                    .any(|facts| facts.fit(rule))
        })
    }
}

/// The number of a user.
fn uid_of(name: &str) -> Option<u32> {
    Some(User::from_name(name).ok()??.uid.as_raw())
}

/// What the rules ask about a process.
#[derive(Clone, Debug, Default, PartialEq)]
struct Facts {
    parent: u32,
    started: u64,
    resident: Bytes,
    uid: u32,
    /// Name of the first thread, and of the program's file.
    names: [String; 2],
    cgroup: String,
    /// Whether all of these are known: that takes several files of each process.
    is_complete: bool,
}

impl Facts {
    /// What `/proc/PID/stat` says. None: the process has ended, is a thread of the kernel, or
    /// cannot be looked at.
    fn of(pid: u32) -> Option<Facts> {
        let stat = proc::stat(pid)?;
        let resident_pages: u64 = proc::field(&stat, proc::RESIDENT).filter(|pages| *pages > 0)?;
        Some(Facts {
            parent: proc::field(&stat, proc::PARENT)?,
            started: proc::field(&stat, proc::STARTED)?,
            resident: Bytes(resident_pages * PAGE as u64),
            names: [proc::name(&stat)?.to_owned(), String::new()],
            ..Facts::default()
        })
    }

    /// Adds the rest, if all of it can be read.
    fn complete(&mut self, pid: u32) {
        let dir = PathBuf::from(format!("/proc/{pid}"));
        let Ok(found) = fs::metadata(&dir) else { return };
        self.uid = found.uid();
        let file = fs::read_link(dir.join("exe")).ok();
        let file = file.as_deref().and_then(Path::file_name).unwrap_or_default();
        self.names[1] = file.to_string_lossy().into_owned();
        // Version 2 has one line, `0::/path`; in version 1 systemd's hierarchy has the whole path.
        let Ok(groups) = fs::read_to_string(dir.join("cgroup")) else { return };
        self.is_complete = true;
        let group = groups
            .lines()
            .find(|line| line.contains(":name=systemd:") || line.starts_with("0::"))
            .or_else(|| groups.lines().next())
            .and_then(|line| line.splitn(3, ':').nth(2));
        self.cgroup = group.unwrap_or("/").to_owned();
    }

    fn fit(&self, rule: &Rule) -> bool {
        let is = |pattern: &String, text: &str| WildMatch::new(pattern).matches(text);
        let named = |pattern: &String| self.names.iter().any(|name| is(pattern, name));
        let grouped = |pattern: &String| {
            Path::new(&self.cgroup)
                .ancestors()
                .any(|group| group.to_str().is_some_and(|group| is(pattern, group)))
        };
        let in_unit = |unit: &String| self.cgroup.split('/').any(|part| is(unit, part));
        rule.name.as_ref().is_none_or(named)
            && rule.user.as_ref().is_none_or(|user| *user == self.uid.to_string())
            && rule.cgroup.as_ref().is_none_or(grouped)
            && rule.unit.as_ref().is_none_or(in_unit)
    }
}

/// A process that the rules choose.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Chosen {
    pub pid: u32,
    /// Limit of memory in huge pages; 0: its share.
    pub budget_bytes: u64,
    pub resident_bytes: u64,
}

/// Chooses processes by rules.
#[derive(Debug)]
pub struct Selector {
    rules: Rules,
    /// Processes that could not be managed, by number and start.
    refused: BTreeMap<(u32, u64), Refused>,
    /// The last look.
    facts: BTreeMap<u32, Facts>,
}

/// When to try a process again, and why it could not be managed.
#[derive(Debug)]
struct Refused {
    until_ns: u64,
    reason: String,
}

impl Selector {
    pub fn new(rules: Rules) -> Selector {
        Selector { rules, refused: BTreeMap::new(), facts: BTreeMap::new() }
    }

    /// Replaces the rules; what was refused is tried again.
    pub fn set_rules(&mut self, rules: Rules) {
        self.rules = rules;
        self.refused.clear();
    }

    /// Looks at all processes. Returns those that the rules choose, and that were not refused.
    /// `managed`: those that were chosen before.
    pub fn choose(&mut self, managed: &BTreeSet<u32>) -> Vec<Chosen> {
        self.look();
        let own = std::process::id();
        let (facts, refused) = (&self.facts, &mut self.refused);
        let now = now_ns();
        // Nothing is forgotten of a process that could not be looked at this time.
        refused.retain(|(pid, started), _| {
            facts.get(pid).map_or(facts.is_empty(), |facts| facts.started == *started)
        });
        let chosen = |(&pid, own_facts): (&u32, &Facts)| {
            let refused = refused.get(&(pid, own_facts.started));
            let is_open = pid != own
                && own_facts.is_complete
                && refused.is_none_or(|refused| now >= refused.until_ns)
                && machine::age_ns(own_facts.started) >= AGE_NS_MIN;
            let rule = || self.rules.rule(&family(facts, pid), managed.contains(&pid));
            let rule = is_open.then(rule).flatten()?;
            let budget_bytes = rule.budget.map_or(0, |Bytes(bytes)| bytes);
            let Bytes(resident_bytes) = own_facts.resident;
            (!rule.leave).then_some(Chosen { pid, budget_bytes, resident_bytes })
        };
        facts.iter().filter_map(chosen).collect()
    }

    /// Reads what there is to know of all processes: of most only how large they are.
    fn look(&mut self) {
        self.facts.clear();
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
            if let Some((pid, facts)) = pid.and_then(|pid| Some((pid, Facts::of(pid)?))) {
                self.facts.insert(pid, facts);
            }
        }
        let least = self.rules.resident_min();
        let is_large = |(&pid, facts): (&u32, &Facts)| (facts.resident >= least).then_some(pid);
        let large: Vec<u32> = self.facts.iter().filter_map(is_large).collect();
        for pid in large {
            let mut next = pid;
            for _ in 0..GENERATIONS_MAX {
                let Some(facts) = self.facts.get_mut(&next) else { break };
                if !facts.is_complete {
                    facts.complete(next);
                }
                next = facts.parent;
            }
        }
        // Little known is worse than nothing: it would look as if no rule fitted.
        self.facts.retain(|_, facts| facts.resident < least || facts.is_complete);
    }

    /// Whether the last look has seen the process.
    pub fn has_seen(&self, pid: u32) -> bool {
        self.facts.contains_key(&pid)
    }

    /// The process cannot be managed: it is not chosen again for this time. Returns whether it was
    /// not refused for this reason before.
    pub fn refuse(&mut self, pid: u32, for_ns: u64, reason: &str) -> bool {
        let Some(facts) = self.facts.get(&pid) else { return true };
        let refused =
            Refused { until_ns: now_ns().saturating_add(for_ns), reason: reason.to_owned() };
        let before = self.refused.insert((pid, facts.started), refused);
        before.is_none_or(|before| before.reason != reason)
    }
}

/// A process and its parents.
fn family(facts: &BTreeMap<u32, Facts>, pid: u32) -> Vec<&Facts> {
    let of = |pid: &u32| facts.get(pid);
    std::iter::successors(of(&pid), |facts| of(&facts.parent)).take(GENERATIONS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(name: &str, cgroup: &str) -> Facts {
        Facts {
            resident: Bytes(1 << 30),
            uid: 7,
            names: [name.to_owned(), format!("{name}-bin")],
            cgroup: cgroup.to_owned(),
            ..Facts::default()
        }
    }

    fn rules(text: &str) -> Result<Rules, RulesError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("hot.toml");
        fs::write(&path, text).unwrap();
        Rules::read(&path)
    }

    #[test]
    fn first_rule_that_fits_decides() {
        let rules = rules(
            "[[rule]]\nname = 'java'\ncgroup = '/system.slice/backup.service'\nleave = true\n\
             [[rule]]\nname = 'ja*'\nuser = '7'\nbudget = '1G'\n",
        )
        .unwrap();
        let of = |facts: &Facts| rules.rule(&[facts], false).map(|rule| rule.leave);
        assert_eq!(of(&facts("java", "/system.slice/backup.service/inner")), Some(true));
        assert_eq!(of(&facts("java", "/system.slice")), Some(false));
        assert_eq!(of(&Facts { uid: 8, ..facts("java", "/") }), None);
        assert_eq!(of(&Facts { resident: Bytes(1 << 20), ..facts("java", "/") }), None);
        // Who is managed may shrink.
        let smaller = Facts { resident: Bytes(40 << 20), ..facts("java", "/") };
        assert_eq!(of(&smaller), None);
        assert!(rules.rule(&[&smaller], true).is_some());
        assert_eq!(rules.resident_min(), Bytes(32 << 20));
        assert_eq!(rules.rules[1].budget, Some(Bytes(1 << 30)));
    }

    #[test]
    fn children_follow_unless_the_rule_excludes_them() {
        let with = |children| {
            rules(&format!("[[rule]]\nunit = 'redis.service'\nchildren = {children}\n")).unwrap()
        };
        let (parent, child) = (facts("redis", "/a/redis.service"), facts("sh", "/b"));
        assert!(with(true).rule(&[&child, &parent], false).is_some());
        assert!(with(false).rule(&[&child, &parent], false).is_none());
        assert!(with(false).rule(&[&parent], false).is_some());
    }

    #[test]
    fn wrong_files_are_refused_with_place_and_reason() {
        let said = |text: &str| rules(text).unwrap_err().to_string();
        assert!(said("[[rule]]\nleave = true").contains("rule 1 names no process"));
        assert!(said("[[rule]]\nnam = 'x'").contains("unknown field `nam`"));
        assert!(said("[[rule]]\nuser = 'nobody at all'").contains("no user `nobody at all`"));
        assert!(Rules::read(Path::new("/no/such/file")).is_err());
    }

    #[test]
    fn a_running_process_is_found_by_name() {
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let rules = rules("[[rule]]\nname = 'sleep'\nresident_min = '4K'\n").unwrap();
        let mut selector = Selector::new(rules);
        let found = |selector: &mut Selector| {
            selector.choose(&BTreeSet::new()).iter().any(|chosen| chosen.pid == child.id())
        };
        assert!(!found(&mut selector), "too young");
        std::thread::sleep(std::time::Duration::from_nanos(AGE_NS_MIN + 100_000_000));
        let first = found(&mut selector);
        assert!(selector.has_seen(child.id()) && selector.has_seen(std::process::id()));
        assert!(selector.refuse(child.id(), 600_000_000_000, "no rights"));
        let second = found(&mut selector);
        // It is tried again after the time, and the same reason is no news then.
        assert!(!selector.refuse(child.id(), 0, "no rights"));
        let third = found(&mut selector);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(first && !second && third);
    }
}
