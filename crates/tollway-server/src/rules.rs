//! The rules in force: policies by name, keys with a quota of their own, lists, descriptors.
//!
//! Built once from configuration and swapped as a whole on a reload; nothing here changes while a
//! request looks at it. A key and where its limit comes from become an [`Ask`] in [`Rules::ask`],
//! the only place that decides how a key is treated:
//!
//! ```text
//! changed? -> as was said while the service runs: banned, or a quota of its own
//! banned?  -> Treatment::Ban      denied without asking the store
//! exempt?  -> Treatment::Exempt   allowed without asking the store
//! own?     -> the key's own policy in place of the general one
//! shadow?  -> Treatment::Shadow   counted and decided, never denied
//! ```

mod domains;
mod reasons;

use std::collections::HashMap;
use std::fmt;
use std::num::NonZeroU16;
use std::sync::Arc;

use tollway_core::leaky_bucket::LeakyBucket;
use tollway_core::{
    Charge, Cost, Decision, Key, KeyError, Mode, Policy, PolicyError, Retry, Snapshot,
};

use crate::config_line::ConfigLine;
use crate::descriptors::{Domain, Limit};
use crate::metrics::Tally;
use crate::own_quotas::OwnQuotas;
use crate::pattern::{KeyList, Listed, Pattern};
use domains::Domains;
use reasons::{LimitedBy, TreatedBy};

/// The rules in force. A clone shares everything: rules do not change, they are replaced.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    rules: Arc<[Rule]>,
    by_name: Arc<HashMap<String, usize>>,
    domains: Domains,
    lists: Arc<Lists>,
    shadow: bool,
    shadow_at: ConfigLine,
    own_quotas: Arc<OwnQuotas>,
}

/// Keys that are treated alike whatever their counts.
#[derive(Debug, Default)]
pub struct Lists {
    /// Keys that are never limited.
    pub unlimited: KeyList,
    /// Keys that are always denied.
    pub banned: KeyList,
}

/// One policy and everything said about it.
#[derive(Debug)]
pub struct Rule {
    policy: Policy,
    tally: Arc<Tally>,
    options: RuleOptions,
}

/// What may be said about a policy beyond the policy itself.
#[derive(Debug, Default)]
pub struct RuleOptions {
    /// Where the policy stands.
    pub place: ConfigLine,
    /// Decide and count, but never deny.
    pub shadow: bool,
    /// Where that stands.
    pub shadow_at: ConfigLine,
    /// Say that the store is unavailable rather than answer in its place.
    pub unavailable_on_store_error: bool,
    /// What every call is charged to beside the policy.
    pub spacing: Option<Spacing>,
    /// In how many parts a shared store splits each key.
    pub split: Option<NonZeroU16>,
    /// Keys with a limit of their own, first match first.
    pub own: Vec<OwnLimit>,
    /// Lists for this policy alone.
    pub lists: Lists,
    /// Where `/v1/gate` takes the key from.
    pub gate_key: GateKey,
}

/// A second bucket of a limit, to which every call is charged as one unit: it holds the shortest
/// time between two calls.
#[derive(Clone, Debug)]
pub struct Spacing {
    /// The bucket, named after the policy.
    pub policy: Policy,
    /// Where its decisions are counted.
    pub tally: Arc<Tally>,
}

/// The limit of keys that have one of their own.
#[derive(Debug)]
pub struct OwnLimit {
    /// Where it stands.
    pub place: ConfigLine,
    /// Which keys.
    pub pattern: Pattern,
    /// Their policy, of the same name as everybody's.
    pub policy: Policy,
    /// What every call is charged to beside it.
    pub spacing: Option<Spacing>,
}

/// Where `/v1/gate` takes the key from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum GateKey {
    /// The address of the client: of the peer, or of the last untrusted hop in `X-Forwarded-For`.
    #[default]
    Address,
    /// A header field, by its lower-case name.
    Header(String),
}

/// Where the limit of an [`Ask`] comes from, and what is said there.
#[derive(Clone, Copy)]
pub(crate) struct Source<'a> {
    /// The policy of keys that have none of their own.
    policy: &'a Policy,
    /// What every call is charged to beside it.
    spacing: Option<&'a Spacing>,
    /// The rule, if it is one: it may have lists, and policies for single keys.
    rule: Option<&'a Rule>,
    /// What lists and operators know the key as, if not by its own bytes.
    whole_key: Option<&'a [u8]>,
    /// Where it stands in the configuration, if it does.
    place: Option<&'a ConfigLine>,
    /// Where it stands that nothing is denied.
    shadow_at: Option<&'a ConfigLine>,
    shadow: bool,
    deny_all: bool,
    unavailable_on_store_error: bool,
    tally: &'a Tally,
}

/// How a key is treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Treatment {
    /// As the policy decides.
    Enforce,
    /// Decided and counted, never denied.
    Shadow,
    /// Never limited, nothing counted.
    Exempt,
    /// Always denied, nothing counted.
    Ban,
}

/// Why a name and bytes cannot be asked. Without the name: whoever answers has it, and clients that
/// repeat a wrong one must cost nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unaskable {
    /// No policy has this name.
    UnknownPolicy,
    /// The bytes are no key.
    Key(KeyError),
}

impl fmt::Display for Unaskable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownPolicy => f.write_str("no policy has this name"),
            Self::Key(error) => error.fmt(f),
        }
    }
}

/// One charge with how its key is treated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask<'a> {
    /// What to charge.
    pub charge: Charge<'a>,
    /// How the key is treated.
    pub treatment: Treatment,
    /// What the call is charged to beside it.
    pub spacing: Option<&'a Spacing>,
    /// Whether a failing store is told to the caller.
    pub unavailable_on_store_error: bool,
    /// Where the decision is counted.
    pub tally: &'a Tally,
}

impl Rules {
    /// Rules from their parts. Of policies with one name, the last counts.
    pub fn new(rules: Vec<Rule>, domains: Vec<Domain>, lists: Lists, shadow: bool) -> Self {
        let name = |(index, rule): (usize, &Rule)| (rule.policy.name().to_owned(), index);
        let by_name = Arc::new(rules.iter().enumerate().map(name).collect());
        let (rules, domains, lists) = (rules.into(), Domains::new(domains), Arc::new(lists));
        let (shadow_at, own_quotas) = Default::default();
        Self { rules, by_name, domains, lists, shadow, shadow_at, own_quotas }
    }

    /// These rules, of which `place` says that nothing is denied.
    pub(crate) fn with_shadow_at(self, place: ConfigLine) -> Self {
        Self { shadow_at: place, ..self }
    }

    /// These rules with the quotas that single keys and patterns have.
    pub(crate) fn with_own_quotas(&self, own_quotas: Arc<OwnQuotas>) -> Self {
        Self { own_quotas, ..self.clone() }
    }

    /// The quotas that single keys and patterns have.
    pub(crate) const fn own_quotas(&self) -> &Arc<OwnQuotas> {
        &self.own_quotas
    }

    /// The rules, in the order of the configuration.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// The policies whose keys a shared store splits, and in how many parts.
    pub fn splits(&self) -> impl Iterator<Item = (&str, NonZeroU16)> {
        let splits = self.rules.iter().map(|rule| (rule.policy.name(), rule.options.split));
        splits.filter_map(|(name, split)| Some((name, split?)))
    }

    /// The names of the policies that are durable.
    pub fn durable(&self) -> impl Iterator<Item = &str> {
        let policies = self.rules.iter().map(|rule| &rule.policy);
        policies.filter(|policy| policy.is_durable()).map(Policy::name)
    }

    /// The rule for the policy of this name.
    pub(crate) fn rule(&self, name: &str) -> Option<&Rule> {
        self.by_name.get(name).map(|&index| &self.rules[index])
    }

    /// The policy of this name, of a rule or of a descriptor.
    pub(crate) fn policy(&self, name: &str) -> Option<&Policy> {
        let of_domain = || self.domains().find_map(|domain| domain.policy(name));
        self.rule(name).map(Rule::policy).or_else(of_domain)
    }

    /// What the configuration says of a key that it names, under the policy of this name.
    pub(crate) fn configured(&self, name: &str, key: &[u8]) -> Option<&Policy> {
        self.rule(name)?.limit_for(key).map(|own| &own.policy)
    }

    /// Every policy that is in force for some key.
    pub(crate) fn policies(&self) -> impl Iterator<Item = &Policy> {
        let of_rules = self.rules.iter().flat_map(Rule::policies);
        let of_domains = self.domains().flat_map(Domain::policies);
        of_rules.chain(of_domains).chain(self.own_quotas.policies())
    }

    /// Whether nothing is denied, only counted.
    pub(crate) const fn is_shadow(&self) -> bool {
        self.shadow
    }

    /// What to ask for `key` under the policy named `policy`.
    ///
    /// # Errors
    ///
    /// If there is no such policy, or the bytes are no key.
    pub(crate) fn ask_named<'a>(
        &'a self,
        policy: &[u8],
        key: &'a [u8],
        cost: Cost,
    ) -> Result<Ask<'a>, Unaskable> {
        let name = std::str::from_utf8(policy).map_err(|_| Unaskable::UnknownPolicy)?;
        let rule = self.rule(name).ok_or(Unaskable::UnknownPolicy)?;
        let key = Key::new(key).map_err(Unaskable::Key)?;
        Ok(self.ask(Source::rule(rule), key, cost))
    }

    /// What to ask for `key`, whose limit comes from `source`.
    pub(crate) fn ask<'a>(&'a self, source: Source<'a>, key: Key<'a>, cost: Cost) -> Ask<'a> {
        let listed_as = source.whole_key.unwrap_or(key.as_bytes());
        let (policy, spacing, _) = self.limit(&source, listed_as);
        Ask {
            charge: Charge::new(policy, key).cost(cost),
            spacing,
            treatment: self.treatment(&source, listed_as).0,
            unavailable_on_store_error: source.unavailable_on_store_error,
            tally: source.tally,
        }
    }
}

impl Rules {
    /// The limit of a key, and who says so.
    fn limit<'a>(
        &'a self,
        source: &Source<'a>,
        key: &[u8],
    ) -> (&'a Policy, Option<&'a Spacing>, LimitedBy<'a>) {
        if let Some((policy, own)) = self.own_quotas.find(source.policy.name(), key) {
            return (policy, None, LimitedBy::Operator(own));
        }
        match source.rule.and_then(|rule| rule.limit_for(key)) {
            Some(own) => (&own.policy, own.spacing.as_ref(), LimitedBy::Override(own)),
            None => (source.policy, source.spacing, LimitedBy::Policy(source.place)),
        }
    }

    /// How a key is treated, and why.
    fn treatment<'a>(&'a self, source: &Source<'a>, key: &[u8]) -> (Treatment, TreatedBy<'a>) {
        if let Some(ban) = self.own_quotas.ban_of(key) {
            return (Treatment::Ban, TreatedBy::Operator(ban));
        }
        let of_policy = source.rule.and_then(|rule| rule.options.lists.find(key));
        if let Some((treatment, entry)) = of_policy {
            return (treatment, TreatedBy::ListOfPolicy(entry));
        }
        if let Some((treatment, entry)) = self.lists.find(key) {
            return (treatment, TreatedBy::ListOfAll(entry));
        }
        if self.shadow {
            return (Treatment::Shadow, TreatedBy::TrialOfAll(&self.shadow_at));
        }
        match source {
            Source { shadow: true, .. } => (Treatment::Shadow, TreatedBy::Trial(source.shadow_at)),
            Source { deny_all: true, .. } => (Treatment::Ban, TreatedBy::LimitOfZero(source.place)),
            _ => (Treatment::Enforce, TreatedBy::Policy),
        }
    }
}

impl<'a> Ask<'a> {
    /// The charge to the second bucket of its limit, if that has one.
    pub(crate) fn spacing(&self) -> Option<Self> {
        let Spacing { policy, tally } = self.spacing?;
        let charge = Charge { policy, cost: Cost::ONE, ..self.charge };
        Some(Self { charge, spacing: None, tally, ..*self })
    }

    /// Both, as far as there are two.
    pub(crate) fn with_spacing(self) -> impl Iterator<Item = Self> {
        std::iter::once(self).chain(self.spacing())
    }

    /// Whether the store is asked at all.
    pub(crate) fn is_asked(&self) -> bool {
        matches!(self.treatment, Treatment::Enforce | Treatment::Shadow)
    }

    /// Whether the charge can take part in a denial.
    pub(crate) fn may_deny(&self) -> bool {
        self.treatment != Treatment::Shadow && self.charge.mode == Mode::Enforce
    }

    /// What is answered without the store.
    pub(crate) fn unasked(&self) -> Decision {
        let limit = self.charge.policy.algorithm().limit();
        let snapshot =
            |remaining| Snapshot::new(limit, remaining, Default::default(), Default::default());
        match self.treatment {
            Treatment::Ban => Decision::Deny { snapshot: snapshot(0), retry: Retry::Never },
            _ => Decision::Allow(snapshot(limit)),
        }
    }
}

impl<'a> Source<'a> {
    /// The configuration, by the name of the policy.
    pub(crate) fn rule(rule: &'a Rule) -> Self {
        Self {
            shadow: rule.options.shadow,
            unavailable_on_store_error: rule.options.unavailable_on_store_error,
            rule: Some(rule),
            place: Some(&rule.options.place),
            shadow_at: Some(&rule.options.shadow_at),
            spacing: rule.options.spacing.as_ref(),
            ..Self::request(&rule.policy, &rule.tally)
        }
    }

    /// The request, numbers and all; decisions are counted in `tally`.
    pub(crate) const fn request(policy: &'a Policy, tally: &'a Tally) -> Self {
        let (rule, whole_key, spacing) = (None, None, None);
        let (place, shadow_at) = (None, None);
        let (shadow, deny_all, unavailable_on_store_error) = (false, false, false);
        Self {
            policy,
            spacing,
            rule,
            whole_key,
            place,
            shadow_at,
            shadow,
            deny_all,
            unavailable_on_store_error,
            tally,
        }
    }

    /// The same with a second bucket.
    pub(crate) const fn with_spacing(self, spacing: Option<&'a Spacing>) -> Self {
        Self { spacing, ..self }
    }

    /// The configuration, by the entries of an Envoy descriptor. `whole_key` is the key before it
    /// was cut to what a store takes: lists match what was sent.
    /// Decisions are counted in `tally`, which is the limit's or that of the values sent.
    pub(crate) fn descriptor(
        limit: &'a Limit,
        policy: &'a Policy,
        whole_key: &'a [u8],
        tally: &'a Tally,
    ) -> Self {
        Self {
            shadow: limit.shadow,
            deny_all: limit.deny_all,
            unavailable_on_store_error: limit.unavailable_on_store_error,
            whole_key: Some(whole_key),
            place: Some(&limit.place),
            shadow_at: Some(&limit.place),
            ..Self::request(policy, tally)
        }
    }
}

impl Spacing {
    /// The second bucket of the policy called `of`.
    ///
    /// # Errors
    ///
    /// If its name would be too long.
    pub(crate) fn policy(of: &str, bucket: LeakyBucket) -> Result<Policy, PolicyError> {
        Policy::new(format!("{of} spacing"), bucket)
    }
}

impl Lists {
    /// Adds the keys of other lists.
    pub(crate) fn extend(&mut self, others: Self) {
        self.unlimited.extend(others.unlimited);
        self.banned.extend(others.banned);
    }

    /// How they say that a key is treated, and where.
    fn find(&self, key: &[u8]) -> Option<(Treatment, Listed<'_>)> {
        let banned = self.banned.find(key).map(|entry| (Treatment::Ban, entry));
        banned.or_else(|| Some((Treatment::Exempt, self.unlimited.find(key)?)))
    }
}

impl Rule {
    /// The rule for `policy`, counted in `tally`.
    pub const fn new(policy: Policy, tally: Arc<Tally>, options: RuleOptions) -> Self {
        Self { policy, tally, options }
    }

    /// The policy that holds for keys without one of their own.
    pub const fn policy(&self) -> &Policy {
        &self.policy
    }

    /// What else is said about it.
    pub(crate) const fn options(&self) -> &RuleOptions {
        &self.options
    }

    /// The policies for all keys, and for keys that have one of their own.
    fn policies(&self) -> impl Iterator<Item = &Policy> {
        let RuleOptions { spacing, own, .. } = &self.options;
        let general = [&self.policy].into_iter().chain(spacing.iter().map(|it| &it.policy));
        let own = own.iter().flat_map(|own| {
            [&own.policy].into_iter().chain(own.spacing.iter().map(|it| &it.policy))
        });
        general.chain(own)
    }

    /// The limit of a key that has one of its own.
    fn limit_for(&self, key: &[u8]) -> Option<&OwnLimit> {
        self.options.own.iter().find(|own| own.pattern.matches(key))
    }
}

#[cfg(test)]
mod tests;
