//! Several limits on one job, and limits that are changed.

use tollway_core::Timestamp;
use tollway_queue::{Limit, QueueSettings};

use super::DONE;
use super::bench::{At, Bench};
use crate::world::{AtMoment as _, START, after, get, job, queue};

fn limit(text: &str) -> Limit {
    text.parse().expect("a limit")
}

/// Gives the queue's limit and the one that it shares these units.
fn set(bench: &Bench, of_queue: &str, of_all: &str, now: Timestamp) {
    get(bench.queues().put_shared(&queue("all"), limit(of_all), now));
    let settings = QueueSettings {
        queue_limits: vec![limit(of_queue)],
        shared: vec![queue("all")],
        ..QueueSettings::default()
    };
    get(bench.queues().put_queue(&bench.name, settings, now));
}

pub(super) fn a_job_that_one_limit_refuses_takes_nothing_of_the_others(at: At) {
    // START is the start of a window of 1,000 s.
    for of_group in ["gcra 4/1000s burst 4", "sliding 4/1000s", "fixed 4/1000s", "leaky 4 1/1000s"]
    {
        let bench = Bench::with(at, QueueSettings::default());
        get(bench.queues().put_shared(&queue("all"), limit("fixed 4/1000s"), START));
        let settings = QueueSettings {
            group_limits: vec![limit(of_group), limit("concurrent 1")],
            queue_limits: vec![limit("window 4/1000s")],
            shared: vec![queue("all")],
            ..QueueSettings::default()
        };
        get(bench.queues().put_queue(&bench.name, settings, START));
        get(bench.queues().enqueue(&bench.name, vec![job("g"); 6], START));
        for round in 0..4 {
            let now = after(f64::from(round));
            let leases = bench.lease(now);
            assert_eq!(leases.len(), 1, "{of_group}, round {round}");
            // The one that runs is all that may: whoever asks takes nothing of the other limits.
            for _ in 0..10 {
                assert!(bench.lease(now).is_empty(), "{of_group}, round {round}");
            }
            bench.settle(leases[0].token(), DONE, now);
        }
        assert!(bench.lease(after(5.0)).is_empty(), "{of_group}: four is all there are");
    }
}

pub(super) fn limits_of_the_queue_and_shared_ones_are_changed_while_jobs_run(at: At) {
    let bench = Bench::with(at, QueueSettings::default());
    set(&bench, "slots 2/10s", "slots 2/10s", START);
    let jobs = (0..8).map(|n| job(&format!("g{n}"))).collect();
    get(bench.queues().enqueue(&bench.name, jobs, START));
    let mut running = bench.lease(START);
    assert_eq!(running.len(), 2);
    set(&bench, "slots 4/10s", "slots 2/10s", START);
    assert!(bench.lease(START).is_empty(), "the shared one binds");
    set(&bench, "slots 4/10s", "slots 3/10s", START);
    running.extend(bench.lease(START));
    assert_eq!(running.len(), 3, "what runs counts under the new limit");
    set(&bench, "slots 1/10s", "slots 4/10s", START);
    for lease in &running {
        bench.settle(lease.token(), DONE, after(1.0));
    }
    assert!(bench.lease(after(10.9)).is_empty(), "what was used stays used");
    assert_eq!(bench.lease(after(11.0)).len(), 1, "one slot is all that is left");
    // A longer window reaches back: calls that ended 10 s ago count again.
    set(&bench, "slots 4/20s", "slots 4/20s", after(11.0));
    assert!(bench.lease(after(11.0)).len() <= 3);
}
