//! Figures that are kept elsewhere, and read when they are requested.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeGaugeValue, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

/// Names and values that tell one series of a metric from another.
pub type Labels = Vec<(&'static str, String)>;

/// Something that has figures.
pub trait Source: Send + Sync + 'static {
    /// Writes all of them as they are now.
    ///
    /// # Errors
    /// Those of the writer.
    fn write(&self, writer: &mut Writer) -> fmt::Result;
}

/// A registry whose metrics are those of `source`, under names that begin with `prefix`.
pub fn registry_of(prefix: &str, source: impl Source) -> Registry {
    let mut registry = Registry::with_prefix(prefix);
    registry.register_collector(Box::new(Collected(source)));
    registry
}

struct Collected<S>(S);

impl<S> fmt::Debug for Collected<S> {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str("Collected")
    }
}

impl<S: Source> Collector for Collected<S> {
    fn encode(&self, encoder: DescriptorEncoder) -> fmt::Result {
        self.0.write(&mut Writer(encoder))
    }
}

/// A text as it may be the value of a label: the library does not escape what would end it.
pub fn label_value(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// A histogram whose observations were counted elsewhere.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Distribution {
    /// Upper bounds in ascending order, each with the number of observations between it and the
    /// bound before it.
    pub buckets: Vec<(f64, u64)>,
    /// Observations above the last bound.
    pub above: u64,
    /// Sum of all observations.
    pub sum: f64,
}

/// Writes metrics in the format of Prometheus.
pub struct Writer<'a>(DescriptorEncoder<'a>);

impl Writer<'_> {
    fn series<V>(
        &mut self,
        (name, help, unit): (&str, &str, Option<Unit>),
        kind: MetricType,
        values: impl IntoIterator<Item = (Labels, V)>,
        one: impl Fn(&mut MetricEncoder, &V) -> fmt::Result,
    ) -> fmt::Result {
        let mut encoder = self.0.encode_descriptor(name, help, unit.as_ref(), kind)?;
        for (mut labels, value) in values {
            labels.iter_mut().for_each(|(_, text)| *text = label_value(text));
            if labels.is_empty() {
                one(&mut encoder, &value)?;
            } else {
                one(&mut encoder.encode_family(&labels)?, &value)?;
            }
        }
        Ok(())
    }

    /// A value that goes up and down.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn gauge<V: EncodeGaugeValue>(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<Unit>,
        values: impl IntoIterator<Item = (Labels, V)>,
    ) -> fmt::Result {
        self.series((name, help, unit), MetricType::Gauge, values, |encoder, value| {
            encoder.encode_gauge(value)
        })
    }

    /// A count since the start.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn counter(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<Unit>,
        values: impl IntoIterator<Item = (Labels, u64)>,
    ) -> fmt::Result {
        self.series((name, help, unit), MetricType::Counter, values, |encoder, value| {
            encoder.encode_counter::<NoLabelSet, _, u64>(value, None)
        })
    }

    /// A time in seconds that adds up.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn seconds(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (Labels, f64)>,
    ) -> fmt::Result {
        let head = (name, help, Some(Unit::Seconds));
        self.series(head, MetricType::Counter, values, |encoder, value| {
            encoder.encode_counter::<NoLabelSet, _, f64>(value, None)
        })
    }

    /// Distributions of a time in seconds.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn histogram(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (Labels, Distribution)>,
    ) -> fmt::Result {
        let head = (name, help, Some(Unit::Seconds));
        self.series(head, MetricType::Histogram, values, |encoder, all: &Distribution| {
            // The library writes this bound as +Inf.
            let buckets: Vec<_> =
                all.buckets.iter().copied().chain([(f64::MAX, all.above)]).collect();
            let count = buckets.iter().map(|(_, count)| count).sum();
            encoder.encode_histogram::<NoLabelSet>(all.sum, count, &buckets, None)
        })
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;

    use super::*;

    struct Some;

    impl Source for Some {
        fn write(&self, writer: &mut Writer) -> fmt::Result {
            let bytes = || Option::Some(Unit::Bytes);
            writer.gauge("held", "Held", bytes(), [(vec![], 7u64)])?;
            let kinds = ["a", "b\"c\\\nd"].map(|kind| (vec![("kind", kind.to_owned())], 3));
            writer.counter("sent", "Sent", bytes(), kinds)?;
            writer.seconds("waited", "Waited", [(vec![], 1.5)])?;
            let buckets = vec![(0.001, 2), (0.01, 0)];
            let all = Distribution { buckets, above: 1, sum: 5.5 };
            writer.histogram("wait", "Wait", [(vec![("kind", "a".to_owned())], all)])
        }
    }

    #[test]
    fn figures_are_written_as_prometheus_reads_them() {
        let mut text = String::new();
        encode(&mut text, &registry_of("test", Some)).unwrap();
        for line in [
            "test_held_bytes 7\n",
            "test_sent_bytes_total{kind=\"a\"} 3\n",
            "test_sent_bytes_total{kind=\"b\\\"c\\\\\\nd\"} 3\n",
            "test_waited_seconds_total 1.5\n",
            "test_wait_seconds_bucket{le=\"0.01\",kind=\"a\"} 2\n",
            "test_wait_seconds_bucket{le=\"+Inf\",kind=\"a\"} 3\n",
            "test_wait_seconds_count{kind=\"a\"} 3\n",
            "test_wait_seconds_sum{kind=\"a\"} 5.5\n",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
    }
}
