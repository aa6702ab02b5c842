//! Counters, histograms and Prometheus's text format, as the service and the proxy expose them.
//!
//! Counters and histograms are striped over a few cache lines, so that threads which count the same
//! thing do not pass a line back and forth.

use std::fmt::Write as _;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How many threads count without meeting another: more than serve on most machines.
const STRIPES: usize = 4;

/// The stripe of this thread, given out in turn.
#[inline]
fn stripe() -> usize {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    thread_local! {
        static MINE: usize = NEXT.fetch_add(1, Ordering::Relaxed) as usize % STRIPES;
    }
    MINE.with(|mine| *mine)
}

/// A count that only grows.
#[derive(Debug, Default)]
pub struct Counter([CounterStripe; STRIPES]);

#[derive(Debug, Default)]
#[repr(align(64))]
struct CounterStripe(AtomicU64);

impl Counter {
    /// Adds `count`.
    #[inline]
    pub fn add(&self, count: u64) {
        if count > 0 {
            self.0[stripe()].0.fetch_add(count, Ordering::Relaxed);
        }
    }

    /// The count.
    pub fn get(&self) -> u64 {
        self.0.iter().map(|stripe| stripe.0.load(Ordering::Relaxed)).sum()
    }
}

/// The upper bounds of a histogram's buckets.
pub trait Bounds {
    /// In nanoseconds, rising.
    const NS: [u64; BUCKETS - 1];
}

/// How many buckets a histogram has; the last one has no upper bound.
pub const BUCKETS: usize = 11;

/// Durations counted by bucket.
#[derive(Debug)]
pub struct Histogram<B>([HistogramStripe; STRIPES], PhantomData<B>);

#[derive(Debug, Default)]
#[repr(align(64))]
struct HistogramStripe {
    buckets: [AtomicU64; BUCKETS],
    sum_ns: AtomicU64,
}

impl<B> Default for Histogram<B> {
    fn default() -> Self {
        Self(Default::default(), PhantomData)
    }
}

impl<B: Bounds> Histogram<B> {
    /// How many durations fell into each bucket.
    pub fn counts(&self) -> [u64; BUCKETS] {
        let count = |bucket: usize| {
            self.0.iter().map(|stripe| stripe.buckets[bucket].load(Ordering::Relaxed)).sum()
        };
        std::array::from_fn(count)
    }

    /// Counts one duration.
    pub fn observe(&self, duration: Duration) {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let bucket = B::NS.partition_point(|&bound| bound < nanos);
        let stripe = &self.0[stripe()];
        stripe.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        stripe.sum_ns.fetch_add(nanos, Ordering::Relaxed);
    }

    /// Writes the samples of the family that was begun in `text`.
    pub fn write(&self, labels: &[(&str, &str)], text: &mut Exposition) {
        let mut count = 0;
        for (index, bucket) in self.counts().into_iter().enumerate() {
            count += bucket;
            let bound = match B::NS.get(index) {
                Some(&nanos) => (nanos as f64 / 1e9).to_string(),
                None => "+Inf".to_owned(),
            };
            let mut labels = labels.to_vec();
            labels.push(("le", &bound));
            text.sample_of("_bucket", &labels, count as f64);
        }
        let sum_ns: u64 = self.0.iter().map(|stripe| stripe.sum_ns.load(Ordering::Relaxed)).sum();
        text.sample_of("_sum", labels, sum_ns as f64 / 1e9);
        text.sample_of("_count", labels, count as f64);
    }
}

/// Metric families being written in Prometheus's text format, version 0.0.4.
#[derive(Debug, Default)]
pub struct Exposition {
    text: String,
    family: String,
}

impl Exposition {
    /// The media type of the text.
    pub const CONTENT_TYPE: &'static str = "text/plain; version=0.0.4; charset=utf-8";

    /// Begins a family; its samples must follow.
    pub fn family(&mut self, name: &str, kind: &str, help: &str) {
        name.clone_into(&mut self.family);
        // Writing into a string cannot fail.
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// A family of one counter without labels.
    pub fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.family(name, "counter", help);
        self.sample(&[], value as f64);
    }

    /// A family of one gauge without labels.
    pub fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.family(name, "gauge", help);
        self.sample(&[], value);
    }

    /// A sample of the family.
    pub fn sample(&mut self, labels: &[(&str, &str)], value: f64) {
        self.sample_of("", labels, value);
    }

    /// A sample of the family whose name has a suffix.
    fn sample_of(&mut self, suffix: &str, labels: &[(&str, &str)], value: f64) {
        self.text.push_str(&self.family);
        self.text.push_str(suffix);
        for (index, (name, value)) in labels.iter().enumerate() {
            self.text.push(if index == 0 { '{' } else { ',' });
            self.text.push_str(name);
            self.text.push_str("=\"");
            push_escaped(&mut self.text, value);
            self.text.push('"');
        }
        if !labels.is_empty() {
            self.text.push('}');
        }
        let _ = writeln!(self.text, " {value}");
    }

    /// The text.
    pub fn finish(self) -> String {
        self.text
    }
}

fn push_escaped(text: &mut String, value: &str) {
    for char in value.chars() {
        match char {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            other => text.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_values_are_escaped() {
        let mut text = Exposition::default();
        text.family("x_total", "counter", "X.");
        text.sample(&[("a", "q\"\\\n")], 1.5);
        let expected =
            "# HELP x_total X.\n# TYPE x_total counter\nx_total{a=\"q\\\"\\\\\\n\"} 1.5\n";
        assert_eq!(text.finish(), expected);
    }

    #[test]
    fn a_histogram_counts_each_bucket_with_those_below_it() {
        #[derive(Debug)]
        struct Millis;
        impl Bounds for Millis {
            const NS: [u64; 10] = {
                let mut bounds = [0; 10];
                let mut index = 0;
                while index < 10 {
                    bounds[index] = (index as u64 + 1) * 1_000_000;
                    index += 1;
                }
                bounds
            };
        }
        let histogram = Histogram::<Millis>::default();
        for millis in [1, 2, 2, 99] {
            histogram.observe(Duration::from_millis(millis));
        }
        let mut text = Exposition::default();
        text.family("x_seconds", "histogram", "X.");
        histogram.write(&[("a", "b")], &mut text);
        let text = text.finish();
        for line in [
            "x_seconds_bucket{a=\"b\",le=\"0.001\"} 1",
            "x_seconds_bucket{a=\"b\",le=\"0.002\"} 3",
            "x_seconds_bucket{a=\"b\",le=\"+Inf\"} 4",
            "x_seconds_sum{a=\"b\"} 0.104",
            "x_seconds_count{a=\"b\"} 4",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
        }
    }
}
