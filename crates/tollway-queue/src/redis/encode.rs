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
    Backoff, Deadline, EndMark, LeaseToken, Limit, MissedDeadline, NewJob, Outcome, Progress,
    QueueName, QueueSettings, Retention, Start,
};
use tollway_journal::bytes_codec::{ByteReader, ByteWriter};

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
    let mut starts = ByteWriter::default();
    if !jobs.iter().all(is_plain) {
        jobs.iter().for_each(|one| put_start(&mut starts, one));
    }
    std::iter::once(starts.0).chain(jobs.iter().map(job)).collect()
}

/// Whether a job starts now, is nobody's duplicate, and stands in line as it came.
fn is_plain(job: &NewJob) -> bool {
    let starts_now = matches!(job.start, Start::Now);
    let is_usual = job.key.is_none() && job.deadline.is_none();
    starts_now && is_usual && job.priority == 0 && job.weight == 1
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
pub(super) const START_BYTES: usize = 18;

/// Whether a start is at once, after a while or at a moment, and after or at which.
fn kind_and_time(start: Start) -> (u8, f64) {
    match start {
        Start::Now => (0, 0.0),
        Start::After(delay) => (1, micros(delay)),
        Start::At(at) => (2, micros_at(at) as f64),
    }
}

/// Another start of a job, as control.lua reads it.
pub(super) fn start(start: Start) -> [Vec<u8>; 2] {
    let (kind, time) = kind_and_time(start);
    [kind.to_string().into_bytes(), time.to_string().into_bytes()]
}

/// A place in the order in which jobs ended, as queries.lua reads it.
pub(super) fn end_mark(mark: EndMark) -> [Vec<u8>; 2] {
    [micros_at(mark.at).to_string().into_bytes(), mark.id.to_string().into_bytes()]
}

fn put_start(out: &mut ByteWriter, job: &NewJob) {
    let (start, when) = kind_and_time(job.start);
    let (deadline, until) = match job.deadline {
        None => (0, 0.0),
        Some(Deadline::After(within)) => (1, micros(within)),
        Some(Deadline::At(at)) => (2, micros_at(at) as f64),
    };
    out.u8(start).f64(when).u8(deadline).f64(until);
}

/// A job as it is stored, but for its times, which stand before it.
pub(super) fn job(job: &NewJob) -> Vec<u8> {
    let mut out = ByteWriter(Vec::with_capacity(64 + job.payload.len()));
    let backoff = job.backoff.map_or((-1.0, 0.0), |b| (micros(b.first), micros(b.max)));
    // Attempts and failures so far are none.
    out.u8(job.priority).u32(job.weight).u32(0).u32(0).u32(job.attempts_max.unwrap_or(0));
    out.f64(backoff.0).f64(backoff.1);
    out.short_text(job.key.as_deref().unwrap_or_default()).short_text(job.group.as_str());
    out.0.extend_from_slice(&job.payload);
    out.0
}

/// The weight and the group of a job that [`job`] packed.
pub(super) fn of_job(bytes: &[u8]) -> Option<(u32, &str)> {
    let mut read = ByteReader(bytes);
    let (_priority, weight) = (read.u8()?, read.u32()?);
    // Attempts, failures, the most attempts and the backoff.
    read.take(8 + 4 + 16)?;
    let _key = read.short_text()?;
    Some((weight, read.short_text()?))
}

/// The job that [`job`] packed, for recurring jobs.
pub(super) fn unpack_job(bytes: &[u8]) -> Option<NewJob> {
    let mut read = ByteReader(bytes);
    let priority = read.u8()?;
    let weight = read.u32()?;
    let _so_far = read.take(8)?;
    let attempts_max = Some(read.u32()?).filter(|attempts| *attempts > 0);
    let (first, max) = (read.f64()?, read.f64()?);
    let _key = read.short_text()?;
    let group = crate::Group::new(read.short_text()?).ok()?;
    let backoff = (first >= 0.0).then(|| Backoff { first: duration(first), max: duration(max) });
    let job = NewJob::new(group, bytes::Bytes::copy_from_slice(read.0));
    Some(NewJob { priority, weight, attempts_max, backoff, ..job })
}

pub(super) fn token(token: LeaseToken) -> Vec<u8> {
    let mut out = ByteWriter::default();
    out.f64(token.id.0 as f64).u32(token.attempt);
    out.0
}

pub(super) fn progress(of: LeaseToken, progress: Progress) -> Vec<u8> {
    let mut out = ByteWriter(token(of));
    out.f64(progress.done as f64).f64(progress.total as f64);
    out.0
}

/// A lease, and what came of it.
pub(super) fn outcome(of: LeaseToken, outcome: &Outcome) -> [Vec<u8>; 2] {
    let (code, retry, wait, has_result, bytes): (u8, bool, f64, bool, &[u8]) = match outcome {
        Outcome::Done { result } => {
            (1, false, 0.0, result.is_some(), result.as_deref().unwrap_or_default())
        }
        Outcome::Failed { reason, retry } => (2, *retry, 0.0, false, reason.as_bytes()),
        Outcome::Limited { wait } => (3, true, micros(*wait), false, b""),
        Outcome::Released => (4, true, 0.0, false, b""),
    };
    let mut out = ByteWriter(Vec::with_capacity(15 + bytes.len()));
    out.u32(of.attempt).u8(code).u8(u8::from(retry)).f64(wait).u8(u8::from(has_result));
    out.0.extend_from_slice(bytes);
    [of.id.0.to_string().into_bytes(), out.0]
}

pub(super) fn settings(settings: &QueueSettings) -> Vec<u8> {
    let mut out = ByteWriter::default();
    let retention = &settings.retention;
    out.f64(micros(settings.lease)).u32(settings.attempts_max);
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
        out.f64(number);
    }
    put_limits(&mut out, &settings.group_limits);
    put_limits(&mut out, &settings.queue_limits);
    out.u8(settings.shared.len() as u8);
    for name in &settings.shared {
        out.u8(name.as_str().len() as u8).0.extend_from_slice(name.as_str().as_bytes());
    }
    out.f64(settings.bytes_max.min(1 << 53) as f64).u8(settings.backoff_jitter);
    out.u8(u8::from(settings.missed_deadline == MissedDeadline::Drop));
    out.0
}

pub(super) fn unpack_settings(bytes: &[u8]) -> Result<QueueSettings, Error> {
    let damaged = || Error::new(ErrorKind::Corrupt, "the settings of a queue cannot be read");
    read_settings(&mut ByteReader(bytes)).ok_or_else(damaged)
}

fn read_settings(read: &mut ByteReader<'_>) -> Option<QueueSettings> {
    let lease = duration(read.f64()?);
    let attempts_max = read.u32()?;
    let backoff = Backoff { first: duration(read.f64()?), max: duration(read.f64()?) };
    let (response_max, key_window) = (duration(read.f64()?), duration(read.f64()?));
    let (keys_max, payload_max) = (read.f64()? as u32, read.f64()? as u32);
    let (jobs_max, groups_max) = (read.f64()? as u64, read.f64()? as u32);
    let retention = Retention {
        done_max: read.f64()? as u32,
        done_age: duration(read.f64()?),
        dead_max: read.f64()? as u32,
        dead_age: duration(read.f64()?),
    };
    let (group_limits, queue_limits) = (read_limits(read)?, read_limits(read)?);
    let mut shared = Vec::new();
    for _ in 0..read.u8()? {
        let length = usize::from(read.u8()?);
        let name = std::str::from_utf8(read.take(length)?).ok()?;
        shared.push(QueueName::new(name).ok()?);
    }
    // Settings that an older version wrote end here.
    let bytes_max = read.f64().map_or(QueueSettings::default().bytes_max, |most| most as u64);
    let backoff_jitter = read.u8().unwrap_or(QueueSettings::default().backoff_jitter);
    let missed_deadline =
        if read.u8() == Some(1) { MissedDeadline::Drop } else { MissedDeadline::DeadLetter };
    Some(QueueSettings {
        group_limits,
        queue_limits,
        shared,
        lease,
        attempts_max,
        backoff,
        backoff_jitter,
        missed_deadline,
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
    let mut out = ByteWriter::default();
    put_limits(&mut out, limits);
    out.0
}

fn put_limits(out: &mut ByteWriter, limits: &[Limit]) {
    out.u8(limits.len() as u8);
    for limit in limits {
        let (kind, [a, b, c, d]) = parts(limit);
        out.u8(kind).f64(a).f64(b).f64(c).f64(d);
    }
}

/// The kind of a limit, as `scripts/limits.lua` numbers them.
pub(super) fn kind_of(limit: &Limit) -> u8 {
    parts(limit).0
}

/// What the kind of a policy that is charged at the answer has more than that of one which is
/// charged at the start.
const ANSWERED: u8 = 10;

/// The kind and the constants of a limit, as `scripts/limits.lua` lists them.
fn parts(limit: &Limit) -> (u8, [f64; 4]) {
    match *limit {
        Limit::Answered(algorithm) => {
            let (kind, numbers) = parts(&Limit::Policy(algorithm));
            (kind + ANSWERED, numbers)
        }
        Limit::Slots { units, window } => (1, [f64::from(units), micros(window), 0.0, 0.0]),
        Limit::Window { units, window } => (7, [f64::from(units), micros(window), 0.0, 0.0]),
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
    read_limits(&mut ByteReader(bytes))
}

fn read_limits(read: &mut ByteReader<'_>) -> Option<Vec<Limit>> {
    (0..read.u8()?).map(|_| read_limit(read)).collect()
}

fn read_limit(read: &mut ByteReader<'_>) -> Option<Limit> {
    let kind = read.u8()?;
    let (units, window, c, d) = (read.f64()?, read.f64()?, read.f64()?, read.f64()?);
    let window = duration(window);
    let quota = || Quota::new(units as u64, window).ok();
    let is_answered = kind > ANSWERED;
    let algorithm = match if is_answered { kind - ANSWERED } else { kind } {
        1 => return Some(Limit::Slots { units: units as u32, window }),
        7 => return Some(Limit::Window { units: units as u32, window }),
        // As older versions wrote it.
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
    Some(if is_answered { Limit::Answered(algorithm) } else { Limit::Policy(algorithm) })
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
            "gcra 10/1s burst 5 answered",
        ];
        let limits: Vec<Limit> = texts.iter().map(|text| text.parse().unwrap()).collect();
        let shared = vec![QueueName::new("a").unwrap(), QueueName::new("b:c").unwrap()];
        let written = QueueSettings {
            group_limits: limits,
            shared,
            jobs_max: 77,
            bytes_max: 88,
            backoff_jitter: 7,
            missed_deadline: MissedDeadline::Drop,
            ..Default::default()
        };
        let packed = settings(&written);
        assert_eq!(unpack_settings(&packed).unwrap(), written);
        let older = unpack_settings(&packed[..packed.len() - 10]).unwrap();
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
