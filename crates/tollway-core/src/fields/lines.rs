//! The header lines of one response, looked up by name without regard to case.

use alloc::borrow::Cow;
use alloc::string::String;
use alloc::vec::Vec;

/// Longer values are malformed: no rate-limit field needs them, and parsing must stay bounded.
const VALUE_BYTES_MAX: usize = 8 * 1024;

/// The header lines a reading is made from.
///
/// ```
/// use tollway_core::fields::Lines;
/// let lines: Lines<'_> = [("Retry-After", &b"30"[..])].into_iter().collect();
/// assert_eq!(lines.first("retry-after"), Some("30"));
/// ```
#[derive(Debug, Clone, Default)]
pub struct Lines<'a> {
    lines: Vec<(&'a str, &'a [u8])>,
}

impl<'a> FromIterator<(&'a str, &'a [u8])> for Lines<'a> {
    fn from_iter<I: IntoIterator<Item = (&'a str, &'a [u8])>>(lines: I) -> Self {
        Self { lines: lines.into_iter().collect() }
    }
}

impl<'a> Lines<'a> {
    /// Every well-formed value under that name, trimmed, in order.
    pub fn all(&self, name: &str) -> impl Iterator<Item = &'a str> {
        self.lines
            .iter()
            .filter(move |(line, _)| line.eq_ignore_ascii_case(name))
            .filter_map(|&(_, value)| ascii(value))
    }

    /// The first well-formed value under that name.
    pub fn first(&self, name: &str) -> Option<&'a str> {
        self.all(name).next()
    }

    /// All lines of a list-valued field as one; `None` if absent or if any line is malformed.
    pub fn joined(&self, name: &str) -> Option<Cow<'a, str>> {
        let mut joined: Option<Cow<'a, str>> = None;
        let same = |line: &&(&str, &[u8])| line.0.eq_ignore_ascii_case(name);
        for &(_, value) in self.lines.iter().filter(same) {
            let text = ascii(value)?;
            joined = Some(match joined {
                None => Cow::Borrowed(text),
                Some(before) if before.len() + text.len() > VALUE_BYTES_MAX => return None,
                Some(before) => Cow::Owned(String::from(before) + ", " + text),
            });
        }
        joined
    }
}

/// Printable ASCII, trimmed; anything else is no value of a field we read.
fn ascii(value: &[u8]) -> Option<&str> {
    if value.len() > VALUE_BYTES_MAX {
        return None;
    }
    let text = core::str::from_utf8(value).ok()?.trim_matches([' ', '\t']);
    text.bytes().all(|byte| matches!(byte, b' '..=b'~' | b'\t')).then_some(text)
}
