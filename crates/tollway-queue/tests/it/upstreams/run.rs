//! A burst of jobs through the queue to an upstream, in virtual time.

use std::collections::{BTreeMap, BTreeSet};
use std::task::Poll;
use std::time::Duration;

use tollway_core::Timestamp;
use tollway_queue::{JobId, Lease, Limit, Outcome, QueueSettings, Wake};

use super::enforcer::Enforcer;
use crate::model::{Subject, in_memory};
use crate::world::{AtMoment as _, Random, START, get, job, poll, queue};

/// The slowest round trip of [`jittered`].
pub(crate) const ROUND_TRIP_MAX_S: f64 = 0.38;

/// A burst of jobs in one group.
#[derive(Debug)]
pub(crate) struct Burst {
    pub(crate) jobs: usize,
    pub(crate) units: u32,
    pub(crate) window: Duration,
}

impl Burst {
    /// The earliest that the last job can start: whole windows.
    pub(crate) fn bound_s(&self) -> f64 {
        (self.jobs.div_ceil(self.units as usize) - 1) as f64 * self.window.as_secs_f64()
    }
}

/// What came of a burst.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) calls: usize,
    pub(crate) refused: usize,
    /// How long after the first start the last refused call arrived.
    pub(crate) refused_last_s: f64,
    pub(crate) lease_calls: usize,
    /// Jobs that started before one that was enqueued earlier.
    pub(crate) inversions: usize,
    pub(crate) makespan_s: f64,
    pub(crate) makespan_ratio: f64,
    /// Jobs that started later than they were told.
    pub(crate) late: usize,
    /// The largest difference between a start and what was expected of it at first.
    pub(crate) estimate_error_s: f64,
    pub(crate) estimate_error_mean_s: f64,
}

/// Round trips as in the facts: 20 to 80 ms, one in twenty takes 300 ms more.
pub(crate) fn jittered(random: &mut Random) -> f64 {
    let slow = if random.unit() < 0.05 { 0.3 } else { 0.0 };
    0.02 + 0.06 * random.unit() + slow
}

/// The burst through response-anchored slots.
pub(crate) fn slots(burst: &Burst, upstream: Enforcer, seed: u64) -> Report {
    with_latency(burst, upstream, jittered, seed)
}

/// The burst through response-anchored slots, with round trips of another length.
pub(crate) fn with_latency(
    burst: &Burst,
    upstream: Enforcer,
    latency: fn(&mut Random) -> f64,
    seed: u64,
) -> Report {
    let limit = Limit::slots(burst.units, burst.window).expect("a limit");
    let mut run = Run::new(in_memory(), limit, upstream, latency, seed);
    run.warm_up();
    run.burst(burst)
}

/// The burst through any limit, on any backend, with round trips of 5 to 500 ms.
pub(crate) fn through(
    limit: Limit,
    subject: Box<dyn Subject>,
    burst: &Burst,
    upstream: Enforcer,
    seed: u64,
) -> Report {
    Run::new(subject, limit, upstream, |random| 0.005 + 0.495 * random.unit(), seed).burst(burst)
}

struct Run {
    subject: Box<dyn Subject>,
    upstream: Enforcer,
    latency: fn(&mut Random) -> f64,
    random: Random,
    now: Timestamp,
    /// When the burst began.
    begun: Timestamp,
    /// Calls on their way: when they arrive, of which job; the lease and when it is answered.
    calls: BTreeMap<(Timestamp, JobId), (Lease, Timestamp)>,
    /// Answers on their way: when, of which job; the lease and how long to wait if refused.
    answers: BTreeMap<(Timestamp, JobId), (Lease, Option<Duration>)>,
    wake: Wake,
    starts: Vec<(JobId, Timestamp)>,
    report: Report,
}

impl Run {
    fn new(
        subject: Box<dyn Subject>,
        limit: Limit,
        upstream: Enforcer,
        latency: fn(&mut Random) -> f64,
        seed: u64,
    ) -> Self {
        let response_max = Duration::from_secs_f64(ROUND_TRIP_MAX_S);
        let settings = QueueSettings { response_max, ..QueueSettings::with_limit(limit) };
        get(subject.backend().put_queue(&queue("q"), settings, START));
        Self {
            subject,
            upstream,
            latency,
            random: Random::new(seed),
            now: START,
            begun: START,
            calls: BTreeMap::new(),
            answers: BTreeMap::new(),
            wake: Wake { next: None, seen: 0 },
            starts: Vec::new(),
            report: Report::default(),
        }
    }

    /// Lets the queue see how long responses take, in another group and against nobody.
    fn warm_up(&mut self) {
        let name = queue("q");
        for round in 0..20 {
            let now = START.after(Duration::from_secs(20) * round);
            get(self.subject.backend().enqueue(&name, (0..10).map(|_| job("warm")).collect(), now));
            let leases = get(self.subject.backend().lease(&name, 10, "w", now)).leases;
            let took = || Duration::from_secs_f64((self.latency)(&mut self.random));
            let mut answers: Vec<_> = std::iter::repeat_with(took).take(leases.len()).collect();
            answers.sort_unstable();
            for (lease, took) in leases.iter().zip(answers) {
                let done = Outcome::Done { result: None };
                get(self.subject.backend().settle_one(&name, lease.token(), done, now.after(took)));
            }
        }
        self.now = START.after(Duration::from_secs(1_000));
    }

    fn burst(mut self, burst: &Burst) -> Report {
        let (name, start) = (queue("q"), self.now);
        self.begun = start;
        let jobs = (0..burst.jobs).map(|_| job("guild")).collect();
        let told = get(self.subject.backend().enqueue(&name, jobs, start));
        self.lease();
        while let Some(next) = self.next_event() {
            self.now = self.now.max(next);
            self.arrive();
            self.settle_due();
            if self.wake.next.is_some_and(|at| at <= self.now) {
                self.lease();
            }
        }
        let mut served = BTreeSet::new();
        for (index, (id, at)) in self.starts.iter().enumerate() {
            let Some(job) = told.iter().find(|job| job.id == *id) else { continue };
            let ready = job.ready.expect("not paused");
            let error = at.since(ready.expected).max(ready.expected.since(*at)).as_secs_f64();
            self.report.late += usize::from(*at > ready.latest);
            self.report.estimate_error_s = self.report.estimate_error_s.max(error);
            self.report.estimate_error_mean_s += error / burst.jobs as f64;
            self.report.inversions += usize::from(index > 0 && self.starts[index - 1].0 > *id);
            served.insert(*id);
        }
        assert_eq!(served.len(), burst.jobs, "every job ran");
        let last = self.starts.last().expect("jobs ran").1;
        self.report.makespan_s = last.since(start).as_secs_f64();
        self.report.makespan_ratio = self.report.makespan_s / burst.bound_s();
        self.report
    }

    fn next_event(&self) -> Option<Timestamp> {
        let call = self.calls.keys().next().map(|(at, _)| *at);
        let answer = self.answers.keys().next().map(|(at, _)| *at);
        call.into_iter().chain(answer).chain(self.wake.next).min()
    }

    fn lease(&mut self) {
        let leased = get(self.subject.backend().lease(&queue("q"), 1_000, "w", self.now));
        self.report.lease_calls += 1;
        self.wake = Wake { next: leased.next, seen: leased.seen };
        for lease in leased.leases {
            let took = (self.latency)(&mut self.random);
            let arrives = self.now.after(Duration::from_secs_f64(took * self.random.unit()));
            self.starts.push((lease.id, self.now));
            let answered = self.now.after(Duration::from_secs_f64(took));
            self.calls.insert((arrives, lease.id), (lease, answered));
        }
    }

    /// The upstream decides in the order in which calls arrive, whenever they were made.
    fn arrive(&mut self) {
        while let Some(entry) = self.calls.first_entry()
            && entry.key().0 <= self.now
        {
            let (arrives, id) = *entry.key();
            let (lease, answered) = entry.remove();
            let refused = self.upstream.call(arrives);
            self.report.calls += 1;
            self.report.refused += usize::from(refused.is_some());
            if refused.is_some() {
                self.report.refused_last_s = arrives.since(self.begun).as_secs_f64();
            }
            self.answers.insert((answered, id), (lease, refused));
        }
    }

    fn settle_due(&mut self) {
        let name = queue("q");
        let mut is_settled = false;
        while let Some(entry) = self.answers.first_entry()
            && entry.key().0 <= self.now
        {
            let (lease, refused) = entry.remove();
            let outcome =
                refused.map_or(Outcome::Done { result: None }, |wait| Outcome::Limited { wait });
            get(self.subject.backend().settle_one(&name, lease.token(), outcome, self.now));
            is_settled = true;
        }
        if is_settled && !self.subject.hears_at_once() {
            return self.lease();
        }
        // What a worker that waits would hear.
        let mut changed = self.subject.backend().changed(&name, self.wake.seen);
        if let Poll::Ready(wake) = poll(&mut changed) {
            self.wake = wake.expect("the queue is there");
        }
    }
}
