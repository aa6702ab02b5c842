//! Any body is answered in JSON by a status that the documentation names, and a refused one charges
//! nothing.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tollway_fuzz::{run, worker};
use tollway_server::http::{Peer, Reply, Request, answer};
use tollway_server::worker::Worker;

const PATHS: [&str; 11] = [
    "/v1/check",
    "/v1/peek",
    "/v1/check-batch",
    "/v1/take",
    "/v1/refund",
    "/v1/reset",
    "/v1/reserve",
    "/v1/commit",
    "/v1/cancel",
    "/throttle",
    "/json",
];

fn post(worker: &Worker, path: &str, body: &[u8]) -> Reply {
    let (mut fields, mut reply) = (http::HeaderMap::new(), Reply::default());
    fields.insert("content-type", http::HeaderValue::from_static("application/json"));
    let request = Request { method: "POST", path, query: None, host: None, fields: &fields, body, peer: Peer::UNIX };
    run(answer(worker, &request, &mut reply));
    reply
}

fuzz_target!(|input: &[u8]| {
    let Some((first, body)) = input.split_first() else { return };
    let worker = worker();
    let reply = post(&worker, PATHS[usize::from(*first) % PATHS.len()], body);
    let json = serde_json::from_slice::<serde_json::Value>(&reply.body);
    assert!(json.is_ok(), "{}", reply.body.escape_ascii());
    assert!(matches!(reply.status, 200 | 400 | 404 | 413 | 429), "{}", reply.status);
    if reply.status == 400 {
        let left = post(&worker, "/v1/peek", br#"{"policy":"api","key":"ada"}"#);
        let left: serde_json::Value = serde_json::from_slice(&left.body).expect("a peek is JSON");
        assert_eq!(left["charges"][0]["remaining"], 5);
    }
});
