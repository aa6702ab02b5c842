//! The reference: lists, scanned from end to end; slow, and obviously right.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tollway_core::{Algorithm, Timestamp};
use tollway_queue::{
    AttemptEnd, Beat, Cancelled, Counts, Group, Job, JobId, Lease, LeaseToken, Limit, NewJob,
    Outcome, PastAttempt, QueueSettings, Settled, Start,
};

pub(crate) struct Reference {
    settings: QueueSettings,
    now: Timestamp,
    jobs: BTreeMap<JobId, RefJob>,
    dead: BTreeMap<JobId, RefJob>,
    /// At which attempt, and what the attempts before it came to.
    done: BTreeMap<JobId, (u32, Vec<Past>)>,
    groups: BTreeMap<Group, RefGroup>,
    keys: Vec<(String, JobId, Timestamp)>,
    paused: bool,
    newest: Timestamp,
    refits: u64,
}

/// An attempt that did not get its job done, and how it ended.
type Past = (u32, AttemptEnd);

#[derive(Clone, Debug)]
struct RefJob {
    job: NewJob,
    due: Timestamp,
    attempt: u32,
    failures: u32,
    past: Vec<Past>,
    running: Option<RefRun>,
    /// Whether its time has come once.
    waits: bool,
}

#[derive(Clone, Debug)]
struct RefRun {
    started: Timestamp,
    expires: Timestamp,
    cancelled: bool,
    /// How often limits had been changed when it started.
    refits: Option<u64>,
}

#[derive(Clone, Debug, Default)]
struct RefGroup {
    limits: Option<Vec<Limit>>,
    paused: bool,
    blocked: Timestamp,
    /// What counts against the one limit: every call that was made under its kind.
    calls: Vec<Call>,
    kind: Option<u8>,
    /// Between which moments an edge of the upstream's windows lies, if one was told.
    edge: Option<(Timestamp, Timestamp)>,
}

#[derive(Clone, Debug)]
struct Call {
    id: JobId,
    units: u32,
    started: Timestamp,
    answered: Option<Timestamp>,
}

impl Reference {
    pub(crate) fn new(settings: QueueSettings) -> Self {
        Self {
            settings,
            now: Timestamp::MIN,
            jobs: BTreeMap::new(),
            dead: BTreeMap::new(),
            done: BTreeMap::new(),
            groups: BTreeMap::new(),
            keys: Vec::new(),
            paused: false,
            newest: Timestamp::MIN,
            refits: 0,
        }
    }

    /// Jobs that are not over.
    pub(crate) fn len(&self) -> usize {
        self.jobs.len()
    }

    /// What time alone does.
    pub(crate) fn tick(&mut self, now: Timestamp) {
        let late = self.now.since(now);
        if late > Duration::from_secs(10) {
            self.set_back(late, now);
        }
        self.now = self.now.max(now);
        self.newest = self.newest.max(self.now);
        self.promote();
        let mut over: Vec<(Timestamp, JobId)> = self
            .jobs
            .iter()
            .filter_map(|(id, job)| Some((job.running.as_ref()?.expires, *id)))
            .filter(|(expires, _)| *expires <= self.now)
            .collect();
        over.sort_unstable();
        for (expires, id) in over {
            self.expire(id, expires);
        }
        self.keys.retain(|(_, _, until)| *until > self.now);
    }

    fn promote(&mut self) {
        for job in self.jobs.values_mut().filter(|job| job.due <= self.now) {
            job.waits = true;
        }
    }

    fn set_back(&mut self, by: Duration, now: Timestamp) {
        self.promote();
        self.now = now;
        for run in self.jobs.values_mut().filter_map(|job| job.running.as_mut()) {
            (run.started, run.expires) = (run.started.before(by), run.expires.before(by));
            run.refits = None;
        }
        let limits = self.settings.group_limits.clone();
        for group in self.groups.values_mut() {
            group.blocked = group.blocked.before(by);
            let limit = *group.limits.as_ref().unwrap_or(&limits).first().expect("one limit");
            // What was over before the clock was set back stays over.
            let (slots, edge) = (matches!(limit, Limit::Slots { .. }), group.edge);
            group.calls.retain(|call| slots || counts(call, &limit, edge, now.after(by)));
            group.edge = edge.map(|(early, late)| (early.before(by), late.before(by)));
            let latest = now.after(tollway_core::SKEW);
            for call in &mut group.calls {
                // Windows of the core count what lies in the future as taken now.
                call.started = call.started.min(latest);
                call.answered = call.answered.map(|at| match limit {
                    Limit::Answered(_) => at.min(latest),
                    _ => at.before(by),
                });
            }
        }
    }

    fn expire(&mut self, id: JobId, at: Timestamp) {
        self.answer(id, at);
        let attempts_max = self.settings.attempts_max;
        let job = self.jobs.get_mut(&id).expect("it ran");
        let run = job.running.take().expect("it ran");
        if run.cancelled {
            self.remove(id);
            return;
        }
        job.past.push((job.attempt, AttemptEnd::Expired));
        job.failures += 1;
        if job.failures >= attempts_max {
            self.bury(id);
        }
    }

    fn answer(&mut self, id: JobId, at: Timestamp) {
        let group = self.jobs[&id].job.group.clone();
        let limit = self.limit(&group);
        let (group, now) = (self.groups.entry(group).or_default(), self.now);
        if let Limit::Window { window, .. } = limit {
            let edge = group.edge;
            group.calls.retain(|call| call.answered.is_none_or(|at| frees(at, window, edge) > now));
        }
        // The core counts a call when it hears of it, and no earlier than the last.
        let charged = group.calls.iter().filter_map(|call| call.answered).fold(now, Timestamp::max);
        let at = if matches!(limit, Limit::Answered(_)) { charged } else { at };
        for call in group.calls.iter_mut().filter(|call| call.id == id) {
            call.answered.get_or_insert(at);
        }
        // Slots that are free at the answer remember nothing of it.
        if matches!(limit, Limit::Slots { window, .. } if window.is_zero()) {
            group.calls.retain(|call| call.id != id);
        }
    }

    /// The call of a job was refused, or never made.
    fn refund(&mut self, id: JobId) {
        let (of, run) = (self.jobs[&id].job.group.clone(), self.jobs[&id].running.clone());
        let (limit, run) = (self.limit(&of), run.expect("it runs"));
        let (started, known) = (run.started, run.refits == Some(self.refits));
        let same = |call: &Call| match limit {
            Limit::Slots { .. } | Limit::Window { .. } | Limit::Answered(_) => {
                call.answered.is_none()
            }
            _ if !known => false,
            // The core gives back only what it finds at the very time.
            Limit::Policy(_) => call.started == started,
        };
        let group = self.groups.entry(of).or_default();
        // An earlier attempt that a restart made unknown stays counted.
        let of = |call: &Call| call.id == id && call.answered.is_none() && same(call);
        if let Some(index) = group.calls.iter().rposition(of) {
            group.calls.remove(index);
        }
    }

    /// The call of a job was refused: its wait ends at an edge of the upstream's windows.
    fn tell(&mut self, id: JobId, wait: Duration) {
        let of = self.jobs[&id].job.group.clone();
        let made = self.jobs[&id].running.as_ref().expect("it runs").started;
        let Limit::Window { window, .. } = self.limit(&of) else { return };
        let late = self.now.after(wait);
        let is_whole = wait.subsec_nanos() == 0;
        let rounded = Duration::from_millis(if is_whole { 1_000 } else { 1 });
        let early = made.after(wait).before(rounded).min(late).max(late.before(window));
        let group = self.groups.entry(of).or_default();
        let mut edge = (early, late);
        if group.edge.is_some_and(|(early, late)| early > late) {
            return;
        }
        if let Some((mut from, mut upto)) = group.edge {
            while from <= late.before(window) {
                (from, upto) = (from.after(window), upto.after(window));
            }
            while from > late {
                (from, upto) = (from.before(window), upto.before(window));
            }
            edge = (early.max(from), late.min(upto));
        }
        group.edge = Some(edge);
    }

    /// The earlier job with the same key, if there is one; the job is taken in otherwise.
    pub(crate) fn enqueue(&mut self, job: NewJob, id: JobId) -> Option<JobId> {
        if let Some(key) = &job.key {
            if let Some((_, holder, _)) = self.keys.iter().find(|(held, ..)| held == key) {
                return Some(*holder);
            }
            let until = self.now.after(self.settings.key_window);
            self.keys.push((key.clone(), id, until));
        }
        let due = moment(job.start, self.now);
        let waits = due <= self.now;
        let due = if waits { self.newest } else { due };
        self.groups.entry(job.group.clone()).or_default();
        let (attempt, failures, past, running) = (0, 0, Vec::new(), None);
        self.jobs.insert(id, RefJob { job, due, attempt, failures, past, running, waits });
        None
    }

    fn limit(&self, group: &Group) -> Limit {
        let own = self.groups.get(group).and_then(|group| group.limits.as_ref());
        *own.unwrap_or(&self.settings.group_limits).first().expect("one limit")
    }

    /// The jobs of a group in the order in which they must start, those last whose time has not
    /// come.
    pub(crate) fn line_and_delayed(&self, group: &Group) -> Vec<JobId> {
        let is_delayed = |(_, job): &(&JobId, &RefJob)| {
            job.job.group == *group && job.running.is_none() && !job.waits
        };
        let mut delayed: Vec<_> = self.jobs.iter().filter(is_delayed).collect();
        delayed.sort_by_key(|(id, job)| (job.due, **id));
        self.line(group).into_iter().chain(delayed.into_iter().map(|(id, _)| *id)).collect()
    }

    /// Whether a job tells of its past attempts what they came to.
    pub(crate) fn assert_past(&self, told: &Job) {
        let known = self.jobs.get(&told.id).or(self.dead.get(&told.id)).map(|job| &job.past);
        let Some(known) = known.or(self.done.get(&told.id).map(|(_, past)| past)) else {
            panic!("nobody knows {told:?}")
        };
        let last = &known[known.len().saturating_sub(PastAttempt::COUNT_MAX)..];
        let past: Vec<Past> =
            told.past.iter().map(|past| (past.attempt, past.end.clone())).collect();
        assert_eq!(past, last, "{told:?}");
        let is_of_worker = |past: &PastAttempt| past.worker == "w";
        assert!(told.past.iter().all(is_of_worker), "{told:?}");
    }

    /// The jobs that run.
    pub(crate) fn running(&self) -> Vec<JobId> {
        let runs = |(id, job): (&JobId, &RefJob)| job.running.is_some().then_some(*id);
        self.jobs.iter().filter_map(runs).collect()
    }

    /// How many jobs wait, are delayed and run.
    pub(crate) fn counts(&self) -> Counts {
        let count =
            |is: fn(&RefJob) -> bool| self.jobs.values().filter(|job| is(job)).count() as u64;
        Counts {
            waiting: count(|job| job.running.is_none() && job.waits),
            delayed: count(|job| job.running.is_none() && !job.waits),
            running: count(|job| job.running.is_some()),
        }
    }

    /// The jobs of a group that wait, in the order in which they must start.
    fn line(&self, group: &Group) -> Vec<JobId> {
        let waits = |(_, job): &(&JobId, &RefJob)| {
            job.job.group == *group && job.running.is_none() && job.waits
        };
        let order = |(id, job): &(&JobId, &RefJob)| (u8::MAX - job.job.priority, job.due, **id);
        let mut line: Vec<_> = self.jobs.iter().filter(waits).collect();
        line.sort_by_key(order);
        line.into_iter().map(|(id, _)| *id).collect()
    }

    fn head(&self, group: &Group) -> Option<(JobId, &RefJob)> {
        let id = *self.line(group).first()?;
        self.jobs.get(&id).map(|job| (id, job))
    }

    fn may_start(&self, group: &Group, job: &RefJob) -> bool {
        let state = self.groups.get(group).cloned().unwrap_or_default();
        if self.paused || state.paused || state.blocked > self.now {
            return false;
        }
        let (limit, now) = (self.limit(group), self.now);
        let counted = state.calls.iter().filter(|call| counts(call, &limit, state.edge, now));
        let (used, units) = (counted.map(|call| call.units).sum::<u32>(), units_of(&limit));
        used + job.job.weight.min(units) <= units
    }

    /// A lease was granted: it must be the head of its group, and allowed.
    pub(crate) fn start(&mut self, lease: &Lease) {
        let group = lease.group.clone();
        let (id, job) = self.head(&group).expect("a group with nothing to start started a job");
        assert_eq!(id, lease.id, "out of order: {lease:?}");
        assert!(
            self.may_start(&group, job),
            "over the limit {} at {:?}: {lease:?}, {:?}",
            self.limit(&group),
            self.now,
            self.groups.get(&group)
        );
        assert_eq!(lease.payload, job.job.payload);
        assert_eq!((lease.attempt, lease.failures), (job.attempt + 1, job.failures));
        let limit = self.limit(&group);
        let units = lease.weight.min(units_of(&limit));
        let (started, expires) = (self.now, self.now.after(self.settings.lease));
        assert_eq!(lease.expires_at, expires);
        let refits = Some(self.refits);
        let job = self.jobs.get_mut(&id).expect("the head is there");
        job.attempt += 1;
        job.running = Some(RefRun { started, expires, cancelled: false, refits });
        let state = self.groups.entry(group).or_default();
        state.kind = Some(kind_of(&limit));
        let (now, mut counted) = (self.now, started);
        match limit {
            Limit::Slots { window, .. } => {
                let free = |call: &Call| call.answered.is_some_and(|at| at.after(window) <= now);
                state.calls.retain(|call| !free(call));
            }
            // The core counts a call no earlier than the last.
            Limit::Policy(_) => {
                counted = state.calls.iter().map(|call| call.started).fold(started, Timestamp::max);
            }
            Limit::Window { window, .. } => {
                let edge = state.edge;
                state
                    .calls
                    .retain(|call| call.answered.is_none_or(|at| frees(at, window, edge) > now));
            }
            Limit::Answered(_) => {}
        }
        state.calls.push(Call { id, units, started: counted, answered: None });
        // What is long over is dropped, or the lists would grow for ever.
        let over = |at: Timestamp| at.after(Duration::from_secs(120)) < now;
        state.calls.retain(|call| !call.answered.is_some_and(over));
    }

    pub(crate) fn assert_nothing_can_start(&self) {
        let groups: BTreeSet<&Group> = self.jobs.values().map(|job| &job.job.group).collect();
        for group in groups {
            if let Some((id, job)) = self.head(group) {
                assert!(
                    !self.may_start(group, job),
                    "job {id} was left out under {} at {:?}: {job:?}, {:?}",
                    self.limit(group),
                    self.now,
                    self.groups.get(group)
                );
            }
        }
    }

    fn holds(&self, token: LeaseToken) -> bool {
        let job = self.jobs.get(&token.id);
        job.is_some_and(|job| job.attempt == token.attempt && job.running.is_some())
    }

    pub(crate) fn hold(&mut self, token: LeaseToken, wait: Duration) -> bool {
        if !self.holds(token) {
            return false;
        }
        let group = self.jobs[&token.id].job.group.clone();
        let group = self.groups.entry(group).or_default();
        group.blocked = group.blocked.max(self.now.after(wait));
        true
    }

    pub(crate) fn settle(&mut self, token: LeaseToken, outcome: &Outcome) -> Settled {
        let id = token.id;
        if !self.holds(token) {
            let done = self.done.get(&id).is_some_and(|(attempt, _)| *attempt == token.attempt);
            let dead = self.dead.get(&id).is_some_and(|job| job.attempt == token.attempt);
            return match outcome {
                Outcome::Done { .. } if done => Settled::Done,
                Outcome::Failed { .. } if dead => Settled::Dead,
                _ => Settled::Lost,
            };
        }
        match outcome {
            Outcome::Done { .. } | Outcome::Failed { .. } => self.answer(id, self.now),
            Outcome::Limited { wait } => {
                self.refund(id);
                self.tell(id, *wait);
            }
            Outcome::Released => self.refund(id),
        }
        let (now, attempts_max) = (self.now, self.settings.attempts_max);
        let job = self.jobs.get_mut(&id).expect("it holds");
        let run = job.running.take().expect("it holds");
        job.past.extend(match outcome {
            Outcome::Done { .. } => None,
            Outcome::Failed { reason, .. } => {
                Some((token.attempt, AttemptEnd::Failed { reason: reason.clone() }))
            }
            Outcome::Limited { wait } => Some((token.attempt, AttemptEnd::Limited { wait: *wait })),
            Outcome::Released => Some((token.attempt, AttemptEnd::Released)),
        });
        match outcome {
            Outcome::Done { .. } => {
                self.done.insert(id, (token.attempt, std::mem::take(&mut job.past)));
                self.jobs.remove(&id);
                Settled::Done
            }
            Outcome::Limited { wait } => {
                let group = self.groups.entry(job.job.group.clone()).or_default();
                group.blocked = group.blocked.max(now.after(*wait));
                let from = group.blocked.max(now);
                if run.cancelled { self.remove(id) } else { Settled::Waiting { from } }
            }
            Outcome::Released => {
                let from = self.groups[&job.job.group].blocked.max(now);
                if run.cancelled { self.remove(id) } else { Settled::Waiting { from } }
            }
            Outcome::Failed { .. } if run.cancelled => self.remove(id),
            Outcome::Failed { retry, .. } => {
                job.failures += 1;
                if !retry || job.failures >= attempts_max {
                    return self.bury(id);
                }
                let thousandths = (id.0 * 271 + u64::from(job.failures) * 617) % 1_000;
                let jitter = f64::from(self.settings.backoff_jitter) * thousandths as f64 / 1e5;
                let wait = self.settings.backoff.wait(job.failures);
                let longer_us = (wait.as_micros() as f64 * jitter).round() as u64;
                job.due = now.after(wait).after(Duration::from_micros(longer_us));
                job.waits = false;
                Settled::Waiting { from: job.due }
            }
        }
    }

    fn bury(&mut self, id: JobId) -> Settled {
        let job = self.jobs.remove(&id).expect("it is there");
        self.dead.insert(id, job);
        Settled::Dead
    }

    fn remove(&mut self, id: JobId) -> Settled {
        let job = self.jobs.remove(&id).expect("it is there");
        if let Some(key) = job.job.key {
            self.keys.retain(|(held, ..)| *held != key);
        }
        Settled::Cancelled
    }

    pub(crate) fn cancel(&mut self, id: JobId) -> Cancelled {
        if self.dead.remove(&id).is_some() {
            return Cancelled::Removed;
        }
        match self.jobs.get_mut(&id) {
            None => Cancelled::NotFound,
            Some(job) => {
                if let Some(run) = &mut job.running {
                    run.cancelled = true;
                    return Cancelled::Requested;
                }
                self.remove(id);
                Cancelled::Removed
            }
        }
    }

    /// Whether a job was given another time to start, or runs; `None` if there is no such job.
    pub(crate) fn reschedule(&mut self, id: JobId, start: Start) -> Option<bool> {
        let now = self.now;
        let job = self.jobs.get_mut(&id)?;
        if job.running.is_some() {
            return Some(false);
        }
        job.due = moment(start, now).max(now);
        job.waits = job.due <= now;
        Some(true)
    }

    pub(crate) fn is_over(&self, id: JobId) -> bool {
        self.done.contains_key(&id) || self.dead.contains_key(&id)
    }

    pub(crate) fn heartbeat(&mut self, token: LeaseToken) -> Beat {
        if !self.holds(token) {
            return Beat::Lost;
        }
        let until = self.now.after(self.settings.lease);
        let run = self.jobs.get_mut(&token.id).and_then(|job| job.running.as_mut());
        let run = run.expect("it holds");
        run.expires = run.expires.max(until);
        if run.cancelled { Beat::Cancelled(run.expires) } else { Beat::Until(run.expires) }
    }

    pub(crate) fn change(&mut self, settings: QueueSettings) {
        self.settings = settings;
        self.refits += 1;
        let followers: Vec<Group> = self
            .groups
            .iter()
            .filter(|(_, group)| group.limits.is_none())
            .map(|(name, _)| name.clone())
            .collect();
        followers.iter().for_each(|group| self.refit(group));
    }

    pub(crate) fn set_limits(&mut self, group: &Group, limits: Option<Vec<Limit>>) {
        self.refits += 1;
        self.groups.entry(group.clone()).or_default().limits = limits;
        self.refit(group);
    }

    /// A limit of another kind knows only of what runs.
    fn refit(&mut self, group: &Group) {
        let limit = self.limit(group);
        let running: Vec<(JobId, u32, Timestamp)> = self
            .jobs
            .iter()
            .filter(|(_, job)| job.job.group == *group)
            .filter_map(|(id, job)| Some((*id, job.job.weight, job.running.as_ref()?.started)))
            .collect();
        let state = self.groups.entry(group.clone()).or_default();
        let kind = kind_of(&limit);
        let vacant = state.calls.is_empty();
        if state.kind == Some(kind) && !vacant {
            return;
        }
        if state.kind != Some(kind) {
            state.edge = None;
        }
        state.kind = Some(kind);
        state.calls.clear();
        if !matches!(limit, Limit::Policy(_)) {
            let units = units_of(&limit);
            let call = |(id, weight, started): (JobId, u32, Timestamp)| Call {
                id,
                units: weight.min(units),
                started,
                answered: None,
            };
            state.calls = running.into_iter().map(call).collect();
        }
    }

    pub(crate) fn pause(&mut self, group: Option<&Group>, paused: bool) {
        match group {
            None => self.paused = paused,
            Some(group) => self.groups.entry(group.clone()).or_default().paused = paused,
        }
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.paused
    }

    /// Under which limits a job started is forgotten by a restart, and nothing else.
    pub(crate) fn restart(&mut self) {
        for run in self.jobs.values_mut().filter_map(|job| job.running.as_mut()) {
            run.refits = None;
        }
    }

    pub(crate) fn dead(&self) -> BTreeSet<JobId> {
        self.dead.keys().copied().collect()
    }

    pub(crate) fn revive(&mut self, id: JobId) {
        let mut job = self.dead.remove(&id).expect("it is dead");
        (job.failures, job.due, job.waits) = (0, self.now, true);
        self.jobs.insert(id, job);
    }
}

fn moment(start: Start, now: Timestamp) -> Timestamp {
    match start {
        Start::Now => now,
        Start::After(delay) => now.after(delay),
        Start::At(at) => at,
    }
}

/// Whether a call takes anything of a limit.
fn counts(
    call: &Call,
    limit: &Limit,
    edge: Option<(Timestamp, Timestamp)>,
    now: Timestamp,
) -> bool {
    match limit {
        Limit::Slots { window, .. } => call.answered.is_none_or(|at| at.after(*window) > now),
        Limit::Window { window, .. } => {
            call.answered.is_none_or(|at| frees(at, *window, edge) > now)
        }
        Limit::Policy(Algorithm::SlidingWindow(sliding)) => {
            call.started.after(sliding.period()) > now
        }
        Limit::Answered(Algorithm::SlidingWindow(sliding)) => {
            call.answered.is_none_or(|at| at.after(sliding.period()) > now)
        }
        _ => unreachable!("the model has no other limits"),
    }
}

/// When what was answered `at` is free: at the first edge that surely lies behind it.
fn frees(at: Timestamp, window: Duration, edge: Option<(Timestamp, Timestamp)>) -> Timestamp {
    let (early, late) = edge.unwrap_or_default();
    if early > late {
        return at.after(window);
    }
    let window_ns = window.as_nanos() as u64;
    let mut from_ns = early.as_nanos() % window_ns + at.as_nanos() / window_ns * window_ns;
    while from_ns <= at.as_nanos() {
        from_ns += window_ns;
    }
    while from_ns - window_ns > at.as_nanos() {
        from_ns -= window_ns;
    }
    Timestamp::from_nanos(from_ns).after(late.since(early))
}

fn units_of(limit: &Limit) -> u32 {
    match limit {
        Limit::Slots { units, .. } | Limit::Window { units, .. } => *units,
        Limit::Policy(Algorithm::SlidingWindow(window))
        | Limit::Answered(Algorithm::SlidingWindow(window)) => window.limit() as u32,
        _ => u32::MAX,
    }
}

const fn kind_of(limit: &Limit) -> u8 {
    match limit {
        Limit::Slots { .. } => 0,
        Limit::Window { .. } => 1,
        Limit::Policy(_) => 2,
        Limit::Answered(_) => 3,
    }
}
