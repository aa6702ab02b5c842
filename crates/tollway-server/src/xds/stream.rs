//! One stream of messages to the server and back: gRPC on a connection of its own.
//!
//! ```text
//!   | flag | length, 4 bytes big-endian | message |    flag 1 means compressed: not asked for
//! ```
//!
//! A message is refused by the length that it states, before any of it is kept. Of a server that is
//! connected and says nothing nobody knows whether it lives: pings find out.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use http::header::{CONTENT_TYPE, TE, USER_AGENT};
use http::uri::{PathAndQuery, Scheme};
use http::{HeaderMap, Request, Response, StatusCode, Uri, Version};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::client::legacy::connect::Connection as _;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use prost::Message;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tollway_http::connect::{self, Connector, Identity, Versions};
use tower_service::Service as _;

use super::XdsSettings;
use super::messages::DiscoveryRequest;
use crate::channel_body::ChannelBody;

const PATH: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";
const PREFIX_BYTES: usize = 5;
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// How long a message may take once it has begun, and how long a request may wait to be sent.
const MESSAGE_WITHIN: Duration = Duration::from_secs(60);
const PING_WITHIN: Duration = Duration::from_secs(20);
/// What the server may send before it is read.
const WINDOW_BYTES: u32 = 256 * 1024;
const HEADER_LIST_BYTES_MAX: u32 = 16 * 1024;
/// Requests that wait to be sent: each answers a response, so there is hardly ever one.
const REQUESTS_MAX: usize = 2;

/// Why there is no stream any more, or none came about.
#[derive(Debug)]
pub(super) enum Broken {
    /// There was no connection.
    Unreachable(String),
    /// The server ended it, or the connection broke.
    Ended(String),
    /// A message is longer than messages may be.
    TooLong { bytes: usize, most: usize },
    /// What came is no message, or none that could be answered.
    Malformed(String),
}

impl Broken {
    /// Whether it is for what the server sent.
    pub(super) const fn is_unreadable(&self) -> bool {
        matches!(self, Self::TooLong { .. } | Self::Malformed(_))
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(why) => write!(f, "no connection: {why}"),
            Self::Ended(why) => write!(f, "the stream ended: {why}"),
            Self::TooLong { bytes, most } => {
                write!(f, "a response of {bytes} bytes; at most {most} are read (message_bytes)")
            }
            Self::Malformed(why) => write!(f, "cannot be read: {why}"),
        }
    }
}

/// A stream.
pub(super) struct Stream {
    requests: mpsc::Sender<Bytes>,
    response: ResponseState,
    buffer: BytesMut,
    message_bytes_max: usize,
    /// Reads and writes the connection until the stream is dropped.
    _connection: JoinSet<()>,
}

/// A server may send its header fields with the first message only.
enum ResponseState {
    Awaited(Pin<Box<dyn Future<Output = hyper::Result<Response<Incoming>>> + Send>>),
    Begun(Incoming),
}

impl Stream {
    /// Connects and begins a stream. Certificates are read each time: new ones need no restart.
    ///
    /// # Errors
    ///
    /// If there is no connection.
    pub(super) async fn open(settings: &XdsSettings) -> Result<Self, Broken> {
        let unreachable = |error: Box<dyn std::error::Error + Send + Sync>| {
            Broken::Unreachable(tollway_core::explained(&*error))
        };
        let mut connector = connector(settings).await.map_err(|error| unreachable(error.into()))?;
        let connected = connector.call(settings.server.clone()).await.map_err(unreachable)?;
        let is_tls = settings.server.scheme() == Some(&Scheme::HTTPS);
        if is_tls && !connected.inner().connected().is_negotiated_h2() {
            return Err(Broken::Unreachable("the server does not speak HTTP/2 over TLS".into()));
        }
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder.timer(TokioTimer::new()).max_header_list_size(HEADER_LIST_BYTES_MAX);
        builder.initial_stream_window_size(WINDOW_BYTES);
        builder.initial_connection_window_size(WINDOW_BYTES);
        builder.keep_alive_interval(settings.keepalive).keep_alive_timeout(PING_WITHIN);
        builder.keep_alive_while_idle(true);
        let (mut sender, connection) =
            builder.handshake(connected).await.map_err(|error| unreachable(error.into()))?;
        let mut driver = JoinSet::new();
        driver.spawn(async move {
            // Why it ended is told to whoever reads the stream.
            let _ = connection.await;
        });
        let (requests, sent) = mpsc::channel(REQUESTS_MAX);
        let request = request(settings, ChannelBody(sent))
            .map_err(|error| Broken::Unreachable(error.to_string()))?;
        Ok(Self {
            requests,
            response: ResponseState::Awaited(Box::pin(async move {
                sender.send_request(request).await
            })),
            buffer: BytesMut::new(),
            message_bytes_max: settings.message_bytes_max,
            _connection: driver,
        })
    }

    /// Sends a message.
    ///
    /// # Errors
    ///
    /// If the stream is over, or the server takes none.
    pub(super) async fn send(&mut self, message: &DiscoveryRequest) -> Result<(), Broken> {
        let length = message.encoded_len();
        let mut data = BytesMut::with_capacity(PREFIX_BYTES + length);
        data.put_u8(0);
        data.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
        // The buffer grows as needed: encoding into it cannot fail.
        let _ = message.encode(&mut data);
        match timeout(MESSAGE_WITHIN, self.requests.send(data.freeze())).await {
            Ok(Ok(())) => Ok(()),
            // Why is told by what is read.
            Ok(Err(_)) => Err(self.next().await.err().unwrap_or_else(|| ended("it was closed"))),
            Err(_) => Err(ended("the server takes no answers")),
        }
    }

    /// The next message.
    ///
    /// # Errors
    ///
    /// If the stream is over, or what comes is no message of an allowed length.
    pub(super) async fn next(&mut self) -> Result<Bytes, Broken> {
        while self.buffer.is_empty() {
            self.read().await?;
        }
        let whole = async {
            loop {
                if let Some(message) = self.whole()? {
                    return Ok(message);
                }
                self.read().await?;
            }
        };
        timeout(MESSAGE_WITHIN, whole)
            .await
            .unwrap_or_else(|_| Err(Broken::Malformed("a response does not end".to_owned())))
    }

    /// The message at the beginning of what was read, if all of it is there.
    fn whole(&mut self) -> Result<Option<Bytes>, Broken> {
        let Some(&[flag, a, b, c, d]) = self.buffer.first_chunk::<PREFIX_BYTES>() else {
            return Ok(None);
        };
        let (bytes, most) = (u32::from_be_bytes([a, b, c, d]) as usize, self.message_bytes_max);
        if flag != 0 {
            return Err(Broken::Malformed("a response is compressed".to_owned()));
        }
        if bytes > most {
            return Err(Broken::TooLong { bytes, most });
        }
        if self.buffer.len() < PREFIX_BYTES + bytes {
            return Ok(None);
        }
        let mut message = self.buffer.split_to(PREFIX_BYTES + bytes);
        Ok(Some(message.split_off(PREFIX_BYTES).freeze()))
    }

    /// Reads what comes next.
    async fn read(&mut self) -> Result<(), Broken> {
        let body = match &mut self.response {
            ResponseState::Begun(body) => body,
            ResponseState::Awaited(response) => {
                let response = response.await.map_err(|error| broke(&error))?;
                let (head, body) = response.into_parts();
                if head.status != StatusCode::OK || head.headers.contains_key("grpc-status") {
                    return Err(refusal(head.status, &head.headers));
                }
                self.response = ResponseState::Begun(body);
                return Ok(());
            }
        };
        match body.frame().await {
            None => Err(ended("without a status")),
            Some(Err(error)) => Err(broke(&error)),
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) => {
                    self.buffer.extend_from_slice(&data);
                    Ok(())
                }
                Err(frame) => {
                    let trailers = frame.into_trailers().unwrap_or_default();
                    Err(refusal(StatusCode::OK, &trailers))
                }
            },
        }
    }
}

/// What makes connections, with certificates as they are in their files now.
async fn connector(settings: &XdsSettings) -> io::Result<Connector> {
    let read = async |path: &std::path::Path| {
        let named = |error| io::Error::other(format!("{}: {error}", path.display()));
        tokio::fs::read(path).await.map_err(named)
    };
    let roots = match &settings.authority {
        Some(path) => Some(read(path).await?),
        None => None,
    };
    let pair = match &settings.identity {
        Some((certificate, key)) => Some((read(certificate).await?, read(key).await?)),
        None => None,
    };
    connect::connector(&connect::Options {
        versions: Versions::Http2,
        roots_pem: roots.as_deref(),
        unix: None,
        timeout: CONNECT_WITHIN,
        idle_max: 0,
        identity: pair
            .as_ref()
            .map(|(certificate_pem, key_pem)| Identity { certificate_pem, key_pem }),
        server_name: settings.server_name.as_deref(),
    })
}

fn request(settings: &XdsSettings, body: ChannelBody) -> http::Result<Request<ChannelBody>> {
    let mut parts = settings.server.clone().into_parts();
    parts.path_and_query = Some(PathAndQuery::from_static(PATH));
    let uri = Uri::from_parts(parts)?;
    let agent = concat!("tollway/", env!("CARGO_PKG_VERSION"));
    let mut request = Request::post(uri)
        .version(Version::HTTP_2)
        .header(CONTENT_TYPE, "application/grpc")
        .header(TE, "trailers")
        .header(USER_AGENT, agent)
        .body(body)?;
    for (name, value) in &settings.headers {
        request.headers_mut().append(name, value.clone());
    }
    Ok(request)
}

fn ended(why: &str) -> Broken {
    Broken::Ended(why.to_owned())
}

fn broke(error: &hyper::Error) -> Broken {
    Broken::Ended(tollway_core::explained(error))
}

/// Why the server ended the stream, as it says.
fn refusal(status: StatusCode, fields: &HeaderMap) -> Broken {
    match tonic::Status::from_header_map(fields) {
        Some(told) if told.code() == tonic::Code::Ok => ended("the server closed it"),
        Some(told) => Broken::Ended(format!("{:?}: {}", told.code(), told.message())),
        None => Broken::Ended(format!("the server answered {status} without a gRPC status")),
    }
}
