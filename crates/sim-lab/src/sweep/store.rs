//! A directory of results: `sweep.json` describes the sweep, `points/CELL-SEED.json` contains one run
//! each, and an empty file `shards-of-N` tells that shards of N were run.
//!
//! Every file is written atomically (it gets its name only when it is complete), and its bytes
//! depend only on the configuration and the seed. Shards can therefore share a directory, on one
//! machine or on a shared file system, or their directories can be merged or copied into one. More
//! seeds add files and change none.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::figures::Figures;
use crate::single::to_text;
use crate::sweep::plan::{FORMAT, Manifest, Plan, Point, Shard, label, point_of};
use hiroma_report::atomic::{remove_unfinished, write_atomically};

/// Unfinished files older than this are abandoned.
const ABANDONED: Duration = Duration::from_secs(3600);
/// Name of a file that tells of shards, without their number.
const SHARDS_OF: &str = "shards-of-";

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
    #[error("{path} has no results yet: run `hiroma sim sweep` first", path = .path.display())]
    Empty { path: PathBuf },
}

/// The directory, or several whose results are those of one sweep.
#[derive(Clone, Debug)]
pub struct Store {
    directories: Vec<PathBuf>,
    manifest: Manifest,
}

/// Runs of one shard that are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    pub shard: Shard,
    pub missing: usize,
    pub of: usize,
}

/// What is missing in a sweep.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gaps {
    /// Runs that are missing.
    pub missing: usize,
    /// All runs.
    pub of: usize,
    /// The first one: its settings and seed.
    pub first: String,
    /// Shards with missing runs, of sweeps that were run in shards.
    pub shards: Vec<Gap>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PointFile {
    /// The sweep's fingerprint.
    fingerprint: String,
    cell: usize,
    seed: u64,
    settings: Vec<(String, String)>,
    figures: Figures,
}

impl Store {
    /// The directory for the results of `plan`: new, empty, or with some of them. Seeds that the
    /// plan has and the directory has not are added to it.
    pub fn open(directory: &Path, plan: &Plan) -> Result<Store, StoreError> {
        let failed = |path: &Path| io_error(path.to_owned());
        fs::create_dir_all(directory.join("points")).map_err(failed(directory))?;
        let path = directory.join("sweep.json");
        let wanted = plan.manifest();
        loop {
            let manifest = match read_manifest(&path) {
                Ok(found) => Some(found),
                Err(StoreError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                    None
                }
                Err(StoreError::Foreign { .. }) => {
                    return Err(StoreError::Other { path: directory.to_owned() });
                }
                Err(error) => return Err(error),
            };
            let mut whole = wanted.clone();
            if let Some(found) = &manifest {
                whole.add_seeds(&found.seeds);
                if *found == whole {
                    remove_unfinished(&directory.join("points"), ABANDONED)
                        .map_err(failed(directory))?;
                    return Ok(Store { directories: vec![directory.to_owned()], manifest: whole });
                }
                if !found.is_same_sweep(&whole) {
                    return Err(StoreError::Other { path: directory.to_owned() });
                }
            }
            // Another shard may be adding other seeds: read again.
            write_atomically(&path, to_text(&whole).as_bytes()).map_err(failed(&path))?;
        }
    }

    /// Directories with results of one sweep.
    pub fn find<P: AsRef<Path>>(directories: &[P]) -> Result<Store, StoreError> {
        let mut whole: Option<Manifest> = None;
        for directory in directories {
            let directory = directory.as_ref();
            let found = read_manifest(&directory.join("sweep.json"))?;
            match &mut whole {
                None => whole = Some(found),
                Some(whole) if whole.is_same_sweep(&found) => whole.add_seeds(&found.seeds),
                Some(_) => return Err(StoreError::Other { path: directory.to_owned() }),
            }
        }
        let directories: Vec<PathBuf> =
            directories.iter().map(|directory| directory.as_ref().to_owned()).collect();
        let manifest = whole.ok_or(StoreError::Empty { path: PathBuf::from(".") })?;
        Ok(Store { directories, manifest })
    }

    /// The description of the sweep.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Remembers that shards of a number are run, so that missing ones can be named.
    pub fn note_shards(&self, shard: Shard) -> Result<(), StoreError> {
        if shard.is_all() {
            return Ok(());
        }
        let path = self.directories[0].join(format!("{SHARDS_OF}{}", shard.of()));
        fs::write(&path, b"").map_err(io_error(path))
    }

    fn path(directory: &Path, point: Point) -> PathBuf {
        directory.join("points").join(format!("{:06}-{:06}.json", point.cell, point.seed))
    }

    /// Whether the run's result is stored. One that cannot be read counts as missing and is run
    /// again.
    pub fn has(&self, point: Point) -> bool {
        matches!(self.load(point), Ok(Some(_)))
    }

    /// Stores a run's result.
    pub fn save(&self, point: Point, figures: &Figures) -> Result<(), StoreError> {
        let file = PointFile {
            fingerprint: self.manifest.fingerprint.clone(),
            cell: point.cell,
            seed: point.seed,
            settings: self.manifest.cells[point.cell].clone(),
            figures: figures.clone(),
        };
        let path = Store::path(&self.directories[0], point);
        write_atomically(&path, to_text(&file).as_bytes()).map_err(io_error(path))
    }

    /// A run's result, if it is there.
    pub fn load(&self, point: Point) -> Result<Option<Figures>, StoreError> {
        for directory in &self.directories {
            let path = Store::path(directory, point);
            let bytes = match fs::read(&path) {
                Ok(bytes) => bytes,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(source) => return Err(StoreError::Io { path, source }),
            };
            let file: PointFile = serde_json::from_slice(&bytes).map_err(|error| {
                let what = format!("{error}; remove it, and run the sweep again");
                StoreError::Foreign { path: path.clone(), what }
            })?;
            if file.fingerprint != self.manifest.fingerprint
                || (file.cell, file.seed) != (point.cell, point.seed)
            {
                let what = "it belongs to another sweep".to_owned();
                return Err(StoreError::Foreign { path, what });
            }
            return Ok(Some(file.figures));
        }
        Ok(None)
    }

    /// The results that there are, cell by cell, and what is missing.
    pub fn load_all(&self) -> Result<(Vec<Vec<Figures>>, Gaps), StoreError> {
        let Manifest { seeds, cells, .. } = &self.manifest;
        let of = cells.len() * seeds.len();
        let (mut all, mut missing) = (vec![Vec::new(); cells.len()], Vec::new());
        for number in 0..of {
            let point = point_of(seeds, number);
            match self.load(point)? {
                Some(figures) => all[point.cell].push(figures),
                None => missing.push(number),
            }
        }
        if missing.len() == of {
            return Err(StoreError::Empty { path: self.directories[0].clone() });
        }
        let gaps = self.gaps(&missing, of)?;
        Ok((all, gaps))
    }

    fn gaps(&self, missing: &[usize], of: usize) -> Result<Gaps, StoreError> {
        let Some(&first) = missing.first() else { return Ok(Gaps { of, ..Gaps::default() }) };
        let Point { cell, seed } = point_of(&self.manifest.seeds, first);
        let mut shards = Vec::new();
        for count in self.shard_counts()? {
            let mut of_shard = BTreeMap::<usize, usize>::new();
            missing.iter().for_each(|point| *of_shard.entry(point % count).or_default() += 1);
            shards.extend(of_shard.into_iter().map(|(place, missing)| Gap {
                shard: Shard::new(place + 1, count),
                missing,
                of: (of - place).div_ceil(count),
            }));
        }
        Ok(Gaps {
            missing: missing.len(),
            of,
            first: format!("{}, seed {seed}", label(&self.manifest.cells[cell])),
            shards,
        })
    }

    /// Into how many shards the sweep was divided, each time that it was.
    fn shard_counts(&self) -> Result<Vec<usize>, StoreError> {
        let mut counts = Vec::new();
        for directory in &self.directories {
            for entry in fs::read_dir(directory).map_err(io_error(directory.clone()))? {
                let name = entry.map_err(io_error(directory.clone()))?.file_name();
                let count = name.to_str().and_then(|name| name.strip_prefix(SHARDS_OF));
                let count = count.and_then(|count| count.parse::<usize>().ok());
                counts.extend(count.filter(|&count| count > 0));
            }
        }
        counts.sort_unstable();
        counts.dedup();
        Ok(counts)
    }
}

impl Manifest {
    /// Whether another one describes the same configurations of the same version.
    fn is_same_sweep(&self, other: &Manifest) -> bool {
        (self.format, &self.version, &self.fingerprint, &self.cells)
            == (other.format, &other.version, &other.fingerprint, &other.cells)
    }

    fn add_seeds(&mut self, seeds: &[u64]) {
        self.seeds.extend_from_slice(seeds);
        self.seeds.sort_unstable();
        self.seeds.dedup();
    }
}

fn read_manifest(path: &Path) -> Result<Manifest, StoreError> {
    let foreign = |what: String| StoreError::Foreign { path: path.to_owned(), what };
    let bytes = fs::read(path).map_err(io_error(path.to_owned()))?;
    let manifest: Manifest =
        serde_json::from_slice(&bytes).map_err(|error| foreign(error.to_string()))?;
    if manifest.format != FORMAT {
        let what = format!("format {}, and this program reads format {FORMAT}", manifest.format);
        return Err(foreign(what));
    }
    Ok(manifest)
}

fn io_error(path: PathBuf) -> impl FnOnce(io::Error) -> StoreError {
    move |source| StoreError::Io { path, source }
}
