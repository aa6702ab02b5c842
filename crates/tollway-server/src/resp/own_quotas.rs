//! `TOLL.SETQUOTA` and its relatives: quotas of one's own, for a key or a pattern.
//!
//! ```text
//!   TOLL.SETQUOTA policy key quota [UNTIL time] [NOTE text]  -> OK
//!   TOLL.GRANT    policy key units [UNTIL time] [NOTE text]  -> [limit, remaining]; OK with UNTIL
//!   TOLL.GETQUOTA policy key                                 -> nil, or what holds, as below
//!   TOLL.DELQUOTA policy key                                 -> 1, or 0 if there was none
//!   TOLL.QUOTAS   policy [AFTER key] [MAX n]                 -> [what holds ...], in order
//! ```
//!
//! What holds is `[key, quota or nil, until or nil, granted units or nil, their until or nil, note,
//! who, in force or nil]`, times as RFC 3339.

use tollway_core::Key;

use super::encode::Encoder;
use super::operations::failure;
use super::parse::unsigned;
use super::session::Session;
use crate::own_quotas::{self, Asked, Own, Refused, What, Whom, millis, moment};
use crate::worker::Worker;

const LISTED: u64 = 100;
const LISTED_MAX: u64 = 1_000;

/// A command about quotas of one's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QuotaCommand {
    Set,
    Grant,
    Get,
    Delete,
    List,
}

/// Why a command is refused, as it is told.
type Refusal = String;

impl QuotaCommand {
    /// The command of this name.
    pub(super) fn named(name: &[u8]) -> Option<Self> {
        const NAMES: [(&str, QuotaCommand); 5] = [
            ("TOLL.SETQUOTA", QuotaCommand::Set),
            ("TOLL.GRANT", QuotaCommand::Grant),
            ("TOLL.GETQUOTA", QuotaCommand::Get),
            ("TOLL.DELQUOTA", QuotaCommand::Delete),
            ("TOLL.QUOTAS", QuotaCommand::List),
        ];
        let found = NAMES.iter().find(|(known, _)| name.eq_ignore_ascii_case(known.as_bytes()));
        found.map(|(_, command)| *command)
    }

    /// Does it, and writes the reply; the text of the error if it is refused.
    pub(super) async fn answer(
        self,
        args: &[&[u8]],
        session: &Session,
        worker: &Worker,
        out: &mut Vec<u8>,
    ) -> Result<(), Refusal> {
        if let Some(text) = session.refusal_to_change() {
            return Err(text.to_owned());
        }
        let mut encoder = Encoder::new(out, session.version());
        match (self, args) {
            (Self::Set, [policy, key, quota, options @ ..]) => {
                let Options { until_ms, note } = Options::parse(options)?;
                let quota = text("quota", quota)?;
                let what = What::Set { quota, until_ms, note };
                change(worker, session, whom(policy, key)?, what).await?;
                encoder.simple("OK");
            }
            (Self::Grant, [policy, key, units, options @ ..]) => {
                let units = unsigned(units).ok_or("ERR units: expected a whole number from 1")?;
                let what = match Options::parse(options)? {
                    Options { until_ms: Some(until_ms), note } => {
                        What::Grant { units, until_ms, note }
                    }
                    Options { until_ms: None, note } => What::GrantOnce { units, note },
                };
                match change(worker, session, whom(policy, key)?, what).await? {
                    Some(left) => {
                        encoder.array(2);
                        encoder.unsigned(left.limit());
                        encoder.unsigned(left.remaining());
                    }
                    None => encoder.simple("OK"),
                }
            }
            (Self::Delete, [policy, key]) => {
                let asked = change(worker, session, whom(policy, key)?, What::Remove).await;
                match asked {
                    Err(text) if text == NONE => encoder.integer(0),
                    changed => {
                        changed?;
                        encoder.integer(1);
                    }
                }
            }
            (Self::Get, [policy, key]) => {
                let rules = worker.service.enforcer.rules();
                match rules.own_quotas().get(&whom(policy, key)?) {
                    Some(own) => encode(own, &mut encoder),
                    None => encoder.null(),
                }
            }
            (Self::List, [policy, options @ ..]) => list(policy, options, worker, &mut encoder)?,
            _ => return Err("ERR wrong number of arguments".to_owned()),
        }
        Ok(())
    }
}

/// What may follow what is set or granted.
#[derive(Debug, Default)]
struct Options {
    until_ms: Option<u64>,
    note: String,
}

impl Options {
    fn parse(mut args: &[&[u8]]) -> Result<Self, Refusal> {
        let mut options = Self::default();
        while let [name, value, after @ ..] = args {
            if name.eq_ignore_ascii_case(b"UNTIL") {
                let at = tollway_zones::moment(&text("until", value)?);
                options.until_ms =
                    Some(at.map(millis).map_err(|error| format!("ERR until: {error}"))?);
            } else if name.eq_ignore_ascii_case(b"NOTE") {
                options.note = text("note", value)?;
            } else {
                break;
            }
            args = after;
        }
        match args {
            [] => Ok(options),
            _ => Err("ERR syntax error; expected UNTIL time or NOTE text".to_owned()),
        }
    }
}

const NONE: &str = "ERR key: it has no quota of its own";

async fn change(
    worker: &Worker,
    session: &Session,
    whom: Whom,
    what: What,
) -> Result<Option<tollway_core::Snapshot>, Refusal> {
    let (by, from) = (session.who(), session.peer().to_string());
    let changed =
        own_quotas::change(worker, Asked { whom, what, by, from, here_if_away: false }).await;
    changed.map(|changed| changed.left).map_err(|refused| match refused {
        Refused::UnknownPolicy => "NOPOLICY no policy has this name".to_owned(),
        Refused::Wrong(text) => format!("ERR {text}"),
        Refused::Nothing => NONE.to_owned(),
        Refused::NotKept(error) => failure(&error),
    })
}

fn list(
    policy: &[u8],
    mut options: &[&[u8]],
    worker: &Worker,
    encoder: &mut Encoder<'_>,
) -> Result<(), Refusal> {
    let (mut after, mut most) = (None, LISTED);
    while let [name, value, rest @ ..] = options {
        if name.eq_ignore_ascii_case(b"AFTER") {
            after = Some(*value);
        } else if name.eq_ignore_ascii_case(b"MAX") {
            let number = unsigned(value).filter(|number| (1..=LISTED_MAX).contains(number));
            most = number.ok_or_else(|| format!("ERR max: expected 1 to {LISTED_MAX}"))?;
        } else {
            break;
        }
        options = rest;
    }
    if !options.is_empty() {
        return Err("ERR syntax error; expected AFTER key or MAX number".to_owned());
    }
    let (policy, rules) = (text("policy", policy)?, worker.service.enforcer.rules());
    let all = rules.own_quotas().of_policy(&policy);
    if all.is_empty() && rules.policy(&policy).is_none() {
        return Err("NOPOLICY no policy has this name".to_owned());
    }
    let later = all.into_iter().filter(|own| after.is_none_or(|after| own.whom.key[..] > *after));
    let page: Vec<&Own> = later.take(most as usize).collect();
    encoder.array(page.len());
    page.into_iter().for_each(|own| encode(own, encoder));
    Ok(())
}

fn encode(own: &Own, encoder: &mut Encoder<'_>) {
    let (entry, gift) = (&own.entry, own.entry.gift);
    encoder.array(8);
    encoder.bulk(&own.whom.key);
    let mut put = |text: Option<String>| match text {
        Some(text) => encoder.bulk(text.as_bytes()),
        None => encoder.null(),
    };
    put(entry.quota.clone());
    put(entry.until_ms.map(moment));
    put(gift.map(|gift| gift.units.to_string()));
    put(gift.map(|gift| moment(gift.until_ms)));
    put(Some(entry.note.clone()));
    put(Some(entry.by.clone()));
    put(own.policy.as_ref().ok().map(|policy| policy.algorithm().to_string()));
}

fn whom(policy: &[u8], key: &[u8]) -> Result<Whom, Refusal> {
    let key = Key::new(key).map_err(|error| format!("ERR key: {error}"))?;
    Ok(Whom { policy: text("policy", policy)?, key: key.as_bytes().into() })
}

fn text(field: &str, bytes: &[u8]) -> Result<String, Refusal> {
    let wrong = |_| format!("ERR {field}: expected text in UTF-8");
    std::str::from_utf8(bytes).map(str::to_owned).map_err(wrong)
}
