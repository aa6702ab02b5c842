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
use tollgate_core::fields::Lines;
use tollgate_queue::{
    BATCH_MAX, Beat, JobId, LeaseToken, Outcome, Progress, Queue, QueueSettings, Settled, feedback,
};

use super::super::json::read;
use super::super::problem::Trouble;
use super::super::reply::Reply;
use super::super::request::Request;
use super::wire::{TokenBody, bytes, invalid, lease as lease_json, lost_lease, ms};
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
    match verb {
        "lease" => lease(worker, queue, request, reply).await,
        "heartbeat" => heartbeat(queue, request, reply).await,
        "progress" => progress(queue, request, reply).await,
        "ack" | "fail" | "retry-later" | "release" => settle(queue, verb, request, reply).await,
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
    queue: &Queue,
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
    let wait = Duration::from_millis(body.wait_ms).min(WAIT_MAX);
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
    reply.write_json(&json!({"leases": leases.iter().map(lease_json).collect::<Vec<_>>()}));
    Ok(())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BeatsBody {
    leases: Vec<TokenBody>,
}

async fn heartbeat(queue: &Queue, request: &Request<'_>, reply: &mut Reply) -> Result<(), Trouble> {
    let body: BeatsBody = read(request.body)?;
    if body.leases.len() > BATCH_MAX {
        return Err(Trouble::Bad(format!("more than {BATCH_MAX} leases in one call")));
    }
    let tokens: Vec<LeaseToken> = body.leases.into_iter().map(TokenBody::token).collect();
    let beats = queue.heartbeat(&tokens).await?;
    let beat = |(token, beat): (&LeaseToken, Beat)| {
        let (state, until) = match beat {
            Beat::Until(until) => ("held", Some(ms(until))),
            Beat::Cancelled(until) => ("cancelled", Some(ms(until))),
            Beat::Lost => ("lost", None),
        };
        json!({
            "id": token.id.0, "attempt": token.attempt, "lease": state, "expires_at_ms": until,
        })
    };
    let beats: Vec<Value> = tokens.iter().zip(beats).map(beat).collect();
    reply.write_json(&json!({"leases": beats}));
    Ok(())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ProgressBody {
    id: u64,
    attempt: u32,
    done: u64,
    total: u64,
}

async fn progress(queue: &Queue, request: &Request<'_>, reply: &mut Reply) -> Result<(), Trouble> {
    let body: ProgressBody = read(request.body)?;
    let token = LeaseToken { id: JobId(body.id), attempt: body.attempt };
    let progress = Progress { done: body.done, total: body.total };
    if !queue.progress(token, progress).await? {
        return Err(lost_lease(token));
    }
    reply.write_json(&json!({"id": body.id, "attempt": body.attempt}));
    Ok(())
}

/// What came of one lease; or with `leases` of several, each told by itself.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OutcomeBody<'a> {
    #[serde(borrow)]
    leases: Option<Vec<OutcomeBody<'a>>>,
    id: Option<u64>,
    attempt: Option<u32>,
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
    fn token(&self) -> Result<LeaseToken, Trouble> {
        match (self.id, self.attempt, &self.leases) {
            (Some(id), Some(attempt), None) => Ok(LeaseToken { id: JobId(id), attempt }),
            _ => Err(Trouble::Bad("give id and attempt, or leases that do".to_owned())),
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
    queue: &Queue,
    verb: &str,
    request: &Request<'_>,
    reply: &mut Reply,
) -> Result<(), Trouble> {
    let mut body: OutcomeBody<'_> = read(request.body)?;
    let (bodies, is_alone) = match body.leases.take() {
        None => (vec![body], true),
        Some(_) if body.id.is_some() || body.attempt.is_some() => {
            return Err(Trouble::Bad("give id and attempt or leases, not both".to_owned()));
        }
        Some(bodies) => (bodies, false),
    };
    if bodies.len() > BATCH_MAX {
        return Err(Trouble::Bad(format!("more than {BATCH_MAX} leases in one call")));
    }
    let outcomes = bodies
        .iter()
        .map(|body| Ok((body.token()?, body.outcome(verb, queue)?)))
        .collect::<Result<Vec<_>, Trouble>>()?;
    let tokens: Vec<LeaseToken> = outcomes.iter().map(|(token, _)| *token).collect();
    let settled = queue.settle(outcomes).await?;
    let mut answers: Vec<Value> = tokens
        .iter()
        .zip(&settled)
        .map(|(token, settled)| settled_json(*token, *settled))
        .collect();
    match (is_alone, &settled[..]) {
        (true, [Settled::Lost]) => return Err(lost_lease(tokens[0])),
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
