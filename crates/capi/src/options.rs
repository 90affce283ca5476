//! Converts the options of a C program and its environment to the pager's configuration.

use std::path::PathBuf;
use std::time::Duration;

use hiroma_far::config::{
    Allocation, CONFIG_ENV, Config, ConfigError, PathChoice, ReplacementKind, parse_local,
    parse_stores,
};
use hiroma_sys::host::memory::Limits;
use hiroma_units::Bytes;

use crate::error::CapiError;

/// Options that a program has set; each may be left unset.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Request {
    pub local_limit_bytes: Option<u64>,
    pub store: Option<String>,
    pub block: Option<String>,
    pub replacement: Option<String>,
    pub allocation: Option<String>,
    pub prefetch: Option<bool>,
    pub store_timeout_ms: Option<u32>,
    pub key_file: Option<String>,
    pub kernel_path: Option<String>,
    pub control_dir: Option<String>,
}

impl Request {
    /// Options from the environment: `HIROMA_LOCAL`, `HIROMA_STORE`, `HIROMA_BLOCK` and so on.
    pub fn from_env(
        var: impl Fn(&str) -> Option<String>,
        machine: Bytes,
    ) -> Result<Request, CapiError> {
        let invalid = |name: &str, text: &str, wanted: &str| {
            CapiError::Invalid(format!("{name}: `{text}` makes no sense: {wanted}"))
        };
        let local = var("HIROMA_LOCAL").map(|text| parse_local(&text, machine)).transpose();
        let prefetch = match var("HIROMA_PREFETCH").as_deref() {
            None => None,
            Some("on") => Some(true),
            Some("off") => Some(false),
            Some(text) => return Err(invalid("HIROMA_PREFETCH", text, "use on or off")),
        };
        let store_timeout_ms = match var("HIROMA_STORE_TIMEOUT_MS") {
            None => None,
            Some(text) => match text.parse() {
                Ok(ms) if ms > 0 => Some(ms),
                _ => {
                    return Err(invalid(
                        "HIROMA_STORE_TIMEOUT_MS",
                        &text,
                        "use milliseconds, like 30000",
                    ));
                }
            },
        };
        Ok(Request {
            local_limit_bytes: local
                .map_err(|source| CapiError::Option { option: "HIROMA_LOCAL", source })?
                .map(|bytes| bytes.0),
            store: var("HIROMA_STORE"),
            block: var("HIROMA_BLOCK"),
            replacement: var("HIROMA_REPLACEMENT"),
            allocation: var("HIROMA_ALLOCATION"),
            prefetch,
            store_timeout_ms,
            key_file: var("HIROMA_KEY_FILE"),
            kernel_path: var("HIROMA_PATH"),
            control_dir: var("HIROMA_CONTROL_DIR"),
        })
    }

    /// Applies the options that are set to `config`.
    pub fn apply(&self, config: &mut Config) -> Result<(), CapiError> {
        let unknown = |option: &str, text: &str, wanted: &str| {
            CapiError::Invalid(format!("option {option}: `{text}` is not one of {wanted}"))
        };
        if let Some(bytes) = self.local_limit_bytes {
            config.local_limit_bytes = bytes;
        }
        if let Some(text) = &self.store {
            config.stores = parse_stores(text)
                .map_err(|source| CapiError::Option { option: "store", source })?;
        }
        if let Some(text) = &self.block {
            config.block = text
                .parse()
                .map_err(|source: ConfigError| CapiError::Option { option: "block", source })?;
        }
        match self.replacement.as_deref() {
            None => {}
            Some("lru") => config.replacement = ReplacementKind::Lru,
            Some("fifo") => config.replacement = ReplacementKind::Fifo,
            Some(text) => return Err(unknown("replacement", text, "lru, fifo")),
        }
        match self.allocation.as_deref() {
            None => {}
            Some("simple") => config.allocation = Allocation::Simple,
            Some("round-robin") => config.allocation = Allocation::RoundRobin,
            Some(text) => return Err(unknown("allocation", text, "simple, round-robin")),
        }
        match self.kernel_path.as_deref() {
            None => {}
            Some("auto") => config.path = PathChoice::Auto,
            Some("full") => config.path = PathChoice::Full,
            Some("fallback") => config.path = PathChoice::Fallback,
            Some(text) => return Err(unknown("kernel_path", text, "auto, full, fallback")),
        }
        if let Some(prefetch) = self.prefetch {
            config.prefetch = prefetch;
        }
        if let Some(ms) = self.store_timeout_ms {
            config.store_timeout = Duration::from_millis(u64::from(ms));
        }
        if let Some(file) = &self.key_file {
            config.key_file = Some(PathBuf::from(file));
        }
        if let Some(dir) = &self.control_dir {
            config.control_dir = Some(PathBuf::from(dir));
        }
        Ok(())
    }
}

/// The configuration that a process starts with: under `hiroma run` that of the program, overridden
/// by single environment variables, then by `request`.
pub fn config_for(request: &Request) -> Result<Config, CapiError> {
    let var = |name: &str| std::env::var(name).ok();
    let mut config = match var(CONFIG_ENV) {
        // The control page belongs to the preloaded pager; two pages in one directory would have
        // the same name.
        Some(text) => Config {
            control_dir: None,
            ..serde_json::from_str(&text)
                .map_err(|e| CapiError::Invalid(format!("{CONFIG_ENV}: {e}")))?
        },
        None => Config::default(),
    };
    Request::from_env(var, whole_memory())?.apply(&mut config)?;
    request.apply(&mut config)?;
    Ok(config)
}

/// Refuses a request that differs from the running configuration. Unset options do not differ.
pub fn agree(request: &Request, running: &Config) -> Result<(), CapiError> {
    let mut wanted = running.clone();
    request.apply(&mut wanted)?;
    macro_rules! same {
        ($($option:literal $field:ident),*) => { $(
            if wanted.$field != running.$field {
                let (running, wanted) = (format!("{:?}", running.$field), format!("{:?}", wanted.$field));
                return Err(CapiError::Conflict { option: $option, running, wanted });
            }
        )* };
    }
    same!("local_limit_bytes" local_limit_bytes, "store" stores, "block" block, "replacement" replacement, "allocation" allocation);
    same!("prefetch" prefetch, "store_timeout_ms" store_timeout, "key_file" key_file, "kernel_path" path, "control_dir" control_dir);
    Ok(())
}

/// The memory that shares refer to, as for `hiroma run --local`.
fn whole_memory() -> Bytes {
    Limits::read().whole()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hiroma_far::config::BlockSize;

    #[test]
    fn options_reach_the_configuration() {
        let request = Request {
            local_limit_bytes: Some(7 << 20),
            store: Some("compressed:1G,tcp://a:1,b:2".into()),
            block: Some("64K".into()),
            replacement: Some("fifo".into()),
            allocation: Some("round-robin".into()),
            prefetch: Some(false),
            store_timeout_ms: Some(1500),
            key_file: Some("/k".into()),
            kernel_path: Some("fallback".into()),
            control_dir: Some("/c".into()),
        };
        let mut config = Config::default();
        request.apply(&mut config).unwrap();
        assert_eq!(
            (config.local_limit_bytes, config.stores.len(), config.block),
            (7 << 20, 2, BlockSize::Fixed(65536))
        );
        assert_eq!(
            (config.replacement, config.allocation, config.prefetch),
            (ReplacementKind::Fifo, Allocation::RoundRobin, false)
        );
        assert_eq!(
            (config.store_timeout, config.path),
            (Duration::from_millis(1500), PathChoice::Fallback)
        );
        assert_eq!((config.key_file, config.control_dir), (Some("/k".into()), Some("/c".into())));
    }

    #[test]
    fn later_regions_cannot_change_options() {
        let running = Config::default();
        assert!(agree(&Request::default(), &running).is_ok());
        assert!(
            agree(&Request { replacement: Some("lru".into()), ..Request::default() }, &running)
                .is_ok()
        );
        let other = Request { replacement: Some("fifo".into()), ..Request::default() };
        let error = agree(&other, &running).unwrap_err();
        assert_eq!(error.errno(), libc::EBUSY);
        assert!(error.to_string().contains("replacement = Lru, not Fifo"), "{error}");
    }

    #[test]
    fn environment_is_parsed_and_invalid_values_are_named() {
        let env = |name: &'static str, value: &'static str| {
            move |asked: &str| (asked == name).then(|| value.to_owned())
        };
        let machine = Bytes(1 << 30);
        assert_eq!(
            Request::from_env(env("HIROMA_LOCAL", "25%"), machine).unwrap().local_limit_bytes,
            Some(1 << 28)
        );
        assert_eq!(
            Request::from_env(env("HIROMA_PREFETCH", "off"), machine).unwrap().prefetch,
            Some(false)
        );
        for (name, value) in [
            ("HIROMA_LOCAL", "-1"),
            ("HIROMA_LOCAL", "1Q"),
            ("HIROMA_PREFETCH", "maybe"),
            ("HIROMA_STORE_TIMEOUT_MS", "0"),
        ] {
            let error = Request::from_env(env(name, value), machine).unwrap_err();
            assert!(error.to_string().contains(name), "{error}");
            assert_eq!(error.errno(), libc::EINVAL);
        }
    }

    #[test]
    fn unknown_option_is_named_with_its_choices() {
        for (request, part) in [
            (Request { replacement: Some("random".into()), ..Request::default() }, "lru, fifo"),
            (
                Request { allocation: Some("all".into()), ..Request::default() },
                "simple, round-robin",
            ),
            (
                Request { kernel_path: Some("slow".into()), ..Request::default() },
                "auto, full, fallback",
            ),
            (Request { block: Some("3K".into()), ..Request::default() }, "power of two"),
            (Request { store: Some("tape".into()), ..Request::default() }, "tcp://HOST:PORT"),
        ] {
            let error = request.apply(&mut Config::default()).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn this_machine_has_memory() {
        assert!(whole_memory().0 > 64 << 20);
    }
}
