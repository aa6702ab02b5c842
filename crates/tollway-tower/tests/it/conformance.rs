use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::Request;
use tollway_core::fields::{Lines, retry_after, seconds_up, sf};
use tollway_core::{
    Algorithm, Clock, Decision, Policy, Store, StoreLimiter, Timestamp, VirtualClock,
};
use tollway_testkit::conformance::{
    Ask, Capabilities, Failure, Figure, Figures, OnStore, Operation, Outcome, Subject, Wait, run,
    scenarios,
};
use tollway_tower::keys::from_fn;
use tollway_tower::{Head, Limit, RateLimitLayer};

use crate::world::{START, call, memory, ok};

/// The charges of a step travel with the request; each limit picks its own from it.
#[derive(Clone)]
struct Asked(Vec<Ask>);

type SharedStore = Rc<RefCell<Arc<dyn Store>>>;

/// The layer, asked by requests and heard by its header fields. What a request cannot ask (peeks,
/// refunds, reservations) is asked of the store behind it, as an operator would beside the traffic.
struct OnLayer {
    runtime: tokio::runtime::Runtime,
    clock: Arc<VirtualClock>,
    limiter: StoreLimiter,
    store: SharedStore,
    beside: Box<dyn Subject>,
}

impl OnLayer {
    fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let clock = Arc::new(VirtualClock::at(START));
        let limiter = StoreLimiter::new([], memory(), clock.clone());
        let store: SharedStore = Rc::new(RefCell::new(memory()));
        let same = Rc::clone(&store);
        let beside = Box::new(OnStore::new(move || Arc::clone(&*same.borrow())));
        Self { runtime, clock, limiter, store, beside }
    }

    /// One request through a layer whose limits are those asked, in the order asked.
    fn respond(&self, asks: &[Ask], seen: Arc<Mutex<Vec<Decision>>>) -> http::Response<String> {
        let builder = RateLimitLayer::builder(self.limiter.clone());
        let builder = builder.observe(move |observation| {
            seen.lock().expect("not poisoned").push(observation.decision);
        });
        let asked = |head: &Head<'_>, index: usize| {
            head.extensions.get::<Asked>().and_then(|asked| asked.0.get(index).cloned())
        };
        let builder = asks.iter().enumerate().fold(builder, |builder, (index, ask)| {
            let key = from_fn(move |head: &Head<'_>| Some(asked(head, index)?.key().to_vec()));
            let cost = move |head: &Head<'_>| asked(head, index).map_or(0, |ask| ask.cost().get());
            builder.limit(Limit::new(ask.policy().name(), key).cost(cost))
        });
        let request = Request::get("/").extension(Asked(asks.to_vec())).body(String::new());
        let request = request.expect("a request");
        self.runtime.block_on(call(&ok(builder), request))
    }
}

/// Header fields say whole seconds, and neither a reset nor a limit; a permit ends with its
/// request.
impl Subject for OnLayer {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            figures: &[Figure::Remaining, Figure::Retry, Figure::NextAfter, Figure::DeniedBy],
            enforces: |policy| !matches!(policy.algorithm(), Algorithm::Concurrency(_)),
            charges_max: 8,
            counts: false,
            resolution: Duration::from_secs(1),
            ..Capabilities::FULL
        }
    }

    fn begin(&mut self, policies: &[Arc<Policy>], base: Timestamp) -> Result<(), Failure> {
        self.clock.set(base);
        let clock: Arc<dyn Clock> = self.clock.clone();
        *self.store.borrow_mut() = memory();
        self.beside.begin(policies, base)?;
        let policies = policies.iter().map(|policy| Policy::clone(policy));
        self.limiter = StoreLimiter::new(policies, Arc::clone(&*self.store.borrow()), clock);
        Ok(())
    }

    fn apply(&mut self, at: Timestamp, operation: &Operation) -> Result<Outcome, Failure> {
        self.clock.set(at);
        let Operation::Check(asks) = operation else {
            return self.beside.apply(at, operation).map(in_whole_seconds);
        };
        let decisions = Arc::new(Mutex::new(Vec::new()));
        let response = self.respond(asks, Arc::clone(&decisions));
        let decisions = decisions.lock().expect("not poisoned").clone();
        let allowed = response.status() == 200;
        let lines: Lines<'_> = response
            .headers()
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_bytes()))
            .collect();
        // All charges wait for the one that waits longest, which is what a client is told.
        let longest = decisions.iter().filter_map(|decision| decision.retry()).max();
        let told = retry_after(&lines, Duration::ZERO);
        if told != longest.and_then(|retry| retry.after()).map(up) {
            return Err(format!("Retry-After says {told:?}, the decisions {longest:?}").into());
        }
        let figures = figures(asks, &decisions, &standings(&lines))?;
        Ok(in_whole_seconds(Outcome {
            allowed: Some(allowed),
            denied_by: violated(response.body()).into_iter().next(),
            figures,
            ..Outcome::default()
        }))
    }
}

/// What the fields say about one policy: what remains, and when there is more.
type Standing = (Option<u64>, Duration);

/// The figures of each charge: told by the fields where it is the only one of its policy. Several
/// share one item there, which must be that of one of them; theirs are what was observed.
fn figures(
    asks: &[Ask],
    decisions: &[Decision],
    told: &[(String, Standing)],
) -> Result<Vec<Figures>, Failure> {
    let observed = |decision: &Decision| {
        let snapshot = decision.snapshot();
        (Some(snapshot.remaining()), up(snapshot.next_after()))
    };
    let mut names: Vec<&str> = asks.iter().map(|ask| ask.policy().name()).collect();
    let figures = names.iter().zip(decisions).map(|(name, decision)| {
        let sharing = names.iter().zip(decisions).filter(|(other, _)| *other == name);
        let sharing: Vec<_> = sharing.map(|(_, decision)| observed(decision)).collect();
        let standing = told.iter().find(|(policy, _)| policy == name).map(|(_, told)| *told);
        let Some(standing) = standing.filter(|told| sharing.len() == 1 || sharing.contains(told))
        else {
            return Err(format!("{name}: RateLimit says {standing:?}, decided: {sharing:?}").into());
        };
        let (remaining, more) = if sharing.len() == 1 { standing } else { observed(decision) };
        let retry = Some(decision.retry().into());
        Ok(Figures { remaining, retry, next_after: Some(more), ..Figures::default() })
    });
    let figures = figures.collect();
    names.sort_unstable();
    names.dedup();
    if told.len() != names.len() {
        return Err(format!("RateLimit does not name each of {names:?} once").into());
    }
    figures
}

/// What remains and when there is more, by policy.
fn standings(lines: &Lines<'_>) -> Vec<(String, Standing)> {
    let list = lines.joined("ratelimit").and_then(|text| sf::list(&text)).expect("a List");
    let number = |params: &sf::Params, key: &str| match sf::param(params, key) {
        Some(&sf::Bare::Integer(number)) => u64::try_from(number).ok(),
        _ => None,
    };
    let standing = |member: &sf::Member| match member {
        sf::Member::Item(sf::Bare::String(name), params) => {
            let more = Duration::from_secs(number(params, "t").unwrap_or_default());
            (name.clone(), (number(params, "r"), more))
        }
        other => panic!("{other:?} is not a named Item"),
    };
    list.iter().map(standing).collect()
}

fn up(wait: Duration) -> Duration {
    Duration::from_secs(seconds_up(wait))
}

/// What the store says to the nanosecond, as coarse as the header fields say it.
fn in_whole_seconds(outcome: Outcome) -> Outcome {
    let figures = outcome.figures.into_iter().map(|figures| Figures {
        retry: figures.retry.map(|retry| match retry {
            Wait::After(wait) => Wait::After(up(wait)),
            other => other,
        }),
        next_after: figures.next_after.map(up),
        ..figures
    });
    let expires_after = outcome.expires_after.map(up);
    Outcome { figures: figures.collect(), expires_after, ..outcome }
}

fn violated(body: &str) -> Vec<String> {
    let problem: serde_json::Value = serde_json::from_str(body).unwrap_or_default();
    let names = problem["violated-policies"].as_array().cloned().unwrap_or_default();
    names.iter().filter_map(|name| name.as_str().map(str::to_owned)).collect()
}

#[test]
fn the_layer_answers_every_scenario_it_can_express() {
    let scenarios = scenarios().expect("the file reads");
    let report = run(&mut OnLayer::new(), &scenarios);
    assert!(report.passed(), "{report}");
    // A clock that is set back is a server's, never this process's. The rest needs counting without
    // enforcing, or permits that outlive their request.
    let reasons = report.skipped.iter().map(|(_, reason)| reason.as_str());
    let cannot: Vec<_> = reasons.filter(|reason| *reason != "declines clock-steps-back").collect();
    let is_known =
        |reason: &&str| reason.starts_with("cannot enforce") || reason.starts_with("cannot count");
    assert!(cannot.iter().all(is_known), "{report}");
    assert!(report.ran.len() > 4 * cannot.len(), "{report}");
}
