//! Policies in a file.
//!
//! ```toml
//! [[policies]]
//! name = "api"
//! quota = "100/1m burst 20"
//! algorithm = "gcra"            # leaky-bucket, sliding-window, fixed-window, concurrency
//! on_store_error = "allow"      # deny, local, unavailable
//! overrides = [{ key = "vip-*", quota = "1000/1m" }]
//! ```

use std::time::Duration;

use tollway_core::spelling::unknown;
use tollway_core::{
    Algorithm, OnExpiry, OnStoreError, Parameters, Policy, Quota, ReservationTerms,
};

use super::reader::{ConfigValue, Table};
use crate::metrics::Metrics;
use crate::pattern::Pattern;
use crate::rules::{GateKey, Lists, Rule, RuleOptions};

/// Reads one policy; `None` if something is wrong with it, which is noted.
pub(super) fn rule(place: &ConfigValue<'_>, metrics: &Metrics) -> Option<Rule> {
    let table = place.tell(place.table())?;
    let name = table.tell(table.need("name").and_then(|place| Ok((place.text()?, place))));
    let algorithm = algorithm_or_noted(&table);
    let (on_store_error, unavailable_on_store_error) = on_store_error(&table);
    let terms = reservation_terms(&table);
    let finish = |policy: Policy| policy.on_store_error(on_store_error).reservations(terms);
    let shadow = table.flag("shadow");
    let own = overrides(&table, name.as_ref().map_or("unnamed", |(name, _)| name));
    let options = RuleOptions {
        shadow,
        unavailable_on_store_error,
        own: own.into_iter().map(|(key, own)| (key, finish(own))).collect(),
        lists: lists(&table),
        gate_key: gate_key(&table),
    };
    table.finish();
    let (name, name_place) = name?;
    let policy = Policy::new(name.as_str(), algorithm?);
    let policy = place.tell(policy.map_err(|error| name_place.wrong(error.to_string())))?;
    Some(Rule::new(finish(policy), metrics.tally("", &name), options))
}

/// Reads `quota` and what the algorithm needs beside it. `None` if something is wrong, which is
/// noted, and then none of an algorithm's fields is called unknown for that.
pub(super) fn algorithm_or_noted(table: &Table<'_>) -> Option<Algorithm> {
    let algorithm = algorithm(table);
    if algorithm.is_none() {
        // Who misspells the name has still spelt these right.
        table.knows(&Algorithm::PARAMETERS);
    }
    algorithm
}

fn algorithm(table: &Table<'_>) -> Option<Algorithm> {
    let Some(place) = table.get("algorithm") else {
        return Algorithm::from_parameters("gcra", table)?;
    };
    let name = table.tell(place.text())?;
    Algorithm::from_parameters(&name, table).unwrap_or_else(|| {
        place.note(unknown("algorithm", &name, Algorithm::NAMES));
        None
    })
}

impl Parameters for Table<'_> {
    fn quota(&self) -> Option<Quota> {
        let place = self.tell(self.need("quota"))?;
        let text = self.tell(place.text())?;
        let example = "expected for example 100/1m burst 20";
        self.tell(text.parse().map_err(|error: tollway_core::ParseQuotaError| {
            place.wrong(format!("{text:?} is no quota, {error}; {example}"))
        }))
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

fn overrides(table: &Table<'_>, name: &str) -> Vec<(Pattern, Policy)> {
    let read = |place: &ConfigValue<'_>| {
        let table = place.tell(place.table())?;
        let key = table.tell(table.need("key").and_then(|place| place.text()));
        let algorithm = algorithm_or_noted(&table);
        table.finish();
        // The name was looked at where it stands.
        Some((Pattern::new(&key?), Policy::new(name, algorithm?).ok()?))
    };
    table.each("overrides").iter().filter_map(read).collect()
}

/// Reads `unlimited` and `banned`.
pub(super) fn lists(table: &Table<'_>) -> Lists {
    let list = |name| {
        let mut texts = Vec::new();
        table.set(name, &mut texts, ConfigValue::texts);
        texts.iter().map(String::as_str).collect()
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
