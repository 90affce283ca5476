//! The files that Maven has built and fetched: the plugin, the jobs, and a stock Spark.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use hiroma_command::refuse;

const PLUGIN: &str = "hiroma-spark/target/hiroma-spark-0.1.0.jar";
const JOBS: &str = "bench/target/hiroma-spark-bench-0.1.0.jar";
const CLASS_PATH: &str = "bench/target/spark.classpath";

/// Jars for clusters.
#[derive(Clone, Debug)]
pub struct Jars {
    pub plugin: PathBuf,
    pub jobs: PathBuf,
    /// Class path of a stock Spark, in Java's form.
    pub class_path: String,
    pub java: PathBuf,
}

impl Jars {
    /// Finds the jars below `dir`; if none is given, below `spark` in the working directory or where
    /// this program was built.
    pub fn find(dir: Option<&Path>) -> Result<Jars> {
        let dir = dir.map_or_else(usual_place, Path::to_path_buf);
        for file in [PLUGIN, JOBS, CLASS_PATH] {
            if !dir.join(file).is_file() {
                return Err(refuse(format!(
                    "there is no {}: run `make spark-jars` in Hiroma's source tree (Maven fetches a stock Spark), and name its directory `spark` with --jvm",
                    dir.join(file).display()
                )));
            }
        }
        let java = java().ok_or_else(|| {
            refuse("there is no java in PATH, and JAVA_HOME names none: install a JDK 17")
        })?;
        let absolute = |file: &str| {
            fs::canonicalize(dir.join(file)).with_context(|| format!("finding {file}"))
        };
        let class_path = fs::read_to_string(dir.join(CLASS_PATH))
            .with_context(|| format!("reading {CLASS_PATH}"))?
            .trim()
            .to_owned();
        if let Some(gone) = class_path.split(':').find(|jar| !Path::new(jar).exists()) {
            return Err(refuse(format!("{gone} is no longer there: run `make spark-jars` again")));
        }
        Ok(Jars { plugin: absolute(PLUGIN)?, jobs: absolute(JOBS)?, class_path, java })
    }

    /// Version of Spark, from the name of its jar.
    pub fn spark(&self) -> &str {
        let names =
            self.class_path.split(':').filter_map(|jar| Path::new(jar).file_stem()?.to_str());
        names
            .filter_map(|name| name.strip_prefix("spark-core_")?.split_once('-'))
            .map(|(_, version)| version)
            .next()
            .unwrap_or("?")
    }

    /// Version of Scala, which Spark requires as a setting.
    pub fn scala(&self) -> &str {
        let names =
            self.class_path.split(':').filter_map(|jar| Path::new(jar).file_stem()?.to_str());
        names
            .filter_map(|name| name.strip_prefix("spark-core_")?.split_once('-'))
            .map(|(scala, _)| scala)
            .next()
            .unwrap_or("2.12")
    }
}

fn usual_place() -> PathBuf {
    let built = std::env::current_exe()
        .ok()
        .and_then(|program| Some(program.parent()?.parent()?.parent()?.join("spark")));
    let here = PathBuf::from("spark");
    built.filter(|dir| dir.is_dir() && !here.join(PLUGIN).is_file()).unwrap_or(here)
}

fn java() -> Option<PathBuf> {
    let home = std::env::var_os("JAVA_HOME").map(|home| Path::new(&home).join("bin/java"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places =
        home.into_iter().chain(std::env::split_paths(&path).map(|dir| dir.join("java")));
    places.find(|java| java.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_jar_is_named_with_its_make_target() {
        let dir = tempfile::tempdir().unwrap();
        for file in [PLUGIN, JOBS, CLASS_PATH] {
            let error = Jars::find(Some(dir.path())).unwrap_err().to_string();
            assert!(error.contains(file) && error.contains("make spark-jars"), "{error}");
            fs::create_dir_all(dir.path().join(file).parent().unwrap()).unwrap();
            fs::write(dir.path().join(file), "/no/such/spark-core_2.13-4.0.1.jar\n").unwrap();
        }
        let error = Jars::find(Some(dir.path())).unwrap_err().to_string();
        assert!(
            error.contains("/no/such/spark-core_2.13-4.0.1.jar") || error.contains("java"),
            "{error}"
        );
    }

    #[test]
    fn versions_are_those_of_the_jar() {
        let jars = |path: &str| Jars {
            plugin: "p".into(),
            jobs: "j".into(),
            class_path: path.into(),
            java: "java".into(),
        };
        let found = jars("/m/spark-launcher_2.13-4.0.1.jar:/m/spark-core_2.13-4.0.1.jar");
        assert_eq!((found.spark(), found.scala()), ("4.0.1", "2.13"));
        assert_eq!(jars("").spark(), "?");
    }
}
