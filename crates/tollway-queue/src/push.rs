//! Push delivery: the queue calls an HTTP target itself and reads the limits in its answers.
//!
//! ```text
//!   lease ──> POST target, the payload as body ──> 2xx          done
//!                                              ──> 429, or 503 that says when:  the group waits
//!                                              ──> 408, 425, 5xx, no answer:    failed, retried
//!                                              ──> anything else:               dead at once
//! ```
//!
//! A [`Push`] is a handler for a [`crate::Worker`], whose concurrency bounds the calls at once.
//!
//! What a refusal says is read by a profile of `tollway-upstream` if the target names one, and by
//! the fields that everybody uses otherwise.
//!
//! **Invariants.** A target comes from the configuration, never from a job, and redirects are not
//! followed: whoever enqueues cannot choose what is called. A call ends within its timeout, and at
//! most [`RESULT_BYTES_MAX`] of an answer are read.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{self, HeaderMap, HeaderValue};
use http::{Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Full};
use tollway_core::Timestamp;
use tollway_core::fields::Lines;
use tollway_http::connect::{self, Pool, Versions};
use tollway_upstream::profile::{Profile, Response};

use crate::error::Error;
use crate::{Outcome, Task, feedback};

/// The most bytes of an answer that are read.
pub const RESULT_BYTES_MAX: usize = 64 * 1_024;

/// Where jobs are pushed to, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PushTarget {
    /// The URL that is called, `http` or `https`.
    pub url: String,
    /// The profile that reads the limits in answers, by its name in `tollway-upstream`.
    pub profile: Option<String>,
    /// Certificates in PEM that are trusted in place of the system's.
    pub roots_pem: Option<String>,
    /// How long a call may take.
    pub timeout: Duration,
    /// The most calls at once.
    pub concurrency: usize,
    /// The media type of payloads.
    pub content_type: String,
    /// Whether the body of an answer is kept as the job's result.
    pub keep_result: bool,
    /// How many bytes of it, at most [`RESULT_BYTES_MAX`]; what is longer is cut. A queue takes
    /// results as long as its payloads may be.
    pub result_bytes: usize,
}

impl PushTarget {
    /// A target at `url` with 10 s per call, 16 calls at once and JSON payloads.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            profile: None,
            roots_pem: None,
            timeout: Duration::from_secs(10),
            concurrency: 16,
            content_type: "application/json".to_owned(),
            keep_result: false,
            result_bytes: RESULT_BYTES_MAX,
        }
    }
}

/// Calls a target with the payload of each job.
#[derive(Clone, Debug)]
pub struct Push {
    pool: Pool<Full<Bytes>>,
    uri: Uri,
    profile: Option<Arc<Profile>>,
    timeout: Duration,
    content_type: HeaderValue,
    /// How many bytes of an answer are kept.
    result_bytes: usize,
}

impl Push {
    /// Pushes to `target`.
    ///
    /// # Errors
    ///
    /// If the URL, the profile, the certificates or the media type cannot be used.
    pub fn new(target: &PushTarget) -> Result<Self, Error> {
        let profile = target.profile.as_deref().map(feedback::profile).transpose()?;
        let content_type = HeaderValue::from_str(&target.content_type)
            .map_err(|_| Error::invalid("the media type of the push target cannot be sent"))?;
        let options = connect::Options {
            versions: Versions::Negotiated,
            roots_pem: target.roots_pem.as_deref().map(str::as_bytes),
            unix: None,
            timeout: target.timeout,
            idle_max: target.concurrency,
        };
        let pool = connect::pool(&options)
            .map_err(|error| Error::invalid("the certificates cannot be used").caused_by(error))?;
        let (uri, timeout) = (uri(&target.url)?, target.timeout);
        let result_bytes = target.result_bytes.min(RESULT_BYTES_MAX);
        let result_bytes = if target.keep_result { result_bytes } else { 0 };
        Ok(Self { pool, uri, profile, timeout, content_type, result_bytes })
    }

    async fn call(self, task: Task) -> Outcome {
        let exchange = tokio::time::timeout(self.timeout, self.exchange(&task));
        exchange.await.unwrap_or_else(|_| failed("no answer in time".to_owned(), true))
    }

    async fn exchange(&self, task: &Task) -> Outcome {
        // The URL may hold a secret: the error does not repeat it.
        let answer = match self.pool.request(self.request(task)).await {
            Ok(answer) => answer,
            Err(error) => return failed(format!("no answer: {}", causes(&error)), true),
        };
        let status = answer.status();
        let now = task.queue().now();
        let (head, mut body) = answer.into_parts();
        let wait = match &self.profile {
            Some(profile) => limited_by(profile, status, &head.headers, &mut body, now).await,
            None => limited(status, &head.headers, now),
        };
        if let Some(wait) = wait {
            return Outcome::Limited { wait };
        }
        if status.is_success() {
            let kept = match self.result_bytes {
                0 => Bytes::new(),
                most => read(&mut body, most).await,
            };
            return Outcome::Done { result: (!kept.is_empty()).then_some(kept) };
        }
        let passes = [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_EARLY].contains(&status);
        failed(format!("the target answered {status}"), passes || status.is_server_error())
    }

    fn request(&self, task: &Task) -> Request<Full<Bytes>> {
        let lease = task.lease();
        let mut request = Request::new(Full::new(lease.payload.clone()));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.uri.clone();
        let fields = request.headers_mut();
        fields.insert(header::CONTENT_TYPE, self.content_type.clone());
        // A queue's name is printable ASCII.
        if let Ok(name) = HeaderValue::from_str(task.queue().name().as_str()) {
            fields.insert("tollway-queue", name);
        }
        fields.insert("tollway-job", lease.id.0.into());
        fields.insert("tollway-attempt", lease.attempt.into());
        request
    }
}

fn uri(url: &str) -> Result<Uri, Error> {
    let uri: Uri = url
        .parse()
        .map_err(|error| Error::invalid(format!("the push target is no URL: {error}")))?;
    let is_http = ["http", "https"].contains(&uri.scheme_str().unwrap_or_default());
    if !is_http || uri.host().unwrap_or_default().is_empty() {
        return Err(Error::invalid("a push target is an http:// or https:// URL with a host"));
    }
    if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
        return Err(Error::invalid("a push target has no user in its URL"));
    }
    Ok(uri)
}

/// An error and what it came from.
fn causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

fn failed(reason: String, retry: bool) -> Outcome {
    Outcome::Failed { reason, retry }
}

fn lines(fields: &HeaderMap) -> Lines<'_> {
    fields.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect()
}

/// How long the group must wait, if the target refused the call for its limit.
fn limited(status: StatusCode, fields: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let says_when = fields.contains_key(header::RETRY_AFTER);
    let is_refusal = status == StatusCode::TOO_MANY_REQUESTS
        || status == StatusCode::SERVICE_UNAVAILABLE && says_when;
    is_refusal.then(|| feedback::wait(&lines(fields), now))
}

/// The same, as the target's profile reads its answer, with as much of the body as that needs.
async fn limited_by(
    profile: &Profile,
    status: StatusCode,
    fields: &HeaderMap,
    body: &mut (impl BodyExt<Data = Bytes> + Unpin),
    now: Timestamp,
) -> Option<Duration> {
    let (status, lines) = (status.as_u16(), lines(fields));
    let wanted = profile.body_wanted(status, &lines).min(RESULT_BYTES_MAX);
    let body = if wanted > 0 { read(body, wanted).await } else { Bytes::new() };
    let now = Duration::from_nanos(now.as_nanos());
    let observed = profile.read(&Response { status, lines: &lines, body: &body, now });
    observed.is_limited().then(|| feedback::wait_observed(profile, &observed))
}

/// The body of an answer, cut at `max` bytes.
async fn read(body: &mut (impl BodyExt<Data = Bytes> + Unpin), max: usize) -> Bytes {
    let mut kept = BytesMut::new();
    while let Some(Ok(frame)) = body.frame().await {
        let Some(chunk) = frame.data_ref() else { continue };
        let room = max - kept.len();
        kept.extend_from_slice(&chunk[..chunk.len().min(room)]);
        if kept.len() == max {
            break;
        }
    }
    kept.freeze()
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
    fn a_target_that_cannot_be_called_is_refused() {
        for url in ["", "x", "ftp://h/", "http://", "https://"] {
            assert!(Push::new(&PushTarget::new(url)).is_err(), "{url}");
        }
        for url in ["http://127.0.0.1:9/hook", "https://127.0.0.1:9/hook"] {
            assert!(Push::new(&PushTarget::new(url)).is_ok(), "{url}");
        }
        let target = PushTarget::new("http://h/");
        let unknown = PushTarget { profile: Some("discrod".to_owned()), ..target.clone() };
        assert!(Push::new(&unknown).unwrap_err().to_string().contains("discord"));
        let roots_pem =
            Some("-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----".to_owned());
        assert!(Push::new(&PushTarget { roots_pem, ..target }).is_err());
    }

    #[test]
    fn only_a_refusal_makes_the_group_wait() {
        let mut fields = HeaderMap::new();
        let now = Timestamp::from_millis(1_700_000_000_000);
        let wait = |status: u16, fields: &HeaderMap| {
            limited(StatusCode::from_u16(status).unwrap(), fields, now)
        };
        assert_eq!(wait(503, &fields), None);
        assert_eq!(wait(429, &fields), Some(feedback::WAIT_UNSAID));
        fields.insert(header::RETRY_AFTER, HeaderValue::from_static("7"));
        assert_eq!(wait(429, &fields), Some(Duration::from_secs(7)));
        assert_eq!(wait(503, &fields), Some(Duration::from_secs(7)));
        assert_eq!(wait(200, &fields), None);
    }
}
