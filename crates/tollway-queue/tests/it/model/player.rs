//! A player of random histories: it does to a backend what users, workers and clocks do.

use std::collections::BTreeSet;
use std::time::Duration;

use tollway_core::Timestamp;
use tollway_queue::{
    Cancelled, EndMark, ErrorKind, Group, Job, JobId, JobState, LeaseToken, Limit, NewJob, Outcome,
    QueueName, QueueSettings, Settled, Start,
};

use super::reference::Reference;
use super::{Jobs, Subject};
use crate::world::{AtMoment as _, Random, START, get, group, now_or_soon, queue};

const FIRST: Option<EndMark> = Some(EndMark::FIRST);

pub(super) struct Player<'a> {
    subject: &'a mut dyn Subject,
    jobs: Jobs,
    reference: Reference,
    random: Random,
    now: Timestamp,
    latest: Timestamp,
    name: QueueName,
    tokens: Vec<LeaseToken>,
    ids: Vec<JobId>,
}

impl<'a> Player<'a> {
    pub(super) fn new(subject: &'a mut dyn Subject, jobs: Jobs, seed: u64) -> Self {
        let (name, settings) = (queue("model"), settings(jobs));
        get(subject.backend().put_queue(&name, settings.clone(), START));
        let reference = Reference::new(settings);
        let (tokens, ids) = (Vec::new(), Vec::new());
        let (now, random) = (START, Random::new(seed));
        Self { subject, jobs, reference, random, now, latest: now, name, tokens, ids }
    }

    pub(super) fn step(&mut self) {
        match self.random.below(100) {
            // A backlog without end would test nothing but patience.
            0..30 if self.reference.len() < 150 => self.enqueue(),
            0..55 => self.lease(),
            55..75 => self.settle(),
            75..78 => self.look(),
            78..81 => self.cancel(),
            81..83 => self.reschedule(),
            83..85 => self.heartbeat(),
            85 => self.hold(),
            86..95 => self.pass_time(),
            95 => self.set_clock_back(),
            96 => self.change_limit(),
            97 => self.pause(),
            98 => self.revive(),
            _ => self.crash(),
        }
    }

    fn crash(&mut self) {
        // What time it was is stored with the last change, so there must be one.
        let paused = self.reference.is_paused();
        get(self.subject.backend().pause(&self.name, None, paused, self.now));
        self.reference.tick(self.now);
        if self.subject.crash() {
            self.reference.restart();
        }
    }

    fn group(&mut self) -> Group {
        group_of(self.random.below(6))
    }

    fn enqueue(&mut self) {
        let jobs: Vec<NewJob> = (0..1 + self.random.below(3)).map(|_| self.new_job()).collect();
        let enqueued = get(self.subject.backend().enqueue(&self.name, jobs.clone(), self.now));
        self.reference.tick(self.now);
        for (job, told) in jobs.into_iter().zip(enqueued) {
            let duplicate = self.reference.enqueue(job, told.id);
            assert_eq!(told.duplicate, duplicate.is_some(), "{told:?}");
            assert_eq!(duplicate.unwrap_or(told.id), told.id);
            self.ids.push(told.id);
        }
        if self.ids.len() > 200 {
            self.ids.drain(..100);
        }
    }

    fn new_job(&mut self) -> NewJob {
        let payload = format!("payload {}", self.random.below(1_000));
        if self.jobs == Jobs::Plain {
            let job = NewJob::new(self.group(), payload);
            let is_late = self.random.below(30) == 0;
            return if is_late {
                job.after(Duration::from_secs(self.random.below(20)))
            } else {
                job
            };
        }
        let mut job = NewJob::new(self.group(), payload)
            .priority(self.random.below(3) as u8)
            .weight(1 + self.random.below(8) as u32 / 6 * self.random.below(3) as u32);
        if self.random.below(5) == 0 {
            job = job.after(Duration::from_millis(self.random.below(20_000)));
        }
        if self.random.below(8) == 0 {
            job = job.key(format!("key {}", self.random.below(40)));
        }
        job
    }

    fn lease(&mut self) {
        let max = 1 + self.random.below(6) as usize;
        let leased = get(self.subject.backend().lease(&self.name, max, "w", self.now));
        self.reference.tick(self.now);
        for lease in &leased.leases {
            self.reference.start(lease);
            self.tokens.push(lease.token());
        }
        if leased.leases.len() < max {
            self.reference.assert_nothing_can_start();
        }
        if self.tokens.len() > 100 {
            self.tokens.drain(..50);
        }
    }

    fn settle(&mut self) {
        let many = (1 + self.random.below(4)).min(self.tokens.len() as u64);
        let outcomes: Vec<_> = (0..many).map(|_| (self.token(), self.outcome())).collect();
        let settled = get(self.subject.backend().settle(&self.name, outcomes.clone(), self.now));
        self.reference.tick(self.now);
        assert_eq!(settled.len(), outcomes.len());
        for ((token, outcome), settled) in outcomes.into_iter().zip(settled) {
            let expected = self.reference.settle(token, &outcome);
            assert_eq!(settled, expected, "{token:?} {outcome:?}");
        }
    }

    /// A token, which may be settled twice: stale ones must be refused.
    fn token(&mut self) -> LeaseToken {
        let index = self.random.below(self.tokens.len() as u64) as usize;
        if self.random.below(10) == 0 || self.tokens.len() == 1 {
            self.tokens[index]
        } else {
            self.tokens.swap_remove(index)
        }
    }

    fn outcome(&mut self) -> Outcome {
        // What fails is delayed.
        let often = if self.jobs == Jobs::Plain { 200 } else { 10 };
        match (self.random.below(often) + 10).saturating_sub(often) {
            0..6 => Outcome::Done { result: None },
            6..8 => Outcome::Failed { reason: "no".into(), retry: self.random.below(4) > 0 },
            8 => Outcome::Limited { wait: Duration::from_millis(self.random.below(15_000)) },
            _ => Outcome::Released,
        }
    }

    /// Looks at the line of a group, and at one of its jobs.
    fn look(&mut self) {
        let of = self.group();
        let seen = get(self.subject.backend().peek(&self.name, &of, 1_000, self.now));
        self.reference.tick(self.now);
        let seen_ids: Vec<JobId> = seen.iter().map(|job| job.id).collect();
        assert_eq!(seen_ids, self.reference.line_and_delayed(&of), "{of}");
        seen.iter().for_each(|job| self.reference.assert_past(job));
        let stats = get(self.subject.backend().stats(&self.name, None, 10, self.now));
        assert_eq!(stats.queue, self.reference.counts());
        let running = get(self.subject.backend().running(&self.name, None, 1_000, self.now));
        let ids: Vec<JobId> = running.iter().map(|job| job.id).collect();
        assert_eq!(ids, self.reference.running().into_iter().take(1_000).collect::<Vec<_>>());
        running.iter().for_each(|job| self.reference.assert_past(job));
        if !seen.is_empty() {
            let one = &seen[self.random.below(seen.len() as u64) as usize];
            let alone = get(self.subject.backend().job(&self.name, one.id, self.now));
            assert_eq!(alone.as_ref(), Some(one));
        }
    }

    fn cancel(&mut self) {
        let Some(id) = self.any_id() else { return };
        let cancelled = get(self.subject.backend().cancel(&self.name, id, self.now));
        self.reference.tick(self.now);
        assert_eq!(cancelled, self.reference.cancel(id), "{id}");
    }

    fn reschedule(&mut self) {
        let Some(id) = self.any_id() else { return };
        let wait = Duration::from_millis(self.random.below(20_000));
        let start = match self.random.below(3) {
            0 => Start::Now,
            1 => Start::After(wait),
            _ => Start::At(self.now.after(wait).before(Duration::from_secs(5))),
        };
        let call = self.subject.backend().reschedule(&self.name, id, start, self.now);
        let told = now_or_soon(call);
        self.reference.tick(self.now);
        let expected = self.reference.reschedule(id, start);
        match expected {
            Some(true) => assert_eq!(told.expect("it waits").map(|job| job.id), Some(id)),
            Some(false) => assert_eq!(told.expect_err("it runs").kind(), ErrorKind::Conflict),
            None => assert_eq!(told.expect("it is gone"), None),
        }
    }

    fn any_id(&mut self) -> Option<JobId> {
        let len = self.ids.len() as u64;
        (len > 0).then(|| self.ids[self.random.below(len.max(1)) as usize])
    }

    fn hold(&mut self) {
        if self.tokens.is_empty() {
            return;
        }
        let index = self.random.below(self.tokens.len() as u64) as usize;
        let (token, wait) = (self.tokens[index], Duration::from_millis(self.random.below(15_000)));
        let held = get(self.subject.backend().hold(&self.name, token, wait, self.now));
        self.reference.tick(self.now);
        assert_eq!(held, self.reference.hold(token, wait), "{token:?}");
    }

    fn heartbeat(&mut self) {
        let Some(token) = self.tokens.last().copied() else { return };
        let beats = get(self.subject.backend().heartbeat(&self.name, &[token], self.now));
        self.reference.tick(self.now);
        assert_eq!(beats[0], self.reference.heartbeat(token), "{token:?}");
    }

    fn pass_time(&mut self) {
        let millis = match self.random.below(200) {
            0..160 => self.random.below(3_000),
            160..180 => self.random.below(12_000),
            180..199 => self.random.below(40_000),
            // A clock that is set ahead, by less than what is done is remembered for.
            _ => 600_000,
        };
        self.now = self.now.after(Duration::from_millis(millis));
        self.latest = self.latest.max(self.now);
    }

    fn set_clock_back(&mut self) {
        // Within ten seconds it is a late call, beyond it a clock that was set back.
        let by = if self.random.below(2) == 0 { 5 } else { 30 };
        let behind_max = self.subject.clock_is_behind_max().unwrap_or(Duration::MAX);
        let earliest = self.latest.before(behind_max).max(START);
        self.now = self.now.before(Duration::from_secs(by)).max(earliest);
    }

    fn change_limit(&mut self) {
        let units = 1 + self.random.below(if self.jobs == Jobs::Plain { 20 } else { 5 });
        let limit: Limit = match self.random.below(5) {
            0 => format!("slots {units}/4s"),
            1 => format!("window {units}/5s"),
            2 => format!("sliding {units}/6s"),
            3 => format!("sliding {units}/6s answered"),
            _ => format!("concurrent {units}"),
        }
        .parse()
        .expect("a limit");
        if self.random.below(3) == 0 {
            let mut settings = settings(self.jobs);
            settings.group_limits = vec![limit];
            get(self.subject.backend().put_queue(&self.name, settings.clone(), self.now));
            self.reference.tick(self.now);
            self.reference.change(settings);
            return;
        }
        let (of, limits) = (self.group(), (self.random.below(3) > 0).then(|| vec![limit]));
        get(self.subject.backend().set_limits(&self.name, &of, limits.clone(), self.now));
        self.reference.tick(self.now);
        self.reference.set_limits(&of, limits);
    }

    fn pause(&mut self) {
        let of = (self.random.below(4) > 0).then(|| self.group());
        let paused = self.random.below(3) == 0;
        get(self.subject.backend().pause(&self.name, of.as_ref(), paused, self.now));
        self.reference.tick(self.now);
        self.reference.pause(of.as_ref(), paused);
    }

    fn revive(&mut self) {
        let dead = get(self.subject.backend().dead(&self.name, None, 1_000, self.now));
        self.reference.tick(self.now);
        let ids: BTreeSet<JobId> = dead.iter().map(|job| job.id).collect();
        // One page of them.
        assert_eq!(ids, self.reference.dead().into_iter().take(1_000).collect());
        let ended = get(self.subject.backend().ended(&self.name, FIRST, 1_000, self.now)).jobs;
        assert!(ended.is_sorted_by_key(|job| job.end_mark().expect("it is over").at));
        let is_dead = |job: &&Job| matches!(job.state, JobState::Dead { .. });
        let told: BTreeSet<JobId> = ended.iter().filter(is_dead).map(|job| job.id).collect();
        assert!(told == ids || ended.len() == 1_000, "the dead among those that ended");
        assert!(ended.iter().all(|job| self.reference.is_over(job.id)));
        ended.iter().for_each(|job| self.reference.assert_past(job));
        if let Some(job) = dead.first() {
            assert!(get(self.subject.backend().revive(&self.name, job.id, self.now)));
            self.reference.revive(job.id);
        }
    }

    /// Runs everything that is left, and makes sure that nothing remains of it.
    pub(super) fn drain(&mut self) {
        let backend = self.subject.backend();
        get(backend.pause(&self.name, None, false, self.now));
        for index in 0..6 {
            let of = group_of(index);
            get(backend.pause(&self.name, Some(&of), false, self.now));
            get(backend.set_limits(&self.name, &of, None, self.now));
        }
        for _ in 0..100_000 {
            let leased = get(backend.lease(&self.name, 1_000, "w", self.now));
            for lease in &leased.leases {
                let done = Outcome::Done { result: None };
                let settled = get(backend.settle_one(&self.name, lease.token(), done, self.now));
                assert_eq!(settled, Settled::Done);
            }
            if leased.leases.is_empty() {
                let Some(next) = leased.next else { break };
                self.now = self.now.max(next);
            }
        }
        loop {
            let dead = get(backend.dead(&self.name, None, 1_000, self.now));
            if dead.is_empty() {
                break;
            }
            for job in dead {
                assert_eq!(get(backend.cancel(&self.name, job.id, self.now)), Cancelled::Removed);
            }
        }
        self.now = self.now.after(Duration::from_secs(2 * 86_400));
        get(backend.lease(&self.name, 1, "w", self.now));
        let stats = get(backend.stats(&self.name, None, 100, self.now));
        let left = (stats.queue, stats.groups_total, stats.dead, stats.done, stats.next);
        assert_eq!(left, (Default::default(), 0, 0, 0, None));
    }
}

fn settings(jobs: Jobs) -> QueueSettings {
    // Where limits are seldom reached, backends may have shorter ways.
    let limit = if jobs == Jobs::Plain { "slots 12/4s" } else { "slots 3/4s" };
    QueueSettings {
        group_limits: vec![limit.parse().expect("a limit")],
        lease: Duration::from_secs(15),
        attempts_max: 3,
        key_window: Duration::from_secs(60),
        ..QueueSettings::default()
    }
}

/// One of the groups; one of them has no name.
fn group_of(number: u64) -> Group {
    if number == 0 { Group::default() } else { group(&format!("g{number}")) }
}
