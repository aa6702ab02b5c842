//! What one call holds of its budgets: reserved ahead, extended while an answer is streamed,
//! settled at what was used.
//!
//! ```text
//!  admit ─► reserve (expected) ─► extend, extend … ─► settle (told, or counted)
//!                                      └─ no room: the stream is ended, or goes into debt
//! ```
//!
//! At most one reservation is open at a time: an extension commits the one before it. So what a
//! proxy that dies has reserved comes back within one lease, and what it delivered stays paid.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tollway_core::{Charge, Cost, ErrorKind, Key, ReservationId, Settlement};

use crate::models::budgets::{Denial, ModelBudgets};
use crate::models::call::Call;
use crate::models::estimate::Expected;
use crate::models::rules::WhenSpent;
use crate::models::spending::Outcome;
use crate::models::usage::Usage;

/// A stream is extended by so much of what it used, and at least by [`STEP_MIN`].
const STEP_PART: u64 = 8;
const STEP_MIN: u64 = 16;
/// How long a settlement waits for a store that is away, and how often it asks.
const COMMIT_WITHIN: Duration = Duration::from_secs(60);
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// Settlements that wait for the store at once.
pub(crate) const LATE_MAX: usize = 16_384;

/// One budget of a call.
#[derive(Debug)]
pub(crate) struct Payer {
    /// Its place among the rules.
    pub(crate) rule: usize,
    /// Whose it is: the owner's names, one after the other.
    pub(crate) key: String,
    /// Units that are paid for good.
    committed: u64,
    /// Units of the open reservation.
    open: u64,
}

/// What a call holds.
pub(crate) struct Hold {
    budgets: Arc<ModelBudgets>,
    pub(crate) call: Call,
    /// By which the length of answers is learned.
    id: u64,
    pub(crate) expected: Expected,
    payers: Vec<Payer>,
    open: Option<ReservationId>,
    /// For which use everything is reserved.
    covered: Usage,
    /// Whether the provider may have the call.
    is_sent: bool,
}

impl Payer {
    pub(crate) const fn new(rule: usize, key: String) -> Self {
        Self { rule, key, committed: 0, open: 0 }
    }
}

impl Hold {
    pub(crate) const fn new(
        budgets: Arc<ModelBudgets>,
        call: Call,
        id: u64,
        expected: Expected,
        payers: Vec<Payer>,
    ) -> Self {
        let covered = Usage { input: 0, cached: 0, output: 0 };
        Self { budgets, call, id, expected, payers, open: None, covered, is_sent: false }
    }

    /// What is reserved, for an answer that does not say what it used.
    pub(crate) const fn reserved(&self) -> Usage {
        self.covered
    }

    /// Whether the provider has the call, or may have it.
    pub(crate) const fn sent(&mut self, is_sent: bool) {
        self.is_sent = is_sent;
    }

    pub(crate) fn payers(&self) -> &[Payer] {
        &self.payers
    }

    /// Reserves what `usage` needs beside what is held already, all or nothing.
    pub(crate) async fn reserve(&mut self, usage: Usage) -> Result<(), Denial> {
        let needed: Vec<u64> = self.payers.iter().map(|payer| self.needed(payer, usage)).collect();
        let budgets = Arc::clone(&self.budgets);
        let mut charged = Vec::new();
        let mut charges = Vec::new();
        for (index, (payer, units)) in self.payers.iter().zip(&needed).enumerate() {
            if let Some(charge) = budgets.charge(payer, *units) {
                charged.push(index);
                charges.push(charge);
            }
        }
        if charges.is_empty() {
            return Ok(());
        }
        let reserved = budgets.limiter.reserve(&charges).await.map_err(|_| Denial::store())?;
        let Some(reservation) = reserved.reservation else {
            let index = reserved.verdict.denied_by().unwrap_or_default();
            let rule = self.payers[charged.get(index).copied().unwrap_or_default()].rule;
            return Err(Denial::of(&budgets, rule, &reserved.verdict));
        };
        drop(charges);
        self.commit_open().await;
        self.open = Some(reservation.id);
        for index in charged {
            self.payers[index].open = needed[index];
        }
        self.covered = usage;
        Ok(())
    }

    /// Makes sure that `usage` is reserved before it is delivered. False if there is no room and
    /// the answer must end.
    pub(crate) async fn cover(&mut self, usage: Usage) -> bool {
        if self.is_covered(usage) {
            return true;
        }
        let left = self.call.cap.map_or(u64::MAX, |cap| cap.saturating_sub(usage.output));
        let step = (usage.output / STEP_PART).max(STEP_MIN).min(left);
        let ahead = Usage { output: usage.output.saturating_add(step), ..usage };
        if self.reserve(ahead).await.is_ok() || self.reserve(usage).await.is_ok() {
            return true;
        }
        // The budget that has no room says what becomes of the stream.
        self.payers.iter().all(|payer| {
            let rule = &self.budgets.rules.rules[payer.rule];
            rule.when_spent == WhenSpent::Debt
        })
    }

    const fn is_covered(&self, usage: Usage) -> bool {
        usage.output <= self.covered.output
            && usage.input <= self.covered.input
            && usage.cached <= self.covered.cached
    }

    /// What a payer lacks for `usage`.
    fn needed(&self, payer: &Payer, usage: Usage) -> u64 {
        let all = self.budgets.cost(payer.rule, usage, &self.call.model);
        all.saturating_sub(payer.committed.saturating_add(payer.open))
    }

    /// Pays for good what the open reservation has.
    async fn commit_open(&mut self) {
        let Some(id) = self.open.take() else { return };
        let settled = self.budgets.limiter.commit(id, &[]).await;
        for index in 0..self.payers.len() {
            let units = std::mem::take(&mut self.payers[index].open);
            // It expired while it was used: what was given back is taken again.
            if matches!(settled, Ok(Settlement::Unknown)) {
                self.budgets.take(&self.payers[index], units).await;
            }
            self.payers[index].committed += units;
        }
    }

    /// Pays what was used, and gives back the rest.
    pub(crate) async fn settle(mut self, usage: Usage, outcome: Outcome) {
        let owed: Vec<u64> = self
            .payers
            .iter()
            .map(|payer| self.budgets.cost(payer.rule, usage, &self.call.model))
            .collect();
        if let Some(id) = self.open.take() {
            let charged = self.payers.iter().zip(&owed).filter(|(payer, _)| payer.open > 0);
            let costs: Vec<u64> =
                charged.map(|(payer, owed)| owed.saturating_sub(payer.committed)).collect();
            if self.budgets.commit(id, &costs).await == Some(Settlement::Settled) {
                for (payer, owed) in self.payers.iter_mut().zip(&owed).filter(|(it, _)| it.open > 0)
                {
                    payer.committed = payer.committed.max(*owed);
                }
            }
        }
        for (payer, owed) in self.payers.iter().zip(&owed) {
            self.budgets.take(payer, owed.saturating_sub(payer.committed)).await;
            self.budgets.give_back(payer, payer.committed.saturating_sub(*owed)).await;
        }
        if outcome.teaches() {
            let input = usage.input + usage.cached;
            self.budgets.learn(self.id, self.call.input, input, usage.output);
        }
        let is_enough = self.expected.output.map(|expected| usage.output <= expected);
        self.budgets.spent(&self.payers, &self.call.model, usage, outcome, is_enough);
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let Some(id) = self.open.take() else { return };
        let runtime = tokio::runtime::Handle::try_current();
        let (true, Ok(runtime)) = (self.is_sent, runtime) else {
            self.budgets.limiter.release(id);
            return;
        };
        // Nobody waits for the answer any more; the provider has read the call all the same.
        let payers = std::mem::take(&mut self.payers);
        let (budgets, call) = (Arc::clone(&self.budgets), self.call.clone());
        let mut hold = Self::new(budgets, call, self.id, self.expected, payers);
        hold.open = Some(id);
        let usage = Usage { input: self.expected.input, cached: 0, output: 0 };
        runtime.spawn(hold.settle(usage, Outcome::Abandoned));
    }
}

impl ModelBudgets {
    /// The charge of `units` on a payer; none for none.
    pub(crate) fn charge<'a>(&'a self, payer: &'a Payer, units: u64) -> Option<Charge<'a>> {
        let policy = &self.rules.rules[payer.rule].policy;
        let key = Key::new(payer.key.as_bytes()).ok()?;
        Some(Charge::new(policy, key).cost(Cost::new(units)?))
    }

    /// Settles a reservation, however long the store is away: what it holds would be lacking until
    /// it expires. None if the store did not come back by then.
    async fn commit(&self, id: ReservationId, costs: &[u64]) -> Option<Settlement> {
        let mut is_lost = false;
        let mut pause = PAUSE_MIN;
        let until = Instant::now() + COMMIT_WITHIN;
        // Only so many wait for the store together; the others try once.
        let place = self.late.try_acquire();
        loop {
            match self.limiter.commit(id, costs).await {
                // The answer to an earlier try was lost, and this was it.
                Ok(Settlement::Unknown) if is_lost => return Some(Settlement::Settled),
                Ok(settled) => return Some(settled),
                Err(error) if !error.is_transient() => return None,
                Err(error) => is_lost |= error.kind() == ErrorKind::Unknown,
            }
            if place.is_err() || Instant::now() + pause > until {
                return None;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Takes what was used already, whether or not there is room.
    async fn take(&self, payer: &Payer, units: u64) {
        if let Some(charge) = self.charge(payer, units) {
            let _ = self.limiter.check(&[charge.counted()]).await;
        }
    }

    async fn give_back(&self, payer: &Payer, units: u64) {
        if let Some(charge) = self.charge(payer, units) {
            let _ = self.limiter.refund(&charge).await;
        }
    }
}
