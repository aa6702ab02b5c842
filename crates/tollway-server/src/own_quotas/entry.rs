//! What was said of one key, or of the keys of a pattern, under one policy; and who said it. What
//! is said under no policy is a ban: it holds under all of them.
//!
//! A change is told in the same words wherever it is kept: in a line of a file, in the log of a
//! shared store, to whoever asks. State is what changes have made, so both come from one record.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::time::Duration;
use tollway_core::Timestamp;
use tollway_core::fields::calendar::print_rfc3339;

use crate::top::hex;

/// The longest key, in bytes.
pub(crate) const KEY_BYTES_MAX: usize = 1_024;
/// The longest note, in bytes.
pub(crate) const NOTE_BYTES_MAX: usize = 200;
/// The longest quota, in bytes.
pub(crate) const QUOTA_BYTES_MAX: usize = 200;

/// Whom it is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Whom {
    /// The policy; no name for all of them, which only a ban is under.
    pub policy: String,
    /// The key, or a pattern if there is a star in it.
    #[serde(rename = "key_hex", with = "as_hex")]
    pub key: Box<[u8]>,
}

/// What holds for them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    /// The quota, as in the configuration.
    pub quota: Option<String>,
    /// When it ends.
    pub until_ms: Option<u64>,
    /// Units beyond the quota, for a time.
    pub gift: Option<Gift>,
    /// Whether all policies deny the key. It is left out where nobody is banned: versions of
    /// before bans were kept read the rest.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub banned: bool,
    /// Why, in the words of whoever has said so.
    pub note: String,
    /// Who has said so last.
    pub by: String,
    /// When.
    pub at_ms: u64,
}

/// Units beyond a quota, until then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Gift {
    /// How many.
    pub units: u64,
    /// When they end.
    pub until_ms: u64,
}

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Action {
    /// A quota was set.
    Set,
    /// Quota and gift were taken away.
    Removed,
    /// Units were given.
    Granted,
    /// A key was banned.
    Banned,
    /// A ban was lifted.
    Lifted,
}

/// A change of one entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Change {
    /// When.
    pub at_ms: u64,
    /// Whose token it was.
    pub by: String,
    /// From where.
    pub from: String,
    /// What was done.
    pub action: Action,
    /// To whom.
    #[serde(flatten)]
    pub whom: Whom,
    /// Units that were given once.
    pub units: Option<u64>,
    /// Why, in the words of whoever did it.
    pub note: String,
    /// What holds from then on, if anything does.
    pub entry: Option<Entry>,
}

mod as_hex {
    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(key: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&crate::top::hex(key))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Box<[u8]>, D::Error> {
        let digits = String::deserialize(from)?;
        let bytes = crate::top::bytes_of_hex(&digits);
        bytes.map(Into::into).ok_or_else(|| serde::de::Error::custom("key_hex is not hexadecimal"))
    }
}

impl Whom {
    /// Whether it is about all keys of a pattern.
    pub(crate) fn is_pattern(&self) -> bool {
        !self.is_ban() && self.key.contains(&b'*')
    }

    /// A key that is banned under all policies.
    pub(crate) fn banned(key: &[u8]) -> Self {
        Self { policy: String::new(), key: key.into() }
    }

    /// Whether it is about all policies: no policy has an empty name.
    pub(crate) fn is_ban(&self) -> bool {
        self.policy.is_empty()
    }
}

impl Entry {
    /// What is left of it at `now`; `None` if all has ended.
    pub(crate) fn at(&self, now_ms: u64) -> Option<Self> {
        let mut left = self.clone();
        if left.until_ms.is_some_and(|until| until <= now_ms) {
            (left.quota, left.until_ms, left.banned) = (None, None, false);
        }
        left.gift = left.gift.filter(|gift| gift.until_ms > now_ms);
        (left.quota.is_some() || left.gift.is_some() || left.banned).then_some(left)
    }

    /// As it is told.
    pub(crate) fn json(&self) -> Value {
        let gift =
            self.gift.map(|gift| json!({"units": gift.units, "until": moment(gift.until_ms)}));
        json!({
            "quota": self.quota,
            "until": self.until_ms.map(moment),
            "grant": gift,
            "note": self.note,
            "by": self.by,
            "at": moment(self.at_ms),
        })
    }
}

impl Change {
    /// As it is told.
    pub(crate) fn json(&self) -> Value {
        let mut told = whom_json(&self.whom);
        told["at"] = moment(self.at_ms).into();
        told["by"] = self.by.as_str().into();
        told["from"] = self.from.as_str().into();
        told["action"] = json!(self.action);
        told["units"] = self.units.into();
        let entry = self.entry.as_ref();
        told["quota"] = entry.and_then(|entry| entry.quota.clone()).into();
        told["until"] = entry.and_then(|entry| entry.until_ms).map(moment).into();
        told["grant"] = entry.map_or(Value::Null, |entry| entry.json()["grant"].take());
        told["note"] = self.note.as_str().into();
        told
    }
}

/// Policy and key as they are told: the key as text if it is one, and always as bytes.
pub(crate) fn whom_json(whom: &Whom) -> Value {
    json!({
        "policy": whom.policy,
        "key": std::str::from_utf8(&whom.key).ok(),
        "key_hex": hex(&whom.key),
    })
}

/// A moment as it is told.
pub(crate) fn moment(at_ms: u64) -> String {
    print_rfc3339(Duration::from_millis(at_ms))
}

/// Milliseconds since 1970.
pub(crate) const fn millis(at: Timestamp) -> u64 {
    at.as_nanos() / 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_read_as_it_was_written_whatever_the_key_is_made_of() {
        let whom = Whom { policy: "api".to_owned(), key: Box::from(&b"\xff*\n\""[..]) };
        let gift = Some(Gift { units: 5, until_ms: 9_000 });
        let entry = Entry { quota: Some("9/1m".to_owned()), gift, at_ms: 7, ..Entry::default() };
        let change = Change {
            at_ms: 7,
            by: "ada".to_owned(),
            from: "::1".to_owned(),
            action: Action::Granted,
            whom,
            units: Some(5),
            note: "launch".to_owned(),
            entry: Some(entry),
        };
        let text = serde_json::to_string(&change).unwrap();
        assert_eq!(serde_json::from_str::<Change>(&text).unwrap(), change);
        assert!(!text.contains('\n'));
    }

    #[test]
    fn each_part_of_an_entry_ends_by_itself() {
        let gift = Some(Gift { units: 5, until_ms: 2_000 });
        let entry = Entry {
            quota: Some("9/1m".to_owned()),
            until_ms: Some(1_000),
            gift,
            ..Entry::default()
        };
        assert_eq!(entry.at(999).as_ref(), Some(&entry));
        let left = entry.at(1_000).unwrap();
        assert_eq!((&left.quota, left.gift), (&None, gift));
        assert_eq!(entry.at(2_000), None);
    }
}
