//! Outages of a store as operators are told of them: each has one beginning and one end.
//!
//! ```text
//!   failed call ──> Began ──> … ──> no failure since the last look, and the store
//!   or the store says so            says that it is well ──> Ended
//! ```
//!
//! A failed call begins one at once; the end is found by looking. Whoever looks once a second tells
//! of at most one beginning and one end a second, whatever is asked of a store that comes and goes.
//! Nothing is logged or counted here, and time is an argument: services and proxies tell it in
//! their own ways, and all of them mean the same.

use alloc::borrow::ToOwned as _;
use alloc::string::String;
use core::time::Duration;

use crate::{Outage, Timestamp};

/// Whether a store is out.
#[derive(Debug, Default)]
pub struct Outages {
    current: Option<Episode>,
    is_fresh: bool,
}

/// One outage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Episode {
    /// When it began.
    pub since: Timestamp,
    /// What went wrong last.
    pub reason: String,
    /// What the store did not answer meanwhile.
    pub unanswered: u64,
}

/// What somebody is to be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutageEvent {
    /// The store does not answer.
    Began(Episode),
    /// It answers again, after so long.
    Ended(Episode, Duration),
}

impl Outages {
    /// The outage under way, if there is one.
    pub const fn current(&self) -> Option<&Episode> {
        self.current.as_ref()
    }

    /// Whether the store answers.
    pub const fn is_up(&self) -> bool {
        self.current.is_none()
    }

    /// Notes that the store did not answer for `unanswered` of what it was asked; `told` is what it
    /// says of itself.
    pub fn failed(
        &mut self,
        told: impl FnOnce() -> Option<Outage>,
        unanswered: u64,
        now: Timestamp,
    ) -> Option<OutageEvent> {
        let began = self.current.is_none().then(|| self.begin(told().as_ref(), now));
        self.is_fresh = true;
        if let Some(current) = &mut self.current {
            current.unanswered += unanswered;
        }
        began
    }

    /// Looks whether an outage has begun without a call, goes on, or is over; `told` is what the
    /// store says of itself.
    pub fn look(&mut self, told: Option<&Outage>, now: Timestamp) -> Option<OutageEvent> {
        let is_fresh = core::mem::take(&mut self.is_fresh);
        match (told, &mut self.current) {
            (Some(_), None) => Some(self.begin(told, now)),
            (Some(told), Some(current)) => {
                current.reason.clone_from(&told.reason);
                None
            }
            (None, Some(_)) if !is_fresh => {
                let over = self.current.take()?;
                let lasted = now.since(over.since);
                Some(OutageEvent::Ended(over, lasted))
            }
            (None, _) => None,
        }
    }

    fn begin(&mut self, told: Option<&Outage>, now: Timestamp) -> OutageEvent {
        // A service that is the store may answer, and say that it could not ask its own.
        let reason = told.map_or("the store could not answer", |told| &told.reason).to_owned();
        let since = now.before(told.map_or(Duration::ZERO, |told| told.lasted));
        let episode = Episode { since, reason, unanswered: 0 };
        self.current = Some(episode.clone());
        OutageEvent::Began(episode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Timestamp {
        Timestamp::from_nanos(seconds * 1_000_000_000)
    }

    fn told(seconds: u64, reason: &str) -> Outage {
        Outage { lasted: Duration::from_secs(seconds), reason: reason.to_owned() }
    }

    fn kind(turn: Option<OutageEvent>) -> &'static str {
        match turn {
            Some(OutageEvent::Began(_)) => "began",
            Some(OutageEvent::Ended(..)) => "ended",
            None => "nothing",
        }
    }

    #[test]
    fn an_outage_begins_with_the_first_failure_and_ends_at_a_quiet_look() {
        let mut outages = Outages::default();
        let gone = told(2, "gone");
        assert_eq!(kind(outages.look(None, at(9))), "nothing");
        let Some(OutageEvent::Began(began)) = outages.failed(|| Some(gone.clone()), 3, at(10))
        else {
            panic!("it begins");
        };
        assert_eq!((began.since, began.reason.as_str()), (at(8), "gone"));
        assert_eq!(kind(outages.failed(|| Some(gone.clone()), 2, at(10))), "nothing");
        assert!(!outages.is_up());
        assert_eq!(kind(outages.look(Some(&told(3, "still")), at(11))), "nothing");
        assert_eq!(outages.current().unwrap().reason, "still");
        assert_eq!(kind(outages.failed(|| None, 1, at(12))), "nothing");
        assert_eq!(kind(outages.look(None, at(12))), "nothing", "a call has just failed");
        let Some(OutageEvent::Ended(over, lasted)) = outages.look(None, at(13)) else {
            panic!("it ends");
        };
        assert_eq!((over.unanswered, lasted), (6, Duration::from_secs(5)));
        assert!(outages.is_up());
    }

    #[test]
    fn an_outage_that_nobody_ran_into_is_told_by_the_store() {
        let mut outages = Outages::default();
        assert_eq!(kind(outages.look(Some(&told(1, "gone")), at(5))), "began");
        assert_eq!(kind(outages.look(None, at(6))), "ended");
        assert_eq!(kind(outages.look(None, at(7))), "nothing");
    }

    #[test]
    fn a_failure_that_the_store_knows_nothing_of_counts_too() {
        let mut outages = Outages::default();
        let Some(OutageEvent::Began(began)) = outages.failed(|| None, 1, at(5)) else {
            panic!("it begins")
        };
        assert_eq!(began.since, at(5));
        assert!(!began.reason.is_empty());
    }
}
