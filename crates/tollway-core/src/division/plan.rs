//! Who is to have how much, and what to say next to each.

use alloc::vec::Vec;
use core::cmp::Reverse;

use super::{CHANGED_AFTER, Division, Holder, IDLE_AFTER, MOVED_AFTER_MS, Order, Portion, is_late};
use crate::Timestamp;

impl Division {
    /// Sets the targets: max-min by demand, and what nobody wants in equal parts on top.
    pub(super) fn plan(&mut self) {
        self.is_planned = true;
        let supply = self.supply();
        let (tokens, fill) = (u64::from(supply.max_tokens), u64::from(supply.tokens_per_fill));
        for holder in self.holders.values_mut() {
            holder.target = Portion::NONE;
        }
        let mut wants = self.wants(fill);
        // A portion has at least one token, so there are at most as many as there are tokens.
        if wants.len() as u64 > tokens {
            let has = |id: &u64| self.holders.get(id).is_some_and(|it| it.current().max_tokens > 0);
            wants.sort_by_key(|(id, want)| (Reverse(*want), Reverse(has(id)), *id));
            wants.truncate(usize::try_from(tokens).unwrap_or(usize::MAX));
        }
        let count = wants.len() as u64;
        if count == 0 || fill == 0 {
            return;
        }
        wants.sort_by_key(|(id, want)| (*want, *id));
        let mut rest = fill;
        for (index, (_, want)) in wants.iter_mut().enumerate() {
            *want = (*want).min(rest / (count - index as u64));
            rest -= *want;
        }
        for (id, want) in wants {
            let part = want + rest / count;
            let more = u128::from(tokens - count) * u128::from(part) / u128::from(fill);
            let Some(holder) = self.holders.get_mut(&id).filter(|_| part > 0) else { continue };
            // Neither can be more than the quota's own, which have 32 bits.
            holder.target = Portion {
                max_tokens: u32::try_from(1 + more).unwrap_or(u32::MAX),
                tokens_per_fill: u32::try_from(part).unwrap_or(u32::MAX),
            };
        }
    }

    /// What each holder wants, with some room to want more.
    fn wants(&self, fill: u64) -> Vec<(u64, u64)> {
        let count = self.holders.len().max(1) as u64;
        let least = fill / (128 * count);
        let want = |holder: &Holder| match holder.demand {
            Some(demand) => demand.saturating_add(demand / 16).max(least),
            None => fill / (8 * count),
        };
        let wants = self.holders.iter().filter(|(_, holder)| !holder.is_abandoned());
        wants.map(|(id, holder)| (*id, want(holder))).collect()
    }

    /// The quota without what those who left may still use, and without the reserve.
    fn supply(&self) -> Portion {
        let (whole, reserve) = (self.terms.whole(), self.terms.reserve());
        let left = self.left.iter().fold((0, 0), |(tokens, fill), left| {
            (tokens + left.portion.max_tokens, fill + left.portion.tokens_per_fill)
        });
        Portion {
            max_tokens: (whole.max_tokens - reserve.max_tokens).saturating_sub(left.0),
            tokens_per_fill: (whole.tokens_per_fill - reserve.tokens_per_fill)
                .saturating_sub(left.1),
        }
    }

    /// Whether somebody lacks much of what is meant for it.
    pub(super) fn is_short(&self) -> bool {
        self.holders.values().any(|holder| !holder.is_abandoned() && lacks(holder))
    }

    /// What to tell a holder now, if anything.
    pub(super) fn next_order(
        &self,
        holder: &Holder,
        is_short: bool,
        now: Timestamp,
    ) -> Option<Order> {
        if let Some(sent) = holder.sent {
            return (now >= sent.at.after(self.terms.patience())).then_some(Order::Close);
        }
        let Some(in_force) = holder.in_force else { return self.first_order(holder) };
        if now >= holder.wanted_at.after(IDLE_AFTER) {
            return Some(Order::Abandon);
        }
        let current = in_force.portion;
        if current.max_tokens > 0 && is_late(&self.terms, holder, now) {
            return Some(Order::Assign(self.affordable(holder.target, self.pool.tokens())));
        }
        let is_settled = now >= holder.changed_at.after(CHANGED_AFTER);
        let change = match current.max_tokens {
            _ if !is_settled => None,
            0 => Some(self.affordable(holder.target, self.available_tokens())),
            _ if is_short && exceeds(current, holder.target) => Some(Portion {
                max_tokens: current.max_tokens.min(holder.target.max_tokens),
                tokens_per_fill: current.tokens_per_fill.min(holder.target.tokens_per_fill),
            }),
            _ if lacks(holder) => self.grown(current, holder.target),
            _ => None,
        };
        let is_due = now >= in_force.sent_at.after(self.terms.renewed_after());
        match change.filter(|portion| *portion != current) {
            Some(Portion { max_tokens: 0, .. }) => Some(Order::Assign(Portion::NONE)),
            Some(portion) => Some(Order::Assign(portion)),
            None => is_due.then_some(Order::Assign(current)),
        }
    }

    /// A newcomer shares what is there with whoever comes next. While everything may be in the
    /// hands of those who left it is told nothing: it may be one of them, and lose what it has.
    fn first_order(&self, holder: &Holder) -> Option<Order> {
        if self.supply().max_tokens == 0 {
            return None;
        }
        let tokens = self.pool.tokens();
        let tokens = if self.holders.len() == 1 { tokens } else { tokens.div_ceil(2) };
        Some(Order::Assign(self.affordable(holder.target, tokens)))
    }

    /// As much of the target as `tokens` pay for in a new bucket.
    fn affordable(&self, target: Portion, tokens: u64) -> Portion {
        let max_tokens = at_most(target.max_tokens, tokens);
        let mut tokens_per_fill = at_most(target.tokens_per_fill, self.available_fill());
        if max_tokens < target.max_tokens {
            let usable = u64::from(max_tokens) * self.interval_millis() / MOVED_AFTER_MS;
            tokens_per_fill = at_most(tokens_per_fill, usable);
        }
        if max_tokens == 0 || tokens_per_fill == 0 {
            return Portion::NONE;
        }
        Portion { max_tokens, tokens_per_fill }
    }

    /// A larger portion, if enough is there to be worth the change.
    fn grown(&self, current: Portion, target: Portion) -> Option<Portion> {
        let lacks_tokens = target.max_tokens.saturating_sub(current.max_tokens);
        let lacks_fill = target.tokens_per_fill.saturating_sub(current.tokens_per_fill);
        let tokens = at_most(lacks_tokens, self.available_tokens());
        let fill = at_most(lacks_fill, self.available_fill());
        let moved = u64::from(fill) * MOVED_AFTER_MS / self.interval_millis();
        let is_paid = u64::from(tokens) >= u64::from(lacks_tokens).min(moved.max(1));
        let moves_fill = fill > 0 && is_paid && fill >= lacks_fill / 4;
        let moves_tokens = tokens > 0 && tokens >= lacks_tokens / 4;
        (moves_fill || moves_tokens).then(|| Portion {
            max_tokens: current.max_tokens + tokens,
            tokens_per_fill: current.tokens_per_fill + if moves_fill { fill } else { 0 },
        })
    }

    fn interval_millis(&self) -> u64 {
        self.terms.interval_nanos() / 1_000_000
    }

    /// What those may take who have something: half of the reserve stays for newcomers.
    fn available_tokens(&self) -> u64 {
        self.pool.tokens().saturating_sub(u64::from(self.terms.reserve().max_tokens / 2))
    }

    fn available_fill(&self) -> u64 {
        self.pool.free_fill().saturating_sub(u64::from(self.terms.reserve().tokens_per_fill / 2))
    }
}

/// Whether so much is missing that a change is worth it.
fn lacks(holder: &Holder) -> bool {
    let (held, target) = (holder.held(), holder.target);
    target.tokens_per_fill > held.tokens_per_fill.saturating_add(held.tokens_per_fill / 64)
        || target.max_tokens > held.max_tokens.saturating_add(held.max_tokens / 8)
}

/// Whether there is so much more than the target that others miss it. What all keep beyond their
/// targets is at most half of the reserve, so whoever lacks something gets it in the end.
fn exceeds(current: Portion, target: Portion) -> bool {
    current.tokens_per_fill > target.tokens_per_fill + current.tokens_per_fill / 128
        || current.max_tokens > target.max_tokens + current.max_tokens / 64
}

fn at_most(wanted: u32, available: u64) -> u32 {
    u32::try_from(available).map_or(wanted, |available| wanted.min(available))
}
