//! Calendar windows as text, both ways: `10000/month tz Europe/Berlin anchor 15`.
//!
//! ```text
//! window   = units "/" unit *( option )             each option once, in any order
//! unit     = "hour" | "day" | "week" | "month" | "quarter" | "year"
//! option   = "tz" name                              of the IANA; UTC if it is left out
//!          | "anchor" anchor                        see civil::text
//!          | "carry" units                          unused units that the next window has too
//!          | "grace" units                          a soft limit lets them pass, and says so
//! ```

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use super::{CalendarWindow, CalendarWindowError};
use crate::ParseQuotaError;
use crate::civil::{Calendar, Unit, Zone};
use crate::quota::text::{Kind, Reader};
use crate::spelling::likely;

const OPTIONS: [&str; 4] = ["tz", "anchor", "carry", "grace"];
const OPTION: &str = "the end, or one of tz, anchor, carry and grace";

impl CalendarWindow {
    /// Reads `10000/month tz Europe/Berlin anchor 15`. `zone` finds a time zone by its name; UTC is
    /// known without.
    ///
    /// # Errors
    ///
    /// If the text is no calendar window, or `zone` has no such zone: then its own words are told.
    pub fn parse(
        text: &str,
        zone: &dyn Fn(&str) -> Result<Zone, String>,
    ) -> Result<Self, ParseQuotaError> {
        let mut reader = Reader::new(text);
        reader.skip_spaces();
        let units_at = reader.at;
        let units = reader.units()?;
        reader.expect("/", "a slash and a period, as in 10000/month")?;
        reader.skip_spaces();
        let calendar = Calendar::new(unit(&mut reader)?, Zone::UTC);
        let mut given = Given { calendar, units, carry: (0, units_at), grace: (0, units_at) };
        let mut anchor = None;
        let mut seen: Vec<&str> = Vec::new();
        loop {
            reader.skip_spaces();
            let at = reader.at;
            let Some(word) = reader.word() else { break };
            let Some(option) = OPTIONS.iter().find(|option| **option == word) else {
                return Err(ParseQuotaError { at, kind: unknown_option(word) });
            };
            if seen.contains(option) {
                return Err(ParseQuotaError {
                    at,
                    kind: Kind::Told(format!("{option} is given twice")),
                });
            }
            seen.push(option);
            reader.skip_spaces();
            let at = reader.at;
            match *option {
                "tz" => given.calendar = given.calendar.in_zone(named(&mut reader, zone)?),
                "anchor" => anchor = Some((anchor_words(&mut reader), at)),
                "carry" => given.carry = (reader.units()?, at),
                _ => given.grace = (reader.units()?, at),
            }
        }
        // At last, so that a wrong unit is told before a wrong anchor of it.
        if let Some((words, at)) = anchor {
            given.calendar = given
                .calendar
                .anchored(words)
                .map_err(|error| ParseQuotaError { at, kind: Kind::Told(error.to_string()) })?;
        }
        given.build(units_at)
    }

    /// Whether a text means a calendar window rather than a quota: whether a civil unit follows its
    /// slash, right or not quite.
    pub fn is_meant_by(text: &str) -> bool {
        let period = text.split_once('/').map_or("", |(_, period)| period.trim_start());
        let word = period.split(|c: char| !c.is_ascii_alphabetic()).next().unwrap_or_default();
        word.len() > 2 && likely(names(), word).is_some()
    }
}

/// What a text gives, each number with its place.
struct Given {
    calendar: Calendar,
    units: u64,
    carry: (u64, usize),
    grace: (u64, usize),
}

impl Given {
    fn build(self, units_at: usize) -> Result<CalendarWindow, ParseQuotaError> {
        let told = |at: usize| {
            move |error: CalendarWindowError| ParseQuotaError {
                at,
                kind: Kind::Told(error.to_string()),
            }
        };
        CalendarWindow::new(self.units, self.calendar)
            .map_err(told(units_at))?
            .with_carry(self.carry.0)
            .map_err(told(self.carry.1))?
            .with_grace(self.grace.0)
            .map_err(told(self.grace.1))
    }
}

fn names() -> impl Iterator<Item = &'static str> + Clone {
    Unit::ALL.into_iter().map(Unit::name)
}

fn unit(reader: &mut Reader<'_>) -> Result<Unit, ParseQuotaError> {
    let at = reader.at;
    let name = reader.letters();
    Unit::ALL.into_iter().find(|unit| unit.name() == name).ok_or_else(|| {
        let kind = match likely(names(), name) {
            Some(meant) => Kind::Told(format!("{name:?} is no unit; did you mean {meant}?")),
            None => Kind::Expected("hour, day, week, month, quarter or year"),
        };
        ParseQuotaError { at, kind }
    })
}

fn named(
    reader: &mut Reader<'_>,
    zone: &dyn Fn(&str) -> Result<Zone, String>,
) -> Result<Zone, ParseQuotaError> {
    let at = reader.at;
    match reader.word() {
        None => Err(ParseQuotaError {
            at,
            kind: Kind::Expected("the name of a time zone, as in tz Europe/Berlin"),
        }),
        Some("UTC") => Ok(Zone::UTC),
        Some(name) => zone(name).map_err(|why| ParseQuotaError { at, kind: Kind::Told(why) }),
    }
}

/// The words up to the next option.
fn anchor_words<'t>(reader: &mut Reader<'t>) -> &'t str {
    let start = reader.at;
    let mut end = start;
    loop {
        reader.skip_spaces();
        let at = reader.at;
        match reader.word() {
            Some(word) if !OPTIONS.contains(&word) => end = reader.at,
            _ => {
                reader.at = at;
                return &reader.text[start..end];
            }
        }
    }
}

fn unknown_option(word: &str) -> Kind {
    match likely(OPTIONS, word) {
        Some(meant) => Kind::Told(format!("unknown option {word:?}; did you mean {meant}?")),
        None => Kind::Expected(OPTION),
    }
}

impl fmt::Display for CalendarWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.units, self.calendar.unit().name())?;
        if self.calendar.zone() != Zone::UTC {
            write!(f, " tz {}", self.calendar.zone().name())?;
        }
        let anchor = self.calendar.anchor_text();
        if !anchor.is_empty() {
            write!(f, " anchor {anchor}")?;
        }
        if self.carry > 0 {
            write!(f, " carry {}", self.carry)?;
        }
        if self.grace > 0 {
            write!(f, " grace {}", self.grace)?;
        }
        Ok(())
    }
}
