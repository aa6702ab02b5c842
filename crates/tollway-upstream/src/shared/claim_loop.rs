//! The task that claims for everybody who waits for a bucket, by the cheapest way that is open.
//!
//! ```text
//!   one asks, plenty left ──> claim_quick, or claim_beside ──(not open)──┐
//!   several ask, or less  ───────────────────────────────────────────────┴─> claim: its short way,
//!   several limits ───────────> claim_long: the long way                             else the long
//! ```
//!
//! Where old clients write the same keys, claim_beside stands for claim_quick. It does not see what
//! they write as the limit, so every [`LOOK`] a claim goes by one of the others, which does.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use tokio::time::Instant;
use tollway_redis::connection::{Failure, Script};

use super::Naming;
use super::bucket_queue::BucketQueue;
use super::claim_queue::ClaimResult;
use super::costs;
use super::ledger_state::LedgerState;
use super::script;

/// For how long the quickest way is taken beside old clients before a claim looks at everything.
const LOOK: Duration = Duration::from_millis(250);

/// An answer of the claim script.
pub(super) struct ClaimReply {
    pub(super) now_ms: u64,
    pub(super) wait: Duration,
    pub(super) cause: i64,
    pub(super) granted: Vec<bool>,
    pub(super) is_quick: bool,
    /// Whether nothing but the time was answered: the short way was taken.
    is_short: bool,
}

impl ClaimReply {
    /// Everybody who asked may go.
    fn all(now_ms: u64, asked: usize) -> Self {
        let granted = vec![true; asked];
        Self { now_ms, wait: Duration::ZERO, cause: 0, granted, is_quick: false, is_short: true }
    }
}

/// Claims for everybody who waits, until nobody does.
pub(super) async fn drive(queue: Arc<BucketQueue>, ledger: Arc<LedgerState>) {
    let mut mode = "wait";
    while let Some(asked) = queue.next_call() {
        if asked.is_empty() {
            queue.rest().await;
            continue;
        }
        match ask(&queue, &ledger, mode, asked).await {
            Ok((asked, reply)) => {
                mode = "wait";
                let (unwanted, surplus) = queue.settle(asked, &reply, ledger.settings.beat());
                if !unwanted.is_empty() {
                    ledger.leave(&queue, reply.now_ms, "unsent", &unwanted).await;
                }
                queue.give_up(&ledger, surplus);
            }
            // Its answer may only be lost: asked again, the store knows what it has granted.
            Err((failure, asked))
                if failure.is_transient() && mode == "wait" && ledger.is_back_soon().await =>
            {
                mode = "again";
                let mut state = queue.state();
                for ticket in asked.into_iter().rev() {
                    if !state.placed.contains(&ticket) {
                        state.fresh.push_front(ticket);
                    }
                }
                state.due = Some(Instant::now());
            }
            Err(_) => {
                queue.state().asking.clear();
                queue.dismiss(&ledger, || ClaimResult::StoreGone);
            }
        }
    }
}

/// Claims by the way that fits: the quickest where there is plenty and one asks alone. Answers the
/// permits asked for, by the names that they have now.
async fn ask(
    queue: &BucketQueue,
    ledger: &LedgerState,
    mode: &str,
    asked: Vec<String>,
) -> Result<(Vec<String>, ClaimReply), (Failure, Vec<String>)> {
    let is_mixed = ledger.settings.naming == Naming::Spectacles;
    let is_long = asked.iter().any(|ticket| !costs::of_permit(ticket).is_empty());
    let may_be_quick = mode == "wait" && asked.len() == 1 && !is_long && queue.has_plenty();
    let mut seen_open = if may_be_quick { queue.state().quick } else { None };
    if seen_open.is_some_and(|seen| !is_mixed || seen.elapsed() < LOOK) {
        match claim_quick(queue, ledger, is_mixed).await {
            Ok(Some((permit, reply))) => return Ok((vec![permit], reply)),
            Ok(None) => seen_open = None,
            Err(failure) => return Err((failure, asked)),
        }
    }
    let mode = match mode {
        _ if may_be_quick && seen_open.is_none() => "quick",
        "wait" if is_mixed => "beside",
        other => other,
    };
    let script = if is_long { script::claim_long() } else { script::claim() };
    match claim(queue, ledger, script, mode, &asked).await {
        Ok(reply) => {
            if may_be_quick {
                let is_open = reply.is_quick || reply.is_short;
                queue.state().quick = is_open.then(Instant::now);
            }
            Ok((asked, reply))
        }
        Err(failure) => Err((failure, asked)),
    }
}

async fn claim_quick(
    queue: &BucketQueue,
    ledger: &LedgerState,
    is_mixed: bool,
) -> Result<Option<(String, ClaimReply)>, Failure> {
    let script = if is_mixed { script::claim_beside() } else { script::claim_quick() };
    let value = ledger.client.run::<_, &str>(script, &queue.quick_keys, &[]).await?;
    let Value::BulkString(permit) = &value else { return Ok(None) };
    let permit = String::from_utf8(permit.clone()).map_err(|_| strange(&value))?;
    let now_ms = permit.split('-').next().and_then(|ms| ms.parse().ok());
    let now_ms = now_ms.ok_or_else(|| strange(&value))?;
    Ok(Some((permit, ClaimReply::all(now_ms, 1))))
}

async fn claim(
    queue: &BucketQueue,
    ledger: &LedgerState,
    script: &Script,
    mode: &str,
    asked: &[String],
) -> Result<ClaimReply, Failure> {
    let mut args = ledger.arguments(&queue.bucket);
    args.push(mode.to_owned());
    args.extend_from_slice(asked);
    let value = ledger.client.run(script, &queue.keys.0, &args).await?;
    if let Value::Int(now_ms) = value {
        let now_ms = u64::try_from(now_ms).unwrap_or(0);
        return Ok(ClaimReply::all(now_ms, asked.len()));
    }
    let Value::Array(parts) = &value else { return Err(strange(&value)) };
    let [Value::Int(now_ms), Value::Int(wait_ms), Value::Int(cause), flags, rest @ ..] = &parts[..]
    else {
        return Err(strange(&value));
    };
    let flags = match flags {
        Value::BulkString(flags) => flags.clone(),
        Value::SimpleString(flags) => flags.clone().into_bytes(),
        _ => return Err(strange(&value)),
    };
    Ok(ClaimReply {
        now_ms: u64::try_from(*now_ms).unwrap_or(0),
        wait: Duration::from_millis(u64::try_from(*wait_ms).unwrap_or(0)),
        cause: *cause,
        granted: flags.iter().map(|flag| *flag == b'1').collect(),
        is_quick: matches!(rest, [_, Value::Int(1)]),
        is_short: false,
    })
}

fn strange(value: &Value) -> Failure {
    Failure::rejected(format!("the claim was answered {value:?}"))
}
