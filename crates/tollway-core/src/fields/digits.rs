//! Numbers to decimal text and back, with the rounding stated at each step.

use alloc::string::String;
use core::time::Duration;

/// The largest RFC 9651 Integer: 15 digits. Larger counts are clamped to it, both ways.
pub(super) const INTEGER_MAX: u64 = 999_999_999_999_999;

const NANOS_PER_MILLI: u32 = 1_000_000;

/// Whole seconds, rounded up.
///
/// Told 0 s for a 400 ms wait, a client retries at once and is denied again.
///
/// ```
/// use core::time::Duration;
/// assert_eq!(tollway_core::fields::seconds_up(Duration::from_millis(1001)), 2);
/// ```
pub fn seconds_up(wait: Duration) -> u64 {
    wait.as_secs().saturating_add(u64::from(wait.subsec_nanos() > 0))
}

/// The numbers of two digits, in order.
const PAIRS: &str = "\
    00010203040506070809101112131415161718192021222324\
    25262728293031323334353637383940414243444546474849\
    50515253545556575859606162636465666768697071727374\
    75767778798081828384858687888990919293949596979899";

/// Appends `n` in decimal, two digits at a time: as a string of bytes they would be checked to be
/// UTF-8, and one at a time each would ask for room.
pub(super) fn push_number(out: &mut String, n: u64) {
    if n < 10 {
        return out.push(char::from(b'0' + n as u8));
    }
    if n >= 100 {
        push_number(out, n / 100);
    }
    let at = (n % 100) as usize * 2;
    out.push_str(&PAIRS[at..at + 2]);
}

/// Appends `n` clamped to what an RFC 9651 Integer can say.
pub(super) fn push_integer(out: &mut String, n: u64) {
    push_number(out, n.min(INTEGER_MAX));
}

/// Appends seconds with exactly three decimals, rounded up to the millisecond: `1.500`.
pub(super) fn push_seconds_millis(out: &mut String, wait: Duration) {
    let millis_up = wait.subsec_nanos().div_ceil(NANOS_PER_MILLI);
    push_number(out, wait.as_secs().saturating_add(u64::from(millis_up == 1000)));
    let millis = millis_up % 1000;
    out.push('.');
    for place in [100, 10, 1] {
        out.push(char::from(b'0' + (millis / place % 10) as u8));
    }
}

/// Reads a count, rounded down: Reddit says `599.0`, and a negative one means "unknown" to Azure.
///
/// ```
/// assert_eq!(tollway_core::fields::count("599.7"), Some(599));
/// assert_eq!(tollway_core::fields::count("-1"), None);
/// ```
pub fn count(text: &str) -> Option<u64> {
    let (whole, fraction) = split_decimal(text)?;
    all_digits(fraction).then(|| clamped(whole))
}

/// Reads non-negative seconds with optional decimals, rounded up beyond nanoseconds.
pub(super) fn seconds(text: &str) -> Option<Duration> {
    let (whole, fraction) = split_decimal(text)?;
    let nanos = fraction_nanos_up(fraction)?;
    Some(Duration::from_secs(clamped(whole)).saturating_add(Duration::from_nanos(nanos)))
}

/// Reads a non-negative number of `unit_nanos`-long units with optional decimals, rounded up.
pub(super) fn units(text: &str, unit_nanos: u64) -> Option<Duration> {
    let (whole, fraction) = split_decimal(text)?;
    let part = u128::from(fraction_nanos_up(fraction)?) * u128::from(unit_nanos);
    let nanos = u128::from(clamped(whole)) * u128::from(unit_nanos) + part.div_ceil(1_000_000_000);
    Some(from_nanos(nanos))
}

/// True for text made of ASCII digits only, the empty text included.
pub(super) fn all_digits(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Duration of that many nanoseconds, saturating.
pub(super) fn from_nanos(nanos: u128) -> Duration {
    let secs = u64::try_from(nanos / 1_000_000_000).unwrap_or(u64::MAX);
    Duration::new(secs, (nanos % 1_000_000_000) as u32)
}

/// `12.34` as (`12`, `34`), `12` as (`12`, ``); the whole part is one digit or more.
fn split_decimal(text: &str) -> Option<(&str, &str)> {
    let text = text.trim_matches([' ', '\t']);
    let (whole, fraction) = match text.split_once('.') {
        Some((_, "")) => return None,
        Some(parts) => parts,
        None => (text, ""),
    };
    (!whole.is_empty() && all_digits(whole)).then_some((whole, fraction))
}

fn clamped(digits: &str) -> u64 {
    let significant = digits.trim_start_matches('0');
    if significant.len() > 15 {
        return INTEGER_MAX;
    }
    significant.bytes().fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0'))
}

fn fraction_nanos_up(fraction: &str) -> Option<u64> {
    if !all_digits(fraction) {
        return None;
    }
    let (kept, cut) = fraction.split_at(fraction.len().min(9));
    let scale = 10u64.pow(9 - kept.len() as u32);
    Some(clamped(kept) * scale + u64::from(cut.bytes().any(|digit| digit != b'0')))
}
