//! Tests of the control page.

use super::*;

#[test]
fn a_latency_lies_in_its_bucket() {
    for nanos in [4, 5, 7, 8, 9, 1000, 77_000, 1_000_000_000, 40_000_000_000] {
        let bucket = bucket(nanos);
        assert!(
            bucket_end(bucket) > nanos && (bucket == 0 || bucket_end(bucket - 1) <= nanos),
            "{nanos}"
        );
    }
}

#[test]
fn quantiles_follow_recorded_latencies() {
    let page = ControlPage::private().unwrap();
    assert_eq!(page.snapshot().latency_quantile(0.5), None);
    (1..=100).for_each(|us| page.record_latency(Nanos::from_micros(us)));
    let snapshot = page.snapshot();
    let median = snapshot.latency_quantile(0.5).unwrap().0;
    assert!((50_000..60_000).contains(&median), "{median}");
    let p99 = snapshot.latency_quantile(0.99).unwrap().0;
    assert!((99_000..120_000).contains(&p99), "{p99}");
}

#[test]
fn steps_of_waits_keep_their_number() {
    let page = ControlPage::private().unwrap();
    [5, 1_000, 1_023, 1_024, 5_000_000_000].into_iter().for_each(|ns| page.record_wait(Nanos(ns)));
    let (steps, above) = page.snapshot().wait_steps(Nanos(1 << 20));
    assert_eq!((above, steps.len(), steps.last().unwrap().0), (1, 18, Nanos(1 << 20)));
    let upto = |end| steps.iter().filter(|step| step.0.0 <= end).map(|step| step.1).sum::<u64>();
    assert_eq!((upto(8), upto(1024), upto(2048)), (1, 3, 4));
}

#[test]
fn counters_of_two_processes_add_up() {
    let (one, other) = (ControlPage::private().unwrap(), ControlPage::private().unwrap());
    one.add(Counter::Faults, 3);
    other.add(Counter::Faults, 4);
    one.add_waited(Waited::Fetched, 30);
    other.add_waited(Waited::Staged, 12);
    other.add_waited(Waited::FirstTouch, 5);
    one.set_stores(Stores { short_bytes: 3, ..Stores::default() });
    other.set_stores(Stores { short_bytes: 4, server_bytes: 9, ..Stores::default() });
    one.add_fetched(3, 4096);
    other.add_fetched(3, 8192);
    one.set_range(0, 1 << 30, Some(1 << 29), 7);
    one.record_latency(Nanos(1000));
    other.record_latency(Nanos(1_000_000));
    let mut total = one.snapshot();
    assert_eq!(total.ranges, vec![Range { start: 1 << 30, mapping: 1 << 29, faults: 7 }]);
    total.absorb(&other.snapshot());
    assert_eq!(
        (total.waited_far(), total.fetched_curve.0[3], total.ranges.len()),
        (Nanos(42), 12_288, 0)
    );
    assert_eq!(total.get(Counter::Faults), 7);
    assert_eq!((total.stores.short_bytes, total.stores.server_bytes), (7, 9));
    assert!(
        total.latency_quantile(0.5).unwrap().0 < 2000
            && total.latency_quantile(1.0).unwrap().0 >= 1_000_000
    );
}

#[test]
fn requested_limit_reaches_the_pager() {
    let dir = tempfile::tempdir().unwrap();
    let pager = ControlPage::create(dir.path(), false).unwrap();
    assert_eq!(pager.requested_limit(), None);
    ControlPage::open(dir.path(), std::process::id()).unwrap().request_limit(77);
    assert_eq!(pager.requested_limit(), Some(77));
}
