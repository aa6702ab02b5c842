use std::collections::HashMap;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Runtime;
use tollway_core::shares::{Owner, Percent};
use tollway_core::{
    Charge, Cost, ErrorKind, Key, OnStoreError, Policy, ReservationId, Settlement, Store,
    StoreLimiter, Timestamp, VirtualClock,
};
use tollway_redis::{RemoteStore, Settings};
use tollway_testkit::conformance::{
    Ask, Failure, Figures, Operation, Outcome, Subject, run, scenarios,
};
use tollway_testkit::servers::{Engine, Server};
use tollway_tower::RateLimitLayer;
use tollway_tower::keys::Everyone;

use crate::conformance::serve;
use crate::harness::{Http, PATIENCE, Running, eventually, start};

const POLICY: &str = "[[policies]]\nname = \"api\"\nquota = \"5/1m burst 5\"\n";
const AT: Timestamp = Timestamp::MIN;

fn settings() -> Settings {
    Settings { timeout: PATIENCE, ..Settings::default() }
}

async fn connect(running: &Running) -> RemoteStore {
    RemoteStore::connect(&format!("tollway://{}", running.resp), settings()).await.unwrap()
}

fn policy(name: &str, on_store_error: OnStoreError) -> Policy {
    Policy::parse(name, "5/1m burst 5").unwrap().on_store_error(on_store_error)
}

fn shared_by_two() -> Policy {
    let floor = |key: &str| Owner {
        key: key.into(),
        parent: None,
        floor: Percent::from_hundredths(5_000),
        ceiling: None,
    };
    let owners = vec![floor("a"), floor("b")];
    let reclaim = Some(Duration::from_secs(20));
    Policy::shared("llm", "60/1m".parse().unwrap(), reclaim, owners).unwrap()
}

fn charge<'a>(policy: &'a Policy, key: &'a str) -> Charge<'a> {
    Charge::new(policy, Key::new(key).unwrap())
}

/// The store under test: a service made anew for each scenario, its clock in our hands.
struct Remote {
    clock: Arc<VirtualClock>,
    runtime: Runtime,
    service: Option<(RemoteStore, Running)>,
    reservations: HashMap<String, ReservationId>,
}

impl Subject for Remote {
    fn begin(&mut self, policies: &[Arc<Policy>], base: Timestamp) -> Result<(), Failure> {
        self.clock.set(base);
        self.service = None;
        let running = serve(policies, &self.clock);
        let store = self.runtime.block_on(connect(&running));
        self.service = Some((store, running));
        self.reservations.clear();
        Ok(())
    }

    fn apply(&mut self, at: Timestamp, operation: &Operation) -> Result<Outcome, Failure> {
        self.clock.set(at);
        let (store, _) = self.service.as_ref().ok_or("not begun")?;
        // What the caller's clock says must not matter.
        let (asked, operations) = (at.after(Duration::from_secs(7)), &mut self.reservations);
        self.runtime.block_on(apply(store, asked, operation, operations))
    }
}

fn charges(asks: &[Ask]) -> Vec<Charge<'_>> {
    asks.iter().map(Ask::charge).collect()
}

async fn apply(
    store: &RemoteStore,
    at: Timestamp,
    operation: &Operation,
    reservations: &mut HashMap<String, ReservationId>,
) -> Result<Outcome, Failure> {
    let known = |label: &str| reservations.get(label).copied().unwrap_or(ReservationId(0));
    Ok(match operation {
        Operation::Check(asks) => {
            Outcome::of_verdict(&store.check(&charges(asks), at).await?, operation)
        }
        Operation::Peek(asks) => {
            Outcome::of_verdict(&store.peek(&charges(asks), at).await?, operation)
        }
        Operation::Take(ask) => {
            let grant = store.take(&ask.charge(), at).await?;
            let allowed = grant.decision.is_allowed();
            Outcome {
                allowed: Some(allowed),
                denied_by: (!allowed).then(|| ask.policy().name().to_owned()),
                granted: Some(grant.granted),
                figures: vec![Figures::from(&grant.decision)],
                ..Outcome::default()
            }
        }
        Operation::Refund(ask) => Outcome::of_snapshot(store.refund(&ask.charge(), at).await?),
        Operation::Reset(ask) => {
            store.reset(&ask.charge(), at).await?;
            Outcome::default()
        }
        Operation::Reserve { label, asks } => {
            let reserved = store.reserve(&charges(asks), at).await?;
            let outcome = Outcome::of_verdict(&reserved.verdict, operation);
            let expires_after = reserved.reservation.map(|reservation| reservation.expires_after);
            if let Some(reservation) = reserved.reservation {
                reservations.insert(label.clone(), reservation.id);
            }
            Outcome { expires_after, ..outcome }
        }
        Operation::Commit { label, costs } => {
            Outcome::of_settlement(store.commit(known(label), costs, at).await?)
        }
        Operation::Cancel { label } => {
            Outcome::of_settlement(store.cancel(known(label), at).await?)
        }
    })
}

#[test]
fn a_remote_service_is_a_store_that_answers_as_the_core_does() {
    let runtime = Runtime::new().unwrap();
    let (clock, service, reservations) = Default::default();
    let mut remote = Remote { clock, runtime, service, reservations };
    let scenarios = scenarios().unwrap();
    let report = run(&mut remote, &scenarios);
    assert!(report.passed(), "{report}");
    let is_set_back = |tag: &String| tag == "clock-steps-back";
    let declined =
        scenarios.iter().filter(|scenario| scenario.tags.iter().any(is_set_back)).count();
    assert_eq!(report.ran.len(), scenarios.len() - declined, "{report}");
}

#[tokio::test]
async fn a_remote_store_names_the_owner_that_denied() {
    let running = start(
        "[[policies]]\nname = \"llm\"\nalgorithm = \"shares\"\nquota = \"60/1m\"\n\
         reclaim = \"20s\"\nowners = [{ key = \"a\", floor = \"50%\" },\n\
         { key = \"b\", floor = \"50%\" }]\n",
    );
    let store = connect(&running).await;
    let llm = shared_by_two();
    let all_lent = charge(&llm, "somebody").cost(Cost::new(40).unwrap());
    let own = charge(&llm, "b").cost(Cost::new(10).unwrap());
    for charge in [&all_lent, &own] {
        assert!(store.check(&[*charge], AT).await.unwrap().is_allowed());
    }
    let denied = store.check(&[charge(&llm, "b")], AT).await.unwrap();
    assert_eq!(denied.denied_by_owner(), Some(1));
    let reserved = store.reserve(&[charge(&llm, "b")], AT).await.unwrap();
    assert_eq!(reserved.verdict.denied_by_owner(), Some(1));
    let denied = store.check(&[charge(&llm, "somebody")], AT).await.unwrap();
    assert_eq!((denied.denied_by(), denied.denied_by_owner()), (Some(0), None), "the quota");
}

#[tokio::test]
async fn a_tree_that_only_the_service_knows_is_asked_by_name() {
    let running = start(
        "[[policies]]\nname = \"llm\"\nalgorithm = \"shares\"\nquota = \"60/1m\"\n\
         owners = [{ key = \"b\", floor = \"50%\" }]\n",
    );
    let store = connect(&running).await;
    let unknown_here = Policy::parse("llm", "60/1m").unwrap();
    let more_than_ever = charge(&unknown_here, "b").cost(Cost::new(61).unwrap());
    let denied = store.check(&[more_than_ever], AT).await.unwrap();
    assert_eq!((denied.denied_by(), denied.denied_by_owner()), (Some(0), None));
}

#[tokio::test]
async fn an_unknown_policy_is_a_mistake_and_never_a_free_pass() {
    let running = start(POLICY);
    let store = connect(&running).await;
    let lenient = policy("nope", OnStoreError::Allow { at_most: Duration::MAX });
    let known = policy("api", OnStoreError::Deny);
    for charges in [vec![charge(&lenient, "k")], vec![charge(&known, "k"), charge(&lenient, "k")]] {
        let error = store.check(&charges, AT).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Misuse);
        assert!(error.to_string().contains("no policy of this name"), "{error}");
    }
    let left = store.peek(&[charge(&known, "k")], AT).await.unwrap();
    assert_eq!(left.decisions()[0].snapshot().remaining(), 5, "nothing was taken");
    assert_eq!(store.status().failures, 0, "a mistake is no outage");
}

#[tokio::test]
async fn the_services_numbers_count_not_the_callers() {
    let running = start(POLICY);
    let store = connect(&running).await;
    let other = Policy::parse("api", "1000/1s").unwrap();
    let verdict = store.check(&[charge(&other, "k")], AT).await.unwrap();
    assert_eq!(verdict.decisions()[0].snapshot().limit(), 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_who_wait_share_round_trips() {
    let running = start("[[policies]]\nname = \"api\"\nquota = \"100000/1m\"\n");
    let store = connect(&running).await;
    let callers: Vec<_> = (0..500)
        .map(|number| {
            let store = store.clone();
            tokio::spawn(async move {
                let api = policy("api", OnStoreError::Deny);
                let key = format!("caller {number}");
                store.check(&[charge(&api, &key)], AT).await.unwrap().is_allowed()
            })
        })
        .collect();
    for caller in callers {
        assert!(caller.await.unwrap());
    }
    let status = store.status();
    assert_eq!((status.requests, status.failures), (500, 0));
    assert!(status.round_trips < 500, "{status:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_service_each_policy_answers_and_it_is_found_again() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let settings =
        Settings { start_without: true, backoff_max: Duration::from_millis(20), ..settings() };
    let url = format!("tollway://127.0.0.1:{port}");
    let store = RemoteStore::connect(&url, settings).await.unwrap();
    let allow = policy("api", OnStoreError::Allow { at_most: Duration::from_secs(3600) });
    let deny = policy("api", OnStoreError::Deny);
    let local = policy("api", OnStoreError::Local { shares: 5 });
    let ask = async |policy: &Policy| {
        let verdict = store.check(&[charge(policy, "k")], AT).await.unwrap();
        (verdict.is_allowed(), verdict.is_degraded())
    };
    assert_eq!(ask(&allow).await, (true, true));
    assert_eq!(ask(&deny).await, (false, true));
    // A fifth of five units: one passes, the next does not.
    assert_eq!((ask(&local).await, ask(&local).await), ((true, true), (false, true)));
    assert_eq!(ask(&shared_by_two()).await, (false, true));
    let lapsed = policy("api", OnStoreError::Allow { at_most: Duration::ZERO });
    eventually("the outage has lasted", || store.status().outage > Duration::ZERO);
    assert_eq!(ask(&lapsed).await, (false, true));
    let reserved = store.reserve(&[charge(&allow, "k")], AT).await.unwrap();
    let id = reserved.reservation.unwrap().id;
    assert!(store.commit(id, &[], AT).await.unwrap_err().is_transient());

    let toml = format!("{POLICY}[listen]\nresp = \"127.0.0.1:{port}\"\n");
    let running = crate::harness::start_listening(&toml);
    eventually("the service is found", || store.status().servers_up == 1);
    assert_eq!(ask(&deny).await, (true, false));
    assert_eq!(store.cancel(id, AT).await.unwrap(), Settlement::Unknown);
    drop(running);
    let deadline = std::time::Instant::now() + PATIENCE;
    while ask(&deny).await != (false, true) {
        assert!(std::time::Instant::now() < deadline, "the loss is not noticed");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn tokens_are_shown_and_roles_respected() {
    let running = start(&format!(
        "{POLICY}\n[[tokens]]\ntoken = \"check-me\"\nrole = \"check\"\n\
         [[tokens]]\ntoken = \"rule-me\"\nrole = \"admin\"\n"
    ));
    let connect = async |token: &str| {
        RemoteStore::connect(&format!("tollway://{token}{}", running.resp), settings()).await
    };
    assert_eq!(connect("").await.unwrap_err().kind(), ErrorKind::Refused);
    assert_eq!(connect(":wrong@").await.unwrap_err().kind(), ErrorKind::Refused);
    let (checker, admin) =
        (connect(":check-me@").await.unwrap(), connect(":rule-me@").await.unwrap());
    let api = policy("api", OnStoreError::Deny);
    let all = charge(&api, "k").cost(Cost::new(5).unwrap());
    assert!(checker.check(&[all], AT).await.unwrap().is_allowed());
    assert_eq!(checker.reset(&all, AT).await.unwrap_err().kind(), ErrorKind::Refused);
    admin.reset(&all, AT).await.unwrap();
    assert!(checker.check(&[all], AT).await.unwrap().is_allowed());
}

#[tokio::test]
async fn a_server_that_is_no_tollway_is_refused() {
    let redis = Server::start(Engine::Redis, &[]);
    let url = redis.url().replacen("redis://", "tollway://", 1);
    let error = RemoteStore::connect(&url, settings()).await.unwrap_err();
    assert!(error.to_string().contains("is not a Tollway service"), "{error}");
    for url in ["redis://127.0.0.1", "127.0.0.1", "tollway:/x"] {
        let error = RemoteStore::connect(url, settings()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Misuse, "{url}");
    }
}

#[tokio::test]
async fn more_charges_than_the_service_takes_are_a_mistake() {
    let running = start(&format!("{POLICY}[limits]\ncharges = 2\n"));
    let (store, api) = (connect(&running).await, policy("api", OnStoreError::Deny));
    let three = [charge(&api, "a"), charge(&api, "b"), charge(&api, "c")];
    assert_eq!(store.check(&three, AT).await.unwrap_err().kind(), ErrorKind::Misuse);
    assert!(store.check(&three[..2], AT).await.unwrap().is_allowed());
}

/// The statuses and `Retry-After` of requests to an axum server behind the layer.
async fn ask_layer(address: std::net::SocketAddr) -> (u16, String) {
    let answer = tokio::task::spawn_blocking(move || Http::connect(address).get("/"));
    let answer = answer.await.unwrap();
    (answer.status, answer.field("retry-after").unwrap_or_default().to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_layer_limits_by_a_remote_service_and_by_its_share_without_it() {
    let running = start("[[policies]]\nname = \"api\"\nquota = \"2/1m\"\n");
    let store = connect(&running).await;
    let api = Policy::parse("api", "2/1m").unwrap();
    let api = api.on_store_error(OnStoreError::Local { shares: 2 });
    let clock = Arc::new(VirtualClock::at(Timestamp::from_millis(1)));
    let limiter = StoreLimiter::new([api], Arc::new(store.clone()), clock);
    let layer = RateLimitLayer::new(limiter, "api", Everyone).unwrap();
    let app = axum::Router::new().route("/", axum::routing::get(|| async { "ok" })).layer(layer);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });

    assert_eq!(ask_layer(address).await, (200, String::new()));
    assert_eq!(ask_layer(address).await, (200, String::new()));
    assert_eq!(ask_layer(address).await, (429, "30".to_owned()), "exact over the wire");
    let place = running.resp;
    drop(running);
    // It may answer for a while yet.
    eventually("the service is gone", || std::net::TcpStream::connect(place).is_err());
    // This process has a share of one, and then denies by itself.
    let mut statuses = Vec::new();
    while statuses.iter().filter(|status| **status == 200).count() == 0
        || statuses.last() == Some(&200)
    {
        statuses.push(ask_layer(address).await.0);
        assert!(statuses.len() < 10_000, "the share is never used up");
    }
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 1, "{statuses:?}");
    assert!(store.status().failures > 0);
}
