//! One limit and what is in use of it: when it opens, what passing it takes, when it is idle.

use std::time::Duration;

use tollway_core::{Algorithm, Cost, Retry, State, Timestamp};

use super::slots::Slots;
use crate::Limit;

/// What is in use of one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Gate {
    Slots(Slots),
    /// The number of the window and the units that were started in it.
    Window {
        number: u64,
        used: u32,
    },
    Policy(State),
}

/// When a gate opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Opens {
    At(Timestamp),
    /// Only an answer to a call in flight can tell.
    Unknown,
}

impl Gate {
    /// A gate that nothing has passed.
    pub(crate) fn vacant(limit: &Limit) -> Self {
        match limit {
            Limit::Slots { .. } => Self::Slots(Slots::default()),
            Limit::Window { .. } => Self::Window { number: 0, used: 0 },
            Limit::Policy(algorithm) => Self::Policy(State::vacant(algorithm)),
        }
    }

    /// Whether this is what is in use of a limit of the same kind.
    pub(crate) fn fits(&self, limit: &Limit) -> bool {
        match (self, limit) {
            (Self::Slots(_), Limit::Slots { .. }) | (Self::Window { .. }, Limit::Window { .. }) => {
                true
            }
            (Self::Policy(state), Limit::Policy(algorithm)) => {
                std::mem::discriminant(state) == std::mem::discriminant(&State::vacant(algorithm))
            }
            _ => false,
        }
    }

    /// When `weight` units may pass.
    pub(crate) fn opens(&self, limit: &Limit, weight: u32, now: Timestamp) -> Opens {
        match (self, limit) {
            (Self::Slots(slots), Limit::Slots { units, window }) => {
                slots.ready_at(weight, *units, *window).map_or(Opens::Unknown, Opens::At)
            }
            (Self::Window { number, used }, Limit::Window { units, window }) => {
                let (current, used) = current_window(*number, *used, *window, now);
                if used.saturating_add(weight.min(*units)) <= *units {
                    Opens::At(Timestamp::MIN)
                } else {
                    Opens::At(window_start(current + 1, *window))
                }
            }
            (Self::Policy(state), Limit::Policy(algorithm)) => {
                match state.retry(algorithm, cost(algorithm, weight), now) {
                    None => Opens::At(Timestamp::MIN),
                    Some(Retry::After(wait)) => Opens::At(now.after(wait)),
                    Some(Retry::Never) => Opens::Unknown,
                }
            }
            _ => Opens::At(Timestamp::MIN),
        }
    }

    /// `weight` units of `job` pass.
    pub(crate) fn pass(&mut self, limit: &Limit, job: u64, weight: u32, now: Timestamp) {
        match (self, limit) {
            (Self::Slots(slots), Limit::Slots { units, window }) => {
                slots.forget(now, *window);
                slots.hold(job, weight.min(*units));
            }
            (Self::Window { number, used }, Limit::Window { units, window }) => {
                (*number, *used) = current_window(*number, *used, *window, now);
                *used = used.saturating_add(weight.min(*units));
            }
            (Self::Policy(state), Limit::Policy(algorithm)) => {
                state.count(algorithm, cost(algorithm, weight), u128::from(job), now);
            }
            _ => {}
        }
    }

    /// A job that runs holds slots that it did not pass: the limit is new, or was read from a file.
    /// It holds as many as were stored, if the limit was another when it started, and otherwise as
    /// many as it would take now.
    pub(crate) fn hold(&mut self, limit: &Limit, job: u64, weight: u32) {
        if let (Self::Slots(slots), Limit::Slots { units, .. }) = (self, limit)
            && !slots.is_held_by(job)
        {
            slots.hold(job, weight.min(*units));
        }
    }

    /// Frees the slots of jobs that do not run any more.
    #[cfg(feature = "redb")]
    pub(crate) fn retain(&mut self, runs: impl Fn(u64) -> bool) {
        if let Self::Slots(slots) = self {
            slots.retain(runs);
        }
    }

    /// The call of `job` was answered, or given up, at `at`. Whether anything changed.
    pub(crate) fn answer(&mut self, limit: &Limit, job: u64, at: Timestamp) -> bool {
        if let (Self::Slots(slots), Limit::Slots { units, window }) = (self, limit) {
            slots.answer(job, at, *units, *window);
            return true;
        }
        false
    }

    /// The call of `job` was refused, or never made: it is uncharged. It passed at `passed_at`;
    /// `None` if it may have passed another gate in place of this one, and only what it holds by
    /// name can be given back.
    pub(crate) fn refund(
        &mut self,
        limit: &Limit,
        job: u64,
        weight: u32,
        passed_at: Option<Timestamp>,
        now: Timestamp,
    ) {
        if let Self::Slots(slots) = self {
            slots.release(job);
            return;
        }
        let Some(passed_at) = passed_at else { return };
        match (self, limit) {
            (Self::Window { number, used }, Limit::Window { units, window })
                if *number == window_number(passed_at, *window) =>
            {
                *used = used.saturating_sub(weight.min(*units));
            }
            (Self::Policy(state), Limit::Policy(algorithm)) => {
                let units = cost(algorithm, weight).get();
                state.refund(algorithm, units, Some(passed_at), now);
            }
            _ => {}
        }
    }

    /// From when on this gate says nothing; `None` while something is in flight.
    pub(crate) fn vacant_at(&self, limit: &Limit) -> Option<Timestamp> {
        match (self, limit) {
            (Self::Slots(slots), Limit::Slots { window, .. }) => slots.vacant_at(*window),
            (Self::Window { used: 0, .. }, _) => Some(Timestamp::MIN),
            (Self::Window { number, .. }, Limit::Window { window, .. }) => {
                Some(window_start(number + 1, *window))
            }
            (Self::Policy(state), Limit::Policy(algorithm)) => Some(state.vacant_at(algorithm)),
            _ => Some(Timestamp::MIN),
        }
    }

    /// The clock was set back by `by` to `now`: nothing is locked for longer than before.
    pub(crate) fn set_back(&mut self, limit: &Limit, by: Duration, now: Timestamp) {
        match (self, limit) {
            (Self::Slots(slots), _) => slots.set_back(by),
            (Self::Window { number, used }, Limit::Window { window, .. }) => {
                (*number, *used) = current_window(*number, *used, *window, now.after(by));
                *number = (*number).min(window_number(now, *window));
            }
            // What was over before the clock was set back stays over.
            (Self::Policy(state), Limit::Policy(algorithm)) => {
                state.forget_past(algorithm, now.after(by));
                state.rewind(algorithm, now);
            }
            _ => {}
        }
    }
}

/// The window at `now` and what was used in it.
fn current_window(number: u64, used: u32, window: Duration, now: Timestamp) -> (u64, u32) {
    let current = window_number(now, window);
    (current, if number >= current { used } else { 0 })
}

pub(crate) fn window_number(at: Timestamp, window: Duration) -> u64 {
    at.as_nanos() / (window.as_nanos() as u64).max(1)
}

pub(crate) fn window_start(number: u64, window: Duration) -> Timestamp {
    Timestamp::from_nanos(number.saturating_mul(window.as_nanos() as u64))
}

/// The most units that an algorithm ever lets pass at once.
pub(crate) fn capacity(algorithm: &Algorithm) -> u64 {
    match algorithm {
        Algorithm::Gcra(gcra) => gcra.quota().burst(),
        Algorithm::LeakyBucket(bucket) => bucket.size(),
        Algorithm::SlidingWindow(window) => window.limit(),
        Algorithm::FixedWindow(window) => window.quota().units(),
        Algorithm::Concurrency(limit) => limit.limit(),
        _ => u64::MAX,
    }
}

/// A job that is heavier than the limit takes all of it: it must not wait for ever.
fn cost(algorithm: &Algorithm, weight: u32) -> Cost {
    Cost::new(u64::from(weight).min(capacity(algorithm))).unwrap_or(Cost::ONE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    #[test]
    fn every_kind_of_limit_opens_when_it_says_and_not_before() {
        for text in
            ["window 3/3s", "gcra 3/3s burst 2", "sliding 3/3s", "fixed 3/3s", "leaky 3 1/1s"]
        {
            let limit: Limit = text.parse().unwrap();
            let (mut gate, mut now) = (Gate::vacant(&limit), at(100));
            for job in 0..20 {
                if let Opens::At(opens) = gate.opens(&limit, 1, now)
                    && opens > now
                {
                    let before = Timestamp::from_nanos(opens.as_nanos() - 1);
                    assert!(gate.opens(&limit, 1, before) >= Opens::At(opens), "{text}");
                    assert!(gate.opens(&limit, 1, opens) <= Opens::At(opens), "{text}");
                    now = opens;
                }
                gate.pass(&limit, job, 1, now);
            }
            assert!(gate.vacant_at(&limit).unwrap() > now, "{text}");
        }
    }

    #[test]
    fn a_job_heavier_than_its_limit_takes_all_of_it() {
        for text in ["slots 3/3s", "window 3/3s", "gcra 3/3s", "sliding 3/3s", "leaky 3 1/1s"] {
            let limit: Limit = text.parse().unwrap();
            let mut gate = Gate::vacant(&limit);
            assert!(gate.opens(&limit, 1_000, at(0)) <= Opens::At(at(0)), "{text}");
            gate.pass(&limit, 1, 1_000, at(0));
            assert!(gate.opens(&limit, 1, at(0)) > Opens::At(at(0)), "{text}");
        }
    }

    #[test]
    fn what_is_refunded_may_pass_again() {
        for text in ["slots 1/3s", "window 1/3s", "gcra 1/3s", "sliding 1/3s", "fixed 1/3s"] {
            let limit: Limit = text.parse().unwrap();
            let mut gate = Gate::vacant(&limit);
            gate.pass(&limit, 1, 1, at(100));
            assert!(gate.opens(&limit, 1, at(200)) > Opens::At(at(200)), "{text}");
            gate.refund(&limit, 1, 1, Some(at(100)), at(200));
            assert!(gate.opens(&limit, 1, at(200)) <= Opens::At(at(200)), "{text}");
        }
    }
}
