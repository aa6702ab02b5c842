use std::time::Duration;

use tollway_core::Timestamp;

use super::*;

const START: Timestamp = Timestamp::from_millis(1_700_000_000_000);

fn discord() -> Upstream {
    Upstream::new(Spec::named("discord").unwrap())
}

fn ask(upstream: &mut Upstream, method: &str, target: &str, at_ms: u64) -> Response {
    let now = START.after(Duration::from_millis(at_ms));
    let request = Request { method, target, credential: Some("Bot one"), body: b"{}" };
    upstream.answer(&request, now)
}

fn statuses(upstream: &mut Upstream, target: &str, at_ms: &[u64]) -> Vec<u16> {
    at_ms.iter().map(|at| ask(upstream, "POST", target, *at).status).collect()
}

#[test]
fn every_profile_reads_and_answers() {
    for name in Spec::names() {
        let mut upstream = Upstream::new(Spec::named(name).unwrap());
        assert_eq!(ask(&mut upstream, "GET", "/users/list", 0).status, 200, "{name}");
    }
}

#[test]
fn the_example_of_every_profile_is_served_and_counted() {
    for name in Spec::names() {
        let spec = Spec::named(name).unwrap();
        let Example { method, path } = spec.example().unwrap();
        let mut upstream = Upstream::new(spec);
        let answer = ask(&mut upstream, &method, &path, 0);
        assert_eq!(answer.status, 200, "{name}: {}", answer.body);
        let counted: u64 = upstream.counters(START).buckets.values().map(|it| it.requests).sum();
        assert_eq!(counted, 1, "{name}: {method} {path}");
    }
}

#[test]
fn an_upstream_of_ones_own_has_an_example_without_saying_so() {
    let spec = Spec::from_toml(
        "[buckets.b]\nlimit = 1\nper = '1s'\n[[routes]]\npath = '/free'\n\
         [[routes]]\nmethod = 'PUT'\npath = '/a/{+id}/*'\nbucket = 'b'\n",
    );
    let example = Example { method: "PUT".into(), path: "/a/1/1".into() };
    assert_eq!(spec.unwrap().example(), Some(example));
    assert_eq!(Spec::from_toml("").unwrap().example(), None);
    assert!(Spec::from_toml("example = 'x'").is_err());
}

#[test]
fn a_fixed_window_gives_all_back_at_once() {
    let mut upstream = discord();
    let path = "/api/v10/channels/1/messages";
    assert_eq!(statuses(&mut upstream, path, &[0, 1, 2, 3, 4, 5]), [200, 200, 200, 200, 200, 429]);
    assert_eq!(statuses(&mut upstream, path, &[4_999, 5_000, 5_001]), [429, 200, 200]);
}

#[test]
fn a_sliding_bucket_gives_back_one_by_one_and_tells_the_way_to_full() {
    let mut upstream = discord();
    let times = [0, 0, 0, 0, 0];
    for at in times {
        assert_eq!(ask(&mut upstream, "GET", "/channels/1/messages", at).status, 200);
    }
    let denied = ask(&mut upstream, "GET", "/channels/1/messages", 500);
    assert_eq!(denied.status, 429);
    assert_eq!(denied.field("x-ratelimit-reset-after"), Some("4.500"));
    assert!(denied.body.contains("\"retry_after\":0.500"), "{}", denied.body);
    assert_eq!(ask(&mut upstream, "GET", "/channels/1/messages", 1_000).status, 200);
    assert_eq!(ask(&mut upstream, "GET", "/channels/1/messages", 1_001).status, 429);
}

#[test]
fn resources_are_counted_apart_and_told_under_one_hash() {
    let mut upstream = discord();
    let one = ask(&mut upstream, "POST", "/channels/1/messages", 0);
    let other = ask(&mut upstream, "POST", "/channels/2/messages", 0);
    assert_eq!(one.field("x-ratelimit-bucket"), other.field("x-ratelimit-bucket"));
    assert_eq!(other.field("x-ratelimit-remaining"), Some("4"));
}

#[test]
fn no_second_of_any_phase_holds_more_than_the_global_limit() {
    let mut upstream = discord();
    let mut denied = 0;
    for request in 0..100 {
        // Fifty at the end of one second of the clock, fifty at the start of the next.
        let at = if request < 50 { 990 } else { 1_010 };
        let response = ask(&mut upstream, "POST", &format!("/channels/{request}/messages"), at);
        denied += u32::from(response.status == 429);
    }
    assert_eq!(denied, 50);
    let denied = ask(&mut upstream, "POST", "/channels/7/messages", 1_900);
    assert_eq!(denied.field("x-ratelimit-global"), Some("true"));
    assert_eq!(denied.field("x-ratelimit-limit"), None);
    let exempt = ask(&mut upstream, "POST", "/interactions/1/abc/callback", 1_900);
    assert_eq!((exempt.status, exempt.field("x-ratelimit-limit")), (200, None));
}

#[test]
fn a_sub_limit_denies_while_the_fields_claim_room() {
    let mut upstream = discord();
    let rename = Request {
        method: "PATCH",
        target: "/channels/1",
        credential: None,
        body: br#"{"name":"x"}"#,
    };
    let answers: Vec<_> = (0..3).map(|_| upstream.answer(&rename, START)).collect();
    assert_eq!(answers.iter().map(|answer| answer.status).collect::<Vec<_>>(), [200, 200, 429]);
    assert_eq!(answers[2].field("x-ratelimit-remaining"), Some("4"));
    assert_eq!(answers[2].field("retry-after"), Some("600"));
    let topic = Request { body: br#"{"topic":"x"}"#, ..rename };
    assert_eq!(upstream.answer(&topic, START).status, 200);
}

#[test]
fn shared_denials_are_not_held_against_the_client() {
    let mut upstream = discord();
    let path = "/channels/1/messages/2/crosspost";
    let answers = statuses(&mut upstream, path, &[0; 12]);
    assert_eq!(answers[10..], [429, 429]);
    let counters = upstream.counters(START);
    assert_eq!((counters.limited_shared, counters.invalid), (2, 0));
}

#[test]
fn invalid_requests_bring_a_ban_and_the_ban_ends() {
    let mut spec = Spec::named("discord").unwrap();
    spec.ban.as_mut().unwrap().invalid = 3;
    let mut upstream = Upstream::new(spec);
    for path in ["/channels/403/messages", "/webhooks/404/x", "/webhooks/404/y"] {
        assert!(matches!(ask(&mut upstream, "POST", path, 0).status, 403 | 404));
    }
    let banned = ask(&mut upstream, "POST", "/channels/1/messages", 1);
    assert_eq!((banned.status, banned.field("via")), (429, None));
    assert_eq!(banned.field("content-type"), Some("text/html; charset=UTF-8"));
    assert_eq!(ask(&mut upstream, "POST", "/channels/1/messages", 3_600_001).status, 200);
    assert_eq!(upstream.counters(START).bans, 1);
}

#[test]
fn faults_happen_when_they_are_due() {
    let mut spec = Spec::named("discord").unwrap();
    let faults = r#"
        faults = [
            { do = "rename-buckets", at-request = 2 },
            { do = "hide-fields", on = true, at-request = 3 },
            { do = "hide-fields", on = false, at-request = 4 },
            { do = "late", count = 1, by = "80ms", at-request = 4 },
            { do = "garble", count = 1, at-request = 5 },
            { do = "end", count = 1, ending = "cut-body", at = "1s" },
        ]
    "#;
    spec.faults = Spec::from_toml(faults).unwrap().faults;
    let mut upstream = Upstream::new(spec);
    let mut ask = |at| ask(&mut upstream, "POST", &format!("/channels/{at}/messages"), at);
    let (one, two, three, four, five) = (ask(0), ask(1), ask(2), ask(3), ask(4));
    assert_ne!(one.field("x-ratelimit-bucket"), two.field("x-ratelimit-bucket"));
    assert_eq!(three.field("x-ratelimit-bucket"), None);
    assert_eq!(four.delay, Duration::from_millis(80));
    assert!(five.field("x-ratelimit-limit").unwrap().parse::<u32>().is_err());
    assert_eq!(ask(1_000).ending, Ending::CutBody);
    assert_eq!(ask(1_001).ending, Ending::Whole);
}

#[test]
fn a_skewed_clock_moves_the_reset_but_not_the_wait() {
    let mut upstream = discord();
    upstream.inject(Fault::Skew { ahead_ms: -40_000 });
    let response = ask(&mut upstream, "POST", "/channels/1/messages", 0);
    assert_eq!(response.field("x-ratelimit-reset-after"), Some("5.000"));
    assert_eq!(response.field("x-ratelimit-reset"), Some("1699999965.000"));
}

#[test]
fn every_described_body_is_json_whatever_the_request_says() {
    let bodies = [&b""[..], br#"{"content":"\"<id>\"","model":"m"}"#, b"name=a+%22b%22&title=x"];
    for name in Spec::names() {
        let spec = Spec::named(name).unwrap();
        let requests: Vec<String> = spec.answers.iter().map(|a| a.request.clone()).collect();
        for error in spec.errors.values() {
            serde_json::from_str::<serde_json::Value>(&error.body).unwrap();
        }
        let each = requests.iter().flat_map(|request| bodies.map(|body| (request, body)));
        for (request, body) in each {
            let (method, template) = request.split_once(' ').unwrap();
            let target = template.replace(['{', '}'], "").replace("number", "7");
            let request = Request { method, target: &target, credential: None, body };
            let answer = Upstream::new(spec.clone()).answer(&request, START);
            let parsed = serde_json::from_str::<serde_json::Value>(&answer.body);
            assert!(parsed.is_ok() || answer.status == 204, "{name} {method} {target}: {answer:?}");
            assert!(!answer.body.contains(&format!("\"path\":\"{target}\"")), "{target}: an echo");
        }
    }
}

#[test]
fn an_answer_repeats_what_the_request_said() {
    let body = br#"{"content":"say \"<id>\" & more"}"#;
    let request = Request {
        method: "POST",
        target: "/api/v10/channels/77/messages?wait=true",
        credential: None,
        body,
    };
    let answer = discord().answer(&request, START);
    let message: serde_json::Value = serde_json::from_str(&answer.body).unwrap();
    assert_eq!(message["content"], "say \"<id>\" & more");
    assert_eq!((&message["channel_id"], &message["id"]), (&"77".into(), &"1000001".into()));
    assert_eq!(message["timestamp"], "2023-11-14T22:13:20Z");
    let form =
        Request { method: "POST", target: "/v1/customers", body: b"name=Ada+L%2E", ..request };
    let answer = Upstream::new(Spec::named("stripe").unwrap()).answer(&form, START);
    let customer: serde_json::Value = serde_json::from_str(&answer.body).unwrap();
    assert_eq!(customer["name"], "Ada L.");
}

#[test]
fn errors_look_as_the_api_words_them() {
    let revoked = Request {
        method: "POST",
        target: "/api/chat.postMessage",
        credential: Some("Bearer revoked"),
        body: b"",
    };
    let slack = Upstream::new(Spec::named("slack").unwrap()).answer(&revoked, START);
    assert_eq!((slack.status, &*slack.body), (200, r#"{"ok": false, "error": "invalid_auth"}"#));
    let mut openai = Upstream::new(Spec::named("openai").unwrap());
    let answer = openai.answer(&Request { target: "/v1/chat/completions", ..revoked }, START);
    assert!(answer.status == 401 && answer.body.contains("invalid_api_key"), "{answer:?}");
    let unknown = Spec::from_toml("[[answers]]\nrequest = \"channels\"").unwrap_err();
    assert!(unknown.to_string().contains("GET /path"), "{unknown}");
}
