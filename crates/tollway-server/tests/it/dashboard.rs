use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};

use serde_json::{Value, json};

use crate::harness::{Folder, Http, PATIENCE, Running, eventually, start, start_with};

const RULES: &str = r#"
    tokens = [{ token = "reader", role = "read" }, { token = "boss", role = "admin" }]
    [[policies]]
    name = "api"
    quota = "5/1h"
    [[policies]]
    name = "window"
    algorithm = "sliding-window"
    quota = "5/1h"
    [[policies]]
    name = "slots"
    algorithm = "concurrency"
    limit = 2
    lease = "1m"
"#;

fn as_role(token: &str) -> String {
    format!("authorization: Bearer {token}\r\n")
}

fn post(http: &mut Http, path: &str, token: &str, body: &Value) -> (u16, Value) {
    let answer = http.send("POST", path, &as_role(token), &body.to_string());
    (answer.status, answer.json())
}

fn checked(server: &Running, policy: &str, key: &str) -> u16 {
    let body = json!({"policy": policy, "key": key});
    post(&mut Http::connect(server.http), "/v1/check", "boss", &body).0
}

/// The first event of the stream whose data satisfy `wanted`.
fn event(address: SocketAddr, token: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let token = as_role(token);
    write!(stream, "GET /dashboard/events HTTP/1.1\r\nhost: x\r\n{token}\r\n").unwrap();
    let lines = BufReader::new(stream).lines().map_while(Result::ok);
    let mut data = lines.filter_map(|line| line.strip_prefix("data: ").map(str::to_owned));
    let parsed = data.find_map(|text| Some(serde_json::from_str(&text).unwrap()).filter(&wanted));
    parsed.expect("the stream goes on")
}

#[test]
fn the_page_is_served_once_and_locked_in() {
    let server = start(RULES);
    let mut http = Http::connect(server.http);
    let page = http.get("/");
    assert_eq!(page.status, 200, "the page itself needs no token: it holds no data");
    assert_eq!(page.field("content-type"), Some("text/html; charset=utf-8"));
    let policy = page.field("content-security-policy").unwrap();
    assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
    let etag = page.field("etag").unwrap();
    // No body follows: the next answer on this connection is read right.
    let again = http.send("GET", "/", &format!("if-none-match: {etag}\r\n"), "");
    assert_eq!((again.status, again.body.as_str()), (304, ""));
    assert_eq!(http.send("POST", "/", "", "").status, 405);
    assert_eq!(http.get("/dashboard/no-such-file").status, 404);
}

#[test]
fn events_tell_counts_to_readers_and_keys_to_administrators_only() {
    let server = start(RULES);
    for _ in 0..8 {
        checked(&server, "api", "ada");
    }
    let counted = |event: &Value| event["totals"] == json!([5, 3, 0]);
    let read = event(server.http, "reader", counted);
    assert_eq!(read.get("top"), None);
    assert_eq!(read["store"]["kind"], "memory");
    let all = event(server.http, "boss", counted);
    let denied = &all["top"]["denied"][0];
    assert_eq!((&denied["key_hex"], &denied["denied_1m"]), (&json!("616461"), &json!(0.05)));
    assert_eq!(
        (&denied["allowed_1m"], &denied["last_allowed"]["policy"]),
        (&json!(0.084), &json!("api"))
    );
    let last = &denied["last_denied"];
    assert_eq!((&last["policy"], &last["reason"]), (&json!("api"), &json!("exhausted")));
    assert_eq!(last["cost"], 1);
    assert!(last["retry_after_ms"].as_u64() > Some(0), "{last}");
    let refused = Http::connect(server.http).get("/dashboard/events");
    assert_eq!(refused.status, 401);
}

#[test]
fn a_stream_ends_when_the_service_stops() {
    let server = start(RULES);
    let mut stream = TcpStream::connect(server.http).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let token = as_role("reader");
    write!(stream, "GET /dashboard/events HTTP/1.1\r\nhost: x\r\n{token}\r\n").unwrap();
    let mut lines = BufReader::new(stream).lines();
    assert!(lines.next().unwrap().unwrap().contains("200"));
    drop(server);
    // To the end, within the patience of the socket.
    let wrong = lines.find_map(Result::err);
    assert!(wrong.is_none(), "{wrong:?}");
}

#[test]
fn watching_is_bounded() {
    let server = start(RULES);
    let mut open = Vec::new();
    let token = as_role("reader");
    let mut status = || {
        let mut stream = TcpStream::connect(server.http).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        write!(stream, "GET /dashboard/events HTTP/1.1\r\nhost: x\r\n{token}\r\n").unwrap();
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        open.push(reader);
        line.split(' ').nth(1).unwrap().to_owned()
    };
    assert!((0..64).all(|_| status() == "200"));
    assert_eq!(status(), "503");
    open.clear();
    eventually("those who left make room", || {
        let mut stream = TcpStream::connect(server.http).unwrap();
        write!(stream, "GET /dashboard/events HTTP/1.1\r\nhost: x\r\n{token}\r\n").unwrap();
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        line.contains("200")
    });
}

#[test]
fn a_key_of_any_bytes_can_be_looked_up_and_amended() {
    let server = start(RULES);
    let mut http = Http::connect(server.http);
    let key = json!({"key_hex": "ff003c623e"});
    let (status, found) = post(&mut http, "/dashboard/key", "reader", &key);
    assert_eq!((status, found["matched"].as_u64()), (200, Some(3)));
    assert_eq!(found["standings"][0]["remaining"], 5);
    let ban = json!({"key_hex": "ff003c623e", "banned": true});
    assert_eq!(post(&mut http, "/dashboard/ban", "boss", &ban).0, 200);
    let (_, found) = post(&mut http, "/dashboard/key", "reader", &key);
    assert_eq!(
        (&found["banned"], &found["standings"][0]["treatment"]),
        (&json!(true), &json!("banned"))
    );
    for wrong in ["f", "zz", ""] {
        let body = json!({"key_hex": wrong});
        assert_eq!(post(&mut http, "/dashboard/key", "reader", &body).0, 400, "{wrong}");
    }
}

/// What is said of a key to whoever looks it up.
fn look_up(server: &Running, key: &str) -> Value {
    let key_hex: String = key.bytes().map(|byte| format!("{byte:02x}")).collect();
    let body = json!({"key_hex": key_hex});
    let (status, found) = post(&mut Http::connect(server.http), "/dashboard/key", "boss", &body);
    assert_eq!(status, 200, "{found}");
    found
}

#[test]
fn a_key_says_why_it_was_denied_and_when_what_it_asks_for_is_there() {
    let server = start(RULES);
    let mut http = Http::connect(server.http);
    let mut check = |policy: &str, cost: u64| {
        let body = json!({"policy": policy, "key": "ada", "cost": cost});
        post(&mut http, "/v1/check", "boss", &body).0
    };
    assert_eq!((check("api", 3), check("api", 4), check("api", 4)), (200, 429, 429));
    assert_eq!(check("window", 6), 429);
    let found = look_up(&server, "ada");
    let denials: Vec<_> = found["denials"]
        .as_array()
        .unwrap()
        .iter()
        .map(|denial| {
            (
                denial["policy"].clone(),
                denial["reason"].clone(),
                denial["cost"].clone(),
                denial["times"].clone(),
            )
        })
        .collect();
    assert!(denials.contains(&(json!("api"), json!("exhausted"), json!(4), json!(2))), "{found}");
    assert!(
        denials.contains(&(json!("window"), json!("too_costly"), json!(6), json!(1))),
        "{found}"
    );
    let api = &found["standings"][0];
    // A unit is there, the four that it asks for are not: two of them take 12 minutes each.
    assert_eq!((&api["allowed"], &api["remaining"]), (&json!(true), &json!(2)));
    assert_eq!(api["last_denied"]["allowed_in_ms"], 24 * 60_000);
    assert_eq!(api["to_come"], json!([[0, 2], [720_000, 3], [1_440_000, 4], [2_160_000, 5]]));
    assert_eq!(found["standings"][1]["last_denied"]["allowed_in_ms"], Value::Null);
    assert_eq!(found["rates"]["denied_1m"], 0.05);
    assert_eq!(look_up(&server, "bob")["denials"], json!([]));
}

#[test]
fn a_key_says_which_line_of_which_file_applies() {
    let rules = r#"tokens = [{ token = "boss", role = "admin" }]
[lists]
banned = ["foe",
  "evil-*"]
[[policies]]
name = "api"
quota = "5/1h"
overrides = [
  { key = "vip-*", quota = "9/1h" },
]
[[policies]]
name = "trial"
quota = "1/1h"
shadow = true
unlimited = ["friend"]
[[domains]]
domain = "edge"
[[domains.descriptors]]
key = "user"
rate_limit = { unit = "hour", requests_per_unit = 5 }
"#;
    let server = start(rules);
    let said = |key: &str, policy: usize, by: &str| {
        let told = &look_up(&server, key)["standings"][policy][by];
        (told["by"].clone(), told["at"].clone(), told["pattern_hex"].clone())
    };
    let at = |by: &str, line: u32, pattern: Option<&str>| {
        let hex = |text: &str| text.bytes().map(|byte| format!("{byte:02x}")).collect::<String>();
        (json!(by), json!(format!("test.toml:{line}")), json!(pattern.map(hex)))
    };
    assert_eq!(said("foe", 0, "treated_by"), at("list of all", 3, None));
    assert_eq!(said("evil-1", 1, "treated_by"), at("list of all", 4, Some("evil-*")));
    assert_eq!(said("ada", 0, "limited_by"), at("policy", 5, None));
    assert_eq!(said("vip-1", 0, "limited_by"), at("override", 9, Some("vip-*")));
    assert_eq!(said("friend", 1, "treated_by"), at("list", 15, None));
    assert_eq!(said("ada", 1, "treated_by"), at("trial", 14, None));
    let descriptor = &look_up(&server, "edge\u{1f}user\u{1f}ada\u{1f}")["descriptor"];
    assert_eq!((&descriptor["domain"], &descriptor["limit"]), (&json!("edge"), &json!(5)));
    assert_eq!(descriptor["limited_by"]["at"], "test.toml:18");
    assert_eq!(look_up(&server, "edge\u{1f}other\u{1f}ada\u{1f}")["descriptor"], Value::Null);
    let ban = json!({"key_hex": "616461", "banned": true, "for_ms": 60_000});
    assert_eq!(post(&mut Http::connect(server.http), "/dashboard/ban", "boss", &ban).0, 200);
    let told = look_up(&server, "ada")["standings"][0]["treated_by"].take();
    assert_eq!(
        (&told["by"], &told["ends_at_ms"]),
        (&json!("operator"), &json!(1_700_000_060_000u64))
    );
}

#[test]
fn a_newcomer_for_whom_there_is_no_room_is_told_from_who_has_used_its_limit_up() {
    let clock = std::sync::Arc::new(tollway_core::VirtualClock::at(
        tollway_core::Timestamp::from_millis(1_700_000_000_000),
    ));
    let rules = "[[policies]]\nname = \"api\"\nquota = \"1/1h\"\n";
    let server = start_with(rules, clock, Vec::new(), tollway_memory::Capacity::keys(64));
    let mut http = Http::connect(server.http);
    // Each asks once, and has nothing left then.
    for key in 0..1_000 {
        http.post("/v1/check", &format!(r#"{{"policy":"api","key":"newcomer-{key}"}}"#));
    }
    let top = http.get("/admin/top?n=100").json();
    let denied = top["denied"].as_array().unwrap();
    let reasons: Vec<_> = denied.iter().map(|key| key["last_denied"]["reason"].clone()).collect();
    assert!(!reasons.is_empty() && reasons.iter().all(|reason| reason == "no_room"), "{top}");
}

#[test]
fn a_ban_with_an_end_ends_by_itself() {
    let clock = std::sync::Arc::new(tollway_core::VirtualClock::at(
        tollway_core::Timestamp::from_millis(1_700_000_000_000),
    ));
    let capacity = tollway_memory::Capacity::keys(1_000);
    let server = start_with(RULES, std::sync::Arc::clone(&clock) as _, Vec::new(), capacity);
    let mut http = Http::connect(server.http);
    for (for_ms, expected) in [(0, 400), (u64::MAX, 400), (60_000, 200)] {
        let ban = json!({"key_hex": "6d", "banned": true, "for_ms": for_ms});
        assert_eq!(post(&mut http, "/dashboard/ban", "boss", &ban).0, expected, "{for_ms}");
    }
    assert_eq!(checked(&server, "api", "m"), 429);
    clock.advance(std::time::Duration::from_secs(60));
    eventually("the ban has ended", || checked(&server, "api", "m") == 200);
    assert_eq!(look_up(&server, "m")["banned"], json!(false));
}

#[test]
fn amendments_hold_at_once_and_outlive_a_reload() {
    let folder = Folder::new("dashboard-reload");
    let file = folder.file("rules.toml", RULES);
    let clock = std::sync::Arc::new(tollway_core::VirtualClock::at(
        tollway_core::Timestamp::from_millis(1_700_000_000_000),
    ));
    let capacity = tollway_memory::Capacity::keys(1_000);
    let server = start_with(RULES, clock, vec![file], capacity);
    let mut http = Http::connect(server.http);
    let ban = json!({"key_hex": "6d", "banned": true});
    assert_eq!(post(&mut http, "/dashboard/ban", "boss", &ban).0, 200);
    let quota = json!({"key_hex": "76", "policy": "window", "quota": "1/1h"});
    assert_eq!(post(&mut http, "/dashboard/quota", "boss", &quota).0, 200);
    assert_eq!(http.send("POST", "/admin/reload", &as_role("boss"), "").status, 200);
    assert_eq!((checked(&server, "api", "m"), checked(&server, "window", "m")), (429, 429));
    let listed = http.send("GET", "/dashboard/changes", &as_role("boss"), "").json();
    let banned = json!({"key_hex": "6d", "banned": true, "ends_at_ms": null, "quotas": []});
    let said = json!({"until": null, "grant": null, "note": "", "by": "admin-2"});
    let mut own = json!([{"policy": "window", "quota": "1/1h"}]);
    own[0].as_object_mut().unwrap().extend(said.as_object().unwrap().clone());
    let own = json!({"key_hex": "76", "banned": false, "ends_at_ms": null, "quotas": own});
    assert_eq!(listed, json!({"total": 2, "changes": [banned, own]}));
    assert_eq!(http.send("GET", "/dashboard/changes", &as_role("reader"), "").status, 403);
    assert_eq!((checked(&server, "window", "v"), checked(&server, "window", "v")), (200, 429));
    assert_eq!(checked(&server, "api", "v"), 200, "another policy is as it was");
    let back = json!({"key_hex": "76", "policy": "window", "quota": null});
    assert_eq!(post(&mut http, "/dashboard/quota", "boss", &back).0, 200);
    assert_eq!(checked(&server, "window", "v"), 200);
}

#[test]
fn the_key_of_an_envoy_descriptor_is_given_a_quota_and_reset_as_any_other() {
    let domain = "[[domains]]\ndomain = \"edge\"\n[[domains.descriptors]]\nkey = \"user\"\n\
                  rate_limit = { unit = \"hour\", requests_per_unit = 5 }\n";
    let server = start(&format!("{RULES}{domain}"));
    let mut http = Http::connect(server.http);
    let asked = |http: &mut Http| {
        let body =
            r#"{"domain":"edge","descriptors":[{"entries":[{"key":"user","value":"ada"}]}]}"#;
        let status =
            http.send("POST", "/json", &as_role("boss"), body).json()["statuses"][0].take();
        (status["code"].clone(), status["currentLimit"].clone())
    };
    let (code, limit) = asked(&mut http);
    assert_eq!((code, &limit["requestsPerUnit"]), (json!("OK"), &json!(5)));
    // What was used stays used: one of two is left.
    let key = b"edge\x1fuser\x1fada\x1f".iter().map(|byte| format!("{byte:02x}"));
    let key_hex: String = key.collect();
    let quota = json!({"key_hex": key_hex, "policy": limit["name"], "quota": "2/1h"});
    assert_eq!(post(&mut http, "/dashboard/quota", "boss", &quota).0, 200, "{limit}");
    let (code, limit) = asked(&mut http);
    assert_eq!((code, &limit["requestsPerUnit"]), (json!("OK"), &json!(2)), "what holds is told");
    assert_eq!(asked(&mut http).0, json!("OVER_LIMIT"));
    // What it has used is forgotten by the names of the domain and the policy.
    let mut reset = json!({"domain": "edge", "key_hex": key_hex, "policy": "api"});
    assert_eq!(post(&mut http, "/dashboard/reset", "boss", &reset).0, 404, "not of this key");
    reset["policy"] = limit["name"].clone();
    for (domain, status) in [("other", 404), ("edge", 200)] {
        reset["domain"] = domain.into();
        assert_eq!(post(&mut http, "/dashboard/reset", "boss", &reset).0, status, "{domain}");
    }
    assert_eq!([asked(&mut http).0, asked(&mut http).0], [json!("OK"), json!("OK")]);
}

#[test]
fn the_stream_of_a_token_that_is_taken_back_ends() {
    let folder = Folder::new("dashboard-revoked");
    let file = folder.file("rules.toml", RULES);
    let clock = std::sync::Arc::new(tollway_core::VirtualClock::at(
        tollway_core::Timestamp::from_millis(1_700_000_000_000),
    ));
    let capacity = tollway_memory::Capacity::keys(1_000);
    let server = start_with(RULES, clock, vec![file], capacity);
    let mut stream = TcpStream::connect(server.http).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let head =
        format!("GET /dashboard/events HTTP/1.1\r\nhost: localhost\r\n{}\r\n", as_role("reader"));
    stream.write_all(head.as_bytes()).unwrap();
    let mut lines = BufReader::new(stream).lines().map(|line| line.expect("it ends in time"));
    assert!(lines.next().unwrap().contains("200"));
    let reader = r#"{ token = "reader", role = "read" }, "#;
    folder.file("rules.toml", &RULES.replace(reader, ""));
    let mut http = Http::connect(server.http);
    assert_eq!(http.send("POST", "/admin/reload", &as_role("boss"), "").status, 200);
    // By its last chunk, or with the connection; one that went on would be read for ever.
    let more = lines.take(1_000).take_while(|line| line != "0").count();
    assert!(more < 1_000, "the stream goes on");
}

#[test]
fn changes_need_the_role_and_sense() {
    let server = start(RULES);
    let mut http = Http::connect(server.http);
    let ban = json!({"key_hex": "6d", "banned": true});
    assert_eq!(post(&mut http, "/dashboard/ban", "reader", &ban).0, 403);
    assert_eq!(post(&mut http, "/dashboard/ban", "nobody", &ban).0, 401);
    for (body, expected) in [
        (json!({"key_hex": "6d", "policy": "no such", "quota": "1/1h"}), 404),
        (json!({"key_hex": "6d", "policy": "api", "quota": "many"}), 400),
        (json!({"key_hex": "6d", "policy": "slots", "quota": "1/1h"}), 400),
        (json!({"key_hex": "6d", "policy": "api", "quota": "1/1h", "more": 1}), 400),
    ] {
        assert_eq!(post(&mut http, "/dashboard/quota", "boss", &body).0, expected, "{body}");
    }
    let open = start("[[policies]]\nname = \"api\"\nquota = \"5/1h\"\n");
    let answer = Http::connect(open.http).post("/dashboard/ban", &ban.to_string());
    assert_eq!(answer.status, 403, "an open service changes nothing");
}

#[test]
fn lists_are_paged_and_bounded_by_the_service() {
    let many: String = (0..300)
        .map(|index| format!("[[policies]]\nname = \"p{index:03}\"\nquota = \"5/1h\"\n"))
        .collect();
    let server = start(&many);
    let mut http = Http::connect(server.http);
    eventually("there is a first look", || {
        http.get("/dashboard/policies").json()["matched"] == json!(300)
    });
    let page = http.get("/dashboard/policies?q=P2&offset=90&limit=100&sort=denied").json();
    assert_eq!(
        (page["matched"].as_u64(), page["policies"].as_array().unwrap().len()),
        (Some(100), 10)
    );
    let one = http.get("/dashboard/policies?policy=p007").json();
    assert_eq!(one["policies"][0]["config"]["quota"], "5/1h");
    for wrong in ["limit=101", "offset=-1", "sort=size", "q=%ff"] {
        assert_eq!(http.get(&format!("/dashboard/policies?{wrong}")).status, 400, "{wrong}");
    }
    assert_eq!(http.get("/dashboard/history?policy=p999").status, 404);
    for path in ["/dashboard/upstream", "/dashboard/upstream/status"] {
        assert_eq!(http.get(path).status, 404, "no proxy is configured");
    }
}
