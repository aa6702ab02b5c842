//! Division: one quota divided among holders that admit by themselves, never more than it in sum.
//!
//! A holder (a stream of Envoy, a node of a fleet) has a token bucket of its own, a *portion* of
//! the quota. What nobody holds is the *pool*, a token bucket, too. A portion counts in full for as
//! long as it may be in force: from when it is sent until a smaller one is acknowledged, or until
//! it has surely expired. What becomes free raises the size and the rate of the pool and not what
//! is in it, and whatever is given is paid from what is in it:
//!
//! ```text
//!   pool   |######......|   level <= size = burst - held sizes, refills at rate - held rates
//!   shrink a by 4:  sent ---- acknowledged: pool's size +4, level +0, rate + what a lost
//!   grow b by 4:    pool's level -4 when sent (a new bucket starts full: it costs its whole size)
//!   renew a:        the same portion again. The lifetime counts from the receipt of the last one:
//!
//!   sent        renewed   close by   first expiry
//!   |-----------|---------|----------|      a renewal that is received after the first expiry
//!   0           1/3       2/3        1      would be a new, full bucket
//! ```
//!
//! **Invariant.** The tokens that all holders can have and the pool's never exceed the burst, and
//! grow at most at the rate: so in no interval of length `t` more than `burst + rate * t` is
//! admitted, whatever order holders come, go and die in. It holds if what is sent arrives within a
//! third of the lifetime or never, and if a holder that stands still across its expiry admits
//! nothing when it wakes.
//!
//! Who gets how much is by demand, max-min: nobody gets more while somebody who wants less than an
//! equal part lacks it. A 64th of the rate and a 16th of the burst stay in the pool for newcomers.
//!
//! Rejected: a portion that is freed with its tokens (they may have been spent a moment before);
//! reports as acknowledgements (they cross the assignment on its way).

mod divisible;
mod plan;
mod pool;

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::time::Duration;

use crate::Timestamp;
use pool::Pool;

pub use divisible::{Divisible, DivisibleError};

/// How long a holder may want nothing until its bucket is abandoned.
const IDLE_AFTER: Duration = Duration::from_secs(300);
/// The least time between two changes of a holder's portion: each loses part of a token.
const CHANGED_AFTER: Duration = Duration::from_secs(1);
/// When to look again while somebody waits for the pool.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(250);
/// A rate moves once its tokens of so long are in the pool, or all of its size: a quota whose burst
/// takes minutes to refill would stand still for minutes after each shift. A bucket that holds less
/// could not use its rate when requests come in clusters.
const MOVED_AFTER_MS: u64 = 500;
/// What a holder may admit by its old bucket while it replaces it.
const REPLACED_WITHIN_MICROS: u64 = 500;
/// More portions of those who left are kept as one that lasts as long as the longest.
const LEFT_MAX: usize = 1_024;

/// A token bucket that is a part of the quota. Without a size nothing is admitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Portion {
    /// The size.
    pub max_tokens: u32,
    /// What it refills within [`Divisible::fill_interval`].
    pub tokens_per_fill: u32,
}

impl Portion {
    /// Nothing.
    pub const NONE: Self = Self { max_tokens: 0, tokens_per_fill: 0 };

    fn larger(self, other: Self) -> Self {
        Self {
            max_tokens: self.max_tokens.max(other.max_tokens),
            tokens_per_fill: self.tokens_per_fill.max(other.tokens_per_fill),
        }
    }
}

/// What a holder is to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// This is your portion from now on.
    Assign(Portion),
    /// Forget this bucket.
    Abandon,
    /// It did not acknowledge in time: end its connection, then call [`Division::leave`].
    Close,
}

/// An order for one holder, to be acknowledged by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Instruction {
    /// Who is told.
    pub holder: u64,
    /// The number for [`Division::acknowledge`].
    pub number: u64,
    /// What.
    pub order: Order,
}

/// One quota and who holds what of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Division {
    terms: Divisible,
    pool: Pool,
    holders: BTreeMap<u64, Holder>,
    left: Vec<Left>,
    numbers: u64,
    is_planned: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Holder {
    in_force: Option<InForce>,
    sent: Option<Sent>,
    target: Portion,
    /// Tokens wanted within [`Divisible::fill_interval`]; `None` until it is known.
    demand: Option<u64>,
    reported_at: Timestamp,
    wanted_at: Timestamp,
    changed_at: Timestamp,
}

/// What a holder acknowledged last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct InForce {
    portion: Portion,
    sent_at: Timestamp,
    acknowledged_at: Timestamp,
}

/// What a holder was told and has not acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Sent {
    order: Order,
    number: u64,
    at: Timestamp,
    /// Whether a new, full bucket is paid for.
    is_paid_whole: bool,
}

/// What a holder that left may still use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Left {
    portion: Portion,
    until: Timestamp,
}

impl Holder {
    fn new(now: Timestamp) -> Self {
        Self {
            in_force: None,
            sent: None,
            target: Portion::NONE,
            demand: None,
            reported_at: now,
            wanted_at: now,
            changed_at: Timestamp::MIN,
        }
    }

    fn current(&self) -> Portion {
        self.in_force.map_or(Portion::NONE, |in_force| in_force.portion)
    }

    /// What may be in force: what was acknowledged, or what was sent since.
    fn held(&self) -> Portion {
        match self.sent {
            Some(Sent { order: Order::Assign(portion), .. }) => self.current().larger(portion),
            _ => self.current(),
        }
    }

    fn is_abandoned(&self) -> bool {
        self.sent.is_some_and(|sent| sent.order == Order::Abandon)
    }
}

impl Division {
    /// A quota of a service that began at `began`. What an earlier life of the service gave away
    /// may be in force for one lifetime from then.
    pub fn new(terms: Divisible, began: Timestamp) -> Self {
        let mut division = Self {
            pool: Pool::new(&terms, began),
            holders: BTreeMap::new(),
            left: Vec::new(),
            numbers: 0,
            is_planned: true,
            terms,
        };
        let until = began.after(division.terms.gone_after());
        division.add_left(Left { portion: division.terms.whole(), until });
        division
    }

    /// What is divided.
    pub const fn terms(&self) -> &Divisible {
        &self.terms
    }

    /// Who holds something, or waits for it, and what.
    pub fn holders(&self) -> impl Iterator<Item = (u64, Portion)> + '_ {
        self.holders.iter().map(|(id, holder)| (*id, holder.current()))
    }

    /// What may be in force now, of holders and of those that left.
    pub fn held(&self) -> (u64, u64) {
        (self.pool.held_tokens(), self.pool.held_fill())
    }

    /// Whether nothing is held and the pool is full: a new division would be the same.
    pub fn is_idle(&mut self, now: Timestamp) -> bool {
        self.advance(now);
        self.holders.is_empty() && self.left.is_empty() && self.pool.is_full()
    }

    /// A holder says how many requests it had since it last said so. The first time it joins.
    pub fn report(&mut self, holder: u64, requests: u64, now: Timestamp) {
        self.advance(now);
        let interval = u128::from(self.terms.interval_nanos());
        let Some(known) = self.holders.get_mut(&holder) else {
            self.holders.insert(holder, Holder::new(now));
            self.is_planned = false;
            return;
        };
        // On its way here while the order to forget the bucket was on its way there.
        if known.is_abandoned() {
            return;
        }
        // A holder's own measure of time is not believed; less than a second tells too little.
        let elapsed = now.since(known.reported_at).max(Duration::from_secs(1)).as_nanos();
        let demand = u128::from(requests) * interval / elapsed;
        let demand = u64::try_from(demand).unwrap_or(u64::MAX);
        let old = known.demand.replace(demand);
        known.reported_at = now;
        if requests > 0 {
            known.wanted_at = now;
        }
        self.is_planned &= old == Some(demand);
    }

    /// A holder says that it obeys the order of this number and all before.
    pub fn acknowledge(&mut self, holder: u64, number: u64, now: Timestamp) {
        self.advance(now);
        let Some(known) = self.holders.get_mut(&holder) else { return };
        let Some(sent) = known.sent.filter(|sent| sent.number == number) else { return };
        let (held, in_force) = (known.held(), known.in_force);
        known.sent = None;
        if let Order::Assign(portion) = sent.order {
            known.in_force = Some(InForce { portion, sent_at: sent.at, acknowledged_at: now });
            self.pool.replace(held, portion);
            self.pay_for_late(in_force, sent, now);
        } else {
            self.holders.remove(&holder);
            self.pool.replace(held, Portion::NONE);
            self.is_planned = false;
        }
    }

    /// A holder's connection is gone. What it may still have is held until it has expired.
    pub fn leave(&mut self, holder: u64, now: Timestamp) {
        self.advance(now);
        let Some(known) = self.holders.remove(&holder) else { return };
        let held = known.held();
        self.pool.replace(held, Portion::NONE);
        self.is_planned = false;
        let mut last = known.in_force.map_or(Timestamp::MIN, |in_force| in_force.acknowledged_at);
        if let Some(sent) = known.sent {
            last = now;
            self.pay_for_late(known.in_force, sent, now);
        }
        let until = last.after(self.terms.gone_after());
        if until > now {
            self.add_left(Left { portion: held, until });
        }
    }

    /// Says what is to be sent now. To be called after everything that happens, and at
    /// [`Self::wake_at`].
    pub fn instruct(&mut self, now: Timestamp, instructions: &mut Vec<Instruction>) {
        self.advance(now);
        if !self.is_planned {
            self.plan();
        }
        let is_short = self.is_short();
        // Whoever wants most of what he lacks is first, and the oldest of equals.
        let mut order: Vec<_> = self
            .holders
            .iter()
            .map(|(id, holder)| {
                let lacks =
                    holder.target.tokens_per_fill.saturating_sub(holder.held().tokens_per_fill);
                (core::cmp::Reverse(lacks), *id)
            })
            .collect();
        order.sort_unstable();
        for (_, id) in order {
            let Some(holder) = self.holders.get(&id) else { continue };
            let Some(order) = self.next_order(holder, is_short, now) else { continue };
            self.send(id, order, now, instructions);
        }
    }

    /// When there will be something to do, if nothing happens before.
    pub fn wake_at(&self, now: Timestamp) -> Timestamp {
        let of_holder = |holder: &Holder| match (holder.sent, holder.in_force) {
            (Some(sent), _) => sent.at.after(self.terms.patience()),
            (None, Some(in_force)) => {
                let idle_at = holder.wanted_at.after(IDLE_AFTER);
                in_force.sent_at.after(self.terms.renewed_after()).min(idle_at)
            }
            (None, None) => Timestamp::MAX,
        };
        let holders = self.holders.values().map(of_holder);
        let left = self.left.iter().map(|left| left.until);
        let waiting = self.is_short().then(|| now.after(LOOK_AGAIN_AFTER));
        let at = holders.chain(left).chain(waiting).min().unwrap_or(Timestamp::MAX);
        at.max(now.after(Duration::from_millis(1)))
    }

    fn send(&mut self, id: u64, order: Order, now: Timestamp, instructions: &mut Vec<Instruction>) {
        let Some(holder) = self.holders.get_mut(&id) else { return };
        self.numbers += 1;
        let number = self.numbers;
        instructions.push(Instruction { holder: id, number, order });
        if order == Order::Close {
            return;
        }
        let (held, current) = (holder.held(), holder.current());
        let is_paid_whole = current.max_tokens == 0 || is_late(&self.terms, holder, now);
        holder.sent = Some(Sent { order, number, at: now, is_paid_whole });
        let Order::Assign(portion) = order else { return };
        if is_paid_whole {
            self.pool.pay(u64::from(portion.max_tokens));
        } else if portion != current {
            let grown = portion.max_tokens.saturating_sub(current.max_tokens);
            let race = holder.demand.unwrap_or(0).saturating_mul(REPLACED_WITHIN_MICROS)
                / (self.terms.interval_nanos() / 1_000);
            self.pool.pay(u64::from(grown).saturating_add(race));
        }
        if portion != current {
            holder.changed_at = now;
        }
        let now_held = holder.held();
        self.pool.replace(held, now_held);
    }

    /// What is received after the last portion has expired becomes a new, full bucket.
    fn pay_for_late(&mut self, in_force: Option<InForce>, sent: Sent, now: Timestamp) {
        let (Some(in_force), Order::Assign(portion)) = (in_force, sent.order) else { return };
        let has_expired = now > in_force.sent_at.after(self.terms.lifetime());
        if has_expired && !sent.is_paid_whole {
            self.pool.pay(u64::from(portion.max_tokens));
        }
    }

    fn add_left(&mut self, left: Left) {
        if left.portion == Portion::NONE {
            return;
        }
        self.pool.replace(Portion::NONE, left.portion);
        if self.left.len() < LEFT_MAX {
            self.left.push(left);
            return;
        }
        let Some(last) = self.left.last_mut() else { return };
        last.portion.max_tokens += left.portion.max_tokens;
        last.portion.tokens_per_fill += left.portion.tokens_per_fill;
        last.until = last.until.max(left.until);
    }

    /// Lets time pass: what those who left had becomes free one after the other.
    fn advance(&mut self, now: Timestamp) {
        loop {
            let expired = self.left.iter().enumerate().min_by_key(|(_, left)| left.until);
            let Some((index, left)) = expired.filter(|(_, left)| left.until <= now) else { break };
            let Left { portion, until } = *left;
            self.pool.advance(until);
            self.pool.replace(portion, Portion::NONE);
            self.left.swap_remove(index);
            self.is_planned = false;
        }
        self.pool.advance(now);
    }
}

/// Whether what is sent now may be received when the last portion has expired.
fn is_late(terms: &Divisible, holder: &Holder, now: Timestamp) -> bool {
    let Some(in_force) = holder.in_force else { return false };
    now.after(terms.patience()) > in_force.sent_at.after(terms.lifetime())
}

#[cfg(test)]
mod tests;
