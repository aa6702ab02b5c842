//! From what somebody asks to the change that is made: checked against the rules and the bounds.

use super::entry::{
    Action, Change, Entry, Gift, KEY_BYTES_MAX, NOTE_BYTES_MAX, QUOTA_BYTES_MAX, Whom, millis,
};
use super::keeper::{Asked, Refused, What};
use super::{PATTERNS_MAX, QUOTAS_MAX};
use crate::service::Service;

/// The change that is asked for, which version it replaces, and whether nothing was said before.
pub(super) fn planned(service: &Service, asked: &Asked) -> Result<(Change, u64, bool), Refused> {
    let rules = service.enforcer.rules();
    let own = rules.own_quotas();
    let whom = &asked.whom;
    let is_ban = matches!(asked.what, What::Ban { .. } | What::Lift);
    let is_known = || rules.policy(&whom.policy).is_some() || own.knows(&whom.policy);
    // No policy has an empty name, so nobody bans by setting a quota of it.
    if is_ban != whom.is_ban() || !is_ban && !is_known() {
        return Err(Refused::UnknownPolicy);
    }
    let now_ms = millis(service.clock().now());
    let known = own.get(whom);
    let before = known.and_then(|own| own.entry.at(now_ms));
    let is_new = before.is_none();
    let (action, units, entry) = next(before, asked, now_ms)?;
    check_length("note", asked.what.note().len(), NOTE_BYTES_MAX)?;
    if let Some(entry) = &entry {
        check(whom, entry)?;
        if !is_ban {
            own.policy_of(&rules, whom, entry, now_ms).map_err(Refused::Wrong)?;
        }
        let (all, patterns) = own.count();
        if known.is_none() && all >= QUOTAS_MAX {
            return Err(too_many());
        }
        if known.is_none() && whom.is_pattern() && patterns >= PATTERNS_MAX {
            let text =
                format!("key: there are {PATTERNS_MAX} patterns already, the most there may be");
            return Err(Refused::Wrong(text));
        }
    }
    let (by, from, whom) = (asked.by.clone(), asked.from.clone(), whom.clone());
    let note = asked.what.note().to_owned();
    let change = Change { at_ms: now_ms, by, from, action, whom, units, note, entry };
    Ok((change, known.map_or(0, |own| own.version), is_new))
}

/// What is done, and what is to be said of them from now on.
fn next(
    before: Option<Entry>,
    asked: &Asked,
    now_ms: u64,
) -> Result<(Action, Option<u64>, Option<Entry>), Refused> {
    let signed = |entry: Entry| Some(Entry { by: asked.by.clone(), at_ms: now_ms, ..entry });
    let past = |field| Refused::Wrong(format!("{field}: it is in the past; expected a later one"));
    match asked.what.clone() {
        What::Set { until_ms: Some(until), .. } if until <= now_ms => Err(past("until")),
        What::Grant { until_ms, .. } if until_ms <= now_ms => Err(past("until")),
        What::Ban { until_ms: Some(until) } if until <= now_ms => Err(past("until")),
        What::Ban { until_ms } => {
            let entry = Entry { banned: true, until_ms, ..Entry::default() };
            Ok((Action::Banned, None, signed(entry)))
        }
        What::Set { quota, until_ms, note } => {
            let gift = before.and_then(|entry| entry.gift);
            let entry = Entry { quota: Some(quota), until_ms, gift, note, ..Entry::default() };
            Ok((Action::Set, None, signed(entry)))
        }
        What::Grant { units, until_ms, note } => {
            let before = before.unwrap_or_default();
            let entry = Entry { gift: Some(Gift { units, until_ms }), note, ..before };
            Ok((Action::Granted, None, signed(entry)))
        }
        // They are given by the store; here it is noted who has done so.
        What::GrantOnce { units, .. } => Ok((Action::Granted, Some(units), before)),
        What::Remove | What::Lift if before.is_none() => Err(Refused::Nothing),
        What::Lift => Ok((Action::Lifted, None, None)),
        What::Remove => Ok((Action::Removed, None, None)),
    }
}

fn check(whom: &Whom, entry: &Entry) -> Result<(), Refused> {
    check_length("key", whom.key.len(), KEY_BYTES_MAX)?;
    check_length("quota", entry.quota.as_ref().map_or(0, String::len), QUOTA_BYTES_MAX)
}

fn check_length(field: &str, found: usize, most: usize) -> Result<(), Refused> {
    match found > most {
        true => Err(Refused::Wrong(format!("{field}: {found} bytes; expected at most {most}"))),
        false => Ok(()),
    }
}

/// That there is no room for another.
pub(super) fn too_many() -> Refused {
    Refused::Wrong(format!(
        "key: {QUOTAS_MAX} keys have a quota of their own or are banned, the most there may be"
    ))
}
