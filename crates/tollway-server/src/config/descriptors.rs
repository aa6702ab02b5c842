//! Descriptor rules in a file, in the form of envoyproxy/ratelimit.
//!
//! Beside its `rate_limit` a descriptor may have a `quota` with an `algorithm`, as a policy has,
//! for what that form cannot say: other periods, bursts, sliding windows.

use std::collections::HashMap;

use tollway_core::Policy;

use super::error::ConfigError;
use super::policies::{algorithm_or_noted, on_change, on_store_error};
use super::reader::{ConfigValue, Table};
use crate::descriptors::{DescriptorValues, Domain, Limit, Node};
use crate::metrics::Metrics;
use crate::rls::{Unit, limit_policy, printable};
use crate::settings::Manner;

/// Deeper trees are refused: nobody means them.
const DEPTH_MAX: usize = 16;

/// Domains in the order in which they are read, and where each is in that order: names would be
/// compared with every other in a list.
pub(super) struct Domains<'a> {
    pub list: &'a mut Vec<Domain>,
    pub places: &'a mut HashMap<String, usize>,
}

/// Reads `domain` and `descriptors` of a table and adds them to `domains`. Something wrong is
/// noted.
pub(super) fn domain(table: &Table<'_>, metrics: &Metrics, manner: Manner, domains: Domains<'_>) {
    let name = table.tell(table.need("domain").and_then(|place| match place.text()? {
        name if name.is_empty() => Err(place.wrong("must not be empty")),
        name => Ok(name),
    }));
    // The descriptors are looked at all the same: their mistakes are told together with this one.
    let domain = name.as_deref().unwrap_or("unnamed");
    let known = domains.places.get(domain).copied();
    if known.is_some() && !manner.merges {
        let remedy = "merge_domains = true puts both together";
        table.note(format!("a domain named {domain:?} is defined above; {remedy}"));
    }
    let reading = Reading { domain, metrics, manner };
    let mut fresh = Node::default();
    let descriptors = table.each("descriptors");
    match known.filter(|_| manner.merges) {
        Some(known) => {
            reading.branches(descriptors, "", DEPTH_MAX, domains.list[known].root_mut());
        }
        None => {
            reading.branches(descriptors, "", DEPTH_MAX, &mut fresh);
            if let Some(name) = name {
                domains.places.insert(name.clone(), domains.list.len());
                domains.list.push(Domain::new(name, fresh));
            }
        }
    }
}

struct Reading<'a> {
    domain: &'a str,
    metrics: &'a Metrics,
    manner: Manner,
}

/// What a descriptor says beside its limit.
struct Modes {
    shadow: bool,
    quota_mode: bool,
    tells_values: bool,
}

impl Reading<'_> {
    fn branches(&self, places: Vec<ConfigValue<'_>>, path: &str, depth: usize, parent: &mut Node) {
        for place in places {
            let Some(table) = place.tell(place.table()) else { continue };
            let key = place.tell(table.need("key").and_then(|place| place.text()));
            let key = key.as_deref().unwrap_or("unnamed");
            // An empty value is none: any is meant.
            let value = table.text("value").filter(|value| !value.is_empty());
            let values = values(&table, value.as_deref());
            let dot = if path.is_empty() { "" } else { "." };
            let path = match &value {
                Some(value) => format!("{path}{dot}{key}_{value}"),
                None => format!("{path}{dot}{key}"),
            };
            let mut node = Node::new(self.limit(&table, &path));
            node.tells_value = table.flag("value_to_metric");
            let below = table.each("descriptors");
            table.finish();
            if depth > 1 {
                self.branches(below, &path, depth - 1, &mut node);
            } else if let Some(deep) = below.first() {
                let problem = format!("more than {DEPTH_MAX} levels of descriptors");
                deep.note(problem);
            }
            if !parent.add(key, values, node) {
                let problem = "the same key and value stand here twice";
                place.note(problem);
            }
        }
    }

    /// The limit of a descriptor; `None` if it has none, or a wrong one, which is noted.
    fn limit(&self, table: &Table<'_>, path: &str) -> Option<Limit> {
        let modes = Modes {
            shadow: table.flag("shadow_mode"),
            quota_mode: table.flag("quota_mode") || self.manner.quota_mode,
            tells_values: table.flag("detailed_metric"),
        };
        let mut metadata = serde_json::Map::new();
        table.set("metadata", &mut metadata, metadata_of);
        let (on_store_error, unavailable) = on_store_error(table);
        let is_silent = !table.has("on_store_error");
        let unavailable = unavailable || is_silent && self.manner.tells_store_errors;
        let on_change = on_change(table);
        let limit = match (table.get("rate_limit"), table.get("quota")) {
            (None, None) if metadata.is_empty() => Ok(None),
            (None, None) => Err(table.wrong("metadata goes with a rate_limit or a quota")),
            (Some(place), None) => self.rate_limit(&place, path, modes),
            (None, Some(place)) => algorithm_or_noted(table)
                .map(|algorithm| Policy::new(self.name(path), algorithm))
                .transpose()
                .map_err(|error| place.wrong(error.to_string()))
                .map(|policy| policy.map(|policy| self.limited(Some(policy), path, modes))),
            (Some(place), Some(_)) => Err(place.wrong("give either rate_limit or quota, not both")),
        };
        table.knows(&["algorithm"]);
        let limit = table.tell(limit)??;
        let policy =
            limit.policy.map(|policy| policy.on_store_error(on_store_error).on_change(on_change));
        let place = table.place();
        Some(Limit { policy, unavailable_on_store_error: unavailable, metadata, place, ..limit })
    }

    fn rate_limit(
        &self,
        place: &ConfigValue<'_>,
        path: &str,
        modes: Modes,
    ) -> Result<Option<Limit>, ConfigError> {
        let table = place.table()?;
        let name = table.text("name");
        let mut replaces = Vec::new();
        table.set("replaces", &mut replaces, replaces_of);
        let unlimited = table.flag("unlimited");
        let unit = table.get("unit");
        let requests = table.get("requests_per_unit");
        let mut limit = if unlimited {
            if let Some(place) = unit.or(requests) {
                return Err(place.wrong("unlimited has neither a unit nor requests_per_unit"));
            }
            self.limited(None, path, modes)
        } else {
            let unit = table.need("unit").and_then(|place| {
                let right = "expected second, minute, hour, day, week, month or year";
                Unit::named(&place.text()?).ok_or_else(|| place.wrong(right))
            });
            // Both are looked at before either fails: each may be wrong.
            let requests = table.need("requests_per_unit").and_then(|place| place.number::<u32>());
            let (unit, requests) = (table.tell(unit), table.tell(requests));
            table.finish();
            let (Some(unit), Some(requests)) = (unit, requests) else { return Ok(None) };
            let shown = name.clone().unwrap_or_else(|| self.name(path));
            let policy = limit_policy(&shown, requests, unit);
            let policy = policy.map_err(|error| place.wrong(error.to_string()))?;
            Limit { deny_all: requests == 0, ..self.limited(Some(policy), path, modes) }
        };
        table.finish();
        if replaces.contains(&name.clone().unwrap_or_default()) && name.is_some() {
            return Err(place.wrong("a limit cannot replace itself"));
        }
        (limit.name, limit.replaces) = (name, replaces);
        Ok(Some(limit))
    }

    fn limited(&self, policy: Option<Policy>, path: &str, modes: Modes) -> Limit {
        let Modes { shadow, quota_mode, tells_values } = modes;
        let limit = Limit::new(policy, self.metrics.tally(self.domain, path));
        Limit { shadow, quota_mode, tells_values, path: path.to_owned(), ..limit }
    }

    fn name(&self, path: &str) -> String {
        printable(path)
    }
}

/// Which values a descriptor is for.
fn values<'a>(table: &Table<'_>, value: Option<&'a str>) -> DescriptorValues<'a> {
    let shares_count = table.flag("share_threshold");
    if let Some(value) = value.filter(|value| value.contains('*')) {
        return DescriptorValues::Matching(value, shares_count);
    }
    if let Some(place) = table.get("share_threshold").filter(|_| shares_count) {
        place.note("is for values with a wildcard; expected a value with * in it");
    }
    value.map_or(DescriptorValues::Any, DescriptorValues::One)
}

/// What the proxy is told when a request matches and passes.
fn metadata_of(
    place: &ConfigValue<'_>,
) -> Result<serde_json::Map<String, serde_json::Value>, ConfigError> {
    match place.json() {
        serde_json::Value::Object(fields) => Ok(fields),
        _ => Err(place.wrong("expected a table")),
    }
}

fn replaces_of(place: &ConfigValue<'_>) -> Result<Vec<String>, ConfigError> {
    place.all(|place| {
        let table = place.table()?;
        let name = table.need("name")?.text()?;
        table.finish();
        Ok(name)
    })
}
