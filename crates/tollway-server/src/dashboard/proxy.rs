//! The upstream buckets and the state of a proxy, fetched from its administration port.
//!
//! The page may only ask its own origin, so the service asks for it: one address, given by the
//! operator, two paths, a bound on time and on bytes.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::reply;
use crate::http::{Call, Trouble};
use crate::http2::LocalExecutor;

const PATIENCE: Duration = Duration::from_secs(2);
const ANSWER_BYTES_MAX: usize = 4 << 20;

/// Where a proxy's administration is: `127.0.0.1:8091`.
#[derive(Clone, PartialEq, Eq)]
pub struct ProxyAdmin {
    authority: String,
    token: Option<String>,
}

impl ProxyAdmin {
    /// The administration at `address`, with or without `http://`; `token` is shown to it.
    pub fn new(address: &str, token: Option<String>) -> Self {
        let authority = address.trim_start_matches("http://").trim_end_matches('/').to_owned();
        Self { authority, token }
    }
}

impl fmt::Debug for ProxyAdmin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The token is a secret.
        f.debug_tuple("ProxyAdmin").field(&self.authority).finish()
    }
}

/// `GET /dashboard/upstream`: what the proxy says of its buckets, its paging passed on.
pub(crate) async fn buckets(call: Call<'_>) -> Result<(), Trouble> {
    let query = call.request.query.map_or(String::new(), |query| format!("?{query}"));
    pass_on(call, &format!("/admin/buckets{query}")).await
}

/// `GET /dashboard/upstream/status`: refusals, the last changes, and whether upstream and store
/// answer the proxy.
pub(crate) async fn status(call: Call<'_>) -> Result<(), Trouble> {
    pass_on(call, "/admin/status").await
}

async fn pass_on(call: Call<'_>, target: &str) -> Result<(), Trouble> {
    let proxy = call.service().dashboard.proxy.as_ref().ok_or(Trouble::NotFound)?;
    match timeout(PATIENCE, fetch(proxy, target)).await {
        Ok(Ok(answer)) => reply(call, &answer),
        // Why is the operator's business and in the log; the page says that it is gone.
        Ok(Err(error)) => {
            tracing::warn!(error, "the proxy's administration does not answer");
            Err(Trouble::Gateway)
        }
        Err(_) => Err(Trouble::Gateway),
    }
}

async fn fetch(
    proxy: &ProxyAdmin,
    target: &str,
) -> Result<Value, Box<dyn std::error::Error + Send + Sync>> {
    let stream = TcpStream::connect(&proxy.authority).await?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let driver = async move {
        // Its failure is the request's failure.
        let _ = connection.await;
    };
    hyper::rt::Executor::execute(&LocalExecutor, driver);
    let mut head = http::Request::get(target).header("host", &proxy.authority);
    if let Some(token) = &proxy.token {
        head = head.header("authorization", format!("Bearer {token}"));
    }
    let answer = sender.send_request(head.body(Empty::<Bytes>::new())?).await?;
    if !answer.status().is_success() {
        return Err(format!("it answered {}", answer.status()).into());
    }
    let body = Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect().await?.to_bytes();
    Ok(serde_json::from_slice(&body)?)
}
