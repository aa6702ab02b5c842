//! The counter and the limit of a bucket as Spectacles clients know them, beside our documents.
//!
//! ```text
//!   documents ──mirror──> remaining, limit ──what differs from the mirror──> documents
//! ```
//!
//! After each transition the counter says what the documents say. What it says less before the
//! next one was taken by old clients. What it says more, or not at all, is a wrong write, or the
//! end of a window: it never makes us take more than the documents have, and is put right.

use std::time::Duration;

use tollway_core::Timestamp;

use crate::budget::encoding::encoded;

/// What the store says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counter {
    /// Requests left.
    pub left: Option<i64>,
    /// Time until the counter is gone.
    pub ends: Option<Duration>,
    /// Requests per window.
    pub limit: Option<i64>,
}

/// What the store said when it was last looked at, or was told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Mirror {
    pub(super) left: Option<i64>,
    pub(super) until: Option<Timestamp>,
    pub(super) limit: Option<i64>,
}

encoded!(Mirror { left, until, limit });

/// What a call expects of the counter and writes into it.
#[derive(Clone, Copy, Debug, Default)]
pub struct CounterCall {
    pub(super) expected: Mirror,
    pub(super) written: Option<Mirror>,
}

impl Counter {
    /// The same, from `now` on.
    pub(super) fn mirror(&self, now: Timestamp) -> Mirror {
        Mirror { left: self.left, until: self.ends.map(|ends| now.after(ends)), limit: self.limit }
    }
}

impl Mirror {
    /// What is left of it at a later time.
    pub(super) fn at(self, now: Timestamp) -> Self {
        match self.until {
            Some(until) if until <= now => Self { left: None, until: None, limit: self.limit },
            _ => self,
        }
    }

    /// Whether the store says something else now.
    pub(super) fn differs(self, counter: &Counter, now: Timestamp) -> bool {
        let known = self.at(now);
        (known.left, known.until.is_some()) != (counter.left, counter.ends.is_some())
            || (self.limit != counter.limit && counter.limit.is_some())
    }
}

impl CounterCall {
    /// As the script takes it.
    pub(super) fn arguments(&self, now: Timestamp) -> [Vec<u8>; 5] {
        let text =
            |number: Option<i64>| number.map_or(Vec::new(), |it| it.to_string().into_bytes());
        let has_end = if self.expected.until.is_some() { b"1" } else { b"0" };
        let (what, ends_ms, limit) = match self.written {
            None => (Vec::new(), 0, Vec::new()),
            Some(Mirror { left: None, limit, .. }) => (b"D".to_vec(), 0, text(limit)),
            Some(Mirror { left, until, limit }) => {
                let ends = until.map(|at| at.since(now).as_nanos().div_ceil(1_000_000).max(1));
                (text(left), ends.unwrap_or(0), text(limit))
            }
        };
        let ends = ends_ms.to_string().into_bytes();
        [text(self.expected.left), has_end.to_vec(), what, ends, limit]
    }
}
