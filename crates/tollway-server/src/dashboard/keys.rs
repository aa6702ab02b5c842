//! `POST /dashboard/key`: one key: how it stands under each policy and why, and its last denials.

use serde::Deserialize;
use serde_json::{Value, json};
use tollway_core::{Cost, Key, Retry, Snapshot, Verdict};

use super::reply;
use crate::decide::Decider;
use crate::descriptors::parts;
use crate::http::{Call, Trouble};
use crate::rules::{Ask, Rule, Rules, Source, Treatment};
use crate::top::{Names, Record, bytes_of_hex, rates, record};
use crate::wait::millis_up;

const PAGE: usize = 25;
const PAGE_MAX: usize = 100;
/// Denials that are told, the latest first.
const DENIALS: usize = 20;
/// Points between what is left now and the whole limit.
const LEVELS: u64 = 8;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    /// The key's bytes as hexadecimal digits: a key is not always text.
    key_hex: String,
    #[serde(default)]
    q: String,
    #[serde(default)]
    offset: usize,
    limit: Option<usize>,
}

/// One key as it is looked at.
struct Look<'a> {
    decider: Decider<'a>,
    key: Key<'a>,
    denials: &'a [Record],
}

/// One page of policies with how the key stands under each. Looks, takes nothing.
pub(crate) async fn look_up(call: Call<'_>) -> Result<(), Trouble> {
    let body: Body = call.body()?;
    let limit = body.limit.unwrap_or(PAGE).min(PAGE_MAX);
    let bytes = bytes_of(&body.key_hex)?;
    let key = Key::new(&bytes).map_err(|error| Trouble::bad(format!("key_hex: {error}")))?;
    let enforcer = &call.service().enforcer;
    let rules = enforcer.rules();
    let wanted = body.q.to_ascii_lowercase();
    let matching = |rule: &&Rule| rule.policy().name().to_ascii_lowercase().contains(&wanted);
    let matched = rules.rules().iter().filter(matching).count();
    let (seen, mut denials) = enforcer.seen(&bytes);
    denials.truncate(DENIALS);
    let look = Look { decider: call.worker.decider(&rules), key, denials: &denials };
    let mut standings = Vec::new();
    for rule in rules.rules().iter().filter(matching).skip(body.offset).take(limit) {
        standings.push(look.standing("", Source::rule(rule)).await?);
    }
    let names = Names::of(enforcer.metrics(), denials.iter());
    let denials: Vec<Value> = denials.iter().map(|denial| record(denial, &names)).collect();
    let json = json!({
        "banned": rules.own_quotas().ban_of(&bytes).is_some(),
        "rates": rates(seen),
        "denials": denials,
        "descriptor": look.under_descriptor(&rules).await?,
        "matched": matched,
        "offset": body.offset,
        "standings": standings,
    });
    reply(call, &json)
}

impl Look<'_> {
    /// How the key stands under the descriptor of Envoy that makes it, if one does.
    async fn under_descriptor(&self, rules: &Rules) -> Result<Value, Trouble> {
        match descriptor(rules, self.key.as_bytes()) {
            Some((domain, source)) => self.standing(domain, source).await,
            None => Ok(Value::Null),
        }
    }

    async fn standing(&self, domain: &str, source: Source<'_>) -> Result<Value, Trouble> {
        let (rules, key) = (self.decider.rules, self.key);
        let ask = rules.ask(source, key, Cost::ONE);
        // A charge that a peek would deny says when it would be allowed; of several, the first.
        let asks: Vec<_> = ask.with_spacing().collect();
        let verdict = match self.decider.peek(&asks).await {
            // How the key stands is not known; why it was denied before still is.
            Err(error) if error.is_transient() => Verdict::one(ask.unasked()).degraded(),
            answer => answer?,
        };
        let decisive = verdict.denied_by().unwrap_or(0);
        let Some(decision) = verdict.decisions().get(decisive) else { return Ok(Value::Null) };
        let snapshot = decision.snapshot();
        let retry_after_ms = match decision.retry() {
            Some(Retry::After(wait)) => json!(millis_up(wait)),
            _ => Value::Null,
        };
        let is_known = ask.is_asked() && !verdict.is_degraded();
        let (treated_by, limited_by) = rules.reasons(source, key);
        Ok(json!({
            "domain": domain,
            "policy": ask.charge.policy.name(),
            "quota": ask.charge.policy.algorithm().to_string(),
            "own_quota": limited_by["by"] == "operator",
            "treatment": treatment(ask.treatment),
            "treated_by": treated_by,
            "limited_by": limited_by,
            "allowed": decision.is_allowed(),
            "limit": snapshot.limit(),
            "remaining": snapshot.remaining(),
            "retry_after_ms": retry_after_ms,
            "reset_after_ms": millis_up(snapshot.reset_after()),
            "degraded": verdict.is_degraded(),
            "to_come": if is_known { self.to_come(&ask, snapshot).await? } else { json!([]) },
            "last_denied": if is_known { self.last_denied(&ask).await? } else { Value::Null },
        }))
    }

    /// When so many units will be there if nobody asks: milliseconds from now and units, from what
    /// is left now to the whole limit. Exact for every algorithm and store: a peek at each cost.
    async fn to_come(&self, ask: &Ask<'_>, now: Snapshot) -> Result<Value, Trouble> {
        let (left, missing) = (now.remaining(), now.limit() - now.remaining());
        let part = |level: u64| {
            let units = u128::from(missing) * u128::from(level) / u128::from(LEVELS);
            left + units as u64
        };
        let mut levels: Vec<u64> = (1..=LEVELS).map(part).filter(|units| *units > left).collect();
        levels.dedup();
        let costs: Vec<Cost> = levels.iter().filter_map(|units| Cost::new(*units)).collect();
        let waits = self.decider.waits(ask, &costs).await?;
        let points = levels.into_iter().zip(waits);
        let points = points.filter_map(|(units, wait)| Some((millis_up(wait?), units)));
        Ok(json!(std::iter::once((0, left)).chain(points).collect::<Vec<_>>()))
    }

    /// The last denial under this policy, and how long a request of that cost has to wait now.
    async fn last_denied(&self, ask: &Ask<'_>) -> Result<Value, Trouble> {
        let is_its = |denial: &&Record| denial.tally == ask.tally.number;
        let Some(denial) = self.denials.iter().find(is_its) else { return Ok(Value::Null) };
        let Some(cost) = Cost::new(denial.cost) else { return Ok(Value::Null) };
        let wait = self.decider.waits(ask, &[cost]).await?.into_iter().next().flatten();
        Ok(json!({
            "at_ms": denial.at.as_nanos() / 1_000_000,
            "cost": denial.cost,
            "allowed_in_ms": wait.map(millis_up),
        }))
    }
}

/// The domain of Envoy and the limit in it whose descriptors make this key.
pub(super) fn descriptor<'a>(rules: &'a Rules, key: &'a [u8]) -> Option<(&'a str, Source<'a>)> {
    let parts = parts(key)?;
    let texts = parts.iter().map(|part| std::str::from_utf8(part));
    let texts: Vec<&str> = texts.collect::<Result<_, _>>().ok()?;
    let (name, pairs) = texts.split_first()?;
    if !pairs.len().is_multiple_of(2) {
        return None;
    }
    let entries: Vec<(&str, &str)> = pairs.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
    let domain = rules.domain(name)?;
    let limit = domain.find(&entries)?.limit;
    let source = Source::descriptor(limit, limit.policy.as_ref()?, key, &limit.tally);
    Some((domain.name(), source))
}

const fn treatment(treatment: Treatment) -> &'static str {
    match treatment {
        Treatment::Enforce => "enforced",
        Treatment::Shadow => "shadow",
        Treatment::Exempt => "unlimited",
        Treatment::Ban => "banned",
    }
}

/// The bytes that hexadecimal digits spell.
pub(crate) fn bytes_of(digits: &str) -> Result<Vec<u8>, Trouble> {
    let wrong = || Trouble::bad("key_hex must be pairs of hexadecimal digits");
    bytes_of_hex(digits).ok_or_else(wrong)
}
