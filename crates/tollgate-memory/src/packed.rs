//! States of two words: how they are decided, and what a slot is told about them.

use tollgate_core::{
    Algorithm, Charge, Decision, Mode, Snapshot, State, Timestamp, fixed_window, gcra, leaky_bucket,
};

use crate::slot::Content;

/// Whether the states of `algorithm` fit into two words.
#[inline]
pub(crate) const fn is_packed(algorithm: &Algorithm) -> bool {
    matches!(algorithm, Algorithm::Gcra(_) | Algorithm::LeakyBucket(_) | Algorithm::FixedWindow(_))
}

/// Decides a charge on packed words: the answer, and what to write if anything has changed.
#[inline]
pub(crate) fn charge(
    charge: &Charge<'_>,
    words: [u64; 2],
    now: Timestamp,
) -> (Decision, Option<Content>) {
    let (decision, after) = match (charge.policy.algorithm(), charge.mode) {
        (Algorithm::Gcra(gcra), Mode::Enforce) => {
            let (decision, after) = gcra.decide(gcra::State::from_words(words), charge.cost, now);
            (decision, after.to_words())
        }
        _ => charge_any(charge, words, now),
    };
    (decision, (after != words).then(|| content(after, decision.snapshot(), now)))
}

/// What is less often asked takes the way that serves every algorithm.
fn charge_any(charge: &Charge<'_>, words: [u64; 2], now: Timestamp) -> (Decision, [u64; 2]) {
    let mut state = unpack(charge.policy.algorithm(), words);
    let decision = state.charge(charge, 0, now);
    (decision, pack(&state))
}

/// What a slot holds after `snapshot` was reported of it at `now`.
#[inline]
pub(crate) fn content(words: [u64; 2], snapshot: Snapshot, now: Timestamp) -> Content {
    Content {
        words,
        vacant_at: now.after(snapshot.reset_after()),
        limited: snapshot.remaining() == 0,
    }
}

/// The state that `words` stand for.
pub(crate) fn unpack(algorithm: &Algorithm, words: [u64; 2]) -> State {
    match algorithm {
        Algorithm::Gcra(_) => State::Gcra(gcra::State::from_words(words)),
        Algorithm::LeakyBucket(_) => State::LeakyBucket(leaky_bucket::State::from_words(words)),
        Algorithm::FixedWindow(_) => State::FixedWindow(fixed_window::State::from_words(words)),
        other => State::vacant(other),
    }
}

/// The words that stand for `state`.
pub(crate) fn pack(state: &State) -> [u64; 2] {
    match state {
        State::Gcra(state) => state.to_words(),
        State::LeakyBucket(state) => state.to_words(),
        State::FixedWindow(state) => state.to_words(),
        _ => [0; 2],
    }
}
