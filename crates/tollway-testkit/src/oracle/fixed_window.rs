//! The fixed window, replayed from everything that ever happened to the key.

use num_bigint::BigInt;
use tollway_core::fixed_window::{Anchor, FixedWindow};

use super::Model;
use super::change::Remains;

pub(super) struct Log {
    units: BigInt,
    period: BigInt,
    anchor: Anchor,
    events: Vec<Event>,
}

struct Event {
    at: BigInt,
    change: Change,
}

enum Change {
    Taken(BigInt),
    GivenBack { units: BigInt, taken_at: Option<BigInt> },
    Cleared,
}

/// A window that was opened, over or not.
#[derive(Clone)]
struct Window {
    start: BigInt,
    used: BigInt,
}

impl Log {
    pub(super) fn new(window: &FixedWindow) -> Self {
        Self {
            units: window.quota().units().into(),
            period: window.quota().period().as_nanos().into(),
            anchor: window.anchor(),
            events: Vec::new(),
        }
    }

    /// The window that is open at `at`, if there is one.
    fn window(&self, at: &BigInt) -> Option<Window> {
        self.latest().filter(|window| self.is_open(window, at))
    }

    /// The window that was opened last.
    fn latest(&self) -> Option<Window> {
        self.events.iter().fold(None, |latest, event| self.replay(latest, event))
    }

    fn is_open(&self, window: &Window, at: &BigInt) -> bool {
        *at < &window.start + &self.period && window.used > BigInt::ZERO
    }

    fn replay(&self, latest: Option<Window>, event: &Event) -> Option<Window> {
        let open = latest.clone().filter(|window| self.is_open(window, &event.at));
        match (&event.change, open) {
            (Change::Taken(units), None) => Some(self.next(latest, &event.at, units.clone())),
            (Change::Taken(units), Some(window)) => {
                Some(Window { used: window.used + units, ..window })
            }
            (Change::GivenBack { .. }, None) => latest,
            (Change::GivenBack { units, taken_at }, Some(window)) => {
                let elsewhere = taken_at.as_ref().is_some_and(|taken| *taken < window.start);
                let used = if elsewhere { window.used.clone() } else { &window.used - units };
                if used > BigInt::ZERO {
                    return Some(Window { used, ..window });
                }
                Some(self.next(Some(window), &event.at, BigInt::ZERO))
            }
            (Change::Cleared, _) => {
                latest.map(|window| self.next(Some(window), &event.at, BigInt::ZERO))
            }
        }
    }

    /// The window that is opened at `at`, but not before the last one was.
    fn next(&self, latest: Option<Window>, at: &BigInt, used: BigInt) -> Window {
        let start = match self.anchor {
            Anchor::Epoch => at / &self.period * &self.period,
            Anchor::FirstRequest => at.clone(),
        };
        let earliest = latest.map_or(BigInt::ZERO, |window| window.start);
        Window { start: start.max(earliest), used }
    }
}

impl Log {
    /// The window with this count, as if it had been taken at `at`; or at the start of a window
    /// that would still be open.
    pub(super) fn having_used(
        window: &FixedWindow,
        used: BigInt,
        start: Option<BigInt>,
        at: &BigInt,
    ) -> Self {
        let mut log = Self::new(window);
        let is_open = |start: &BigInt| *at < start + &log.period;
        let kept = start.filter(is_open).filter(|_| log.anchor == Anchor::FirstRequest);
        let at = kept.unwrap_or_else(|| at.clone());
        log.events
            .extend((used > BigInt::ZERO).then_some(Event { at, change: Change::Taken(used) }));
        log
    }
}

impl Model for Log {
    fn remains(&self, at: &BigInt) -> Remains {
        let Window { start, used } =
            self.window(at).unwrap_or(Window { start: at.clone(), used: BigInt::ZERO });
        Remains::Window { start, used }
    }

    fn free(&self, at: &BigInt) -> BigInt {
        let used = self.window(at).map_or(BigInt::ZERO, |window| window.used);
        (&self.units - used).max(BigInt::ZERO)
    }

    fn is_new(&self, at: &BigInt) -> bool {
        self.window(at).is_none()
    }

    fn take(&mut self, units: &BigInt, _hold: u64, at: &BigInt) -> BigInt {
        self.events.push(Event { at: at.clone(), change: Change::Taken(units.clone()) });
        units.clone()
    }

    fn give_back(&mut self, units: &BigInt, taken_at: Option<&BigInt>, at: &BigInt) {
        let change = Change::GivenBack { units: units.clone(), taken_at: taken_at.cloned() };
        self.events.push(Event { at: at.clone(), change });
    }

    fn clear(&mut self, at: &BigInt) {
        self.events.push(Event { at: at.clone(), change: Change::Cleared });
    }

    fn moment(&self, at: &BigInt) -> BigInt {
        self.latest().map_or(BigInt::ZERO, |window| window.start).max(at.clone())
    }
}
