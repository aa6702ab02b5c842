//! `/v1/policies/{policy}/keys/{key}`: quotas of one's own, for a key or a pattern.
//!
//! ```text
//!   PUT    {"quota":"1000/1m","until":"2026-11-20 09:00 Europe/Berlin","note":"…"}
//!   POST   …/grant {"units":500}            units given back now
//!                  {"units":500,"until":…}  so many units more until then
//!   GET, DELETE; GET /v1/policies/{policy}/keys lists, GET /admin/quota-changes says who did what
//! ```
//!
//! A key stands in the path with its bytes percent-encoded. With a star in it it is a pattern, as
//! in a list of the configuration.

use serde::Deserialize;
use serde_json::{Value, json};
use tollway_core::Key;

use super::problem::Trouble;
use super::request::{Call, decoded, decoded_bytes};
use super::routes::permit_change;
use crate::own_quotas::{self, Asked, Changed, Own, Refused, What, Whom, millis, whom_json};
use crate::top::{bytes_of_hex, hex};

const PAGE: usize = 100;
const PAGE_MAX: usize = 1_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct QuotaBody {
    quota: String,
    until: Option<String>,
    #[serde(default)]
    note: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GrantBody {
    units: u64,
    until: Option<String>,
    #[serde(default)]
    note: String,
}

/// `PUT`: sets a quota; 201 if there was none.
pub(super) async fn put(call: Call<'_>) -> Result<(), Trouble> {
    permit_change(&call)?;
    let whom = whom(&call)?;
    let QuotaBody { quota, until, note } = call.body()?;
    let what = What::Set { quota, until_ms: until_ms(until.as_deref())?, note };
    let changed = change(&call, whom.clone(), what).await?;
    call.reply.status = if changed.is_new { 201 } else { 200 };
    answer(call, &whom)
}

/// `DELETE`: takes quota and grant away.
pub(super) async fn remove(mut call: Call<'_>) -> Result<(), Trouble> {
    permit_change(&call)?;
    let whom = whom(&call)?;
    change(&call, whom.clone(), What::Remove).await?;
    let mut told = whom_json(&whom);
    told["removed"] = true.into();
    call.write(&told)
}

/// `POST …/grant`: gives units, once or until a time.
pub(super) async fn grant(mut call: Call<'_>) -> Result<(), Trouble> {
    permit_change(&call)?;
    let whom = whom(&call)?;
    let GrantBody { units, until, note } = call.body()?;
    if let Some(until_ms) = until_ms(until.as_deref())? {
        change(&call, whom.clone(), What::Grant { units, until_ms, note }).await?;
        return answer(call, &whom);
    }
    let changed = change(&call, whom.clone(), What::GrantOnce { units, note }).await?;
    let mut told = whom_json(&whom);
    told["units"] = units.into();
    told["limit"] = changed.left.map(|left| left.limit()).into();
    told["remaining"] = changed.left.map(|left| left.remaining()).into();
    call.write(&told)
}

/// `GET`: what was said of exactly this key or pattern.
pub(super) fn get(call: Call<'_>) -> Result<(), Trouble> {
    call.request.expect_query(&[])?;
    let whom = whom(&call)?;
    answer(call, &whom)
}

/// `GET /v1/policies/{policy}/keys`.
pub(super) fn list(mut call: Call<'_>) -> Result<(), Trouble> {
    call.request.expect_query(&["after", "max"])?;
    let most = call.query_number("max", PAGE, 1..=PAGE_MAX)?;
    let wrong = || Trouble::bad("after: expected the next of an earlier page");
    let after =
        call.request.parameter("after").map(|digits| bytes_of_hex(digits).ok_or_else(wrong));
    let after = after.transpose()?;
    let policy = policy(&call)?;
    let rules = call.service().enforcer.rules();
    let all = rules.own_quotas().of_policy(&policy);
    let is_later = |own: &&Own| after.as_ref().is_none_or(|after| own.whom.key[..] > after[..]);
    let mut rest = all.iter().copied().filter(is_later);
    let page: Vec<&Own> = rest.by_ref().take(most).collect();
    let next = rest.next().and(page.last()).map(|own| hex(&own.whom.key));
    let kept = call.service().own_quotas().kept();
    let keys: Vec<Value> = page.into_iter().map(|own| told(own, kept)).collect();
    call.write(&json!({"policy": policy, "total": all.len(), "keys": keys, "next": next}))
}

/// `GET /admin/quota-changes`: who changed what and when, the latest first.
pub(super) fn changes(mut call: Call<'_>) -> Result<(), Trouble> {
    call.request.expect_query(&["n"])?;
    let most = call.query_number("n", PAGE, 1..=PAGE_MAX)?;
    let (total, changes) = call.service().own_quotas().last_changes(most);
    let changes: Vec<Value> = changes.iter().map(|change| change.json()).collect();
    call.write(&json!({"total": total, "changes": changes}))
}

/// When something ends, of a text that says so.
pub(crate) fn until_ms(text: Option<&str>) -> Result<Option<u64>, Trouble> {
    let read = |text| tollway_zones::moment(text).map(millis);
    text.map(read).transpose().map_err(|error| Trouble::bad(format!("until: {error}")))
}

/// Changes a quota for whoever calls.
async fn change(call: &Call<'_>, whom: Whom, what: What) -> Result<Changed, Trouble> {
    change_or_here(call, whom, what, false).await
}

/// The same; `here_if_away`, on this node alone while the store that keeps it is away.
pub(crate) async fn change_or_here(
    call: &Call<'_>,
    whom: Whom,
    what: What,
    here_if_away: bool,
) -> Result<Changed, Trouble> {
    let peer = call.request.peer;
    let from = if peer.is_unix { "unix".to_owned() } else { peer.address.to_string() };
    let asked = Asked { whom, what, by: call.who(), from, here_if_away };
    let policy = asked.whom.policy.clone();
    own_quotas::change(call.worker, asked).await.map_err(|refused| match refused {
        Refused::UnknownPolicy => Trouble::UnknownPolicy(policy),
        Refused::Wrong(text) => Trouble::Bad(text),
        Refused::Nothing => Trouble::NoOwnQuota,
        Refused::NotKept(error) => Trouble::Store(error),
    })
}

fn answer(mut call: Call<'_>, whom: &Whom) -> Result<(), Trouble> {
    let rules = call.service().enforcer.rules();
    let own = rules.own_quotas().get(whom).ok_or(Trouble::NoOwnQuota)?;
    let told = told(own, call.service().own_quotas().kept());
    call.write(&told)
}

fn told(own: &Own, kept: &str) -> Value {
    let mut told = whom_json(&own.whom);
    let entry = own.entry.json();
    for field in ["quota", "until", "grant", "note", "by", "at"] {
        told[field] = entry[field].clone();
    }
    told["in_force"] = own.policy.as_ref().ok().map(|own| own.algorithm().to_string()).into();
    told["why_not"] = own.policy.as_ref().err().cloned().into();
    told["kept"] = kept.into();
    told
}

fn policy(call: &Call<'_>) -> Result<String, Trouble> {
    let name = decoded(call.parameters[0]).ok_or(Trouble::NotFound)?.into_owned();
    let rules = call.service().enforcer.rules();
    // What was said under a policy that is gone can still be looked at and taken away.
    let is_known = rules.policy(&name).is_some() || rules.own_quotas().knows(&name);
    if is_known { Ok(name) } else { Err(Trouble::UnknownPolicy(name)) }
}

fn whom(call: &Call<'_>) -> Result<Whom, Trouble> {
    let wrong = || Trouble::bad("key: expected bytes, percent-encoded");
    let key = decoded_bytes(call.parameters[1]).ok_or_else(wrong)?;
    let key = Key::new(&*key).map_err(|error| Trouble::bad(format!("key: {error}")))?;
    Ok(Whom { policy: policy(call)?, key: key.as_bytes().into() })
}
