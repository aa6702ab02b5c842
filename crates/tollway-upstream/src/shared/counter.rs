//! The counter and the limit of a bucket as Spectacles clients know them, beside our documents.
//!
//! ```text
//!   documents ──mirror──> remaining, limit ──what differs from the mirror──> documents
//! ```
//!
//! After each transition the counter says what the documents say. What it says less before the
//! next one was taken by old clients. What it says more, or not at all, is a wrong write, or the
//! end of a window: it never makes us take more than the documents have, and is put right.
//!
//! Whoever learns of a window sooner knows of its end sooner, by the time for which answers travel.
//! So old clients may open the next window while the documents still wait for the end of this one.

use std::time::Duration;

use tollway_core::Timestamp;

use crate::budget::encoding::encoded;

/// What two believe of the end of one window differs by so much at most.
pub(super) const ENDS_APART: Duration = Duration::from_millis(500);

/// What the store says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counter {
    /// Requests left.
    pub left: Option<i64>,
    /// When the counter is gone, by the server's clock.
    pub until: Option<Timestamp>,
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
    pub(super) fn mirror(&self) -> Mirror {
        let Self { left, until, limit } = *self;
        Mirror { left, until, limit }
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

    /// What is left of it beside what the store says now: nothing if that is of the next window,
    /// which old clients have opened.
    pub(super) fn beside(self, counter: &Counter, now: Timestamp) -> Self {
        let known = self.at(now);
        let Some(until) = known.until.filter(|_| counter.left.is_some()) else { return known };
        let is_soon_over = until <= now.after(ENDS_APART);
        // None ends later than this one but a counter that was made anew.
        let is_anew = counter.until.is_none_or(|at| at > until.after(ENDS_APART));
        match is_soon_over && is_anew {
            true => Self { left: None, until: None, limit: known.limit },
            false => known,
        }
    }

    /// Whether the store says something else now.
    pub(super) fn differs(self, counter: &Counter, now: Timestamp) -> bool {
        let known = self.at(now);
        (known.left, known.until.is_some()) != (counter.left, counter.until.is_some())
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
