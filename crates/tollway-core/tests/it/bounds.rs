//! Never more than the bound, in any window, whatever is asked, whoever comes late, and whatever
//! the clock does.

use std::time::Duration;

use proptest::prelude::*;
use tollway_core::fixed_window::{Anchor, FixedWindow};
use tollway_core::{Algorithm, SKEW, Timestamp};
use tollway_testkit::oracle::bound;

use crate::key::{
    Act, Beat, Key, Pause, START, TICK, algorithm, checks, config, pause, quota, script,
};

/// Units admitted, and when, in nanoseconds.
type Admissions = Vec<(u64, u64)>;

/// Plays checks; what was admitted.
fn admitted(key: &mut Key, checks: &[Beat], start: Timestamp) -> Admissions {
    let mut now = start;
    let mut admissions = Vec::new();
    for beat in checks {
        now = now.after(beat.pause.of(key.fill()));
        let Act::Check(units) = beat.act else { continue };
        if key.check(units, now).is_allowed() {
            admissions.push((now.as_nanos(), units));
        }
    }
    admissions
}

/// Whether the units between any two admissions are within the bound, if the window were
/// `slack_ns` longer.
fn within_bounds(algorithm: &Algorithm, admissions: &Admissions, slack_ns: u64) -> bool {
    (0..admissions.len()).all(|first| {
        let start_ns = admissions[first].0;
        let mut units = 0u128;
        admissions[first..].iter().all(|(at_ns, more)| {
            units += u128::from(*more);
            units <= bound(algorithm, Duration::from_nanos(at_ns - start_ns + slack_ns))
        })
    })
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn no_window_holds_more_than_its_bound(algorithm in algorithm(), checks in checks()) {
        let mut key = Key::new(algorithm);
        let admissions = admitted(&mut key, &checks, START);
        prop_assert!(within_bounds(&algorithm, &admissions, 0), "{:?}", admissions);
    }

    #[test]
    fn no_epoch_window_holds_more_than_its_units(quota in quota(), checks in checks()) {
        let window = FixedWindow::new(quota, Anchor::Epoch);
        let admissions = admitted(&mut Key::new(window.into()), &checks, START);
        let number = |at_ns: u64| u128::from(at_ns) / quota.period().as_nanos();
        for (at_ns, _) in &admissions {
            let same = admissions.iter().filter(|(other, _)| number(*other) == number(*at_ns));
            prop_assert!(same.map(|(_, units)| units).sum::<u64>() <= quota.units());
        }
    }

    /// However long nobody asks, and whatever happened before.
    #[test]
    fn idling_earns_no_more_than_the_limit(
        algorithm in algorithm(), script in script(), idle in prop::collection::vec(pause(), 0..40),
    ) {
        let mut key = Key::new(algorithm);
        let played = key.play(&script, START);
        let now = idle.iter().fold(played, |now, pause| now.after(pause.of(key.fill())));
        let mut units = 0;
        while key.check(1, now).is_allowed() {
            units += 1;
            prop_assert!(units <= key.limit());
        }
    }
}

/// A clock that jumps: forward by a pause, or back by one, or back by a nanosecond or two.
#[derive(Clone, Copy, Debug)]
enum Jump {
    Forward,
    Back,
    Jitter,
}

fn jumps() -> impl Strategy<Value = Vec<(Jump, Beat)>> {
    let jump =
        prop_oneof![6 => Just(Jump::Forward), 1 => Just(Jump::Back), 2 => Just(Jump::Jitter)];
    (checks(), prop::collection::vec(jump, 60))
        .prop_map(|(checks, jumps)| jumps.into_iter().zip(checks).collect())
}

/// Windows that start at multiples of their period, whenever that comes. Whoever passes such a
/// moment twice starts a window twice, or would be locked for more than a period.
fn starts_at_the_epoch(algorithm: &Algorithm) -> bool {
    match algorithm {
        Algorithm::FixedWindow(window) => window.anchor() == Anchor::Epoch,
        Algorithm::SlidingWindow(window) => window.buckets() == 1,
        _ => false,
    }
}

proptest! {
    #![proptest_config(config())]

    /// What counts is how far the clock has run forwards in all: going over the same time twice
    /// earns nothing more than running on would have.
    #[test]
    fn a_clock_that_jumps_back_grants_nothing_twice(
        algorithm in algorithm(), jumps in jumps(),
    ) {
        if starts_at_the_epoch(&algorithm) {
            return Ok(());
        }
        let mut key = Key::new(algorithm);
        let (mut now, mut run_ns, mut admissions) = (START, 0, Vec::new());
        for (jump, beat) in jumps {
            let Act::Check(units) = beat.act else { continue };
            let pause = beat.pause.of(key.fill());
            let then = match jump {
                Jump::Forward => now.after(pause),
                Jump::Back => now.before(pause),
                Jump::Jitter => now.before(pause.min(SKEW)),
            };
            run_ns += then.since(now).as_nanos() as u64;
            now = then;
            key.state.rewind(&algorithm, now);
            if key.check(units, now).is_allowed() {
                admissions.push((run_ns, units));
            }
        }
        let skew_ns = SKEW.as_nanos() as u64;
        prop_assert!(within_bounds(&algorithm, &admissions, skew_ns), "{:?}", admissions);
    }

    #[test]
    fn a_clock_set_back_shows_no_more_and_locks_no_longer_than_a_fill_and_the_skew(
        algorithm in algorithm(), script in script(), back in pause(), far in any::<bool>(),
        units in 1..30u64,
    ) {
        let mut key = Key::new(algorithm);
        let before = key.play(&script, START);
        let shown = key.peek(before).remaining();
        let now = if far { Timestamp::from_millis(1) } else { before.before(back.of(key.fill())) };
        key.state.rewind(&algorithm, now);
        prop_assert!(key.peek(now).remaining() <= shown);
        let lock = key.fill() + SKEW;
        let decision = key.check(units, now);
        let snapshot = key.peek(now);
        prop_assert!(snapshot.reset_after() <= lock, "{:?} > {lock:?}", snapshot.reset_after());
        prop_assert!(key.next_is_exact(now) && key.reset_is_exact(now), "{snapshot:?}");
        if let Some(wait) = decision.retry().and_then(|retry| retry.after()) {
            prop_assert!(wait <= lock);
            prop_assert!(key.allows(units, now.after(wait)));
            prop_assert!(!key.allows(units, now.after(wait).before(TICK)));
        }
        let recovered = now.after(lock);
        prop_assert_eq!(key.peek(recovered), Key::new(algorithm).peek(recovered));
    }
}

/// Checks that come late, each by its own delay: they arrive in order of the time at which they do.
fn arrivals() -> impl Strategy<Value = Vec<(Beat, Pause)>> {
    let delay = prop_oneof![2 => Just(None), 3 => pause().prop_map(Some)];
    (checks(), prop::collection::vec(delay, 60)).prop_map(|(checks, delays)| {
        let none = Pause::NONE;
        checks.into_iter().zip(delays.into_iter().map(|delay| delay.unwrap_or(none))).collect()
    })
}

proptest! {
    #![proptest_config(config())]

    /// Whatever is admitted by calls that begin (read the clock) and end within an interval is
    /// within the bound of that interval, however long each takes and in whatever order they
    /// arrive. And what the late are told is true.
    #[test]
    fn late_callers_exceed_no_bound_and_are_told_the_truth(
        algorithm in algorithm(), arrivals in arrivals(), refunds in any::<u64>(),
    ) {
        let mut key = Key::new(algorithm);
        // Read at, decided at, units; and what refunds have made possible besides.
        let (mut now, mut admitted, mut refunded) = (START, Vec::new(), 0u128);
        for (index, (beat, delay)) in arrivals.into_iter().enumerate() {
            let Act::Check(units) = beat.act else { continue };
            now = now.after(beat.pause.of(key.fill()));
            let reading = now.before(delay.of(key.fill()) * 3);
            if refunds >> (index % 64) & 7 == 7 {
                key.refund(1, reading);
                refunded += 1;
            }
            let before = key.state.clone();
            let decision = key.check(units, reading);
            if decision.is_allowed() {
                admitted.push((reading.as_nanos(), now.as_nanos(), units));
            } else {
                prop_assert_eq!(&key.state, &before, "a denial changes nothing");
            }
            if let Some(wait) = decision.retry().and_then(|retry| retry.after()) {
                prop_assert!(key.allows(units, reading.after(wait)));
                prop_assert!(!key.allows(units, reading.after(wait).before(TICK)));
            }
            prop_assert!(key.next_is_exact(reading), "{:?}", key.peek(reading));
        }
        for &(start, _, _) in &admitted {
            for &(_, end, _) in &admitted {
                let is_within = |read: u64, decided: u64| read >= start && decided <= end;
                let within = admitted.iter().filter(|one| is_within(one.0, one.1));
                let units: u128 = within.map(|(_, _, units)| u128::from(*units)).sum();
                let length = Duration::from_nanos(end.saturating_sub(start));
                let most = bound(&algorithm, length) + refunded;
                prop_assert!(units <= most, "{units} > {most} from {start} to {end}: {admitted:?}");
            }
        }
    }

    /// GCRA keeps more than that: its bound holds by the readings alone, whenever they arrive.
    #[test]
    fn gcra_exceeds_no_bound_by_the_readings_themselves(quota in quota(), arrivals in arrivals()) {
        let gcra = tollway_core::gcra::Gcra::new(quota);
        let mut key = Key::new(gcra.into());
        let (mut now, mut admissions) = (START, Vec::new());
        for (beat, delay) in arrivals {
            let Act::Check(units) = beat.act else { continue };
            now = now.after(beat.pause.of(key.fill()));
            let reading = now.before(delay.of(key.fill()) * 3);
            if key.check(units, reading).is_allowed() {
                admissions.push((reading.as_nanos(), units));
            }
        }
        admissions.sort_unstable();
        prop_assert!(within_bounds(&gcra.into(), &admissions, 0), "{:?}", admissions);
    }
}
