//! Sizes in bytes as text: `256MiB`.
//!
//! ```text
//! size = 1*DIGIT [ SP ] unit
//! unit = "B" | "kB" | "MB" | "GB" | "TB" | "KiB" | "MiB" | "GiB" | "TiB"     in any case
//! ```
//!
//! A unit must be given: of a bare number nobody knows whether bytes or megabytes are meant.

/// Units with their bytes.
const UNITS: [(&str, u64); 9] = [
    ("B", 1),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
];

/// Reads a size such as `256MiB`, `1 GB` or `65536B`.
///
/// ```
/// use tollway_core::parse_size;
///
/// assert_eq!(parse_size("256MiB"), Ok(256 << 20));
/// assert_eq!(parse_size("1 GB"), Ok(1_000_000_000));
/// assert!(parse_size("256").is_err());
/// ```
///
/// # Errors
///
/// If the text is no whole number with a unit, or the size does not fit into 64 bits.
pub fn parse_size(text: &str) -> Result<u64, ParseSizeError> {
    let text = text.trim();
    let digits_end = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(digits_end);
    if digits.is_empty() {
        return Err(ParseSizeError::Number);
    }
    let unit = unit.trim_start();
    let (_, bytes) = UNITS
        .into_iter()
        .find(|(name, _)| name.eq_ignore_ascii_case(unit))
        .ok_or(ParseSizeError::Unit)?;
    let number: u64 = digits.parse().map_err(|_| ParseSizeError::TooLarge)?;
    number.checked_mul(bytes).ok_or(ParseSizeError::TooLarge)
}

crate::plain_error! {
    /// Why a text is no size.
    #[non_exhaustive]
    pub enum ParseSizeError {
        /// It does not begin with a whole number.
        Number = "expected a size such as 256MiB",
        /// There is no unit behind the number, or an unknown one.
        Unit = "expected a unit: B, kB, MB, GB, TB, KiB, MiB, GiB or TiB, as in 256MiB",
        /// It does not fit into 64 bits.
        TooLarge = "expected less than 16 million TiB",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_a_whole_number_and_a_unit() {
        for (text, bytes) in [
            ("0B", 0),
            ("64KiB", 65_536),
            ("64 kib", 65_536),
            ("2mb", 2_000_000),
            (" 1GiB ", 1 << 30),
            ("16777215TiB", 16_777_215 << 40),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text:?}");
        }
        for (text, why) in [
            ("", ParseSizeError::Number),
            ("-1MiB", ParseSizeError::Number),
            ("MiB", ParseSizeError::Number),
            ("256", ParseSizeError::Unit),
            ("1.5GiB", ParseSizeError::Unit),
            ("1M", ParseSizeError::Unit),
            ("16777216TiB", ParseSizeError::TooLarge),
            ("99999999999999999999B", ParseSizeError::TooLarge),
        ] {
            assert_eq!(parse_size(text), Err(why), "{text:?}");
        }
    }
}
