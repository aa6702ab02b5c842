//! Clocks that are set: back, ahead, and ahead and back again.

use std::collections::BTreeMap;
use std::time::Duration;

use tollway_core::Timestamp;
use tollway_queue::{JobId, JobState, Outcome, Settled};

use super::DONE;
use super::bench::{At, Bench};
use crate::world::{AtMoment as _, START, after, get, job};

/// By how much the clock is wrong, in seconds.
const STEP: f64 = 3_600.0;

pub(super) fn a_clock_that_is_set_back_neither_grants_twice_nor_locks_a_group(at: At) {
    let bench = Bench::new(at, "slots 1/10s");
    for _ in 0..3 {
        bench.put(job("g"), START);
    }
    let token = bench.lease(START).remove(0).token();
    bench.settle(token, DONE, after(1.0));
    // An hour back: the slot that was to be free in 9 s is free in 9 s.
    let back = START.before(Duration::from_secs(3_600));
    assert!(bench.lease(back.after(Duration::from_secs(2))).is_empty());
    assert_eq!(bench.lease(back.after(Duration::from_secs(12))).len(), 1);
}

pub(super) fn a_clock_that_jumps_ahead_ends_leases_and_frees_slots_as_it_says(at: At) {
    let bench = Bench::new(at, "slots 2/10s");
    let [a, b, c, d] = [(); 4].map(|()| bench.put(job("g"), START));
    let soon = bench.put(job("g").after(Duration::from_secs(1_800)), START);
    let later = bench.put(job("g").after(Duration::from_secs(7_200)), START);
    let first = bench.lease(START);
    assert_eq!(first.iter().map(|lease| lease.id.0).collect::<Vec<_>>(), [a, b]);
    bench.settle(first[0].token(), DONE, after(1.0));

    // An hour ahead: the lease is over, and so are both windows; two start and not a third.
    let again = bench.lease(after(STEP));
    let seen: Vec<_> = again.iter().map(|l| (l.id.0, l.attempt, l.failures)).collect();
    assert_eq!(seen, [(b, 2, 1), (c, 1, 0)]);
    assert_eq!(bench.settle(first[1].token(), DONE, after(STEP)), Settled::Lost);
    let stats = get(bench.queues().stats(&bench.name, None, 0, after(STEP)));
    assert_eq!((stats.totals.expired, stats.queue.running, stats.queue.waiting), (1, 2, 2));
    assert_eq!(stats.queue.delayed, 1, "what was due in half an hour waits, the other is delayed");

    for lease in &again {
        bench.settle(lease.token(), DONE, after(STEP + 1.0));
    }
    assert_eq!(latest(&bench, d, after(STEP + 1.0)), Some(after(STEP + 11.0)));
    assert!(bench.lease(after(STEP + 10.9)).is_empty());
    assert_eq!(bench.ids(after(STEP + 11.0)), [d, soon]);
    assert!(latest(&bench, later, after(STEP + 11.0)) >= Some(after(7_200.0)));
}

/// When a job that waits starts at the latest, as it is told.
fn latest(bench: &Bench, id: u64, now: Timestamp) -> Option<Timestamp> {
    match get(bench.queues().job(&bench.name, JobId(id), now))?.state {
        JobState::Waiting { ready, .. } => Some(ready?.latest),
        _ => None,
    }
}

/// A call as it was in true time.
#[derive(Debug)]
struct Call {
    id: u64,
    group: String,
    dispatched: Timestamp,
    answered: Timestamp,
}

/// Sixteen jobs of two groups at two per ten seconds, while the clock is an hour ahead for a
/// second. Gives the calls from the jump on, in true time, and what the others were told after it.
fn ahead_and_back(at: At) -> (Vec<Call>, BTreeMap<u64, Timestamp>) {
    let bench = Bench::new(at, "slots 2/10s");
    let all: Vec<u64> = (0..16).map(|n| bench.put(job(["g", "h"][n % 2]), START)).collect();
    for lease in bench.lease(START) {
        assert_eq!(bench.settle(lease.token(), DONE, after(1.0)), Settled::Done);
    }
    // By the clock that is ahead all windows have passed: two more of each group, and no more.
    let leases = bench.lease(after(STEP + 1.5));
    assert_eq!(leases.len(), 4);
    assert!(bench.lease(after(STEP + 1.6)).is_empty());
    let (of_g, of_h): (Vec<_>, Vec<_>) =
        leases.into_iter().partition(|lease| lease.group.as_str() == "g");
    let mut calls = Vec::new();
    let mut note = |lease: &tollway_queue::Lease, dispatched, answered| {
        let (id, group) = (lease.id.0, lease.group.to_string());
        calls.push(Call { id, group, dispatched, answered });
    };
    for lease in &of_g {
        assert_eq!(bench.settle(lease.token(), DONE, after(STEP + 2.0)), Settled::Done);
        note(lease, after(1.5), after(2.0));
    }
    // Back again while those of the other group run: their leases hold, and nothing else starts.
    assert!(bench.lease(after(2.5)).is_empty());
    for lease in &of_h {
        assert_eq!(bench.settle(lease.token(), DONE, after(3.0)), Settled::Done);
        note(lease, after(1.5), after(3.0));
    }
    let told = |id: &u64| Some((*id, latest(&bench, *id, after(3.0))?));
    let told: BTreeMap<u64, Timestamp> = all.iter().filter_map(told).collect();
    assert_eq!(told.len(), 8, "every job that waits is told when it starts");
    let mut now = after(3.0);
    while let Some(next) = bench.next(now) {
        now = now.max(next);
        for lease in bench.lease(now) {
            assert_eq!(bench.settle(lease.token(), DONE, now), Settled::Done);
            note(&lease, now, now);
        }
    }
    (calls, told)
}

pub(super) fn a_clock_that_jumps_ahead_and_back_exceeds_no_limit_and_loses_nothing(at: At) {
    let (calls, told) = ahead_and_back(at);
    let mut ids: Vec<u64> = calls.iter().map(|call| call.id).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!((calls.len(), ids.len()), (4 + told.len(), 4 + told.len()), "each runs once");
    for (index, call) in calls.iter().enumerate() {
        let counts = |other: &&Call| {
            other.group == call.group
                && call.dispatched.since(other.answered) < Duration::from_secs(10)
        };
        let busy = calls[..index].iter().filter(counts).count();
        assert!(busy < 2, "{busy} calls count against {call:?}: {calls:?}");
    }
}

pub(super) fn a_clock_that_jumps_ahead_and_back_delays_no_job_beyond_what_it_was_told(at: At) {
    let (calls, told) = ahead_and_back(at);
    for call in &calls {
        let Some(latest) = told.get(&call.id) else { continue };
        assert!(call.dispatched <= *latest, "told {latest:?}: {call:?}");
        assert!(*latest < after(60.0), "what it is told is no hour away: {latest:?}");
    }
    // A wait that the upstream asked for while the clock was ahead is as long as it asked.
    let bench = Bench::new(at, "concurrent 2");
    let id = bench.put(job("g"), START);
    let lease = bench.lease(after(STEP)).remove(0);
    let wait = Outcome::Limited { wait: Duration::from_secs(7) };
    bench.settle(lease.token(), wait, after(STEP + 1.0));
    assert!(bench.lease(after(7.0)).is_empty());
    assert_eq!(bench.ids(after(14.0)), [id]);
}
