use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tollway_core::{Timestamp, VirtualClock};
use tollway_memory::{Capacity, SystemClock};
use tollway_redis::{RedisStore, Settings};
use tollway_server::config::{Config, Overrides};
use tollway_server::{Backing, Metrics, OwnQuotaKeeper, Server, Service};
use tollway_testkit::servers::{Engine, Server as Store};

use crate::harness::{Folder, Http, HttpAnswer, Running, eventually, running, start, start_with};

const RULES: &str = r#"
    tokens = [
        { token = "reader", role = "read" },
        { token = "boss", role = "admin", name = "ada" },
    ]
    [[policies]]
    name = "api"
    quota = "5/1h"
    overrides = [{ key = "vip-*", quota = "7/1h" }]
    [[policies]]
    name = "plan"
    quota = "10/month tz Europe/Berlin"
    [[policies]]
    name = "slots"
    algorithm = "concurrency"
    limit = 2
    lease = "1m"
    [[policies]]
    name = "team"
    algorithm = "shares"
    quota = "10/1m"
    owners = [{ key = "a", floor = "50%" }]
"#;
const START: Timestamp = Timestamp::from_millis(1_700_000_000_000);
/// Within so long every node of a fleet has seen a change.
const SEEN_WITHIN: Duration = Duration::from_secs(1);

/// Asks as somebody who may change things.
struct Boss(Http);

impl Boss {
    fn of(server: &Running) -> Self {
        Self(Http::connect(server.http))
    }

    fn send(&mut self, method: &str, path: &str, body: &Value) -> HttpAnswer {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        self.0.send(method, path, "authorization: Bearer boss\r\n", &body)
    }

    fn put(&mut self, path: &str, body: &Value) -> (u16, Value) {
        let answer = self.send("PUT", &format!("/v1/policies/{path}"), body);
        (answer.status, answer.json())
    }

    fn get(&mut self, path: &str) -> (u16, Value) {
        let answer = self.send("GET", path, &Value::Null);
        (answer.status, answer.json())
    }

    fn grant(&mut self, path: &str, body: &Value) -> (u16, Value) {
        let answer = self.send("POST", &format!("/v1/policies/{path}/grant"), body);
        (answer.status, answer.json())
    }

    /// The limit and what is left of it.
    fn peek(&mut self, policy: &str, key: &str) -> (u64, u64) {
        let answer = self.send("POST", "/v1/peek", &json!({"policy": policy, "key": key})).json();
        let charge = &answer["charges"][0];
        (charge["limit"].as_u64().unwrap(), charge["remaining"].as_u64().unwrap())
    }

    fn take(&mut self, policy: &str, key: &str, cost: u64) -> u16 {
        let body = json!({"policy": policy, "key": key, "cost": cost});
        self.send("POST", "/v1/check", &body).status
    }
}

#[test]
fn a_quota_of_ones_own_holds_at_once_and_what_was_used_stays_used() {
    let server = start(RULES);
    let mut boss = Boss::of(&server);
    assert_eq!(boss.take("api", "acme", 4), 200);
    let (status, told) = boss.put("api/keys/acme", &json!({"quota": "20/1h", "note": "upgrade"}));
    assert_eq!(
        (status, &told["in_force"], &told["kept"]),
        (201, &json!("20/1h"), &json!("process"))
    );
    assert_eq!(boss.peek("api", "acme"), (20, 16));
    assert_eq!(boss.put("api/keys/acme", &json!({"quota": "8/1h"})).0, 200, "replaced");
    assert_eq!(boss.peek("api", "acme"), (8, 4));
    let (status, told) = boss.get("/v1/policies/api/keys/acme");
    assert_eq!((status, &told["quota"], &told["by"]), (200, &json!("8/1h"), &json!("ada")));
    let removed = boss.send("DELETE", "/v1/policies/api/keys/acme", &Value::Null);
    assert_eq!((removed.status, boss.peek("api", "acme")), (200, (5, 1)));
    assert_eq!(boss.get("/v1/policies/api/keys/acme").0, 404);
    assert_eq!(boss.send("DELETE", "/v1/policies/api/keys/acme", &Value::Null).status, 404);
}

#[test]
fn a_quota_of_ones_own_may_follow_a_calendar_and_comes_before_the_files() {
    let server = start(RULES);
    let mut boss = Boss::of(&server);
    boss.put("api/keys/vip-1", &json!({"quota": "300/month tz Asia/Tokyo anchor 31"}));
    assert_eq!((boss.peek("api", "vip-1").0, boss.peek("api", "vip-2").0), (300, 7));
    boss.put("plan/keys/acme", &json!({"quota": "50/1m burst 60"}));
    assert_eq!((boss.peek("plan", "acme").0, boss.peek("plan", "ann").0), (60, 10));
    boss.put("api/keys/vip-*", &json!({"quota": "9/1h"}));
    assert_eq!((boss.peek("api", "vip-1").0, boss.peek("api", "vip-2").0), (300, 9));
    // Bytes that are no text, and those that would divide a path.
    assert_eq!(boss.put("api/keys/a%2Fb%FF", &json!({"quota": "2/1h"})).1["key_hex"], "612f62ff");
    let (_, listed) = boss.get("/v1/policies/api/keys?max=2");
    assert_eq!((&listed["total"], &listed["keys"][0]["key"]), (&json!(3), &Value::Null));
    let next = listed["next"].as_str().unwrap();
    let (_, last) = boss.get(&format!("/v1/policies/api/keys?after={next}"));
    assert_eq!((&last["keys"][0]["key"], &last["next"]), (&json!("vip-1"), &Value::Null));
}

#[test]
fn a_quota_with_an_end_ends_and_a_grant_is_more_until_its_own() {
    let clock = Arc::new(VirtualClock::at(START));
    let server = start_with(RULES, Arc::clone(&clock) as _, Vec::new(), Capacity::keys(1_000));
    let mut boss = Boss::of(&server);
    // START is 22:13:20 UTC on the 14th.
    let until = json!({"quota": "20/1h", "until": "2023-11-14 23:14 Europe/Berlin"});
    assert_eq!(boss.put("api/keys/acme", &until).1["until"], "2023-11-14T22:14:00Z");
    let more = json!({"units": 100, "until": "2023-11-14T22:15:00Z", "note": "launch"});
    let (status, told) = boss.grant("api/keys/acme", &more);
    assert_eq!((status, &told["grant"]["units"]), (200, &json!(100)));
    assert_eq!(boss.peek("api", "acme"), (120, 120));
    clock.advance(Duration::from_secs(40));
    eventually("the quota has ended", || boss.peek("api", "acme").0 == 105);
    clock.advance(Duration::from_secs(60));
    eventually("the grant has ended", || boss.peek("api", "acme").0 == 5);
    assert_eq!(boss.get("/v1/policies/api/keys/acme").0, 404);
}

#[test]
fn units_granted_once_are_given_back_as_far_as_they_were_used() {
    let server = start(RULES);
    let mut boss = Boss::of(&server);
    assert_eq!((boss.take("plan", "acme", 10), boss.take("plan", "acme", 1)), (200, 429));
    let (status, told) = boss.grant("plan/keys/acme", &json!({"units": 4}));
    assert_eq!((status, &told["remaining"]), (200, &json!(4)));
    assert_eq!(boss.grant("plan/keys/acme", &json!({"units": 99})).1["remaining"], 10);
    assert_eq!(boss.grant("plan/keys/*", &json!({"units": 4})).0, 400, "whose?");
    let (_, log) = boss.get("/admin/quota-changes");
    assert_eq!((&log["total"], &log["changes"][1]["units"]), (&json!(2), &json!(4)));
}

#[test]
fn who_changed_what_and_when_is_listed_the_latest_first() {
    let server = start(RULES);
    let mut boss = Boss::of(&server);
    boss.put("api/keys/acme", &json!({"quota": "20/1h", "note": "upgrade"}));
    boss.send("DELETE", "/v1/policies/api/keys/acme", &Value::Null);
    let (status, log) = boss.get("/admin/quota-changes?n=1000");
    let set = &log["changes"][1];
    assert_eq!((status, &log["changes"][0]["action"]), (200, &json!("removed")));
    let told = ["action", "key", "quota", "note", "by", "from", "at"].map(|field| &set[field]);
    let at = "2023-11-14T22:13:20Z";
    let expected = ["set", "acme", "20/1h", "upgrade", "ada", "127.0.0.1", at].map(|at| json!(at));
    assert_eq!(told, expected.each_ref());
    for path in ["/admin/quota-changes", "/v1/policies/api/keys", "/v1/policies/api/keys/acme"] {
        let answer = boss.0.send("GET", path, "authorization: Bearer reader\r\n", "");
        assert_eq!(answer.status, 403, "{path}");
    }
}

#[test]
fn what_is_wrong_is_named_and_changes_nothing() {
    let server = start(RULES);
    let mut boss = Boss::of(&server);
    boss.put("api/keys/acme", &json!({"quota": "20/1h"}));
    let long = "x".repeat(201);
    for (path, body, status, told) in [
        ("none/keys/acme", json!({"quota": "1/1h"}), 404, "no policy is named"),
        ("api/keys/acme", json!({"quota": "many"}), 400, "quota: "),
        ("api/keys/acme", json!({"quota": "0/1h"}), 400, "quota: "),
        ("api/keys/acme", json!({"quota": "9/month tz Asia/Tokio"}), 400, "did you mean"),
        ("api/keys/acme", json!({"quota": "9/month anchor 32"}), 400, "quota: "),
        (
            "api/keys/acme",
            json!({"quota": "1/1h", "until": "2001-01-01T00:00:00Z"}),
            400,
            "until: ",
        ),
        ("api/keys/acme", json!({"quota": "1/1h", "until": "tomorrow"}), 400, "until: "),
        ("api/keys/acme", json!({"quota": "1/1h", "until": "2030-01-01"}), 400, "until: "),
        ("api/keys/acme", json!({"quota": "1/1h", "note": long}), 400, "note: "),
        ("api/keys/acme", json!({"quota": "1/1h", "notes": ""}), 400, "notes"),
        ("api/keys/acme", json!({}), 400, "quota"),
        ("slots/keys/acme", json!({"quota": "1/1h"}), 400, "quota: "),
        ("team/keys/a", json!({"quota": "1/1h"}), 400, "owners"),
        (&format!("api/keys/{}", "k".repeat(1_025)), json!({"quota": "1/1h"}), 400, "key: "),
        ("api/keys/%zz", json!({"quota": "1/1h"}), 400, "key: "),
        ("api/keys/", json!({"quota": "1/1h"}), 400, "key: "),
    ] {
        let (found, answer) = boss.put(path, &body);
        let detail = answer["detail"].as_str().unwrap_or_default();
        assert!(found == status && detail.contains(told), "{path} {body}: {found} {answer}");
    }
    for (body, told) in [
        (json!({"units": 0}), "units: "),
        (json!({"units": 1, "until": "2001-01-01T00:00:00Z"}), "until: "),
        (json!({"units": u64::MAX, "until": "2100-01-01T00:00:00Z"}), "units: "),
    ] {
        let (found, answer) = boss.grant("api/keys/acme", &body);
        let detail = answer["detail"].as_str().unwrap_or_default();
        assert!(found == 400 && detail.contains(told), "{body}: {found} {answer}");
    }
    assert_eq!(boss.peek("api", "acme"), (20, 20));
    assert_eq!(boss.get("/admin/quota-changes").1["total"], 1);
    let open = start("[[policies]]\nname = \"api\"\nquota = \"5/1h\"\n");
    let mut http = Http::connect(open.http);
    let answer = http.send("PUT", "/v1/policies/api/keys/acme", "", r#"{"quota":"9/1h"}"#);
    assert_eq!(answer.status, 403, "an open service changes nothing");
}

#[test]
fn patterns_are_bounded_and_a_reload_keeps_what_still_fits() {
    let folder = Folder::new("own-quotas-reload");
    let file = folder.file("rules.toml", RULES);
    let clock = Arc::new(VirtualClock::at(START));
    let server = start_with(RULES, clock, vec![file], Capacity::keys(1_000));
    let mut boss = Boss::of(&server);
    for number in 0..256 {
        let (status, _) = boss.put(&format!("api/keys/{number}-*"), &json!({"quota": "9/1h"}));
        assert_eq!(status, 201);
    }
    let (status, answer) = boss.put("api/keys/more-*", &json!({"quota": "9/1h"}));
    assert!(status == 400 && answer["detail"].as_str().unwrap().starts_with("key: "), "{answer}");
    boss.put("api/keys/acme", &json!({"quota": "9/1h"}));
    boss.put("plan/keys/acme", &json!({"quota": "9/1h"}));
    folder.file("rules.toml", &RULES.replace("\"plan\"", "\"price\""));
    assert_eq!(boss.send("POST", "/admin/reload", &Value::Null).status, 200);
    assert_eq!(boss.peek("api", "acme").0, 9);
    let (_, kept) = boss.get("/v1/policies/plan/keys/acme");
    assert_eq!((&kept["in_force"], kept["why_not"].is_string()), (&Value::Null, true));
    folder.file("rules.toml", RULES);
    assert_eq!(boss.send("POST", "/admin/reload", &Value::Null).status, 200);
    assert_eq!(boss.peek("plan", "acme").0, 9);
}

#[test]
fn over_resp_quotas_are_set_told_listed_and_taken_away() {
    let server = start(RULES);
    let connect = |token: &str| {
        let client = redis::Client::open(format!("redis://:{token}@{}", server.resp)).unwrap();
        client.get_connection().unwrap()
    };
    let (mut boss, mut reader) = (connect("boss"), connect("reader"));
    let told = |connection: &mut redis::Connection, words: &[&str]| {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        command.query::<redis::Value>(connection)
    };
    let mut send = |words: &[&str]| told(&mut boss, words);
    let until = "2023-11-20 09:00 Europe/Berlin";
    let set = ["TOLL.SETQUOTA", "api", "acme", "20/1h", "UNTIL", until, "NOTE", "upgrade"];
    assert_eq!(send(&set), Ok(redis::Value::Okay));
    let grant = ["TOLL.GRANT", "api", "acme", "5", "until", "2023-11-15T00:00:00Z"];
    assert_eq!(send(&grant), Ok(redis::Value::Okay));
    type Told = (String, String, String, u64, String, String, String, String);
    let holds = send(&["TOLL.GETQUOTA", "api", "acme"]).unwrap();
    let holds: Told = redis::from_redis_value(holds).unwrap();
    let expected = ("acme", "20/1h", "2023-11-20T08:00:00Z", 5, "2023-11-15T00:00:00Z");
    let (key, quota, until, units, units_until, _, by, in_force) = &holds;
    assert_eq!((&**key, &**quota, &**until, *units, &**units_until), expected);
    assert_eq!((&**by, &**in_force), ("ada", "20/1h burst 25"));
    // In one go: what follows is decided by what was set before.
    let mut pipeline = redis::pipe();
    pipeline.cmd("TOLL.SETQUOTA").arg("api").arg("bob").arg("2/1h");
    pipeline.cmd("TOLL.REFUND").arg("api").arg("bob");
    let (_, (limit, _, _)): (redis::Value, (u64, u64, u64)) =
        pipeline.query(&mut connect("boss")).unwrap();
    assert_eq!(limit, 2);
    let taken = send(&["TOLL.TAKE", "api", "bob", "COST", "2"]).unwrap();
    let (taken, _): (u64, redis::Value) = redis::from_redis_value(taken).unwrap();
    assert_eq!(taken, 2);
    let given = send(&["TOLL.GRANT", "api", "bob", "1"]).unwrap();
    let given: (u64, u64) = redis::from_redis_value(given).unwrap();
    assert_eq!(given, (2, 1));
    let listed: Vec<redis::Value> =
        redis::from_redis_value(send(&["TOLL.QUOTAS", "api", "AFTER", "acme"]).unwrap()).unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!(send(&["TOLL.DELQUOTA", "api", "acme"]), Ok(redis::Value::Int(1)));
    assert_eq!(send(&["TOLL.DELQUOTA", "api", "acme"]), Ok(redis::Value::Int(0)));
    assert_eq!(send(&["TOLL.GETQUOTA", "api", "acme"]), Ok(redis::Value::Nil));
    for (words, wrong) in [
        (&["TOLL.SETQUOTA", "none", "k", "1/1h"][..], "NOPOLICY"),
        (&["TOLL.SETQUOTA", "api", "k", "many"], "quota: "),
        (&["TOLL.SETQUOTA", "api", "k", "1/1h", "UNTIL", "soon"], "until: "),
        (&["TOLL.SETQUOTA", "api", "k", "1/1h", "TILL", "soon"], "UNTIL time"),
        (&["TOLL.SETQUOTA", "api", "k"], "number of arguments"),
        (&["TOLL.GRANT", "api", "k", "0"], "units: "),
        (&["TOLL.QUOTAS", "none"], "NOPOLICY"),
    ] {
        let told = send(words).unwrap_err().to_string();
        assert!(told.contains(wrong), "{words:?}: {told}");
    }
    for words in [&set[..], &["TOLL.QUOTAS", "api"], &grant] {
        let refused = told(&mut reader, words).unwrap_err();
        assert_eq!(refused.code(), Some("NOPERM"), "{refused}");
    }
}

/// A node of a fleet on a store of its own process.
struct Node {
    running: Running,
    _runtime: Runtime,
}

impl Node {
    fn start(url: &str, prefix: &str) -> Self {
        let runtime = Runtime::new().unwrap();
        let settings = Settings { prefix: prefix.to_owned(), ..Settings::default() };
        let (store, keeper) = runtime.block_on(async {
            let store = RedisStore::connect(url, settings.clone()).await.unwrap();
            (store, OwnQuotaKeeper::in_store(url, &settings).await.unwrap())
        });
        let any = || Some("127.0.0.1:0".to_owned());
        let overrides = Overrides { http: any(), grpc: any(), resp: any(), ..Overrides::default() };
        let metrics = Metrics::default();
        let texts = [("test.toml".to_owned(), RULES.to_owned())];
        let config = Config::from_texts(&texts, &overrides, &metrics).unwrap();
        let backing = Backing::Shared(Arc::new(store));
        let clock = Arc::new(SystemClock::new());
        let service = Service::new(config.rules, metrics, backing, clock, config.settings);
        let service = Arc::new(service.with_own_quotas(keeper));
        runtime.block_on(service.start_own_quotas());
        let running = running(Server::start(service, &config.listen, None, 1).unwrap());
        Self { running, _runtime: runtime }
    }

    fn boss(&self) -> Boss {
        Boss::of(&self.running)
    }
}

fn fleet(store: &Store, name: &str) -> (Vec<Node>, String) {
    static FLEETS: AtomicU32 = AtomicU32::new(0);
    let number = FLEETS.fetch_add(1, Ordering::Relaxed);
    let prefix = format!("{name}{number}-{}:", std::process::id());
    ((0..3).map(|_| Node::start(&store.url(), &prefix)).collect(), prefix)
}

/// Asks all nodes until it is told to stop.
fn load<'s>(scope: &'s std::thread::Scope<'s, '_>, nodes: &'s [Node], stop: &'s AtomicBool) {
    for node in nodes {
        scope.spawn(move || {
            let mut boss = node.boss();
            let mut asked = 0;
            while !stop.load(Ordering::Relaxed) {
                asked += 1;
                boss.take("api", &format!("other-{}", asked % 100), 1);
            }
        });
    }
}

#[test]
fn a_change_on_one_node_holds_on_the_others_within_a_second_under_load_and_after_a_restart() {
    for engine in Engine::available() {
        let store = engine.shared();
        let (nodes, prefix) = fleet(store, "own");
        let stop = AtomicBool::new(false);
        let seen_after = std::thread::scope(|scope| {
            load(scope, &nodes, &stop);
            let (mut first, mut third) = (nodes[0].boss(), nodes[2].boss());
            let mut seen_after = Vec::new();
            for round in 1..=5_u64 {
                let limit = 100 + round;
                let (status, told) =
                    first.put("api/keys/acme", &json!({"quota": format!("{limit}/1h")}));
                assert!(status <= 201 && told["kept"] == "store", "{told}");
                let since = Instant::now();
                eventually("another node obeys", || third.peek("api", "acme").0 == limit);
                seen_after.push(since.elapsed());
            }
            stop.store(true, Ordering::Relaxed);
            seen_after.sort_unstable();
            // A machine that halts for a moment halts one of them.
            seen_after[3]
        });
        assert!(seen_after < SEEN_WITHIN, "{engine:?}: {seen_after:?}");
        // What two nodes change at the same time is changed one after the other.
        std::thread::scope(|scope| {
            for (index, node) in nodes.iter().enumerate() {
                scope.spawn(move || {
                    for round in 0..10 {
                        let key = format!("api/keys/{index}-{round}");
                        assert_eq!(node.boss().put(&key, &json!({"quota": "9/1h"})).0, 201);
                        let (status, told) =
                            node.boss().put("api/keys/all", &json!({"quota": "9/1h"}));
                        assert!(status <= 201, "{told}");
                    }
                });
            }
        });
        for node in &nodes {
            eventually("all of them", || node.boss().get("/v1/policies/api/keys").1["total"] == 32);
        }
        // The quotas may be there before the last change of one that was there already.
        let told = || nodes[1].boss().get("/admin/quota-changes?n=1000").1;
        eventually("every change is told", || told()["total"] == 65);
        let log = told();
        drop(nodes);
        let again: Vec<Node> = (0..3).map(|_| Node::start(&store.url(), &prefix)).collect();
        for node in &again {
            assert_eq!(node.boss().peek("api", "acme").0, 105, "at once");
            assert_eq!(node.boss().get("/admin/quota-changes?n=1000").1, log);
        }
    }
}

#[test]
fn a_ban_on_one_node_holds_on_the_others_within_a_second_under_load_and_after_a_restart() {
    for engine in Engine::available() {
        let store = engine.shared();
        let (nodes, prefix) = fleet(store, "ban");
        let stop = AtomicBool::new(false);
        let ban = |boss: &mut Boss, banned: bool| {
            let body = json!({"key_hex": "6576696c", "banned": banned});
            let answer = boss.send("POST", "/dashboard/ban", &body);
            assert_eq!((answer.status, &answer.json()["kept"]), (200, &json!("store")));
        };
        let nobody = nodes[0].boss().put("/keys/evil", &json!({"quota": "9/1h"}));
        assert_eq!(nobody.0, 404, "a ban is no quota of a policy without a name");
        let mut seen_after: Vec<Duration> = std::thread::scope(|scope| {
            load(scope, &nodes, &stop);
            let (mut first, mut third) = (nodes[0].boss(), nodes[2].boss());
            let seen = (0..5).map(|round| {
                let banned = round % 2 == 0;
                ban(&mut first, banned);
                let since = Instant::now();
                // A charge of more than the limit is denied too, and told in another way.
                eventually("another node obeys", || {
                    let asked = json!({"policy": "slots", "key": "evil"});
                    let status = third.send("POST", "/v1/peek", &asked).json();
                    (status["allowed"] == false) == banned
                });
                since.elapsed()
            });
            let seen = seen.collect();
            stop.store(true, Ordering::Relaxed);
            seen
        });
        seen_after.sort_unstable();
        // A machine that halts for a moment halts one of them.
        assert!(seen_after[3] < SEEN_WITHIN, "{engine:?}: {seen_after:?}");
        drop(nodes);
        let again = Node::start(&store.url(), &prefix);
        let mut boss = again.boss();
        assert_eq!(boss.take("api", "evil", 1), 429, "at once");
        let (_, log) = boss.get("/admin/quota-changes?n=1");
        let told = ["action", "by", "key"].map(|field| log["changes"][0][field].clone());
        assert_eq!(told, ["banned", "ada", "evil"].map(Value::from));
        ban(&mut boss, false);
        assert_eq!(boss.take("api", "evil", 1), 200);
    }
}

#[test]
fn without_the_store_what_is_known_stays_in_force_and_a_change_is_refused() {
    let kept = ["--save", "", "--appendonly", "yes", "--appendfsync", "always"];
    let mut store = Store::start(Engine::Redis, &kept);
    let nodes = [Node::start(&store.url(), "tw:"), Node::start(&store.url(), "tw:")];
    let mut boss = nodes[0].boss();
    assert_eq!(boss.put("api/keys/acme", &json!({"quota": "20/1h"})).0, 201);
    eventually("the other knows", || nodes[1].boss().get("/v1/policies/api/keys/acme").0 == 200);
    store.kill();
    eventually("a change is refused", || {
        boss.put("api/keys/acme", &json!({"quota": "30/1h"})).0 == 503
    });
    assert_eq!(nodes[1].boss().get("/v1/policies/api/keys/acme").1["quota"], "20/1h");
    // An operator at the page helps a customer all the same, on this node and until it answers.
    let here = json!({"policy": "api", "key_hex": "61636d65", "quota": "35/1h"});
    let told = boss.send("POST", "/dashboard/quota", &here).json();
    assert_eq!(told, json!({"quota": "35/1h", "kept": "process"}));
    assert_eq!(boss.get("/v1/policies/api/keys/acme").1["in_force"], "35/1h");
    store.restart();
    eventually("what is kept holds again", || {
        boss.get("/v1/policies/api/keys/acme").1["in_force"] == "20/1h"
    });
    eventually("it is changed", || boss.put("api/keys/acme", &json!({"quota": "40/1h"})).0 == 200);
    eventually("and seen", || nodes[1].boss().peek("api", "acme").0 == 40);
}

#[test]
fn a_user_of_the_store_who_may_not_subscribe_looks_by_himself() {
    let store = Store::start(Engine::Redis, &[]);
    store.tell(&["ACL", "SETUSER", "deaf", "on", ">pw", "~*", "+@all", "-psubscribe", "-publish"]);
    let url = store.url().replace("redis://", "redis://deaf:pw@");
    let nodes = [Node::start(&url, "tw:"), Node::start(&url, "tw:")];
    assert_eq!(nodes[0].boss().put("api/keys/acme", &json!({"quota": "20/1h"})).0, 201);
    eventually("the other obeys", || nodes[1].boss().peek("api", "acme").0 == 20);
}
