//! Verdicts in JSON, written by hand: header fields, charges, and the problem if they were denied.

use tollway_core::fields::Problem;
use tollway_core::{Decision, Retry, Verdict};

use super::reply::Reply;
use crate::decide::Decider;
use crate::fallback::Fallback;
use crate::rules::{Ask, Treatment};
use crate::wait::millis_up;

/// Writes a verdict as the reply, without its closing brace: more may follow. Denied with
/// `deny_status`.
pub(super) fn begin_verdict(
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

/// Adds the rate-limit header fields in the configured dialect.
pub(super) fn add_limits(
    decider: &Decider<'_>,
    asks: &[Ask<'_>],
    verdict: &Verdict,
    reply: &mut Reply,
) {
    let dialect = decider.settings.dialect;
    reply.add_limits(dialect, asks, verdict, decider.now.as_nanos());
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

/// Writes a verdict: `{"allowed":…,"denied_by":…,"charges":[…]}`, the closing brace left out.
/// If a tree of owners denied, `denied_by_owner` names the owner.
pub(super) fn push_verdict(out: &mut Vec<u8>, verdict: &Verdict, asks: &[Ask<'_>]) {
    out.extend_from_slice(b"{\"allowed\":");
    push_bool(out, verdict.is_allowed());
    out.extend_from_slice(b",\"denied_by\":");
    match verdict.denied_by().and_then(|index| asks.get(index)) {
        Some(ask) => push_name(out, ask.charge.policy.name()),
        None => out.extend_from_slice(b"null"),
    }
    push_owner(out, verdict, asks);
    if verdict.is_degraded() {
        out.extend_from_slice(b",\"degraded\":true");
    }
    out.extend_from_slice(b",\"charges\":[");
    for (index, (ask, decision)) in asks.iter().zip(verdict.decisions()).enumerate() {
        if index > 0 {
            out.push(b',');
        }
        push_charge(out, ask, decision);
    }
    out.push(b']');
}

/// Writes which owner of a tree denied, if a tree did: `null` if the quota at its root did.
fn push_owner(out: &mut Vec<u8>, verdict: &Verdict, asks: &[Ask<'_>]) {
    let denier = verdict.denied_by().and_then(|index| asks.get(index));
    let Some(shares) = denier.and_then(|ask| ask.charge.policy.shares()) else { return };
    let owner = verdict.denied_by_owner().and_then(|owner| shares.owners().get(owner));
    let owner = owner.map(|owner| &*owner.key);
    out.extend_from_slice(b",\"denied_by_owner\":");
    out.extend_from_slice(serde_json::Value::from(owner).to_string().as_bytes());
}

fn push_charge(out: &mut Vec<u8>, ask: &Ask<'_>, decision: &Decision) {
    let snapshot = decision.snapshot();
    out.extend_from_slice(b"{\"policy\":");
    push_name(out, ask.charge.policy.name());
    out.extend_from_slice(b",\"allowed\":");
    push_bool(out, decision.is_allowed());
    push_number(out, ",\"limit\":", snapshot.limit());
    push_number(out, ",\"remaining\":", snapshot.remaining());
    if let Some(units) = ask.charge.policy.algorithm().grace_used(snapshot) {
        push_number(out, ",\"grace_used\":", units);
    }
    match decision.retry() {
        None => {}
        Some(Retry::Never) => {
            out.extend_from_slice(b",\"retry_after_ms\":null,\"retry\":\"never\"")
        }
        Some(Retry::After(wait)) => push_number(out, ",\"retry_after_ms\":", millis_up(wait)),
    }
    push_number(out, ",\"reset_after_ms\":", millis_up(snapshot.reset_after()));
    out.push(b'}');
}

fn push_bool(out: &mut Vec<u8>, truth: bool) {
    out.extend_from_slice(if truth { b"true" } else { b"false" });
}

/// Writes `before` and then the number.
pub(super) fn push_number(out: &mut Vec<u8>, before: &str, number: u64) {
    out.extend_from_slice(before.as_bytes());
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// A policy's name: it has neither quotes nor backslashes nor control characters, by construction.
fn push_name(out: &mut Vec<u8>, name: &str) {
    out.push(b'"');
    out.extend_from_slice(name.as_bytes());
    out.push(b'"');
}
