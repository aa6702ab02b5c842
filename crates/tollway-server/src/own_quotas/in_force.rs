//! The quotas of one's own that are in force: a part of the rules.
//!
//! A set never changes: a change makes the next one, of which only the policy that it is about is
//! copied. Without any, a decision pays for one look at an empty map.
//!
//! Of several that match a key the key's own counts, then the pattern with the most letters.

use std::collections::HashMap;
use std::sync::Arc;

use tollway_core::{Policy, Timestamp};

use super::entry::{Entry, Whom};
use super::numbers;
use crate::pattern::Pattern;
use crate::rules::Rules;

/// All of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct OwnQuotas {
    by_policy: HashMap<String, Arc<OfPolicy>>,
    /// Keys that all policies deny.
    bans: Arc<HashMap<Box<[u8]>, Arc<Own>>>,
}

/// How long a key is denied by all policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ban {
    /// Until an operator lifts it.
    UntilLifted,
    /// Until then, or until it is lifted.
    Until(Timestamp),
}

#[derive(Clone, Debug, Default)]
struct OfPolicy {
    keys: HashMap<Box<[u8]>, Arc<Own>>,
    /// Those with the most letters first.
    patterns: Vec<(Pattern, Arc<Own>)>,
}

/// What was said of one key or pattern, and what came of it.
#[derive(Clone, Debug)]
pub(crate) struct Own {
    /// Whom it is about.
    pub whom: Whom,
    /// What was said.
    pub entry: Entry,
    /// Which change of a shared store has made it; 0 elsewhere.
    pub version: u64,
    /// The policy in force by it, or why there is none.
    pub policy: Result<Policy, String>,
}

/// What is to be said of somebody from now on: the version that says so, and `None` for nothing.
pub(crate) type Update = (Whom, u64, Option<Entry>);

impl OwnQuotas {
    /// These, under these rules.
    pub(crate) fn new(rules: &Rules, now_ms: u64, all: Vec<Update>) -> Self {
        Self::default().with(rules, now_ms, all)
    }

    /// A key that is banned for good.
    #[cfg(test)]
    pub(crate) fn a_ban_of(key: &[u8]) -> Update {
        (Whom::banned(key), 0, Some(Entry { banned: true, ..Entry::default() }))
    }

    /// The key's own form of the policy of this name.
    #[inline]
    pub(crate) fn find(&self, policy: &str, key: &[u8]) -> Option<(&Policy, &Own)> {
        // Almost always there are none, and then nothing is hashed for it.
        if self.by_policy.is_empty() {
            return None;
        }
        let of_policy = self.by_policy.get(policy)?;
        let own = of_policy.keys.get(key).and_then(|own| Some((own.policy.as_ref().ok()?, &**own)));
        own.or_else(|| of_policy.by_pattern(key))
    }

    /// How long `key` is banned, if it is.
    #[inline]
    pub(crate) fn ban_of(&self, key: &[u8]) -> Option<Ban> {
        // Almost always there are none, and then no key is hashed for it.
        if self.bans.is_empty() { None } else { self.bans.get(key).and_then(|own| own.ban()) }
    }

    /// What was said of exactly them.
    pub(crate) fn get(&self, whom: &Whom) -> Option<&Own> {
        if whom.is_ban() {
            return self.bans.get(&whom.key).map(|own| &**own);
        }
        let of_policy = self.by_policy.get(&whom.policy)?;
        match whom.is_pattern() {
            true => of_policy.patterns.iter().map(|(_, own)| &**own).find(|own| own.whom == *whom),
            false => of_policy.keys.get(&whom.key).map(|own| &**own),
        }
    }

    /// Whether something was said under the policy of this name.
    pub(crate) fn knows(&self, policy: &str) -> bool {
        self.by_policy.contains_key(policy)
    }

    /// All of them in no order.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<Own>> {
        self.by_policy.values().flat_map(|of_policy| of_policy.all()).chain(self.bans.values())
    }

    /// Those under the policy of this name, in order.
    pub(crate) fn of_policy(&self, policy: &str) -> Vec<&Own> {
        let all = self.by_policy.get(policy).into_iter().flat_map(|of_policy| of_policy.all());
        let mut all: Vec<&Own> = all.map(|own| &**own).collect();
        all.sort_unstable_by_key(|own| &own.whom);
        all
    }

    /// The policies in force.
    pub(crate) fn policies(&self) -> impl Iterator<Item = &Policy> {
        self.all().filter_map(|own| own.policy.as_ref().ok())
    }

    /// How many there are, and how many of them are for patterns.
    pub(crate) fn count(&self) -> (usize, usize) {
        self.by_policy.values().fold((self.bans.len(), 0), |(all, patterns), of_policy| {
            let more = of_policy.patterns.len();
            (all + of_policy.keys.len() + more, patterns + more)
        })
    }

    /// These with `updates`.
    pub(crate) fn with(&self, rules: &Rules, now_ms: u64, updates: Vec<Update>) -> Self {
        let mut next = self.clone();
        for (whom, version, entry) in updates {
            next.put(rules, now_ms, (whom, version, entry));
        }
        // What is given beyond a quota of others follows that.
        let follows = |own: &&Arc<Own>| own.entry.quota.is_none() && !own.whom.is_ban();
        for own in next.all().filter(follows).cloned().collect::<Vec<_>>() {
            let Own { whom, version, entry, .. } = Own::clone(&own);
            next.put(rules, now_ms, (whom, version, Some(entry)));
        }
        next
    }

    /// The same under other rules, or at another time: what has ended is in force no more.
    pub(crate) fn anew(&self, rules: &Rules, now_ms: u64) -> Self {
        let update = |own: &Arc<Own>| {
            let left = own.entry.at(now_ms).unwrap_or_else(|| own.entry.clone());
            (own.whom.clone(), own.version, Some(left))
        };
        Self::new(rules, now_ms, self.all().map(update).collect())
    }

    fn put(&mut self, rules: &Rules, now_ms: u64, (whom, version, entry): Update) {
        let own = entry.map(|entry| {
            let policy = self.policy_of(rules, &whom, &entry, now_ms);
            Arc::new(Own { whom: whom.clone(), entry, version, policy })
        });
        if whom.is_ban() {
            let bans = Arc::make_mut(&mut self.bans);
            match own {
                Some(own) => bans.insert(whom.key, own),
                None => bans.remove(&whom.key),
            };
            return;
        }
        let of_policy = Arc::make_mut(self.by_policy.entry(whom.policy.clone()).or_default());
        if whom.is_pattern() {
            of_policy.put_pattern(&whom, own);
        } else {
            match own {
                Some(own) => of_policy.keys.insert(whom.key.clone(), own),
                None => of_policy.keys.remove(&whom.key),
            };
        }
        if of_policy.keys.is_empty() && of_policy.patterns.is_empty() {
            self.by_policy.remove(&whom.policy);
        }
    }

    /// The policy that `entry` makes; what is wrong with it begins with the field.
    pub(crate) fn policy_of(
        &self,
        rules: &Rules,
        whom: &Whom,
        entry: &Entry,
        now_ms: u64,
    ) -> Result<Policy, String> {
        if whom.is_ban() {
            return Err("it is a ban".to_owned());
        }
        let entry = entry.at(now_ms).ok_or("it has ended")?;
        let name = &whom.policy;
        let base = rules.policy(name).ok_or_else(|| format!("policy: none is named {name:?}"))?;
        let quota = match &entry.quota {
            Some(text) => {
                numbers::with_quota(base, text).map_err(|error| format!("quota: {error}"))?
            }
            None if whom.is_pattern() => base.clone(),
            None => {
                let by_pattern = self.by_policy.get(name).and_then(|own| own.by_pattern(&whom.key));
                let configured = || rules.configured(name, &whom.key);
                let own = by_pattern.map(|(policy, _)| policy).or_else(configured);
                own.unwrap_or(base).clone()
            }
        };
        let policy = match entry.gift {
            Some(gift) => {
                numbers::with_gift(&quota, gift.units).map_err(|error| format!("units: {error}"))?
            }
            None => quota,
        };
        numbers::check_split(rules, &policy).map_err(|error| format!("quota: {error}"))?;
        Ok(policy)
    }
}

impl Own {
    /// How long the key is banned, if it is.
    pub(crate) fn ban(&self) -> Option<Ban> {
        let until = |ms: u64| Ban::Until(Timestamp::from_millis(ms));
        self.entry.banned.then(|| self.entry.until_ms.map_or(Ban::UntilLifted, until))
    }

    /// Whether a part of it has ended, of which the policy in force knows nothing yet.
    pub(crate) fn has_ended_part(&self, now_ms: u64) -> bool {
        let ends = [self.entry.until_ms, self.entry.gift.map(|gift| gift.until_ms)];
        ends.into_iter().flatten().any(|end| end <= now_ms)
    }
}

impl OfPolicy {
    fn all(&self) -> impl Iterator<Item = &Arc<Own>> {
        self.keys.values().chain(self.patterns.iter().map(|(_, own)| own))
    }

    fn by_pattern(&self, key: &[u8]) -> Option<(&Policy, &Own)> {
        let matching = self.patterns.iter().filter(|(pattern, _)| pattern.matches(key));
        matching.filter_map(|(_, own)| Some((own.policy.as_ref().ok()?, &**own))).next()
    }

    fn put_pattern(&mut self, whom: &Whom, own: Option<Arc<Own>>) {
        self.patterns.retain(|(_, other)| other.whom != *whom);
        let Some(own) = own else { return };
        let letters = |key: &[u8]| key.iter().filter(|byte| **byte != b'*').count();
        let order = |whom: &Whom| (std::cmp::Reverse(letters(&whom.key)), whom.key.clone());
        let at = self.patterns.partition_point(|(_, other)| order(&other.whom) < order(whom));
        self.patterns.insert(at, (Pattern::of_bytes(&whom.key), own));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::own_quotas::entry::Gift;
    use crate::rules::{Lists, Rule, RuleOptions};

    fn rules() -> Rules {
        let policy = Policy::parse("api", "10/1m").unwrap();
        let rule = Rule::new(policy, Arc::default(), RuleOptions::default());
        Rules::new(vec![rule], Vec::new(), Lists::default(), false)
    }

    fn whom(policy: &str, key: &str) -> Whom {
        Whom { policy: policy.to_owned(), key: key.as_bytes().into() }
    }

    fn set(key: &str, quota: &str) -> Update {
        let entry = Entry { quota: Some(quota.to_owned()), ..Entry::default() };
        (whom("api", key), 0, Some(entry))
    }

    fn limit(own: &OwnQuotas, key: &str) -> Option<u64> {
        own.find("api", key.as_bytes()).map(|(policy, _)| policy.algorithm().limit())
    }

    #[test]
    fn a_key_comes_before_patterns_and_of_these_the_one_with_most_letters() {
        let all = vec![set("eu-*", "2/1m"), set("*", "1/1m"), set("eu-vip-*", "3/1m")];
        let own = OwnQuotas::new(&rules(), 0, all).with(&rules(), 0, vec![set("eu-vip-1", "4/1m")]);
        let limits = ["us", "eu-1", "eu-vip-2", "eu-vip-1"].map(|key| limit(&own, key));
        assert_eq!(limits, [Some(1), Some(2), Some(3), Some(4)]);
        assert_eq!(own.count(), (4, 3));
        let without = own.with(&rules(), 0, vec![(whom("api", "eu-*"), 0, None)]);
        assert_eq!((limit(&without, "eu-1"), own.find("web", b"us").is_none()), (Some(1), true));
    }

    #[test]
    fn a_gift_is_given_beyond_whatever_quota_holds_and_ends_by_itself() {
        let gift = Some(Gift { units: 100, until_ms: 50 });
        let given = (whom("api", "eu-1"), 0, Some(Entry { gift, ..Entry::default() }));
        let own = OwnQuotas::new(&rules(), 0, vec![given]);
        assert_eq!(limit(&own, "eu-1"), Some(110));
        let own = own.with(&rules(), 0, vec![set("eu-*", "20/1m")]);
        assert_eq!(limit(&own, "eu-1"), Some(120));
        assert_eq!(limit(&own.anew(&rules(), 50), "eu-1"), Some(20));
    }

    #[test]
    fn a_ban_is_of_one_key_under_all_policies_and_ends_then_and_not_before() {
        let ban = |until_ms| Some(Entry { banned: true, until_ms, ..Entry::default() });
        let all =
            vec![(Whom::banned(b"a*"), 0, ban(Some(2_000))), (Whom::banned(b"b"), 0, ban(None))];
        let own = OwnQuotas::new(&rules(), 0, all).with(&rules(), 0, vec![set("b", "2/1m")]);
        let until = Ban::Until(Timestamp::from_millis(2_000));
        assert_eq!(
            [&b"a*"[..], b"b"].map(|key| own.ban_of(key)),
            [Some(until), Some(Ban::UntilLifted)]
        );
        assert_eq!((own.ban_of(b"ab"), own.count(), limit(&own, "b")), (None, (3, 0), Some(2)));
        let has_ended = |at| own.all().filter(|own| own.has_ended_part(at)).count();
        assert_eq!((has_ended(1_999), has_ended(2_000)), (0, 1));
        let own = own.anew(&rules(), 3_000).with(&rules(), 0, vec![(Whom::banned(b"b"), 0, None)]);
        assert_eq!((own.ban_of(b"b"), own.count()), (None, (2, 0)));
    }

    #[test]
    fn what_fits_no_rule_is_kept_and_not_in_force() {
        let (key, entry) = (whom("gone", "k"), set("k", "1/1m").2);
        let own = OwnQuotas::new(&rules(), 0, vec![(key.clone(), 3, entry)]);
        assert!(own.find("gone", b"k").is_none());
        let kept = own.get(&key).unwrap();
        assert_eq!(kept.version, 3);
        assert_eq!(kept.policy.as_ref().unwrap_err(), "policy: none is named \"gone\"");
    }
}
