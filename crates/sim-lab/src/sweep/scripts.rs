//! Scripts that run the shards of a sweep on the engines of others, and merge them.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Tasks of a job array: Slurm's `MaxArraySize`, if nobody changes it, allows no more.
const TASKS_MAX: usize = 1000;

/// What runs the shards.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Engine {
    /// A Slurm job array.
    Slurm,
    /// Tasks of Ray.
    Ray,
}

impl FromStr for Engine {
    type Err = String;

    fn from_str(text: &str) -> Result<Engine, String> {
        match text {
            "slurm" => Ok(Engine::Slurm),
            "ray" => Ok(Engine::Ray),
            _ => Err(format!("there is no engine `{text}`: use slurm or ray")),
        }
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Engine::Slurm => "slurm",
            Engine::Ray => "ray",
        })
    }
}

/// A sweep that a script is to run. The paths are the same on all machines.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Script {
    pub engine: Engine,
    /// The program.
    pub hiroma: PathBuf,
    /// The sweep's file.
    pub sweep: PathBuf,
    /// The directory for the results.
    pub out: PathBuf,
    pub shards: usize,
    /// Seeds instead of those in the file.
    pub seeds: Option<u32>,
}

impl Script {
    /// The name of the script's file.
    pub fn name(&self) -> &'static str {
        match self.engine {
            Engine::Slurm => "sweep-slurm.sh",
            Engine::Ray => "sweep_ray.py",
        }
    }

    /// The command that runs everything, for the script in `path`.
    pub fn command(&self, path: &Path) -> String {
        let path = shell_word(&path.to_string_lossy());
        match self.engine {
            Engine::Slurm => format!("bash {path} submit"),
            Engine::Ray => format!("python3 {path}"),
        }
    }

    /// The script.
    pub fn text(&self) -> String {
        let (template, word): (&str, fn(&str) -> String) = match self.engine {
            Engine::Slurm => (include_str!("scripts/slurm.sh"), shell_word),
            Engine::Ray => (include_str!("scripts/ray.py"), python_word),
        };
        let path = |path: &Path| word(&path.to_string_lossy());
        let seeds = self.seeds.map_or(String::new(), |seeds| seeds.to_string());
        let values = [
            ("@NAME@", self.name().to_owned()),
            ("@SHARDS@", self.shards.to_string()),
            ("@TASKS@", self.shards.min(TASKS_MAX).to_string()),
            ("@SEEDS@", word(&seeds)),
            ("@HIROMA@", path(&self.hiroma)),
            ("@SWEEP@", path(&self.sweep)),
            ("@OUT@", path(&self.out)),
        ];
        let mut text = String::with_capacity(template.len() + 512);
        let mut rest = template;
        // One pass: a path may look like a placeholder.
        while let Some(at) = rest.find('@') {
            let (before, from) = rest.split_at(at);
            text += before;
            match values.iter().find(|(name, _)| from.starts_with(name)) {
                Some((name, value)) => {
                    text += value;
                    rest = &from[name.len()..];
                }
                None => {
                    text.push('@');
                    rest = &from[1..];
                }
            }
        }
        text + rest
    }
}

/// A word for a POSIX shell.
fn shell_word(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// A text for Python, whose escapes are JSON's.
fn python_word(text: &str) -> String {
    serde_json::to_string(text).expect("texts become JSON")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(engine: Engine) -> Script {
        Script {
            engine,
            hiroma: "/opt/it's @OUT@/hiroma".into(),
            sweep: "/home/me/s \"1\".toml".into(),
            out: "/scratch/o".into(),
            shards: 12,
            seeds: Some(20),
        }
    }

    #[test]
    fn paths_are_quoted_for_their_language() {
        let text = script(Engine::Slurm).text();
        assert!(text.contains("\n#SBATCH --array=1-12\n"));
        assert!(text.contains("\nhiroma='/opt/it'\\''s @OUT@/hiroma'\n"), "{text}");
        assert!(text.contains("\nsweep='/home/me/s \"1\".toml'\nout='/scratch/o'\nshards=12\n"));
        assert!(text.contains("\ntasks=12\nseeds='20'\n"));
        let many = Script { shards: 2500, ..script(Engine::Slurm) }.text();
        assert!(many.contains("\n#SBATCH --array=1-1000\n") && many.contains("\nshards=2500\n"));
        let text = script(Engine::Ray).text();
        assert!(
            text.contains(
                "\nHIROMA = \"/opt/it's @OUT@/hiroma\"\nSWEEP = \"/home/me/s \\\"1\\\".toml\"\n"
            ),
            "{text}"
        );
        assert!(text.contains("\nSHARDS = 12\nSEEDS = \"20\"\n"));
        for engine in [Engine::Slurm, Engine::Ray] {
            let own = script(engine).text().replace("s @OUT@/", "");
            assert!(!own.contains("@NAME@") && !own.contains("@OUT@"));
            assert_eq!(engine.to_string().parse(), Ok(engine));
        }
    }
}
