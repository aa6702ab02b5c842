//! The fixed window, replayed from everything that ever happened to the key.

use num_bigint::BigInt;
use tollgate_core::fixed_window::{Anchor, FixedWindow};

use super::Model;

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
}

/// A window in which something is taken.
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
        let mut window = None;
        for event in &self.events {
            window = self.replay(self.still_open(window, &event.at), event);
        }
        self.still_open(window, at)
    }

    fn still_open(&self, window: Option<Window>, at: &BigInt) -> Option<Window> {
        window.filter(|window| *at < &window.start + &self.period && window.used > BigInt::ZERO)
    }

    fn replay(&self, window: Option<Window>, event: &Event) -> Option<Window> {
        match (&event.change, window) {
            (Change::Taken(units), None) => {
                Some(Window { start: self.start(&event.at), used: units.clone() })
            }
            (Change::Taken(units), Some(window)) => {
                Some(Window { used: window.used + units, ..window })
            }
            (Change::GivenBack { .. }, None) => None,
            (Change::GivenBack { units, taken_at }, Some(window)) => {
                let elsewhere = taken_at.as_ref().is_some_and(|taken| *taken < window.start);
                let used = if elsewhere { window.used } else { window.used - units };
                Some(Window { used, ..window })
            }
        }
    }

    fn start(&self, at: &BigInt) -> BigInt {
        match self.anchor {
            Anchor::Epoch => at / &self.period * &self.period,
            Anchor::FirstRequest => at.clone(),
        }
    }
}

impl Model for Log {
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
}
