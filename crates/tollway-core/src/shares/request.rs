//! Requests in which some charges are to trees of owners: what is asked of which bucket, and who
//! lends.

use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use super::{Role, SharedPart};
use crate::algorithm::Algorithm;
use crate::charge::{Charge, Key, Mode};
use crate::decision::{Decision, Retry, Snapshot, Verdict};
use crate::requests::Held;
use crate::{Cost, State, Timestamp};

/// A request with each charge to a tree as charges to the buckets on its path, for stores: they
/// find and lock the states of [`Self::charges`], and let [`Self::decide`] do the rest.
pub struct Expanded<'a> {
    charges: Vec<Charge<'a>>,
    /// What each is beside that, if it is one to a tree.
    shared: Vec<Option<SharedPart>>,
    /// For each charge of the request, where its parts stand.
    parts: Vec<Range<usize>>,
}

/// What becomes of one part if the request is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Take {
    /// Somebody above it lends.
    Nothing,
    /// The units are there.
    Units,
    /// The units are taken whether or not they are there.
    Counted,
}

/// What a request comes to, before anything is taken.
struct LendingPlan {
    takes: Vec<Take>,
    /// When each part that denies is worth another try.
    retries: Vec<Option<Retry>>,
}

impl<'a> Expanded<'a> {
    /// Whether a request has charges to trees at all.
    pub fn is_needed(charges: &[Charge<'_>]) -> bool {
        charges.iter().any(|charge| charge.policy.shares().is_some())
    }

    /// The request with every charge to a tree in parts.
    pub fn of(charges: &[Charge<'a>]) -> Self {
        let mut all = Self { charges: Vec::new(), shared: Vec::new(), parts: Vec::new() };
        for charge in charges {
            let first = all.charges.len();
            match charge.policy.shares() {
                None => all.push(*charge, None),
                Some(shares) => {
                    // A policy's name is a key: it is as short, and not empty.
                    let key = Key::new(shares.key.as_bytes()).unwrap_or(charge.key);
                    for link in shares.path(charge.key) {
                        let bucket = &shares.buckets[link.bucket];
                        let part = Charge { policy: &bucket.policy, key, ..*charge };
                        all.push(part, Some(SharedPart { role: link.role, owner: bucket.owner }));
                    }
                }
            }
            all.parts.push(first..all.charges.len());
        }
        all
    }

    /// The request that was made of these parts, for stores that keep them: each with the number of
    /// the charge that it belongs to, in the order in which [`Self::of`] made them.
    pub fn of_parts(
        parts: impl IntoIterator<Item = (usize, Charge<'a>, Option<SharedPart>)>,
    ) -> Self {
        let mut all = Self { charges: Vec::new(), shared: Vec::new(), parts: Vec::new() };
        for (charge, part, shared) in parts {
            let next = all.charges.len();
            match all.parts.get_mut(charge) {
                Some(range) => range.end = next + 1,
                None => all.parts.push(next..next + 1),
            }
            all.push(part, shared);
        }
        all
    }

    fn push(&mut self, charge: Charge<'a>, shared: Option<SharedPart>) {
        self.charges.push(charge);
        self.shared.push(shared);
    }

    /// What a part is beside a charge, if it is one to a tree.
    pub fn shared_part(&self, part: usize) -> Option<SharedPart> {
        self.shared[part]
    }

    /// The parts: plain charges, whose states the other calls are about.
    pub fn charges(&self) -> &[Charge<'a>] {
        &self.charges
    }

    /// Where the parts of one charge of the request stand.
    pub fn parts_of(&self, charge: usize) -> Range<usize> {
        self.parts[charge].clone()
    }

    /// Which charge of the request a part belongs to.
    pub fn charge_of(&self, part: usize) -> usize {
        self.parts.partition_point(|parts| parts.end <= part)
    }

    /// Answers the request: every charge is taken, or none. For `slots` and `states` of the parts
    /// see [`decide_all`](crate::decide_all).
    ///
    /// # Panics
    ///
    /// As [`decide_all`](crate::decide_all).
    pub fn decide(
        &self,
        slots: &[usize],
        states: &mut [State],
        hold_id: u128,
        now: Timestamp,
    ) -> Verdict {
        let plan = self.plan(slots, states, now);
        if plan.retries.iter().any(Option::is_some) {
            return self.answer(&plan, slots, states, now);
        }
        let take = |charge| {
            self.take(self.parts_of(charge), &plan, slots, states, hold_id, now);
            Decision::Allow(self.report(charge, slots, states, now))
        };
        Verdict::new((0..self.parts.len()).map(take).collect())
    }

    /// What [`Self::decide`] would answer, with nothing taken.
    ///
    /// # Panics
    ///
    /// As [`Self::decide`].
    pub fn peek(&self, slots: &[usize], states: &[State], now: Timestamp) -> Verdict {
        self.answer(&self.plan(slots, states, now), slots, states, now)
    }

    /// What each part takes if the request is allowed, given the `states` before it: nothing where
    /// somebody above lends.
    ///
    /// # Panics
    ///
    /// As [`Self::decide`].
    pub fn held(&self, slots: &[usize], states: &[State], id: u128, now: Timestamp) -> Vec<Held> {
        let mut all = Held::by_all(&self.charges, slots, states, id, now);
        for (held, take) in all.iter_mut().zip(self.plan(slots, states, now).takes) {
            if take == Take::Nothing {
                held.taken = 0;
            }
        }
        all
    }

    /// What there is to report about one charge of the request: about all of its buckets together.
    ///
    /// # Panics
    ///
    /// As [`Self::decide`].
    pub fn report(
        &self,
        charge: usize,
        slots: &[usize],
        states: &[State],
        now: Timestamp,
    ) -> Snapshot {
        let range = self.parts_of(charge);
        let path = Path { request: self, range: range.clone(), slots, states, now };
        if self.shared[range.start].is_none() {
            return path.peek(range.start);
        }
        let (limit, remaining) = (path.most(|part| path.algorithm(part).limit()), path.remaining());
        let reset_after_ns = range.map(|part| path.peek(part).reset_after_ns).max().unwrap_or(0);
        let next = Cost::new(remaining.saturating_add(1)).filter(|_| remaining < limit);
        let next_after_ns = next.map_or(0, |cost| path.soonest_ns(cost));
        Snapshot::of(limit, remaining, reset_after_ns, next_after_ns)
    }

    /// The verdict that a plan makes, with the owner whose floor or ceiling denied.
    fn answer(
        &self,
        plan: &LendingPlan,
        slots: &[usize],
        states: &[State],
        now: Timestamp,
    ) -> Verdict {
        let denying =
            |charge: usize| self.parts_of(charge).find(|part| plan.retries[*part].is_some());
        let decision = |charge| {
            let snapshot = self.report(charge, slots, states, now);
            match denying(charge).and_then(|part| plan.retries[part]) {
                None => Decision::Allow(snapshot),
                Some(retry) => Decision::Deny { snapshot, retry },
            }
        };
        let verdict = Verdict::new((0..self.parts.len()).map(decision).collect());
        let part = verdict.denied_by().and_then(denying);
        match part.and_then(|part| self.shared[part]?.owner) {
            Some(owner) => verdict.denied_by_owner_numbered(owner),
            None => verdict,
        }
    }

    fn take(
        &self,
        parts: Range<usize>,
        plan: &LendingPlan,
        slots: &[usize],
        states: &mut [State],
        hold_id: u128,
        now: Timestamp,
    ) {
        for part in parts {
            let mode = match plan.takes[part] {
                Take::Nothing => continue,
                Take::Units => Mode::Enforce,
                Take::Counted => Mode::Count,
            };
            let charge = Charge { mode, ..self.charges[part] };
            let _ = states[slots[part]].charge(&charge, hold_id, now);
        }
    }

    fn plan(&self, slots: &[usize], states: &[State], now: Timestamp) -> LendingPlan {
        let parts = self.charges.len();
        let mut plan = LendingPlan { takes: vec![Take::Units; parts], retries: vec![None; parts] };
        for range in self.parts.iter().cloned() {
            let path = Path { request: self, range, slots, states, now };
            match self.shared[path.range.start] {
                None => path.plan_plain(&mut plan),
                Some(_) => path.plan_shared(&mut plan),
            }
        }
        plan
    }
}

/// The buckets of one charge, from the owner's to the root's, with their states.
struct Path<'p, 'a> {
    request: &'p Expanded<'a>,
    range: Range<usize>,
    slots: &'p [usize],
    states: &'p [State],
    now: Timestamp,
}

impl Path<'_, '_> {
    fn plan_plain(&self, plan: &mut LendingPlan) {
        let part = self.range.start;
        if self.is_counted() {
            plan.takes[part] = Take::Counted;
        } else {
            plan.retries[part] = self.wait(part, self.cost_on_top(plan, part, 0));
        }
    }

    /// A counted charge goes to whoever lends as well; if nobody does, all have to give.
    fn plan_shared(&self, plan: &mut LendingPlan) {
        let (lender, wait) = self.lender(plan);
        if wait.is_some() && self.is_counted() {
            return plan.takes[self.range.clone()].fill(Take::Counted);
        }
        for part in self.skipped(lender) {
            plan.takes[part] = Take::Nothing;
        }
        if let Some((part, retry)) = wait {
            plan.retries[part] = Some(retry);
        }
    }

    fn is_counted(&self) -> bool {
        self.request.charges[self.range.start].mode == Mode::Count
    }

    /// Who lends, and if nobody does: who comes nearest to it, and the part that makes him wait
    /// longest.
    fn lender(&self, plan: &LendingPlan) -> (usize, Option<(usize, Retry)>) {
        let mut nearest: Option<(usize, (usize, Retry))> = None;
        for lender in self.lenders() {
            let cost = |part| self.cost_on_top(plan, part, self.kept(part, lender));
            let Some(wait) = self.longest(lender, cost) else { return (lender, None) };
            if nearest.is_none_or(|(_, (_, soonest))| wait.1 < soonest) {
                nearest = Some((lender, wait));
            }
        }
        // There is always the root.
        nearest.map_or((self.range.end - 1, None), |(lender, wait)| (lender, Some(wait)))
    }

    fn lenders(&self) -> impl Iterator<Item = usize> + '_ {
        let is_lender = |part: &usize| matches!(self.role(*part), Some(Role::Lender { .. }));
        self.range.clone().filter(is_lender)
    }

    fn role(&self, part: usize) -> Option<Role> {
        self.request.shared[part].map(|shared| shared.role)
    }

    /// The floors below the lender: they are not asked.
    fn skipped(&self, lender: usize) -> impl Iterator<Item = usize> + '_ {
        self.lenders().take_while(move |part| *part < lender)
    }

    fn asked(&self, lender: usize) -> impl Iterator<Item = usize> + '_ {
        let is_skipped =
            move |part| part < lender && matches!(self.role(part), Some(Role::Lender { .. }));
        self.range.clone().filter(move |part| !is_skipped(*part))
    }

    /// What must be left in a bucket after the charge if this one lends.
    fn kept(&self, part: usize, lender: usize) -> u64 {
        match self.role(part) {
            Some(Role::Lender { keeps }) if part == lender => keeps,
            Some(Role::Ceiling { keeps }) if part < lender => keeps,
            _ => 0,
        }
    }

    /// The cost of a part, what the request takes from the same state before it, and what is to be
    /// left after it.
    fn cost_on_top(&self, plan: &LendingPlan, part: usize, kept: u64) -> Cost {
        let charges = &self.request.charges;
        let before = (0..part).filter(|earlier| {
            self.slots[*earlier] == self.slots[part] && plan.takes[*earlier] != Take::Nothing
        });
        let units =
            before.fold(kept, |sum, earlier| sum.saturating_add(charges[earlier].cost.get()));
        Cost::new(units).map_or(charges[part].cost, |more| more.saturating_add(charges[part].cost))
    }

    fn algorithm(&self, part: usize) -> &Algorithm {
        self.request.charges[part].policy.algorithm()
    }

    fn wait(&self, part: usize, cost: Cost) -> Option<Retry> {
        self.states[self.slots[part]].retry(self.algorithm(part), cost, self.now)
    }

    fn peek(&self, part: usize) -> Snapshot {
        self.states[self.slots[part]].peek(self.algorithm(part), self.now)
    }

    /// The part that waits longest for what it is asked if this one lends, if one does.
    fn longest(&self, lender: usize, cost: impl Fn(usize) -> Cost) -> Option<(usize, Retry)> {
        let waits =
            self.asked(lender).filter_map(|part| Some((part, self.wait(part, cost(part))?)));
        waits.reduce(|longest, other| if other.1 > longest.1 { other } else { longest })
    }

    /// How long until so many units could be taken.
    fn soonest_ns(&self, cost: Cost) -> u64 {
        let waits = self.lenders().map(|lender| {
            let beyond = |part| {
                Cost::new(self.kept(part, lender)).map_or(cost, |kept| cost.saturating_add(kept))
            };
            match self.longest(lender, beyond) {
                None => 0,
                Some((_, Retry::After(wait))) => crate::time::saturating_nanos(wait),
                Some((_, Retry::Never)) => u64::MAX,
            }
        });
        waits.min().unwrap_or(0)
    }

    fn remaining(&self) -> u64 {
        self.most(|part| self.peek(part).remaining())
    }

    /// The most that one charge could have if each bucket had so much.
    fn most(&self, has: impl Fn(usize) -> u64) -> u64 {
        let by_lender = self.lenders().map(|lender| {
            let left = |part| has(part).saturating_sub(self.kept(part, lender));
            self.asked(lender).map(left).min().unwrap_or(0)
        });
        by_lender.max().unwrap_or(0)
    }
}
