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

use tollgate_core::concurrency::Concurrency;
use tollgate_core::fixed_window::{Anchor, FixedWindow};
use tollgate_core::gcra::Gcra;
use tollgate_core::leaky_bucket::LeakyBucket;
use tollgate_core::sliding_window::SlidingWindow;
use tollgate_core::{Algorithm, OnExpiry, OnStoreError, Policy, Quota, ReservationTerms};

use super::error::ConfigError;
use super::reader::{Place, Table};
use crate::metrics::Metrics;
use crate::pattern::Pattern;
use crate::rules::{GateKey, Lists, Rule, RuleOptions};

/// What algorithms need beside their name. Who misspells the name has still spelt these right.
const ALGORITHM_FIELDS: [&str; 8] =
    ["quota", "anchor", "buckets", "size", "drip_size", "drip_interval", "limit", "lease"];

/// Reads one policy; `None` if something is wrong with it, which is noted.
pub(super) fn rule(place: &Place<'_>, metrics: &Metrics) -> Option<Rule> {
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

/// [`algorithm`], or what is wrong noted and none of its fields called unknown for that.
pub(super) fn algorithm_or_noted(table: &Table<'_>) -> Option<Algorithm> {
    let algorithm = table.tell(algorithm(table));
    if algorithm.is_none() {
        table.knows(&ALGORITHM_FIELDS);
    }
    algorithm
}

/// Reads `quota` and what the algorithm needs beside it.
fn algorithm(table: &Table<'_>) -> Result<Algorithm, ConfigError> {
    let name = table.get("algorithm");
    let text = name.as_ref().map_or(Ok("gcra".to_owned()), Place::text)?;
    match text.as_str() {
        "gcra" => Ok(Gcra::new(quota(&table.need("quota")?)?).into()),
        "fixed-window" => fixed_window(table),
        "sliding-window" => sliding_window(table),
        "leaky-bucket" => leaky_bucket(table),
        "concurrency" => concurrency(table),
        other => {
            let known = "gcra, leaky-bucket, sliding-window, fixed-window, concurrency";
            let place = name.as_ref().expect("only a given name is not gcra");
            Err(place.wrong(format!("{other:?} is no algorithm; right would be one of {known}")))
        }
    }
}

fn quota(place: &Place<'_>) -> Result<Quota, ConfigError> {
    let text = place.text()?;
    text.parse().map_err(|error: tollgate_core::ParseQuotaError| {
        place.wrong(format!("{text:?} is no quota, {error}; right would be 100/1m burst 20"))
    })
}

fn fixed_window(table: &Table<'_>) -> Result<Algorithm, ConfigError> {
    let anchor = match table.get("anchor") {
        None => Anchor::Epoch,
        Some(place) => match place.text()?.as_str() {
            "epoch" => Anchor::Epoch,
            "first-request" => Anchor::FirstRequest,
            _ => return Err(place.wrong("right would be epoch or first-request")),
        },
    };
    Ok(FixedWindow::new(quota(&table.need("quota")?)?, anchor).into())
}

fn sliding_window(table: &Table<'_>) -> Result<Algorithm, ConfigError> {
    let place = table.need("quota")?;
    let quota = quota(&place)?;
    let window = match table.get("buckets") {
        None => SlidingWindow::exact(quota).map_err(|error| {
            place.wrong(format!("{error}; give a number of buckets for a larger one"))
        })?,
        Some(buckets) => SlidingWindow::new(quota, buckets.number()?)
            .map_err(|error| buckets.wrong(error.to_string()))?,
    };
    Ok(window.into())
}

fn leaky_bucket(table: &Table<'_>) -> Result<Algorithm, ConfigError> {
    let size: u64 = table.need("size")?.number()?;
    let drip_size = table.get("drip_size").map_or(Ok(1), |place| place.number())?;
    let interval = table.need("drip_interval")?.duration()?;
    let bucket = LeakyBucket::new(size, drip_size, interval);
    Ok(bucket.map_err(|error| table.wrong(error.to_string()))?.into())
}

fn concurrency(table: &Table<'_>) -> Result<Algorithm, ConfigError> {
    let limit: u64 = table.need("limit")?.number()?;
    let lease = table.need("lease")?.duration()?;
    let limit = Concurrency::new(limit, lease);
    Ok(limit.map_err(|error| table.wrong(error.to_string()))?.into())
}

/// What to do when the store fails, and whether to say so instead of answering.
pub(super) fn on_store_error(table: &Table<'_>) -> (OnStoreError, bool) {
    let mut at_most = Duration::from_secs(30);
    table.set("allow_at_most", &mut at_most, Place::duration);
    let mut shares = 1;
    table.set("shares", &mut shares, Place::number);
    let mut mode = (OnStoreError::Deny, false);
    table.set("on_store_error", &mut mode, |place| match place.text()?.as_str() {
        "deny" => Ok((OnStoreError::Deny, false)),
        "allow" => Ok((OnStoreError::Allow { at_most }, false)),
        "local" => Ok((OnStoreError::Local { shares }, false)),
        "allow_then_local" => Ok((OnStoreError::AllowThenLocal { at_most, shares }, false)),
        "unavailable" => Ok((OnStoreError::Deny, true)),
        _ => Err(place.wrong("right would be allow, allow_then_local, deny, local or unavailable")),
    });
    mode
}

fn reservation_terms(table: &Table<'_>) -> ReservationTerms {
    let mut terms = ReservationTerms::default();
    table.set("reservation_ttl", &mut terms.ttl, Place::duration);
    table.set("on_expiry", &mut terms.on_expiry, |place| match place.text()?.as_str() {
        "return" => Ok(OnExpiry::Return),
        "keep" => Ok(OnExpiry::Keep),
        _ => Err(place.wrong("right would be return or keep")),
    });
    terms
}

fn overrides(table: &Table<'_>, name: &str) -> Vec<(Pattern, Policy)> {
    let read = |place: &Place<'_>| {
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
        table.set(name, &mut texts, Place::texts);
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
            _ => Err(place.wrong("right would be address or header:x-api-key")),
        }
    });
    key
}
