//! What is believed of a limit that no field tells.

use std::time::Duration;

use crate::budget::encoding::{encoded, encoded_names};

/// A window whose bounds lie further apart than by this many eighths is looked for.
const NARROW_EIGHTHS: u64 = 10;

/// So many units in any span of a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Belief {
    pub(super) units: u64,
    pub(super) window_ns: u64,
    /// The window is longer than this.
    pub(super) above_ns: u64,
    /// Whether the upstream says how long to wait.
    pub(super) is_told: bool,
}

encoded!(Belief { units, window_ns, above_ns, is_told });

/// What a test is to find out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Question {
    /// Whether a window has one unit more.
    #[default]
    More,
    /// Whether the window is shorter.
    Sooner,
}

encoded_names!(Question { More = 0, Sooner = 1 });

impl Belief {
    pub(super) fn window(&self) -> Duration {
        Duration::from_nanos(self.window_ns)
    }

    /// Halfway between what the window is longer than and what it is taken for.
    pub(super) fn middle(&self) -> Duration {
        Duration::from_nanos(self.above_ns + self.window_ns.saturating_sub(self.above_ns) / 2)
    }

    /// What is least known of it.
    pub(super) fn question(&self) -> Question {
        let is_narrow =
            self.window_ns.saturating_mul(8) <= self.above_ns.saturating_mul(NARROW_EIGHTHS);
        if is_narrow { Question::More } else { Question::Sooner }
    }
}
