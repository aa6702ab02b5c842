//! `POST /dashboard/reset`, `/ban` and `/quota`: what an administrator changes about one key; and
//! `GET /dashboard/changes`: what is changed.
//!
//! Each change is logged with the key, escaped, and with the name of whose token it was.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};
use tollway_core::{Cost, Key};

use super::keys::{bytes_of, descriptor};
use super::reply;
use crate::http::{Call, Trouble, change_own_quota, permit_change as permit, unaskable, until_ms};
use crate::operation::{Operation, Verb};
use crate::own_quotas::{Ban, Own, What, Whom, millis};
use crate::rules::{Ask, Rules};
use crate::top::hex;

/// Keys in the list of changes.
const LISTED: usize = 100;
/// A year: a longer ban belongs into the configuration.
const BAN_MS_MAX: u64 = 366 * 24 * 3_600 * 1_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Reset {
    /// The domain of Envoy, if the policy is that of a descriptor.
    #[serde(default)]
    domain: String,
    policy: String,
    key_hex: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BanAsked {
    key_hex: String,
    banned: bool,
    /// How long; until it is lifted, if it is left out.
    for_ms: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OwnQuota {
    policy: String,
    key_hex: String,
    /// As in the configuration, `100/1m burst 20`; `null` takes the key's own quota away.
    quota: Option<String>,
    /// When it ends.
    until: Option<String>,
    note: Option<String>,
}

/// `GET /dashboard/changes`: the first keys that operators have changed, and how.
pub(crate) fn list(call: Call<'_>) -> Result<(), Trouble> {
    let rules = call.service().enforcer.rules();
    let mut by_key: BTreeMap<&[u8], (Option<Ban>, Vec<&Own>)> = BTreeMap::new();
    for own in rules.own_quotas().all() {
        let of_key = by_key.entry(&own.whom.key).or_default();
        match own.ban() {
            Some(ban) => of_key.0 = Some(ban),
            None => of_key.1.push(own),
        }
    }
    let shown = |(key, (ban, mut quotas)): (&[u8], (Option<Ban>, Vec<&Own>))| {
        let ends_at_ms = match ban {
            Some(Ban::Until(end)) => Some(millis(end)),
            _ => None,
        };
        quotas.sort_unstable_by_key(|own| &own.whom);
        let quotas: Vec<_> = quotas.into_iter().map(quota_shown).collect();
        json!({
            "key_hex": hex(key),
            "banned": ban.is_some(),
            "ends_at_ms": ends_at_ms,
            "quotas": quotas,
        })
    };
    let total = by_key.len();
    let listed: Vec<_> = by_key.into_iter().take(LISTED).map(shown).collect();
    reply(call, &json!({"total": total, "changes": listed}))
}

fn quota_shown(own: &Own) -> Value {
    let entry = own.entry.json();
    let quota = match &own.policy {
        Ok(policy) => policy.algorithm().to_string(),
        Err(why) => format!("not in force: {why}"),
    };
    json!({
        "policy": own.whom.policy,
        "quota": quota,
        "until": entry["until"],
        "grant": entry["grant"],
        "note": entry["note"],
        "by": entry["by"],
    })
}

/// `POST /dashboard/reset`.
pub(crate) async fn reset(call: Call<'_>) -> Result<(), Trouble> {
    permit(&call)?;
    let body: Reset = call.body()?;
    let key = bytes_of(&body.key_hex)?;
    let rules = call.service().enforcer.rules();
    let ask = match body.domain.is_empty() {
        true => rules
            .ask_named(body.policy.as_bytes(), &key, Cost::ONE)
            .map_err(|error| unaskable(&body.policy, error))?,
        false => ask_of_descriptor(&rules, &body, &key)?,
    };
    let operation = Operation::on_charges(Verb::Reset, vec![ask]).map_err(Trouble::bad)?;
    operation.perform(&call.worker.decider(&rules)).await?;
    operation.log(|| call.who());
    reply(call, &json!({"reset": true}))
}

fn ask_of_descriptor<'a>(
    rules: &'a Rules,
    body: &Reset,
    key: &'a [u8],
) -> Result<Ask<'a>, Trouble> {
    let charged = Key::new(key).map_err(|error| Trouble::bad(format!("key_hex: {error}")))?;
    let found = descriptor(rules, key).filter(|(domain, _)| *domain == body.domain);
    let ask = found.map(|(_, source)| rules.ask(source, charged, Cost::ONE));
    let is_its = |ask: &Ask<'_>| ask.charge.policy.name() == body.policy;
    ask.filter(is_its).ok_or_else(|| Trouble::UnknownPolicy(body.policy.clone()))
}

/// `POST /dashboard/ban`.
pub(crate) async fn ban(call: Call<'_>) -> Result<(), Trouble> {
    permit(&call)?;
    let BanAsked { key_hex, banned, for_ms } = call.body()?;
    if for_ms.is_some_and(|wait| !(1..=BAN_MS_MAX).contains(&wait)) {
        return Err(Trouble::bad(format!("for_ms must be 1 to {BAN_MS_MAX}")));
    }
    let key = key_of(&key_hex)?;
    let now_ms = millis(call.service().clock().now());
    let what = match banned {
        true => What::Ban { until_ms: for_ms.map(|wait| now_ms.saturating_add(wait)) },
        false => What::Lift,
    };
    // In an outage, too, an attacker can be kept out.
    let kept = match change_own_quota(&call, Whom::banned(&key), what, true).await {
        Ok(changed) => changed.kept,
        Err(Trouble::NoOwnQuota) => call.service().own_quotas().kept(),
        Err(trouble) => return Err(trouble),
    };
    reply(call, &json!({"banned": banned, "kept": kept}))
}

/// `POST /dashboard/quota`.
pub(crate) async fn own_quota(call: Call<'_>) -> Result<(), Trouble> {
    permit(&call)?;
    let OwnQuota { policy, key_hex, quota, until, note } = call.body()?;
    let whom = Whom { policy, key: key_of(&key_hex)?.into() };
    let note = note.unwrap_or_default();
    let what = match quota {
        Some(quota) => What::Set { quota, until_ms: until_ms(until.as_deref())?, note },
        None => What::Remove,
    };
    // An operator who helps a customer does so in an outage, too.
    let (quota, kept) = match change_own_quota(&call, whom, what, true).await {
        Ok(changed) => (changed.entry.and_then(|entry| entry.quota), changed.kept),
        Err(Trouble::NoOwnQuota) => (None, call.service().own_quotas().kept()),
        Err(trouble) => return Err(trouble),
    };
    reply(call, &json!({"quota": quota, "kept": kept}))
}

/// The bytes of a key.
fn key_of(key_hex: &str) -> Result<Vec<u8>, Trouble> {
    let key = bytes_of(key_hex)?;
    Key::new(&key).map_err(|error| Trouble::bad(format!("key_hex: {error}")))?;
    Ok(key)
}
