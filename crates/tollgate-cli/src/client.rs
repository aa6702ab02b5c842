//! Calls to `/v1/queues` of a service, one connection each.

use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(30);

/// A service's queues.
pub(super) struct Client {
    base: String,
    token: Option<String>,
    http: reqwest::Client,
    runtime: tokio::runtime::Runtime,
}

impl Client {
    /// The queues of the service at `address`.
    pub(super) fn new(address: &str) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let base = if address.contains("://") {
            format!("{address}/v1/queues")
        } else {
            format!("http://{address}/v1/queues")
        };
        let http = reqwest::Client::builder().timeout(PATIENCE).build()?;
        let token = std::env::var("TOLLGATE_TOKEN").ok().filter(|token| !token.is_empty());
        Ok(Self { base, token, http, runtime })
    }

    pub(super) fn get(&self, path: &str) -> Result<Value> {
        self.call(self.http.get(self.url(path)))
    }

    pub(super) fn post(&self, path: &str, body: &Value) -> Result<Value> {
        let request = self.http.post(self.url(path)).header("content-type", "application/json");
        self.call(request.body(body.to_string()))
    }

    pub(super) fn delete(&self, path: &str) -> Result<Value> {
        self.call(self.http.delete(self.url(path)))
    }

    fn url(&self, path: &str) -> String {
        if path.is_empty() { self.base.clone() } else { format!("{}/{path}", self.base) }
    }

    fn call(&self, request: reqwest::RequestBuilder) -> Result<Value> {
        let request = match &self.token {
            Some(token) => request.header("authorization", format!("Bearer {token}")),
            None => request,
        };
        let (status, text) = self.runtime.block_on(async {
            let answer = request.send().await.context("no service answers")?;
            let status = answer.status();
            Ok::<_, anyhow::Error>((status, answer.text().await?))
        })?;
        if status.is_success() {
            // Whatever else answers there must not pass for a queue about which nothing is to say.
            return serde_json::from_str(&text).context("what answers there is no Tollgate");
        }
        let body: Value = serde_json::from_str(&text).unwrap_or(Value::Null);
        match body["detail"].as_str() {
            Some(detail) => bail!("{detail} ({status})"),
            None => Err(anyhow!("the service answered {status}")),
        }
    }
}
