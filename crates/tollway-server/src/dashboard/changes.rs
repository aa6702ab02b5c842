//! `POST /dashboard/reset`, `/ban` and `/quota`: what an administrator changes about one key.

use serde::Deserialize;
use serde_json::{Value, json};
use tollway_core::{Cost, Key, Quota};
use tracing::info;

use super::describe;
use super::keys::bytes_of;
use crate::auth::Role;
use crate::http::{Request, Trouble, read};
use crate::operator_changes::NoRoom;
use crate::rules::{AskError, Rules};
use crate::worker::Worker;

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

/// Makes the change that the path names.
pub(super) async fn change(
    worker: &Worker,
    path: &str,
    request: &Request<'_>,
) -> Result<Value, Trouble> {
    // Open to everybody on this machine is open to every page in a browser on it.
    let auth = worker.service.auth();
    if auth.is_open() {
        return Err(Trouble::NoToken);
    }
    // Again, by these tokens: since the request was permitted the service may have ceased to be open.
    if auth.role_of_field(request.fields.field("authorization")) != Some(Role::Admin) {
        return Err(Trouble::Forbidden);
    }
    drop(auth);
    match path {
        "/dashboard/reset" => reset(worker, read(request.body)?).await,
        "/dashboard/ban" => ban(worker, &read(request.body)?),
        _ => own_quota(worker, &read(request.body)?),
    }
}

async fn reset(worker: &Worker, body: Reset) -> Result<Value, Trouble> {
    let key = bytes_of(&body.key_hex)?;
    let rules = worker.service.enforcer.rules();
    let ask =
        rules.ask_named(body.policy.as_bytes(), &key, Cost::ONE).map_err(|error| match error {
            AskError::UnknownPolicy => Trouble::UnknownPolicy(body.policy.clone()),
            AskError::Key(error) => Trouble::Bad(error.to_string()),
        })?;
    worker.decider(&rules).reset(&ask).await?;
    info!(policy = body.policy, "a key was reset from the dashboard");
    Ok(json!({"reset": true}))
}

fn ban(worker: &Worker, body: &Ban) -> Result<Value, Trouble> {
    let key = bytes_of(&body.key_hex)?;
    Key::new(&key).map_err(|error| Trouble::Bad(error.to_string()))?;
    worker
        .service
        .enforcer
        .amend(|amendments| amendments.ban(&key, body.banned))
        .map_err(no_room)?;
    info!(banned = body.banned, "a key was banned or let in from the dashboard");
    Ok(json!({"banned": body.banned}))
}

fn own_quota(worker: &Worker, body: &OwnQuota) -> Result<Value, Trouble> {
    let key = bytes_of(&body.key_hex)?;
    Key::new(&key).map_err(|error| Trouble::Bad(error.to_string()))?;
    let rules = worker.service.enforcer.rules();
    let own = match &body.quota {
        Some(text) => Some(own_policy(&rules, &body.policy, text)?),
        None => None,
    };
    let change = |amendments: &mut crate::operator_changes::OperatorChanges| {
        amendments.own(&key, &body.policy, own.clone())
    };
    worker.service.enforcer.amend(change).map_err(no_room)?;
    info!(policy = body.policy, quota = body.quota, "a key's quota was set from the dashboard");
    Ok(json!({"quota": own.map(|policy| describe::quota(policy.algorithm()))}))
}

fn own_policy(rules: &Rules, name: &str, text: &str) -> Result<tollway_core::Policy, Trouble> {
    let unknown = || Trouble::UnknownPolicy(name.to_owned());
    let policy = rules.policy(name).ok_or_else(unknown)?;
    let quota: Quota = text.parse().map_err(|error| Trouble::Bad(format!("the quota: {error}")))?;
    describe::with_quota(policy, quota).map_err(Trouble::Bad)
}

fn no_room(_: NoRoom) -> Trouble {
    Trouble::Bad("too many keys are amended: put some into the configuration".to_owned())
}
