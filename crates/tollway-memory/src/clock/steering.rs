//! Bends lines towards the system's time: pure, so that a day of drift and steps runs in a test.
//!
//! | where our time stands | the next line |
//! |---|---|
//! | behind by more than [`STEP_NS`] | begins at the system's time |
//! | within [`STEP_NS`] | joins, and makes the error good in four seconds, by at most 500 millionths |
//! | ahead by more than [`STEP_NS`] | joins, and makes it good in a second, at most an eighth slower |

use tollway_core::Timestamp;

/// An error that is not drift: the system's time was set, or the machine was suspended.
const STEP_NS: i64 = 25_000_000;
const SECOND_NS: i64 = 1_000_000_000;
/// A rate of one nanosecond per tick.
const ONE: u64 = 1 << 32;

/// What the system's time was at one tick of the counter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    pub(super) raw: u64,
    pub(super) system_ns: u64,
}

/// Time by the counter, from one moment on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ClockLine {
    pub(super) raw: u64,
    pub(super) ns: u64,
    /// Nanoseconds per tick, times 2³²: bent for a second, and what is believed after it.
    pub(super) rate: u64,
    pub(super) base: u64,
}

impl ClockLine {
    /// The time at a tick, which may be a little before the line's own (another processor's).
    #[inline]
    pub(super) fn at(self, raw: u64) -> u64 {
        let ticks = raw.saturating_sub(self.raw);
        // Past the year 2554 this would begin anew; a bound costs what nobody needs.
        self.ns.wrapping_add(nanos(ticks, self.rate))
    }

    /// The time at a tick that may be long after the line was drawn: it was bent to be right again
    /// `second` ticks later, and would miss by as much as it is bent for as long as nobody looks.
    pub(super) fn at_last(self, raw: u64, second: u64) -> u64 {
        let ticks = raw.saturating_sub(self.raw);
        let bent = ticks.min(second);
        let straight = nanos(ticks - bent, self.base);
        self.ns.wrapping_add(nanos(bent, self.rate)).wrapping_add(straight)
    }
}

#[inline]
fn nanos(ticks: u64, rate: u64) -> u64 {
    ((u128::from(ticks) * u128::from(rate)) >> 32) as u64
}

/// What is known about the counter: how fast it ticks, and when the system's time was last seen.
#[derive(Debug)]
pub(super) struct Steering {
    rate: u64,
    /// Ticks of a second, as far as was known at the start.
    second: u64,
    seen: Look,
}

impl Steering {
    pub(super) fn new(seen: Look, ticks_per_second: u64) -> Self {
        let rate = u128::from(ONE) * SECOND_NS as u128 / u128::from(ticks_per_second.max(1));
        Self { rate: u64::try_from(rate).unwrap_or(u64::MAX), second: ticks_per_second, seen }
    }

    /// The first line.
    pub(super) fn start(&self, floor: Timestamp) -> ClockLine {
        let ns = self.seen.system_ns.max(floor.as_nanos());
        ClockLine { raw: self.seen.raw, ns, rate: self.rate, base: self.rate }
    }

    /// The line after `line`.
    pub(super) fn next(&mut self, line: ClockLine, look: Look) -> ClockLine {
        self.learn_rate(look);
        let ours = line.at_last(look.raw, self.second);
        let error_ns = i64::try_from(i128::from(ours) - i128::from(look.system_ns))
            .unwrap_or(if ours > look.system_ns { i64::MAX } else { i64::MIN });
        if error_ns < -STEP_NS {
            return ClockLine {
                raw: look.raw,
                ns: look.system_ns,
                rate: self.rate,
                base: self.rate,
            };
        }
        let rate = i128::from(self.rate);
        let bend = if error_ns > STEP_NS {
            (rate * i128::from(error_ns) / i128::from(SECOND_NS)).min(rate / 8)
        } else {
            let most = rate / 2_000;
            (rate * i128::from(error_ns) / i128::from(4 * SECOND_NS)).clamp(-most, most)
        };
        ClockLine { raw: look.raw, ns: ours, rate: (rate - bend) as u64, base: self.rate }
    }

    /// Measures the counter against the system's time, unless that was set meanwhile.
    fn learn_rate(&mut self, look: Look) {
        let ticks = look.raw.saturating_sub(self.seen.raw);
        let passed_ns = look.system_ns.checked_sub(self.seen.system_ns);
        self.seen = look;
        let Some(passed_ns) = passed_ns.filter(|_| ticks > 0) else { return };
        let measured = (u128::from(passed_ns) << 32) / u128::from(ticks);
        let measured = u64::try_from(measured).unwrap_or(u64::MAX);
        if measured.abs_diff(self.rate) <= self.rate / 500 {
            // A quarter of the way: one look is off by microseconds, four are by less.
            self.rate = self.rate - self.rate / 4 + measured / 4;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const START_NS: u64 = 1_700_000_000_000_000_000;
    const TICKS_PER_SECOND: u64 = 2_900_000_000;
    /// How far the system's time may be set, in nanoseconds.
    const STEPS_NS: core::ops::Range<i64> = -6_000_000_000..6_000_000_000;

    /// A counter, the system's time beside it, and the clock that follows.
    struct Machine {
        raw: u64,
        system_ns: u64,
        /// What the counter really does, in ticks per second.
        ticks_per_second: u64,
        steering: Steering,
        line: ClockLine,
    }

    impl Machine {
        fn new(drift_millionths: i64, floor: u64) -> Self {
            let off = TICKS_PER_SECOND as i64 / 1_000_000 * drift_millionths;
            let ticks_per_second = (TICKS_PER_SECOND as i64 + off) as u64;
            let (raw, system_ns) = (77_000_000_000, START_NS);
            let steering = Steering::new(Look { raw, system_ns }, TICKS_PER_SECOND);
            let line = steering.start(Timestamp::from_nanos(floor));
            Self { raw, system_ns, ticks_per_second, steering, line }
        }

        fn pass(&mut self, ns: u64) {
            self.system_ns += ns;
            let ticks = u128::from(ns) * u128::from(self.ticks_per_second) / 1_000_000_000;
            self.raw += ticks as u64;
        }

        /// Looks at a system's time that is read `noise_ns` off; checks that time goes on.
        fn look(&mut self, noise_ns: i64) {
            let before = self.now();
            let system_ns = self.system_ns.saturating_add_signed(noise_ns);
            self.line = self.steering.next(self.line, Look { raw: self.raw, system_ns });
            assert!(self.now() >= before, "time went back");
        }

        fn now(&self) -> u64 {
            self.line.at_last(self.raw, TICKS_PER_SECOND)
        }

        fn error_ns(&self) -> i64 {
            self.now() as i64 - self.system_ns as i64
        }
    }

    #[test]
    fn a_day_of_drift_stays_within_a_millisecond() {
        for drift in [-200, -27, 0, 27, 200] {
            let mut machine = Machine::new(drift, 0);
            for second in 0..86_400 {
                machine.pass(1_000_000_000);
                assert!(machine.error_ns().abs() < 1_000_000, "{drift}: {}", machine.error_ns());
                machine.look((second % 7 - 3) * 1_000);
            }
            assert!(machine.error_ns().abs() < 20_000, "{drift}: {}", machine.error_ns());
        }
    }

    #[test]
    fn a_clock_set_forward_is_followed_at_once() {
        let mut machine = Machine::new(27, 0);
        machine.pass(1_000_000_000);
        machine.look(0);
        machine.system_ns += 3_600_000_000_000;
        machine.look(0);
        assert_eq!(machine.error_ns(), 0);
    }

    #[test]
    fn a_clock_set_back_is_waited_for_an_eighth_slower() {
        let mut machine = Machine::new(0, 0);
        machine.system_ns -= 10_000_000_000;
        for second in 0..79 {
            machine.look(0);
            let before = machine.line.at(machine.raw);
            machine.pass(1_000_000_000);
            let passed = machine.line.at(machine.raw) - before;
            assert!((875_000_000..=875_000_001).contains(&passed), "second {second}: {passed}");
        }
        (0..8).for_each(|_| {
            machine.look(0);
            machine.pass(1_000_000_000);
        });
        assert!(machine.error_ns().abs() < 25_000_000, "{}", machine.error_ns());
    }

    #[test]
    fn a_start_ahead_of_the_system_is_waited_for() {
        let mut machine = Machine::new(0, START_NS + 1_000_000_000);
        assert_eq!(machine.error_ns(), 1_000_000_000);
        (0..60).for_each(|_| {
            machine.look(0);
            machine.pass(1_000_000_000);
        });
        assert!(machine.error_ns().abs() < 1_000_000, "{}", machine.error_ns());
    }

    /// A line that is bent for as long as nobody looks would be off by more than it makes good.
    #[test]
    fn a_clock_that_is_seldom_read_does_not_overshoot() {
        for (ahead_ns, every_s) in [(30_000_000, 60), (10_000_000_000, 60), (-20_000_000, 3_600)] {
            let mut machine = Machine::new(0, 0);
            machine.system_ns = machine.system_ns.saturating_add_signed(-ahead_ns);
            machine.look(0);
            for _ in 0..200 {
                machine.pass(every_s * 1_000_000_000);
                let error = machine.error_ns();
                assert!(error.abs() <= ahead_ns.abs(), "{ahead_ns} every {every_s} s: {error}");
                machine.look(0);
            }
            assert!(machine.error_ns().abs() < 1_000_000, "{}", machine.error_ns());
        }
    }

    proptest! {
        /// Whatever the system's time does and however long nobody looks, time never goes back, and
        /// a calm minute later it is right again unless it was set back by more than that makes
        /// good.
        #[test]
        fn time_never_goes_back_and_finds_its_way(
            drift in -300i64..300,
            steps in vec((1_000_000u64..10_000_000_000, STEPS_NS, any::<bool>()), 1..40),
        ) {
            let mut machine = Machine::new(drift, 0);
            for (pause_ns, step_ns, stepped) in steps {
                machine.pass(pause_ns);
                if stepped {
                    machine.system_ns = machine.system_ns.saturating_add_signed(step_ns);
                }
                machine.look(0);
            }
            let ahead = u64::try_from(machine.error_ns()).unwrap_or(0);
            for _ in 0..60 + ahead * 8 / 1_000_000_000 {
                machine.pass(1_000_000_000);
                machine.look(0);
            }
            prop_assert!(machine.error_ns().abs() < 1_000_000, "{}", machine.error_ns());
        }
    }
}
