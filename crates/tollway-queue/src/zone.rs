//! Time zones: which moment a civil minute is, through the changes of clocks.
//!
//! ```text
//!   clocks go forward     01:59 │ 03:00      02:30 never comes: the change itself, 03:00, counts
//!   clocks go back        02:59 │ 02:00      02:30 comes twice: the first one counts
//! ```
//!
//! So whatever the clocks do, a calendar of one time a day comes once a day, but for days that a
//! zone leaves out. Names are those of the IANA; what they mean is read from the system, and where
//! it has no zones, from a copy in this program.

use jiff::SignedDuration;
use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, Offset, TimeZone};
use tollway_core::Timestamp;

use crate::error::Error;

const MINUTE_S: i64 = 60;
/// The longest name in the IANA's list has 32 bytes.
const NAME_LEN_MAX: usize = 64;

/// A time zone by its IANA name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Zone {
    name: String,
    rules: TimeZone,
}

impl Zone {
    pub(crate) fn named(name: &str) -> Result<Self, Error> {
        let expected = "an IANA name such as Europe/Berlin";
        // Any other byte has no place in a name, and might be one in a path.
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"/_+-".contains(&byte);
        if name.len() > NAME_LEN_MAX || !name.bytes().all(is_name) {
            return Err(Error::outside("time zone", format_args!("{name:?}"), expected));
        }
        let rules = TimeZone::get(name).map_err(|error| {
            Error::outside("time zone", format_args!("{name:?}"), expected).caused_by(error)
        })?;
        Ok(Self { name: name.to_owned(), rules })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The first moment after `moment` at which the clocks of the zone show a minute of those that
    /// `next_minute` gives, each after the one before.
    pub(crate) fn next_after(
        &self,
        moment: Timestamp,
        next_minute: impl Fn(u64) -> Option<u64>,
    ) -> Option<Timestamp> {
        let second = i64::try_from(moment.as_nanos() / 1_000_000_000).ok()?;
        let now = jiff::Timestamp::from_second(second).ok()?;
        let shown = second + i64::from(self.rules.to_offset(now).seconds());
        let mut minute = u64::try_from(shown.div_euclid(MINUTE_S)).unwrap_or(0);
        // Minutes that clocks show for the second time have passed: as many as clocks went back.
        loop {
            minute = next_minute(minute)?;
            let at = self.moment_of(minute)?;
            if at > moment {
                return Some(at);
            }
        }
    }

    /// When the clocks of the zone show this minute, counted from 1970.
    fn moment_of(&self, minute: u64) -> Option<Timestamp> {
        let civil = i64::try_from(minute).ok()?.checked_mul(MINUTE_S)?;
        let shown = DateTime::constant(1970, 1, 1, 0, 0, 0, 0);
        let shown = shown.checked_add(SignedDuration::from_secs(civil)).ok()?;
        let by = |offset: Offset| civil - i64::from(offset.seconds());
        let second = match self.rules.to_ambiguous_timestamp(shown).offset() {
            AmbiguousOffset::Unambiguous { offset } => by(offset),
            AmbiguousOffset::Fold { before, .. } => by(before),
            AmbiguousOffset::Gap { after, .. } => {
                // By the later clock it is a moment before the change, which is the next one then.
                let earlier = jiff::Timestamp::from_second(by(after)).ok()?;
                self.rules.following(earlier).next()?.timestamp().as_second()
            }
        };
        Some(Timestamp::from_nanos(u64::try_from(second).ok()?.checked_mul(1_000_000_000)?))
    }
}
