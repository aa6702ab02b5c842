//! The Tollgate service: RESP, HTTP and Envoy gRPC in front of one limiter.

pub mod adhoc;
pub mod auth;
pub mod buffers;
mod counting;
pub mod decide;
pub mod descriptors;
pub mod drain;
pub mod grpc;
pub mod http;
pub mod metrics;
pub mod net;
pub mod pattern;
mod process;
mod reload;
mod reservation_name;
pub mod resp;
pub mod rls;
pub mod rules;
pub mod service;
pub mod settings;
pub mod top;
mod wait;
pub mod worker;
