//! Descriptor rules in a file, in the form of envoyproxy/ratelimit.
//!
//! Beside its `rate_limit` a descriptor may have a `quota` with an `algorithm`, as a policy has,
//! for what that form cannot say: other periods, bursts, sliding windows.

use std::cell::RefCell;

use tollgate_core::Policy;

use super::error::ConfigError;
use super::policies::{algorithm, on_store_error};
use super::reader::{Place, Table};
use crate::descriptors::{Domain, Limit, Node};
use crate::metrics::Metrics;
use crate::rls::{Unit, limit_policy, printable};

/// Deeper trees are refused: nobody means them.
const DEPTH_MAX: usize = 16;

/// Reads `domain` and `descriptors` of a table; `notes` takes what is read and has no effect.
pub(super) fn domain(
    table: &Table<'_>,
    metrics: &Metrics,
    notes: &mut Vec<ConfigError>,
) -> Result<Domain, ConfigError> {
    let name = table.need("domain")?.text()?;
    if name.is_empty() {
        return Err(table.wrong("domain must not be empty"));
    }
    let reading = Reading { domain: &name, metrics, notes: RefCell::new(notes) };
    let mut root = Node::default();
    if let Some(descriptors) = table.get("descriptors") {
        reading.branches(&descriptors, "", DEPTH_MAX, &mut root)?;
    }
    Ok(Domain::new(name, root))
}

struct Reading<'a> {
    domain: &'a str,
    metrics: &'a Metrics,
    notes: RefCell<&'a mut Vec<ConfigError>>,
}

/// What a descriptor says beside its limit.
struct Modes {
    shadow: bool,
    quota_mode: bool,
    share_threshold: bool,
}

impl Reading<'_> {
    fn branches(
        &self,
        place: &Place<'_>,
        path: &str,
        depth: usize,
        parent: &mut Node,
    ) -> Result<(), ConfigError> {
        if depth == 0 {
            return Err(place.wrong(format!("more than {DEPTH_MAX} levels of descriptors")));
        }
        for place in place.list()? {
            let table = place.table()?;
            let key = table.need("key")?.text()?;
            let value = table.text("value")?;
            let dot = if path.is_empty() { "" } else { "." };
            let path = match &value {
                Some(value) => format!("{path}{dot}{key}_{value}"),
                None => format!("{path}{dot}{key}"),
            };
            let mut node = Node::new(self.limit(&table, &path)?);
            if let Some(descriptors) = table.get("descriptors") {
                self.branches(&descriptors, &path, depth - 1, &mut node)?;
            }
            table.finish()?;
            if !parent.add(&key, value.as_deref(), node) {
                return Err(place.wrong("the same key and value stand here twice"));
            }
        }
        Ok(())
    }

    fn limit(&self, table: &Table<'_>, path: &str) -> Result<Option<Limit>, ConfigError> {
        let modes = Modes {
            shadow: table.flag("shadow_mode")?,
            quota_mode: table.flag("quota_mode")?,
            share_threshold: table.flag("share_threshold")?,
        };
        self.note_metrics(table)?;
        let metadata = metadata(table)?;
        let (on_store_error, unavailable) = on_store_error(table)?;
        let limit = match (table.get("rate_limit"), table.get("quota")) {
            (None, None) if metadata.is_empty() => return Ok(None),
            (None, None) => {
                return Err(table.wrong("metadata goes with a rate_limit or a quota"));
            }
            (Some(place), None) => self.rate_limit(&place, path, modes)?,
            (None, Some(place)) => {
                let policy = Policy::new(self.name(path), algorithm(table)?);
                let policy = policy.map_err(|error| place.wrong(error.to_string()))?;
                self.limited(Some(policy), path, modes)
            }
            (Some(place), Some(_)) => {
                return Err(place.wrong("give either rate_limit or quota, not both"));
            }
        };
        let _ = table.get("algorithm");
        let policy = limit.policy.map(|policy| policy.on_store_error(on_store_error));
        Ok(Some(Limit { policy, unavailable_on_store_error: unavailable, metadata, ..limit }))
    }

    /// envoyproxy/ratelimit can make values of descriptors part of its metrics' names. Values are the
    /// clients' to choose, and here never label a metric: the file is read, and the reader told.
    fn note_metrics(&self, table: &Table<'_>) -> Result<(), ConfigError> {
        for name in ["detailed_metric", "value_to_metric"] {
            if let Some(place) = table.get(name)
                && place.boolean()?
            {
                let text = "has no effect: what clients send never labels a metric here";
                self.notes.borrow_mut().push(place.wrong(text));
            }
        }
        Ok(())
    }

    fn rate_limit(
        &self,
        place: &Place<'_>,
        path: &str,
        modes: Modes,
    ) -> Result<Limit, ConfigError> {
        let table = place.table()?;
        let name = table.text("name")?;
        let replaces = table.get("replaces").map_or(Ok(Vec::new()), |place| replaces(&place))?;
        let unlimited = table.flag("unlimited")?;
        let unit = table.get("unit");
        let requests = table.get("requests_per_unit");
        let mut limit = if unlimited {
            if let Some(place) = unit.or(requests) {
                return Err(place.wrong("unlimited has neither a unit nor requests_per_unit"));
            }
            self.limited(None, path, modes)
        } else {
            let missing = |name: &str| table.wrong(format!("{name} is missing"));
            let unit_place = unit.ok_or_else(|| missing("unit"))?;
            let unit = Unit::named(&unit_place.text()?).ok_or_else(|| {
                unit_place.wrong("right would be second, minute, hour, day, week, month or year")
            })?;
            let requests: u32 = requests.ok_or_else(|| missing("requests_per_unit"))?.number()?;
            let shown = name.clone().unwrap_or_else(|| self.name(path));
            let policy = limit_policy(&shown, requests, unit);
            let policy = policy.map_err(|error| place.wrong(error.to_string()))?;
            Limit { deny_all: requests == 0, ..self.limited(Some(policy), path, modes) }
        };
        table.finish()?;
        if replaces.contains(&name.clone().unwrap_or_default()) && name.is_some() {
            return Err(place.wrong("a limit cannot replace itself"));
        }
        (limit.name, limit.replaces) = (name, replaces);
        Ok(limit)
    }

    fn limited(&self, policy: Option<Policy>, path: &str, modes: Modes) -> Limit {
        let Modes { shadow, quota_mode, share_threshold } = modes;
        let limit = Limit::new(policy, self.metrics.tally(self.domain, path));
        Limit { shadow, quota_mode, share_threshold, ..limit }
    }

    fn name(&self, path: &str) -> String {
        printable(path)
    }
}

/// What the proxy is told when a request matches and passes.
fn metadata(table: &Table<'_>) -> Result<serde_json::Map<String, serde_json::Value>, ConfigError> {
    let Some(place) = table.get("metadata") else { return Ok(serde_json::Map::new()) };
    match place.json() {
        serde_json::Value::Object(fields) => Ok(fields),
        _ => Err(place.wrong("expected a table")),
    }
}

fn replaces(place: &Place<'_>) -> Result<Vec<String>, ConfigError> {
    let name = |place: &Place<'_>| {
        let table = place.table()?;
        let name = table.need("name")?.text()?;
        table.finish()?;
        Ok(name)
    };
    place.list()?.iter().map(name).collect()
}
