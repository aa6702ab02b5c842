//! The response: one status per descriptor, in order, and what clients of the proxy are told.

use std::time::Duration;

use serde_json::{Map, Value, json};
use tollway_core::fields::{Denied, Problem, Report, Standing};
use tollway_core::{Decision, Policy, Retry};

use super::limits::{Unit, unit_and_requests};
use super::{Case, Outcomes, Request};
use crate::decide::Decider;
use crate::fallback::Fallback;
use crate::rules::Ask;

/// The response to a request.
#[derive(Debug, Default)]
pub(crate) struct Response {
    /// Whether the request is over a limit.
    pub is_over: bool,
    /// One status per descriptor, in order.
    pub statuses: Vec<Status>,
    /// Header fields for the client of the proxy.
    pub fields: Vec<(&'static str, String)>,
    /// A body for the client, if the request is over a limit.
    pub body: Option<String>,
    /// What was asked, and what the rules tell the proxy of the descriptors that matched and
    /// passed, if they tell anything.
    pub metadata: Map<String, Value>,
}

/// What became of one descriptor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Status {
    /// Whether it is over its limit.
    pub is_over: bool,
    /// Its limit: units, unit, name; `None` if it has none.
    pub limit: Option<(u32, Unit, String)>,
    /// Units left; [`u32::MAX`] if unlimited.
    pub remaining: u32,
    /// When everything is back; `None` if it has no limit.
    pub reset_after: Option<Duration>,
}

pub(super) fn assemble(
    decider: &Decider<'_>,
    request: &Request<'_>,
    cases: &[Case<'_>],
    asks: &[Option<Ask<'_>>],
    outcomes: &Outcomes,
) -> Response {
    let statuses: Vec<Status> = cases
        .iter()
        .zip(asks)
        .zip(&outcomes.decisions)
        .map(|((case, ask), decision)| status(case, ask.as_ref(), *decision))
        .collect();
    let is_over = is_over(cases, &statuses);
    let passed = cases.iter().zip(&statuses).filter(|(_, status)| !status.is_over);
    let mut told = Map::new();
    for limit in passed.filter_map(|(case, _)| case.limit) {
        merge(&mut told, &limit.metadata);
    }
    let metadata = if told.is_empty() { told } else { metadata(request, told) };
    let mut response = Response { is_over, statuses, metadata, ..Response::default() };
    tell_client(decider, cases, asks, outcomes, &mut response);
    response
}

/// Adds what is not there yet; tables that both have become one.
fn merge(into: &mut Map<String, Value>, from: &Map<String, Value>) {
    for (name, value) in from {
        match (into.get_mut(name), value) {
            (None, value) => drop(into.insert(name.clone(), value.clone())),
            (Some(Value::Object(known)), Value::Object(more)) => merge(known, more),
            // The first descriptor that says it is believed.
            (Some(_), _) => {}
        }
    }
}

/// The metadata of rules, in the shape that envoyproxy/ratelimit gives it.
fn metadata(request: &Request<'_>, told: Map<String, Value>) -> Map<String, Value> {
    let descriptors = request.descriptors.iter().map(|descriptor| {
        let entries = descriptor.entries.iter().map(|(key, value)| format!("{key}={value}"));
        let mut shown = json!({"entries": entries.collect::<Vec<_>>()});
        if let Some(hits) = descriptor.hits {
            shown["hitsAddend"] = hits.into();
        }
        shown
    });
    let mut metadata = Map::new();
    metadata.insert("domain".into(), request.domain.into());
    metadata.insert("descriptors".into(), descriptors.collect());
    if request.hits_addend > 0 {
        metadata.insert("hitsAddend".into(), request.hits_addend.into());
    }
    metadata.insert("metadata".into(), told.into());
    metadata
}

/// Over if a limit outside quota mode is, or if all of those in quota mode are.
fn is_over(cases: &[Case<'_>], statuses: &[Status]) -> bool {
    let (mut enforced_over, mut quota, mut quota_over) = (false, 0, 0);
    for (case, status) in cases.iter().zip(statuses) {
        match case.limit {
            Some(limit) if limit.quota_mode => {
                quota += 1;
                quota_over += usize::from(status.is_over);
            }
            _ => enforced_over |= status.is_over,
        }
    }
    enforced_over || (quota > 0 && quota == quota_over)
}

fn status(case: &Case<'_>, ask: Option<&Ask<'_>>, decision: Option<Decision>) -> Status {
    let Some(limit) = case.limit else { return Status::default() };
    let (Some(ask), Some(decision)) = (ask, decision) else {
        return Status { remaining: u32::MAX, ..Status::default() };
    };
    let policy = ask.charge.policy;
    let (mut requests, unit) = unit_and_requests(policy);
    if limit.deny_all {
        requests = 0;
    }
    let snapshot = decision.snapshot();
    let name = limit.name.clone().unwrap_or_else(|| policy.name().to_owned());
    Status {
        is_over: !decision.is_allowed(),
        limit: Some((requests, unit, name)),
        remaining: u32::try_from(snapshot.remaining()).unwrap_or(u32::MAX),
        reset_after: Some(snapshot.reset_after()),
    }
}

/// Adds the header fields, and the problem if the request is over. What is on trial is not told.
fn tell_client(
    decider: &Decider<'_>,
    cases: &[Case<'_>],
    asks: &[Option<Ask<'_>>],
    outcomes: &Outcomes,
    response: &mut Response,
) {
    let all_shadow = decider.rules.is_shadow();
    let told: Vec<(&Policy, Decision)> = cases
        .iter()
        .zip(asks)
        .zip(&outcomes.decisions)
        .filter(|((case, _), _)| case.limit.is_some_and(|limit| !limit.shadow && !all_shadow))
        .filter_map(|((_, ask), decision)| Some((ask.as_ref()?.charge.policy, (*decision)?)))
        .collect();
    let standings: Vec<Standing<'_>> =
        told.iter().map(|(policy, decision)| Standing::new(policy, decision.snapshot())).collect();
    let denials = told.iter().enumerate().filter_map(|(at, (_, d))| Some((at, d.retry()?)));
    let longest = denials.max_by_key(|(_, retry)| *retry).filter(|_| response.is_over);
    let denied = longest.map(|(by, retry)| Denied { by, retry: Retry::after(retry) });
    let epoch = Duration::from_nanos(decider.now.as_nanos());
    let report = Report { standings: &standings, denied, epoch };
    decider.settings.dialect.emit(&report, &mut String::new(), |field, value| {
        response.fields.push((field.name(), value.to_owned()));
    });
    if response.is_over {
        let violated = || told.iter().filter(|(_, decision)| !decision.is_allowed());
        let names = violated().map(|(policy, _)| policy.name());
        let first = violated().next().filter(|_| outcomes.degraded);
        response.body =
            Some(match first.map(|(policy, decision)| Fallback::by(policy, decision)) {
                None => Problem::QuotaExceeded.body(429, names),
                Some(fallback) => {
                    response.fields.push((Fallback::FIELD, fallback.name().to_owned()));
                    let (problem, detail) = fallback.problem();
                    problem.detailed(429, names, detail)
                }
            });
        response.fields.push(("Content-Type", Problem::CONTENT_TYPE.to_owned()));
    }
}
