//! Settings as users write them, and the file through which they reach a running daemon.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use hiroma_policy::reclaim::Settings;
use hiroma_units::Bytes;

use crate::error::QuietError;

/// The format of a setting.
enum Form {
    Time,
    Size,
    /// Of this many parts.
    Share(u64),
    /// One of these words.
    Word(&'static [&'static str]),
}

const SWITCH: &[&str] = &["off", "on"];
const BEHIND: &[&str] = &["never", "needed", "large"];

fn form(key: &str) -> Form {
    match key {
        "early_reclaim" => Form::Word(SWITCH),
        "drop_behind" => Form::Word(BEHIND),
        _ if key.ends_with("_ns") => Form::Time,
        _ if key.ends_with("_permille") => Form::Share(1000),
        _ if key.ends_with("_ppm") => Form::Share(1_000_000),
        _ => Form::Size,
    }
}

fn parse(key: &str, text: &str) -> Result<u64, QuietError> {
    let text = text.trim();
    let bad = |form| QuietError::BadValue { key: key.to_owned(), text: text.to_owned(), form };
    match form(key) {
        Form::Size => {
            text.parse::<Bytes>().map(|bytes| bytes.0).map_err(|_| bad("a size like 64M or 1G"))
        }
        Form::Time => {
            let unit = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
            let factor = match text[unit..].trim() {
                "ms" => 1_000_000,
                "s" => 1_000_000_000,
                "us" => 1000,
                _ => return Err(bad("a time like 100ms or 1s")),
            };
            let number =
                text[..unit].parse::<u64>().ok().and_then(|number| number.checked_mul(factor));
            number.ok_or_else(|| bad("a time like 100ms or 1s"))
        }
        Form::Share(parts) => {
            let number =
                text.strip_suffix('%').and_then(|number| number.trim().parse::<u64>().ok());
            number
                .and_then(|number| number.checked_mul(parts / 100))
                .ok_or_else(|| bad("whole percent, like 75%"))
        }
        Form::Word(words) => {
            let at = words.iter().position(|word| *word == text);
            at.map(|at| at as u64).ok_or_else(|| {
                bad(if words == SWITCH { "on or off" } else { "never, needed or large" })
            })
        }
    }
}

/// A value as users write it.
pub fn show(key: &str, value: u64) -> String {
    match form(key) {
        Form::Size => Bytes(value).to_string(),
        Form::Time => format!("{}ms", value / 1_000_000),
        Form::Share(parts) => format!("{}%", value as f64 * 100.0 / parts as f64),
        Form::Word(words) => {
            words.get(value as usize).map_or_else(|| value.to_string(), |&word| word.to_owned())
        }
    }
}

/// Changes one setting.
pub fn set(settings: &mut Settings, key: &str, text: &str) -> Result<(), QuietError> {
    let keys = || settings.all().map(|(key, ..)| key);
    if !keys().contains(&key) {
        return Err(QuietError::NoSetting { key: key.to_owned(), keys: keys().join(", ") });
    }
    let value = parse(key, text)?;
    settings.set(key, value).unwrap_or(Ok(())).map_err(QuietError::OutOfRange)
}

/// The path of the settings file.
pub(crate) fn path(state: &Path) -> PathBuf {
    state.join("settings.json")
}

/// Writes a file of the state directory atomically.
pub(crate) fn write_whole(path: &Path, text: &str) -> Result<(), QuietError> {
    let temporary = path.with_extension(format!("{}.new", std::process::id()));
    let written = || -> io::Result<()> {
        let mut file = fs::File::create(&temporary)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    };
    written().map_err(|source| QuietError::State { path: path.to_owned(), source })
}

/// Writes the settings to the file that a daemon with this state directory reads.
pub fn save(state: &Path, settings: &Settings) -> Result<(), QuietError> {
    let map: BTreeMap<&str, u64> =
        settings.all().into_iter().map(|(key, value, ..)| (key, value)).collect();
    write_whole(
        &path(state),
        &serde_json::to_string_pretty(&map).expect("names and numbers become JSON"),
    )
}

/// Reads the settings; the defaults if there is no file.
pub fn load(state: &Path) -> Result<Settings, QuietError> {
    let path = path(state);
    let mut settings = Settings::default();
    let text = match fs::read_to_string(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(settings),
        other => other.map_err(|source| QuietError::State { path: path.clone(), source })?,
    };
    let damaged = |reason: String| QuietError::Damaged { path: path.clone(), reason };
    let map: BTreeMap<String, u64> =
        serde_json::from_str(&text).map_err(|error| damaged(error.to_string()))?;
    for (key, value) in map {
        match settings.set(&key, value) {
            None => return Err(damaged(format!("there is no setting `{key}`"))),
            Some(set) => set.map_err(|error| damaged(QuietError::OutOfRange(error).to_string()))?,
        }
    }
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_round_trip_in_human_units() {
        let mut settings = Settings::default();
        for (key, text, value) in [
            ("poll_ns", "250ms", 250_000_000),
            ("free_bytes_min", "1G", 1 << 30),
            ("cause_permille", "80%", 800),
            ("cpu_ppm", "5%", 50_000),
            ("early_reclaim", "off", 0),
            ("drop_behind", "needed", 1),
        ] {
            set(&mut settings, key, text).unwrap();
            assert_eq!(settings.all().iter().find(|one| one.0 == key).unwrap().1, value, "{key}");
        }
        assert_eq!(
            (show("early_reclaim", 1), show("drop_behind", 2)),
            ("on".into(), "large".into())
        );
        assert_eq!(
            (show("poll_ns", 250_000_000), show("cpu_ppm", 50_000), show("batch_bytes", 32 << 20)),
            ("250ms".into(), "5%".into(), "32MiB".into())
        );
    }

    #[test]
    fn invalid_values_are_refused_with_valid_ones() {
        let mut settings = Settings::default();
        for (key, text, expected) in [
            ("colour", "1", "there are poll_ns, fill_bytes_s_min"),
            ("poll_ns", "1", "a time like 100ms"),
            ("poll_ns", "99999999999999999999s", "a time like"),
            ("poll_ns", "1ms", "from 10ms to 10000ms"),
            ("batch_bytes", "1G", "from 16MiB to 64MiB"),
            ("keep_permille", "x", "whole percent"),
            ("keep_permille", "200%", "from 0% to 100%"),
            ("early_reclaim", "1", "on or off"),
            ("drop_behind", "always", "never, needed or large"),
        ] {
            let error = set(&mut settings, key, text).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        assert_eq!(settings, Settings::default());
    }

    #[test]
    fn settings_file_round_trips_and_damage_is_detected() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(load(dir.path()).unwrap(), Settings::default());
        let mut settings = Settings::default();
        set(&mut settings, "poll_ns", "1s").unwrap();
        save(dir.path(), &settings).unwrap();
        assert_eq!(load(dir.path()).unwrap(), settings);
        for text in ["{", "{\"colour\": 1}", "{\"poll_ns\": 1}"] {
            fs::write(path(dir.path()), text).unwrap();
            assert!(matches!(load(dir.path()), Err(QuietError::Damaged { .. })), "{text}");
        }
    }
}
