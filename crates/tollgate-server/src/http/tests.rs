use std::net::{IpAddr, Ipv4Addr};

use proptest::prelude::*;

use super::{Reply, Request, answer};
use crate::service::tests::service;
use crate::worker::Worker;

const PATHS: [&str; 10] = [
    "/v1/check",
    "/v1/peek",
    "/v1/check-batch",
    "/v1/take",
    "/v1/refund",
    "/v1/reserve",
    "/v1/commit",
    "/v1/cancel",
    "/throttle",
    "/json",
];

const BODIES: [&str; 5] = [
    r#"{"policy":"api","key":"ada","cost":2}"#,
    r#"{"charges":[{"policy":"api","key":"ada"},{"policy":"api","key":"bob","cost":3}]}"#,
    r#"{"reservation":"00000000000000000000000000000000","costs":[1,2]}"#,
    r#"{"key":"k","max_burst":16,"count_per_period":30,"period":60,"quantity":1}"#,
    r#"{"domain":"edge","descriptors":[{"entries":[{"key":"a","value":"b"}],"hitsAddend":"3"}]}"#,
];

fn post(worker: &Worker, path: &str, body: &[u8]) -> Reply {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let fields = http::HeaderMap::new();
    let peer = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let request = Request { method: "POST", path, query: None, fields: &fields, body, peer };
    let mut reply = Reply::default();
    runtime.block_on(answer(worker, &request, &mut reply));
    reply
}

fn left(worker: &Worker) -> u64 {
    let reply = post(worker, "/v1/peek", br#"{"policy":"api","key":"ada"}"#);
    let json: serde_json::Value = serde_json::from_slice(&reply.body).unwrap();
    json["charges"][0]["remaining"].as_u64().unwrap()
}

proptest! {
    #![proptest_config(crate::fuzzing::cases(1_500))]

    #[test]
    fn mangled_bodies_are_answered_in_json_and_charge_nothing_unless_they_are_valid(
        path in prop::sample::select(&PATHS[..]),
        body in prop::sample::select(&BODIES[..]),
        at in any::<prop::sample::Index>(),
        noise in prop::collection::vec(any::<u8>(), 0..6),
        cut in 0usize..4,
    ) {
        let worker = Worker::new(service());
        let mut bytes = body.as_bytes().to_vec();
        let at = at.index(bytes.len());
        let end = bytes.len().min(at + cut);
        bytes.splice(at..end, noise);
        let reply = post(&worker, path, &bytes);
        prop_assert!(serde_json::from_slice::<serde_json::Value>(&reply.body).is_ok());
        prop_assert!(matches!(reply.status, 200 | 400 | 404 | 429), "{}", reply.status);
        if reply.status == 400 {
            prop_assert_eq!(left(&worker), 5);
        }
    }
}
