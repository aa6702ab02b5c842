//! A limit that comes with a call: an object of JSON with the fields that a policy has in a file.
//!
//! ```json
//! {"algorithm": "leaky-bucket", "size": 10, "drip_interval": "1s", "factor": 0.5}
//! ```

use std::num::NonZeroU16;
use std::sync::Arc;

use serde_json::Value as Json;
use tollway_core::GivenLimit;

use super::error::Finding;
use super::policies;
use super::reader::{ConfigValue, Source};
use super::tree::{Node, Value};

/// The limit that a text describes, and in how many parts a store is to keep each key, if it says.
///
/// # Errors
///
/// If it describes none: the text names each field that is wrong, and what would be right.
pub fn limit_of_call(text: &[u8]) -> Result<(GivenLimit, Option<NonZeroU16>), String> {
    let json: Json = serde_json::from_slice(text).map_err(|error| format!("limit: {error}"))?;
    let (node, finding) = (node(json), Finding::default());
    let name = &Arc::from("limit");
    let root = ConfigValue::root(Source { name, finding: &finding, looks_at_files: false }, &node);
    let limit = root.tell(root.table()).and_then(|table| policies::given_limit(&table));
    finding.finish(limit).map_err(|mistakes| {
        let told = mistakes.told().iter().map(|mistake| match mistake.field.as_str() {
            "" => format!("limit: {}", mistake.problem),
            field => format!("limit.{field}: {}", mistake.problem),
        });
        told.collect::<Vec<_>>().join("; ")
    })
}

/// The same tree as a file makes, without lines.
fn node(json: Json) -> Node {
    let value = match json {
        Json::Null => Value::Null,
        Json::Bool(truth) => Value::Bool(truth),
        Json::Number(number) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
            (Some(number), _, _) => Value::Integer(number.into()),
            (_, Some(number), _) => Value::Integer(number.into()),
            (_, _, number) => Value::Float(number.unwrap_or(f64::NAN)),
        },
        Json::String(text) => Value::Text(text),
        Json::Array(items) => Value::List(items.into_iter().map(node).collect()),
        Json::Object(fields) => {
            Value::Table(fields.into_iter().map(|(name, field)| (name, node(field))).collect())
        }
    };
    Node { line: 0, value }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(text: &str) -> String {
        limit_of_call(text.as_bytes()).unwrap_err()
    }

    #[test]
    fn every_algorithm_can_come_with_a_call() {
        for (text, expected) in [
            (r#"{"quota":"100/1m burst 20"}"#, "100/1m burst 20"),
            (r#"{"algorithm":"gcra","quota":"5/1s"}"#, "5/1s"),
            (r#"{"algorithm":"leaky-bucket","size":10,"drip_interval":"1s"}"#, "10 in all, 1/1s"),
            (
                r#"{"algorithm":"leaky-bucket","size":10,"drip_interval":"1s","factor":0.5}"#,
                "20 in all, 1/500ms",
            ),
            (r#"{"algorithm":"sliding-window","quota":"5/1s","buckets":10}"#, "5/1s"),
            (r#"{"algorithm":"fixed-window","quota":"5/1s","anchor":"first-request"}"#, "5/1s"),
            (r#"{"algorithm":"legacy","max":300,"duration":"1h"}"#, "300 in all, 1/12s"),
        ] {
            let limit = limit_of_call(text.as_bytes()).unwrap_or_else(|wrong| panic!("{wrong}"));
            let (limit, parts) = limit;
            assert_eq!(limit.algorithm.to_string(), expected, "{text}");
            assert_eq!((limit.spacing, parts), (None, None));
        }
        let both = r#"{"algorithm":"legacy","max":10,"duration":"5s","min_interval":"1s"}"#;
        assert!(limit_of_call(both.as_bytes()).unwrap().0.spacing.is_some());
        let lease = r#"{"algorithm":"concurrency","limit":4,"lease":"30s"}"#;
        assert_eq!(limit_of_call(lease.as_bytes()).unwrap().0.algorithm.limit(), 4);
        let (_, parts) = limit_of_call(br#"{"quota":"100/1s","split":4}"#).unwrap();
        assert_eq!(parts.map(NonZeroU16::get), Some(4));
    }

    #[test]
    fn what_is_wrong_is_told_by_field() {
        assert_eq!(wrong("{}"), "limit: quota is missing");
        assert!(wrong("[]").starts_with("limit: expected a table, found a list"));
        assert!(wrong(r#"{"quota":"#).starts_with("limit: EOF"));
        let told = wrong(r#"{"algorithm":"leaky-buket","size":1,"drip_interval":"1s"}"#);
        assert!(told.contains("did you mean \"leaky-bucket\"?"), "{told}");
        let told = wrong(r#"{"algorithm":"leaky-bucket","sise":1,"drip_interval":"x"}"#);
        assert!(told.contains("limit.sise: unknown field; did you mean size?"), "{told}");
        assert!(told.contains("limit.drip_interval: "), "{told}");
        let told = wrong(r#"{"quota":"5/1s","buckets":10}"#);
        assert!(told.contains("limit.buckets: unknown field"), "{told}");
        let told = wrong(r#"{"algorithm":"legacy","max":3}"#);
        assert_eq!(told, "limit: duration is missing");
        assert!(wrong(r#"{"algorithm":"legacy"}"#).contains("limits nothing"));
        let told = wrong(r#"{"quota":"3/1s","split":4}"#);
        assert_eq!(told, "limit.split: 4 parts of a limit of 3: one has no units");
        let told = wrong(r#"{"quota":"5000/1s","split":65}"#);
        assert_eq!(told, "limit.split: expected 1 to 64 with a call, found 65");
        let zero =
            wrong(r#"{"algorithm":"leaky-bucket","size":1,"drip_interval":"1s","factor":0}"#);
        assert!(zero.starts_with("limit.factor: expected a number above 0"), "{zero}");
    }
}
