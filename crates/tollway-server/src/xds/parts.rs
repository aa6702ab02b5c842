//! How many messages a response holds, counted before any of them is read.
//!
//! An empty descriptor is two bytes on the wire and some hundred in memory: a response of a few
//! megabytes could take gigabytes. So the bytes are walked first, which takes no memory.

use bytes::Buf as _;

/// The messages that have messages in them.
#[derive(Clone, Copy)]
enum Kind {
    Response,
    Any,
    Config,
    Descriptor,
    Policy,
    Struct,
    StructEntry,
    Value,
    List,
    /// One without others in it.
    Leaf,
}

/// As deep as the reader goes, which refuses what is deeper.
const DEPTH_MAX: usize = 100;

/// How many messages are in a `DiscoveryResponse`; one more than `most` if there are more. What
/// cannot be read is not counted: it is not read, either.
pub(super) fn count(response: &[u8], most: usize) -> usize {
    let mut found = 0;
    walk(Kind::Response, response, 0, most, &mut found);
    found
}

impl Kind {
    /// What is in a field.
    const fn of_field(self, number: usize) -> Option<Self> {
        Some(match (self, number) {
            (Self::Response, 2) => Self::Any,
            (Self::Any, 2) => Self::Config,
            (Self::Config, 3) | (Self::Descriptor, 4) => Self::Descriptor,
            (Self::Descriptor, 3) => Self::Policy,
            (Self::Descriptor, 8) | (Self::Value, 5) => Self::Struct,
            (Self::Policy, 5) => Self::Leaf,
            (Self::Struct, 1) => Self::StructEntry,
            (Self::StructEntry, 2) | (Self::List, 1) => Self::Value,
            (Self::Value, 6) => Self::List,
            _ => return None,
        })
    }
}

fn walk(kind: Kind, mut bytes: &[u8], depth: usize, most: usize, found: &mut usize) {
    // A varint is read as the length of a field is.
    while let Ok(key) = prost::decode_length_delimiter(&mut bytes) {
        let skipped = match key & 7 {
            0 => prost::decode_length_delimiter(&mut bytes).map(|_| 0).ok(),
            1 => Some(8),
            2 => prost::decode_length_delimiter(&mut bytes).ok(),
            5 => Some(4),
            _ => None,
        };
        let Some(length) = skipped.filter(|length| *length <= bytes.remaining()) else { return };
        let (field, rest) = bytes.split_at(length);
        bytes = rest;
        let inner = kind.of_field(key >> 3).filter(|_| key & 7 == 2);
        if let Some(inner) = inner {
            *found += 1;
            if *found > most {
                return;
            }
            if depth < DEPTH_MAX {
                walk(inner, field, depth + 1, most, found);
            }
        }
        if *found > most {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;
    use prost_types::{ListValue, Struct, Value, value::Kind as ValueKind};

    use super::super::messages::{
        Any, RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitReplace,
        ResponseResources,
    };
    use super::*;

    fn response(configs: Vec<RateLimitConfig>) -> Vec<u8> {
        let any = |config: RateLimitConfig| Any {
            type_url: "t".to_owned(),
            value: config.encode_to_vec().into(),
        };
        ResponseResources { resources: configs.into_iter().map(any).collect() }.encode_to_vec()
    }

    #[test]
    fn every_message_in_a_response_is_counted_and_no_text() {
        let number = Value { kind: Some(ValueKind::NumberValue(1.0)) };
        let list = Value {
            kind: Some(ValueKind::ListValue(ListValue { values: vec![number.clone(), number] })),
        };
        let metadata = Struct { fields: [("list".to_owned(), list)].into() };
        let replaces = vec![RateLimitReplace { name: "x".to_owned() }];
        let limit = RateLimitPolicy { replaces, unit: 1, ..RateLimitPolicy::default() };
        let leaf = RateLimitDescriptor {
            key: "\u{1a}\u{0}\u{22}\u{0}".to_owned(),
            rate_limit: Some(limit),
            metadata: Some(metadata),
            ..RateLimitDescriptor::default()
        };
        let inner = RateLimitDescriptor { descriptors: vec![leaf], ..Default::default() };
        let config = RateLimitConfig { descriptors: vec![inner], ..RateLimitConfig::default() };
        // Any, config, two descriptors, policy, replace; structure, entry, value, list, two values.
        assert_eq!(count(&response(vec![config]), 100), 12);
        assert_eq!(count(&response(Vec::new()), 100), 0);
    }

    #[test]
    fn counting_ends_beyond_the_bound_and_at_what_cannot_be_read() {
        let descriptors = vec![RateLimitDescriptor::default(); 1_000];
        let config = RateLimitConfig { descriptors, ..RateLimitConfig::default() };
        let bytes = response(vec![config]);
        assert_eq!(count(&bytes, 10), 11);
        assert_eq!(count(&bytes, 5_000), 1_002);
        assert!(count(&bytes[..bytes.len() - 1], 5_000) <= 1_002);
        for wrong in [&[0xff; 40][..], &[0x12], &[0x12, 0xff, 0xff, 0x7f], &[0x0b, 1]] {
            assert_eq!(count(wrong, 10), 0);
        }
    }
}
