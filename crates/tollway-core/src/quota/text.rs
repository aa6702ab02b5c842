//! Quotas as text, both ways: `100/1m burst 20`.
//!
//! ```text
//! quota    = units "/" duration [ "burst" units ]
//! units    = 1*DIGIT, "_" allowed between digits
//! duration = 1*( [ 1*DIGIT ] unit )        "1m", "s", "1h30m", "30d"
//! unit     = "ns" | "us" | "ms" | "s" | "m" | "h" | "d" | "w"
//! ```

use alloc::string::String;
use core::fmt;
use core::str::FromStr;
use core::time::Duration;

use super::{Quota, QuotaError};

/// Duration units, longest first: the order in which a duration is written.
const UNITS: [(&str, u64); 8] = [
    ("w", 604_800_000_000_000),
    ("d", 86_400_000_000_000),
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

impl FromStr for Quota {
    type Err = ParseQuotaError;

    fn from_str(text: &str) -> Result<Self, ParseQuotaError> {
        let mut reader = Reader::new(text);
        reader.skip_spaces();
        let units_at = reader.at;
        let units = reader.units()?;
        reader.expect("/", "a slash and a period, as in 100/1m")?;
        reader.skip_spaces();
        let period_at = reader.at;
        let period = Duration::from_nanos(reader.duration_ns()?);
        reader.skip_spaces();
        let burst_at = reader.at;
        let burst = reader.burst()?.unwrap_or(units);
        reader.skip_spaces();
        reader.end()?;
        Self::with_burst(units, period, burst).map_err(|error| {
            let at = match error {
                QuotaError::Units => units_at,
                QuotaError::Period => period_at,
                QuotaError::Burst | QuotaError::FillTime => burst_at.min(text.len()),
            };
            ParseQuotaError { at, kind: Kind::Quota(error) }
        })
    }
}

/// Reads a duration such as `1m`, `s`, `1h30m` or `250ms`.
///
/// # Errors
///
/// If the text is not a duration, or does not fit into 584 years.
pub fn parse_duration(text: &str) -> Result<Duration, ParseQuotaError> {
    let mut reader = Reader::new(text);
    reader.skip_spaces();
    let nanos = reader.duration_ns()?;
    reader.skip_spaces();
    reader.end()?;
    Ok(Duration::from_nanos(nanos))
}

impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/", self.units)?;
        let mut rest = self.period_ns;
        for (name, nanos) in UNITS {
            if rest / nanos > 0 {
                write!(f, "{}{name}", rest / nanos)?;
                rest %= nanos;
            }
        }
        if self.burst == self.units { Ok(()) } else { write!(f, " burst {}", self.burst) }
    }
}

/// Why a text is not a quota, and at which byte of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseQuotaError {
    pub(crate) at: usize,
    pub(crate) kind: Kind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Expected(&'static str),
    TooLarge,
    Quota(QuotaError),
    Told(String),
}

impl ParseQuotaError {
    /// The byte offset of the character at which reading stopped.
    pub const fn at(&self) -> usize {
        self.at
    }

    /// The text with a caret under the character, for a terminal.
    ///
    /// ```
    /// use tollway_core::Quota;
    ///
    /// let error = "100/1x".parse::<Quota>().unwrap_err();
    /// let shown = "100/1x\n     ^ expected a unit: ns, us, ms, s, m, h, d or w";
    /// assert_eq!(error.pointing_into("100/1x"), shown);
    /// ```
    pub fn pointing_into(&self, text: &str) -> String {
        let column = text.char_indices().take_while(|(at, _)| *at < self.at).count();
        alloc::format!("{text}\n{:column$}^ {}", "", self.kind)
    }
}

impl fmt::Display for ParseQuotaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at character {}: {}", self.at + 1, self.kind)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Expected(what) => write!(f, "expected {what}"),
            Self::TooLarge => f.write_str("the number is too large"),
            Self::Quota(error) => error.fmt(f),
            Self::Told(why) => f.write_str(why),
        }
    }
}

impl core::error::Error for ParseQuotaError {}

/// What is left of a text, and where in it we are.
pub(crate) struct Reader<'a> {
    pub(crate) text: &'a str,
    pub(crate) at: usize,
}

impl<'a> Reader<'a> {
    pub(crate) const fn new(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    /// What comes before the next space, if anything does.
    pub(crate) fn word(&mut self) -> Option<&'a str> {
        let word = self.rest().split([' ', '\t']).next().filter(|word| !word.is_empty())?;
        self.at += word.len();
        Some(word)
    }

    /// The ASCII letters that come next.
    pub(crate) fn letters(&mut self) -> &'a str {
        let len = self.rest().bytes().take_while(u8::is_ascii_alphabetic).count();
        let letters = &self.rest()[..len];
        self.at += len;
        letters
    }

    fn fail<T>(&self, kind: Kind) -> Result<T, ParseQuotaError> {
        Err(ParseQuotaError { at: self.at, kind })
    }

    pub(crate) fn skip_spaces(&mut self) {
        self.at += self.rest().len() - self.rest().trim_start_matches([' ', '\t']).len();
    }

    pub(crate) fn expect(
        &mut self,
        token: &str,
        what: &'static str,
    ) -> Result<(), ParseQuotaError> {
        self.skip_spaces();
        if !self.rest().starts_with(token) {
            return self.fail(Kind::Expected(what));
        }
        self.at += token.len();
        Ok(())
    }

    fn end(&self) -> Result<(), ParseQuotaError> {
        if self.rest().is_empty() {
            return Ok(());
        }
        self.fail(Kind::Expected("the end, or \"burst\" and a number"))
    }

    fn burst(&mut self) -> Result<Option<u64>, ParseQuotaError> {
        if self.rest().is_empty() {
            return Ok(None);
        }
        self.expect("burst", "the end, or \"burst\" and a number")?;
        self.skip_spaces();
        self.units().map(Some)
    }

    pub(crate) fn units(&mut self) -> Result<u64, ParseQuotaError> {
        match self.number()? {
            Some(number) => Ok(number),
            None => self.fail(Kind::Expected("a number of units")),
        }
    }

    /// Digits with `_` between them; none at all is `None`.
    fn number(&mut self) -> Result<Option<u64>, ParseQuotaError> {
        let start = self.at;
        let mut value = 0u64;
        while let Some(byte @ (b'0'..=b'9' | b'_')) = self.rest().bytes().next() {
            if byte == b'_' {
                let bytes = self.text.as_bytes();
                let is_digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
                if self.at == start || !is_digit(self.at - 1) || !is_digit(self.at + 1) {
                    return self.fail(Kind::Expected("a digit on both sides"));
                }
            } else {
                let next = value.checked_mul(10).and_then(|v| v.checked_add((byte - b'0').into()));
                value = next.ok_or(ParseQuotaError { at: start, kind: Kind::TooLarge })?;
            }
            self.at += 1;
        }
        Ok((self.at > start).then_some(value))
    }

    fn duration_ns(&mut self) -> Result<u64, ParseQuotaError> {
        let mut total = 0u64;
        loop {
            let start = self.at;
            let count = self.number()?;
            let unit = self.unit_ns()?;
            let next = count.unwrap_or(1).checked_mul(unit).and_then(|v| total.checked_add(v));
            total = next.ok_or(ParseQuotaError { at: start, kind: Kind::TooLarge })?;
            if !self.rest().starts_with(|c: char| c.is_ascii_digit()) {
                return Ok(total);
            }
        }
    }

    fn unit_ns(&mut self) -> Result<u64, ParseQuotaError> {
        let at = self.at;
        let name = self.letters();
        let Some((_, nanos)) = UNITS.iter().find(|(known, _)| *known == name) else {
            self.at = at;
            return self.fail(Kind::Expected("a unit: ns, us, ms, s, m, h, d or w"));
        };
        Ok(*nanos)
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    fn error(text: &str) -> (usize, String) {
        let error = text.parse::<Quota>().unwrap_err();
        (error.at(), error.to_string())
    }

    #[test]
    fn the_forms_people_write_are_read_and_written_back_canonically() {
        for (text, units, period_ns, burst, canonical) in [
            ("100/1m", 100, 60_000_000_000, 100, "100/1m"),
            ("10/s burst 50", 10, 1_000_000_000, 50, "10/1s burst 50"),
            ("4500/1h", 4_500, 3_600_000_000_000, 4_500, "4500/1h"),
            ("1/30d", 1, 2_592_000_000_000_000, 1, "1/4w2d"),
            ("1_000_000 / s", 1_000_000, 1_000_000_000, 1_000_000, "1000000/1s"),
            ("5/1h30m burst 1", 5, 5_400_000_000_000, 1, "5/1h30m burst 1"),
            ("  7/250ms  ", 7, 250_000_000, 7, "7/250ms"),
        ] {
            let quota: Quota = text.parse().unwrap();
            assert_eq!((quota.units, quota.period_ns, quota.burst), (units, period_ns, burst));
            assert_eq!(quota.to_string(), canonical);
            assert_eq!(canonical.parse::<Quota>().unwrap(), quota);
        }
    }

    #[test]
    fn an_error_points_at_the_character() {
        for (text, at) in [
            ("", 0),
            ("/1m", 0),
            ("100", 3),
            ("100/", 4),
            ("100/1", 5),
            ("100/1x", 5),
            ("100/1minute", 5),
            ("100/1m burts 20", 7),
            ("100/1m burst", 12),
            ("100/1m burst 2 3", 15),
            ("0/1m", 0),
            ("100/0s", 4),
            ("100/1m burst 0", 7),
            ("99999999999999999999/s", 0),
            ("1/99999999999w", 2),
            ("-1/s", 0),
            ("1/-1s", 2),
            ("1000000000000000/s", 0),
            ("1/200000d", 2),
            ("1/365d burst 101", 7),
            ("_1/s", 0),
            ("1_/s", 1),
            ("1__0/s", 1),
            ("1/µs", 2),
        ] {
            assert_eq!(error(text).0, at, "{text:?}: {}", error(text).1);
        }
        assert_eq!(
            error("100/1x").1,
            "at character 6: expected a unit: ns, us, ms, s, m, h, d or w"
        );
    }

    #[test]
    fn a_duration_stands_alone_too() {
        assert_eq!(parse_duration("1m30s").unwrap(), Duration::from_secs(90));
        assert!(parse_duration("1m,").is_err());
    }
}
