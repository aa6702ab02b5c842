//! The header fields of an answer, written into a response's header map.

use std::cell::RefCell;
use std::time::Duration;

use http::header::Entry;
use http::{HeaderMap, HeaderName, HeaderValue};
use tollgate_core::fields::{Denied, Dialect, Field, Report, Standing};
use tollgate_core::{Clock, Decision, Snapshot, Verdict};

use crate::demand::{Gated, LimitSet};

/// Header names by [`Field`], made once: making one costs as much as a lookup.
static NAMES: [HeaderName; Field::ALL.len()] =
    [name(0), name(1), name(2), name(3), name(4), name(5), name(6), name(7), name(8), name(9)];

const fn name(index: usize) -> HeaderName {
    HeaderName::from_static(Field::ALL[index].lowercase())
}

thread_local! {
    static LINE: RefCell<String> = const { RefCell::new(String::new()) };
}

/// How a layer tells clients about its limits.
#[derive(Debug)]
pub(crate) struct Reply {
    dialect: Dialect,
    /// `RateLimit-Policy` for requests that all limits apply to: the same bytes every time.
    policies: Option<HeaderValue>,
}

impl Reply {
    pub(crate) fn new(dialect: Dialect, limits: &[Gated]) -> Self {
        let fresh = Snapshot::default();
        let standings: Vec<_> =
            limits.iter().map(|gated| Standing::new(&gated.policy, fresh)).collect();
        let mut policies = None;
        dialect.emit_policies(&standings, &mut String::new(), |_, text| {
            policies = HeaderValue::from_str(text).ok();
        });
        Self { dialect, policies }
    }

    /// Writes what `verdict` on the limits in `set` says.
    pub(crate) fn write(
        &self,
        limits: &[Gated],
        set: LimitSet,
        verdict: &Verdict,
        clock: &dyn Clock,
        headers: &mut HeaderMap,
    ) {
        if self.dialect == Dialect::Off {
            return;
        }
        let standing = |(index, decision): (usize, &Decision)| {
            Standing::new(&limits[index].policy, decision.snapshot())
        };
        let mut standings = set.indices().zip(verdict.decisions()).map(standing);
        let epoch = match self.dialect {
            Dialect::XRateLimitEpoch => Duration::from_nanos(clock.now().as_nanos()),
            _ => Duration::ZERO,
        };
        let denied = verdict
            .denied_by()
            .map(|by| Denied { by, retry: verdict.retry().and_then(|retry| retry.after()) });
        // Most requests are one charge, which needs no list.
        if verdict.decisions().len() == 1 {
            let only = standings.next();
            self.emit(&Report { standings: only.as_slice(), denied, epoch }, limits, headers);
        } else {
            let all: Vec<_> = standings.collect();
            self.emit(&Report { standings: &all, denied, epoch }, limits, headers);
        }
    }

    fn emit(&self, report: &Report<'_>, limits: &[Gated], headers: &mut HeaderMap) {
        LINE.with_borrow_mut(|line| match &self.policies {
            Some(policies) if report.standings.len() == limits.len() => {
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
