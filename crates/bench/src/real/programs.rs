//! Everyday programs, with jobs that take a few hundred megabytes, and any program that the user
//! names.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use super::work::{Item, Work};

/// A program, its job and its command line. `{dir}` in an argument is the directory of the jobs.
struct Known {
    name: &'static str,
    interpreter: Interpreter,
    /// File name and content.
    job: (&'static str, &'static str),
    arguments: &'static [&'static str],
}

enum Interpreter {
    /// A program in `PATH`.
    Path(&'static str),
    /// Python with this module.
    Python(&'static str),
}

macro_rules! job {
    ($file:literal) => {
        ($file, include_str!(concat!("jobs/", $file)))
    };
    (strangers $file:literal) => {
        ($file, include_str!(concat!("../../../../tests/strangers/jobs/", $file)))
    };
}

const NO_JOB: (&str, &str) = ("", "");

const KNOWN: [Known; 18] = [
    Known {
        name: "dictionary",
        interpreter: Interpreter::Python("sys"),
        job: job!("dictionary.py"),
        arguments: &["{dir}/dictionary.py"],
    },
    Known {
        name: "sqlite",
        interpreter: Interpreter::Python("sqlite3"),
        job: job!("sqlite.py"),
        arguments: &["{dir}/sqlite.py"],
    },
    Known {
        name: "numpy",
        interpreter: Interpreter::Python("numpy"),
        job: job!("arrays.py"),
        arguments: &["{dir}/arrays.py"],
    },
    Known {
        name: "pandas",
        interpreter: Interpreter::Python("pandas"),
        job: job!(strangers "frames_pandas.py"),
        arguments: &["{dir}/frames_pandas.py"],
    },
    Known {
        name: "polars",
        interpreter: Interpreter::Python("polars"),
        job: job!(strangers "frames_polars.py"),
        arguments: &["{dir}/frames_polars.py"],
    },
    Known {
        name: "duckdb",
        interpreter: Interpreter::Python("duckdb"),
        job: job!(strangers "duck.py"),
        arguments: &["{dir}/duck.py", "2"],
    },
    Known {
        name: "java-serial",
        interpreter: Interpreter::Path("java"),
        job: job!(strangers "Heap.java"),
        arguments: &["-XX:+UseSerialGC", "-Xmx300m", "{dir}/Heap.java"],
    },
    Known {
        name: "java-g1",
        interpreter: Interpreter::Path("java"),
        job: job!(strangers "Heap.java"),
        arguments: &["-XX:+UseG1GC", "-Xmx300m", "{dir}/Heap.java"],
    },
    Known {
        name: "node",
        interpreter: Interpreter::Path("node"),
        job: job!(strangers "job.js"),
        arguments: &["{dir}/job.js"],
    },
    Known {
        name: "php",
        interpreter: Interpreter::Path("php"),
        job: job!(strangers "job.php"),
        arguments: &["{dir}/job.php"],
    },
    Known {
        name: "perl",
        interpreter: Interpreter::Path("perl"),
        job: job!(strangers "job.pl"),
        arguments: &["{dir}/job.pl"],
    },
    Known {
        name: "ruby",
        interpreter: Interpreter::Path("ruby"),
        job: job!(strangers "job.rb"),
        arguments: &["{dir}/job.rb"],
    },
    Known {
        name: "lua",
        interpreter: Interpreter::Path("lua"),
        job: job!(strangers "job.lua"),
        arguments: &["{dir}/job.lua"],
    },
    Known {
        name: "r",
        interpreter: Interpreter::Path("Rscript"),
        job: job!(strangers "job.R"),
        arguments: &["{dir}/job.R"],
    },
    Known {
        name: "jq",
        interpreter: Interpreter::Path("jq"),
        job: NO_JOB,
        arguments: &["-c", "group_by(.a) | map(length)", "{dir}/documents.json"],
    },
    Known {
        name: "sort",
        interpreter: Interpreter::Path("sort"),
        job: NO_JOB,
        arguments: &["--parallel=2", "-S", "400M", "{dir}/lines"],
    },
    Known {
        name: "g++",
        interpreter: Interpreter::Path("g++"),
        job: job!("templates.cpp"),
        arguments: &["-std=c++17", "-O2", "-S", "-o", "-", "{dir}/templates.cpp"],
    },
    Known {
        name: "xz",
        interpreter: Interpreter::Path("xz"),
        job: NO_JOB,
        arguments: &["-9", "--threads=1", "--stdout", "--keep", "{dir}/few-lines"],
    },
];

/// Names of all programs.
pub fn names() -> impl Iterator<Item = &'static str> {
    KNOWN.iter().map(|known| known.name)
}

/// The wanted programs that are available, in the order of the table, and the reasons why other
/// wanted ones are not.
pub fn find(
    wanted: &dyn Fn(&str) -> bool,
    python: &Path,
    dir: &Path,
) -> Result<(Vec<Item>, Vec<String>)> {
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    for known in KNOWN.iter().filter(|known| wanted(known.name)) {
        match known.here(python, dir) {
            Ok(program) => found.push(program),
            Err(reason) => missing.push(format!("{} is skipped: {reason:#}", known.name)),
        }
    }
    Ok((found, missing))
}

impl Known {
    fn here(&self, python: &Path, dir: &Path) -> Result<Item> {
        let program = match self.interpreter {
            Interpreter::Path(name) => {
                in_path(name).with_context(|| format!("{name} is not installed"))?
            }
            Interpreter::Python(module) => python_with(python, module)?,
        };
        if !self.job.0.is_empty() {
            fs::write(dir.join(self.job.0), self.job.1)?;
        }
        let dir = dir.to_str().context("a directory whose name is not UTF-8")?;
        let arguments = self.arguments.iter().map(|argument| argument.replace("{dir}", dir));
        Ok(Item {
            name: self.name.to_owned(),
            work: Work::Program(std::iter::once(program).chain(arguments).collect()),
        })
    }
}

/// Path of a program in `PATH`.
pub fn in_path(name: &str) -> Option<String> {
    let dirs = std::env::var_os("PATH")?;
    let files = std::env::split_paths(&dirs).map(|dir| dir.join(name));
    files
        .filter(|file| rustix::fs::access(file, rustix::fs::Access::EXEC_OK).is_ok())
        .find_map(|file| file.to_str().map(str::to_owned))
}

/// Path of the interpreter itself, behind any wrappers.
fn python_with(python: &Path, module: &str) -> Result<String> {
    let script = format!("import sys, {module}; print(sys.executable)");
    let output = Command::new(python)
        .args([OsStr::new("-c"), script.as_ref()])
        .stderr(Stdio::null())
        .output();
    let output = output.with_context(|| format!("{} cannot be started", python.display()))?;
    if !output.status.success() {
        bail!("{} has no module {module} (pip install {module}, or --python)", python.display());
    }
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

/// Writes the input of the programs, which is the same in every run.
pub fn write_inputs(dir: &Path) -> Result<()> {
    use rand::{Rng, SeedableRng};
    use std::io::Write;
    let mut random = rand::rngs::SmallRng::seed_from_u64(3);
    let make = |name: &str| -> Result<(PathBuf, std::io::BufWriter<fs::File>)> {
        let path = dir.join(name);
        let file =
            fs::File::create(&path).with_context(|| format!("creating {}", path.display()))?;
        Ok((path, std::io::BufWriter::with_capacity(1 << 20, file)))
    };
    let (_, mut documents) = make("documents.json")?;
    for at in 0..300_000 {
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
    for (name, count) in [("lines", 3_000_000), ("few-lines", 150_000)] {
        let (_, mut lines) = make(name)?;
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
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_missing_programs_reported() {
        let names: std::collections::BTreeSet<_> = KNOWN.iter().map(|known| known.name).collect();
        assert_eq!(names.len(), KNOWN.len());
        let dir = tempfile::tempdir().unwrap();
        let wanted = |name: &str| ["sort", "sqlite"].contains(&name);
        let (found, missing) = find(&wanted, Path::new("/nowhere/python"), dir.path()).unwrap();
        assert_eq!((found.len(), found[0].name.as_str()), (1, "sort"));
        assert!(
            matches!(&found[0].work, Work::Program(argv) if argv.last().unwrap().ends_with("/lines"))
        );
        assert!(
            missing[0].starts_with("sqlite is skipped: /nowhere/python cannot be started"),
            "{missing:?}"
        );
    }
}
