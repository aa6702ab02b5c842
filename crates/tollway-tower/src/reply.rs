//! The header fields of an answer, written into a response's header map.

use std::cell::RefCell;
use std::sync::LazyLock;
use std::time::Duration;

use http::header::Entry;
use http::{HeaderMap, HeaderName, HeaderValue};
use tollway_core::Snapshot;
use tollway_core::fields::{Dialect, Field, Report, Standing};

use crate::demand::Gated;

/// Header names by [`Field`], made once: making one costs as much as a lookup.
static NAMES: LazyLock<[HeaderName; Field::ALL.len()]> = LazyLock::new(|| {
    Field::ALL.map(|field| HeaderName::try_from(field.name()).expect("a field's name is a token"))
});

thread_local! {
    static LINE: RefCell<String> = const { RefCell::new(String::new()) };
}

/// How a layer tells clients about its limits.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) dialect: Dialect,
    /// `RateLimit-Policy` for requests that all limits apply to: the same bytes every time, unless
    /// a limit chooses its policy, or keys have plans.
    policies: Option<HeaderValue>,
}

impl Reply {
    pub(crate) fn new(dialect: Dialect, limits: &[Gated]) -> Self {
        let fresh = Snapshot::default();
        let standings: Vec<_> =
            limits.iter().map(|gated| Standing::new(&gated.policy, fresh)).collect();
        let report = Report { standings: &standings, denied: None, epoch: Duration::ZERO };
        let mut policies = None;
        if limits.iter().any(|gated| gated.limit.chooser.is_some() || gated.limit.plans.is_some()) {
            return Self { dialect, policies };
        }
        dialect.emit_policies(&report, &mut String::new(), |_, text| {
            policies = HeaderValue::from_str(text).ok();
        });
        Self { dialect, policies }
    }

    /// Whether nothing is said about requests that pass.
    pub(crate) fn is_silent(&self) -> bool {
        matches!(self.dialect, Dialect::Off | Dialect::RetryAfter)
    }

    pub(crate) fn emit(&self, report: &Report<'_>, limits: usize, headers: &mut HeaderMap) {
        LINE.with_borrow_mut(|line| match &self.policies {
            Some(policies) if report.standings.len() == limits => {
                headers.append(&NAMES[Field::RateLimitPolicy as usize], policies.clone());
                let put = |field, text: &str| put(self.dialect, headers, field, text);
                self.dialect.emit_standings(report, line, put);
            }
            _ => {
                let put = |field, text: &str| put(self.dialect, headers, field, text);
                self.dialect.emit(report, line, put);
            }
        });
    }
}

/// Lists grow by a line, so that stacked layers are all heard. Of a single value the one already
/// there stays: the inner layer or the handler knew more about this response.
fn put(dialect: Dialect, headers: &mut HeaderMap, field: Field, text: &str) {
    let Ok(value) = HeaderValue::from_str(text) else { return };
    let name = &NAMES[field as usize];
    let is_list = match field {
        Field::RateLimitPolicy => true,
        Field::RateLimit => dialect == Dialect::Draft10,
        _ => false,
    };
    if is_list {
        headers.append(name, value);
    } else if let Entry::Vacant(vacant) = headers.entry(name) {
        vacant.insert(value);
    }
}
