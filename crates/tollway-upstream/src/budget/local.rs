//! Budgets in this process, for async programs.
//!
//! ```text
//!  claim ──► Budgets ──► Later: a oneshot waits ◄── pump: whoever may go now
//!                                                    ▲ after every answer, and by a task that
//!                                                      sleeps until `Budgets::earliest`
//! ```
//!
//! The task lives as long as somebody waits.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;
use tollway_core::Timestamp;

use super::{
    BoxFuture, BucketRoom, Budgets, Change, Claim, Correction, Fate, Granted, Ledger, LedgerError,
    Page, Permit, Reason, Refusal, Settings, Settle, Ticket, Waiter,
};
use crate::pace;
#[cfg(feature = "redis")]
use crate::profile::Observation;
use crate::profile::Profile;

type ClaimResult = Result<Ticket, Refusal>;

/// Budgets in this process. Clones stand for the same budgets: one per credential.
///
/// ```
/// # async fn example() -> Result<(), tollway_upstream::budget::Refusal> {
/// use tollway_upstream::budget::{Claim, Ledger as _, LocalLedger, Settings};
/// use tollway_upstream::profile::{Observation, Profile};
///
/// let profile = Profile::builtin("discord").expect("it is shipped");
/// let ledger = LocalLedger::new(profile.clone(), Settings::default());
/// let permit = ledger.claim(Claim::new(profile.route("GET", "/users/@me"))).await?;
/// // ... send, and read the header fields of the answer ...
/// permit.complete(&Observation::default());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct LocalLedger(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    news: Notify,
    start: Instant,
}

struct State {
    budgets: Budgets,
    answers: HashMap<Waiter, oneshot::Sender<ClaimResult>>,
    is_driven: bool,
}

impl LocalLedger {
    /// Budgets of which nothing is known yet.
    #[must_use]
    pub fn new(profile: Arc<Profile>, settings: Settings) -> Self {
        Self::of(Budgets::new(profile, settings))
    }

    /// Budgets paced as [`Budgets::paced`]: for a credential that is shared with processes that
    /// cannot be seen. None if the profile says of no dimension that it is common.
    #[must_use]
    pub fn paced(profile: &Profile, settings: Settings, pace: pace::Settings) -> Option<Self> {
        Budgets::paced(profile, settings, pace).map(Self::of)
    }

    /// The same ledger with its buckets in a room that others share. Before its first request: what
    /// it knows is forgotten.
    #[must_use]
    pub fn within(self, room: &BucketRoom) -> Self {
        let mut state = self.0.state();
        let (profile, settings) = (Arc::clone(&state.budgets.profile), state.budgets.settings);
        let fresh = Budgets::new(profile, settings);
        state.budgets = std::mem::replace(&mut state.budgets, fresh).within(room);
        drop(state);
        self
    }

    /// Forgets what has long been idle, for a ledger of which nobody claims anything.
    pub(crate) fn tend(&self) {
        let now = self.0.now();
        self.0.state().budgets.tend(now);
    }

    /// As [`Budgets::go_apart`].
    #[cfg(feature = "redis")]
    pub(crate) fn go_apart(&self, processes: u32, rank: u32) {
        self.0.state().budgets.go_apart(processes, rank);
    }

    /// As [`Budgets::hear`].
    #[cfg(feature = "redis")]
    pub(crate) fn hear(&self, claim: &Claim, told: &Observation) {
        self.0.change(|budgets, now| budgets.hear(claim, told, now));
    }

    fn of(budgets: Budgets) -> Self {
        let state = State { budgets, answers: HashMap::new(), is_driven: false };
        let (news, start) = (Notify::new(), Instant::now());
        Self(Arc::new(Shared { state: Mutex::new(state), news, start }))
    }

    async fn claim_and_wait(&self, claim: Claim) -> Result<Permit, Refusal> {
        let arrived = Instant::now();
        let ticket = match Shared::enter(&self.0, &claim)? {
            Entered::Granted(ticket) => ticket,
            Entered::Waits(mut queued) => queued.answer().await?,
        };
        let settle = LocalSettle { shared: Arc::clone(&self.0), ticket };
        Ok(Permit::new(Box::new(settle), arrived.elapsed()))
    }
}

impl fmt::Debug for LocalLedger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.0.state();
        f.debug_struct("LocalLedger")
            .field("buckets", &state.budgets.bucket_count())
            .field("queued", &state.budgets.queued())
            .field("in_flight", &state.budgets.in_flight())
            .finish()
    }
}

impl Ledger for LocalLedger {
    fn claim(&self, claim: Claim) -> BoxFuture<'_, Result<Permit, Refusal>> {
        Box::pin(self.claim_and_wait(claim))
    }

    fn buckets(&self, cursor: u64, max: usize) -> BoxFuture<'_, Result<Page, LedgerError>> {
        let page = self.0.state().budgets.buckets(cursor, max, self.0.now());
        Box::pin(async move { Ok(page) })
    }

    fn unlock<'a>(&'a self, bucket: &'a str) -> BoxFuture<'a, Result<bool, LedgerError>> {
        let found = self.0.change(|budgets, now| budgets.unlock(bucket, now));
        Box::pin(async move { Ok(found) })
    }

    fn drain<'a>(&'a self, bucket: &'a str) -> BoxFuture<'a, Result<usize, LedgerError>> {
        let drained = self.0.change(|budgets, now| budgets.drain(bucket, now));
        let mut state = self.0.state();
        for waiter in &drained {
            state.answer(*waiter, Err(Refusal { reason: Reason::Drained, wait: None }));
        }
        Box::pin(async move { Ok(drained.len()) })
    }

    fn correct(&self, correction: &Correction) {
        self.0.change(|budgets, now| budgets.correct(correction, now));
    }

    fn take_changes(&self) -> Vec<Change> {
        // Whoever asks does so again and again, also while nobody claims anything.
        self.tend();
        let now = self.0.now();
        self.0.state().budgets.take_changes(now)
    }
}

enum Entered {
    Granted(Ticket),
    Waits(QueuedClaim),
}

impl Shared {
    fn enter(shared: &Arc<Self>, claim: &Claim) -> Result<Entered, Refusal> {
        let mut state = shared.state();
        let now = shared.now();
        let granted = state.budgets.claim(claim, now);
        let (sender, answer) = oneshot::channel();
        if let Ok(Granted::Later(waiter)) = granted {
            // Before the pump: it may be let go at once, after others.
            state.answers.insert(waiter, sender);
        }
        state.pump(now);
        let waiter = match granted? {
            Granted::Now(ticket) => return Ok(Entered::Granted(ticket)),
            Granted::Later(waiter) => waiter,
        };
        if !std::mem::replace(&mut state.is_driven, true) {
            tokio::spawn(Driver(Arc::clone(shared)).run());
        } else {
            shared.news.notify_one();
        }
        Ok(Entered::Waits(QueuedClaim { shared: Arc::clone(shared), waiter, answer: Some(answer) }))
    }

    /// Changes the budgets, and lets go whoever may go then.
    fn change<T>(&self, change: impl FnOnce(&mut Budgets, Timestamp) -> T) -> T {
        let mut state = self.state();
        let now = self.now();
        let result = change(&mut state.budgets, now);
        state.pump(now);
        if state.is_driven {
            self.news.notify_one();
        }
        result
    }

    /// Monotonic time, so that steps of the wall clock do not reach the budgets.
    fn now(&self) -> Timestamp {
        Timestamp::MIN.after(self.start.elapsed())
    }

    /// A task that panicked while it held the budgets left numbers, not a broken invariant.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn pump(&mut self, now: Timestamp) {
        while let Some((waiter, ticket)) = self.budgets.next(now) {
            if !self.answer(waiter, Ok(ticket)) {
                self.budgets.cancel(ticket, now);
            }
        }
        while let Some((waiter, refusal)) = self.budgets.expired(now) {
            self.answer(waiter, Err(refusal));
        }
    }

    /// Tells a waiter; false if it has gone.
    fn answer(&mut self, waiter: Waiter, answer: ClaimResult) -> bool {
        self.answers.remove(&waiter).is_some_and(|sender| sender.send(answer).is_ok())
    }
}

/// Looks again whenever it is time to, as long as somebody waits.
struct Driver(Arc<Shared>);

impl Driver {
    async fn run(self) {
        loop {
            let news = self.0.news.notified();
            tokio::pin!(news);
            // Listen before looking: what happens between the two must not be missed.
            news.as_mut().enable();
            let Some(next) = self.look() else { return };
            match next {
                Some(wait) => {
                    tokio::select! {
                        () = tokio::time::sleep(wait) => {}
                        () = news => {}
                    }
                }
                None => news.await,
            }
        }
    }

    /// Lets go whoever may go, and says how long to sleep; none if nobody waits any more.
    fn look(&self) -> Option<Option<Duration>> {
        let mut state = self.0.state();
        let now = self.0.now();
        state.pump(now);
        if state.answers.is_empty() {
            state.is_driven = false;
            return None;
        }
        Some(state.budgets.earliest(now).map(|at| at.since(now)))
    }
}

impl Drop for Driver {
    /// A runtime that shuts down takes the task with it; the next claim starts another.
    fn drop(&mut self) {
        let mut state = self.0.state();
        if !state.answers.is_empty() {
            state.is_driven = false;
        }
    }
}

/// A claim that waits. Dropped, it leaves the queue.
struct QueuedClaim {
    shared: Arc<Shared>,
    waiter: Waiter,
    answer: Option<oneshot::Receiver<ClaimResult>>,
}

impl QueuedClaim {
    async fn answer(&mut self) -> ClaimResult {
        let gone = Refusal { reason: Reason::Unavailable, wait: None };
        let Some(answer) = &mut self.answer else { return Err(gone) };
        let answer = answer.await.unwrap_or(Err(gone));
        self.answer = None;
        answer
    }
}

impl Drop for QueuedClaim {
    fn drop(&mut self) {
        let Some(mut answer) = self.answer.take() else { return };
        let mut state = self.shared.state();
        state.answers.remove(&self.waiter);
        // It may have been let go just before it was dropped.
        let granted = answer.try_recv();
        drop(state);
        self.shared.change(|budgets, now| match granted {
            Ok(Ok(ticket)) => budgets.cancel(ticket, now),
            _ => budgets.leave(self.waiter, now),
        });
    }
}

struct LocalSettle {
    shared: Arc<Shared>,
    ticket: Ticket,
}

impl Settle for LocalSettle {
    fn settle(self: Box<Self>, fate: Fate<'_>) {
        self.shared.change(|budgets, now| match fate {
            Fate::Answered(observation) => budgets.observe(self.ticket, observation, now),
            Fate::Abandoned => budgets.abandon(self.ticket, now),
            Fate::NeverSent => budgets.cancel(self.ticket, now),
        });
    }
}
