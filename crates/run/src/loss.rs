//! The time that a run lost by waiting for far memory, and the effect that more local memory would
//! have had.

use std::time::Duration;

use hiroma_command::show;
use hiroma_far::control::{Counter, Snapshot, Waited};
use hiroma_policy::loss::ppm;
use hiroma_units::Bytes;
use serde_json::{Value, json};

/// Share of the time, in millionths, below which waiting does not justify a change of the limit.
const WORTH_PPM: u64 = 10_000;
/// Average number of threads that wait at the same time, in thousandths, from which on the summary
/// reports it.
const SEVERAL: u64 = 1_100;

/// The loss of all processes together.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Loss {
    /// Share of the time in which at least one thread waited for far memory, in millionths. The
    /// times of several processes are added.
    pub share_ppm: u64,
    /// Average number of threads that waited while at least one did, in thousandths.
    pub at_once_permille: u64,
    pub advice: Option<Advice>,
}

/// A limit that would have avoided most of the waiting.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Advice {
    pub local: Bytes,
    pub share_ppm: u64,
}

impl Loss {
    /// The loss of a run. None: no memory was ever far.
    pub fn of(total: &Snapshot, limit_bytes: u64, elapsed: Duration) -> Option<Loss> {
        let any_ns = total.waited(Waited::AnyFar).0;
        if total.get(Counter::FarBytesMax) == 0 && any_ns == 0 {
            return None;
        }
        let share_ppm = ppm(any_ns, elapsed.as_nanos() as u64).min(1_000_000);
        let advice = total.lost_curve().advice().filter(|_| share_ppm >= WORTH_PPM);
        let advice = advice.map(|(extra, left_ppm)| Advice {
            local: Bytes(readable(limit_bytes + extra)),
            share_ppm: (u128::from(share_ppm) * u128::from(left_ppm) / 1_000_000) as u64,
        });
        Some(Loss { share_ppm, at_once_permille: ppm(total.waited_far().0, any_ns) / 1000, advice })
    }

    /// Text for the summary.
    pub fn summary(&self) -> String {
        let several = self.at_once_permille >= SEVERAL;
        let threads = if several {
            format!(" ({:.1} threads at once)", self.at_once_permille as f64 / 1e3)
        } else {
            String::new()
        };
        let advice = match self.advice {
            Some(Advice { local, share_ppm }) => {
                format!("; {local} local would have been {}", show::percent(share_ppm))
            }
            None => String::new(),
        };
        format!(
            ", {} of the time waiting for far memory{threads}{advice}",
            show::percent(self.share_ppm)
        )
    }

    /// JSON for `--stats`.
    pub fn json(&self) -> Value {
        let share = |ppm: u64| ppm as f64 / 1e6;
        json!({
            "waiting_share": share(self.share_ppm),
            "threads_at_once": self.at_once_permille as f64 / 1e3,
            "advice": self.advice.map(|advice| json!({
                "local_bytes": advice.local.0, "estimated_waiting_share": share(advice.share_ppm),
            })),
        })
    }
}

/// The next larger size that can be written with few digits.
fn readable(bytes: u64) -> u64 {
    let unit = if bytes < 1 << 30 { 1 << 20 } else { (1u64 << 30) / 10 };
    bytes.div_ceil(unit) * unit
}

/// The curves of a snapshot: for each size that saves something, what remains of the fetches and of
/// the waiting.
pub fn curve_json(total: &Snapshot) -> Value {
    let limit = total.get(Counter::LimitBytes);
    points(total).into_iter().map(|(extra, fetched, waited)| {
        json!({"local_bytes": limit + extra, "extra_local_bytes": extra, "fetched_left": fetched as f64 / 1e6, "waited_left": waited as f64 / 1e6})
    }).collect()
}

/// Points of both curves: extra bytes, and the bytes fetched and the time waited for far memory
/// that would remain with them, in millionths.
pub fn points(total: &Snapshot) -> Vec<(u64, u64, u64)> {
    let (fetched, waited) = (&total.fetched_curve, total.lost_curve());
    let mut sizes: Vec<u64> =
        fetched.points().into_iter().chain(waited.points()).map(|(extra, _)| extra).collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
        .into_iter()
        .map(|extra| (extra, fetched.left_ppm(extra), waited.left_ppm(extra)))
        .collect()
}

#[cfg(test)]
mod tests {
    use hiroma_far::control::ControlPage;
    use hiroma_policy::loss::bucket;

    use super::*;

    const LIMIT: u64 = 512 << 20;

    fn loss(page: &ControlPage) -> Option<Loss> {
        Loss::of(&page.snapshot(), LIMIT, Duration::from_secs(10))
    }

    #[test]
    fn summary_reports_loss_and_remedy() {
        let page = ControlPage::private().unwrap();
        assert_eq!(loss(&page), None);
        page.set(Counter::FarBytesMax, 1);
        assert_eq!(loss(&page).unwrap().summary(), ", 0 % of the time waiting for far memory");
        page.add_waited(Waited::Fetched, 3_400_000_000);
        page.add_waited(Waited::AnyFar, 3_400_000_000);
        assert_eq!(loss(&page).unwrap().summary(), ", 34 % of the time waiting for far memory");
        page.add_fetch_wait(bucket(Some(640 << 20)), 90);
        page.add_fetch_wait(bucket(None), 10);
        assert_eq!(
            loss(&page).unwrap().summary(),
            ", 34 % of the time waiting for far memory; 1.2GiB local would have been 3 %"
        );
        page.add_waited(Waited::Fetched, 3_400_000_000);
        let loss = loss(&page).unwrap();
        assert!(
            loss.summary()
                .starts_with(", 34 % of the time waiting for far memory (2.0 threads at once); ")
        );
        let advised = loss.json()["advice"]["local_bytes"].as_u64().unwrap();
        assert_eq!(Bytes(advised).to_string(), "1.2GiB");
    }

    #[test]
    fn first_touches_are_not_waits_for_far_memory() {
        let page = ControlPage::private().unwrap();
        page.set(Counter::FarBytesMax, 1);
        page.add_waited(Waited::FirstTouch, 5_000_000_000);
        assert_eq!(loss(&page).unwrap().share_ppm, 0);
    }
}
