//! What fronts ask to be changed: done, and logged with who did it.

use tollway_core::{Cost, Snapshot};
use tracing::info;

use super::entry::{Whom, moment};
use super::keeper::{Asked, Changed, Keeper, Refused, What};
use crate::logs::escaped;
use crate::rules::Unaskable;
use crate::worker::Worker;

/// Changes something, for every request from now on; on a shared store for every node.
pub(crate) async fn change(worker: &Worker, asked: Asked) -> Result<Changed, Refused> {
    let left = match asked.what {
        What::GrantOnce { units, .. } => Some(give_back(worker, &asked.whom, units).await?),
        _ => None,
    };
    let service = &worker.service;
    let changed = Keeper::change(service, asked.clone()).await?;
    let Asked { whom, what, by: who, .. } = asked;
    let (key, policy, kept) = (escaped(&whom.key), whom.policy, service.own_quotas().kept());
    match what {
        What::Set { quota, until_ms, .. } => {
            let until = until_ms.map(moment);
            info!(who, key, policy, quota, until, kept, "an operator set a key's quota");
        }
        What::Grant { units, until_ms, .. } => {
            let until = moment(until_ms);
            info!(who, key, policy, units, until, kept, "an operator granted units");
        }
        What::GrantOnce { units, .. } => {
            info!(who, key, policy, units, "an operator granted units once");
        }
        What::Ban { until_ms } => {
            let until = until_ms.map(moment);
            info!(who, key, until, kept, "an operator banned a key under all policies");
        }
        What::Lift => info!(who, key, kept, "an operator lifted the ban of a key"),
        What::Remove => {
            info!(who, key, policy, kept, "an operator took a key's own quota away");
        }
    }
    Ok(Changed { left, ..changed })
}

/// Gives units back to a key, as far as it has used them.
async fn give_back(worker: &Worker, whom: &Whom, units: u64) -> Result<Snapshot, Refused> {
    let wrong = |text: &str| Refused::Wrong(text.to_owned());
    if whom.is_pattern() {
        return Err(wrong(
            "key: units are given once to one key; expected no pattern, or an until",
        ));
    }
    let units = Cost::new(units).ok_or_else(|| wrong("units: expected a whole number from 1"))?;
    let rules = worker.service.enforcer.rules();
    let ask = rules.ask_named(whom.policy.as_bytes(), &whom.key, units);
    let ask = ask.map_err(|error| match error {
        Unaskable::UnknownPolicy => Refused::UnknownPolicy,
        error => Refused::Wrong(format!("key: {error}")),
    })?;
    worker.decider(&rules).refund(&ask).await.map_err(Refused::NotKept)
}
