//! Calls to the HTTP of a running service, one at a time: over TCP, TLS or a Unix socket.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use bytes::Bytes;
use http::{Method, Request};
use http_body_util::{BodyExt as _, Full, Limited};
use serde_json::Value;
use tollway_http::connect::{self, Options, Pool, Versions};

use crate::misuse::OrMisuse as _;

/// How long a call may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// The longest answer that is read: a page of jobs is the longest that there is.
const ANSWER_BYTES_MAX: usize = 32 << 20;

/// A service.
pub(crate) struct Client {
    base: String,
    token: Option<String>,
    pool: Pool<Full<Bytes>>,
    runtime: tokio::runtime::Runtime,
}

/// Whom to believe that it is the service.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Trust {
    /// Trust the certificates in this PEM file instead of the system's; with it, a Unix socket uses
    /// TLS
    #[arg(long, global = true, value_name = "FILE")]
    ca: Option<PathBuf>,
}

/// That the service answered, and will not do it.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) status: http::StatusCode,
    detail: Option<String>,
}

/// Whether the service says that there is no such thing.
pub(crate) fn is_missing(error: &anyhow::Error) -> bool {
    let refused = error.downcast_ref::<Refused>();
    refused.is_some_and(|refused| refused.status == http::StatusCode::NOT_FOUND)
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.detail {
            Some(detail) => write!(f, "{detail} ({})", self.status),
            None => write!(f, "the service answered {}", self.status),
        }
    }
}

impl std::error::Error for Refused {}

/// Where a service listens.
#[derive(Debug, PartialEq, Eq)]
struct Address {
    base: String,
    unix: Option<PathBuf>,
}

impl Client {
    /// The service at `address`: `host:port`, `http://…`, `https://…` or `unix:/path`. The token is
    /// that of the environment.
    pub(crate) fn new(address: &str, trust: &Trust) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let Address { base, unix } = Address::parse(address, trust.ca.is_some()).or_misuse()?;
        let roots = trust.ca.as_deref().map(read).transpose()?;
        let options = Options {
            versions: Versions::Http1,
            roots_pem: roots.as_deref(),
            unix: unix.as_deref(),
            timeout: PATIENCE,
            // As many as work at once keep their connections.
            idle_max: 64,
            identity: None,
            server_name: None,
        };
        let pool = connect::pool(&options).context("--ca")?;
        let token = std::env::var("TOLLWAY_TOKEN").ok().filter(|token| !token.is_empty());
        Ok(Self { base, token, pool, runtime })
    }

    /// What a task says that calls this client.
    pub(crate) fn block_on<T>(&self, task: impl Future<Output = T>) -> T {
        self.runtime.block_on(task)
    }

    /// What the service says at `path`, which begins with a slash.
    pub(crate) fn get(&self, path: &str) -> Result<Value> {
        self.call(Method::GET, path, Bytes::new())
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Result<Value> {
        self.call(Method::POST, path, body.to_string().into())
    }

    pub(crate) fn put(&self, path: &str, body: &Value) -> Result<Value> {
        self.call(Method::PUT, path, body.to_string().into())
    }

    pub(crate) fn patch(&self, path: &str, body: &Value) -> Result<Value> {
        self.call(Method::PATCH, path, body.to_string().into())
    }

    pub(crate) fn delete(&self, path: &str) -> Result<Value> {
        self.call(Method::DELETE, path, Bytes::new())
    }

    fn call(&self, method: Method, path: &str, body: Bytes) -> Result<Value> {
        self.runtime.block_on(self.send(method, path, body))
    }

    /// What the service says to a request, which may be one of several under way; [`Refused`] if it
    /// says that it will not.
    pub(crate) async fn send(&self, method: Method, path: &str, body: Bytes) -> Result<Value> {
        let text = self.answer(method, path, body).await?;
        // Whatever else answers there must not pass for a service with nothing to say.
        serde_json::from_slice(&text).context("what answers there is no Tollway")
    }

    /// The text at `path`.
    pub(crate) async fn text(&self, path: &str) -> Result<String> {
        let text = self.answer(Method::GET, path, Bytes::new()).await?;
        String::from_utf8(text.into()).context("what answers there is no text")
    }

    async fn answer(&self, method: Method, path: &str, body: Bytes) -> Result<Bytes> {
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.base));
        if !body.is_empty() {
            request = request.header("content-type", "application/json");
        }
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let request = request
            .body(Full::new(body))
            .context("the address or the token in TOLLWAY_TOKEN cannot be sent in a request")?;
        let called = tokio::time::timeout(PATIENCE, self.ask(request)).await;
        let (status, text) =
            called.with_context(|| format!("no answer within {} s", PATIENCE.as_secs()))??;
        if status.is_success() {
            return Ok(text);
        }
        let body: Value = serde_json::from_slice(&text).unwrap_or(Value::Null);
        Err(Refused { status, detail: body["detail"].as_str().map(str::to_owned) }.into())
    }

    async fn ask(&self, request: Request<Full<Bytes>>) -> Result<(http::StatusCode, Bytes)> {
        let no_service = format!("no service answers at {}", request.uri());
        let answer = self.pool.request(request).await.context(no_service)?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect().await;
        let body = body.map_err(|error| anyhow!("the answer broke off: {error}"))?;
        Ok((status, body.to_bytes()))
    }
}

impl Address {
    fn parse(text: &str, has_ca: bool) -> Result<Self> {
        let right = "expected host:port, http://host:port, https://host:port or unix:/path";
        if let Some(path) = text.strip_prefix("unix:") {
            let path = path.split('?').next().unwrap_or_default();
            if path.is_empty() {
                bail!("the address {text:?} names no socket; {right}");
            }
            let scheme = if has_ca { "https" } else { "http" };
            return Ok(Self { base: format!("{scheme}://localhost"), unix: Some(path.into()) });
        }
        let base = match text.split_once("://") {
            None => format!("http://{text}"),
            Some((scheme @ ("http" | "https"), rest)) => {
                format!("{scheme}://{}", rest.trim_end_matches('/'))
            }
            Some((scheme, _)) => {
                bail!("the address {text:?}: {scheme}:// is not supported; {right}")
            }
        };
        let uri: http::Uri =
            base.parse().with_context(|| format!("invalid address {text:?}; {right}"))?;
        uri.host().with_context(|| format!("the address {text:?} names no host; {right}"))?;
        Ok(Self { base, unix: None })
    }
}

fn read(file: &Path) -> Result<Vec<u8>> {
    std::fs::read(file).with_context(|| format!("--ca {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_is_named_by_address_url_or_socket() {
        let base = |text: &str| Address::parse(text, false).map(|address| address.base).ok();
        assert_eq!(base("127.0.0.1:8080").as_deref(), Some("http://127.0.0.1:8080"));
        assert_eq!(base("[::1]:8080").as_deref(), Some("http://[::1]:8080"));
        assert_eq!(base("https://t.example/").as_deref(), Some("https://t.example"));
        for wrong in ["ftp://h", "unix:", "unix:?mode=0660", "http://", "a b"] {
            assert_eq!(base(wrong), None, "{wrong}");
        }
        let socket = Address::parse("unix:/run/t.sock?mode=0660", true).expect("a socket");
        assert_eq!(socket.unix.as_deref(), Some(Path::new("/run/t.sock")));
        assert_eq!(socket.base, "https://localhost");
    }
}
