//! A factor by which a caller's limit is stricter or laxer than that of others: an exact fraction.

use core::fmt;
use core::num::NonZeroU32;
use core::str::FromStr;

/// A positive fraction: above 1 a limit is stricter, below 1 laxer.
///
/// ```
/// use tollway_core::Factor;
///
/// let half: Factor = "0.5".parse()?;
/// assert_eq!((half.numerator(), half.denominator()), (5, 10));
/// assert_eq!("3/2".parse::<Factor>()?.to_string(), "3/2");
/// # Ok::<(), tollway_core::ParseFactorError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Factor {
    numerator: NonZeroU32,
    denominator: NonZeroU32,
}

crate::plain_error! {
    /// Why a text is no factor.
    pub struct ParseFactorError =
        "expected a number above 0 with at most 9 decimals, such as 0.5, or 1/3";
}

impl Factor {
    /// What multiplies.
    pub const fn numerator(self) -> u32 {
        self.numerator.get()
    }

    /// What divides.
    pub const fn denominator(self) -> u32 {
        self.denominator.get()
    }
}

/// Reads a decimal number, `1.5`, or a fraction, `3/2`. A decimal number is taken as it is written:
/// a third has no decimals that would end, and is written as `1/3`.
impl FromStr for Factor {
    type Err = ParseFactorError;

    fn from_str(text: &str) -> Result<Self, ParseFactorError> {
        let (numerator, denominator) = match text.split_once('/') {
            Some((numerator, denominator)) => (digits(numerator)?, digits(denominator)?),
            None => decimal(text)?,
        };
        let part = |number| NonZeroU32::new(number).ok_or(ParseFactorError);
        Ok(Self { numerator: part(numerator)?, denominator: part(denominator)? })
    }
}

fn decimal(text: &str) -> Result<(u32, u32), ParseFactorError> {
    let Some((whole, decimals)) = text.split_once('.') else { return Ok((digits(text)?, 1)) };
    let count = u32::try_from(decimals.len()).map_err(|_| ParseFactorError)?;
    let denominator = 10_u32.checked_pow(count).ok_or(ParseFactorError)?;
    let whole = digits(whole)?.checked_mul(denominator).ok_or(ParseFactorError)?;
    Ok((whole.checked_add(digits(decimals)?).ok_or(ParseFactorError)?, denominator))
}

fn digits(text: &str) -> Result<u32, ParseFactorError> {
    // `parse` alone would take a sign.
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_number).ok_or(ParseFactorError)
}

impl fmt::Display for Factor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.numerator, self.denominator)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_positive_number_is_no_factor() {
        for wrong in [
            "",
            "0",
            "0.0",
            "-1",
            "+1",
            "1/0",
            "0/1",
            "1.",
            ".5",
            "1e3",
            "a",
            "1/2/3",
            "0.0000000001",
            "5000000000",
        ] {
            assert_eq!(wrong.parse::<Factor>(), Err(ParseFactorError), "{wrong:?}");
        }
    }

    #[test]
    fn decimals_are_taken_as_they_are_written() {
        let parts = |text: &str| {
            let factor: Factor = text.parse().unwrap();
            (factor.numerator(), factor.denominator())
        };
        assert_eq!(parts("2"), (2, 1));
        assert_eq!(parts("1.25"), (125, 100));
        assert_eq!(parts("0.000000001"), (1, 1_000_000_000));
        assert_eq!(parts("1/3"), (1, 3));
    }
}
