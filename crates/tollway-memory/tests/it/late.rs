//! Callers who read the clock and arrive any time later, in virtual time.
//!
//! Every call has a *reading*, when it read the clock, and an *arrival*, when the store decides it.
//! What is promised: whatever calls begin and end within an interval are admitted no more than the
//! policy's bound for that interval. Here arrivals come in any order of readings, on the real
//! store.

use std::time::Duration;

use proptest::prelude::*;
use tollway_core::concurrency::Concurrency;
use tollway_core::fixed_window::{Anchor, FixedWindow};
use tollway_core::leaky_bucket::LeakyBucket;
use tollway_core::sliding_window::SlidingWindow;
use tollway_core::{
    Algorithm, Charge, Cost, Decision, Key, OnExpiry, Policy, Quota, ReservationTerms, Retry,
    Timestamp, Verdict,
};
use tollway_memory::{Capacity, Limiter, MemoryStore};
use tollway_testkit::oracle::bound;

const START: Timestamp = Timestamp::from_millis(1_700_000_000_000);
const TICK: Duration = Duration::from_nanos(1);

/// Every algorithm and every place of the store; all hold ten, and their periods are alike.
fn policies() -> Vec<Policy> {
    let quota: Quota = "10/1s".parse().unwrap();
    let fraction: Quota = "10/1000000007ns".parse().unwrap();
    let window = |window: FixedWindow| Algorithm::from(window);
    let all = [
        ("narrow", quota.into()),
        ("fraction", fraction.into()),
        ("epoch", window(FixedWindow::new(quota, Anchor::Epoch))),
        ("first", window(FixedWindow::new(quota, Anchor::FirstRequest))),
        ("leaky", LeakyBucket::new(10, 1, Duration::from_millis(100)).unwrap().into()),
        ("sliding", SlidingWindow::new(quota, 10).unwrap().into()),
        ("exact", SlidingWindow::exact(quota).unwrap().into()),
        ("permits", Concurrency::new(10, Duration::from_secs(1)).unwrap().into()),
    ];
    all.map(|(name, algorithm): (&str, Algorithm)| lasting(Policy::new(name, algorithm).unwrap()))
        .into()
}

/// With reservations that outlast the test: to look whether a wait is true is to look ahead, and
/// one that expires there would be given back.
fn lasting(policy: Policy) -> Policy {
    let ttl = Duration::from_secs(3_600);
    policy.reservations(ReservationTerms { ttl, on_expiry: OnExpiry::Keep })
}

/// Room for next to nobody. A key with nothing left is not forgotten early even so.
fn tiny(keys: usize, variable_bytes: usize) -> Capacity {
    Capacity { wide_keys: keys, variable_bytes, ..Capacity::keys(keys) }
}

fn units(units: u64) -> Cost {
    Cost::new(units).unwrap()
}

fn key(key: &str) -> Key<'_> {
    Key::new(key).unwrap()
}

#[test]
fn a_late_check_gives_nothing_back() {
    let policy = Policy::parse("p", "1000/1s").unwrap();
    let charge = Charge::new(&policy, key("k"));
    let store = MemoryStore::new(Capacity::keys(64));
    assert!(store.check(&charge.cost(units(1_000)), START).is_allowed());
    for _ in 0..10 {
        assert!(!store.check(&charge, START.before(Duration::from_millis(100))).is_allowed());
        assert!(!store.check(&charge, START).is_allowed());
    }
}

#[test]
fn a_late_check_does_not_open_a_window_twice() {
    let window = FixedWindow::new("10/1s".parse().unwrap(), Anchor::Epoch);
    let policy = Policy::new("p", window).unwrap();
    let charge = Charge::new(&policy, key("k"));
    let store = MemoryStore::new(Capacity::keys(64));
    let aside = Duration::from_millis(20);
    assert!(store.check(&charge.cost(units(10)), START.after(aside)).is_allowed());
    assert!(!store.check(&charge, START.before(aside)).is_allowed());
    assert!(!store.check(&charge, START.after(aside)).is_allowed());
}

/// Ten are taken; then somebody late asks in every way there is, and nobody gets an eleventh.
#[test]
fn nothing_that_comes_late_takes_or_frees_a_unit_under_any_algorithm() {
    let other = Policy::parse("other", "1000/1s").unwrap();
    for policy in policies() {
        let store = MemoryStore::new(Capacity::keys(64));
        let charge = Charge::new(&policy, key("k"));
        let beside = Charge::new(&other, key("k"));
        assert!(store.check(&charge.cost(units(10)), START).is_allowed());
        for late in [11, 100, 999, 1_000, 5_000] {
            let then = START.before(Duration::from_millis(late));
            assert!(!store.check(&charge, then).is_allowed(), "{} {late}", policy.name());
            assert!(!store.check_all(&[beside, charge], then).is_allowed(), "{}", policy.name());
            assert_eq!(store.take(&charge.cost(units(10)), then).granted, 0, "{}", policy.name());
            assert!(store.reserve(&[charge], then).reservation.is_none(), "{}", policy.name());
            let mut batch = Vec::new();
            store.check_batch(&[charge, charge], then, &mut batch);
            assert!(batch.iter().all(|decision| !decision.is_allowed()), "{}", policy.name());
            assert_eq!(store.peek(&charge, START).remaining(), 0, "{} {late}", policy.name());
        }
        store.refund(&charge.cost(units(3)), START.before(Duration::from_millis(100)));
        let left = store.peek(&charge, START).remaining();
        assert!(left <= 3, "{}: a late refund of 3 freed {left}", policy.name());
    }
}

#[test]
fn a_limiter_whose_clock_reads_late_gives_nothing_back() {
    let clock = std::sync::Arc::new(tollway_core::VirtualClock::at(START));
    for policy in policies() {
        let store = std::sync::Arc::new(MemoryStore::new(Capacity::keys(64)));
        let limiter = Limiter::with_store(policy, store, clock.clone());
        clock.set(START);
        assert!(limiter.check_cost("k", units(10)).is_allowed());
        clock.set(START.before(Duration::from_millis(100)));
        assert!(!limiter.check("k").is_allowed());
        assert_eq!(limiter.take("k", units(4)).granted, 0);
        clock.set(START);
        assert!(!limiter.check("k").is_allowed(), "{}", limiter.policy().name());
    }
}

/// A slot that was reused cannot tell that its key's caller comes late; the table can.
#[test]
fn a_key_whose_place_was_reused_does_not_begin_anew_in_the_past() {
    for policy in policies() {
        let store = MemoryStore::new(tiny(1, 1));
        let charge = Charge::new(&policy, key("k"));
        let ten = charge.cost(units(10));
        assert!(store.check(&ten, START).is_allowed());
        // Two periods later everybody else passes by, and the place of the key is taken.
        let later = START.after(Duration::from_secs(2));
        for number in 0..2_000 {
            let passer_by = number.to_string();
            let _ = store.check(&Charge::new(&policy, key(&passer_by)), later);
        }
        // He read the clock a period ago. As of then he would have ten, and ten more as of now.
        let late = store.check(&ten, later.before(Duration::from_secs(1)));
        let now = store.check(&ten, later);
        let admitted = u32::from(late.is_allowed()) + u32::from(now.is_allowed());
        assert!(admitted <= 1, "{}: {late:?} {now:?}", policy.name());
    }
}

/// One permit is taken at 0.9 s. Then somebody who read the clock at 0 s reserves nine: as of 0.9
/// s, so they are free at 1.9 s, and not at 1 s, when his reservation is over.
#[test]
fn permits_that_are_reserved_late_are_held_for_a_lease_from_when_they_were_taken() {
    let lease = Duration::from_secs(1);
    let policy = Policy::new("p", Concurrency::new(10, lease).unwrap()).unwrap();
    let one = Charge::new(&policy, key("k"));
    let store = MemoryStore::new(Capacity::keys(64));
    let taken = START.after(Duration::from_millis(900));
    assert!(store.check(&one, taken).is_allowed());
    let open = store.reserve(&[one.cost(units(9))], START).reservation.unwrap();
    assert_eq!(open.expires_after, lease);
    assert!(!store.check(&one, START.after(lease)).is_allowed());
    assert!(!store.check(&one, taken.after(lease).before(TICK)).is_allowed());
    assert_eq!(store.peek(&one, taken.after(lease)).remaining(), 10);
}

/// What one caller does.
#[derive(Clone, Copy, Debug)]
enum Verb {
    Check,
    CheckTwo,
    Take,
    ReserveAndCommit,
    ReserveAndCancel,
    Refund,
    Reset,
    PassBy,
}

/// A caller: how long after the one before it arrives, and how long before that it read the clock,
/// in thousandths of a period.
#[derive(Clone, Copy, Debug)]
struct Caller {
    verb: Verb,
    pause: u64,
    delay: u64,
    units: u64,
}

fn caller() -> impl Strategy<Value = Caller> {
    let verb = prop_oneof![
        10 => Just(Verb::Check),
        3 => Just(Verb::CheckTwo),
        3 => Just(Verb::Take),
        2 => Just(Verb::ReserveAndCommit),
        2 => Just(Verb::ReserveAndCancel),
        1 => Just(Verb::Refund),
        1 => Just(Verb::Reset),
        3 => Just(Verb::PassBy),
    ];
    let pause = prop_oneof![4 => Just(0), 4 => 0..150u64, 1 => 0..2_500u64];
    let delay = prop_oneof![3 => Just(0), 3 => 0..200u64, 3 => 0..4_000u64];
    let fields = (verb, pause, delay, 1..=10u64);
    fields.prop_map(|(verb, pause, delay, units)| Caller { verb, pause, delay, units })
}

/// What was admitted on the key that is watched, and what was given back to it.
#[derive(Default)]
struct Book {
    /// When its caller read the clock, when it arrived, how many units.
    admitted: Vec<(Timestamp, Timestamp, u64)>,
    given_back: u128,
}

impl Book {
    fn note(
        &mut self,
        decision: &Decision,
        (reading, arrival): (Timestamp, Timestamp),
        units: u64,
    ) {
        if decision.is_allowed() {
            self.admitted.push((reading, arrival, units));
        }
    }

    fn check(&self, algorithm: &Algorithm) -> Result<(), TestCaseError> {
        for &(start, _, _) in &self.admitted {
            for &(_, end, _) in self.admitted.iter().filter(|(_, end, _)| *end >= start) {
                let within = |(read, arrived, _): &&(Timestamp, Timestamp, u64)| {
                    *read >= start && *arrived <= end
                };
                let units = self.admitted.iter().filter(within).map(|(_, _, units)| *units);
                let units: u128 = units.map(u128::from).sum();
                let most = bound(algorithm, end.since(start)) + self.given_back;
                prop_assert!(units <= most, "{units} of {most} in {:?}", end.since(start));
            }
        }
        Ok(())
    }
}

/// Whether the wait that was told for `charge` is true: allowed after it, not before it. Looked at,
/// not taken; only on a store under no pressure.
fn is_true(
    store: &MemoryStore,
    charge: Charge<'_>,
    reading: Timestamp,
    decision: &Decision,
) -> bool {
    let would = |at| store.peek_all(&[charge], at).is_allowed();
    match decision.retry() {
        Some(Retry::After(wait)) => {
            would(reading.after(wait)) && !would(reading.after(wait).before(TICK))
        }
        Some(Retry::Never) => charge.cost.get() > charge.policy.algorithm().limit(),
        None => true,
    }
}

struct Play<'a> {
    store: MemoryStore,
    watched: Charge<'a>,
    beside: Charge<'a>,
    book: Book,
    passed: u64,
    roomy: bool,
}

impl Play<'_> {
    fn call(&mut self, caller: Caller, arrival: Timestamp) -> Result<(), TestCaseError> {
        let reading = arrival.before(Duration::from_millis(caller.delay));
        let (when, asked) = ((reading, arrival), caller.units);
        let charge = self.watched.cost(units(asked));
        let beside = self.beside;
        let permits = matches!(charge.policy.algorithm(), Algorithm::Concurrency(_));
        match caller.verb {
            // Reserved permits last as long as their lease: to look ahead would release them.
            Verb::ReserveAndCommit | Verb::ReserveAndCancel if permits && self.roomy => {}
            Verb::Check => self.checked(self.store.check(&charge, reading), charge, when)?,
            Verb::CheckTwo => {
                let verdict = self.store.check_all(&[beside, charge], reading);
                self.asked_beside(&verdict, 1, charge, when)?;
            }
            Verb::Take => {
                let grant = self.store.take(&charge, reading);
                self.book.note(&grant.decision, when, grant.granted);
            }
            Verb::ReserveAndCommit | Verb::ReserveAndCancel => {
                let reserved = self.store.reserve(&[charge, beside], reading);
                self.asked_beside(&reserved.verdict, 0, charge, when)?;
                if let (Some(open), Verb::ReserveAndCancel) = (reserved.reservation, caller.verb) {
                    self.store.cancel(open.id, reading);
                    self.book.given_back += u128::from(asked);
                }
            }
            Verb::Refund => {
                self.store.refund(&charge, reading);
                self.book.given_back += u128::from(asked);
            }
            Verb::Reset => {
                self.store.reset(&charge, reading);
                let lasted = arrival.since(reading);
                self.book.given_back += bound(self.watched.policy.algorithm(), lasted);
            }
            Verb::PassBy => self.pass_by(arrival),
        }
        Ok(())
    }

    /// A request of two charges: what is admitted is admitted by both.
    fn asked_beside(
        &mut self,
        verdict: &Verdict,
        index: usize,
        charge: Charge<'_>,
        when: (Timestamp, Timestamp),
    ) -> Result<(), TestCaseError> {
        match verdict.decisions()[index] {
            Decision::Allow(_) if !verdict.is_allowed() => Ok(()),
            decision => self.checked(decision, charge, when),
        }
    }

    fn checked(
        &mut self,
        decision: Decision,
        charge: Charge<'_>,
        when: (Timestamp, Timestamp),
    ) -> Result<(), TestCaseError> {
        self.book.note(&decision, when, charge.cost.get());
        if self.roomy {
            let told = is_true(&self.store, charge, when.0, &decision);
            prop_assert!(told, "{decision:?} was told at {:?}", when.0);
        }
        Ok(())
    }

    /// Strangers come by: where there is little room they take over what says nothing any more.
    fn pass_by(&mut self, arrival: Timestamp) {
        let is_fixed_size = !matches!(
            self.watched.policy.algorithm(),
            Algorithm::SlidingWindow(_) | Algorithm::Concurrency(_)
        );
        for _ in 0..if self.roomy || is_fixed_size { 3 } else { 40 } {
            self.passed += 1;
            let stranger = self.passed.to_string();
            let _ = self.store.check(&Charge::new(self.watched.policy, key(&stranger)), arrival);
        }
    }
}

fn play(policy: &Policy, callers: &[Caller], roomy: bool) -> Result<(), TestCaseError> {
    let other = lasting(Policy::parse("other", "1000000/1h").unwrap());
    let capacity = if roomy { Capacity::keys(4_096) } else { tiny(4, 16 * 4_096) };
    let mut play = Play {
        store: MemoryStore::new(capacity),
        watched: Charge::new(policy, key("k")),
        beside: Charge::new(&other, key("*")),
        book: Book::default(),
        passed: 0,
        roomy,
    };
    let mut now = START;
    for caller in callers {
        now = now.after(Duration::from_millis(caller.pause));
        play.call(*caller, now)?;
    }
    // Whoever was forgotten before its time has begun anew: that is pressure, and counted as such.
    prop_assume!(play.store.pressure().forgotten == 0);
    play.book.check(policy.algorithm())
}

/// Calls that bring their quotas share what a key has used: in units, not in time.
#[test]
fn two_quotas_of_calls_on_one_key_share_what_it_has_used() {
    use tollway_core::gcra::Gcra;
    let quotas = ["1/1s burst 5", "1/1m burst 5"];
    let policies =
        quotas.map(|text| Policy::new("per-call", Gcra::per_call(text.parse().unwrap())).unwrap());
    let store = MemoryStore::new(Capacity::keys(1_000));
    let now = Timestamp::from_millis(1_700_000_000_000);
    let charges = policies.each_ref().map(|policy| Charge::new(policy, Key::new("k").unwrap()));
    for used in 1..=5 {
        assert!(store.check(&charges[used % 2], now).is_allowed());
        for charge in &charges {
            assert_eq!(store.peek(charge, now).remaining(), 5 - used as u64);
        }
    }
    assert!(charges.iter().all(|charge| !store.check(charge, now).is_allowed()));
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if std::env::var("TOLLWAY_FULL").as_deref() == Ok("1") { 20_000 } else { 600 },
        max_global_rejects: 1_000_000,
        ..ProptestConfig::default()
    })]

    #[test]
    fn late_callers_exceed_no_bound_and_are_told_the_truth(
        policy in prop::sample::select(policies()),
        callers in prop::collection::vec(caller(), 1..60),
    ) {
        play(&policy, &callers, true)?;
    }

    #[test]
    fn late_callers_exceed_no_bound_where_others_take_over_their_places(
        policy in prop::sample::select(policies()),
        callers in prop::collection::vec(caller(), 1..60),
    ) {
        play(&policy, &callers, false)?;
    }
}
