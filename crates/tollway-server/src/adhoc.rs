//! Policies that come with a request: burst, count and period as `CL.THROTTLE` and `THROTTLE` send,
//! and limits of every algorithm as an object of JSON.
//!
//! Of an object the numbers are part of the key's state: a caller may limit one key by several, and
//! another limit for the same key counts anew. Of the three numbers they are not: they belong to
//! the call, and what a key has used is carried when they change (in memory: in units; on Redis the
//! key keeps its arrival time, as with redis-cell and throttlecrab). So that one arrival time means
//! the same under all of them, what a unit lasts is rounded up to the nanosecond (redis-cell rounds
//! down, and grants more than asked for). Above a million a second that could cost more than a
//! thousandth; numbers whose interval is shorter than a microsecond and not whole are exact, and on
//! Redis have a state of their own.
//!
//! Building a policy hashes and divides; a client sends the same numbers all the time, so the last
//! few are kept. The list is bounded: when it is full it starts anew, since the numbers are chosen
//! by callers and a flood of different ones must not stay.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tollway_core::gcra::Gcra;
use tollway_core::{Cost, Decision, Key, OnChange, Policy, Quota, QuotaError};

use crate::config::limit_of_call;
use crate::metrics::Tally;
use crate::rls::Refusal;
use crate::rules::{Source, Spacing};
use crate::worker::Worker;

/// How many different policies are kept per thread.
const KEPT: usize = 1_024;

/// The shortest interval that is rounded.
const SHARED_NS_MIN: u64 = 1_000;

/// The longest object that describes a limit: what is kept of callers' choosing is bounded.
const LIMIT_BYTES_MAX: usize = 1_024;

/// A policy's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Numbers {
    /// Units that an idle key may take at once.
    pub burst: u64,
    /// Units per period.
    pub count: u64,
    /// The period.
    pub period_ns: u64,
}

impl Numbers {
    /// Numbers as commands send them; `None` unless all are positive.
    pub(crate) fn new(burst: i64, count: i64, period_ns: u64) -> Option<Self> {
        let positive = |number: i64| u64::try_from(number).ok().filter(|&number| number > 0);
        let (burst, count) = (positive(burst)?, positive(count)?);
        (period_ns > 0).then_some(Self { burst, count, period_ns })
    }

    /// The same with a period in seconds; `None` also if it is absurdly long.
    pub(crate) fn per_seconds(burst: i64, count: i64, period_s: i64) -> Option<Self> {
        let period_ns = u64::try_from(period_s).ok()?.checked_mul(1_000_000_000)?;
        Self::new(burst, count, period_ns)
    }
}

/// A limit of any algorithm that came with a call.
#[derive(Debug)]
pub(crate) struct CallLimit {
    policy: Policy,
    spacing: Option<Spacing>,
}

impl CallLimit {
    /// What to ask under it, as an [`AdHoc`] policy.
    pub(crate) fn source<'a>(&'a self, tally: &'a Tally) -> Source<'a> {
        Source::request(&self.policy, tally).with_spacing(self.spacing.as_ref())
    }
}

/// Policies by their numbers, and limits by their texts.
#[derive(Debug, Default)]
pub(crate) struct AdHoc {
    last: Option<(Numbers, Rc<Policy>)>,
    kept: HashMap<Numbers, Rc<Policy>>,
    limits: HashMap<Box<[u8]>, Rc<CallLimit>>,
}

impl AdHoc {
    /// The name of every policy made here.
    pub(crate) const NAME: &'static str = "ad-hoc";

    /// The policy with these numbers.
    ///
    /// # Errors
    ///
    /// If they make no quota.
    pub(crate) fn policy(&mut self, numbers: Numbers) -> Result<Rc<Policy>, QuotaError> {
        if let Some((last, policy)) = &self.last
            && *last == numbers
        {
            return Ok(Rc::clone(policy));
        }
        let policy = match self.kept.get(&numbers) {
            Some(policy) => Rc::clone(policy),
            None => self.build(numbers)?,
        };
        self.last = Some((numbers, Rc::clone(&policy)));
        Ok(policy)
    }

    /// The limit that a text describes, its decisions counted in `tally`.
    ///
    /// # Errors
    ///
    /// If it describes none; the text says what is wrong with which field.
    pub(crate) fn limit(
        &mut self,
        text: &[u8],
        tally: &Arc<Tally>,
    ) -> Result<Rc<CallLimit>, String> {
        if let Some(limit) = self.limits.get(text) {
            return Ok(Rc::clone(limit));
        }
        if text.len() > LIMIT_BYTES_MAX {
            return Err(format!("limit: longer than {LIMIT_BYTES_MAX} bytes"));
        }
        let (given, parts) = limit_of_call(text)?;
        let named = "the name is printable ASCII and short";
        let spacing = given.spacing.map(|bucket| Spacing {
            policy: Spacing::policy(Self::NAME, bucket).expect(named).on_change(OnChange::Reset),
            tally: Arc::clone(tally),
        });
        let policy = Policy::new(Self::NAME, given.algorithm).expect(named);
        let policy = match parts {
            Some(parts) => policy.in_parts(parts),
            None => policy,
        };
        // After the parts: they belong to what tells such limits apart.
        let policy = policy.on_change(OnChange::Reset);
        let limit = Rc::new(CallLimit { policy, spacing });
        if self.limits.len() == KEPT {
            self.limits.clear();
        }
        self.limits.insert(text.into(), Rc::clone(&limit));
        Ok(limit)
    }

    fn build(&mut self, numbers: Numbers) -> Result<Rc<Policy>, QuotaError> {
        let Numbers { burst, count, period_ns } = numbers;
        let quota = Quota::with_burst(count, Duration::from_nanos(period_ns), burst)?;
        let interval_ns = period_ns.div_ceil(count);
        let is_shared = period_ns.is_multiple_of(count) || interval_ns >= SHARED_NS_MIN;
        let algorithm = match Quota::with_burst(1, Duration::from_nanos(interval_ns), burst) {
            Ok(rounded) if is_shared => Gcra::per_call(rounded),
            _ => Gcra::new(quota),
        };
        let policy = Policy::new(Self::NAME, algorithm);
        let policy = Rc::new(policy.expect("the name is printable ASCII"));
        if self.kept.len() == KEPT {
            self.kept.clear();
        }
        self.kept.insert(numbers, Rc::clone(&policy));
        Ok(policy)
    }
}

/// throttlecrab's question, over HTTP and gRPC: `quantity` units of a key under the numbers
/// `max_burst`, `count_per_period` and `period` in seconds. A quantity of 0 looks, and is always
/// allowed.
pub(crate) async fn throttle_once(
    worker: &Worker,
    key: &str,
    [burst, count, period_s]: [i64; 3],
    quantity: i64,
) -> Result<Decision, Refusal> {
    let invalid = |text: &dyn std::fmt::Display| Refusal::Invalid(text.to_string());
    let numbers = Numbers::per_seconds(burst, count, period_s)
        .ok_or_else(|| invalid(&"max_burst, count_per_period and period must be positive"))?;
    let quantity = u64::try_from(quantity).map_err(|_| invalid(&"quantity cannot be negative"))?;
    let policy = worker.adhoc.borrow_mut().policy(numbers).map_err(|error| invalid(&error))?;
    let key = Key::new(key.as_bytes()).map_err(|error| invalid(&error))?;
    let cost = Cost::new(quantity).unwrap_or(Cost::ONE);
    let rules = worker.service.enforcer.rules();
    let decider = worker.decider(&rules);
    let asks = [decider.ask_adhoc(&policy, key, cost)];
    Ok(match quantity {
        0 => Decision::Allow(decider.peek(&asks).await?.decisions()[0].snapshot()),
        _ => decider.check(&asks).await?.decisions()[0],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_numbers_are_one_policy_and_the_list_is_bounded() {
        let mut adhoc = AdHoc::default();
        let numbers = |burst| Numbers { burst, count: 1, period_ns: 1_000_000_000 };
        let first = adhoc.policy(numbers(5)).unwrap();
        let second = adhoc.policy(numbers(6)).unwrap();
        assert!(Rc::ptr_eq(&first, &adhoc.policy(numbers(5)).unwrap()));
        assert_eq!(first.id(), second.id(), "the numbers are no part of a key's state");
        let fine = Numbers { burst: 5, count: 999_999_999, period_ns: 1_000_000_000 };
        assert_ne!(adhoc.policy(fine).unwrap().id(), first.id());
        for burst in 1..5_000 {
            adhoc.policy(numbers(burst)).unwrap();
        }
        assert!(adhoc.kept.len() <= KEPT);
        assert_eq!(adhoc.policy(numbers(5)).unwrap().id(), first.id());
        assert_eq!(adhoc.policy(fine).unwrap().family_id(), first.family_id());
    }

    #[test]
    fn limits_are_kept_by_their_texts_and_their_number_is_bounded() {
        let (mut adhoc, tally) = (AdHoc::default(), Arc::default());
        let text =
            |size| format!(r#"{{"algorithm":"leaky-bucket","size":{size},"drip_interval":"1s"}}"#);
        let mut limit = |size: u32| adhoc.limit(text(size).as_bytes(), &tally).unwrap();
        let (first, again, second) = (limit(5), limit(5), limit(6));
        assert!(Rc::ptr_eq(&first, &again));
        assert_ne!(first.policy.family_id(), second.policy.family_id(), "another counts anew");
        assert_eq!(first.policy.name_id(), second.policy.name_id(), "all have one room");
        for size in 1..5_000 {
            limit(size);
        }
        assert!(adhoc.limits.len() <= KEPT);
        let long = format!(r#"{{"quota":"5/1s"{}}}"#, " ".repeat(LIMIT_BYTES_MAX));
        assert!(adhoc.limit(long.as_bytes(), &tally).unwrap_err().contains("longer than 1024"));
    }

    #[test]
    fn numbers_out_of_bounds_are_refused_not_wrapped() {
        let mut adhoc = AdHoc::default();
        for (burst, count, period_ns) in
            [(u64::MAX, 1, 1), (1, u64::MAX, 1), (1, 1, u64::MAX), (4_294_967_295, 1, 1 << 61)]
        {
            assert!(adhoc.policy(Numbers { burst, count, period_ns }).is_err());
        }
    }
}
