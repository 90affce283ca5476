//! The programs whose traces are studied: ordinary programs, with jobs of a few tens of megabytes,
//! because recording slows them down many times.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

/// A program and its arguments; `{dir}` in the table is the directory of the jobs.
#[derive(Clone, Debug)]
pub struct Program {
    pub name: String,
    pub argv: Vec<String>,
}

struct Known {
    name: &'static str,
    /// A name in `PATH`, or `PYTHON`, or `CC1`: the compiler proper.
    command: &'static str,
    arguments: &'static [&'static str],
}

const PYTHON: &str = "{python}";
const CC1: &str = "{cc1}";

const KNOWN: [Known; 12] = [
    Known { name: "dictionary", command: PYTHON, arguments: &["{dir}/dictionary.py", "250000"] },
    Known { name: "objects", command: PYTHON, arguments: &["{dir}/objects.py", "40000"] },
    Known { name: "numpy", command: PYTHON, arguments: &["{dir}/arrays.py"] },
    Known {
        name: "sqlite",
        command: "sqlite3",
        arguments: &[":memory:", ".read {dir}/look-ups.sql"],
    },
    Known {
        name: "jq",
        command: "jq",
        arguments: &["-c", "group_by(.a) | map(length)", "{dir}/documents.json"],
    },
    Known { name: "perl", command: "perl", arguments: &["{dir}/words.pl", "{dir}/words"] },
    Known { name: "tcl", command: "tclsh", arguments: &["{dir}/words.tcl", "{dir}/words"] },
    Known {
        name: "awk",
        command: "mawk",
        arguments: &[
            "{ for (i = 1; i <= NF; i++) n[$i]++ } END { for (w in n) if (n[w] > m) m = n[w]; print NR, m }",
            "{dir}/words",
        ],
    },
    Known {
        name: "sort",
        command: "sort",
        arguments: &["--parallel=1", "-S", "200M", "{dir}/lines"],
    },
    Known {
        name: "xz",
        command: "xz",
        arguments: &["-6", "--threads=1", "--stdout", "--keep", "{dir}/few-lines"],
    },
    Known {
        name: "cc1",
        command: CC1,
        arguments: &["-quiet", "-O2", "{dir}/functions.c", "-o", "/dev/null"],
    },
    Known { name: "node", command: "node", arguments: &["--single-threaded", "{dir}/job.js"] },
];

/// The programs that are available, and the reasons why others are not.
pub fn find(only: &[String], python: &Path, dir: &Path) -> Result<(Vec<Program>, Vec<String>)> {
    if let Some(unknown) = only.iter().find(|name| KNOWN.iter().all(|known| known.name != **name)) {
        let names: Vec<&str> = KNOWN.iter().map(|known| known.name).collect();
        return Err(hiroma_command::refuse(format!(
            "there is no program `{unknown}`: choose from {}",
            names.join(", ")
        )));
    }
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    for known in
        KNOWN.iter().filter(|known| only.is_empty() || only.iter().any(|name| name == known.name))
    {
        match known.here(python, dir) {
            Ok(program) => found.push(program),
            Err(reason) => missing.push(format!("{} is skipped: {reason:#}", known.name)),
        }
    }
    Ok((found, missing))
}

impl Known {
    fn here(&self, python: &Path, dir: &Path) -> Result<Program> {
        let program = match self.command {
            PYTHON => said_by(
                python,
                &[
                    "-c",
                    if self.name == "numpy" {
                        "import sys, numpy; print(sys.executable)"
                    } else {
                        "import sys; print(sys.executable)"
                    },
                ],
            )?,
            CC1 => said_by(Path::new("gcc"), &["-print-prog-name=cc1"])?,
            name => in_path(name).with_context(|| format!("{name} is not installed"))?,
        };
        let dir = dir.to_str().context("a directory whose name is not UTF-8")?;
        let arguments = self.arguments.iter().map(|argument| argument.replace("{dir}", dir));
        Ok(Program {
            name: self.name.to_owned(),
            argv: std::iter::once(program).chain(arguments).collect(),
        })
    }
}

fn in_path(name: &str) -> Option<String> {
    let dirs = std::env::var_os("PATH")?;
    let files = std::env::split_paths(&dirs).map(|dir| dir.join(name));
    files
        .filter(|file| rustix::fs::access(file, rustix::fs::Access::EXEC_OK).is_ok())
        .find_map(|file| file.to_str().map(str::to_owned))
}

/// Runs a command and returns the first line of its output.
fn said_by(command: &Path, arguments: &[&str]) -> Result<String> {
    let output = Command::new(command).args(arguments).stderr(Stdio::null()).output();
    let output = output.with_context(|| format!("{} cannot be started", command.display()))?;
    if !output.status.success() {
        anyhow::bail!("{} has not what it needs", command.display());
    }
    Ok(String::from_utf8(output.stdout)?.lines().next().unwrap_or_default().to_owned())
}

const JOBS: [(&str, &str); 7] = [
    ("dictionary.py", include_str!("jobs/dictionary.py")),
    ("objects.py", include_str!("jobs/objects.py")),
    ("arrays.py", include_str!("jobs/arrays.py")),
    ("look-ups.sql", include_str!("jobs/look-ups.sql")),
    ("words.pl", include_str!("jobs/words.pl")),
    ("words.tcl", include_str!("jobs/words.tcl")),
    ("job.js", include_str!("jobs/job.js")),
];

/// Writes the jobs and their input, which are the same in every run.
pub fn write_inputs(dir: &Path) -> Result<()> {
    use rand::{Rng, SeedableRng};
    for (name, text) in JOBS {
        fs::write(dir.join(name), text)?;
    }
    let mut random = rand::rngs::SmallRng::seed_from_u64(3);
    let make = |name: &str| -> Result<std::io::BufWriter<fs::File>> {
        let path = dir.join(name);
        Ok(std::io::BufWriter::new(
            fs::File::create(&path).with_context(|| format!("creating {}", path.display()))?,
        ))
    };
    let mut documents = make("documents.json")?;
    for at in 0..40_000 {
        let (a, b, c) = (
            random.random_range(0..1000),
            random.random_range(0..1_000_000_000),
            random.random::<f64>(),
        );
        write!(
            documents,
            "{}{{\"a\":{a},\"b\":\"x{b}\",\"c\":[{c}]}}",
            if at == 0 { '[' } else { ',' }
        )?;
    }
    writeln!(documents, "]")?;
    documents.flush()?;
    for (name, count) in [("lines", 600_000), ("few-lines", 40_000)] {
        let mut lines = make(name)?;
        for _ in 0..count {
            writeln!(
                lines,
                "{} some text {}",
                random.random_range(0..1_000_000_000),
                random.random_range(0..1_000_000)
            )?;
        }
        lines.flush()?;
    }
    let mut words = make("words")?;
    for _ in 0..25_000 {
        for _ in 0..8 {
            // Some words are much more frequent than others.
            let word = random.random_range(0..1_000_000u64) * random.random_range(0..1_000_000)
                / 5_000_000;
            write!(words, "word{word} ")?;
        }
        writeln!(words)?;
    }
    words.flush()?;
    let mut code = make("functions.c")?;
    for at in 0..250 {
        write!(
            code,
            "static int table{at}[64];\nint f{at}(int a, int b)\n{{\n\tint s = {at};\n\tfor (int i = 0; i < 64; i++) {{\n\t\ttable{at}[i] += a * i ^ b;\n\
             \t\tif (table{at}[i] > {at}) s += table{at}[i & 31] / (b + 1); else s ^= table{at}[63 - i] << 2;\n\t\tswitch (s & 7) {{ case 0: s += a; break; case 3: s -= b; break; \
             case 5: s *= 3; break; default: s++; }}\n\t}}\n\treturn s{};\n}}\n",
            if at > 0 { format!(" + f{}(b, a)", at - 1) } else { String::new() }
        )?;
    }
    code.flush()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_ten_programs_and_missing_ones_reported() {
        let names: std::collections::BTreeSet<_> = KNOWN.iter().map(|known| known.name).collect();
        assert!(names.len() == KNOWN.len() && names.len() > 10);
        let dir = tempfile::tempdir().unwrap();
        let (found, missing) =
            find(&["sort".into(), "numpy".into()], Path::new("/nowhere/python"), dir.path())
                .unwrap();
        assert_eq!((found.len(), found[0].name.as_str()), (1, "sort"));
        assert!(
            missing[0].starts_with("numpy is skipped: /nowhere/python cannot be started"),
            "{missing:?}"
        );
        write_inputs(dir.path()).unwrap();
        assert!(fs::metadata(dir.path().join("lines")).unwrap().len() > 1 << 20);
    }
}
