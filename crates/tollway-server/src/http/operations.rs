//! `POST /v1/check` and the other operations of [`crate::operation`] in JSON, and
//! `/v1/check-batch`.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;
use tollway_core::{Cost, Decision, Mode, Verdict};

use super::problem::Trouble;
use super::reply::Reply;
use super::request::{Call, Request};
use super::verdict::{add_limits, begin_verdict, push_number, push_verdict};
use crate::decide::{Decided, Decider};
use crate::operation::{
    ChargeAsked, LimitAsked, Operation, Outcome, Verb, reservation_name, with_spacings,
};
use crate::rules::{Ask, Rules, Unaskable};
use crate::wait::millis_up;
use crate::worker::Worker;

/// One charge: `{"policy":"api","key":"ada","cost":2}`, or `limit` in place of `policy`; with
/// `"count":true` taken whether or not the limit would allow it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ChargeBody<'a> {
    #[serde(borrow)]
    policy: Option<Cow<'a, str>>,
    /// A limit that comes with the call, in the form of a policy's fields.
    #[serde(borrow)]
    limit: Option<&'a RawValue>,
    #[serde(borrow)]
    key: Cow<'a, str>,
    /// 1 unless given.
    cost: Option<u64>,
    #[serde(default)]
    count: bool,
}

/// One request: a charge of its own, or `{"charges":[…]}`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ChargesBody<'a> {
    #[serde(borrow)]
    policy: Option<Cow<'a, str>>,
    #[serde(borrow)]
    limit: Option<&'a RawValue>,
    #[serde(borrow)]
    key: Option<Cow<'a, str>>,
    cost: Option<u64>,
    #[serde(default)]
    count: bool,
    #[serde(borrow)]
    charges: Option<Vec<ChargeBody<'a>>>,
}

/// Several independent requests.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct BatchBody<'a> {
    #[serde(borrow)]
    requests: Vec<ChargesBody<'a>>,
}

/// A settlement: `{"reservation":"…","costs":[3]}`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SettlementBody<'a> {
    #[serde(borrow)]
    reservation: Cow<'a, str>,
    /// Real costs, one per charge in order; as reserved where left out.
    #[serde(default)]
    costs: Vec<u64>,
}

impl ChargeBody<'_> {
    fn asked(&self, worker: &Worker) -> Result<ChargeAsked<'_>, Trouble> {
        let (policy, limit) = (self.policy.as_deref(), self.limit);
        asked(worker, policy, limit, (&self.key, self.cost, self.count))
    }
}

impl ChargesBody<'_> {
    /// What the body asks.
    fn asked(&self, worker: &Worker, most: usize) -> Result<Vec<ChargeAsked<'_>>, Trouble> {
        match (&self.charges, &self.key) {
            (None, Some(key)) => {
                let (policy, limit) = (self.policy.as_deref(), self.limit);
                Ok(vec![asked(worker, policy, limit, (key, self.cost, self.count))?])
            }
            (Some(charges), None) if self.is_bare() => {
                if charges.is_empty() || charges.len() > most {
                    let found = charges.len();
                    return Err(Trouble::bad(format!("charges must be 1 to {most}, not {found}")));
                }
                charges.iter().map(|charge| charge.asked(worker)).collect()
            }
            _ => Err(Trouble::bad(EITHER)),
        }
    }

    /// Whether it says nothing beside its charges.
    fn is_bare(&self) -> bool {
        self.policy.is_none() && self.limit.is_none() && self.cost.is_none() && !self.count
    }
}

const EITHER: &str = "give either policy or limit, and key; or charges";

fn asked<'a>(
    worker: &Worker,
    policy: Option<&'a str>,
    limit: Option<&'a RawValue>,
    (key, cost, count): (&'a str, Option<u64>, bool),
) -> Result<ChargeAsked<'a>, Trouble> {
    let cost = Cost::new(cost.unwrap_or(1));
    let cost = cost.ok_or_else(|| Trouble::bad("cost must be a whole number from 1"))?;
    let limit = match (policy, limit) {
        (Some(policy), None) => LimitAsked::Named(policy.as_bytes()),
        (None, Some(limit)) => {
            let tally = worker.service.enforcer.adhoc_tally();
            let limit = worker.adhoc.borrow_mut().limit(limit.get().as_bytes(), tally);
            LimitAsked::Given(limit.map_err(Trouble::Bad)?)
        }
        _ => return Err(Trouble::bad(EITHER)),
    };
    let mode = if count { Mode::Count } else { Mode::Enforce };
    Ok(ChargeAsked { limit, key: key.as_bytes(), cost, mode })
}

/// What to ask of the store.
fn asks<'a>(
    worker: &'a Worker,
    rules: &'a Rules,
    asked: &'a [ChargeAsked<'_>],
) -> Result<Vec<Ask<'a>>, Trouble> {
    let tally = worker.service.enforcer.adhoc_tally();
    let ask = |charge: &'a ChargeAsked<'_>| {
        charge.ask(rules, tally).map_err(|error| match &charge.limit {
            LimitAsked::Named(name) => unaskable(&String::from_utf8_lossy(name), error),
            LimitAsked::Given(_) => unaskable("", error),
        })
    };
    asked.iter().map(ask).collect()
}

/// Why a policy and a key cannot be asked.
pub(crate) fn unaskable(policy: &str, error: Unaskable) -> Trouble {
    match error {
        Unaskable::UnknownPolicy => Trouble::UnknownPolicy(policy.to_owned()),
        error => Trouble::bad(format!("key: {error}")),
    }
}

/// `POST /v1/{verb}`.
pub(super) async fn operate(call: Call<'_>, verb: Verb) -> Result<(), Trouble> {
    let deny_status = match verb {
        Verb::Check | Verb::Reserve => deny_status(call.request)?,
        // To look, to take what there is and to give back are answered, never denied.
        _ => 200,
    };
    let rules = call.service().enforcer.rules();
    // Declared here, since the operation borrows from whichever of them is read.
    let (charges, asked, settlement);
    let operation = match verb.charges_max(&call.service().settings().limits) {
        Some(most) => {
            charges = call.body::<ChargesBody<'_>>()?;
            asked = charges.asked(call.worker, most)?;
            let asks = asks(call.worker, &rules, &asked)?;
            Operation::on_charges(verb, asks).map_err(Trouble::bad)?
        }
        None => {
            settlement = call.body::<SettlementBody<'_>>()?;
            let settled = Operation::settle(verb, &settlement.reservation, settlement.costs);
            settled.map_err(Trouble::bad)?
        }
    };
    let decider = call.worker.decider(&rules);
    let outcome = operation.perform(&decider).await?;
    operation.log(|| call.who());
    write_outcome(&decider, &operation.asks, &outcome, deny_status, call.reply);
    Ok(())
}

fn write_outcome(
    decider: &Decider<'_>,
    asks: &[Ask<'_>],
    outcome: &Outcome,
    deny_status: u16,
    reply: &mut Reply,
) {
    match outcome {
        Outcome::Verdict(verdict) => begin_verdict(decider, asks, verdict, deny_status, reply),
        Outcome::Left(snapshot) => {
            let verdict = Verdict::one(Decision::Allow(*snapshot));
            begin_verdict(decider, asks, &verdict, deny_status, reply);
        }
        Outcome::Granted(grant) => {
            // A partial grant is an answer, and carries no problem.
            let verdict = Verdict::one(grant.decision);
            add_limits(decider, asks, &verdict, reply);
            push_verdict(&mut reply.body, &verdict, asks);
            push_number(&mut reply.body, ",\"granted\":", grant.granted);
        }
        Outcome::Reserved(reserved) => {
            begin_verdict(decider, asks, &reserved.verdict, deny_status, reply);
            if let Some(reservation) = reserved.reservation {
                reply.body.extend_from_slice(b",\"reservation\":\"");
                reply.body.extend_from_slice(reservation_name(reservation.id).as_bytes());
                let expires_ms = millis_up(reservation.expires_after);
                push_number(&mut reply.body, "\",\"expires_after_ms\":", expires_ms);
            }
        }
        Outcome::Reset => reply.body.extend_from_slice(b"{\"reset\":true"),
        Outcome::Settled(true) => reply.body.extend_from_slice(b"{\"settled\":true"),
        Outcome::Settled(false) => {
            reply.status = 404;
            reply.body.extend_from_slice(b"{\"settled\":false");
        }
    }
    reply.body.push(b'}');
}

/// `POST /v1/check-batch`: independent requests, each decided on its own. The status is 200: the
/// answers differ.
pub(super) async fn check_batch(call: Call<'_>) -> Result<(), Trouble> {
    let limits = &call.service().settings().limits;
    let most = limits.pipeline_max;
    let body: BatchBody<'_> = call.body()?;
    if body.requests.len() > most {
        let found = body.requests.len();
        return Err(Trouble::bad(format!("requests must be at most {most}, not {found}")));
    }
    let rules = call.service().enforcer.rules();
    // All are read before the first is decided: a malformed one must not leave half a batch taken.
    let asked = body.requests.iter().map(|body| body.asked(call.worker, limits.charges_max));
    let asked = asked.collect::<Result<Vec<_>, _>>()?;
    let asks = |asked| Ok(with_spacings(asks(call.worker, &rules, asked)?));
    let requests = asked
        .iter()
        .map(Vec::as_slice)
        .map(asks)
        .collect::<Result<Vec<Vec<Ask<'_>>>, Trouble>>()?;
    let decider = call.worker.decider(&rules);
    let mut answers = Vec::with_capacity(requests.len());
    if requests.iter().all(|asks| asks.len() == 1) {
        decider.check_each(&requests.concat(), &mut answers).await;
    } else {
        for asks in &requests {
            answers.push(decider.check(asks).await);
        }
    }
    call.reply.body.extend_from_slice(b"{\"answers\":[");
    for (index, (asks, answer)) in requests.iter().zip(answers).enumerate() {
        if index > 0 {
            call.reply.body.push(b',');
        }
        push_answer(asks, answer, call.reply);
    }
    call.reply.body.extend_from_slice(b"]}");
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

/// The status of a denial: `?deny_status=403` for proxies that know no other.
pub(super) fn deny_status(request: &Request<'_>) -> Result<u16, Trouble> {
    let Some(text) = request.parameter("deny_status") else { return Ok(429) };
    let status: Option<u16> = text.parse().ok();
    let status = status.filter(|status| *status == 200 || (400..=599).contains(status));
    status.ok_or_else(|| Trouble::bad("deny_status must be 200 or 400 to 599"))
}
