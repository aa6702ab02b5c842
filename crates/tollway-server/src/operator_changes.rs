//! What operators change while the service runs: keys banned, keys given a quota of their own.
//!
//! These changes stand beside the rules and outlive a reload of them, but not the process, and
//! hold on this node only: what is to last belongs into the configuration. A set of them never
//! changes: what an operator does makes the next set
//! ([`crate::enforcer::Enforcer::change_for_operator`]), so that a request sees one state of
//! affairs from beginning to end.

use std::collections::HashMap;

use tollway_core::{Policy, Timestamp};

/// Keys that may be changed at once.
const KEYS_MAX: usize = 10_000;
/// Policies of one key that may have a quota of their own.
const QUOTAS_PER_KEY_MAX: usize = 64;

/// Keys that are treated differently from what the rules say.
#[derive(Clone, Debug, Default)]
pub(crate) struct OperatorChanges {
    by_key: HashMap<Box<[u8]>, OperatorChange>,
}

/// What is different for one key.
#[derive(Clone, Debug, Default)]
pub(crate) struct OperatorChange {
    ban: Option<Ban>,
    quotas: HashMap<String, Policy>,
}

/// How long a key is always denied; never longer than the process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ban {
    /// Until an operator lifts it.
    UntilLifted,
    /// Until then, or until it is lifted.
    Until(Timestamp),
}

/// There is no room for another change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoRoom;

impl OperatorChanges {
    /// What is different for `key`, if anything is.
    #[inline]
    pub(crate) fn of(&self, key: &[u8]) -> Option<&OperatorChange> {
        // Almost always there are none, and then no key is hashed for it.
        if self.by_key.is_empty() { None } else { self.by_key.get(key) }
    }

    /// Whether `key` is banned.
    #[inline]
    pub(crate) fn is_banned(&self, key: &[u8]) -> bool {
        self.of(key).is_some_and(OperatorChange::is_banned)
    }

    /// Every key that has one, in order, with what is different for it.
    pub(crate) fn sorted(&self) -> Vec<(&[u8], &OperatorChange)> {
        let mut all: Vec<_> = self.by_key.iter().map(|(key, change)| (&**key, change)).collect();
        all.sort_unstable_by_key(|(key, _)| *key);
        all
    }

    /// The policies that single keys have.
    pub(crate) fn policies(&self) -> impl Iterator<Item = &Policy> {
        self.by_key.values().flat_map(|change| change.quotas.values())
    }

    /// How many keys have one.
    pub(crate) fn len(&self) -> usize {
        self.by_key.len()
    }

    /// Bans `key`.
    ///
    /// # Errors
    ///
    /// If too many keys have been changed.
    pub(crate) fn ban(&mut self, key: &[u8], ban: Ban) -> Result<(), NoRoom> {
        self.entry(key)?.ban = Some(ban);
        Ok(())
    }

    /// Lets `key` in again.
    pub(crate) fn lift(&mut self, key: &[u8]) {
        if let Some(change) = self.by_key.get_mut(key) {
            change.ban = None;
        }
        self.tidy(key);
    }

    /// The keys whose bans have ended at `now`.
    pub(crate) fn ended(&self, now: Timestamp) -> Vec<Box<[u8]>> {
        let has_ended =
            |change: &OperatorChange| matches!(change.ban, Some(Ban::Until(end)) if end <= now);
        let ended = self.by_key.iter().filter(|(_, change)| has_ended(change));
        ended.map(|(key, _)| key.clone()).collect()
    }

    /// Gives `key` its own form of the policy of this name, or takes it away again.
    ///
    /// # Errors
    ///
    /// If too many keys, or too many policies of this key, have been changed.
    pub(crate) fn own(
        &mut self,
        key: &[u8],
        name: &str,
        policy: Option<Policy>,
    ) -> Result<(), NoRoom> {
        let quotas = &mut self.entry(key)?.quotas;
        match policy {
            Some(policy) if quotas.len() < QUOTAS_PER_KEY_MAX || quotas.contains_key(name) => {
                quotas.insert(name.to_owned(), policy);
            }
            Some(_) => return Err(NoRoom),
            None => {
                quotas.remove(name);
            }
        }
        self.tidy(key);
        Ok(())
    }

    fn entry(&mut self, key: &[u8]) -> Result<&mut OperatorChange, NoRoom> {
        if self.by_key.len() >= KEYS_MAX && !self.by_key.contains_key(key) {
            return Err(NoRoom);
        }
        Ok(self.by_key.entry(key.into()).or_default())
    }

    fn tidy(&mut self, key: &[u8]) {
        if self.of(key).is_some_and(|own| !own.is_banned() && own.quotas.is_empty()) {
            self.by_key.remove(key);
        }
    }
}

impl OperatorChange {
    /// Whether the key is always denied.
    pub(crate) const fn is_banned(&self) -> bool {
        self.ban.is_some()
    }

    /// The key's own forms of policies.
    pub(crate) fn policies(&self) -> impl Iterator<Item = &Policy> {
        self.quotas.values()
    }

    /// The ban, if there is one.
    pub(crate) const fn ban(&self) -> Option<Ban> {
        self.ban
    }

    /// The key's own form of the policy of this name.
    pub(crate) fn policy(&self, name: &str) -> Option<&Policy> {
        self.quotas.get(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_taken_back_leaves_nothing_behind() {
        let mut changes = OperatorChanges::default();
        let policy = Policy::parse("api", "9/s").unwrap();
        changes.ban(b"k", Ban::UntilLifted).unwrap();
        changes.own(b"k", "api", Some(policy.clone())).unwrap();
        assert!(changes.is_banned(b"k") && !changes.is_banned(b"other"));
        assert_eq!(changes.of(b"k").unwrap().policy("api"), Some(&policy));
        changes.lift(b"k");
        changes.own(b"k", "api", None).unwrap();
        assert_eq!(changes.len(), 0);
    }

    #[test]
    fn the_number_of_changed_keys_is_bounded() {
        let mut changes = OperatorChanges::default();
        for key in 0..KEYS_MAX {
            changes.ban(&key.to_le_bytes(), Ban::UntilLifted).unwrap();
        }
        assert_eq!(changes.ban(b"one more", Ban::UntilLifted), Err(NoRoom));
        changes.lift(&0usize.to_le_bytes());
        assert_eq!(changes.ban(b"one more", Ban::UntilLifted), Ok(()));
    }

    #[test]
    fn a_ban_with_an_end_has_ended_then_and_not_before() {
        let (mut changes, end) = (OperatorChanges::default(), Timestamp::from_millis(2_000));
        changes.ban(b"short", Ban::Until(end)).unwrap();
        changes.ban(b"long", Ban::UntilLifted).unwrap();
        assert!(changes.ended(Timestamp::from_millis(1_999)).is_empty());
        assert_eq!(changes.ended(end), [Box::from(&b"short"[..])]);
        assert!(changes.is_banned(b"short"), "it is lifted by whoever looks");
    }
}
