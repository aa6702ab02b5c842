//! Reflection: what grpcurl and its like ask before they call.
//!
//! The descriptors are built from the tables of [`super::messages`], all of a service's in its own
//! package: names of messages do not travel.

use std::convert::Infallible;
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

use super::connection::PROBE_BYTES_MAX;
use super::messages::{Described, ENVOY, Field, STRUCT, THROTTLECRAB};
use super::{envoy, throttlecrab};

/// Answers reflection calls.
pub(super) type Reflection = Arc<dyn Fn(Request<Incoming>) -> Answering + Send + Sync>;

type Answering = Pin<Box<dyn Future<Output = Response<tonic::body::Body>> + Send>>;

/// The service that answers reflection calls, by the path of its version: what is built on grpcio
/// asks the older one.
pub(super) fn services() -> [(&'static str, Reflection); 2] {
    let health = FileDescriptorSet::decode(tonic_health::pb::FILE_DESCRIPTOR_SET);
    let mut set = health.expect("the crate holds its own descriptors");
    set.file.extend(own_files());
    let set = set.encode_to_vec();
    let builder = || {
        tonic_reflection::server::Builder::configure().register_encoded_file_descriptor_set(&set)
    };
    let right = "the tables name only messages that are in them";
    let newer = builder().build_v1().expect(right).max_decoding_message_size(PROBE_BYTES_MAX);
    let older = builder().build_v1alpha().expect(right);
    let older = older.max_decoding_message_size(PROBE_BYTES_MAX);
    [("/grpc.reflection.v1.", answering(newer)), ("/grpc.reflection.v1alpha.", answering(older))]
}

fn answering<S>(service: S) -> Reflection
where
    S: tonic::codegen::Service<
            Request<Incoming>,
            Response = Response<tonic::body::Body>,
            Error = Infallible,
        > + Clone
        + Send
        + Sync
        + 'static,
    S::Future: Send,
{
    Arc::new(move |request| {
        let mut service = service.clone();
        Box::pin(async move {
            let Ok(response) = service.call(request).await;
            response
        })
    })
}

/// The files of the services that are not the framework's.
fn own_files() -> [FileDescriptorProto; 2] {
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
    [envoy_file, throttlecrab_file]
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
