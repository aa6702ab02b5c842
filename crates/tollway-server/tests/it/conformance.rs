/// Over Envoy's gRPC.
mod grpc;
/// Over HTTP.
mod http;
/// Over RESP.
mod resp;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tollway_core::fixed_window::Anchor;
use tollway_core::{Algorithm, Policy, ReservationTerms, Settlement, Timestamp, VirtualClock};
use tollway_memory::{Capacity, MemoryStore};
use tollway_server::config::Listen;
use tollway_server::{
    Backing, DescriptorValues, Domain, Endpoint, Limit, Lists, Metrics, Node, Rule, RuleOptions,
    Rules, Server, Service, Settings,
};
use tollway_testkit::conformance::{
    Capabilities, Failure, Figure, Operation, Outcome, Scenario, Subject, run, scenarios,
};

use crate::harness::{Running, running};

/// What RESP and HTTP can say: everything but the time to the next unit.
const CAPABILITIES: Capabilities = Capabilities {
    figures: &[
        Figure::Limit,
        Figure::Remaining,
        Figure::Retry,
        Figure::ResetAfter,
        Figure::DeniedBy,
        Figure::Expires,
    ],
    resolution: Duration::from_millis(1),
    ..Capabilities::FULL
};

/// The same where limits come with the call: they have no names by which to tell who denied.
const WITHOUT_NAMES: Capabilities = Capabilities {
    figures: &[
        Figure::Limit,
        Figure::Remaining,
        Figure::Retry,
        Figure::ResetAfter,
        Figure::Expires,
    ],
    enforces: can_come_with_a_call,
    ..CAPABILITIES
};

/// Whether a limit that comes with a call says all there is to say: the terms of reservations are
/// the usual ones.
fn can_come_with_a_call(policy: &Policy) -> bool {
    let is_concurrency = matches!(policy.algorithm(), Algorithm::Concurrency(_));
    is_concurrency || policy.reservation_terms() == ReservationTerms::default()
}

/// Whether all of a scenario's limits can come with the call.
fn can_all_come_with_a_call(scenario: &Scenario) -> bool {
    scenario.policies.iter().all(|policy| can_come_with_a_call(policy))
}

/// The limit of a policy as a call gives it.
fn limit(policy: &Policy) -> Value {
    let time = |time: Duration| format!("{}ns", time.as_nanos());
    match policy.algorithm() {
        Algorithm::Gcra(gcra) => json!({"quota": gcra.quota().to_string()}),
        Algorithm::LeakyBucket(bucket) => json!({
            "algorithm": "leaky-bucket",
            "size": bucket.size(),
            "drip_size": bucket.drip_size(),
            "drip_interval": time(bucket.interval()),
        }),
        Algorithm::SlidingWindow(window) => {
            let quota = format!("{}/{}", window.limit(), time(window.period()));
            match window.is_exact() {
                true => json!({"algorithm": "sliding-window", "quota": quota}),
                false => json!({
                    "algorithm": "sliding-window", "quota": quota, "buckets": window.buckets(),
                }),
            }
        }
        Algorithm::FixedWindow(window) => json!({
            "algorithm": "fixed-window",
            "quota": window.quota().to_string(),
            "anchor": match window.anchor() {
                Anchor::FirstRequest => "first-request",
                _ => "epoch",
            },
        }),
        Algorithm::Concurrency(limit) => json!({
            "algorithm": "concurrency", "limit": limit.limit(), "lease": time(limit.lease()),
        }),
        Algorithm::CalendarWindow(window) => json!({"quota": window.to_string()}),
        other => panic!("{other:?} has no form in a call"),
    }
}

/// The key of a charge whose limit comes with the call: two policies of the same numbers are told
/// apart by it alone.
fn key_of(policy: &Policy, key: &[u8]) -> String {
    format!("{} {}", policy.name(), String::from_utf8_lossy(key))
}

pub(crate) fn serve(policies: &[Arc<Policy>], clock: &Arc<VirtualClock>) -> Running {
    let metrics = Metrics::default();
    let mut root = Node::default();
    let rules = policies.iter().map(|policy| {
        assert!(root.add("policy", DescriptorValues::One(policy.name()), branch(policy)));
        Rule::new((**policy).clone(), metrics.tally("", policy.name()), RuleOptions::default())
    });
    let rules = rules.collect();
    let domains = vec![Domain::new("conformance".to_owned(), root)];
    let rules = Rules::new(rules, domains, Lists::default(), false);
    let memory = Backing::Memory(Arc::new(MemoryStore::new(Capacity::keys(10_000))));
    let service = Service::new(rules, metrics, memory, Arc::clone(clock) as _, Settings::default());
    let any = || Some(Endpoint::loopback(0));
    let listen = Listen { http: any(), grpc: any(), resp: any(), ..Listen::default() };
    running(Server::start(Arc::new(service), &listen, None, 1).unwrap())
}

fn branch(policy: &Policy) -> Node {
    let limit = Limit::new(Some(policy.clone()), Arc::default());
    let mut node = Node::default();
    assert!(node.add("key", DescriptorValues::Any, Node::new(Some(limit))));
    node
}

/// A front under test: a server made anew for each scenario, its clock in our hands.
struct Fronted<C> {
    clock: Arc<VirtualClock>,
    connect: fn(&Running) -> C,
    client: Option<(C, Running)>,
    reservations: Reservations,
    capabilities: Capabilities,
    /// Which scenarios the front can be asked, said once more and independently: what is skipped
    /// by mistake must not go unnoticed.
    plays: fn(&Scenario) -> bool,
}

/// What the front under test called the reservations, by their labels.
type Reservations = HashMap<String, String>;
type Answered = Result<Outcome, Failure>;

trait Client {
    fn ask(&mut self, operation: &Operation, reservations: &mut Reservations) -> Answered;
}

impl<C: Client> Fronted<C> {
    fn new(
        capabilities: Capabilities,
        plays: fn(&Scenario) -> bool,
        connect: fn(&Running) -> C,
    ) -> Self {
        let clock = Arc::default();
        Self { clock, connect, client: None, reservations: HashMap::new(), capabilities, plays }
    }

    fn play(mut self) {
        let scenarios = scenarios().unwrap();
        let report = run(&mut self, &scenarios);
        println!("{report}");
        assert!(report.passed(), "{report}");
        // The clock of a process does not go back; what it reads then is a reading that comes late.
        let is_set_back =
            |scenario: &Scenario| scenario.tags.iter().any(|tag| tag == "clock-steps-back");
        let expected = scenarios.iter().filter(|scenario| !is_set_back(scenario));
        let expected = expected.filter(|scenario| (self.plays)(scenario));
        let expected: Vec<&str> = expected.map(|scenario| scenario.name.as_str()).collect();
        assert_eq!(report.ran, expected);
    }
}

impl<C: Client> Subject for Fronted<C> {
    fn capabilities(&self) -> Capabilities {
        self.capabilities.clone()
    }

    fn begin(&mut self, policies: &[Arc<Policy>], base: Timestamp) -> Result<(), Failure> {
        self.clock.set(base);
        self.client = None;
        let running = serve(policies, &self.clock);
        self.client = Some(((self.connect)(&running), running));
        self.reservations.clear();
        Ok(())
    }

    fn apply(&mut self, at: Timestamp, operation: &Operation) -> Answered {
        self.clock.set(at);
        let (client, _) = self.client.as_mut().ok_or("not begun")?;
        client.ask(operation, &mut self.reservations)
    }
}

/// The name of a reservation; one that nobody was given if it was never made.
fn reservation(reservations: &Reservations, label: &str) -> String {
    reservations.get(label).cloned().unwrap_or_else(|| "0".repeat(32))
}

fn settled(known: bool) -> Outcome {
    Outcome::of_settlement(if known { Settlement::Settled } else { Settlement::Unknown })
}
