//! A calendar in a time zone: which moment the next civil minute of several is.
//!
//! Of minutes that clocks show twice the first counts, and in place of those that they leave out
//! the first moment after the gap; see [`tollway_core::civil`]. So whatever the clocks do, a
//! calendar of one time a day comes once a day, but for days that a zone leaves out.

use tollway_core::Timestamp;
use tollway_core::civil::Zone;

use crate::error::Error;

const MINUTE_S: i64 = 60;

/// The zone of this IANA name.
pub(crate) fn named(name: &str) -> Result<Zone, Error> {
    tollway_zones::named(name).map_err(|error| {
        let expected = "an IANA name such as Europe/Berlin";
        Error::outside("time zone", format_args!("{name:?}"), expected).caused_by(error)
    })
}

/// The first moment after `moment` at which the clocks of the zone show a minute of those that
/// `next_minute` gives, each after the one before; minutes are counted from 1970.
pub(crate) fn next_after(
    zone: Zone,
    moment: Timestamp,
    next_minute: impl Fn(u64) -> Option<u64>,
) -> Option<Timestamp> {
    let shown = zone.shown_at(moment).div_euclid(MINUTE_S);
    let mut minute = u64::try_from(shown).unwrap_or(0);
    // Minutes that clocks show for the second time have passed: as many as clocks went back.
    loop {
        minute = next_minute(minute)?;
        let at = zone.moment_of(i64::try_from(minute).ok()?.checked_mul(MINUTE_S)?);
        if at == Timestamp::MAX {
            return None;
        }
        if at > moment {
            return Some(at);
        }
    }
}
