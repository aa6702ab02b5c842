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
//! What a refusal says is read by a profile of `tollgate-upstream` if the target names one, and by
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
use reqwest::{StatusCode, Url, header};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use tollgate_core::Timestamp;
use tollgate_core::fields::Lines;
use tollgate_upstream::profile::{Profile, Response};

use crate::error::Error;
use crate::{Outcome, Task, feedback};

/// The most bytes of an answer that are kept as the job's result.
pub const RESULT_BYTES_MAX: usize = 64 * 1_024;

/// Where jobs are pushed to, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PushTarget {
    /// The URL that is called, `http` or `https`.
    pub url: String,
    /// The profile that reads the limits in answers, by its name in `tollgate-upstream`.
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
}

impl PushTarget {
    /// A target at `url` with 10 s per call, 16 calls at once and JSON payloads.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            profile: None,
            roots_pem: None,
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
    profile: Option<Arc<Profile>>,
    content_type: header::HeaderValue,
    keep_result: bool,
}

impl Push {
    /// Pushes to `target`.
    ///
    /// # Errors
    ///
    /// If the URL, the profile, the certificates or the media type cannot be used.
    pub fn new(target: &PushTarget) -> Result<Self, Error> {
        let url = Url::parse(&target.url)
            .map_err(|error| Error::invalid(format!("the push target is no URL: {error}")))?;
        if !["http", "https"].contains(&url.scheme()) || url.host_str().is_none() {
            return Err(Error::invalid("a push target is an http:// or https:// URL with a host"));
        }
        let profile = target.profile.as_deref().map(feedback::profile).transpose()?;
        let content_type = header::HeaderValue::from_str(&target.content_type)
            .map_err(|_| Error::invalid("the media type of the push target cannot be sent"))?;
        let client = reqwest::Client::builder()
            .timeout(target.timeout)
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .tls_backend_preconfigured(tls(target.roots_pem.as_deref())?)
            .pool_max_idle_per_host(target.concurrency)
            .build()
            .map_err(|error| Error::invalid("the push client cannot be made").caused_by(error))?;
        Ok(Self { client, url, profile, content_type, keep_result: target.keep_result })
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
        let mut answer = match request.send().await {
            Ok(answer) => answer,
            Err(error) => {
                // The URL may hold a secret: it is not repeated.
                return failed(format!("no answer: {}", error.without_url()), true);
            }
        };
        let status = answer.status();
        let now = task.queue().now();
        let wait = match &self.profile {
            Some(profile) => limited_by(profile, &mut answer, now).await,
            None => limited(status, answer.headers(), now),
        };
        if let Some(wait) = wait {
            return Outcome::Limited { wait };
        }
        if status.is_success() {
            let body = match self.keep_result {
                true => read(&mut answer, RESULT_BYTES_MAX).await,
                false => Bytes::new(),
            };
            return Outcome::Done { result: (!body.is_empty()).then_some(body) };
        }
        let passes = [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_EARLY].contains(&status);
        failed(format!("the target answered {status}"), passes || status.is_server_error())
    }
}

fn failed(reason: String, retry: bool) -> Outcome {
    Outcome::Failed { reason, retry }
}

/// What is trusted: the system's certificates, or only those in `roots_pem`.
fn tls(roots_pem: Option<&str>) -> Result<rustls::ClientConfig, Error> {
    let wrong = |error: rustls::Error| Error::invalid(format!("TLS cannot be used: {error}"));
    let mut roots = rustls::RootCertStore::empty();
    match roots_pem {
        Some(pem) => {
            for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
                let certificate =
                    certificate.map_err(|_| Error::invalid("the certificates are no PEM"))?;
                roots.add(certificate).map_err(wrong)?;
            }
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(wrong)?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}

fn lines(fields: &header::HeaderMap) -> Lines<'_> {
    fields.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect()
}

/// How long the group must wait, if the target refused the call for its limit.
fn limited(status: StatusCode, fields: &header::HeaderMap, now: Timestamp) -> Option<Duration> {
    let says_when = fields.contains_key(header::RETRY_AFTER);
    let is_refusal = status == StatusCode::TOO_MANY_REQUESTS
        || status == StatusCode::SERVICE_UNAVAILABLE && says_when;
    is_refusal.then(|| feedback::wait(&lines(fields), now))
}

/// The same, as the target's profile reads its answer, with as much of the body as that needs.
async fn limited_by(
    profile: &Profile,
    answer: &mut reqwest::Response,
    now: Timestamp,
) -> Option<Duration> {
    let (status, fields) = (answer.status().as_u16(), answer.headers().clone());
    let lines = lines(&fields);
    let wanted = profile.body_wanted(status, &lines).min(RESULT_BYTES_MAX);
    let body = if wanted > 0 { read(answer, wanted).await } else { Bytes::new() };
    let now = Duration::from_nanos(now.as_nanos());
    let observed = profile.read(&Response { status, lines: &lines, body: &body, now });
    observed.is_limited().then(|| feedback::wait_observed(profile, &observed))
}

/// The body of an answer, cut at `max` bytes.
async fn read(answer: &mut reqwest::Response, max: usize) -> Bytes {
    let mut body = BytesMut::new();
    while let Ok(Some(chunk)) = answer.chunk().await {
        let room = max - body.len();
        body.extend_from_slice(&chunk[..chunk.len().min(room)]);
        if body.len() == max {
            break;
        }
    }
    body.freeze()
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
        let mut fields = header::HeaderMap::new();
        let now = Timestamp::from_millis(1_700_000_000_000);
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
