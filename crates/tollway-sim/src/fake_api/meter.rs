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
    /// Requests or tokens per period, at least one.
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
    /// Units left.
    pub remaining: u64,
    /// Until all of the limit is back.
    pub full_after: Duration,
    /// Until the request would be served; zero if it would be now.
    pub next_after: Duration,
}

/// What was taken from a limit.
#[derive(Clone, Debug, Default)]
pub(super) struct Meter {
    spec: Option<LimitSpec>,
    /// End of the window, or when the sliding bucket is full again.
    ends_ns: u64,
    used: u64,
    /// When units were taken, and how many.
    log: VecDeque<(u64, u64)>,
}

impl Meter {
    pub(super) fn new() -> Self {
        Self::default()
    }

    /// Changes the limit in mid-window: what was taken stays taken.
    pub(super) fn set_limit(&mut self, spec: LimitSpec) {
        self.spec = Some(spec);
    }

    /// Where the limit stands for a request of `count` units.
    pub(super) fn peek(&mut self, count: u64, now: Timestamp) -> Standing {
        let Some(spec) = self.spec else { return Standing::unlimited() };
        let now_ns = now.as_nanos();
        match spec.window {
            Window::Fixed | Window::Clock => self.peek_window(spec, count, now_ns),
            Window::Sliding => self.peek_sliding(spec, count, now_ns),
            Window::Exact => self.peek_exact(spec, count, now_ns),
        }
    }

    /// Takes `count` units, even more than are left: who asks first has peeked.
    pub(super) fn take(&mut self, count: u64, now: Timestamp) -> Standing {
        let Some(spec) = self.spec else { return Standing::unlimited() };
        let now_ns = now.as_nanos();
        match spec.window {
            Window::Fixed | Window::Clock => self.take_window(spec, count, now_ns),
            Window::Sliding => {
                let taken_ns = interval_ns(spec).saturating_mul(count);
                self.ends_ns = self.ends_ns.max(now_ns).saturating_add(taken_ns);
            }
            Window::Exact => self.log.push_back((now_ns, count)),
        }
        Standing { allowed: true, ..self.peek(1, now) }
    }

    fn take_window(&mut self, spec: LimitSpec, count: u64, now_ns: u64) {
        if now_ns >= self.ends_ns {
            let period_ns = period_ns(spec);
            self.used = 0;
            self.ends_ns = match spec.window {
                Window::Clock => (now_ns / period_ns + 1) * period_ns,
                _ => now_ns + period_ns,
            };
        }
        self.used = self.used.saturating_add(count);
    }

    fn peek_window(&self, spec: LimitSpec, count: u64, now_ns: u64) -> Standing {
        let open = now_ns < self.ends_ns;
        let used = if open { self.used } else { 0 };
        let left_ns = if open { self.ends_ns - now_ns } else { 0 };
        Standing::new(spec.limit, used, count, left_ns, left_ns)
    }

    fn peek_sliding(&self, spec: LimitSpec, count: u64, now_ns: u64) -> Standing {
        let interval_ns = interval_ns(spec);
        let debt_ns = self.ends_ns.saturating_sub(now_ns);
        let used = debt_ns.div_ceil(interval_ns);
        let room_ns = interval_ns * spec.limit.saturating_sub(count);
        Standing::new(spec.limit, used, count, debt_ns, debt_ns.saturating_sub(room_ns))
    }

    fn peek_exact(&mut self, spec: LimitSpec, count: u64, now_ns: u64) -> Standing {
        let period_ns = period_ns(spec);
        while self.log.front().is_some_and(|(at_ns, _)| at_ns + period_ns <= now_ns) {
            self.log.pop_front();
        }
        let used: u64 = self.log.iter().map(|(_, count)| count).sum();
        let left = |at_ns: u64| at_ns + period_ns - now_ns;
        // The one whose end makes room: with a limit lowered in mid-run not the first.
        let mut freeing = (used + count).saturating_sub(spec.limit);
        let ending = self.log.iter().find(|(_, count)| {
            let is_enough = freeing <= *count;
            freeing = freeing.saturating_sub(*count);
            is_enough
        });
        let full_ns = self.log.back().map_or(0, |(at_ns, _)| left(*at_ns));
        let next_ns = ending.map_or(full_ns, |(at_ns, _)| left(*at_ns));
        Standing::new(spec.limit, used, count, full_ns, next_ns)
    }
}

fn period_ns(spec: LimitSpec) -> u64 {
    u64::try_from(spec.per.as_nanos()).unwrap_or(u64::MAX).max(1)
}

/// How long one unit takes to come back.
fn interval_ns(spec: LimitSpec) -> u64 {
    (period_ns(spec) / spec.limit.max(1)).max(1)
}

impl Standing {
    fn new(limit: u64, used: u64, count: u64, full_ns: u64, next_ns: u64) -> Self {
        let allowed = used.saturating_add(count) <= limit;
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
