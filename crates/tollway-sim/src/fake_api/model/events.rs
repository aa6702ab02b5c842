//! An answer, whole or as server-sent events.

use std::time::Duration;

use serde_json::Value;

/// How often an answer tells what it used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum UsageTold {
    /// As the API does.
    #[default]
    Once,
    /// Not at all.
    Never,
    /// Twice.
    Twice,
}

/// A part of a body that is sent by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Where it ends in the body.
    pub end: usize,
    /// Tokens in it.
    pub tokens: u64,
}

/// An answer.
pub(in crate::fake_api) struct Generated {
    pub(in crate::fake_api) body: String,
    /// None for an answer that is sent whole.
    pub(in crate::fake_api) pieces: Vec<Piece>,
    /// Tokens of the output.
    pub(in crate::fake_api) tokens: u64,
    pub(in crate::fake_api) every: Duration,
}

impl Generated {
    pub(super) fn whole(body: &Value, tokens: u64) -> Self {
        Self { body: body.to_string(), pieces: Vec::new(), tokens, every: Duration::ZERO }
    }

    pub(super) const fn stream() -> Self {
        Self { body: String::new(), pieces: Vec::new(), tokens: 0, every: Duration::ZERO }
    }

    /// Adds an event without a name.
    pub(super) fn data(&mut self, data: &Value, tokens: u64) {
        self.raw(&format!("data: {data}\n\n"), tokens);
    }

    /// Adds an event whose name is its `type`.
    pub(super) fn event(&mut self, data: &Value, tokens: u64) {
        let name = data["type"].as_str().unwrap_or_default();
        self.raw(&format!("event: {name}\ndata: {data}\n\n"), tokens);
    }

    pub(super) fn raw(&mut self, text: &str, tokens: u64) {
        self.body.push_str(text);
        self.tokens += tokens;
        self.pieces.push(Piece { end: self.body.len(), tokens });
    }
}

impl UsageTold {
    /// How often it is told where the API tells it once.
    pub(super) const fn times(self) -> usize {
        match self {
            Self::Never => 0,
            Self::Once => 1,
            Self::Twice => 2,
        }
    }
}
