//! Placement policies of users: functions of a Rust program, WebAssembly modules, Python files.
//!
//! A cluster's file names one as `policy.placement`:
//!
//! | Value | Is |
//! |---|---|
//! | `wasm:FILE` | a WebAssembly module, or its text form ([`wasm`]) |
//! | `python:FILE` | a Python file ([`python`]) |
//! | a name | a policy that the program has registered ([`Policies::register`]) |

pub mod python;
pub mod wasm;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use hiroma_policy::placement::{CustomPlacement, PlacementKind, PlacementPolicy};
use twox_hash::XxHash3_64;

use crate::single::name_of;

/// Largest file of a policy, bytes.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// The policies that files of clusters may name besides the built-in ones.
#[derive(Clone, Debug, Default)]
pub struct Policies {
    registered: BTreeMap<String, CustomPlacement>,
    /// Files that were read: one that changes while the program runs is not read again.
    loaded: Arc<Mutex<BTreeMap<(Scheme, PathBuf), CustomPlacement>>>,
}

/// What kind of file a policy is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Scheme {
    Wasm,
    Python,
}

const SCHEMES: [(&str, Scheme); 2] = [("wasm:", Scheme::Wasm), ("python:", Scheme::Python)];

impl Policies {
    /// Those that are read from files, and none of a program's own.
    pub fn new() -> Policies {
        Policies::default()
    }

    /// Lets files name a policy of this program; `policy` makes that of one node.
    ///
    /// Results are stored under the name: a policy that decides otherwise needs another one.
    ///
    /// # Panics
    /// If the name is that of a built-in policy, was registered before, or is not made of letters,
    /// digits, `_`, `-` and `.`.
    pub fn register<P: PlacementPolicy + 'static>(
        &mut self,
        name: &str,
        policy: impl Fn() -> P + Send + Sync + 'static,
    ) -> &mut Policies {
        let word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        assert!(!name.is_empty() && name.chars().all(word), "`{name}` is not a name of a policy");
        assert!(!built_in(name), "`{name}` is a built-in policy");
        let before = self.registered.insert(name.to_owned(), CustomPlacement::new(name, policy));
        assert!(before.is_none(), "`{name}` is registered twice");
        self
    }

    /// The policy that `value` names; none if it is a word for the configuration itself. Files are
    /// relative to `directory`.
    ///
    /// # Errors
    /// If there is no such policy, or it cannot be used: what is wrong, and what to do.
    pub fn find(&self, value: &str, directory: &Path) -> Result<Option<CustomPlacement>, String> {
        if built_in(value) {
            return Ok(None);
        }
        if let Some(registered) = self.registered.get(value) {
            return Ok(Some(registered.clone()));
        }
        let scheme = SCHEMES.iter().find_map(|&(prefix, scheme)| {
            value.strip_prefix(prefix).map(|file| (scheme, directory.join(file)))
        });
        match scheme {
            Some((scheme, path)) => self.load(scheme, path).map(Some),
            None => Err(format!("there is no `{value}`, use one of {}", self.words())),
        }
    }

    fn load(&self, scheme: Scheme, path: PathBuf) -> Result<CustomPlacement, String> {
        let mut loaded = self.loaded.lock().expect("no holder panics");
        let key = (scheme, path);
        if let Some(policy) = loaded.get(&key) {
            return Ok(policy.clone());
        }
        let path = &key.1;
        let failed = |what: String| format!("{}: {what}", path.display());
        let content = read(path).map_err(failed)?;
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mark = XxHash3_64::oneshot(&content);
        let policy = match scheme {
            Scheme::Wasm => wasm::Wasm::new(&content)
                .map(|source| CustomPlacement::from_source(label("wasm", &name, mark), source)),
            Scheme::Python => python::Python::new(path, &content)
                .map(|source| CustomPlacement::from_source(label("python", &name, mark), source)),
        };
        let policy = policy.map_err(|error| failed(error.0))?;
        loaded.insert(key, policy.clone());
        Ok(policy)
    }

    /// All that a file may name.
    fn words(&self) -> String {
        let built_in = PlacementKind::ALL.iter().map(name_of);
        let words = built_in.chain(self.registered.keys().cloned());
        let words: Vec<String> = words.map(|word| format!("`{word}`")).collect();
        format!("{}, `wasm:FILE`, `python:FILE`", words.join(", "))
    }
}

/// The name of a file with a checksum of its content: the same wherever the file is.
fn label(scheme: &str, name: &str, mark: u64) -> String {
    format!("{scheme}:{name}@{mark:016x}")
}

fn built_in(word: &str) -> bool {
    PlacementKind::ALL.iter().any(|kind| name_of(kind) == word)
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    let length = fs::metadata(path).map_err(|error| error.to_string())?.len();
    if length > FILE_BYTES_MAX {
        return Err(format!("{length} bytes, and a policy has at most {FILE_BYTES_MAX}"));
    }
    fs::read(path).map_err(|error| error.to_string())
}
