//! Where states live: what every store can do, and how it answers.

use alloc::boxed::Box;
use alloc::string::{String, ToString as _};
use core::fmt;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};
use core::time::Duration;

use crate::{Charge, Cost, Decision, Policy, Snapshot, Timestamp, Verdict};

/// Decides atomically.
///
/// A store copies what it needs from the charges before it returns, so an answer borrows nothing:
/// it may outlive the call that asked. `now` is the caller's clock; a store with a clock of its own
/// (Redis) ignores it.
pub trait Store: Send + Sync {
    /// Takes every charge if all are allowed, or none.
    fn check(&self, charges: &[Charge<'_>], now: Timestamp) -> Answer<Verdict>;

    /// Takes the charge if it is allowed, and has no more to say then: `None`. Anything else is the
    /// answer that [`Self::check`] gives. For callers to whom what is left is nothing: a store that
    /// knows at once saves the report.
    fn admit(&self, charge: &Charge<'_>, now: Timestamp) -> Option<Answer<Verdict>> {
        match self.check(core::slice::from_ref(charge), now) {
            Answer::Ready(Ok(verdict)) if verdict.is_allowed() => None,
            answer => Some(answer),
        }
    }

    /// What [`Self::check`] would answer, with nothing taken.
    fn peek(&self, charges: &[Charge<'_>], now: Timestamp) -> Answer<Verdict>;

    /// Takes as many units as there are, up to the cost of the charge.
    fn take(&self, charge: &Charge<'_>, now: Timestamp) -> Answer<Grant>;

    /// Gives the charge's units back; never more than were taken.
    fn refund(&self, charge: &Charge<'_>, now: Timestamp) -> Answer<Snapshot>;

    /// Forgets the charge's key under its policy.
    fn reset(&self, charge: &Charge<'_>, now: Timestamp) -> Answer<()>;

    /// Takes every charge if all are allowed, to be settled later.
    fn reserve(&self, charges: &[Charge<'_>], now: Timestamp) -> Answer<Reserved>;

    /// Settles a reservation at its real costs, one per charge in order; costs left out are as
    /// reserved. What was reserved too much goes back; what was too little is taken, allowed or
    /// not.
    fn commit(&self, id: ReservationId, costs: &[u64], now: Timestamp) -> Answer<Settlement>;

    /// Settles a reservation by giving everything back.
    fn cancel(&self, reservation: ReservationId, now: Timestamp) -> Answer<Settlement>;

    /// Cancels without waiting for the outcome, for a permit that is dropped.
    fn release(&self, reservation: ReservationId, now: Timestamp);

    /// The outage under way, if there is one. A store in this process has none.
    fn outage(&self) -> Option<Outage> {
        None
    }

    /// How many calendar windows were found that another process had opened by other data for
    /// their time zone. A store in this process has none.
    fn windows_by_other_rules(&self) -> u64 {
        0
    }

    /// Puts the numbers of these policies in force together, as a service does at its start and
    /// whenever its rules change: whatever other numbers a key of theirs is kept under are older;
    /// nothing is newer than these. A store that does not carry states has nothing to do.
    fn renew(&self, policies: &[&Policy], now: Timestamp) {
        let _ = (policies, now);
    }
}

/// A store that does not answer: since when, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outage {
    /// How long it has lasted.
    pub lasted: Duration,
    /// What went wrong last, for whoever reads logs.
    pub reason: String,
}

/// What a store answers: at once, or after a while. Await it.
///
/// # Cancel safety
///
/// An answer that is dropped before it is ready may or may not have taken effect.
#[must_use = "an answer does nothing until it is awaited"]
pub enum Answer<T> {
    /// Known already: awaiting it costs nothing.
    Ready(Result<T, StoreError>),
    /// Under way.
    Pending(Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send>>),
    /// Awaited already.
    Taken,
}

impl<T> Answer<T> {
    /// The answer that `future` will give.
    pub fn pending(future: impl Future<Output = Result<T, StoreError>> + Send + 'static) -> Self {
        Self::Pending(Box::pin(future))
    }
}

impl<T: Unpin> Future for Answer<T> {
    type Output = Result<T, StoreError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if let Self::Pending(future) = this {
            return future.as_mut().poll(context);
        }
        match core::mem::replace(this, Self::Taken) {
            Self::Ready(result) => Poll::Ready(result),
            Self::Pending(_) | Self::Taken => {
                Poll::Ready(Err(StoreError::new(ErrorKind::Misuse, "an answer was awaited twice")))
            }
        }
    }
}

impl<T> fmt::Debug for Answer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ready(_) => "Answer::Ready",
            Self::Pending(_) => "Answer::Pending",
            Self::Taken => "Answer::Taken",
        })
    }
}

/// The name of a reservation, not to be guessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReservationId(pub u128);

/// The answer to a reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "what was reserved is held until it is settled or expires"]
pub struct Reserved {
    /// What was decided; if denied then nothing is reserved.
    pub verdict: Verdict,
    /// The name to settle it by, and when it expires; `None` if denied.
    pub reservation: Option<Reservation>,
}

/// Units taken, to be settled later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// The name to settle it by.
    pub id: ReservationId,
    /// How long it stays open: the shortest time of its policies.
    pub expires_after: Duration,
}

/// What became of an attempt to settle a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settlement {
    /// It was open, and is settled now.
    Settled,
    /// There is no such reservation: never was, settled before, or expired. Nothing was changed.
    Unknown,
}

/// The answer to a partial grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "fewer units may have been granted than were asked for"]
pub struct Grant {
    /// Units taken, at most those asked for; zero if none were there.
    pub granted: u64,
    /// The decision on what was granted, or on one unit if nothing was.
    pub decision: Decision,
    /// The failure of the store in whose place the policy answered, if it did.
    pub store_failure: Option<ErrorKind>,
}

impl Grant {
    /// The cost at which to charge so as to get as much of `wanted` as `remaining` allows.
    pub fn affordable(wanted: Cost, remaining: u64) -> Cost {
        Cost::new(wanted.get().min(remaining)).unwrap_or(Cost::ONE)
    }

    /// The grant that `decision` on `cost` units makes.
    pub const fn new(decision: Decision, cost: Cost) -> Self {
        let granted = if decision.is_allowed() { cost.get() } else { 0 };
        Self { granted, decision, store_failure: None }
    }
}

/// Why a store could not answer.
#[derive(Debug)]
pub struct StoreError {
    kind: ErrorKind,
    message: String,
    source: Option<Box<dyn core::error::Error + Send + Sync>>,
}

crate::named_enum! {
    /// What kind of trouble a store has.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[non_exhaustive]
    pub enum ErrorKind {
        /// The store cannot be reached, or did not answer in time, and nothing was taken.
        Unavailable = "unavailable",
        /// The store may or may not have taken the charges: the connection broke in between.
        Unknown = "unknown",
        /// The store refuses: wrong credentials, wrong type at a key, no memory.
        Refused = "refused",
        /// The request cannot be answered as put, on any try.
        Misuse = "misuse",
    }
}

impl StoreError {
    /// An error of `kind`.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    /// The same error with what caused it.
    #[must_use]
    pub fn caused_by(self, source: impl Into<Box<dyn core::error::Error + Send + Sync>>) -> Self {
        Self { source: Some(source.into()), ..self }
    }

    /// What kind of trouble it is.
    pub const fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Whether another try may succeed.
    pub const fn is_transient(&self) -> bool {
        matches!(self.kind, ErrorKind::Unavailable | ErrorKind::Unknown)
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// An error and what caused it, in one line. A cause that only repeats what was said is left out:
/// wrapped errors often show what they wrap, and name it as their cause as well.
pub fn explained(error: &dyn core::error::Error) -> String {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if !line.contains(&text) {
            line.push_str(": ");
            line.push_str(&text);
        }
        cause = error.source();
    }
    line
}

impl core::error::Error for StoreError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        self.source.as_ref().map(|source| &**source as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_told_once_however_often_it_is_wrapped() {
        let error = |text: &str| StoreError::new(ErrorKind::Unavailable, text);
        let told = explained(&error("x").caused_by(error("y").caused_by(error("y"))));
        assert_eq!(told, "x: y");
        let told = explained(&error("x").caused_by(error("y").caused_by(error("z"))));
        assert_eq!(told, "x: y: z");
        assert_eq!(explained(&error("x: y").caused_by(error("y"))), "x: y");
    }
}
