//! A part of a whole, exactly: `40%`, `33.33%`.

use core::fmt;
use core::str::FromStr;

/// A part of a whole in hundredths of a percent, more than nothing and at most all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Percent(u16);

impl Percent {
    /// Hundredths of a percent in a whole.
    pub const WHOLE: u16 = 10_000;

    /// So many hundredths of a percent; `None` if that is nothing or more than all.
    pub const fn from_hundredths(hundredths: u16) -> Option<Self> {
        if hundredths == 0 || hundredths > Self::WHOLE { None } else { Some(Self(hundredths)) }
    }

    /// Hundredths of a percent.
    pub const fn hundredths(self) -> u16 {
        self.0
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, part) = (self.0 / 100, self.0 % 100);
        match part {
            0 => write!(f, "{whole}%"),
            part if part % 10 == 0 => write!(f, "{whole}.{}%", part / 10),
            part => write!(f, "{whole}.{part:02}%"),
        }
    }
}

impl FromStr for Percent {
    type Err = ParsePercentError;

    fn from_str(text: &str) -> Result<Self, ParsePercentError> {
        let number = text.strip_suffix('%').map(str::trim_end).ok_or(ParsePercentError)?;
        let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
        let are_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if whole.is_empty() || whole.len() > 3 || !matches!(part.len(), 1 | 2) {
            return Err(ParsePercentError);
        }
        if !are_digits(whole) || !are_digits(part) {
            return Err(ParsePercentError);
        }
        let digits =
            |text: &str| text.bytes().fold(0, |sum, byte| sum * 10 + u16::from(byte - b'0'));
        let part = digits(part) * if part.len() == 1 { 10 } else { 1 };
        let hundredths = digits(whole).checked_mul(100).and_then(|whole| whole.checked_add(part));
        hundredths.and_then(Self::from_hundredths).ok_or(ParsePercentError)
    }
}

crate::plain_error! {
    /// The text is not a part of a whole.
    pub struct ParsePercentError =
        "expected more than 0% and at most 100%, for example 40% or 33.33%";
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString as _;

    use super::*;

    #[test]
    fn a_percentage_is_read_as_it_is_written() {
        for (text, hundredths) in
            [("40%", 4_000), ("33.33%", 3_333), ("0.01%", 1), ("7.5%", 750), ("100%", 10_000)]
        {
            let percent: Percent = text.parse().unwrap();
            assert_eq!((percent.hundredths(), percent.to_string()), (hundredths, text.into()));
        }
        assert_eq!("7.50 %".parse(), Ok(Percent(750)));
    }

    #[test]
    fn what_is_no_part_of_a_whole_is_refused() {
        for text in
            ["", "%", "40", "0%", "0.00%", "100.01%", "999%", "-1%", "1.234%", "1.%", ".5%", "4e1%"]
        {
            assert_eq!(text.parse::<Percent>(), Err(ParsePercentError), "{text}");
        }
    }
}
