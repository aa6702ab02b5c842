use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tollway_redis::{RedisStore, Settings};
use tollway_server::testing::messages::{Entry, RateLimitDescriptor, RateLimitRequest};
use tollway_testkit::servers::{Engine, Server};

use crate::failures::on;
use crate::harness::{Http, Running, eventually};

const POLICIES: &str = "[[policies]]\nname = \"deny\"\nquota = \"100000/1h\"\n\
    [[policies]]\nname = \"allow\"\nquota = \"100000/1h\"\non_store_error = \"allow\"\nallow_at_most = \"1h\"\n\
    [[policies]]\nname = \"local\"\nquota = \"4/1h\"\non_store_error = \"local\"\nshares = 2\n\
    [[policies]]\nname = \"told\"\nquota = \"100000/1h\"\non_store_error = \"unavailable\"\n\
    [[domains]]\ndomain = \"edge\"\n[[domains.descriptors]]\nkey = \"k\"\nquota = \"100000/1h\"\n";

/// A service on a real server, looked at over HTTP.
struct Watched {
    http: Http,
    asked: u32,
    running: Running,
    _runtime: Runtime,
}

impl Watched {
    fn on(server: &Server) -> Self {
        let runtime = Runtime::new().unwrap();
        let settings = Settings { backoff_max: Duration::from_millis(100), ..Settings::default() };
        let store = runtime.block_on(RedisStore::connect(&server.url(), settings)).unwrap();
        let running = on(Arc::new(store), "redis", POLICIES);
        Self { http: Http::connect(running.http), asked: 0, running, _runtime: runtime }
    }

    fn check(&mut self, policy: &str) -> (u16, Value) {
        let body = json!({"policy": policy, "key": "ada"}).to_string();
        self.asked += 1;
        let answer = self.http.post("/v1/check", &body);
        (answer.status, answer.json())
    }

    /// The sum of the samples of a family with these labels.
    fn counted(&mut self, family: &str, label: &str) -> f64 {
        let metrics = self.http.get("/metrics").body;
        let lines = metrics.lines().filter(|line| line.starts_with(family) && line.contains(label));
        lines.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
    }

    fn is_up(&mut self) -> bool {
        self.counted("tollway_store_up", "store=\"redis\"") == 1.0
    }
}

#[test]
fn an_outage_is_seen_however_the_store_is_lost() {
    type Act = fn(&mut Server);
    let ways: [(&str, Act, Act); 3] = [
        ("kill -9", |server| server.kill(), Server::restart),
        ("SIGSTOP", |server| server.pause(), |server| server.resume()),
        // Nothing that a client says ends it before its time.
        ("CLIENT PAUSE", |server| drop(server.tell(&["CLIENT", "PAUSE", "5000", "ALL"])), |_| ()),
    ];
    for (way, lose, bring_back) in ways {
        let mut server = Server::start(Engine::Redis, &[]);
        let mut watched = Watched::on(&server);
        assert_eq!(watched.check("deny").0, 200, "{way}");
        let well = json!({"up": true, "since_ms": null, "last_error": null});
        eventually("the store is up", || watched.http.get("/readyz").json()["store"] == well);
        lose(&mut server);
        eventually("a degraded answer", || watched.check("deny").1["degraded"] == true);
        assert!(!watched.is_up(), "{way}: known with the first degraded answer");
        let errors = watched.counted("tollway_store_errors_total", "");
        let ready = watched.http.get("/readyz");
        assert_eq!((ready.status, &ready.json()["store"]["up"]), (200, &json!(false)), "{way}");
        let failed = (0..50).filter(|_| watched.check("deny").1["degraded"] == true).count() as f64;
        let counted = watched.counted("tollway_store_errors_total", "") - errors;
        assert_eq!(counted, failed, "{way}: every one, whatever the policy says");
        let asked = watched.asked as f64;
        let answers = watched.counted("tollway_store_duration_seconds_count", "");
        let errors = watched.counted("tollway_store_errors_total", "");
        assert_eq!(answers + errors, asked, "{way}: a failed call is no answer");
        bring_back(&mut server);
        eventually("the store is back", || watched.check("deny").1.get("degraded").is_none());
        eventually("it is up again", || watched.check("deny").0 == 200 && watched.is_up());
        assert_eq!(watched.http.get("/readyz").json()["store"], well, "{way}");
    }
}

#[test]
fn answers_without_the_store_say_so_and_are_counted_by_kind() {
    let server = Server::start(Engine::Redis, &[]);
    let mut watched = Watched::on(&server);
    server.kill();
    eventually("a degraded answer", || watched.check("deny").1["degraded"] == true);
    let degraded = |watched: &mut Watched, policy: &str, answer: &str| {
        let labels = format!("domain=\"\",policy=\"{policy}\",answer=\"{answer}\"");
        watched.counted("tollway_degraded_decisions_total", &labels)
    };
    let before = degraded(&mut watched, "deny", "deny");
    let body = json!({"policy": "deny", "key": "ada"}).to_string();
    let denied = watched.http.post("/v1/check", &body);
    let told = denied.json();
    assert_eq!((denied.status, denied.field("tollway-degraded")), (429, Some("deny")));
    assert_eq!(told["title"], "Temporary Reduced Capacity", "nobody knows what was spent");
    assert!(told["detail"].as_str().unwrap().contains("store is unavailable"), "{told}");
    assert_eq!(degraded(&mut watched, "deny", "deny") - before, 1.0);

    let (status, allowed) = watched.check("allow");
    assert_eq!((status, &allowed["degraded"]), (200, &json!(true)));
    let shares: Vec<u16> = (0..3).map(|_| watched.check("local").0).collect();
    assert_eq!(shares, [200, 200, 429], "half of four units are this node's");
    let (_, spent) = watched.check("local");
    assert_eq!(spent["title"], "Quota Exceeded");
    assert!(spent["detail"].as_str().unwrap().contains("this node's share"), "{spent}");
    assert_eq!(watched.check("told").0, 503);
    let counts = [("allow", "allow"), ("local", "local"), ("told", "unavailable")]
        .map(|(policy, answer)| degraded(&mut watched, policy, answer));
    assert_eq!(counts, [1.0, 4.0, 1.0]);

    let mut grpc = crate::clients::Grpc::connect(watched.running.grpc);
    let entries = vec![Entry { key: "k".to_owned(), value: "v".to_owned() }];
    let descriptors = vec![RateLimitDescriptor { entries, ..RateLimitDescriptor::default() }];
    let request = RateLimitRequest { domain: "edge".to_owned(), descriptors, hits_addend: 0 };
    let answer = grpc.should_rate_limit(request).unwrap();
    let body: Value = serde_json::from_slice(&answer.raw_body).unwrap();
    assert_eq!((answer.overall_code, &body["title"]), (2, &json!("Temporary Reduced Capacity")));
    let has_field = |field: &tollway_server::testing::messages::HeaderValue| {
        (&*field.key, &*field.value) == ("tollway-degraded", "deny")
    };
    assert!(answer.response_headers_to_add.iter().any(has_field), "{answer:?}");
}

/// What anybody could cause by asking for it is no outage.
#[test]
fn what_the_store_refuses_for_good_reason_is_no_outage() {
    let server = Server::start(Engine::Redis, &[]);
    let mut watched = Watched::on(&server);
    assert_eq!(watched.check("deny").0, 200);
    let keys = server.tell(&["KEYS", "tw:*"]);
    let name = keys.lines().find(|line| line.starts_with("tw:2g:")).unwrap();
    server.tell(&["DEL", name]);
    server.tell(&["SET", name, "somebody else's"]);
    assert_eq!(watched.check("deny").0, 503);
    assert_eq!(watched.counted("tollway_store_errors_total", "kind=\"refused\""), 1.0);
    assert!(watched.is_up());
}
