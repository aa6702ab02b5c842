//! Push delivery: the queue calls an HTTP target itself and reads the limits in its answers.
//!
//! ```text
//!   lease ──> request, filled in by the job ──> 2xx          done
//!                                           ──> 429, or 503 that says when:  the group waits
//!                                           ──> 408, 425, 5xx, no answer:    failed, retried
//!                                           ──> anything else:               dead at once
//! ```
//!
//! A [`Push`] is a handler for a [`crate::Worker`], whose concurrency bounds the calls at once.
//!
//! What an answer says of limits is read by a profile of `tollway-upstream` if the target names
//! one, and by the fields that everybody uses otherwise. An answer that is no refusal counts too:
//! if it says that the limit is spent, the group waits before it is refused.
//!
//! **Invariants.** Scheme, host and port come from the configuration, and redirects are not
//! followed: whoever enqueues chooses among the configured origins at most. A call ends within its
//! timeout, and at most [`RESULT_BYTES_MAX`] of an answer are read. Once a status was received it
//! decides, even if the body never ends: a call that may have taken effect is not made again.

mod answer;
mod request;
mod target;
mod template;
mod url;

#[cfg(test)]
mod tests;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{self, HeaderMap};
use http::{Response, StatusCode};
use http_body_util::{BodyExt, Full};
use tokio::time::{Instant, timeout_at};
use tollway_core::Timestamp;
use tollway_core::fields::{self, Lines};
use tollway_http::connect::{self, Pool, Versions};
use tollway_upstream::profile::{self, Profile};

pub use target::{FieldText, Keep, PushBody, PushTarget, Secret, field_name, method};

use crate::error::Error;
use crate::{Outcome, Task, feedback};
use answer::{Hidden, REASON_BODY_BYTES, Shown, read};
use request::Requests;

/// The most bytes of an answer that are read.
pub const RESULT_BYTES_MAX: usize = 64 * 1_024;

/// Calls a target with each job.
#[derive(Clone, Debug)]
pub struct Push {
    pool: Pool<Full<Bytes>>,
    requests: Arc<Requests>,
    shown: Arc<Shown>,
    profile: Option<Arc<Profile>>,
    timeout: Duration,
    keep: Keep,
    result_bytes: usize,
}

/// What an answer says of its group's limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    /// The call was refused: wait so long, and try again.
    Refused(Duration),
    /// The call was made, and there is nothing left for so long.
    Spent(Duration),
    /// Nothing that matters.
    Nothing,
}

impl Push {
    /// Pushes to `target`.
    ///
    /// # Errors
    ///
    /// If the URL, a header field, an origin, the profile, the certificates or the media type
    /// cannot be used.
    pub fn new(target: &PushTarget) -> Result<Self, Error> {
        let profile = target.profile.as_deref().map(feedback::profile).transpose()?;
        let requests = Arc::new(Requests::new(target)?);
        let options = connect::Options {
            versions: Versions::Negotiated,
            roots_pem: target.roots_pem.as_deref().map(str::as_bytes),
            unix: None,
            timeout: target.timeout,
            idle_max: target.concurrency,
            identity: None,
            server_name: None,
        };
        let pool = connect::pool(&options)
            .map_err(|error| Error::invalid("the certificates cannot be used").caused_by(error))?;
        let hidden = target.fields.iter().filter_map(|(_, text)| match text {
            FieldText::Secret(secret) => Some(Hidden(secret.hidden().to_owned())),
            FieldText::Text(_) => None,
        });
        let shown = Shown { fields: target.keep_fields.clone(), hidden: hidden.collect() };
        let (timeout, keep) = (target.timeout, target.keep);
        let result_bytes = target.result_bytes.min(RESULT_BYTES_MAX);
        let shown = Arc::new(shown);
        Ok(Self { pool, requests, shown, profile, timeout, keep, result_bytes })
    }

    async fn call(self, task: Task) -> Outcome {
        let deadline = Instant::now() + self.timeout;
        let request = match self.requests.of(&task) {
            Ok(request) => request,
            Err(reason) => return failed(reason, false),
        };
        // The URL may hold a secret: the error does not repeat it.
        match timeout_at(deadline, self.pool.request(request)).await {
            Ok(Ok(answer)) => self.judge(&task, answer, deadline).await,
            Ok(Err(error)) => failed(format!("no answer: {}", causes(&error)), true),
            Err(_) => failed("no answer in time".to_owned(), true),
        }
    }

    /// What came of the call that was answered so.
    async fn judge<B>(&self, task: &Task, answer: Response<B>, deadline: Instant) -> Outcome
    where
        B: BodyExt<Data = Bytes> + Unpin,
    {
        let (head, mut body) = answer.into_parts();
        let (status, fields, now) = (head.status, &head.headers, task.queue().now());
        let wanted = self.bytes_wanted(status, fields);
        let body = read(&mut body, wanted, deadline).await;
        let told = match &self.profile {
            Some(profile) => told_by(profile, status, fields, &body, now),
            None => told(status, fields, now),
        };
        match told {
            Told::Refused(wait) => return Outcome::Limited { wait },
            // What cannot be stored now, the next answer says again; or it is a refusal.
            Told::Spent(wait) => drop(task.hold_group(wait).await),
            Told::Nothing => {}
        }
        if status.is_success() {
            let max = self.result_bytes;
            let result = match self.keep {
                Keep::Nothing => None,
                Keep::Body => self.shown.body(body.slice(..body.len().min(max))),
                Keep::Answer => self.shown.result(status, fields, &body, max),
            };
            return Outcome::Done { result };
        }
        let passes = [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_EARLY].contains(&status);
        let reason = self.shown.reason(status, fields, &body);
        failed(reason, passes || status.is_server_error())
    }

    /// How much of a body is of use.
    fn bytes_wanted(&self, status: StatusCode, fields: &HeaderMap) -> usize {
        let kept = match (status.is_success(), self.keep) {
            (false, _) => REASON_BODY_BYTES,
            (true, Keep::Nothing) => 0,
            (true, _) => self.result_bytes,
        };
        let read = |profile: &Arc<Profile>| profile.body_wanted(status.as_u16(), &lines(fields));
        kept.max(self.profile.as_ref().map_or(0, read)).min(RESULT_BYTES_MAX)
    }
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

/// What the fields of an answer say of the limit.
fn told(status: StatusCode, fields: &HeaderMap, now: Timestamp) -> Told {
    let says_when = fields.contains_key(header::RETRY_AFTER);
    let is_refusal = status == StatusCode::TOO_MANY_REQUESTS
        || status == StatusCode::SERVICE_UNAVAILABLE && says_when;
    let lines = lines(fields);
    if is_refusal {
        return Told::Refused(feedback::wait(&lines, now));
    }
    let read = fields::read(&lines, Duration::from_nanos(now.as_nanos()));
    spent(feedback::wait_of_spent(&read))
}

/// The same, as the target's profile reads its answer.
fn told_by(
    profile: &Profile,
    status: StatusCode,
    fields: &HeaderMap,
    body: &[u8],
    now: Timestamp,
) -> Told {
    let (status, lines, now) =
        (status.as_u16(), lines(fields), Duration::from_nanos(now.as_nanos()));
    let observed = profile.read(&profile::Response { status, lines: &lines, body, now });
    if observed.is_limited() {
        return Told::Refused(feedback::wait_observed(profile, &observed));
    }
    spent(feedback::wait_observed_spent(&observed))
}

fn spent(wait: Option<Duration>) -> Told {
    wait.filter(|wait| !wait.is_zero()).map_or(Told::Nothing, Told::Spent)
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
