//! TOML files over a base of defaults, with the line of every key, so that an error is reported
//! where it occurs.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use hiroma_units::{Bytes, ParseSizeError, ParseTimeError, parse_time};
use serde::Serialize;
use serde::de::DeserializeOwned;
use toml::de::{DeTable, DeValue};
use toml::{Table, Value};

/// One or several problems of a file: `file:line: what is wrong, and what is allowed`, one line
/// each.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SettingsError(pub String);

/// A TOML file and where its keys are.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Name for messages.
    name: String,
    /// The content of the file.
    table: Table,
    /// `file:line` of every key, by dotted path.
    places: BTreeMap<String, String>,
}

impl Settings {
    /// Reads a file.
    pub fn read(path: &Path) -> Result<Settings, SettingsError> {
        let name = path.display().to_string();
        let text =
            fs::read_to_string(path).map_err(|error| SettingsError(format!("{name}: {error}")))?;
        Settings::parse(&name, &text)
    }

    /// Reads a text; `name` is for messages.
    pub fn parse(name: &str, text: &str) -> Result<Settings, SettingsError> {
        let document = DeTable::parse(text).map_err(|error| {
            let line = error.span().map_or(1, |span| line_of(text, span.start));
            SettingsError(format!(
                "{name}:{line}: not TOML: {}",
                error.message().replace('\n', ", ")
            ))
        })?;
        let mut lines = BTreeMap::new();
        let table = take_table(document.get_ref(), "", text, &mut lines);
        let places =
            lines.into_iter().map(|(path, line)| (path, format!("{name}:{line}"))).collect();
        Ok(Settings { name: name.to_owned(), table, places })
    }

    /// The content of the file.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// The same, mutable; lines remain those of the file.
    pub fn table_mut(&mut self) -> &mut Table {
        &mut self.table
    }

    /// Removes a top-level key, and returns its value.
    pub fn take(&mut self, key: &str) -> Option<Value> {
        self.table.remove(key)
    }

    /// A message about `key` (dotted), with its line or that of the table it belongs in.
    pub fn complain(&self, key: &str, what: impl fmt::Display) -> SettingsError {
        SettingsError(format!("{}: {what}", self.place(key)))
    }

    /// The directory of the file, to which paths in it are relative.
    pub fn directory(&self) -> &Path {
        Path::new(&self.name).parent().unwrap_or(Path::new(""))
    }

    /// Whether the file has `key` (dotted).
    pub fn has(&self, key: &str) -> bool {
        self.places.contains_key(key)
    }

    /// `file:line` of `key`, or of its nearest existing parent.
    pub fn place(&self, key: &str) -> String {
        let mut known = key;
        loop {
            if let Some(place) = self.places.get(known) {
                return place.clone();
            }
            match known.rsplit_once('.') {
                Some((parent, _)) => known = parent,
                None => return self.name.clone(),
            }
        }
    }

    /// The directory of the file that sets `key`: what paths in it are relative to.
    pub fn directory_of(&self, key: &str) -> PathBuf {
        let place = self.place(key);
        let file = place.rsplit_once(':').map_or(place.as_str(), |(file, _)| file);
        Path::new(file).parent().unwrap_or(Path::new("")).to_owned()
    }

    /// The part of the file at table `key`, with lines of its own.
    pub fn part(&self, key: &str) -> Settings {
        let prefix = format!("{key}.");
        let places = self
            .places
            .iter()
            .filter_map(|(path, place)| {
                Some((path.strip_prefix(&prefix)?.to_owned(), place.clone()))
            })
            .collect();
        let table = self.table.get(key).and_then(Value::as_table).cloned().unwrap_or_default();
        Settings { name: self.name.clone(), table, places }
    }

    /// Sets `key` (dotted) as if the file set it at `place`.
    pub fn set(&mut self, key: &str, value: Value, place: String) {
        self.places.insert(key.to_owned(), place);
        let mut table = &mut self.table;
        let mut parts = key.split('.').peekable();
        while let Some(part) = parts.next() {
            if parts.peek().is_none() {
                table.insert(part.to_owned(), value);
                return;
            }
            let inner = table.entry(part).or_insert_with(|| Value::Table(Table::new()));
            if !inner.is_table() {
                *inner = Value::Table(Table::new());
            }
            table = inner.as_table_mut().expect("it was made one");
        }
    }

    /// `base`, with every setting of the file applied.
    pub fn over<T: Serialize + DeserializeOwned>(&self, base: &T) -> Result<T, SettingsError> {
        let mut merged = Table::try_from(base)
            .map_err(|error| SettingsError(format!("{}: {error}", self.name)))?;
        self.merge(&mut merged, &self.table, "")?;
        self.typed(merged)
    }

    /// The file's own content as a `T`.
    pub fn content<T: DeserializeOwned>(&self) -> Result<T, SettingsError> {
        self.typed(self.table.clone())
    }

    fn typed<T: DeserializeOwned>(&self, table: Table) -> Result<T, SettingsError> {
        serde_path_to_error::deserialize(Value::Table(table)).map_err(|error| {
            let mut path = error.path().to_string();
            let message = error.inner().message().replace('\n', ", ");
            // The path to an unknown key ends at its table.
            if let Some(unknown) =
                message.strip_prefix("unknown field `").and_then(|rest| rest.split('`').next())
            {
                let inside = format!("{path}.{unknown}");
                if !path.ends_with(unknown)
                    && self
                        .places
                        .contains_key(inside.trim_start_matches('.').trim_start_matches(".."))
                {
                    path = inside;
                }
            }
            let path = path.trim_matches('.');
            let subject =
                if path.is_empty() || path == "?" { String::new() } else { format!("`{path}`: ") };
            self.complain(path, format!("{subject}{}", spoken(&message)))
        })
    }

    /// Merges `over` into `base`, table by table. Where the base has a number, a text with a unit
    /// is accepted as one.
    fn merge(&self, base: &mut Table, over: &Table, prefix: &str) -> Result<(), SettingsError> {
        for (key, value) in over {
            let path = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
            match (base.get_mut(key), value) {
                (Some(Value::Table(old)), Value::Table(new)) if !changes_kind(old, new) => {
                    self.merge(old, new, &path)?
                }
                (Some(old @ Value::Integer(_)), Value::String(text)) => {
                    *old = Value::Integer(
                        number(key, text)
                            .map_err(|what| self.complain(&path, format!("`{path}`: {what}")))?,
                    );
                }
                (_, value @ Value::Array(_)) | (None, value) => {
                    // A list, a setting that is not written out while it has no value, or an unknown
                    // key.
                    base.insert(key.clone(), self.in_numbers(&path, key, value)?);
                }
                _ => {
                    base.insert(key.clone(), value.clone());
                }
            }
        }
        Ok(())
    }

    /// `value` with numbers where its keys take texts with units.
    fn in_numbers(&self, path: &str, key: &str, value: &Value) -> Result<Value, SettingsError> {
        Ok(match value {
            Value::String(text) if takes_unit(key) => {
                let number = number(key, text)
                    .map_err(|what| self.complain(path, format!("`{path}`: {what}")))?;
                Value::Integer(number)
            }
            Value::Table(table) => {
                let mut taken = Table::new();
                for (key, value) in table {
                    let path = format!("{path}.{key}");
                    taken.insert(key.clone(), self.in_numbers(&path, key, value)?);
                }
                Value::Table(taken)
            }
            Value::Array(items) => {
                let item = |(place, item)| self.in_numbers(&format!("{path}[{place}]"), key, item);
                Value::Array(items.iter().enumerate().map(item).collect::<Result<_, _>>()?)
            }
            other => other.clone(),
        })
    }
}

/// Whether a key of this name takes a number that may be written with a unit.
fn takes_unit(key: &str) -> bool {
    ["_ns", "_bytes"].iter().any(|end| key.ends_with(end))
        || UNITS.iter().any(|unit| key.ends_with(unit.suffix))
}

/// A table whose `kind` differs replaces the old table, since none of the old settings would fit.
fn changes_kind(old: &Table, new: &Table) -> bool {
    new.get("kind").is_some_and(|kind| old.get("kind") != Some(kind))
}

/// Translates serde's message for users who do not know serde.
fn spoken(message: &str) -> String {
    message
        .replace("unknown field", "there is no key")
        .replace("unknown variant", "there is no")
        .replace("expected one of", "use one of")
        .replace("there are no fields", "no keys are allowed here")
        .replace(", expected `", ", use `")
        .replace(", expected ", ", needed is ")
        .replace("missing field", "missing key")
        .replace("invalid type", "wrong type")
        .replace("u32", "a whole number")
        .replace("u64", "a whole number")
        .replace("u16", "a whole number")
        .replace("u8", "a whole number")
        .replace("usize", "a whole number")
}

fn line_of(text: &str, at: usize) -> usize {
    1 + text.as_bytes()[..at.min(text.len())].iter().filter(|&&byte| byte == b'\n').count()
}

fn take_table(
    table: &DeTable<'_>,
    prefix: &str,
    text: &str,
    lines: &mut BTreeMap<String, usize>,
) -> Table {
    let mut taken = Table::new();
    for (key, value) in table {
        let path = if prefix.is_empty() {
            key.get_ref().to_string()
        } else {
            format!("{prefix}.{}", key.get_ref())
        };
        lines.insert(path.clone(), line_of(text, key.span().start));
        taken.insert(key.get_ref().to_string(), take_value(value.get_ref(), &path, text, lines));
    }
    taken
}

fn take_value(
    value: &DeValue<'_>,
    path: &str,
    text: &str,
    lines: &mut BTreeMap<String, usize>,
) -> Value {
    match value {
        DeValue::String(string) => Value::String(string.to_string()),
        // TOML's integers have 64 bits and a sign; an integer that does not fit is shown in the
        // error message as text.
        DeValue::Integer(integer) => i64::from_str_radix(integer.as_str(), integer.radix())
            .map_or_else(|_| Value::String(integer.to_string()), Value::Integer),
        DeValue::Float(float) => {
            float.as_str().parse().map_or_else(|_| Value::String(float.to_string()), Value::Float)
        }
        DeValue::Boolean(boolean) => Value::Boolean(*boolean),
        DeValue::Datetime(datetime) => Value::Datetime(*datetime),
        DeValue::Array(array) => Value::Array(
            array
                .iter()
                .enumerate()
                .map(|(index, item)| {
                    let path = format!("{path}[{index}]");
                    lines.insert(path.clone(), line_of(text, item.span().start));
                    take_value(item.get_ref(), &path, text, lines)
                })
                .collect(),
        ),
        DeValue::Table(table) => Value::Table(take_table(table, path, text, lines)),
    }
}

/// Converts a text with a unit to the integer that a key of this name takes.
///
/// Sizes and times are written as in every option; rates and shares occur only here.
pub(crate) fn number(key: &str, text: &str) -> Result<i64, String> {
    let whole = |number: u128| i64::try_from(number).map_err(|_| format!("`{text}` is too large"));
    if key.ends_with("_ns") {
        // As a number without quotes it would be nanoseconds.
        if text.trim().parse::<f64>().is_ok() {
            return Err(ParseTimeError::Malformed(text.to_owned()).to_string());
        }
        return parse_time(text)
            .map_err(|error| error.to_string())
            .and_then(|t| whole(t.as_nanos()));
    }
    if key.ends_with("_bytes") {
        let bytes: Result<Bytes, ParseSizeError> = text.parse();
        return bytes.map_err(|error| error.to_string()).and_then(|Bytes(n)| whole(n.into()));
    }
    let kind = UNITS
        .iter()
        .find(|kind| key.ends_with(kind.suffix))
        .ok_or_else(|| format!("`{text}` is not a whole number"))?;
    let text = text.trim();
    let end =
        text.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '_')).unwrap_or(text.len());
    let (digits, unit) = (text[..end].replace('_', ""), text[end..].trim());
    let refused = || {
        let names: Vec<&str> = kind.units.iter().map(|(name, ..)| *name).collect();
        format!("`{text}` is not {}: write a number and one of {}", kind.what, names.join(", "))
    };
    let &(_, over, under) =
        kind.units.iter().find(|(name, ..)| *name == unit).ok_or_else(refused)?;
    let (whole, fraction) = digits.split_once('.').unwrap_or((&digits, ""));
    if whole.is_empty() || fraction.len() > 9 || fraction.contains('.') {
        return Err(refused());
    }
    let scale = 10u128.pow(fraction.len() as u32);
    let mantissa: u128 = format!("{whole}{fraction}").parse().map_err(|_| refused())?;
    let exact = mantissa.checked_mul(over).ok_or_else(refused)?;
    if exact % (scale * under) != 0 {
        return Err(format!("`{text}` is not a whole number of {}", kind.base));
    }
    i64::try_from(exact / (scale * under)).map_err(|_| format!("`{text}` is too large"))
}

/// Units that a value may have, selected by the end of the key's name.
struct Unit {
    suffix: &'static str,
    what: &'static str,
    base: &'static str,
    /// Name, multiplier and divisor.
    units: &'static [(&'static str, u128, u128)],
}

const UNITS: [Unit; 2] = [
    Unit {
        suffix: "bytes_per_s",
        what: "a rate",
        base: "bytes per second",
        units: &[
            ("B/s", 1, 1),
            ("kB/s", 1000, 1),
            ("MB/s", 1_000_000, 1),
            ("GB/s", 1_000_000_000, 1),
            ("Mb/s", 1_000_000, 8),
            ("Gb/s", 1_000_000_000, 8),
        ],
    },
    Unit { suffix: "_permille", what: "a share", base: "thousandths", units: &[("%", 10, 1)] },
];

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Serialize, Deserialize, Debug, PartialEq, Clone)]
    #[serde(deny_unknown_fields)]
    struct Machine {
        nodes: u32,
        links: Links,
        shape: Shape,
        order: Order,
    }

    #[derive(Serialize, Deserialize, Debug, PartialEq, Clone)]
    #[serde(deny_unknown_fields)]
    struct Links {
        latency_ns: u64,
        rate_bytes_per_s: u64,
        buffer_bytes: u64,
        busy_permille: u32,
    }

    #[derive(Serialize, Deserialize, Debug, PartialEq, Clone)]
    #[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
    enum Shape {
        Torus { width: u32, height: u32 },
        Star { arms: u32 },
    }

    #[derive(Serialize, Deserialize, Debug, PartialEq, Clone)]
    #[serde(rename_all = "kebab-case")]
    enum Order {
        Fifo,
        Lru,
    }

    fn base() -> Machine {
        Machine {
            nodes: 4,
            links: Links { latency_ns: 1, rate_bytes_per_s: 2, buffer_bytes: 3, busy_permille: 4 },
            shape: Shape::Torus { width: 2, height: 2 },
            order: Order::Fifo,
        }
    }

    fn read(text: &str) -> Result<Machine, String> {
        Settings::parse("m.toml", text)
            .and_then(|settings| settings.over(&base()))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn unset_keys_keep_their_values() {
        assert_eq!(read("").unwrap(), base());
        let got = read("nodes = 9\n[links]\nlatency_ns = 7\n").unwrap();
        assert_eq!((got.nodes, got.links.latency_ns, got.links.rate_bytes_per_s), (9, 7, 2));
    }

    #[test]
    fn changed_kind_inherits_nothing() {
        assert_eq!(read("[shape]\nwidth = 5").unwrap().shape, Shape::Torus { width: 5, height: 2 });
        assert_eq!(
            read("[shape]\nkind = \"star\"\narms = 3").unwrap().shape,
            Shape::Star { arms: 3 }
        );
    }

    #[test]
    fn numbers_may_carry_their_units() {
        let got =
            read("[links]\nlatency_ns = \"1.5 us\"\nrate_bytes_per_s = \"25Gb/s\"\nbuffer_bytes = \"2MiB\"\nbusy_permille = \"87.5%\"")
                .unwrap();
        assert_eq!(
            got.links,
            Links {
                latency_ns: 1500,
                rate_bytes_per_s: 3_125_000_000,
                buffer_bytes: 2 << 20,
                busy_permille: 875
            }
        );
    }

    #[test]
    fn mistakes_are_reported_with_line_and_choices() {
        for (text, message) in [
            (
                "nodes = 4\nnodez = 5",
                "m.toml:2: `nodez`: there is no key `nodez`, use one of `nodes`, `links`, `shape`, `order`",
            ),
            (
                "\n[links]\nlatency = 4",
                "m.toml:3: `links.latency`: there is no key `latency`, use one of `latency_ns`, `rate_bytes_per_s`, `buffer_bytes`, `busy_permille`",
            ),
            (
                "nodes = -1",
                "m.toml:1: `nodes`: invalid value: integer `-1`, needed is a whole number",
            ),
            (
                "nodes = true",
                "m.toml:1: `nodes`: wrong type: boolean `true`, needed is a whole number",
            ),
            ("order = \"lifo\"", "m.toml:1: `order`: there is no `lifo`, use `fifo` or `lru`"),
            (
                "[shape]\nkind = \"ring\"",
                "m.toml:2: `shape.kind`: there is no `ring`, use `torus` or `star`",
            ),
            (
                "[links]\nlatency_ns = \"1 parsec\"",
                "m.toml:2: `links.latency_ns`: `1 parsec` is not a time: write a number and a unit (us, ms, s, m, h), like 500us, 1.5s or 5m",
            ),
            (
                "[links]\nlatency_ns = \"2\"",
                "m.toml:2: `links.latency_ns`: `2` is not a time: write a number and a unit (us, ms, s, m, h), like 500us, 1.5s or 5m",
            ),
            (
                "[links]\nrate_bytes_per_s = \"1.5 B/s\"",
                "m.toml:2: `links.rate_bytes_per_s`: `1.5 B/s` is not a whole number of bytes per second",
            ),
            ("nodes = \"many\"", "m.toml:1: `nodes`: `many` is not a whole number"),
            (
                "nodes = 99999999999999999999",
                "m.toml:1: `nodes`: `99999999999999999999` is not a whole number",
            ),
            ("nodes = 1\nnodes = 2", "m.toml:2: not TOML: duplicate key"),
            (
                "nodes = \n",
                "m.toml:1: not TOML: string values must be quoted, expected literal string",
            ),
        ] {
            assert_eq!(read(text).unwrap_err(), message, "{text}");
        }
    }

    #[test]
    fn sizes_and_times_are_those_of_every_option() {
        for text in ["1m30s", "0.5s", "20 ms", "5m", "3us"] {
            let time = parse_time(text).unwrap().as_nanos() as i64;
            assert_eq!(number("warmup_ns", text), Ok(time), "{text}");
        }
        for text in ["512M", "0.5G", "1.5GiB", "3k", "64 KiB"] {
            let Bytes(bytes) = text.parse().unwrap();
            assert_eq!(number("memory_bytes", text), Ok(bytes as i64), "{text}");
        }
        assert!(number("warmup_ns", "1.5 ns").is_err() && number("memory_bytes", "1e3").is_err());
    }

    #[test]
    fn missing_key_is_placed_at_its_table() {
        let settings = Settings::parse("m.toml", "nodes = 1\n[links]\nlatency_ns = 1\n").unwrap();
        assert_eq!(settings.place("links.buffer_bytes"), "m.toml:2");
        assert_eq!(settings.place("order"), "m.toml");
        assert_eq!(settings.part("links").place("latency_ns"), "m.toml:3");
    }
}
