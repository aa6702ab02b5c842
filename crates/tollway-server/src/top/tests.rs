use super::*;

const START_MS: u64 = 1_700_000_000_000;

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_millis(START_MS + seconds * 1_000)
}

fn seen(top: &Top, key: &[u8], now: Timestamp) -> Option<(u64, u64)> {
    let mut listed = top.listed(now);
    listed.find(|(listed, _)| *listed == key).map(|(_, seen)| (seen.minute, seen.five_minutes))
}

#[test]
fn heavy_keys_are_found_among_very_many_light_ones() {
    let mut top = Top::default();
    for round in 0..100_000u32 {
        top.see(format!("light-{round}").as_bytes(), at(0));
        if round % 10 == 0 {
            top.see(b"heavy-1", at(0));
        }
        if round % 20 == 0 {
            top.see(b"heavy-2", at(0));
        }
    }
    let ranking = ranking([&top], 2, at(0));
    assert_eq!(ranking[0].key, b"heavy-1");
    assert_eq!(ranking[1].key, b"heavy-2");
    assert_eq!(ranking[0].seen, Seen { minute: 10_000, five_minutes: 10_000 });
}

#[test]
fn a_heavy_key_that_comes_after_a_flood_is_found_and_not_overstated() {
    let mut top = Top::default();
    (0..200_000u32).for_each(|key| top.see(&key.to_le_bytes(), at(0)));
    (0..5_000).for_each(|_| top.see(b"late", at(1)));
    let ranking = ranking([&top], 1, at(1));
    assert_eq!(ranking[0].key, b"late");
    assert!((4_500..=5_000).contains(&ranking[0].seen.minute), "{ranking:?}");
}

#[test]
fn lists_of_several_workers_add_up() {
    let (mut one, mut two) = (Top::default(), Top::default());
    (0..3).for_each(|_| one.see(b"a", at(0)));
    (0..4).for_each(|_| two.see(b"b", at(0)));
    (0..2).for_each(|_| two.see(b"a", at(0)));
    let ranked = |key: &[u8], count| Ranked {
        key: key.to_vec(),
        seen: Seen { minute: count, five_minutes: count },
    };
    assert_eq!(ranking([&one, &two], 10, at(0)), [ranked(b"a", 5), ranked(b"b", 4)]);
}

#[test]
fn the_list_and_its_keys_are_bounded() {
    let mut top = Top::default();
    for key in 0..10_000u32 {
        top.see(&[key.to_le_bytes().as_slice(), &[0; 1_000]].concat(), at(0));
    }
    assert!(top.listed(at(0)).count() <= KEPT);
    assert!(top.listed(at(0)).all(|(key, _)| key.len() <= KEY_BYTES_SHOWN));
}

#[test]
fn one_busy_key_among_rare_ones_does_not_unbind_the_list() {
    let mut top = Top::default();
    (0..KEPT as u32 - 1).for_each(|rare| top.see(&rare.to_le_bytes(), at(0)));
    (0..1u32 << 22).for_each(|_| top.see(b"busy", at(0)));
    for second in 0..400 {
        for key in 0..50u64 {
            top.see(&(second * 50 + key).to_be_bytes(), at(second));
            assert!(top.kept.len() <= KEPT);
        }
    }
}

#[test]
fn rates_are_of_the_last_minute_and_the_last_five() {
    let mut top = Top::default();
    for second in 0..600 {
        top.see(b"steady", at(second));
        if second < 60 {
            (0..10).for_each(|_| top.see(b"burst", at(second)));
        }
    }
    assert_eq!(seen(&top, b"steady", at(600)), Some((60, 300)));
    assert_eq!(seen(&top, b"burst", at(600)), None);
    assert_eq!(top.kept.len(), 1, "who left is off the list too");
}

#[test]
fn an_offender_that_left_is_gone_after_the_window() {
    let mut top = Top::default();
    (0..500).for_each(|_| top.see(b"offender", at(5)));
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
        (0..1_000).for_each(|_| top.see(&old.to_le_bytes(), at(0)));
    }
    // One fifth of what the old ones had in five minutes, in one.
    (0..201).for_each(|_| top.see(b"now", at(120)));
    assert_eq!(ranking([&top], 1, at(120))[0].key, b"now");
}

#[test]
fn a_late_caller_is_counted_and_a_clock_set_back_starts_anew() {
    let mut top = Top::default();
    top.see(b"a", at(20));
    top.see(b"a", at(19));
    assert_eq!(seen(&top, b"a", at(20)), Some((2, 2)));
    top.see(b"b", at(0));
    assert_eq!(seen(&top, b"a", at(0)), None);
    assert_eq!(seen(&top, b"b", at(0)), Some((1, 1)));
}
