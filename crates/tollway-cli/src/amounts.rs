//! Durations and sizes in flags: one way to write each, `30s` and `256MiB`, in every command.

use std::time::Duration;

use tollway_core::{parse_duration, parse_size};

/// The shortest time between two looks at a service: more of them show nothing that an eye sees.
const INTERVAL_MIN: Duration = Duration::from_millis(10);

/// A duration: `30s`, `250ms`, `1h30m`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    parse_duration(text).map_err(|error| match in_seconds(text) {
        Some(seconds) => format!("it has no unit; for {text} seconds write {seconds}"),
        None => format!("{error}; expected a duration such as 30s, 250ms or 1m"),
    })
}

/// A duration between two looks at a service.
pub(crate) fn interval(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        every if every < INTERVAL_MIN => {
            Err(format!("{every:?} is too often; expected at least {INTERVAL_MIN:?}"))
        }
        every => Ok(every),
    }
}

/// A size: `256MiB`, `64kB`, `1048576B`.
pub(crate) fn size(text: &str) -> Result<usize, String> {
    let size = parse_size(text).map_err(|error| match text.parse::<u64>() {
        Ok(_) => format!("it has no unit; for {text} bytes write {text}B"),
        Err(_) => error.to_string(),
    })?;
    usize::try_from(size).map_err(|_| format!("{text} is more than this machine can address"))
}

/// A size, or a number of bytes: for flags whose names say that they count bytes.
pub(crate) fn bytes(text: &str) -> Result<usize, String> {
    text.parse().or_else(|_| size(text))
}

/// How a bare number of seconds is written with a unit, if `text` is one.
fn in_seconds(text: &str) -> Option<String> {
    if let Ok(whole) = text.parse::<u64>() {
        return Some(format!("{whole}s"));
    }
    let millis = text.parse::<f64>().ok().filter(|seconds| *seconds >= 0.0)? * 1_000.0;
    (millis.is_finite() && millis < 1e15).then(|| format!("{}ms", millis.round()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_without_a_unit_is_answered_with_how_to_write_it() {
        for (text, told) in [
            ("60", "it has no unit; for 60 seconds write 60s"),
            ("0.5", "it has no unit; for 0.5 seconds write 500ms"),
            ("x", "expected a duration such as 30s, 250ms or 1m"),
            ("-1", "expected a duration such as 30s, 250ms or 1m"),
            ("NaN", "expected a duration such as 30s, 250ms or 1m"),
        ] {
            let error = duration(text).unwrap_err();
            assert!(error.ends_with(told), "{text}: {error}");
        }
        assert_eq!(duration("1m30s"), Ok(Duration::from_secs(90)));
        assert_eq!(size("1048576"), Err("it has no unit; for 1048576 bytes write 1048576B".into()));
        assert_eq!((size("1MiB"), bytes("1MiB"), bytes("7")), (Ok(1 << 20), Ok(1 << 20), Ok(7)));
        assert!(interval("9ms").unwrap_err().contains("at least 10ms"));
    }
}
