//! The keys of a cluster's file, generated from the types that they become: path, kind, default,
//! meaning, allowed words.

use std::fmt::Write as _;

use hiroma_sim::Config;
use serde_json::{Map, Value};

use crate::presets::{MEDIA, PRESETS};

/// One key.
#[derive(Clone, PartialEq, Debug)]
pub struct Key {
    /// As in `policy.domain_radius`.
    pub path: String,
    /// What its value is.
    pub kind: String,
    /// Its value in the preset `paper`, as TOML.
    pub default: String,
    /// What it means.
    pub about: String,
    /// The words that are allowed, with their meanings, if it is one of several.
    pub words: Vec<(String, String)>,
}

/// Keys that are not in the types: other words for some that are ([`crate::cluster`]).
const OTHERS: [(&str, &str, &str); 4] = [
    ("preset", "word", "The defaults of all settings; `hiroma sim presets` lists them."),
    (
        "nodes",
        "number",
        "`topology.dims` for that many nodes; disks and arrivals follow in proportion where the file does not \
         set them.",
    ),
    ("node.memory_bytes", "number, or a size like \"16G\"", "`node.frames` for that much memory."),
    (
        "disk.medium",
        "word",
        "`disk.access_ns`, `disk.bytes_per_s` and `disk.parallel` of a kind of disk.",
    ),
];

/// All keys: those without a table first, the others by name.
pub fn keys() -> Vec<Key> {
    let schema = schemars::schema_for!(Config);
    let defaults = serde_json::to_value(Config::default()).expect("settings become JSON");
    let mut keys: Vec<Key> = OTHERS
        .iter()
        .map(|&(path, kind, about)| Key {
            path: path.to_owned(),
            kind: kind.to_owned(),
            default: String::new(),
            about: about.to_owned(),
            words: other_words(path),
        })
        .collect();
    let root = schema.as_value();
    collect(root, root, "", &defaults, &mut keys);
    keys.sort_by_key(|key| (key.path.contains('.'), key.path.clone()));
    keys
}

/// The words of a key that is not in the types.
fn other_words(path: &str) -> Vec<(String, String)> {
    match path {
        "preset" => PRESETS.map(|one| (one.name.to_owned(), one.title.to_owned())).into(),
        "disk.medium" => MEDIA.map(|(name, medium)| (name.to_owned(), medium.describe())).into(),
        _ => Vec::new(),
    }
}

/// The definition that a schema refers to, if it does.
fn resolved<'a>(root: &'a Value, schema: &'a Value) -> &'a Value {
    let name = schema["$ref"].as_str().and_then(|reference| reference.rsplit('/').next());
    name.map_or(schema, |name| &root["$defs"][name])
}

fn collect(root: &Value, schema: &Value, prefix: &str, defaults: &Value, keys: &mut Vec<Key>) {
    let none = Map::new();
    let properties = schema["properties"].as_object().unwrap_or(&none);
    for (name, property) in properties {
        let (path, target) = (format!("{prefix}{name}"), resolved(root, property));
        let default = defaults.get(name).cloned().unwrap_or_else(|| unset(target));
        if target["properties"].is_object() {
            collect(root, target, &format!("{path}."), &default, keys);
            continue;
        }
        let items = resolved(root, &target["items"]);
        if items["properties"].is_object() {
            keys.push(Key {
                path: path.clone(),
                kind: format!("list of tables, `[[{path}]]`"),
                default: default.to_string(),
                about: property["description"].as_str().unwrap_or_default().replace('\n', " "),
                words: Vec::new(),
            });
            collect(root, items, &format!("{path}."), &Value::Null, keys);
            continue;
        }
        let about = [property, target].into_iter().find_map(|one| one["description"].as_str());
        keys.push(Key {
            kind: kind_of(name, target),
            default: if default.is_null() { String::new() } else { default.to_string() },
            about: about.unwrap_or_default().replace('\n', " "),
            words: words_of(target),
            path,
        });
    }
}

/// The default of a setting that is not written out while it has it.
fn unset(schema: &Value) -> Value {
    if schema["type"].is_array() {
        // It may be left out.
        return Value::Null;
    }
    match type_of(schema) {
        Some("number" | "integer") => 0.into(),
        Some("boolean") => false.into(),
        Some("array") => Value::Array(Vec::new()),
        Some("object") => Value::Object(Map::new()),
        Some("string") if schema["enum"].is_null() => "".into(),
        _ => words_of(schema).into_iter().next().map_or(Value::Null, |(word, _)| word.into()),
    }
}

/// The type of a value; of one that may be left out, the type that it has otherwise.
fn type_of(schema: &Value) -> Option<&str> {
    schema["type"].as_str().or_else(|| schema["type"][0].as_str())
}

fn kind_of(name: &str, schema: &Value) -> String {
    let kind = match type_of(schema) {
        Some("boolean") => "true or false",
        Some("array") if is_of_tables(schema) => "list of tables",
        Some("array") => "list of numbers",
        Some("number" | "integer") if name.ends_with("_ns") => {
            "nanoseconds, or a time like \"20ms\""
        }
        Some("number" | "integer") if name.ends_with("bytes_per_s") => {
            "number, or a rate like \"25Gb/s\""
        }
        Some("number" | "integer") if name.ends_with("_bytes") => {
            "number, or a size like \"64KiB\""
        }
        Some("number" | "integer") if name.ends_with("_permille") => {
            "number, or a share like \"10%\""
        }
        Some("number" | "integer") => "number",
        Some("string") if schema["enum"].is_null() => "text",
        _ => "word",
    };
    kind.to_owned()
}

/// Whether the items of a list have keys themselves.
fn is_of_tables(schema: &Value) -> bool {
    schema["items"]["$ref"].is_string()
}

/// The words of an enumeration: each variant is a constant with a description.
fn words_of(schema: &Value) -> Vec<(String, String)> {
    // `anyOf` where one variant has no word of its own.
    let variants = ["oneOf", "anyOf"].into_iter().find_map(|key| schema[key].as_array());
    let variants = variants.into_iter().flatten();
    let described = variants.filter_map(|variant| {
        let about = variant["description"].as_str().unwrap_or_default().replace('\n', " ");
        Some((variant["const"].as_str()?.to_owned(), about))
    });
    described.collect()
}

/// The keys whose path is `name` or begins with it, or has it as its last part.
pub fn find(name: &str) -> Vec<Key> {
    let all = keys();
    let exact: Vec<Key> = all.iter().filter(|key| key.path == name).cloned().collect();
    if !exact.is_empty() {
        return exact;
    }
    let table = format!("{name}.");
    let last = format!(".{name}");
    all.into_iter()
        .filter(|key| key.path.starts_with(&table) || key.path.ends_with(&last))
        .collect()
}

/// One key for a terminal.
pub fn to_text(key: &Key) -> String {
    let mut text = format!("{}\n    {}\n    {}", key.path, key.about, key.kind);
    if !key.default.is_empty() {
        let _ = write!(text, "; {} in the preset `paper`", key.default);
    }
    text.push('\n');
    let widest = key.words.iter().map(|(word, _)| word.len()).max().unwrap_or(0);
    for (word, about) in &key.words {
        let _ = writeln!(text, "      {word:widest$}  {about}");
    }
    text
}

/// All keys as a page of the guide.
pub fn to_markdown() -> String {
    let mut text = String::from(
        "# Settings of a simulated cluster\n\n\
         All keys of the files that `hiroma sim run`, `compare`, `sweep` and `replay` read.\n\
         `hiroma sim explain KEY` shows one. This page is generated from the same types.\n",
    );
    let mut table = None;
    for key in keys() {
        let of = key.path.rsplit_once('.').map_or("", |(table, _)| table).to_owned();
        if table.as_ref() != Some(&of) {
            let title =
                if of.is_empty() { "Without a table".to_owned() } else { format!("`[{of}]`") };
            let _ = write!(text, "\n## {title}\n");
            table = Some(of);
        }
        let default = match key.default.as_str() {
            "" => String::new(),
            default => format!(" Default: `{default}`."),
        };
        let _ = write!(text, "\n**`{}`** ({}).{default}\n{}\n", key.path, key.kind, key.about);
        if !key.words.is_empty() {
            text.push('\n');
        }
        for (word, about) in &key.words {
            let _ = writeln!(text, "- `{word}`: {about}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_is_a_key_with_a_meaning() {
        let all = keys();
        fn count(value: &Value) -> usize {
            match value {
                Value::Object(table) => table.values().map(count).sum(),
                _ => 1,
            }
        }
        let settings = count(&serde_json::to_value(Config::default()).unwrap());
        // Some are not written out while they have their defaults.
        assert!(all.len() > settings + OTHERS.len(), "{}", all.len());
        assert_eq!(find("network.model")[0].default, "\"fifo\"");
        assert_eq!(find("event.kind")[0].words.len(), 5);
        let class = &find("node.class.access_ns")[0];
        assert!(class.kind.starts_with("nanoseconds") && class.default.is_empty(), "{class:?}");
        assert!(find("event")[0].kind.contains("[[event]]"));
        let unexplained: Vec<&str> =
            all.iter().filter(|key| key.about.is_empty()).map(|key| key.path.as_str()).collect();
        assert!(unexplained.is_empty(), "{unexplained:?}");
        let unnamed: Vec<&Key> =
            all.iter().filter(|key| key.kind == "word" && key.words.is_empty()).collect();
        assert!(unnamed.is_empty(), "{unnamed:?}");
        assert_eq!(find("preset")[0].words.len(), PRESETS.len());
        assert_eq!(
            find("disk.medium")[0].words[0],
            ("nvme".to_owned(), "80 µs and 3200 MB/s, 8 accesses at the same time".to_owned())
        );
    }

    #[test]
    fn values_with_units_are_read_as_the_explanation_says() {
        let mut count = 0;
        for key in keys() {
            let Some((_, text)) = key.kind.split_once(" like ") else { continue };
            let name = key.path.rsplit('.').next().unwrap();
            let read = crate::settings::number(name, text.trim_matches('"'));
            assert!(read.is_ok_and(|number| number > 0), "{key:?}");
            count += 1;
        }
        assert!(count > 40, "{count}");
        for (key, what) in [
            ("node.page_bytes", "a size"),
            ("network.bytes_per_s", "a rate"),
            ("load.arrivals_per_s", "number"),
        ] {
            assert!(find(key)[0].kind.contains(what), "{key}");
        }
    }

    #[test]
    fn keys_are_found_by_path_table_and_last_part() {
        assert_eq!(find("run.canary")[0].words.len(), 20);
        assert_eq!(find("domain_radius")[0].path, "policy.domain_radius");
        assert!(find("failures").len() == 3 && find("nonsense").is_empty());
        assert!(to_text(&find("network.switching")[0]).contains("store_and_forward"));
    }
}
