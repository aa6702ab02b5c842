//! Rules that a control plane pushes: a client of aggregated discovery (xDS, state of the world).
//!
//! ```text
//!   connect --> request --> response --> read, check --> in force --> ACK (version, nonce)
//!      ^                                  `- wrong: rules stay -----> NACK (nonce, reason)
//!      `-- pause (grows, jittered) <-- the stream ends: rules stay
//! ```
//!
//! **Invariants.** What was pushed last and was right stays in force, whatever happens to the
//! server. A response is taken as a whole or not at all; a resource that it does not have is gone.
//! What a server can make this client hold or do is bounded: bytes, messages in them, the length of
//! names, and how often per second rules change ([`pace`]).
//!
//! The first request of a stream names no version, although it could name the one in force. Envoy
//! Gateway counts its versions from 1 each time it starts: a client that names the version it has
//! would not be told of other rules with the same number.
//!
//! Deliberately absent: deltas, other types of resources, and names of single resources.

mod messages;
mod pace;
mod parts;
mod push;
mod status;
mod stream;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Uri};
use prost_types::Struct;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};

use crate::service::Service;
use messages::{DiscoveryRequest, Node, Status as ErrorDetail};
pub(crate) use messages::{RateLimitConfig, RateLimitDescriptor, RateLimitPolicy};
use pace::{Pace, pause, random};
use push::{Answered, Push};
pub(crate) use status::Status;
use stream::{Broken, Stream};

/// What is asked for.
pub(crate) const TYPE_URL: &str =
    "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";
/// The code of `google.rpc.Status` for what is wrong with what was sent.
const INVALID_ARGUMENT: i32 = 3;

/// Which server pushes rules, and how it is spoken to.
#[derive(Clone, PartialEq, Eq)]
pub struct XdsSettings {
    /// `http://host:port`, or `https://host:port` for TLS.
    pub server: Uri,
    /// What this node is called there: the server chooses by it what to push.
    pub node: String,
    /// What else the server is told of this node.
    pub metadata: BTreeMap<String, String>,
    /// Header fields of the stream, such as a token.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// Certificates in PEM that are trusted in place of the system's.
    pub authority: Option<PathBuf>,
    /// Certificate and key in PEM that are shown to the server.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The name that the server's certificate must be good for, in place of its host.
    pub server_name: Option<String>,
    /// The longest response, in bytes.
    pub message_bytes_max: usize,
    /// The first pause before it is connected to again.
    pub reconnect_after: Duration,
    /// The longest pause.
    pub reconnect_max: Duration,
    /// How often the connection is tried by a ping.
    pub keepalive: Duration,
    /// Whether the service is ready before the first rules are pushed.
    pub start_without: bool,
}

impl XdsSettings {
    /// A server and the name of this node, everything else as it is by default.
    pub const fn new(server: Uri, node: String) -> Self {
        Self {
            server,
            node,
            metadata: BTreeMap::new(),
            headers: Vec::new(),
            authority: None,
            identity: None,
            server_name: None,
            message_bytes_max: 16 << 20,
            reconnect_after: Duration::from_millis(500),
            reconnect_max: Duration::from_secs(30),
            // Servers in Go close connections that are tried more often than every five minutes.
            keepalive: Duration::from_secs(360),
            start_without: false,
        }
    }
}

impl std::fmt::Debug for XdsSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Header fields may hold a token.
        f.debug_struct("XdsSettings").field("server", &self.server).finish_non_exhaustive()
    }
}

/// The client, and what is known of its server.
#[derive(Debug)]
pub(crate) struct Xds {
    settings: XdsSettings,
    status: Status,
}

impl Xds {
    /// A client that has not begun.
    pub(crate) fn new(settings: XdsSettings) -> Self {
        Self { settings, status: Status::default() }
    }

    /// How the server is spoken to.
    pub(crate) const fn settings(&self) -> &XdsSettings {
        &self.settings
    }

    /// What is known of the server and of what it pushed.
    pub(crate) const fn status(&self) -> &Status {
        &self.status
    }

    /// Whether rules are in force that the service must not be without.
    pub(crate) fn is_ready(&self) -> bool {
        self.settings.start_without || self.status.has_rules()
    }

    /// Follows the server for as long as the service runs.
    pub(crate) async fn follow(self: Arc<Self>, service: Arc<Service>) {
        let settings = &self.settings;
        let mut failures = 0;
        loop {
            let began = Instant::now();
            let broken = match Stream::open(settings).await {
                Ok(stream) => self.converse(&service, stream).await,
                Err(broken) => broken,
            };
            self.status.disconnected(&broken, service.clock().now());
            // A server that ends every stream at once must not be connected to without pauses.
            let lasted = began.elapsed() >= settings.reconnect_max;
            failures = if lasted { 0 } else { failures + 1 };
            let (first, longest) = (settings.reconnect_after, settings.reconnect_max);
            sleep(pause(failures, random(), first, longest)).await;
        }
    }

    /// Takes what the server pushes, until the stream ends.
    async fn converse(self: &Arc<Self>, service: &Arc<Service>, mut stream: Stream) -> Broken {
        self.status.connected(&self.settings.server, service.clock().now());
        let mut pace = Pace::default();
        if let Err(broken) = stream.send(&self.request()).await {
            return broken;
        }
        loop {
            if let Err(broken) = self.hear(service, &mut stream, &mut pace).await {
                return broken;
            }
        }
    }

    /// Takes the next response, answers it, and rests.
    async fn hear(
        self: &Arc<Self>,
        service: &Arc<Service>,
        stream: &mut Stream,
        pace: &mut Pace,
    ) -> Result<(), Broken> {
        let message = stream.next().await?;
        let began = Instant::now();
        if let Some(answered) = self.take(service, message).await? {
            stream.send(&self.answer(answered)).await?;
        }
        sleep(pace.rest(began, began.elapsed())).await;
        Ok(())
    }

    /// Reads what was pushed and puts it in force, on a thread where nobody waits for it; `None` if
    /// nothing is to be said about it.
    async fn take(
        self: &Arc<Self>,
        service: &Arc<Service>,
        message: Bytes,
    ) -> Result<Option<Answered>, Broken> {
        let (xds, service) = (Arc::clone(self), Arc::clone(service));
        let taken =
            spawn_blocking(move || Push::read(&message)?.put_in_force(&xds.status, &service));
        let ended = |error| Broken::Malformed(format!("reading broke off: {error}"));
        taken.await.unwrap_or_else(|error| Err(ended(error)))
    }

    /// The first request of a stream.
    fn request(&self) -> DiscoveryRequest {
        let text = |text: &String| prost_types::Value {
            kind: Some(prost_types::value::Kind::StringValue(text.clone())),
        };
        let fields = self.settings.metadata.iter();
        let fields = fields.map(|(name, value)| (name.clone(), text(value))).collect();
        let metadata = (!self.settings.metadata.is_empty()).then_some(Struct { fields });
        let node = Node {
            id: self.settings.node.clone(),
            metadata,
            user_agent_name: "tollway".to_owned(),
            user_agent_version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        DiscoveryRequest {
            node: Some(node),
            type_url: TYPE_URL.to_owned(),
            ..DiscoveryRequest::default()
        }
    }

    /// The request that answers a response.
    fn answer(&self, answered: Answered) -> DiscoveryRequest {
        let request = DiscoveryRequest { response_nonce: answered.nonce, ..self.request() };
        // Of a response that is refused the version in force is named, by which servers know it.
        let version_info = self.status.version().unwrap_or_default();
        let error_detail =
            answered.refused.map(|message| ErrorDetail { code: INVALID_ARGUMENT, message });
        DiscoveryRequest { version_info, error_detail, ..request }
    }
}
