//! The pacer: when the next request may leave, given what the answers so far have said.

use core::time::Duration;
use std::collections::VecDeque;

use tollway_core::{Cost, Timestamp};

use super::aimd::Aimd;
use super::compete::Compete;
use super::parameters::PaceParameters;
use super::refill::RefillDetector;
use super::{Dice, Settings};

/// Own requests remembered as not yet reflected in the newest sample; older ones are forgotten.
const UNSEEN_MAX: usize = 4_096;
/// The longest pause that a server can cause by claiming a long period.
const PERIODS_NS_MAX: f64 = 86_400e9;
/// How long a probe may stay unanswered before another may leave.
const PROBE_PATIENCE: Duration = Duration::from_secs(10);

/// Which rule decides; see the table in the [module](super).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Law {
    /// Nothing is known yet: one request at a time.
    Probe,
    /// Slots from the level of a bucket.
    Ticket,
    /// Slots from how far a fixed window is ahead of an even spending of its budget.
    Window,
    /// What is left, spread over the time left.
    Spread,
    /// Only 429s count.
    Aimd,
}

/// A request that left, to be handed back with its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    pub(super) id: u64,
    pub(super) sent_ns: u64,
    pub(super) cost: u64,
}

/// The level that an answer reported.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    pub(super) id: u64,
    /// When its request left: the round trip then cancels out of the interval between requests.
    pub(super) sent_ns: u64,
    /// Units left, less the even spending of the budget if the quota comes in windows.
    pub(super) level: f64,
    /// What its own request cost.
    pub(super) cost: f64,
    pub(super) resets_ns: Option<u64>,
}

/// The pacer of one process for one token: a state machine that is told the time.
///
/// Call [`Pacer::may_send_at`], wait, call [`Pacer::on_send`], and hand the answer to
/// [`Pacer::on_response`] (or [`Pacer::on_lost`]). Every answer may change the waiting time of
/// whoever is next.
///
/// ```
/// use std::time::Duration;
/// use tollway_core::{Cost, Quota, Timestamp};
/// use tollway_upstream::pace::{Feedback, Outcome, Pacer, Settings};
///
/// let quota = Quota::new(4_500, Duration::from_secs(3_600))?;
/// let mut pacer = Pacer::new(Settings::of(quota));
/// let now = Timestamp::from_millis(0);
/// assert_eq!(pacer.may_send_at(Cost::ONE, now), now);
/// let sent = pacer.on_send(Cost::ONE, now);
///
/// // Four below the reserve of 64: four slots of 0.8 s after the last request.
/// let answer = Feedback::bare(Outcome::Accepted).with_remaining(60.0);
/// let later = Timestamp::from_millis(50);
/// pacer.on_response(sent, &answer, later);
/// assert_eq!(pacer.may_send_at(Cost::ONE, later), Timestamp::from_millis(3_200));
/// # Ok::<(), tollway_core::QuotaError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Pacer {
    pub(super) settings: Settings,
    pub(super) params: Option<PaceParameters>,
    pub(super) sample: Option<Sample>,
    /// Own requests that the newest sample does not reflect.
    pub(super) unseen: VecDeque<Sent>,
    pub(super) next_id: u64,
    pub(super) last_send: Option<(u64, f64)>,
    /// The one before, in case the last was never sent.
    pub(super) send_before: Option<(u64, f64)>,
    pub(super) hold_ns: u64,
    pub(super) doubt_ns: u64,
    /// Units added to the reserve, above zero when there are more clients than slots.
    pub(super) stretch: f64,
    /// When the last refusal that counted arrived: others of requests sent before do not.
    pub(super) refused_ns: u64,
    /// Spreads out clients that were refused together; 1 otherwise.
    pub(super) nudge: f64,
    /// Units per nanosecond by which the level falls (negative) or rises, smoothed.
    pub(super) drift: f64,
    pub(super) round_trip_ns: f64,
    pub(super) detector: RefillDetector,
    pub(super) answered: bool,
    pub(super) accepted: bool,
    pub(super) refusals: u32,
    pub(super) failures: u32,
    /// Answers in a row without `remaining`.
    pub(super) silent: u32,
    pub(super) aimd: Aimd,
    pub(super) compete: Compete,
    pub(super) latest_ns: u64,
    pub(super) dice: Dice,
}

impl Pacer {
    /// A pacer that has not sent anything yet.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        let mut pacer = Self {
            settings,
            params: None,
            sample: None,
            unseen: VecDeque::new(),
            next_id: 0,
            last_send: None,
            send_before: None,
            hold_ns: 0,
            doubt_ns: 0,
            stretch: 0.0,
            refused_ns: 0,
            nudge: 1.0,
            drift: 0.0,
            round_trip_ns: 0.0,
            detector: RefillDetector::default(),
            answered: false,
            accepted: false,
            refusals: 0,
            failures: 0,
            silent: 0,
            aimd: Aimd::new(0),
            compete: Compete::default(),
            latest_ns: 0,
            dice: Dice::new(settings.seed),
        };
        if let Some(quota) = settings.quota() {
            pacer.adopt(quota);
        }
        pacer
    }

    /// The moment at which a request of `cost` may leave: `now` or earlier means at once.
    ///
    /// Never further ahead than the longest pause after the last request or its answer. Ask again
    /// after every answer.
    #[must_use]
    pub fn may_send_at(&mut self, cost: Cost, now: Timestamp) -> Timestamp {
        self.settle_clock(now);
        self.due_at(cost, now)
    }

    /// As [`Self::may_send_at`], for a clock that never steps back.
    #[inline]
    pub(crate) fn due_at(&self, cost: Cost, now: Timestamp) -> Timestamp {
        let now_ns = now.as_nanos();
        let due_ns = match self.law() {
            Law::Probe => self.probe_ns(now_ns),
            Law::Ticket => self.paced_ns(Law::Ticket, now_ns).max(self.affordable_ns(cost)),
            law => self.paced_ns(law, now_ns),
        };
        // Counted from the last request: counted from now, every question would extend the pause.
        let last_ns = self.last_send.map_or(now_ns, |(last_ns, _)| last_ns);
        let latest_ns = last_ns.saturating_add(self.pause_max_ns());
        Timestamp::from_nanos(due_ns.min(latest_ns).max(self.hold_ns))
    }

    /// Takes note that a request of `cost` leaves now.
    pub fn on_send(&mut self, cost: Cost, now: Timestamp) -> Sent {
        self.settle_clock(now);
        let sent = Sent { id: self.next_id, sent_ns: now.as_nanos(), cost: cost.get() };
        self.next_id += 1;
        self.send_before = self.last_send;
        self.last_send = Some((sent.sent_ns, sent.cost as f64));
        self.nudge = 1.0;
        if self.unseen.len() == UNSEEN_MAX {
            self.unseen.pop_front();
        }
        self.unseen.push_back(sent);
        sent
    }

    /// Takes note that `sent` was never sent: its slot is free again, if it was the last one.
    pub fn on_unsent(&mut self, sent: Sent, now: Timestamp) {
        self.settle_clock(now);
        self.unseen.retain(|unseen| unseen.id != sent.id);
        if sent.id + 1 == self.next_id {
            self.last_send = self.send_before;
        }
    }

    /// The rule in force.
    #[must_use]
    pub fn law(&self) -> Law {
        if self.settings.only_aimd || self.latest_ns < self.doubt_ns {
            return Law::Aimd;
        }
        let Some(sample) = self.sample else {
            return if self.answered { Law::Aimd } else { Law::Probe };
        };
        match (self.params, sample.resets_ns) {
            (Some(_), _) if self.is_windowed() => Law::Window,
            (Some(_), _) => Law::Ticket,
            (None, Some(resets_ns)) if resets_ns > self.latest_ns => Law::Spread,
            (None, Some(_)) => Law::Probe,
            (None, None) => Law::Aimd,
        }
    }

    /// The time between two requests of this process as of now, for display.
    #[must_use]
    pub fn interval(&self) -> Duration {
        let nanos = self.interval_ns(self.law(), self.latest_ns);
        Duration::from_nanos(nanos.min(self.pause_max_ns() as f64) as u64)
    }

    fn paced_ns(&self, law: Law, now_ns: u64) -> u64 {
        let Some((last_ns, _)) = self.last_send else { return now_ns };
        last_ns.saturating_add(self.interval_ns(law, now_ns) as u64)
    }

    fn interval_ns(&self, law: Law, now_ns: u64) -> f64 {
        match (law, &self.params, &self.sample) {
            (Law::Aimd, ..) => self.nudge * self.aimd.interval_ns(),
            (Law::Spread, _, Some(sample)) => self.spread_ns(sample, now_ns),
            (Law::Ticket, Some(params), Some(_)) if self.compete.is_on() => {
                let cost = self.last_send.map_or(1.0, |(_, cost)| cost);
                self.compete.interval_ns(params) * cost
            }
            (_, Some(params), Some(sample)) => self.ticket_ns(params, sample, now_ns),
            _ => 0.0,
        }
    }

    /// The ticket law: one slot for each unit by which the level is below the reserve.
    fn ticket_ns(&self, params: &PaceParameters, sample: &Sample, now_ns: u64) -> f64 {
        let reserve = params.reserve + self.stretch;
        let excess = self.excess(params, sample, now_ns);
        // While a burst is under way its answers come a round trip late: brake for that long.
        let braking = if excess > 0.0 { self.drift.min(0.0) * self.round_trip_ns } else { 0.0 };
        // A request of several units has the slot of its first one: seen after all of them, the
        // level would make whoever spends in large pieces wait longer than the others.
        let level = sample.level + (sample.cost - 1.0);
        let depth = reserve - (level - excess + braking);
        let cost = self.last_send.map_or(1.0, |(_, cost)| cost);
        self.nudge * params.spacing(depth) * params.unit_ns * cost
            / f64::from(self.settings.weight.max(1))
    }

    /// Own units that the sample does not reflect, beyond what a steady round would have sent.
    ///
    /// Subtracting all of them would make a process with many slow requests under way wait for
    /// slots that it already had.
    fn excess(&self, params: &PaceParameters, sample: &Sample, now_ns: u64) -> f64 {
        if self.unseen.is_empty() {
            return 0.0;
        }
        let sent = self.unseen_units();
        let units = now_ns.saturating_sub(sample.sent_ns) as f64 / params.unit_ns;
        let round = (params.reserve + self.stretch - sample.level).max(1.0);
        (sent - units / round).max(0.0)
    }

    /// Own units that the newest sample does not reflect.
    fn unseen_units(&self) -> f64 {
        self.unseen.iter().map(|sent| sent.cost).sum::<u64>() as f64
    }

    /// What is left spread over the time left.
    fn spread_ns(&self, sample: &Sample, now_ns: u64) -> f64 {
        let left_ns = sample.resets_ns.unwrap_or(0).saturating_sub(now_ns) as f64;
        let sent = self.unseen_units();
        let cost = self.last_send.map_or(1.0, |(_, cost)| cost);
        left_ns * cost / ((sample.level - sent).max(0.0) + 1.0)
    }

    /// When the bucket will hold `cost`, by our own arithmetic: what cannot succeed is not sent.
    fn affordable_ns(&self, cost: Cost) -> u64 {
        let (Some(params), Some(sample)) = (&self.params, &self.sample) else { return 0 };
        let missing = (cost.get() as f64).min(params.burst) - sample.level;
        if missing <= 0.0 {
            return 0;
        }
        sample.sent_ns.saturating_add((missing * params.unit_ns) as u64)
    }

    /// One probe at a time, and another one if it got lost.
    fn probe_ns(&self, now_ns: u64) -> u64 {
        let patience_ns = PROBE_PATIENCE.as_nanos() as u64;
        self.unseen.back().map_or(now_ns, |probe| probe.sent_ns.saturating_add(patience_ns))
    }

    pub(super) fn pause_max_ns(&self) -> u64 {
        if let Some(set) = self.settings.pause_max {
            return set.as_nanos().min(u128::from(u64::MAX / 4)) as u64;
        }
        let periods_ns = self.params.map_or(0.0, |params| 2.0 * params.period_ns);
        (Settings::PAUSE_MAX.as_nanos() as u64).max(periods_ns.min(PERIODS_NS_MAX) as u64)
    }

    /// Moves everything remembered back with a clock that stepped back.
    ///
    /// Otherwise a clock set back by a year would silence the process for a year. A step forward
    /// needs nothing: it lets one request go early, and its answer is the new ticket.
    pub(super) fn settle_clock(&mut self, now: Timestamp) {
        let now_ns = now.as_nanos();
        let back_ns = self.latest_ns.saturating_sub(now_ns);
        self.latest_ns = now_ns;
        if back_ns == 0 {
            return;
        }
        let back = |moment: &mut u64| *moment = moment.saturating_sub(back_ns);
        [&mut self.hold_ns, &mut self.doubt_ns, &mut self.refused_ns].into_iter().for_each(back);
        self.unseen.iter_mut().for_each(|unseen| back(&mut unseen.sent_ns));
        for (sent_ns, _) in [&mut self.last_send, &mut self.send_before].into_iter().flatten() {
            back(sent_ns);
        }
        if let Some(sample) = &mut self.sample {
            back(&mut sample.sent_ns);
            sample.resets_ns.iter_mut().for_each(back);
        }
        self.detector.restart();
        self.aimd.shift(back_ns);
        self.compete.shift(back_ns);
    }
}
