//! The task that claims for everybody who waits in a lane, by the cheapest way that is open.
//!
//! ```text
//!   one asks, plenty left ──> claim_quick, or claim_beside ──(not open)──┐
//!   several ask, or less  ───────────────────────────────────────────────┴──> claim: its short way,
//!   several limits ───────────> claim_long: the long way                              else the long
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
use super::costs;
use super::lane::Lane;
use super::parts::Core;
use super::script;
use super::waiters::Turn;

/// For how long the quickest way is taken beside old clients before a claim looks at everything.
const LOOK: Duration = Duration::from_millis(250);

/// An answer of the claim script.
pub(super) struct Reply {
    pub(super) now_ms: u64,
    pub(super) wait: Duration,
    pub(super) cause: i64,
    pub(super) granted: Vec<bool>,
    pub(super) is_quick: bool,
    /// Whether nothing but the time was answered: the short way was taken.
    is_short: bool,
}

impl Reply {
    /// Everybody who asked may go.
    fn all(now_ms: u64, asked: usize) -> Self {
        let granted = vec![true; asked];
        Self { now_ms, wait: Duration::ZERO, cause: 0, granted, is_quick: false, is_short: true }
    }
}

/// Claims for everybody who waits, until nobody does.
pub(super) async fn drive(lane: Arc<Lane>, core: Arc<Core>) {
    let mut mode = "wait";
    while let Some(asked) = lane.next_call() {
        if asked.is_empty() {
            lane.rest().await;
            continue;
        }
        match ask(&lane, &core, mode, asked).await {
            Ok((asked, reply)) => {
                mode = "wait";
                let (unwanted, surplus) = lane.settle(asked, &reply, core.settings.beat());
                if !unwanted.is_empty() {
                    core.leave(&lane, reply.now_ms, "unsent", &unwanted).await;
                }
                lane.give_up(&core, surplus);
            }
            // Its answer may only be lost: asked again, the store knows what it has granted.
            Err((failure, asked))
                if failure.is_transient() && mode == "wait" && core.is_back_soon().await =>
            {
                mode = "again";
                let mut state = lane.state();
                for ticket in asked.into_iter().rev() {
                    if !state.placed.contains(&ticket) {
                        state.fresh.push_front(ticket);
                    }
                }
                state.due = Some(Instant::now());
            }
            Err(_) => {
                lane.state().asking.clear();
                lane.dismiss(&core, || Turn::Gone);
            }
        }
    }
}

/// Claims by the way that fits: the quickest where there is plenty and one asks alone. Answers the
/// permits asked for, by the names that they have now.
async fn ask(
    lane: &Lane,
    core: &Core,
    mode: &str,
    asked: Vec<String>,
) -> Result<(Vec<String>, Reply), (Failure, Vec<String>)> {
    let is_mixed = core.settings.naming == Naming::Spectacles;
    let is_long = asked.iter().any(|ticket| !costs::of_permit(ticket).is_empty());
    let may_be_quick = mode == "wait" && asked.len() == 1 && !is_long && lane.has_plenty();
    let mut seen_open = if may_be_quick { lane.state().quick } else { None };
    if seen_open.is_some_and(|seen| !is_mixed || seen.elapsed() < LOOK) {
        match claim_quick(lane, core, is_mixed).await {
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
    match claim(lane, core, script, mode, &asked).await {
        Ok(reply) => {
            if may_be_quick {
                let is_open = reply.is_quick || reply.is_short;
                lane.state().quick = is_open.then(Instant::now);
            }
            Ok((asked, reply))
        }
        Err(failure) => Err((failure, asked)),
    }
}

async fn claim_quick(
    lane: &Lane,
    core: &Core,
    is_mixed: bool,
) -> Result<Option<(String, Reply)>, Failure> {
    let script = if is_mixed { script::claim_beside() } else { script::claim_quick() };
    let value = core.client.run::<_, &str>(script, &lane.quick_keys, &[]).await?;
    let Value::BulkString(permit) = &value else { return Ok(None) };
    let permit = String::from_utf8(permit.clone()).map_err(|_| strange(&value))?;
    let now_ms = permit.split('-').next().and_then(|ms| ms.parse().ok());
    let now_ms = now_ms.ok_or_else(|| strange(&value))?;
    Ok(Some((permit, Reply::all(now_ms, 1))))
}

async fn claim(
    lane: &Lane,
    core: &Core,
    script: &Script,
    mode: &str,
    asked: &[String],
) -> Result<Reply, Failure> {
    let mut args = core.arguments(&lane.bucket);
    args.push(mode.to_owned());
    args.extend_from_slice(asked);
    let value = core.client.run(script, &lane.keys.0, &args).await?;
    if let Value::Int(now_ms) = value {
        let now_ms = u64::try_from(now_ms).unwrap_or(0);
        return Ok(Reply::all(now_ms, asked.len()));
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
    Ok(Reply {
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
