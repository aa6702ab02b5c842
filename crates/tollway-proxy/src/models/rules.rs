//! Budgets of models as a file describes them: who pays, what is counted, how much, for which
//! models.
//!
//! ```toml
//! [[budgets]]
//! name = "team"
//! owner = ["header:x-team"]
//! counts = "total"
//! limit = "100000/1m"
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use http::HeaderMap;
use http::header::HeaderName;
use serde::Deserialize;
use tollway_core::spelling::unknown;
use tollway_core::{OnExpiry, Policy, ReservationTerms};

use crate::credential::CredentialId;
use crate::models::price::{PriceText, Prices, fits, millionths};
use crate::models::usage::Usage;

/// The longest name of an owner; a longer one is no owner.
const OWNER_BYTES_MAX: usize = 256;
/// Rules in one file.
const RULES_MAX: usize = 64;

/// What a file describes.
#[derive(Clone, Debug)]
pub struct ModelRules {
    pub(crate) rules: Vec<Rule>,
    pub(crate) prices: Prices,
    /// What is known of credentials, by their hashes.
    pub(crate) keys: BTreeMap<CredentialId, BTreeMap<String, String>>,
    /// The largest body of a call.
    pub(crate) body_bytes_max: usize,
    /// Tokens of output that a call of an unknown length is expected to have without a cap.
    pub(crate) unknown_output: u64,
}

/// One budget.
#[derive(Clone, Debug)]
pub(crate) struct Rule {
    pub(crate) policy: Policy,
    pub(crate) owner: Vec<Owner>,
    pub(crate) counts: Counts,
    models: Vec<String>,
    pub(crate) when_spent: WhenSpent,
    /// How long a call may wait for it.
    pub(crate) wait: Duration,
}

/// Who pays: one part of the budget's key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// A header field of the request. Without it there is no owner, and the call is refused.
    Header(HeaderName),
    /// The credential, by its hash.
    Credential,
    /// What the file says of the credential.
    Key(String),
    Model,
    Everyone,
}

/// What a budget counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Counts {
    Requests,
    Input,
    Output,
    Cached,
    Total,
    Money,
}

/// What becomes of a stream whose budget is spent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum WhenSpent {
    /// It ends as if its cap were reached.
    #[default]
    End,
    /// It goes on; later calls pay.
    Debt,
}

/// Why a file describes no budgets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelRulesError(String);

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct File {
    #[serde(default)]
    budgets: Vec<RuleText>,
    #[serde(default)]
    prices: BTreeMap<String, PriceText>,
    #[serde(default)]
    keys: BTreeMap<String, BTreeMap<String, String>>,
    #[serde(default = "four_mib")]
    body_max: usize,
    #[serde(default = "four_thousand")]
    unknown_output: u64,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct RuleText {
    name: String,
    owner: OwnerText,
    counts: Counts,
    limit: String,
    #[serde(default = "all_models")]
    models: Vec<String>,
    #[serde(default)]
    when_spent: WhenSpent,
    #[serde(default)]
    wait: Option<String>,
    #[serde(default)]
    lease: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OwnerText {
    One(String),
    Several(Vec<String>),
}

impl ModelRules {
    /// Reads a file in TOML.
    ///
    /// # Errors
    ///
    /// Says which field of which budget is wrong, and what was expected.
    pub fn parse(text: &str) -> Result<Self, ModelRulesError> {
        let file: File =
            toml::from_str(text).map_err(|error| ModelRulesError(error.to_string()))?;
        if file.budgets.is_empty() || file.budgets.len() > RULES_MAX {
            let found = file.budgets.len();
            return Err(ModelRulesError(format!("{found} budgets: expected 1 to {RULES_MAX}")));
        }
        let prices = Prices::read(&file.prices).map_err(ModelRulesError)?;
        let mut keys = BTreeMap::new();
        for (id, known) in file.keys {
            let read = CredentialId::parse(&id).ok_or_else(|| {
                ModelRulesError(format!(
                    "keys.{id:?}: expected the 32 hexadecimal digits by which /admin shows a \
                     credential"
                ))
            })?;
            keys.insert(read, known);
        }
        let mut rules: Vec<Rule> = Vec::new();
        for text in file.budgets {
            let name = text.name.clone();
            if rules.iter().any(|rule| rule.policy.name() == name) {
                return Err(ModelRulesError(format!("budget {name:?} is there twice")));
            }
            let rule = Rule::read(text, &file.prices)
                .map_err(|wrong| ModelRulesError(format!("budget {name:?}: {wrong}")))?;
            rules.push(rule);
        }
        let (body_bytes_max, unknown_output) = (file.body_max, file.unknown_output.max(1));
        Ok(Self { rules, prices, keys, body_bytes_max, unknown_output })
    }

    /// The policies of all budgets, for the limiter.
    pub fn policies(&self) -> impl Iterator<Item = Policy> {
        self.rules.iter().map(|rule| rule.policy.clone())
    }
}

impl Rule {
    fn read(text: RuleText, prices: &BTreeMap<String, PriceText>) -> Result<Self, String> {
        let duration = |field: &str, text: Option<String>, usual: Duration| match text {
            None => Ok(usual),
            Some(text) => tollway_core::parse_duration(&text)
                .map_err(|_| format!("{field}: `{text}` is no duration such as 10s")),
        };
        let limit = match text.counts {
            Counts::Money if prices.is_empty() => {
                return Err("counts money, but there are no [prices]".to_owned());
            }
            Counts::Money => in_millionths(&text.limit)?,
            _ => text.limit.clone(),
        };
        let policy = Policy::parse(&text.name, &limit)
            .map_err(|error| format!("limit: `{}`: {error}", text.limit))?;
        let ttl = duration("lease", text.lease, Duration::from_secs(120))?;
        let terms = ReservationTerms { ttl, on_expiry: OnExpiry::Return };
        let owners = match text.owner {
            OwnerText::One(owner) => vec![owner],
            OwnerText::Several(owners) => owners,
        };
        let owner = owners.iter().map(|text| Owner::read(text)).collect::<Result<Vec<_>, _>>()?;
        if owner.is_empty() {
            return Err("owner: expected at least one".to_owned());
        }
        Ok(Self {
            policy: policy.reservations(terms),
            owner,
            counts: text.counts,
            models: text.models,
            when_spent: text.when_spent,
            wait: duration("wait", text.wait, Duration::ZERO)?,
        })
    }

    pub(crate) fn is_for(&self, model: &str) -> bool {
        self.models.iter().any(|pattern| fits(pattern, model))
    }

    /// What this budget loses by `usage`.
    pub(crate) fn cost(&self, usage: Usage, prices: &Prices, model: &str) -> u64 {
        match self.counts {
            Counts::Requests => 1,
            Counts::Input => usage.input,
            Counts::Output => usage.output,
            Counts::Cached => usage.cached,
            Counts::Total => usage.total(),
            Counts::Money => prices.of(model).map_or(0, |price| price.of(usage)),
        }
    }
}

impl Owner {
    fn read(text: &str) -> Result<Self, String> {
        let (kind, name) = text.split_once(':').unwrap_or((text, ""));
        match (kind, name) {
            ("credential", "") => Ok(Self::Credential),
            ("model", "") => Ok(Self::Model),
            ("everyone", "") => Ok(Self::Everyone),
            ("key", name) if !name.is_empty() => Ok(Self::Key(name.to_owned())),
            ("header", name) if !name.is_empty() => {
                let header = name.parse();
                header.map(Self::Header).map_err(|_| format!("owner: `{name}` names no header"))
            }
            _ => {
                let known = ["header:NAME", "credential", "key:NAME", "model", "everyone"];
                Err(format!("owner: {}", unknown("owner", text, known)))
            }
        }
    }

    /// This owner of a request; none if it does not say.
    pub(crate) fn of<'a>(&self, request: &Asking<'a>) -> Option<std::borrow::Cow<'a, str>> {
        match self {
            Self::Header(name) => {
                let value = request.headers.get(name)?.to_str().ok()?;
                (!value.is_empty() && value.len() <= OWNER_BYTES_MAX).then_some(value.into())
            }
            Self::Credential => Some(request.credential.to_string().into()),
            Self::Key(name) => {
                let known = request.keys.get(&request.credential)?;
                known.get(name).map(|value| value.as_str().into())
            }
            Self::Model => Some(request.model.into()),
            Self::Everyone => Some("everyone".into()),
        }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(name) => write!(f, "the header field {name}"),
            Self::Key(name) => write!(f, "a credential with a known {name:?}"),
            Self::Credential => f.write_str("a credential"),
            Self::Model => f.write_str("a model"),
            Self::Everyone => f.write_str("nothing"),
        }
    }
}

/// What owners are found by.
pub(crate) struct Asking<'a> {
    pub(crate) headers: &'a HeaderMap,
    pub(crate) credential: CredentialId,
    pub(crate) keys: &'a BTreeMap<CredentialId, BTreeMap<String, String>>,
    pub(crate) model: &'a str,
}

/// `25.50/1d` in millionths: `25500000/1d`.
fn in_millionths(limit: &str) -> Result<String, String> {
    let end = limit.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(limit.len());
    let (amount, rest) = limit.split_at(end);
    let units = millionths(amount)
        .ok_or_else(|| format!("limit: `{limit}` is no amount for a time, such as 25.50/1d"))?;
    Ok(format!("{units}{rest}"))
}

impl fmt::Display for ModelRulesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ModelRulesError {}

fn all_models() -> Vec<String> {
    vec!["*".to_owned()]
}

const fn four_mib() -> usize {
    4 << 20
}

const fn four_thousand() -> u64 {
    4_096
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(text: &str) -> String {
        ModelRules::parse(text).unwrap_err().to_string()
    }

    #[test]
    fn a_file_says_who_pays_what() {
        let rules = ModelRules::parse(
            r#"
            [prices]
            "*" = { input = "0.15", output = "0.60" }
            [keys.00112233445566778899aabbccddeeff]
            team = "search"
            [[budgets]]
            name = "money"
            owner = ["key:team", "model"]
            counts = "money"
            limit = "25.50/1d"
            [[budgets]]
            name = "tokens"
            owner = "header:x-team"
            counts = "total"
            limit = "10000/1m burst 20"
            models = ["gpt-*"]
            wait = "10s"
            "#,
        )
        .unwrap();
        let [money, tokens] = &*rules.rules else { panic!("{rules:?}") };
        assert_eq!(money.policy.algorithm().limit(), 25_500_000);
        let usage = Usage { input: 10, cached: 0, output: 10 };
        assert_eq!(money.cost(usage, &rules.prices, "any"), 8);
        assert_eq!(tokens.cost(usage, &rules.prices, "any"), 20);
        assert!(tokens.is_for("gpt-4o") && !tokens.is_for("o1"));
        let mut headers = HeaderMap::new();
        headers.insert("x-team", "a".parse().unwrap());
        let credential = CredentialId::parse("00112233445566778899aabbccddeeff").unwrap();
        let asking = Asking { headers: &headers, credential, keys: &rules.keys, model: "m" };
        let of = |rule: &Rule| -> Option<Vec<String>> {
            rule.owner.iter().map(|owner| Some(owner.of(&asking)?.into_owned())).collect()
        };
        assert_eq!(of(money), Some(vec!["search".into(), "m".into()]));
        assert_eq!(of(tokens), Some(vec!["a".into()]));
        let stranger = Asking { headers: &HeaderMap::new(), ..asking };
        assert_eq!(tokens.owner[0].of(&stranger), None);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let budget = |more: &str| format!("[[budgets]]\nname = 'b'\ncounts = 'total'\n{more}");
        for (text, told) in [
            (String::new(), "0 budgets: expected 1 to 64"),
            (budget("owner = 'model'\nlimit = '7 a day'"), "budget \"b\": limit: `7 a day`"),
            (budget("owner = 'modle'\nlimit = '7/1d'"), "did you mean \"model\"?"),
            (budget("owner = []\nlimit = '7/1d'"), "owner: expected at least one"),
            (budget("owner = 'model'\nlimit = '7/1d'\nwait = 'x'"), "wait: `x` is no duration"),
            (budget("owner = 'model'\nlimit = '7/1d'\nlimits = 1"), "unknown field `limits`"),
            (budget("owner = 'model'\nlimit = '7/1d'\n[keys.ab]"), "32 hexadecimal digits"),
            (
                "[[budgets]]\nname='b'\nowner='model'\ncounts='money'\nlimit='1/1d'".into(),
                "no [prices]",
            ),
        ] {
            assert!(wrong(&text).contains(told), "{text}: {}", wrong(&text));
        }
        let one = budget("owner = 'model'\nlimit = '7/1d'\n");
        assert!(wrong(&format!("{one}{one}")).contains("twice"));
    }
}
