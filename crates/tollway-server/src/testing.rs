//! What tests and fuzz targets outside this crate drive: parts of the service without its sockets.
//!
//! Hidden, and no part of the interface: names here change whenever a test needs it.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};

use crate::drain::Stopper;
use crate::http::{HeardElsewhere, Peer, Reply, Request, answer};
use crate::resp::parse::{Bounds, Frame, parse};
use crate::service::Service;
use crate::worker::Worker;

pub use crate::grpc::{messages, quota_messages};

/// The paths that decide, each asked by `POST` with a JSON body.
pub fn decision_paths() -> Vec<&'static str> {
    crate::http::decision_paths().collect()
}

/// Serves one client over HTTP until it leaves.
///
/// # Errors
///
/// If the stream fails.
pub async fn serve_http<S>(service: Arc<Service>, stream: S) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let (_stopper, stop) = Stopper::new();
    crate::http::serve(&Rc::new(Worker::new(service)), stream, Peer::UNIX, stop).await
}

/// Serves one client over RESP until it leaves.
///
/// # Errors
///
/// If the stream fails.
pub async fn serve_resp<S>(service: Arc<Service>, stream: S) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (_stopper, stop) = Stopper::new();
    let peer = IpAddr::V4(Ipv4Addr::LOCALHOST);
    crate::resp::serve(&Worker::new(service), stream, (7, peer), stop).await
}

/// Answers `POST path` with a JSON body: the status and the body of the reply.
pub async fn post(service: &Arc<Service>, path: &str, body: &[u8]) -> (u16, Vec<u8>) {
    let mut fields = http::HeaderMap::new();
    fields.insert("content-type", http::HeaderValue::from_static("application/json"));
    let (host, query, peer) = (None, None, Peer::UNIX);
    let (fields, client) = (&fields, &HeardElsewhere);
    let request = Request { method: "POST", path, query, host, fields, body, peer, client };
    let mut reply = Reply::default();
    answer(&Worker::new(Arc::clone(service)), &request, &mut reply).await;
    (reply.status, reply.body().to_vec())
}

/// The arguments of a RESP command, and its length in bytes.
pub type Parsed<'a> = (Vec<&'a [u8]>, usize);

/// Reads the RESP command at the start of `input`; `None` for the beginning of one.
///
/// # Errors
///
/// If the bytes cannot become a command, whatever follows them.
pub fn parse_resp(input: &[u8]) -> Result<Option<Parsed<'_>>, String> {
    let mut args = Vec::new();
    match parse(input, &Bounds::default(), &mut args) {
        Ok(Frame::Command { used }) => Ok(Some((args, used))),
        Ok(Frame::Partial) => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
pub(crate) mod proptests {
    use proptest::test_runner::Config;

    /// A configuration with `usual` cases, or a hundred times as many with `TOLLWAY_FULL=1`.
    pub(crate) fn cases(usual: u32) -> Config {
        let is_full = std::env::var_os("TOLLWAY_FULL").is_some_and(|value| value == "1");
        Config::with_cases(if is_full { usual.saturating_mul(100) } else { usual })
    }
}
