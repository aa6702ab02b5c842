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

use std::time::Duration;

use tollgate_core::Timestamp;

use super::dispatches::Dispatches;
use crate::profile::{Dimension, Reading, Window};

/// More witnesses than this are merged into fewer, to the worse.
const WITNESSES_MAX: usize = 16;
/// The reset of one window differs by so much between servers of one upstream.
const RESET_NOISE_NS: u64 = 10_000_000;
/// How long a remainder holds whose reset nobody tells.
const UNTOLD_RESET: Duration = Duration::from_secs(1);

/// How it comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Not known; taken for fixed.
    Auto,
    /// All at once.
    Fixed,
    /// Bit by bit, as the profile states.
    Sliding,
    /// Bit by bit, as the answers showed.
    SeenSliding,
}

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

/// Units that may have been taken unseen: lost requests, answers without fields.
#[derive(Clone, Copy, Debug, Default)]
struct Unseen {
    units: u64,
    /// Answers to requests that left after this saw them.
    settled_ns: u64,
    until_ns: u64,
}

/// The state of one dimension while its bucket is in use.
#[derive(Clone, Debug)]
pub(super) struct Meter {
    pub(super) dimension: u8,
    pub(super) part: u8,
    pub(super) kind: Kind,
    /// Zero if not known.
    pub(super) limit: u64,
    pub(super) in_flight: u64,
    /// The longest time to a reset that was told: the window, as far as we know.
    pub(super) window_ns: u64,
    /// What the last answer told, less what was expected.
    pub(super) divergence: i64,
    verify: bool,
    slack: Duration,
    /// How long one unit takes to come back, and all of them, where the profile states it.
    unit_ns: Option<u64>,
    period_ns: Option<u64>,
    witnesses: Vec<Witness>,
    unseen: Unseen,
    model: Option<Box<Dispatches>>,
}

/// What is kept of a meter while its bucket is idle.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rest {
    pub(super) dimension: u8,
    pub(super) part: u8,
    kind: Kind,
    limit: u32,
    remaining: u32,
    window_ms: u32,
    early_ms: u32,
    at_ns: u64,
    resets_ns: u64,
}

/// What an answer's request was, as far as a meter cares.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) event: u64,
    pub(super) at: Timestamp,
    pub(super) cost: u64,
    /// Whether it still counts as in flight.
    pub(super) counted: bool,
}

impl Meter {
    /// A meter about which nothing is known but what the profile states.
    pub(super) fn new(dimension: u8, part: u8, of: &Dimension) -> Self {
        let stated = of.stated();
        let model = of.is_modelled().then_some(stated).flatten().map(|quota| {
            let span = quota.period().saturating_add(of.slack());
            Box::new(Dispatches::new(quota.units(), nanos(span)))
        });
        let is_sliding = of.window() == Window::Sliding;
        Self {
            dimension,
            part,
            kind: match of.window() {
                Window::Auto => Kind::Auto,
                Window::Fixed => Kind::Fixed,
                Window::Sliding => Kind::Sliding,
            },
            limit: stated.map_or(0, |quota| quota.units()),
            in_flight: 0,
            window_ns: stated.map_or(0, |quota| nanos(quota.period())),
            divergence: 0,
            verify: of.is_verified_after_reset(),
            slack: of.slack(),
            unit_ns: of.refill().map(|rate| nanos(rate.period()).div_ceil(rate.units())),
            period_ns: stated.filter(|_| is_sliding).map(|quota| nanos(quota.period())),
            witnesses: Vec::new(),
            unseen: Unseen::default(),
            model,
        }
    }

    /// A meter of a limit that the profile states for one route.
    pub(super) fn modelled(units: u64, period: Duration) -> Self {
        let model = Dispatches::new(units, nanos(period));
        Self {
            dimension: 0,
            part: u8::MAX,
            kind: Kind::Fixed,
            limit: units,
            in_flight: 0,
            window_ns: nanos(period),
            divergence: 0,
            verify: false,
            slack: Duration::ZERO,
            unit_ns: None,
            period_ns: None,
            witnesses: Vec::new(),
            unseen: Unseen::default(),
            model: Some(Box::new(model)),
        }
    }

    pub(super) fn is_modelled(&self) -> bool {
        self.model.is_some()
    }

    /// When `cost` units may be taken.
    pub(super) fn ready_at(&self, cost: u64, now: Timestamp) -> When {
        if cost == 0 {
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

    /// When `units` could have gone one after the other, if nobody else takes any; an estimate.
    pub(super) fn estimate(&self, units: u64, now: Timestamp) -> Duration {
        let Some(short) = units.checked_sub(self.available(now)).filter(|short| *short > 0) else {
            return Duration::ZERO;
        };
        if self.limit == 0 {
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

    /// An answer told nothing, or none will come: its units may be gone until the window ends.
    ///
    /// The upstream may still count it `linger` from now. Beyond `lease` nobody waits for what may
    /// have been counted: one refusal is better than a bucket that stands still.
    pub(super) fn miss(&mut self, sent: &Sent, linger: Duration, lease: Duration, now: Timestamp) {
        self.land(sent);
        if self.model.is_some() || sent.cost == 0 {
            return;
        }
        let settled = now.after(linger);
        let window = Duration::from_nanos(self.window_ns);
        let current = self.resets_at(now).filter(|resets| *resets >= settled);
        let until = current.unwrap_or(settled.after(window)).min(now.after(lease.max(linger)));
        let kept = self.unseen_units(now);
        self.unseen = Unseen {
            units: kept + sent.cost,
            settled_ns: self.unseen.settled_ns.max(settled.as_nanos()),
            until_ns: self.unseen.until_ns.max(until.as_nanos()),
        };
    }

    /// Learns from what the answer to `sent` told; false if it told nothing to go by.
    pub(super) fn observe(
        &mut self,
        sent: &Sent,
        reading: &Reading,
        reset: Option<Duration>,
        event: u64,
        now: Timestamp,
    ) -> bool {
        if let Some(limit) = reading.limit {
            self.limit = limit.max(1);
        }
        let Some(remaining) = reading.remaining else { return false };
        let remaining = if self.limit > 0 { remaining.min(self.limit) } else { remaining };
        self.divergence = self.diverges(sent, remaining, now);
        self.land(sent);
        let witness = self.witness(sent, remaining, reading, reset, event, now);
        self.compare(&witness, now);
        self.witnesses.retain(|old| old.event > sent.event && old.resets_ns > now.as_nanos());
        if self.unseen.settled_ns < sent.at.as_nanos() {
            self.unseen = Unseen::default();
        }
        self.window_ns =
            reading.window.map_or(self.window_ns.max(witness.resets_ns - now.as_nanos()), nanos);
        self.witnesses.push(witness);
        self.merge();
        true
    }

    /// A refusal: nothing is left until `until`, whatever else was told.
    pub(super) fn refuse(&mut self, event: u64, until: Timestamp, now: Timestamp) {
        if self.kind == Kind::SeenSliding {
            self.kind = Kind::Fixed;
        }
        if self.model.is_some() {
            return;
        }
        let (at_ns, resets_ns) = (now.as_nanos(), until.as_nanos().max(now.as_nanos() + 1));
        self.witnesses.push(Witness {
            event,
            remaining: 0,
            // A flat line up to the reset, sliding or not: the refusal said when to come back.
            at_ns: if self.kind.is_sliding() { resets_ns - 1 } else { at_ns },
            resets_ns,
            early_ns: u64::MAX,
            resets_at: None,
            anchored: false,
        });
        self.merge();
    }

    /// Forgets everything but the limit; the next request goes alone.
    pub(super) fn unlock(&mut self) {
        self.witnesses.clear();
        self.unseen = Unseen::default();
    }

    /// Whether there is nothing to remember that [`Rest`] does not hold.
    pub(super) fn can_rest(&self, now: Timestamp) -> bool {
        self.in_flight == 0
            && self.unseen_units(now) == 0
            // Two that overlapped cannot be kept as one without loss; one of them is over soon.
            && self.live(now).count() <= 1
            && self.model.as_ref().is_none_or(|model| model.is_empty(now))
    }

    pub(super) fn rest(&self, now: Timestamp) -> Rest {
        let narrow = |wide: u64| u32::try_from(wide).unwrap_or(u32::MAX);
        let least = self.live(now).map(|witness| witness.remaining).min();
        Rest {
            dimension: self.dimension,
            part: self.part,
            kind: self.kind,
            limit: narrow(self.limit),
            remaining: narrow(least.unwrap_or(self.limit)),
            window_ms: narrow(self.window_ns.div_ceil(1_000_000)),
            early_ms: self
                .live(now)
                .map(|witness| narrow(witness.early_ns.div_ceil(1_000_000)))
                .max()
                .unwrap_or(0),
            at_ns: self.live(now).map(|witness| witness.at_ns).max().unwrap_or(0),
            resets_ns: self.live(now).map(|witness| witness.resets_ns).max().unwrap_or(0),
        }
    }

    /// The meter that `rest` was made of, where its witnesses were one.
    pub(super) fn wake(rest: &Rest, of: &Dimension) -> Self {
        let mut meter = Self::new(rest.dimension, rest.part, of);
        meter.kind = rest.kind;
        meter.limit = u64::from(rest.limit);
        meter.window_ns = u64::from(rest.window_ms) * 1_000_000;
        if rest.resets_ns > 0 {
            meter.witnesses.push(Witness {
                event: 0,
                remaining: u64::from(rest.remaining),
                at_ns: rest.at_ns,
                resets_ns: rest.resets_ns,
                early_ns: u64::from(rest.early_ms) * 1_000_000,
                resets_at: None,
                anchored: false,
            });
        }
        meter
    }

    /// What a request that costs more than the limit has to wait for: all of it.
    fn clamped(&self, cost: u64) -> u64 {
        if self.limit > 0 { cost.min(self.limit) } else { cost }
    }

    /// Units there are when no witness holds: all, or one if that has to be seen first.
    fn fresh(&self) -> u64 {
        match self.limit {
            0 => 1,
            limit => limit,
        }
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

    fn witness(
        &self,
        sent: &Sent,
        remaining: u64,
        reading: &Reading,
        reset: Option<Duration>,
        event: u64,
        now: Timestamp,
    ) -> Witness {
        let at_ns = now.as_nanos();
        let used = self.limit.saturating_sub(remaining);
        let window_ns = reading.window.map_or(self.window_ns, nanos);
        let anchored = reset.is_none() && used <= sent.cost;
        let told = reading.window.filter(|_| reset.is_none()).map(nanos);
        let resets_ns = if let Some(unit_ns) = self.refill_ns(told) {
            at_ns.saturating_add(unit_ns.saturating_mul(used))
        } else if let Some(after) = reset {
            at_ns.saturating_add(nanos(after.saturating_add(self.slack)))
        } else if let Some(same) = self.same_window(remaining, anchored, now) {
            same
        } else if window_ns > 0 {
            at_ns.saturating_add(window_ns)
        } else {
            at_ns.saturating_add(nanos(UNTOLD_RESET))
        };
        Witness {
            event,
            remaining,
            at_ns,
            resets_ns: resets_ns.max(at_ns + 1),
            early_ns: nanos(now.since(sent.at)).saturating_add(nanos(self.slack)),
            resets_at: reading.resets_at,
            anchored: anchored || self.same_window(remaining, anchored, now).is_some(),
        }
    }

    /// Nanoseconds per unit of a sliding limit, where they are stated, or told instead of a reset.
    fn refill_ns(&self, told: Option<u64>) -> Option<u64> {
        if self.kind != Kind::Sliding || self.limit == 0 {
            return None;
        }
        let whole = self.period_ns.or(told).map(|period_ns| period_ns.div_ceil(self.limit));
        self.unit_ns.or(whole)
    }

    /// The end of the window in which an answer without a reset was counted, if it is the one
    /// whose first request we saw: less is left, and that window is not over.
    fn same_window(&self, remaining: u64, anchored: bool, now: Timestamp) -> Option<u64> {
        let first = self.live(now).find(|witness| witness.anchored)?;
        (!anchored && remaining <= first.remaining).then_some(first.resets_ns)
    }

    /// Tells sliding from fixed: only a sliding limit's reset moves before it has passed.
    fn compare(&mut self, new: &Witness, now: Timestamp) {
        let Some(old) = self.live(now).max_by_key(|old| old.event).copied() else { return };
        if self.kind != Kind::Auto || old.early_ns == u64::MAX {
            return;
        }
        let not_over = now.as_nanos() < old.resets_ns.saturating_sub(old.early_ns);
        let moved = match (old.resets_at, new.resets_at) {
            (Some(before), Some(after)) => {
                after > before + Duration::from_nanos(RESET_NOISE_NS) + coarseness(before, after)
            }
            _ => {
                let earliest_ns = new.resets_ns.saturating_sub(new.early_ns);
                earliest_ns > old.resets_ns.saturating_add(RESET_NOISE_NS)
            }
        };
        if not_over && moved {
            self.kind = Kind::SeenSliding;
        }
    }

    /// What was told, less what could be expected: between all in flight counted and none.
    fn diverges(&self, sent: &Sent, remaining: u64, now: Timestamp) -> i64 {
        if self.limit == 0 || !sent.counted {
            return 0;
        }
        let least = self.available(now);
        let most = least.saturating_add(self.in_flight.saturating_sub(sent.cost));
        let expected = remaining.clamp(least, most);
        i64::try_from(i128::from(remaining) - i128::from(expected)).unwrap_or(0)
    }

    fn merge(&mut self) {
        while self.witnesses.len() > WITNESSES_MAX {
            let old = self.witnesses.remove(0);
            let into = &mut self.witnesses[0];
            into.event = into.event.max(old.event);
            into.remaining = into.remaining.min(old.remaining);
            into.at_ns = into.at_ns.max(old.at_ns);
            into.resets_ns = into.resets_ns.max(old.resets_ns);
            into.early_ns = u64::MAX;
            into.anchored = false;
        }
    }

    /// Whether the next request has to go alone: what a reset promises was not seen yet.
    pub(super) fn needs_probe(&self, now: Timestamp) -> bool {
        self.model.is_none() && (self.verify || self.limit == 0) && self.live(now).next().is_none()
    }
}

impl Rest {
    /// Whether it says anything that a new meter would not, except the limit.
    pub(super) fn says_something(&self, now: Timestamp) -> bool {
        self.resets_ns > now.as_nanos() && self.remaining < self.limit
    }

    /// Whether forgetting it would forgive something.
    pub(super) fn is_spent(&self, now: Timestamp) -> bool {
        self.resets_ns > now.as_nanos() && self.remaining == 0
    }
}

/// How much two instants may have been rounded: to a second, if both are whole ones.
fn coarseness(one: Duration, other: Duration) -> Duration {
    let whole = one.subsec_nanos() == 0 && other.subsec_nanos() == 0;
    if whole { Duration::from_secs(1) } else { Duration::from_millis(1) }
}

pub(super) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
