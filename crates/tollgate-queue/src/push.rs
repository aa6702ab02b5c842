//! Push delivery: the queue calls an HTTP target itself and reads the limits in its answers.
//!
//! ```text
//!   lease ──> POST target, the payload as body ──> 2xx          done
//!                                              ──> 429, or 503 that says when:  the group waits
//!                                              ──> 408, 425, 5xx, no answer:    failed, tried again
//!                                              ──> anything else:               dead at once
//! ```
//!
//! A [`Push`] is a handler for a [`crate::Worker`], whose concurrency bounds the calls at once.
//!
//! **Invariants.** A target comes from the configuration, never from a job, and redirects are not
//! followed: whoever enqueues cannot choose what is called. A call ends within its timeout, and at
//! most [`RESULT_BYTES_MAX`] of an answer are read.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use reqwest::{StatusCode, Url, header};
use tollgate_core::fields::Lines;

use crate::error::Error;
use crate::{Outcome, Task, feedback};

/// The most bytes of an answer that are kept as the job's result.
pub const RESULT_BYTES_MAX: usize = 64 * 1_024;

/// Where jobs are pushed to, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PushTarget {
    /// The URL that is called; `http` only, so put what speaks TLS in between.
    pub url: String,
    /// How long a call may take.
    pub timeout: Duration,
    /// The most calls at once.
    pub concurrency: usize,
    /// The media type of payloads.
    pub content_type: String,
    /// Whether the body of an answer is kept as the job's result.
    pub keep_result: bool,
}

impl PushTarget {
    /// A target at `url` with 10 s per call, 16 calls at once and JSON payloads.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            timeout: Duration::from_secs(10),
            concurrency: 16,
            content_type: "application/json".to_owned(),
            keep_result: false,
        }
    }
}

/// Calls a target with the payload of each job.
#[derive(Clone, Debug)]
pub struct Push {
    client: reqwest::Client,
    url: Url,
    content_type: header::HeaderValue,
    keep_result: bool,
}

impl Push {
    /// Pushes to `target`.
    ///
    /// # Errors
    ///
    /// If the URL or the media type cannot be used.
    pub fn new(target: &PushTarget) -> Result<Self, Error> {
        let url = Url::parse(&target.url)
            .map_err(|error| Error::invalid(format!("the push target is no URL: {error}")))?;
        if url.scheme() != "http" || url.host_str().is_none() {
            return Err(Error::invalid("a push target is an http:// URL with a host"));
        }
        let content_type = header::HeaderValue::from_str(&target.content_type)
            .map_err(|_| Error::invalid("the media type of the push target cannot be sent"))?;
        let client = reqwest::Client::builder()
            .timeout(target.timeout)
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .pool_max_idle_per_host(target.concurrency)
            .build()
            .map_err(|error| Error::invalid("the push client cannot be made").caused_by(error))?;
        Ok(Self { client, url, content_type, keep_result: target.keep_result })
    }

    async fn call(self, task: Task) -> Outcome {
        let lease = task.lease();
        let request = self
            .client
            .post(self.url)
            .header(header::CONTENT_TYPE, self.content_type)
            .header("tollgate-queue", task.queue().name().as_str())
            .header("tollgate-job", lease.id.0)
            .header("tollgate-attempt", lease.attempt)
            .body(lease.payload.clone());
        let answer = match request.send().await {
            Ok(answer) => answer,
            Err(error) => {
                // The URL may hold a secret: it is not repeated.
                return failed(format!("no answer: {}", error.without_url()), true);
            }
        };
        let status = answer.status();
        if let Some(wait) = limited(status, answer.headers(), task.queue().now()) {
            return Outcome::Limited { wait };
        }
        if status.is_success() {
            let result = if self.keep_result { read(answer).await } else { None };
            return Outcome::Done { result };
        }
        let passes = [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_EARLY].contains(&status);
        failed(format!("the target answered {status}"), passes || status.is_server_error())
    }
}

fn failed(reason: String, retry: bool) -> Outcome {
    Outcome::Failed { reason, retry }
}

/// How long the group must wait, if the target refused the call for its limit.
fn limited(
    status: StatusCode,
    fields: &header::HeaderMap,
    now: tollgate_core::Timestamp,
) -> Option<Duration> {
    let says_when = fields.contains_key(header::RETRY_AFTER);
    let is_refusal = status == StatusCode::TOO_MANY_REQUESTS
        || status == StatusCode::SERVICE_UNAVAILABLE && says_when;
    let lines: Lines<'_> =
        fields.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
    is_refusal.then(|| feedback::wait(&lines, now))
}

/// The body of an answer, cut at [`RESULT_BYTES_MAX`].
async fn read(mut answer: reqwest::Response) -> Option<Bytes> {
    let mut body = BytesMut::new();
    while let Ok(Some(chunk)) = answer.chunk().await {
        let room = RESULT_BYTES_MAX - body.len();
        body.extend_from_slice(&chunk[..chunk.len().min(room)]);
        if body.len() == RESULT_BYTES_MAX {
            break;
        }
    }
    (!body.is_empty()).then(|| body.freeze())
}

impl tower_service::Service<Task> for Push {
    type Response = Outcome;
    type Error = std::convert::Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Outcome, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, task: Task) -> Self::Future {
        let push = self.clone();
        Box::pin(async move { Ok(push.call(task).await) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_that_is_no_plain_http_is_refused() {
        for url in ["", "x", "ftp://h/", "https://h/", "http://"] {
            assert!(Push::new(&PushTarget::new(url)).is_err(), "{url}");
        }
        assert!(Push::new(&PushTarget::new("http://127.0.0.1:9/hook")).is_ok());
    }

    #[test]
    fn only_a_refusal_makes_the_group_wait() {
        let mut fields = header::HeaderMap::new();
        let now = tollgate_core::Timestamp::from_millis(1_700_000_000_000);
        let wait = |status: u16, fields: &header::HeaderMap| {
            limited(StatusCode::from_u16(status).unwrap(), fields, now)
        };
        assert_eq!(wait(503, &fields), None);
        assert_eq!(wait(429, &fields), Some(feedback::WAIT_UNSAID));
        fields.insert(header::RETRY_AFTER, header::HeaderValue::from_static("7"));
        assert_eq!(wait(429, &fields), Some(Duration::from_secs(7)));
        assert_eq!(wait(503, &fields), Some(Duration::from_secs(7)));
        assert_eq!(wait(200, &fields), None);
    }
}
