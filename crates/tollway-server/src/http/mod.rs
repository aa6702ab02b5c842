//! HTTP/1.1 and HTTP/2 with JSON: any language, any proxy.
//!
//! ```text
//!   bytes -> connection (HTTP/1.1, by hand) --+
//!         \-> fallback (hyper: HTTP/2, chunks) -+-> Request -> routes -> Reply -> bytes
//! ```
//!
//! The plain HTTP/1.1 request that every client sends a million times is read and answered here,
//! several pipelined ones in one write. Anything else (HTTP/2, chunked bodies, `Expect`, `Upgrade`)
//! goes to hyper together with the bytes read so far; both ways meet in [`answer`].

mod compat;
mod connection;
pub(crate) mod event_stream;
mod fallback;
mod gate;
mod operations;
mod ops;
mod own_quotas;
mod pages;
mod presence;
mod problem;
mod queues;
mod ratelimit;
mod reply;
mod request;
mod routes;
mod usage;
mod verdict;

pub(crate) use connection::serve;
pub(crate) use event_stream::Viewer;
pub(crate) use operations::unaskable;
pub(crate) use own_quotas::{change_or_here as change_own_quota, until_ms};
pub(crate) use presence::HeardElsewhere;
pub(crate) use problem::Trouble;
pub(crate) use reply::Reply;
pub(crate) use request::{Call, Peer, Request};
pub(crate) use routes::{answer, decision_paths, permit_change};
pub(crate) use usage::why_no_usage;

#[cfg(test)]
mod tests;
