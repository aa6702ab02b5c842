//! Where windows begin, judged by Python: `zoneinfo` says when local times are, and `dateutil` adds
//! months. Both sides read the system's time zones, so that they have one version of them.

use std::io::{BufReader, Read};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use tollway_core::Timestamp;
use tollway_core::civil::{Calendar, Unit, Window};
use tollway_testkit::servers::full;
use tollway_testkit::zones;
use tollway_zones::named;

/// Calendars, each as Python has it under the same number.
const CALENDARS: [(Unit, &str); 10] = [
    (Unit::Hour, ""),
    (Unit::Day, ""),
    (Unit::Day, "02:30"),
    (Unit::Week, "sun"),
    (Unit::Month, ""),
    (Unit::Month, "31"),
    (Unit::Month, "15 02:30"),
    (Unit::Quarter, "02-29"),
    (Unit::Year, "02-29"),
    (Unit::Year, "04-06 06:00"),
];

/// For each zone its name, and for each calendar how many windows begin from one year to another,
/// and when ([`zones::MOMENT`]). Hours are looked at where clocks change, and around each new year.
const ORACLE: &str = r#"
import sys
from array import array
from zoneinfo import ZoneInfo, available_timezones
from dateutil.relativedelta import relativedelta, SU

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
first, last = datetime(int(sys.argv[1]), 1, 1), datetime(int(sys.argv[2]), 1, 1)

def every(step, start, clamped=relativedelta()):
    local, n = start, 0
    while local < last:
        yield local
        n += 1
        local = start + step * n + clamped

def hours(zone):
    days = set()
    for day in every(DAY, first):
        if day.replace(tzinfo=zone).utcoffset() != (day + DAY).replace(tzinfo=zone).utcoffset():
            days.update(day + DAY * n for n in (-1, 0, 1))
        if day.month == 1 and day.day == 1:
            days.update((day, day + DAY))
    for day in sorted(days):
        if first <= day < last:
            yield from (day + HOUR * n for n in range(24))

def calendars(zone):
    at = timedelta(hours=2, minutes=30)
    yield hours(zone)
    yield every(DAY, first)
    yield every(DAY, first + at)
    yield every(relativedelta(weeks=1), first + relativedelta(weekday=SU))
    yield every(relativedelta(months=1), first)
    yield every(relativedelta(months=1), first + relativedelta(day=31), relativedelta(day=31))
    yield every(relativedelta(months=1), first + relativedelta(day=15) + at)
    leap = relativedelta(day=29)
    yield every(relativedelta(months=3), first + relativedelta(month=2, day=29), leap)
    yield every(relativedelta(years=1), first + relativedelta(month=2, day=29), leap)
    yield every(relativedelta(years=1), first + relativedelta(month=4, day=6, hour=6))

for name in sys.argv[3:] or sorted(available_timezones()):
    zone = ZoneInfo(name)
    sys.stdout.buffer.write(len(name).to_bytes(8, "little") + name.encode())
    for locals_ in calendars(zone):
        moments = array("q", sorted({moment(local, zone) for local in locals_}))
        sys.stdout.buffer.write(len(moments).to_bytes(8, "little") + moments.tobytes())
"#;

#[test]
fn windows_begin_when_python_says_so() {
    let tools = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../target/calendar-oracle");
    if !tools.join("dateutil").is_dir() {
        let missing = "dateutil is missing: run scripts/install-calendar-oracle";
        assert!(std::env::var_os("TOLLWAY_TOOLS").is_none(), "{missing}");
        println!("skipped: {missing}");
        return;
    }
    let years = if full() { ["2000", "2040"] } else { ["2009", "2014"] };
    let zones: &[&str] = if full() { &[] } else { &zones::SAMPLE };
    let mut oracle = Command::new("python3")
        .args(["-c", &[zones::MOMENT, ORACLE].concat()])
        .args(years)
        .args(zones)
        .env("PYTHONPATH", &tools)
        .env("PYTHONTZPATH", "/usr/share/zoneinfo")
        .stdout(Stdio::piped())
        .spawn()
        .expect("Python is installed");
    let mut told = BufReader::new(oracle.stdout.take().expect("its output is piped"));
    let (mut zones, mut windows) = (0, 0);
    while let Some(name) = text(&mut told) {
        zones += 1;
        for (number, (unit, anchor)) in CALENDARS.into_iter().enumerate() {
            let count = number_of(&mut told).expect("a count");
            let moments: Vec<u64> =
                (0..count).map(|_| number_of(&mut told).expect("a moment")).collect();
            let what = format!("{name} {unit:?} {anchor}");
            // What is between two days of hours is left out.
            judge(calendar(&name, unit, anchor), &moments, number > 0, &what);
            windows += moments.len();
        }
    }
    assert!(oracle.wait().expect("it ends").success());
    let (zones_min, windows_min) = if full() { (500, 10_000_000) } else { (14, 60_000) };
    assert!(zones >= zones_min && windows > windows_min, "{zones} zones, {windows} windows");
    println!("{zones} zones, {windows} windows");
}

fn judge(calendar: Calendar, moments: &[u64], is_complete: bool, what: &str) {
    let nano = Duration::from_nanos(1);
    let at = |second: u64| Timestamp::from_millis(second * 1_000);
    for (index, &start) in moments.iter().enumerate() {
        let window = calendar.window_at(at(start));
        assert_eq!(window.start, at(start), "{what}: {start}");
        assert_eq!(calendar.window_at(window.end.before(nano)), window, "{what}: {start}");
        assert_ne!(calendar.window_at(at(start).before(nano)).start, window.start, "{what}");
        if is_complete && let Some(&next) = moments.get(index + 1) {
            assert_eq!(window, Window { start: at(start), end: at(next) }, "{what}: {start}");
        }
    }
}

fn calendar(zone: &str, unit: Unit, anchor: &str) -> Calendar {
    let calendar = Calendar::new(unit, named(zone).unwrap_or_else(|error| panic!("{error}")));
    if anchor.is_empty() { calendar } else { calendar.anchored(anchor).expect("an anchor") }
}

fn number_of(told: &mut impl Read) -> Option<u64> {
    let mut bytes = [0; 8];
    told.read_exact(&mut bytes).ok()?;
    Some(u64::from_le_bytes(bytes))
}

fn text(told: &mut impl Read) -> Option<String> {
    let mut bytes = vec![0; usize::try_from(number_of(told)?).ok()?];
    told.read_exact(&mut bytes).ok()?;
    String::from_utf8(bytes).ok()
}
