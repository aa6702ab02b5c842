//! Calendars in time zones, judged by Python's `zoneinfo`.

use std::process::{Command, Stdio};

use tollway_core::Timestamp;
use tollway_queue::Cron;
use tollway_testkit::zones;

/// Minute, hour, and the weekdays that Python counts from Monday; all dates and months.
const CALENDARS: [&str; 5] =
    ["30 2 * * *", "0 0 * * *", "15,45 1-3 * * *", "*/10 0,2 * * sun", "59 23 * * mon-fri"];
const FROM_S: u64 = 1_293_840_000;
const UNTIL_S: u64 = 1_609_459_200;

/// Every moment of every calendar in every zone from 2011 to 2020, in the same order: for each date
/// and time that fits, its [`zones::MOMENT`].
const ORACLE: &str = r#"
import sys
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

DAY = timedelta(days=1)
FIELDS = [([30], [2], range(7)), ([0], [0], range(7)), ([15, 45], [1, 2, 3], range(7)),
          (range(0, 60, 10), [0, 2], [6]), ([59], [23], range(5))]

for name in sys.argv[3:]:
    try:
        zone = ZoneInfo(name)
    except ZoneInfoNotFoundError:
        print("no zones")
        break
    for minutes, hours, weekdays in FIELDS:
        found, date = set(), datetime(2010, 12, 30)
        while date < datetime(2021, 1, 3):
            if date.weekday() in weekdays:
                for hour in hours:
                    for minute in minutes:
                        found.add(moment(date.replace(hour=hour, minute=minute), zone))
            date += DAY
        print(*sorted(s for s in found if int(sys.argv[1]) < s < int(sys.argv[2])))
"#;

#[test]
fn a_calendar_in_a_zone_comes_when_python_says() {
    let oracle = Command::new("python3")
        .args(["-c", &[zones::MOMENT, ORACLE].concat(), &FROM_S.to_string(), &UNTIL_S.to_string()])
        .args(zones::SAMPLE)
        .stderr(Stdio::inherit())
        .output();
    let output = oracle.expect("Python is installed");
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).expect("numbers");
    assert!(!text.contains("no zones"), "Python finds no time zones: install tzdata");
    let mut lines = text.lines();
    for zone in zones::SAMPLE {
        for fields in CALENDARS {
            let cron = Cron::in_zone(fields, zone).expect("a calendar");
            let mut at = Timestamp::from_millis(FROM_S * 1_000);
            let mut foretold = 0;
            for told in lines.next().expect("a line").split(' ') {
                at = cron.next_after(at).expect("a time");
                let second = at.as_nanos() / 1_000_000_000;
                assert_eq!(second.to_string(), told, "{zone} {fields}");
                foretold += 1;
            }
            assert!(foretold > 2_000, "{zone} {fields}: {foretold}");
            let next = cron.next_after(at).expect("a time");
            assert!(next >= Timestamp::from_millis(UNTIL_S * 1_000), "{zone} {fields}: {next:?}");
        }
    }
}

#[test]
fn between_two_times_the_next_one_is_the_same_from_every_second() {
    // Through the night in which clocks go back, and the one in which they go forward.
    for (from_s, until_s) in [(1_792_879_200, 1_792_904_400), (1_774_731_600, 1_774_760_400)] {
        let cron = Cron::in_zone("*/20 1-3 * * *", "Europe/Berlin").expect("a calendar");
        let mut last = Timestamp::MIN;
        for second in (from_s..until_s).step_by(7) {
            let now = Timestamp::from_millis(second * 1_000);
            let next = cron.next_after(now).expect("a time");
            assert!(next > now && next >= last, "{second}");
            assert!(last <= now || next == last, "{second}: one was left out");
            last = next;
        }
    }
}

#[test]
fn a_zone_is_written_as_it_is_read_and_a_wrong_one_is_refused() {
    let cron: Cron = "TZ=Europe/Berlin 30 2 * * *".parse().expect("a calendar");
    assert_eq!((cron.zone(), cron.fields()), (Some("Europe/Berlin"), "30 2 * * *"));
    assert_eq!(cron.to_string().parse::<Cron>().expect("the same"), cron);
    for wrong in ["Europe/Nowhere", "", "../etc/passwd", "CET-1CEST; rm", "Europe/Berlin\n"] {
        let refused = Cron::in_zone("30 2 * * *", wrong).expect_err(wrong).to_string();
        assert!(refused.contains("time zone") || refused.contains("calendar"), "{refused}");
    }
    for wrong in ["TZ=Europe/Berlin", "TZ=Europe/Berlin ", "TZ=Europe/Berlin TZ=UTC 0 0 * * *"] {
        assert!(wrong.parse::<Cron>().is_err(), "{wrong}");
    }
}
