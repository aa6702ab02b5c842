//! What workers ask: leases, heartbeats, progress, and what came of a job.
//!
//! A lease call waits for its first job for up to `wait_ms`, asleep until something may start, or
//! until the service stops. If
//! the client leaves meanwhile, what it was given returns to its group when the lease expires.

use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use tollway_core::fields::Lines;
use tollway_queue::{
    BATCH_MAX, Beat, LeaseToken, Outcome, Progress, Queue, QueueSettings, Settled, feedback,
};

use super::super::json::read;
use super::super::problem::Trouble;
use super::super::reply::Reply;
use super::super::request::Request;
use super::wire::{Leasing, bytes, invalid, lost_lease, ms};
use crate::lease_token::Shown;
use crate::worker::Worker;

/// The longest that a lease call waits.
const WAIT_MAX: Duration = Duration::from_secs(60);
const WORKER_LEN_MAX: usize = 128;

/// Answers for a verb of one word.
pub(super) async fn route(
    worker: &Worker,
    queue: &Queue,
    verb: &str,
    request: &Request<'_>,
    reply: &mut Reply,
) -> Result<(), Trouble> {
    let signer = worker.service.queues().ok_or(Trouble::NotFound)?.signer()?;
    let leasing = &Leasing { queue, signer: &signer };
    match verb {
        "lease" => lease(worker, leasing, request, reply).await,
        "heartbeat" => heartbeat(leasing, request, reply).await,
        "progress" => progress(leasing, request, reply).await,
        "ack" | "fail" | "retry-later" | "release" => settle(leasing, verb, request, reply).await,
        _ => Err(Trouble::NotFound),
    }
}

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

async fn lease(
    worker: &Worker,
    leasing: &Leasing<'_>,
    request: &Request<'_>,
    reply: &mut Reply,
) -> Result<(), Trouble> {
    let body: LeaseBody = if request.body.is_empty() { read(b"{}")? } else { read(request.body)? };
    if body.max == 0 || body.max > BATCH_MAX {
        return Err(Trouble::Bad(format!("max must be 1 to {BATCH_MAX}")));
    }
    if body.worker.len() > WORKER_LEN_MAX {
        return Err(Trouble::Bad(format!("a worker's name is at most {WORKER_LEN_MAX} bytes")));
    }
    let (queue, wait) = (leasing.queue, Duration::from_millis(body.wait_ms).min(WAIT_MAX));
    let leases = if wait.is_zero() {
        queue.lease(body.max, &body.worker).await?.leases
    } else {
        let give_up = async {
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = worker.service.waits_over() => {}
            }
        };
        queue.wait_for_leases_until(body.max, &body.worker, give_up).await?
    };
    let leases: Vec<Value> = leases.iter().map(|lease| leasing.lease(lease)).collect();
    reply.write_json(&json!({"leases": leases}));
    Ok(())
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

async fn heartbeat(
    leasing: &Leasing<'_>,
    request: &Request<'_>,
    reply: &mut Reply,
) -> Result<(), Trouble> {
    let body: BeatsBody = read(request.body)?;
    if body.leases.len() > BATCH_MAX {
        return Err(Trouble::Bad(format!("more than {BATCH_MAX} leases in one call")));
    }
    let shown = body.leases.iter().map(|body| leasing.read(&body.token));
    let shown = shown.collect::<Result<Vec<Shown>, Trouble>>()?;
    let tokens: Vec<LeaseToken> = shown.iter().map(|shown| shown.lease()).collect();
    let beats = leasing.queue.heartbeat(&tokens).await?;
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
    reply.write_json(&json!({"leases": beats}));
    Ok(())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ProgressBody {
    token: String,
    done: u64,
    total: u64,
}

async fn progress(
    leasing: &Leasing<'_>,
    request: &Request<'_>,
    reply: &mut Reply,
) -> Result<(), Trouble> {
    let body: ProgressBody = read(request.body)?;
    let shown = leasing.read(&body.token)?;
    let progress = Progress { done: body.done, total: body.total };
    if !leasing.queue.progress(shown.lease(), progress).await? {
        return Err(lost_lease(shown.named));
    }
    reply.write_json(&json!({"id": shown.named.id.0, "attempt": shown.named.attempt}));
    Ok(())
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

impl OutcomeBody<'_> {
    fn shown(&self, leasing: &Leasing<'_>) -> Result<Shown, Trouble> {
        match (&self.token, &self.leases) {
            (Some(token), None) => leasing.read(token),
            _ => Err(Trouble::Bad("give the lease's token, or leases with theirs".to_owned())),
        }
    }

    fn outcome(&self, verb: &str, queue: &Queue) -> Result<Outcome, Trouble> {
        Ok(match verb {
            "ack" => {
                let result = bytes(self.result, self.result_base64.as_deref(), "result")?;
                bounded(result.as_ref())?;
                Outcome::Done { result }
            }
            "fail" => Outcome::Failed {
                reason: self.reason.clone().unwrap_or_default(),
                retry: self.retry.unwrap_or(true),
            },
            "retry-later" => Outcome::Limited { wait: self.wait(queue)? },
            _ => Outcome::Released,
        })
    }

    /// How long the group waits: as told, or as the upstream's header fields say, read by a
    /// profile if one is named.
    fn wait(&self, queue: &Queue) -> Result<Duration, Trouble> {
        match (self.wait_ms, &self.headers) {
            (Some(wait_ms), None) => Ok(Duration::from_millis(wait_ms).min(Outcome::LIMITED_MAX)),
            (None, Some(headers)) => {
                let lines: Lines<'_> = headers
                    .iter()
                    .filter_map(|(name, value)| Some((name.as_str(), value.as_str()?.as_bytes())))
                    .collect();
                let status = self.status.unwrap_or(429);
                match &self.profile {
                    None => Ok(feedback::wait(&lines, queue.now())),
                    Some(name) => Ok(feedback::wait_by_profile(name, status, &lines, queue.now())?),
                }
            }
            _ => Err(Trouble::Bad("give wait_ms, or the headers of the answer".to_owned())),
        }
    }
}

fn bounded(result: Option<&Bytes>) -> Result<(), Trouble> {
    let longest = QueueSettings::PAYLOAD_MAX as usize;
    if result.is_some_and(|result| result.len() > longest) {
        return Err(invalid("a result is at most 16 MiB").into());
    }
    Ok(())
}

async fn settle(
    leasing: &Leasing<'_>,
    verb: &str,
    request: &Request<'_>,
    reply: &mut Reply,
) -> Result<(), Trouble> {
    let mut body: OutcomeBody<'_> = read(request.body)?;
    let (bodies, is_alone) = match body.leases.take() {
        None => (vec![body], true),
        Some(_) if body.token.is_some() => {
            return Err(Trouble::Bad("give token or leases, not both".to_owned()));
        }
        Some(bodies) => (bodies, false),
    };
    if bodies.len() > BATCH_MAX {
        return Err(Trouble::Bad(format!("more than {BATCH_MAX} leases in one call")));
    }
    let shown = bodies.iter().map(|body| body.shown(leasing));
    let shown = shown.collect::<Result<Vec<Shown>, Trouble>>()?;
    let outcomes = shown
        .iter()
        .zip(&bodies)
        .map(|(shown, body)| Ok((shown.lease(), body.outcome(verb, leasing.queue)?)))
        .collect::<Result<Vec<_>, Trouble>>()?;
    let settled = leasing.queue.settle(outcomes).await?;
    let mut answers: Vec<Value> = shown
        .iter()
        .zip(&settled)
        .map(|(shown, settled)| settled_json(shown.named, *settled))
        .collect();
    match (is_alone, &settled[..]) {
        (true, [Settled::Lost]) => return Err(lost_lease(shown[0].named)),
        (true, [_]) => reply.write_json(&answers.remove(0)),
        _ => reply.write_json(&json!({"leases": answers})),
    }
    Ok(())
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
