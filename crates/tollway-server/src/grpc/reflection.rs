//! Reflection: what grpcurl and its like ask before they call.
//!
//! The descriptors are built from the tables of [`super::messages`], all of a service's in its own
//! package: names of messages do not travel.

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
use super::messages::{Described, ENVOY, Field, STRUCT, THROTTLECRAB};
use super::{envoy, throttlecrab};

/// Answers reflection calls.
pub(super) type Reflection = Arc<dyn Fn(Request<Incoming>) -> Answering + Send + Sync>;

type Answering = Pin<Box<dyn Future<Output = Response<tonic::body::Body>> + Send>>;

/// The service that answers reflection calls.
pub(super) fn service() -> Reflection {
    let envoy_file = file(
        "envoy/service/ratelimit/v3/rls.proto",
        envoy::PATH,
        ["RateLimitRequest", "RateLimitResponse"],
        &[ENVOY, STRUCT],
    );
    let throttlecrab_file = file(
        "throttlecrab.proto",
        throttlecrab::PATH,
        ["ThrottleRequest", "ThrottleResponse"],
        &[THROTTLECRAB],
    );
    let set = FileDescriptorSet { file: vec![envoy_file, throttlecrab_file] };
    let built = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(&set.encode_to_vec())
        .build_v1();
    let service = built.expect("the tables name only messages that are in them");
    let service = service.max_decoding_message_size(PROBE_BYTES_MAX);
    Arc::new(move |request| {
        let mut service = service.clone();
        Box::pin(async move {
            let Ok(response) = service.call(request).await;
            response
        })
    })
}

/// The file of a service with one method, whose path is `/package.Service/Method`.
fn file(
    name: &str,
    path: &str,
    [request, response]: [&str; 2],
    messages: &[&[Described]],
) -> FileDescriptorProto {
    let mut parts = path.split('/').skip(1);
    let (service, method) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let (package, service) = service.rsplit_once('.').unwrap_or_default();
    let method = MethodDescriptorProto {
        name: Some(method.to_owned()),
        input_type: Some(format!(".{package}.{request}")),
        output_type: Some(format!(".{package}.{response}")),
        ..MethodDescriptorProto::default()
    };
    let service = ServiceDescriptorProto {
        name: Some(service.to_owned()),
        method: vec![method],
        ..ServiceDescriptorProto::default()
    };
    let messages = messages.concat();
    FileDescriptorProto {
        name: Some(name.to_owned()),
        package: Some(package.to_owned()),
        message_type: messages.iter().map(|described| message(package, described)).collect(),
        service: vec![service],
        syntax: Some("proto3".to_owned()),
        ..FileDescriptorProto::default()
    }
}

fn message(package: &str, (name, fields): &Described) -> DescriptorProto {
    let field = |(name, number, kind, label, type_name): &Field| FieldDescriptorProto {
        name: Some((*name).to_owned()),
        number: Some(*number),
        label: Some(if *label == "repeated" { Label::Repeated } else { Label::Optional } as i32),
        r#type: Type::from_str_name(&format!("TYPE_{}", kind.to_uppercase()))
            .map(|kind| kind as i32),
        type_name: (!type_name.is_empty()).then(|| format!(".{package}.{type_name}")),
        ..FieldDescriptorProto::default()
    };
    DescriptorProto {
        name: Some((*name).to_owned()),
        field: fields.iter().map(field).collect(),
        ..DescriptorProto::default()
    }
}
