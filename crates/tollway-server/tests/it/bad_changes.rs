//! Changes that are wrong: told by file, line and field, or as a problem; the old rules stay.

use serde_json::{Value, json};
use tollway_core::{Timestamp, VirtualClock};
use tollway_memory::Capacity;

use crate::harness::{Folder, Http, start_with};

const HEAD: &str = "tokens = [{ token = \"boss\", role = \"admin\", name = \"ada\" }]\n";
const GOOD: &str = "[[policies]]\nname = \"api\"\nquota = \"5/1h\"\n";
const TREE: &str =
    "[[policies]]\nname = \"api\"\nalgorithm = \"shares\"\nquota = \"100/1m\"\nowners = [";

/// What is wrong in a file, what it is called, and what is said of it.
fn wrong_files() -> [(&'static str, String, &'static str); 8] {
    let quota = |quota: &str| GOOD.replace("5/1h", quota);
    [
        ("an unknown zone", quota("5/month tz Europe/Berln"), "4: policies[0].quota: \"5/month tz"),
        ("an unknown zone", quota("5/month tz Mars/Base"), "unknown time zone \"Mars/Base\""),
        ("an impossible anchor", quota("5/month anchor 32"), "4: policies[0].quota: \"5/month"),
        ("an anchor that never comes", quota("5/year anchor 02-30"), "\"02-30\" never comes"),
        (
            "floors over their parent",
            format!(
                "{TREE}{{ key = \"a\", floor = \"60%\" }}, {{ key = \"b\", floor = \"60%\" }}]\n"
            ),
            "the floors below the quota add up to 120.00%; expected at most 100%",
        ),
        (
            "floors over a parent that is an owner",
            format!(
                "{TREE}{{ key = \"a\", floor = \"50%\" }}, \
                 {{ key = \"b\", parent = \"a\", floor = \"70%\" }}, \
                 {{ key = \"c\", parent = \"a\", floor = \"31%\" }}]\n"
            ),
            "the floors below a add up to 101.00%",
        ),
        ("a limit that overflows", quota("18446744073709551616/1h"), "4: policies[0].quota: "),
        ("a month that overflows", quota("18446744073709551615/month"), "4: policies[0].quota: "),
    ]
}

fn send(http: &mut Http, method: &str, path: &str, body: &Value) -> (u16, Value) {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let answer = http.send(method, path, "authorization: Bearer boss\r\n", &body);
    (answer.status, answer.json())
}

fn left(http: &mut Http) -> (u64, u64) {
    let charge = json!({"policy": "api", "key": "k"});
    let (_, told) = send(http, "POST", "/v1/peek", &charge);
    let charge = &told["charges"][0];
    (charge["limit"].as_u64().unwrap(), charge["remaining"].as_u64().unwrap())
}

#[test]
fn a_file_with_a_wrong_change_is_told_by_line_and_field_and_the_old_rules_stay() {
    let folder = Folder::new("bad-changes");
    let file = folder.file("rules.toml", &format!("{HEAD}{GOOD}"));
    let clock = VirtualClock::at(Timestamp::from_millis(1_700_000_000_000));
    let running =
        start_with("", std::sync::Arc::new(clock), vec![file.clone()], Capacity::keys(1_000));
    let mut http = Http::connect(running.http);
    let charge = json!({"policy": "api", "key": "k", "cost": 2});
    assert_eq!(send(&mut http, "POST", "/v1/check", &charge).0, 200);
    for (what, text, expected) in wrong_files() {
        std::fs::write(&file, format!("{HEAD}{text}")).unwrap();
        let (status, told) = send(&mut http, "POST", "/admin/reload", &Value::Null);
        let told = told.to_string().replace("\\\"", "\"");
        assert_eq!(status, 409, "{what}: {told}");
        assert!(told.contains("rules.toml:") && told.contains(expected), "{what}: {told}");
        assert!(told.contains("policies[0]."), "{what}: {told}");
        assert_eq!(left(&mut http), (5, 3), "{what}");
    }
}

#[test]
fn a_call_with_a_wrong_change_is_told_by_its_field_and_the_old_quota_stays() {
    let clock = VirtualClock::at(Timestamp::from_millis(1_700_000_000_000));
    let rules = format!("{HEAD}{GOOD}");
    let running = start_with(&rules, std::sync::Arc::new(clock), Vec::new(), Capacity::keys(1_000));
    let mut http = Http::connect(running.http);
    let (set, grant) = ("/v1/policies/api/keys/k", "/v1/policies/api/keys/k/grant");
    assert_eq!(send(&mut http, "PUT", set, &json!({"quota": "7/1h"})).0, 201);
    let most = u64::MAX;
    let until = "2099-01-01T00:00:00Z";
    for (method, path, body, expected) in [
        ("PUT", set, json!({"quota": "5/month tz Mars/Base"}), "quota: \"5/month tz Mars/Base\""),
        ("PUT", set, json!({"quota": "5/month anchor 32"}), "quota: \"5/month anchor 32\""),
        ("PUT", set, json!({"quota": "5/year anchor 02-30"}), "\"02-30\" never comes"),
        ("PUT", set, json!({"quota": "18446744073709551616/1h"}), "quota: "),
        ("PUT", set, json!({"quota": format!("{most}/month")}), "quota: "),
        ("PUT", set, json!({"quota": "9/1h", "until": "2026-02-30"}), "until: "),
        ("POST", grant, json!({"units": most, "until": until}), "units: "),
        ("POST", grant, json!({"units": 5, "until": "1970-01-01T00:00:00Z"}), "until: "),
    ] {
        let (status, told) = send(&mut http, method, path, &body);
        assert_eq!((status, &told["status"]), (400, &json!(400)), "{body}: {told}");
        let detail = told["detail"].as_str().unwrap();
        assert!(detail.contains(expected), "{body}: {detail}");
        assert_eq!(left(&mut http), (7, 7), "{body}");
    }
}
