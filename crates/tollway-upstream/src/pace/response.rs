//! From an HTTP response's status and header fields to an [`Feedback`].

use std::time::Duration;

use http::{HeaderMap, StatusCode};
use tollway_core::fields::{Observed, Reading, read};

use super::{Feedback, Outcome};
use crate::message;
use crate::profile::Profile;

impl Feedback {
    /// What a response says, in whatever dialect its fields are.
    ///
    /// A 429 is a refusal, and so is a 403 that says that nothing remains or when to come back
    /// (GitHub's way). Other server errors are failures, everything else was accepted: a 404 was
    /// counted too.
    pub fn of_response(status: StatusCode, headers: &HeaderMap) -> Self {
        let reading = read(&message::lines(headers), message::now());
        let limit = binding(&reading);
        let remaining = limit.and_then(|limit| limit.remaining);
        Self {
            outcome: outcome(status, remaining, reading.retry_after),
            limit: limit.and_then(|limit| limit.quota),
            period: limit.and_then(|limit| limit.window),
            remaining: remaining.map(|units| units as f64),
            reset_after: limit.and_then(reset),
            retry_after: reading.retry_after,
        }
    }

    /// What a response says as `profile` reads it; without one, by what its fields look like.
    pub(super) fn read(profile: Option<&Profile>, status: StatusCode, headers: &HeaderMap) -> Self {
        let Some(profile) = profile else { return Self::of_response(status, headers) };
        Self::of_observation(&message::read(profile, status.as_u16(), headers, &[]))
    }
}

/// The policy to pace by: the one that refills most slowly is the one that binds in the long run.
fn binding(reading: &Reading) -> Option<&Observed> {
    let unit_ns = |limit: &&Observed| match (limit.quota, limit.window) {
        (Some(quota), Some(window)) if quota > 0 => window.as_nanos() / u128::from(quota),
        _ => 0,
    };
    reading.limits.iter().filter(|limit| limit.remaining.is_some()).max_by_key(unit_ns)
}

/// Draft 10 says when more becomes available, which means the end of a window only if we know
/// that there is one: taken for a reset it would let a bucket be spent within a second.
fn reset(limit: &Observed) -> Option<Duration> {
    limit.reset_after.or_else(|| limit.window.and(limit.more_after))
}

fn outcome(status: StatusCode, remaining: Option<u64>, retry_after: Option<Duration>) -> Outcome {
    let is_told_to_wait = remaining == Some(0) || retry_after.is_some();
    match status {
        StatusCode::TOO_MANY_REQUESTS => Outcome::Limited,
        StatusCode::FORBIDDEN if is_told_to_wait => Outcome::Limited,
        status if status.is_server_error() => Outcome::Failed,
        _ => Outcome::Accepted,
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderName;

    use super::*;

    fn headers(fields: &[(&'static str, &'static str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), value.parse().unwrap())
        };
        fields.iter().map(pair).collect()
    }

    #[test]
    fn the_slowest_policy_is_the_one_to_pace_by() {
        let fields = headers(&[
            ("ratelimit-policy", r#""burst";q=100;w=60,"daily";q=1000;w=86400"#),
            ("ratelimit", r#""burst";r=99;t=1,"daily";r=420;t=30"#),
        ]);
        let answer = Feedback::of_response(StatusCode::OK, &fields);
        assert_eq!((answer.limit, answer.remaining), (Some(1_000), Some(420.0)));
        assert_eq!(answer.period, Some(Duration::from_secs(86_400)));
    }

    #[test]
    fn a_server_may_tell_only_what_remains() {
        let answer =
            Feedback::of_response(StatusCode::OK, &headers(&[("ratelimit-remaining", "74")]));
        assert_eq!(answer, Feedback::bare(Outcome::Accepted).with_remaining(74.0));
    }

    #[test]
    fn a_forbidden_answer_with_nothing_left_is_a_refusal() {
        let spent = headers(&[("x-ratelimit-limit", "60"), ("x-ratelimit-remaining", "0")]);
        assert_eq!(Feedback::of_response(StatusCode::FORBIDDEN, &spent).outcome, Outcome::Limited);
        let plain = Feedback::of_response(StatusCode::FORBIDDEN, &HeaderMap::new());
        assert_eq!(plain.outcome, Outcome::Accepted);
    }

    #[test]
    fn a_profile_reads_what_the_usual_names_do_not_say() {
        let read = |profile: &str, status, headers: &HeaderMap| {
            Feedback::read(Profile::builtin(profile).as_deref(), status, headers)
        };
        let told = headers(&[("x-shopify-shop-api-call-limit", "32/40")]);
        let answer = read("shopify", StatusCode::OK, &told);
        assert_eq!((answer.limit, answer.remaining), (Some(40), Some(8.0)));
        let guessed = Feedback::read(None, StatusCode::OK, &told);
        assert_eq!(guessed, Feedback::bare(Outcome::Accepted));
        // GitLab's reset is an epoch by a name that the IETF uses for a delta; either way it reads.
        let secondary = headers(&[("retry-after", "60"), ("x-ratelimit-remaining", "4000")]);
        let answer = read("github", StatusCode::FORBIDDEN, &secondary);
        assert_eq!(answer.outcome, Outcome::Limited);
    }

    #[test]
    fn nonsense_says_nothing() {
        let fields = headers(&[("ratelimit-remaining", "many"), ("retry-after", "soon")]);
        let answer = Feedback::of_response(StatusCode::TOO_MANY_REQUESTS, &fields);
        assert_eq!(answer, Feedback::bare(Outcome::Limited));
    }
}
