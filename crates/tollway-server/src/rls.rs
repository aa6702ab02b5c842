//! Envoy's rate limit service, whatever carries it: descriptors in, one status each out.
//!
//! Differences from envoyproxy/ratelimit, all on purpose: the descriptors of a request are taken
//! together or not at all, so a denied request does not use up the limits that would have allowed
//! it; and policies of any algorithm and any period may be asked.
//!
//! ```text
//!   descriptor --+-- no rule ----------------> OK, nothing counted
//!                +-- unlimited --------------> OK, remaining u32::MAX
//!                +-- hits 0 -----------------> looked at: over if more than the limit is used
//!                +-- negative hits ----------> given back
//!                +-- quota mode -------------> denies only if all in quota mode are over
//!                `-- otherwise --------------> all together
//! ```
//!
//! A descriptor that names its hits itself is a report: Envoy sends what a stream has used when it
//! is done, and sends it as it sends a check. Refused and not taken, it would be forgotten, and a
//! client could use any amount as long as its last piece does not fit. So what is denied of reports
//! is counted all the same.

mod divided;
pub(crate) mod limits;
mod response;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use tollway_core::{Cost, Decision, Key, Snapshot, StoreError, Verdict};

pub(crate) use divided::{Divided, divided};
pub(crate) use limits::{UNIT_EXPECTED, Unit, limit_policy, printable};
pub(crate) use response::{Response, Status};

use crate::decide::Decider;
use crate::descriptors::{Domain, Found, Limit, digest, push_part};
use crate::metrics::Tally;
use crate::rules::{Ask, Rules, Source};
use crate::worker::Worker;

/// A request.
#[derive(Debug, Default)]
pub(crate) struct Request<'a> {
    /// The domain.
    pub domain: &'a str,
    /// The descriptors.
    pub descriptors: Vec<Descriptor<'a>>,
    /// Units asked of every descriptor that does not say otherwise; 0 means 1.
    pub hits_addend: u32,
}

/// One descriptor.
#[derive(Debug, Default)]
pub(crate) struct Descriptor<'a> {
    /// Keys and values.
    pub entries: Vec<(&'a str, &'a str)>,
    /// A limit that comes with the request, in place of the configured one.
    pub limit: Option<(u32, Unit)>,
    /// Units asked; 0 only looks.
    pub hits: Option<u64>,
    /// Whether the units are given back.
    pub is_negative: bool,
}

/// Why a request has no answer.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// The request is malformed.
    Invalid(String),
    /// The store failed, and a policy wants that told.
    Store(StoreError),
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// A descriptor with what the rules say about it.
#[derive(Debug)]
struct Case<'a> {
    limit: Option<&'a Limit>,
    /// All of it: lists match what was sent.
    key: Vec<u8>,
    /// What stands for a key that no store takes.
    digest: Option<Vec<u8>>,
    hits: u64,
    is_negative: bool,
    /// Whether it tells what was used: that is counted, whatever was left.
    is_report: bool,
    /// Where decisions are counted, if apart from the limit's others.
    series: Option<Arc<Tally>>,
}

/// Answers a request.
///
/// # Errors
///
/// If it is malformed, or the store fails and a policy wants that told.
pub(crate) async fn decide(worker: &Worker, request: &Request<'_>) -> Result<Response, Refusal> {
    validate(worker, request)?;
    let rules = worker.service.enforcer.rules();
    let domain = rules.domain(request.domain);
    let overrides = overrides(worker, request)?;
    let descriptors = request.descriptors.iter().zip(&overrides);
    let mut cases: Vec<Case<'_>> = descriptors
        .map(|(descriptor, limit)| case(worker, request, descriptor, limit.as_ref(), domain))
        .collect();
    drop_replaced(&mut cases);
    let asks: Vec<Option<Ask<'_>>> = cases.iter().map(|case| case.ask(&rules)).collect();
    let decider = worker.decider(&rules);
    let outcomes = decide_all(&decider, &cases, &asks).await?;
    Ok(response::assemble(&decider, request, &cases, &asks, &outcomes))
}

fn validate(worker: &Worker, request: &Request<'_>) -> Result<(), Refusal> {
    let most = worker.service.settings().limits.charges_max;
    let invalid = |text: &str| Err(Refusal::Invalid(text.to_owned()));
    if request.domain.is_empty() {
        return invalid("rate limit domain must not be empty");
    }
    if request.descriptors.is_empty() {
        return invalid("rate limit descriptor list must not be empty");
    }
    if request.descriptors.len() > most {
        return Err(Refusal::Invalid(format!("more than {most} descriptors")));
    }
    if request.descriptors.iter().any(|descriptor| descriptor.entries.is_empty()) {
        return invalid("descriptor entries must not be empty");
    }
    Ok(())
}

/// The limits that come with the request, by descriptor.
fn overrides(worker: &Worker, request: &Request<'_>) -> Result<Vec<Option<Limit>>, Refusal> {
    let build = |descriptor: &Descriptor<'_>| {
        let Some((requests, unit)) = descriptor.limit else { return Ok(None) };
        let limit = limits::limit_of_request(requests, unit, worker.service.metrics());
        limit.map(Some).map_err(|error| Refusal::Invalid(error.to_string()))
    };
    request.descriptors.iter().map(build).collect()
}

fn case<'a>(
    worker: &Worker,
    request: &Request<'_>,
    descriptor: &Descriptor<'_>,
    limit: Option<&'a Limit>,
    domain: Option<&'a Domain>,
) -> Case<'a> {
    let mut series = None;
    let (limit, key) = match limit {
        Some(limit) => (Some(limit), key_of_request(request, descriptor)),
        None => match domain.and_then(|domain| domain.find(&descriptor.entries)) {
            Some(Found { limit, key, counted_as }) => {
                let metrics = worker.service.metrics();
                series = counted_as.and_then(|name| metrics.series(request.domain, &name));
                (Some(limit), key)
            }
            None => (None, Vec::new()),
        },
    };
    let is_negative = descriptor.is_negative;
    Case {
        limit,
        digest: digest(&key),
        key,
        hits: descriptor.hits.unwrap_or_else(|| u64::from(request.hits_addend.max(1))),
        is_negative,
        is_report: !is_negative && descriptor.hits.is_some_and(|hits| hits > 0),
        series,
    }
}

/// Who is limited by a limit that comes with the request.
fn key_of_request(request: &Request<'_>, descriptor: &Descriptor<'_>) -> Vec<u8> {
    let mut key = Vec::new();
    push_part(&mut key, request.domain.as_bytes());
    for (name, value) in &descriptor.entries {
        push_part(&mut key, name.as_bytes());
        push_part(&mut key, value.as_bytes());
    }
    key
}

/// Drops the limits that others in the same request replace.
fn drop_replaced(cases: &mut [Case<'_>]) {
    let replaced: Vec<&str> = cases
        .iter()
        .filter_map(|case| case.limit)
        .flat_map(|limit| limit.replaces.iter().map(String::as_str))
        .collect();
    for case in cases {
        let name = case.limit.and_then(|limit| limit.name.as_deref());
        if name.is_some_and(|name| replaced.contains(&name)) {
            case.limit = None;
        }
    }
}

/// Decisions by case: `None` where there is nothing to decide.
type Decisions = Vec<Option<Decision>>;

/// What was decided, and whether without the store.
#[derive(Debug)]
struct Outcomes {
    decisions: Decisions,
    degraded: bool,
}

async fn decide_all(
    decider: &Decider<'_>,
    cases: &[Case<'_>],
    asks: &[Option<Ask<'_>>],
) -> Result<Outcomes, Refusal> {
    let mut outcomes = Outcomes { decisions: vec![None; cases.len()], degraded: false };
    let mut together: Vec<(usize, Ask<'_>)> = Vec::new();
    let mut quota: Vec<(usize, Ask<'_>)> = Vec::new();
    // What was looked at and has nothing left refuses the others, too.
    let mut refuses = false;
    let mut quota_looks = Vec::new();
    for (index, (case, ask)) in cases.iter().zip(asks).enumerate() {
        let (Some(ask), Some(limit)) = (*ask, case.limit) else { continue };
        if case.hits == 0 {
            let verdict = looked(decider.peek(&[ask]).await?);
            outcomes.note(&[(index, ask)], &verdict);
            match limit.quota_mode {
                true => quota_looks.push(verdict.is_allowed()),
                false => refuses |= !verdict.is_allowed(),
            }
        } else if case.is_negative {
            let snapshot: Snapshot = decider.refund(&ask).await?;
            outcomes.decisions[index] = Some(Decision::Allow(snapshot));
        } else if limit.quota_mode {
            quota.push((index, ask));
        } else {
            together.push((index, ask));
        }
    }
    let has_quota = !quota.is_empty() || !quota_looks.is_empty();
    let none_left = quota_spent(decider, &quota, &mut outcomes).await?;
    refuses |= has_quota && none_left && !quota_looks.contains(&true);
    if !together.is_empty() {
        let asks: Vec<Ask<'_>> = together.iter().map(|(_, ask)| *ask).collect();
        let verdict =
            if refuses { decider.peek(&asks).await? } else { decider.check(&asks).await? };
        outcomes.note(&together, &verdict);
        if refuses || !verdict.is_allowed() {
            count_reports(decider, cases, together.iter().chain(&quota)).await?;
            return Ok(outcomes);
        }
    } else if refuses {
        count_reports(decider, cases, quota.iter()).await?;
        return Ok(outcomes);
    }
    for (index, ask) in quota {
        let verdict = decider.check(&[ask]).await?;
        outcomes.note(&[(index, ask)], &verdict);
        if !verdict.is_allowed() {
            count_reports(decider, cases, [(index, ask)].iter()).await?;
        }
    }
    Ok(outcomes)
}

/// What a look at one limit says: over only if more than the limit is used. A store looks whether
/// there is a unit to take, and none is asked for here.
fn looked(verdict: Verdict) -> Verdict {
    let [decision] = verdict.decisions() else { return verdict };
    let snapshot = decision.snapshot();
    if !snapshot.is_exactly_spent() {
        return verdict;
    }
    let allowed = Verdict::one(Decision::Allow(snapshot));
    match verdict.store_failure() {
        Some(failure) => allowed.degraded_by(failure),
        None => allowed,
    }
}

/// Counts what the reports among descriptors tell that was denied, and so not taken.
async fn count_reports<'a>(
    decider: &Decider<'_>,
    cases: &[Case<'_>],
    denied: impl Iterator<Item = &'a (usize, Ask<'a>)>,
) -> Result<(), Refusal> {
    for (_, ask) in denied.filter(|(index, _)| cases[*index].is_report) {
        decider.count(ask).await?;
    }
    Ok(())
}

/// Looks at the limits in quota mode; whether none of them has anything left.
async fn quota_spent(
    decider: &Decider<'_>,
    quota: &[(usize, Ask<'_>)],
    outcomes: &mut Outcomes,
) -> Result<bool, Refusal> {
    let mut none_left = true;
    for (index, ask) in quota {
        let verdict = decider.peek(std::slice::from_ref(ask)).await?;
        none_left &= !verdict.is_allowed();
        outcomes.note(&[(*index, *ask)], &verdict);
    }
    Ok(none_left)
}

impl Outcomes {
    fn note(&mut self, asked: &[(usize, Ask<'_>)], verdict: &Verdict) {
        self.degraded |= verdict.is_degraded();
        for ((index, _), decision) in asked.iter().zip(verdict.decisions()) {
            self.decisions[*index] = Some(*decision);
        }
    }
}

impl Case<'_> {
    /// What to ask; `None` if nothing limits this descriptor.
    fn ask<'a>(&'a self, rules: &'a Rules) -> Option<Ask<'a>> {
        let limit = self.limit?;
        let policy = limit.policy.as_ref()?;
        let key = Key::new(self.digest.as_ref().unwrap_or(&self.key));
        let key = key.expect("a key holds its domain's separator, and a long one is its digest");
        let cost = Cost::new(self.hits).unwrap_or(Cost::ONE);
        let tally = self.series.as_ref().unwrap_or(&limit.tally);
        Some(rules.ask(Source::descriptor(limit, policy, &self.key, tally), key, cost))
    }
}
