use std::time::Duration;

use tollway_core::{Charge, Decision, Key, Policy, Retry, Snapshot};

use super::trail::Reason;
use super::*;
use crate::metrics::Tally;
use crate::rules::{Ask, Treatment};

const START_MS: u64 = 1_700_000_000_000;

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_millis(START_MS + seconds * 1_000)
}

fn denied(at: Timestamp, tally: u32, cost: u64, reason: Reason) -> Record {
    Record { at, times: 1, tally, cost, reason: Some(reason), retry_ns: Some(1) }
}

/// A denial at cost 1 as of `at`.
fn once(at: Timestamp) -> Record {
    denied(at, 1, 1, Reason::Exhausted)
}

fn seen(top: &Top, key: &[u8], now: Timestamp) -> Option<(u64, u64)> {
    let mut listed = top.listed(now);
    let (_, Activity { seen, .. }) = listed.find(|(listed, _)| *listed == key)?;
    Some((seen.minute, seen.five_minutes))
}

/// The list alone, most often seen first.
fn ranked(top: Top, now: Timestamp) -> Vec<(Vec<u8>, Seen)> {
    let [_, ranking] = rankings([&Tops { denied: top, ..Tops::default() }], KEPT, now);
    ranking.into_iter().map(|ranked| (ranked.key, ranked.denied.seen)).collect()
}

#[test]
fn heavy_keys_are_found_among_very_many_light_ones() {
    let mut top = Top::default();
    for round in 0..100_000u32 {
        top.see(format!("light-{round}").as_bytes(), once(at(0)));
        if round % 10 == 0 {
            top.see(b"heavy-1", once(at(0)));
        }
        if round % 20 == 0 {
            top.see(b"heavy-2", once(at(0)));
        }
    }
    let ranked = ranked(top, at(0));
    assert_eq!(ranked[0], (b"heavy-1".to_vec(), Seen { minute: 10_000, five_minutes: 10_000 }));
    assert_eq!(ranked[1].0, b"heavy-2");
}

#[test]
fn a_heavy_key_that_comes_after_a_flood_is_found_and_not_overstated() {
    let mut top = Top::default();
    (0..200_000u32).for_each(|key| top.see(&key.to_le_bytes(), once(at(0))));
    (0..5_000).for_each(|_| top.see(b"late", once(at(1))));
    let (key, seen) = &ranked(top, at(1))[0];
    assert_eq!(key, b"late");
    assert!((4_500..=5_000).contains(&seen.minute), "{seen:?}");
}

#[test]
fn lists_of_several_workers_add_up_and_tell_what_came_last() {
    let (mut one, mut two) = (Tops::default(), Tops::default());
    (0..3).for_each(|_| one.see(b"a", once(at(0))));
    (0..4).for_each(|_| two.see(b"b", once(at(0))));
    let last = denied(at(1), 7, 30, Reason::Banned);
    (0..2).for_each(|_| two.see(b"a", last));
    let allowed = Record { reason: None, retry_ns: None, ..once(at(1)) };
    (0..9).for_each(|_| one.see(b"b", allowed));
    let [by_allowed, by_denied] = rankings([&one, &two], 10, at(1));
    let counts = |ranked: &Ranked| (ranked.allowed.seen.minute, ranked.denied.seen.minute);
    let keys = |ranking: &Ranking| ranking.iter().map(|ranked| ranked.key.clone()).collect();
    let (allowed_keys, denied_keys): (Vec<_>, Vec<_>) = (keys(&by_allowed), keys(&by_denied));
    assert_eq!(
        (allowed_keys, denied_keys),
        (vec![b"b".to_vec()], vec![b"a".to_vec(), b"b".to_vec()])
    );
    assert_eq!(by_denied.iter().map(counts).collect::<Vec<_>>(), [(0, 5), (9, 4)]);
    assert_eq!(by_denied[0].denied.last, Some(Record { times: 2, ..last }));
    assert_eq!(one.seen(b"b", at(1)), [Seen { minute: 9, five_minutes: 9 }, Seen::default()]);
    assert_eq!(rankings([&one, &two], 1, at(1)).map(|ranking| ranking.len()), [1, 1]);
}

#[test]
fn denials_that_are_alike_are_one_record_and_others_are_kept_apart() {
    let mut tops = Tops::default();
    (0..500).for_each(|_| tops.see(b"ada", denied(at(1), 1, 30, Reason::Exhausted)));
    (0..3).for_each(|_| tops.see(b"ada", denied(at(2), 2, 1, Reason::TooCostly)));
    (0..7).for_each(|_| tops.see(b"ada", denied(at(30), 2, 1, Reason::TooCostly)));
    let mut denials = tops.denials(b"ada");
    denials.sort_by_key(|denial| denial.at);
    let shown: Vec<_> = denials.iter().map(|one| (one.at, one.tally, one.times)).collect();
    assert_eq!(shown, [(at(1), 1, 500), (at(2), 2, 3), (at(30), 2, 7)]);
    // Each at another cost: no more are kept than there is room for, the latest ones.
    (0..10_000).for_each(|cost| tops.see(b"ada", denied(at(31), 1, cost, Reason::Exhausted)));
    let denials = tops.denials(b"ada");
    assert!(denials.len() <= 8 && denials.iter().any(|one| one.cost == 9_999), "{denials:?}");
    assert_eq!(tops.denials(b"bob"), []);
}

#[test]
fn each_denial_has_its_reason() {
    let (policy, tally) = (Policy::parse("api", "5/1h").unwrap(), Tally::default());
    let ask = |treatment| Ask {
        charge: Charge::new(&policy, Key::new("ada").unwrap()),
        treatment,
        spacing: None,
        unavailable_on_store_error: false,
        tally: &tally,
    };
    let snapshot =
        |reset_s| Snapshot::new(5, 0, Duration::from_secs(reset_s), Duration::from_secs(reset_s));
    let wait = Retry::After(Duration::from_millis(1_500));
    let deny = |reset_s, retry| Decision::Deny { snapshot: snapshot(reset_s), retry };
    for (treatment, decision, is_degraded, expected) in [
        (Treatment::Enforce, deny(60, wait), false, Some(Reason::Exhausted)),
        (Treatment::Enforce, deny(60, Retry::Never), false, Some(Reason::TooCostly)),
        (Treatment::Enforce, deny(0, wait), false, Some(Reason::NoRoom)),
        (Treatment::Enforce, deny(60, wait), true, Some(Reason::Degraded)),
        (Treatment::Ban, deny(0, Retry::Never), false, Some(Reason::Banned)),
        (Treatment::Ban, deny(0, Retry::Never), true, Some(Reason::Banned)),
        (Treatment::Enforce, Decision::Allow(snapshot(60)), true, None),
    ] {
        let record = Record::of(&ask(treatment), &decision, is_degraded, at(0));
        assert_eq!(record.reason, expected, "{decision:?}");
    }
    let record = Record::of(&ask(Treatment::Enforce), &deny(60, wait), false, at(0));
    assert_eq!((record.cost, record.retry_ns), (1, Some(1_500_000_000)));
}

#[test]
fn who_is_on_no_list_is_still_told_why_it_was_denied() {
    let mut tops = Tops::default();
    for busy in 0..KEPT as u32 {
        (0..100).for_each(|_| tops.see(&busy.to_le_bytes(), once(at(0))));
    }
    let last = denied(at(1), 3, 1, Reason::Exhausted);
    tops.see(b"quiet", last);
    assert_eq!(tops.denials(b"quiet"), [last]);
    assert_eq!(tops.seen(b"quiet", at(1)), [Seen::default(); 2], "it is on no list");
    // One that was on the list and has left it, too.
    tops.see(b"later", once(at(1_000)));
    assert_eq!(tops.denied.kept.len(), 1);
    assert_eq!(tops.denials(&0u32.to_le_bytes()).len(), 1);
}

#[test]
fn what_is_kept_of_keys_on_no_list_is_bounded() {
    let mut tops = Tops::default();
    (0..300_000u32).for_each(|key| tops.see(&key.to_le_bytes(), once(at(0))));
    let known = (0..300_000u32).filter(|key| !tops.denials(&key.to_le_bytes()).is_empty());
    assert!(known.count() <= 4_096 + KEPT);
}

#[test]
fn the_list_and_its_keys_are_bounded() {
    let mut top = Top::default();
    for key in 0..10_000u32 {
        top.see(&[key.to_le_bytes().as_slice(), &[0; 1_000]].concat(), once(at(0)));
    }
    assert!(top.listed(at(0)).count() <= KEPT);
    assert!(top.listed(at(0)).all(|(key, _)| key.len() <= KEY_BYTES_SHOWN));
}

#[test]
fn one_busy_key_among_rare_ones_does_not_unbind_the_list() {
    let mut top = Top::default();
    (0..KEPT as u32 - 1).for_each(|rare| top.see(&rare.to_le_bytes(), once(at(0))));
    (0..1u32 << 22).for_each(|_| top.see(b"busy", once(at(0))));
    for second in 0..400 {
        for key in 0..50u64 {
            top.see(&(second * 50 + key).to_be_bytes(), once(at(second)));
            assert!(top.kept.len() <= KEPT);
        }
    }
}

#[test]
fn rates_are_of_the_last_minute_and_the_last_five() {
    let mut top = Top::default();
    for second in 0..600 {
        top.see(b"steady", once(at(second)));
        if second < 60 {
            (0..10).for_each(|_| top.see(b"burst", once(at(second))));
        }
    }
    assert_eq!(seen(&top, b"steady", at(600)), Some((60, 300)));
    assert_eq!(seen(&top, b"burst", at(600)), None);
    assert_eq!(top.kept.len(), 1, "who left is off the list too");
}

#[test]
fn an_offender_that_left_is_gone_after_the_window() {
    let mut top = Top::default();
    (0..500).for_each(|_| top.see(b"offender", once(at(5))));
    assert_eq!(seen(&top, b"offender", at(9)), Some((500, 500)));
    assert_eq!(seen(&top, b"offender", at(59)), Some((500, 500)));
    assert_eq!(seen(&top, b"offender", at(65)), Some((250, 500)), "its bucket is half out");
    assert_eq!(seen(&top, b"offender", at(70)), Some((0, 500)));
    assert_eq!(seen(&top, b"offender", at(309)).map(|(_, five)| five), Some(50));
    assert_eq!(seen(&top, b"offender", at(310)), None);
    assert_eq!(seen(&top, b"offender", at(1_000_000)), None);
}

#[test]
fn who_was_busy_five_minutes_ago_makes_room_for_who_is_busy_now() {
    let mut top = Top::default();
    for old in 0..KEPT as u32 {
        (0..1_000).for_each(|_| top.see(&old.to_le_bytes(), once(at(0))));
    }
    // One fifth of what the old ones had in five minutes, in one.
    (0..201).for_each(|_| top.see(b"now", once(at(120))));
    assert_eq!(ranked(top, at(120))[0].0, b"now");
}

#[test]
fn a_late_caller_is_counted_and_a_clock_set_back_starts_anew() {
    let mut top = Top::default();
    top.see(b"a", once(at(20)));
    top.see(b"a", once(at(19)));
    assert_eq!(seen(&top, b"a", at(20)), Some((2, 2)));
    top.see(b"b", once(at(0)));
    assert_eq!(seen(&top, b"a", at(0)), None);
    assert_eq!(seen(&top, b"b", at(0)), Some((1, 1)));
}
