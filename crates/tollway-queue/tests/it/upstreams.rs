//! Virtual time: a queue in front of upstreams that enforce their limit themselves.

mod closed_loops;
mod enforcer;
mod guild_policy;
mod run;

use std::time::Duration;

use tollway_core::Timestamp;
use tollway_queue::{Backend, Embedded, NewJob, QueueSettings};

use crate::world::{AtMoment as _, Random, START, after, get, group, job, poll, queue};
use enforcer::Enforcer;
use run::{Burst, Report};

/// The burst of the facts: 300 jobs at 10 per 10 s; 30 windows, so 290 s at the very least.
const BURST: Burst = Burst { jobs: 300, units: 10, window: Duration::from_secs(10) };

/// Every kind of upstream: fixed windows in 20 phases, first-request-anchored, a sliding log.
fn upstreams() -> Vec<(String, Enforcer)> {
    let (units, window) = (BURST.units as usize, BURST.window);
    let mut upstreams: Vec<(String, Enforcer)> = (0..20)
        .map(|phase| {
            let offset = window / 20 * phase;
            (format!("fixed, phase {phase}/20"), Enforcer::fixed(units, window, offset))
        })
        .collect();
    upstreams.push(("first-request-anchored".into(), Enforcer::anchored(units, window)));
    upstreams.push(("sliding log".into(), Enforcer::sliding(units, window)));
    upstreams
}

#[test]
fn no_call_is_over_the_limit_of_any_upstream_and_the_makespan_is_within_two_percent() {
    let mut worst: f64 = 0.0;
    for (name, upstream) in upstreams() {
        for seed in 1..=3 {
            let report = run::slots(&BURST, upstream.clone(), seed);
            assert_eq!((report.calls, report.refused), (300, 0), "{name}: {report:?}");
            assert!(report.makespan_ratio <= 1.02, "{name}: {report:?}");
            assert_eq!(report.inversions, 0, "{name}");
            worst = worst.max(report.makespan_ratio);
        }
    }
    assert!(worst >= 1.0, "the bound is a bound: {worst}");
}

#[test]
fn the_policy_of_the_seed_wastes_an_eighth_to_a_fifth_of_its_calls() {
    let share = |upstream: Enforcer| {
        let reports: Vec<Report> =
            (1..=40).map(|seed| guild_policy::run(&BURST, upstream.clone(), seed)).collect();
        let (refused, calls) = reports.iter().fold((0, 0), |(refused, calls), report| {
            (refused + report.refused, calls + report.calls)
        });
        100.0 * refused as f64 / calls as f64
    };
    let anchored = share(Enforcer::anchored(10, BURST.window));
    let sliding = share(Enforcer::sliding(10, BURST.window));
    // The facts have 12.3 and 19.4, of three bursts each.
    assert!((12.0..=14.5).contains(&anchored), "{anchored} % of calls refused");
    assert!((18.0..=20.0).contains(&sliding), "{sliding} % of calls refused");
}

/// `cargo test -p tollway-queue --test it table -- --ignored --nocapture` prints the table of
/// docs/queue.md.
#[test]
#[ignore = "prints a table; checks nothing"]
#[allow(clippy::print_stdout, reason = "it prints the table of docs/queue.md")]
fn table_of_policies_and_upstreams() {
    println!(
        "| upstream | policy | calls | 429s | share | makespan | ratio | lease calls per job |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for (name, upstream) in upstreams().into_iter().filter(|(name, _)| {
        !name.contains("fixed") || name.contains(" 0/") || name.contains(" 12/")
    }) {
        for (policy, run) in [
            ("response-anchored slots", run::slots as fn(&Burst, Enforcer, u64) -> Report),
            ("guild queues'", guild_policy::run),
        ] {
            let reports: Vec<Report> =
                (1..=40).map(|seed| run(&BURST, upstream.clone(), seed)).collect();
            let mean = |of: fn(&Report) -> f64| reports.iter().map(of).sum::<f64>() / 40.0;
            let (calls, refused) = (mean(|r| r.calls as f64), mean(|r| r.refused as f64));
            println!(
                "| {name} | {policy} | {calls:.0} | {refused:.0} | {:.1} % | {:.1} s | {:.3} | {:.2} |",
                100.0 * refused / calls,
                mean(|r| r.makespan_s),
                mean(|r| r.makespan_ratio),
                mean(|r| r.lease_calls as f64) / 300.0,
            );
        }
    }
}

#[test]
fn a_worker_wakes_at_most_once_per_job() {
    for (name, upstream) in upstreams() {
        let report = run::slots(&BURST, upstream, 7);
        assert!(report.lease_calls <= report.calls, "{name}: {report:?}");
    }
}

#[test]
fn nobody_is_woken_while_a_hundred_thousand_jobs_are_delayed() {
    let (queues, name) = (Embedded::memory(), queue("later"));
    get(queues.put_queue(&name, QueueSettings::with_limit("slots 10/10s".parse().unwrap()), START));
    let hour = Duration::from_secs(3_600);
    for batch in 0..100u64 {
        let delayed = |index: u64| {
            job(&format!("g{}", index % 50))
                .after(hour + Duration::from_millis(batch * 1_000 + index))
        };
        get(queues.enqueue(&name, (0..1_000).map(delayed).collect(), START));
    }
    let leased = get(queues.lease(&name, 10, "w", START));
    assert!(leased.leases.is_empty());
    // The next start is an hour away, and until then nothing wakes who waits.
    assert_eq!(leased.next, Some(START.after(hour)));
    let mut changed = queues.changed(&name, leased.seen);
    get(queues.enqueue(&name, vec![job("g1").after(hour * 2)], after(1.0)));
    assert!(poll(&mut changed).is_pending());
    let leased = get(queues.lease(&name, 10, "w", START.after(hour)));
    assert_eq!(leased.leases.len(), 1);
}

#[test]
fn every_job_starts_no_later_than_told_and_within_one_round_trip_of_the_estimate() {
    // A constant round trip that is known: the estimate must be right to the nanosecond.
    let report = run::with_latency(&BURST, Enforcer::sliding(10, BURST.window), |_| 0.05, 1);
    assert_eq!(report.late, 0, "{report:?}");
    assert!(report.estimate_error_s <= 0.05, "{report:?}");
    // Jittered round trips: no later than told, and the mean is off by less than one of them.
    for seed in 1..=5 {
        let report = run::slots(&BURST, Enforcer::sliding(10, BURST.window), seed);
        assert_eq!(report.late, 0, "{report:?}");
        assert!(report.estimate_error_mean_s <= run::ROUND_TRIP_MAX_S, "{report:?}");
    }
}

#[test]
fn jobs_that_are_cancelled_only_make_the_others_earlier() {
    let (queues, name) = (Embedded::memory(), queue("q"));
    get(queues.put_queue(&name, QueueSettings::with_limit("slots 2/10s".parse().unwrap()), START));
    let enqueued = get(queues.enqueue(&name, (0..100).map(|_| job("g")).collect(), START));
    let mut told: Vec<_> = enqueued.iter().map(|job| job.ready.unwrap().latest).collect();
    let mut random = Random::new(5);
    for _ in 0..60 {
        let gone = random.below(100) as usize;
        get(queues.cancel(&name, enqueued[gone].id, after(1.0)));
        for (index, job) in enqueued.iter().enumerate() {
            let Some(job) = get(queues.job(&name, job.id, after(1.0))) else { continue };
            let tollway_queue::JobState::Waiting { ready, .. } = job.state else { continue };
            // One second has passed since it was told: only those who may start now are "later".
            let latest = ready.unwrap().latest.before(Duration::from_secs(1));
            assert!(latest <= told[index], "job {index}");
            told[index] = latest;
        }
    }
}

/// 1,000 groups with a limit each and a worker of 2,000 jobs a second: how long the jobs of the
/// quiet groups wait, beside one group with `noisy_jobs` at once.
fn quiet_waits(noisy_jobs: usize) -> Vec<Duration> {
    let (queues, name) = (Embedded::memory(), queue("q"));
    get(queues.put_queue(
        &name,
        QueueSettings::with_limit("slots 10/1s".parse().expect("a limit")),
        START,
    ));
    for chunk in (0..noisy_jobs).collect::<Vec<_>>().chunks(1_000) {
        get(queues.enqueue(&name, chunk.iter().map(|_| job("noisy")).collect(), START));
    }
    let mut random = Random::new(11);
    let mut arrivals: Vec<(u64, usize)> =
        (0..5_000).map(|index| (random.below(5_000_000_000), index % 999)).collect();
    arrivals.sort_unstable();
    let mut arrivals = arrivals.into_iter().peekable();
    let mut waits = Vec::new();
    for tick in 0..12_000u64 {
        let now = START.after(Duration::from_micros(500 * tick));
        while let Some((at, of)) =
            arrivals.next_if(|(at, _)| START.after(Duration::from_nanos(*at)) <= now)
        {
            let quiet = NewJob::new(group(&format!("quiet {of}")), "x");
            get(queues.enqueue(&name, vec![quiet], START.after(Duration::from_nanos(at))));
        }
        for lease in get(queues.lease(&name, 1, "w", now)).leases {
            if lease.group.as_str() != "noisy" {
                waits.push(now.since(lease.enqueued_at));
            }
            let done = tollway_queue::Outcome::Done { result: None };
            get(queues.settle_one(&name, lease.token(), done, now));
        }
    }
    waits.sort_unstable();
    waits
}

#[test]
fn a_noisy_group_costs_the_quiet_ones_at_most_a_tenth() {
    let p99 = |waits: &[Duration]| waits[waits.len() * 99 / 100];
    let (alone, beside) = (quiet_waits(0), quiet_waits(20_000));
    assert_eq!((alone.len(), beside.len()), (5_000, 5_000));
    assert!(
        p99(&beside) <= p99(&alone).mul_f64(1.1),
        "p99 {:?} alone, {:?} beside",
        p99(&alone),
        p99(&beside)
    );
}

/// What happened to the jobs of quiet groups.
#[derive(Default)]
struct Quiet {
    /// From enqueueing to the end.
    dwells: Vec<Duration>,
    /// How many jobs of the noisy group started while each waited.
    noisy_before: Vec<usize>,
}

/// 1,000 groups without limits of their own, and workers for 100 jobs of 20 to 80 ms at once,
/// beside one group with `noisy_jobs` at once, which then keeps every worker busy: whoever comes
/// waits for the next to be free, whatever the queue does. What it can do is not let the noisy
/// group go first.
fn quiet_beside(queue_limits: &[&str], noisy_jobs: usize) -> Quiet {
    const STEP: Duration = Duration::from_micros(250);
    let (queues, name) = (Embedded::memory(), queue("q"));
    let queue_limits = queue_limits.iter().map(|limit| limit.parse().expect("a limit")).collect();
    get(queues.put_queue(&name, QueueSettings { queue_limits, ..Default::default() }, START));
    for from in (0..noisy_jobs).step_by(1_000) {
        let count = (noisy_jobs - from).min(1_000);
        get(queues.enqueue(&name, vec![job("noisy"); count], START));
    }
    let mut random = Random::new(13);
    let mut arrivals: Vec<(u64, usize)> =
        (0..5_000).map(|index| (random.below(5_000_000_000), index % 999)).collect();
    arrivals.sort_unstable();
    let mut arrivals = arrivals.into_iter().peekable();
    let (mut quiet, mut noisy_started) = (Quiet::default(), 0);
    let mut started_before = std::collections::HashMap::new();
    let mut running: std::collections::BTreeMap<(Timestamp, _), _> = Default::default();
    for step in 0..24_000 {
        let now = START.after(STEP * step);
        while let Some((at, of)) =
            arrivals.next_if(|(at, _)| START.after(Duration::from_nanos(*at)) <= now)
        {
            let at = START.after(Duration::from_nanos(at));
            let told = get(queues.enqueue(&name, vec![job(&format!("quiet {of}"))], at));
            started_before.insert(told[0].id, noisy_started);
        }
        while let Some(entry) = running.first_entry()
            && entry.key().0 <= now
        {
            let lease: tollway_queue::Lease = entry.remove();
            if lease.group.as_str() != "noisy" {
                quiet.dwells.push(now.since(lease.enqueued_at));
            }
            let done = tollway_queue::Outcome::Done { result: None };
            get(queues.settle_one(&name, lease.token(), done, now));
        }
        let leased = get(queues.lease(&name, 100 - running.len(), "w", now)).leases;
        for lease in leased {
            match started_before.get(&lease.id) {
                Some(before) => quiet.noisy_before.push(noisy_started - before),
                None => noisy_started += 1,
            }
            let work = Duration::from_micros(20_000 + random.below(60_000));
            running.insert((now.after(work), lease.id), lease);
        }
    }
    quiet.dwells.sort_unstable();
    quiet.noisy_before.sort_unstable();
    quiet
}

#[test]
fn a_noisy_group_costs_the_quiet_ones_a_turn_and_at_most_a_tenth_without_limits_of_groups() {
    for limits in [&[][..], &["gcra 1800/1s burst 1"]] {
        let (alone, beside) = (quiet_beside(limits, 0), quiet_beside(limits, 20_000));
        assert_eq!((alone.dwells.len(), beside.dwells.len()), (5_000, 5_000), "{limits:?}");
        let (alone_p99, beside_p99) = (alone.dwells[4_950], beside.dwells[4_950]);
        assert!(
            beside_p99 <= alone_p99.mul_f64(1.1),
            "{limits:?}: p99 {alone_p99:?} alone, {beside_p99:?} beside"
        );
        let passed_p99 = beside.noisy_before[4_950];
        assert!(passed_p99 <= 1, "{limits:?}: {passed_p99} noisy jobs went first");
    }
}

#[test]
fn jobs_of_queues_that_share_a_limit_start_no_later_than_told() {
    let queues = Embedded::memory();
    get(queues.put_shared(&queue("both"), "slots 3/10s".parse().unwrap(), START));
    let mut told = Vec::new();
    for name in ["one", "two"] {
        let settings = QueueSettings {
            shared: vec![queue("both")],
            response_max: Duration::ZERO,
            ..QueueSettings::with_limit("window 2/7s".parse().unwrap())
        };
        get(queues.put_queue(&queue(name), settings, START));
    }
    for name in ["one", "two"] {
        let jobs = (0..12).map(|n| job(["a", "b"][n % 2])).collect();
        get(queues.enqueue(&queue(name), jobs, START));
    }
    for name in ["one", "two"] {
        for of in ["a", "b"] {
            for job in get(queues.peek(&queue(name), &group(of), 100, START)) {
                let tollway_queue::JobState::Waiting { ready, .. } = job.state else { continue };
                told.push((job.id, ready.expect("not paused").latest));
            }
        }
    }
    let (mut now, mut started) = (START, 0);
    while started < told.len() {
        let (mut next, before) = (None, started);
        // One queue is served before the other whenever both could be.
        for name in ["one", "two"] {
            let leased = get(queues.lease(&queue(name), 100, "w", now));
            for lease in &leased.leases {
                let latest = told.iter().find(|(id, _)| *id == lease.id).expect("told").1;
                assert!(now <= latest, "job {} of {name}: {now:?} > {latest:?}", lease.id);
                let done = tollway_queue::Outcome::Done { result: None };
                get(queues.settle_one(&queue(name), lease.token(), done, now));
                started += 1;
            }
            next = next.into_iter().chain(leased.next).min();
        }
        if started == before {
            now = now.max(next.expect("jobs are left"));
        }
    }
}
