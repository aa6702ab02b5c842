//! Why a layer cannot be built.

use tollway_core::spelling::unknown;

/// A mistake in the configuration of a layer; says what would be right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerError {
    kind: LayerErrorKind,
    text: String,
}

/// The kinds of [`LayerError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LayerErrorKind {
    /// The limiter has no policy of that name.
    UnknownPolicy,
    /// No limit was given: the layer would do nothing.
    NoLimits,
    /// More limits than one layer takes.
    TooManyLimits,
    /// A concurrency policy and another kind in one layer.
    MixedKinds,
    /// A concurrency policy with a cost to settle: its units come back when the response ends.
    SettledConcurrency,
    /// A name that no header field can have.
    InvalidHeader,
}

impl LayerError {
    /// A mistake in the limit that names `policy`.
    pub(crate) fn in_limit(kind: LayerErrorKind, policy: &str, problem: &str) -> Self {
        Self { kind, text: format!("limit {policy:?}: {problem}") }
    }

    /// `policy` is none of the limiter's, which are `known`.
    pub(crate) fn unknown_policy<'a>(
        policy: &str,
        known: impl Iterator<Item = &'a str> + Clone,
    ) -> Self {
        Self::in_limit(LayerErrorKind::UnknownPolicy, policy, &unknown("policy", policy, known))
    }

    pub(crate) fn no_limits() -> Self {
        let text = "a layer needs at least one limit".to_owned();
        Self { kind: LayerErrorKind::NoLimits, text }
    }

    pub(crate) fn invalid_header(name: &str) -> Self {
        let text = format!("header {name:?}: expected the name of a field, such as x-api-key");
        Self { kind: LayerErrorKind::InvalidHeader, text }
    }

    /// What is wrong.
    pub fn kind(&self) -> LayerErrorKind {
        self.kind
    }

    /// Whether trying again could help; a configuration does not mend itself.
    pub fn is_transient(&self) -> bool {
        false
    }
}

tollway_core::plain_error!(LayerError, self => &self.text);
