//! Why a layer cannot be built.

use std::fmt;

/// A mistake in the configuration of a layer; says what would be right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerError {
    kind: LayerErrorKind,
    policy: String,
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
}

impl LayerError {
    pub(crate) fn new(kind: LayerErrorKind, policy: &str) -> Self {
        Self { kind, policy: policy.to_owned() }
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

impl fmt::Display for LayerError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let policy = &self.policy;
        match self.kind {
            LayerErrorKind::UnknownPolicy => {
                write!(out, "limit \"{policy}\": the limiter has no policy of that name")
            }
            LayerErrorKind::NoLimits => out.write_str("a layer needs at least one limit"),
            LayerErrorKind::TooManyLimits => {
                write!(out, "limit \"{policy}\": a layer takes 8 limits; stack a second layer")
            }
            LayerErrorKind::MixedKinds => write!(
                out,
                "limit \"{policy}\": a layer holds either concurrency or other policies; stack two"
            ),
            LayerErrorKind::SettledConcurrency => {
                write!(out, "limit \"{policy}\": a concurrency policy has no cost to settle")
            }
        }
    }
}

impl std::error::Error for LayerError {}
