use std::ops::RangeInclusive;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tollway_core::concurrency::Concurrency;
use tollway_core::fixed_window::{Anchor, FixedWindow};
use tollway_core::leaky_bucket::LeakyBucket;
use tollway_core::shares::{Owner, Percent};
use tollway_core::sliding_window::SlidingWindow;
use tollway_core::{Charge, Key, Policy, Quota, Timestamp};
use tollway_memory::{Capacity, MemoryStore};

const THREADS: u64 = 4;
const CALLS: u64 = 1_000;
const LIMIT: u64 = 2_500;
const NOW: Timestamp = Timestamp::from_millis(1_700_000_000_000);

/// One policy per place and algorithm; all allow `LIMIT` and refill nothing during the test.
fn policies() -> Vec<Policy> {
    let quota: Quota = format!("{LIMIT}/10h").parse().unwrap();
    let fraction: Quota = format!("7/100h burst {LIMIT}").parse().unwrap();
    vec![
        Policy::new("narrow", quota).unwrap(),
        Policy::new("fraction", fraction).unwrap(),
        Policy::new("fixed", FixedWindow::new(quota, Anchor::FirstRequest)).unwrap(),
        Policy::new("leaky", LeakyBucket::new(LIMIT, 1, Duration::from_secs(3_600)).unwrap())
            .unwrap(),
        Policy::new("sliding", SlidingWindow::new(quota, 10).unwrap()).unwrap(),
        Policy::new("permits", Concurrency::new(LIMIT, Duration::from_secs(3_600)).unwrap())
            .unwrap(),
    ]
}

/// What came of one round on all threads.
struct Round {
    admitted: u64,
    /// How often a call followed one of another thread: how much the threads were in each other's
    /// way.
    met: u64,
}

/// Makes `calls` calls on each thread, all threads at once.
fn hammer(calls: u64, call: impl Fn(u64, u64) -> bool + Sync) -> Round {
    let (admitted, met, last) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let start = Barrier::new(THREADS as usize);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (call, admitted, met, last, start) = (&call, &admitted, &met, &last, &start);
            scope.spawn(move || {
                start.wait();
                for number in 0..calls {
                    // On a busy machine a thread may have its core for a whole round.
                    if number % 16 == 0 {
                        std::thread::yield_now();
                    }
                    let mine = call(thread, number);
                    admitted.fetch_add(u64::from(mine), Ordering::Relaxed);
                    let before = last.swap(thread, Ordering::Relaxed);
                    met.fetch_add(u64::from(before != thread), Ordering::Relaxed);
                }
            });
        }
    });
    Round { admitted: admitted.into_inner(), met: met.into_inner() }
}

/// Plays rounds until the threads have met often enough to prove something: on a busy machine one
/// round may pass with each thread running alone.
fn until_they_met(
    mut round: impl FnMut(usize) -> Round,
    expected: RangeInclusive<u64>,
    what: &str,
) {
    let mut met = 0;
    for number in 0..200 {
        let round = round(number);
        let admitted = round.admitted;
        assert!(expected.contains(&admitted), "{what}, round {number}: {admitted}");
        met += round.met;
        if met > 1_000 {
            return;
        }
    }
    panic!("{what}: the threads met only {met} times, nothing was tested");
}

#[test]
fn all_cores_on_one_key_never_take_one_too_many() {
    for policy in policies() {
        let store = MemoryStore::new(Capacity::keys(1_000));
        let round = |number: usize| {
            let key = format!("everybody{number}");
            let charge = Charge::new(&policy, Key::new(&key).unwrap());
            hammer(CALLS, |_, _| store.check(&charge, NOW).is_allowed())
        };
        until_they_met(round, LIMIT..=LIMIT, policy.name());
    }
}

/// Three owners and one who is none, all greedy: each has its floor, and nobody a unit too many.
#[test]
fn owners_on_all_cores_have_their_floors_and_never_take_one_too_many() {
    let floor = Percent::from_hundredths(2_000);
    let owner = |key: &str| Owner { key: key.to_owned(), floor, ..Owner::default() };
    let owners = ["0", "1", "2"].map(owner).to_vec();
    let quota: Quota = format!("{LIMIT}/10h").parse().unwrap();
    let policy = Policy::shared("shared", quota, None, owners).unwrap();
    let keys = ["0", "1", "2", "3"].map(|key| Key::new(key).unwrap());
    let store = MemoryStore::new(Capacity::keys(1_000));
    let kept = 3 * LIMIT / 10;
    let round = |_| {
        let had = keys.map(|_| AtomicU64::new(0));
        let round = hammer(CALLS, |thread, _| {
            let charge = Charge::new(&policy, keys[thread as usize]);
            let allowed = store.check(&charge, NOW).is_allowed();
            had[thread as usize].fetch_add(u64::from(allowed), Ordering::Relaxed);
            allowed
        });
        assert!(had[..3].iter().all(|had| had.load(Ordering::Relaxed) >= LIMIT / 10), "{had:?}");
        keys.iter().for_each(|key| store.reset(&Charge::new(&policy, *key), NOW));
        round
    };
    // Whoever takes of his floor after all else was lent adds to what was taken.
    until_they_met(round, LIMIT - kept..=LIMIT, "shared");
}

/// Threads name the same two keys in opposite orders; each admission takes from both.
#[test]
fn overlapping_requests_take_from_all_keys_or_from_none() {
    let policies = policies();
    let store = MemoryStore::new(Capacity::keys(1_000));
    let (one, other) = (Key::new("one").unwrap(), Key::new("other").unwrap());
    for pair in [[0, 1], [0, 2], [1, 4], [2, 3]] {
        let [first, second] = pair.map(|at: usize| &policies[at]);
        let request = [Charge::new(first, one), Charge::new(second, other)];
        let reversed = [request[1], request[0]];
        let round = |_| {
            let round = hammer(CALLS, |thread, number| {
                let request = if (thread + number) % 2 == 0 { &request } else { &reversed };
                store.check_all(request, NOW).is_allowed()
            });
            assert!(request.iter().all(|charge| store.peek(charge, NOW).remaining() == 0));
            request.iter().for_each(|charge| store.reset(charge, NOW));
            round
        };
        until_they_met(round, LIMIT..=LIMIT, &format!("{} and {}", first.name(), second.name()));
    }
}
