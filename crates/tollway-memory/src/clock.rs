//! The system's clock: the processor's steady counter, kept in step with the system's time.
//!
//! ```text
//!   ns ^            .-'   system's time
//!      |         .-'
//!      |    __.-'   <- a line: ns + (counter - raw) * rate
//!      |_.-'
//!      +--+--------+------> counter
//!         raw      one second later the next line, bent towards the system's time
//! ```
//!
//! A counter alone drifts: 23 to 27 millionths were measured, two seconds a day, and a step of the
//! system's time was never followed. So the first reading that is a second or more past the last
//! look compares the two and draws a new line ([`steering`]). There is no thread: a process that
//! never asks for the time need not know it.
//!
//! **Invariants.** A reading takes no lock and writes nothing, also while another thread draws a
//! line: there are two lines, and one word says which of them holds. Lines join, or the next begins
//! later: time never goes back. (A thread that is preempted while it puts a line in place can make
//! that join late by a fraction of its own delay. Such a reading is a late one, and a late reading
//! neither gains nor gives units: see `docs/semantics.md`.)

mod steering;

use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tollway_core::{Clock, Timestamp};

use self::steering::{ClockLine, Look, Steering};

/// The system's time without its steps back, read in a third of the time that the standard library
/// takes: from the time-stamp counter where the processor has a steady one.
///
/// While the clock is read at least once a second it is within a millisecond of the system's. If
/// the system's time is set back, this clock runs an eighth slower until it is right again; if it
/// is set forward by more than 25 ms, this clock follows at once. Clones share what they know.
#[derive(Clone, Debug)]
pub struct SystemClock(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    counter: quanta::Clock,
    /// Counter ticks from one look at the system's time to the next.
    look_every: u64,
    /// How many lines were drawn. The last of them is at this number modulo two.
    drawn: AtomicU64,
    lines: [SharedLine; 2],
    steering: Mutex<Steering>,
}

#[derive(Debug, Default)]
struct SharedLine {
    raw: AtomicU64,
    ns: AtomicU64,
    rate: AtomicU64,
    base: AtomicU64,
}

/// How often a look at the system's time is repeated to find one that nothing disturbed.
const TRIES: usize = 4;
/// A look that took longer says too little about when it was.
const LOOK_MAX: Duration = Duration::from_millis(1);

impl SystemClock {
    /// The clock, set by the system's time.
    pub fn new() -> Self {
        Self::not_before(Timestamp::MIN)
    }

    /// The clock, set by the system's time or by `floor`, whichever is later: for a program that
    /// kept states and whose system's time was set back while it was not running. It runs an eighth
    /// slower until the system's time has caught up.
    pub fn not_before(floor: Timestamp) -> Self {
        let counter = quanta::Clock::new();
        let look = Look { raw: counter.raw(), system_ns: system_ns() };
        let second = ticks_per_second(&counter);
        let steering = Steering::new(look, second);
        let line = steering.start(floor);
        let shared = Shared {
            counter,
            look_every: second,
            drawn: AtomicU64::new(0),
            lines: Default::default(),
            steering: Mutex::new(steering),
        };
        shared.lines[0].store(line);
        Self(Arc::new(shared))
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    #[inline]
    fn now(&self) -> Timestamp {
        let shared = &*self.0;
        let drawn = shared.drawn.load(Ordering::Acquire);
        let raw = shared.counter.raw();
        let line = shared.lines[drawn as usize % 2].load();
        // The same number again: nobody has written over the line, and it held at this tick.
        fence(Ordering::Acquire);
        if shared.drawn.load(Ordering::Relaxed) != drawn {
            return self.read_again();
        }
        if raw.saturating_sub(line.raw) >= shared.look_every {
            return shared.look(drawn, line.at_last(raw, shared.look_every));
        }
        Timestamp::from_nanos(line.at(raw))
    }
}

impl SystemClock {
    /// Reads again, apart from the usual way, which stays short.
    #[cold]
    #[inline(never)]
    fn read_again(&self) -> Timestamp {
        self.now()
    }
}

impl Shared {
    /// Draws the line after the one numbered `drawn`, unless somebody else does; gives the time
    /// back that was read on the way here.
    #[cold]
    #[inline(never)]
    fn look(&self, drawn: u64, now_ns: u64) -> Timestamp {
        self.draw_after(drawn);
        Timestamp::from_nanos(now_ns)
    }

    fn draw_after(&self, drawn: u64) {
        let Ok(mut steering) = self.steering.try_lock() else { return };
        if self.drawn.load(Ordering::Acquire) != drawn {
            return;
        }
        let Some(look) = self.look_at_system() else { return };
        let line = steering.next(self.lines[drawn as usize % 2].load(), look);
        // Nobody reads this one until the number says so, and whoever still reads it since it was
        // last in use will see that the number has changed.
        self.lines[(drawn as usize + 1) % 2].store(line);
        self.drawn.store(drawn + 1, Ordering::Release);
    }

    /// What the system's time is at which tick, unless this thread is disturbed every time it
    /// looks.
    fn look_at_system(&self) -> Option<Look> {
        let look = |_| {
            let before = self.counter.raw();
            let system_ns = system_ns();
            let took = self.counter.raw().saturating_sub(before);
            (took, Look { raw: before + took / 2, system_ns })
        };
        let (took, look) = (0..TRIES).map(look).min_by_key(|(took, _)| *took)?;
        let undisturbed = self.counter.delta_as_nanos(0, took) <= LOOK_MAX.as_nanos() as u64;
        undisturbed.then_some(look)
    }
}

impl SharedLine {
    #[inline]
    fn load(&self) -> ClockLine {
        let word = |word: &AtomicU64| word.load(Ordering::Relaxed);
        ClockLine {
            raw: word(&self.raw),
            ns: word(&self.ns),
            rate: word(&self.rate),
            base: word(&self.base),
        }
    }

    fn store(&self, line: ClockLine) {
        // A reader that sees one of these stores must see the number that was stored before them.
        fence(Ordering::Release);
        self.raw.store(line.raw, Ordering::Relaxed);
        self.ns.store(line.ns, Ordering::Relaxed);
        self.rate.store(line.rate, Ordering::Relaxed);
        self.base.store(line.base, Ordering::Relaxed);
    }
}

fn system_ns() -> u64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_epoch.as_nanos()).unwrap_or(u64::MAX)
}

/// Counter ticks in a second, as far as the counter's own calibration knows.
fn ticks_per_second(counter: &quanta::Clock) -> u64 {
    const SAMPLE: u64 = 1 << 32;
    let nanos = counter.delta_as_nanos(0, SAMPLE).max(1);
    (u128::from(SAMPLE) * 1_000_000_000 / u128::from(nanos)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where the clock stands beside the system's, as far as two looks around it can tell.
    fn assert_in_step(clock: &SystemClock) {
        let before = system_ns();
        let ours = clock.now().as_nanos();
        let after = system_ns();
        let slack = Duration::from_millis(30).as_nanos() as u64;
        assert!(before - slack <= ours && ours <= after + slack, "{before} {ours} {after}");
    }

    #[test]
    fn it_starts_at_the_system_s_time() {
        assert_in_step(&SystemClock::new());
    }

    #[test]
    fn it_starts_no_earlier_than_it_is_told_to() {
        let floor = Timestamp::from_nanos(system_ns()).after(Duration::from_secs(3_600));
        let clock = SystemClock::not_before(floor);
        let [first, second] = [clock.now(), clock.now()];
        assert!(floor <= first && first <= second);
        assert!(first < floor.after(Duration::from_secs(60)));
    }

    #[test]
    fn a_new_line_is_drawn_by_whoever_reads_a_second_later() {
        let clock = SystemClock::new();
        let shared = &*clock.0;
        // As though the last look were two seconds ago.
        let line = shared.lines[0].load();
        let two_seconds = ClockLine {
            raw: line.raw.saturating_sub(2 * shared.look_every),
            ns: line.ns - 2_000_000_000,
            ..line
        };
        shared.lines[0].store(two_seconds);
        while shared.drawn.load(Ordering::Acquire) == 0 {
            let _ = clock.now();
        }
        assert_in_step(&clock);
    }

    #[test]
    fn readings_of_many_threads_do_not_go_back_while_lines_are_drawn() {
        let clock = SystemClock::new();
        let newest = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for turn in 0..50_000u64 {
                        let seen = newest.load(Ordering::SeqCst);
                        let now = clock.now().as_nanos();
                        // Two processors' counters may differ by nanoseconds.
                        assert!(now + 1_000_000 >= seen, "{now} after {seen}");
                        newest.fetch_max(now, Ordering::SeqCst);
                        if turn % 64 == 0 {
                            clock.0.draw_after(clock.0.drawn.load(Ordering::Acquire));
                        }
                    }
                });
            }
        });
        assert!(clock.0.drawn.load(Ordering::Acquire) > 0, "no line was drawn");
    }
}
