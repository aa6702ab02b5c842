//! What nobody holds: a token bucket whose size and rate are what is left of the quota.

use super::{Divisible, Portion};
use crate::Timestamp;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Pool {
    burst: u64,
    fill: u64,
    /// One token in the unit of the level: a rate of one per interval gives it in as many
    /// nanoseconds as the interval has.
    token: i128,
    level: i128,
    at: Timestamp,
    held_tokens: u64,
    held_fill: u64,
}

impl Pool {
    /// Empty: what was there before `began` may have been given away.
    pub(super) fn new(terms: &Divisible, began: Timestamp) -> Self {
        Self {
            burst: u64::from(terms.whole().max_tokens),
            fill: u64::from(terms.whole().tokens_per_fill),
            token: i128::from(terms.interval_nanos()),
            level: 0,
            at: began,
            held_tokens: 0,
            held_fill: 0,
        }
    }

    pub(super) const fn held_tokens(&self) -> u64 {
        self.held_tokens
    }

    pub(super) const fn held_fill(&self) -> u64 {
        self.held_fill
    }

    /// Whole tokens that can be given now.
    pub(super) fn tokens(&self) -> u64 {
        let size = self.burst.saturating_sub(self.held_tokens);
        u64::try_from((self.level / self.token).max(0)).unwrap_or(u64::MAX).min(size)
    }

    /// The rate that nobody holds.
    pub(super) const fn free_fill(&self) -> u64 {
        self.fill.saturating_sub(self.held_fill)
    }

    pub(super) fn is_full(&self) -> bool {
        self.level >= self.size()
    }

    pub(super) fn advance(&mut self, now: Timestamp) {
        let nanos = i128::try_from(now.since(self.at).as_nanos()).unwrap_or(i128::MAX);
        let gained = i128::from(self.free_fill()).saturating_mul(nanos);
        self.level = self.level.saturating_add(gained).min(self.size());
        self.at = self.at.max(now);
    }

    /// What was held as `old` is held as `new` from now on. The level stays, unless the size is
    /// less: it was paid for, so that the level is never above the size.
    pub(super) fn replace(&mut self, old: Portion, new: Portion) {
        self.held_tokens = self.held_tokens + u64::from(new.max_tokens) - u64::from(old.max_tokens);
        self.held_fill =
            self.held_fill + u64::from(new.tokens_per_fill) - u64::from(old.tokens_per_fill);
        self.level = self.level.min(self.size());
    }

    /// Takes tokens, more than there are if need be: then nothing is given until they are back.
    pub(super) fn pay(&mut self, tokens: u64) {
        // A debt beyond a few bursts says nothing more, and would never be paid back.
        let floor = -2 * i128::from(self.burst) * self.token;
        let due = i128::from(tokens).saturating_mul(self.token);
        self.level = self.level.saturating_sub(due).max(floor);
    }

    fn size(&self) -> i128 {
        i128::from(self.burst.saturating_sub(self.held_tokens)) * self.token
    }
}
