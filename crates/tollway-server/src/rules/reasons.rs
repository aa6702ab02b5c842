//! Why a key is treated as it is, and who says what its limit is: for whoever looks a key up.
//!
//! [`Rules::ask`](super::Rules::ask) decides by the same two functions and forgets the reasons, so
//! that what is shown cannot differ from what is done.

use serde_json::{Value, json};
use tollway_core::Key;

use super::{OwnLimit, Rules, Source};
use crate::config_line::ConfigLine;
use crate::own_quotas::Ban;
use crate::own_quotas::Own;
use crate::pattern::{Listed, Pattern};
use crate::top::hex;

/// Who says what the limit of a key is.
#[derive(Clone, Copy, Debug)]
pub(super) enum LimitedBy<'a> {
    /// The policy, which stands there.
    Policy(Option<&'a ConfigLine>),
    /// An override of the policy.
    Override(&'a OwnLimit),
    /// An operator, while the service runs.
    Operator(&'a Own),
}

/// Who says how a key is treated.
#[derive(Clone, Copy, Debug)]
pub(super) enum TreatedBy<'a> {
    /// Nobody in particular: the policy decides.
    Policy,
    /// An operator, while the service runs.
    Operator(Ban),
    /// A list of the policy.
    ListOfPolicy(Listed<'a>),
    /// A list for all policies.
    ListOfAll(Listed<'a>),
    /// The policy is on trial.
    Trial(Option<&'a ConfigLine>),
    /// All policies are.
    TrialOfAll(&'a ConfigLine),
    /// A limit of zero requests.
    LimitOfZero(Option<&'a ConfigLine>),
}

impl Rules {
    /// Who says how `key` is treated and what its limit is: as JSON, with file and line.
    pub(crate) fn reasons(&self, source: Source<'_>, key: Key<'_>) -> (Value, Value) {
        let listed_as = source.whole_key.unwrap_or(key.as_bytes());
        let (_, treated_by) = self.treatment(&source, listed_as);
        let (_, _, limited_by) = self.limit(&source, listed_as);
        (treated_by.json(), limited_by.json())
    }
}

impl LimitedBy<'_> {
    fn json(self) -> Value {
        match self {
            Self::Policy(place) => said("policy", place, None),
            Self::Override(own) => said("override", Some(&own.place), Some(&own.pattern)),
            Self::Operator(own) => {
                let pattern = own.whom.is_pattern().then(|| Pattern::of_bytes(&own.whom.key));
                let mut json = said("operator", None, pattern.as_ref());
                json["own"] = own.entry.json();
                json
            }
        }
    }
}

impl TreatedBy<'_> {
    fn json(self) -> Value {
        match self {
            Self::Policy => said("policy", None, None),
            Self::Operator(ban) => {
                let mut json = said("operator", None, None);
                if let Ban::Until(end) = ban {
                    json["ends_at_ms"] = (end.as_nanos() / 1_000_000).into();
                }
                json
            }
            Self::ListOfPolicy(entry) => said("list", Some(entry.place), entry.pattern),
            Self::ListOfAll(entry) => said("list of all", Some(entry.place), entry.pattern),
            Self::Trial(place) => said("trial", place, None),
            Self::TrialOfAll(place) => said("trial of all", Some(place), None),
            Self::LimitOfZero(place) => said("limit of zero", place, None),
        }
    }
}

fn said(by: &str, place: Option<&ConfigLine>, pattern: Option<&Pattern>) -> Value {
    json!({
        "by": by,
        "at": place.filter(|place| place.is_known()).map(ToString::to_string),
        "pattern_hex": pattern.map(|pattern| hex(&pattern.spelled())),
    })
}
