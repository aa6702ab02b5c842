//! `POST /dashboard/reset`, `/ban` and `/quota`: what an administrator changes about one key; and
//! `GET /dashboard/changes`: what is changed.
//!
//! Each change is logged with the key, escaped, and with the name of whose token it was.

use std::time::Duration;

use serde::Deserialize;
use serde_json::json;
use tollway_core::{Cost, Key, Quota};
use tracing::info;

use super::keys::{bytes_of, descriptor};
use super::{describe, reply};
use crate::http::{Call, Trouble, permit_change as permit, unaskable};
use crate::logs::escaped;
use crate::operation::{Operation, Verb};
use crate::operator_changes::{Ban, NoRoom, OperatorChange, OperatorChanges};
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
    /// How long; until it is lifted or the service stops, if it is left out.
    for_ms: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OwnQuota {
    policy: String,
    key_hex: String,
    /// As in the configuration, `100/1m burst 20`; `null` takes the key's own quota away.
    quota: Option<String>,
}

/// `GET /dashboard/changes`: the first keys that operators have changed, and how.
pub(crate) fn list(call: Call<'_>) -> Result<(), Trouble> {
    let rules = call.service().enforcer.rules();
    let changes = rules.operator_changes();
    let shown = |(key, change): (&[u8], &OperatorChange)| {
        let ends_at_ms = match change.ban() {
            Some(Ban::Until(end)) => Some(end.as_nanos() / 1_000_000),
            _ => None,
        };
        let mut quotas: Vec<_> = change
            .policies()
            .map(|own| json!({"policy": own.name(), "quota": own.algorithm().to_string()}))
            .collect();
        quotas.sort_unstable_by_key(|own| own["policy"].as_str().unwrap_or_default().to_owned());
        json!({
            "key_hex": hex(key),
            "banned": change.is_banned(),
            "ends_at_ms": ends_at_ms,
            "quotas": quotas,
        })
    };
    let listed: Vec<_> = changes.sorted().into_iter().take(LISTED).map(shown).collect();
    reply(call, &json!({"total": changes.len(), "changes": listed}))
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
pub(crate) fn ban(call: Call<'_>) -> Result<(), Trouble> {
    permit(&call)?;
    let BanAsked { key_hex, banned, for_ms } = call.body()?;
    if for_ms.is_some_and(|wait| !(1..=BAN_MS_MAX).contains(&wait)) {
        return Err(Trouble::bad(format!("for_ms must be 1 to {BAN_MS_MAX}")));
    }
    let end = for_ms.map(|wait| call.service().clock().now().after(Duration::from_millis(wait)));
    let ban = end.map_or(Ban::UntilLifted, Ban::Until);
    let key = change(&call, &key_hex, |changes, key| match banned {
        true => changes.ban(key, ban),
        false => {
            changes.lift(key);
            Ok(())
        }
    })?;
    let (who, key) = (call.who(), escaped(&key));
    match banned {
        true => info!(who, key, for_ms, "an operator banned a key under all policies of this node"),
        false => info!(who, key, "an operator lifted the ban of a key on this node"),
    }
    reply(call, &json!({"banned": banned}))
}

/// `POST /dashboard/quota`.
pub(crate) fn own_quota(call: Call<'_>) -> Result<(), Trouble> {
    permit(&call)?;
    let body: OwnQuota = call.body()?;
    let rules = call.service().enforcer.rules();
    let own = match &body.quota {
        Some(text) => Some(own_policy(&rules, &body.policy, text)?),
        None => None,
    };
    let set =
        |changes: &mut OperatorChanges, key: &[u8]| changes.own(key, &body.policy, own.clone());
    let key = escaped(&change(&call, &body.key_hex, set)?);
    let (who, policy) = (call.who(), body.policy);
    match body.quota {
        Some(quota) => info!(who, key, policy, quota, "an operator set a key's quota on this node"),
        None => info!(who, key, policy, "an operator took a key's own quota away on this node"),
    }
    reply(call, &json!({"quota": own.map(|policy| policy.algorithm().to_string())}))
}

/// Changes what holds for one key; its bytes.
fn change(
    call: &Call<'_>,
    key_hex: &str,
    change: impl FnOnce(&mut OperatorChanges, &[u8]) -> Result<(), NoRoom>,
) -> Result<Vec<u8>, Trouble> {
    let key = bytes_of(key_hex)?;
    Key::new(&key).map_err(|error| Trouble::bad(format!("key_hex: {error}")))?;
    let no_room = |_| {
        Trouble::bad(
            "too many keys have changes of their own: put some of them into the configuration",
        )
    };
    let enforcer = &call.service().enforcer;
    enforcer.change_for_operator(|changes| change(changes, &key)).map_err(no_room)?;
    Ok(key)
}

fn own_policy(rules: &Rules, name: &str, text: &str) -> Result<tollway_core::Policy, Trouble> {
    let unknown = || Trouble::UnknownPolicy(name.to_owned());
    let policy = rules.policy(name).ok_or_else(unknown)?;
    let quota: Quota = text.parse().map_err(|error| Trouble::bad(format!("quota: {error}")))?;
    let own = describe::with_quota(policy, quota).map_err(Trouble::Bad)?;
    let split = rules.rule(name).and_then(|rule| rule.options().split);
    let is_too_small = |parts: &u32| own.algorithm().share(*parts, *parts - 1).is_none();
    match split.map(|parts| u32::from(parts.get())).filter(is_too_small) {
        Some(parts) => Err(Trouble::bad(format!("quota: the keys are split into {parts} parts"))),
        None => Ok(own),
    }
}
