use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::capacity::WhenFull;
use crate::hash::Fingerprint;
use crate::hash::Seed;
use crate::slot::{Double, Narrow, View};
use crate::table::Change;

const NOW: Timestamp = Timestamp::from_millis(1_000_000);
const LATER: Duration = Duration::from_secs(60);

fn key(number: u64) -> Fingerprint {
    Fingerprint {
        tag: Seed::new([1, 2]).tag(0, &number.to_le_bytes(), || 0),
        mark: 0,
        owner: 1 + number % 3,
    }
}

/// Adds one to the second word of a key; what it was before.
fn count(table: &Table<Double>, number: u64) -> u64 {
    let vacant_at = NOW.after(LATER);
    let counted = table.update(key(number), NOW, |[_, count], _| {
        let words = [number, count + 1];
        Change { answer: count, content: Some(Content { words, vacant_at, limited: false }) }
    });
    counted.expect("there is room")
}

fn put(table: &Table<Narrow>, number: u64, vacant_at: Timestamp) {
    let content = Content { words: [vacant_at.as_nanos(), 0], vacant_at, limited: true };
    let put = table.update(key(number), NOW, |_, _| Change { answer: (), content: Some(content) });
    put.expect("there is room");
}

fn words_of(table: &Table<Narrow>, number: u64) -> Option<u64> {
    table.read(key(number)).map(|[word, _]| word)
}

#[test]
fn every_key_is_found_with_its_state_while_the_table_grows_to_its_full_size() {
    let table = Table::<Narrow>::with_base(400_000, 1_024, WhenFull::Deny);
    let state = |number: u64| NOW.after(LATER).after(Duration::from_nanos(number));
    for number in 0..280_000 {
        put(&table, number, state(number));
        if number % 20_000 == 0 {
            for known in 0..=number {
                assert_eq!(words_of(&table, known), Some(state(known).as_nanos()), "{number}");
            }
        }
    }
    assert!(table.is_settled() && table.in_use() == table.buckets.len());
    assert_eq!((table.pressure().used, table.pressure().forgotten), (280_000, 0));
    assert_eq!(table.views().count(), 280_000);
}

/// Of the 20 bytes of a narrow slot and what is beside it, no more than 64 for each live key.
#[test]
fn at_least_a_third_of_the_slots_in_use_say_something_at_any_size_beyond_the_first() {
    let table = Table::<Narrow>::with_base(1_000_000, 1_024, WhenFull::Deny);
    for number in 0..600_000 {
        put(&table, number, NOW.after(LATER));
        let in_use = table.in_use() * SLOTS;
        let live = number as usize + 1;
        assert!(
            in_use <= (1_024 + PROBES) * SLOTS || live * 10 >= in_use * 3,
            "{live} in {in_use}"
        );
    }
    assert_eq!(table.pressure().forgotten, 0);
}

#[test]
fn keys_that_say_nothing_any_more_do_not_make_a_table_grow() {
    let table = Table::<Narrow>::with_base(400_000, 1_024, WhenFull::Deny);
    for number in 0..100_000 {
        put(&table, number, NOW.before(Duration::from_nanos(number)));
    }
    assert_eq!(table.in_use(), table.base + PROBES - 1);
}

#[test]
fn a_table_grows_by_newcomers_that_are_locked_together_too() {
    let table = Table::<Narrow>::with_base(400_000, 1_024, WhenFull::Deny);
    for number in (0..50_000).step_by(2) {
        let keys = [key(number), key(number + 1)];
        let locked = table.lock_all(&keys, &[], NOW).ok().unwrap();
        let vacant_at = NOW.after(LATER);
        for (held, key) in locked.slots.into_iter().zip(keys) {
            let content = Content { words: [vacant_at.as_nanos(), 0], vacant_at, limited: true };
            held.write(key.tag, content, NOW);
        }
    }
    assert!((0..50_000).all(|number| words_of(&table, number).is_some()));
    assert!(table.lock_few(&[key(0), key(1), key(2)], NOW).is_some());
}

#[test]
fn keys_that_are_charged_are_moved_though_no_newcomer_comes() {
    let table = Table::<Double>::with_base(400_000, 1_024, WhenFull::Deny);
    let keys = (0..).find(|number| {
        count(&table, *number);
        table.lagging.load(Ordering::Relaxed) > 0
    });
    let keys = keys.unwrap();
    assert!((0..=keys).all(|number| count(&table, number) == 1));
    assert_eq!(table.lagging.load(Ordering::Relaxed), 0);
    assert!((0..=keys).all(|number| {
        let home = table.home(key(number));
        table.find_here(key(number).tag, home).is_some()
    }));
}

/// Keys that all threads charge, and keys that come meanwhile and make the table grow.
#[test]
fn no_charge_is_lost_while_threads_make_the_table_grow() {
    const THREADS: u64 = 4;
    let table = Table::<Double>::with_base(400_000, 1_024, WhenFull::Deny);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let table = &table;
            scope.spawn(move || {
                for step in 0..12_000 {
                    count(table, step % 500);
                    assert_eq!(count(table, 1_000 + thread + step * THREADS), 0);
                    assert!(table.read(key(step % 500)).is_some());
                }
            });
        }
    });
    for shared in 0..500 {
        assert_eq!(table.read(key(shared)), Some([shared, 24 * THREADS]));
    }
    assert!((1_000..1_000 + 12_000 * THREADS).all(|number| count(&table, number) == 1));
    assert_eq!(table.pressure().forgotten, 0);
    assert!(table.in_use() > table.base * 8);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn a_table_of_any_size_takes_over_the_keys_of_one_of_any_other(
        sizes in [2_000..80_000usize, 2_000..80_000usize],
        keys in 1..1_500u64,
    ) {
        let table = |slots| Table::<Double>::with_base(slots, 1_024, WhenFull::Deny);
        let [from, to] = sizes.map(table);
        (0..keys).for_each(|number| { count(&from, number); });
        for (fingerprint, view) in from.views() {
            prop_assert_eq!(fingerprint, key(view.words[0]), "whose it is, is known too");
            let View { words, vacant_at, limited, .. } = view;
            to.restore(fingerprint, Content { words, vacant_at, limited }, NOW).unwrap();
        }
        for number in 0..keys {
            prop_assert_eq!(to.read(key(number)), Some([number, 1]));
        }
    }
}
