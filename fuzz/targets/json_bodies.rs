//! Any body is answered in JSON by a status that the documentation names, and a refused one charges
//! nothing.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tollway_fuzz::{run, service};
use tollway_server::testing::{decision_paths, post};

fuzz_target!(|input: &[u8]| {
    let Some((first, body)) = input.split_first() else { return };
    let service = service();
    let paths = decision_paths();
    let path = paths[usize::from(*first) % paths.len()];
    let (status, reply) = run(post(&service, path, body));
    let json = serde_json::from_slice::<serde_json::Value>(&reply);
    assert!(json.is_ok(), "{}", reply.escape_ascii());
    assert!(matches!(status, 200 | 400 | 404 | 413 | 429), "{status}");
    if status == 400 {
        let peek = br#"{"policy":"api","key":"ada"}"#;
        let (_, left) = run(post(&service, "/v1/peek", peek));
        let left: serde_json::Value = serde_json::from_slice(&left).expect("a peek is JSON");
        assert_eq!(left["charges"][0]["remaining"], 5);
    }
});
