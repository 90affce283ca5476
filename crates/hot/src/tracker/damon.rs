//! DAMON on the addresses of one process (`Documentation/admin-guide/mm/damon/usage.rst`, the sysfs
//! interface).
//!
//! DAMON divides the addresses into regions and samples one page of each repeatedly; it therefore
//! reports what share of a region is in use, not which pages. The machine has one set of DAMON
//! settings: if another user has made a `kdamond`, it is left alone.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use hiroma_sys::hot::pagemap::Pagemap;
use hiroma_sys::hot::target::Target;
use hiroma_units::EXTENT;

use super::{Backend, RangeView, Tracker, first_of, populated};
use crate::bits::{self, PageBits};
use crate::error::HotError;
use crate::layout::Layout;

const ADMIN: &str = "/sys/kernel/mm/damon/admin/kdamonds";
const RANGE: u64 = EXTENT as u64;
/// One page of each region is sampled at this interval …
const SAMPLE_US: u64 = 5000;
/// … and counts restart after this one; a scan waits for it.
const AGGREGATION_US: u64 = 10 * SAMPLE_US;
/// How often DAMON checks whether memory was mapped or unmapped.
const UPDATE_US: u64 = 1_000_000;
/// More regions than this cost more than they show.
const REGIONS_MAX: u64 = 2000;

/// See [`Backend::Damon`].
pub struct DamonTracker {
    target: Target,
    session: Session,
    pagemap: Pagemap,
    /// Present pages, as of the beginning of the pass.
    present: BTreeMap<u64, PageBits>,
}

/// A region as DAMON reports it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Region {
    start: u64,
    end: u64,
    /// Samples in which the sampled page had been touched.
    accesses: u64,
}

/// DAMON, set to one process. Released on drop.
struct Session(PathBuf);

impl Drop for Session {
    fn drop(&mut self) {
        let _ = fs::write(self.0.join("0/state"), "off");
        let _ = fs::write(self.0.join("nr_kdamonds"), "0");
    }
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    fs::write(path, text)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}

fn number(path: &Path) -> io::Result<u64> {
    let text = fs::read_to_string(path)?;
    text.trim().parse().map_err(|_| {
        io::Error::new(io::ErrorKind::InvalidData, format!("{}: `{}`", path.display(), text.trim()))
    })
}

impl Session {
    /// Takes DAMON and sets it to process `pid`; fails while another user has it.
    fn take(admin: &Path, pid: u32, regions_min: u64) -> io::Result<Session> {
        let owners = number(&admin.join("nr_kdamonds")).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => io::Error::new(
                io::ErrorKind::Unsupported,
                "this kernel has no DAMON that is set up through sysfs (CONFIG_DAMON_SYSFS)",
            ),
            _ => error,
        })?;
        if owners > 0 {
            let text = format!(
                "DAMON is already in use ({}/nr_kdamonds is {owners}), and the machine has only one set of its settings; if they are \
                 left over: echo 0 | sudo tee {0}/nr_kdamonds",
                admin.display()
            );
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, text));
        }
        write(&admin.join("nr_kdamonds"), "1")?;
        let session = Session(admin.to_owned());
        session.set_up(pid, regions_min)?;
        Ok(session)
    }

    fn set_up(&self, pid: u32, regions_min: u64) -> io::Result<()> {
        let kdamond = self.0.join("0");
        write(&kdamond.join("contexts/nr_contexts"), "1")?;
        let context = kdamond.join("contexts/0");
        if !fs::read_to_string(context.join("avail_operations"))?
            .lines()
            .any(|line| line == "vaddr")
        {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "this kernel's DAMON does not watch processes (CONFIG_DAMON_VADDR)",
            ));
        }
        let set = |file: &str, value: &dyn std::fmt::Display| {
            write(&context.join(file), &value.to_string())
        };
        set("operations", &"vaddr")?;
        set("monitoring_attrs/intervals/sample_us", &SAMPLE_US)?;
        set("monitoring_attrs/intervals/aggr_us", &AGGREGATION_US)?;
        set("monitoring_attrs/intervals/update_us", &UPDATE_US)?;
        // Set the larger one first: the minimum may never exceed the maximum.
        set("monitoring_attrs/nr_regions/max", &REGIONS_MAX)?;
        set("monitoring_attrs/nr_regions/min", &regions_min.clamp(10, REGIONS_MAX / 2))?;
        set("targets/nr_targets", &1)?;
        set("targets/0/pid_target", &pid)?;
        // A scheme that matches all regions and does nothing: it makes them readable.
        set("schemes/nr_schemes", &1)?;
        set("schemes/0/action", &"stat")?;
        for (what, most) in
            [("sz", u64::MAX), ("nr_accesses", u32::MAX.into()), ("age", u32::MAX.into())]
        {
            set(&format!("schemes/0/access_pattern/{what}/min"), &0)?;
            set(&format!("schemes/0/access_pattern/{what}/max"), &most)?;
        }
        write(&kdamond.join("state"), "on")
    }

    /// The regions seen since the last aggregation, by address. Waits for the next one.
    fn regions(&self) -> io::Result<Vec<Region>> {
        write(&self.0.join("0/state"), "update_schemes_tried_regions")?;
        let mut regions = Vec::new();
        for entry in fs::read_dir(self.0.join("0/contexts/0/schemes/0/tried_regions"))? {
            let region = entry?;
            if region.file_type()?.is_dir() {
                let field = |name: &str| number(&region.path().join(name));
                regions.push(Region {
                    start: field("start")?,
                    end: field("end")?,
                    accesses: field("nr_accesses")?,
                });
            }
        }
        regions.sort_unstable_by_key(|region| region.start);
        Ok(regions)
    }
}

/// How many of the `there` present pages of range `range` are in use: the share of samples in which
/// a page was touched.
fn touched_of(regions: &[Region], range: u64, there: u64) -> u64 {
    let (start, end) = (range * RANGE, (range + 1) * RANGE);
    let from = regions.partition_point(|region| region.end <= start);
    let samples = AGGREGATION_US / SAMPLE_US;
    let seen: u128 = regions[from..]
        .iter()
        .take_while(|region| region.start < end)
        .map(|region| {
            u128::from(region.end.min(end) - region.start.max(start))
                * u128::from(region.accesses.min(samples))
        })
        .sum();
    (seen * u128::from(there)).div_ceil(u128::from(RANGE) * u128::from(samples)) as u64
}

impl DamonTracker {
    /// Opens a tracker of process `pid`.
    pub fn open(pid: u32) -> Result<DamonTracker, HotError> {
        let target = Target::open(pid).map_err(HotError::of(pid, "pidfd_open"))?;
        let pagemap = Pagemap::open(pid).map_err(HotError::of(pid, "read /proc/PID/pagemap"))?;
        let failed = |error: io::Error| HotError::Backend {
            backend: Backend::Damon.name(),
            reason: error.to_string(),
        };
        pagemap.huge(0, 1).map_err(|error| match error.raw_os_error() {
            Some(_) => failed(io::Error::new(
                error.kind(),
                format!("Linux 6.7 or newer is needed (PAGEMAP_SCAN: {error})"),
            )),
            None => failed(error),
        })?;
        let resident = crate::machine::resident_bytes(pid)
            .map_err(HotError::of(pid, "read /proc/PID/status"))?;
        let session = Session::take(Path::new(ADMIN), pid, 2 * resident / RANGE).map_err(failed)?;
        Ok(DamonTracker { target, session, pagemap, present: BTreeMap::new() })
    }
}

impl Tracker for DamonTracker {
    fn backend(&self) -> Backend {
        Backend::Damon
    }

    fn populated(&mut self, layout: &Layout, out: &mut Vec<u64>) -> Result<(), HotError> {
        let failed = HotError::of(self.target.pid(), "read /proc/PID/pagemap");
        self.present.clear();
        let mut ranges = Vec::new();
        populated(&self.pagemap, layout, &mut ranges).map_err(&failed)?;
        for range in ranges {
            let present =
                bits::and(&self.pagemap.present(range).map_err(&failed)?, &layout.pages_of(range));
            if !bits::is_empty(&present) {
                self.present.insert(range, present);
            }
        }
        out.extend(self.present.keys());
        Ok(())
    }

    /// DAMON clears by itself, one page of a region at a time.
    fn clear(&mut self, _layout: &Layout, _ranges: &[u64]) -> Result<(), HotError> {
        Ok(())
    }

    fn scan(
        &mut self,
        _layout: &Layout,
        ranges: &[u64],
        out: &mut Vec<RangeView>,
    ) -> Result<(), HotError> {
        let pid = self.target.pid();
        let regions = self.session.regions().map_err(|source| match self.target.is_ending() {
            true => HotError::Gone { pid },
            false => HotError::Io { pid, doing: "read DAMON's regions", source },
        })?;
        for &range in ranges {
            let huge = self
                .pagemap
                .huge(range, range + 1)
                .map_err(HotError::of(pid, "read /proc/PID/pagemap"))?;
            let present = if huge {
                bits::ALL
            } else {
                self.present.get(&range).copied().unwrap_or(bits::NONE)
            };
            let there = u64::from(bits::count(&present));
            let touched = touched_of(&regions, range, there).min(there);
            let touched = if huge && touched > 0 { present } else { first_of(&present, touched) };
            out.push(RangeView { range, present, touched, huge });
        }
        Ok(())
    }

    fn clears_all(&self) -> bool {
        true
    }

    fn tells_pages_apart(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damon_in_use_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let owners = dir.path().join("nr_kdamonds");
        fs::write(&owners, "1\n").unwrap();
        let error = Session::take(dir.path(), 1, 10).err().unwrap();
        assert!(error.to_string().contains("already in use"), "{error}");
        assert_eq!(fs::read_to_string(&owners).unwrap(), "1\n");
        let error = Session::take(&dir.path().join("nothing"), 1, 10).err().unwrap();
        assert!(error.to_string().contains("CONFIG_DAMON_SYSFS"), "{error}");
    }

    #[test]
    fn range_gets_its_share_of_overlapping_regions() {
        let region = |start: u64, end: u64, accesses| Region {
            start: start * RANGE / 2,
            end: end * RANGE / 2,
            accesses,
        };
        // In halves of ranges: 0 and 1 make up range 0.
        let regions = [region(1, 2, 10), region(2, 8, 5), region(8, 9, 0)];
        let touched: Vec<u64> = (0..5).map(|range| touched_of(&regions, range, 512)).collect();
        assert_eq!(touched, [256, 256, 256, 256, 0]);
        assert_eq!(touched_of(&[], 3, 512), 0);
    }
}
