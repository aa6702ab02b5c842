//! What a decision says about each policy, in the shape the emitters need.

use core::cmp::Reverse;
use core::time::Duration;

use crate::{Policy, Snapshot};

/// How one policy stands after one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing<'a> {
    /// The policy's name.
    pub policy: &'a str,
    /// The most units one request could ever take: the bound of `remaining`.
    pub limit: u64,
    /// Units granted per window.
    pub quota: u64,
    /// The window the quota is granted over; `None` where time alone brings nothing back, which
    /// draft 10 calls the unit `concurrent-requests`.
    pub window: Option<Duration>,
    /// Whole units left now.
    pub remaining: u64,
    /// Time until more units become available; `None` when nothing was used.
    pub more_after: Option<Duration>,
    /// Time until nothing counts against the requester any more.
    pub full_after: Duration,
}

impl<'a> Standing<'a> {
    /// How `policy` stands by a store's `snapshot` of one key.
    #[inline]
    pub fn new(policy: &'a Policy, snapshot: Snapshot) -> Self {
        let algorithm = policy.algorithm();
        let (quota, window) = match algorithm.window() {
            Some((units, window)) => (units, Some(window)),
            None => (algorithm.limit(), None),
        };
        let used = !snapshot.next_after().is_zero();
        Self {
            policy: policy.name(),
            limit: algorithm.limit(),
            quota,
            window,
            remaining: snapshot.remaining(),
            more_after: used.then(|| snapshot.next_after()),
            full_after: snapshot.reset_after(),
        }
    }
}

/// Who denied the request and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Denied {
    /// Index of the denying policy in [`Report::standings`].
    pub by: usize,
    /// Time until the same request would pass; `None` when no wait can help.
    pub retry: Option<Duration>,
}

/// One answer to a client: every policy that was asked, and the denial if there was one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Report<'a> {
    /// The policies asked, in the order they are to be reported.
    pub standings: &'a [Standing<'a>],
    /// Set when the request was denied.
    pub denied: Option<Denied>,
    /// Time since the Unix epoch; only the epoch dialect reads it.
    pub epoch: Duration,
}

impl<'a> Report<'a> {
    /// The one policy worth telling a client that can only hear of one.
    ///
    /// The denying one, or else the one with the fewest units left; of equals, the one that takes
    /// longest to refill.
    pub fn tightest(&self) -> Option<&'a Standing<'a>> {
        let indices = 0..self.standings.len();
        let tightest = indices.reduce(|one, other| self.tighter(one, other))?;
        Some(&self.standings[tightest])
    }

    /// One standing for each policy, in the order of the policies: the tightest where several keys
    /// were charged under one. The draft wants each policy named once.
    #[inline]
    pub(super) fn by_policy(&self) -> impl Iterator<Item = &'a Standing<'a>> {
        let standings = self.standings;
        let len = standings.len();
        let same = move |one: usize, other: usize| standings[one].policy == standings[other].policy;
        let is_first = move |&index: &usize| !(0..index).any(|earlier| same(earlier, index));
        (0..len).filter(is_first).map(move |index| {
            let others = (index + 1..len).filter(|&later| same(index, later));
            &standings[others.fold(index, |one, other| self.tighter(one, other))]
        })
    }

    fn tighter(&self, one: usize, other: usize) -> usize {
        let slack = |index: usize| {
            let denies = self.denied.is_some_and(|denied| denied.by == index);
            let standing = &self.standings[index];
            (!denies, standing.remaining, Reverse(standing.full_after))
        };
        if slack(other) < slack(one) { other } else { one }
    }

    /// The wait to announce in `Retry-After`; `None` when nothing was denied or no wait helps.
    ///
    /// Never zero, and never earlier than the `t` of the denying policy (the draft demands that of
    /// a response that carries both) or of any other policy that has nothing left: all or nothing
    /// means that the same request needs them all.
    pub fn retry(&self) -> Option<Duration> {
        let denied = self.denied?;
        let spent = |(index, standing): (usize, &Standing<'_>)| {
            let blocks = index == denied.by || standing.remaining == 0;
            standing.more_after.filter(|_| blocks)
        };
        let more = self.standings.iter().enumerate().filter_map(spent).max();
        Some(denied.retry?.max(more.unwrap_or_default()).max(Duration::from_nanos(1)))
    }
}
