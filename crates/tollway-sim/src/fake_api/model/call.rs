//! A call of a model, read out of a request.

use serde_json::Value;

use super::{ModelApi, ModelSpec};
use crate::fake_api::Request;
use crate::fake_api::route::unversioned;

/// The longest answer and the most choices: what one call can make this program hold.
const OUTPUT_MAX: u64 = 200_000;
const CHOICES_MAX: u64 = 16;

/// Which of an API's calls it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::fake_api) enum Form {
    Chat,
    Completion,
    Response,
    Embedding,
    Message,
    Count,
}

/// A call of a model.
#[derive(Clone, Debug)]
pub(in crate::fake_api) struct Call {
    pub(super) form: Form,
    pub(in crate::fake_api) model: String,
    pub(super) is_stream: bool,
    /// Whether the end of the stream tells what was used.
    pub(super) tells_usage: bool,
    pub(super) choices: u64,
    /// At most so many tokens of each choice.
    pub(super) cap: Option<u64>,
    pub(super) input: u64,
    pub(super) cached: u64,
    /// Tokens that each choice would have without a cap.
    pub(super) wanted: u64,
    /// The name of the tool that is called.
    pub(super) tool: Option<String>,
    /// Texts to embed.
    pub(super) inputs: usize,
}

/// Why a request to a call's path is none.
#[derive(Clone, Copy, Debug)]
pub(in crate::fake_api) struct NoCall(pub(super) &'static str);

impl Form {
    /// The form of a request, and the model that its path names.
    pub(super) fn of(api: ModelApi, request: &Request<'_>) -> Option<(Self, Option<String>)> {
        if !request.method.eq_ignore_ascii_case("POST") {
            return None;
        }
        let path = request.target.split('?').next().unwrap_or_default();
        let segments = unversioned(path);
        // Azure names a deployment, whose model it knows.
        let (model, rest) = match &*segments {
            ["openai", "deployments", deployment, rest @ ..] => (Some((*deployment).into()), rest),
            ["openai", "v1", rest @ ..] => (None, rest),
            all => (None, all),
        };
        let form = match (api, rest) {
            (ModelApi::Openai, ["chat", "completions"]) => Self::Chat,
            (ModelApi::Openai, ["completions"]) => Self::Completion,
            (ModelApi::Openai, ["responses"]) => Self::Response,
            (ModelApi::Openai, ["embeddings"]) => Self::Embedding,
            (ModelApi::Anthropic, ["messages"]) => Self::Message,
            (ModelApi::Anthropic, ["messages", "count_tokens"]) => Self::Count,
            _ => return None,
        };
        Some((form, model))
    }

    pub(super) const fn is_generating(self) -> bool {
        !matches!(self, Self::Embedding | Self::Count)
    }

    const fn caps(self) -> &'static [&'static str] {
        match self {
            Self::Chat => &["max_completion_tokens", "max_tokens"],
            Self::Response => &["max_output_tokens"],
            Self::Completion | Self::Message => &["max_tokens"],
            Self::Embedding | Self::Count => &[],
        }
    }
}

impl Call {
    pub(super) fn read(
        spec: &ModelSpec,
        form: Form,
        model: Option<String>,
        body: &[u8],
    ) -> Result<Self, NoCall> {
        let body: Value = serde_json::from_slice(body)
            .map_err(|_| NoCall("We could not parse the JSON body of your request."))?;
        let named = || body["model"].as_str().map(str::to_owned);
        let model = model.or_else(named).ok_or(NoCall("you must provide a model parameter"))?;
        let cap = form.caps().iter().find_map(|name| body[*name].as_u64());
        if form == Form::Message && cap.is_none() {
            return Err(NoCall("max_tokens: Field required"));
        }
        if cap == Some(0) {
            return Err(NoCall("the cap on tokens must be at least 1"));
        }
        let mut read = Texts::default();
        for name in ["system", "instructions", "messages", "input", "prompt", "tools"] {
            read.add(&body[name]);
        }
        let said = numbers(&read.last);
        let input = read.characters.div_ceil(spec.characters_per_token.max(1)).max(1);
        let wanted = said.tokens.unwrap_or(spec.tokens).clamp(1, OUTPUT_MAX);
        let tool = body["tools"].get(0).filter(|_| read.last.contains("use the tool"));
        let tool = tool.and_then(|tool| {
            let named = tool["function"]["name"].as_str().or_else(|| tool["name"].as_str());
            named.map(str::to_owned)
        });
        Ok(Self {
            form,
            model,
            is_stream: body["stream"].as_bool().unwrap_or_default() && form.is_generating(),
            tells_usage: body["stream_options"]["include_usage"].as_bool().unwrap_or_default(),
            choices: body["n"].as_u64().unwrap_or(1).clamp(1, CHOICES_MAX),
            cap,
            input,
            cached: said.cached.unwrap_or_default().min(input),
            wanted,
            tool,
            inputs: match &body["input"] {
                Value::Array(all) if all.iter().all(|one| !one.is_number()) => all.len().max(1),
                _ => 1,
            },
        })
    }

    /// Tokens of one choice.
    pub(super) fn output(&self) -> u64 {
        self.cap.map_or(self.wanted, |cap| cap.min(self.wanted))
    }

    /// Tokens of all choices.
    pub(super) fn output_all(&self) -> u64 {
        self.output() * self.choices
    }

    /// Whether the cap ends the answer.
    pub(super) fn is_cut(&self) -> bool {
        self.output() < self.wanted
    }
}

/// All texts of a request.
#[derive(Default)]
struct Texts {
    characters: u64,
    /// The last of what the user said.
    last: String,
}

impl Texts {
    fn add(&mut self, value: &Value) {
        match value {
            Value::String(text) => {
                self.characters += text.chars().count() as u64;
                self.last.clone_from(text);
            }
            Value::Array(values) => values.iter().for_each(|value| self.add(value)),
            Value::Object(fields) => {
                let said = |name: &str| !matches!(name, "role" | "type" | "id" | "cache_control");
                // Tools describe themselves after everything that was said.
                let is_tool = fields.contains_key("function")
                    || fields.contains_key("input_schema")
                    || fields.contains_key("parameters");
                let last = self.last.clone();
                fields.iter().filter(|(name, _)| said(name)).for_each(|(_, value)| self.add(value));
                if is_tool {
                    self.last = last;
                }
            }
            _ => {}
        }
    }
}

/// What a text asks for.
#[derive(Default)]
struct AskedFor {
    tokens: Option<u64>,
    cached: Option<u64>,
}

fn numbers(text: &str) -> AskedFor {
    let mut asked = AskedFor::default();
    let mut before = None;
    for word in text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()) {
        match word {
            "token" | "tokens" => asked.tokens = before.or(asked.tokens),
            "cached" => asked.cached = before.or(asked.cached),
            _ => {}
        }
        before = word.parse().ok();
    }
    asked
}
