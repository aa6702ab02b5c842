//! Policies as the data file describes them.

use std::time::Duration;

use serde::Deserialize;
use tollway_core::concurrency::Concurrency;
use tollway_core::fixed_window::{Anchor, FixedWindow};
use tollway_core::leaky_bucket::LeakyBucket;
use tollway_core::legacy::Legacy;
use tollway_core::sliding_window::SlidingWindow;
use tollway_core::{Algorithm, OnExpiry, Policy, Quota, ReservationTerms};

use super::{Built, duration};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawPolicy {
    gcra: Option<String>,
    leaky_bucket: Option<RawLeakyBucket>,
    legacy: Option<RawLegacy>,
    sliding_window: Option<RawSlidingWindow>,
    fixed_window: Option<RawFixedWindow>,
    concurrency: Option<RawConcurrency>,
    calendar_window: Option<String>,
    reservations: Option<RawTerms>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawLeakyBucket {
    size: u64,
    drip_size: u64,
    interval: String,
    /// Numerator and denominator.
    factor: Option<(u32, u32)>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawLegacy {
    max: Option<u64>,
    duration_ms: Option<u64>,
    min_interval_ms: Option<u64>,
    /// Numerator and denominator, for callers whose buckets are scaled.
    factor: Option<(u32, u32)>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawSlidingWindow {
    quota: String,
    /// Left out, the window is exact.
    buckets: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFixedWindow {
    quota: String,
    anchor: RawAnchor,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum RawAnchor {
    Epoch,
    FirstRequest,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawConcurrency {
    limit: u64,
    lease: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTerms {
    ttl: String,
    on_expiry: RawOnExpiry,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum RawOnExpiry {
    Return,
    Keep,
}

impl RawPolicy {
    /// The policies of this name: two for a legacy limit with a minimum interval, one otherwise.
    pub(super) fn build(self, name: &str) -> Built<Vec<Policy>> {
        let terms = self.reservations.map(RawTerms::build).transpose()?;
        let given = [
            self.gcra.map(|text| Ok(vec![Algorithm::from(quota(&text)?)])),
            self.leaky_bucket.map(RawLeakyBucket::build),
            self.legacy.map(RawLegacy::build),
            self.sliding_window.map(RawSlidingWindow::build),
            self.fixed_window.map(RawFixedWindow::build),
            self.concurrency.map(RawConcurrency::build),
            self.calendar_window.map(|text| {
                let window = tollway_zones::calendar_window(&text);
                Ok(vec![window.map_err(|error| error.pointing_into(&text))?.into()])
            }),
        ];
        let mut given = given.into_iter().flatten();
        let (Some(algorithms), None) = (given.next(), given.next()) else {
            return Err(format!("policy {name} needs exactly one algorithm"));
        };
        let names = [name.to_owned(), format!("{name} spacing")];
        let build = |(algorithm, name): (Algorithm, String)| {
            let policy = Policy::new(name, algorithm).map_err(|error| error.to_string())?;
            Ok(policy.reservations(terms.unwrap_or_default()))
        };
        algorithms?.into_iter().zip(names).map(build).collect()
    }
}

impl RawTerms {
    fn build(self) -> Built<ReservationTerms> {
        let on_expiry = match self.on_expiry {
            RawOnExpiry::Return => OnExpiry::Return,
            RawOnExpiry::Keep => OnExpiry::Keep,
        };
        Ok(ReservationTerms { ttl: duration(&self.ttl)?, on_expiry })
    }
}

impl RawLeakyBucket {
    fn build(self) -> Built<Vec<Algorithm>> {
        let interval: Duration = duration(&self.interval)?;
        let bucket = text(LeakyBucket::new(self.size, self.drip_size, interval))?;
        Ok(vec![scaled(bucket, self.factor)?.into()])
    }
}

impl RawLegacy {
    fn build(self) -> Built<Vec<Algorithm>> {
        let Self { max, duration_ms, min_interval_ms, factor } = self;
        let translation = text(Legacy { max, duration_ms, min_interval_ms }.translate())?;
        let buckets = [translation.bucket, translation.spacing].into_iter().flatten();
        buckets.map(|bucket| scaled(bucket, factor).map(Algorithm::from)).collect()
    }
}

impl RawSlidingWindow {
    fn build(self) -> Built<Vec<Algorithm>> {
        let quota = quota(&self.quota)?;
        let window = match self.buckets {
            Some(buckets) => SlidingWindow::new(quota, buckets),
            None => SlidingWindow::exact(quota),
        };
        Ok(vec![text(window)?.into()])
    }
}

impl RawFixedWindow {
    fn build(self) -> Built<Vec<Algorithm>> {
        let anchor = match self.anchor {
            RawAnchor::Epoch => Anchor::Epoch,
            RawAnchor::FirstRequest => Anchor::FirstRequest,
        };
        Ok(vec![FixedWindow::new(quota(&self.quota)?, anchor).into()])
    }
}

impl RawConcurrency {
    fn build(self) -> Built<Vec<Algorithm>> {
        Ok(vec![text(Concurrency::new(self.limit, duration(&self.lease)?))?.into()])
    }
}

fn scaled(bucket: LeakyBucket, factor: Option<(u32, u32)>) -> Built<LeakyBucket> {
    factor.map_or(Ok(bucket), |(numerator, denominator)| {
        text(bucket.with_factor(numerator, denominator))
    })
}

fn quota(written: &str) -> Built<Quota> {
    written.parse::<Quota>().map_err(|error| error.pointing_into(written))
}

fn text<T, E: ToString>(result: Result<T, E>) -> Built<T> {
    result.map_err(|error| error.to_string())
}
