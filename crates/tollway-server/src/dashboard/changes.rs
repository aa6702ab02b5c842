//! `POST /dashboard/reset`, `/ban` and `/quota`: what an administrator changes about one key.

use serde::Deserialize;
use serde_json::json;
use tollway_core::{Cost, Key, Quota};
use tracing::info;

use super::keys::bytes_of;
use super::{describe, reply};
use crate::http::{Call, Trouble, permit_change as permit, unaskable};
use crate::operator_changes::{NoRoom, OperatorChanges};
use crate::rules::Rules;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Reset {
    policy: String,
    key_hex: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Ban {
    key_hex: String,
    banned: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OwnQuota {
    policy: String,
    key_hex: String,
    /// As in the configuration, `100/1m burst 20`; `null` takes the key's own quota away.
    quota: Option<String>,
}

/// `POST /dashboard/reset`.
pub(crate) async fn reset(call: Call<'_>) -> Result<(), Trouble> {
    permit(&call)?;
    let body: Reset = call.body()?;
    let key = bytes_of(&body.key_hex)?;
    let rules = call.service().enforcer.rules();
    let ask = rules
        .ask_named(body.policy.as_bytes(), &key, Cost::ONE)
        .map_err(|error| unaskable(&body.policy, error))?;
    let decider = call.worker.decider(&rules);
    for ask in ask.with_spacing() {
        decider.reset(&ask).await?;
    }
    info!(policy = body.policy, "a key was reset from the dashboard");
    reply(call, &json!({"reset": true}))
}

/// `POST /dashboard/ban`.
pub(crate) fn ban(call: Call<'_>) -> Result<(), Trouble> {
    permit(&call)?;
    let body: Ban = call.body()?;
    change(&call, &body.key_hex, |changes, key| changes.ban(key, body.banned))?;
    info!(banned = body.banned, "a key was banned or let in from the dashboard");
    reply(call, &json!({"banned": body.banned}))
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
    change(&call, &body.key_hex, |changes, key| changes.own(key, &body.policy, own.clone()))?;
    info!(policy = body.policy, quota = body.quota, "a key's quota was set from the dashboard");
    reply(call, &json!({"quota": own.map(|policy| policy.algorithm().to_string())}))
}

/// Changes what holds for one key.
fn change(
    call: &Call<'_>,
    key_hex: &str,
    change: impl FnOnce(&mut OperatorChanges, &[u8]) -> Result<(), NoRoom>,
) -> Result<(), Trouble> {
    let key = bytes_of(key_hex)?;
    Key::new(&key).map_err(|error| Trouble::bad(format!("key_hex: {error}")))?;
    let no_room = |_| {
        Trouble::bad(
            "too many keys have changes of their own: put some of them into the configuration",
        )
    };
    call.service().enforcer.change_for_operator(|changes| change(changes, &key)).map_err(no_room)
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
