use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tollway_core::{Timestamp, VirtualClock};
use tollway_memory::Capacity;

use crate::failures::without_store;
use crate::harness::{Http, Running, start, start_with};

/// A service whose clock is in our hands.
fn clocked(toml: &str) -> (Running, Arc<VirtualClock>) {
    let clock = Arc::new(VirtualClock::at(Timestamp::from_millis(1_700_000_000_000)));
    (start_with(toml, Arc::clone(&clock) as _, Vec::new(), Capacity::keys(1_000)), clock)
}

fn resp(running: &Running) -> redis::Connection {
    let client = redis::Client::open(format!("redis://{}", running.resp)).unwrap();
    client.get_connection().unwrap()
}

const LEGACY: &str = r#"
    [[policies]]
    name = "uploads"
    algorithm = "legacy"
    max = 30
    duration = "90s"
    min_interval = "1s"
    overrides = [{ key = "vip-*", factor = 0.5 }, { key = "slow-*", min_interval = "2s" }]
    gate_key = "header:x-user"
"#;

#[test]
fn a_legacy_limit_holds_its_maximum_and_its_spacing_in_every_front() {
    let (running, clock) = clocked(LEGACY);
    let mut http = Http::connect(running.http);
    let ada = json!({"policy": "uploads", "key": "ada"});
    let mut check = |verb: &str, body: &Value| http.post(verb, &body.to_string());
    let first = check("/v1/check", &ada).json();
    assert_eq!(first["charges"][0]["policy"], "uploads");
    assert_eq!(first["charges"][1]["policy"], "uploads spacing");
    let early = check("/v1/check", &ada);
    assert_eq!((early.status, &early.json()["denied_by"]), (429, &"uploads spacing".into()));
    assert_eq!(early.json()["charges"][1]["retry_after_ms"], 1_000);
    assert_eq!(early.field("retry-after"), Some("1"));
    let peeked = check("/v1/peek", &ada).json();
    assert_eq!(peeked["charges"][0]["remaining"], 29, "the denial took nothing");
    clock.advance(Duration::from_secs(1));
    let gate = "GET /v1/gate/uploads HTTP/1.1\r\nhost: localhost\r\nx-user: ada\r\n\r\n";
    let mut other = Http::connect(running.http);
    assert_eq!((other.raw(gate).status, other.raw(gate).status), (200, 429));
    clock.advance(Duration::from_secs(1));
    let mut connection = resp(&running);
    let mut ask = || {
        let command = redis::cmd("TOLL.CHECK").arg("uploads").arg("ada").to_owned();
        let answer: redis::Value = command.query(&mut connection).unwrap();
        let (allowed, by, _, charges): (bool, Option<String>, bool, Vec<redis::Value>) =
            redis::from_redis_value(answer).unwrap();
        (allowed, by, charges.len())
    };
    assert_eq!(ask(), (true, None, 2));
    assert_eq!(ask(), (false, Some("uploads spacing".to_owned()), 2));
    clock.advance(Duration::from_millis(999));
    assert!(!ask().0);
    // A spent reservation, a refund and a reset concern both buckets.
    check("/v1/reset", &ada);
    let reserved = check("/v1/reserve", &ada).json();
    assert_eq!(check("/v1/check", &ada).status, 429);
    check("/v1/cancel", &json!({"reservation": reserved["reservation"]}));
    assert_eq!(check("/v1/check", &ada).status, 200);
    check("/v1/refund", &ada);
    assert_eq!(check("/v1/check", &ada).status, 200);
    let take = check("/v1/take", &ada);
    assert_eq!(take.status, 400);
    assert!(take.body.contains("min_interval is a second one"), "{}", take.body);
}

#[test]
fn an_override_takes_from_its_policy_what_it_does_not_give() {
    let (running, clock) = clocked(LEGACY);
    let mut http = Http::connect(running.http);
    let mut allowed = |key: &str| {
        http.post("/v1/check", &json!({"policy": "uploads", "key": key}).to_string()).status == 200
    };
    assert!(allowed("vip-1") && allowed("slow-1") && allowed("ada"));
    clock.advance(Duration::from_millis(500));
    assert_eq!(["vip-1", "slow-1", "ada"].map(&mut allowed), [true, false, false]);
    clock.advance(Duration::from_millis(500));
    assert_eq!(["vip-1", "slow-1", "ada"].map(&mut allowed), [true, false, true]);
    clock.advance(Duration::from_secs(1));
    assert!(allowed("slow-1"));
}

#[test]
fn a_limit_comes_with_the_call_beside_named_policies_all_or_nothing() {
    let (running, _clock) = clocked("[[policies]]\nname = \"api\"\nquota = \"2/1m\"\n");
    let mut http = Http::connect(running.http);
    let window = json!({"algorithm": "sliding-window", "quota": "5/1s", "buckets": 10});
    let both = json!({"charges": [
        {"policy": "api", "key": "ada"},
        {"limit": window, "key": "ada", "cost": 2},
    ]});
    let mut check = |body: &Value| http.post("/v1/check", &body.to_string());
    assert_eq!(check(&both).json()["charges"][1]["remaining"], 3);
    assert_eq!(check(&both).status, 200);
    assert_eq!(check(&both).json()["denied_by"], "api");
    let alone = check(&json!({"limit": window, "key": "ada"})).json();
    assert_eq!(
        alone["charges"][0],
        json!({
            "policy": "ad-hoc", "allowed": true, "limit": 5, "remaining": 0, "reset_after_ms": 1_000,
        })
    );
    assert_eq!(check(&json!({"limit": window, "key": "ada"})).status, 429);
    assert_eq!(check(&json!({"limit": window, "key": "bob"})).status, 200);
    let batch =
        json!({"requests": [{"limit": window, "key": "ada"}, {"policy": "api", "key": "b"}]});
    let answers = http.post("/v1/check-batch", &batch.to_string()).json();
    assert_eq!(
        (&answers["answers"][0]["allowed"], &answers["answers"][1]["allowed"]),
        (&false.into(), &true.into())
    );
}

#[test]
fn a_limit_that_is_wrong_is_told_by_field_and_takes_nothing() {
    let running = start("[[policies]]\nname = \"api\"\nquota = \"2/1m\"\n");
    let mut http = Http::connect(running.http);
    let wrong = json!({"charges": [
        {"policy": "api", "key": "ada", "cost": 2},
        {"limit": {"algorithm": "leaky-bucket", "size": "big", "drip_interval": "1s"}, "key": "k"},
    ]});
    let answer = http.post("/v1/check", &wrong.to_string());
    let detail = answer.json()["detail"].clone();
    assert_eq!(
        (answer.status, detail),
        (400, "limit.size: expected a whole number, found text".into())
    );
    for body in [
        json!({"key": "k"}),
        json!({"key": "k", "policy": "api", "limit": {"quota": "1/s"}}),
        json!({"limit": {"quota": "1/s"}}),
    ] {
        let answer = http.post("/v1/check", &body.to_string());
        assert!(answer.status == 400 && answer.body.contains("give either policy or limit"));
    }
    let answer = http.post("/v1/check", r#"{"policy":"api","key":"ada","cost":2}"#);
    assert_eq!(answer.status, 200, "nothing was taken before");
    let mut connection = resp(&running);
    let wrong = redis::cmd("TOLL.CHECK").arg(r#"{"quota":"1/x"}"#).arg("k").to_owned();
    let told = wrong.query::<redis::Value>(&mut connection).unwrap_err().to_string();
    assert!(told.contains("limit.quota: \"1/x\" is not a quota"), "{told}");
    // Within a transaction it is refused when it is sent.
    redis::cmd("MULTI").exec(&mut connection).unwrap();
    assert!(wrong.query::<redis::Value>(&mut connection).is_err());
    let told = redis::cmd("EXEC").query::<redis::Value>(&mut connection).unwrap_err();
    assert_eq!(told.code(), Some("EXECABORT"));
}

#[test]
fn without_its_store_a_limit_that_came_with_the_call_denies_as_other_policies_do() {
    let (running, _runtime) = without_store("[[policies]]\nname = \"api\"\nquota = \"2/1m\"\n");
    let mut http = Http::connect(running.http);
    let named = http.post("/v1/check", r#"{"policy":"api","key":"k"}"#);
    let brought = http.post("/v1/check", r#"{"limit":{"quota":"2/1m"},"key":"k"}"#);
    assert_eq!((named.status, &named.json()["degraded"]), (429, &true.into()));
    assert_eq!((brought.status, &brought.json()["degraded"]), (429, &true.into()));
}
