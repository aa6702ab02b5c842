use proptest::prelude::*;
use prost::Message;

use super::envoy::should_rate_limit;
use super::messages::{Entry, RateLimitDescriptor, RateLimitRequest, UInt64Value};
use super::unary::decode;
use crate::service::tests::service;
use crate::worker::Worker;

fn framed(message: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0];
    bytes.extend_from_slice(&(message.len() as u32).to_be_bytes());
    bytes.extend_from_slice(message);
    bytes
}

proptest! {
    #![proptest_config(crate::testing::proptests::cases(1_000))]

    #[test]
    fn mangled_messages_are_answered_or_refused_but_never_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..5),
        hits in any::<u64>(),
        is_negative_hits in any::<bool>(),
    ) {
        let entry = Entry { key: "user".to_owned(), value: "ada".to_owned() };
        let descriptor = RateLimitDescriptor {
            entries: vec![entry],
            limit: None,
            hits_addend: Some(UInt64Value { value: hits }),
            is_negative_hits,
        };
        let request =
            RateLimitRequest { domain: "edge".to_owned(), descriptors: vec![descriptor], hits_addend: 1 };
        let mut bytes = framed(&request.encode_to_vec());
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok(request) = decode::<RateLimitRequest>(&bytes) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let worker = Worker::new(service());
            if let Ok(response) = runtime.block_on(should_rate_limit(&worker, &request)) {
                prop_assert_eq!(response.statuses.len(), request.descriptors.len());
            }
        }
    }
}
