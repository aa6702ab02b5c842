//! What is given to a queue is checked before any backend sees it: each has the same bounds.

use std::time::Duration;

use tollway_core::concurrency::Concurrency;
use tollway_core::{Algorithm, Timestamp};
use tollway_queue::{
    Author, Error, ErrorKind, JobId, JobState, LeaseToken, Limit, Operation, Outcome,
    QueueSettings, Recurring, Reply, Rhythm,
};

use super::DONE;
use super::bench::{At, Bench};
use crate::world::{AtMoment as _, START, after, get, group, job, now_or_soon, queue};

/// What is said of an operation that must be refused.
fn refusal(bench: &Bench, operation: Operation) -> String {
    let call = bench.queues().on(&bench.name, operation, START);
    let error: Error = now_or_soon::<Reply>(call).expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    error.to_string()
}

fn every(interval: Duration) -> Recurring {
    Recurring { name: "r".to_owned(), rhythm: Rhythm::Every(interval), job: job("g") }
}

pub(super) fn what_is_outside_its_bounds_is_refused_by_name(at: At) {
    let bench = Bench::new(at, "concurrent 10");
    let token = LeaseToken { id: JobId(1), attempt: 1 };
    let lease = |worker: String| Operation::Lease { max: 1, worker };
    let recurring = |recurring| Operation::PutRecurring(Box::new(recurring));
    let limits = |limits| Operation::SetLimits { group: group("g"), limits: Some(limits) };
    let none = Limit::Slots { units: 0, window: Duration::ZERO };
    let large = vec![b'x'; 300_000];
    let hour = every(Duration::from_secs(3_600));
    let cases = [
        (lease("w".repeat(256)), "worker: found 256 bytes, expected at most 255 bytes"),
        (Operation::Enqueue(vec![job("g"); 1_001]), "jobs: found 1001, expected at most 1000"),
        (Operation::Heartbeat(vec![token; 1_001]), "leases: found 1001, expected at most 1000"),
        (Operation::Settle(vec![(token, DONE); 1_001]), "outcomes: found 1001, expected"),
        (Operation::Enqueue(vec![job("g").weight(0)]), "weight: found 0, expected 1 to 1000000"),
        (Operation::Enqueue(vec![job("g").key("")]), "idempotency key: found 0 bytes, expected"),
        (Operation::Enqueue(vec![job("g").attempts_max(0)]), "attempts_max: found 0, expected"),
        (Operation::Enqueue(vec![job("g").at(Timestamp::MAX)]), "start: found a delay of "),
        (limits(vec![none; 9]), "limits: found 9, expected at most 8 limits"),
        (limits(vec![none]), "units of a limit: found 0, expected 1 to 1000000"),
        (recurring(every(Duration::ZERO)), "interval: found 0ns, expected 1 s to ten years"),
        (recurring(Recurring { name: String::new(), ..hour.clone() }), "name of a recurring job"),
        (recurring(Recurring { job: job("g").weight(0), ..hour.clone() }), "weight: found 0"),
        (
            recurring(Recurring {
                job: tollway_queue::NewJob::new(group("g"), large.clone()),
                ..hour
            }),
            "payload: found 300000 bytes, expected at most 262144 bytes (payload_max)",
        ),
        (
            Operation::Change {
                settings: Box::new(QueueSettings { attempts_max: 0, ..Default::default() }),
                author: Author::CALL,
            },
            "attempts_max: found 0, expected at least 1",
        ),
    ];
    for (operation, expected) in cases {
        let told = refusal(&bench, operation);
        assert!(told.starts_with("invalid ") && told.contains(expected), "{told:?}, {expected:?}");
    }
    // A policy that only slots can keep must have been made slots of.
    let concurrency =
        Algorithm::from(Concurrency::new(5, Duration::from_secs(1)).expect("a limit"));
    for limit in [none, Limit::Policy(concurrency)] {
        let put = bench.queues().put_shared(&queue("all"), limit, START);
        assert_eq!(now_or_soon(put).expect_err("refused").kind(), ErrorKind::Invalid);
    }
    assert_eq!(get(bench.queues().stats(&bench.name, None, 1, START)).queue, Default::default());
    assert!(get(bench.queues().recurring(&bench.name)).is_empty());
}

pub(super) fn what_asks_for_more_than_a_call_may_give_is_given_that(at: At) {
    let bench = Bench::new(at, "concurrent 10000");
    get(bench.queues().enqueue(&bench.name, vec![job("g"); 1_000], START));
    get(bench.queues().enqueue(&bench.name, vec![job("g"); 5], START));
    assert_eq!(get(bench.queues().peek(&bench.name, &group("g"), 5_000, START)).len(), 1_000);
    assert_eq!(get(bench.queues().stats(&bench.name, None, 5_000, START)).groups.len(), 1);
    let leased = get(bench.queues().lease(&bench.name, 5_000, &"w".repeat(255), START)).leases;
    assert_eq!(leased.len(), 1_000);
    // A reason is cut, and a wait lowered: the work was done all the same.
    let reason = "é".repeat(1_000);
    let failed = Outcome::Failed { reason: reason.clone(), retry: false };
    bench.settle(leased[0].token(), failed, START);
    let dead = get(bench.queues().dead(&bench.name, None, 5_000, START)).remove(0);
    assert!(matches!(dead.state, JobState::Dead { reason: kept, .. } if kept == reason[..1_024]));
    let limited = Outcome::Limited { wait: Duration::MAX };
    let settled = bench.settle(leased[1].token(), limited, after(0.0));
    let day = START.after(Duration::from_secs(86_400));
    assert_eq!(settled, tollway_queue::Settled::Waiting { from: day });
}
