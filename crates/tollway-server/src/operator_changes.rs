//! What operators change while the service runs: keys that are banned.
//!
//! Bans stand beside the rules and outlive a reload of them, but not the process, and hold on this
//! node only: what is to last belongs into the configuration. A set of them never changes: what an
//! operator does makes the next set ([`crate::enforcer::Enforcer::change_for_operator`]), so that a
//! request sees one state of affairs from beginning to end. Quotas that single keys are given are
//! kept and shared: [`crate::own_quotas`].

use std::collections::HashMap;

use tollway_core::Timestamp;

/// Keys that may be changed at once.
const KEYS_MAX: usize = 10_000;

/// Keys that are always denied.
#[derive(Clone, Debug, Default)]
pub(crate) struct OperatorChanges {
    bans: HashMap<Box<[u8]>, Ban>,
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
    /// How long `key` is banned, if it is.
    #[inline]
    pub(crate) fn ban_of(&self, key: &[u8]) -> Option<Ban> {
        // Almost always there are none, and then no key is hashed for it.
        if self.bans.is_empty() { None } else { self.bans.get(key).copied() }
    }

    /// Every banned key, in no order.
    pub(crate) fn bans(&self) -> impl Iterator<Item = (&[u8], Ban)> {
        self.bans.iter().map(|(key, ban)| (&**key, *ban))
    }

    /// Bans `key`.
    ///
    /// # Errors
    ///
    /// If too many keys have been banned.
    pub(crate) fn ban(&mut self, key: &[u8], ban: Ban) -> Result<(), NoRoom> {
        if self.bans.len() >= KEYS_MAX && !self.bans.contains_key(key) {
            return Err(NoRoom);
        }
        self.bans.insert(key.into(), ban);
        Ok(())
    }

    /// Lets `key` in again.
    pub(crate) fn lift(&mut self, key: &[u8]) {
        self.bans.remove(key);
    }

    /// The keys whose bans have ended at `now`.
    pub(crate) fn ended(&self, now: Timestamp) -> Vec<Box<[u8]>> {
        let has_ended = |ban: &Ban| matches!(ban, Ban::Until(end) if *end <= now);
        let ended = self.bans.iter().filter(|(_, ban)| has_ended(ban));
        ended.map(|(key, _)| key.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ban_taken_back_leaves_nothing_behind() {
        let mut changes = OperatorChanges::default();
        changes.ban(b"k", Ban::UntilLifted).unwrap();
        assert_eq!((changes.ban_of(b"k"), changes.ban_of(b"x")), (Some(Ban::UntilLifted), None));
        changes.lift(b"k");
        assert_eq!(changes.bans().count(), 0);
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
        assert!(changes.ban_of(b"short").is_some(), "it is lifted by whoever looks");
    }
}
