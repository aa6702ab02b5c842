//! Durable counts on disks that fail on purpose, in virtual time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use tollway_core::dice::Dice;
use tollway_core::fixed_window::{Anchor, FixedWindow};
use tollway_core::{
    Answer, Charge, Cost, Key, OnExpiry, OnStoreError, Policy, ReservationId, ReservationTerms,
    Settlement, Store, StoreError, Timestamp,
};
use tollway_journal::FileOptions;
use tollway_memory::{Capacity, MemoryStore};
use tollway_testkit::disk::{Disk, Fault};

use super::{DurableStore, UsagePage, UsageQuery};

const DAY: Duration = Duration::from_secs(86_400);
/// Midnight of a day in 2026.
const START: Timestamp = Timestamp::from_millis(1_794_700_800_000);

fn wait<T: Unpin>(answer: Answer<T>) -> Result<T, StoreError> {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(answer)
}

fn daily(units: u64) -> Policy {
    let window = FixedWindow::new(format!("{units}/1d").parse().unwrap(), Anchor::Epoch);
    Policy::new("plan", window).unwrap().durable(400 * DAY)
}

fn charge<'a>(policy: &'a Policy, key: &'a str, units: u64) -> Charge<'a> {
    Charge::new(policy, Key::new(key).unwrap()).cost(Cost::new(units).unwrap())
}

/// Charges what must be allowed.
fn take(store: &DurableStore, policy: &Policy, key: &str, units: u64, now: Timestamp) {
    let verdict = wait(store.check(&[charge(policy, key, units)], now)).unwrap();
    assert!(verdict.is_allowed() && !verdict.is_degraded());
}

fn options(disk: &Disk) -> FileOptions {
    let maker = disk.clone();
    FileOptions::on(move || Ok(maker.clone())).two_phase(false).journal_bytes(2_000)
}

fn try_open(disk: &Disk) -> Result<DurableStore, String> {
    let memory = Arc::new(MemoryStore::new(Capacity::keys(100)));
    DurableStore::open_with(options(disk), memory, 1 << 20)
}

fn open(disk: &Disk) -> DurableStore {
    try_open(disk).unwrap()
}

fn page(store: &DurableStore, query: UsageQuery) -> UsagePage {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(store.usage(query)).unwrap()
}

fn all(now: Timestamp) -> UsageQuery {
    UsageQuery {
        policy: "plan".to_owned(),
        key: None,
        from: Timestamp::MIN,
        until: Timestamp::MAX,
        after: None,
        most: 1_000,
        now,
    }
}

/// What each key used in each window, by the day since the start.
fn used(store: &DurableStore, now: Timestamp) -> BTreeMap<(String, u64), u64> {
    let told = page(store, all(now)).rows.into_iter().map(|row| {
        assert_eq!(row.end.since(row.start), DAY);
        let day = row.start.since(START).as_secs() / DAY.as_secs();
        ((String::from_utf8(row.key).unwrap(), day), row.units)
    });
    told.collect()
}

fn one(key: &str, day: u64, units: u64) -> BTreeMap<(String, u64), u64> {
    [((key.to_owned(), day), units)].into()
}

#[test]
fn counts_and_usage_are_there_again_after_a_restart() {
    let (disk, policy) = (Disk::new(), daily(10));
    let store = open(&disk);
    for _ in 0..3 {
        assert!(wait(store.check(&[charge(&policy, "alice", 3)], START)).unwrap().is_allowed());
    }
    drop(store);
    let store = open(&disk);
    assert_eq!(used(&store, START), one("alice", 0, 9));
    let verdict = wait(store.check(&[charge(&policy, "alice", 2)], START)).unwrap();
    assert!(!verdict.is_allowed());
    assert_eq!(verdict.decisions()[0].snapshot().remaining(), 1);
    assert!(wait(store.check(&[charge(&policy, "alice", 1)], START)).unwrap().is_allowed());
    assert_eq!(used(&store, START), one("alice", 0, 10), "a denial counts for nothing");
}

/// A life of charges until something fails: what was acknowledged, and the call that was not.
fn live(store: &DurableStore, policy: &Policy) -> (BTreeMap<String, u64>, Option<(String, u64)>) {
    let mut acknowledged = BTreeMap::new();
    let mut dice = Dice::new(7);
    for _ in 0..30 {
        let (key, units) = (format!("key {}", dice.next_u64() % 5), 1 + dice.next_u64() % 9);
        match wait(store.check(&[charge(policy, &key, units)], START)) {
            Ok(verdict) if verdict.is_allowed() => *acknowledged.entry(key).or_default() += units,
            _ => return (acknowledged, Some((key, units))),
        }
    }
    (acknowledged, None)
}

/// Crashes at every write, sync and change of length that such a life makes.
fn crash_everywhere(fault: fn(u64) -> Fault) {
    let policy = daily(1_000_000);
    for point in 1.. {
        let disk = Disk::new();
        let store = open(&disk);
        disk.set(fault(point));
        let (acknowledged, lost) = live(&store, &policy);
        drop(store);
        disk.reboot(point);
        let found = used(&open(&disk), START);
        for (key, units) in &acknowledged {
            let found = found.get(&(key.clone(), 0)).copied().unwrap_or(0);
            let more = lost.as_ref().filter(|(lost, _)| lost == key).map_or(0, |(_, units)| *units);
            assert!(found == *units || found == units + more, "{point}: {found} for {units}");
        }
        if lost.is_none() {
            assert!(point > 60, "such a life has more writes than {point}");
            return;
        }
    }
}

#[test]
fn a_process_that_dies_at_any_write_loses_nothing_and_has_one_call_more_at_most() {
    crash_everywhere(Fault::Kill);
}

#[test]
fn a_machine_that_loses_power_at_any_write_loses_nothing_that_was_acknowledged() {
    crash_everywhere(Fault::PowerLoss);
}

#[test]
fn a_write_that_fails_is_told_and_the_counts_go_on_from_what_is_on_the_disk() {
    let policy = daily(1_000);
    for point in 1..40 {
        let (disk, mut least) = (Disk::new(), 0);
        let store = open(&disk);
        disk.set(Fault::Once(point));
        let mut most = 0;
        for _ in 0..12 {
            most += 5;
            let verdict = wait(store.check(&[charge(&policy, "alice", 5)], START)).unwrap();
            // Its policy denies, which is not told as an ordinary denial.
            assert!(verdict.is_allowed() || verdict.is_degraded());
            if verdict.is_allowed() {
                least += 5;
            }
            store.shared.books().tried_at = None;
        }
        let found = used(&store, START).values().sum::<u64>();
        assert!((least..=most).contains(&found) && found <= least + 5, "{point}: {found}");
    }
}

#[test]
fn on_a_full_disk_charges_follow_their_policies_and_refunds_go_on() {
    let disk = Disk::new();
    let memory = Arc::new(MemoryStore::new(Capacity::keys(100)));
    let reserved = options(&disk).reserve(disk.reserve(8 << 20));
    let store = DurableStore::open_with(reserved, memory, 1 << 24).unwrap();
    let denies = daily(1_000_000);
    let allows = denies.clone().on_store_error(OnStoreError::Allow { at_most: DAY });
    let shares = denies.clone().on_store_error(OnStoreError::Local { shares: 500_000 });
    disk.set(Fault::Full);
    let mut taken = 0;
    let degraded = loop {
        assert!(taken < 900, "a full disk holds no more");
        let name = format!("key {taken}{}", "x".repeat(3_000));
        let verdict = wait(store.check(&[charge(&denies, &name, 1)], START)).unwrap();
        if verdict.is_degraded() {
            break verdict;
        }
        assert!(verdict.is_allowed());
        taken += 1;
    };
    assert!(!degraded.is_allowed());
    // The next look at the file reads it anew.
    store.shared.books().tried_at = None;
    let _ = wait(store.check(&[charge(&denies, "another", 1)], START));
    assert_eq!(used(&store, START).len(), taken as usize, "what was acknowledged");
    let first = format!("key 0{}", "x".repeat(3_000));
    let ask = |policy: &Policy| wait(store.check(&[charge(policy, &first, 1)], START)).unwrap();
    let verdicts = [ask(&denies), ask(&allows), ask(&shares), ask(&shares), ask(&shares)];
    assert!(verdicts.iter().all(tollway_core::Verdict::is_degraded));
    let allowed: Vec<bool> = verdicts.iter().map(tollway_core::Verdict::is_allowed).collect();
    assert_eq!(allowed, [false, true, true, true, false]);
    assert!(store.outage().unwrap().reason.contains("no space"));
    wait(store.refund(&charge(&denies, &first, 1), START)).unwrap();
    assert_eq!(used(&store, START)[&(first, 0)], 0, "given back");
}

#[test]
fn a_reservation_is_settled_in_its_window_also_after_a_restart_and_when_that_is_over() {
    let (disk, policy) = (Disk::new(), daily(100));
    let terms = ReservationTerms { ttl: 3 * DAY, on_expiry: OnExpiry::Return };
    let policy = policy.reservations(terms);
    let reserve = |store: &DurableStore, key: &str| {
        let reserved = wait(store.reserve(&[charge(&policy, key, 10)], START)).unwrap();
        reserved.reservation.unwrap().id
    };
    let store = open(&disk);
    let [a, b, c] = ["a", "b", "c"].map(|key| reserve(&store, key));
    reserve(&store, "d");
    assert_eq!(used(&store, START)[&("a".to_owned(), 0)], 10, "taken when it is reserved");
    drop(store);
    let (store, tomorrow) = (open(&disk), START.after(DAY));
    assert_eq!(wait(store.commit(a, &[4], tomorrow)).unwrap(), Settlement::Settled);
    assert_eq!(wait(store.commit(a, &[4], tomorrow)).unwrap(), Settlement::Unknown, "once");
    assert_eq!(wait(store.commit(b, &[17], START)).unwrap(), Settlement::Settled);
    assert_eq!(wait(store.cancel(c, START)).unwrap(), Settlement::Settled);
    let found = used(&store, START.after(3 * DAY));
    let of = |key: &str| found.get(&(key.to_owned(), 0)).copied();
    assert_eq!([of("a"), of("b"), of("c")], [Some(4), Some(17), Some(0)]);
    assert_eq!(of("d"), Some(0), "expired");
}

#[test]
fn a_request_of_both_kinds_is_taken_whole_or_not_at_all() {
    let (disk, plan) = (Disk::new(), daily(2));
    let (store, rate) = (open(&disk), Policy::parse("rate", "3/1h burst 3").unwrap());
    let check = || {
        let charges = [charge(&rate, "alice", 1), charge(&plan, "alice", 1)];
        wait(store.check(&charges, START)).unwrap()
    };
    assert!(check().is_allowed() && check().is_allowed());
    let denied = check();
    assert_eq!(denied.denied_by(), Some(1));
    let left = wait(store.peek(&[charge(&rate, "alice", 1)], START)).unwrap();
    assert_eq!(left.decisions()[0].snapshot().remaining(), 1, "the other was not charged");
    wait(store.refund(&charge(&plan, "alice", 1), START)).unwrap();
    assert!(check().is_allowed());
    wait(store.refund(&charge(&plan, "alice", 1), START)).unwrap();
    assert_eq!(check().denied_by(), Some(0));
    assert_eq!(used(&store, START), one("alice", 0, 1));
}

#[test]
fn usage_is_kept_for_its_time_after_the_window_and_then_it_is_gone() {
    let disk = Disk::new();
    let policy = daily(10).durable(2 * DAY);
    let mut store = open(&disk);
    take(&store, &policy, "alice", 7, START);
    let last = START.after(3 * DAY).before(Duration::from_nanos(1));
    assert_eq!(used(&store, last), one("alice", 0, 7));
    assert_eq!(used(&store, START.after(3 * DAY)), BTreeMap::new());
    // It is in no table either: asked as of its time, the file does not know it.
    drop(store);
    store = open(&disk);
    take(&store, &policy, "bob", 1, START.after(3 * DAY));
    assert_eq!(used(&store, START), one("bob", 3, 1));
}

#[test]
fn pages_hold_every_row_once_from_tables_and_journal() {
    let (disk, policy) = (Disk::new(), daily(1_000));
    let store = open(&disk);
    let mut expected = BTreeMap::new();
    for number in 0..150u64 {
        let (key, day) = (format!("key {:03}", number * 37 % 50), number / 50);
        let at = START.after(u32::try_from(day).unwrap() * DAY);
        take(&store, &policy, &key, 1 + number, at);
        expected.insert((key, day), 1 + number);
    }
    let (mut found, mut after) = (BTreeMap::new(), None);
    loop {
        let asked = page(&store, UsageQuery { after, most: 7, ..all(START) });
        assert!(asked.rows.len() <= 7);
        for row in asked.rows {
            let day = row.start.since(START).as_secs() / DAY.as_secs();
            let key = String::from_utf8(row.key).unwrap();
            assert_eq!(found.insert((key, day), row.units), None, "told once");
        }
        after = asked.after;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(found, expected);
    let key = Some(b"key 007".to_vec());
    assert_eq!(page(&store, UsageQuery { key, ..all(START) }).rows.len(), 3);
    let second = START.after(DAY);
    let query = UsageQuery { from: second, until: second.after(DAY), ..all(START) };
    assert_eq!(page(&store, query).rows.len(), 50);
}

#[test]
fn there_is_room_for_so_many_keys_and_idle_ones_give_way() {
    let disk = Disk::new();
    let memory = Arc::new(MemoryStore::new(Capacity::keys(100)));
    let store = DurableStore::open_with(options(&disk), memory, 3_000).unwrap();
    let policy = daily(10);
    let ask = |number: u32, at| {
        let key = format!("key {number}");
        wait(store.check(&[charge(&policy, &key, 1)], at)).unwrap()
    };
    let taken = (0..100).take_while(|number| ask(*number, START).is_allowed()).count();
    assert!((5..20).contains(&taken), "{taken} keys in 3,000 bytes");
    assert!(ask(99, START).is_degraded(), "not told as an ordinary denial");
    assert!(ask(99, START.after(DAY)).is_allowed(), "their windows are over");
}

#[test]
fn a_change_of_numbers_carries_what_was_used_also_over_a_restart() {
    let disk = Disk::new();
    let store = open(&disk);
    take(&store, &daily(10), "alice", 8, START);
    drop(store);
    let store = open(&disk);
    let upgraded = daily(20);
    let verdict = wait(store.check(&[charge(&upgraded, "alice", 1)], START)).unwrap();
    assert_eq!(verdict.decisions()[0].snapshot().remaining(), 11);
    assert_eq!(used(&store, START), one("alice", 0, 9));
}

/// Requests under way by old numbers while new ones are in force: in every order they are granted
/// at least the smaller limit and at most the larger, and nothing twice.
#[test]
fn old_and_new_numbers_in_hand_at_once_grant_between_the_one_limit_and_the_other() {
    let mut dice = Dice::new(20);
    let bucket = |limit| Policy::parse("plan", &format!("{limit}/1d")).unwrap().durable(DAY);
    for (old, new) in [
        (daily(30), daily(8)),
        (daily(8), daily(30)),
        (bucket(30), bucket(8)),
        (bucket(8), bucket(30)),
        (bucket(30), daily(8)),
        (daily(30), bucket(8)),
    ] {
        let (disk, other) = (Disk::new(), Policy::parse("other", "100/1m").unwrap());
        let store = open(&disk);
        store.renew(&[&old, &other], START);
        take(&store, &old, "alice", 1, START);
        store.renew(&[&new, &other], START);
        let limit = new.algorithm().limit();
        let (mut granted, mut after, mut asked_after) = (1, 0, 0);
        for _ in 0..70 {
            let is_new = dice.unit() < 0.5;
            let policy = if is_new { &new } else { &old };
            let verdict = wait(store.check(&[charge(policy, "alice", 1)], START)).unwrap();
            let allowed = u64::from(verdict.is_allowed());
            granted += allowed;
            (after, asked_after) = if is_new { (after + allowed, asked_after + 1) } else { (0, 0) };
        }
        let said = format!("{granted}, then {after} by {old:?} and {new:?}");
        assert!((8..=30).contains(&granted), "{said}");
        assert_eq!(after, limit.saturating_sub(granted - after).min(asked_after), "{said}");
        let left = wait(store.peek(&[charge(&old, "alice", 1)], START)).unwrap();
        assert_eq!(left.decisions()[0].snapshot().remaining(), limit.saturating_sub(granted));
    }
}

/// What was told, added up.
#[derive(Default)]
struct Model {
    usage: BTreeMap<(String, u64), u64>,
    open: Vec<Open>,
}

/// A reservation that is not settled.
struct Open {
    ids: [ReservationId; 2],
    place: (String, u64),
    units: u64,
    counts: bool,
    expires_at: Timestamp,
}

impl Model {
    fn take(&mut self, place: &(String, u64), units: u64, counts: bool) {
        if counts {
            *self.usage.entry(place.clone()).or_default() += units;
        }
    }

    fn give_back(&mut self, place: &(String, u64), units: u64, counts: bool) {
        if let Some(sum) = self.usage.get_mut(place).filter(|_| counts) {
            *sum = sum.saturating_sub(units);
        }
    }

    fn expire(&mut self, now: Timestamp) {
        let (over, open) =
            std::mem::take(&mut self.open).into_iter().partition(|open| open.expires_at <= now);
        self.open = open;
        let over: Vec<Open> = over;
        over.iter().for_each(|open| self.give_back(&open.place, open.units, open.counts));
    }
}

#[test]
fn what_is_given_back_beyond_what_was_used_makes_later_use_no_cheaper() {
    let (disk, terms) = (Disk::new(), ReservationTerms { ttl: DAY / 10, ..Default::default() });
    let (store, policy) = (open(&disk), daily(40).reservations(terms));
    let reserved = wait(store.reserve(&[charge(&policy, "alice", 10)], START)).unwrap();
    assert!(reserved.reservation.is_some());
    wait(store.refund(&charge(&policy, "alice", 4), START)).unwrap();
    // Ten units come back of six, in the call that takes four others.
    take(&store, &policy, "alice", 4, START.after(DAY / 5));
    assert_eq!(used(&store, START.after(DAY / 5)), one("alice", 0, 4));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Decides as the store in memory does, whatever the algorithm and however often it restarts;
    /// and usage is the sum of what was told.
    #[test]
    fn decisions_are_those_in_memory_and_usage_is_their_sum(seed in any::<u64>()) {
        let mut dice = Dice::new(seed);
        let terms = ReservationTerms { ttl: DAY / 10, on_expiry: OnExpiry::Return };
        let windows = daily(40).reservations(terms);
        let bucket = Policy::parse("rate", "20/1h burst 10").unwrap();
        let bucket = bucket.reservations(terms).durable(DAY);
        let (disk, reference) = (Disk::new(), MemoryStore::new(Capacity::keys(1_000)));
        let (mut store, mut now, mut model) = (open(&disk), START, Model::default());
        for _ in 0..80 {
            now = now.after(Duration::from_secs(dice.next_u64() % 1_500));
            model.expire(now);
            let policy = if dice.next_u64().is_multiple_of(3) { &bucket } else { &windows };
            let key = format!("key {}", dice.next_u64() % 3);
            let asked = charge(policy, &key, 1 + dice.next_u64() % 15);
            let units = asked.cost.get();
            let place = (key.clone(), now.since(START).as_secs() / DAY.as_secs());
            let counts = policy.name() == "plan";
            match dice.next_u64() % 10 {
                0 => {
                    drop(store);
                    store = open(&disk);
                }
                1 => {
                    let left = wait(store.refund(&asked, now)).unwrap();
                    prop_assert_eq!(left, reference.refund(&asked, now));
                    model.give_back(&place, units, counts);
                }
                2 | 3 => {
                    let ours = wait(store.reserve(&[asked], now)).unwrap();
                    let theirs = reference.reserve(&[asked], now);
                    prop_assert_eq!(ours.verdict.decisions(), theirs.verdict.decisions());
                    if let (Some(ours), Some(theirs)) = (ours.reservation, theirs.reservation) {
                        let expires_at = now.after(ours.expires_after);
                        let ids = [ours.id, theirs.id];
                        model.take(&place, units, counts);
                        model.open.push(Open { ids, place, units, counts, expires_at });
                    }
                }
                4 => for open in std::mem::take(&mut model.open) {
                    let cost = dice.next_u64() % 20;
                    let settled = wait(store.commit(open.ids[0], &[cost], now)).unwrap();
                    prop_assert_eq!(settled, reference.commit(open.ids[1], &[cost], now));
                    prop_assert_eq!(settled, Settlement::Settled);
                    model.take(&open.place, cost.saturating_sub(open.units), open.counts);
                    model.give_back(&open.place, open.units.saturating_sub(cost), open.counts);
                }
                _ => {
                    let ours = wait(store.check(&[asked], now)).unwrap();
                    let theirs = reference.check_all(&[asked], now);
                    prop_assert_eq!(ours.decisions(), theirs.decisions());
                    if ours.is_allowed() {
                        model.take(&place, units, counts);
                    }
                }
            }
        }
        now = now.after(DAY);
        model.expire(now);
        prop_assert_eq!(used(&store, now), model.usage);
    }

    /// Whatever bit flips in a file that was closed well: it is read as it was, or refused.
    #[test]
    fn a_flipped_bit_is_refused_or_of_no_consequence(bit in any::<u64>()) {
        let (disk, policy) = (Disk::new(), daily(100));
        let store = open(&disk);
        for number in 0..40 {
            let key = format!("key {}", number % 7);
            take(&store, &policy, &key, 1, START);
        }
        let before = used(&store, START);
        drop(store);
        disk.flip(bit % (disk.bytes() * 8));
        if let Ok(store) = try_open(&disk) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            if let Ok(page) = runtime.block_on(store.usage(all(START))) {
                let found: BTreeMap<_, _> = page.rows.into_iter().map(|row| {
                    ((String::from_utf8(row.key).unwrap(), 0), row.units)
                }).collect();
                prop_assert_eq!(found, before);
            }
        }
    }
}
