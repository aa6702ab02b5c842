//! `GET /v1/usage/{policy}`: what keys of a durable policy used in their windows, page by page.

use serde_json::{Value, json};
use tollway_core::fields::calendar;
use tollway_core::{Algorithm, Policy, Timestamp};

use super::problem::Trouble;
use super::request::{Call, decoded};
use crate::dashboard::keys::bytes_of;
use crate::durable::{PAGE_MAX, Usage, UsagePage, UsageQuery};
use crate::enforcer::Enforcer;
use crate::shared_usage::has_usage;
use crate::top::hex;

const PAGE_DEFAULT: usize = 100;

/// Rows by key and window; `after` of the answer is that of the next page, and missing in the last
/// one. A page may be short.
pub(super) async fn usage(mut call: Call<'_>) -> Result<(), Trouble> {
    call.request.expect_query(&["key", "key_hex", "from", "to", "after", "max"])?;
    let name = decoded(call.parameters[0]).ok_or(Trouble::NotFound)?;
    let enforcer = &call.service().enforcer;
    let rules = enforcer.rules();
    let policy = rules.policy(&name).ok_or_else(|| Trouble::UnknownPolicy(name.to_string()))?;
    if let Some(wrong) = why_no_usage(enforcer, policy) {
        return Err(Trouble::bad(wrong));
    }
    let (key, key_hex) = (call.request.query_text("key")?, call.request.parameter("key_hex"));
    let key = match (key, key_hex) {
        (Some(_), Some(_)) => return Err(Trouble::bad("give one of key and key_hex")),
        (Some(key), None) => Some(key.into_bytes()),
        (None, Some(digits)) => Some(bytes_of(digits)?),
        (None, None) => None,
    };
    let after = call.request.parameter("after").map(name_of).transpose()?;
    let query = UsageQuery {
        policy: name.into_owned(),
        key,
        from: moment(&call, "from")?.unwrap_or(Timestamp::MIN),
        until: moment(&call, "to")?.unwrap_or(Timestamp::MAX),
        after,
        most: call.query_number("max", PAGE_DEFAULT, 1..=PAGE_MAX)?,
        now: enforcer.clock().now(),
    };
    let page = match (enforcer.durable(), enforcer.shared_usage()) {
        (Some(durable), _) => durable.usage(query).await?,
        (None, Some(shared)) => shared.usage(query).await?,
        (None, None) => UsagePage::default(),
    };
    let rows: Vec<Value> = page.rows.iter().map(row).collect();
    let after = page.after.map(|name| hex(name.as_bytes()));
    call.write(&json!({"usage": rows, "after": after}))
}

/// Why it is not kept what keys of the policy used; `None` if it is.
pub(crate) fn why_no_usage(enforcer: &Enforcer, policy: &Policy) -> Option<String> {
    let name = policy.name();
    if !policy.is_durable() {
        return Some(format!("the policy {name:?} is not durable: its usage is not kept"));
    }
    if !matches!(policy.algorithm(), Algorithm::FixedWindow(_) | Algorithm::CalendarWindow(_)) {
        let found = policy.algorithm().label();
        return Some(format!(
            "usage is counted by window: the policy {name:?} has the algorithm {found}, expected \
             fixed-window or calendar-window"
        ));
    }
    match (enforcer.durable(), enforcer.shared_usage()) {
        (Some(_), _) => None,
        (None, Some(_)) => (!has_usage(policy)).then(|| {
            format!(
                "on a shared store usage is kept of windows at fixed times, and those of the \
                 policy {name:?} begin with the first request of each key; expected anchor = \
                 \"epoch\" or a calendar window"
            )
        }),
        (None, None) => Some("usage is kept by the service that decides: ask that one".to_owned()),
    }
}

/// Where a page goes on, as an earlier page said it.
fn name_of(digits: &str) -> Result<String, Trouble> {
    let wrong = || Trouble::bad("after must be that of an earlier page");
    let bytes = bytes_of(digits).map_err(|_| wrong())?;
    String::from_utf8(bytes).map_err(|_| wrong())
}

fn moment(call: &Call<'_>, name: &str) -> Result<Option<Timestamp>, Trouble> {
    let Some(text) = call.request.query_text(name)? else { return Ok(None) };
    let wrong = || {
        let right = "expected for example 2026-11-01T00:00:00Z";
        Trouble::bad(format!("{name} is {text:?}; {right}"))
    };
    let since = calendar::rfc3339(&text).ok_or_else(wrong)?;
    let nanos = u64::try_from(since.as_nanos()).map_err(|_| wrong())?;
    Ok(Some(Timestamp::from_nanos(nanos)))
}

/// A row. A key that is no text is told by its bytes alone.
fn row(usage: &Usage) -> Value {
    let time =
        |at: Timestamp| calendar::print_exactly(std::time::Duration::from_nanos(at.as_nanos()));
    let key = std::str::from_utf8(&usage.key).ok();
    json!({
        "key": key,
        "key_hex": hex(&usage.key),
        "start": time(usage.start),
        "end": time(usage.end),
        "units": usage.units,
    })
}
