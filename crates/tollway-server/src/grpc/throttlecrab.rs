//! `throttlecrab.RateLimiter/Throttle`.

use tollway_core::Decision;
use tollway_core::fields::seconds_up;
use tonic::Status;

use super::messages::{ThrottleRequest, ThrottleResponse};
use crate::adhoc::throttle_once;
use crate::worker::Worker;

/// The name of the service.
pub(super) const SERVICE: &str = "throttlecrab.RateLimiter";
/// The path of the method.
pub(super) const PATH: &str = "/throttlecrab.RateLimiter/Throttle";

/// Answers a call. A quantity of 0, which is also one left out, is taken for 1.
pub(super) async fn throttle(
    worker: &Worker,
    message: &ThrottleRequest,
) -> Result<ThrottleResponse, Status> {
    let ThrottleRequest { key, max_burst, count_per_period, period, quantity } = message;
    let numbers = [*max_burst, *count_per_period, *period].map(i64::from);
    let quantity = if *quantity == 0 { 1 } else { i64::from(*quantity) };
    let decision = throttle_once(worker, key, numbers, quantity).await.map_err(Status::from)?;
    Ok(response(&decision))
}

fn response(decision: &Decision) -> ThrottleResponse {
    let clamp = |number: u64| i32::try_from(number).unwrap_or(i32::MAX);
    let snapshot = decision.snapshot();
    let retry = decision.retry().map(|retry| retry.after().map_or(u64::MAX, seconds_up));
    ThrottleResponse {
        allowed: decision.is_allowed(),
        limit: clamp(snapshot.limit()),
        remaining: clamp(snapshot.remaining()),
        retry_after: clamp(retry.unwrap_or(0)),
        reset_after: clamp(seconds_up(snapshot.reset_after())),
    }
}
