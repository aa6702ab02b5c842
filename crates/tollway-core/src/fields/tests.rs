//! Tests of the header-field text, by rule; the `sfv` crate is the independent reader.

/// Exact bytes of every dialect, and Sharkey's header table.
mod emit;
/// Numbers, dates and durations as other servers write them.
mod forms;
/// Agreement with `sfv`, and properties over random input.
mod properties;
/// Whole responses of other servers.
mod responses;

use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use super::{Denied, Dialect, Report, Standing};

pub(super) fn standing(policy: &str) -> Standing<'_> {
    Standing {
        policy,
        limit: 100,
        quota: 100,
        window: Some(Duration::from_secs(60)),
        remaining: 50,
        more_after: Some(Duration::from_millis(600)),
        full_after: Duration::from_secs(30),
    }
}

pub(super) fn emitted(dialect: Dialect, report: &Report<'_>) -> Vec<(String, String)> {
    let mut fields = Vec::new();
    dialect.emit(report, &mut String::new(), |field, value| {
        fields.push((field.name().into(), value.into()));
    });
    fields
}

pub(super) fn allowed<'a>(standings: &'a [Standing<'a>]) -> Report<'a> {
    Report { standings, denied: None, epoch: Duration::from_secs(1_700_000_000) }
}

pub(super) fn denied<'a>(standings: &'a [Standing<'a>], retry: Option<Duration>) -> Report<'a> {
    Report { denied: Some(Denied { by: 0, retry }), ..allowed(standings) }
}
