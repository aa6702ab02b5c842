//! The server's clock as this process knows it between two answers.
//!
//! The server wrote its time between a call's leaving and its answer's arrival, so each answer
//! bounds the distance of the two clocks from both sides:
//!
//! ```text
//!   server - got  <=  distance  <=  server - sent
//! ```
//!
//! What may go is decided by the earliest time that it can be, when a window ends by the latest:
//! whatever travels how long, nobody goes before the end. Bounds are forgotten after some seconds,
//! because clocks drift, and at once if they contradict each other, because one was set.

use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use tokio::time::{Duration, Instant};
use tollway_core::Timestamp;

const MICRO_NS: i128 = 1_000;
/// How long bounds are kept at least; at most twice as long.
const KEPT: Duration = Duration::from_secs(5);

/// The server's clock.
#[derive(Debug)]
pub(super) struct ServerClock {
    start: Instant,
    /// What is to be believed before the first answer.
    guess_ns: i128,
    bounds: Mutex<Bounds>,
}

/// The least and the most that the server's clock is ahead, now and in the time before.
#[derive(Debug, Default)]
struct Bounds {
    current: Option<(i128, i128)>,
    before: Option<(i128, i128)>,
    since: Option<Instant>,
}

impl ServerClock {
    pub(super) fn new() -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let (start, guess_ns) = (Instant::now(), now.as_nanos() as i128);
        Self { start, guess_ns, bounds: Mutex::default() }
    }

    /// An answer to a call that was sent and got at these times says that the server's clock shows
    /// so many microseconds.
    pub(super) fn note(&self, server_us: u64, sent: Instant, got: Instant) {
        let server_ns = i128::from(server_us) * MICRO_NS;
        let bound = (server_ns - self.local(got), server_ns + MICRO_NS - self.local(sent));
        let mut bounds = self.bounds.lock().unwrap_or_else(PoisonError::into_inner);
        if bounds.since.is_none_or(|since| got.saturating_duration_since(since) > KEPT) {
            bounds.before = bounds.current.take();
            bounds.since = Some(got);
        }
        let both = |one: Option<(i128, i128)>, (low, high): (i128, i128)| match one {
            Some((least, most)) => Some((low.max(least), high.min(most))),
            None => Some((low, high)),
        };
        bounds.current = both(bounds.current, bound);
        let is_sound = |it: Option<(i128, i128)>| it.is_none_or(|(low, high)| low <= high);
        let known = bounds.current.and_then(|it| both(bounds.before, it));
        if !is_sound(known) {
            bounds.before = None;
            bounds.current = Some(bound);
        }
    }

    /// The earliest time that the server's clock can show now.
    pub(super) fn earliest(&self) -> Timestamp {
        self.shown(|(low, _)| low)
    }

    /// The latest time that it can show.
    pub(super) fn latest(&self) -> Timestamp {
        self.shown(|(_, high)| high)
    }

    /// When this process's clock shows what the server's will at that time, or a little later.
    pub(super) fn local_time_of(&self, at: Timestamp) -> Instant {
        Instant::now() + at.since(self.earliest())
    }

    fn shown(&self, which: impl Fn((i128, i128)) -> i128) -> Timestamp {
        let bounds = self.bounds.lock().unwrap_or_else(PoisonError::into_inner);
        let known = match (bounds.current, bounds.before) {
            (Some((low, high)), Some((least, most))) => Some((low.max(least), high.min(most))),
            (current, before) => current.or(before),
        };
        let ahead = known.map_or(self.guess_ns, which);
        let shown = self.local(Instant::now()) + ahead;
        Timestamp::from_nanos(u64::try_from(shown).unwrap_or(0))
    }

    fn local(&self, at: Instant) -> i128 {
        match at.checked_duration_since(self.start) {
            Some(after) => after.as_nanos() as i128,
            None => -(self.start.duration_since(at).as_nanos() as i128),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_time_lies_between_what_the_answers_allow() {
        let clock = ServerClock::new();
        let ms = Duration::from_millis;
        let sent = Instant::now();
        tokio::time::advance(ms(10)).await;
        clock.note(1_000_000, sent, Instant::now());
        assert_eq!(clock.earliest().as_nanos() / 1_000_000, 1_000);
        assert_eq!(clock.latest().as_nanos() / 1_000_000, 1_010);
        // A quicker answer says it more exactly, a slower one nothing new.
        clock.note(1_003_000, Instant::now(), Instant::now());
        assert_eq!(clock.earliest().as_nanos() / 1_000_000, 1_003);
        clock.note(1_001_000, sent, Instant::now());
        assert_eq!(clock.earliest().as_nanos() / 1_000_000, 1_003);
        tokio::time::advance(ms(500)).await;
        assert_eq!(clock.latest().as_nanos() / 1_000_000, 1_503);
    }

    #[tokio::test(start_paused = true)]
    async fn a_clock_that_is_set_is_believed_at_once() {
        let clock = ServerClock::new();
        let now = Instant::now();
        clock.note(5_000_000, now, now);
        clock.note(1_000_000, now, now);
        assert_eq!(clock.earliest().as_nanos(), 1_000_000_000);
    }
}
