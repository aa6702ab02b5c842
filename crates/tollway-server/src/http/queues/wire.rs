//! Queues in JSON: what bodies say, and how answers are written.
//!
//! A payload that is text is stored as its bytes, any other JSON as its own text; bytes that are no
//! text travel as `payload_base64`, in both directions. Results likewise.

use std::ops::Deref;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use tollway_core::Timestamp;
use tollway_queue::{
    AttemptEnd, Backoff, Counts, Deadline, Enqueued, Error, ErrorKind, Estimate, Group, GroupStats,
    Job, JobState, Lease, LeaseToken, NewJob, PastAttempt, Queue, Start, Stats,
};

use super::super::problem::Trouble;
use crate::lease_token::{self, Signer};

/// A job to be enqueued.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct JobBody<'a> {
    #[serde(default)]
    group: String,
    #[serde(borrow)]
    payload: Option<&'a RawValue>,
    payload_base64: Option<String>,
    #[serde(default)]
    priority: u8,
    weight: Option<u32>,
    delay_ms: Option<u64>,
    start_at_ms: Option<u64>,
    start_within_ms: Option<u64>,
    start_before_ms: Option<u64>,
    key: Option<String>,
    attempts_max: Option<u32>,
    backoff_ms: Option<u64>,
    backoff_max_ms: Option<u64>,
}

impl JobBody<'_> {
    /// The job that the body tells.
    pub(super) fn job(self) -> Result<NewJob, Error> {
        let payload = bytes(self.payload, self.payload_base64.as_deref(), "payload")?;
        let mut job = NewJob::new(Group::new(&self.group)?, payload.unwrap_or_default());
        job.priority = self.priority;
        job.weight = self.weight.unwrap_or(1);
        job.start = start(self.delay_ms, self.start_at_ms)?;
        job.deadline = match (self.start_within_ms, self.start_before_ms) {
            (None, None) => None,
            (Some(within), None) => Some(Deadline::After(Duration::from_millis(within))),
            (None, Some(at)) => Some(Deadline::At(moment(at, "start_before_ms")?)),
            (Some(_), Some(_)) => {
                return Err(invalid("give start_within_ms or start_before_ms, not both"));
            }
        };
        job.key = self.key;
        job.attempts_max = self.attempts_max;
        job.backoff = self.backoff_ms.map(|first_ms| {
            let first = Duration::from_millis(first_ms);
            let max = self.backoff_max_ms.map_or(Backoff::default().max, Duration::from_millis);
            Backoff { first, max: max.max(first) }
        });
        Ok(job)
    }
}

/// When a job is to start.
pub(super) fn start(delay_ms: Option<u64>, start_at_ms: Option<u64>) -> Result<Start, Error> {
    Ok(match (delay_ms, start_at_ms) {
        (None, None) => Start::Now,
        (Some(delay), None) => Start::After(Duration::from_millis(delay)),
        (None, Some(at)) => Start::At(moment(at, "start_at_ms")?),
        (Some(_), Some(_)) => return Err(invalid("give delay_ms or start_at_ms, not both")),
    })
}

/// A queue, and what reads and writes the tokens of its leases.
pub(crate) struct SignedQueue {
    pub queue: Queue,
    pub signer: Signer,
}

impl Deref for SignedQueue {
    type Target = Queue;

    fn deref(&self) -> &Queue {
        &self.queue
    }
}

impl SignedQueue {
    /// The lease that a client names.
    pub(super) fn read(&self, token: &str) -> Result<lease_token::Shown, Trouble> {
        let wrong = || Trouble::bad("token: not the token of a lease");
        self.signer.read(self.name(), token).ok_or_else(wrong)
    }

    /// A lease as its worker is given it.
    pub(super) fn shown(&self, lease: &Lease) -> Value {
        let token = self.signer.token(self.name(), lease.token());
        let mut value = json!({
            "id": lease.id.0, "attempt": lease.attempt, "token": token,
            "failures": lease.failures, "group": lease.group.as_str(),
            "priority": lease.priority, "weight": lease.weight,
            "enqueued_at_ms": ms(lease.enqueued_at), "leased_at_ms": ms(lease.leased_at),
            "expires_at_ms": ms(lease.expires_at),
        });
        if let Value::Object(object) = &mut value {
            put_bytes(object, "payload", &lease.payload);
        }
        value
    }
}

/// Bytes that a body carries as text, as JSON or in base 64; `None` if it carries none.
pub(super) fn bytes(
    raw: Option<&RawValue>,
    base64: Option<&str>,
    field: &str,
) -> Result<Option<Bytes>, Error> {
    match (raw, base64) {
        (None, None) => Ok(None),
        (Some(raw), None) if raw.get().starts_with('"') => {
            let text: String = serde_json::from_str(raw.get())
                .map_err(|error| invalid(&format!("{field}: {error}")))?;
            Ok(Some(text.into()))
        }
        (Some(raw), None) => Ok(Some(Bytes::copy_from_slice(raw.get().as_bytes()))),
        (None, Some(text)) => {
            let wrong = |_| invalid(&format!("{field}_base64 is not base 64"));
            BASE64.decode(text).map(|bytes| Some(bytes.into())).map_err(wrong)
        }
        (Some(_), Some(_)) => Err(invalid(&format!("give {field} or {field}_base64, not both"))),
    }
}

pub(super) fn invalid(message: &str) -> Error {
    Error::new(ErrorKind::Invalid, message)
}

/// That there is no such thing.
pub(super) fn missing(message: impl Into<String>) -> Trouble {
    Error::new(ErrorKind::NotFound, message).into()
}

/// That a lease is over.
pub(super) fn lost_lease(token: LeaseToken) -> Trouble {
    let message = format!("attempt {} at job {} is over", token.attempt, token.id);
    Error::new(ErrorKind::LeaseLost, message).into()
}

/// A moment in milliseconds since the epoch.
fn moment(ms: u64, field: &str) -> Result<Timestamp, Error> {
    let too_far = || invalid(&format!("{field} is too far"));
    let ns = ms.checked_mul(1_000_000).ok_or_else(too_far)?;
    Ok(Timestamp::from_nanos(ns))
}

/// Rounded up: told a millisecond too early, somebody would come before it is true.
pub(super) fn ms(moment: Timestamp) -> u64 {
    moment.as_nanos().div_ceil(1_000_000)
}

fn put_bytes(object: &mut Map<String, Value>, field: &str, bytes: &[u8]) {
    match std::str::from_utf8(bytes) {
        Ok(text) => object.insert(field.to_owned(), text.into()),
        Err(_) => object.insert(format!("{field}_base64"), BASE64.encode(bytes).into()),
    };
}

fn ready(estimate: Option<Estimate>) -> Value {
    estimate.map_or(
        Value::Null,
        |estimate| json!({"expected_ms": ms(estimate.expected), "latest_ms": ms(estimate.latest)}),
    )
}

pub(super) fn enqueued(enqueued: &Enqueued) -> Value {
    json!({
        "id": enqueued.id.0, "duplicate": enqueued.duplicate, "ready": ready(enqueued.ready),
    })
}

/// How much of a job is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shown {
    /// Payload, result, group, worker and reason too.
    Whole,
    /// None of what clients and workers wrote.
    Figures,
}

/// What workers wrote, among the fields of a state.
const NOT_FIGURES: [&str; 4] = ["worker", "result", "result_base64", "reason"];

pub(super) fn job(job: &Job, shown: Shown) -> Value {
    let mut value = json!({
        "id": job.id.0, "priority": job.priority, "weight": job.weight, "attempt": job.attempt,
        "failures": job.failures, "enqueued_at_ms": ms(job.enqueued_at),
    });
    let Value::Object(object) = &mut value else { return value };
    if shown == Shown::Whole {
        object.insert("group".to_owned(), job.group.as_str().into());
        // That of a job that is done is kept no longer: none is told, rather than an empty one.
        if !matches!(job.state, JobState::Done { .. }) {
            put_bytes(object, "payload", &job.payload);
        }
    }
    let past: Vec<Value> = job.past.iter().map(|past| past_attempt(past, shown)).collect();
    object.insert("history".to_owned(), past.into());
    let (state, fields) = state(&job.state, shown);
    object.insert("state".to_owned(), state.into());
    if let Value::Object(fields) = fields {
        object.extend(fields);
    }
    value
}

/// An attempt that did not get its job done.
fn past_attempt(past: &PastAttempt, shown: Shown) -> Value {
    let (outcome, field) = match &past.end {
        AttemptEnd::Failed { reason } => ("failed", Some(("reason", json!(reason)))),
        AttemptEnd::Limited { wait } => {
            ("limited", Some(("wait_ms", json!(wait.as_millis() as u64))))
        }
        AttemptEnd::Released => ("released", None),
        AttemptEnd::Expired => ("expired", None),
    };
    let mut value = json!({
        "attempt": past.attempt, "worker": past.worker, "outcome": outcome,
        "leased_at_ms": ms(past.leased_at), "ended_at_ms": ms(past.ended_at),
    });
    if let Value::Object(object) = &mut value {
        object.extend(field.map(|(name, value)| (name.to_owned(), value)));
        keep_shown(object, shown);
    }
    value
}

/// Leaves nothing that workers wrote to whoever may see figures only.
fn keep_shown(object: &mut Map<String, Value>, shown: Shown) {
    if shown == Shown::Figures {
        object.retain(|name, _| !NOT_FIGURES.contains(&name.as_str()));
    }
}

/// The name of a state, and what there is to say about it.
fn state(state: &JobState, shown: Shown) -> (&'static str, Value) {
    let (name, mut fields) = match state {
        JobState::Waiting { due_at, ready: when } => {
            ("waiting", json!({"due_at_ms": ms(*due_at), "ready": ready(*when)}))
        }
        JobState::Running { worker, leased_at, expires_at, progress, cancelled } => {
            let progress = progress.map(|now| json!({"done": now.done, "total": now.total}));
            let expires_at_ms = ms(*expires_at);
            let fields = json!({
                "worker": worker, "leased_at_ms": ms(*leased_at), "expires_at_ms": expires_at_ms,
                "progress": progress, "cancelled": cancelled,
            });
            ("running", fields)
        }
        JobState::Done { at, result } => {
            let mut fields = json!({"at_ms": ms(*at)});
            if let (Value::Object(object), Some(result)) = (&mut fields, result) {
                put_bytes(object, "result", result);
            }
            ("done", fields)
        }
        JobState::Dead { at, reason } => ("dead", json!({"at_ms": ms(*at), "reason": reason})),
    };
    if let Value::Object(fields) = &mut fields {
        keep_shown(fields, shown);
    }
    (name, fields)
}

pub(super) fn counts(counts: &Counts) -> Value {
    json!({"waiting": counts.waiting, "delayed": counts.delayed, "running": counts.running})
}

pub(super) fn group(group: &GroupStats) -> Value {
    let mut value = counts(&group.counts);
    if let Value::Object(object) = &mut value {
        object.insert("group".to_owned(), group.group.as_str().into());
        object.insert("paused".to_owned(), group.paused.into());
        object.insert("blocked_until_ms".to_owned(), group.blocked_until.map(ms).into());
        object.insert("ready_at_ms".to_owned(), group.next.map(ms).into());
    }
    value
}

/// The figures of a queue, without its groups.
pub(super) fn stats(name: &str, stats: &Stats, now: Timestamp) -> Value {
    let totals = &stats.totals;
    let mut value = counts(&stats.queue);
    let rest = json!({
        "name": name, "paused": stats.paused, "groups": stats.groups_total, "dead": stats.dead,
        "done": stats.done, "oldest_at_ms": stats.oldest.map(ms),
        "ready_at_ms": stats.next.map(ms), "now_ms": ms(now),
        "totals": {
            "enqueued": totals.enqueued, "leased": totals.leased, "done": totals.done,
            "failed": totals.failed, "limited": totals.limited, "expired": totals.expired,
            "dead": totals.dead, "cancelled": totals.cancelled, "missed": totals.missed,
        },
    });
    if let (Value::Object(object), Value::Object(rest)) = (&mut value, rest) {
        object.extend(rest);
    }
    value
}
