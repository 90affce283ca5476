//! Throughput and memory of a load over time, while something happens to it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Result, anyhow};
use hiroma_report::Point;

use super::load::Loaded;

/// Number of sets between two samples.
const SETS: u64 = 2;

/// One sample.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Since the beginning.
    pub seconds: f64,
    pub gb_per_s: f64,
    pub resident_bytes: u64,
}

/// Keeps `loaded` busy while `work` runs with its process id. Returns the result of `work`, and the
/// samples of the load meanwhile.
pub fn during<T>(
    loaded: &mut Loaded,
    work: impl FnOnce(u32) -> Result<T>,
) -> Result<(T, Vec<Sample>)> {
    let pid = loaded.pid();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let driver = scope.spawn(|| -> Result<Vec<Sample>> {
            let began = Instant::now();
            let mut samples = Vec::new();
            while !over.load(Ordering::Relaxed) {
                let done = loaded.run(SETS)?;
                let seconds = began.elapsed().as_secs_f64();
                samples.push(Sample {
                    seconds,
                    gb_per_s: done.gb_per_s(),
                    resident_bytes: loaded.resident_bytes()?,
                });
            }
            Ok(samples)
        });
        let worked = work(pid);
        over.store(true, Ordering::Relaxed);
        let samples =
            driver.join().map_err(|_| anyhow!("the thread that drives a load failed"))??;
        Ok((worked?, samples))
    })
}

/// Throughput over time, reduced to what a plot can show.
pub fn throughput(samples: &[Sample]) -> Vec<Point> {
    points(samples, |sample| sample.gb_per_s)
}

/// Memory over time in MiB.
pub fn resident_mib(samples: &[Sample]) -> Vec<Point> {
    points(samples, |sample| sample.resident_bytes as f64 / f64::from(1 << 20))
}

/// Maximum number of points.
const POINTS_MAX: usize = 100;

fn points(samples: &[Sample], of: fn(&Sample) -> f64) -> Vec<Point> {
    let each = samples.len().div_ceil(POINTS_MAX).max(1);
    let mean = |part: &[Sample], of: &dyn Fn(&Sample) -> f64| {
        part.iter().map(of).sum::<f64>() / part.len() as f64
    };
    samples
        .chunks(each)
        .map(|part| Point::at(mean(part, &|sample| sample.seconds), mean(part, &of)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn downsampling_keeps_the_mean() {
        let samples: Vec<Sample> = (0..1000)
            .map(|at| Sample {
                seconds: f64::from(at),
                gb_per_s: f64::from(at % 2),
                resident_bytes: 1 << 20,
            })
            .collect();
        let points = throughput(&samples);
        assert_eq!((points.len(), points[0].x, points[0].y), (100, 4.5, 0.5));
        assert!(resident_mib(&samples).iter().all(|point| point.y == 1.0));
        assert!(throughput(&[]).is_empty());
    }
}
