//! What scripts are told, in the bytes that `scripts/layout.lua` draws.
//!
//! Moments and durations become whole microseconds, rounded up: a window must not end early.

use std::time::Duration;

use tollway_core::fixed_window::{Anchor, FixedWindow};
use tollway_core::gcra::Gcra;
use tollway_core::leaky_bucket::LeakyBucket;
use tollway_core::sliding_window::SlidingWindow;
use tollway_core::{Algorithm, Quota, Timestamp};

use crate::error::{Error, ErrorKind};
use crate::{
    Backoff, LeaseToken, Limit, NewJob, Outcome, Progress, QueueName, QueueSettings, Retention,
    Start,
};

/// Whole microseconds, rounded up.
pub(super) fn micros(duration: Duration) -> f64 {
    duration.as_nanos().div_ceil(1_000) as f64
}

pub(super) fn micros_at(moment: Timestamp) -> u64 {
    moment.as_nanos().div_ceil(1_000)
}

pub(super) fn moment(micros: u64) -> Timestamp {
    Timestamp::from_nanos(micros.saturating_mul(1_000))
}

fn duration(micros: f64) -> Duration {
    Duration::from_micros(micros as u64)
}

/// A call that enqueues: when its jobs start, unless all of them are plain, and then the jobs.
pub(super) fn call(jobs: &[NewJob]) -> Vec<Vec<u8>> {
    let mut starts = Vec::new();
    if !jobs.iter().all(is_plain) {
        jobs.iter().for_each(|one| put_start(&mut starts, one));
    }
    std::iter::once(starts).chain(jobs.iter().map(job)).collect()
}

/// Whether a job starts now, is nobody's duplicate, and stands in line as it came.
fn is_plain(job: &NewJob) -> bool {
    let starts_now = matches!(job.start, Start::Now);
    starts_now && job.key.is_none() && job.priority == 0 && job.weight == 1
}

/// The arguments of several calls: how many jobs each has, when they start unless all of them are
/// plain, and the jobs, each behind its group.
pub(super) fn calls(calls: Vec<Vec<Vec<u8>>>) -> Vec<Vec<u8>> {
    let are_plain = calls.iter().all(|call| call.first().is_none_or(Vec::is_empty));
    let (mut counts, mut starts) = (Vec::with_capacity(4 * calls.len()), Vec::new());
    let mut arguments = vec![Vec::new(), Vec::new()];
    for mut call in calls {
        let jobs = call.split_off(call.len().min(1));
        counts.extend_from_slice(&(jobs.len() as u32).to_le_bytes());
        if !are_plain {
            let mut own = call.pop().unwrap_or_default();
            own.resize(START_BYTES * jobs.len(), 0);
            starts.append(&mut own);
        }
        for job in jobs {
            let group = of_job(&job).map_or("", |(_, group)| group);
            arguments.extend([group.as_bytes().to_vec(), job]);
        }
    }
    arguments[0] = counts;
    arguments[1] = starts;
    arguments
}

/// What one start takes in the first argument of a call, if that is there.
pub(super) const START_BYTES: usize = 9;

fn put_start(out: &mut Vec<u8>, job: &NewJob) {
    let (start, when) = match job.start {
        Start::Now => (0, 0.0),
        Start::After(delay) => (1, micros(delay)),
        Start::At(at) => (2, micros_at(at) as f64),
    };
    out.push(start);
    put(out, when);
}

/// A job as it is stored, but for its times, which stand before it.
pub(super) fn job(job: &NewJob) -> Vec<u8> {
    let mut out = Vec::with_capacity(64 + job.payload.len());
    let backoff = job.backoff.map_or((-1.0, 0.0), |b| (micros(b.first), micros(b.max)));
    out.push(job.priority);
    out.extend_from_slice(&job.weight.to_le_bytes());
    // Attempts and failures so far.
    out.extend_from_slice(&[0; 8]);
    out.extend_from_slice(&job.attempts_max.unwrap_or(0).to_le_bytes());
    put(&mut out, backoff.0);
    put(&mut out, backoff.1);
    put_text(&mut out, job.key.as_deref().unwrap_or_default());
    put_text(&mut out, job.group.as_str());
    out.extend_from_slice(&job.payload);
    out
}

/// The weight and the group of a job that [`job`] packed.
pub(super) fn of_job(bytes: &[u8]) -> Option<(u32, &str)> {
    let mut read = Reader(bytes);
    let (_priority, weight) = (read.byte()?, read.number()?);
    // Attempts, failures, the most attempts and the backoff.
    read.take(8 + 4 + 16)?;
    let _key = read.text()?;
    Some((weight, read.text()?))
}

/// The job that [`job`] packed, for recurring jobs.
pub(super) fn unpack_job(bytes: &[u8]) -> Option<NewJob> {
    let mut read = Reader(bytes);
    let priority = read.byte()?;
    let weight = read.number()?;
    let _so_far = read.take(8)?;
    let attempts_max = Some(read.number()?).filter(|attempts| *attempts > 0);
    let (first, max) = (read.double()?, read.double()?);
    let _key = read.text()?;
    let group = crate::Group::new(read.text()?).ok()?;
    let backoff = (first >= 0.0).then(|| Backoff { first: duration(first), max: duration(max) });
    let job = NewJob::new(group, bytes::Bytes::copy_from_slice(read.0));
    Some(NewJob { priority, weight, attempts_max, backoff, ..job })
}

pub(super) fn token(token: LeaseToken) -> Vec<u8> {
    let mut out = (token.id.0 as f64).to_le_bytes().to_vec();
    out.extend_from_slice(&token.attempt.to_le_bytes());
    out
}

pub(super) fn progress(of: LeaseToken, progress: Progress) -> Vec<u8> {
    let mut out = token(of);
    put(&mut out, progress.done as f64);
    put(&mut out, progress.total as f64);
    out
}

/// A lease, and what came of it.
pub(super) fn outcome(of: LeaseToken, outcome: &Outcome) -> [Vec<u8>; 2] {
    let mut out = of.attempt.to_le_bytes().to_vec();
    let (code, retry, wait, has_result, bytes): (u8, bool, f64, bool, &[u8]) = match outcome {
        Outcome::Done { result } => {
            (1, false, 0.0, result.is_some(), result.as_deref().unwrap_or_default())
        }
        Outcome::Failed { reason, retry } => (2, *retry, 0.0, false, reason.as_bytes()),
        Outcome::Limited { wait } => (3, true, micros(*wait), false, b""),
        Outcome::Released => (4, true, 0.0, false, b""),
    };
    out.extend_from_slice(&[code, u8::from(retry)]);
    put(&mut out, wait);
    out.push(u8::from(has_result));
    out.extend_from_slice(bytes);
    [of.id.0.to_string().into_bytes(), out]
}

pub(super) fn settings(settings: &QueueSettings) -> Vec<u8> {
    let mut out = Vec::new();
    let retention = &settings.retention;
    put(&mut out, micros(settings.lease));
    out.extend_from_slice(&settings.attempts_max.to_le_bytes());
    for number in [
        micros(settings.backoff.first),
        micros(settings.backoff.max),
        micros(settings.response_max),
        micros(settings.key_window),
        f64::from(settings.keys_max),
        f64::from(settings.payload_max),
        // More than 2^53 jobs are as many as none can count.
        settings.jobs_max.min(1 << 53) as f64,
        f64::from(settings.groups_max),
        f64::from(retention.done_max),
        micros(retention.done_age),
        f64::from(retention.dead_max),
        micros(retention.dead_age),
    ] {
        put(&mut out, number);
    }
    out.extend_from_slice(&limits(&settings.group_limits));
    out.extend_from_slice(&limits(&settings.queue_limits));
    out.push(settings.shared.len() as u8);
    for name in &settings.shared {
        out.push(name.as_str().len() as u8);
        out.extend_from_slice(name.as_str().as_bytes());
    }
    put(&mut out, settings.bytes_max.min(1 << 53) as f64);
    out
}

pub(super) fn unpack_settings(bytes: &[u8]) -> Result<QueueSettings, Error> {
    let damaged = || Error::new(ErrorKind::Corrupt, "the settings of a queue cannot be read");
    read_settings(&mut Reader(bytes)).ok_or_else(damaged)
}

fn read_settings(read: &mut Reader<'_>) -> Option<QueueSettings> {
    let lease = duration(read.double()?);
    let attempts_max = read.number()?;
    let backoff = Backoff { first: duration(read.double()?), max: duration(read.double()?) };
    let (response_max, key_window) = (duration(read.double()?), duration(read.double()?));
    let (keys_max, payload_max) = (read.double()? as u32, read.double()? as u32);
    let (jobs_max, groups_max) = (read.double()? as u64, read.double()? as u32);
    let retention = Retention {
        done_max: read.double()? as u32,
        done_age: duration(read.double()?),
        dead_max: read.double()? as u32,
        dead_age: duration(read.double()?),
    };
    let (group_limits, queue_limits) = (read_limits(read)?, read_limits(read)?);
    let mut shared = Vec::new();
    for _ in 0..read.byte()? {
        let length = usize::from(read.byte()?);
        let name = std::str::from_utf8(read.take(length)?).ok()?;
        shared.push(QueueName::new(name).ok()?);
    }
    // Settings that an older version wrote end here.
    let bytes_max = read.double().map_or(QueueSettings::default().bytes_max, |most| most as u64);
    Some(QueueSettings {
        group_limits,
        queue_limits,
        shared,
        lease,
        attempts_max,
        backoff,
        response_max,
        key_window,
        keys_max,
        payload_max,
        jobs_max,
        bytes_max,
        groups_max,
        retention,
    })
}

pub(super) fn limits(limits: &[Limit]) -> Vec<u8> {
    let mut out = vec![limits.len() as u8];
    for limit in limits {
        let (kind, numbers) = parts(limit);
        out.push(kind);
        numbers.into_iter().for_each(|number| put(&mut out, number));
    }
    out
}

/// The kind of a limit, as `scripts/limits.lua` numbers them.
pub(super) fn kind_of(limit: &Limit) -> u8 {
    parts(limit).0
}

/// The kind and the constants of a limit, as `scripts/limits.lua` lists them.
fn parts(limit: &Limit) -> (u8, [f64; 4]) {
    match *limit {
        Limit::Slots { units, window } => (1, [f64::from(units), micros(window), 0.0, 0.0]),
        Limit::Window { units, window } => (2, [f64::from(units), micros(window), 0.0, 0.0]),
        Limit::Policy(Algorithm::Gcra(gcra)) => {
            let quota = gcra.quota();
            let numbers = [quota.units() as f64, micros(quota.period()), quota.burst() as f64, 0.0];
            (3, numbers)
        }
        Limit::Policy(Algorithm::FixedWindow(window)) => {
            let quota = window.quota();
            let is_first = window.anchor() == Anchor::FirstRequest;
            let numbers = [quota.units() as f64, micros(quota.period()), 0.0, 1.0];
            (if is_first { 4 } else { 2 }, numbers)
        }
        Limit::Policy(Algorithm::SlidingWindow(window)) => {
            let (period, buckets) = (micros(window.period()), window.buckets() as f64);
            (5, [window.limit() as f64, period, (period / buckets).floor(), buckets])
        }
        Limit::Policy(Algorithm::LeakyBucket(bucket)) => {
            let numbers =
                [bucket.size() as f64, micros(bucket.interval()), bucket.drip_size() as f64, 0.0];
            (6, numbers)
        }
        // `Limit::policy` makes slots of anything else.
        Limit::Policy(_) => (1, [f64::from(Limit::UNITS_MAX), 0.0, 0.0, 0.0]),
    }
}

pub(super) fn unpack_limits(bytes: &[u8]) -> Option<Vec<Limit>> {
    read_limits(&mut Reader(bytes))
}

fn read_limits(read: &mut Reader<'_>) -> Option<Vec<Limit>> {
    (0..read.byte()?).map(|_| read_limit(read)).collect()
}

fn read_limit(read: &mut Reader<'_>) -> Option<Limit> {
    let kind = read.byte()?;
    let (units, window, c, d) = (read.double()?, read.double()?, read.double()?, read.double()?);
    let window = duration(window);
    let quota = || Quota::new(units as u64, window).ok();
    let algorithm = match kind {
        1 => return Some(Limit::Slots { units: units as u32, window }),
        2 if d == 0.0 => return Some(Limit::Window { units: units as u32, window }),
        2 => Algorithm::FixedWindow(FixedWindow::new(quota()?, Anchor::Epoch)),
        3 => Algorithm::Gcra(Gcra::new(Quota::with_burst(units as u64, window, c as u64).ok()?)),
        4 => Algorithm::FixedWindow(FixedWindow::new(quota()?, Anchor::FirstRequest)),
        5 => {
            let (quota, buckets) = (quota()?, d as u64);
            let window = SlidingWindow::new(quota, buckets);
            Algorithm::SlidingWindow(window.or_else(|_| SlidingWindow::exact(quota)).ok()?)
        }
        6 => Algorithm::LeakyBucket(LeakyBucket::new(units as u64, c as u64, window).ok()?),
        _ => return None,
    };
    Some(Limit::Policy(algorithm))
}

fn put(out: &mut Vec<u8>, number: f64) {
    out.extend_from_slice(&number.to_le_bytes());
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(&(text.len() as u16).to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}

/// Bytes read from the front.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    pub(super) fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|byte| byte[0])
    }

    pub(super) fn number(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    pub(super) fn double(&mut self) -> Option<f64> {
        Some(f64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    /// Text after its length in two bytes.
    pub(super) fn text(&mut self) -> Option<&'a str> {
        let length = u16::from_le_bytes(self.take(2)?.try_into().ok()?);
        std::str::from_utf8(self.take(usize::from(length))?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_and_limits_survive_the_way_through_the_store() {
        let texts = [
            "slots 10/10s",
            "concurrent 5",
            "window 10/10s",
            "gcra 10/1s burst 5",
            "fixed 10/10s",
            "fixed 10/10s first",
            "leaky 10 1/1s",
            "sliding 10/10s",
        ];
        let limits: Vec<Limit> = texts.iter().map(|text| text.parse().unwrap()).collect();
        let shared = vec![QueueName::new("a").unwrap(), QueueName::new("b:c").unwrap()];
        let written = QueueSettings {
            group_limits: limits,
            shared,
            jobs_max: 77,
            bytes_max: 88,
            ..Default::default()
        };
        let packed = settings(&written);
        assert_eq!(unpack_settings(&packed).unwrap(), written);
        let older = unpack_settings(&packed[..packed.len() - 8]).unwrap();
        assert_eq!(older.bytes_max, QueueSettings::default().bytes_max);
        assert!(unpack_settings(b"x").is_err());
    }

    #[test]
    fn a_recurring_job_survives_the_way_through_the_store() {
        let group = crate::Group::new("g").unwrap();
        let written = NewJob::new(group, "payload")
            .priority(3)
            .weight(2)
            .attempts_max(9)
            .backoff(Backoff::fixed(Duration::from_secs(2)));
        assert_eq!(unpack_job(&job(&written)), Some(written));
    }
}
