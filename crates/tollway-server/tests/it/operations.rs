use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use tollway_core::{Timestamp, VirtualClock};
use tollway_memory::{Capacity, MemoryStore};
use tollway_server::config::{Config, Drain, Overrides};
use tollway_server::{Backing, Metrics, Queues, Server, Service, reload, reload_certificates};

use crate::harness::{Folder, Http, PATIENCE, output, start, start_with, tool, tools};

const POLICY: &str = "[[policies]]\nname = \"api\"\nquota = \"2/1m\"\n";

fn clock() -> Arc<VirtualClock> {
    Arc::new(VirtualClock::at(Timestamp::from_millis(1_700_000_000_000)))
}

#[test]
fn answers_carry_figures_fields_and_the_policy_that_denied() {
    let running = start(POLICY);
    let mut http = Http::connect(running.http);
    let body = r#"{"policy":"api","key":"ada","cost":2}"#;
    let allowed = http.post("/v1/check", body);
    assert_eq!(allowed.status, 200);
    assert_eq!(allowed.field("ratelimit-policy"), Some("\"api\";q=2;w=60"));
    assert_eq!(allowed.json()["charges"][0].get("retry_after_ms"), None);
    let denied = http.post("/v1/check", body);
    assert_eq!((denied.status, &denied.json()["denied_by"]), (429, &"api".into()));
    assert_eq!(denied.json()["charges"][0]["retry_after_ms"], 60_000);
    assert_eq!(denied.field("retry-after"), Some("60"));
    assert_eq!(denied.json()["violated-policies"][0], "api");
    let reserved = http.post("/v1/reserve", body);
    assert_eq!((reserved.status, &reserved.json()["title"]), (429, &denied.json()["title"]));
    let never = http.post("/v1/check", r#"{"policy":"api","key":"ada","cost":3}"#).json();
    assert_eq!(
        (&never["charges"][0]["retry_after_ms"], &never["charges"][0]["retry"]),
        (&serde_json::Value::Null, &"never".into())
    );
    assert_eq!(http.post("/v1/check?deny_status=403", body).status, 403);
    assert_eq!(http.post("/v1/check?deny_status=99", body).status, 400);
    let batch = r#"{"requests":[{"policy":"api","key":"x"},{"policy":"api","key":"ada"}]}"#;
    let answers = http.post("/v1/check-batch", batch).json();
    assert_eq!(answers["answers"][0]["allowed"], true);
    assert_eq!(answers["answers"][1]["allowed"], false);
}

#[test]
fn owners_of_a_tree_have_their_floors_and_a_denial_names_the_one_that_denied() {
    let running = start(
        "[[policies]]\nname = \"llm\"\nalgorithm = \"shares\"\nquota = \"60/1m\"\n\
         reclaim = \"20s\"\nowners = [{ key = \"a\", floor = \"50%\" },\n\
         { key = \"b\", floor = \"50%\" }]\n",
    );
    let mut http = Http::connect(running.http);
    let mut check = |key: &str, cost: u64| {
        let body = format!(r#"{{"policy":"llm","key":"{key}","cost":{cost}}}"#);
        http.post("/v1/check", &body)
    };
    let all_lent = check("somebody", 40);
    assert_eq!((all_lent.status, &all_lent.json()["charges"][0]["limit"]), (200, &40.into()));
    let denied = check("somebody", 1);
    assert_eq!((denied.status, &denied.json()["denied_by"]), (429, &"llm".into()));
    assert_eq!(denied.json()["denied_by_owner"], serde_json::Value::Null, "the quota as a whole");
    assert_eq!(check("a", 10).status, 200, "a floor is not lent");
    let denied = check("a", 1).json();
    assert_eq!((&denied["denied_by"], &denied["denied_by_owner"]), (&"llm".into(), &"a".into()));
    assert_eq!(denied["charges"][0]["remaining"], 0);
    let both = r#"{"requests":[{"policy":"llm","key":"b","cost":10},{"policy":"llm","key":"a"}]}"#;
    let answers = http.post("/v1/check-batch", both).json();
    assert_eq!(answers["answers"][0]["allowed"], true);
    assert_eq!(answers["answers"][1]["denied_by_owner"], "a");
    let reset = http.post("/v1/reset", r#"{"policy":"llm","key":"b"}"#);
    assert_eq!(reset.status, 200);
    let reserved = http.post("/v1/reserve", r#"{"policy":"llm","key":"b","cost":10}"#).json();
    let id = reserved["reservation"].as_str().unwrap();
    let commit = format!(r#"{{"reservation":"{id}","costs":[4]}}"#);
    assert_eq!(http.post("/v1/commit", &commit).json()["settled"], true);
    let left = http.post("/v1/take", r#"{"policy":"llm","key":"b","cost":9}"#).json();
    assert!(left["granted"].as_u64().unwrap() >= 6, "what was not needed is back: {left}");
}

#[test]
fn one_policy_for_two_keys_is_named_once_and_stands_by_the_tighter() {
    let running = start(POLICY);
    let mut http = Http::connect(running.http);
    assert_eq!(http.post("/v1/check", r#"{"policy":"api","key":"bob"}"#).status, 200);
    let both = r#"{"charges":[{"policy":"api","key":"ada"},{"policy":"api","key":"bob"}]}"#;
    let allowed = http.post("/v1/check", both);
    assert_eq!(allowed.field("ratelimit-policy"), Some("\"api\";q=2;w=60"));
    assert_eq!(allowed.field("ratelimit"), Some("\"api\";r=0;t=30"));
    let twice = r#"{"charges":[{"policy":"api","key":"bob"},{"policy":"api","key":"bob"}]}"#;
    let denied = http.post("/v1/check", twice).json();
    assert_eq!(denied["violated-policies"], serde_json::json!(["api"]));
    assert_eq!(denied["charges"].as_array().unwrap().len(), 2);
}

#[test]
fn pipelined_http_requests_are_answered_in_order() {
    let running = start(POLICY);
    let mut stream = TcpStream::connect(running.http).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let body = r#"{"policy":"api","key":"k"}"#;
    let request = format!(
        "POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.repeat(3).as_bytes()).unwrap();
    stream
        .write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let statuses: Vec<&str> =
        answer.match_indices("HTTP/1.1 ").map(|(at, _)| &answer[at + 9..at + 12]).collect();
    assert_eq!(statuses, ["200", "200", "429", "200"]);
}

#[test]
fn domains_with_the_same_rules_count_apart() {
    let domain = |name: &str| {
        let limit = "rate_limit = { unit = \"minute\", requests_per_unit = 1, name = \"one\" }\n";
        let shared = |value: &str| {
            format!(
                "[[domains.descriptors]]\nkey = \"path\"\nvalue = \"{value}\"\nshare_threshold = true\n{limit}"
            )
        };
        let user = format!("[[domains.descriptors]]\nkey = \"user\"\n{limit}");
        format!("[[domains]]\ndomain = \"{name}\"\n{user}{}{}", shared("/a*"), shared("/b*"))
    };
    let running = start(&format!("{}{}", domain("edge"), domain("inner")));
    let mut http = Http::connect(running.http);
    let mut ask = |domain: &str, key: &str, value: &str| {
        let entry = format!(r#"[{{"key":"{key}","value":"{value}"}}]"#);
        let body = format!(r#"{{"domain":"{domain}","descriptors":[{{"entries":{entry}}}]}}"#);
        http.post("/json", &body).status
    };
    assert_eq!([ask("edge", "user", "ada"), ask("edge", "user", "ada")], [200, 429]);
    assert_eq!([ask("inner", "user", "ada"), ask("inner", "user", "ada")], [200, 429]);
    // What a wildcard shares it shares with nobody else's wildcard, by whatever name.
    assert_eq!([ask("edge", "path", "/a1"), ask("edge", "path", "/a2")], [200, 429]);
    assert_eq!([ask("edge", "path", "/b1"), ask("edge", "path", "/b2")], [200, 429]);
}

#[test]
fn the_gate_takes_its_key_from_the_address_behind_trusted_proxies() {
    let running = start(&format!("trusted_proxies = [\"127.0.0.0/8\"]\n{POLICY}"));
    let mut http = Http::connect(running.http);
    let mut ask = |field: &str| http.send("GET", "/v1/gate/api", field, "").status;
    let hops = "x-forwarded-for: 6.6.6.6, 203.0.113.9\r\n";
    assert_eq!([ask(hops), ask(hops), ask(hops)], [200, 200, 429]);
    assert_eq!(ask("x-forwarded-for: 203.0.113.10\r\n"), 200);
    // HAProxy adds a line of its own below whatever the client wrote: the lines are one list.
    let mut spoof =
        |lie: &str| ask(&format!("x-forwarded-for: {lie}\r\nx-forwarded-for: 203.0.113.11\r\n"));
    assert_eq!([spoof("1.1.1.1"), spoof("2.2.2.2"), spoof("3.3.3.3")], [200, 200, 429]);
}

#[test]
fn the_gate_reads_addresses_as_proxies_write_them() {
    let running = start(&format!("trusted_proxies = [\"127.0.0.0/8\"]\n{POLICY}"));
    let mut http = Http::connect(running.http);
    let mut ask = |field: &str| http.send("GET", "/v1/gate/api", field, "").status;
    for client in 1..=4 {
        let field = format!("x-forwarded-for: 203.0.113.{client}:4711\r\n");
        assert_eq!(ask(&field), 200, "each client has a key of its own");
    }
    let spellings = ["203.0.113.9", "203.0.113.9:1", "\"203.0.113.9:2\"", "::ffff:203.0.113.9"];
    let statuses = spellings.map(|hop| ask(&format!("x-forwarded-for: {hop}\r\n")));
    assert_eq!(statuses, [200, 200, 429, 429], "and only one, however it is written");
    // Which field the proxies write is configured; the other is the client's own.
    let running = start(&format!(
        "trusted_proxies = [\"127.0.0.0/8\"]\nforwarded_by = \"forwarded\"\n{POLICY}"
    ));
    let mut http = Http::connect(running.http);
    let mut ask = |lie: &str| {
        let fields = format!(
            "x-forwarded-for: {lie}\r\nforwarded: for=6.6.6.6, for=\"[2001:db8::1]:47\"\r\n"
        );
        http.send("GET", "/v1/gate/api", &fields, "").status
    };
    assert_eq!([ask("1.1.1.1"), ask("2.2.2.2"), ask("3.3.3.3")], [200, 200, 429]);
}

#[test]
fn the_gate_refuses_two_keys_in_one_request() {
    let running =
        start("[[policies]]\nname = \"api\"\nquota = \"2/1h\"\ngate_key = \"header:x-api-key\"\n");
    let mut http = Http::connect(running.http);
    let mut ask = |fields: &str| http.send("GET", "/v1/gate/api", fields, "");
    let answer = ask("x-api-key: made-up\r\nX-Api-Key: real\r\n");
    assert_eq!(answer.status, 400);
    assert!(answer.body.contains("x-api-key is present more than once"), "{}", answer.body);
    assert_eq!(ask("x-api-key: real\r\n").status, 200);
}

#[test]
fn a_descriptor_of_any_length_is_limited() {
    let running = start(
        "[[domains]]\ndomain = \"edge\"\n[[domains.descriptors]]\nkey = \"user\"\n\
         rate_limit = { unit = \"minute\", requests_per_unit = 1 }\n",
    );
    let mut http = Http::connect(running.http);
    let mut ask = |value: &str| {
        let body = serde_json::json!({
            "domain": "edge",
            "descriptors": [{"entries": [{"key": "user", "value": value}]}],
        });
        http.send("POST", "/json", "", &body.to_string()).status
    };
    for value in ["\u{1f}".repeat(30_000), "\u{1f}".repeat(33_000), "x".repeat(100_000)] {
        assert_eq!([ask(&value), ask(&value)], [200, 429], "{} bytes", value.len());
    }
    assert_eq!(ask(&"x".repeat(100_001)), 200, "another value has a count of its own");
}

#[test]
fn tokens_give_roles_on_every_front() {
    let toml = "tokens = [{ token = \"look\", role = \"read\" }, { token = \"use\", role = \"check\" }, \
                { token = \"rule\", role = \"admin\" }]\n";
    let running = start(&format!("{toml}{POLICY}"));
    let mut http = Http::connect(running.http);
    let body = r#"{"policy":"api","key":"k"}"#;
    let mut status = |token: &str, method: &str, path: &str| {
        let field = match token {
            "" => String::new(),
            token => format!("authorization: Bearer {token}\r\n"),
        };
        http.send(method, path, &field, body).status
    };
    assert_eq!(status("", "POST", "/v1/check"), 401);
    assert_eq!(status("wrong", "POST", "/v1/check"), 401);
    assert_eq!(status("look", "POST", "/v1/check"), 403);
    assert_eq!(status("look", "POST", "/v1/peek"), 200);
    assert_eq!(status("look", "GET", "/metrics"), 200);
    assert_eq!(status("use", "POST", "/v1/check"), 200);
    assert_eq!(status("use", "POST", "/v1/reset"), 403);
    assert_eq!(status("rule", "POST", "/v1/reset"), 200);
    assert_eq!(status("", "GET", "/healthz"), 200);
    let mut resp = TcpStream::connect(running.resp).unwrap();
    resp.set_read_timeout(Some(PATIENCE)).unwrap();
    resp.write_all(b"TOLL.PEEK api k\r\nAUTH nope\r\nAUTH look\r\nTOLL.CHECK api k\r\nHELLO 2 AUTH u use\r\nQUIT\r\n").unwrap();
    let mut answer = String::new();
    resp.read_to_string(&mut answer).unwrap();
    let errors: Vec<&str> = answer.lines().filter(|line| line.starts_with('-')).collect();
    assert_eq!(errors.len(), 3, "{answer}");
    assert!(errors[0].starts_with("-NOAUTH") && errors[1].starts_with("-WRONGPASS"), "{answer}");
    assert!(errors[2].starts_with("-NOPERM"), "{answer}");
    let mut grpc = crate::clients::Grpc::connect(running.grpc);
    let refused = grpc.should_rate_limit(Default::default()).unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unauthenticated);
}

#[test]
fn wrong_tokens_are_limited_by_address_and_right_ones_never() {
    let tokens = "tokens = [{ token = \"right\", role = \"admin\" }]\n";
    let running = start(&format!("{tokens}{POLICY}"));
    let mut http = Http::connect(running.http);
    let mut peek = |token: &str| {
        let field = format!("authorization: Bearer {token}\r\n");
        http.send("POST", "/v1/peek", &field, r#"{"policy":"api","key":"k"}"#)
    };
    let wrong: Vec<u16> = (0..11).map(|n| peek(&format!("guess-{n}")).status).collect();
    assert_eq!(wrong[..10], [401; 10]);
    assert_eq!(wrong[10], 429);
    let refused = peek("guess");
    assert_eq!(refused.field("retry-after"), Some("6"));
    assert!(refused.body.contains("too many wrong tokens"), "{}", refused.body);
    let mut leaving = Http::connect(running.http);
    let fields = "authorization: Bearer guess\r\nconnection: close\r\n";
    assert_eq!(leaving.send("POST", "/v1/peek", fields, "{}").status, 429, "in whatever way");
    assert_eq!(peek("right").status, 200, "an address that many share is not locked out");
    // On every front: the address has used up what it may get wrong.
    let mut resp = TcpStream::connect(running.resp).unwrap();
    resp.set_read_timeout(Some(PATIENCE)).unwrap();
    resp.write_all(b"AUTH guess\r\nAUTH right\r\n").unwrap();
    let mut answer = String::new();
    resp.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "-WRONGPASS invalid token\r\n");
    let mut grpc = crate::clients::Grpc::connect(running.grpc);
    let refused = grpc.should_rate_limit_with("Bearer guess").unwrap_err();
    assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
    let metrics = http.send("GET", "/metrics", "authorization: Bearer right\r\n", "").body;
    for (front, count) in [("http", 13), ("resp", 1), ("grpc", 1)] {
        let line = format!("tollway_wrong_tokens_total{{front=\"{front}\"}} {count}");
        assert!(metrics.lines().any(|found| found == line), "{line}\n{metrics}");
    }
    assert!(!metrics.contains("guess"));
}

#[test]
fn a_connection_is_closed_after_a_few_wrong_tokens() {
    let running = start("tokens = [{ token = \"right\", role = \"admin\" }]\n");
    let mut resp = TcpStream::connect(running.resp).unwrap();
    resp.set_read_timeout(Some(PATIENCE)).unwrap();
    resp.write_all("AUTH guess\r\nRESET\r\n".repeat(2_000).as_bytes()).unwrap();
    let mut answer = Vec::new();
    // The rest of what was sent may be answered by a reset of the connection.
    let _ = resp.read_to_end(&mut answer);
    let answer = String::from_utf8(answer).unwrap();
    assert_eq!(answer.matches("WRONGPASS").count(), 3, "{answer}");
}

#[test]
fn a_reload_keeps_counts_of_unchanged_policies_and_a_bad_file_changes_nothing() {
    let folder = Folder::new("reload");
    let file = folder.file("rules.toml", POLICY);
    let running = start_with("", clock(), vec![file.clone()], Capacity::keys(1_000));
    let mut http = Http::connect(running.http);
    let api = r#"{"policy":"api","key":"k"}"#;
    assert_eq!(http.post("/v1/check", api).status, 200);
    let more = format!("{POLICY}[[policies]]\nname = \"web\"\nquota = \"9/1m\"\n");
    std::fs::write(&file, more).unwrap();
    assert_eq!(http.post("/admin/reload", "").status, 200);
    assert_eq!(http.post("/v1/check", r#"{"policy":"web","key":"k"}"#).status, 200);
    assert_eq!(http.post("/v1/check", api).json()["charges"][0]["remaining"], 0);
    std::fs::write(&file, "[[policies]]\nname = \"api\"\nquota = \"lots\"\n").unwrap();
    let refused = http.post("/admin/reload", "");
    assert_eq!(refused.status, 409);
    assert!(refused.body.contains("rules.toml:3: policies[0].quota"), "{refused:?}");
    assert_eq!(http.post("/v1/check", api).status, 429);
    let ready = http.get("/readyz");
    assert_eq!((ready.status, &ready.json()["config"]), (200, &"stale".into()));
    let metrics = http.get("/metrics").body;
    assert!(metrics.contains("tollway_config_reloads_total{result=\"refused\"} 1"), "{metrics}");
    // A writer empties the file first.
    std::fs::write(&file, "").unwrap();
    assert_eq!(http.post("/admin/reload", "").status, 409);
    assert_eq!(http.post("/v1/check", api).status, 429, "the policy is still there");
}

#[test]
fn a_reload_with_other_numbers_gives_and_takes_the_difference() {
    let folder = Folder::new("reload-numbers");
    let policy = |numbers: &str| format!("[[policies]]\nname = \"api\"\n{numbers}\n");
    let file = folder.file("rules.toml", &policy("quota = \"5/1h\""));
    let running = start_with("", clock(), vec![file.clone()], Capacity::keys(1_000));
    let mut http = Http::connect(running.http);
    let mut check = |numbers: &str, cost: u64| {
        std::fs::write(&file, policy(numbers)).unwrap();
        assert_eq!(http.post("/admin/reload", "").status, 200, "{numbers}");
        let body = format!(r#"{{"policy":"api","key":"k","cost":{cost}}}"#);
        let answer = http.post("/v1/check", &body);
        (answer.status, answer.json()["charges"][0]["remaining"].as_u64().unwrap())
    };
    assert_eq!(check("quota = \"5/1h\"", 3), (200, 2));
    assert_eq!(check("quota = \"8/1h\"", 1), (200, 4), "raised");
    assert_eq!(check("quota = \"4/1h\"", 1), (429, 0), "lowered");
    assert_eq!(check("quota = \"8/1h\"", 1), (200, 3), "and raised again");
    let window = "quota = \"10/1h\"\nalgorithm = \"sliding-window\"\nbuckets = 6";
    assert_eq!(check(window, 1), (200, 4), "another algorithm");
    let share = "quota = \"20/1h\"\non_change = \"proportional\"";
    assert_eq!(check(share, 1), (200, 7), "six of ten are twelve of twenty");
    assert_eq!(check("quota = \"30/1h\"\non_change = \"reset\"", 1), (200, 29));
}

/// Asks over RESP; the first line of the answer.
fn say(resp: &mut TcpStream, command: &str) -> String {
    resp.write_all(command.as_bytes()).unwrap();
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        let mut byte = [0];
        resp.read_exact(&mut byte).unwrap();
        line.push(byte[0]);
    }
    String::from_utf8(line).unwrap()
}

#[test]
fn a_call_that_brings_a_higher_rate_is_not_denied_for_what_a_lower_one_took() {
    let running = start("");
    let mut resp = TcpStream::connect(running.resp).unwrap();
    resp.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut throttle = |numbers: &str| {
        assert_eq!(say(&mut resp, &format!("CL.THROTTLE k {numbers}\r\n")), "*5\r\n");
        let figures: Vec<String> = (0..5).map(|_| say(&mut resp, "")).collect();
        [figures[0].trim().to_owned(), figures[2].trim().to_owned()]
    };
    // Ten of ten at ten a minute, then one more at a hundred a minute with room for twenty.
    assert_eq!(throttle("9 10 60 10"), [":0", ":0"]);
    assert_eq!(throttle("9 10 60 1"), [":1", ":0"]);
    assert_eq!(throttle("19 100 60 1"), [":0", ":9"]);
    // And with numbers that divide into no whole nanoseconds.
    assert_eq!(throttle("19 999999999 1000 9"), [":0", ":0"]);
}

#[test]
fn tokens_are_given_and_taken_back_by_a_reload_on_open_connections_too() {
    let folder = Folder::new("tokens");
    let secret = folder.file("secret", "first\n");
    let configured = |more: &str| {
        let file = format!("token_file = {:?}", secret.display().to_string());
        let boss = "{ token = \"boss\", role = \"admin\" }";
        format!("tokens = [{boss}, {{ {file}, role = \"check\" }}{more}]\n{POLICY}")
    };
    let file = folder.file("rules.toml", &configured(""));
    let running = start_with("", clock(), vec![file.clone()], Capacity::keys(1_000));
    let mut http = Http::connect(running.http);
    let mut peek = |token: &str| {
        let field = format!("authorization: Bearer {token}\r\n");
        http.send("POST", "/v1/peek", &field, r#"{"policy":"api","key":"k"}"#).status
    };
    let mut resp = TcpStream::connect(running.resp).unwrap();
    resp.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(say(&mut resp, "AUTH first\r\n"), "+OK\r\n");
    assert_eq!([peek("first"), peek("second"), peek("third")], [200, 401, 401]);
    std::fs::write(&secret, "second\n").unwrap();
    std::fs::write(&file, configured(", { token = \"third\", role = \"read\" }")).unwrap();
    reload(running.server.service()).unwrap();
    assert_eq!([peek("first"), peek("second"), peek("third")], [401, 200, 200]);
    assert!(say(&mut resp, "PING\r\n").starts_with("-NOAUTH"), "it was taken back");
    assert_eq!(say(&mut resp, "AUTH second\r\nPING\r\n"), "+OK\r\n");
    assert_eq!(running.server.service().auth().files(), [secret]);
}

/// The process may listen to others, because the file said that a token is needed.
#[test]
fn taking_the_last_token_away_needs_a_restart_which_is_told() {
    let folder = Folder::new("last-token");
    let tokens = "tokens = [{ token = \"boss\", role = \"admin\" }]\n";
    let file = folder.file("rules.toml", &format!("{tokens}{POLICY}"));
    let running = start_with("", clock(), vec![file.clone()], Capacity::keys(1_000));
    let mut http = Http::connect(running.http);
    let boss = "authorization: Bearer boss\r\n";
    std::fs::write(&file, POLICY).unwrap();
    assert_eq!(http.send("POST", "/admin/reload", boss, "").status, 200);
    assert_eq!(http.get("/metrics").status, 401, "the token is still needed");
    let ready = http.send("GET", "/readyz", boss, "").json();
    assert_eq!((&ready["ready"], &ready["config"]), (&true.into(), &"stale".into()), "{ready}");
    assert!(ready["config_error"].as_str().unwrap().contains("needs a restart"), "{ready}");
    assert_eq!(http.get("/readyz").json()["config_error"], serde_json::Value::Null);
    let metrics = http.send("GET", "/metrics", boss, "").body;
    assert!(metrics.contains("tollway_config_stale{part=\"restart\"} 1"), "{metrics}");
    std::fs::write(&file, format!("{tokens}{POLICY}")).unwrap();
    assert_eq!(http.send("POST", "/admin/reload", boss, "").status, 200);
    assert_eq!(http.get("/readyz").json()["config"], "current");
}

#[test]
fn a_reload_that_takes_long_keeps_nobody_waiting() {
    let folder = Folder::new("reload-long");
    let file = folder.file("rules.toml", POLICY);
    let running = start_with("", clock(), vec![file.clone()], Capacity::keys(1_000));
    // A pipe takes as long to read as its writer wants, whatever the machine.
    std::fs::remove_file(&file).unwrap();
    output(Command::new("mkfifo").arg(&file));
    let address = running.http;
    let reload = std::thread::spawn(move || Http::connect(address).post("/admin/reload", ""));
    // Opens when the reload reads.
    let mut writer = std::fs::File::options().write(true).open(&file).unwrap();
    // Connections go to the workers in turn: one of these is served by the worker that reloads.
    for _ in 0..4 {
        assert_eq!(Http::connect(address).get("/healthz").status, 200);
    }
    writer.write_all(POLICY.as_bytes()).unwrap();
    drop(writer);
    assert_eq!(reload.join().unwrap().status, 200);
}

#[test]
fn metrics_name_policies_and_never_keys_and_the_top_list_names_keys() {
    let running = start(POLICY);
    let mut http = Http::connect(running.http);
    for _ in 0..5 {
        http.post("/v1/check", r#"{"policy":"api","key":"mallory"}"#);
    }
    let metrics = http.get("/metrics").body;
    for line in [
        "tollway_decisions_total{domain=\"\",policy=\"api\",decision=\"allow\"} 2",
        "tollway_decisions_total{domain=\"\",policy=\"api\",decision=\"deny\"} 3",
        "tollway_keys 1",
        "tollway_windows_by_other_zone_data_total 0",
        "tollway_connections{front=\"http\"} 1",
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line}\n{metrics}");
    }
    assert!(!metrics.contains("mallory") && metrics.contains("process_cpu_seconds_total"));
    let top = http.get("/admin/top?n=1").json();
    let first = &top["denied"][0];
    assert_eq!((&first["key"], &top["unit"]), (&"mallory".into(), &"per second".into()));
    assert_eq!((&first["denied_1m"], &first["denied_5m"]), (&0.05.into(), &0.01.into()));
    let openapi = http.get("/openapi.json").json();
    for path in ["/v1/check", "/v1/take", "/v1/gate/{policy}", "/throttle", "/json", "/metrics"] {
        assert!(openapi["paths"].get(path).is_some(), "{path}");
    }
}

#[test]
fn shadow_mode_and_lists_apply_on_every_front() {
    let toml = "[lists]\nunlimited = [\"friend\"]\nbanned = [\"foe\"]\n\
                [[policies]]\nname = \"trial\"\nquota = \"1/1m\"\nshadow = true\n";
    let running = start(&format!("{toml}{POLICY}"));
    let mut http = Http::connect(running.http);
    let mut ask = |policy: &str, key: &str| {
        http.post("/v1/check", &format!(r#"{{"policy":"{policy}","key":"{key}"}}"#)).status
    };
    for _ in 0..4 {
        assert_eq!((ask("trial", "k"), ask("api", "friend"), ask("api", "foe")), (200, 200, 429));
    }
    let mut reserve = |policy: &str, key: &str| {
        http.post("/v1/reserve", &format!(r#"{{"policy":"{policy}","key":"{key}"}}"#)).status
    };
    for _ in 0..4 {
        let statuses = (reserve("trial", "r"), reserve("api", "friend"), reserve("api", "foe"));
        assert_eq!(statuses, (200, 200, 429));
    }
    let banned = http.post("/v1/check", r#"{"policy":"api","key":"foe"}"#).json();
    assert_eq!(banned["title"], "Abnormal Usage Detected");
    assert_eq!(banned["charges"][0]["retry"], "never");
    let both = r#"{"charges":[{"policy":"trial","key":"k"},{"policy":"api","key":"z"}]}"#;
    let answer = http.post("/v1/check", both);
    assert_eq!((answer.status, &answer.json()["charges"][1]["remaining"]), (200, &1.into()));
    let metrics = http.get("/metrics").body;
    let line = "tollway_decisions_total{domain=\"\",policy=\"trial\",decision=\"shadow_deny\"} 4";
    assert!(metrics.lines().any(|found| found == line), "{metrics}");
}

/// A client that heeds what it is told must not wait for a policy that cannot deny it.
#[test]
fn what_cannot_deny_is_not_told_to_clients() {
    let daily = "[[policies]]\nname = \"daily\"\nquota = \"1/1d\"\n";
    let running = start(&format!("{POLICY}{daily}shadow = true\n"));
    let mut http = Http::connect(running.http);
    let both = r#"{"charges":[{"policy":"api","key":"z"},{"policy":"daily","key":"z"}]}"#;
    assert_eq!(
        [http.post("/v1/check", both).status, http.post("/v1/check", both).status],
        [200; 2]
    );
    let denied = http.post("/v1/check", both);
    assert_eq!((denied.status, denied.field("retry-after")), (429, Some("30")));
    assert_eq!(denied.field("ratelimit"), Some("\"api\";r=0;t=30"));
    let counted = start(&format!("{POLICY}{daily}"));
    let mut http = Http::connect(counted.http);
    let both =
        r#"{"charges":[{"policy":"api","key":"z"},{"policy":"daily","key":"z","count":true}]}"#;
    assert_eq!(
        [http.post("/v1/check", both).status, http.post("/v1/check", both).status],
        [200; 2]
    );
    assert_eq!(http.post("/v1/check", both).field("retry-after"), Some("30"));
}

#[test]
fn a_drain_is_unready_at_once_finishes_what_is_in_flight_and_ends() {
    let running = start(POLICY);
    let mut idle = TcpStream::connect(running.resp).unwrap();
    let mut begun = TcpStream::connect(running.http).unwrap();
    for stream in [&idle, &begun] {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
    }
    begun.write_all(b"GET /readyz HTTP/1.1\r\n").unwrap();
    let mut probe = Http::connect(running.http);
    assert_eq!(probe.get("/readyz").status, 200);
    crate::harness::eventually("all are served", || {
        running.server.service().open_connections() == 3
    });
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let service = Arc::clone(running.server.service());
    let drain = Drain { delay: Duration::from_millis(200), timeout: PATIENCE };
    let draining = runtime.unwrap();
    let done = draining.spawn(running.server.drain(drain));
    crate::harness::eventually("it drains", || service.is_draining());
    assert_eq!(probe.get("/readyz").status, 503);
    // Idle connections are closed, the request in flight is answered.
    assert_eq!(idle.read(&mut [0]).unwrap(), 0);
    begun.write_all(b"host: localhost\r\n\r\n").unwrap();
    let mut answer = String::new();
    begun.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    assert!(draining.block_on(done).unwrap());
    assert!(TcpStream::connect(running.resp).is_err());
}

/// Workers always wait for their next job: a drain must not wait for them.
#[test]
fn a_drain_ends_the_wait_for_a_job() {
    let any = || Some("127.0.0.1:0".to_owned());
    let overrides = Overrides { http: any(), grpc: any(), resp: any(), ..Overrides::default() };
    let metrics = Metrics::default();
    let texts = [("test.toml".to_owned(), "[[queues]]\nname = \"mail\"\n".to_owned())];
    let config = Config::from_texts(&texts, &overrides, &metrics).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let queues = runtime.block_on(async {
        let backend = tollway_server::open_queue_store(None, false).await.unwrap();
        Queues::start(backend, clock(), &config.queues).await.unwrap()
    });
    let memory = Backing::Memory(Arc::new(MemoryStore::new(Capacity::keys(100))));
    let service = Service::new(config.rules, metrics, memory, clock(), config.settings);
    let service = Arc::new(service.with_queues(queues));
    let running = crate::harness::running(Server::start(service, &config.listen, None, 1).unwrap());
    let mut waiting = TcpStream::connect(running.http).unwrap();
    waiting.set_read_timeout(Some(PATIENCE)).unwrap();
    let ask = "POST /v1/queues/mail/lease HTTP/1.1\r\nhost: localhost\r\n\
        content-type: application/json\r\ncontent-length: 17\r\n\r\n";
    waiting.write_all(format!("{ask}{{\"wait_ms\":60000}}").as_bytes()).unwrap();
    // Answered in order: that the next connection is served shows that the lease call is under way.
    assert_eq!(Http::connect(running.http).get("/healthz").status, 200);
    let drain = Drain { delay: Duration::ZERO, timeout: Duration::from_secs(20) };
    assert!(runtime.block_on(running.server.drain(drain)), "the wait held the drain up");
    let mut answer = String::new();
    waiting.read_to_string(&mut answer).unwrap();
    assert!(answer.ends_with("{\"leases\":[]}"), "{answer}");
}

/// A server whose fronts listen on sockets in a folder, each with what `setting` says of it.
fn start_on_sockets(folder: &Folder, setting: impl Fn(&str) -> String) -> Server {
    let at = |name: &str| Some(format!("unix:{}{}", folder.0.join(name).display(), setting(name)));
    let overrides =
        Overrides { http: at("http"), grpc: at("grpc"), resp: at("resp"), ..Overrides::default() };
    let metrics = Metrics::default();
    let config = Config::from_texts(&[], &overrides, &metrics).unwrap();
    let memory = Backing::Memory(Arc::new(MemoryStore::new(Capacity::keys(100))));
    let service = Service::new(config.rules, metrics, memory, clock(), config.settings);
    Server::start(Arc::new(service), &config.listen, None, 1).unwrap()
}

/// gRPC's C core calls a socket by its path, percent-encoded.
#[test]
fn grpc_over_a_unix_socket_is_answered_whatever_the_client_calls_it() {
    let folder = Folder::new("unix-grpc");
    let _server = start_on_sockets(&folder, |_| String::new());
    let framed = |kind: u8, flags: u8, stream: u8, payload: &[u8]| {
        let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
        bytes.extend_from_slice(&[kind, flags, 0, 0, 0, stream]);
        bytes.extend_from_slice(payload);
        bytes
    };
    let fields = b"\x83\x86\x40\x05:path\x1c/grpc.health.v1.Health/Check\
        \x40\x0a:authority\x0etmp%2Fx%2Fgrpc\x40\x0ccontent-type\x10application/grpc\
        \x40\x02te\x08trailers";
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(framed(4, 0, 0, b""));
    bytes.extend(framed(1, 4, 1, fields));
    bytes.extend(framed(0, 1, 1, b"\0\0\0\0\0"));
    let mut stream = UnixStream::connect(folder.0.join("grpc")).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(&bytes).unwrap();
    // The first frame of the stream is the head of an answer, not its reset.
    let kind = loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).unwrap();
        let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
        stream.read_exact(&mut payload).unwrap();
        if head[8] == 1 {
            break head[3];
        }
    };
    assert_eq!(kind, 1);
}

#[test]
fn grpcio_asks_over_a_unix_socket() {
    if !tools().join("python/grpc").exists() && tool("python/grpc").is_none() {
        return;
    }
    let folder = Folder::new("unix-grpcio");
    let _server = start_on_sockets(&folder, |_| String::new());
    let script = format!(
        "import grpc\n\
         channel = grpc.insecure_channel('unix:{}')\n\
         check = channel.unary_unary('/grpc.health.v1.Health/Check')\n\
         print([list(check(b'', timeout=60)) for _ in range(3)])\n",
        folder.0.join("grpc").display()
    );
    let mut command = Command::new("python3");
    command.env("PYTHONPATH", tools().join("python")).args(["-c", &script]);
    assert_eq!(output(&mut command), "[[8, 1], [8, 1], [8, 1]]\n");
}

#[test]
fn every_front_listens_on_a_unix_socket_too() {
    let folder = Folder::new("unix");
    // A group that this process is in: giving a file to another one needs privileges.
    let group = folder.0.metadata().unwrap().gid();
    let _server = start_on_sockets(&folder, |name| {
        format!("?mode={}&group={group}", if name == "http" { "0660" } else { "600" })
    });
    let mode = |name| folder.0.join(name).metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(["http", "grpc", "resp"].map(mode), [0o660, 0o600, 0o600]);
    let mut resp = UnixStream::connect(folder.0.join("resp")).unwrap();
    resp.write_all(b"PING\r\nQUIT\r\n").unwrap();
    let mut answer = String::new();
    resp.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "+PONG\r\n+OK\r\n");
    let mut http = UnixStream::connect(folder.0.join("http")).unwrap();
    http.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        .unwrap();
    answer.clear();
    http.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

/// A certificate authority, and a certificate by it for `name`, made by openssl.
pub(crate) fn certificates(folder: &Folder) {
    let run = |arguments: &str| {
        output(Command::new("openssl").args(arguments.split(' ')).current_dir(&folder.0));
    };
    run("req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem -days 2 -subj /CN=ca");
    for name in ["server", "client"] {
        run(&format!(
            "req -newkey rsa:2048 -nodes -keyout {name}.key -out {name}.csr -subj /CN={name}"
        ));
        folder.file("san", "subjectAltName=IP:127.0.0.1,DNS:localhost");
        run(&format!(
            "x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out {name}.pem -days 2 -extfile san"
        ));
    }
}

#[test]
fn fronts_speak_tls_and_ask_for_client_certificates_where_told() {
    let (Some(curl), Some(_)) = (tool("curl"), tool("openssl")) else { return };
    let folder = Folder::new("tls");
    certificates(&folder);
    let path = |name: &str| folder.0.join(name).display().to_string();
    let toml = format!(
        "[tls]\ncertificate = \"{}\"\nkey = \"{}\"\nclient_authority = \"{}\"\n{POLICY}",
        path("server.pem"),
        path("server.key"),
        path("ca.pem")
    );
    let running = start(&toml);
    let url = format!("https://127.0.0.1:{}/healthz", running.http.port());
    let ca = path("ca.pem");
    let bare = Command::new(&curl).args(["-s", "--cacert", &ca, &url]).output().unwrap();
    assert!(!bare.status.success(), "no client certificate was asked for");
    let (cert, key) = (path("client.pem"), path("client.key"));
    let known = ["-s", "--cacert", &ca, "--cert", &cert, "--key", &key];
    for version in ["--http1.1", "--http2"] {
        assert_eq!(output(Command::new(&curl).args(known).args([version, &url])), "OK");
    }
}

#[test]
fn renewed_certificates_are_shown_without_a_restart_and_broken_ones_are_not() {
    let (Some(curl), Some(openssl)) = (tool("curl"), tool("openssl")) else { return };
    let folder = Folder::new("tls-renewed");
    certificates(&folder);
    let path = |name: &str| folder.0.join(name);
    let (pem, key) = (path("server.pem"), path("server.key"));
    let toml = format!(
        "[tls]\ncertificate = \"{}\"\nkey = \"{}\"\n{POLICY}",
        pem.display(),
        key.display()
    );
    let file = folder.file("rules.toml", &toml);
    let running = start_with("", clock(), vec![file.clone()], Capacity::keys(1_000));
    let shown = |port: u16| {
        let to = format!("127.0.0.1:{port}");
        let mut client = Command::new(&openssl);
        let told = client.args(["s_client", "-connect", &to]).stdin(Stdio::null()).output();
        let told = String::from_utf8_lossy(&told.unwrap().stdout).into_owned();
        told.lines().find(|line| line.contains("subject=")).unwrap_or_default().to_owned()
    };
    let fronts = [running.http.port(), running.grpc.port(), running.resp.port()];
    let service = running.server.service();
    assert!(fronts.iter().all(|port| shown(*port).contains("server")));
    // Half of a new pair: the key does not belong to the certificate.
    std::fs::copy(path("client.pem"), &pem).unwrap();
    reload_certificates(service);
    assert!(fronts.iter().all(|port| shown(*port).contains("server")));
    let url = |path: &str| format!("https://127.0.0.1:{}{path}", running.http.port());
    let get = |path: &str| output(Command::new(&curl).args(["-sk", &url(path)]));
    let stale = "tollway_config_stale{part=\"certificates\"} ";
    let ready: serde_json::Value = serde_json::from_str(&get("/readyz")).unwrap();
    assert_eq!(ready["config"], "stale");
    let told = ready["config_error"].as_str().unwrap();
    assert!(told.contains("certificates: ") && told.contains("server.key"), "{told}");
    assert!(get("/metrics").contains(&format!("{stale}1")));
    // The other half, with rules that are wrong: certificates do not wait for them.
    std::fs::copy(path("client.key"), &key).unwrap();
    std::fs::write(&file, "policies = 1\n").unwrap();
    assert!(reload(service).is_err());
    assert!(fronts.iter().all(|port| shown(*port).contains("client")));
    // Another name for the files is read from the configuration.
    certificates(&folder);
    std::fs::write(&file, toml.replace("server.pem", "ca.pem").replace("server.key", "ca.key"))
        .unwrap();
    assert!(reload(service).is_ok());
    assert!(fronts.iter().all(|port| shown(*port).contains("ca")));
    assert!(get("/readyz").contains("\"config\":\"current\""));
    assert!(get("/metrics").contains(&format!("{stale}0")));
}
