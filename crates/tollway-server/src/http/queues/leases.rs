//! What workers ask: leases, heartbeats, progress, and what came of a job.
//!
//! A lease call waits for its first job for up to `wait_ms`, asleep until something may start, or
//! until the service stops or the client leaves. What was granted to a client that has left is
//! given back at once, uncharged; what it leaves with is free again when the lease expires.

use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use tollway_core::fields::{self, Lines};
use tollway_queue::{
    BATCH_MAX, Beat, Lease, LeaseToken, Outcome, Progress, QueueSettings, Settled, feedback,
};

use super::super::presence::{has_left, left};
use super::super::problem::Trouble;
use super::super::request::Call;
use super::wire::{SignedQueue, bytes, invalid, lost_lease, ms};
use crate::lease_token::Shown;

/// The longest that a call waits.
pub(super) const WAIT_MAX: Duration = Duration::from_secs(60);
const WORKER_LEN_MAX: usize = 128;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LeaseBody {
    #[serde(default = "one")]
    max: usize,
    #[serde(default)]
    wait_ms: u64,
    #[serde(default)]
    worker: String,
}

const fn one() -> usize {
    1
}

/// `POST {queue}/lease`.
pub(crate) async fn lease(mut call: Call<'_>, queue: &SignedQueue) -> Result<(), Trouble> {
    let body: LeaseBody = call.body_or_empty()?;
    if body.max == 0 || body.max > BATCH_MAX {
        return Err(Trouble::bad(format!("max must be 1 to {BATCH_MAX}")));
    }
    if body.worker.len() > WORKER_LEN_MAX {
        return Err(Trouble::bad(format!("worker must be at most {WORKER_LEN_MAX} bytes")));
    }
    let wait = Duration::from_millis(body.wait_ms).min(WAIT_MAX);
    let leases = if wait.is_zero() {
        queue.lease(body.max, &body.worker).await?.leases
    } else {
        let give_up = given_up(&call, wait);
        let leases = queue.wait_for_leases_until(body.max, &body.worker, give_up).await?;
        // It may have left in the moment in which they were granted.
        if has_left(call.request.client).await { give_back(queue, leases).await? } else { leases }
    };
    if let Some(queues) = call.service().queues() {
        queues.watch().leased(queue.name().as_str(), &leases, queue.now());
    }
    let leases: Vec<Value> = leases.iter().map(|lease| queue.shown(lease)).collect();
    call.write(&json!({"leases": leases}))
}

/// Waits until the wait of a call is over: its time, the service, or the client's interest.
pub(super) async fn given_up(call: &Call<'_>, wait: Duration) {
    tokio::select! {
        () = tokio::time::sleep(wait) => {}
        () = call.service().waits_over() => {}
        () = left(call.request.client) => {}
    }
}

/// Releases what was granted to nobody; what is left to answer.
async fn give_back(queue: &SignedQueue, leases: Vec<Lease>) -> Result<Vec<Lease>, Trouble> {
    if !leases.is_empty() {
        let released = leases.iter().map(|lease| (lease.token(), Outcome::Released));
        queue.settle(released.collect()).await?;
    }
    Ok(Vec::new())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BeatsBody {
    leases: Vec<TokenBody>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenBody {
    token: String,
}

/// `POST {queue}/heartbeat`.
pub(crate) async fn heartbeat(mut call: Call<'_>, queue: &SignedQueue) -> Result<(), Trouble> {
    let body: BeatsBody = call.body()?;
    not_too_many(body.leases.len())?;
    let shown = body.leases.iter().map(|body| queue.read(&body.token));
    let shown = shown.collect::<Result<Vec<Shown>, Trouble>>()?;
    let tokens: Vec<LeaseToken> = shown.iter().map(|shown| shown.lease()).collect();
    let beats = queue.heartbeat(&tokens).await?;
    let beat = |(shown, beat): (&Shown, Beat)| {
        let (state, until) = match beat {
            Beat::Until(until) => ("held", Some(ms(until))),
            Beat::Cancelled(until) => ("cancelled", Some(ms(until))),
            Beat::Lost => ("lost", None),
        };
        let LeaseToken { id, attempt } = shown.named;
        json!({"id": id.0, "attempt": attempt, "lease": state, "expires_at_ms": until})
    };
    let beats: Vec<Value> = shown.iter().zip(beats).map(beat).collect();
    call.write(&json!({"leases": beats}))
}

fn not_too_many(leases: usize) -> Result<(), Trouble> {
    match leases <= BATCH_MAX {
        true => Ok(()),
        false => Err(Trouble::bad(format!("leases must be at most {BATCH_MAX}, not {leases}"))),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ProgressBody {
    token: String,
    done: u64,
    total: u64,
}

/// `POST {queue}/progress`.
pub(crate) async fn progress(mut call: Call<'_>, queue: &SignedQueue) -> Result<(), Trouble> {
    let body: ProgressBody = call.body()?;
    let shown = queue.read(&body.token)?;
    let progress = Progress { done: body.done, total: body.total };
    if !queue.progress(shown.lease(), progress).await? {
        return Err(lost_lease(shown.named));
    }
    call.write(&json!({"id": shown.named.id.0, "attempt": shown.named.attempt}))
}

/// What came of one lease; or with `leases` of several, each told by itself.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OutcomeBody<'a> {
    #[serde(borrow)]
    leases: Option<Vec<OutcomeBody<'a>>>,
    token: Option<String>,
    #[serde(borrow)]
    result: Option<&'a RawValue>,
    result_base64: Option<String>,
    reason: Option<String>,
    retry: Option<bool>,
    wait_ms: Option<u64>,
    headers: Option<Map<String, Value>>,
    profile: Option<String>,
    status: Option<u16>,
}

/// What a worker says of a lease, which is the path that it asks.
#[derive(Clone, Copy)]
pub(crate) enum Report {
    Ack,
    Fail,
    RetryLater,
    Release,
}

impl OutcomeBody<'_> {
    fn shown(&self, queue: &SignedQueue) -> Result<Shown, Trouble> {
        match (&self.token, &self.leases) {
            (Some(token), None) => queue.read(token),
            _ => Err(Trouble::bad("give the lease's token, or leases with theirs")),
        }
    }

    fn outcome(&self, report: Report, queue: &SignedQueue) -> Result<Outcome, Trouble> {
        Ok(match report {
            Report::Ack => {
                let result = bytes(self.result, self.result_base64.as_deref(), "result")?;
                bounded(result.as_ref())?;
                Outcome::Done { result }
            }
            Report::Fail => Outcome::Failed {
                reason: self.reason.clone().unwrap_or_default(),
                retry: self.retry.unwrap_or(true),
            },
            Report::RetryLater => Outcome::Limited { wait: self.wait(queue)? },
            Report::Release => Outcome::Released,
        })
    }

    /// How long the group of a job that was not refused waits, if the answer to its call said that
    /// the limit is spent.
    fn spent(&self, report: Report, queue: &SignedQueue) -> Result<Option<Duration>, Trouble> {
        let Some(headers) = &self.headers else { return Ok(None) };
        if !matches!(report, Report::Ack | Report::Fail) {
            return Ok(None);
        }
        let (lines, now) = (lines(headers), queue.now());
        let status = self.status.unwrap_or(200);
        Ok(match &self.profile {
            None => {
                feedback::wait_of_spent(&fields::read(&lines, Duration::from_nanos(now.as_nanos())))
            }
            Some(name) => feedback::wait_of_spent_by_profile(name, status, &lines, now)?,
        })
    }

    /// How long the group waits: as told, or as the upstream's header fields say, read by a
    /// profile if one is named.
    fn wait(&self, queue: &SignedQueue) -> Result<Duration, Trouble> {
        match (self.wait_ms, &self.headers) {
            (Some(wait_ms), None) => Ok(Duration::from_millis(wait_ms).min(Outcome::LIMITED_MAX)),
            (None, Some(headers)) => {
                let lines = lines(headers);
                let status = self.status.unwrap_or(429);
                match &self.profile {
                    None => Ok(feedback::wait(&lines, queue.now())),
                    Some(name) => Ok(feedback::wait_by_profile(name, status, &lines, queue.now())?),
                }
            }
            _ => Err(Trouble::bad("give wait_ms, or the headers of the answer")),
        }
    }
}

fn lines(headers: &Map<String, Value>) -> Lines<'_> {
    headers
        .iter()
        .filter_map(|(name, value)| Some((name.as_str(), value.as_str()?.as_bytes())))
        .collect()
}

fn bounded(result: Option<&Bytes>) -> Result<(), Trouble> {
    let longest = QueueSettings::PAYLOAD_MAX as usize;
    if result.is_some_and(|result| result.len() > longest) {
        return Err(invalid("a result is at most 16 MiB").into());
    }
    Ok(())
}

/// `POST {queue}/ack`, `/fail`, `/retry-later` and `/release`.
pub(crate) async fn settle(
    mut call: Call<'_>,
    queue: &SignedQueue,
    report: Report,
) -> Result<(), Trouble> {
    let mut body: OutcomeBody<'_> = call.body()?;
    let (bodies, is_alone) = match body.leases.take() {
        None => (vec![body], true),
        Some(_) if body.token.is_some() => {
            return Err(Trouble::bad("give token or leases, not both"));
        }
        Some(bodies) => (bodies, false),
    };
    not_too_many(bodies.len())?;
    let shown = bodies.iter().map(|body| body.shown(queue));
    let shown = shown.collect::<Result<Vec<Shown>, Trouble>>()?;
    let outcomes = shown
        .iter()
        .zip(&bodies)
        .map(|(shown, body)| Ok((shown.lease(), body.outcome(report, queue)?)))
        .collect::<Result<Vec<_>, Trouble>>()?;
    // Before the job is over: its lease says which group is meant.
    for (shown, body) in shown.iter().zip(&bodies) {
        if let Some(wait) = body.spent(report, queue)? {
            queue.hold(shown.lease(), wait).await?;
        }
    }
    let settled = queue.settle(outcomes).await?;
    let mut answers: Vec<Value> = shown
        .iter()
        .zip(&settled)
        .map(|(shown, settled)| settled_json(shown.named, *settled))
        .collect();
    match (is_alone, &settled[..]) {
        (true, [Settled::Lost]) => Err(lost_lease(shown[0].named)),
        (true, [_]) => call.write(&answers.remove(0)),
        _ => call.write(&json!({"leases": answers})),
    }
}

fn settled_json(token: LeaseToken, settled: Settled) -> Value {
    let (state, from) = match settled {
        Settled::Done => ("done", None),
        Settled::Waiting { from } => ("waiting", Some(ms(from))),
        Settled::Dead => ("dead", None),
        Settled::Cancelled => ("cancelled", None),
        Settled::Lost => ("lost", None),
    };
    json!({"id": token.id.0, "attempt": token.attempt, "state": state, "from_ms": from})
}
