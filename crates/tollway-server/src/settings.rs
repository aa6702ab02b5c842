//! Bounds on everything a client can make the service hold or wait for, and who may ask.

use std::time::Duration;

use tollway_core::Cidr;
use tollway_core::fields::{Dialect, ForwardedBy, Hosts};

use crate::auth::Auth;
use crate::http2::Age;

/// Everything about the service that is not a rule.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Bounds.
    pub limits: Limits,
    /// Who may ask, at the start; [`Service::auth`](crate::service::Service::auth) says who may
    /// now.
    pub auth: Auth,
    /// Which header fields answers carry.
    pub dialect: Dialect,
    /// The names by which it answers over HTTP while it knows no token.
    pub hosts: Hosts,
    /// Peers that are believed when they say whom they forward for.
    pub trusted_proxies: Vec<Cidr>,
    /// The field in which they say it.
    pub forwarded_by: ForwardedBy,
    /// How long a portion of a quota is good that a gateway enforces by itself.
    pub quota_lifetime: Option<Duration>,
    /// What is said as envoyproxy/ratelimit says it, if this stands in for it.
    pub ratelimit: Option<Ratelimit>,
    /// How domains are read.
    pub manner: Manner,
}

/// What holds for every domain that is read, of files and of what is pushed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Manner {
    /// Whether a domain that is there already takes in what another place says of it.
    pub merges: bool,
    /// Whether every limit is in quota mode.
    pub quota_mode: bool,
    /// Whether a limit that says nothing else tells that its store fails: then the proxy decides,
    /// as it does where envoyproxy/ratelimit has no answer.
    pub tells_store_errors: bool,
}

/// What `/healthcheck` needs beside a process that does not drain, where this stands in for
/// envoyproxy/ratelimit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ratelimit {
    /// A domain.
    pub needs_rules: bool,
    /// A store that answers.
    pub needs_store: bool,
}

/// Bounds on connections and requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections open at once, over all fronts; more are closed at once. The limit on open files
    /// may leave room for fewer.
    pub connections_max: usize,
    /// The longest RESP command, in bytes.
    pub frame_bytes_max: usize,
    /// Commands of one pipeline decided as one batch (a longer pipeline is answered in parts), and
    /// requests in one HTTP batch.
    pub pipeline_max: usize,
    /// The longest HTTP body or gRPC message, in bytes.
    pub body_bytes_max: usize,
    /// Charges in one request.
    pub charges_max: usize,
    /// Bytes of unfinished requests, and of answers over HTTP/2, held for all connections together.
    pub held_bytes_max: usize,
    /// How long a new connection may take to its first whole request, and over RESP, where tokens
    /// are known, to show one.
    pub first_request_after: Duration,
    /// How long a client may take to finish a request it has begun, and to read an answer.
    pub slow_client_after: Duration,
    /// How long a connection may stay idle; `None` for as long as it likes.
    pub idle_after: Option<Duration>,
    /// How long a gRPC connection lives; `None` for as long as its client likes.
    pub grpc_age: Option<Age>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections_max: 20_000,
            frame_bytes_max: 1 << 20,
            pipeline_max: 1_024,
            body_bytes_max: 1 << 20,
            charges_max: 64,
            held_bytes_max: 64 << 20,
            first_request_after: Duration::from_secs(10),
            slow_client_after: Duration::from_secs(10),
            idle_after: None,
            grpc_age: None,
        }
    }
}

impl Limits {
    /// What one connection may make the service hold, however many requests it has under way.
    pub fn connection_bytes_max(&self) -> usize {
        self.body_bytes_max.max(CONNECTION_BYTES_MAX)
    }
}

/// Enough for many requests at once, or for a few of the longest.
const CONNECTION_BYTES_MAX: usize = 4 << 20;
