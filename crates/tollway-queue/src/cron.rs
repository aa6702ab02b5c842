//! Calendars: the five fields of cron, in UTC or in a time zone, exact.
//!
//! `minute hour day-of-month month day-of-week`, each `*`, a number, a name (`jan`, `mon`), a range
//! `1-5`, a step `*/15` or `1-9/2`, or a list of those. Where both days are restricted, either of
//! them suffices, as in every cron since Version 7. `@hourly`, `@daily`, `@weekly`, `@monthly` and
//! `@yearly` stand for what they say.
//!
//! Before them `TZ=Europe/Berlin` may stand: then the fields are local times of that zone, with the
//! feature `zones`. A day on which clocks change has local times that exist twice, of which the
//! first counts, or not at all, in place of which the first that follows counts; see
//! [`tollway_core::civil`].
//!
//! ```text
//!   0 2 * * *     fields are matched by the minutes of a civil calendar that knows no zone;
//!       │
//!       └──────>  a zone says which moment a civil minute is
//! ```
//!
//! Deliberately absent: seconds, and `L`, `W`, `#`.

use std::fmt;
use std::str::FromStr;

use tollway_core::Timestamp;
use tollway_core::fields::calendar::{days_since_epoch, month_days};

use crate::error::Error;
#[cfg(feature = "zones")]
use crate::zone;

/// A calendar of minutes, in UTC unless it names a time zone.
///
/// ```
/// use tollway_core::Timestamp;
/// use tollway_queue::Cron;
///
/// let cron: Cron = "30 4 1,15 * fri".parse()?;
/// // 1970-01-01 was a Thursday: the first is over at 04:30, the next Friday is the second.
/// let next = cron.next_after(Timestamp::from_millis(5 * 3_600_000)).unwrap();
/// assert_eq!(next, Timestamp::from_millis((24 + 4) * 3_600_000 + 30 * 60_000));
/// # Ok::<(), tollway_queue::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cron {
    fields: String,
    #[cfg(feature = "zones")]
    zone: Option<tollway_core::civil::Zone>,
    minutes: u64,
    hours: u64,
    days: u64,
    months: u64,
    weekdays: u64,
    /// Whether both days are restricted, so that either suffices.
    either_day: bool,
}

/// What stands before the name of a time zone.
const ZONE: &str = "TZ=";
const MONTHS: [&str; 12] =
    ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const WEEKDAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];
const MINUTE_NS: u64 = 60 * 1_000_000_000;
const DAY_MINUTES: u64 = 24 * 60;
/// Leap days come every four years but for a century's: within eight years every date has come. Two
/// more, since the search may begin before this year.
const YEARS_MAX: i64 = 10;

impl Cron {
    /// The longest text.
    pub const LEN_MAX: usize = 256;

    /// The calendar of `fields` in the time zone of this IANA name.
    ///
    /// # Errors
    ///
    /// If the fields are no calendar or name a zone of their own, if there is no such zone, or
    /// without the feature `zones`.
    pub fn in_zone(fields: &str, zone: &str) -> Result<Self, Error> {
        if fields.trim_start().starts_with(ZONE) {
            return Err(Error::outside("calendar", fields, "one zone"));
        }
        if zone.is_empty() || zone.contains(char::is_whitespace) {
            return Err(Error::outside("time zone", format_args!("{zone:?}"), "an IANA name"));
        }
        format!("{ZONE}{zone} {fields}").parse()
    }

    /// The five fields, or the word that stands for them.
    pub fn fields(&self) -> &str {
        &self.fields
    }

    /// The IANA name of the time zone; `None` for UTC.
    pub fn zone(&self) -> Option<&str> {
        #[cfg(feature = "zones")]
        return self.zone.map(tollway_core::civil::Zone::name);
        #[cfg(not(feature = "zones"))]
        None
    }

    /// The first minute of the calendar after `moment`; `None` if there is none within eight years
    /// (the thirtieth of February).
    pub fn next_after(&self, moment: Timestamp) -> Option<Timestamp> {
        #[cfg(feature = "zones")]
        if let Some(zone) = self.zone {
            return zone::next_after(zone, moment, |civil| self.next_minute(civil));
        }
        let minute = self.next_minute(moment.as_nanos() / MINUTE_NS)?;
        Some(Timestamp::from_nanos(minute.checked_mul(MINUTE_NS)?))
    }

    /// The first minute of the calendar after `minute`, both counted from 1970 on a clock that is
    /// never changed.
    fn next_minute(&self, minute: u64) -> Option<u64> {
        let minute = minute.checked_add(1)?;
        let (today, now) = ((minute / DAY_MINUTES) as i64, minute % DAY_MINUTES);
        // No year has more than 366 days: this one is today's or one before it.
        let from_year = 1970 + today / 366;
        let years = from_year..=from_year + YEARS_MAX;
        let months = years.flat_map(|year| (1..=12).map(move |month| (year, month)));
        for (year, month) in months.filter(|(_, month)| has(self.months, *month)) {
            for date in 1..=month_days(year, month) {
                let day = days_since_epoch(year, month, date);
                let from = if day == today { now } else { 0 };
                if day >= today
                    && self.has_day(day, date)
                    && let Some(minute) = self.minute_from(from)
                {
                    return Some(day as u64 * DAY_MINUTES + minute);
                }
            }
        }
        None
    }

    fn has_day(&self, day: i64, date: i64) -> bool {
        // 1970-01-01 was a Thursday.
        let weekday = has(self.weekdays, (day + 4) % 7);
        let date = has(self.days, date);
        if self.either_day { date || weekday } else { date && weekday }
    }

    /// The first minute of a day that fits, not before `from`.
    fn minute_from(&self, from: u64) -> Option<u64> {
        (from / 60..24).filter(|&hour| has(self.hours, hour as i64)).find_map(|hour| {
            let first = if hour == from / 60 { from % 60 } else { 0 };
            (first..60)
                .find(|&minute| has(self.minutes, minute as i64))
                .map(|minute| hour * 60 + minute)
        })
    }
}

const fn has(set: u64, value: i64) -> bool {
    set >> value & 1 == 1
}

impl FromStr for Cron {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let text = text.trim();
        match text.strip_prefix(ZONE).map(|rest| rest.split_once(char::is_whitespace)) {
            None => Self::read(text),
            Some(Some((zone, fields))) => Self::read(fields.trim())?.with_zone(zone),
            Some(None) => Err(Error::outside("calendar", text, "TZ=, a zone, and five fields")),
        }
    }
}

impl Cron {
    #[cfg(feature = "zones")]
    fn with_zone(self, name: &str) -> Result<Self, Error> {
        Ok(Self { zone: Some(zone::named(name)?), ..self })
    }

    #[cfg(not(feature = "zones"))]
    fn with_zone(self, name: &str) -> Result<Self, Error> {
        Err(Error::outside("time zone", name, "none: this program is built without time zones"))
    }

    fn read(text: &str) -> Result<Self, Error> {
        if text.len() > Self::LEN_MAX {
            let found = format_args!("{} bytes", text.len());
            return Err(Error::outside("calendar", found, "at most 256 bytes"));
        }
        let fields: Vec<&str> = expand(text).split_ascii_whitespace().collect();
        let [minute, hour, day, month, weekday] = fields[..] else {
            let found = format_args!("{} fields", fields.len());
            let expected = "five: minute hour day-of-month month day-of-week";
            return Err(Error::outside("calendar", found, expected));
        };
        let sunday_twice = set(weekday, 0, 7, &WEEKDAYS, "day of week")?;
        let cron = Self {
            fields: text.to_owned(),
            #[cfg(feature = "zones")]
            zone: None,
            minutes: set(minute, 0, 59, &[], "minute")?,
            hours: set(hour, 0, 23, &[], "hour")?,
            days: set(day, 1, 31, &[], "day of month")?,
            months: set(month, 1, 12, &MONTHS, "month")?,
            weekdays: (sunday_twice | sunday_twice >> 7) & 0x7f,
            either_day: !day.starts_with('*') && !weekday.starts_with('*'),
        };
        match cron.next_after(Timestamp::MIN) {
            Some(_) => Ok(cron),
            None => Err(Error::outside("calendar", text, "a date that comes")),
        }
    }
}

fn expand(text: &str) -> &str {
    match text {
        "@hourly" => "0 * * * *",
        "@daily" | "@midnight" => "0 0 * * *",
        "@weekly" => "0 0 * * 0",
        "@monthly" => "0 0 1 * *",
        "@yearly" | "@annually" => "0 0 1 1 *",
        text => text,
    }
}

/// The values that `field` names, as bits.
fn set(field: &str, min: u64, max: u64, names: &[&str], what: &str) -> Result<u64, Error> {
    let wrong = || Error::outside(what, format_args!("{field:?}"), format_args!("{min} to {max}"));
    let mut bits = 0;
    for part in field.split(',') {
        let (range, step) = match part.split_once('/') {
            Some((range, step)) => (range, Some(step.parse().map_err(|_| wrong())?)),
            None => (part, None),
        };
        let value = |text| value(text, min, names).filter(|value| (min..=max).contains(value));
        let (first, last) = match range.split_once('-') {
            _ if range == "*" => (min, max),
            Some((first, last)) => {
                (value(first).ok_or_else(wrong)?, value(last).ok_or_else(wrong)?)
            }
            None => {
                let first = value(range).ok_or_else(wrong)?;
                (first, if step.is_some() { max } else { first })
            }
        };
        let step: u64 = step.unwrap_or(1);
        if step == 0 || step > max || first > last {
            return Err(wrong());
        }
        bits |= (first..=last).step_by(step as usize).fold(0, |bits, value| bits | 1 << value);
    }
    Ok(bits)
}

fn value(text: &str, min: u64, names: &[&str]) -> Option<u64> {
    let named = names.iter().position(|name| name.eq_ignore_ascii_case(text));
    named.map_or_else(|| text.parse().ok(), |index| Some(index as u64 + min))
}

impl fmt::Display for Cron {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(zone) = self.zone() {
            write!(f, "{ZONE}{zone} ")?;
        }
        f.write_str(&self.fields)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seconds since the epoch, from the calendar's own point of view.
    fn next(cron: &str, after_s: u64) -> u64 {
        let cron: Cron = cron.parse().expect("a calendar");
        let next = cron.next_after(Timestamp::from_millis(after_s * 1_000)).expect("a time");
        next.as_nanos() / 1_000_000_000
    }

    /// 2026-11-15 15:48:11 UTC, a Sunday.
    const NOW_S: u64 = 1_794_757_691;

    #[test]
    fn the_next_time_is_the_first_that_fits() {
        let midnight = NOW_S - NOW_S % 86_400;
        assert_eq!(next("* * * * *", NOW_S), NOW_S - NOW_S % 60 + 60);
        assert_eq!(next("*/15 * * * *", NOW_S), midnight + 16 * 3_600);
        assert_eq!(next("0 9 * * mon-fri", NOW_S), midnight + 86_400 + 9 * 3_600);
        assert_eq!(next("0 0 * * 7", NOW_S), midnight + 7 * 86_400);
        assert_eq!(next("0 0 1 * *", NOW_S), midnight + 16 * 86_400);
        assert_eq!(next("59 23 15 11 *", NOW_S), midnight + 86_340);
        assert_eq!(next("@hourly", NOW_S), midnight + 16 * 3_600);
    }

    #[test]
    fn a_time_that_is_now_comes_next_time() {
        assert_eq!(next("0 0 * * *", 86_400), 2 * 86_400);
    }

    #[test]
    fn the_leap_day_comes_every_four_years() {
        // 2028-02-29 and, after it, 2032-02-29.
        let first = next("0 0 29 2 *", NOW_S);
        assert_eq!(first, 1_835_395_200);
        assert_eq!(next("0 0 29 2 *", first), first + 1_461 * 86_400);
    }

    #[test]
    fn what_is_no_calendar_is_refused() {
        for text in ["", "* * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *"] {
            assert!(text.parse::<Cron>().is_err(), "{text:?}");
        }
        for text in
            ["*/0 * * * *", "5-1 * * * *", "* * * * 8", "0 0 30 2 *", "a * * * *", "* * * * * *"]
        {
            assert!(text.parse::<Cron>().is_err(), "{text:?}");
        }
    }
}
