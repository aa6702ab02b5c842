//! Time zones by their IANA names: what their clocks show, through all changes of clocks.
//!
//! ```text
//!   clocks go forward     01:59 │ 03:00      02:30 never comes: the change itself, 03:00, counts
//!   clocks go back        02:59 │ 02:00      02:30 comes twice: the first one counts
//! ```
//!
//! What names mean is read from the system, and where it has no zones, from a copy in this program.
//! A zone is read once and kept until the process ends: there are a few hundred of them, and a
//! limit whose windows moved while they are open would be no limit. New data needs a restart.
//!
//! A crate of its own: `tollway-core` and `tollway-memory` stay without the data of all zones, and
//! those who need it share one copy.

#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use jiff::SignedDuration;
use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, Offset, TimeZone};
use tollway_core::calendar_window::CalendarWindow;
use tollway_core::civil::{Zone, ZoneRules};
use tollway_core::spelling::likely;
use tollway_core::{ParseQuotaError, Timestamp};

/// The longest name in the IANA's list has 32 bytes.
const NAME_LEN_MAX: usize = 64;

/// The time zone of this IANA name, such as `Europe/Berlin`.
///
/// # Errors
///
/// If there is none, with the name that was most likely meant.
pub fn named(name: &str) -> Result<Zone, UnknownZone> {
    static KNOWN: Mutex<Option<HashMap<String, Zone>>> = Mutex::new(None);
    let unknown = || UnknownZone { name: name.chars().take(NAME_LEN_MAX).collect() };
    // Any other byte has no place in a name, and might be one in a path.
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"/_+-".contains(&byte);
    if name.len() > NAME_LEN_MAX || !name.bytes().all(is_name) {
        return Err(unknown());
    }
    let rules = TimeZone::get(name).map_err(|_| unknown())?;
    let canonical = rules.iana_name().filter(|name| *name != "Etc/Unknown").ok_or_else(unknown)?;
    if canonical == Zone::UTC.name() {
        return Ok(Zone::UTC);
    }
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let known = known.get_or_insert_with(HashMap::new);
    if let Some(zone) = known.get(canonical) {
        return Ok(*zone);
    }
    let canonical = canonical.to_owned();
    let rules = Rules { name: canonical.clone(), rules };
    // Never given back, but there is one for each zone of the world at most.
    let zone = Zone::new(Box::leak(Box::new(rules)));
    known.insert(canonical, zone);
    Ok(zone)
}

/// Reads `10000/month tz Europe/Berlin anchor 15`, with the zones of the IANA.
///
/// # Errors
///
/// If the text is no calendar window, or there is no such zone.
pub fn calendar_window(text: &str) -> Result<CalendarWindow, ParseQuotaError> {
    CalendarWindow::parse(text, &|name| named(name).map_err(|error| error.to_string()))
}

/// Reads a moment: RFC 3339 (`2026-11-20T09:00:00+01:00`), or what the clocks of a zone show
/// (`2026-11-20 09:00 Europe/Berlin`).
///
/// # Errors
///
/// If the text is neither, there is no such zone, or the moment is before 1970.
///
/// ```
/// let told = tollway_zones::moment("2026-11-20 09:00 Europe/Berlin")?;
/// assert_eq!(told, tollway_zones::moment("2026-11-20T08:00:00Z")?);
/// # Ok::<(), tollway_zones::ParseMomentError>(())
/// ```
pub fn moment(text: &str) -> Result<Timestamp, ParseMomentError> {
    let wrong = |why: String| ParseMomentError(why);
    let short: String = text.chars().take(NAME_LEN_MAX).collect();
    let neither = || {
        wrong(format!(
            "{short:?} is no moment; expected for example 2026-11-20T09:00:00Z or \
             2026-11-20 09:00 Europe/Berlin"
        ))
    };
    let nanos = match text.parse::<jiff::Timestamp>() {
        Ok(at) => at.as_nanosecond(),
        Err(_) => {
            let (shown, zone) = text.trim().rsplit_once(' ').ok_or_else(neither)?;
            // A time of day without a zone is a moment nowhere.
            let zone = (!zone.contains(':')).then_some(zone).ok_or_else(neither)?;
            let shown: DateTime = shown.trim_end().parse().map_err(|_| neither())?;
            let zone = named(zone).map_err(|error| wrong(error.to_string()))?;
            let since = shown.duration_since(DateTime::constant(1970, 1, 1, 0, 0, 0, 0));
            i128::from(zone.moment_of(since.as_secs()).as_nanos())
        }
    };
    let nanos = u64::try_from(nanos).ok().filter(|nanos| *nanos > 0);
    nanos.map(Timestamp::from_nanos).ok_or_else(|| wrong(format!("{short:?} is before 1970")))
}

/// A text that is no moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseMomentError(String);

impl fmt::Display for ParseMomentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ParseMomentError {}

/// A name that no time zone has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownZone {
    name: String,
}

impl fmt::Display for UnknownZone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name } = self;
        let known: Vec<String> = jiff::tz::db().available().map(|zone| zone.to_string()).collect();
        let known = || known.iter().map(String::as_str);
        // Most leave out the continent, or misspell one of the two parts.
        let city = |zone: &str| zone.rsplit('/').next().unwrap_or_default().to_owned();
        let same_city = || known().find(|zone| city(zone).eq_ignore_ascii_case(&city(name)));
        match likely(known(), name).or_else(same_city) {
            Some(meant) => write!(f, "unknown time zone {name:?}; did you mean {meant:?}?"),
            None => {
                write!(f, "unknown time zone {name:?}; expected an IANA name such as Europe/Berlin")
            }
        }
    }
}

impl std::error::Error for UnknownZone {}

#[derive(Debug)]
struct Rules {
    name: String,
    rules: TimeZone,
}

impl ZoneRules for Rules {
    fn name(&self) -> &str {
        &self.name
    }

    fn shown_at(&self, second: i64) -> i64 {
        let offset = jiff::Timestamp::from_second(second).map(|at| self.rules.to_offset(at));
        second + offset.map_or(0, |offset| i64::from(offset.seconds()))
    }

    fn moment_of(&self, shown: i64) -> i64 {
        // Before and after all years that a calendar knows, a clock shows UTC.
        self.known_moment_of(shown).unwrap_or(shown)
    }
}

impl Rules {
    fn known_moment_of(&self, shown: i64) -> Option<i64> {
        let epoch = DateTime::constant(1970, 1, 1, 0, 0, 0, 0);
        let civil = epoch.checked_add(SignedDuration::from_secs(shown)).ok()?;
        let by = |offset: Offset| shown - i64::from(offset.seconds());
        Some(match self.rules.to_ambiguous_timestamp(civil).offset() {
            AmbiguousOffset::Unambiguous { offset } => by(offset),
            AmbiguousOffset::Fold { before, .. } => by(before),
            AmbiguousOffset::Gap { after, .. } => {
                // By the later clock it is a moment before the change, which is the next one then.
                let earlier = jiff::Timestamp::from_second(by(after)).ok()?;
                self.rules.following(earlier).next()?.timestamp().as_second()
            }
        })
    }
}

/// The program of the README is compiled and run with the tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
