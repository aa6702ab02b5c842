//! Usage of durable policies on a shared store: what was charged there is added to its book.
//!
//! ```text
//!   request -> UsageStore -> the store decides and takes
//!                 `- allowed: cost of each durable charge -> UsageBook -> answer
//!   reservation            kept with the window until it is settled; then its real cost -> book
//! ```
//!
//! An allowed charge is answered when the book has it, or after [`PATIENCE`]: the store has taken
//! the units by then, so what comes late is added late, and the request is not denied for it.
//! Which window a charge is of the decision says, not this process's clock: half a window lies
//! between the moment that is looked up and the next edge.
//!
//! Policies that are not durable pay for one look at each charge.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;
use tollway_core::fixed_window::Anchor;
use tollway_core::{
    Algorithm, Answer, Charge, Grant, OnExpiry, Outage, Policy, Reservation, ReservationId,
    Reserved, Settlement, Snapshot, Store, StoreError, Timestamp, Verdict,
};
use tollway_redis::{UsageBook, UsageChange, UsageRows, UsageWindow};
use tracing::warn;

use crate::durable::{Usage, UsagePage, UsageQuery};
use crate::top::{bytes_of_hex, hex};

/// How long an answer waits for the book.
const PATIENCE: Duration = Duration::from_secs(1);
/// How much longer than a reservation what is kept of it.
const MARGIN: Duration = Duration::from_secs(60);

/// A shared store, and what keys of durable policies used in it.
pub struct UsageStore {
    store: Arc<dyn Store>,
    book: Arc<UsageBook>,
    /// Whether a policy has been in force of which usage is kept: only then a settlement looks at
    /// what was reserved.
    is_used: AtomicBool,
    runtime: Handle,
}

/// One charge of a durable policy.
struct Counted {
    policy: Policy,
    key: Vec<u8>,
    cost: u64,
    /// Its number in the request.
    number: usize,
}

/// What a reservation took of one charge.
#[derive(Serialize, Deserialize)]
struct Held {
    policy: String,
    key: String,
    number: usize,
    /// Units reserved, and whether they were added then.
    cost: u64,
    added: bool,
    /// Start, end, and how long it is kept.
    window: [u64; 3],
}

impl Counted {
    /// The charges whose usage is kept.
    fn of(charges: &[Charge<'_>]) -> Vec<Self> {
        let is_counted = |(_, charge): &(usize, &Charge<'_>)| has_usage(charge.policy);
        let counted = |(number, charge): (usize, &Charge<'_>)| Self {
            policy: charge.policy.clone(),
            key: charge.key.as_bytes().to_vec(),
            cost: charge.cost.get(),
            number,
        };
        charges.iter().enumerate().filter(is_counted).map(counted).collect()
    }

    /// A change of what was used in the window that was decided about.
    fn change(
        &self,
        told: Snapshot,
        now: Timestamp,
        (taken, given_back): (u64, u64),
    ) -> UsageChange {
        let window = window_of(&self.policy, told, now);
        UsageChange { window, key: self.key.clone(), taken, given_back }
    }
}

/// Whether usage under the policy is kept on a shared store.
pub(crate) fn has_usage(policy: &Policy) -> bool {
    policy.is_durable()
        && match policy.algorithm() {
            Algorithm::FixedWindow(window) => window.anchor() == Anchor::Epoch,
            Algorithm::CalendarWindow(_) => true,
            _ => false,
        }
}

/// The window that was decided about: it ends when there are more units again.
fn window_of(policy: &Policy, told: Snapshot, now: Timestamp) -> UsageWindow {
    let (start, end) = match policy.algorithm() {
        Algorithm::CalendarWindow(window) => {
            let calendar = window.calendar();
            let inside = inside(told, now, calendar.unit().about());
            let window = calendar.window_at(inside);
            (window.start, window.end)
        }
        algorithm => {
            let period = algorithm.window().map_or(Duration::ZERO, |(_, period)| period);
            let nanos = u64::try_from(period.as_nanos()).unwrap_or(u64::MAX).max(1);
            let inside = inside(told, now, period).as_nanos();
            let start = Timestamp::from_nanos(inside - inside % nanos);
            (start, start.after(period))
        }
    };
    let kept_until = end.after(policy.durable_for().unwrap_or_default());
    UsageWindow { policy: policy.name().to_owned(), start, end, kept_until }
}

/// A moment in the middle of a window of about this length.
fn inside(told: Snapshot, now: Timestamp, length: Duration) -> Timestamp {
    let left = told.next_after();
    if left.is_zero() {
        return now;
    }
    let half = (length / 2).as_nanos() as u64;
    Timestamp::from_nanos(now.after(left).as_nanos().saturating_sub(half))
}

impl UsageStore {
    /// `store`, whose usage is kept in `book`.
    pub fn new(store: Arc<dyn Store>, book: UsageBook) -> Self {
        Self {
            store,
            book: Arc::new(book),
            is_used: AtomicBool::new(false),
            runtime: Handle::current(),
        }
    }

    /// The book.
    pub(crate) fn book(&self) -> &UsageBook {
        &self.book
    }

    /// A page of what keys used: by window, then by key.
    pub(crate) async fn usage(&self, query: UsageQuery) -> Result<UsagePage, StoreError> {
        let after = query.after.as_deref().and_then(|after| after.rsplit_once('/'));
        let after = after.and_then(|(window, key)| Some((window.to_owned(), bytes_of_hex(key)?)));
        let most = query.most + 1;
        let UsageQuery { policy, key, from, until, .. } = query;
        let asked = UsageRows { policy, key, from, until, after, most };
        let mut rows = self.book.rows(&asked).await?;
        let goes_on = rows.len() == most;
        rows.truncate(query.most);
        let last = rows.last().filter(|_| goes_on);
        let after = last.map(|row| format!("{}/{}", row.window, hex(&row.key)));
        let rows = rows.into_iter().map(|row| Usage {
            key: row.key,
            start: row.start,
            end: row.end,
            units: row.units,
        });
        Ok(UsagePage { rows: rows.collect(), after })
    }
}

/// Adds to the book, and waits for that a while.
async fn added(book: &UsageBook, changes: Vec<UsageChange>) {
    if changes.is_empty() {
        return;
    }
    match book.add(changes) {
        // Late, it is told by a metric; nobody is to wait for that.
        Some(done) => drop(tokio::time::timeout(PATIENCE, done).await),
        None => warn!("usage was lost: too much waits for the store"),
    }
}

impl Store for UsageStore {
    fn check(&self, charges: &[Charge<'_>], now: Timestamp) -> Answer<Verdict> {
        let answer = self.store.check(charges, now);
        let counted = Counted::of(charges);
        if counted.is_empty() {
            return answer;
        }
        let book = Arc::clone(&self.book);
        Answer::pending(async move {
            let verdict = answer.await?;
            if verdict.is_allowed() && !verdict.is_degraded() {
                let told = |of: &Counted| verdict.decisions().get(of.number).copied();
                let change =
                    |of: &Counted| Some(of.change(told(of)?.snapshot(), now, (of.cost, 0)));
                added(&book, counted.iter().filter_map(change).collect()).await;
            }
            Ok(verdict)
        })
    }

    fn admit(&self, charge: &Charge<'_>, now: Timestamp) -> Option<Answer<Verdict>> {
        match has_usage(charge.policy) {
            true => Some(self.check(std::slice::from_ref(charge), now)),
            false => self.store.admit(charge, now),
        }
    }

    fn peek(&self, charges: &[Charge<'_>], now: Timestamp) -> Answer<Verdict> {
        self.store.peek(charges, now)
    }

    fn take(&self, charge: &Charge<'_>, now: Timestamp) -> Answer<Grant> {
        let answer = self.store.take(charge, now);
        let Some(counted) = Counted::of(std::slice::from_ref(charge)).pop() else { return answer };
        let book = Arc::clone(&self.book);
        Answer::pending(async move {
            let grant = answer.await?;
            if grant.granted > 0 && grant.store_failure.is_none() {
                let told = grant.decision.snapshot();
                added(&book, vec![counted.change(told, now, (grant.granted, 0))]).await;
            }
            Ok(grant)
        })
    }

    fn refund(&self, charge: &Charge<'_>, now: Timestamp) -> Answer<Snapshot> {
        let answer = self.store.refund(charge, now);
        let Some(counted) = Counted::of(std::slice::from_ref(charge)).pop() else { return answer };
        let book = Arc::clone(&self.book);
        Answer::pending(async move {
            let told = answer.await?;
            added(&book, vec![counted.change(told, now, (0, counted.cost))]).await;
            Ok(told)
        })
    }

    fn reset(&self, charge: &Charge<'_>, now: Timestamp) -> Answer<()> {
        self.store.reset(charge, now)
    }

    fn reserve(&self, charges: &[Charge<'_>], now: Timestamp) -> Answer<Reserved> {
        let answer = self.store.reserve(charges, now);
        let counted = Counted::of(charges);
        if counted.is_empty() {
            return answer;
        }
        let book = Arc::clone(&self.book);
        Answer::pending(async move {
            let reserved = answer.await?;
            if let Some(reservation) = reserved.reservation
                && !reserved.verdict.is_degraded()
            {
                hold(&book, &counted, (&reserved.verdict, reservation), now).await;
            }
            Ok(reserved)
        })
    }

    fn commit(&self, id: ReservationId, costs: &[u64], now: Timestamp) -> Answer<Settlement> {
        let answer = self.store.commit(id, costs, now);
        self.settled(answer, id, Some(costs.to_vec()))
    }

    fn cancel(&self, id: ReservationId, now: Timestamp) -> Answer<Settlement> {
        let answer = self.store.cancel(id, now);
        self.settled(answer, id, None)
    }

    fn release(&self, id: ReservationId, now: Timestamp) {
        if !self.is_used.load(Ordering::Relaxed) {
            return self.store.release(id, now);
        }
        // Of a policy with usage only those that were added at once have anything to take back,
        // and whether there are any only the book knows.
        let answer = self.cancel(id, now);
        self.runtime.spawn(async move { drop(answer.await) });
    }

    fn outage(&self) -> Option<Outage> {
        self.store.outage()
    }

    fn windows_by_other_rules(&self) -> u64 {
        self.store.windows_by_other_rules()
    }

    fn renew(&self, policies: &[&Policy], now: Timestamp) {
        if policies.iter().any(|policy| has_usage(policy)) {
            self.is_used.store(true, Ordering::Relaxed);
        }
        self.store.renew(policies, now);
    }
}

impl UsageStore {
    /// Adds what a reservation really cost once it is settled; nothing, if it is cancelled.
    fn settled(
        &self,
        answer: Answer<Settlement>,
        id: ReservationId,
        costs: Option<Vec<u64>>,
    ) -> Answer<Settlement> {
        if !self.is_used.load(Ordering::Relaxed) {
            return answer;
        }
        let book = Arc::clone(&self.book);
        Answer::pending(async move {
            let settlement = answer.await?;
            if settlement == Settlement::Settled {
                settle(&book, id, costs).await;
            }
            Ok(settlement)
        })
    }
}

/// Keeps what was reserved. Units that come back if nobody settles are added when somebody does.
async fn hold(
    book: &UsageBook,
    counted: &[Counted],
    (verdict, reservation): (&Verdict, Reservation),
    now: Timestamp,
) {
    let (mut held, mut changes) = (Vec::new(), Vec::new());
    for of in counted {
        let Some(decision) = verdict.decisions().get(of.number) else { continue };
        let is_kept = of.policy.reservation_terms().on_expiry == OnExpiry::Keep;
        let change = of.change(decision.snapshot(), now, (of.cost, 0));
        let UsageWindow { policy, start, end, kept_until } = &change.window;
        held.push(Held {
            policy: policy.clone(),
            key: hex(&of.key),
            number: of.number,
            cost: of.cost,
            added: is_kept,
            window: [start, end, kept_until].map(|at| at.as_nanos()),
        });
        changes.extend(is_kept.then_some(change));
    }
    let told = serde_json::to_vec(&held).unwrap_or_default();
    let time = reservation.expires_after.saturating_add(MARGIN);
    if let Err(reason) = book.hold(reservation.id.0, &told, time).await {
        warn!(%reason, "a reservation cannot be noted: its usage is not corrected");
    }
    added(book, changes).await;
}

async fn settle(book: &UsageBook, id: ReservationId, costs: Option<Vec<u64>>) {
    let held = match book.held(id.0).await {
        Ok(Some(held)) => held,
        Ok(None) => return,
        Err(reason) => {
            warn!(%reason, "a reservation cannot be read: its usage is not corrected");
            return;
        }
    };
    let held: Vec<Held> = serde_json::from_slice(&held).unwrap_or_default();
    let change = |held: Held| {
        let cost =
            costs.as_ref().map_or(0, |costs| costs.get(held.number).copied().unwrap_or(held.cost));
        let before = if held.added { held.cost } else { 0 };
        let [start, end, kept_until] = held.window.map(Timestamp::from_nanos);
        Some(UsageChange {
            window: UsageWindow { policy: held.policy, start, end, kept_until },
            key: bytes_of_hex(&held.key)?,
            taken: cost.saturating_sub(before),
            given_back: before.saturating_sub(cost),
        })
    };
    let is_none = |change: &UsageChange| change.taken == 0 && change.given_back == 0;
    let changes = held.into_iter().filter_map(change).filter(|change| !is_none(change));
    added(book, changes.collect()).await;
    // What is left of it expires; it is asked for by nobody.
    drop(book.forget(id.0).await);
}

impl std::fmt::Debug for UsageStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UsageStore").field("book", &self.book).finish_non_exhaustive()
    }
}
