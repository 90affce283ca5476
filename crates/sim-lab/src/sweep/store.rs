//! A directory of results: `sweep.json` describes the sweep, `points/NNNNNNN.json` contains one run
//! each.
//!
//! Every file is written atomically (it gets its name only when it is complete), and its bytes
//! depend only on the configuration and the seed. Shards can therefore share a directory, on one
//! machine or on a shared file system, or their directories can be copied into one.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::figures::Figures;
use crate::single::to_text;
use crate::sweep::plan::{Manifest, Plan};
use hiroma_report::atomic::{remove_unfinished, write_atomically};

/// Unfinished files older than this are abandoned.
const ABANDONED: Duration = Duration::from_secs(3600);

/// Why results could not be stored or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    #[error("{path}: {source}", path = .path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("{path} holds the results of another sweep, or of another version: choose another directory", path = .path.display())]
    Other { path: PathBuf },
    #[error("{path}: not the results of a sweep: {what}", path = .path.display())]
    Foreign { path: PathBuf, what: String },
    #[error(
        "{path}: {missing} of {of} points are missing, the first is number {first}: run `hiroma sim sweep` again with the shards that did \
         not end",
        path = .path.display()
    )]
    Missing { path: PathBuf, missing: usize, of: usize, first: usize },
}

/// The directory.
#[derive(Clone, Debug)]
pub struct Store {
    directory: PathBuf,
    manifest: Manifest,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PointFile {
    /// The sweep's fingerprint.
    fingerprint: String,
    point: usize,
    seed: u64,
    settings: Vec<(String, String)>,
    figures: Figures,
}

impl Store {
    /// The directory for the results of `plan`: new, empty, or with some of them.
    pub fn open(directory: &Path, plan: &Plan) -> Result<Store, StoreError> {
        let failed = |path: &Path| io_error(path.to_owned());
        let manifest = plan.manifest();
        fs::create_dir_all(directory.join("points")).map_err(failed(directory))?;
        let path = directory.join("sweep.json");
        match fs::read(&path) {
            Ok(bytes)
                if serde_json::from_slice::<Manifest>(&bytes)
                    .is_ok_and(|found| found == manifest) => {}
            Ok(_) => return Err(StoreError::Other { path: directory.to_owned() }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                write_atomically(&path, to_text(&manifest).as_bytes()).map_err(failed(&path))?;
            }
            Err(error) => return Err(StoreError::Io { path, source: error }),
        }
        remove_unfinished(&directory.join("points"), ABANDONED).map_err(failed(directory))?;
        Ok(Store { directory: directory.to_owned(), manifest })
    }

    /// A directory with the results of any sweep.
    pub fn find(directory: &Path) -> Result<Store, StoreError> {
        let path = directory.join("sweep.json");
        let bytes = fs::read(&path).map_err(io_error(path.clone()))?;
        let manifest: Manifest = serde_json::from_slice(&bytes)
            .map_err(|error| StoreError::Foreign { path: path.clone(), what: error.to_string() })?;
        if manifest.format != 1 {
            return Err(StoreError::Foreign {
                path,
                what: format!("format {}, and this program reads format 1", manifest.format),
            });
        }
        Ok(Store { directory: directory.to_owned(), manifest })
    }

    /// The description of the sweep.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    fn path(&self, point: usize) -> PathBuf {
        self.directory.join("points").join(format!("{point:07}.json"))
    }

    /// Whether the point's result is stored. One that cannot be read counts as missing and is run
    /// again.
    pub fn has(&self, point: usize) -> bool {
        self.load(point).is_ok()
    }

    /// Stores a point's result.
    pub fn save(&self, point: usize, figures: &Figures) -> Result<(), StoreError> {
        let seeds = &self.manifest.seeds;
        let file = PointFile {
            fingerprint: self.manifest.fingerprint.clone(),
            point,
            seed: seeds[point % seeds.len()],
            settings: self.manifest.cells[point / seeds.len()].clone(),
            figures: figures.clone(),
        };
        let path = self.path(point);
        write_atomically(&path, to_text(&file).as_bytes()).map_err(io_error(path))
    }

    /// A point's result.
    pub fn load(&self, point: usize) -> Result<Figures, StoreError> {
        let path = self.path(point);
        let bytes = fs::read(&path).map_err(io_error(path.clone()))?;
        let file: PointFile = serde_json::from_slice(&bytes)
            .map_err(|error| StoreError::Foreign { path: path.clone(), what: error.to_string() })?;
        if file.fingerprint != self.manifest.fingerprint || file.point != point {
            return Err(StoreError::Foreign {
                path,
                what: "it belongs to another sweep".to_owned(),
            });
        }
        Ok(file.figures)
    }

    /// All results, cell by cell; fails if one is missing.
    pub fn load_all(&self) -> Result<Vec<Vec<Figures>>, StoreError> {
        let seeds = self.manifest.seeds.len();
        let of = self.manifest.cells.len() * seeds;
        let mut all = Vec::with_capacity(of);
        let (mut missing, mut first) = (0, of);
        for point in 0..of {
            match self.load(point) {
                Ok(figures) => all.push(figures),
                Err(StoreError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                    missing += 1;
                    first = first.min(point);
                }
                Err(error) => return Err(error),
            }
        }
        if missing > 0 {
            return Err(StoreError::Missing { path: self.directory.clone(), missing, of, first });
        }
        Ok(all.chunks(seeds.max(1)).map(<[Figures]>::to_vec).collect())
    }
}

fn io_error(path: PathBuf) -> impl FnOnce(io::Error) -> StoreError {
    move |source| StoreError::Io { path, source }
}
