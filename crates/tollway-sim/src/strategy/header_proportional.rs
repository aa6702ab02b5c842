//! A client that sleeps in proportion to what the last answer says is left.

use tollway_upstream::pace::{Dice, Feedback, Outcome, portable};

use super::{NANOS_PER_S, NextSend, Setting, Strategy, jittered, to_ns};

/// The least part of a unit's refill time that it sleeps.
const LEAST_PART: f64 = 0.1;

/// Sleeps before every request, doubles on 429s, comes down with successes:
///
/// - *not on the first 429*: the first retry sleeps as long as before, only the next one doubles;
/// - *no double dip*: of the tasks refused together only the first may double;
/// - *time factor*: whoever doubled lately comes down slowly, so flappy clients calm down;
/// - *in proportion*: the decrease is a part of the sleep, larger the more units remain;
/// - *jitter*: up to a tenth of the sleep is added to it.
pub struct HeaderProportional {
    sleep_s: f64,
    unit_s: f64,
    limit: f64,
    period_s: f64,
    /// The task that may double, and how often it was refused in a row.
    first_refused: Option<(usize, u32)>,
    doubled_ns: u64,
    dice: Dice,
}

impl HeaderProportional {
    /// The client with its own first sleep, twice the refill time of a unit, unless one is given.
    pub(super) fn new(setting: &Setting) -> Self {
        let unit_s = setting.unit_s();
        let given_s = setting.start_sleep_ns as f64 / NANOS_PER_S;
        Self {
            sleep_s: if given_s > 0.0 { given_s } else { 2.0 * unit_s },
            unit_s,
            limit: setting.quota.units() as f64,
            period_s: setting.quota.period().as_secs_f64(),
            first_refused: None,
            doubled_ns: 0,
            dice: setting.dice.clone(),
        }
    }

    /// What divides the decrease, `since_s` after the last doubling: high at first, then one.
    ///
    /// ```
    /// use tollway_sim::strategy::HeaderProportional;
    /// assert!((HeaderProportional::time_factor(30.0, 3_600.0) - 120.5).abs() < 0.01);
    /// assert!((HeaderProportional::time_factor(3_600.0, 3_600.0) - 1.582).abs() < 0.001);
    /// ```
    pub fn time_factor(since_s: f64, period_s: f64) -> f64 {
        1.0 / (1.0 - portable::exp(-since_s / period_s))
    }

    fn on_refused(&mut self, task: usize, now_ns: u64) {
        match &mut self.first_refused {
            None => self.first_refused = Some((task, 1)),
            Some((first, refusals)) if *first == task => {
                *refusals += 1;
                self.sleep_s *= 2.0;
                self.doubled_ns = now_ns;
            }
            Some(_) => {}
        }
    }

    fn on_success(&mut self, task: usize, remaining: f64, now_ns: u64) {
        if self.first_refused.is_some_and(|(first, _)| first == task) {
            self.first_refused = None;
        }
        let since_s = now_ns.saturating_sub(self.doubled_ns) as f64 / NANOS_PER_S;
        let divisor = Self::time_factor(since_s, self.period_s) * self.limit;
        let decreased_s = self.sleep_s - self.sleep_s * remaining / divisor;
        self.sleep_s = decreased_s.max(LEAST_PART * self.unit_s);
    }
}

impl Strategy for HeaderProportional {
    fn on_join(&mut self, now_ns: u64) {
        self.doubled_ns = now_ns;
    }

    fn next_send(&mut self, _task: usize, _retry: bool, now_ns: u64) -> NextSend {
        NextSend::At(now_ns + to_ns(jittered(self.sleep_s, &mut self.dice)))
    }

    fn on_response(&mut self, task: usize, answer: &Feedback, now_ns: u64) {
        match answer.outcome {
            Outcome::Limited => self.on_refused(task, now_ns),
            Outcome::Accepted => self.on_success(task, answer.remaining.unwrap_or(0.0), now_ns),
            Outcome::Failed => {}
        }
    }

    fn pause_ns(&self) -> u64 {
        to_ns(self.sleep_s)
    }
}
