//! The learner against small models of what upstreams do, in virtual time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use proptest::prelude::*;

use super::*;

const MS: u64 = 1_000_000;
const OPENS_UP_TO: u32 = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The window begins with its first request.
    Anchored,
    /// Windows begin at multiples of their length.
    Grid,
    /// Any span of a window's length.
    Sliding,
    /// Units come back one by one.
    Refilled,
}

/// How a refusal tells the wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Exactly,
    InWholeSeconds,
    Not,
}

/// A hidden limit as an upstream has it.
#[derive(Clone, Debug)]
struct Upstream {
    kind: Kind,
    units: u64,
    window_ns: u64,
    taken: VecDeque<u64>,
    ends_ns: u64,
}

impl Upstream {
    /// Takes a unit, or says when there is one.
    fn take(&mut self, now_ns: u64) -> Result<(), u64> {
        let Self { kind, units, window_ns, taken, ends_ns } = self;
        let unit_ns = *window_ns / *units;
        match kind {
            Kind::Refilled => {
                let full_ns = (*ends_ns).max(now_ns) + unit_ns;
                if full_ns > now_ns + *window_ns {
                    return Err(full_ns - *window_ns - now_ns);
                }
                *ends_ns = full_ns;
                return Ok(());
            }
            Kind::Sliding => {
                while taken.front().is_some_and(|at| at + *window_ns <= now_ns) {
                    taken.pop_front();
                }
            }
            Kind::Anchored | Kind::Grid => {
                if now_ns >= *ends_ns {
                    taken.clear();
                    *ends_ns = match kind {
                        Kind::Grid => (now_ns / *window_ns + 1) * *window_ns,
                        _ => now_ns + *window_ns,
                    };
                }
            }
        }
        if taken.len() as u64 >= *units {
            let ends_ns = if *kind == Kind::Sliding { taken[0] + *window_ns } else { *ends_ns };
            return Err(ends_ns - now_ns);
        }
        taken.push_back(now_ns);
        Ok(())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Ask,
    Arrive { id: u64, left_ns: u64 },
    Answer { id: u64, left_ns: u64, refused_for_ns: Option<u64> },
    Look,
}

/// What happened to one request that was refused: when it left, and when the refusal came.
type Refusals = Vec<(u64, u64)>;

struct World {
    upstream: Upstream,
    told: Told,
    unsaid: Duration,
    travel_ms: Vec<u64>,
    learner: HiddenLimit,
    queue: BinaryHeap<Reverse<(u64, u64, Event)>>,
    sequence: u64,
    waiting: u64,
    in_flight: u32,
    most_in_flight: u32,
    looks_at_ns: Option<u64>,
    refusals: Refusals,
    served_ns: Vec<u64>,
}

impl World {
    fn new(upstream: Upstream, told: Told, travel_ms: Vec<u64>) -> Self {
        Self {
            upstream,
            told,
            unsaid: Duration::from_secs(1),
            travel_ms,
            learner: HiddenLimit::new(1),
            queue: BinaryHeap::new(),
            sequence: 0,
            waiting: 0,
            in_flight: 0,
            most_in_flight: u32::MAX,
            looks_at_ns: None,
            refusals: Vec::new(),
            served_ns: Vec::new(),
        }
    }

    /// Everybody asks at once.
    fn of_crowd(mut self, count: u64) -> Self {
        (0..count).for_each(|_| self.push(1_000 * MS, Event::Ask));
        self
    }

    fn one_by_one(self) -> Self {
        Self { most_in_flight: 1, ..self }
    }

    fn push(&mut self, at_ns: u64, event: Event) {
        self.sequence += 1;
        self.queue.push(Reverse((at_ns, self.sequence, event)));
    }

    fn travel_ns(&self, id: u64) -> u64 {
        self.travel_ms[id as usize % self.travel_ms.len()] * MS
    }

    /// Runs until all are served, `change` looking on after each event.
    fn run(mut self, mut change: impl FnMut(&mut Self, u64)) -> Self {
        for _ in 0..200_000 {
            let Some(Reverse((now_ns, _, event))) = self.queue.pop() else { break };
            self.step(event, now_ns);
            change(&mut self, now_ns);
            self.send(now_ns);
        }
        assert!(self.queue.is_empty() && self.waiting == 0, "{} wait for ever", self.waiting);
        self
    }

    fn step(&mut self, event: Event, now_ns: u64) {
        let now = Timestamp::from_nanos(now_ns);
        match event {
            Event::Look => self.looks_at_ns = None,
            Event::Ask => self.waiting += 1,
            Event::Arrive { id, left_ns } => {
                let told = self.told;
                let refused_for_ns = self.upstream.take(now_ns).err().map(|wait_ns| match told {
                    Told::InWholeSeconds => wait_ns.div_ceil(1_000 * MS) * 1_000 * MS,
                    _ => wait_ns,
                });
                let back_ns = self.travel_ns(id * 7 + 3);
                self.push(now_ns + back_ns, Event::Answer { id, left_ns, refused_for_ns });
            }
            Event::Answer { id, left_ns, refused_for_ns } => {
                self.in_flight -= 1;
                let left = Timestamp::from_nanos(left_ns);
                let Some(wait_ns) = refused_for_ns else {
                    self.served_ns.push(now_ns);
                    return self.learner.accept(id, left, OPENS_UP_TO, now);
                };
                let told = (self.told != Told::Not).then(|| Duration::from_nanos(wait_ns));
                let unsaid = self.unsaid;
                let refused = Refused { id, left, told, unsaid, is_wide: false };
                self.learner.refuse(&refused, now);
                self.refusals.push((left_ns, now_ns));
                self.waiting += 1;
            }
        }
    }

    fn send(&mut self, now_ns: u64) {
        let now = Timestamp::from_nanos(now_ns);
        while self.waiting > 0 && self.in_flight < self.most_in_flight {
            match self.learner.ready(self.in_flight, now) {
                When::Now => {}
                When::At(at) => {
                    assert!(at > now, "told to look again at once");
                    let at_ns = at.as_nanos();
                    if self.looks_at_ns.is_none_or(|known| at_ns < known) {
                        self.looks_at_ns = Some(at_ns);
                        self.push(at_ns, Event::Look);
                    }
                    return;
                }
                When::Answer => {
                    assert!(self.in_flight > 0, "waits for an answer that nobody owes");
                    return;
                }
            }
            self.sequence += 1;
            let id = self.sequence;
            self.learner.sent(id, self.in_flight, now);
            (self.waiting, self.in_flight) = (self.waiting - 1, self.in_flight + 1);
            let there_ns = self.travel_ns(id);
            self.push(now_ns + there_ns, Event::Arrive { id, left_ns: now_ns });
        }
    }

    /// Refusals but for those that were under way when another one was answered.
    fn knowing(&self) -> usize {
        let mut known_ns = 0;
        let is_knowing = |(left_ns, answered_ns): &&(u64, u64)| {
            let is_knowing = *left_ns >= known_ns;
            known_ns = if is_knowing { *answered_ns } else { known_ns };
            is_knowing
        };
        self.refusals.iter().filter(is_knowing).count()
    }

    fn took_ns(&self) -> u64 {
        self.served_ns.last().copied().unwrap_or(0) - 1_000 * MS
    }
}

const WINDOWS: &[Kind] = &[Kind::Anchored, Kind::Grid, Kind::Sliding];
const KINDS: &[Kind] = &[Kind::Anchored, Kind::Grid, Kind::Sliding, Kind::Refilled];

fn told() -> impl Strategy<Value = Told> {
    prop::sample::select(vec![Told::Exactly, Told::InWholeSeconds, Told::Not])
}

prop_compose! {
    fn upstream(kinds: &'static [Kind])(
        kind in prop::sample::select(kinds),
        units in 1_u64..12,
        window_ms in 300_u64..4_000,
    ) -> Upstream {
        let window_ns = window_ms * MS;
        Upstream { kind, units, window_ns, taken: VecDeque::new(), ends_ns: 0 }
    }
}

fn travel() -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec(prop_oneof![1_u64..10, 1_u64..60], 1..12)
}

proptest! {
    #![proptest_config(config())]

    /// One by one, two refusals teach a limit that tells its wait, before anything is tested. (What
    /// comes back one by one is found by its rate; see the next property.)
    #[test]
    fn one_by_one_two_refusals_teach_a_limit(
        upstream in upstream(WINDOWS),
        travel_ms in 1_u64..60,
    ) {
        let (kind, units) = (upstream.kind, upstream.units);
        let world = World::new(upstream, Told::Exactly, vec![travel_ms]);
        let world = world.of_crowd((TEST_AFTER - 1) * units).one_by_one().run(|_, _| {});
        // Where windows begin at times of their own, the first one was seen in part only.
        let most = if kind == Kind::Grid { 3 } else { 2 };
        prop_assert!(world.refusals.len() <= most, "{}", world.refusals.len());
    }

    /// Whatever is told, and in whatever order answers come, what was not under way when a refusal
    /// was answered is refused at most once in a window.
    #[test]
    fn a_window_has_at_most_one_refusal_after_the_first(
        upstream in upstream(KINDS),
        told in told(),
        travel_ms in travel(),
        crowd in 20_u64..120,
    ) {
        let Upstream { kind, units, window_ns, .. } = upstream;
        let world = World::new(upstream, told, travel_ms).of_crowd(crowd).run(|_, _| {});
        // It takes two refusals to learn it, two where windows begin at times of their own, and the
        // last window may not be over.
        let apart_ns = match kind {
            Kind::Refilled => window_ns / units,
            _ => window_ns,
        };
        let windows = world.took_ns() / apart_ns + 4;
        // The first wait is doubled until it is longer than the window.
        let windows = if told == Told::Not { windows + 2 } else { windows };
        let knowing = world.knowing() as u64;
        prop_assert!(knowing <= windows, "{knowing} in {windows}");
    }

    /// Requests that wait go about as fast as the limit permits.
    #[test]
    fn a_limit_that_is_learned_is_used(
        upstream in upstream(KINDS),
        told in told(),
        travel_ms in travel(),
        windows in 10_u64..40,
    ) {
        is_used_or_says(upstream, told, travel_ms, windows).map_err(TestCaseError::fail)?;
    }
}

/// Whether requests that wait go about as fast as the limit permits, once it is learned.
fn is_used_or_says(
    upstream: Upstream,
    told: Told,
    travel_ms: Vec<u64>,
    windows: u64,
) -> Result<(), String> {
    let Upstream { kind, units, window_ns, .. } = upstream;
    let most_travel_ns = 2 * MS * travel_ms.iter().max().copied().unwrap_or(0);
    // Who is told whole seconds waits whole seconds, however short the window is.
    let told_ns = if told == Told::InWholeSeconds { 1_000 * MS } else { 0 };
    let least_ns = windows * window_ns.max(told_ns);
    // Each window waits for its answers; one by one where units come back so.
    let rounds = if kind == Kind::Refilled { windows * units } else { windows };
    let world = World::new(upstream, told, travel_ms).of_crowd(windows * units);
    let world = world.run(|_, _| {});
    // To learn takes some windows, or some of the first waits: most of them where no wait is told.
    let (factor, learning) = match told {
        Told::Exactly => (1.2, 16),
        Told::InWholeSeconds => (2.0, 4),
        Told::Not => (2.5, 32),
    };
    // Where windows begin at times of their own, any span has less room than a window.
    let factor = factor + if kind == Kind::Grid { 1.0 } else { 0.0 };
    let learning_ns = learning * window_ns.max(1_000 * MS);
    // And before, two at a time are under way.
    let rounds = rounds + units;
    let most_ns = (least_ns as f64 * factor) as u64 + learning_ns + rounds * most_travel_ns;
    let (took_ms, most_ms) = (world.took_ns() / MS, most_ns / MS);
    if took_ms > most_ms { Err(format!("{took_ms} ms of {most_ms}")) } else { Ok(()) }
}

fn limit(kind: Kind, units: u64, window_ms: u64) -> Upstream {
    Upstream { kind, units, window_ns: window_ms * MS, taken: VecDeque::new(), ends_ns: 0 }
}

fn anchored(units: u64, window_ms: u64) -> Upstream {
    limit(Kind::Anchored, units, window_ms)
}

/// Each took up to twice the time: after a window that was a few milliseconds longer than believed,
/// the wait of those milliseconds was taken for a window of its own, with one unit.
#[test]
fn a_window_that_is_a_little_longer_is_not_taken_for_a_short_one() {
    let upstream = |units, window_ms| limit(Kind::Sliding, units, window_ms);
    // Refused again before the belief held.
    let ten = is_used_or_says(upstream(10, 3_594), Told::Exactly, vec![49, 8, 42, 9, 8, 9], 35);
    assert_eq!(ten, Ok(()));
    let six = is_used_or_says(upstream(6, 3_134), Told::Exactly, vec![3, 31, 46, 3, 19], 36);
    assert_eq!(six, Ok(()));
    let eight = vec![3, 2, 3, 3, 2, 31, 29, 7, 6, 1];
    assert_eq!(is_used_or_says(anchored(8, 1_420), Told::Exactly, eight, 31), Ok(()));
    // In whole seconds nobody is told how much longer it is.
    let five = vec![1, 40, 1, 7, 9, 2, 6, 5, 9];
    assert_eq!(is_used_or_says(upstream(5, 1_053), Told::InWholeSeconds, five, 36), Ok(()));
    // A refusal of the burst before came after the answer to the one that went first.
    let late = vec![32, 40, 1, 17, 3, 1, 36, 6, 13];
    assert_eq!(is_used_or_says(upstream(8, 2_212), Told::Exactly, late, 34), Ok(()));
}

/// The window was taken for longer and longer, until it was eight times as long as it was.
#[test]
fn a_window_that_served_half_of_what_is_believed_has_less_and_is_no_longer() {
    let upstream = limit(Kind::Grid, 11, 367);
    assert_eq!(is_used_or_says(upstream, Told::Not, vec![6, 2, 3, 9], 39), Ok(()));
}

#[test]
fn a_late_refusal_of_a_burst_that_is_over_tells_only_its_wait() {
    let mut learner = HiddenLimit::new(4);
    let at = Timestamp::from_millis;
    let refused = |id, told_ms| {
        let told = Some(Duration::from_millis(told_ms));
        Refused { id, left: at(1_000), told, unsaid: Duration::from_secs(1), is_wide: false }
    };
    (1..=4).for_each(|id| learner.sent(id, id as u32 - 1, at(1_000)));
    learner.accept(1, at(1_000), OPENS_UP_TO, at(1_010));
    learner.accept(2, at(1_000), OPENS_UP_TO, at(1_011));
    learner.refuse(&refused(3, 500), at(1_012));
    let believed = learner.belief();
    learner.sent(5, 1, at(1_512));
    learner.accept(5, at(1_512), OPENS_UP_TO, at(1_520));
    learner.refuse(&refused(4, 30), at(1_521));
    assert_eq!(learner.belief(), believed);
    assert_eq!(learner.ready(0, at(1_530)), When::At(at(1_551)), "its wait is kept to");
}

/// All that were under way when the first refusal was answered are refused.
#[test]
fn a_large_limit_that_nobody_expects_refuses_twice_its_square_root_at_first() {
    for (units, window_ms) in [(100, 1_000), (200, 10_000), (1_000, 10_000), (3_000, 60_000)] {
        for travel_ms in [5_u64, 25] {
            let upstream = limit(Kind::Anchored, units, window_ms);
            let travel = vec![travel_ms, travel_ms + 3, travel_ms / 2];
            let world = World::new(upstream, Told::Exactly, travel).of_crowd(units * 5);
            let world = world.run(|_, _| {});
            let first_ns = world.refusals.first().map_or(0, |(_, answered_ns)| *answered_ns);
            let burst = world.refusals.iter().filter(|(left_ns, _)| *left_ns < first_ns).count();
            let what = format!("{units} per {window_ms} ms, {travel_ms} ms away");
            assert!(burst as u64 <= OPEN_ROOTS * units.isqrt(), "{what}: {burst} refused");
            // Four windows, each with round trips to find out that it has begun, and to open up.
            let most_ns = 4 * window_ms * MS * 11 / 10 + 12 * 2 * (travel_ms + 3) * MS;
            assert!(world.took_ns() <= most_ns, "{what}: {} ms", world.took_ns() / MS);
        }
    }
}

#[test]
fn answers_of_one_burst_teach_the_limit_in_any_order() {
    for order in [[0, 1, 2, 3], [2, 0, 3, 1], [3, 2, 1, 0], [0, 2, 1, 3]] {
        let mut learner = HiddenLimit::new(4);
        let start = Timestamp::from_millis(5_000);
        (0..4).for_each(|id| learner.sent(id, id as u32, start));
        for (turn, id) in order.into_iter().enumerate() {
            let now = start.after(Duration::from_millis(20 + 10 * turn as u64));
            // The first two are served.
            if id < 2 {
                learner.accept(id, start, OPENS_UP_TO, now);
            } else {
                let (told, unsaid) = (Some(Duration::from_millis(590)), Duration::from_secs(1));
                let refused = Refused { id, left: start, told, unsaid, is_wide: false };
                learner.refuse(&refused, now);
            }
        }
        let (units, window) = learner.belief().expect("it was refused");
        assert_eq!(units, 2, "{order:?}");
        assert!((570..660).contains(&window.as_millis()), "{order:?}: {window:?}");
    }
}

#[test]
fn the_others_wait_for_the_one_that_goes_first() {
    let mut learner = HiddenLimit::new(1);
    let at = Timestamp::from_millis;
    let refused = |id, left_ms| Refused {
        id,
        left: at(left_ms),
        told: Some(Duration::from_millis(500)),
        unsaid: Duration::from_secs(1),
        is_wide: false,
    };
    learner.sent(1, 0, at(1_000));
    learner.refuse(&refused(1, 1_000), at(1_010));
    assert_eq!(learner.ready(0, at(1_100)), When::At(at(1_510)));
    learner.sent(2, 0, at(1_510));
    assert_eq!(learner.ready(1, at(1_510)), When::Answer);
    learner.refuse(&refused(2, 1_510), at(1_520));
    assert_eq!(learner.ready(0, at(1_520)), When::At(at(2_020)), "all wait again");
    learner.sent(3, 0, at(2_020));
    learner.end(3);
    assert_eq!(learner.ready(0, at(2_030)), When::Now, "nobody heard of it");
    learner.sent(4, 0, at(2_030));
    learner.accept(4, at(2_030), OPENS_UP_TO, at(2_040));
    assert_eq!(learner.ready(0, at(2_040)), When::Now);
}

/// The limit is raised in the middle: all that it serves is used again within the stated number of
/// windows.
#[test]
fn a_limit_that_is_raised_is_found_within_the_stated_number_of_windows() {
    let mut raised_at_ns = None;
    let mut found_after = None;
    let world = World::new(anchored(3, 1_000), Told::Exactly, vec![5]).of_crowd(900);
    world.run(|world, now_ns| {
        if raised_at_ns.is_none() && world.served_ns.len() == 60 {
            world.upstream.units = 9;
            raised_at_ns = Some(now_ns);
        }
        let believed = world.learner.belief().map_or(0, |(units, _)| units);
        if let Some(raised_at_ns) = raised_at_ns.filter(|_| believed >= 9 && found_after.is_none())
        {
            found_after = Some((now_ns - raised_at_ns) / (1_000 * MS));
        }
    });
    let windows = found_after.expect("it is found");
    assert!(windows <= TEST_AFTER_MAX + 1, "{windows} windows");
}

#[test]
fn a_limit_that_is_lowered_costs_one_refusal_and_those_under_way() {
    let mut is_lowered = false;
    let world = World::new(anchored(10, 1_000), Told::Exactly, vec![5]).of_crowd(300);
    let world = world.run(|world, _| {
        if !is_lowered && world.served_ns.len() == 50 {
            world.upstream.units = 4;
            is_lowered = true;
        }
    });
    assert_eq!(world.learner.belief().map(|(units, _)| units), Some(4));
}

#[test]
fn what_is_remembered_is_bounded() {
    let mut learner = HiddenLimit::new(1);
    for id in 0..10_000_u64 {
        let now = Timestamp::from_millis(1_000 + id * (id % 7));
        learner.sent(id, 0, now);
        learner.accept(id, now, OPENS_UP_TO, now);
    }
    #[cfg(feature = "redis")]
    {
        use crate::budget::encoding::{Encoded as _, Writer};
        let mut out = Writer::default();
        learner.write(&mut out);
        assert!(out.bytes.len() < 1_200, "{} bytes", out.bytes.len());
    }
    assert!(learner.can_be_forgotten(Timestamp::from_millis(1_000_000_000)));
}

fn config() -> ProptestConfig {
    let is_full = std::env::var_os("TOLLWAY_FULL").is_some();
    ProptestConfig::with_cases(if is_full { 4_000 } else { 300 })
}
