//! States of fixed size: which table they belong to, and what a slot is told about them.

use tollway_core::gcra::{self, Gcra};
use tollway_core::{
    Algorithm, Charge, Decision, Snapshot, State, Timestamp, fixed_window, leaky_bucket,
};

use crate::slot::Content;

/// Where the states of a policy live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// One word: a moment in time.
    Narrow,
    /// Two words.
    Double,
    /// Any size.
    Variable,
}

impl Layout {
    #[inline]
    pub(crate) fn of(algorithm: &Algorithm, now: Timestamp) -> Self {
        match algorithm {
            Algorithm::Gcra(gcra) if is_narrow(gcra, now) => Self::Narrow,
            Algorithm::Gcra(_) | Algorithm::LeakyBucket(_) | Algorithm::FixedWindow(_) => {
                Self::Double
            }
            _ => Self::Variable,
        }
    }
}

/// Whether arrival times are whole nanoseconds, and in the range of a narrow slot.
#[inline]
pub(crate) fn is_narrow(gcra: &Gcra, now: Timestamp) -> bool {
    now < gcra.word_until()
}

/// Decides a charge on packed words as of `at`: the answer, and what to write if anything has
/// changed.
pub(crate) fn charge(
    charge: &Charge<'_>,
    words: [u64; 2],
    at: Timestamp,
) -> (Decision, Option<Content>) {
    let mut state = unpack(charge.policy.algorithm(), words);
    let decision = state.charge(charge, 0, at);
    let after = pack(&state);
    (decision, (after != words).then(|| content(after, decision.snapshot(), at)))
}

/// What a slot holds after `snapshot` was reported of it at `now`.
#[inline]
pub(crate) fn content(words: [u64; 2], snapshot: Snapshot, now: Timestamp) -> Content {
    Content { words, vacant_at: snapshot.reset_at(now), limited: snapshot.remaining() == 0 }
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
