//! Decisions per second over the last five minutes: in total, and by policy.
//!
//! Pure: whoever samples says what was counted and how much time passed. One point is one look:
//!
//! ```text
//!   counters: 100 ---- 130 ---- 130 ---- 210        (only ever grow)
//!   points:        30        0        80            (per look, about a second)
//! ```
//!
//! A policy that decides nothing keeps no points, so that a thousand idle policies cost nothing.

use std::collections::{BTreeMap, VecDeque};

use crate::metrics::{BUCKETS, Bounds as _, DecisionBounds};

/// Points kept: five minutes of seconds.
pub(crate) const POINTS_MAX: usize = 300;
/// Policies whose points are kept; the others have totals only.
const SERIES_MAX: usize = 2_000;

/// Allowed, denied, shadow-denied.
pub(crate) type Three = [u64; 3];
/// A policy: its domain (empty for a named policy) and its name.
pub(crate) type Name = (String, String);

/// One look at everything.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Point {
    pub(crate) at_ms: u64,
    pub(crate) counts: Three,
    /// Median and 99th percentile of the time to decide, in microseconds; zero without decisions.
    pub(crate) latency_us: [f64; 2],
}

/// What one policy has counted.
#[derive(Debug, Default)]
pub(crate) struct Series {
    pub(crate) totals: Three,
    /// Of the last look.
    pub(crate) recent: Three,
    points: VecDeque<Three>,
}

/// What was counted lately.
#[derive(Debug, Default)]
pub(crate) struct History {
    points: VecDeque<Point>,
    series: BTreeMap<Name, Series>,
    with_points: usize,
    latency: [u64; BUCKETS],
}

impl History {
    /// Notes a look at every policy's totals.
    pub(crate) fn note<'a>(
        &mut self,
        at_ms: u64,
        totals: impl Iterator<Item = (&'a Name, Three)>,
        latency: [u64; BUCKETS],
    ) {
        let mut point =
            Point { at_ms, latency_us: quantiles(&self.latency, &latency), ..Point::default() };
        self.latency = latency;
        let is_first = self.points.is_empty();
        for (name, totals) in totals {
            if !self.series.contains_key(name) {
                // What was counted before the first look did not happen in the last second.
                let seen = if is_first { totals } else { Three::default() };
                self.series.insert(name.clone(), Series { totals: seen, ..Series::default() });
            }
            let Some(series) = self.series.get_mut(name) else { continue };
            let may_keep = self.with_points < SERIES_MAX;
            let had_points = !series.points.is_empty();
            series.note(totals, may_keep);
            self.with_points += usize::from(!series.points.is_empty());
            self.with_points -= usize::from(had_points);
            for (sum, count) in point.counts.iter_mut().zip(series.recent) {
                *sum += count;
            }
        }
        push(&mut self.points, point);
    }

    /// The points in total, oldest first.
    pub(crate) fn points(&self) -> impl ExactSizeIterator<Item = &Point> {
        self.points.iter()
    }

    /// The last point.
    pub(crate) fn last(&self) -> Point {
        self.points.back().copied().unwrap_or_default()
    }

    /// Every policy.
    pub(crate) fn series(&self) -> impl Iterator<Item = (&Name, &Series)> {
        self.series.iter()
    }

    /// One policy's points, as many as there are in total; those before its first are zero.
    pub(crate) fn points_of(&self, name: &Name) -> Option<Vec<Three>> {
        let points = &self.series.get(name)?.points;
        let missing = self.points.len().saturating_sub(points.len());
        Some(std::iter::repeat_n([0; 3], missing).chain(points.iter().copied()).collect())
    }
}

impl Series {
    fn note(&mut self, totals: Three, may_keep: bool) {
        for (recent, (now, before)) in
            self.recent.iter_mut().zip(totals.into_iter().zip(self.totals))
        {
            *recent = now.saturating_sub(before);
        }
        self.totals = totals;
        let is_quiet = self.recent == [0; 3];
        if self.points.is_empty() && (is_quiet || !may_keep) {
            return;
        }
        push(&mut self.points, self.recent);
        if self.points.iter().all(|point| *point == [0; 3]) {
            self.points = VecDeque::new();
        }
    }
}

fn push<T>(points: &mut VecDeque<T>, point: T) {
    if points.len() == POINTS_MAX {
        points.pop_front();
    }
    points.push_back(point);
}

/// Median and 99th percentile, in microseconds, of what a histogram gained.
fn quantiles(before: &[u64; BUCKETS], after: &[u64; BUCKETS]) -> [f64; 2] {
    let mut gained = [0; BUCKETS];
    for (index, gain) in gained.iter_mut().enumerate() {
        *gain = after[index].saturating_sub(before[index]);
    }
    [0.5, 0.99].map(|share| quantile(&gained, share))
}

/// Within a bucket durations are taken to be spread evenly.
fn quantile(gained: &[u64; BUCKETS], share: f64) -> f64 {
    let all: u64 = gained.iter().sum();
    let wanted = all as f64 * share;
    let (mut below, mut lower_ns) = (0.0, 0.0);
    for (index, &count) in gained.iter().enumerate() {
        let upper_ns = DecisionBounds::NS.get(index).map_or(lower_ns, |&nanos| nanos as f64);
        if count > 0 && below + count as f64 >= wanted {
            let within = (wanted - below) / count as f64;
            return (lower_ns + (upper_ns - lower_ns) * within) / 1e3;
        }
        below += count as f64;
        lower_ns = upper_ns;
    }
    0.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(policy: &str) -> Name {
        (String::new(), policy.to_owned())
    }

    fn note(history: &mut History, totals: &[(Name, Three)]) {
        history.note(0, totals.iter().map(|(name, totals)| (name, *totals)), Default::default());
    }

    #[test]
    fn a_point_is_what_was_counted_since_the_last_look() {
        let mut history = History::default();
        note(&mut history, &[(name("a"), [100, 0, 0])]);
        note(&mut history, &[(name("a"), [130, 2, 0]), (name("b"), [5, 0, 1])]);
        assert_eq!(history.last().counts, [35, 2, 1]);
        assert_eq!(history.points_of(&name("a")), Some(vec![[0; 3], [30, 2, 0]]));
        assert_eq!(history.points_of(&name("b")), Some(vec![[0; 3], [5, 0, 1]]));
        assert_eq!(history.points_of(&name("c")), None);
    }

    #[test]
    fn points_are_bounded_and_a_policy_fallen_silent_keeps_none() {
        let mut history = History::default();
        note(&mut history, &[(name("a"), [0; 3])]);
        for _ in 0..=POINTS_MAX {
            note(&mut history, &[(name("a"), [7, 0, 0])]);
        }
        assert_eq!(history.points().len(), POINTS_MAX);
        assert_eq!(history.with_points, 0);
        assert_eq!(history.series[&name("a")].totals, [7, 0, 0]);
    }

    #[test]
    fn quantiles_are_of_what_was_gained() {
        let mut after = [0; BUCKETS];
        after[1] = 100;
        let [median, high] = quantiles(&[0; BUCKETS], &after);
        assert!((median - 3.0).abs() < 0.1 && (high - 4.96).abs() < 0.1, "{median} {high}");
        assert_eq!(quantiles(&after, &after), [0.0, 0.0]);
    }
}
