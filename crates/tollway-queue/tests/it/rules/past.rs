//! What a job remembers of attempts that did not get it done.

use std::time::Duration;

use tollway_core::Timestamp;
use tollway_queue::{AttemptEnd, Job, JobId, JobState, Outcome, PastAttempt, QueueSettings};

use super::DONE;
use super::bench::{At, Bench};
use crate::world::{AtMoment as _, START, after, get, job};

fn failed(reason: &str) -> Outcome {
    Outcome::Failed { reason: reason.into(), retry: true }
}

/// A queue whose leases last 10 s, and that tries again 1 s after a failure.
fn bench(at: At, attempts_max: u32) -> Bench {
    let limit = "concurrent 9".parse().expect("a limit");
    Bench::with(
        at,
        QueueSettings {
            lease: Duration::from_secs(10),
            attempts_max,
            backoff_jitter: 0,
            ..QueueSettings::with_limit(limit)
        },
    )
}

fn look(bench: &Bench, id: u64, at: Timestamp) -> Job {
    get(bench.queues().job(&bench.name, JobId(id), at)).expect("it is known")
}

/// Leases the one job as `worker` and says what came of it.
fn attempt(bench: &Bench, worker: &str, at: f64, outcome: Outcome, ended_at: f64) {
    let leased = get(bench.queues().lease(&bench.name, 1, worker, after(at))).leases;
    bench.settle(leased[0].token(), outcome, after(ended_at));
}

fn past(attempt: u32, worker: &str, leased_at: f64, ended_at: f64, end: AttemptEnd) -> PastAttempt {
    let (leased_at, ended_at) = (after(leased_at), after(ended_at));
    PastAttempt { attempt, worker: worker.to_owned(), leased_at, ended_at, end }
}

pub(super) fn a_job_tells_how_each_attempt_ended_that_did_not_get_it_done(at: At) {
    let bench = bench(at, 9);
    let id = bench.put(job("g"), START);
    assert_eq!(look(&bench, id, START).past, []);
    attempt(&bench, "ada", 0.0, failed("no such member"), 0.5);
    let wait = Duration::from_secs(2);
    attempt(&bench, "bob", 2.0, Outcome::Limited { wait }, 2.25);
    attempt(&bench, "ada", 5.0, Outcome::Released, 6.0);
    // Nothing is heard of this one.
    get(bench.queues().lease(&bench.name, 1, "eve", after(7.0)));
    let expected = [
        past(1, "ada", 0.0, 0.5, AttemptEnd::Failed { reason: "no such member".into() }),
        past(2, "bob", 2.0, 2.25, AttemptEnd::Limited { wait }),
        past(3, "ada", 5.0, 6.0, AttemptEnd::Released),
        past(4, "eve", 7.0, 17.0, AttemptEnd::Expired),
    ];
    let running = look(&bench, id, after(8.0));
    assert_eq!(running.past, expected[..3]);
    let JobState::Running { leased_at, .. } = running.state else { panic!("{running:?}") };
    assert_eq!(leased_at, after(7.0));
    let leased = get(bench.queues().lease(&bench.name, 1, "ada", after(20.0))).leases.remove(0);
    assert_eq!((leased.leased_at, leased.expires_at), (after(20.0), after(30.0)));
    assert_eq!(look(&bench, id, after(20.0)).past, expected);
    bench.settle(leased.token(), DONE, after(21.0));
    let done = look(&bench, id, after(22.0));
    assert_eq!((&done.past[..], done.attempt), (&expected[..], 5));
    assert!(matches!(done.state, JobState::Done { .. }));
    // Another job has its own.
    let other = bench.put(job("g"), after(23.0));
    assert_eq!(look(&bench, other, after(23.0)).past, []);
}

pub(super) fn a_dead_letter_tells_of_its_attempts_and_still_does_when_it_lives_again(at: At) {
    let bench = bench(at, 2);
    let id = bench.put(job("g"), START);
    attempt(&bench, "w", 0.0, failed("first"), 0.0);
    attempt(&bench, "w", 5.0, failed("second"), 5.0);
    let dead = get(bench.queues().dead(&bench.name, None, 9, after(6.0))).remove(0);
    assert_eq!(dead.state, JobState::Dead { at: after(5.0), reason: "second".into() });
    let end = |reason: &str| AttemptEnd::Failed { reason: reason.into() };
    let expected = [past(1, "w", 0.0, 0.0, end("first")), past(2, "w", 5.0, 5.0, end("second"))];
    assert_eq!(dead.past, expected);
    assert_eq!(dead.payload, job("g").payload);
    assert!(get(bench.queues().revive(&bench.name, JobId(id), after(7.0))));
    let alive = look(&bench, id, after(7.0));
    assert_eq!((&alive.past[..], alive.failures), (&expected[..], 0));
    let peeked = get(bench.queues().peek(&bench.name, &alive.group, 9, after(7.0))).remove(0);
    assert_eq!(peeked, alive);
}

pub(super) fn of_many_attempts_the_last_are_told_and_long_reasons_are_cut(at: At) {
    let bench = bench(at, 99);
    let id = bench.put(job("g"), START);
    for round in 0..20 {
        let at = f64::from(round) * 1_000.0;
        // Two bytes to a letter, so that the bound lies in the middle of one.
        attempt(&bench, "w", at, failed(&format!("x{}", "é".repeat(300))), at);
    }
    let told = look(&bench, id, after(20_000.0)).past;
    let numbers: Vec<u32> = told.iter().map(|past| past.attempt).collect();
    assert_eq!(numbers, (13..=20).collect::<Vec<u32>>());
    assert_eq!(numbers.len(), PastAttempt::COUNT_MAX);
    let expected = AttemptEnd::Failed { reason: format!("x{}", "é".repeat(127)) };
    assert!(told.iter().all(|past| past.end == expected), "{told:?}");
}

pub(super) fn jobs_that_run_are_listed_with_their_workers_page_by_page(at: At) {
    let bench = bench(at, 9);
    let ids: Vec<u64> = (0..5).map(|_| bench.put(job("g"), START)).collect();
    assert_eq!(get(bench.queues().running(&bench.name, None, 9, START)), []);
    attempt(&bench, "ada", 0.0, Outcome::Released, 1.0);
    for worker in ["ada", "bob", "eve", "ada"] {
        get(bench.queues().lease(&bench.name, 1, worker, after(2.0)));
    }
    let first = get(bench.queues().running(&bench.name, None, 3, after(3.0)));
    let told: Vec<u64> = first.iter().map(|job| job.id.0).collect();
    assert_eq!(told, ids[..3]);
    assert_eq!((first[0].past.len(), first[0].attempt), (1, 2));
    assert_eq!(first[1].payload, job("g").payload);
    let JobState::Running { worker, leased_at, expires_at, .. } = &first[1].state else {
        panic!("{first:?}")
    };
    assert_eq!((worker.as_str(), *leased_at, *expires_at), ("bob", after(2.0), after(12.0)));
    assert_eq!(first[0], look(&bench, ids[0], after(3.0)), "as if it was looked up");
    let last = first.last().map(|job| job.id);
    let second = get(bench.queues().running(&bench.name, last, 3, after(3.0)));
    assert_eq!(second.iter().map(|job| job.id.0).collect::<Vec<_>>(), ids[3..4]);
    // Nobody was heard of for a lease.
    assert_eq!(get(bench.queues().running(&bench.name, None, 9, after(12.0))), []);
}
