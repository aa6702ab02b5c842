//! When a job will start: one formula per kind of limit, of the units that are before it.
//!
//! For slots with free-times `f[0..N]` in order and `p` units ahead: `f[p mod N] + ⌊p/N⌋·(W + r)`,
//! where `r` is the time of a response. With every `f` at the start of the next window and `r` zero
//! this is `next window start + ⌊p/N⌋·W`; limits of kind `window` round each answer up to an edge.
//!
//! **True.** Jobs that leave the queue only make the others earlier. Jobs of several units may
//! leave some idle that the next cannot use: of `N` units only `N - heaviest + 1` are counted on.
//! Several limits can wait for each other in turn, but never longer than one after the other: their
//! waits add up.

use std::time::Duration;

use tollway_core::{Algorithm, State, Timestamp};

use super::cooling::Cooling;
use super::gate::Gate;
use crate::{Estimate, Limit};

/// Where a job stands among those that a limit binds: what an estimate is made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Position {
    /// Units before the job.
    pub(crate) ahead: u64,
    /// Its own.
    pub(crate) weight: u32,
    /// The most that any job has.
    pub(crate) heaviest: u32,
    /// The earliest that it may start as far as other reasons are concerned.
    pub(crate) base: Timestamp,
    pub(crate) now: Timestamp,
}

/// Limits that bind a job, what is in use of them (an absent gate is one that nothing has passed),
/// and the job's place among those that they bind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound<'a> {
    pub(crate) gates: &'a [Gate],
    pub(crate) limits: &'a [Limit],
    pub(crate) position: Position,
}

/// Units that may start before a job, of all that `limits` bind: no more than `all`, nor than
/// start in the rounds until its turn, in which every group has one. `own` are the limits of its
/// group; `jobs_in` says how many jobs start in so many rounds.
///
/// A group that waits for its own limits, or for a time, misses turns, and comes back when the
/// others may just have taken what there was: each time costs all that `limits` let pass at once,
/// and once more for what that leaves unused.
pub(crate) fn served_before(
    position: &Position,
    own: &[Limit],
    limits: &[Limit],
    all: u64,
    jobs_in: impl Fn(u64) -> u64,
) -> u64 {
    if limits.is_empty() {
        return 0;
    }
    let heaviest = u64::from(position.heaviest.max(1));
    let own_least = own.iter().map(at_once).min();
    let waits = match own_least {
        Some(units) => 1 + position.ahead / units.saturating_sub(heaviest - 1).max(1),
        None => u64::from(position.base > position.now),
    };
    let rounds = (position.ahead + 1).saturating_add(waits);
    // A turn is of less than twice the heaviest job's units.
    let units = jobs_in(rounds.saturating_mul(2 * heaviest - 1)).saturating_mul(heaviest);
    let missed = limits.iter().map(at_once).max().unwrap_or(0).saturating_mul(2 * waits);
    units.saturating_sub(u64::from(position.weight)).saturating_add(missed).min(all)
}

/// The most units that a limit lets pass at once.
fn at_once(limit: &Limit) -> u64 {
    match limit {
        Limit::Slots { units, .. } | Limit::Window { units, .. } => u64::from(*units),
        Limit::Policy(algorithm) | Limit::Answered(algorithm) => algorithm.limit(),
    }
}

/// When a job starts that may start at `base` and is bound by `bounds`: if responses take the mean
/// time, and if each takes the longest.
pub(crate) fn estimate<'a>(
    base: Timestamp,
    bounds: impl Iterator<Item = Bound<'a>> + Clone,
    mean: Duration,
    longest: Duration,
) -> Estimate {
    let latest = wait_for_all(bounds.clone(), longest);
    // Shorter responses make no wait longer: who need not wait for long ones waits for none.
    let expected = match latest {
        Duration::ZERO if mean <= longest => Duration::ZERO,
        _ => wait_for_all(bounds, mean),
    };
    Estimate { expected: base.after(expected), latest: base.after(latest) }
}

/// How long after its base a job may pass all that binds it, if responses take `response`.
fn wait_for_all<'a>(
    bounds: impl Iterator<Item = Bound<'a>> + Clone,
    response: Duration,
) -> Duration {
    let several = bounds.clone().map(|bound| bound.limits.len()).sum::<usize>() > 1;
    let mut sum = Duration::ZERO;
    for Bound { gates, limits, position } in bounds {
        for (index, limit) in limits.iter().enumerate() {
            let waits = match gates.get(index) {
                Some(gate) => wait(gate, limit, &position, response),
                None => wait(&Gate::vacant(limit), limit, &position, response),
            };
            let slack = if several && !waits.is_zero() { slack(limit) } else { Duration::ZERO };
            sum = sum.saturating_add(waits).saturating_add(slack);
        }
    }
    sum
}

/// How long after `position.base` a job may pass `gate`.
fn wait(gate: &Gate, limit: &Limit, position: &Position, response: Duration) -> Duration {
    if let Some((slots, units, cooling)) = gate.slots(limit, position.now) {
        let usable = usable(u64::from(units), position);
        let index = position.ahead + u64::from(position.weight.min(units)) - 1;
        // Which slots a heavy job leaves idle is not known here: count on the last to free.
        let slot = if position.heaviest == 1 { index % usable } else { u64::from(units) - 1 };
        let answers_at = position.now.after(response);
        let free_at = slots.free_at(slot, units, cooling, position.base, answers_at);
        return after_rounds(free_at, index / usable, cooling, response).since(position.base);
    }
    match (gate, limit) {
        (Gate::Policy(state), Limit::Policy(algorithm)) => policy_wait(algorithm, state, position),
        (Gate::Answered(state, in_flight), Limit::Answered(algorithm)) => {
            // What is in flight may be counted first, and each round is charged when it is
            // answered.
            let ahead = position.ahead + in_flight.units();
            let wait = policy_wait(algorithm, state, &Position { ahead, ..*position });
            let rounds = 1 + ahead / algorithm.limit().max(1);
            let answers = times(response, if ahead == 0 { 0 } else { rounds });
            let may_start = ahead + u64::from(position.weight) <= algorithm.limit();
            if may_start && wait.is_zero() { wait } else { wait.saturating_add(answers) }
        }
        _ => Duration::ZERO,
    }
}

/// When a slot is free for the next time after it was taken `rounds` times, for the first time at
/// `free_at`, if each answer takes `response`.
fn after_rounds(
    free_at: Timestamp,
    rounds: u64,
    cooling: Cooling,
    response: Duration,
) -> Timestamp {
    let next = |taken_at: Timestamp| cooling.frees(taken_at.after(response));
    if rounds == 0 {
        return free_at;
    }
    // From the first edge on, all rounds take as long.
    let first = next(free_at);
    first.after(times(next(first).since(first), rounds - 1))
}

/// What a wait may grow by when another limit delays the same job: a job that misses its window
/// waits for the next.
fn slack(limit: &Limit) -> Duration {
    match limit {
        Limit::Window { window, .. } => *window,
        Limit::Policy(Algorithm::FixedWindow(window)) => window.quota().period(),
        _ => Duration::ZERO,
    }
}

fn policy_wait(algorithm: &Algorithm, state: &State, position: &Position) -> Duration {
    let snapshot = state.peek(algorithm, position.base);
    let wanted = position.ahead + u64::from(position.weight).min(snapshot.limit());
    let missing = wanted.saturating_sub(snapshot.remaining());
    if missing == 0 {
        return Duration::ZERO;
    }
    let windows = |units: u64, period: Duration| {
        let windows = beyond(snapshot.remaining(), units, position).unwrap_or(0);
        snapshot.reset_after() + times(period, windows)
    };
    // Of what is all there, the first unit begins to come back when it is taken.
    let is_full = snapshot.remaining() == snapshot.limit();
    match algorithm {
        Algorithm::Gcra(gcra) => {
            let quota = gcra.quota();
            let nanos = u128::from(missing - u64::from(!is_full)) * quota.period().as_nanos();
            let nanos = nanos.div_ceil(u128::from(quota.units()));
            snapshot.next_after() + Duration::from_nanos(nanos.try_into().unwrap_or(u64::MAX))
        }
        Algorithm::LeakyBucket(bucket) => {
            let drips = missing.div_ceil(bucket.drip_size());
            snapshot.next_after() + times(bucket.interval(), drips - u64::from(!is_full))
        }
        Algorithm::SlidingWindow(window) => windows(window.limit(), window.period()),
        Algorithm::FixedWindow(window) => windows(window.quota().units(), window.quota().period()),
        _ => Duration::ZERO,
    }
}

/// Units that every window is sure to let start.
fn usable(units: u64, position: &Position) -> u64 {
    units - u64::from(position.heaviest.max(1)).min(units) + 1
}

/// How many windows after the next one a job starts; `None` if it starts in this one.
fn beyond(left: u64, units: u64, position: &Position) -> Option<u64> {
    let weight = u64::from(position.weight).min(units);
    if position.ahead + weight <= left {
        return None;
    }
    let idle = u64::from(position.heaviest.max(1)).min(units) - 1;
    Some(
        (position.ahead + weight - 1).saturating_sub(left.saturating_sub(idle))
            / usable(units, position),
    )
}

fn times(duration: Duration, count: u64) -> Duration {
    duration.saturating_mul(u32::try_from(count).unwrap_or(u32::MAX))
}
