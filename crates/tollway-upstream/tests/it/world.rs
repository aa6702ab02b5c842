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
    Arrive(usize, Ticket),
    Answer(usize, Ticket),
    Lose(usize, Ticket),
    Look,
}

pub(crate) struct World {
    pub(crate) budgets: Budgets,
    limits: Vec<Vec<Limit>>,
    counts: HashMap<(usize, usize), Count>,
    global: Option<(u64, Duration, Vec<u64>)>,
    queue: BinaryHeap<Reverse<(Timestamp, u64, Event)>>,
    seq: u64,
    answers: HashMap<Ticket, Observation>,
    waiting: BTreeMap<Waiter, usize>,
    flying: HashMap<usize, usize>,
    outcomes: Outcomes,
}

/// Requests to routes 0, 1, 2 ... of an upstream whose routes have limits of their own.
impl World {
    pub(crate) fn new(profile: Arc<Profile>, limits: Vec<Vec<Limit>>) -> Self {
        Self {
            budgets: Budgets::new(profile, Settings::default()),
            limits,
            counts: HashMap::new(),
            global: None,
            queue: BinaryHeap::new(),
            seq: 0,
            answers: HashMap::new(),
            waiting: BTreeMap::new(),
            flying: HashMap::new(),
            outcomes: Outcomes::default(),
        }
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
        self.outcomes.unanswered = self.waiting.len();
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
                let route = Route::new("GET", &format!("/{}", plans[index].route), "");
                let claim = Claim::new(route).cost(0, 1).cost(1, plans[index].cost);
                match self.budgets.claim(&claim, now) {
                    Ok(Granted::Now(ticket)) => self.send(plans, index, ticket, now),
                    Ok(Granted::Later(waiter)) => {
                        self.waiting.insert(waiter, index);
                    }
                    Err(refusal) => panic!("{refusal}"),
                }
            }
            Event::Arrive(index, ticket) => {
                let observation = self.serve(&plans[index], now);
                self.outcomes.refused += usize::from(observation.is_limited());
                self.answers.insert(ticket, observation);
                let back = now.after(Duration::from_millis(plans[index].back_ms));
                let lost = plans[index].lost;
                let event =
                    if lost { Event::Lose(index, ticket) } else { Event::Answer(index, ticket) };
                self.push(back, event);
            }
            Event::Answer(index, ticket) => {
                *self.flying.entry(plans[index].route).or_default() -= 1;
                let observation = self.answers.remove(&ticket).expect("it was answered");
                self.budgets.observe(ticket, &observation, now);
            }
            Event::Lose(index, ticket) => {
                *self.flying.entry(plans[index].route).or_default() -= 1;
                self.budgets.abandon(ticket, now);
            }
            Event::Look => {}
        }
    }

    fn look(&mut self, plans: &[Plan], now: Timestamp) {
        while let Some((waiter, ticket)) = self.budgets.next(now) {
            let index = self.waiting.remove(&waiter).expect("it waited");
            self.send(plans, index, ticket, now);
        }
        let next = self.budgets.earliest(now);
        let known = self.queue.peek().map(|Reverse((at, ..))| *at);
        if let Some(at) = next
            && known.is_none_or(|known| at < known)
        {
            assert!(at > now, "told to look again at once, at {at:?}");
            self.push(at, Event::Look);
        }
    }

    fn send(&mut self, plans: &[Plan], index: usize, ticket: Ticket, now: Timestamp) {
        let plan = &plans[index];
        self.outcomes.sent.push((index, now));
        let flying = self.flying.entry(plan.route).or_default();
        *flying += 1;
        let most = self.outcomes.in_flight_most.entry(plan.route).or_default();
        *most = (*most).max(*flying);
        let there = now.after(Duration::from_millis(plan.there_ms));
        self.push(there, Event::Arrive(index, ticket));
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
        let limits = self.limits[plan.route].clone();
        let costs = [1, u64::from(plan.cost)];
        let standing = |count: &Count, limit: &Limit| count.left(limit, now_ns);
        let mut counts: Vec<Count> = (0..limits.len())
            .map(|dimension| self.counts.get(&(plan.route, dimension)).copied().unwrap_or_default())
            .collect();
        let fits = limits
            .iter()
            .zip(&counts)
            .enumerate()
            .all(|(dimension, (limit, count))| standing(count, limit) >= costs[dimension]);
        if fits {
            for (dimension, (limit, count)) in limits.iter().zip(&mut counts).enumerate() {
                count.take(limit, costs[dimension], now_ns);
                self.counts.insert((plan.route, dimension), *count);
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
