//! The files that describe a network: a graph of nodes, switches and links (TOML), and measured
//! latencies between nodes (CSV).

use std::fs;
use std::path::Path;
use std::sync::Arc;

use hiroma_sim::{Config, GraphLink, GraphProblem, LatencyMatrix, NetworkGraph, TopologyKind};
use serde::{Deserialize, Serialize};

use crate::settings::{Settings, SettingsError, number};

/// Bandwidths that a link may have, bytes/s.
const RATES: std::ops::RangeInclusive<i64> = 1000..=1 << 50;
/// Latencies that a link may have, ns.
const LATENCIES: std::ops::RangeInclusive<i64> = 0..=1_000_000_000;

/// Reads the file that `topology.file` names, if the kind of topology has one.
pub fn load(config: &mut Config, settings: &Settings) -> Result<(), SettingsError> {
    let kind = config.topology.kind;
    if !matches!(kind, TopologyKind::Graph | TopologyKind::Matrix) {
        return Ok(());
    }
    if settings.table().get("topology").is_some_and(|topology| topology.get("dims").is_some()) {
        return Err(settings.complain(
            "topology.dims",
            "`topology.dims`: `topology.file` says how many nodes there are, leave this out",
        ));
    }
    if config.topology.file.is_empty() {
        return Err(settings.complain(
            "topology.file",
            "`topology.file`: is needed with this `topology.kind`: the file that describes the \
             network, relative to this one",
        ));
    }
    let path = settings.directory().join(&config.topology.file);
    let (graph, latencies) = match kind {
        TopologyKind::Graph => (Some(read_graph(&path, config)?), None),
        _ => (None, Some(read_matrix(&path)?)),
    };
    let nodes = [graph.as_ref().map(NetworkGraph::nodes), latencies.as_ref().map(|m| m.nodes())];
    config.topology.dims = nodes.into_iter().flatten().collect();
    config.topology.graph = graph.map(Arc::new);
    config.topology.latencies = latencies.map(Arc::new);
    Ok(())
}

/// How many, or their names.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Vertices {
    Count(u32),
    Names(Vec<String>),
}

impl Vertices {
    fn names(self, letter: char) -> Vec<String> {
        match self {
            Vertices::Count(count) => {
                (0..count.min(1 << 16)).map(|n| format!("{letter}{n}")).collect()
            }
            Vertices::Names(names) => names,
        }
    }
}

/// A link in both directions, unless it says otherwise.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LinkEntry {
    ends: [String; 2],
    bytes_per_s: Option<i64>,
    latency_ns: Option<i64>,
    #[serde(default)]
    one_way: bool,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct GraphFile {
    #[serde(skip_serializing_if = "Option::is_none")]
    nodes: Option<Vertices>,
    #[serde(skip_serializing_if = "Option::is_none")]
    switches: Option<Vertices>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes_per_s: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    latency_ns: Option<i64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    link: Vec<LinkEntry>,
}

/// Reads a graph; links that do not say have the rate and latency of `config.network`.
pub fn read_graph(path: &Path, config: &Config) -> Result<NetworkGraph, SettingsError> {
    graph_of(&Settings::read(path)?, config)
}

fn graph_of(settings: &Settings, config: &Config) -> Result<NetworkGraph, SettingsError> {
    let file: GraphFile = settings.over(&GraphFile::default())?;
    let nodes = file
        .nodes
        .ok_or_else(|| {
            settings.complain("nodes", "`nodes`: is needed: how many, or a list of their names")
        })?
        .names('n');
    let count = nodes.len() as u32;
    let mut names = nodes;
    names.extend(file.switches.map_or(Vec::new(), |switches| switches.names('s')));
    let mut sorted: Vec<&String> = names.iter().collect();
    sorted.sort_unstable();
    if let Some(twice) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(settings.complain(
            "nodes",
            format_args!("`nodes` and `switches`: `{}` is there twice; rename one", twice[0]),
        ));
    }
    let network = &config.network;
    let rate = file.bytes_per_s.unwrap_or(network.bytes_per_s.min(1 << 50) as i64);
    let latency = file.latency_ns.unwrap_or(network.latency_ns.min(1 << 30) as i64);
    let mut links = Vec::new();
    for (place, link) in file.link.iter().enumerate() {
        let key = |name: &str| format!("link[{place}].{name}");
        let ends = link.ends.each_ref().map(|name| {
            let found = names.iter().position(|other| other == name);
            found.map(|vertex| vertex as u32).ok_or_else(|| {
                let hint = hint(&names, count);
                let what = format!("`ends`: there is no node or switch `{name}`; there are {hint}");
                settings.complain(&key("ends"), what)
            })
        });
        let [from, to] = ends;
        let (from, to) = (from?, to?);
        if from == to {
            let what = format!("`ends`: a link from `{0}` to `{0}` leads nowhere", link.ends[0]);
            return Err(settings.complain(&key("ends"), what + "; name two ends"));
        }
        let value = |name: &str, own: Option<i64>, other: i64, allowed| {
            in_range(settings, &key(name), name, own.unwrap_or(other), &allowed)
        };
        let bytes_per_s = value("bytes_per_s", link.bytes_per_s, rate, RATES)?;
        let latency_ns = value("latency_ns", link.latency_ns, latency, LATENCIES)?;
        links.push(GraphLink { from, to, bytes_per_s, latency_ns });
        if !link.one_way {
            links.push(GraphLink { from: to, to: from, bytes_per_s, latency_ns });
        }
    }
    NetworkGraph::new(count, names, links).map_err(|problem| {
        let key = if matches!(problem, GraphProblem::Size { .. }) { "nodes" } else { "link[0]" };
        settings.complain(key, problem)
    })
}

/// Some of the names that there are.
fn hint(names: &[String], nodes: u32) -> String {
    let of = |what: &str, names: &[String]| match names {
        [] => format!("no {what}"),
        [first] => format!("the {what} `{first}`"),
        [first, .., last] => format!("{what} from `{first}` to `{last}`"),
    };
    let (nodes, switches) = names.split_at(nodes as usize);
    format!("{} and {}", of("nodes", nodes), of("switches", switches))
}

fn in_range(
    settings: &Settings,
    key: &str,
    name: &str,
    value: i64,
    allowed: &std::ops::RangeInclusive<i64>,
) -> Result<u64, SettingsError> {
    if !allowed.contains(&value) {
        let (least, most) = (allowed.start(), allowed.end());
        let what = format!("`{name}`: {value} is out of range; allowed are {least} to {most}");
        // A link without a value of its own has the one of the whole file.
        let key = if settings.has(key) { key } else { name };
        return Err(settings.complain(key, what));
    }
    Ok(value as u64)
}

/// Reads latencies between nodes: a row of a CSV file for each sender, a column for each receiver;
/// numbers of nanoseconds, or with a unit. Lines that begin with `#` are comments.
pub fn read_matrix(path: &Path) -> Result<LatencyMatrix, SettingsError> {
    let name = path.display().to_string();
    let text =
        fs::read_to_string(path).map_err(|error| SettingsError(format!("{name}: {error}")))?;
    matrix_of(&name, &text)
}

fn matrix_of(name: &str, text: &str) -> Result<LatencyMatrix, SettingsError> {
    let mut reader = csv::ReaderBuilder::new()
        .has_headers(false)
        .flexible(true)
        .comment(Some(b'#'))
        .trim(csv::Trim::All)
        .from_reader(text.as_bytes());
    let (mut rows, mut lines) = (Vec::new(), Vec::new());
    let mut record = csv::StringRecord::new();
    while reader
        .read_record(&mut record)
        .map_err(|error| SettingsError(format!("{name}: {error}")))?
    {
        // A record begins after the comments before it; its end is certain.
        let read = text[..reader.position().byte() as usize].trim_end();
        let line = 1 + read.matches('\n').count();
        let cell = |(place, text): (usize, &str)| {
            let is_diagonal = place == rows.len() && matches!(text, "" | "-");
            let value = if is_diagonal { Ok(0) } else { latency(text) };
            value.map_err(|what| {
                SettingsError(format!("{name}:{line}: column {}: {what}", place + 1))
            })
        };
        let row: Vec<u64> = record.iter().enumerate().map(cell).collect::<Result<_, _>>()?;
        rows.push(row);
        lines.push(line);
    }
    LatencyMatrix::new(&rows).map_err(|problem| {
        let line = match &problem {
            hiroma_sim::MatrixProblem::NotSquare { row, .. } => lines[row - 1],
            _ => 1,
        };
        SettingsError(format!("{name}:{line}: {problem}"))
    })
}

fn latency(text: &str) -> Result<u64, String> {
    let ns = match text.parse::<f64>() {
        Ok(ns) if ns.is_finite() => Ok(ns.round() as i64),
        Ok(_) => Err(()),
        Err(_) => number("latency_ns", text).map_err(|_| ()),
    };
    let ns =
        ns.map_err(|()| format!("`{text}` is not a latency; write ns, or a time like 1.5us"))?;
    if !LATENCIES.contains(&ns) {
        let (least, most) = (LATENCIES.start(), LATENCIES.end());
        return Err(format!("{text} is out of range; allowed are {least} to {most} ns"));
    }
    Ok(ns as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(text: &str) -> Result<NetworkGraph, String> {
        Settings::parse("net.toml", text)
            .and_then(|settings| graph_of(&settings, &Config::default()))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_graph_has_names_rates_and_latencies() {
        let network = graph(
            "nodes = 2\nswitches = [\"core\"]\nbytes_per_s = \"10Gb/s\"\nlatency_ns = \"2us\"\n\
             [[link]]\nends = [\"n0\", \"core\"]\n\
             [[link]]\nends = [\"core\", \"n1\"]\nbytes_per_s = \"25Gb/s\"\nlatency_ns = 50\none_way = true\n\
             [[link]]\nends = [\"n1\", \"n0\"]\n",
        )
        .unwrap();
        let link =
            |from, to, bytes_per_s, latency_ns| GraphLink { from, to, bytes_per_s, latency_ns };
        assert_eq!(
            network.links(),
            [
                link(0, 2, 1_250_000_000, 2000),
                link(2, 0, 1_250_000_000, 2000),
                link(2, 1, 3_125_000_000, 50),
                link(1, 0, 1_250_000_000, 2000),
                link(0, 1, 1_250_000_000, 2000),
            ]
        );
        assert_eq!((network.nodes(), network.diameter()), (2, 1));
    }

    #[test]
    fn errors_of_a_graph_name_file_line_and_remedy() {
        let two = "nodes = 2\nswitches = 1\n[[link]]\nends = [\"n0\", \"s0\"]\n";
        for (text, message) in [
            (
                two.to_owned(),
                "net.toml:3: there is no way from n1 to n0; add links, or take one of the two out",
            ),
            (
                two.to_owned() + "[[link]]\nends = [\"n1\", \"s0\"]\nbytes_per_s = -5\n",
                "net.toml:7: `bytes_per_s`: -5 is out of range; allowed are 1000 to 1125899906842624",
            ),
            (
                "bytes_per_s = 5\n".to_owned() + two,
                "net.toml:1: `bytes_per_s`: 5 is out of range; allowed are 1000 to 1125899906842624",
            ),
            (
                two.to_owned() + "latency_ns = \"fast\"\n",
                "net.toml:5: `link[0].latency_ns`: `fast` is not a time: write a number and a unit",
            ),
            (
                two.to_owned() + "[[link]]\nends = [\"n1\", \"s1\"]\n",
                "net.toml:6: `ends`: there is no node or switch `s1`; there are nodes from `n0` to `n1` and the switches `s0`",
            ),
            (
                two.to_owned() + "[[link]]\nends = [\"n1\", \"n1\"]\n",
                "net.toml:6: `ends`: a link from `n1` to `n1` leads nowhere; name two ends",
            ),
            (
                "nodes = [\"a\", \"a\"]".to_owned(),
                "net.toml:1: `nodes` and `switches`: `a` is there twice; rename one",
            ),
            (
                "switches = 3".to_owned(),
                "net.toml: `nodes`: is needed: how many, or a list of their names",
            ),
            (
                "nodes = 1".to_owned(),
                "net.toml:1: 1 nodes and 0 switches are out of range; allowed are 2 nodes and more, and 4096 of both together",
            ),
            (
                two.to_owned() + "speed = 5\n",
                "net.toml:5: `link[0].speed`: there is no key `speed`, use one of `ends`, `bytes_per_s`, `latency_ns`, `one_way`",
            ),
        ] {
            let told = graph(&text).unwrap_err();
            assert!(told.starts_with(message), "{told}\ninstead of\n{message}");
        }
    }

    #[test]
    fn errors_of_a_matrix_name_file_line_and_remedy() {
        let matrix = |text| matrix_of("m.csv", text).map_err(|error| error.to_string());
        let good = matrix("# measured with ping\n-, 1.5us, 2000\n1500, , 2us\n2000, 2000, 0\n");
        assert_eq!(good.unwrap().nodes(), 3);
        for (text, message) in [
            ("0,1\n# x\n1,0,2\n", "m.csv:3: row 2 has 3 numbers, and there are 2 rows; a node"),
            (
                "0,x\n1,0\n",
                "m.csv:1: column 2: `x` is not a latency; write ns, or a time like 1.5us",
            ),
            (
                "0,nan\n1,0\n",
                "m.csv:1: column 2: `nan` is not a latency; write ns, or a time like 1.5us",
            ),
            (
                "0,1\n-inf,0\n",
                "m.csv:2: column 1: `-inf` is not a latency; write ns, or a time like 1.5us",
            ),
            (
                "0,1\n-1,0\n",
                "m.csv:2: column 1: -1 is out of range; allowed are 0 to 1000000000 ns",
            ),
            ("0\n", "m.csv:1: 1 rows are out of range; allowed are 2 to 2048 nodes"),
        ] {
            let told = matrix(text).unwrap_err();
            assert!(told.starts_with(message), "{told}\ninstead of\n{message}");
        }
    }

    #[test]
    fn a_cluster_names_its_network_relative_to_itself() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = directory.path().join(name);
            fs::write(&path, text).unwrap();
            path
        };
        write("m.csv", "0,1000,3000\n1000,0,3000\n3000,3000,0\n");
        let text = "[topology]\nkind = \"matrix\"\nfile = \"m.csv\"\n[disk]\ncount = 1\n[policy]\ndomain_radius = 3\n";
        let cluster = write("cluster.toml", text);
        let config =
            crate::cluster::read_cluster(&cluster, &crate::policies::Policies::new()).unwrap();
        assert_eq!((config.nodes(), config.diameter()), (3, 3));
        // What the file contained is in the configuration, so that results say what they are of.
        assert!(serde_json::to_string(&config).unwrap().contains("[0,1000,3000,1000,0,"));
        for (text, message) in [
            ("[topology]\nkind = \"graph\"\n", ":1: `topology.file`: is needed with this"),
            ("[topology]\nkind = \"matrix\"\nfile = \"none.csv\"\n", "none.csv: No such file"),
            ("[topology]\nfile = \"m.csv\"\n", ":2: `topology.file`: is used with topology.kind"),
            (
                "nodes = 3\n[topology]\nkind = \"matrix\"\nfile = \"m.csv\"\n",
                ":1: `nodes`: `topology.file` says",
            ),
            (
                "[topology]\nkind = \"graph\"\nfile = \"m.csv\"\ndims = [3]",
                ":4: `topology.dims`: `topology.file` says",
            ),
        ] {
            let told = crate::cluster::read_cluster(
                &write("c.toml", text),
                &crate::policies::Policies::new(),
            )
            .unwrap_err()
            .to_string();
            assert!(told.contains(message), "{told}\ninstead of\n{message}");
        }
    }
}
