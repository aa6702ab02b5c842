use std::time::Duration;

use super::*;
use crate::hash::Seed;
use crate::slot::{Double, Narrow};

const NOW: Timestamp = Timestamp::from_millis(1_000_000);

fn put<S: Slot>(table: &Table<S>, number: u64, seconds: u64, limited: bool) -> Result<(), Full> {
    let vacant_at = NOW.after(Duration::from_secs(seconds));
    let words = [vacant_at.as_nanos(), 0];
    let content = Some(Content { words, vacant_at, limited });
    table.update(key(number), NOW, |_, _| Change { answer: (), content })
}

fn key(number: u64) -> Fingerprint {
    Fingerprint { tag: Seed::new([1, 2]).tag(0, &number.to_le_bytes(), || 0), mark: 0, owner: 0 }
}

fn present<S: Slot>(table: &Table<S>, numbers: std::ops::Range<u64>) -> usize {
    numbers.filter(|number| table.read(key(*number)).is_some()).count()
}

#[test]
fn a_slot_that_says_nothing_is_reused_on_sight() {
    let table = Table::<Narrow>::new(64, WhenFull::Deny);
    for number in 0..10_000 {
        let vacant_at = NOW.before(Duration::from_nanos(number));
        let content = Content { words: [vacant_at.as_nanos(), 0], vacant_at, limited: true };
        let change = |_, _| Change { answer: (), content: Some(content) };
        table.update(key(number), NOW, change).unwrap();
    }
    assert_eq!(table.pressure().forgotten, 0);
    assert!(table.pressure().used <= 64);
}

#[test]
fn a_key_that_says_nothing_stays_while_its_bucket_has_slots_never_used() {
    let table = Table::<Narrow>::new(SLOTS, WhenFull::Deny);
    for number in 0..SLOTS as u64 {
        put(&table, number, 0, false).unwrap();
    }
    assert_eq!(present(&table, 0..SLOTS as u64), SLOTS);
    put(&table, 100, 0, false).unwrap();
    assert_eq!(present(&table, 0..SLOTS as u64), SLOTS - 1);
}

#[test]
fn up_to_three_quarters_full_nobody_is_forgotten() {
    let (narrow, double) = (
        Table::<Narrow>::new(40_000, WhenFull::Deny),
        Table::<Double>::new(40_000, WhenFull::Deny),
    );
    for number in 0..30_000 {
        put(&narrow, number, 60, false).unwrap();
        put(&double, number, 60, false).unwrap();
    }
    assert_eq!((present(&narrow, 0..30_000), present(&double, 0..30_000)), (30_000, 30_000));
    assert_eq!((narrow.pressure().forgotten, double.pressure().forgotten), (0, 0));
}

#[test]
fn a_flood_forgets_who_is_nearest_to_saying_nothing_but_nobody_who_is_limited() {
    let table = Table::<Double>::new(1_024, WhenFull::Deny);
    for number in 0..200 {
        put(&table, number, 30, true).unwrap();
    }
    for number in 1_000..100_000 {
        put(&table, number, 60 + number % 60, false).unwrap();
    }
    assert_eq!(present(&table, 0..200), 200);
    assert!(table.pressure().forgotten > 90_000);
}

#[test]
fn when_everybody_near_is_limited_the_newcomer_waits_or_takes_over() {
    let deny = Table::<Narrow>::new(8, WhenFull::Deny);
    let forget = Table::<Narrow>::new(8, WhenFull::Forget);
    for number in 0..8 {
        put(&deny, number, 30 + number, true).unwrap();
        put(&forget, number, 30 + number, true).unwrap();
    }
    let full = put(&deny, 99, 60, true).unwrap_err();
    assert_eq!(full.free_at, NOW.after(Duration::from_secs(30)));
    assert_eq!((present(&deny, 0..8), deny.pressure().refused), (8, 1));
    put(&forget, 99, 60, true).unwrap();
    assert_eq!(
        (present(&forget, 0..1), present(&forget, 1..8), present(&forget, 99..100)),
        (0, 7, 1)
    );
}

#[test]
fn what_writes_nothing_leaves_no_trace() {
    let table = Table::<Double>::new(8, WhenFull::Deny);
    let seen = table.update(key(1), NOW, |words, _| Change { answer: words, content: None });
    assert_eq!((seen, table.read(key(1)), table.pressure().used), (Ok([0, 0]), None, 0));
}

#[test]
fn a_double_slot_is_kept_up_to_one_grain_longer_never_shorter() {
    let table = Table::<Double>::new(1, WhenFull::Deny);
    let vacant_at = NOW.after(Duration::from_nanos(1));
    let content = Some(Content { words: [1, 2], vacant_at, limited: false });
    table.update(key(1), NOW, |_, _| Change { answer: (), content }).unwrap();
    let (_, view) = table.views().next().unwrap();
    assert!(view.vacant_at >= vacant_at);
    assert!(view.vacant_at <= vacant_at.after(Duration::from_millis(68)));
}

/// Two newcomers with one home were once put into the same slot in turns, for ever.
#[test]
fn newcomers_locked_together_get_a_slot_each_or_are_told_that_there_is_none() {
    let table = Table::<Narrow>::new(4, WhenFull::Deny);
    let keys: Vec<_> = (0..4).map(key).collect();
    let vacant_at = NOW.after(Duration::from_secs(60));
    let mut locked = table.lock_all(&keys, &[], NOW).ok().unwrap();
    for (held, key) in locked.slots.drain(..).zip(&keys) {
        assert_eq!(held.words(), [0, 0]);
        let content = Content { words: [vacant_at.as_nanos(), 0], vacant_at, limited: true };
        held.write(key.tag, content, NOW);
    }
    drop(locked);
    assert_eq!(present(&table, 0..4), 4);
    let (position, full) = table.lock_all(&[key(0), key(9)], &[], NOW).err().unwrap();
    assert_eq!((position, full), (1, Miss::Full(Full { free_at: vacant_at })));
    assert!(table.lock_all(&keys, &[], NOW).is_ok());
}

/// A newcomer once took the vacant slot of a key that the same request named after it, and the
/// request waited for its own lock.
#[test]
fn a_newcomer_does_not_take_the_slot_of_a_vacant_key_in_the_same_request() {
    let table = Table::<Narrow>::new(1, WhenFull::Deny);
    put(&table, 0, 0, false).unwrap();
    for keys in [[key(9), key(0)], [key(0), key(9)]] {
        let locked = table.lock_all(&keys, &[], NOW).ok().unwrap();
        assert_eq!(locked.slots.len(), 2);
    }
}
