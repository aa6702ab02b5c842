use std::sync::Arc;
use std::time::Duration;

use tollway_core::{Mode, Policy};
use tollway_server::testing::messages::{
    Entry, RateLimitDescriptor, RateLimitRequest, RateLimitResponse,
};
use tollway_testkit::conformance::{
    Ask, Capabilities, Figure, Figures, Operation, Outcome, Scenario, Verb,
};

use super::{Answered, Client, Fronted, Reservations};
use crate::clients::Grpc;
use crate::harness::Running;

/// What Envoy's protocol can say. A negative charge is a refund; a look has no cost.
const RLS_CAPABILITIES: Capabilities = Capabilities {
    verbs: &[Verb::Check, Verb::Refund],
    figures: &[Figure::Remaining, Figure::ResetAfter],
    enforces: |policy| policy.algorithm().limit() <= u32::MAX as u64,
    counts: false,
    // What descriptors name their own amounts for is a report, and never refused.
    costs_differ: false,
    ..Capabilities::FULL
};

impl Client for Grpc {
    fn ask(&mut self, operation: &Operation, _: &mut Reservations) -> Answered {
        let (asks, is_negative_hits) = match operation {
            Operation::Check(asks) => (&asks[..], false),
            Operation::Refund(ask) => (std::slice::from_ref(ask), true),
            _ => return Err("not over gRPC".into()),
        };
        let entry = |key: &str, value: &str| Entry { key: key.to_owned(), value: value.to_owned() };
        let descriptor = |ask: &Ask| RateLimitDescriptor {
            entries: vec![
                entry("policy", ask.policy().name()),
                entry("key", &String::from_utf8_lossy(ask.key())),
            ],
            limit: None,
            // Hits of a descriptor's own are a report, which is counted whatever is left.
            hits_addend: None,
            is_negative_hits,
        };
        let request = RateLimitRequest {
            domain: "conformance".to_owned(),
            descriptors: asks.iter().map(descriptor).collect(),
            hits_addend: asks.first().map_or(0, |ask| u32::try_from(cost(ask)).unwrap_or(u32::MAX)),
        };
        let response: RateLimitResponse = self.should_rate_limit(request)?;
        let figures = response.statuses.iter().map(|status| Figures {
            remaining: Some(u64::from(status.limit_remaining)),
            reset_after: status
                .duration_until_reset
                .map(|reset| Duration::new(reset.seconds as u64, reset.nanos as u32)),
            ..Figures::default()
        });
        let allowed = (!is_negative_hits).then_some(response.overall_code == 1);
        Ok(Outcome { allowed, figures: figures.collect(), ..Outcome::default() })
    }
}

fn cost(ask: &Ask) -> u64 {
    ask.charge().cost.get()
}

/// Whether Envoy's protocol can ask all of it: checks and refunds, enforced, of limits in 32 bits,
/// at one cost for all of a request.
fn is_for_rls(scenario: &Scenario) -> bool {
    let fits = |policy: &Arc<Policy>| u32::try_from(policy.algorithm().limit()).is_ok();
    let is_enforced = |asks: &[Ask]| {
        let is_alike = |ask: &Ask| cost(ask) == cost(&asks[0]);
        asks.iter().all(|ask| ask.charge().mode == Mode::Enforce && is_alike(ask))
    };
    scenario.policies.iter().all(fits)
        && scenario.steps.iter().all(|step| match &step.operation {
            Operation::Check(asks) => is_enforced(asks),
            Operation::Refund(ask) => is_enforced(std::slice::from_ref(ask)),
            _ => false,
        })
}

#[test]
fn grpc_answers_as_the_core_does() {
    let connect = |running: &Running| Grpc::connect(running.grpc);
    Fronted::new(RLS_CAPABILITIES, is_for_rls, connect).play();
}
