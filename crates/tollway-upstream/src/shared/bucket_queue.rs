//! The claims of this process on one bucket: who waits, places in the store's queue, open permits.
//!
//! Requests that meet a sub-limit of their own have a queue of their own, and so have those that
//! the limit over all routes does not count.
//!
//! ```text
//!   waiters ──> fresh tickets ──claim──> granted ──> open permits ──> answer, or dropped
//!                                  └───> placed ──(woken, due)──claim──┘
//! ```
//!
//! There are as many tickets as waiters. A single task claims for all of them: what arrives while a
//! call is under way goes with the next, so a busy bucket costs one call for many claims. Without
//! a message the task claims again when the store said that it is worthwhile, and after a third of
//! a lease at the latest.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::Naming;
use super::claim_loop::{ClaimReply, drive};
use super::claim_queue::{ClaimQueue, ClaimResult, rank};
use super::costs;
use super::encoded_answer::EncodedAnswer;
use super::keys::Keys;
use super::ledger_state::LedgerState;
use super::token_batch::TokenBatch;
use crate::budget::{Claim, Reason, Refusal};
use crate::fair_queue::QueueKey;

/// The claims of this process on one bucket.
pub(super) struct BucketQueue {
    pub(super) bucket: Arc<str>,
    /// Method and template of its route, by which the upstream's names are known.
    pub(super) template: String,
    pub(super) keys: Keys,
    pub(super) quick_keys: Vec<String>,
    /// Tokens of the limits that the profile states for the bucket.
    pub(super) token_batches: Vec<TokenBatch>,
    state: Mutex<State>,
    wake_up: Notify,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) claims: ClaimQueue,
    /// Tickets that the store does not know yet.
    pub(super) fresh: VecDeque<String>,
    /// Tickets in the store's queue, in their order there.
    pub(super) placed: VecDeque<String>,
    /// Tickets of the call that is under way, and whether one of them was woken meanwhile: the
    /// message may overtake the answer on its way through this process.
    pub(super) asking: Vec<String>,
    was_woken: bool,
    /// Permits given out, and since when.
    pub(super) open: HashMap<String, Instant>,
    /// Answers being learned that give the bucket another name: whoever waits asks there in a
    /// moment, and is not refused for what the old name says.
    pub(super) moving: u32,
    /// When the placed tickets are worth another claim.
    pub(super) due: Option<Instant>,
    is_driven: bool,
    pub(super) used: Option<Instant>,
    /// The limit and the time to its reset, as an answer last told them.
    pub(super) told: Option<(u64, Duration)>,
    /// When the quickest way was last seen open, by a claim that looked at everything; none if it
    /// was not.
    pub(super) quick: Option<Instant>,
}

/// The most tickets in one call.
const CLAIM_MAX: usize = 128;
/// The least limit for which the quickest way is worth opening.
const QUICK_LIMIT_MIN: u64 = 64;
/// What the store waits for: see `scripts/bucket.lua`.
const FOR_HEADERS: i64 = 4;
const FOR_OTHERS: i64 = 5;

impl BucketQueue {
    pub(super) fn new(bucket: Arc<str>, template: String, keys: Keys, naming: Naming) -> Self {
        let quick_keys = keys.quick(naming);
        let (token_batches, state, wake_up) = (Vec::new(), Mutex::default(), Notify::new());
        Self { bucket, template, keys, quick_keys, token_batches, state, wake_up }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a claim.
    pub(super) fn join(
        self: &Arc<Self>,
        ledger: &Arc<LedgerState>,
        claim: &Claim,
        deadline: Option<Instant>,
    ) -> QueuedClaim {
        let (sender, result) = oneshot::channel();
        let mut state = self.state();
        let costs = costs::of_claim(claim, &ledger.profile);
        state.fresh.push_back(ledger.new_permit(rank(claim), &costs));
        let waiter = state.claims.join(claim, costs, sender, deadline);
        state.used = Some(Instant::now());
        if !std::mem::replace(&mut state.is_driven, true) {
            ledger.runtime.spawn(drive(Arc::clone(self), Arc::clone(ledger)));
        }
        drop(state);
        self.wake_up.notify_one();
        QueuedClaim {
            queue: Arc::clone(self),
            ledger: Arc::clone(ledger),
            waiter,
            result,
            is_over: false,
        }
    }

    /// Some of these tickets, which may be ours, are worth a claim after `wait`. Answers how many
    /// are known here.
    pub(super) fn woken(&self, tickets: &[&str], wait: Duration) -> usize {
        let mut state = self.state();
        // Thousands may wait: one pass over them, whatever the number of tickets.
        let woken: HashSet<&str> = tickets.iter().copied().collect();
        let asking = state.asking.iter().filter(|known| woken.contains(known.as_str())).count();
        let placed = state.placed.iter().filter(|known| woken.contains(known.as_str())).count();
        state.was_woken |= asking > 0;
        if placed > 0 {
            state.due = Some(Instant::now() + wait);
            drop(state);
            self.wake_up.notify_one();
        }
        asking + placed
    }

    /// Whether a ticket is one of ours.
    pub(super) fn knows(&self, ticket: &str) -> bool {
        let state = self.state();
        state.asking.iter().chain(&state.placed).any(|known| known == ticket)
    }

    /// Makes everybody claim again now.
    pub(super) fn claim_again(&self) {
        self.state().due = Some(Instant::now());
        self.wake_up.notify_one();
    }

    /// How long until another claim is worthwhile.
    pub(super) fn due_in(&self) -> Option<Duration> {
        self.state().due.map(|due| due.saturating_duration_since(Instant::now()))
    }

    /// Notes what an answer told, for estimates.
    pub(super) fn note(&self, encoded: &EncodedAnswer) {
        let window = u64::try_from(encoded.until_reset_ms).map(Duration::from_millis);
        if let (Ok(limit @ 1..), Ok(window)) = (u64::try_from(encoded.limit), window) {
            let mut state = self.state();
            let longest = state.told.map_or(window, |(_, known)| known.max(window));
            state.told = Some((limit, longest));
        }
    }

    /// Permits older than `age`, and tickets.
    pub(super) fn to_renew(&self, age: Duration) -> (Vec<String>, Vec<String>) {
        let state = self.state();
        let old = state.open.iter().filter(|(_, since)| since.elapsed() >= age / 2);
        (old.map(|(permit, _)| permit.clone()).collect(), state.placed.iter().cloned().collect())
    }

    /// Everybody asks again elsewhere; gives up the places in the store's queue.
    pub(super) fn dismiss(
        self: &Arc<Self>,
        ledger: &Arc<LedgerState>,
        say: impl Fn() -> ClaimResult,
    ) -> usize {
        let mut state = self.state();
        let count = state.claims.dismiss(say);
        state.fresh.clear();
        let placed: Vec<_> = state.placed.drain(..).collect();
        drop(state);
        self.give_up(ledger, placed);
        self.wake_up.notify_one();
        count
    }

    /// Gives up tickets. What a claim under way makes of them is settled when it is answered.
    pub(super) fn give_up(self: &Arc<Self>, ledger: &Arc<LedgerState>, tickets: Vec<String>) {
        if !tickets.is_empty() {
            let (queue, ledger) = (Arc::clone(self), Arc::clone(ledger));
            let runtime = ledger.runtime.clone();
            runtime.spawn(async move {
                ledger.leave(&queue, 0, "waiting", &tickets).await;
            });
        }
    }

    /// What to ask for now: tickets, and whether placed ones are among them. None if nobody waits.
    pub(super) fn next_call(&self) -> Option<Vec<String>> {
        let mut state = self.state();
        if state.claims.is_empty() {
            state.is_driven = false;
            return None;
        }
        let now = Instant::now();
        let mut asked = Vec::new();
        if state.due.is_some_and(|due| due <= now) {
            state.due = None;
            asked.extend(state.placed.iter().take(CLAIM_MAX).cloned());
        }
        let room = CLAIM_MAX - asked.len();
        let fresh = room.min(state.fresh.len());
        asked.extend(state.fresh.drain(..fresh));
        state.asking.clone_from(&asked);
        Some(asked)
    }

    /// Gives out what was granted. Answers the permits that nobody wants any more.
    pub(super) fn settle(
        &self,
        asked: Vec<String>,
        reply: &ClaimReply,
        beat: Duration,
    ) -> (Vec<String>, Vec<String>) {
        let mut state = self.state();
        state.asking.clear();
        let mut unwanted = Vec::new();
        for (ticket, granted) in asked.into_iter().zip(&reply.granted) {
            let place = state.placed.iter().position(|placed| *placed == ticket);
            match (granted, place) {
                (true, _) => {
                    if let Some(at) = place {
                        state.placed.remove(at);
                    }
                    if state.claims.grant(&ticket, reply.now_ms) {
                        state.open.insert(ticket, Instant::now());
                    } else {
                        unwanted.push(ticket);
                    }
                }
                (false, None) => state.placed.push_back(ticket),
                (false, Some(_)) => {}
            }
        }
        state.wait_or_refuse(reply, beat);
        (unwanted, state.drop_surplus())
    }

    /// Whether the last answer told of a limit for which the quickest way is worthwhile.
    pub(super) fn has_plenty(&self) -> bool {
        self.state().told.is_some_and(|(limit, _)| limit >= QUICK_LIMIT_MIN)
    }

    pub(super) async fn rest(&self) {
        let due = {
            let state = self.state();
            if !state.fresh.is_empty() || state.claims.is_empty() {
                return;
            }
            state.due
        };
        let wake_up = self.wake_up.notified();
        match due {
            Some(due) => {
                let _ = tokio::time::timeout_at(due, wake_up).await;
            }
            None => wake_up.await,
        }
    }
}

impl State {
    /// Drops tickets for which there is no waiter any more; answers those that the store knows.
    fn drop_surplus(&mut self) -> Vec<String> {
        if self.placed.len() + self.fresh.len() <= self.claims.len() {
            return Vec::new();
        }
        let over = self.claims.surplus(self.placed.iter().chain(&self.fresh));
        over.iter().filter_map(|costs| self.drop_one(costs)).collect()
    }

    /// Drops a ticket of a request that takes so much; answers it if the store knows it. The latest
    /// place is the least loss.
    fn drop_one(&mut self, costs: &str) -> Option<String> {
        let is_its = |ticket: &String| costs::of_permit(ticket) == costs;
        if let Some(at) = self.fresh.iter().rposition(is_its) {
            self.fresh.remove(at);
            return None;
        }
        self.placed.iter().rposition(is_its).and_then(|at| self.placed.remove(at))
    }

    /// Notes when to claim again, and refuses those who cannot wait that long.
    fn wait_or_refuse(&mut self, reply: &ClaimReply, beat: Duration) {
        if self.placed.is_empty() {
            return;
        }
        let now = Instant::now();
        let wait = if std::mem::take(&mut self.was_woken) { Duration::ZERO } else { reply.wait };
        // A message that came while this claim was under way, about tickets that it did not name,
        // has set an earlier time: overwritten, its tickets would sleep until the next beat.
        let next = now + wait.min(beat);
        self.due = Some(self.due.map_or(next, |due| due.min(next)));
        if self.moving > 0 {
            return;
        }
        let say = |wait| Refusal { reason: Reason::Patience, wait: Some(wait) };
        if reply.cause == FOR_HEADERS || reply.cause == FOR_OTHERS {
            // Nobody knows how long that takes; only those are refused who cannot wait at all.
            self.claims.refuse_impatient(Duration::ZERO, usize::MAX, Duration::ZERO, now, say);
            return;
        }
        let (limit, window) = self.told.unwrap_or((u64::MAX, Duration::ZERO));
        let per_window = usize::try_from(limit).unwrap_or(usize::MAX);
        self.claims.refuse_impatient(reply.wait, per_window, window, now, say);
    }
}

/// A claim that waits. Dropped, it leaves the queue.
pub(super) struct QueuedClaim {
    queue: Arc<BucketQueue>,
    ledger: Arc<LedgerState>,
    waiter: QueueKey,
    result: oneshot::Receiver<ClaimResult>,
    is_over: bool,
}

impl QueuedClaim {
    /// Waits until the claim is granted or refused.
    pub(super) async fn result(&mut self) -> ClaimResult {
        let result = (&mut self.result).await.unwrap_or(ClaimResult::AskAgain);
        self.is_over = true;
        result
    }
}

impl Drop for QueuedClaim {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        // The permit may have come between the last look and now: then it goes back unused.
        self.result.close();
        if let Ok(ClaimResult::Granted { permit, granted_ms }) = self.result.try_recv() {
            self.ledger.cancel(&self.queue, permit, granted_ms);
            return;
        }
        let surplus = {
            let mut state = self.queue.state();
            let costs = state.claims.leave(self.waiter);
            costs.and_then(|costs| state.drop_one(&costs))
        };
        self.queue.give_up(&self.ledger, surplus.into_iter().collect());
        self.queue.wake_up.notify_one();
    }
}
