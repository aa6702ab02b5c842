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

use tollway_core::{Charge, Cost, Key, ReservationId, Settlement};

use crate::models::budgets::{Denial, ModelBudgets};
use crate::models::call::Call;
use crate::models::estimate::Expected;
use crate::models::rules::WhenSpent;
use crate::models::spending::Outcome;
use crate::models::usage::Usage;

/// A stream is extended by so much of what it used, and at least by [`STEP_MIN`].
const STEP_PART: u64 = 8;
const STEP_MIN: u64 = 16;

/// One budget of a call.
#[derive(Debug)]
pub(crate) struct Line {
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
    lines: Vec<Line>,
    open: Option<ReservationId>,
    /// For which use everything is reserved.
    covered: Usage,
    /// Whether the provider may have the call.
    is_sent: bool,
}

impl Line {
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
        lines: Vec<Line>,
    ) -> Self {
        let covered = Usage { input: 0, cached: 0, output: 0 };
        Self { budgets, call, id, expected, lines, open: None, covered, is_sent: false }
    }

    /// What is reserved, for an answer that does not say what it used.
    pub(crate) const fn reserved(&self) -> Usage {
        self.covered
    }

    /// Whether the provider has the call, or may have it.
    pub(crate) const fn sent(&mut self, is_sent: bool) {
        self.is_sent = is_sent;
    }

    pub(crate) fn lines(&self) -> &[Line] {
        &self.lines
    }

    /// Reserves what `usage` needs beside what is held already, all or nothing.
    pub(crate) async fn reserve(&mut self, usage: Usage) -> Result<(), Denial> {
        let needed: Vec<u64> = self.lines.iter().map(|line| self.needed(line, usage)).collect();
        let budgets = Arc::clone(&self.budgets);
        let mut charged = Vec::new();
        let mut charges = Vec::new();
        for (index, (line, units)) in self.lines.iter().zip(&needed).enumerate() {
            if let Some(charge) = budgets.charge(line, *units) {
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
            let rule = self.lines[charged.get(index).copied().unwrap_or_default()].rule;
            return Err(Denial::of(&budgets, rule, &reserved.verdict));
        };
        drop(charges);
        self.commit_open().await;
        self.open = Some(reservation.id);
        for index in charged {
            self.lines[index].open = needed[index];
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
        self.lines.iter().all(|line| {
            let rule = &self.budgets.rules.rules[line.rule];
            rule.when_spent == WhenSpent::Debt
        })
    }

    const fn is_covered(&self, usage: Usage) -> bool {
        usage.output <= self.covered.output
            && usage.input <= self.covered.input
            && usage.cached <= self.covered.cached
    }

    /// What a line lacks for `usage`.
    fn needed(&self, line: &Line, usage: Usage) -> u64 {
        let all = self.budgets.cost(line.rule, usage, &self.call.model);
        all.saturating_sub(line.committed.saturating_add(line.open))
    }

    /// Pays for good what the open reservation has.
    async fn commit_open(&mut self) {
        let Some(id) = self.open.take() else { return };
        let settled = self.budgets.limiter.commit(id, &[]).await;
        for index in 0..self.lines.len() {
            let units = std::mem::take(&mut self.lines[index].open);
            // It expired while it was used: what was given back is taken again.
            if matches!(settled, Ok(Settlement::Unknown)) {
                self.budgets.take(&self.lines[index], units).await;
            }
            self.lines[index].committed += units;
        }
    }

    /// Pays what was used, and gives back the rest.
    pub(crate) async fn settle(mut self, usage: Usage, outcome: Outcome) {
        let owed: Vec<u64> = self
            .lines
            .iter()
            .map(|line| self.budgets.cost(line.rule, usage, &self.call.model))
            .collect();
        if let Some(id) = self.open.take() {
            let charged = self.lines.iter().zip(&owed).filter(|(line, _)| line.open > 0);
            let costs: Vec<u64> =
                charged.map(|(line, owed)| owed.saturating_sub(line.committed)).collect();
            let settled = self.budgets.limiter.commit(id, &costs).await;
            if matches!(settled, Ok(Settlement::Settled)) {
                for (line, owed) in self.lines.iter_mut().zip(&owed).filter(|(it, _)| it.open > 0) {
                    line.committed = line.committed.max(*owed);
                }
            }
        }
        for (line, owed) in self.lines.iter().zip(&owed) {
            self.budgets.take(line, owed.saturating_sub(line.committed)).await;
            self.budgets.give_back(line, line.committed.saturating_sub(*owed)).await;
        }
        if outcome.teaches() {
            let input = usage.input + usage.cached;
            self.budgets.learn(self.id, self.call.input, input, usage.output);
        }
        let is_enough = self.expected.output.map(|expected| usage.output <= expected);
        self.budgets.spent(&self.lines, &self.call.model, usage, outcome, is_enough);
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
        let lines = std::mem::take(&mut self.lines);
        let (budgets, call) = (Arc::clone(&self.budgets), self.call.clone());
        let mut hold = Self::new(budgets, call, self.id, self.expected, lines);
        hold.open = Some(id);
        let usage = Usage { input: self.expected.input, cached: 0, output: 0 };
        runtime.spawn(hold.settle(usage, Outcome::Abandoned));
    }
}

impl ModelBudgets {
    /// The charge of `units` on a line; none for none.
    pub(crate) fn charge<'a>(&'a self, line: &'a Line, units: u64) -> Option<Charge<'a>> {
        let policy = &self.rules.rules[line.rule].policy;
        let key = Key::new(line.key.as_bytes()).ok()?;
        Some(Charge::new(policy, key).cost(Cost::new(units)?))
    }

    /// Takes what was used already, whether or not there is room.
    async fn take(&self, line: &Line, units: u64) {
        if let Some(charge) = self.charge(line, units) {
            let _ = self.limiter.check(&[charge.counted()]).await;
        }
    }

    async fn give_back(&self, line: &Line, units: u64) {
        if let Some(charge) = self.charge(line, units) {
            let _ = self.limiter.refund(&charge).await;
        }
    }
}
