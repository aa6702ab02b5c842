//! A fleet whose processes share documents in a store, in virtual time: calls and messages travel
//! for random times, replies are lost, processes die. It is judged by the upstream that judges one
//! process.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use tollway_core::Timestamp;
use tollway_upstream::budget::{Claim, Settings};
use tollway_upstream::profile::{Observation, Profile};
use tollway_upstream::shared::replica::{Call, Event, Message, Replica, Reply};

use crate::budgets::{ONE, TWO, limit, plan, profile};
use crate::world::{Alone, Counted, Desk, Limit, Outcomes, Plan, Shape, World};

/// The store, as `scripts/commit.lua` has it.
#[derive(Debug, Default)]
struct Store {
    documents: [Vec<u8>; 2],
}

impl Store {
    fn run(&mut self, call: &mut Call) -> Reply {
        let version = |document: &[u8]| document[..document.len().min(16)].to_vec();
        if [0, 1].iter().any(|index| version(&self.documents[*index]) != call.expected[*index]) {
            let [account, group] = self.documents.clone();
            let counter = tollway_upstream::shared::replica::Counter::default();
            return Reply::Conflict { account, group, blocked: Duration::ZERO, counter };
        }
        for (document, written) in self.documents.iter_mut().zip(&mut call.written) {
            if let Some(bytes) = written.take() {
                *document = bytes;
            }
        }
        Reply::Done
    }
}

/// What travels.
#[derive(Debug)]
enum Travelling {
    Call(usize, Call),
    Reply(usize, Reply),
    Lost(usize),
    Message(usize, Message),
    Beat,
}

struct Fleet {
    store: Store,
    replicas: Vec<Replica>,
    homes: HashMap<usize, usize>,
    ready: VecDeque<usize>,
    queue: BinaryHeap<Reverse<(Timestamp, u64)>>,
    travelling: HashMap<u64, Travelling>,
    sequence: u64,
    dice: u64,
    is_rough: bool,
}

impl Fleet {
    fn new(profile: &Arc<Profile>, processes: usize, seed: u64, is_rough: bool) -> Self {
        let replica = |me| Replica::of(Arc::clone(profile), Settings::default(), me);
        let mut fleet = Self {
            store: Store::default(),
            replicas: (1..=processes as u64).map(replica).collect(),
            homes: HashMap::new(),
            ready: VecDeque::new(),
            queue: BinaryHeap::new(),
            travelling: HashMap::new(),
            sequence: 0,
            dice: seed | 1,
            is_rough,
        };
        if is_rough {
            fleet.send(Timestamp::from_millis(1_000), Travelling::Beat);
        }
        fleet
    }

    fn dice(&mut self, sides: u64) -> u64 {
        self.dice ^= self.dice << 13;
        self.dice ^= self.dice >> 7;
        self.dice ^= self.dice << 17;
        self.dice % sides
    }

    fn send(&mut self, at: Timestamp, what: Travelling) {
        self.sequence += 1;
        self.queue.push(Reverse((at, self.sequence)));
        self.travelling.insert(self.sequence, what);
    }

    fn later(&mut self, now: Timestamp) -> Timestamp {
        let most = if self.is_rough { 4_000 } else { 400 };
        let micros = self.dice(most);
        now.after(Duration::from_micros(micros))
    }

    fn arrive(&mut self, what: Travelling, now: Timestamp) {
        match what {
            Travelling::Call(process, mut call) => {
                let fate = if self.is_rough { self.dice(40) } else { 9 };
                let back = self.later(now);
                // Lost on its way there, or its reply on its way back.
                if fate == 0 {
                    return self.send(back, Travelling::Lost(process));
                }
                let reply = self.store.run(&mut call);
                if matches!(reply, Reply::Done) {
                    for (to, message) in std::mem::take(&mut call.messages) {
                        let at = self.later(now);
                        if !self.is_rough || self.dice(40) > 0 {
                            self.send(at, Travelling::Message(to as usize - 1, message));
                        }
                    }
                }
                let lost = fate == 1;
                self.send(
                    back,
                    if lost {
                        Travelling::Lost(process)
                    } else {
                        Travelling::Reply(process, reply)
                    },
                );
            }
            Travelling::Reply(process, reply) => {
                let events = self.replicas[process].reply(reply, now);
                self.take(events);
            }
            Travelling::Lost(process) => self.replicas[process].lost(),
            Travelling::Message(process, Message::Granted(numbers)) => {
                let events = self.replicas[process].granted_by_other(&numbers, now);
                self.take(events);
            }
            Travelling::Message(process, Message::Look(wait)) => {
                self.replicas[process].look_at(now.after(wait));
            }
            Travelling::Beat => {
                self.replicas.iter_mut().filter(|it| it.has_waiters()).for_each(Replica::refresh);
                if self.replicas.iter().any(|it| !it.is_idle()) || now.as_nanos() < 5_000_000_000 {
                    self.send(now.after(Duration::from_millis(800)), Travelling::Beat);
                }
            }
        }
    }

    fn take(&mut self, events: Vec<Event>) {
        for event in events {
            match event {
                Event::Granted(number) => self.ready.push_back(number as usize),
                Event::Refused(_, refusal) => panic!("{refusal}"),
                Event::Named(..) | Event::Unlocked(_) | Event::Changed(_) => {}
            }
        }
    }

    /// Lets everything happen that is due, and sends what it asks for.
    fn run(&mut self, now: Timestamp) {
        loop {
            while let Some(&Reverse((at, sequence))) = self.queue.peek()
                && at <= now
            {
                self.queue.pop();
                if let Some(what) = self.travelling.remove(&sequence) {
                    self.arrive(what, now);
                }
            }
            let mut is_quiet = true;
            for process in 0..self.replicas.len() {
                self.sequence += 1;
                if let Some(call) = self.replicas[process].next_call(self.sequence, now) {
                    let at = self.later(now);
                    self.send(at, Travelling::Call(process, call));
                    is_quiet = false;
                }
            }
            if is_quiet {
                return;
            }
        }
    }
}

impl Desk for Fleet {
    fn claim(&mut self, index: usize, claim: &Claim, now: Timestamp) {
        let process = index % self.replicas.len();
        self.homes.insert(index, process);
        let stamp = now.as_nanos() / 1_000;
        self.replicas[process].stand(index as u64, claim.clone(), stamp, None, None);
    }

    fn answer(&mut self, index: usize, observation: Option<&Observation>, now: Timestamp) {
        let replica = &mut self.replicas[self.homes[&index]];
        match observation {
            Some(observation) => replica.answered(index as u64, observation.clone(), now),
            None => replica.abandoned(index as u64),
        }
    }

    fn next(&mut self, now: Timestamp) -> Option<usize> {
        self.run(now);
        self.ready.pop_front()
    }

    fn earliest(&mut self, now: Timestamp) -> Option<Timestamp> {
        let due = self.replicas.iter().filter_map(Replica::due).min();
        let due = due.map(|at| at.max(now.after(Duration::from_nanos(1))));
        let next = self.queue.peek().map(|Reverse((at, _))| *at);
        [due, next].into_iter().flatten().min()
    }
}

fn judge(
    text: &str,
    limits: Vec<Vec<Limit>>,
    plans: &[Plan],
    processes: usize,
    seed: u64,
    is_rough: bool,
) -> Outcomes {
    let fleet = Fleet::new(&profile(text), processes, seed, is_rough);
    World::new(fleet, limits).run(plans, 1_000_000)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]

    /// As for one process: the upstream refuses none, and nobody waits for ever.
    #[test]
    fn a_truthful_upstream_refuses_no_fleet(
        limits in prop::collection::vec(limit(1..12), 3),
        plans in prop::collection::vec(plan(3), 1..60),
        processes in 1_usize..5,
        seed in any::<u64>(),
        is_rough in any::<bool>(),
    ) {
        let limits: Vec<_> = limits.into_iter().map(|limit| vec![limit]).collect();
        let outcomes = judge(ONE, limits, &plans, processes, seed, is_rough);
        prop_assert_eq!(outcomes.refused, 0);
        prop_assert_eq!(outcomes.unanswered, 0);
        prop_assert_eq!(outcomes.sent.len(), plans.len());
    }

    #[test]
    fn a_name_that_comes_with_the_first_answer_costs_a_fleet_no_refusal(
        limits in prop::collection::vec(limit(1..12), 4),
        plans in prop::collection::vec(plan(4), 1..60),
        processes in 1_usize..5,
        seed in any::<u64>(),
        is_rough in any::<bool>(),
    ) {
        let limits: Vec<_> = limits.into_iter().map(|limit| vec![limit]).collect();
        let fleet = Fleet::new(&profile(ONE), processes, seed, is_rough);
        let world = World::new(fleet, limits).counting(Counted::Majors);
        let outcomes = world.run(&plans, 1_000_000);
        prop_assert_eq!(outcomes.refused, 0);
        prop_assert_eq!(outcomes.unanswered, 0);
    }

    #[test]
    fn several_dimensions_are_obeyed_by_a_fleet_at_once(
        requests in limit(1..12),
        tokens in limit(5..40),
        plans in prop::collection::vec(plan(1), 1..60),
        processes in 1_usize..5,
        seed in any::<u64>(),
    ) {
        let outcomes = judge(TWO, vec![vec![requests, tokens]], &plans, processes, seed, true);
        prop_assert_eq!(outcomes.refused, 0);
        prop_assert_eq!(outcomes.unanswered, 0);
    }

    #[test]
    fn lost_answers_neither_stop_nor_flood_a_fleet(
        limits in prop::collection::vec(limit(1..12), 2),
        mut plans in prop::collection::vec(plan(2), 1..60),
        lost in prop::collection::vec(any::<bool>(), 60),
        seed in any::<u64>(),
    ) {
        for (plan, lost) in plans.iter_mut().zip(lost) {
            plan.lost = lost;
        }
        let losses = plans.iter().filter(|plan| plan.lost).count();
        let limits: Vec<_> = limits.into_iter().map(|limit| vec![limit]).collect();
        let outcomes = judge(ONE, limits, &plans, 3, seed, true);
        prop_assert_eq!(outcomes.unanswered, 0);
        prop_assert!(outcomes.refused <= losses, "{} refused", outcomes.refused);
    }

    #[test]
    fn a_limit_of_the_credential_is_obeyed_by_a_fleet(
        limit in limit(1..12),
        plans in prop::collection::vec(plan(4), 1..60),
        processes in 1_usize..5,
        seed in any::<u64>(),
    ) {
        let text = format!("{ONE}reach = 'credential'\n");
        let fleet = Fleet::new(&profile(&text), processes, seed, true);
        let world = World::new(fleet, vec![vec![limit]]).counting(Counted::Credential);
        let outcomes = world.run(&plans, 1_000_000);
        prop_assert_eq!(outcomes.refused, 0);
        prop_assert_eq!(outcomes.unanswered, 0);
    }

    /// Nobody knows beforehand which of two buckets counts a request, so some are refused; but none
    /// more than by one process, and nobody stands still.
    #[test]
    fn a_route_with_two_names_stands_still_in_no_fleet(
        limits in prop::collection::vec(limit(2..12), 4),
        plans in prop::collection::vec(plan(4), 1..60),
        processes in 1_usize..5,
        seed in any::<u64>(),
    ) {
        let limits: Vec<_> = limits.into_iter().map(|limit| vec![limit]).collect();
        let alone = World::new(Alone::new(profile(ONE)), limits.clone()).counting(Counted::Named);
        let alone = alone.run(&plans, 100_000);
        let fleet = Fleet::new(&profile(ONE), processes, seed, true);
        let fleet = World::new(fleet, limits).counting(Counted::Named).run(&plans, 1_000_000);
        prop_assert_eq!(fleet.unanswered, 0);
        prop_assert!(fleet.refused <= alone.refused + 6, "{} {}", fleet.refused, alone.refused);
    }

    /// What one process learns of a limit that nothing tells, all know: a fleet is refused about as
    /// much as one process with all the requests, whatever is under way at the first refusal.
    #[test]
    fn a_hidden_limit_is_learned_by_a_fleet_as_by_one_process(
        limit in limit(2..12),
        plans in prop::collection::vec(plan(1), 20..80),
        processes in 1_usize..5,
        seed in any::<u64>(),
    ) {
        let limits = vec![vec![limit]];
        let alone = World::new(Alone::new(profile(ONE)), limits.clone()).silent();
        let alone = alone.run(&plans, 100_000);
        let fleet = Fleet::new(&profile(ONE), processes, seed, true);
        let fleet = World::new(fleet, limits).silent().run(&plans, 1_000_000);
        prop_assert_eq!((alone.unanswered, fleet.unanswered), (0, 0));
        prop_assert!(fleet.refused <= alone.refused + 12, "{} {}", fleet.refused, alone.refused);
    }

    /// A fleet takes as long as one process with all the requests, but for what calls take.
    #[test]
    fn a_fleet_takes_no_longer_than_one_process(
        limits in prop::collection::vec(limit(1..12), 2),
        plans in prop::collection::vec(plan(2), 1..60),
        processes in 1_usize..5,
        seed in any::<u64>(),
    ) {
        let limits: Vec<_> = limits.into_iter().map(|limit| vec![limit]).collect();
        let alone = World::new(Alone::new(profile(ONE)), limits.clone()).run(&plans, 100_000);
        let fleet = judge(ONE, limits.clone(), &plans, processes, seed, false);
        prop_assert_eq!(fleet.refused, 0);
        let took = |outcomes: &Outcomes| outcomes.sent.iter().map(|(_, at)| *at).max();
        let (alone, fleet) = (took(&alone).unwrap(), took(&fleet).unwrap());
        let window = limits.iter().flatten().map(|limit| limit.window).max().unwrap();
        let most = alone.since(Timestamp::MIN).mul_f64(1.05) + window + Duration::from_millis(100);
        prop_assert!(fleet.since(Timestamp::MIN) <= most, "{fleet:?} {alone:?}");
    }
}

/// Many requests of one long history: 10^5 of them with `TOLLWAY_FULL`.
#[test]
fn a_long_history_of_a_fleet_ends_without_a_refusal() {
    let count = if std::env::var_os("TOLLWAY_FULL").is_some() { 100_000 } else { 2_000 };
    let mut dice = 7_u64;
    let mut roll = |sides: u64| {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (dice >> 33) % sides
    };
    let plans: Vec<Plan> = (0..count)
        .map(|index| Plan {
            at_ms: index * 12 + roll(400),
            route: roll(6) as usize,
            there_ms: roll(200),
            back_ms: roll(200),
            lost: false,
            cost: 1,
        })
        .collect();
    let shapes = [Shape::Anchored, Shape::Grid, Shape::Sliding];
    let limit = |route: u64| Limit {
        shape: shapes[route as usize % 3],
        units: 10 + 7 * route,
        window: Duration::from_millis(300 + 100 * route),
    };
    let limits: Vec<_> = (0..6).map(|route| vec![limit(route)]).collect();
    let fleet = Fleet::new(&profile(ONE), 4, 11, true);
    let outcomes = World::new(fleet, limits).run(&plans, 100 * count as usize);
    assert_eq!((outcomes.refused, outcomes.unanswered), (0, 0));
}

fn cases() -> u32 {
    if std::env::var_os("TOLLWAY_FULL").is_some() { 1_000 } else { 200 }
}
