//! The language models of a fake API: limits by model, and answers as long as was asked for, whole
//! or as a stream of events.
//!
//! What the last text of a request says decides its answer, so that any client can ask for it:
//!
//! | in the text | effect |
//! |---|---|
//! | `400 tokens` | the answer would be that long; 2 tokens without it |
//! | `50 cached` | so many tokens of the input came from a cache |
//! | `use the tool` | the first tool of the request is called |
//!
//! An answer ends where the request caps it. A token of the input is as many characters as the
//! description says, one of the output is a word.

mod anthropic;
mod call;
mod events;
mod openai;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use tollway_core::Timestamp;

use super::say::Value as FieldValue;
use super::{LimitSpec, Request};
use call::Form;

pub(super) use call::{Call, NoCall};
pub(super) use events::Generated;
pub use events::{Piece, UsageTold};

/// The models of an upstream.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ModelSpec {
    /// Whose API it is.
    pub api: ModelApi,
    /// Time that the model takes for a token.
    #[serde(default, deserialize_with = "crate::scenario::text::duration")]
    pub every: Duration,
    /// How long an answer is if the request does not say.
    #[serde(default = "two")]
    pub tokens: u64,
    /// Characters of the input that are one token.
    #[serde(default = "four")]
    pub characters_per_token: u64,
    /// Limits by model; the first that fits counts.
    #[serde(default)]
    pub limits: Vec<ModelLimitSpec>,
    /// What answers say of each dimension.
    #[serde(default)]
    pub(super) fields: BTreeMap<String, Vec<(String, FieldValue)>>,
}

/// An API of language models.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum ModelApi {
    /// Chat completions, completions, responses and embeddings.
    Openai,
    /// Messages.
    Anthropic,
}

/// The limits of some models.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ModelLimitSpec {
    /// A model's name, or its beginning and `*`.
    pub models: String,
    /// Calls.
    #[serde(default)]
    pub requests: Option<LimitSpec>,
    /// The larger of the input and of the cap on the output, taken when the call arrives.
    #[serde(default)]
    pub tokens: Option<LimitSpec>,
    /// Input that did not come from a cache.
    #[serde(default)]
    pub input_tokens: Option<LimitSpec>,
    /// Output, which may exceed the limit: a call is served if anything is left.
    #[serde(default)]
    pub output_tokens: Option<LimitSpec>,
}

/// What one limit loses by a call.
pub(super) struct Due {
    pub(super) dimension: &'static str,
    pub(super) limit: LimitSpec,
    /// What must be there.
    pub(super) needed: u64,
    /// What is taken.
    pub(super) taken: u64,
}

impl ModelSpec {
    pub(super) fn limits(&self) -> impl Iterator<Item = LimitSpec> {
        self.limits.iter().flat_map(|limits| {
            let ModelLimitSpec { requests, tokens, input_tokens, output_tokens, .. } = limits;
            [*requests, *tokens, *input_tokens, *output_tokens].into_iter().flatten()
        })
    }

    pub(super) fn limits_mut(&mut self) -> impl Iterator<Item = &mut LimitSpec> {
        self.limits.iter_mut().flat_map(|limits| {
            let ModelLimitSpec { requests, tokens, input_tokens, output_tokens, .. } = limits;
            [requests, tokens, input_tokens, output_tokens].into_iter().flatten()
        })
    }

    /// The call of a model that `request` is; none if it is another request.
    pub(super) fn call(&self, request: &Request<'_>) -> Option<Result<Call, NoCall>> {
        let (form, model) = Form::of(self.api, request)?;
        Some(Call::read(self, form, model, request.body))
    }

    /// The limits that a call is charged to.
    pub(super) fn due(&self, call: &Call) -> Vec<Due> {
        let Some(limits) = self.limits.iter().find(|limits| limits.fits(&call.model)) else {
            return Vec::new();
        };
        let all = call.cap.map_or(0, |cap| cap.saturating_mul(call.choices)).max(call.input);
        let fresh = call.input - call.cached;
        let output = if call.form.is_generating() { call.output_all() } else { 0 };
        let each = [
            ("requests", limits.requests, 1, 1),
            ("tokens", limits.tokens, all, all),
            ("input-tokens", limits.input_tokens, fresh, fresh),
            ("output-tokens", limits.output_tokens, 1, output),
        ];
        let due = each.into_iter().filter_map(|(dimension, limit, needed, taken)| {
            Some(Due { dimension, limit: limit?, needed, taken })
        });
        // Counting tokens is free.
        due.filter(|_| call.form != Form::Count).collect()
    }

    /// What the call is answered.
    pub(super) fn answer(
        &self,
        call: &Call,
        number: u64,
        now: Timestamp,
        told: UsageTold,
    ) -> Generated {
        let said = Said { call, number, epoch: now.as_nanos() / 1_000_000_000, told };
        let mut answer = match call.form {
            Form::Chat => openai::chat(&said),
            Form::Completion => openai::completion(&said),
            Form::Response => openai::response(&said),
            Form::Embedding => openai::embedding(&said),
            Form::Message => anthropic::message(&said),
            Form::Count => anthropic::count(&said),
        };
        answer.every = self.every;
        answer
    }

    /// A request that is no call, in the words of the API.
    pub(super) fn no_call(&self, wrong: &NoCall) -> Value {
        match self.api {
            ModelApi::Openai => openai::invalid(wrong),
            ModelApi::Anthropic => anthropic::invalid(wrong),
        }
    }
}

impl ModelLimitSpec {
    fn fits(&self, model: &str) -> bool {
        match self.models.strip_suffix('*') {
            Some(beginning) => model.starts_with(beginning),
            None => self.models == model,
        }
    }
}

/// What an answer is put together from.
struct Said<'a> {
    call: &'a Call,
    number: u64,
    epoch: u64,
    told: UsageTold,
}

impl Said<'_> {
    fn id(&self, prefix: &str) -> String {
        format!("{prefix}{}", 1_000_000 + self.number)
    }

    /// The tokens of the answer, one by one.
    fn tokens(&self) -> impl Iterator<Item = &'static str> {
        let (wanted, count) = (self.call.wanted, self.call.output());
        (0..count).map(move |index| word(index, wanted))
    }

    fn text(&self) -> String {
        self.tokens().collect()
    }

    /// The arguments of a call of a tool, token by token: a JSON object, if nothing cuts it off.
    fn arguments(&self) -> impl Iterator<Item = &'static str> {
        let (wanted, count) = (self.call.wanted, self.call.output());
        (0..count).map(move |index| match index {
            0 if wanted == 1 => "{}",
            0 => "{\"text\":\"",
            _ if index + 1 == wanted => "\"}",
            _ => word(index, wanted),
        })
    }

    fn parts(&self) -> Vec<&'static str> {
        match self.call.tool {
            Some(_) => self.arguments().collect(),
            None => self.tokens().collect(),
        }
    }
}

/// One token of a text of `wanted` tokens. Some are not ASCII, as most languages are not.
const fn word(index: u64, wanted: u64) -> &'static str {
    match index {
        0 => "Hello",
        _ if index + 1 == wanted => ".",
        _ if index.is_multiple_of(5) => " né",
        _ => " word",
    }
}

const fn two() -> u64 {
    2
}

const fn four() -> u64 {
    4
}
