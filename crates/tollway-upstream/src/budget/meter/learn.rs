//! What an answer, a refusal or a silence does to a meter.

use std::time::Duration;

use tollway_core::Timestamp;

use super::{Kind, Meter, Sent, Unseen, Witness, nanos};
use crate::profile::Reading;

/// More witnesses than this are merged into fewer, to the worse.
const WITNESSES_MAX: usize = 16;
/// The reset of one window differs by so much between servers of one upstream.
const RESET_NOISE_NS: u64 = 10_000_000;
/// How long a remainder holds whose reset nobody tells.
const UNTOLD_RESET: Duration = Duration::from_secs(1);

impl Meter {
    /// An answer told nothing, or none will come: its units may be gone until the window ends.
    ///
    /// The upstream may still count it `linger` from now. Beyond `lease` nobody waits for what may
    /// have been counted: one refusal is better than a bucket that stands still.
    pub(in crate::budget) fn miss(
        &mut self,
        sent: &Sent,
        linger: Duration,
        lease: Duration,
        now: Timestamp,
    ) {
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

    /// A request that left at `left` took so many units, and not those that it was let go for.
    pub(in crate::budget) fn correct(
        &mut self,
        (estimated, used): (u64, u64),
        left: Timestamp,
        now: Timestamp,
    ) {
        if let Some(model) = &mut self.model {
            match used.checked_sub(estimated) {
                Some(more) => model.send(more, now),
                None => model.give_back(estimated - used, left, now),
            }
        } else if self.unseen_units(now) >= estimated {
            // Its answer told nothing: it counts among what was taken unseen.
            self.unseen.units = self.unseen.units - estimated + used;
        }
    }

    /// Learns from what the answer to `sent` told; false if it told nothing to go by.
    pub(in crate::budget) fn observe(
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
        self.doubts = reading.is_doubtful;
        self.divergence = self.diverges(sent, remaining, now);
        self.land(sent);
        let witness = self.witness(sent, remaining, reading, reset, event, now);
        // Of a request that others let go nobody knows when it left.
        if sent.event > 0 {
            self.compare(&witness, now);
        }
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
    pub(in crate::budget) fn refuse(&mut self, event: u64, until: Timestamp, now: Timestamp) {
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
    pub(super) fn refill_ns(&self, told: Option<u64>) -> Option<u64> {
        // Of a part, the reset is that of the part.
        if self.kind != Kind::Sliding || self.limit == 0 || self.whole.limit > 0 {
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
}

/// How much two instants may have been rounded: to a second, if both are whole ones.
fn coarseness(one: Duration, other: Duration) -> Duration {
    let whole = one.subsec_nanos() == 0 && other.subsec_nanos() == 0;
    if whole { Duration::from_secs(1) } else { Duration::from_millis(1) }
}
