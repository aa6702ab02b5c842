//! A limit that no field tells, learned from what was accepted and what was refused.
//!
//! ```text
//!   answers     ●●●●●○○ ·············· ● ●●●● ············· ●●●●● ○ ······ time
//!               │    └ refused: wait    └ one goes first       └ a test: one more than believed
//!               └──────── window ──────┘
//!   belief          none                 5 per window, not seen yet      5 per window, seen
//! ```
//!
//! **What is believed.** So many units in any span of a window, counted from when their answers
//! came, whatever the upstream's windows are in truth: fixed, anchored, sliding, or refilled one by
//! one. After a refusal it is the least limit that what was accepted does not contradict, with the
//! window that ends when the wait is over. Answers of one burst come in any order, so whatever left
//! before the first refusal was answered only completes that picture.
//!
//! **After a refusal** one request goes first, and the others wait for its answer. If it is refused
//! too, all wait again. What follows opens up by one with each answer, until more was accepted than
//! a window holds.
//!
//! **Where no wait is told** the first one is the profile's, and doubles for as long as the request
//! that goes first is refused. Then the window is somewhere between the longest time after which
//! one was refused and the shortest after which one was served, and one request in each window goes
//! in the middle of the two.
//!
//! **Too low a belief is tested again**: after so many windows' worth one request more goes, and
//! another one as long as they are served. After each refusal the tests become rarer. No window has
//! more than one refused test.
//!
//! Deliberately absent: which kind of window it is. A limit of so many units in any span is safe
//! against all kinds, and as fast as each of them where requests wait.

mod accepted;
mod belief;
#[cfg(test)]
mod tests;

use std::time::Duration;

use tollway_core::Timestamp;

use self::accepted::Accepted;
use self::belief::{Belief, Question};
use super::encoding::encoded;
use super::meter::{When, nanos};

/// How long what a refusal taught is remembered after the last request.
const MEMORY: Duration = Duration::from_secs(3_600);
/// How long what was accepted is remembered where nothing was ever refused.
const MEMORY_UNREFUSED: Duration = Duration::from_secs(10);
/// The longest wait after refusals that do not say one.
const UNSAID_MAX: Duration = Duration::from_secs(300);
/// The shortest wait where none is told.
const WAIT_MIN: Duration = Duration::from_millis(50);
/// Requests in flight where no limit is known and one was accepted; which part of those that were
/// accepted in a row may be in flight later, and how many of their square roots at most.
const OPEN_FIRST: u32 = 2;
const OPEN_PART: u64 = 4;
const OPEN_ROOTS: u64 = 2;
/// Windows' worth of requests before a belief is tested: at first, and after many vain tests.
const TEST_AFTER: u64 = 8;
const TEST_AFTER_MAX: u64 = 32;

/// A refusal, until a request that left after its wait is accepted.
#[derive(Clone, Copy, Debug)]
struct Refusal {
    /// When the first answer of its burst came.
    at: Timestamp,
    /// When the refused request had left.
    left: Timestamp,
    in_a_row: u32,
    is_told: bool,
    /// Whether the wait was told in whole seconds, and so may be almost one second less.
    is_rounded: bool,
    /// The request that goes first.
    probe: Option<u64>,
    /// What the belief is made of: nothing older than this, and what was believed before.
    since: Timestamp,
    before: Belief,
    /// Whether that was seen to hold.
    was_seen: bool,
    /// Whether it tells nothing but that the window is a little longer.
    is_settled: bool,
}

encoded!(Refusal {
    at,
    left,
    in_a_row,
    is_told,
    is_rounded,
    probe,
    since,
    before,
    was_seen,
    is_settled,
});

/// A request that goes although the belief has no room for it.
#[derive(Clone, Copy, Debug)]
struct Test {
    id: u64,
    question: Question,
    /// When the unit was accepted that it would have had to wait for.
    behind: Timestamp,
}

encoded!(Test { id, question, behind });

/// What is known of a limit that no field tells.
#[derive(Clone, Debug, Default)]
pub(super) struct HiddenLimit {
    accepted: Accepted,
    belief: Option<Belief>,
    refusal: Option<Refusal>,
    was_refused: bool,
    /// When the last refusal was answered that none before it foretold.
    refused_at: Timestamp,
    blocked_until: Timestamp,
    /// Requests that may be in flight, unless the belief has been seen to hold.
    open: u32,
    /// The time between two requests at the pace that the API documents; zero if it does not.
    pace_ns: u64,
    sent_ns: u64,
    is_seen: bool,
    /// Whether its window was made a little longer since it was last seen to hold.
    is_extended: bool,
    test: Option<Test>,
    /// What was accepted before this says nothing of the belief.
    since: Timestamp,
    /// Accepted since the last refusal or test.
    untested: u64,
    test_after: u64,
    /// No test before this time.
    next_test: Timestamp,
    touched: Timestamp,
}

encoded!(HiddenLimit {
    accepted,
    belief,
    refusal,
    was_refused,
    refused_at,
    blocked_until,
    open,
    pace_ns,
    sent_ns,
    is_seen,
    is_extended,
    test,
    since,
    untested,
    test_after,
    next_test,
    touched,
});

/// A refused request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Refused {
    pub(super) id: u64,
    pub(super) left: Timestamp,
    /// The wait that the upstream tells.
    pub(super) told: Option<Duration>,
    /// The wait to begin with where it tells none.
    pub(super) unsaid: Duration,
    /// Whether it stops more than what this limit counts, so that tests are dear.
    pub(super) is_wide: bool,
}

impl HiddenLimit {
    /// A limit of which nothing is known; so many requests may go before an answer comes.
    pub(super) fn new(first_burst: u32) -> Self {
        Self { open: first_burst.max(1), test_after: TEST_AFTER, ..Self::default() }
    }

    /// The same where the API documents a limit: nobody knows of a lower one, and at that pace few
    /// are under way, whatever a round trip takes.
    pub(super) fn documented(self, pace: Option<Duration>) -> Self {
        Self { pace_ns: pace.map_or(0, nanos), ..self }
    }

    /// When the next request may go while so many are in flight.
    pub(super) fn ready(&self, in_flight: u32, now: Timestamp) -> When {
        if self.blocked_until > now {
            return When::At(self.blocked_until);
        }
        if let Some(refusal) = &self.refusal {
            let is_awaited = refusal.probe.is_some() && in_flight > 0;
            return if is_awaited { When::Answer } else { When::Now };
        }
        let Some(belief) = &self.belief else { return self.opened(in_flight).min(self.paced(now)) };
        let Some(behind) = self.behind(belief, in_flight, now) else {
            return if self.is_seen { When::Now } else { self.opened(in_flight) };
        };
        match (self.test_at(belief, behind, in_flight, now), behind) {
            (Some(at), _) if at <= now => When::Now,
            (Some(at), _) => When::At(at),
            (None, Some(behind)) => When::At(behind.after(belief.window())),
            (None, None) => When::Answer,
        }
    }

    /// How long a newcomer would wait behind so many others: a lower bound.
    pub(super) fn wait(&self, ahead: u64, in_flight: u32, now: Timestamp) -> Duration {
        let blocked = self.blocked_for(now).unwrap_or_default();
        let Some(belief) = self.belief else { return blocked };
        let from = before(now, belief.window_ns);
        let used = self.accepted.since(from) + u64::from(in_flight);
        let short = (used + ahead + 1).saturating_sub(belief.units);
        if short == 0 {
            return blocked;
        }
        // The window may be found to be shorter, but not shorter than this.
        let least = Duration::from_nanos(belief.above_ns);
        let units = belief.units.max(1);
        let first = self.accepted.nth_since(from, (short - 1) % units + 1);
        let first = first.map_or(Duration::ZERO, |at| at.after(least).since(now));
        let windows = u32::try_from((short - 1) / units).unwrap_or(u32::MAX);
        blocked.max(first.saturating_add(least.saturating_mul(windows)))
    }

    /// A request leaves.
    pub(super) fn sent(&mut self, id: u64, in_flight: u32, now: Timestamp) {
        self.touched = now;
        self.sent_ns = now.as_nanos();
        if let Some(refusal) = &mut self.refusal {
            if self.blocked_until <= now && refusal.probe.is_none() {
                refusal.probe = Some(id);
            }
            return;
        }
        let Some(belief) = self.belief else { return };
        let behind = self.behind(&belief, in_flight, now).flatten();
        let Some(behind) = behind else { return };
        if self.test_at(&belief, Some(behind), in_flight, now).is_some_and(|at| at <= now) {
            let question = belief.question();
            self.test = Some(Test { id, question, behind });
            if question == Question::Sooner {
                self.next_test = now.after(belief.window());
            }
        }
    }

    /// A request that left at `left` was accepted. Until the belief is seen to hold at most `most`
    /// are in flight: that many are refused at once if they are too many.
    pub(super) fn accept(&mut self, id: u64, left: Timestamp, most: u32, now: Timestamp) {
        self.touched = now;
        self.accepted.add(now, self.kept_ns());
        if let Some(refusal) = self.refusal {
            if left >= self.blocked_until {
                self.refusal = None;
                self.untested = 1;
                if !refusal.is_settled {
                    // What only made a window longer is about the same belief.
                    self.since = now;
                }
            } else {
                // Its answer came late: it completes what the refusal means.
                self.end(id);
                if left <= refusal.at && now < self.blocked_until {
                    self.believe();
                }
            }
            self.open_up(most);
            return;
        }
        self.untested += 1;
        self.open_up(most);
        let Some(belief) = &mut self.belief else { return };
        if self.untested > belief.units {
            (self.is_seen, self.is_extended) = (true, false);
        }
        if let Some(test) = self.test.take_if(|test| test.id == id) {
            match test.question {
                Question::More => belief.units += 1,
                Question::Sooner => {
                    let shorter_ns = nanos(now.since(test.behind)).max(belief.above_ns + 1);
                    belief.window_ns = shorter_ns.min(belief.window_ns);
                    self.untested = 0;
                }
            }
        }
    }

    /// A request was refused; how long to wait.
    pub(super) fn refuse(&mut self, refused: &Refused, now: Timestamp) -> Duration {
        self.touched = now;
        self.was_refused = true;
        if let Some(refusal) = self.refusal.filter(|refusal| refused.left <= refusal.at) {
            // It was under way when the first of its burst was answered.
            if let Some(told) = refused.told.filter(|_| refusal.is_told) {
                self.blocked_until = self.blocked_until.max(now.after(told));
            }
            self.believe();
            return self.blocked_until.since(now);
        }
        if let Some(test) = self.test.take_if(|test| test.id == refused.id) {
            return self.fail_test(test, refused, now);
        }
        if self.refusal.is_none() && refused.left <= self.refused_at {
            // The same, but the request that went first was answered sooner.
            self.blocked_until =
                self.blocked_until.max(now.after(refused.told.unwrap_or_default()));
            return self.blocked_until.since(now);
        }
        self.refused_at = now;
        self.extend(refused, now).unwrap_or_else(|| self.begin(refused, now))
    }

    /// A request ended without saying anything of the limit.
    pub(super) fn end(&mut self, id: u64) {
        self.test.take_if(|test| test.id == id);
        if let Some(refusal) = &mut self.refusal {
            refusal.probe.take_if(|probe| *probe == id);
        }
    }

    pub(super) fn was_refused(&self) -> bool {
        self.was_refused
    }

    pub(super) fn blocked_for(&self, now: Timestamp) -> Option<Duration> {
        (self.blocked_until > now).then(|| self.blocked_until.since(now))
    }

    /// Whether the request that goes first is awaited.
    pub(super) fn is_probing(&self) -> bool {
        self.refusal.is_some()
    }

    /// Forgets everything; requests go one by one at first.
    pub(super) fn unlock(&mut self) {
        let Self { was_refused, touched, pace_ns, .. } = *self;
        *self = Self { was_refused, touched, pace_ns, ..Self::new(1) };
    }

    pub(super) fn can_be_forgotten(&self, now: Timestamp) -> bool {
        let memory = if self.was_refused { MEMORY } else { MEMORY_UNREFUSED };
        let is_remembered = self.touched > Timestamp::MIN && now < self.touched.after(memory);
        self.blocked_until <= now && !is_remembered
    }

    /// What is believed, for people.
    pub(super) fn belief(&self) -> Option<(u64, Duration)> {
        self.belief.as_ref().map(|belief| (belief.units, belief.window()))
    }

    /// One more was accepted, so more may be in flight: by one, up to a window's worth, where a
    /// limit is believed. Else two, and later a quarter of what was accepted in a row, but no more
    /// than twice its square root: so many are refused together where a limit begins that nobody
    /// expects. With the root alone, limits far away are used too slowly at first.
    fn open_up(&mut self, most: u32) {
        let open = match self.belief {
            Some(_) => self.open.saturating_add(1),
            None => {
                let part = (self.untested / OPEN_PART).min(OPEN_ROOTS * self.untested.isqrt());
                u32::try_from(part).unwrap_or(u32::MAX).max(OPEN_FIRST)
            }
        };
        self.open = open.max(self.open).min(most.max(1));
    }

    /// When the next request may go at the documented pace.
    fn paced(&self, now: Timestamp) -> When {
        if self.pace_ns == 0 || self.was_refused {
            return When::Answer;
        }
        let at = Timestamp::from_nanos(self.sent_ns.saturating_add(self.pace_ns));
        if at <= now { When::Now } else { When::At(at) }
    }

    fn opened(&self, in_flight: u32) -> When {
        if in_flight < self.open.max(1) { When::Now } else { When::Answer }
    }

    /// None if the belief has room; else when the unit was accepted that has to leave the window
    /// first, if it was answered yet.
    fn behind(&self, belief: &Belief, in_flight: u32, now: Timestamp) -> Option<Option<Timestamp>> {
        let from = before(now, belief.window_ns);
        let used = self.accepted.since(from) + u64::from(in_flight);
        let over = (used + 1).saturating_sub(belief.units);
        (over > 0).then(|| self.accepted.nth_since(from, over))
    }

    /// When a test may go, if one is due.
    fn test_at(
        &self,
        belief: &Belief,
        behind: Option<Timestamp>,
        in_flight: u32,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let behind = behind?;
        // While others are in flight nobody can tell which of them a refusal is about.
        if in_flight > 0 || !self.is_seen || self.next_test > now {
            return None;
        }
        let question = belief.question();
        let is_eager = question == Question::Sooner && !belief.is_told;
        let worth = if is_eager { 1 } else { self.test_after };
        if self.untested < belief.units.saturating_mul(worth) {
            return None;
        }
        match question {
            Question::Sooner => Some(behind.after(belief.middle())),
            // Late in a window an answer would tell of its end instead.
            Question::More if nanos(now.since(behind)) < belief.window_ns / 2 => Some(now),
            Question::More => None,
        }
    }

    fn fail_test(&mut self, test: Test, refused: &Refused, now: Timestamp) -> Duration {
        let Some(belief) = &mut self.belief else { return self.begin(refused, now) };
        let within_ns = nanos(refused.left.since(test.behind));
        belief.above_ns = belief.above_ns.max(within_ns).min(belief.window_ns);
        if test.question == Question::More {
            self.test_after = (self.test_after * 2).min(TEST_AFTER_MAX);
        }
        self.untested = 0;
        self.next_test = now.after(belief.window());
        let Some(told) = refused.told else { return test.behind.after(belief.window()).since(now) };
        self.blocked_until = self.blocked_until.max(now.after(told));
        told
    }

    /// A refusal just after the end of a window as it was believed: requests differ in how long
    /// they travel, so the window is a little longer. How long to wait.
    fn extend(&mut self, refused: &Refused, now: Timestamp) -> Option<Duration> {
        let is_told = refused.told.is_some();
        let may_be = match &self.refusal {
            // Twice is no accident, unless the belief was seen to hold in between, or it is told
            // how much longer it is.
            None => is_told || self.is_seen || !self.is_extended,
            Some(last) => is_told && last.is_settled,
        };
        let belief = self.belief.filter(|_| may_be)?;
        let more_ns = belief.window_ns / 8;
        let behind = before(refused.left, belief.window_ns + more_ns);
        let behind = self.accepted.nth_since(behind, 1)?;
        let is_over = behind.after(belief.window()) <= refused.left;
        let longer = behind.after(Duration::from_nanos(belief.window_ns + more_ns));
        let soon = longer.since(now).max(WAIT_MIN);
        let wait = refused.told.unwrap_or(soon);
        // Of whole seconds nobody knows which part is the window's.
        let more = if refused.is_rounded() { soon.min(wait) } else { wait };
        let window_ns = nanos(now.after(more).since(behind));
        if !is_over || window_ns > belief.window_ns + 2 * more_ns {
            return None;
        }
        let used = self.accepted.since(before(refused.left, belief.window_ns));
        let belief = if !is_told && used > belief.units / 2 {
            // A window that is longer refuses the first ones of the next, so there is less in it.
            Belief { units: used.min(belief.units), ..belief }
        } else {
            let window_ns = window_ns.max(belief.window_ns);
            let above_ns = belief.above_ns.max(nanos(refused.left.since(behind))).min(window_ns);
            Belief { window_ns, above_ns, ..belief }
        };
        let since = self.relevant_since(&belief, now);
        (self.belief, self.untested, self.is_extended) = (Some(belief), 0, true);
        self.blocked_until = self.blocked_until.max(now.after(wait));
        let refusal = Refusal::new(refused, 1, now);
        self.refusal = Some(Refusal { since, before: belief, is_settled: true, ..refusal });
        Some(wait)
    }

    /// A refusal that the belief did not foresee.
    fn begin(&mut self, refused: &Refused, now: Timestamp) -> Duration {
        let again = self.refusal;
        let in_a_row = again.map_or(0, |refusal| refusal.in_a_row) + 1;
        let doubled = refused.unsaid.saturating_mul(1 << (in_a_row - 1).min(16)).min(UNSAID_MAX);
        let wait = refused.told.unwrap_or(doubled);
        let believed = again.map_or_else(|| self.belief.unwrap_or_default(), |it| it.before);
        let since = again.map_or_else(|| self.relevant_since(&believed, now), |it| it.since);
        self.blocked_until = self.blocked_until.max(now.after(wait));
        let was_seen = self.is_seen;
        (self.open, self.is_seen, self.untested, self.test) = (1, false, 0, None);
        if refused.is_wide {
            self.test_after = TEST_AFTER_MAX;
        }
        let was_seen = again.map_or(was_seen, |refusal| refusal.was_seen);
        let refusal = Refusal::new(refused, in_a_row, now);
        self.refusal = Some(Refusal { since, before: believed, was_seen, ..refusal });
        self.believe();
        wait
    }

    /// What was accepted before this says nothing of a limit that refuses now.
    ///
    /// A belief that was seen to hold is wrong since a window at most, give or take what answers
    /// differ in how long they travel; any other since it began.
    fn relevant_since(&self, belief: &Belief, now: Timestamp) -> Timestamp {
        match self.is_seen {
            true => before(now, belief.window_ns / 8 * 9),
            false => self.since,
        }
    }

    /// What the last refusal means, by all that was accepted before it.
    fn believe(&mut self) {
        let Some(refusal) = self.refusal.filter(|refusal| !refusal.is_settled) else { return };
        let end = self.blocked_until;
        let least = self.accepted.least_limit(refusal.since, refusal.at, end);
        let (units, first) = match (least, refusal.before.units) {
            (Some(least), _) => least,
            (None, 0) => return,
            // Nothing was accepted for a whole window: it is longer.
            (None, units) => match self.accepted.newest(units) {
                Some(first) => (units, first),
                None => return,
            },
        };
        let mut window_ns = nanos(end.since(first)).max(1);
        // Refused before it held once: what answers differ in how long they travel hides more.
        if units == refusal.before.units && !refusal.was_seen {
            window_ns = window_ns.max(refusal.before.window_ns / 8 * 9);
        }
        let refused_after = nanos(refusal.left.since(first));
        let above_ns = match (refusal.is_told, refusal.is_rounded) {
            (true, false) => window_ns,
            (true, true) => refused_after.max(window_ns.saturating_sub(1_000_000_000)),
            (false, _) => refused_after,
        };
        let above_ns = above_ns.min(window_ns);
        self.belief = Some(Belief { units, window_ns, above_ns, is_told: refusal.is_told });
    }

    /// How old what was accepted may be and still matter.
    fn kept_ns(&self) -> u64 {
        let believed = self.belief.map_or(0, |belief| belief.window_ns.saturating_mul(2));
        if believed == 0 || self.refusal.is_some() { nanos(MEMORY) } else { believed }
    }
}

impl Refused {
    /// Whether the wait is told in whole seconds, and so may be almost one second less.
    fn is_rounded(&self) -> bool {
        self.told.is_some_and(|told| told.subsec_nanos() == 0)
    }
}

impl Refusal {
    fn new(refused: &Refused, in_a_row: u32, now: Timestamp) -> Self {
        Self {
            at: now,
            left: refused.left,
            in_a_row,
            is_told: refused.told.is_some(),
            is_rounded: refused.is_rounded(),
            probe: None,
            since: Timestamp::MIN,
            before: Belief::default(),
            was_seen: false,
            is_settled: false,
        }
    }
}

/// The time so many nanoseconds ago.
fn before(now: Timestamp, ago_ns: u64) -> Timestamp {
    Timestamp::from_nanos(now.as_nanos().saturating_sub(ago_ns))
}
