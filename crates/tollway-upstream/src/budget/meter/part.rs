//! What an answer does to a meter of which this process has a part only; see
//! [`part`](crate::budget::part).

use std::time::Duration;

use tollway_core::Timestamp;

use super::{Meter, Sent, nanos};
use crate::budget::part::OwnPart;
use crate::profile::Reading;

/// What a meter of a part knows of the whole.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Whole {
    /// Units of the whole limit; zero as long as the meter is none of a part.
    pub(super) limit: u64,
    /// Whether an answer has told what there is a part of.
    is_known: bool,
    /// How long a unit takes to come back, by the answer that saw the most of them used.
    unit_ns: u64,
    used: u64,
    /// The longest time to a reset.
    window_ns: u64,
}

impl Meter {
    /// As [`Self::observe`], of a part.
    pub(in crate::budget) fn observe_part(
        &mut self,
        sent: &Sent,
        part: OwnPart,
        reading: &Reading,
        reset: Option<Duration>,
        event: u64,
        now: Timestamp,
    ) -> bool {
        let limit = [reading.limit.unwrap_or(0), self.whole.limit, self.limit];
        let Some(limit) = limit.into_iter().find(|limit| *limit > 0) else {
            let remaining = reading.remaining.map(|left| part.of_unknown(left));
            let reading = Reading { remaining, ..reading.clone() };
            return self.observe(sent, &reading, reset, event, now);
        };
        self.learn_whole(limit, reading, reset);
        let share = part.of_limit(limit);
        let is_known = self.whole.is_known && sent.counted;
        let (promised, since_ns) = self.promised(share, now);
        let own = promised.saturating_sub(sent.cost);
        let mine = reading.remaining.map(|left| match is_known {
            _ if sent.is_heard => u64::from(part.of_left(left, limit) > 1),
            true => left.min(own),
            false => part.of_left(left, limit),
        });
        // What has come back of the next unit is not lost.
        let is_own = is_known && mine == Some(own) && promised >= sent.cost;
        let from_ns = if is_own { since_ns } else { now.as_nanos() };
        self.whole.is_known = !sent.is_heard && (self.whole.is_known || mine.is_some());
        let used = share.saturating_sub(mine.unwrap_or(share).min(share));
        let back_ns = part.unit_ns(self.whole.unit_ns, limit).saturating_mul(used);
        let reset = match self.whole.unit_ns {
            0 => reset.map(|reset| part.reset(reset, self.whole.window_ns, limit)),
            _ => Some(Duration::from_nanos(back_ns)),
        };
        let window = reading.window.map(|window| window.saturating_mul(part.windows(limit)));
        let is_later = part.windows(limit) > 1 || self.whole.unit_ns > 0;
        let resets_at = reading.resets_at.filter(|_| !is_later);
        let limit = Some(share);
        let reading = Reading { limit, remaining: mine, resets_at, window, ..reading.clone() };
        let is_learned = self.observe(sent, &reading, reset, event, now);
        if self.whole.unit_ns > 0
            && is_learned
            && let Some(witness) = self.witnesses.last_mut()
        {
            witness.at_ns = from_ns;
            witness.resets_ns = from_ns.saturating_add(back_ns).max(now.as_nanos() + 1);
        }
        is_learned
    }

    /// What all witnesses promise for now, and since when; all of a part if none says anything.
    fn promised(&self, share: u64, now: Timestamp) -> (u64, u64) {
        let told = self.live(now).map(|witness| {
            let units = self.level(witness, now);
            (units, self.witness_ready_ns(witness, units).clamp(witness.at_ns, now.as_nanos()))
        });
        let least = told.min_by_key(|(units, since_ns)| (*units, std::cmp::Reverse(*since_ns)));
        least.unwrap_or((share, now.as_nanos()))
    }

    /// Whether it has to be remembered what was taken of a part.
    pub(super) fn is_part_taken(&self, now: Timestamp) -> bool {
        self.whole.limit > 0 && self.live(now).next().is_some()
    }

    fn learn_whole(&mut self, limit: u64, reading: &Reading, reset: Option<Duration>) {
        if self.whole.limit != limit {
            self.whole = Whole { limit, ..Whole::default() };
        }
        let reset_ns = reset.map(|reset| nanos(reset.saturating_add(self.slack)));
        let whole = &mut self.whole;
        whole.window_ns = whole.window_ns.max(reset_ns.unwrap_or(0));
        if !self.kind.is_sliding() {
            whole.unit_ns = 0;
            return;
        }
        let told_ns = reading.window.filter(|_| reset.is_none()).map(nanos);
        let stated = self.period_ns.or(told_ns).map(|period_ns| period_ns.div_ceil(limit));
        if let Some(unit_ns) = self.unit_ns.or(stated) {
            whole.unit_ns = unit_ns;
            return;
        }
        let used = limit.saturating_sub(reading.remaining.unwrap_or(limit));
        if let Some(reset_ns) = reset_ns.filter(|_| used >= whole.used.max(1)) {
            // What is left is rounded down: of the last unit that is used, some may be back.
            whole.unit_ns = reset_ns.div_ceil(used.saturating_sub(1).max(1));
            whole.used = used;
        }
    }
}
