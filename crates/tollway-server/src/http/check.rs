//! `POST /v1/check`, `/v1/peek` and `/v1/check-batch`.

use tollway_core::Verdict;
use tollway_core::fields::Problem;

use super::json::{BatchBody, CheckBody, push_verdict, read};
use super::problem::Trouble;
use super::reply::Reply;
use super::request::Request;
use crate::decide::{Decided, Decider};
use crate::fallback::Fallback;
use crate::rules::{Ask, Treatment};
use crate::worker::Worker;

/// `POST /v1/check`: takes every charge if all are allowed.
pub(super) async fn check(
    worker: &Worker,
    request: &Request<'_>,
    reply: &mut Reply,
) -> Result<(), Trouble> {
    let status = deny_status(request)?;
    let body: CheckBody<'_> = read(request.body)?;
    let rules = worker.service.enforcer.rules();
    let decider = worker.decider(&rules);
    let asks = body.asks(&rules, worker.service.settings().limits.charges_max)?;
    let verdict = decider.check(&asks).await?;
    write(&decider, &asks, &verdict, status, reply);
    Ok(())
}

/// `POST /v1/peek`: what a check would answer. Looking is never denied: the status is 200.
pub(super) async fn peek(
    worker: &Worker,
    request: &Request<'_>,
    reply: &mut Reply,
) -> Result<(), Trouble> {
    let body: CheckBody<'_> = read(request.body)?;
    let rules = worker.service.enforcer.rules();
    let decider = worker.decider(&rules);
    let asks = body.asks(&rules, worker.service.settings().limits.charges_max)?;
    let verdict = decider.peek(&asks).await?;
    write(&decider, &asks, &verdict, 200, reply);
    Ok(())
}

/// `POST /v1/check-batch`: independent requests, each decided on its own. The status is 200: the
/// answers differ.
pub(super) async fn check_batch(
    worker: &Worker,
    request: &Request<'_>,
    reply: &mut Reply,
) -> Result<(), Trouble> {
    let most = worker.service.settings().limits.pipeline_max;
    let body: BatchBody<'_> = read(request.body)?;
    if body.requests.len() > most {
        return Err(Trouble::Bad(format!("more than {most} requests in one batch")));
    }
    let rules = worker.service.enforcer.rules();
    let charges_max = worker.service.settings().limits.charges_max;
    // All are read before the first is decided: a malformed one must not leave half a batch taken.
    let requests: Vec<Vec<Ask<'_>>> = body
        .requests
        .iter()
        .map(|body| body.asks(&rules, charges_max))
        .collect::<Result<_, _>>()?;
    let decider = worker.decider(&rules);
    let mut answers = Vec::with_capacity(requests.len());
    if requests.iter().all(|asks| asks.len() == 1) {
        decider.check_each(&requests.concat(), &mut answers).await;
    } else {
        for asks in &requests {
            answers.push(decider.check(asks).await);
        }
    }
    reply.body.extend_from_slice(b"{\"answers\":[");
    for (index, (asks, answer)) in requests.iter().zip(answers).enumerate() {
        if index > 0 {
            reply.body.push(b',');
        }
        push_answer(asks, answer, reply);
    }
    reply.body.extend_from_slice(b"]}");
    Ok(())
}

/// Writes a verdict, or the problem in its place: what befell one request of a batch must not hide
/// what was taken for the others.
fn push_answer(asks: &[Ask<'_>], answer: Decided, reply: &mut Reply) {
    match answer {
        Ok(verdict) => {
            push_verdict(&mut reply.body, &verdict, asks);
            reply.body.push(b'}');
        }
        Err(error) => reply.write_json(&Trouble::Store(error).body()),
    }
}

/// Writes a verdict as the reply; denied with `deny_status`.
pub(super) fn write(
    decider: &Decider<'_>,
    asks: &[Ask<'_>],
    verdict: &Verdict,
    deny_status: u16,
    reply: &mut Reply,
) {
    begin(decider, asks, verdict, deny_status, reply);
    reply.body.push(b'}');
}

/// The same with the closing brace left out, for answers that say more.
pub(super) fn begin(
    decider: &Decider<'_>,
    asks: &[Ask<'_>],
    verdict: &Verdict,
    deny_status: u16,
    reply: &mut Reply,
) {
    add_limits(decider, asks, verdict, reply);
    push_verdict(&mut reply.body, verdict, asks);
    if !verdict.is_allowed() {
        reply.status = deny_status;
        push_problem(verdict, asks, deny_status, reply);
    }
}

/// What was answered in place of the store by the policy that denied, if one was.
fn fallback(verdict: &Verdict, asks: &[Ask<'_>]) -> Option<Fallback> {
    let by = verdict.denied_by().filter(|_| verdict.is_degraded())?;
    let ask = asks.get(by).filter(|ask| ask.is_asked())?;
    Some(Fallback::of(ask, verdict.decisions().get(by)?))
}

/// A denial is a problem too: the members of RFC 9457 stand beside the verdict's.
fn push_problem(verdict: &Verdict, asks: &[Ask<'_>], status: u16, reply: &mut Reply) {
    let denied =
        asks.iter().zip(verdict.decisions()).filter(|(_, decision)| !decision.is_allowed());
    let violated = denied.map(|(ask, _)| ask.charge.policy.name());
    // A banned key has spent nothing: it is not a quota that it must wait for.
    let is_banned = asks.iter().any(|ask| ask.treatment == Treatment::Ban);
    let fallback = fallback(verdict, asks).filter(|_| !is_banned);
    let problem = match fallback {
        _ if is_banned => Problem::AbnormalUsageDetected.body(status, violated),
        Some(fallback) => {
            reply.fields.push((Fallback::FIELD, fallback.name().to_owned()));
            let (problem, detail) = fallback.problem();
            problem.detailed(status, violated, detail)
        }
        None => Problem::QuotaExceeded.body(status, violated),
    };
    let members = problem.trim_start_matches('{').trim_end_matches('}');
    reply.body.push(b',');
    reply.body.extend_from_slice(members.as_bytes());
    reply.content_type = Problem::CONTENT_TYPE;
}

/// Adds the rate-limit header fields in the configured dialect.
pub(super) fn add_limits(
    decider: &Decider<'_>,
    asks: &[Ask<'_>],
    verdict: &Verdict,
    reply: &mut Reply,
) {
    let dialect = decider.settings.dialect;
    reply.add_limits(dialect, asks, verdict, decider.now().as_nanos());
}

/// The status of a denial: `?deny_status=403` for proxies that know no other.
pub(super) fn deny_status(request: &Request<'_>) -> Result<u16, Trouble> {
    let Some(text) = request.parameter("deny_status") else { return Ok(429) };
    let status: Option<u16> = text.parse().ok();
    let status = status.filter(|status| *status == 200 || (400..=599).contains(status));
    status.ok_or_else(|| Trouble::Bad("deny_status must be 200 or 400 to 599".to_owned()))
}
