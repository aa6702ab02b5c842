//! One dimension of an API's limits: what is counted, where it is told, how it comes back.

use std::time::Duration;

use tollway_core::Quota;
use tollway_core::fields::Form;

/// Whom a dimension counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Reach {
    /// The requests of a bucket.
    #[default]
    Bucket,
    /// Every request of the credential.
    Credential,
}

/// How what was used comes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Window {
    /// Not stated: told apart by what the answers show, and taken for fixed until then.
    #[default]
    Auto,
    /// All at once, when the window ends.
    Fixed,
    /// Bit by bit.
    Sliding,
}

/// One dimension of an API's limits.
#[derive(Clone, Debug)]
pub struct Dimension {
    pub(super) name: String,
    pub(super) reach: Reach,
    pub(super) window: Window,
    pub(super) source: Source,
    pub(super) stated: Option<Quota>,
    pub(super) refill: Option<Quota>,
    pub(super) slack: Duration,
    pub(super) verify: bool,
}

impl Dimension {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whom it counts.
    #[must_use]
    pub fn reach(&self) -> Reach {
        self.reach
    }

    /// How what was used comes back.
    #[must_use]
    pub fn window(&self) -> Window {
        self.window
    }

    /// The limit that the documentation states, for an upstream that does not tell it.
    #[must_use]
    pub fn stated(&self) -> Option<Quota> {
        self.stated
    }

    /// How fast it comes back, where that does not follow from the limit.
    #[must_use]
    pub fn refill(&self) -> Option<Quota> {
        self.refill
    }

    /// What to add to every reset, because the upstream rounds it down.
    #[must_use]
    pub fn slack(&self) -> Duration {
        self.slack
    }

    /// Whether the first request after a reset goes alone, because the reset may promise too much.
    #[must_use]
    pub fn is_verified_after_reset(&self) -> bool {
        self.verify
    }

    /// Whether no answer ever tells it, so that it is counted here.
    #[must_use]
    pub fn is_modelled(&self) -> bool {
        matches!(self.source, Source::Modelled)
    }
}

/// Where a dimension is told.
#[derive(Clone, Debug)]
pub(super) enum Source {
    /// One number per field.
    Fields(Fields),
    /// Shopify's `32/40`.
    UsedOfSize(String),
    /// Riot's `20:1,100:120` and the same for what was used.
    Counts { limit: String, used: String },
    /// The structured fields of the IETF drafts, and their predecessors.
    Structured,
    /// Nowhere.
    Modelled,
}

/// The names of a dimension's fields.
#[derive(Clone, Debug, Default)]
pub(super) struct Fields {
    pub(super) limit: Option<String>,
    pub(super) remaining: Option<String>,
    pub(super) used: Option<String>,
    pub(super) reset: Vec<Value>,
    pub(super) interval: Option<Value>,
}

/// A field that holds a time, and how it is written.
#[derive(Clone, Debug)]
pub(super) struct Value {
    pub(super) header: String,
    pub(super) form: Form,
}
