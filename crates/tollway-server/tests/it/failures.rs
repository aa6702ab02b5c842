use std::sync::Arc;

use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tollway_core::{Store, Timestamp, VirtualClock};
use tollway_redis::{RemoteStore, Settings};
use tollway_server::config::{Config, Overrides};
use tollway_server::testing::messages::{Entry, RateLimitDescriptor, RateLimitRequest};
use tollway_server::{Backing, Metrics, Server, Service};

use crate::harness::{Http, Running, running, start};

const API: &str = "[[policies]]\nname = \"api\"\nquota = \"2/1m\"\n";

/// The service of this address, if there is one, as a store.
fn remote(address: std::net::SocketAddr) -> (RemoteStore, Runtime) {
    let runtime = Runtime::new().unwrap();
    let settings = Settings { start_without: true, ..Settings::default() };
    let url = format!("tollway://{address}");
    (runtime.block_on(RemoteStore::connect(&url, settings)).unwrap(), runtime)
}

/// A service with these rules and its states in `store`, which is called so.
pub(crate) fn on(store: Arc<dyn Store>, name: &'static str, toml: &str) -> Running {
    let any = || Some("127.0.0.1:0".to_owned());
    let overrides = Overrides { http: any(), grpc: any(), resp: any(), ..Overrides::default() };
    let metrics = Metrics::default();
    let texts = [("test.toml".to_owned(), toml.to_owned())];
    let config = Config::from_texts(&texts, &overrides, &metrics);
    let config = config.unwrap_or_else(|error| panic!("{error}"));
    let backing = Backing::Shared(store);
    let clock = Arc::new(VirtualClock::at(Timestamp::from_millis(1_700_000_000_000)));
    let service = Service::new(config.rules, metrics, backing, clock, config.settings);
    let service = Arc::new(service.with_store_name(name));
    running(Server::start(service, &config.listen, None, 1).unwrap())
}

/// A service whose store is gone.
pub(crate) fn without_store(toml: &str) -> (Running, Runtime) {
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (store, runtime) = remote(gone);
    (on(Arc::new(store), "remote", toml), runtime)
}

#[test]
fn a_store_that_fails_is_unavailable_on_every_front_where_the_policy_says_so() {
    let toml = "[[policies]]\nname = \"told\"\nquota = \"2/1m\"\non_store_error = \"unavailable\"\n\
                [[policies]]\nname = \"lenient\"\nquota = \"2/1m\"\non_store_error = \"allow\"\n\
                allow_at_most = \"1h\"\n\
                [[domains]]\ndomain = \"edge\"\n\
                [[domains.descriptors]]\nkey = \"told\"\nquota = \"2/1m\"\non_store_error = \"unavailable\"\n\
                [[domains.descriptors]]\nkey = \"lenient\"\nquota = \"2/1m\"\non_store_error = \"allow\"\n";
    let (running, _runtime) = without_store(toml);
    let mut grpc = crate::clients::Grpc::connect(running.grpc);
    let ask = |key: &str| RateLimitRequest {
        domain: "edge".to_owned(),
        descriptors: vec![RateLimitDescriptor {
            entries: vec![Entry { key: key.to_owned(), value: "v".to_owned() }],
            ..RateLimitDescriptor::default()
        }],
        hits_addend: 0,
    };
    let status = grpc.should_rate_limit(ask("told")).unwrap_err();
    assert_eq!(status.code(), tonic::Code::Unavailable, "{status:?}");
    assert_eq!(grpc.should_rate_limit(ask("lenient")).unwrap().overall_code, 1);
    let mut http = Http::connect(running.http);
    let told = http.post("/v1/check", r#"{"policy":"told","key":"k"}"#);
    assert_eq!((told.status, &told.json()["title"]), (503, &"Temporary Reduced Capacity".into()));
    let lenient = http.post("/v1/check", r#"{"policy":"lenient","key":"k"}"#);
    assert_eq!((lenient.status, &lenient.json()["degraded"]), (200, &true.into()));
    let metrics = http.get("/metrics").body;
    let counted = |prefix: &str| {
        let line = metrics.lines().find(|line| line.starts_with(prefix));
        let line = line.unwrap_or_else(|| panic!("{prefix} in\n{metrics}"));
        line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
    };
    // Every call that failed, whatever its policy said then; none of them is a fast answer.
    let errors = counted("tollway_store_errors_total{store=\"remote\",kind=\"unavailable\"}");
    let answered = counted("tollway_store_duration_seconds_count{store=\"remote\"}");
    assert_eq!((errors, answered), (4.0, 0.0));
    let degraded = |domain: &str, policy: &str, answer: &str| {
        let labels = format!("domain=\"{domain}\",policy=\"{policy}\",answer=\"{answer}\"");
        counted(&format!("tollway_degraded_decisions_total{{{labels}}}"))
    };
    assert_eq!(degraded("", "lenient", "allow"), 1.0);
    assert_eq!(degraded("", "told", "unavailable"), 1.0);
    assert_eq!(counted("tollway_store_up{store=\"remote\"}"), 0.0);
}

/// A store that answers for the policy `api` and fails for every other.
fn half_a_store(toml: &str) -> (Running, Running, Runtime) {
    let service = start(API);
    let (store, runtime) = remote(service.resp);
    (on(Arc::new(store), "remote", &format!("{API}{toml}")), service, runtime)
}

fn left(http: &mut Http) -> Value {
    http.post("/v1/peek", r#"{"policy":"api","key":"k"}"#).json()["charges"][0]["remaining"].take()
}

#[test]
fn a_check_of_a_batch_that_fails_hides_no_other() {
    let other = "[[policies]]\nname = \"other\"\nquota = \"2/1m\"\n";
    let (running, _store, _runtime) = half_a_store(other);
    let mut http = Http::connect(running.http);
    let api = json!({"policy": "api", "key": "k"});
    let single = json!({"policy": "other", "key": "k"});
    let several = json!({"charges": [single.clone(), single.clone()]});
    for (failing, allowed) in [(single, true), (several, false)] {
        let batch = json!({"requests": [api.clone(), failing, api.clone()]});
        let answer = http.post("/v1/check-batch", &batch.to_string());
        assert_eq!(answer.status, 200, "{answer:?}");
        let answers = &answer.json()["answers"];
        assert_eq!((&answers[1]["status"], answers[1].get("allowed")), (&json!(500), None));
        let told = [&answers[0]["allowed"], &answers[2]["allowed"]];
        assert_eq!((told, left(&mut http)), ([&json!(allowed); 2], json!(0)));
    }
}

#[test]
fn a_policy_on_trial_changes_no_outcome_when_its_store_fails() {
    let trial = "[[policies]]\nname = \"trial\"\nquota = \"2/1m\"\nshadow = true\n";
    let (running, _store, _runtime) = half_a_store(trial);
    let mut http = Http::connect(running.http);
    let alone = json!({"policy": "trial", "key": "k"});
    let beside = json!({"charges": [{"policy": "api", "key": "k"}, alone.clone()]});
    let mut post = |path: &str, body: &Value| http.post(path, &body.to_string());
    assert_eq!(post("/v1/peek", &beside).status, 200);
    assert_eq!([(); 3].map(|()| post("/v1/check", &beside).status), [200, 200, 429]);
    assert_eq!(post("/v1/check", &alone).json()["allowed"], true);
    assert_eq!(post("/v1/take", &alone).json()["granted"], 1);
}

#[test]
fn a_policy_on_trial_tells_no_failure() {
    let trial = "[[policies]]\nname = \"trial\"\nquota = \"2/1m\"\nshadow = true\n\
                 on_store_error = \"unavailable\"\n\
                 [[policies]]\nname = \"lenient\"\nquota = \"2/1m\"\non_store_error = \"allow\"\n";
    let (running, _runtime) = without_store(trial);
    let mut http = Http::connect(running.http);
    let alone = json!({"policy": "trial", "key": "k"});
    let beside = json!({"charges": [{"policy": "lenient", "key": "k"}, alone.clone()]});
    for body in [alone, beside] {
        let answer = http.post("/v1/check", &body.to_string());
        assert_eq!((answer.status, &answer.json()["degraded"]), (200, &json!(true)), "{answer:?}");
    }
}

#[test]
fn the_checks_of_a_pipeline_share_round_trips_to_the_store_and_keep_their_order() {
    let service = start("[[policies]]\nname = \"api\"\nquota = \"100/1m\"\n");
    let (store, _runtime) = remote(service.resp);
    let running = on(Arc::new(store.clone()), "remote", API);
    let mut pipe = redis::pipe();
    (0..200).for_each(|_| {
        pipe.cmd("TOLL.CHECK").arg("api").arg("k");
    });
    let client = redis::Client::open(format!("redis://{}", running.resp)).unwrap();
    let mut connection = client.get_connection().unwrap();
    let before = store.status().round_trips;
    let answers: Vec<Vec<redis::Value>> = pipe.query(&mut connection).unwrap();
    let allowed: Vec<bool> =
        answers.iter().map(|answer| answer[0] == redis::Value::Int(1)).collect();
    assert_eq!(allowed, [[true; 100], [false; 100]].concat());
    let trips = store.status().round_trips - before;
    assert!(trips < 50, "{trips} round trips for 200 checks");
}
