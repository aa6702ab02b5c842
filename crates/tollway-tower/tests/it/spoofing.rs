use std::net::SocketAddr;

use http::{HeaderValue, Request};
use proptest::prelude::*;
use tollway_tower::keys::{ClientAddress, ForwardedBy, PeerAddr};
use tollway_tower::{Head, Limit};

use crate::world::{call, from, ok, one, raw, serve};

const PROXY: &str = "10.0.0.1";
const CLIENT: &str = "198.51.100.7";

fn direct() -> ClientAddress {
    ClientAddress::peer()
}

fn proxied() -> ClientAddress {
    let ranges = ["10.0.0.0/8", "2001:db8:ffff::/48"];
    ClientAddress::behind(ranges.map(|range| range.parse().expect("a range")))
}

/// The client's address by `source`, for a request from `peer` with these header lines.
fn found(source: &ClientAddress, peer: &str, lines: &[(&str, &[u8])]) -> String {
    let address = SocketAddr::new(peer.parse().expect("an address"), 40_000);
    let mut request = Request::get("/").extension(PeerAddr(address)).body(()).expect("a request");
    for (name, value) in lines {
        let name = http::HeaderName::from_bytes(name.as_bytes()).expect("a name");
        let value = HeaderValue::from_bytes(value).expect("a value");
        request.headers_mut().append(name, value);
    }
    source.find(&Head::of(&request)).expect("a peer").to_string()
}

fn xff(source: &ClientAddress, peer: &str, value: &str) -> String {
    found(source, peer, &[("X-Forwarded-For", value.as_bytes())])
}

#[test]
fn without_trusted_proxies_no_header_is_believed() {
    for name in ["X-Forwarded-For", "x-forwarded-for", "X-FORWARDED-FOR", "Forwarded", "X-Real-IP"]
    {
        for value in ["1.2.3.4", "127.0.0.1", "for=1.2.3.4", "10.0.0.1, 1.2.3.4", "garbage"] {
            assert_eq!(found(&direct(), CLIENT, &[(name, value.as_bytes())]), CLIENT);
        }
    }
}

#[test]
fn a_header_from_an_untrusted_peer_never_chooses_the_key() {
    for value in ["1.2.3.4", "10.0.0.1", "1.2.3.4, 10.0.0.1", "", "::1", "for=1.2.3.4"] {
        assert_eq!(xff(&proxied(), CLIENT, value), CLIENT, "{value}");
        let by_forwarded = proxied().forwarded_by(ForwardedBy::Forwarded);
        let forged = [("forwarded", value.as_bytes())];
        assert_eq!(found(&by_forwarded, CLIENT, &forged), CLIENT, "{value}");
    }
}

#[test]
fn the_rightmost_untrusted_hop_is_the_client() {
    for (value, client) in [
        (CLIENT, CLIENT),
        ("1.2.3.4, 198.51.100.7", CLIENT),
        ("1.2.3.4,198.51.100.7,10.9.9.9", CLIENT),
        ("10.0.0.9, 198.51.100.7, 10.0.0.2, 10.0.0.3", CLIENT),
        ("garbage, 198.51.100.7", CLIENT),
        ("198.51.100.7:1234", CLIENT),
        ("\"198.51.100.7\"", CLIENT),
        ("::ffff:198.51.100.7", CLIENT),
        ("::ffff:c633:6407", CLIENT),
        ("[2001:db8::7]:443", "2001:db8::7"),
        ("2001:DB8:0:0::7, 2001:db8:ffff::1", "2001:db8::7"),
        ("10.0.0.8, 10.0.0.9", "10.0.0.8"),
    ] {
        assert_eq!(xff(&proxied(), PROXY, value), client, "{value}");
        assert_eq!(xff(&proxied(), "::ffff:10.0.0.1", value), client, "{value} by mapped proxy");
    }
}

#[test]
fn garbage_ends_the_walk_at_the_last_address_believed() {
    for value in ["", "unknown", "_hidden", "198.51.100.7, unknown", "1.2.3.4 5.6.7.8", ",", "é"] {
        assert_eq!(xff(&proxied(), PROXY, value), PROXY, "{value}");
    }
    assert_eq!(xff(&proxied(), PROXY, "198.51.100.7, what, 10.0.0.5"), "10.0.0.5");
    assert_eq!(xff(&proxied(), PROXY, "198.51.100.7,"), PROXY);
}

#[test]
fn bytes_that_are_not_text_end_the_walk() {
    let lines: [(&str, &[u8]); 1] = [("x-forwarded-for", b"1.2.3.4, \xff\xfe")];
    assert_eq!(found(&proxied(), PROXY, &lines), PROXY);
}

#[test]
fn several_header_lines_are_one_list_whatever_their_case() {
    let lines: [(&str, &[u8]); 3] = [
        ("X-Forwarded-For", b"1.2.3.4"),
        ("x-forwarded-for", b"198.51.100.7"),
        ("X-FORWARDED-FOR", b"10.0.0.2"),
    ];
    assert_eq!(found(&proxied(), PROXY, &lines), CLIENT);
}

#[test]
fn only_the_chosen_header_is_read() {
    let lines: [(&str, &[u8]); 2] =
        [("x-forwarded-for", b"198.51.100.7"), ("forwarded", b"for=203.0.113.9")];
    assert_eq!(found(&proxied(), PROXY, &lines), CLIENT);
    let by_forwarded = proxied().forwarded_by(ForwardedBy::Forwarded);
    assert_eq!(found(&by_forwarded, PROXY, &lines), "203.0.113.9");
}

#[test]
fn forwarded_is_read_in_every_spelling() {
    let by_forwarded = proxied().forwarded_by(ForwardedBy::Forwarded);
    for (value, client) in [
        ("for=198.51.100.7", CLIENT),
        ("For=\"198.51.100.7:4711\";proto=https", CLIENT),
        ("for=1.2.3.4, proto=http;FOR=198.51.100.7;by=10.0.0.1", CLIENT),
        ("for=\"[2001:db8::7]\"", "2001:db8::7"),
        ("for=198.51.100.7, for=10.0.0.4", CLIENT),
        ("for=unknown", PROXY),
        ("for=_hidden", PROXY),
        ("proto=https", PROXY),
        ("for=1.2.3.4;for=5.6.7.8", PROXY),
        ("for=\"198.51.100.7, for=1.2.3.4", "1.2.3.4"),
    ] {
        assert_eq!(
            found(&by_forwarded, PROXY, &[("forwarded", value.as_bytes())]),
            client,
            "{value}"
        );
    }
}

#[test]
fn values_of_64_kib_are_walked_only_from_the_right_and_not_far() {
    let mut forged = "1.2.3.4,".repeat(8 * 1024 - 2);
    forged.push_str("198.51.100.7");
    assert_eq!(xff(&proxied(), PROXY, &forged), CLIENT);
    let trusted = "10.0.0.2,".repeat(7 * 1024) + "10.0.0.3";
    assert_eq!(xff(&proxied(), PROXY, &trusted), "10.0.0.2");
    let noise = "x".repeat(64 * 1024);
    assert_eq!(xff(&proxied(), PROXY, &noise), PROXY);
}

/// Bytes a header value may hold, and pieces that look like hops.
fn forged() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        prop::sample::select((b' '..=b'~').chain(0x80..=0xff).collect::<Vec<u8>>())
            .prop_map(|byte| vec![byte]),
        prop::sample::select(
            &["10.0.0.1", "1.2.3.4", "[::1]:80", "for=", ", ", "\"", ";", "::"][..]
        )
        .prop_map(|text| text.as_bytes().to_vec()),
    ];
    prop::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_a_client_writes_the_trusted_proxys_word_counts(
        forged in prop::collection::vec(forged(), 0..4),
        same_line in any::<bool>(),
    ) {
        for (source, name, seen) in [
            (proxied(), "x-forwarded-for", CLIENT.to_owned()),
            (proxied().forwarded_by(ForwardedBy::Forwarded), "forwarded", format!("for={CLIENT}")),
        ] {
            let mut lines = forged.clone();
            match lines.last_mut() {
                Some(last) if same_line => last.extend(format!(", {seen}").bytes()),
                _ => lines.push(seen.into_bytes()),
            }
            let lines: Vec<_> = lines.iter().map(|line| (name, &line[..])).collect();
            prop_assert_eq!(found(&source, PROXY, &lines), CLIENT);
            prop_assert_eq!(found(&source, CLIENT, &lines), CLIENT);
            prop_assert_eq!(found(&direct(), CLIENT, &lines), CLIENT);
        }
    }
}

#[tokio::test]
async fn a_client_cannot_shake_off_its_limit_by_forging_hops() {
    let (builder, _clock) = one("3/1m", Limit::new("api", proxied()));
    let service = ok(builder);
    let mut passed = 0;
    for attempt in 0..20 {
        let mut request = from(PROXY, "/");
        // What the trusted proxy forwards: whatever the client wrote, and the client's address.
        let chain = format!("203.0.113.{attempt}, 192.0.2.{attempt}, {CLIENT}");
        request.headers_mut().insert("x-forwarded-for", chain.parse().expect("a value"));
        passed += usize::from(call(&service, request).await.status() == 200);
    }
    assert_eq!(passed, 3);
}

#[tokio::test]
async fn ipv6_clients_are_grouped_by_their_64_bit_network() {
    let (builder, _clock) = one("3/1m", Limit::new("api", direct()));
    let service = ok(builder);
    let mut passed = 0;
    for host in 0..20 {
        let request = from(&format!("2001:db8:1:2::{host:x}"), "/");
        passed += usize::from(call(&service, request).await.status() == 200);
    }
    assert_eq!(passed, 3);
    assert_eq!(call(&service, from("2001:db8:1:3::1", "/")).await.status(), 200);
}

#[tokio::test]
async fn an_ipv4_client_and_its_mapped_form_are_one() {
    let (builder, _clock) = one("1/1m", Limit::new("api", direct()));
    let service = ok(builder);
    assert_eq!(call(&service, from(CLIENT, "/")).await.status(), 200);
    assert_eq!(call(&service, from("::ffff:198.51.100.7", "/")).await.status(), 429);
    assert_eq!(call(&service, from("198.51.100.8", "/")).await.status(), 200);
}

#[tokio::test]
async fn grouping_is_a_setting() {
    let by_24 = direct().grouped_by(24, 128);
    let (builder, _clock) = one("1/1m", Limit::new("api", by_24));
    let service = ok(builder);
    assert_eq!(call(&service, from("198.51.100.1", "/")).await.status(), 200);
    assert_eq!(call(&service, from("198.51.100.2", "/")).await.status(), 429);
    assert_eq!(call(&service, from("2001:db8::1", "/")).await.status(), 200);
    assert_eq!(call(&service, from("2001:db8::2", "/")).await.status(), 200);
}

#[tokio::test]
async fn over_loopback_forged_headers_share_the_peers_key() {
    let (builder, _clock) = one("2/1m", Limit::new("api", direct()));
    let router = axum::Router::new()
        .route("/", axum::routing::get(|| async { "" }))
        .layer(builder.build().expect("a layer"));
    let address = serve(router).await;
    let mut statuses = Vec::new();
    for forged in ["1.1.1.1", "2.2.2.2", "3.3.3.3"] {
        let response = raw(address, &format!("GET / HTTP/1.1\r\nx-forwarded-for: {forged}")).await;
        statuses.push(response[9..12].to_owned());
    }
    assert_eq!(statuses, ["200", "200", "429"]);
}

#[tokio::test]
async fn over_loopback_a_trusted_peers_header_chooses_the_key() {
    let behind = ClientAddress::behind(["127.0.0.0/8".parse().expect("a range")]);
    let (builder, _clock) = one("1/1m", Limit::new("api", behind));
    let router = axum::Router::new()
        .route("/", axum::routing::get(|| async { "" }))
        .layer(builder.build().expect("a layer"));
    let address = serve(router).await;
    let mut statuses = Vec::new();
    for client in ["1.1.1.1", "2.2.2.2", "9.9.9.9, 1.1.1.1", "1.1.1.1, 127.0.0.9"] {
        let response = raw(address, &format!("GET / HTTP/1.1\r\nx-forwarded-for: {client}")).await;
        statuses.push(response[9..12].to_owned());
    }
    assert_eq!(statuses, ["200", "200", "429", "429"]);
}
