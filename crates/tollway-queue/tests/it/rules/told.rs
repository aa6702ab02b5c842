//! What is told of jobs before anybody leases: counts, order, estimates.

use std::collections::BTreeMap;
use std::time::Duration;

use tollway_queue::{Counts, JobState, QueueSettings};

use super::DONE;
use super::bench::{At, Bench};
use crate::world::{AtMoment as _, START, after, get, group, job};

pub(super) fn a_due_job_is_counted_and_told_in_its_place_before_anybody_leases(at: At) {
    let bench = Bench::new(at, "slots 1/10s");
    let low = bench.put(job("g"), START);
    let soon = || job("g").priority(3).after(Duration::from_secs(2));
    let high: Vec<u64> = (0..3).map(|_| bench.put(soon(), START)).collect();
    let counts = |at: f64| get(bench.queues().stats(&bench.name, None, 10, after(at))).queue;
    assert_eq!(counts(1.9), Counts { waiting: 1, delayed: 3, running: 0 });
    assert_eq!(counts(2.0), Counts { waiting: 4, delayed: 0, running: 0 });
    let line = get(bench.queues().peek(&bench.name, &group("g"), 10, after(30.0)));
    let order: Vec<u64> = high.into_iter().chain([low]).collect();
    assert_eq!(line.iter().map(|job| job.id.0).collect::<Vec<_>>(), order);
    let groups = get(bench.queues().stats(&bench.name, None, 10, after(30.0))).groups;
    assert_eq!(groups[0].counts, Counts { waiting: 4, delayed: 0, running: 0 });
    let mut now = after(30.0);
    for told in line {
        let JobState::Waiting { ready: Some(ready), .. } = told.state else { panic!("{told:?}") };
        let leases = bench.lease(now);
        assert_eq!(leases[0].id, told.id);
        assert!(now <= ready.latest, "{now:?} {ready:?}");
        bench.settle(leases[0].token(), DONE, now);
        now = now.after(Duration::from_secs(10));
    }
}

pub(super) fn a_paused_group_counts_its_due_jobs_too(at: At) {
    let bench = Bench::new(at, "concurrent 1");
    bench.put(job("g").after(Duration::from_secs(2)), START);
    get(bench.queues().pause(&bench.name, Some(&group("g")), true, START));
    let counts = |at: f64| get(bench.queues().stats(&bench.name, None, 10, after(at))).queue;
    assert_eq!(counts(1.0), Counts { waiting: 0, delayed: 1, running: 0 });
    assert_eq!(counts(2.0), Counts { waiting: 1, delayed: 0, running: 0 });
}

pub(super) fn an_estimate_knows_that_groups_take_turns(at: At) {
    let settings = QueueSettings {
        queue_limits: vec!["slots 2/10s".parse().expect("a limit")],
        response_max: Duration::ZERO,
        ..QueueSettings::default()
    };
    let bench = Bench::with(at, settings);
    get(bench.queues().enqueue(&bench.name, vec![job("large"); 60], START));
    let small = get(bench.queues().enqueue(&bench.name, vec![job("small"); 3], START));
    let latest = |index: usize| small[index].ready.expect("not paused").latest;
    assert_eq!([0, 1, 2].map(latest), [START, after(10.0), after(20.0)]);
    let told: BTreeMap<_, _> = ["large", "small"]
        .iter()
        .flat_map(|of| get(bench.queues().peek(&bench.name, &group(of), 100, START)))
        .map(|job| match job.state {
            JobState::Waiting { ready: Some(ready), .. } => (job.id, ready.latest),
            state => panic!("{state:?}"),
        })
        .collect();
    let mut now = START;
    for _ in 0..32 {
        for lease in bench.lease(now) {
            assert!(now <= told[&lease.id], "{lease:?} at {now:?}, told {:?}", told[&lease.id]);
            bench.settle(lease.token(), DONE, now);
        }
        now = now.after(Duration::from_secs(10));
    }
    let left = get(bench.queues().stats(&bench.name, None, 10, now)).queue;
    assert_eq!(left, Counts::default(), "all have started");
}

pub(super) fn before_any_answer_a_tenth_of_a_second_is_expected_of_it(at: At) {
    let bench = Bench::new(at, "slots 1/10s");
    let told = get(bench.queues().enqueue(&bench.name, vec![job("g"); 3], START));
    let told = told.iter().map(|job| job.ready.expect("not paused"));
    let [first, second, third] = <[_; 3]>::try_from(told.collect::<Vec<_>>()).expect("three");
    assert_eq!(
        [first, second, third].map(|ready| ready.expected),
        [START, after(10.1), after(20.2)]
    );
    assert_eq!([first, second, third].map(|ready| ready.latest), [START, after(11.0), after(22.0)]);
}
