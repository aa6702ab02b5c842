//! The last decisions on one key: under which policy, at what cost, and why it was denied.
//!
//! ```text
//!   denied, api, cost 30, exhausted  --same ten seconds, alike--> 17 times, the last at 15:02:09
//!   denied, api, cost 2, exhausted   --other cost--------------> a record of its own
//! ```
//!
//! What is alike within ten seconds is one record with a count, so that a key that is denied a
//! thousand times a second still shows what happened before. Policies are kept by the number of
//! their tally: no text is copied or compared while a request waits.

use tollway_core::{Decision, Retry, Timestamp, named_enum};

use super::BUCKET_NS;
use crate::rules::{Ask, Treatment};

/// Records of one key.
const RECORDS: usize = 8;

named_enum! {
    /// Why a request was denied.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum Reason {
        /// The key has too few units left for what was asked.
        Exhausted = "exhausted",
        /// A list, an operator, or a limit of zero.
        Banned = "banned",
        /// More was asked than the policy ever holds.
        TooCostly = "too_costly",
        /// A new key, for which there is no room in memory.
        NoRoom = "no_room",
        /// The store did not answer, and the policy decided in its place.
        Degraded = "degraded",
    }
}

/// What came of one request of a key, or of several that were alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// When; of several, the last.
    pub at: Timestamp,
    /// How many were alike.
    pub times: u32,
    /// The number of the policy's tally.
    pub tally: u32,
    /// Units asked for.
    pub cost: u64,
    /// Why it was denied; `None` if it was allowed.
    pub reason: Option<Reason>,
    /// How long to wait; `None` if it was allowed, or if no wait helps.
    pub retry_ns: Option<u64>,
}

impl Reason {
    fn of(ask: &Ask<'_>, decision: &Decision, is_degraded: bool) -> Option<Self> {
        let Decision::Deny { snapshot, retry } = decision else { return None };
        Some(match retry {
            _ if ask.treatment == Treatment::Ban => Self::Banned,
            _ if is_degraded => Self::Degraded,
            Retry::Never => Self::TooCostly,
            // Who has used up a limit waits for it to be whole again; a newcomer has used nothing.
            Retry::After(_) if snapshot.reset_after().is_zero() => Self::NoRoom,
            Retry::After(_) => Self::Exhausted,
        })
    }
}

impl Record {
    /// What was decided on `ask`.
    #[inline]
    pub(crate) fn of(ask: &Ask<'_>, decision: &Decision, is_degraded: bool, at: Timestamp) -> Self {
        let wait = decision.retry().and_then(Retry::after);
        Self {
            at,
            times: 1,
            tally: ask.tally.number,
            cost: ask.charge.cost.get(),
            reason: Reason::of(ask, decision, is_degraded),
            retry_ns: wait.map(|wait| u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX)),
        }
    }

    #[inline]
    fn is_like(&self, other: &Self) -> bool {
        (self.tally, self.cost, self.reason) == (other.tally, other.cost, other.reason)
            && self.at.as_nanos() / BUCKET_NS == other.at.as_nanos() / BUCKET_NS
    }
}

/// The last records of a key.
#[derive(Debug)]
pub(super) struct Trail {
    records: [Option<Record>; RECORDS],
    latest: u8,
}

impl Trail {
    /// A trail of one record.
    pub(super) fn of(record: Record) -> Self {
        let mut records = [None; RECORDS];
        records[0] = Some(record);
        Self { records, latest: 0 }
    }

    /// Adds a record, in place of the oldest.
    #[inline]
    pub(super) fn note(&mut self, record: Record) {
        if let Some(latest) = &mut self.records[usize::from(self.latest)]
            && latest.is_like(&record)
        {
            *latest = Record { times: latest.times.saturating_add(1), ..record };
            return;
        }
        self.latest = (self.latest + 1) % RECORDS as u8;
        self.records[usize::from(self.latest)] = Some(record);
    }

    /// The records, unordered.
    pub(super) fn records(&self) -> impl Iterator<Item = Record> {
        self.records.iter().flatten().copied()
    }
}
