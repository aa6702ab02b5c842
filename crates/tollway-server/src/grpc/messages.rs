//! The messages of Envoy's `rls.proto` and of throttlecrab, as far as they are used.
//!
//! Written by hand: the closure of `rls.proto` is 25 files and half a minute of compiling, of which
//! these few messages are spoken. Each is written once, and becomes both the type that is decoded
//! and the row of a table from which `reflection` describes it.

use prost::Message;

/// A field's name, number, kind, label (`repeated`, or none) and, if it is one, the message's name.
pub(super) type Field = (&'static str, i32, &'static str, &'static str, &'static str);
/// A message's name and its fields.
pub(super) type Described = (&'static str, &'static [Field]);

/// Declares messages: `name: type = number kind [label] "Message";`, as prost names kind and label.
macro_rules! messages {
    ($table:ident: $($(#[$doc:meta])* $name:ident { $(
        $(#[$field_doc:meta])*
        $field:ident: $type:ty =
            $tag:tt $kind:ident $(($as:tt))? $([$label:ident])? $($of:literal)?;
    )* })*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, PartialEq, Message)]
            pub struct $name { $(
                $(#[$field_doc])*
                #[prost($kind $(= $as)? $(, $label)?, tag = $tag)]
                pub $field: $type,
            )* }
        )*

        pub(super) const $table: &[Described] = &[$((stringify!($name), &[$(
            (
                stringify!($field),
                $tag,
                stringify!($kind),
                concat!($(stringify!($label))?),
                concat!($($of)?),
            ),
        )*])),*];
    };
}

messages! { ENVOY:
    /// `envoy.service.ratelimit.v3.RateLimitRequest`.
    RateLimitRequest {
        /// The domain.
        domain: String = 1 string;
        /// The descriptors.
        descriptors: Vec<RateLimitDescriptor> = 2 message [repeated] "RateLimitDescriptor";
        /// Units asked of each; 0 means 1.
        hits_addend: u32 = 3 uint32;
    }
    /// `envoy.extensions.common.ratelimit.v3.RateLimitDescriptor`.
    RateLimitDescriptor {
        /// Keys and values.
        entries: Vec<Entry> = 1 message [repeated] "Entry";
        /// A limit in place of the configured one.
        limit: Option<RateLimitOverride> = 2 message [optional] "RateLimitOverride";
        /// Units asked, in place of the request's; 0 only looks.
        hits_addend: Option<UInt64Value> = 3 message [optional] "UInt64Value";
        /// Whether the units are given back.
        is_negative_hits: bool = 4 bool;
    }
    /// `RateLimitDescriptor.Entry`.
    Entry {
        /// The key.
        key: String = 1 string;
        /// The value.
        value: String = 2 string;
    }
    /// `RateLimitDescriptor.RateLimitOverride`.
    #[derive(Copy, Eq)]
    RateLimitOverride {
        /// Units.
        requests_per_unit: u32 = 1 uint32;
        /// The unit of time.
        unit: i32 = 2 int32;
    }
    /// `google.protobuf.UInt64Value`.
    #[derive(Copy, Eq)]
    UInt64Value {
        /// The value.
        value: u64 = 1 uint64;
    }
    /// `envoy.service.ratelimit.v3.RateLimitResponse`.
    RateLimitResponse {
        /// 1 OK, 2 over limit.
        overall_code: i32 = 1 int32;
        /// One per descriptor, in order.
        statuses: Vec<DescriptorStatus> = 2 message [repeated] "DescriptorStatus";
        /// Header fields for the response to the client.
        response_headers_to_add: Vec<HeaderValue> = 3 message [repeated] "HeaderValue";
        /// Header fields for the request to the upstream.
        request_headers_to_add: Vec<HeaderValue> = 4 message [repeated] "HeaderValue";
        /// The body of a denial.
        raw_body: Vec<u8> = 5 bytes ("vec");
        /// What the rules tell the proxy.
        dynamic_metadata: Option<prost_types::Struct> = 6 message [optional] "Struct";
    }
    /// `RateLimitResponse.DescriptorStatus`.
    DescriptorStatus {
        /// 1 OK, 2 over limit.
        code: i32 = 1 int32;
        /// The limit that was asked.
        current_limit: Option<RateLimit> = 2 message [optional] "RateLimit";
        /// Units left.
        limit_remaining: u32 = 3 uint32;
        /// When everything is back.
        duration_until_reset: Option<Duration> = 4 message [optional] "Duration";
    }
    /// `RateLimitResponse.RateLimit`.
    RateLimit {
        /// Units.
        requests_per_unit: u32 = 1 uint32;
        /// The unit of time.
        unit: i32 = 2 int32;
        /// Its name.
        name: String = 3 string;
    }
    /// `google.protobuf.Duration`.
    #[derive(Copy, Eq)]
    Duration {
        /// Whole seconds.
        seconds: i64 = 1 int64;
        /// The rest.
        nanos: i32 = 2 int32;
    }
    /// `envoy.config.core.v3.HeaderValue`.
    HeaderValue {
        /// The name.
        key: String = 1 string;
        /// The value.
        value: String = 2 string;
    }
}

messages! { THROTTLECRAB:
    /// `throttlecrab.ThrottleRequest`.
    ThrottleRequest {
        /// Who is limited.
        key: String = 1 string;
        /// Units at once.
        max_burst: i32 = 2 int32;
        /// Units per period.
        count_per_period: i32 = 3 int32;
        /// The period in seconds.
        period: i32 = 4 int32;
        /// Units asked.
        quantity: i32 = 5 int32;
    }
    /// `throttlecrab.ThrottleResponse`.
    #[derive(Copy, Eq)]
    ThrottleResponse {
        /// Whether the units were taken.
        allowed: bool = 1 bool;
        /// Units at once.
        limit: i32 = 2 int32;
        /// Units left.
        remaining: i32 = 3 int32;
        /// Seconds to wait, 0 if allowed.
        retry_after: i32 = 4 int32;
        /// Seconds until everything is back.
        reset_after: i32 = 5 int32;
    }
}

/// What `google.protobuf.Struct` is made of: prost has the types, and no table of their fields. A
/// map is a list of entries on the wire.
pub(super) const STRUCT: &[Described] = &[
    ("Struct", &[("fields", 1, "message", "repeated", "FieldsEntry")]),
    ("FieldsEntry", &[("key", 1, "string", "", ""), ("value", 2, "message", "", "Value")]),
    (
        "Value",
        &[
            ("null_value", 1, "int32", "", ""),
            ("number_value", 2, "double", "", ""),
            ("string_value", 3, "string", "", ""),
            ("bool_value", 4, "bool", "", ""),
            ("struct_value", 5, "message", "", "Struct"),
            ("list_value", 6, "message", "", "ListValue"),
        ],
    ),
    ("ListValue", &[("values", 1, "message", "repeated", "Value")]),
];
