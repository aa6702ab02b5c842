//! The data file: JSON read strictly, so that a misspelt expectation is an error and not a pass.

mod policy;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use tollway_core::{Cost, Mode, Policy, Settlement, parse_duration};

use super::{Ask, Figures, Operation, Outcome, Scenario, Step, Wait};
use policy::RawPolicy;

/// Reads scenarios.
///
/// # Errors
///
/// If the text is not JSON of the right shape, or a scenario makes no sense; says which.
pub fn load(json: &str) -> Result<Vec<Scenario>, FormatError> {
    let file: RawFile = serde_json::from_str(json)
        .map_err(|error| FormatError { place: "the file".into(), what: error.to_string() })?;
    file.scenarios.into_iter().map(RawScenario::build).collect()
}

/// Why a file is malformed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormatError {
    place: String,
    what: String,
}

impl fmt::Display for FormatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.what)
    }
}

impl std::error::Error for FormatError {}

/// What is wrong, before it is known where.
type Built<T> = Result<T, String>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFile {
    scenarios: Vec<RawScenario>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawScenario {
    name: String,
    #[serde(default)]
    tags: Vec<String>,
    align: Option<String>,
    #[serde(default)]
    absolute: bool,
    policies: BTreeMap<String, RawPolicy>,
    steps: Vec<RawStep>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawStep {
    #[serde(default)]
    at_ms: u64,
    #[serde(default)]
    at_ns: i64,
    check: Option<OneOrMany<RawCharge>>,
    peek: Option<OneOrMany<RawCharge>>,
    take: Option<RawCharge>,
    refund: Option<RawCharge>,
    reset: Option<RawCharge>,
    reserve: Option<OneOrMany<RawCharge>>,
    r#as: Option<String>,
    commit: Option<String>,
    costs: Option<Vec<u64>>,
    cancel: Option<String>,
    #[serde(default)]
    expect: RawExpect,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany<T> {
    One(T),
    Many(Vec<T>),
}

impl<T> OneOrMany<T> {
    fn into_vec(self) -> Vec<T> {
        match self {
            Self::One(one) => vec![one],
            Self::Many(many) => many,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawCharge {
    policy: Option<String>,
    key: Option<String>,
    cost: Option<u64>,
    #[serde(default)]
    counted: bool,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawExpect {
    allowed: Option<bool>,
    denied_by: Option<String>,
    granted: Option<u64>,
    settlement: Option<RawSettlement>,
    expires: Option<String>,
    limit: Option<u64>,
    remaining: Option<u64>,
    retry: Option<String>,
    reset: Option<String>,
    next: Option<String>,
    charges: Option<Vec<RawFigures>>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RawSettlement {
    Settled,
    Unknown,
}

#[derive(Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFigures {
    limit: Option<u64>,
    remaining: Option<u64>,
    retry: Option<String>,
    reset: Option<String>,
    next: Option<String>,
}

impl RawScenario {
    fn build(self) -> Result<Scenario, FormatError> {
        let name = self.name.clone();
        self.build_parts().map_err(|what| FormatError { place: name, what })
    }

    fn build_parts(self) -> Built<Scenario> {
        let policies = Policies::build(self.policies)?;
        let numbered = self.steps.into_iter().enumerate();
        let steps = numbered.map(|(index, step)| {
            step.build(&policies).map_err(|what| format!("step {index}: {what}"))
        });
        Ok(Scenario {
            name: self.name,
            tags: self.tags,
            align: self.align.as_deref().map_or(Ok(Duration::from_secs(1)), duration)?,
            absolute: self.absolute,
            steps: steps.collect::<Built<_>>()?,
            policies: policies.by_name.into_values().collect(),
        })
    }
}

/// The scenario's policies, and the one that is meant if none is named.
struct Policies {
    by_name: BTreeMap<String, Arc<Policy>>,
    only: Option<String>,
}

impl Policies {
    fn build(raw: BTreeMap<String, RawPolicy>) -> Built<Self> {
        let only = if raw.len() == 1 { raw.keys().next().cloned() } else { None };
        let mut by_name = BTreeMap::new();
        for (name, policy) in raw {
            for policy in policy.build(&name)? {
                by_name.insert(policy.name().to_owned(), Arc::new(policy));
            }
        }
        Ok(Self { by_name, only })
    }

    fn find(&self, name: Option<&String>) -> Built<Arc<Policy>> {
        let name = name.or(self.only.as_ref()).ok_or("a charge must name its policy")?;
        self.by_name.get(name).cloned().ok_or_else(|| format!("no policy is named {name}"))
    }
}

impl RawStep {
    fn build(self, policies: &Policies) -> Built<Step> {
        let offset_ns = i128::from(self.at_ms) * 1_000_000 + i128::from(self.at_ns);
        let (expect, operation) = self.split(policies)?;
        let expect = expect.build(operation.asks().len())?;
        Ok(Step { offset_ns, operation, expect })
    }

    /// The operation: exactly one of the fields that name one.
    fn split(self, policies: &Policies) -> Built<(RawExpect, Operation)> {
        let one = |charge: RawCharge| charge.build(policies);
        let many = |charges: OneOrMany<RawCharge>| {
            charges.into_vec().into_iter().map(one).collect::<Built<Vec<Ask>>>()
        };
        let reserve = |asks, label: Option<String>| {
            let label = label.ok_or("a reservation needs a name: as")?;
            Ok::<_, String>(Operation::Reserve { label, asks: many(asks)? })
        };
        if self.costs.is_some() && self.commit.is_none() {
            return Err("only a commit has costs".into());
        }
        if self.r#as.is_some() && self.reserve.is_none() {
            return Err("only a reservation is named".into());
        }
        let (label, costs) = (self.r#as, self.costs.unwrap_or_default());
        let given = [
            self.check.map(|asks| many(asks).map(Operation::Check)),
            self.peek.map(|asks| many(asks).map(Operation::Peek)),
            self.take.map(|ask| one(ask).map(Operation::Take)),
            self.refund.map(|ask| one(ask).map(Operation::Refund)),
            self.reset.map(|ask| one(ask).map(Operation::Reset)),
            self.reserve.map(|asks| reserve(asks, label)),
            self.commit.map(|label| Ok(Operation::Commit { label, costs })),
            self.cancel.map(|label| Ok(Operation::Cancel { label })),
        ];
        let mut given = given.into_iter().flatten();
        match (given.next(), given.next()) {
            (Some(operation), None) => Ok((self.expect, operation?)),
            (None, _) => Err("no operation".into()),
            (Some(_), Some(_)) => Err("more than one operation".into()),
        }
    }
}

impl RawCharge {
    fn build(self, policies: &Policies) -> Built<Ask> {
        let policy = policies.find(self.policy.as_ref())?;
        let cost = Cost::new(self.cost.unwrap_or(1)).ok_or("a cost of zero is a peek")?;
        let mode = if self.counted { Mode::Count } else { Mode::Enforce };
        let key = self.key.unwrap_or_else(|| "k".to_owned());
        Ask::new(policy, key, cost, mode).ok_or_else(|| "the key is empty or too long".into())
    }
}

impl RawExpect {
    fn build(self, charges: usize) -> Built<Outcome> {
        if self.denied_by.is_some() && self.allowed.is_some() {
            return Err("a request is allowed, or denied by a policy".into());
        }
        let (allowed, denied_by) = match self.denied_by {
            Some(name) => (Some(false), Some(name)),
            None => (self.allowed, None),
        };
        let RawExpect { limit, remaining, retry, reset, next, .. } = self;
        let direct = RawFigures { limit, remaining, retry, reset, next };
        let raw = match self.charges {
            Some(_) if direct != RawFigures::default() => {
                return Err("figures stand directly or in charges, not both".into());
            }
            Some(figures) => figures,
            None if direct == RawFigures::default() => Vec::new(),
            None => vec![direct],
        };
        if !raw.is_empty() && raw.len() != charges {
            return Err(format!("figures for {} charges, but {charges} are asked", raw.len()));
        }
        Ok(Outcome {
            allowed,
            denied_by,
            figures: raw.into_iter().map(RawFigures::build).collect::<Built<_>>()?,
            granted: self.granted,
            settlement: self.settlement.map(RawSettlement::build),
            expires_after: self.expires.as_deref().map(duration).transpose()?,
        })
    }
}

impl RawSettlement {
    const fn build(self) -> Settlement {
        match self {
            Self::Settled => Settlement::Settled,
            Self::Unknown => Settlement::Unknown,
        }
    }
}

impl RawFigures {
    fn build(self) -> Built<Figures> {
        let retry = match self.retry.as_deref() {
            None => None,
            Some("none") => Some(Wait::No),
            Some("never") => Some(Wait::Never),
            Some(text) => Some(Wait::After(duration(text)?)),
        };
        Ok(Figures {
            limit: self.limit,
            remaining: self.remaining,
            retry,
            reset_after: self.reset.as_deref().map(duration).transpose()?,
            next_after: self.next.as_deref().map(duration).transpose()?,
        })
    }
}

fn duration(text: &str) -> Built<Duration> {
    parse_duration(text).map_err(|error| error.pointing_into(text))
}

#[cfg(test)]
mod tests;
