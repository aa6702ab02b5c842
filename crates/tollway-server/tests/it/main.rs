//! The service as its clients see it: through sockets, with the clients and proxies people run.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says why it skips"
)]

/// A server on free ports, and the smallest clients that can talk to it.
mod harness;

/// The conformance scenarios through each front.
mod conformance;

/// The service as another process's store: its own client, asked as any store is.
mod remote;

/// Clients that people use: redis-cli, redis-py, ioredis, node-redis, the redis crate, curl, tonic.
mod clients;

/// Proxies that ask before they let a request through: nginx, Envoy.
mod proxies;

/// Quotas that gateways enforce by themselves, with real Envoys.
mod quota_streams;

/// Limits that follow a calendar.
mod plans;

/// Quotas of one's own for keys and patterns: what holds, who sees it, what stays.
mod own_quotas;

/// Requests in one go over HTTP/1.1, and how strictly they are read.
mod pipelines;

/// Web pages in a browser that can reach the service.
mod pages;

/// What clients can make the service hold.
mod holding;

/// Connections that say nothing, and the places that they take.
mod silence;

/// Workers that leave while they wait for a job.
mod leaving;

/// The end, as busy clients see it.
mod draining;

/// Whoever means harm: floods, slow clients, absurd lengths, random bytes.
mod abuse;

/// Changes that are wrong: told by file, line and field; the old rules stay.
mod bad_changes;
/// Limits that come with the call, and limits of two buckets.
mod call_limits;

/// Traces, as a collector receives them.
#[cfg(feature = "otlp")]
mod traces;

/// What a store that fails does to requests, and what it must not.
mod failures;

/// One set of failure rules for everybody who talks to Redis: each fault through all four users.
mod redis_faults;

/// What operators and clients are told while the store is lost: killed, stopped, paused.
mod outage;

/// What operators do: reload, drain, tokens, certificates, sockets, metrics.
mod operations;

/// Settings of queues: by file, by reload, by calls, by several services on one store.
mod queue_settings;

/// Rules that a control plane pushes: what is taken, what is refused, and what stays.
mod xds;

/// The dashboard's page, events, lists and changes, as a client sees them.
mod dashboard;
