//! Dates as header fields print them.

use std::time::Duration;

const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// `Sun, 06 Nov 1994 08:49:37 GMT`, rounded down as clocks show it.
pub(super) fn http(epoch: Duration) -> String {
    let (days, clock) = (epoch.as_secs() / 86_400, epoch.as_secs() % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (clock / 3_600, clock / 60 % 60, clock % 60);
    let (name, month) = (DAYS[(days % 7) as usize], MONTHS[month as usize - 1]);
    format!("{name}, {day:02} {month} {year} {hour:02}:{minute:02}:{second:02} GMT")
}

/// `1994-11-06T08:49:38Z`, rounded up: a reset must not be told too early.
pub(super) fn rfc3339(epoch: Duration) -> String {
    let seconds = epoch.as_nanos().div_ceil(1_000_000_000) as u64;
    let (days, clock) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (clock / 3_600, clock / 60 % 60, clock % 60);
    format!("{year}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Year, month and day of a day counted from 1970-01-01, by eras of 400 years.
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let leap = day_of_era / 1_460 + day_of_era / 146_096 - day_of_era / 36_524;
    let year_of_era = (day_of_era - leap) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_days_are_printed_as_known() {
        let rfc_example = Duration::from_secs(784_111_777);
        assert_eq!(http(rfc_example), "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(rfc3339(rfc_example), "1994-11-06T08:49:37Z");
        assert_eq!(http(Duration::from_secs(951_782_400)), "Tue, 29 Feb 2000 00:00:00 GMT");
        assert_eq!(http(Duration::ZERO), "Thu, 01 Jan 1970 00:00:00 GMT");
    }
}
