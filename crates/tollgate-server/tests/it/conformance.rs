use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tollgate_core::{Mode, Policy, Settlement, Timestamp, VirtualClock};
use tollgate_memory::{Capacity, MemoryStore};
use tollgate_server::config::Listen;
use tollgate_server::descriptors::{Domain, Limit, Node};
use tollgate_server::endpoint::Endpoint;
use tollgate_server::grpc::messages::{
    Entry, RateLimitDescriptor, RateLimitRequest, RateLimitResponse, UInt64Value,
};
use tollgate_server::metrics::Metrics;
use tollgate_server::rules::{Lists, Rule, RuleOptions, Rules};
use tollgate_server::server::Server;
use tollgate_server::service::{Backing, Service};
use tollgate_server::settings::Settings;
use tollgate_sim::conformance::{
    Ask, Capabilities, Failure, Figure, Figures, Operation, Outcome, Scenario, Subject, Verb, Wait,
    run, scenarios,
};

use crate::clients::Grpc;
use crate::harness::{Http, Running, running};

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

/// What Envoy's protocol can say. A negative charge is a refund; a look has no cost.
const RLS_CAPABILITIES: Capabilities = Capabilities {
    verbs: &[Verb::Check, Verb::Refund],
    figures: &[Figure::Remaining, Figure::ResetAfter],
    enforces: |policy| policy.algorithm().limit() <= u32::MAX as u64,
    counts: false,
    ..Capabilities::FULL
};

pub(crate) fn serve(policies: &[Arc<Policy>], clock: &Arc<VirtualClock>) -> Running {
    let metrics = Metrics::default();
    let mut root = Node::default();
    let rules = policies.iter().map(|policy| {
        assert!(root.add("policy", Some(policy.name()), branch(policy)));
        Rule::new((**policy).clone(), metrics.tally("", policy.name()), RuleOptions::default())
    });
    let rules = rules.collect();
    let domains = vec![Domain::new("conformance".to_owned(), root)];
    let rules = Rules::new(rules, domains, Lists::default(), false);
    let memory = Backing::Memory(Arc::new(MemoryStore::new(Capacity::keys(10_000))));
    let service = Service::new(rules, metrics, memory, Arc::clone(clock) as _, Settings::default());
    let any = || Some(Endpoint::loopback(0));
    let listen = Listen { http: any(), grpc: any(), resp: any(), public: false };
    running(Server::start(Arc::new(service), &listen, None, 1).unwrap())
}

fn branch(policy: &Policy) -> Node {
    let limit = Limit::new(Some(policy.clone()), Arc::default());
    let mut node = Node::default();
    assert!(node.add("key", None, Node::new(Some(limit))));
    node
}

/// A front under test: a server made anew for each scenario, its clock in our hands.
struct Fronted<C> {
    clock: Arc<VirtualClock>,
    connect: fn(&Running) -> C,
    client: Option<(C, Running)>,
    reservations: HashMap<String, String>,
    capabilities: Capabilities,
    /// Which scenarios the front can be asked, said once more and independently: what is skipped
    /// by mistake must not go unnoticed.
    plays: fn(&Scenario) -> bool,
}

trait Client {
    fn ask(
        &mut self,
        operation: &Operation,
        reservations: &mut HashMap<String, String>,
    ) -> Result<Outcome, Failure>;
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
        let expected = scenarios.iter().filter(|scenario| (self.plays)(scenario));
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

    fn apply(&mut self, at: Timestamp, operation: &Operation) -> Result<Outcome, Failure> {
        self.clock.set(at);
        let (client, _) = self.client.as_mut().ok_or("not begun")?;
        client.ask(operation, &mut self.reservations)
    }
}

/// The name of a reservation; one that nobody was given if it was never made.
fn reservation(reservations: &HashMap<String, String>, label: &str) -> String {
    reservations.get(label).cloned().unwrap_or_else(|| "0".repeat(32))
}

fn settled(known: bool) -> Outcome {
    Outcome::of_settlement(if known { Settlement::Settled } else { Settlement::Unknown })
}

struct OverHttp(Http);

impl OverHttp {
    fn post(&mut self, path: &str, body: &Value) -> Result<Value, Failure> {
        let answer = self.0.post(path, &body.to_string());
        let is_answer = matches!(answer.status, 200 | 429)
            || (answer.status == 404 && answer.body.contains("settled"));
        if is_answer { Ok(answer.json()) } else { Err(format!("{answer:?}").into()) }
    }
}

fn charges(asks: &[Ask]) -> Value {
    let charge = |ask: &Ask| {
        json!({
            "policy": ask.policy().name(),
            "key": String::from_utf8_lossy(ask.key()),
            "cost": ask.charge().cost.get(),
            "count": ask.charge().mode == Mode::Count,
        })
    };
    json!({"charges": asks.iter().map(charge).collect::<Vec<_>>()})
}

fn read_verdict(json: &Value) -> Outcome {
    let figures = |charge: &Value| Figures {
        limit: charge["limit"].as_u64(),
        remaining: charge["remaining"].as_u64(),
        retry: Some(match (&charge["retry_after_ms"], charge["retry"].as_str()) {
            (_, Some("never")) => Wait::Never,
            (Value::Number(millis), _) => {
                Wait::After(Duration::from_millis(millis.as_u64().unwrap()))
            }
            _ => Wait::No,
        }),
        reset_after: charge["reset_after_ms"].as_u64().map(Duration::from_millis),
        next_after: None,
    };
    Outcome {
        allowed: json["allowed"].as_bool(),
        denied_by: json["denied_by"].as_str().map(str::to_owned),
        figures: json["charges"].as_array().unwrap().iter().map(figures).collect(),
        expires_after: json["expires_after_ms"].as_u64().map(Duration::from_millis),
        ..Outcome::default()
    }
}

impl Client for OverHttp {
    fn ask(
        &mut self,
        operation: &Operation,
        reservations: &mut HashMap<String, String>,
    ) -> Result<Outcome, Failure> {
        Ok(match operation {
            Operation::Check(asks) => read_verdict(&self.post("/v1/check", &charges(asks))?),
            Operation::Peek(asks) => read_verdict(&self.post("/v1/peek", &charges(asks))?),
            Operation::Take(ask) => {
                let json = self.post("/v1/take", &charges(std::slice::from_ref(ask)))?;
                Outcome { granted: json["granted"].as_u64(), ..read_verdict(&json) }
            }
            Operation::Refund(ask) => {
                let json = self.post("/v1/refund", &charges(std::slice::from_ref(ask)))?;
                Outcome { allowed: None, ..read_verdict(&json) }
            }
            Operation::Reset(ask) => {
                self.post("/v1/reset", &charges(std::slice::from_ref(ask)))?;
                Outcome::default()
            }
            Operation::Reserve { label, asks } => {
                let json = self.post("/v1/reserve", &charges(asks))?;
                if let Some(name) = json["reservation"].as_str() {
                    reservations.insert(label.clone(), name.to_owned());
                }
                read_verdict(&json)
            }
            Operation::Commit { label, costs } => {
                let name = reservation(reservations, label);
                let json =
                    self.post("/v1/commit", &json!({"reservation": name, "costs": costs}))?;
                settled(json["settled"] == true)
            }
            Operation::Cancel { label } => {
                let name = reservation(reservations, label);
                settled(self.post("/v1/cancel", &json!({"reservation": name}))?["settled"] == true)
            }
        })
    }
}

struct OverResp(redis::Connection);

impl OverResp {
    fn send(&mut self, name: &str, asks: &[Ask]) -> Result<redis::Value, Failure> {
        let mut command = redis::cmd(name);
        for ask in asks {
            command.arg(ask.policy().name()).arg(ask.key());
            command.arg("COST").arg(ask.charge().cost.get());
            if ask.charge().mode == Mode::Count {
                command.arg("COUNT");
            }
        }
        Ok(command.query(&mut self.0)?)
    }
}

type RespCharge = (String, bool, u64, u64, i64, u64);

fn resp_figures(charges: Vec<RespCharge>) -> Vec<Figures> {
    let figures = |(_, _, limit, remaining, retry_ms, reset_ms): RespCharge| Figures {
        limit: Some(limit),
        remaining: Some(remaining),
        retry: Some(match retry_ms {
            -1 => Wait::No,
            -2 => Wait::Never,
            millis => Wait::After(Duration::from_millis(millis as u64)),
        }),
        reset_after: Some(Duration::from_millis(reset_ms)),
        next_after: None,
    };
    charges.into_iter().map(figures).collect()
}

fn resp_verdict(value: redis::Value) -> Result<Outcome, Failure> {
    let (allowed, denied_by, _, charges): (bool, Option<String>, bool, Vec<RespCharge>) =
        redis::from_redis_value(value)?;
    let figures = resp_figures(charges);
    Ok(Outcome { allowed: Some(allowed), denied_by, figures, ..Outcome::default() })
}

impl Client for OverResp {
    fn ask(
        &mut self,
        operation: &Operation,
        reservations: &mut HashMap<String, String>,
    ) -> Result<Outcome, Failure> {
        Ok(match operation {
            Operation::Check(asks) => resp_verdict(self.send("TOLL.CHECK", asks)?)?,
            Operation::Peek(asks) => resp_verdict(self.send("TOLL.PEEK", asks)?)?,
            Operation::Take(ask) => {
                let value = self.send("TOLL.TAKE", std::slice::from_ref(ask))?;
                let (granted, charge): (u64, RespCharge) = redis::from_redis_value(value)?;
                let allowed = Some(charge.1);
                let denied_by = (!charge.1).then(|| charge.0.clone());
                let figures = resp_figures(vec![charge]);
                let granted = Some(granted);
                Outcome { allowed, denied_by, granted, figures, ..Outcome::default() }
            }
            Operation::Refund(ask) => {
                let value = self.send("TOLL.REFUND", std::slice::from_ref(ask))?;
                let (limit, remaining, reset_ms): (u64, u64, u64) = redis::from_redis_value(value)?;
                let figures = Figures {
                    limit: Some(limit),
                    remaining: Some(remaining),
                    reset_after: Some(Duration::from_millis(reset_ms)),
                    ..Figures::default()
                };
                Outcome { figures: vec![figures], ..Outcome::default() }
            }
            Operation::Reset(ask) => {
                let mut command = redis::cmd("TOLL.RESET");
                command.arg(ask.policy().name()).arg(ask.key());
                command.query::<()>(&mut self.0)?;
                Outcome::default()
            }
            Operation::Reserve { label, asks } => {
                let value = self.send("TOLL.RESERVE", asks)?;
                let redis::Value::Array(mut fields) = value else { return Err("no array".into()) };
                let expires_ms: Option<u64> = redis::from_redis_value(fields.remove(5))?;
                let name: Option<String> = redis::from_redis_value(fields.remove(4))?;
                if let Some(name) = name {
                    reservations.insert(label.clone(), name);
                }
                let outcome = resp_verdict(redis::Value::Array(fields))?;
                Outcome { expires_after: expires_ms.map(Duration::from_millis), ..outcome }
            }
            Operation::Commit { label, costs } => {
                let mut command = redis::cmd("TOLL.COMMIT");
                command.arg(reservation(reservations, label));
                costs.iter().for_each(|cost| {
                    command.arg(*cost);
                });
                settled(command.query(&mut self.0)?)
            }
            Operation::Cancel { label } => {
                let name = reservation(reservations, label);
                settled(redis::cmd("TOLL.CANCEL").arg(name).query(&mut self.0)?)
            }
        })
    }
}

impl Client for Grpc {
    fn ask(
        &mut self,
        operation: &Operation,
        _: &mut HashMap<String, String>,
    ) -> Result<Outcome, Failure> {
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
            hits_addend: Some(UInt64Value { value: ask.charge().cost.get() }),
            is_negative_hits,
        };
        let request = RateLimitRequest {
            domain: "conformance".to_owned(),
            descriptors: asks.iter().map(descriptor).collect(),
            hits_addend: 0,
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

/// Whether Envoy's protocol can ask all of it: checks and refunds, enforced, of limits in 32 bits.
fn is_for_rls(scenario: &Scenario) -> bool {
    let fits = |policy: &Arc<Policy>| u32::try_from(policy.algorithm().limit()).is_ok();
    let is_enforced = |asks: &[Ask]| asks.iter().all(|ask| ask.charge().mode == Mode::Enforce);
    scenario.policies.iter().all(fits)
        && scenario.steps.iter().all(|step| match &step.operation {
            Operation::Check(asks) => is_enforced(asks),
            Operation::Refund(ask) => is_enforced(std::slice::from_ref(ask)),
            _ => false,
        })
}

#[test]
fn http_answers_as_the_core_does() {
    let connect = |running: &Running| OverHttp(Http::connect(running.http));
    Fronted::new(CAPABILITIES, |_| true, connect).play();
}

#[test]
fn resp_answers_as_the_core_does() {
    let connect = |running: &Running| {
        let client = redis::Client::open(format!("redis://{}", running.resp)).unwrap();
        OverResp(client.get_connection().unwrap())
    };
    Fronted::new(CAPABILITIES, |_| true, connect).play();
}

#[test]
fn grpc_answers_as_the_core_does() {
    let connect = |running: &Running| Grpc::connect(running.grpc);
    Fronted::new(RLS_CAPABILITIES, is_for_rls, connect).play();
}
