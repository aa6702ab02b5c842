//! What can be filled in, sent and kept, without a connection.

use http::header::{HeaderName, HeaderValue};
use http::{Method, Request, Uri};
use serde_json::{Value, json};

use super::template::JobValues;
use super::url::UrlTemplate;
use super::*;
use crate::{Group, JobId, Lease};

fn lease(group: &str, payload: &str) -> Lease {
    Lease {
        id: JobId(7),
        attempt: 2,
        failures: 0,
        group: Group::new(group).unwrap(),
        payload: Bytes::copy_from_slice(payload.as_bytes()),
        priority: 0,
        weight: 1,
        enqueued_at: Timestamp::MIN,
        leased_at: Timestamp::MIN,
        expires_at: Timestamp::MAX,
    }
}

fn url_of(url: &str, group: &str, payload: &str) -> Result<String, String> {
    let template = UrlTemplate::parse(url).map_err(|error| error.to_string())?;
    template.fill(&JobValues::new(&lease(group, payload))).map(|uri: Uri| uri.to_string())
}

#[test]
fn a_url_is_filled_with_the_group_the_id_and_fields_of_the_payload() {
    let url = "https://h:8/g/{group}/m/{payload.user.id}?job={id}&n={attempt}&q={payload.q}";
    let told = url_of(url, "42", r#"{"user":{"id":9007199254740993},"q":"a b&c=d#/é"}"#);
    let expected = "https://h:8/g/42/m/9007199254740993?job=7&n=2&q=a%20b%26c%3Dd%23%2F%C3%A9";
    assert_eq!(told.unwrap(), expected);
    assert_eq!(url_of("http://h", "g", "").unwrap(), "http://h/");
    assert_eq!(
        url_of("http://h?x={payload.on}", "g", r#"{"on":true}"#).unwrap(),
        "http://h/?x=true"
    );
}

#[test]
fn what_a_job_fills_in_changes_neither_host_nor_path() {
    let put =
        |value: &str| url_of("http://h/a/{payload.x}/b", "g", &json!({ "x": value }).to_string());
    assert_eq!(put("c/d").unwrap(), "http://h/a/c%2Fd/b");
    assert_eq!(put("@evil.example").unwrap(), "http://h/a/%40evil.example/b");
    assert_eq!(put("x?y#z").unwrap(), "http://h/a/x%3Fy%23z/b");
    assert_eq!(put("%2e%2e").unwrap(), "http://h/a/%252e%252e/b");
    assert_eq!(put("a\r\nx: y").unwrap(), "http://h/a/a%0D%0Ax%3A%20y/b");
    assert_eq!(put("...").unwrap(), "http://h/a/.../b");
    for leaves in ["", ".", "..", "../admin", "..\\admin", "x/../../admin", "..;", "..;a/b"] {
        let error = put(leaves).expect_err(leaves);
        assert!(error.contains("path"), "{leaves}: {error}");
    }
    // Two harmless values make one that is not.
    assert!(url_of("http://h/{payload.x}{payload.x}", "g", r#"{"x":"."}"#).is_err());
    assert!(
        url_of("http://h/{payload.x}", "g", &json!({"x": "a".repeat(9_000)}).to_string()).is_err()
    );
}

#[test]
fn a_field_that_is_not_there_or_no_plain_value_is_said() {
    for (payload, told) in [
        ("x", "not JSON"),
        ("{}", "no field user"),
        (r#"{"user":null}"#, "payload.user"),
        (r#"{"user":{"id":1}}"#, "payload.user"),
        (r#"{"user":1.5}"#, "payload.user"),
        (r#"{"user":99999999999999999999}"#, "payload.user"),
    ] {
        let error = url_of("http://h/{payload.user}", "g", payload).expect_err(payload);
        assert!(error.contains(told), "{payload}: {error}");
    }
}

#[test]
fn a_target_that_cannot_be_called_is_refused() {
    for (url, told) in [
        ("", "URL"),
        ("x", "URL"),
        ("ftp://h/", "http"),
        ("http://", "URL"),
        ("http://user:pass@h/", "user"),
        ("http://{group}/", "host"),
        ("http://h{group}:80/", "host"),
        ("http://h/{groop}", "{group}"),
        ("http://h/{payload}", "payload.FIELD"),
        ("http://h/{payload.}", "field"),
        ("http://h/{group", "closing"),
        ("http://h/#{group}", "fragment"),
        ("http://h/../x", "path"),
        ("http://h/a b", "URL"),
    ] {
        let error = Push::new(&PushTarget::new(url)).expect_err(url).to_string();
        assert!(error.contains(told), "{url}: {error}");
    }
    for url in ["http://127.0.0.1:9/hook", "https://127.0.0.1:9/{group}?x={payload.y}"] {
        assert!(Push::new(&PushTarget::new(url)).is_ok(), "{url}");
    }
    let target = PushTarget::new("http://h/");
    let unknown = PushTarget { profile: Some("discrod".to_owned()), ..target.clone() };
    assert!(Push::new(&unknown).unwrap_err().to_string().contains("discord"));
    let roots_pem = Some("-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----".to_owned());
    assert!(Push::new(&PushTarget { roots_pem, ..target }).is_err());
}

#[test]
fn a_header_field_that_the_connection_or_the_queue_decides_is_refused() {
    for name in ["Host", "content-length", "transfer-encoding", "tollway-job", "a b", "x\r\ny"] {
        assert!(field_name(name).is_err(), "{name}");
    }
    assert_eq!(field_name("X-Reason").unwrap(), "x-reason");
    for secret in ["", " \n", "a\nb", "é"] {
        assert!(Secret::new("Bot ", secret).is_err(), "{secret:?}");
    }
    for name in ["get", "CONNECT", "TRACE", ""] {
        assert!(method(name).is_err(), "{name}");
    }
}

fn with_secret(target: PushTarget) -> PushTarget {
    let secret = Secret::new("Bot ", "abcdef-token\n").unwrap();
    let fields = vec![
        (HeaderName::from_static("authorization"), FieldText::Secret(secret)),
        (HeaderName::from_static("x-reason"), FieldText::Text("{payload.why}".to_owned())),
    ];
    PushTarget { fields, ..target }
}

async fn request(target: &PushTarget, payload: &str) -> Result<Request<Full<Bytes>>, String> {
    let queue = crate::Queue::new(
        Arc::new(crate::Embedded::memory()),
        Arc::new(tollway_core::VirtualClock::at(Timestamp::MIN)),
        "q".parse().unwrap(),
    );
    let (_, cancelled) = tokio::sync::watch::channel(false);
    let task = Task::new(lease("g", payload), queue, cancelled);
    Requests::new(target).unwrap().of(&task)
}

async fn body_of(request: Request<Full<Bytes>>) -> Bytes {
    request.into_body().collect().await.unwrap().to_bytes()
}

#[tokio::test]
async fn a_request_has_the_configured_method_fields_and_body() {
    let target = PushTarget {
        method: Method::PUT,
        body: Some("payload.data".parse().unwrap()),
        ..with_secret(PushTarget::new("http://h/{group}"))
    };
    let sent = request(&target, r#"{"why":"a good one","data":{"n":1}}"#).await.unwrap();
    assert_eq!((sent.method(), sent.uri().to_string()), (&Method::PUT, "http://h/g".to_owned()));
    let field = |name: &str| sent.headers()[name].to_str().unwrap().to_owned();
    assert_eq!(field("authorization"), "Bot abcdef-token");
    assert!(sent.headers()["authorization"].is_sensitive());
    assert_eq!((field("x-reason"), field("tollway-job")), ("a good one".into(), "7".into()));
    assert_eq!(body_of(sent).await, r#"{"n":1}"#);
    // No value can begin another field.
    let told = request(&target, r#"{"why":"x\r\nhost: evil","data":1}"#).await.unwrap_err();
    assert!(told.contains("x-reason") && !told.contains("evil"), "{told}");
    assert!(!format!("{target:?} {:?}", Push::new(&target).unwrap()).contains("abcdef"));
    let deletion = PushTarget { method: Method::DELETE, ..PushTarget::new("http://h/") };
    assert!(body_of(request(&deletion, "x").await.unwrap()).await.is_empty());
}

fn own(url: &str) -> String {
    let target = json!({"url": url, "method": "PUT", "headers": {"x-a": "b"}, "body": {"n": 1}});
    json!({"why": "w", "target": target}).to_string()
}

#[tokio::test]
async fn a_job_names_its_own_target_only_where_that_is_allowed() {
    let closed = with_secret(PushTarget::new("http://h/hook"));
    let sent = request(&closed, &own("http://other/x")).await.unwrap();
    assert_eq!((sent.method(), sent.uri().to_string()), (&Method::POST, "http://h/hook".into()));

    let origins = vec!["https://other:8443".to_owned(), "http://h".to_owned()];
    let open = PushTarget { allow_target: true, origins, ..closed };
    let sent = request(&open, &own("https://OTHER:8443/x?y=1")).await.unwrap();
    assert_eq!(sent.method(), Method::PUT);
    assert_eq!(sent.headers()["x-a"], "b");
    // The secret is for the configured origin alone.
    assert!(!sent.headers().contains_key("authorization"));
    assert_eq!(body_of(sent).await, r#"{"n":1}"#);
    let same = request(&open, &own("http://h:80/y")).await.unwrap();
    assert_eq!(same.headers()["authorization"], "Bot abcdef-token");
    for elsewhere in [
        "http://other:8443/",
        "https://other/",
        "https://other.evil:8443/",
        "https://other:8443@evil/",
        "http://169.254.169.254/",
        "file:///etc/passwd",
        "gopher://h/",
        "//h/",
        "/x",
        "",
    ] {
        assert!(request(&open, &own(elsewhere)).await.is_err(), "{elsewhere}");
    }
}

#[tokio::test]
async fn a_target_of_a_jobs_own_that_is_malformed_is_said() {
    let origins = vec!["http://h".to_owned()];
    let open = PushTarget { allow_target: true, origins, ..PushTarget::new("") };
    let told = async |target: Value| {
        request(&open, &json!({"target": target}).to_string()).await.unwrap_err()
    };
    for (target, expected) in [
        (json!(7), "object"),
        (json!({}), "target.url"),
        (json!({"url": 7}), "target.url"),
        (json!({"url": "http://h/", "method": "CONNECT"}), "CONNECT"),
        (json!({"url": "http://h/", "timeout": 1}), "timeout"),
        (json!({"url": "http://h/", "headers": {"host": "evil"}}), "host"),
        (json!({"url": "http://h/", "headers": {"x": "a\r\nb: c"}}), "x"),
        (json!({"url": "http://h/", "headers": {"x": 1}}), "text"),
    ] {
        let found = told(target.clone()).await;
        assert!(found.contains(expected), "{target}: {found}");
    }
    assert!(request(&open, "{}").await.unwrap_err().contains("does not name a target"));
}

#[test]
fn origins_and_allow_target_need_each_other() {
    let target = PushTarget::new("http://h/");
    let origins = vec!["http://h".to_owned()];
    assert!(Push::new(&PushTarget { allow_target: true, ..target.clone() }).is_err());
    assert!(Push::new(&PushTarget { origins, ..target.clone() }).is_err());
    for wrong in ["h", "http://h/", "http://h/x", "http://h?x", "ftp://h", "http://u@h"] {
        let origins = vec![wrong.to_owned()];
        let target = PushTarget { allow_target: true, origins, ..target.clone() };
        assert!(Push::new(&target).is_err(), "{wrong}");
    }
}

fn fields(lines: &[(&'static str, &'static str)]) -> HeaderMap {
    let line = |(name, value): &(&'static str, &'static str)| {
        (HeaderName::from_static(name), HeaderValue::from_static(value))
    };
    lines.iter().map(line).collect()
}

#[test]
fn a_refusal_makes_the_group_wait_and_so_does_an_answer_that_spent_the_limit() {
    let now = Timestamp::from_millis(1_700_000_000_000);
    let told = |status: u16, lines: &[(&'static str, &'static str)]| {
        super::told(StatusCode::from_u16(status).unwrap(), &fields(lines), now)
    };
    let after = ("retry-after", "7");
    let wait = Duration::from_secs(7);
    assert_eq!(told(503, &[]), Told::Nothing);
    assert_eq!(told(429, &[]), Told::Refused(feedback::WAIT_UNSAID));
    assert_eq!(told(429, &[after]), Told::Refused(wait));
    assert_eq!(told(503, &[after]), Told::Refused(wait));
    // With a good answer `Retry-After` says something else, if anything.
    assert_eq!(told(200, &[after]), Told::Nothing);
    let left = |left| [("ratelimit-remaining", left), ("ratelimit-reset", "7")];
    assert_eq!(told(200, &left("0")), Told::Spent(wait));
    assert_eq!(told(404, &left("0")), Told::Spent(wait));
    assert_eq!(told(200, &left("1")), Told::Nothing);
    let discord = feedback::profile("discord").unwrap();
    let lines = fields(&[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset-after", "0.25")]);
    let spent = Told::Spent(Duration::from_millis(250));
    assert_eq!(told_by(&discord, StatusCode::OK, &lines, b"", now), spent);
}

#[test]
fn what_is_kept_of_an_answer_is_short_plain_and_without_secrets() {
    let shown = Shown {
        fields: vec![HeaderName::from_static("x-request-id")],
        hidden: vec![Hidden("abcdef-token".to_owned())],
    };
    let lines = fields(&[("x-request-id", "r1 abcdef-token"), ("set-cookie", "secret=1")]);
    let body = b"{\"message\":\"Missing\x1b[31m\\nAccess\",\"with\":\"Bot abcdef-token\"}";
    let reason = shown.reason(StatusCode::FORBIDDEN, &lines, body);
    assert_eq!(
        reason,
        "the target answered 403 Forbidden; x-request-id: r1 [secret]; \
         {\"message\":\"Missing\\u{1b}[31m\\nAccess\",\"with\":\"Bot [secret]\"}"
    );
    let long = shown.reason(StatusCode::FORBIDDEN, &lines, &[b'x'; 10_000]);
    assert!(long.len() < 600, "{}", long.len());
    // Cut in the middle of the secret, so that what is left of it would stand at the end.
    assert_eq!(
        shown.reason(StatusCode::GONE, &fields(&[]), b"is abcdef-to"),
        "the target answered 410 Gone; is"
    );

    let result = shown.result(StatusCode::CREATED, &lines, body, 4_096).unwrap();
    let told: Value = serde_json::from_slice(&result).unwrap();
    assert_eq!(
        (&told["status"], &told["headers"]["x-request-id"]),
        (&json!(201), &json!("r1 [secret]"))
    );
    let small = shown.result(StatusCode::OK, &fields(&[]), &[b'"'; 1_000], 200).unwrap();
    assert!(small.len() <= 200 && serde_json::from_slice::<Value>(&small).is_ok());
    assert_eq!(shown.result(StatusCode::OK, &lines, body, 10), None);
    assert_eq!(shown.body(Bytes::from_static(b"hi")).unwrap(), "hi");
    assert_eq!(shown.body(Bytes::from_static(b"a abcdef-token")).unwrap(), "a [secret]");
}
