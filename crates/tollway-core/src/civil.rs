//! Civil time: windows that begin when the clocks of a time zone show an hour, a day, a month.
//!
//! ```text
//!   civil clock    ... 02-28 ────┬─ 03-31 ────┬─ 04-30 ────┬─ 05-31 ...    anchor 31, clamped
//!                                │            │            │
//!   a zone says            moment_of    moment_of    moment_of
//!   when that is                 │            │            │
//!   real time       ─────────────┴────────────┴────────────┴──────────>   windows, without gaps
//! ```
//!
//! Everything that needs no time zone is here, in integers: lengths of months, leap years, the
//! first day of a week. What clocks show is asked of [`ZoneRules`], which `tollway-zones`
//! implements for the zones of the IANA; UTC needs nobody.
//!
//! **Rules.** A beginning that clocks never show (they go forward over it) is the first moment
//! after the gap. One that they show twice (they go back over it) is the first of the two. A window
//! whose beginning and end are the same moment (2011-12-30 in Apia) does not exist. A day
//! that a month lacks is the last that it has.
//!
//! **Invariants.** Windows follow each other: each ends when the next begins, so that every moment
//! is in exactly one.
//!
//! Deliberately absent: the data of time zones, and leap seconds, which no civil clock of a
//! computer shows.

mod text;

use core::fmt;
use core::time::Duration;

use crate::fields::calendar::{civil, days_since_epoch, month_days};
use crate::{Timestamp, named_enum};

pub use text::AnchorError;

const HOUR_S: i64 = 3_600;
const DAY_S: i64 = 24 * HOUR_S;
const SECOND_NS: u64 = 1_000_000_000;
/// The days after which leap years repeat, and their years.
const ERA_DAYS: i64 = 146_097;
const ERA_YEARS: i64 = 400;
/// Windows of no length in a row: a zone that leaves out a day leaves out 24 hours.
const SKIPPED_MAX: usize = 100;

/// What the clocks of a time zone show.
///
/// Both times are in seconds: `second` since the Unix epoch, and `shown` since a clock that was
/// never changed would have shown the beginning of 1970.
///
/// **Contract.** `moment_of` never decreases when `shown` increases, and `moment_of(shown_at(s))`
/// is never later than `s`.
pub trait ZoneRules: fmt::Debug + Send + Sync {
    /// The name, as texts spell it.
    fn name(&self) -> &str;

    /// What clocks show at this second.
    fn shown_at(&self, second: i64) -> i64;

    /// When clocks show this for the first time; the first moment after a gap if they never do.
    fn moment_of(&self, shown: i64) -> i64;
}

/// A time zone. It is a reference, since there are a few hundred zones and any number of policies.
#[derive(Clone, Copy)]
pub struct Zone(&'static dyn ZoneRules);

impl Zone {
    /// Coordinated Universal Time.
    pub const UTC: Self = Self(&Utc);

    /// The zone of these rules.
    pub const fn new(rules: &'static dyn ZoneRules) -> Self {
        Self(rules)
    }

    /// The name.
    pub fn name(self) -> &'static str {
        self.0.name()
    }

    /// What clocks show at `moment`, in whole seconds as [`ZoneRules`] counts them.
    pub fn shown_at(self, moment: Timestamp) -> i64 {
        self.0.shown_at((moment.as_nanos() / SECOND_NS) as i64)
    }

    /// When clocks show this for the first time; the first moment after a gap if they never do.
    pub fn moment_of(self, shown: i64) -> Timestamp {
        let second = u64::try_from(self.0.moment_of(shown)).unwrap_or(0);
        Timestamp::from_nanos(second.saturating_mul(SECOND_NS))
    }
}

/// Zones are told apart by their names: there is one set of rules for each.
impl PartialEq for Zone {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for Zone {}

impl fmt::Debug for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Zone({})", self.name())
    }
}

#[derive(Debug)]
struct Utc;

impl ZoneRules for Utc {
    fn name(&self) -> &str {
        "UTC"
    }

    fn shown_at(&self, second: i64) -> i64 {
        second
    }

    fn moment_of(&self, shown: i64) -> i64 {
        shown
    }
}

named_enum! {
    /// How long a window is, on a civil clock.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum Unit {
        /// From one full hour to the next.
        Hour = "hour",
        /// A day.
        Day = "day",
        /// Seven days.
        Week = "week",
        /// A month.
        Month = "month",
        /// Three months.
        Quarter = "quarter",
        /// Twelve months.
        Year = "year",
    }
}

impl Unit {
    /// About how long that is: days that clocks do not change, months of 30 days, years of 365.
    pub const fn about(self) -> Duration {
        let days = match self {
            Self::Hour => return Duration::from_secs(HOUR_S as u64),
            Self::Day => 1,
            Self::Week => 7,
            Self::Month => 30,
            Self::Quarter => 91,
            Self::Year => 365,
        };
        Duration::from_secs(days * DAY_S as u64)
    }

    /// Of units that are made of months: how many.
    const fn months(self) -> Option<i64> {
        match self {
            Self::Hour | Self::Day | Self::Week => None,
            Self::Month => Some(1),
            Self::Quarter => Some(3),
            Self::Year => Some(12),
        }
    }
}

/// Where in its unit a window begins. What the unit does not have stays at its first value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Anchor {
    /// Counted from the first month of the quarter or year.
    month: u8,
    /// 1 to 31; the last day of the month where that is an earlier one.
    day: u8,
    /// Counted from Monday.
    weekday: u8,
    /// Of the day.
    minute: u16,
}

impl Anchor {
    const FIRST: Self = Self { month: 0, day: 1, weekday: 0, minute: 0 };
}

/// A window, from `start` until just before `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The first moment.
    pub start: Timestamp,
    /// The first moment of the next one.
    pub end: Timestamp,
}

/// Windows that follow a calendar.
///
/// ```
/// use tollway_core::Timestamp;
/// use tollway_core::civil::{Calendar, Unit, Zone};
///
/// let months = Calendar::new(Unit::Month, Zone::UTC).anchored("31")?;
/// // The first of February 2024, which has 29 days.
/// let window = months.window_at(Timestamp::from_millis(1_706_745_600_000));
/// assert_eq!(window.start, Timestamp::from_millis(1_706_659_200_000), "the 31st of January");
/// assert_eq!(window.end, Timestamp::from_millis(1_709_164_800_000), "the 29th of February");
/// # Ok::<(), tollway_core::civil::AnchorError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Calendar {
    unit: Unit,
    anchor: Anchor,
    zone: Zone,
}

impl Calendar {
    /// Windows that begin with their unit: at full hours, at midnight, on Mondays, on the first of
    /// a month.
    pub const fn new(unit: Unit, zone: Zone) -> Self {
        Self { unit, anchor: Anchor::FIRST, zone }
    }

    /// The same windows by the clocks of another zone.
    #[must_use]
    pub const fn in_zone(self, zone: Zone) -> Self {
        Self { zone, ..self }
    }

    /// How long a window is.
    pub const fn unit(self) -> Unit {
        self.unit
    }

    /// Whose clocks are looked at.
    pub const fn zone(self) -> Zone {
        self.zone
    }

    /// The window that `moment` is in.
    pub fn window_at(self, moment: Timestamp) -> Window {
        let mut number = self.number_at(self.zone.shown_at(moment));
        let mut window = Window { start: self.begins(number), end: self.begins(number + 1) };
        // Clocks that go back over a beginning show the window before once more, and those that go
        // forward over a whole window leave it without a moment.
        for _ in 0..SKIPPED_MAX {
            if window.end > moment || window.end == Timestamp::MAX {
                break;
            }
            number += 1;
            window = Window { start: window.end, end: self.begins(number + 1) };
        }
        window
    }

    /// The edges of the windows around `moment`: where the one before begins, where the one that
    /// `moment` is in begins and ends, and where the next one ends.
    pub fn edges_around(self, moment: Timestamp) -> [Timestamp; 4] {
        let Window { start, end } = self.window_at(moment);
        let before = self.window_at(start.before(Duration::from_nanos(1))).start;
        [before.min(start), start, end, self.window_at(end).end]
    }

    /// When the window of this number begins.
    fn begins(self, number: i64) -> Timestamp {
        self.zone.moment_of(self.shown_first(number))
    }

    /// The number of the window that a clock is in which shows this.
    fn number_at(self, shown: i64) -> i64 {
        let day = shown.div_euclid(DAY_S);
        let number = match self.unit {
            Unit::Hour => shown.div_euclid(HOUR_S),
            Unit::Day => day,
            Unit::Week => day.div_euclid(7),
            Unit::Month | Unit::Quarter | Unit::Year => {
                let (year, month, _) = civil((day + ERA_DAYS).max(0) as u64);
                let months = (year as i64 - ERA_YEARS - 1970) * 12 + month as i64 - 1;
                months.div_euclid(self.unit.months().unwrap_or(1))
            }
        };
        // It may not have begun yet when its unit did.
        if self.shown_first(number) > shown { number - 1 } else { number }
    }

    /// What clocks show when the window of this number begins. Windows are numbered from 1970 on.
    fn shown_first(self, number: i64) -> i64 {
        let Anchor { month, day, weekday, minute } = self.anchor;
        let day = match self.unit {
            Unit::Hour => return number * HOUR_S,
            Unit::Day => number,
            // 1970-01-01 was a Thursday: the first Monday was the fifth.
            Unit::Week => number * 7 + (i64::from(weekday) + 4) % 7,
            Unit::Month | Unit::Quarter | Unit::Year => {
                let months = number * self.unit.months().unwrap_or(1) + i64::from(month);
                let (year, month) = (1970 + months.div_euclid(12), months.rem_euclid(12) + 1);
                days_since_epoch(year, month, i64::from(day).min(month_days(year, month)))
            }
        };
        day * DAY_S + i64::from(minute) * 60
    }

    /// The calendar as a number below 2²⁶, all but its zone; see [`Self::from_bits`].
    pub(crate) const fn to_bits(self) -> u64 {
        let Anchor { month, day, weekday, minute } = self.anchor;
        self.unit as u64
            | (month as u64) << 3
            | (day as u64) << 7
            | (weekday as u64) << 12
            | (minute as u64) << 15
    }

    /// The calendar that [`Self::to_bits`] came from; `None` if it is none.
    pub(crate) fn from_bits(bits: u64, zone: Zone) -> Option<Self> {
        let unit = *Unit::ALL.get((bits & 7) as usize)?;
        let anchor = Anchor {
            month: (bits >> 3 & 15) as u8,
            day: (bits >> 7 & 31) as u8,
            weekday: (bits >> 12 & 7) as u8,
            minute: u16::try_from(bits >> 15).ok().filter(|minute| *minute < 24 * 60)?,
        };
        let months = unit.months().unwrap_or(1);
        let is_right = i64::from(anchor.month) < months && anchor.day > 0 && anchor.weekday < 7;
        is_right.then_some(Self { unit, anchor, zone })
    }
}

#[cfg(test)]
mod tests;
