//! What is left of one dimension of a bucket, as the answers tell it.
//!
//! **Order.** Answers overtake each other. An answer is certainly newer than another only if its
//! request left after the other had arrived; those that none is certainly newer than are kept as
//! *witnesses*, and the most pessimistic of them counts. Requests in flight are counted as taken on
//! top of that, whether the witnesses saw them or not.
//!
//! ```text
//!  A ──────────►        A, B overlap: both are witnesses
//!     B ───►            C left after both had arrived: it alone is, and what it says
//!              C ──►    holds, be it more or less than before
//! ```
//!
//! **Windows.** A witness holds until its own reset and no longer, so a late answer of an old
//! window can neither shorten nor refill a newer one. What it promises meanwhile:
//!
//! ```text
//!  fixed                      sliding: never above the truth, for the truth is a straight
//!  L        ┌───              line that begins at `remaining` or less than one above it
//!           │            L          ╱───
//!  r ───────┘            r ╱‾‾‾‾‾‾‾╱
//!           reset                 reset
//! ```
//!
//! A limit that is not stated to be sliding is taken for fixed, the more careful belief, until a
//! reset has moved before it had passed.

mod learn;
mod part;
mod rest;

use std::time::Duration;

use tollway_core::Timestamp;

pub(super) use rest::Rest;

use super::dispatches::Dispatches;
use super::encoding::{encoded, encoded_names};
use crate::profile::{Dimension, Window};

/// How it comes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Kind {
    /// Not known; taken for fixed.
    #[default]
    Auto,
    /// All at once.
    Fixed,
    /// Bit by bit, as the profile states.
    Sliding,
    /// Bit by bit, as the answers showed.
    SeenSliding,
}

encoded_names!(Kind { Auto = 0, Fixed = 1, Sliding = 2, SeenSliding = 3 });

impl Kind {
    pub(super) fn is_sliding(self) -> bool {
        matches!(self, Self::Sliding | Self::SeenSliding)
    }
}

/// When a cost may be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum When {
    /// Now.
    Now,
    /// Not before this time.
    At(Timestamp),
    /// When an answer comes.
    Answer,
}

/// What one answer told.
#[derive(Clone, Copy, Debug)]
struct Witness {
    /// The order of its arrival.
    event: u64,
    remaining: u64,
    at_ns: u64,
    resets_ns: u64,
    /// The reset lies at most so much before `resets_ns`.
    early_ns: u64,
    /// The reset on the upstream's clock.
    resets_at: Option<Duration>,
    /// Whether the request began the window, so that its end is known.
    anchored: bool,
}

encoded!(Witness { event, remaining, at_ns, resets_ns, early_ns, resets_at, anchored });

/// Units that may have been taken unseen: lost requests, answers without fields.
#[derive(Clone, Copy, Debug, Default)]
struct Unseen {
    units: u64,
    /// Answers to requests that left after this saw them.
    settled_ns: u64,
    until_ns: u64,
}

encoded!(Unseen { units, settled_ns, until_ns });

/// The state of one dimension while its bucket is in use.
#[derive(Clone, Debug, Default)]
pub(super) struct Meter {
    pub(super) dimension: u8,
    pub(super) part: u8,
    pub(super) kind: Kind,
    /// Zero if not known.
    pub(super) limit: u64,
    /// The limit that people were told of last.
    pub(super) noted_limit: u64,
    pub(super) in_flight: u64,
    /// The longest time to a reset that was told: the window, as far as we know.
    pub(super) window_ns: u64,
    /// What the last answer told, less what was expected.
    pub(super) divergence: i64,
    verify: bool,
    /// The reset told last is one that nobody can mean: the first request after it goes alone.
    doubts: bool,
    /// Requests have slots: what is left is shown, and holds nobody up.
    is_paced: bool,
    slack: Duration,
    /// How long one unit takes to come back, and all of them, where the profile states it.
    unit_ns: Option<u64>,
    period_ns: Option<u64>,
    witnesses: Vec<Witness>,
    unseen: Unseen,
    model: Option<Box<Dispatches>>,
    /// The limit that this is a part of.
    whole: part::Whole,
}

encoded!(Meter {
    dimension, part, kind, limit, noted_limit, in_flight, window_ns, divergence, is_paced, verify,
    doubts, slack, unit_ns, period_ns, witnesses, unseen,
} made { model, whole });

/// What an answer's request was, as far as a meter cares.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) event: u64,
    pub(super) at: Timestamp,
    pub(super) cost: u64,
    /// Whether it still counts as in flight.
    pub(super) counted: bool,
    /// Whether it is no request: others have told what is left.
    pub(super) is_heard: bool,
}

impl Meter {
    /// A meter about which nothing is known but what the profile states.
    pub(super) fn new(dimension: u8, part: u8, of: &Dimension) -> Self {
        let stated = of.stated;
        let model = of.is_modelled().then_some(stated).flatten().map(|quota| {
            let span = quota.period().saturating_add(of.slack);
            Box::new(Dispatches::new(quota.units(), nanos(span)))
        });
        let is_sliding = of.window == Window::Sliding;
        Self {
            dimension,
            part,
            kind: match of.window {
                Window::Auto => Kind::Auto,
                Window::Fixed => Kind::Fixed,
                Window::Sliding => Kind::Sliding,
            },
            limit: stated.map_or(0, |quota| quota.units()),
            noted_limit: stated.map_or(0, |quota| quota.units()),
            window_ns: stated.map_or(0, |quota| nanos(quota.period())),
            verify: of.verify,
            is_paced: of.is_paced,
            slack: of.slack,
            unit_ns: of.refill.map(|rate| nanos(rate.period()).div_ceil(rate.units())),
            period_ns: stated.filter(|_| is_sliding).map(|quota| nanos(quota.period())),
            model,
            ..Self::default()
        }
    }

    /// A meter of a limit that the profile states for one route.
    pub(super) fn modelled(units: u64, period: Duration) -> Self {
        let window_ns = nanos(period);
        Self {
            part: u8::MAX,
            kind: Kind::Fixed,
            limit: units,
            window_ns,
            model: Some(Box::new(Dispatches::new(units, window_ns))),
            ..Self::default()
        }
    }

    pub(super) fn is_modelled(&self) -> bool {
        self.model.is_some()
    }

    /// When `cost` units may be taken.
    pub(super) fn ready_at(&self, cost: u64, now: Timestamp) -> When {
        if cost == 0 || self.is_paced {
            return When::Now;
        }
        if let Some(model) = &self.model {
            let at = model.ready_at(cost, now);
            return if at <= now { When::Now } else { When::At(at) };
        }
        let unseen = self.unseen_units(now);
        let need = self.clamped(cost) + self.in_flight + unseen;
        if let Some(at_ns) = self.witnesses_ready_ns(need, now) {
            // What is unseen may be over before.
            let sooner = if unseen > 0 { self.unseen.until_ns } else { u64::MAX };
            return When::At(Timestamp::from_nanos(at_ns.min(sooner)));
        }
        if need <= self.fresh() || self.in_flight + unseen == 0 {
            When::Now
        } else if unseen > 0 {
            When::At(Timestamp::from_nanos(self.unseen.until_ns))
        } else {
            When::Answer
        }
    }

    /// Units that may be taken now.
    pub(super) fn available(&self, now: Timestamp) -> u64 {
        if let Some(model) = &self.model {
            return model.units().saturating_sub(model.live(now));
        }
        let told = self.live(now).map(|witness| self.level(witness, now)).min();
        let taken = self.in_flight + self.unseen_units(now);
        told.unwrap_or(u64::MAX).min(self.fresh()).saturating_sub(taken)
    }

    /// When everything is back, as far as was told.
    pub(super) fn resets_at(&self, now: Timestamp) -> Option<Timestamp> {
        match &self.model {
            Some(model) => model.all_over_at().filter(|at| *at > now),
            None => self.live(now).map(|it| Timestamp::from_nanos(it.resets_ns)).max(),
        }
    }

    /// What is left, and when everything is back, for whoever goes on without the others: what is
    /// under way counts as taken, and of a sliding limit nothing counts that has come back since
    /// the last answer, because others may have taken it.
    #[cfg(feature = "redis")]
    pub(super) fn told(&self, now: Timestamp) -> (u64, Option<Timestamp>) {
        let used = |witness: &Witness| self.limit.saturating_sub(witness.remaining);
        // The more a reset is about, the less its rounding matters.
        let witness = self.live(now).max_by_key(|witness| used(witness));
        let Some(witness) = witness.filter(|_| self.kind.is_sliding()) else {
            return (self.available(now), self.resets_at(now));
        };
        let under_way = self.in_flight + self.unseen_units(now);
        let left = witness.remaining.saturating_sub(under_way);
        let unit_ns = (witness.resets_ns - witness.at_ns).div_ceil(used(witness).max(1));
        let back_ns = unit_ns.saturating_mul(self.limit.saturating_sub(left));
        (left, Some(now.after(Duration::from_nanos(back_ns))))
    }

    /// When `units` could have gone one after the other, if nobody else takes any; an estimate.
    pub(super) fn estimate(&self, units: u64, now: Timestamp) -> Duration {
        let Some(short) = units.checked_sub(self.available(now)).filter(|short| *short > 0) else {
            return Duration::ZERO;
        };
        if self.limit == 0 || self.is_paced {
            return Duration::ZERO;
        }
        let span_ns = self.model.as_ref().map_or(self.window_ns, |model| model.span_ns());
        let resets = self.resets_at(now).map_or(Duration::ZERO, |at| at.since(now));
        if self.kind.is_sliding() {
            let unit_ns = self.refill_ns(None).unwrap_or(span_ns / self.limit.max(1));
            return Duration::from_nanos(unit_ns.saturating_mul(short));
        }
        let windows = (short - 1) / self.limit;
        resets.saturating_add(Duration::from_nanos(span_ns.saturating_mul(windows)))
    }

    pub(super) fn send(&mut self, cost: u64, now: Timestamp) {
        self.in_flight += cost;
        if let Some(model) = &mut self.model {
            model.send(cost, now);
        }
    }

    /// A request that counted as taken was never sent.
    pub(super) fn cancel(&mut self, sent: &Sent) {
        self.land(sent);
    }

    /// Forgets everything but the limit; the next request goes alone.
    pub(super) fn unlock(&mut self) {
        self.witnesses.clear();
        self.unseen = Unseen::default();
    }

    /// What a request that costs more than the limit has to wait for: all of it.
    fn clamped(&self, cost: u64) -> u64 {
        if self.limit > 0 { cost.min(self.limit) } else { cost }
    }

    /// Units there are when no witness holds: all, or one if that has to be seen first.
    fn fresh(&self) -> u64 {
        self.limit.max(1)
    }

    fn land(&mut self, sent: &Sent) {
        if sent.counted {
            self.in_flight = self.in_flight.saturating_sub(sent.cost);
        }
    }

    fn unseen_units(&self, now: Timestamp) -> u64 {
        if now.as_nanos() < self.unseen.until_ns { self.unseen.units } else { 0 }
    }

    fn live(&self, now: Timestamp) -> impl Iterator<Item = &Witness> {
        self.witnesses.iter().filter(move |witness| witness.resets_ns > now.as_nanos())
    }

    /// What a witness promises for `now`.
    fn level(&self, witness: &Witness, now: Timestamp) -> u64 {
        if !self.kind.is_sliding() {
            return witness.remaining;
        }
        let back = u128::from(self.limit.saturating_sub(witness.remaining));
        let passed = u128::from(now.as_nanos().saturating_sub(witness.at_ns));
        let whole = u128::from(witness.resets_ns - witness.at_ns).max(1);
        witness.remaining + u64::try_from(back * passed / whole).unwrap_or(0)
    }

    /// When every witness promises `need` units; none if they do now.
    fn witnesses_ready_ns(&self, need: u64, now: Timestamp) -> Option<u64> {
        let short = self.live(now).filter(|witness| self.level(witness, now) < need);
        short.map(|witness| self.witness_ready_ns(witness, need)).max()
    }

    fn witness_ready_ns(&self, witness: &Witness, need: u64) -> u64 {
        let back = u128::from(self.limit.saturating_sub(witness.remaining));
        if !self.kind.is_sliding() || need >= self.limit || back == 0 {
            return witness.resets_ns;
        }
        let whole = u128::from(witness.resets_ns - witness.at_ns);
        let part = u128::from(need.saturating_sub(witness.remaining)) * whole;
        witness.at_ns + u64::try_from(part.div_ceil(back)).unwrap_or(u64::MAX)
    }

    /// Whether the next request has to go alone: what a reset promises was not seen yet.
    pub(super) fn needs_probe(&self, now: Timestamp) -> bool {
        !self.is_paced
            && self.model.is_none()
            && (self.verify || self.doubts || self.limit == 0)
            && self.live(now).next().is_none()
    }
}

pub(super) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
