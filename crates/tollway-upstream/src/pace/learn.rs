//! What the pacer makes of an answer: policy, level, refusals, failures.
//!
//! Numbers from a server are evidence, not orders: they are clamped before use, and where a 429
//! contradicts them the 429 is believed.

use core::time::Duration;

use tollway_core::{Quota, Timestamp};

use super::compete::Told;
use super::pacer::{Pacer, Sample, Sent};
use super::parameters::PaceParameters;
use super::refill::{DetectedRefill, RefillDetector, contradicts_bucket};
use super::{Feedback, Law, Outcome, Refill};

/// The shortest pause after a refusal, whatever `Retry-After` says.
const HOLD_MIN: Duration = Duration::from_millis(50);
/// The first pause after a failure; it doubles with each further one.
const FAILURE_PAUSE: Duration = Duration::from_millis(100);
/// Failures do not slow a client down further than this: recovery should be noticed.
const FAILURE_PAUSE_MAX: Duration = Duration::from_secs(30);
/// A server that contradicts itself is not believed for at least and at most so long.
const DOUBT: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(3_600));
/// The reserve is stretched by at most so many times itself.
const STRETCH_MAX: f64 = 16.0;
/// Units of stretch gained per unit of level below its rest, with every answer. Below 1 the loop
/// of level and stretch is stable; its slowest mode shrinks by the root of this with every round.
const STRETCH_GAIN: f64 = 0.6;
/// Units of stretch that lower the level at rest by one.
const STRETCH_LEAK: f64 = 32.0;
/// After so many answers without `remaining`, the last one is forgotten.
const SILENT_MAX: u32 = 8;
/// Doublings of a pause beyond which the upper bound has long been reached.
const DOUBLINGS_MAX: u32 = 24;
/// Doublings of the time over which refused clients come back.
const NUDGE_DOUBLINGS_MAX: u32 = 4;
/// A longer round trip is a clock that stepped.
const TRIP_MAX: Duration = Duration::from_secs(60);
/// Slots between requests while it is unclear whether the quota comes in windows.
const CAREFUL_SLOTS: f64 = 4.0;

impl Pacer {
    /// Learns from the answer to `sent`, which arrived `now`.
    ///
    /// Answers may come in any order and late: an older sample never replaces a newer one.
    pub fn on_response(&mut self, sent: Sent, answer: &Feedback, now: Timestamp) {
        self.settle_clock(now);
        self.answered = true;
        self.learn_policy(answer);
        // A clock that stepped back meanwhile would put the request into the future.
        let sent = Sent { sent_ns: sent.sent_ns.min(now.as_nanos()), ..sent };
        self.learn_level(sent, answer, now.as_nanos());
        match answer.outcome {
            Outcome::Accepted => self.on_accepted(now.as_nanos()),
            Outcome::Limited => self.on_limited(sent.sent_ns, answer, now.as_nanos()),
            Outcome::Failed => self.on_failed(answer.retry_after, now.as_nanos()),
        }
        self.watch_others(answer.outcome, now.as_nanos());
    }

    /// Takes note that no answer will come: a timeout, a broken connection, a dropped future.
    ///
    /// The server may have counted the request or not; it stays counted here until an answer
    /// tells.
    pub fn on_lost(&mut self, _sent: Sent, now: Timestamp) {
        self.settle_clock(now);
        self.on_failed(None, now.as_nanos());
    }

    /// Plans for `quota` from now on.
    pub(super) fn adopt(&mut self, quota: Quota) {
        let params = PaceParameters::new(quota, self.settings.reserve);
        if self.params == Some(params) {
            return;
        }
        self.params = Some(params);
        self.aimd.know(params.unit_ns);
        self.detector = RefillDetector::default();
    }

    fn learn_policy(&mut self, answer: &Feedback) {
        if answer.limit.is_none() && answer.period.is_none() {
            return;
        }
        let known = self.params;
        let units = answer.limit.or(known.map(|params| params.units as u64));
        let period = answer.period.or(known.map(|p| Duration::from_nanos(p.period_ns as u64)));
        let (Some(units), Some(period)) = (units, period) else { return };
        if known.is_some_and(|params| {
            params.units == units as f64 && params.period_ns == period.as_nanos() as f64
        }) {
            return;
        }
        // An absurd policy (no units, no period) says nothing.
        if let Ok(quota) = Quota::new(units, period) {
            self.adopt(quota);
        }
    }

    fn learn_level(&mut self, sent: Sent, answer: &Feedback, now_ns: u64) {
        self.count_silence(answer);
        let Some(remaining) = self.believable(answer) else {
            return self.unseen.retain(|unseen| unseen.id != sent.id);
        };
        if self.sample.is_some_and(|newest| newest.id > sent.id) {
            return;
        }
        let resets_ns = answer.reset_after.map(|reset| now_ns.saturating_add(nanos(reset)));
        let spent = self.forget_seen(sent);
        self.watch_reset(answer.reset_after, spent, now_ns);
        let level = self.level(remaining, answer.reset_after);
        let (id, sent_ns, cost) = (sent.id, sent.sent_ns, sent.cost as f64);
        let sample = Sample { id, sent_ns, level, cost, resets_ns };
        self.learn_motion(&sample, now_ns);
        self.sample = Some(sample);
        self.restretch(answer.outcome, level);
    }

    /// The reported level within what is possible; none if the answer does not tell.
    fn believable(&self, answer: &Feedback) -> Option<f64> {
        let most = self.params.map_or(f64::MAX, |params| params.burst);
        match (answer.outcome, answer.remaining) {
            (_, Some(remaining)) if remaining.is_nan() => None,
            // Refused means that nothing was left, whatever the field says.
            (Outcome::Limited, remaining) if self.params.is_some() => {
                (remaining.is_some() || self.sample.is_some()).then_some(0.0)
            }
            (_, remaining) => remaining.map(|remaining| remaining.clamp(0.0, most)),
        }
    }

    /// Forgets the last level if the server no longer tells it.
    fn count_silence(&mut self, answer: &Feedback) {
        self.silent = if answer.remaining.is_some() { 0 } else { self.silent.saturating_add(1) };
        if self.silent >= SILENT_MAX {
            self.sample = None;
        }
    }

    /// Drops the requests that an answer to `sent` reflects; their units.
    fn forget_seen(&mut self, sent: Sent) -> f64 {
        let mut spent = 0;
        while self.unseen.front().is_some_and(|unseen| unseen.id <= sent.id) {
            spent += self.unseen.pop_front().map_or(0, |unseen| unseen.cost);
        }
        spent as f64
    }

    fn watch_reset(&mut self, reset_after: Option<Duration>, spent: f64, now_ns: u64) {
        if let (Some(params), Some(reset)) = (&self.params, reset_after) {
            self.detector.observe(params, now_ns, reset, spent);
        }
    }

    /// The level that the ticket law goes by.
    ///
    /// In a fixed window that is how far the budget is ahead of being spent evenly:
    ///
    /// ```text
    ///  remaining |\
    ///            | \ \   <- where the clients keep it: a margin above the line
    ///            |   \ \
    ///            +-----\-> reset
    /// ```
    fn level(&self, remaining: f64, reset_after: Option<Duration>) -> f64 {
        let (Some(params), Some(reset)) = (&self.params, reset_after) else {
            return remaining;
        };
        if self.is_windowed() {
            let left = (reset.as_nanos() as f64 / params.period_ns).min(1.0);
            return params.reserve + remaining - params.burst * left - params.margin;
        }
        let unclear = self.settings.refill == Refill::Detect
            && self.detector.shown() == DetectedRefill::Nothing
            && contradicts_bucket(params, remaining, reset);
        if unclear { remaining.min(params.reserve - CAREFUL_SLOTS) } else { remaining }
    }

    /// Whether the quota comes in windows, as set or as proven.
    pub(super) fn is_windowed(&self) -> bool {
        match self.settings.refill {
            Refill::Window => true,
            Refill::Continuous => false,
            Refill::Detect => self.detector.shown() == DetectedRefill::Window,
        }
    }

    fn learn_motion(&mut self, sample: &Sample, now_ns: u64) {
        let trip_ns = now_ns.saturating_sub(sample.sent_ns).min(nanos(TRIP_MAX)) as f64;
        let first = self.round_trip_ns == 0.0;
        self.round_trip_ns += if first { trip_ns } else { 0.2 * (trip_ns - self.round_trip_ns) };
        let Some(before) = self.sample else { return };
        let between_ns = sample.sent_ns.saturating_sub(before.sent_ns);
        if sample.id > before.id && between_ns > 0 {
            let drift = (sample.level - before.level) / between_ns as f64;
            self.drift += 0.3 * (drift - self.drift);
        }
    }

    /// Beyond as many clients as the reserve has slots, each client stretches its reserve.
    ///
    /// An integrator beside the proportional ticket law, with a leak. The leak makes the level at
    /// rest a function of the stretch, `margin - stretch / 32`: whoever has stretched less than
    /// the others sees a level below its own rest and catches up, so strangers end up equal.
    /// Increase by multiplication and decrease by addition, which needs no leak, keeps a spread of
    /// a tenth between a hundred clients for ever.
    fn restretch(&mut self, outcome: Outcome, level: f64) {
        let Some(params) = self.params else { return };
        if outcome == Outcome::Limited {
            return;
        }
        self.stretch = if level >= 0.8 * params.reserve {
            // Clear slack: many have left.
            self.stretch * 0.5
        } else {
            let rest = params.margin - self.stretch / STRETCH_LEAK;
            let next = self.stretch + STRETCH_GAIN * (rest - level);
            next.clamp(0.0, STRETCH_MAX * params.reserve)
        };
    }

    fn on_accepted(&mut self, now_ns: u64) {
        self.accepted = true;
        self.refusals = 0;
        self.failures = 0;
        self.aimd.on_accepted(now_ns);
    }

    fn on_limited(&mut self, sent_ns: u64, answer: &Feedback, now_ns: u64) {
        self.failures = 0;
        self.aimd.on_limited(now_ns, self.pause_max_ns() as f64);
        self.doubt(answer, now_ns);
        if self.compete.is_on() {
            // A refusal was to be expected, and the next request comes late enough.
            return self.hold(nanos(answer.retry_after.unwrap_or(HOLD_MIN).max(HOLD_MIN)), now_ns);
        }
        // Many requests of one burst are refused together; that is one piece of news.
        if sent_ns >= self.refused_ns || self.refusals == 0 {
            self.refusals = self.refusals.saturating_add(1);
            self.refused_ns = now_ns;
            self.stretch_on_refusal();
        }
        // Refused again after coming back: there are many of us, so come back further apart.
        let width = f64::from(1u32 << (self.refusals - 1).min(NUDGE_DOUBLINGS_MAX));
        self.nudge = 0.75 + 0.5 * self.dice.unit() * width;
        let pause_ns = match answer.retry_after {
            Some(retry) if retry > HOLD_MIN => self.spread_out_ns(nanos(retry)),
            _ => self.backoff_ns(),
        };
        self.hold(pause_ns, now_ns);
    }

    /// Begins or ceases to compete with clients that do not pace.
    fn watch_others(&mut self, outcome: Outcome, now_ns: u64) {
        let Some(params) = self.params else { return };
        let may_matter =
            outcome != Outcome::Failed && self.compete.may_change(&params, self.stretch);
        if !may_matter || self.law() != Law::Ticket {
            return;
        }
        let is_accepted = outcome == Outcome::Accepted;
        // Drawn only when it may be needed: the other draws must not depend on it.
        let chance = if self.compete.is_on() { self.dice.unit() } else { 0.0 };
        let level = self.sample.map_or(0.0, |sample| sample.level);
        let told = Told { is_accepted, stretch: self.stretch, level, now_ns, chance };
        self.compete.on_answer(&params, told);
    }

    fn stretch_on_refusal(&mut self) {
        let Some(params) = &self.params else { return };
        if self.accepted {
            let longer = self.stretch + 0.5 * (params.reserve + self.stretch);
            self.stretch = longer.min(STRETCH_MAX * params.reserve);
        }
    }

    /// Stops believing `remaining` for a while if this refusal gives it the lie.
    fn doubt(&mut self, answer: &Feedback, now_ns: u64) {
        let Some(params) = &self.params else { return };
        let claims_plenty = answer.remaining.is_some_and(|remaining| remaining > params.margin);
        if claims_plenty {
            let (least, most) = DOUBT;
            let period_ns = (params.period_ns as u64).clamp(nanos(least), nanos(most));
            self.doubt_ns = now_ns.saturating_add(period_ns);
        }
    }

    /// `Retry-After` and up to as much again: those refused together must not return together.
    fn spread_out_ns(&mut self, retry_ns: u64) -> u64 {
        let round_ns =
            self.params.map_or(retry_ns as f64, |params| params.reserve * params.unit_ns);
        let spread_ns = self.dice.unit() * round_ns.min(retry_ns as f64);
        retry_ns.saturating_add(spread_ns as u64)
    }

    /// A pause for servers that do not say how long: one unit, doubled with every refusal.
    fn backoff_ns(&mut self) -> u64 {
        let unit_ns = self.params.map_or(1e9, |params| params.unit_ns).max(nanos(HOLD_MIN) as f64);
        let doublings = (self.refusals - 1).min(DOUBLINGS_MAX);
        (unit_ns * (1u64 << doublings) as f64 * (1.0 + self.dice.unit())) as u64
    }

    fn on_failed(&mut self, retry_after: Option<Duration>, now_ns: u64) {
        let doubled = nanos(FAILURE_PAUSE) << self.failures.min(DOUBLINGS_MAX);
        self.failures = self.failures.saturating_add(1);
        let asked_ns = retry_after.map_or(0, nanos);
        self.hold(doubled.min(nanos(FAILURE_PAUSE_MAX)).max(asked_ns), now_ns);
    }

    fn hold(&mut self, pause_ns: u64, now_ns: u64) {
        let until_ns = now_ns.saturating_add(pause_ns.min(self.pause_max_ns()));
        self.hold_ns = self.hold_ns.max(until_ns);
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
