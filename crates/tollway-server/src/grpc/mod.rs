//! gRPC: Envoy's rate limit service v3 and its quota streams, throttlecrab's, health, reflection.
//!
//! Unary calls are read and answered straight on hyper's HTTP/2: a frame in, a frame and a status
//! out. Health and reflection, which stream, are tonic's own services.

mod connection;
mod envoy;
pub mod messages;
mod pings;
pub mod quota_messages;
mod quota_stream;
mod reflection;
mod socket_name;
mod streaming;
mod throttlecrab;
mod unary;

pub(crate) use connection::{Probes, serve};

#[cfg(test)]
mod tests;
