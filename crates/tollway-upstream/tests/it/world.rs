//! A truthful upstream in virtual time, and requests that travel for random times both ways.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tollway_core::Timestamp;
use tollway_upstream::budget::{Budgets, Claim, Granted, Settings, Ticket, Waiter};
use tollway_upstream::pace::Outcome;
use tollway_upstream::profile::{Observation, Profile, Reading, Route, Scope};

/// How a limit of the upstream works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// The window begins with its first request.
    Anchored,
    /// Windows begin at multiples of their length.
    Grid,
    /// Units come back one by one.
    Sliding,
}

/// One limit of a bucket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    pub(crate) shape: Shape,
    pub(crate) units: u64,
    pub(crate) window: Duration,
}

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    used: u64,
    ends_ns: u64,
}

/// A request of the plan: when it is asked for, where it goes, how long it travels each way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) at_ms: u64,
    pub(crate) route: usize,
    pub(crate) there_ms: u64,
    pub(crate) back_ms: u64,
    /// Whether its answer never comes.
    pub(crate) lost: bool,
    pub(crate) cost: u32,
}

/// What the limits of the upstream count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counted {
    /// Each route for itself.
    Routes,
    /// Every request of the credential, by the first limit.
    Credential,
    /// One of two buckets for each two routes, which clients cannot tell apart: the answer names
    /// it.
    Named,
    /// Resources of one route, each by a bucket of its own; every answer has the name of the
    /// route's buckets.
    Majors,
}

/// What happened.
#[derive(Debug, Default)]
pub(crate) struct Outcomes {
    pub(crate) refused: usize,
    pub(crate) sent: Vec<(usize, Timestamp)>,
    pub(crate) in_flight_most: HashMap<usize, usize>,
    pub(crate) ended: Timestamp,
    pub(crate) unanswered: usize,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Ask(usize),
    Arrive(usize),
    Answer(usize),
    Lose(usize),
    Look,
}

/// Who lets the requests go that are judged: one process, or a fleet.
pub(crate) trait Desk {
    fn claim(&mut self, index: usize, claim: &Claim, now: Timestamp);
    /// The answer to a request; none if it is lost.
    fn answer(&mut self, index: usize, observation: Option<&Observation>, now: Timestamp);
    /// A request that may go.
    fn next(&mut self, now: Timestamp) -> Option<usize>;
    /// When to ask again.
    fn earliest(&mut self, now: Timestamp) -> Option<Timestamp>;
}

/// Budgets of one process.
pub(crate) struct Alone {
    budgets: Budgets,
    waiting: BTreeMap<Waiter, usize>,
    tickets: HashMap<usize, Ticket>,
    ready: Vec<usize>,
}

impl Alone {
    pub(crate) fn new(profile: Arc<Profile>) -> Self {
        let budgets = Budgets::new(profile, Settings::default());
        let (waiting, tickets, ready) = (BTreeMap::new(), HashMap::new(), Vec::new());
        Self { budgets, waiting, tickets, ready }
    }

    /// One of so many processes that cannot tell each other what they take.
    pub(crate) fn apart(profile: Arc<Profile>, processes: u32, rank: u32) -> Self {
        let mut alone = Self::new(profile);
        alone.budgets.go_apart(processes, rank);
        alone
    }

    /// Others have told something.
    pub(crate) fn hear(&mut self, claim: &Claim, told: &Observation, now: Timestamp) {
        self.budgets.hear(claim, told, now);
    }
}

impl Desk for Alone {
    fn claim(&mut self, index: usize, claim: &Claim, now: Timestamp) {
        match self.budgets.claim(claim, now) {
            Ok(Granted::Now(ticket)) => {
                self.tickets.insert(index, ticket);
                self.ready.push(index);
            }
            Ok(Granted::Later(waiter)) => {
                self.waiting.insert(waiter, index);
            }
            Err(refusal) => panic!("{refusal}"),
        }
    }

    fn answer(&mut self, index: usize, observation: Option<&Observation>, now: Timestamp) {
        let ticket = self.tickets.remove(&index).expect("it was let go");
        match observation {
            Some(observation) => self.budgets.observe(ticket, observation, now),
            None => self.budgets.abandon(ticket, now),
        }
    }

    fn next(&mut self, now: Timestamp) -> Option<usize> {
        if let Some(index) = self.ready.pop() {
            return Some(index);
        }
        let (waiter, ticket) = self.budgets.next(now)?;
        let index = self.waiting.remove(&waiter).expect("it waited");
        self.tickets.insert(index, ticket);
        Some(index)
    }

    fn earliest(&mut self, now: Timestamp) -> Option<Timestamp> {
        let at = self.budgets.earliest(now);
        assert!(at.is_none_or(|at| at > now), "told to look again at once, at {at:?}");
        at
    }
}

pub(crate) struct World<D = Alone> {
    desk: D,
    limits: Vec<Vec<Limit>>,
    counts: HashMap<(usize, usize), Count>,
    counted: Counted,
    is_silent: bool,
    global: Option<(u64, Duration, Vec<u64>)>,
    queue: BinaryHeap<Reverse<(Timestamp, u64, Event)>>,
    seq: u64,
    answers: HashMap<usize, Observation>,
    flying: HashMap<usize, usize>,
    outcomes: Outcomes,
}

/// Requests to routes 0, 1, 2 ... of an upstream whose routes have limits of their own.
impl<D: Desk> World<D> {
    pub(crate) fn new(desk: D, limits: Vec<Vec<Limit>>) -> Self {
        Self {
            desk,
            limits,
            counts: HashMap::new(),
            counted: Counted::Routes,
            is_silent: false,
            global: None,
            queue: BinaryHeap::new(),
            seq: 0,
            answers: HashMap::new(),
            flying: HashMap::new(),
            outcomes: Outcomes::default(),
        }
    }

    pub(crate) fn counting(self, counted: Counted) -> Self {
        Self { counted, ..self }
    }

    /// The upstream tells nothing of its limits but how long a refused request has to wait.
    pub(crate) fn silent(self) -> Self {
        Self { is_silent: true, ..self }
    }

    /// The upstream also counts all requests in a window that slides.
    pub(crate) fn with_global(mut self, units: u64, window: Duration) -> Self {
        self.global = Some((units, window, Vec::new()));
        self
    }

    /// Runs the plan until nothing happens any more, or `most` events have.
    pub(crate) fn run(mut self, plans: &[Plan], most: usize) -> Outcomes {
        for (index, plan) in plans.iter().enumerate() {
            self.push(Timestamp::from_millis(1_000 + plan.at_ms), Event::Ask(index));
        }
        let mut now = Timestamp::MIN;
        for _ in 0..most {
            let Some(Reverse((at, _, event))) = self.queue.pop() else { break };
            now = at;
            self.step(plans, event, now);
            self.look(plans, now);
        }
        assert!(self.queue.is_empty(), "still busy after {most} events");
        self.outcomes.unanswered = plans.len() - self.outcomes.sent.len();
        self.outcomes.ended = now;
        self.outcomes
    }

    fn push(&mut self, at: Timestamp, event: Event) {
        self.seq += 1;
        self.queue.push(Reverse((at, self.seq, event)));
    }

    fn step(&mut self, plans: &[Plan], event: Event, now: Timestamp) {
        match event {
            Event::Ask(index) => {
                let number = plans[index].route;
                let route = match self.counted {
                    Counted::Named => Route::new("GET", &format!("/{}", number / 2), ""),
                    Counted::Majors => Route::new("GET", "/:major", &format!("{number}")),
                    Counted::Routes | Counted::Credential => {
                        Route::new("GET", &format!("/{number}"), "")
                    }
                };
                let claim = Claim::new(route).cost(0, 1).cost(1, plans[index].cost);
                self.desk.claim(index, &claim, now);
            }
            Event::Arrive(index) => {
                let mut observation = self.serve(&plans[index], now);
                observation.bucket = match self.counted {
                    Counted::Named => Some(format!("b{}", plans[index].route).into()),
                    Counted::Majors => Some("b".into()),
                    Counted::Routes | Counted::Credential => None,
                };
                if self.is_silent {
                    observation.readings.clear();
                }
                self.outcomes.refused += usize::from(observation.is_limited());
                self.answers.insert(index, observation);
                let back = now.after(Duration::from_millis(plans[index].back_ms));
                let lost = plans[index].lost;
                self.push(back, if lost { Event::Lose(index) } else { Event::Answer(index) });
            }
            Event::Answer(index) => {
                *self.flying.entry(plans[index].route).or_default() -= 1;
                let observation = self.answers.remove(&index).expect("it was answered");
                self.desk.answer(index, Some(&observation), now);
            }
            Event::Lose(index) => {
                *self.flying.entry(plans[index].route).or_default() -= 1;
                self.desk.answer(index, None, now);
            }
            Event::Look => {}
        }
    }

    fn look(&mut self, plans: &[Plan], now: Timestamp) {
        while let Some(index) = self.desk.next(now) {
            self.send(plans, index, now);
        }
        let next = self.desk.earliest(now);
        let known = self.queue.peek().map(|Reverse((at, ..))| *at);
        if let Some(at) = next
            && known.is_none_or(|known| at < known)
        {
            self.push(at, Event::Look);
        }
    }

    fn send(&mut self, plans: &[Plan], index: usize, now: Timestamp) {
        let plan = &plans[index];
        self.outcomes.sent.push((index, now));
        let flying = self.flying.entry(plan.route).or_default();
        *flying += 1;
        let most = self.outcomes.in_flight_most.entry(plan.route).or_default();
        *most = (*most).max(*flying);
        let there = now.after(Duration::from_millis(plan.there_ms));
        self.push(there, Event::Arrive(index));
    }

    /// The upstream: takes from every limit or from none.
    fn serve(&mut self, plan: &Plan, now: Timestamp) -> Observation {
        let now_ns = now.as_nanos();
        if let Some((units, window, log)) = &mut self.global {
            let since = now_ns.saturating_sub(window.as_nanos() as u64);
            log.retain(|at| *at > since);
            if log.len() as u64 >= *units {
                let retry_after = Some(Duration::from_millis(500));
                return limited(Some(Scope::Global), retry_after, Vec::new());
            }
            log.push(now_ns);
        }
        let slot = if self.counted == Counted::Credential { 0 } else { plan.route };
        let limits = self.limits[slot].clone();
        let costs = [1, u64::from(plan.cost)];
        let standing = |count: &Count, limit: &Limit| count.left(limit, now_ns);
        let mut counts: Vec<Count> = (0..limits.len())
            .map(|dimension| self.counts.get(&(slot, dimension)).copied().unwrap_or_default())
            .collect();
        let fits = limits
            .iter()
            .zip(&counts)
            .enumerate()
            .all(|(dimension, (limit, count))| standing(count, limit) >= costs[dimension]);
        if fits {
            for (dimension, (limit, count)) in limits.iter().zip(&mut counts).enumerate() {
                count.take(limit, costs[dimension], now_ns);
                self.counts.insert((slot, dimension), *count);
            }
        }
        let readings = limits.iter().zip(&counts).enumerate();
        let readings: Vec<_> = readings
            .map(|(dimension, (limit, count))| count.reading(limit, dimension as u8, now_ns))
            .collect();
        if fits {
            return Observation { readings, ..Observation::default() };
        }
        let wait = readings.iter().filter_map(|reading| reading.reset_after).max();
        limited(Some(Scope::User), wait, readings)
    }
}

fn limited(
    scope: Option<Scope>,
    retry_after: Option<Duration>,
    readings: Vec<Reading>,
) -> Observation {
    let outcome = Outcome::Limited;
    Observation { status: 429, outcome, scope, retry_after, readings, ..Observation::default() }
}

impl Count {
    /// Units left. For a sliding limit `ends_ns` is when everything is back.
    fn left(&self, limit: &Limit, now_ns: u64) -> u64 {
        match limit.shape {
            Shape::Sliding => {
                let booked = self.ends_ns.saturating_sub(now_ns).div_ceil(limit.unit_ns());
                limit.units.saturating_sub(booked)
            }
            _ if now_ns >= self.ends_ns => limit.units,
            _ => limit.units - self.used,
        }
    }

    fn take(&mut self, limit: &Limit, cost: u64, now_ns: u64) {
        let window_ns = limit.window.as_nanos() as u64;
        if limit.shape == Shape::Sliding {
            self.ends_ns = self.ends_ns.max(now_ns) + cost * limit.unit_ns();
            return;
        }
        if now_ns >= self.ends_ns {
            self.used = 0;
            self.ends_ns = match limit.shape {
                Shape::Grid => (now_ns / window_ns + 1) * window_ns,
                _ => now_ns + window_ns,
            };
        }
        self.used += cost;
    }

    fn reading(&self, limit: &Limit, dimension: u8, now_ns: u64) -> Reading {
        Reading {
            dimension,
            limit: Some(limit.units),
            remaining: Some(self.left(limit, now_ns)),
            reset_after: Some(Duration::from_nanos(self.ends_ns.saturating_sub(now_ns))),
            told_after: true,
            ..Reading::default()
        }
    }
}

impl Limit {
    fn unit_ns(&self) -> u64 {
        (self.window.as_nanos() as u64).div_ceil(self.units)
    }
}
