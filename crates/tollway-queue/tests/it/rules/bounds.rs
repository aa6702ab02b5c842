//! What is bounded, and what is named twice.

use std::time::Duration;

use tollway_queue::{Beat, ErrorKind, JobId, JobState, Outcome, QueueSettings, Retention, Settled};

use super::DONE;
use super::bench::{At, Bench};
use crate::world::{AtMoment as _, START, after, get, job, now_or_soon};

fn dead() -> Outcome {
    Outcome::Failed { reason: "no".to_owned(), retry: false }
}

pub(super) fn what_is_named_twice_in_one_call_happens_once(at: At) {
    let bench = Bench::new(at, "concurrent 1");
    let jobs = vec![job("g").key("k"), job("g").key("k"), job("g")];
    let told = get(bench.queues().enqueue(&bench.name, jobs, START));
    assert_eq!(told.iter().map(|one| one.duplicate).collect::<Vec<_>>(), [false, true, false]);
    assert!(told[0].id == told[1].id && told[0].id != told[2].id);
    let token = bench.lease(START).remove(0).token();
    let beats = get(bench.queues().heartbeat(&bench.name, &[token, token], after(1.0)));
    assert_eq!(beats, [Beat::Until(after(31.0)); 2]);
    // The first that is said of a lease counts; the other comes too late.
    let outcomes = vec![(token, DONE), (token, dead()), (token, DONE)];
    let settled = get(bench.queues().settle(&bench.name, outcomes, after(1.0)));
    assert_eq!(settled, [Settled::Done, Settled::Lost, Settled::Done]);
    let stats = get(bench.queues().stats(&bench.name, None, 0, after(1.0)));
    assert_eq!((stats.totals.done, stats.totals.failed, stats.totals.dead), (1, 0, 0));
    assert_eq!((stats.queue.waiting, stats.queue.running), (1, 0));
    assert_eq!(bench.ids(after(1.0)), [told[2].id.0], "the slot was given back once");
}

pub(super) fn what_is_kept_of_jobs_that_are_over_is_bounded_in_number_and_age(at: At) {
    let retention = Retention {
        done_max: 2,
        done_age: Duration::from_secs(60),
        dead_max: 3,
        dead_age: Duration::from_secs(120),
    };
    let bench = Bench::with(at, QueueSettings { retention, ..QueueSettings::default() });
    let run = |second: u8, outcome| {
        let now = after(f64::from(second));
        let id = bench.put(job("g"), now);
        bench.settle(bench.lease(now).remove(0).token(), outcome, now);
        id
    };
    let done: Vec<u64> = (0..5).map(|second| run(second, DONE)).collect();
    let buried: Vec<u64> = (5..10).map(|second| run(second, dead())).collect();
    let known = |ids: &[u64], at: f64| {
        let known = |id: &u64| get(bench.queues().job(&bench.name, JobId(*id), after(at)));
        ids.iter().filter(|id| known(id).is_some()).copied().collect::<Vec<_>>()
    };
    assert_eq!((known(&done, 9.0), known(&buried, 9.0)), (done[3..].into(), buried[2..].into()));
    let stats = get(bench.queues().stats(&bench.name, None, 0, after(9.0)));
    assert_eq!((stats.done, stats.dead), (2, 3));
    // By age: the last of either was done at 4 s, and died at 9 s.
    assert_eq!(known(&done, 63.5), done[4..]);
    assert_eq!(known(&done, 64.0), [0; 0]);
    assert_eq!(known(&buried, 128.5), buried[4..]);
    assert_eq!(get(bench.queues().dead(&bench.name, None, 10, after(128.5))).len(), 1);
    assert_eq!(get(bench.queues().dead(&bench.name, None, 10, after(129.0))).len(), 0);
}

pub(super) fn a_result_longer_than_a_payload_is_refused_and_its_lease_holds(at: At) {
    let bench = Bench::with(at, QueueSettings { payload_max: 10, ..QueueSettings::default() });
    let (id, other) = (bench.put(job("g"), START), bench.put(job("g"), START));
    let tokens: Vec<_> = bench.lease(START).iter().map(tollway_queue::Lease::token).collect();
    let done = |length: usize| Outcome::Done { result: Some(vec![7; length].into()) };
    let settle = |outcomes| now_or_soon(bench.queues().settle(&bench.name, outcomes, START));
    let refused = settle(vec![(tokens[1], done(10)), (tokens[0], done(11))]);
    assert_eq!(refused.expect_err("too long").kind(), ErrorKind::Invalid);
    for id in [id, other] {
        let state = get(bench.queues().job(&bench.name, JobId(id), START)).expect("kept").state;
        assert!(matches!(state, JobState::Running { .. }), "all of a call or nothing: {state:?}");
    }
    assert_eq!(settle(vec![(tokens[0], done(10))]).expect("fits"), [Settled::Done]);
    // A bound that was raised is heard of.
    let settings = QueueSettings { payload_max: 20, ..QueueSettings::default() };
    get(bench.queues().put_queue(&bench.name, settings, START));
    assert_eq!(settle(vec![(tokens[1], done(20))]).expect("fits"), [Settled::Done]);
}
