//! Anchors as text: where in its unit a window begins.
//!
//! ```text
//! anchor   = date / time / date time
//! date     = weekday                    of a week:            "sun"
//!          / 1*2DIGIT                   of a month:           "15"
//!          / 2DIGIT "-" 2DIGIT          of a quarter, a year: "04-06", month and day
//! time     = 2DIGIT ":" 2DIGIT                                "06:00"
//! ```

use alloc::format;
use alloc::string::{String, ToString};

use super::{Anchor, Calendar, Unit};
use crate::fields::calendar::month_days;

const WEEKDAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];

/// Why something is no anchor of a calendar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnchorError(String);

crate::plain_error!(AnchorError, self => &self.0);

impl Calendar {
    /// The same windows, begun at another day or time: `15`, `sun 06:00`, `04-06`.
    ///
    /// # Errors
    ///
    /// If the text is no anchor, names a day that never comes, or the unit has no such anchor.
    pub fn anchored(self, text: &str) -> Result<Self, AnchorError> {
        let mut words = text.split_ascii_whitespace();
        let (first, second) = (words.next().unwrap_or_default(), words.next());
        if first.is_empty() || words.next().is_some() {
            return Err(AnchorError(format!("{text:?} is no anchor; {}", self.unit.example())));
        }
        if self.unit == Unit::Hour {
            return Err(AnchorError(
                "an hour has no anchor: it begins when it is full".to_string(),
            ));
        }
        let is_time = first.contains(':');
        if is_time && second.is_some() {
            let right = "the day stands before the time, as in \"15 06:00\"";
            return Err(AnchorError(format!("{text:?} is no anchor; {right}")));
        }
        let mut anchor = if is_time { Anchor::FIRST } else { self.unit.anchor(first)? };
        if let Some(time) = if is_time { Some(first) } else { second } {
            anchor.minute = minute(time)?;
        }
        Ok(Self { anchor, ..self })
    }

    /// The anchor as [`Self::anchored`] reads it; empty if windows begin with their unit.
    pub(crate) fn anchor_text(self) -> String {
        let Anchor { month, day, weekday, minute } = self.anchor;
        if self.anchor == Anchor::FIRST {
            return String::new();
        }
        let is_dated = Anchor { minute, ..Anchor::FIRST } != self.anchor;
        let date = match self.unit {
            _ if !is_dated => String::new(),
            Unit::Hour | Unit::Day => String::new(),
            Unit::Week => WEEKDAYS[usize::from(weekday) % 7].to_string(),
            Unit::Month => day.to_string(),
            Unit::Quarter | Unit::Year => format!("{:02}-{day:02}", month + 1),
        };
        let between = if date.is_empty() || minute == 0 { "" } else { " " };
        match minute {
            0 => date,
            _ => format!("{date}{between}{:02}:{:02}", minute / 60, minute % 60),
        }
    }
}

impl Unit {
    const fn example(self) -> &'static str {
        match self {
            Self::Hour => "an hour has no anchor",
            Self::Day => "expected a time, as in 06:00",
            Self::Week => "expected a weekday, a time or both, as in \"sun 06:00\"",
            Self::Month => "expected a day from 1 to 31, a time or both, as in \"15 06:00\"",
            Self::Quarter | Self::Year => {
                "expected a month and a day, a time or both, as in \"04-06 06:00\""
            }
        }
    }

    fn anchor(self, date: &str) -> Result<Anchor, AnchorError> {
        let wrong = || AnchorError(format!("{date:?} is no anchor; {}", self.example()));
        let number = |text: &str| match text.len() {
            1 | 2 if text.bytes().all(|byte| byte.is_ascii_digit()) => text.parse::<u8>().ok(),
            _ => None,
        };
        match self {
            Self::Hour | Self::Day => Err(wrong()),
            Self::Week => {
                let weekday = WEEKDAYS.iter().position(|name| name.eq_ignore_ascii_case(date));
                Ok(Anchor { weekday: weekday.ok_or_else(wrong)? as u8, ..Anchor::FIRST })
            }
            Self::Month => {
                let day = number(date).filter(|day| (1..=31).contains(day)).ok_or_else(wrong)?;
                Ok(Anchor { day, ..Anchor::FIRST })
            }
            Self::Quarter | Self::Year => {
                let (month, day) = date.split_once('-').ok_or_else(wrong)?;
                let month = number(month).filter(|month| (1..=12).contains(month));
                let day = number(day).filter(|day| (1..=31).contains(day));
                let (month, day) = month.zip(day).ok_or_else(wrong)?;
                // A year with a leap day: it is clamped in all others.
                let days = month_days(2_000, month.into());
                if i64::from(day) > days && self == Self::Year {
                    let text = format!("{date:?} never comes: month {month} has {days} days");
                    return Err(AnchorError(text));
                }
                let months = self.months().unwrap_or(1) as u8;
                Ok(Anchor { month: (month - 1) % months, day, ..Anchor::FIRST })
            }
        }
    }
}

fn minute(time: &str) -> Result<u16, AnchorError> {
    let two = |text: &str, below: u16| match text.as_bytes() {
        [b'0'..=b'9', b'0'..=b'9'] => text.parse::<u16>().ok().filter(|number| *number < below),
        _ => None,
    };
    let read =
        time.split_once(':').and_then(|(hour, minute)| Some((two(hour, 24)?, two(minute, 60)?)));
    let Some((hour, minute)) = read else {
        return Err(AnchorError(format!("{time:?} is no time of day; expected 00:00 to 23:59")));
    };
    Ok(hour * 60 + minute)
}
