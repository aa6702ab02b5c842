//! Dates in header fields as time since the Unix epoch, and the calendar behind them.
//!
//! Printed: the preferred HTTP-date of RFC 9110, and RFC 3339 in UTC. Read: the three HTTP-date
//! forms of RFC 9110, RFC 3339 (also with only minutes, as Jira sends), and what JavaScript's
//! `Date` prints (lemlist). Instants before 1970 read as the epoch itself: all a limit can learn
//! from them is that they are past. Leap seconds read as the second after.

use alloc::format;
use alloc::string::String;
use core::time::Duration;

use super::digits::{all_digits, seconds};

const WEEKDAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
const MONTHS: &str = "JanFebMarAprMayJunJulAugSepOctNovDec";

/// Prints an HTTP-date, `Sun, 06 Nov 1994 08:49:37 GMT`, rounded down as clocks show it.
///
/// ```
/// use core::time::Duration;
/// use tollway_core::fields::calendar;
///
/// let rfc_example = Duration::from_secs(784_111_777);
/// assert_eq!(calendar::print_http_date(rfc_example), "Sun, 06 Nov 1994 08:49:37 GMT");
/// assert_eq!(calendar::print_rfc3339(rfc_example), "1994-11-06T08:49:37Z");
/// ```
pub fn print_http_date(epoch: Duration) -> String {
    let days = epoch.as_secs() / 86_400;
    let (year, month, day) = civil(days);
    let (weekday, at) = (WEEKDAYS[(days % 7) as usize], (month as usize - 1) * 3);
    let (name, time) = (&MONTHS[at..at + 3], time_of_day(epoch.as_secs()));
    format!("{weekday}, {day:02} {name} {year} {time} GMT")
}

/// Prints RFC 3339, `1994-11-06T08:49:38Z`, rounded up: a reset must not be told too early.
pub fn print_rfc3339(epoch: Duration) -> String {
    date_and_time(super::seconds_up(epoch)) + "Z"
}

/// Prints RFC 3339 to the nanosecond, without zeros at the end: `1994-11-06T08:49:37.25Z`.
pub fn print_exactly(epoch: Duration) -> String {
    let whole = date_and_time(epoch.as_secs());
    match epoch.subsec_nanos() {
        0 => whole + "Z",
        nanos => format!("{whole}.{}Z", format!("{nanos:09}").trim_end_matches('0')),
    }
}

fn date_and_time(seconds: u64) -> String {
    let (year, month, day) = civil(seconds / 86_400);
    format!("{year}-{month:02}-{day:02}T{}", time_of_day(seconds))
}

/// Year, month and day, both from 1, of a day counted from 1970-01-01.
///
/// Years are counted from March and in eras of 400, which all have the same number of days: the
/// leap day is the last of its year, so that lengths of months need no leap rule.
pub const fn civil(day: u64) -> (u64, u64, u64) {
    let shifted = day + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let leap_days = day_of_era / 1_460 + day_of_era / 146_096 - day_of_era / 36_524;
    let year_of_era = (day_of_era - leap_days) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (era * 400 + year_of_era + (month <= 2) as u64, month, day)
}

fn time_of_day(seconds: u64) -> String {
    let (hour, minute, second) = (seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{hour:02}:{minute:02}:{second:02}")
}

/// Reads an HTTP-date, or a date as JavaScript prints it.
///
/// `now` decides the century of two-digit years: what would lie over 50 years ahead is past.
pub(super) fn http_date(text: &str, now: Duration) -> Option<Duration> {
    let mut parts = [""; 6];
    let mut count = 0;
    for part in text.split_ascii_whitespace() {
        // A JavaScript date ends in the zone's name, one word or several: "(Central Europe Time)".
        if part.starts_with('(') {
            break;
        }
        *parts.get_mut(count)? = part;
        count += 1;
    }
    match parts[..count] {
        [_, day, name, year, time, "GMT" | "UTC"] if day.len() == 2 => {
            instant(number(year, 4)?, month(name)?, number(day, 2)?, clock(time)?, 0)
        }
        [_, date, time, "GMT" | "UTC"] => rfc850(date, time, now),
        [_, name, day, time, year] if time.contains(':') => {
            instant(number(year, 4)?, month(name)?, number(day, 2)?, clock(time)?, 0)
        }
        [_, name, day, year, time, zone] => {
            let offset_s = zone_offset_s(zone.strip_prefix("GMT")?)?;
            instant(number(year, 4)?, month(name)?, number(day, 2)?, clock(time)?, offset_s)
        }
        _ => None,
    }
}

/// Reads an RFC 3339 timestamp: `2026-11-15T12:30:00.250Z`, `2026-11-15T12:30+01:00`.
pub fn rfc3339(text: &str) -> Option<Duration> {
    let (date, rest) = text.split_once(['T', 't', ' '])?;
    let zone_at = rest.find(['Z', 'z', '+', '-'])?;
    let (time, zone) = rest.split_at(zone_at);
    let offset_s = if zone.eq_ignore_ascii_case("z") { 0 } else { zone_offset_s(zone)? };
    let mut ymd = date.split('-');
    let (year, month, day) = (ymd.next()?, ymd.next()?, ymd.next()?);
    if ymd.next().is_some() {
        return None;
    }
    instant(number(year, 4)?, number(month, 2)?, number(day, 2)?, clock(time)?, offset_s)
}

fn rfc850(date: &str, time: &str, now: Duration) -> Option<Duration> {
    let mut dmy = date.split('-');
    let (day, name, year) = (dmy.next()?, dmy.next()?, dmy.next()?);
    let this_year = 1970 + (now.as_secs() / 31_556_952).min(8_000) as i64;
    let mut full = this_year - this_year.rem_euclid(100) + number(year, 2)?;
    if full > this_year + 50 {
        full -= 100;
    }
    instant(full, month(name)?, number(day, 2)?, clock(time)?, 0)
}

/// Time of day as (seconds, fraction): `12:30`, `12:30:05`, `12:30:05.250`.
fn clock(text: &str) -> Option<(i64, Duration)> {
    let mut parts = text.split(':');
    let (hour, minute) = (number(parts.next()?, 2)?, number(parts.next()?, 2)?);
    let (second, fraction) = match parts.next() {
        None => (0, Duration::ZERO),
        Some(text) => {
            let whole = number(text.get(..2)?, 2)?;
            (whole, seconds(text)?.checked_sub(Duration::from_secs(whole.unsigned_abs()))?)
        }
    };
    let in_range = hour < 24 && minute < 60 && second <= 60 && fraction < Duration::from_secs(1);
    (in_range && parts.next().is_none()).then_some((hour * 3600 + minute * 60 + second, fraction))
}

/// `+01:00` or `-0500` in seconds east of Greenwich.
fn zone_offset_s(text: &str) -> Option<i64> {
    let (sign, digits) = match text.as_bytes().first()? {
        b'+' => (1, &text[1..]),
        b'-' => (-1, &text[1..]),
        _ => return None,
    };
    let (hours, minutes) = match digits.split_once(':') {
        Some(parts) => parts,
        None => digits.split_at_checked(2)?,
    };
    let (hours, minutes) = (number(hours, 2)?, number(minutes, 2)?);
    (hours < 24 && minutes < 60).then_some(sign * (hours * 3600 + minutes * 60))
}

/// A number of one digit up to `len_max`.
fn number(text: &str, len_max: usize) -> Option<i64> {
    if text.is_empty() || text.len() > len_max || !all_digits(text) {
        return None;
    }
    text.parse().ok()
}

fn month(name: &str) -> Option<i64> {
    let at = (name.len() == 3).then(|| MONTHS.find(name))??;
    (at % 3 == 0).then_some(at as i64 / 3 + 1)
}

fn instant(
    year: i64,
    month: i64,
    day: i64,
    (second, fraction): (i64, Duration),
    offset_s: i64,
) -> Option<Duration> {
    if !(1..=12).contains(&month) || day < 1 || day > month_days(year, month) {
        return None;
    }
    let total = days_since_epoch(year, month, day) * 86_400 + second - offset_s;
    match u64::try_from(total) {
        Ok(whole) => Some(Duration::from_secs(whole) + fraction),
        Err(_) => Some(Duration::ZERO),
    }
}

/// How many days a month (1 to 12) has.
pub const fn month_days(year: i64, month: i64) -> i64 {
    match month {
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days from 1970-01-01 in the proleptic Gregorian calendar, for years from 0 on.
///
/// Counting years from March puts the leap day last, so that month lengths need no leap rule.
pub const fn days_since_epoch(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let from_march = (month + 9) % 12;
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    year * 365 + leap_days + (from_march * 153 + 2) / 5 + day - 1 - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_day_of_a_thousand_years_is_the_day_that_it_was_made_from() {
        for day in 0..365_250u64 {
            let (year, month, of_month) = civil(day);
            let back = days_since_epoch(year as i64, month as i64, of_month as i64);
            assert_eq!(back, day as i64, "{year}-{month}-{of_month}");
        }
    }

    #[test]
    fn known_days_are_printed_as_known() {
        let leap_day = Duration::from_secs(951_782_400);
        assert_eq!(print_http_date(leap_day), "Tue, 29 Feb 2000 00:00:00 GMT");
        assert_eq!(print_http_date(Duration::ZERO), "Thu, 01 Jan 1970 00:00:00 GMT");
        assert_eq!(print_rfc3339(Duration::from_millis(784_111_776_001)), "1994-11-06T08:49:37Z");
    }
}
