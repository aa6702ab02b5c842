use alloc::string::ToString;
use alloc::vec::Vec;

use super::*;

/// A zone whose clocks change: from which second on they are so many seconds before UTC.
#[derive(Debug)]
struct Changing(&'static [(i64, i64)]);

impl Changing {
    fn offset_at(&self, second: i64) -> i64 {
        self.0.iter().rev().find(|(from, _)| *from <= second).map_or(self.0[0].1, |change| change.1)
    }
}

impl ZoneRules for Changing {
    fn name(&self) -> &str {
        "Changing"
    }

    fn shown_at(&self, second: i64) -> i64 {
        second + self.offset_at(second)
    }

    fn moment_of(&self, shown: i64) -> i64 {
        let moments = self.0.iter().map(|(_, offset)| shown - offset);
        let shows = |second: &i64| self.shown_at(*second) == shown;
        moments.filter(shows).min().unwrap_or_else(|| {
            let gap = self.0.windows(2).find(|pair| {
                let at = pair[1].0;
                at + pair[0].1 <= shown && shown < at + pair[1].1
            });
            gap.expect("what clocks never show is in a gap")[1].0
        })
    }
}

const HOUR: i64 = 3_600;
const DAY: i64 = 24 * HOUR;

/// 2026-03-29 01:00 UTC: 02:00 becomes 03:00. 2026-10-25 01:00 UTC: 03:00 becomes 02:00.
const BERLIN: Zone =
    Zone::new(&Changing(&[(0, HOUR), (1_774_746_000, 2 * HOUR), (1_792_890_000, HOUR)]));

/// 2011-12-30 10:00 UTC: the 30th of December is left out.
const APIA: Zone = Zone::new(&Changing(&[(0, -10 * HOUR), (1_325_239_200, 14 * HOUR)]));

/// Midnight comes twice: at 00:30 of the second of January 1970 it becomes 23:30 of the first.
const TWICE: Zone = Zone::new(&Changing(&[(0, 0), (DAY + HOUR / 2, -HOUR)]));

fn calendar(unit: Unit, zone: Zone, anchor: &str) -> Calendar {
    let calendar = Calendar::new(unit, zone);
    if anchor.is_empty() { calendar } else { calendar.anchored(anchor).unwrap() }
}

/// Seconds from 1970 to a day and an hour, in UTC.
fn utc(year: i64, month: i64, day: i64, hour: i64) -> i64 {
    days_since_epoch(year, month, day) * DAY + hour * HOUR
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_nanos(second as u64 * SECOND_NS)
}

/// Where windows begin from one moment to another.
fn edges(calendar: Calendar, from_s: i64, until_s: i64) -> Vec<i64> {
    let mut window = calendar.window_at(at(from_s));
    let mut edges = Vec::new();
    while window.start < at(until_s) {
        assert!(window.start < window.end, "{window:?}");
        for inside in [window.start, window.end.before(Duration::from_nanos(1))] {
            assert_eq!(calendar.window_at(inside), window);
        }
        edges.push((window.start.as_nanos() / SECOND_NS) as i64);
        window = calendar.window_at(window.end);
    }
    edges
}

#[test]
fn a_day_that_a_month_lacks_is_its_last() {
    let months = calendar(Unit::Month, Zone::UTC, "31");
    let expected: Vec<i64> = [(1, 31), (2, 29), (3, 31), (4, 30), (5, 31), (6, 30)]
        .into_iter()
        .map(|(month, day)| utc(2024, month, day, 0))
        .collect();
    assert_eq!(edges(months, utc(2024, 2, 1, 0), utc(2024, 7, 1, 0)), expected);
    let years = calendar(Unit::Year, Zone::UTC, "02-29");
    let expected = [(2023, 28), (2024, 29), (2025, 28)].map(|(year, day)| utc(year, 2, day, 0));
    assert_eq!(edges(years, utc(2023, 3, 1, 0), utc(2026, 1, 1, 0)), expected);
}

#[test]
fn a_century_is_no_leap_year_unless_it_is_the_fourth() {
    for (year, days) in [(2000, 29), (2100, 28)] {
        let window = Calendar::new(Unit::Month, Zone::UTC).window_at(at(utc(year, 2, 10, 0)));
        assert_eq!(window.end.since(window.start), Duration::from_secs(days * DAY as u64));
    }
}

#[test]
fn every_unit_begins_with_its_first_day_unless_it_is_anchored() {
    // A Thursday.
    let now = at(utc(2026, 11, 19, 15));
    for (unit, anchor, start, end) in [
        (Unit::Hour, "", utc(2026, 11, 19, 15), utc(2026, 11, 19, 16)),
        (Unit::Day, "", utc(2026, 11, 19, 0), utc(2026, 11, 20, 0)),
        (Unit::Day, "16:00", utc(2026, 11, 18, 16), utc(2026, 11, 19, 16)),
        (Unit::Week, "", utc(2026, 11, 16, 0), utc(2026, 11, 23, 0)),
        (Unit::Week, "sun", utc(2026, 11, 15, 0), utc(2026, 11, 22, 0)),
        (Unit::Week, "thu 16:00", utc(2026, 11, 12, 16), utc(2026, 11, 19, 16)),
        (Unit::Month, "", utc(2026, 11, 1, 0), utc(2026, 12, 1, 0)),
        (Unit::Month, "19 15:00", utc(2026, 11, 19, 15), utc(2026, 12, 19, 15)),
        (Unit::Month, "20", utc(2026, 10, 20, 0), utc(2026, 11, 20, 0)),
        (Unit::Quarter, "", utc(2026, 10, 1, 0), utc(2027, 1, 1, 0)),
        (Unit::Quarter, "02-01", utc(2026, 11, 1, 0), utc(2027, 2, 1, 0)),
        (Unit::Quarter, "12-20", utc(2026, 9, 20, 0), utc(2026, 12, 20, 0)),
        (Unit::Year, "", utc(2026, 1, 1, 0), utc(2027, 1, 1, 0)),
        (Unit::Year, "04-06", utc(2026, 4, 6, 0), utc(2027, 4, 6, 0)),
        (Unit::Year, "11-20", utc(2025, 11, 20, 0), utc(2026, 11, 20, 0)),
    ] {
        let window = calendar(unit, Zone::UTC, anchor).window_at(now);
        assert_eq!(window, Window { start: at(start), end: at(end) }, "{unit:?} {anchor}");
    }
}

#[test]
fn a_beginning_in_a_gap_is_the_first_moment_after_it() {
    let change = 1_774_746_000;
    let days = calendar(Unit::Day, BERLIN, "02:30");
    let expected = [change - DAY + HOUR / 2, change, change + DAY - HOUR / 2];
    assert_eq!(edges(days, change - HOUR, change + DAY + HOUR), expected);
    // 02:00 never comes: what would be its hour has no moment.
    let hours = Calendar::new(Unit::Hour, BERLIN);
    let expected = [change - HOUR, change, change + HOUR];
    assert_eq!(edges(hours, change - 1, change + 2 * HOUR), expected);
}

#[test]
fn a_beginning_that_comes_twice_is_the_first() {
    let change = 1_792_890_000;
    let days = calendar(Unit::Day, BERLIN, "02:30");
    assert_eq!(days.window_at(at(change)).start, at(change - HOUR / 2));
    assert_eq!(days.window_at(at(change + HOUR / 2)).start, at(change - HOUR / 2));
    // From 02:00 to 03:00 clocks show the same hour twice.
    let hours = Calendar::new(Unit::Hour, BERLIN);
    let expected = [change - HOUR, change + HOUR];
    assert_eq!(edges(hours, change - HOUR, change + 2 * HOUR), expected);
}

#[test]
fn clocks_that_go_back_over_a_beginning_begin_no_second_window() {
    let days = Calendar::new(Unit::Day, TWICE);
    assert_eq!(edges(days, 0, 3 * DAY), [0, DAY, 2 * DAY + HOUR]);
    // Shown again: 23:45 of a day that is over.
    assert_eq!(days.window_at(at(DAY + 3 * HOUR / 4)).start, at(DAY));
}

#[test]
fn a_day_that_a_zone_leaves_out_is_no_window() {
    let skip = 1_325_239_200;
    for (unit, before) in [(Unit::Day, DAY), (Unit::Hour, HOUR)] {
        let calendar = Calendar::new(unit, APIA);
        assert_eq!(edges(calendar, skip - 1, skip + 1), [skip - before, skip], "{unit:?}");
    }
    let week = Calendar::new(Unit::Week, APIA).window_at(at(skip));
    assert_eq!(week.end.since(week.start), Duration::from_secs(6 * DAY as u64));
}

#[test]
fn the_edges_around_a_moment_are_those_of_three_windows() {
    let months = Calendar::new(Unit::Month, Zone::UTC);
    let expected = [(10, 1), (11, 1), (12, 1), (13, 1)].map(|(month, day)| {
        let (year, month) = if month > 12 { (2027, month - 12) } else { (2026, month) };
        at(utc(year, month, day, 0))
    });
    for now in [utc(2026, 11, 1, 0), utc(2026, 11, 30, 23)] {
        assert_eq!(months.edges_around(at(now)), expected);
    }
}

#[test]
fn the_ends_of_time_are_in_a_window() {
    for unit in Unit::ALL {
        for zone in [Zone::UTC, BERLIN, APIA] {
            let calendar = Calendar::new(unit, zone);
            for moment in [Timestamp::MIN, Timestamp::from_nanos(1), Timestamp::MAX] {
                let window = calendar.window_at(moment);
                assert!(window.start <= moment && moment <= window.end, "{unit:?} {window:?}");
            }
        }
    }
}

#[test]
fn a_wrong_anchor_is_refused_with_what_would_be_right() {
    for (unit, anchor, why) in [
        (Unit::Hour, "15", "an hour has no anchor: it begins when it is full"),
        (Unit::Day, "15", "\"15\" is no anchor; expected a time, as in 06:00"),
        (Unit::Day, "24:00", "\"24:00\" is no time of day; expected 00:00 to 23:59"),
        (Unit::Day, "6:00", "\"6:00\" is no time of day; expected 00:00 to 23:59"),
        (
            Unit::Week,
            "funday",
            "\"funday\" is no anchor; expected a weekday, a time or both, as in \"sun 06:00\"",
        ),
        (
            Unit::Month,
            "32",
            "\"32\" is no anchor; expected a day from 1 to 31, a time or both, as in \"15 06:00\"",
        ),
        (
            Unit::Month,
            "06:00 15",
            "\"06:00 15\" is no anchor; the day stands before the time, as in \"15 06:00\"",
        ),
        (Unit::Year, "02-30", "\"02-30\" never comes: month 2 has 29 days"),
        (
            Unit::Year,
            "13-01",
            "\"13-01\" is no anchor; expected a month and a day, a time or both, as in \
             \"04-06 06:00\"",
        ),
    ] {
        let error = Calendar::new(unit, Zone::UTC).anchored(anchor).unwrap_err();
        assert_eq!(error.to_string(), why);
    }
    for anchor in ["", " ", "1 2 3", "0", "-1", "1.5", "٣"] {
        assert!(Calendar::new(Unit::Month, Zone::UTC).anchored(anchor).is_err(), "{anchor:?}");
    }
}

#[test]
fn an_anchor_is_written_as_it_is_read_and_kept_in_bits() {
    for (unit, anchor) in [
        (Unit::Hour, ""),
        (Unit::Day, "23:59"),
        (Unit::Week, "sun"),
        (Unit::Week, "tue 06:30"),
        (Unit::Week, "06:30"),
        (Unit::Month, "31"),
        (Unit::Month, "15 00:01"),
        (Unit::Quarter, "02-28"),
        (Unit::Quarter, "01-31 12:00"),
        (Unit::Year, "12-31 23:59"),
        (Unit::Year, "02-29"),
    ] {
        let calendar = calendar(unit, BERLIN, anchor);
        assert_eq!(calendar.anchor_text(), anchor);
        assert_eq!(Calendar::from_bits(calendar.to_bits(), BERLIN), Some(calendar));
    }
    for bits in [7, 1 << 26, 3 | 1 << 3, 3, 2 | 1 << 7 | 7 << 12] {
        assert_eq!(Calendar::from_bits(bits, Zone::UTC), None, "{bits:b}");
    }
}
