//! Policies in a file.
//!
//! ```toml
//! [[policies]]
//! name = "api"
//! quota = "100/1m burst 20"
//! algorithm = "gcra"            # leaky-bucket, sliding-window, fixed-window, concurrency, shares,
//!                               # calendar-window (for quotas such as 10000/month, without saying)
//! on_store_error = "allow"      # deny, local, unavailable
//! overrides = [{ key = "vip-*", quota = "1000/1m" }]
//! split = 4                     # each key in four parts, on a shared store
//! durable = true                # what was acknowledged survives kill -9 and power loss
//! keep = "400d"                 # how long usage of windows that are over is kept
//! ```
//!
//! An override takes the algorithm of its policy, and every parameter that it does not give itself.

use std::cell::RefCell;
use std::num::NonZeroU16;
use std::time::Duration;

use tollway_core::calendar_window::CalendarWindow;
use tollway_core::spelling::unknown;
use tollway_core::{
    Algorithm, Factor, GivenLimit, OnChange, OnExpiry, OnStoreError, Parameters, Policy,
    PolicyError, Quota, ReservationTerms,
};

use super::error::ConfigError;
use super::owners;
use super::reader::{ConfigValue, Table};
use crate::config_line::ConfigLine;
use crate::metrics::Metrics;
use crate::pattern::{KeyList, Pattern};
use crate::rules::{GateKey, Lists, OwnLimit, Rule, RuleOptions, Spacing};

/// What is right or wrong only by the store, which is known when all is read.
#[derive(Default)]
pub(super) struct ByStore {
    /// Where keys are split, which has an effect on some stores alone.
    pub(super) splits: Vec<ConfigError>,
    /// Where policies are durable, which needs a file if states are in this process.
    pub(super) durable: Vec<ConfigError>,
}

/// Reads one policy; `None` if something is wrong with it, which is noted.
pub(super) fn rule(
    place: &ConfigValue<'_>,
    metrics: &Metrics,
    by_store: &mut ByStore,
) -> Option<Rule> {
    let table = place.tell(place.table())?;
    let name = table.tell(table.need("name").and_then(|place| Ok((place.text()?, place))));
    if owners::are_meant(&table) {
        let name = name.map(|(name, _)| name);
        return rule_of_owners((place, &table), name, metrics);
    }
    let limit = limit_or_noted(&table, GivenLimit::from_parameters, &NAMES);
    let (on_store_error, unavailable_on_store_error) = on_store_error(&table);
    let terms = reservation_terms(&table);
    let on_change = on_change(&table);
    let shadow = table.flag("shadow");
    let shadow_at = table.get("shadow").map(|place| place.place()).unwrap_or_default();
    let overrides = overrides(&table, limit.as_ref());
    let lists = lists(&table);
    let gate_key = gate_key(&table);
    let limits = || limit.iter().chain(overrides.iter().map(|(_, _, limit)| limit));
    let split = split(&table, limits(), &mut by_store.splits);
    let keep = durable(&table, limits(), &mut by_store.durable);
    table.finish();
    let finish = |policy: Policy| {
        let policy = policy.on_store_error(on_store_error).reservations(terms);
        let policy = policy.on_change(on_change);
        keep.map_or_else(|| policy.clone(), |keep| policy.clone().durable(keep))
    };
    let (name, name_place) = name?;
    let policies = |limit: &GivenLimit| {
        let told = |made: Result<Policy, PolicyError>| {
            Some(finish(place.tell(made.map_err(|error| name_place.wrong(error.to_string())))?))
        };
        let policy = told(Policy::new(name.as_str(), limit.algorithm))?;
        let Some(bucket) = limit.spacing else { return Some((policy, None)) };
        let spacing = told(Spacing::policy(&name, bucket))?;
        let tally = metrics.tally("", spacing.name());
        Some((policy, Some(Spacing { policy: spacing, tally })))
    };
    let (policy, spacing) = policies(&limit?)?;
    let own = overrides.into_iter().filter_map(|(place, pattern, limit)| {
        let (policy, spacing) = policies(&limit)?;
        Some(OwnLimit { place, pattern, policy, spacing })
    });
    let options = RuleOptions {
        place: place.place(),
        shadow,
        shadow_at,
        unavailable_on_store_error,
        own: own.collect(),
        spacing,
        split,
        lists,
        gate_key,
    };
    Some(Rule::new(policy, metrics.tally("", &name), options))
}

/// The algorithms of policies: those of limits, and trees of owners.
const NAMES: [&str; GivenLimit::NAMES.len() + 1] = {
    let mut names = [owners::NAME; GivenLimit::NAMES.len() + 1];
    let mut index = 0;
    while index < GivenLimit::NAMES.len() {
        names[index] = GivenLimit::NAMES[index];
        index += 1;
    }
    names
};

/// Reads a policy whose keys are owners.
fn rule_of_owners(
    (place, table): (&ConfigValue<'_>, &Table<'_>),
    name: Option<String>,
    metrics: &Metrics,
) -> Option<Rule> {
    let policy = owners::policy(table, name.as_deref());
    let (on_store_error, unavailable_on_store_error) = on_store_error(table);
    owners::check_store_error(table, on_store_error);
    let terms = reservation_terms(table);
    let (shadow, lists, gate_key) = (table.flag("shadow"), lists(table), gate_key(table));
    let shadow_at = table.get("shadow").map(|place| place.place()).unwrap_or_default();
    table.finish();
    let policy = policy?.on_store_error(on_store_error).reservations(terms);
    let options = RuleOptions {
        place: place.place(),
        shadow,
        shadow_at,
        unavailable_on_store_error,
        lists,
        gate_key,
        ..Default::default()
    };
    let tally = metrics.tally("", policy.name());
    Some(Rule::new(policy, tally, options))
}

/// How a limit of some name is made of its parameters.
type Make<T> = fn(&str, &dyn Parameters) -> Option<Option<T>>;

/// Reads `quota` and what the algorithm needs beside it. `None` if something is wrong, which is
/// noted, and then none of an algorithm's fields is called unknown for that.
pub(super) fn algorithm_or_noted(table: &Table<'_>) -> Option<Algorithm> {
    limit_or_noted(table, Algorithm::from_parameters, &Algorithm::NAMES)
}

/// As [`algorithm_or_noted`], of one of these names.
fn limit_or_noted<T>(table: &Table<'_>, make: Make<T>, names: &[&'static str]) -> Option<T> {
    let limit = made(table, table, make, names);
    if limit.is_none() {
        // Who misspells the name has still spelt these right.
        table.knows(&Algorithm::PARAMETERS);
    }
    limit
}

/// The limit that a table names, made of what is given for it.
fn made<T>(
    table: &Table<'_>,
    given: &dyn Parameters,
    make: Make<T>,
    names: &[&'static str],
) -> Option<T> {
    let Some(place) = table.get("algorithm") else {
        return make(Algorithm::default_name(given), given)?;
    };
    let name = table.tell(place.text())?;
    make(&name, given).unwrap_or_else(|| {
        place.note(unknown("algorithm", &name, names.iter().copied()));
        None
    })
}

/// In how many parts a call may split keys: what callers make up is bounded.
const CALL_PARTS_MAX: u16 = 64;

/// A limit that comes with a call, in the form of a policy's fields, and where its keys are split.
pub(super) fn given_limit(table: &Table<'_>) -> Option<(GivenLimit, Option<NonZeroU16>)> {
    let limit = limit_or_noted(table, GivenLimit::from_parameters, &GivenLimit::NAMES);
    // That another store does not split is nothing to refuse a call for.
    let parts = split(table, limit.iter(), &mut Vec::new());
    if let Some(parts) = parts.filter(|parts| parts.get() > CALL_PARTS_MAX) {
        let wrong = format!("expected 1 to {CALL_PARTS_MAX} with a call, found {parts}");
        table.refuse("split", wrong);
    }
    table.finish();
    limit.map(|limit| (limit, parts))
}

impl Parameters for Table<'_> {
    fn quota(&self) -> Option<Quota> {
        let place = self.tell(self.need("quota"))?;
        let text = self.tell(place.text())?;
        let right = match CalendarWindow::is_meant_by(&text) {
            true => "a civil unit needs algorithm = \"calendar-window\"",
            false => "expected for example 100/1m burst 20",
        };
        self.tell(text.parse().map_err(|error: tollway_core::ParseQuotaError| {
            place.wrong(format!("{text:?} is not a quota: {error}; {right}"))
        }))
    }

    fn calendar_window(&self) -> Option<CalendarWindow> {
        let place = self.tell(self.need("quota"))?;
        let text = self.tell(place.text())?;
        let example = "expected for example 10000/month tz Europe/Berlin anchor 15";
        self.tell(tollway_zones::calendar_window(&text).map_err(|error| {
            place.wrong(format!("{text:?} is not a calendar window: {error}; {example}"))
        }))
    }

    fn means_calendar_window(&self) -> bool {
        let text = self.get("quota").and_then(|place| place.text().ok());
        text.is_some_and(|text| CalendarWindow::is_meant_by(&text))
    }

    fn number(&self, name: &'static str) -> Option<u64> {
        self.tell(self.need(name).and_then(|place| place.number()))
    }

    fn duration(&self, name: &'static str) -> Option<Duration> {
        self.tell(self.need(name).and_then(|place| place.duration()))
    }

    fn has(&self, name: &'static str) -> bool {
        self.get(name).is_some()
    }

    fn factor(&self, name: &'static str) -> Option<Factor> {
        self.tell(self.need(name).and_then(|place| place.parsed()))
    }

    fn choice(&self, name: &'static str, words: &[&'static str]) -> usize {
        let mut choice = 0;
        self.set(name, &mut choice, |place| {
            let text = place.text()?;
            let chosen = words.iter().position(|word| *word == text);
            chosen.ok_or_else(|| place.wrong(format!("expected {}", words.join(" or "))))
        });
        choice
    }

    fn refuse(&self, name: &'static str, why: String) {
        // Without a name it is about the table. Asked for, an empty name would be a known field.
        match name.is_empty() {
            false => self.tell(self.need(name).and_then(|place| Err::<(), _>(place.wrong(why)))),
            true => self.tell(Err(self.wrong(why))),
        };
    }
}

/// What to do when the store fails, and whether to say so instead of answering.
pub(super) fn on_store_error(table: &Table<'_>) -> (OnStoreError, bool) {
    let mut at_most = Duration::from_secs(30);
    table.set("allow_at_most", &mut at_most, ConfigValue::duration);
    let mut shares = 1;
    table.set("shares", &mut shares, ConfigValue::number);
    let mut mode = (OnStoreError::Deny, false);
    table.set("on_store_error", &mut mode, |place| match place.text()?.as_str() {
        "deny" => Ok((OnStoreError::Deny, false)),
        "allow" => Ok((OnStoreError::Allow { at_most }, false)),
        "local" => Ok((OnStoreError::Local { shares }, false)),
        "allow_then_local" => Ok((OnStoreError::AllowThenLocal { at_most, shares }, false)),
        "unavailable" => Ok((OnStoreError::Deny, true)),
        _ => Err(place.wrong("expected allow, allow_then_local, deny, local or unavailable")),
    });
    mode
}

/// What becomes of used units when the numbers change.
pub(super) fn on_change(table: &Table<'_>) -> OnChange {
    let mut rule = OnChange::default();
    table.set("on_change", &mut rule, |place| {
        let text = place.text()?;
        let named = OnChange::ALL.into_iter().find(|rule| rule.name() == text);
        named.ok_or_else(|| place.wrong("expected as-is, proportional or reset"))
    });
    rule
}

fn reservation_terms(table: &Table<'_>) -> ReservationTerms {
    let mut terms = ReservationTerms::default();
    table.set("reservation_ttl", &mut terms.ttl, ConfigValue::duration);
    table.set("on_expiry", &mut terms.on_expiry, |place| match place.text()?.as_str() {
        "return" => Ok(OnExpiry::Return),
        "keep" => Ok(OnExpiry::Keep),
        _ => Err(place.wrong("expected return or keep")),
    });
    terms
}

/// The limits of keys that have one of their own.
fn overrides(
    policy: &Table<'_>,
    limit: Option<&GivenLimit>,
) -> Vec<(ConfigLine, Pattern, GivenLimit)> {
    let read = |place: &ConfigValue<'_>| {
        let own = place.tell(place.table())?;
        let key = own.tell(own.need("key").and_then(|place| place.text()));
        let limit = own_limit(&own, policy, limit.is_some());
        own.finish();
        Some((place.place(), Pattern::new(&key?), limit?))
    };
    policy.each("overrides").iter().filter_map(read).collect()
}

/// The limit of an override. With an algorithm of its own it stands alone.
fn own_limit(own: &Table<'_>, policy: &Table<'_>, is_policy_right: bool) -> Option<GivenLimit> {
    if own.has("algorithm") {
        return limit_or_noted(own, GivenLimit::from_parameters, &GivenLimit::NAMES);
    }
    if !is_policy_right {
        // What it would take from the policy is wrong there, and told there.
        if own.has("quota") && own.means_calendar_window() {
            Parameters::calendar_window(own);
        } else if own.has("quota") {
            Parameters::quota(own);
        }
        own.knows(&Algorithm::PARAMETERS);
        return None;
    }
    let given = InPartGiven { own, policy, asked: RefCell::default() };
    let limit = made(policy, &given, GivenLimit::from_parameters, &GivenLimit::NAMES);
    let asked = given.asked.into_inner();
    if !asked.iter().any(|name| own.has(name)) {
        let first = asked.first().copied().unwrap_or("quota");
        own.tell(own.need(first));
        return None;
    }
    limit
}

/// The parameters of an override: its own where it gives them, the policy's elsewhere.
struct InPartGiven<'t, 'a> {
    own: &'t Table<'a>,
    policy: &'t Table<'a>,
    asked: RefCell<Vec<&'static str>>,
}

impl<'a> InPartGiven<'_, 'a> {
    fn of(&self, name: &'static str) -> &Table<'a> {
        self.asked.borrow_mut().push(name);
        self.own.knows(&[name]);
        if self.own.has(name) { self.own } else { self.policy }
    }
}

impl Parameters for InPartGiven<'_, '_> {
    fn quota(&self) -> Option<Quota> {
        Parameters::quota(self.of("quota"))
    }

    fn calendar_window(&self) -> Option<CalendarWindow> {
        Parameters::calendar_window(self.of("quota"))
    }

    fn means_calendar_window(&self) -> bool {
        Parameters::means_calendar_window(self.of("quota"))
    }

    fn number(&self, name: &'static str) -> Option<u64> {
        Parameters::number(self.of(name), name)
    }

    fn duration(&self, name: &'static str) -> Option<Duration> {
        Parameters::duration(self.of(name), name)
    }

    fn has(&self, name: &'static str) -> bool {
        Parameters::has(self.of(name), name)
    }

    fn factor(&self, name: &'static str) -> Option<Factor> {
        Parameters::factor(self.of(name), name)
    }

    fn choice(&self, name: &'static str, words: &[&'static str]) -> usize {
        Parameters::choice(self.of(name), name, words)
    }

    fn refuse(&self, name: &'static str, why: String) {
        // What is wrong with both together is wrong with the override: the policy alone is right.
        let place = if name.is_empty() { None } else { self.own.get(name) };
        let error = match place {
            Some(place) => place.wrong(why),
            None => self.own.wrong(why),
        };
        self.own.tell(Err::<(), _>(error));
    }
}

/// In how many parts each key is split on a shared store. Every limit must have units for all.
fn split<'l>(
    table: &Table<'_>,
    mut limits: impl Iterator<Item = &'l GivenLimit>,
    splits: &mut Vec<ConfigError>,
) -> Option<NonZeroU16> {
    let mut split = None;
    table.set("split", &mut split, |place| {
        let shares: u16 = place.number()?;
        let shares = NonZeroU16::new(shares).ok_or_else(|| place.wrong("expected 1 to 65535"))?;
        let last = u32::from(shares.get());
        match limits.find(|limit| limit.algorithm.share(last, last - 1).is_none()) {
            None => {
                let text = "has no effect: only a store on Redis or Valkey splits keys";
                splits.push(place.wrong(text));
                Ok(Some(shares))
            }
            Some(limit) => {
                let units = limit.algorithm.limit();
                Err(place.wrong(format!("{shares} parts of a limit of {units}: one has no units")))
            }
        }
    });
    split
}

/// How long usage is kept if a policy does not say, and the longest.
const KEEP_DEFAULT: Duration = Duration::from_secs(400 * 86_400);
const KEEP_MAX: Duration = Duration::from_secs(3_660 * 86_400);

/// How long usage is kept, if counts are durable. Every limit must be one that a file can hold.
fn durable<'l>(
    table: &Table<'_>,
    mut limits: impl Iterator<Item = &'l GivenLimit>,
    durables: &mut Vec<ConfigError>,
) -> Option<Duration> {
    let (is_durable, mut keep) = (table.flag("durable"), KEEP_DEFAULT);
    table.set("keep", &mut keep, |place| {
        let keep = place.duration()?;
        if !is_durable {
            return Err(place.wrong("only a policy with durable = true keeps usage"));
        }
        let wrong = || place.wrong("expected more than nothing and at most 3660d");
        (keep > Duration::ZERO && keep <= KEEP_MAX).then_some(keep).ok_or_else(wrong)
    });
    if !is_durable {
        return None;
    }
    let holds = |algorithm: &Algorithm| {
        matches!(
            algorithm,
            Algorithm::Gcra(_)
                | Algorithm::LeakyBucket(_)
                | Algorithm::FixedWindow(_)
                | Algorithm::CalendarWindow(_)
        )
    };
    if let Some(limit) = limits.find(|limit| !holds(&limit.algorithm)) {
        let found = limit.algorithm.label();
        let right = "expected gcra, leaky-bucket, fixed-window or calendar-window";
        table.refuse("durable", format!("found algorithm {found}, which is not durable; {right}"));
        return None;
    }
    let place = table.get("durable");
    durables.extend(place.map(|place| {
        place.wrong("needs a file: durable_file = \"PATH\", --durable-file or TOLLWAY_DURABLE_FILE")
    }));
    Some(keep)
}

/// Reads `unlimited` and `banned`.
pub(super) fn lists(table: &Table<'_>) -> Lists {
    let list = |name| {
        let mut list = KeyList::default();
        table.set(name, &mut list, |place| {
            let mut list = KeyList::default();
            for (entry, place) in place.all(|place| Ok((place.text()?, place.place())))? {
                list.add(&entry, place);
            }
            Ok(list)
        });
        list
    };
    Lists { unlimited: list("unlimited"), banned: list("banned") }
}

fn gate_key(table: &Table<'_>) -> GateKey {
    let mut key = GateKey::Address;
    table.set("gate_key", &mut key, |place| {
        let text = place.text()?;
        match text.split_once(':') {
            None if text == "address" => Ok(GateKey::Address),
            Some(("header", name)) if !name.trim().is_empty() => {
                Ok(GateKey::Header(name.trim().to_ascii_lowercase()))
            }
            _ => Err(place.wrong("expected address or header:x-api-key")),
        }
    });
    key
}
