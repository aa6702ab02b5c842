//! Every interleaving of two threads on one table, explored by loom. A bucket has one slot here.
//!
//! `RUSTFLAGS="--cfg tollway_loom" cargo test -p tollway-memory --lib --release`

use std::time::Duration;

use loom::sync::Arc;
use loom::thread;

use super::*;
use crate::slot::{Double, Narrow};

const NOW: Timestamp = Timestamp::from_millis(1_000_000);
const ALICE: Fingerprint = Fingerprint { tag: 1, mark: 0, owner: 0 };
const BOB: Fingerprint = Fingerprint { tag: 2, mark: 0, owner: 0 };

fn later(words: [u64; 2]) -> Content {
    Content { words, vacant_at: NOW.after(Duration::from_secs(60)), limited: false }
}

/// Runs on a second thread, while the test goes on with the same table.
fn beside<S: Slot + Send + Sync + 'static, T: 'static>(
    table: &Arc<Table<S>>,
    run: impl FnOnce(&Table<S>) -> T + 'static,
) -> thread::JoinHandle<T> {
    let table = Arc::clone(table);
    thread::spawn(move || run(&table))
}

/// Counts in both words; the sum of the two says whether they were written together.
fn count<S: Slot>(table: &Table<S>, key: Fingerprint) -> u64 {
    let counted = table.update(key, NOW, |[count, twin], _| {
        assert_eq!(count, twin, "half of a state was seen");
        Change { answer: count + 1, content: Some(later([count + 1, twin + 1])) }
    });
    counted.expect("there is room")
}

/// The moment that a narrow slot holds, moved on by one each time: the short way if that is open.
fn move_on(table: &Table<Narrow>, key: Fingerprint) -> u64 {
    let next = |moment: u64| moment.max(NOW.as_nanos()) + 1;
    let short =
        table.move_on(key.tag, table.home(key), |moment| (next(moment), next(moment), false));
    short.unwrap_or_else(|| {
        let moved = table.update(key, NOW, |[moment, _], _| {
            let words = [next(moment), 0];
            let vacant_at = Timestamp::from_nanos(words[0]);
            Change { answer: words[0], content: Some(Content { words, vacant_at, limited: false }) }
        });
        moved.expect("there is room")
    })
}

#[test]
fn two_newcomers_of_one_key_share_one_slot_and_lose_no_count() {
    loom::model(|| {
        let table = Arc::new(Table::<Double>::new(1, WhenFull::Deny));
        let thread = beside(&table, move |table| count(table, ALICE));
        let mine = count(&table, ALICE);
        let theirs = thread.join().unwrap();
        assert_eq!(mine + theirs, 3, "one of them was first, the other second");
        assert_eq!(table.read(ALICE), Some([2, 2]));
    });
}

/// Two buckets that are homes, of which the first is in use; both keys are at home in it. When the
/// table grows, the second is Alice's home and the first stays Bob's.
fn about_to_grow<S: Slot>() -> Table<S> {
    Table::with_base(3, 1, WhenFull::Deny)
}

/// The newcomer moves the keys that are there.
fn grow_and_count(table: &Table<Double>, key: Fingerprint) -> u64 {
    assert!(table.grow());
    count(table, key)
}

#[test]
fn a_key_that_is_moved_while_it_is_charged_loses_no_charge() {
    loom::model(|| {
        let table = Arc::new(about_to_grow::<Double>());
        count(&table, ALICE);
        let thread = beside(&table, |table| grow_and_count(table, BOB));
        count(&table, ALICE);
        assert_eq!(thread.join().unwrap(), 1);
        assert_eq!((table.read(ALICE), table.read(BOB)), (Some([2, 2]), Some([1, 1])));
        assert!(table.is_settled());
    });
}

#[test]
fn a_narrow_key_that_is_moved_while_it_is_charged_loses_no_charge() {
    loom::model(|| {
        let table = Arc::new(about_to_grow::<Narrow>());
        move_on(&table, ALICE);
        let thread = beside(&table, move |table| {
            assert!(table.grow());
            // Another moment than Alice's: what the same nanosecond would do, `narrow.rs` says.
            let words = [NOW.as_nanos() + 1_000, 0];
            let content = Content { words, vacant_at: NOW, limited: false };
            table.update(BOB, NOW, |_, _| Change { answer: (), content: Some(content) })
        });
        move_on(&table, ALICE);
        thread.join().unwrap().expect("there is room");
        assert_eq!(table.read(ALICE), Some([NOW.as_nanos() + 2, 0]));
        assert_eq!(table.read(BOB), Some([NOW.as_nanos() + 1_000, 0]));
    });
}

#[test]
fn a_reader_never_misses_a_key_that_is_moved() {
    loom::model(|| {
        let table = Arc::new(about_to_grow::<Double>());
        count(&table, ALICE);
        let thread = beside(&table, |table| grow_and_count(table, BOB));
        assert_eq!(table.read(ALICE), Some([1, 1]));
        thread.join().unwrap();
    });
}

#[test]
fn a_newcomer_that_comes_while_the_table_grows_is_in_one_slot_only() {
    loom::model(|| {
        let table = Arc::new(about_to_grow::<Double>());
        let thread = beside(&table, |table| grow_and_count(table, ALICE));
        let mine = count(&table, ALICE);
        assert_eq!(mine + thread.join().unwrap(), 3);
        count(&table, BOB);
        assert_eq!(table.read(ALICE), Some([2, 2]));
        assert_eq!(table.views().filter(|(key, _)| key.tag == ALICE.tag).count(), 1);
    });
}

#[test]
fn keys_locked_together_are_found_while_one_is_moved() {
    loom::model(|| {
        let table = Arc::new(about_to_grow::<Double>());
        count(&table, ALICE);
        let thread = beside(&table, |table| grow_and_count(table, BOB));
        let locked = table.lock_all(&[ALICE], &[], NOW).ok().expect("there is room");
        for held in locked.slots {
            let words = held.words().map(|word| word + 1);
            held.write(ALICE.tag, later(words), NOW);
        }
        thread.join().unwrap();
        assert_eq!(table.read(ALICE), Some([2, 2]));
    });
}

#[test]
fn a_reader_never_sees_half_a_state() {
    loom::model(|| {
        let table = Arc::new(Table::<Double>::new(1, WhenFull::Deny));
        count(&table, ALICE);
        let thread = beside(&table, move |table| count(table, ALICE));
        let seen = table.read(ALICE).expect("she is there");
        assert!(seen == [1, 1] || seen == [2, 2], "{seen:?}");
        thread.join().unwrap();
    });
}

#[test]
fn a_narrow_slot_loses_no_charge() {
    loom::model(|| {
        let table = Arc::new(Table::<Narrow>::new(1, WhenFull::Deny));
        move_on(&table, ALICE);
        let thread = beside(&table, move |table| move_on(table, ALICE));
        move_on(&table, ALICE);
        thread.join().unwrap();
        assert_eq!(table.read(ALICE), Some([NOW.as_nanos() + 3, 0]));
    });
}

#[test]
fn a_newcomer_that_takes_a_slot_does_not_inherit_its_state() {
    loom::model(|| {
        let table = Arc::new(Table::<Narrow>::new(1, WhenFull::Forget));
        move_on(&table, ALICE);
        let thread = beside(&table, move |table| move_on(table, BOB));
        move_on(&table, ALICE);
        thread.join().unwrap();
        let first = NOW.as_nanos() + 1;
        let (alice, bob) = (table.read(ALICE), table.read(BOB));
        assert!(alice.is_none() != bob.is_none(), "one slot holds one key");
        // Who was last has a state of her own: from the start, or moved on by her own charges, or
        // by one more where the word had to differ from what was there before.
        let [moment, _] = alice.or(bob).unwrap();
        assert!((first..=first + 1).contains(&moment), "{}", moment - first);
    });
}

#[test]
fn two_requests_on_the_same_keys_the_other_way_round_both_finish() {
    loom::model(|| {
        let table = Arc::new(Table::<Double>::new(2, WhenFull::Deny));
        let far = Fingerprint { tag: u64::MAX, mark: 0, owner: 0 };
        count(&table, ALICE);
        count(&table, far);
        let both = |table: &Table<Double>, keys: [Fingerprint; 2]| {
            let locked = table.lock_all(&keys, &[], NOW).ok().expect("there is room");
            for (held, key) in locked.slots.into_iter().zip(keys) {
                let words = held.words().map(|word| word + 1);
                held.write(key.tag, later(words), NOW);
            }
        };
        let thread = beside(&table, move |table| both(table, [far, ALICE]));
        both(&table, [ALICE, far]);
        thread.join().unwrap();
        assert_eq!((table.read(ALICE), table.read(far)), (Some([3, 3]), Some([3, 3])));
    });
}

#[test]
fn a_few_known_keys_are_locked_either_way_round_without_losing_a_charge() {
    loom::model(|| {
        let table = Arc::new(Table::<Narrow>::new(2, WhenFull::Deny));
        let far = Fingerprint { tag: u64::MAX, mark: 0, owner: 0 };
        let before = [move_on(&table, ALICE), move_on(&table, far)];
        let both = |table: &Table<Narrow>, keys: [Fingerprint; 2]| {
            let locked =
                table.lock_few(&keys, NOW).expect("both are known, and neither is evicted");
            for (held, key) in locked.into_iter().flatten().zip(keys) {
                let words = [held.view().words[0] + 1, 0];
                let vacant_at = Timestamp::from_nanos(words[0]);
                held.write(key.tag, Content { words, vacant_at, limited: false });
            }
        };
        let thread = beside(&table, move |table| both(table, [far, ALICE]));
        both(&table, [ALICE, far]);
        thread.join().unwrap();
        let after = [ALICE, far].map(|key| table.read(key).expect("still there")[0]);
        assert_eq!(after, before.map(|moment| moment + 2));
    });
}

/// One unit of a second each, at most two at once: what a charge with the reading `now` does to a
/// moment, as GCRA does it.
fn charge(table: &Table<Narrow>, key: Fingerprint, now: Timestamp) -> bool {
    const UNIT: u64 = 1_000_000_000;
    let decide = |moment: u64, now: u64| {
        let wanted = moment.max(now) + UNIT;
        if wanted <= now + 2 * UNIT { (true, wanted) } else { (false, moment) }
    };
    let short = table.move_on(key.tag, table.home(key), |moment| {
        let (allowed, next) = decide(moment, now.as_nanos());
        (allowed, next, false)
    });
    short.unwrap_or_else(|| {
        let charged = table.update(key, now, |[moment, _], at| {
            let (answer, next) = decide(moment, at.as_nanos());
            let vacant_at = Timestamp::from_nanos(next);
            let content = Content { words: [next, 0], vacant_at, limited: false };
            Change { answer, content: answer.then_some(content) }
        });
        charged.expect("there is room")
    })
}

#[test]
fn a_late_thread_takes_and_frees_nothing_in_any_order() {
    loom::model(|| {
        let table = Arc::new(Table::<Narrow>::new(1, WhenFull::Deny));
        let late = NOW.before(Duration::from_secs(1));
        assert!(charge(&table, ALICE, NOW));
        let thread = beside(&table, move |table| u64::from(charge(table, ALICE, late)));
        let mine = u64::from(charge(&table, ALICE, NOW));
        // As of a second ago everything is taken by now; as of now one is left.
        assert_eq!(mine + thread.join().unwrap(), 1);
        assert!(!charge(&table, ALICE, late) && !charge(&table, ALICE, NOW));
    });
}

/// Bob takes Alice's slot, which says nothing any more, while she comes with a reading from when
/// she had nothing left. If she is let in then it is as of now, and not as of then and of now.
#[test]
fn a_late_thread_whose_slot_is_reused_meanwhile_does_not_begin_anew_in_the_past() {
    loom::model(|| {
        let table = Arc::new(Table::<Narrow>::new(1, WhenFull::Forget));
        let late = NOW.before(Duration::from_secs(2));
        assert!(charge(&table, ALICE, late) && charge(&table, ALICE, late));
        let thread = beside(&table, move |table| {
            assert!(charge(table, BOB, NOW), "he has taken nothing yet");
        });
        let again = [(); 2].map(|()| u64::from(charge(&table, ALICE, late)));
        thread.join().unwrap();
        let now = [(); 2].map(|()| u64::from(charge(&table, ALICE, NOW)));
        // Two at once and one a second: of readings over two seconds, four, two of which she had.
        let admitted = 2 + again.iter().sum::<u64>() + now.iter().sum::<u64>();
        assert!(admitted <= 4, "{again:?} then {now:?}");
    });
}
