//! `throttlecrab.RateLimiter/Throttle`.

use tollway_core::fields::seconds_up;
use tollway_core::{Cost, Decision, Key};

use super::messages::{ThrottleRequest, ThrottleResponse};
use super::status::{Code, Status};
use crate::adhoc::Numbers;
use crate::rls::Refusal;
use crate::worker::Worker;

/// The path of the method.
pub(super) const PATH: &str = "/throttlecrab.RateLimiter/Throttle";

/// Answers a call. A quantity of 0, which is also one left out, is taken for 1.
pub(super) async fn throttle(
    worker: &Worker,
    message: &ThrottleRequest,
) -> Result<ThrottleResponse, Status> {
    let invalid = |text: &str| Status::new(Code::InvalidArgument, text);
    let (burst, count) = (message.max_burst.into(), message.count_per_period.into());
    let numbers = Numbers::per_seconds(burst, count, message.period.into())
        .ok_or_else(|| invalid("max_burst, count_per_period and period must be positive"))?;
    let quantity = u64::try_from(message.quantity);
    let quantity = quantity.map_err(|_| invalid("quantity cannot be negative"))?;
    let policy = worker.adhoc.borrow_mut().policy(numbers);
    let policy = policy.map_err(|error| invalid(&error.to_string()))?;
    let key = Key::new(message.key.as_bytes()).map_err(|error| invalid(&error.to_string()))?;
    let cost = Cost::new(quantity).unwrap_or(Cost::ONE);
    let rules = worker.service.enforcer.rules();
    let decider = worker.decider(&rules);
    let ask = decider.ask_adhoc(&policy, key, cost);
    let verdict =
        decider.check(&[ask]).await.map_err(|error| Status::from(Refusal::Store(error)))?;
    Ok(response(&verdict.decisions()[0]))
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
