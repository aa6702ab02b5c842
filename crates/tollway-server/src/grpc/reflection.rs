//! Reflection: what grpcurl and its like ask before they call.
//!
//! The descriptors are built from the table below, which says of `rls.proto` what
//! [`super::messages`] implements, all of it in one package: names of messages do not travel.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use http::{Request, Response};
use hyper::body::Incoming;
use prost::Message;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{
    DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet,
    MethodDescriptorProto, ServiceDescriptorProto,
};
use tonic::codegen::Service as _;

use super::connection::PROBE_BYTES_MAX;
use super::envoy;

/// Field name, number, type, whether repeated, and the type's name for messages.
type Field = (&'static str, i32, Type, bool, &'static str);

/// The messages, by their names within the package.
pub(super) const MESSAGES: [(&str, &[Field]); 13] = [
    (
        "RateLimitRequest",
        &[
            ("domain", 1, Type::String, false, ""),
            ("descriptors", 2, Type::Message, true, "RateLimitDescriptor"),
            ("hits_addend", 3, Type::Uint32, false, ""),
        ],
    ),
    (
        "RateLimitDescriptor",
        &[
            ("entries", 1, Type::Message, true, "Entry"),
            ("limit", 2, Type::Message, false, "RateLimitOverride"),
            ("hits_addend", 3, Type::Message, false, "UInt64Value"),
            ("is_negative_hits", 4, Type::Bool, false, ""),
        ],
    ),
    ("Entry", &[("key", 1, Type::String, false, ""), ("value", 2, Type::String, false, "")]),
    (
        "RateLimitOverride",
        &[("requests_per_unit", 1, Type::Uint32, false, ""), ("unit", 2, Type::Int32, false, "")],
    ),
    ("UInt64Value", &[("value", 1, Type::Uint64, false, "")]),
    (
        "RateLimitResponse",
        &[
            ("overall_code", 1, Type::Int32, false, ""),
            ("statuses", 2, Type::Message, true, "DescriptorStatus"),
            ("response_headers_to_add", 3, Type::Message, true, "Entry"),
            ("request_headers_to_add", 4, Type::Message, true, "Entry"),
            ("raw_body", 5, Type::Bytes, false, ""),
            ("dynamic_metadata", 6, Type::Message, false, "Struct"),
        ],
    ),
    // A map is a list of entries on the wire.
    ("Struct", &[("fields", 1, Type::Message, true, "FieldsEntry")]),
    (
        "FieldsEntry",
        &[("key", 1, Type::String, false, ""), ("value", 2, Type::Message, false, "Value")],
    ),
    (
        "Value",
        &[
            ("null_value", 1, Type::Int32, false, ""),
            ("number_value", 2, Type::Double, false, ""),
            ("string_value", 3, Type::String, false, ""),
            ("bool_value", 4, Type::Bool, false, ""),
            ("struct_value", 5, Type::Message, false, "Struct"),
            ("list_value", 6, Type::Message, false, "ListValue"),
        ],
    ),
    ("ListValue", &[("values", 1, Type::Message, true, "Value")]),
    (
        "DescriptorStatus",
        &[
            ("code", 1, Type::Int32, false, ""),
            ("current_limit", 2, Type::Message, false, "RateLimit"),
            ("limit_remaining", 3, Type::Uint32, false, ""),
            ("duration_until_reset", 4, Type::Message, false, "Duration"),
        ],
    ),
    (
        "RateLimit",
        &[
            ("requests_per_unit", 1, Type::Uint32, false, ""),
            ("unit", 2, Type::Int32, false, ""),
            ("name", 3, Type::String, false, ""),
        ],
    ),
    ("Duration", &[("seconds", 1, Type::Int64, false, ""), ("nanos", 2, Type::Int32, false, "")]),
];

const PACKAGE: &str = "envoy.service.ratelimit.v3";

/// Answers reflection calls.
pub(super) type Reflection = Arc<dyn Fn(Request<Incoming>) -> Answering + Send + Sync>;

type Answering = Pin<Box<dyn Future<Output = Response<tonic::body::Body>> + Send>>;

/// The service that answers reflection calls.
pub(super) fn service() -> Reflection {
    let set = FileDescriptorSet { file: vec![file()] };
    let built = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(&set.encode_to_vec())
        .build_v1();
    let service = built.expect("the table names only messages that are in it");
    let service = service.max_decoding_message_size(PROBE_BYTES_MAX);
    Arc::new(move |request| {
        let mut service = service.clone();
        Box::pin(async move {
            let Ok(response) = service.call(request).await;
            response
        })
    })
}

fn file() -> FileDescriptorProto {
    let method = MethodDescriptorProto {
        name: Some("ShouldRateLimit".to_owned()),
        input_type: Some(format!(".{PACKAGE}.RateLimitRequest")),
        output_type: Some(format!(".{PACKAGE}.RateLimitResponse")),
        ..MethodDescriptorProto::default()
    };
    let service = ServiceDescriptorProto {
        name: envoy::SERVICE.strip_prefix(PACKAGE).map(|name| name[1..].to_owned()),
        method: vec![method],
        ..ServiceDescriptorProto::default()
    };
    FileDescriptorProto {
        name: Some("envoy/service/ratelimit/v3/rls.proto".to_owned()),
        package: Some(PACKAGE.to_owned()),
        message_type: MESSAGES.iter().map(|(name, fields)| message(name, fields)).collect(),
        service: vec![service],
        syntax: Some("proto3".to_owned()),
        ..FileDescriptorProto::default()
    }
}

fn message(name: &str, fields: &[Field]) -> DescriptorProto {
    let field = |(name, number, kind, is_repeated, type_name): &Field| FieldDescriptorProto {
        name: Some((*name).to_owned()),
        number: Some(*number),
        label: Some(if *is_repeated { Label::Repeated } else { Label::Optional } as i32),
        r#type: Some(*kind as i32),
        type_name: (!type_name.is_empty()).then(|| format!(".{PACKAGE}.{type_name}")),
        ..FieldDescriptorProto::default()
    };
    DescriptorProto {
        name: Some(name.to_owned()),
        field: fields.iter().map(field).collect(),
        ..DescriptorProto::default()
    }
}
