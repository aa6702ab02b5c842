use http::{HeaderValue, Request, Response};
use tollway_tower::keys::{
    ClientAddress, Everyone, Header, KeyBuf, KeySource, NoKey, Route, from_fn,
};
use tollway_tower::{Dialect, Head, Limit, MissingKey};

use crate::world::{call, get, header, ok, one, raw, serve, statuses};

fn api_key() -> Header {
    Header::new("x-api-key").expect("a field's name")
}

fn with_key(value: &[u8]) -> Request<String> {
    let mut request = get("/");
    request.headers_mut().insert("x-api-key", HeaderValue::from_bytes(value).expect("a value"));
    request
}

#[tokio::test]
async fn keys_need_not_be_ascii() {
    let (builder, _clock) = one("1/1m", Limit::new("api", api_key()));
    let service = ok(builder);
    assert_eq!(statuses(&service, 2, || with_key(b"\xff\xfe")).await, [200, 429]);
    assert_eq!(statuses(&service, 2, || with_key("ключ".as_bytes())).await, [200, 429]);
}

#[tokio::test]
async fn requests_without_a_key_share_one_unless_told() {
    let (builder, _clock) = one("1/1m", Limit::new("api", api_key()));
    let service = ok(builder);
    assert_eq!(statuses(&service, 2, || get("/")).await, [200, 429]);
    assert_eq!(call(&service, with_key(b"a")).await.status(), 200);
    // Empty and overlong keys are no keys.
    assert_eq!(call(&service, with_key(b"")).await.status(), 429);
    assert_eq!(call(&service, with_key(&[b'k'; 64 * 1024])).await.status(), 429);
    assert_eq!(statuses(&service, 2, || with_key(&[b'k'; 4096])).await, [200, 429]);
}

#[tokio::test]
async fn requests_without_a_key_are_denied_if_told() {
    let limit = Limit::new("api", api_key()).missing_key(MissingKey::Deny);
    let (builder, _clock) = one("1/1m", limit);
    let service = ok(builder);
    let refused = call(&service, get("/")).await;
    assert_eq!(refused.status(), 403);
    assert_eq!(header(&refused, "content-type"), "application/problem+json");
    assert_eq!(call(&service, with_key(b"a")).await.status(), 200);
}

#[tokio::test]
async fn requests_without_a_key_are_skipped_if_told() {
    let limit = Limit::new("api", api_key()).missing_key(MissingKey::Skip);
    let (builder, _clock) = one("1/1m", limit);
    let service = ok(builder);
    assert_eq!(statuses(&service, 3, || get("/")).await, [200; 3]);
    assert!(!call(&service, get("/")).await.headers().contains_key("ratelimit"));
    assert_eq!(statuses(&service, 2, || with_key(b"a")).await, [200, 429]);
}

#[tokio::test]
async fn a_server_that_attaches_no_peer_limits_all_together() {
    let (builder, _clock) = one("1/1m", Limit::new("api", ClientAddress::peer()));
    let service = ok(builder);
    let bare = || Request::get("/").body(String::new()).expect("a request");
    assert_eq!(statuses(&service, 2, bare).await, [200, 429]);
    let (builder, _clock) = one("1/1m", Limit::new("api", Route));
    assert_eq!(statuses(&ok(builder), 2, bare).await, [200, 429]);
}

/// A source of the user's own, which panics when half of its key is written.
struct Buggy;

impl KeySource for Buggy {
    fn write_key(&self, _: &Head<'_>, key: &mut KeyBuf) -> Result<(), NoKey> {
        key.push(&[b'k'; 100]);
        panic!("a key source with a bug")
    }
}

fn panics(_: &Head<'_>) -> Option<String> {
    panic!("a key function with a bug")
}

#[tokio::test]
async fn a_panicking_key_function_is_status_500_and_never_a_free_pass() {
    for missing in [MissingKey::Share, MissingKey::Skip, MissingKey::Deny] {
        let limit = Limit::new("api", from_fn(panics)).missing_key(missing);
        let (builder, _clock) = one("1/1m", limit);
        assert_eq!(statuses(&ok(builder), 2, || get("/")).await, [500, 500]);
    }
    let anywhere = ClientAddress::peer().peer_from(|_| panic!("a peer function with a bug"));
    let (builder, _clock) = one("1/1m", Limit::new("api", anywhere));
    assert_eq!(statuses(&ok(builder), 2, || get("/")).await, [500, 500]);
    let (builder, _clock) = one("1/1m", Limit::new("api", Buggy));
    assert_eq!(statuses(&ok(builder), 2, || get("/")).await, [500, 500]);
    let combined = from_fn(panics).or(Everyone).and(Everyone);
    let (builder, _clock) = one("1/1m", Limit::new("api", combined));
    assert_eq!(call(&ok(builder), get("/")).await.status(), 500);
}

#[tokio::test]
async fn other_panicking_functions_have_defined_answers() {
    let everyone = || Limit::new("api", Everyone);
    let (builder, _clock) = one("1/1m", everyone().cost(|_| panic!("cost")));
    assert_eq!(call(&ok(builder), get("/")).await.status(), 500);
    let (builder, _clock) = one("1/1m", everyone().only_if(|_| panic!("route")));
    assert_eq!(call(&ok(builder), get("/")).await.status(), 500);
    let (builder, _clock) = one("1/1m", everyone());
    let builder = builder.exempt(|_| panic!("exempt"));
    assert_eq!(call(&ok(builder), get("/")).await.status(), 500);
    let (builder, _clock) = one("1/1m", everyone());
    let builder = builder.observe(|_| panic!("observe")).reject_with(|_| panic!("reject"));
    assert_eq!(statuses(&ok(builder), 2, || get("/")).await, [200, 429]);
    let (builder, _clock) = one("1/1m", everyone().charge_if(|_| panic!("charge_if")));
    assert_eq!(statuses(&ok(builder), 2, || get("/")).await, [200, 429]);
    let (builder, _clock) = one("1/1m", everyone().shadow().cost(|_| panic!("shadow")));
    assert_eq!(call(&ok(builder), get("/")).await.status(), 200);
}

#[tokio::test]
async fn absurd_costs_are_denied_for_ever() {
    let (builder, _clock) = one("10/1m", Limit::new("api", Everyone).cost(|_| u64::MAX));
    let denied = call(&ok(builder), get("/")).await;
    assert_eq!(denied.status(), 429);
    assert!(!denied.headers().contains_key("retry-after"));
}

#[tokio::test]
async fn absurd_settlements_neither_panic_nor_go_free() {
    let limit = Limit::new("api", Everyone).settle_by(|_| u64::MAX);
    let (builder, _clock) = one("10/1m", limit);
    assert_eq!(statuses(&ok(builder), 2, || get("/")).await, [200, 429]);
}

#[tokio::test]
async fn the_largest_quota_is_said_in_fifteen_digits() {
    let quota = "999999999999999/36500d";
    for dialect in Dialect::ALL {
        let (builder, _clock) = one(quota, Limit::new("api", Everyone));
        let response = call(&ok(builder.dialect(dialect)), get("/")).await;
        assert_eq!(response.status(), 200, "{dialect}");
        if dialect == Dialect::Draft10 {
            let fields = "\"api\";r=999999999999998;t=1";
            assert_eq!(header(&response, "ratelimit"), fields);
        }
    }
}

#[tokio::test]
async fn a_server_survives_what_it_is_sent() {
    let limit = Limit::new(
        "api",
        api_key().or(ClientAddress::peer()).and(from_fn(|head| {
            assert!(head.uri.path() != "/panic", "a key function with a bug");
            Some("k")
        })),
    );
    let (builder, _clock) = one("1000/1m", limit);
    let router = axum::Router::new()
        .fallback(|| async { Response::new(axum::body::Body::from("ok")) })
        .layer(builder.build().expect("a layer"));
    let address = serve(router).await;
    for (request, status) in [
        ("GET /panic HTTP/1.1", "500"),
        ("GET / HTTP/1.1\r\nx-api-key: \u{e9}\u{fffd}", "200"),
        ("GET / HTTP/1.1\r\nx-forwarded-for: ,,,;;;\"[", "200"),
        ("GET /panic HTTP/1.1\r\nx-api-key: a", "500"),
        ("GET / HTTP/1.1", "200"),
    ] {
        assert_eq!(&raw(address, request).await[9..12], status, "{request}");
    }
}
