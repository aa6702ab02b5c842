//! Jobs that must start before a deadline, and waits after failures.

use std::collections::BTreeSet;
use std::time::Duration;

use tollway_queue::{Backoff, JobState, MissedDeadline, NewJob, Outcome, QueueSettings, Settled};

use super::DONE;
use super::bench::{At, Bench};
use crate::world::{AtMoment as _, START, after, get, group, job};

const REASON: &str = "its deadline passed before it could start";

fn within(seconds: u64) -> NewJob {
    job("g").start_within(Duration::from_secs(seconds))
}

fn reasons(bench: &Bench, at: f64) -> Vec<(u64, String)> {
    let dead = get(bench.queues().dead(&bench.name, None, 10, after(at)));
    let reason = |job: tollway_queue::Job| match job.state {
        JobState::Dead { reason, .. } => (job.id.0, reason),
        state => panic!("{state:?}"),
    };
    dead.into_iter().map(reason).collect()
}

pub(super) fn a_job_that_misses_its_deadline_is_a_dead_letter_and_does_not_start(at: At) {
    let bench = Bench::new(at, "slots 1/10s");
    let first = bench.put(within(60), START);
    let late = bench.put(within(5), START);
    let delayed = bench.put(within(7).after(Duration::from_secs(6)), START);
    let plain = bench.put(job("g"), START);
    let absolute = bench.put(job("g").start_before(after(9.0)), START);
    let lease = bench.lease(START).remove(0);
    assert_eq!(lease.id.0, first);
    bench.settle(lease.token(), DONE, START);
    let waiting =
        |at: f64| get(bench.queues().stats(&bench.name, None, 1, after(at))).queue.waiting;
    assert_eq!((waiting(4.9), waiting(5.0)), (3, 2));
    assert_eq!(reasons(&bench, 8.9), [late, delayed].map(|id| (id, REASON.to_owned())));
    assert_eq!(reasons(&bench, 9.0).len(), 3);
    // Whoever was behind comes before its time is over.
    let lease = bench.lease(after(10.0)).remove(0);
    assert_eq!(lease.id.0, plain);
    bench.settle(lease.token(), DONE, after(10.0));
    let stats = get(bench.queues().stats(&bench.name, None, 1, after(10.0)));
    assert_eq!((stats.totals.missed, stats.totals.dead, stats.queue.waiting), (3, 3, 0));
    // Revived, it may start whenever it can.
    assert!(get(bench.queues().revive(&bench.name, tollway_queue::JobId(absolute), after(20.0))));
    assert_eq!(bench.lease(after(20.0))[0].id.0, absolute);
}

pub(super) fn a_job_that_runs_at_its_deadline_may_end_but_is_not_tried_again(at: At) {
    let bench = Bench::new(at, "concurrent 5");
    let [fails, ends, gives_back] = [(); 3].map(|()| bench.put(within(5), START));
    let leases = bench.lease(START);
    let token = |id: u64| leases.iter().find(|lease| lease.id.0 == id).expect("leased").token();
    assert_eq!(reasons(&bench, 6.0), [], "they run");
    let failed = Outcome::Failed { reason: "no".into(), retry: true };
    assert!(matches!(bench.settle(token(fails), failed, after(6.0)), Settled::Waiting { .. }));
    assert_eq!(bench.settle(token(ends), DONE, after(6.0)), Settled::Done);
    bench.settle(token(gives_back), Outcome::Released, after(6.0));
    assert!(bench.lease(after(60.0)).is_empty());
    assert_eq!(reasons(&bench, 60.0), [fails, gives_back].map(|id| (id, REASON.to_owned())));
}

pub(super) fn jobs_that_miss_their_deadline_are_dropped_if_the_settings_say_so(at: At) {
    let settings =
        QueueSettings { missed_deadline: MissedDeadline::Drop, ..QueueSettings::default() };
    let bench = Bench::with(at, settings);
    let id = tollway_queue::JobId(bench.put(within(5).key("k"), START));
    get(bench.queues().pause(&bench.name, Some(&group("g")), true, START));
    assert!(get(bench.queues().job(&bench.name, id, after(4.9))).is_some());
    assert!(get(bench.queues().job(&bench.name, id, after(5.0))).is_none());
    let stats = get(bench.queues().stats(&bench.name, None, 1, after(5.0)));
    assert_eq!((stats.totals.missed, stats.dead, stats.queue.waiting), (1, 0, 0));
}

pub(super) fn jobs_that_fail_together_are_tried_again_apart_and_no_later_than_the_jitter(at: At) {
    let wait = Duration::from_secs(20);
    let settings = QueueSettings { backoff: Backoff::fixed(wait), ..QueueSettings::default() };
    let bench = Bench::with(at, settings);
    get(bench.queues().enqueue(&bench.name, vec![job("g"); 50], START));
    let failed = Outcome::Failed { reason: "no".into(), retry: true };
    let again = |token| match bench.settle(token, failed.clone(), START) {
        Settled::Waiting { from } => from,
        settled => panic!("{settled:?}"),
    };
    let from: BTreeSet<_> = bench.lease(START).iter().map(|lease| again(lease.token())).collect();
    assert!(from.first() >= Some(&START.after(wait)));
    assert!(from.last() <= Some(&after(22.0)), "ten percent");
    assert!(from.len() >= 45, "they come apart: {}", from.len());
}
