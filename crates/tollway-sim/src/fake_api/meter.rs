//! One counted limit of the fake upstream, in any of the window kinds that real APIs use.

use std::collections::VecDeque;
use std::time::Duration;

use serde::Deserialize;
use tollway_core::Timestamp;

/// How a limit forgets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Window {
    /// Everything back at once, one period after the first request.
    #[default]
    Fixed,
    /// Everything back at once, at multiples of the period on the server's clock.
    Clock,
    /// One unit back every period ÷ limit.
    Sliding,
    /// No period whatever its phase holds more than the limit: the strictest reading.
    Exact,
}

/// A limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct LimitSpec {
    /// Requests per period, at least one.
    pub limit: u64,
    /// The period.
    #[serde(deserialize_with = "crate::scenario::text::duration")]
    pub per: Duration,
    /// How it forgets.
    #[serde(default)]
    pub window: Window,
}

/// Where a limit stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Whether the request was, or would be, served.
    pub allowed: bool,
    /// The limit.
    pub limit: u64,
    /// Requests left.
    pub remaining: u64,
    /// Until all of the limit is back.
    pub full_after: Duration,
    /// Until one more request would be served; zero if it would be now.
    pub next_after: Duration,
}

/// What was taken from a limit.
#[derive(Clone, Debug, Default)]
pub(super) struct Meter {
    spec: Option<LimitSpec>,
    /// End of the window, or when the sliding bucket is full again.
    ends_ns: u64,
    used: u64,
    log: VecDeque<u64>,
}

impl Meter {
    pub(super) fn new() -> Self {
        Self::default()
    }

    /// Changes the limit in mid-window: what was taken stays taken.
    pub(super) fn set_limit(&mut self, spec: LimitSpec) {
        self.spec = Some(spec);
    }

    pub(super) fn peek(&mut self, now: Timestamp) -> Standing {
        let Some(spec) = self.spec else { return Standing::unlimited() };
        let now_ns = now.as_nanos();
        let period_ns = (spec.per.as_nanos() as u64).max(1);
        match spec.window {
            Window::Fixed | Window::Clock => self.peek_window(spec, now_ns),
            Window::Sliding => self.peek_sliding(spec, period_ns, now_ns),
            Window::Exact => self.peek_exact(spec, period_ns, now_ns),
        }
    }

    pub(super) fn take(&mut self, now: Timestamp) -> Standing {
        let Some(spec) = self.spec else { return Standing::unlimited() };
        let before = self.peek(now);
        if !before.allowed {
            return before;
        }
        let now_ns = now.as_nanos();
        let period_ns = (spec.per.as_nanos() as u64).max(1);
        match spec.window {
            Window::Fixed | Window::Clock => self.take_window(spec.window, period_ns, now_ns),
            Window::Sliding => {
                self.ends_ns = self.ends_ns.max(now_ns) + period_ns / spec.limit.max(1);
            }
            Window::Exact => self.log.push_back(now_ns),
        }
        Standing { allowed: true, ..self.peek(now) }
    }

    fn take_window(&mut self, window: Window, period_ns: u64, now_ns: u64) {
        if now_ns >= self.ends_ns {
            self.used = 0;
            self.ends_ns = match window {
                Window::Clock => (now_ns / period_ns + 1) * period_ns,
                _ => now_ns + period_ns,
            };
        }
        self.used += 1;
    }

    fn peek_window(&self, spec: LimitSpec, now_ns: u64) -> Standing {
        let open = now_ns < self.ends_ns;
        let used = if open { self.used } else { 0 };
        let left_ns = if open { self.ends_ns - now_ns } else { 0 };
        Standing::new(spec.limit, used, left_ns, left_ns)
    }

    fn peek_sliding(&self, spec: LimitSpec, period_ns: u64, now_ns: u64) -> Standing {
        let interval_ns = (period_ns / spec.limit.max(1)).max(1);
        let debt_ns = self.ends_ns.saturating_sub(now_ns);
        let used = debt_ns.div_ceil(interval_ns);
        let room_ns = interval_ns * spec.limit.saturating_sub(1);
        Standing::new(spec.limit, used, debt_ns, debt_ns.saturating_sub(room_ns))
    }

    fn peek_exact(&mut self, spec: LimitSpec, period_ns: u64, now_ns: u64) -> Standing {
        while self.log.front().is_some_and(|at_ns| at_ns + period_ns <= now_ns) {
            self.log.pop_front();
        }
        let used = self.log.len() as u64;
        let left = |at_ns: Option<&u64>| at_ns.map_or(0, |at_ns| at_ns + period_ns - now_ns);
        // The one whose end makes room: with a limit lowered in mid-run not the first.
        let freeing = used.saturating_sub(spec.limit);
        Standing::new(spec.limit, used, left(self.log.back()), left(self.log.get(freeing as usize)))
    }
}

impl Standing {
    fn new(limit: u64, used: u64, full_ns: u64, next_ns: u64) -> Self {
        let allowed = used < limit;
        Self {
            allowed,
            limit,
            remaining: limit.saturating_sub(used),
            full_after: Duration::from_nanos(full_ns),
            next_after: Duration::from_nanos(if allowed { 0 } else { next_ns }),
        }
    }

    const fn unlimited() -> Self {
        Self {
            allowed: true,
            limit: u64::MAX,
            remaining: u64::MAX,
            full_after: Duration::ZERO,
            next_after: Duration::ZERO,
        }
    }
}
