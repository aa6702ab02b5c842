//! What an answer teaches, in the numbers that the script takes.
//!
//! The Spectacles keys hold one counter for each bucket: that of the first dimension that counts a
//! bucket, and of its first window. All others are told as further limits, see
//! `scripts/meters.lua`.

use std::time::Duration;

use super::costs::main_dimension;
use crate::pace::Outcome;
use crate::profile::{Observation, Profile, Reach, Reading, Scope, Window};

/// What an answer teaches. Milliseconds are rounded up; -1 means that nothing was said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EncodedAnswer {
    pub(super) limit: i64,
    pub(super) remaining: i64,
    pub(super) until_reset_ms: i64,
    pub(super) reset_ms: i64,
    pub(super) sort: &'static str,
    pub(super) away_ms: i64,
    /// How the end of the window is told.
    pub(super) window: &'static str,
    /// What was told of further limits, as the script reads it.
    pub(super) further: String,
}

const FIXED: &str = "fixed";
/// No upstream has a longer window; no counter is larger.
const DAY_MS: i64 = 86_400_000;
const UNITS_MAX: u64 = 100_000_000;

impl EncodedAnswer {
    pub(super) fn of(observation: &Observation, profile: &Profile, now: Duration) -> Self {
        let main = main_dimension(profile);
        let (own, others): (Vec<_>, Vec<_>) =
            observation.readings.iter().partition(|it| usize::from(it.dimension) == main);
        let first = own.iter().copied().min_by_key(|reading| reading.part);
        let parts = own.iter().copied().filter(|it| Some(it.part) != first.map(|it| it.part));
        let further = others.iter().copied().chain(parts);
        let wait = |reading: &Reading| wait_of(reading, observation, profile, now);
        let mut encoded = Self {
            limit: first.and_then(|reading| reading.limit).map_or(-1, units),
            remaining: first.and_then(|reading| reading.remaining).map_or(-1, units),
            until_reset_ms: first.and_then(wait).map_or(-1, millis),
            reset_ms: first.and_then(|reading| reading.resets_at).map_or(-1, epoch_millis),
            sort: sort_of(observation),
            away_ms: -1,
            window: first.map_or(FIXED, |reading| window_of(reading, profile)),
            further: further.map(|reading| told(reading, profile, wait(reading))).collect(),
        };
        if observation.is_limited() {
            encoded.away_ms = millis(observation.refused_for(profile.retry_unsaid()));
        }
        encoded
    }

    /// As arguments of the script, in its order.
    pub(super) fn arguments(&self, unlimited: u32) -> [String; 8] {
        [
            self.limit.to_string(),
            self.remaining.to_string(),
            self.until_reset_ms.to_string(),
            self.reset_ms.to_string(),
            self.sort.to_owned(),
            self.away_ms.to_string(),
            unlimited.to_string(),
            self.window.to_owned(),
        ]
    }
}

/// A further limit: `<dimension>.<part> <b or c> <limit> <left> <ms to reset> <window>;`.
fn told(reading: &Reading, profile: &Profile, wait: Option<Duration>) -> String {
    let of = profile.dimensions().get(usize::from(reading.dimension));
    let reach = if of.is_some_and(|of| of.reach == Reach::Credential) { 'c' } else { 'b' };
    format!(
        "{}.{} {reach} {} {} {} {};",
        reading.dimension,
        reading.part,
        reading.limit.map_or(-1, units),
        reading.remaining.map_or(-1, units),
        wait.map_or(-1, millis),
        window_of(reading, profile),
    )
}

/// How the end of a window is told: by its reset, as that of a sliding one, or by its length alone.
fn window_of(reading: &Reading, profile: &Profile) -> &'static str {
    let of = profile.dimensions().get(usize::from(reading.dimension));
    if of.is_some_and(|of| of.window == Window::Sliding) {
        return "sliding";
    }
    let is_told = reading.reset_after.is_some() || reading.resets_at.is_some();
    if !is_told && reading.window.is_some() { "length" } else { FIXED }
}

/// Time until the reset: as told, else by the upstream's own clock, else by ours; the length of the
/// window if nothing else is known, which is never too short.
fn wait_of(
    reading: &Reading,
    observation: &Observation,
    profile: &Profile,
    now: Duration,
) -> Option<Duration> {
    let of = profile.dimensions().get(usize::from(reading.dimension));
    let slack = of.map_or(Duration::ZERO, |of| of.slack);
    let by_clock = || {
        let clock = observation.date.unwrap_or(now);
        reading.resets_at.map(|reset| reset.saturating_sub(clock))
    };
    reading.reset_after.or_else(by_clock).map(|wait| wait + slack).or(reading.window)
}

fn sort_of(observation: &Observation) -> &'static str {
    if !observation.is_limited() {
        let is_success = observation.outcome == Outcome::Accepted && observation.status < 400;
        return if is_success { "ok" } else { "" };
    }
    match observation.concerns() {
        Scope::Global => "global",
        Scope::Shared => "lane",
        Scope::User => "denied",
    }
}

fn units(count: u64) -> i64 {
    count.min(UNITS_MAX) as i64
}

/// Rounded up: told too little, everybody comes back too early.
fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(DAY_MS).min(DAY_MS)
}

fn epoch_millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(-1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(remaining: u64, reset_after: Duration) -> Reading {
        Reading {
            limit: Some(5),
            remaining: Some(remaining),
            reset_after: Some(reset_after),
            ..Reading::default()
        }
    }

    fn of(observation: &Observation) -> EncodedAnswer {
        let profile = Profile::builtin("openai").unwrap();
        EncodedAnswer::of(observation, &profile, Duration::from_secs(1_000))
    }

    #[test]
    fn l_fractions_of_a_millisecond_are_rounded_up_to_whole_ones() {
        let after = Duration::from_secs_f64(64.57);
        let observation = Observation { readings: vec![reading(4, after)], ..Default::default() };
        assert_eq!(of(&observation).until_reset_ms, 64_570);
        let after = Duration::from_nanos(1);
        let observation = Observation { readings: vec![reading(4, after)], ..Default::default() };
        assert_eq!(of(&observation).until_reset_ms, 1);
    }

    #[test]
    fn r_a_reset_without_a_delta_counts_by_the_clock_that_named_it() {
        let told = Reading {
            limit: Some(5),
            remaining: Some(4),
            resets_at: Some(Duration::from_millis(500_250)),
            ..Reading::default()
        };
        let date = Some(Duration::from_secs(500));
        let observation = Observation { readings: vec![told], date, ..Default::default() };
        let encoded = of(&observation);
        assert_eq!((encoded.until_reset_ms, encoded.reset_ms), (250, 500_250));
    }

    #[test]
    fn other_dimensions_are_told_beside_the_first() {
        let tokens =
            Reading { dimension: 1, limit: Some(1_000), ..reading(0, Duration::from_secs(9)) };
        let project = Reading { dimension: 2, limit: None, ..reading(7, Duration::from_secs(3)) };
        let readings = vec![reading(4, Duration::from_secs(1)), tokens, project];
        let encoded = of(&Observation { readings, ..Default::default() });
        assert_eq!((encoded.limit, encoded.remaining, encoded.until_reset_ms), (5, 4, 1_000));
        assert_eq!(encoded.further, "1.0 b 1000 0 9000 sliding;2.0 c -1 7 3000 sliding;");
        assert_eq!(encoded.window, "sliding", "as the profile states");
    }

    #[test]
    fn refusals_concern_whom_they_name() {
        let limited = |scope| Observation {
            status: 429,
            outcome: Outcome::Limited,
            scope,
            retry_after: Some(Duration::from_millis(1_500)),
            ..Default::default()
        };
        assert_eq!(of(&limited(None)).sort, "denied");
        assert_eq!(of(&limited(Some(Scope::Shared))).sort, "lane");
        assert_eq!(of(&limited(Some(Scope::Global))).sort, "global");
        assert_eq!(of(&limited(None)).away_ms, 1_500);
    }
}
