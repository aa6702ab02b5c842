//! The exact oracle: naive, slow, in arbitrary precision, and obviously right.
//!
//! Every algorithm is modelled from what was taken, in integers and fractions without bounds, and
//! answers one question: how many units would be free at a given moment if nobody asked any more?
//! Everything else follows from that by definition, for all algorithms alike:
//!
//! ```text
//!   free units                 ┌───────
//!              ┌───────────────┘
//!        ──────┘
//!        now   ^ next_after    ^ retry of what costs as much     ... reset_after: as good as new
//! ```
//!
//! A wait is the first moment at which the question has the wanted answer, found by bisection; no
//! formula of the core's is repeated here. Several charges on one key need the sum of their costs.
//!
//! Who comes late (the time of his operation is before that of an earlier one) is answered as of
//! the last moment up to which the key's model has been brought; a bucket that fills continuously
//! has no such moment. A wait that is told to him counts from his own time.
//!
//! A key that is asked under newer numbers of the same family is carried over (`change.rs`): what
//! was used is counted in fractions, and rounded once. Who asks under older ones is decided by
//! those that the key is kept under, unless it is as good as new.
//!
//! Deliberately absent: speed, and a clock that is set back.

mod bound;
mod calendar_window;
mod change;
mod concurrency;
mod fixed_window;
mod gcra;
mod history;
mod leaky_bucket;
mod shares;
mod sliding_window;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use num_bigint::BigInt;
use tollway_core::{Algorithm, Mode, OnExpiry, Policy, Settlement, Timestamp};

pub use bound::bound;
pub use history::{Kind, Mix, history, judge};

use crate::conformance::{
    Ask, Capabilities, Failure, Figures, Operation, Outcome, Subject, Verb, Wait,
};

/// A key under a policy, modelled from what was taken.
trait Model {
    /// Units that would be free for somebody with the reading `at` if nobody asked meanwhile.
    fn free(&self, at: &BigInt) -> BigInt;

    /// Whether nothing that was taken counts at `at` any more.
    fn is_new(&self, at: &BigInt) -> bool;

    /// Takes `units` under the name `hold`, free or not; how many whole units that were.
    fn take(&mut self, units: &BigInt, hold: u64, at: &BigInt) -> BigInt;

    /// Gives `units` back that were taken at `taken_at`, or whenever.
    fn give_back(&mut self, units: &BigInt, taken_at: Option<&BigInt>, at: &BigInt);

    /// Forgets what was taken, as of `at` and not as of before.
    fn clear(&mut self, at: &BigInt);

    /// The moment as of which somebody with the reading `at` is answered.
    fn moment(&self, at: &BigInt) -> BigInt;

    /// What it leaves behind when its numbers change.
    fn remains(&self, at: &BigInt) -> change::Remains;

    /// The most that is ever free, if the algorithm does not say so.
    fn limit(&self) -> Option<u64> {
        None
    }

    /// Brings what is held under the name `hold` from what was `reserved` to what it `real`ly cost,
    /// if this model knows how: whether it does.
    fn settle(&mut self, _hold: u64, _reserved: &BigInt, _real: &BigInt, _at: &BigInt) -> bool {
        false
    }
}

/// The address of a model: the family of the policy, and the key.
type Address = (u64, Vec<u8>);

/// A model, and the policy by whose numbers it is kept.
struct KeyModel {
    model: Box<dyn Model>,
    policy: Arc<Policy>,
}

/// Models of every key that was asked about, and what is reserved.
#[derive(Default)]
pub struct Oracle {
    keys: BTreeMap<Address, KeyModel>,
    /// Of policies whose keys are owners in a tree.
    trees: BTreeMap<u64, Arc<Mutex<shares::Tree>>>,
    /// The numbers that were asked under, in order of their first use.
    seen: Vec<u64>,
    open: Vec<Open>,
    /// What each ask of the last request took, and as of when.
    taken: Vec<(BigInt, BigInt)>,
    operations: u64,
    now: BigInt,
}

/// A reservation that is not settled yet.
struct Open {
    label: String,
    asks: Vec<Ask>,
    /// What each took, and as of when.
    taken: Vec<(BigInt, BigInt)>,
    hold: u64,
    expires_at: BigInt,
}

impl Open {
    /// Leaves out permits that end by themselves, with their lease, and not with the reservation.
    fn leave_leases(&mut self) {
        let ttl = self.asks.iter().map(|ask| ask.policy().reservation_terms().ttl).min();
        let ends = |ask: &Ask| match ask.policy().algorithm() {
            Algorithm::Concurrency(limit) => Some(limit.lease()) <= ttl,
            _ => false,
        };
        let parts = self.asks.drain(..).zip(self.taken.drain(..));
        let parts: Vec<_> = parts.filter(|(ask, _)| !ends(ask)).collect();
        (self.asks, self.taken) = parts.into_iter().unzip();
    }
}

impl Oracle {
    /// An oracle that has seen nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// The model as it is kept, under whatever numbers.
    fn model(&mut self, ask: &Ask) -> &mut dyn Model {
        &mut *self.kept(ask).model
    }

    fn kept(&mut self, ask: &Ask) -> &mut KeyModel {
        let policy = ask.policy();
        let Self { keys, trees, .. } = self;
        let fresh = || {
            let model: Box<dyn Model> = match policy.shares() {
                None => model(policy.algorithm()),
                Some(owners) => {
                    let tree = trees.entry(policy.id());
                    let tree = tree.or_insert_with(|| shares::Tree::new(owners));
                    Box::new(shares::Member::new(tree, ask.key()))
                }
            };
            KeyModel { model, policy: Arc::clone(policy) }
        };
        keys.entry(address(ask)).or_insert_with(fresh)
    }

    /// Carries the models of what is asked to the numbers that it is asked under; what was kept
    /// before.
    fn carry(&mut self, asks: &[Ask]) -> Vec<(Address, KeyModel)> {
        let now = self.now.clone();
        let mut before = Vec::new();
        for ask in asks {
            let (kept, new) = (self.kept(ask), ask.policy());
            if kept.policy.id() == new.id() {
                continue;
            }
            let (old, model) = (kept.policy.algorithm(), &*kept.model);
            let rule = new.change_rule();
            let model = change::carried(model, old, new.algorithm(), rule, &now);
            let policy = Arc::clone(new);
            before.push((address(ask), std::mem::replace(kept, KeyModel { model, policy })));
        }
        before
    }

    /// The ask as it is decided: by the numbers that its key is kept under, if they are newer.
    fn in_force(&mut self, ask: &Ask) -> Ask {
        let place = |seen: &[u64], policy: &Policy| seen.iter().position(|id| *id == policy.id());
        let (own, now) = (place(&self.seen, ask.policy()), self.now.clone());
        let (kept, is_new) = {
            let kept = self.kept(ask);
            (Arc::clone(&kept.policy), kept.model.is_new(&now))
        };
        let is_newer = own.is_some_and(|own| place(&self.seen, &kept).is_some_and(|it| own < it));
        if is_newer && !is_new {
            ask.under(Arc::new(ask.policy().with_numbers(*kept.algorithm())))
        } else {
            ask.clone()
        }
    }

    /// Notes that these numbers are in use.
    fn see(&mut self, asks: &[Ask]) {
        for id in asks.iter().map(|ask| ask.policy().id()) {
            if !self.seen.contains(&id) {
                self.seen.push(id);
            }
        }
    }

    /// Comes to `at`, or back to it: reservations that expire until then do so.
    fn pass(&mut self, at: BigInt) {
        self.now = at.clone();
        self.open.sort_by(|a, b| a.expires_at.cmp(&b.expires_at));
        let expired = self.open.partition_point(|open| open.expires_at <= at);
        for mut open in self.open.drain(..expired).collect::<Vec<_>>() {
            open.leave_leases();
            let kept = |_, ask: &Ask| match ask.policy().reservation_terms().on_expiry {
                OnExpiry::Return => BigInt::ZERO,
                OnExpiry::Keep => units(ask),
            };
            self.settle(&open, kept);
        }
    }

    /// What a request for `asks` would come to: how long each must wait, if at all.
    fn judge(&mut self, asks: &[Ask]) -> Vec<Wait> {
        let judge = |(index, ask): (usize, &Ask)| {
            let earlier = asks[..=index].iter().filter(|other| same_key(other, ask));
            let needed: BigInt = earlier.map(units).sum();
            if ask.mode() == Mode::Count { Wait::No } else { self.wait(ask, &needed) }
        };
        asks.iter().enumerate().map(judge).collect()
    }

    /// How long until `needed` units are free.
    fn wait(&mut self, ask: &Ask, needed: &BigInt) -> Wait {
        let now = self.now.clone();
        let model = self.model(ask);
        if *needed > BigInt::from(limit(model, ask)) {
            return Wait::Never;
        }
        if model.free(&now) >= *needed {
            return Wait::No;
        }
        Wait::After(first(&now, |at| model.free(at) >= *needed))
    }

    /// What there is to say about the ask's key as it is.
    fn figures(&mut self, ask: &Ask, retry: Option<Wait>) -> Figures {
        let now = self.now.clone();
        let model = self.model(ask);
        let limit = limit(model, ask);
        let free = model.free(&now);
        let all = free == BigInt::from(limit);
        Figures {
            limit: Some(limit),
            remaining: u64::try_from(&free).ok(),
            retry,
            reset_after: Some(first(&now, |at| model.is_new(at))),
            next_after: Some(if all {
                Duration::ZERO
            } else {
                first(&now, |at| model.free(at) > free)
            }),
        }
    }

    /// Takes every ask if all are allowed; the figures show each key after its ask was taken.
    fn check(&mut self, asks: &[Ask]) -> Outcome {
        let waits = self.judge(asks);
        if waits.iter().any(|wait| *wait != Wait::No) {
            return self.peek(asks);
        }
        let (hold, now) = (self.operations, self.now.clone());
        self.taken.clear();
        let take = |ask: &Ask| {
            let model = self.model(ask);
            let as_of = model.moment(&now);
            let taken = model.take(&units(ask), hold, &now);
            self.taken.push((taken, as_of));
            self.figures(ask, Some(Wait::No))
        };
        let figures = asks.iter().map(take).collect();
        Outcome { allowed: Some(true), figures, ..Outcome::default() }
    }

    /// What a check would answer; the figures show every key untouched.
    fn peek(&mut self, asks: &[Ask]) -> Outcome {
        let waits = self.judge(asks);
        let longest = waits.iter().map(rank).max().filter(|rank| *rank > rank_of_no());
        let denier = longest.and_then(|longest| waits.iter().position(|w| rank(w) == longest));
        let figures = asks.iter().zip(&waits).map(|(ask, wait)| self.figures(ask, Some(*wait)));
        Outcome {
            figures: figures.collect(),
            allowed: Some(denier.is_none()),
            denied_by: denier.map(|index| asks[index].policy().name().to_owned()),
            ..Outcome::default()
        }
    }

    /// Takes what is free of what is asked; if nothing is, says when one unit will be.
    fn take(&mut self, ask: &Ask) -> Outcome {
        let now = self.now.clone();
        let free = u64::try_from(self.model(ask).free(&now)).unwrap_or(u64::MAX);
        let affordable = free.min(ask.cost().get());
        let cost = tollway_core::Cost::new(affordable).unwrap_or(tollway_core::Cost::ONE);
        let outcome = self.check(&[ask.at_cost(cost)]);
        let granted = if outcome.allowed == Some(true) { cost.get() } else { 0 };
        Outcome { granted: Some(granted), ..outcome }
    }

    fn reserve(&mut self, label: &str, asks: &[Ask]) -> Outcome {
        let outcome = self.check(asks);
        let ttls = asks.iter().map(|ask| ask.policy().reservation_terms().ttl);
        let Some(ttl) = ttls.min().filter(|_| outcome.allowed == Some(true)) else {
            return outcome;
        };
        self.open.push(Open {
            label: label.to_owned(),
            asks: asks.to_vec(),
            taken: self.taken.clone(),
            hold: self.operations,
            expires_at: &self.now + BigInt::from(ttl.as_nanos()),
        });
        Outcome { expires_after: Some(ttl), ..outcome }
    }

    fn close(&mut self, label: &str, real: impl Fn(usize, &Ask) -> BigInt) -> Outcome {
        let Some(index) = self.open.iter().position(|open| open.label == label) else {
            return Outcome::of_settlement(Settlement::Unknown);
        };
        let open = self.open.remove(index);
        self.settle(&open, real);
        Outcome::of_settlement(Settlement::Settled)
    }

    /// Brings every part of a reservation from what was reserved to what it really cost.
    fn settle(&mut self, open: &Open, real: impl Fn(usize, &Ask) -> BigInt) {
        let now = self.now.clone();
        for (index, ask) in open.asks.iter().enumerate() {
            let (reserved, real) = (units(ask), real(index, ask));
            let kept = self.kept(ask);
            if kept.policy.id() != ask.policy().id() && kept.model.is_new(&now) {
                let model = model(ask.policy().algorithm());
                *kept = KeyModel { model, policy: Arc::clone(ask.policy()) };
            }
            let (is_as_reserved, model) = (kept.policy.id() == ask.policy().id(), &mut kept.model);
            if model.settle(open.hold, &reserved, &real, &now) {
                continue;
            }
            let (taken, taken_at) = &open.taken[index];
            if real > reserved {
                model.take(&(real - reserved), open.hold, &now);
            } else if real < *taken {
                // Who has changed its numbers since does not know when they were taken.
                model.give_back(&(taken - real), is_as_reserved.then_some(taken_at), &now);
            }
        }
    }
}

impl Subject for Oracle {
    fn capabilities(&self) -> Capabilities {
        Capabilities { declines: &["clock-steps-back", "end-of-time"], ..Capabilities::FULL }
    }

    fn begin(&mut self, _policies: &[Arc<Policy>], _base: Timestamp) -> Result<(), Failure> {
        *self = Self::default();
        Ok(())
    }

    fn apply(&mut self, at: Timestamp, operation: &Operation) -> Result<Outcome, Failure> {
        self.operations += 1;
        self.pass(BigInt::from(at.as_nanos()));
        let now = self.now.clone();
        let looks = matches!(operation.verb(), Verb::Peek | Verb::Refund);
        let carries = !looks && operation.verb() != Verb::Reset;
        if carries {
            self.see(operation.asks());
        }
        if let Operation::Refund(ask) = operation {
            self.model(ask).give_back(&units(ask), None, &now);
        }
        let asks: Vec<Ask> = operation.asks().iter().map(|ask| self.in_force(ask)).collect();
        let before = if looks || carries { self.carry(&asks) } else { Vec::new() };
        let outcome = match operation {
            Operation::Check(_) => self.check(&asks),
            Operation::Peek(_) => self.peek(&asks),
            Operation::Take(_) => self.take(&asks[0]),
            Operation::Refund(_) => {
                Outcome { figures: vec![self.figures(&asks[0], None)], ..Outcome::default() }
            }
            Operation::Reset(ask) => {
                self.model(ask).clear(&now);
                Outcome::default()
            }
            Operation::Reserve { label, .. } => self.reserve(label, &asks),
            Operation::Commit { label, costs } => self.close(label, |index, ask| {
                costs.get(index).map_or_else(|| units(ask), |cost| BigInt::from(*cost))
            }),
            Operation::Cancel { label } => self.close(label, |_, _| BigInt::ZERO),
        };
        if carries {
            return Ok(outcome);
        }
        // A look changes nothing.
        self.keys.extend(before);
        Ok(outcome)
    }
}

fn model(algorithm: &Algorithm) -> Box<dyn Model> {
    match algorithm {
        Algorithm::Gcra(gcra) => Box::new(gcra::Bucket::new(gcra)),
        Algorithm::LeakyBucket(bucket) => Box::new(leaky_bucket::Bucket::new(bucket)),
        Algorithm::SlidingWindow(window) => Box::new(sliding_window::Log::new(window)),
        Algorithm::FixedWindow(window) => Box::new(fixed_window::Log::new(window)),
        Algorithm::Concurrency(limit) => Box::new(concurrency::Holds::new(limit)),
        Algorithm::CalendarWindow(window) => Box::new(calendar_window::Ledger::new(window)),
        other => unreachable!("the oracle has no model of {other:?}"),
    }
}

/// The most that one request can ever take.
fn limit(model: &dyn Model, ask: &Ask) -> u64 {
    model.limit().unwrap_or_else(|| ask.policy().algorithm().limit())
}

fn units(ask: &Ask) -> BigInt {
    BigInt::from(ask.cost().get())
}

fn same_key(one: &Ask, other: &Ask) -> bool {
    address(one) == address(other)
}

fn address(ask: &Ask) -> Address {
    (ask.policy().family_id(), ask.key().to_vec())
}

/// Waits in order of length, so that the charge to wait for longest can be found.
fn rank(wait: &Wait) -> (u8, Duration) {
    match wait {
        Wait::No => rank_of_no(),
        Wait::After(wait) => (1, *wait),
        Wait::Never => (2, Duration::ZERO),
    }
}

const fn rank_of_no() -> (u8, Duration) {
    (0, Duration::ZERO)
}

/// How long after `now` the answer becomes true, given that it stays true from then on; at most
/// what a [`Duration`] of nanoseconds in a `u64` can say.
fn first(now: &BigInt, answer: impl Fn(&BigInt) -> bool) -> Duration {
    if answer(now) {
        return Duration::ZERO;
    }
    let mut no = BigInt::ZERO;
    let mut yes = BigInt::from(1);
    while !answer(&(now + &yes)) {
        no = yes.clone();
        yes *= 2;
        if yes > BigInt::from(u64::MAX) {
            return Duration::from_nanos(u64::MAX);
        }
    }
    while &yes - &no > BigInt::from(1) {
        let middle: BigInt = (&yes + &no) / 2;
        if answer(&(now + &middle)) { yes = middle } else { no = middle }
    }
    Duration::from_nanos(u64::try_from(yes).unwrap_or(u64::MAX))
}
