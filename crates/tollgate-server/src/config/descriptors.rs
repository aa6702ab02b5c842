//! Descriptor rules in a file, in the form of envoyproxy/ratelimit.
//!
//! Beside its `rate_limit` a descriptor may have a `quota` with an `algorithm`, as a policy has,
//! for what that form cannot say: other periods, bursts, sliding windows.

use tollgate_core::Policy;

use super::error::ConfigError;
use super::policies::{algorithm, on_store_error};
use super::reader::{Place, Table};
use crate::descriptors::{Domain, Limit, Node};
use crate::metrics::Metrics;
use crate::rls::{Unit, limit_policy, printable};

/// Deeper trees are refused: nobody means them.
const DEPTH_MAX: usize = 16;

/// Reads `domain` and `descriptors` of a table.
pub(super) fn domain(table: &Table<'_>, metrics: &Metrics) -> Result<Domain, ConfigError> {
    let name = table.need("domain")?.text()?;
    if name.is_empty() {
        return Err(table.wrong("domain must not be empty"));
    }
    let reading = Reading { domain: &name, metrics };
    let mut root = Node::default();
    if let Some(descriptors) = table.get("descriptors") {
        reading.branches(&descriptors, "", DEPTH_MAX, &mut root)?;
    }
    Ok(Domain::new(name, root))
}

struct Reading<'a> {
    domain: &'a str,
    metrics: &'a Metrics,
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
        // These shape envoyproxy/ratelimit's own statistics and have no counterpart here.
        for name in ["detailed_metric", "value_to_metric", "metadata"] {
            let _ = table.get(name);
        }
        let (on_store_error, unavailable) = on_store_error(table)?;
        let limit = match (table.get("rate_limit"), table.get("quota")) {
            (None, None) => return Ok(None),
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
        Ok(Some(Limit { policy, unavailable_on_store_error: unavailable, ..limit }))
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
        Limit {
            policy,
            deny_all: false,
            shadow: modes.shadow,
            quota_mode: modes.quota_mode,
            unavailable_on_store_error: false,
            share_threshold: modes.share_threshold,
            name: None,
            replaces: Vec::new(),
            tally: self.metrics.tally(self.domain, path),
        }
    }

    fn name(&self, path: &str) -> String {
        printable(path)
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
