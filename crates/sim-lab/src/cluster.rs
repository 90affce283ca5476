//! A cluster's file: a preset, and the differences from it.
//!
//! Besides the settings of [`Config`] a file may have keys in the terms of a buyer of machines:
//!
//! | Key | Means |
//! |---|---|
//! | `preset` | the defaults of all settings; `paper` if it is left out |
//! | `nodes` | `topology.dims` for that many nodes |
//! | `node.memory_bytes` | `node.frames` for that much memory |
//! | `disk.medium` | `disk.access_ns`, `disk.bytes_per_s` and `disk.parallel` of a kind of disk |
//!
//! `nodes` also scales disks and arrivals in proportion, and limits the domain to the machine,
//! where the file does not set them.

use std::path::Path;

use hiroma_policy::placement::{CustomPlacement, PlacementKind};
use hiroma_sim::{Config, TopologyKind};
use toml::{Table, Value};

use crate::policies::Policies;
use crate::presets::{MEDIA, dims_of, preset, preset_names};
use crate::settings::{Settings, SettingsError};

/// Reads a cluster's file, which may name `policies`.
pub fn read_cluster(path: &Path, policies: &Policies) -> Result<Config, SettingsError> {
    cluster_with(Settings::read(path)?, policies)
}

/// The cluster that a file, or a part of one, describes.
pub fn cluster_of(settings: Settings) -> Result<Config, SettingsError> {
    cluster_with(settings, &Policies::new())
}

/// The same for a file that may name `policies`.
pub fn cluster_with(mut settings: Settings, policies: &Policies) -> Result<Config, SettingsError> {
    let config = config_of(&mut settings, policies)?;
    check(&config, &settings)?;
    Ok(config)
}

/// The same without validation, for callers that change it further.
pub fn config_of(settings: &mut Settings, policies: &Policies) -> Result<Config, SettingsError> {
    let base = match settings.take("preset") {
        None => Config::default(),
        Some(Value::String(name)) => preset(&name)
            .ok_or_else(|| {
                settings.complain(
                    "preset",
                    format_args!("`preset`: there is no `{name}`, use one of {}", preset_names()),
                )
            })?
            .config(),
        Some(_) => {
            return Err(settings.complain(
                "preset",
                format_args!("`preset`: needed is a name, one of {}", preset_names()),
            ));
        }
    };
    let nodes = settings.take("nodes");
    let memory = take_in(settings, "node", "memory_bytes");
    let medium = take_in(settings, "disk", "medium");
    let placement = take_placement(settings, policies)?;
    let mut config = base;
    if let Some(medium) = medium {
        let names = MEDIA.map(|(name, _)| name).join(", ");
        let found =
            medium.as_str().and_then(|medium| MEDIA.iter().find(|(name, _)| *name == medium));
        let (_, medium) = found.ok_or_else(|| {
            settings.complain(
                "disk.medium",
                format_args!(
                    "`disk.medium`: there is no `{}`, use one of {names}",
                    text_of(&medium)
                ),
            )
        })?;
        medium.apply(&mut config.disk);
    }
    let mut config = settings.over(&config)?;
    if let Some(placement) = placement {
        config.policy.placement = PlacementKind::Custom(placement);
    }
    crate::networks::load(&mut config, settings)?;
    if let Some(nodes) = nodes {
        if settings.table().get("topology").and_then(|topology| topology.get("dims")).is_some() {
            return Err(settings.complain(
                "nodes",
                "`nodes`: `topology.dims` says the same already, leave one of them out",
            ));
        }
        if matches!(config.topology.kind, TopologyKind::Graph | TopologyKind::Matrix) {
            return Err(settings.complain(
                "nodes",
                "`nodes`: `topology.file` says how many there are, leave this out",
            ));
        }
        let before = config.nodes();
        let dims = nodes
            .as_integer()
            .and_then(|nodes| dims_of(config.topology.kind, u64::try_from(nodes).ok()?));
        config.topology.dims = dims.ok_or_else(|| {
            settings.complain(
                "nodes",
                format_args!(
                    "`nodes`: {} is out of range; allowed are 2 to 4194304",
                    text_of(&nodes)
                ),
            )
        })?;
        scale(&mut config, before, settings);
    }
    if let Some(memory) = memory {
        if settings.table().get("node").and_then(|node| node.get("frames")).is_some() {
            return Err(settings.complain(
                "node.memory_bytes",
                "`node.memory_bytes`: `node.frames` says the same already, leave one of them out",
            ));
        }
        config.node.frames = frames_of(&memory, config.node.page_bytes)
            .map_err(|what| settings.complain("node.memory_bytes", what))?;
    }
    Ok(config)
}

/// Refuses a configuration that cannot be simulated: reports every problem with its line.
pub fn check(config: &Config, settings: &Settings) -> Result<(), SettingsError> {
    config.validate().map_err(|problems| {
        let lines: Vec<String> = problems
            .iter()
            .map(|problem| {
                settings
                    .complain(
                        &problem.path(),
                        format_args!("`{}`: {}", problem.path(), problem.message),
                    )
                    .0
            })
            .collect();
        SettingsError(lines.join("\n"))
    })
}

/// Scales what depends on the number of nodes from `before` to the present number, where the file
/// does not set it.
fn scale(config: &mut Config, before: u64, settings: &Settings) {
    let said = |table: &str, key: &str| {
        settings.table().get(table).is_some_and(|table| table.get(key).is_some())
    };
    let nodes = config.nodes();
    if !said("disk", "count") {
        config.disk.count =
            ((u64::from(config.disk.count) * nodes).div_ceil(before.max(1)) as u32).max(1);
    }
    if !said("load", "arrivals_per_s") {
        config.load.arrivals_per_s *= nodes as f64 / before.max(1) as f64;
    }
    if !said("policy", "domain_radius") {
        config.policy.domain_radius = config.policy.domain_radius.min(config.diameter() as u32);
    }
}

/// Removes the placement from the file if it is a policy of the user's own, and returns it.
fn take_placement(
    settings: &mut Settings,
    policies: &Policies,
) -> Result<Option<CustomPlacement>, SettingsError> {
    const KEY: &str = "policy.placement";
    let value = settings.table().get("policy").and_then(|policy| policy.get("placement"));
    let Some(value) = value.and_then(Value::as_str) else { return Ok(None) };
    let found = policies
        .find(value, &settings.directory_of(KEY))
        .map_err(|what| settings.complain(KEY, format_args!("`{KEY}`: {what}")))?;
    if found.is_some() {
        take_in(settings, "policy", "placement");
    }
    Ok(found)
}

/// Removes `key` from the file's table `table`, and returns its value.
fn take_in(settings: &mut Settings, table: &str, key: &str) -> Option<Value> {
    settings
        .table_mut()
        .get_mut(table)
        .and_then(Value::as_table_mut)
        .and_then(|table: &mut Table| table.remove(key))
}

fn frames_of(memory: &Value, page_bytes: u64) -> Result<u32, String> {
    let bytes = match memory {
        Value::Integer(bytes) => *bytes,
        Value::String(text) => crate::settings::number("memory_bytes", text)
            .map_err(|what| format!("`node.memory_bytes`: {what}"))?,
        other => return Err(format!("`node.memory_bytes`: `{}` is not a size", text_of(other))),
    };
    let pages = u64::try_from(bytes)
        .ok()
        .map(|bytes| bytes / page_bytes.max(1))
        .filter(|&pages| pages >= 2);
    pages.and_then(|pages| u32::try_from(pages).ok()).ok_or_else(|| {
        format!("`node.memory_bytes`: {bytes} bytes are out of range; allowed are 2 to 16777216 pages of {page_bytes} bytes")
    })
}

fn text_of(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hiroma_policy::placement::PlacementKind;

    fn read(text: &str) -> Result<Config, String> {
        Settings::parse("cluster.toml", text)
            .and_then(cluster_of)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn empty_file_gives_the_paper_cluster() {
        assert_eq!(read(""), Ok(Config::default()));
    }

    #[test]
    fn file_overrides_its_preset() {
        let config = read(
            "preset = \"ethernet-100g\"\nnodes = 2000\n[node]\nmemory_bytes = \"1TiB\"\n[disk]\nmedium = \"sata\"\ncount = 20\n\
             [policy]\nplacement = \"two_choices\"\n[network]\nbytes_per_s = \"50Gb/s\"\n",
        )
        .unwrap();
        assert_eq!((config.nodes(), config.topology.kind), (2000, TopologyKind::FatTree));
        assert_eq!((config.node.frames, config.node.page_bytes), (1 << 19, 2 << 20));
        assert_eq!(
            (config.disk.count, config.disk.parallel, config.disk.bytes_per_s),
            (20, 1, 520_000_000)
        );
        assert_eq!(
            (config.policy.placement, config.network.bytes_per_s),
            (PlacementKind::TwoChoices, 6_250_000_000)
        );
    }

    #[test]
    fn invalid_settings_are_refused_with_line_and_choices() {
        for (text, message) in [
            (
                "preset = \"cray\"",
                "cluster.toml:1: `preset`: there is no `cray`, use one of paper, paper-best, ethernet-10g-sata, ethernet-25g, ethernet-100g, \
                 ethernet-400g, infiniband-hdr, infiniband-ndr, leaf-spine",
            ),
            (
                "\n[disk]\ncount = 300\n",
                "cluster.toml:3: `disk.count`: 300 disks at 256 nodes; allowed are 1 to 256",
            ),
            (
                "[topology]\ndims = [4, 4]\n[disk]\ncount = 4\n[policy]\ndomain_radius = 5",
                "cluster.toml:6: `policy.domain_radius`: a domain of radius 5 is larger than the machine; allowed are 1 to 4 hops",
            ),
            (
                "[load]\narrivals_per_s = 0",
                "cluster.toml:2: `load.arrivals_per_s`: 0 is out of range; allowed are 0.001 to 1000000000",
            ),
            (
                "[network]\nbytes_per_s = 0",
                "cluster.toml:2: `network.bytes_per_s`: 0 is out of range; allowed are 1000 to 1125899906842624",
            ),
            (
                "[node]\nframes = 1",
                "cluster.toml:2: `node.frames`: 1 is out of range; allowed are 2 to 16777216",
            ),
            (
                "[node]\nmemory_bytes = \"8K\"",
                "cluster.toml:2: `node.memory_bytes`: 8192 bytes are out of range; allowed are 2 to 16777216 pages of 8192 bytes",
            ),
            ("nodes = 0", "cluster.toml:1: `nodes`: 0 is out of range; allowed are 2 to 4194304"),
            (
                "nodes = 64\n[topology]\ndims = [8, 8]",
                "cluster.toml:1: `nodes`: `topology.dims` says the same already, leave one of them out",
            ),
            (
                "[disk]\nmedium = \"tape\"",
                "cluster.toml:2: `disk.medium`: there is no `tape`, use one of nvme, sata, hdd",
            ),
            (
                "[policy]\nplacment = \"random\"",
                "cluster.toml:2: `policy.placment`: there is no key `placment`, use one of `scope`, `domain_radius`, `peers_max`, `information`, \
                 `period_ns`, `high_permille`, `low_permille`, `placement`, `on_failure`, `attempts_max`, `reservation`, `reserve_frames`, \
                 `replacement`, `count_own_sends`, `confirm`, `answer_ns`, `lease_ns`, `refresh_ns`, `give_up_ns`, `copies`, `parity`",
            ),
            (
                "[policy]\nplacement = \"best\"",
                "cluster.toml:2: `policy.placement`: there is no `best`, use one of `most_free`, `nearest`, `random`, `weighted_nearest`, \
                 `two_choices`, `round_robin`, `fill`, `wasm:FILE`, `python:FILE`",
            ),
        ] {
            assert_eq!(read(text).unwrap_err(), message, "{text}");
        }
    }

    #[test]
    fn preset_conflicts_are_reported_for_the_file() {
        let message = read("[topology]\ndims = [4, 2]\n").unwrap_err();
        assert!(
            message
                .starts_with("cluster.toml: `disk.count`: 16 disks at 8 nodes; allowed are 1 to 8"),
            "{message}"
        );
    }

    #[test]
    fn faults_are_read_with_their_times_and_checked() {
        let config = read(
            "[faults]\nloss = 0.1\n[[faults.partitions]]\nfrom_ns = \"20ms\"\nuntil_ns = \"1s\"\ngroups = [[0, 1], [2]]\n",
        )
        .unwrap();
        let partition = &config.faults.partitions[0];
        assert_eq!((partition.from_ns, partition.until_ns), (20_000_000, 1_000_000_000));
        assert!(config.confirms() && !Config::default().confirms());
        for (text, message) in [
            ("[faults]\nloss = 2.0", "`faults.loss`: 2 is out of range; allowed are 0 to 0.9"),
            ("[[faults.crashes]]\nnode = 3\nfrom_ns = \"soon\"", "`faults.crashes[0].from_ns`: "),
            ("[[faults.crashes]]\nnode = 999\nuntil_ns = 5", "needed is a node from 0 to 255"),
            ("[policy]\ncopies = 2", "more than one copy needs policy.confirm = true"),
            ("[policy]\nconfirm = true\nparity = [4]", "needed is [data, parity]"),
        ] {
            let told = read(text).unwrap_err();
            assert!(told.contains(message), "{told}");
        }
    }

    #[test]
    fn node_count_scales_disks_and_load() {
        let config = read("nodes = 1024").unwrap();
        assert_eq!(
            (config.topology.dims, config.disk.count, config.load.arrivals_per_s),
            (vec![32, 32], 64, Config::default().load.arrivals_per_s * 4.0)
        );
        let config = read("nodes = 4\n[disk]\ncount = 2").unwrap();
        assert_eq!((config.disk.count, config.policy.domain_radius), (2, 2));
    }
}
