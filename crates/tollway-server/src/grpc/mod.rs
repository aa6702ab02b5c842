//! gRPC: Envoy's rate limit service v3, throttlecrab's, health and reflection.
//!
//! Unary calls are read and answered straight on hyper's HTTP/2: a frame in, a frame and a status
//! out. Health and reflection, which stream, are tonic's own services.

mod connection;
mod envoy;
pub mod messages;
mod reflection;
mod socket_name;
mod throttlecrab;
mod unary;

pub(crate) use connection::{Probes, serve};

#[cfg(test)]
mod tests;
