//! Variables as Go programs read them.

use std::time::Duration;

use tollway_server::config::ConfigError;

/// Gives the value of a variable.
pub(super) type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The variables; an empty one is one that is not set.
#[derive(Clone, Copy)]
pub(super) struct Variables<'a>(pub Lookup<'a>);

impl Variables<'_> {
    /// The text of a variable.
    pub(super) fn text(&self, name: &str) -> Option<String> {
        (self.0)(name).filter(|value| !value.is_empty())
    }

    /// The text of a variable, or what it is without one.
    pub(super) fn text_or(&self, name: &str, default: &str) -> String {
        self.text(name).unwrap_or_else(|| default.to_owned())
    }

    /// A truth; false if it is not set.
    pub(super) fn flag(&self, name: &str) -> Result<bool, ConfigError> {
        match self.text(name).as_deref() {
            None | Some("0" | "f" | "F" | "false" | "FALSE" | "False") => Ok(false),
            Some("1" | "t" | "T" | "true" | "TRUE" | "True") => Ok(true),
            Some(other) => Err(wrong(name, other, "true or false")),
        }
    }

    /// A port.
    pub(super) fn port(&self, name: &str, default: u16) -> Result<u16, ConfigError> {
        let Some(text) = self.text(name) else { return Ok(default) };
        text.parse().map_err(|_| wrong(name, &text, "a port"))
    }

    /// A duration, in the milliseconds that a file would say.
    pub(super) fn duration(&self, name: &str, default: &str) -> Result<String, ConfigError> {
        let text = self.text_or(name, default);
        let read = duration(&text).ok_or_else(|| wrong(name, &text, "a duration such as 1h30m"))?;
        Ok(format!("{}ms", read.as_millis().max(1)))
    }

    /// Pairs such as `k1:v1,k2:v2`.
    pub(super) fn pairs(&self, name: &str) -> Result<Vec<(String, String)>, ConfigError> {
        let text = self.text(name).unwrap_or_default();
        let pair = |text: &str| {
            let (key, value) =
                text.split_once([':', '=']).ok_or_else(|| wrong(name, text, "key:value"))?;
            Ok((key.trim().to_owned(), value.trim().to_owned()))
        };
        text.split(',').map(str::trim).filter(|text| !text.is_empty()).map(pair).collect()
    }
}

/// An error about a variable.
pub(super) fn wrong(name: &str, found: &str, expected: &str) -> ConfigError {
    ConfigError {
        source: "environment".to_owned(),
        line: 0,
        field: name.to_owned(),
        problem: format!("found {found:?}, expected {expected}"),
    }
}

/// A duration as Go writes it: numbers with units, one after the other.
fn duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let (mut rest, mut seconds) = (text, 0.0);
    while !rest.is_empty() {
        let digits = rest.find(|char: char| !char.is_ascii_digit() && char != '.')?;
        let (number, behind) = rest.split_at(digits);
        let unit_len = behind.find(|char: char| char.is_ascii_digit()).unwrap_or(behind.len());
        let (unit, next) = behind.split_at(unit_len);
        let unit = match unit {
            "h" => 3_600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            "us" | "µs" => 1e-6,
            "ns" => 1e-9,
            _ => return None,
        };
        seconds += number.parse::<f64>().ok()? * unit;
        rest = next;
    }
    if text.is_empty() { None } else { Duration::try_from_secs_f64(seconds).ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_go_writes_them() {
        let millis = |text: &str| duration(text).map(|read| read.as_millis());
        assert_eq!(millis("24h"), Some(86_400_000));
        assert_eq!(millis("1h30m0.5s"), Some(5_400_500));
        assert_eq!((millis("150us"), millis("0"), millis("20ms")), (Some(0), Some(0), Some(20)));
        for wrong in ["", "5", "s", "1x", "1h-2m"] {
            assert_eq!(millis(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_truth_is_read_as_go_reads_it_and_nothing_else_is_one() {
        let read = |value: &'static str| Variables(&move |_| Some(value.to_owned())).flag("X");
        assert_eq!((read("1"), read("True"), read("f")), (Ok(true), Ok(true), Ok(false)));
        let told = read("yes").unwrap_err().to_string();
        assert_eq!(told, "environment: X: found \"yes\", expected true or false");
    }
}
