//! The calendar window: what it owes, event by event and window by window. The windows are those of
//! the calendar itself, which Python judges (`tollway-zones`).

use num_bigint::BigInt;
use num_rational::BigRational;
use tollway_core::Timestamp;
use tollway_core::calendar_window::CalendarWindow;
use tollway_core::civil::{self, Calendar};

use super::Model;
use super::change::Remains;

pub(super) struct Ledger {
    units: BigInt,
    carry: BigInt,
    most: BigInt,
    calendar: Calendar,
    latest: Option<Window>,
}

/// A window that was opened, over or not, and how much of what it may hold is gone.
#[derive(Clone)]
struct Window {
    start: BigInt,
    end: BigInt,
    debt: BigInt,
}

impl Ledger {
    pub(super) fn new(window: &CalendarWindow) -> Self {
        let (units, carry) = (BigInt::from(window.units()), BigInt::from(window.carry()));
        let most = &units + &carry + BigInt::from(window.grace());
        Self { units, carry, most, calendar: window.calendar(), latest: None }
    }

    /// The window that somebody with the reading `at` is in: the latest, until it is over.
    fn window(&self, at: &BigInt) -> Window {
        let mut window = self.latest.clone().unwrap_or_else(|| self.opened(at));
        while *at >= window.end {
            // Windows in which nothing is owed are all alike.
            let next = if window.debt == BigInt::ZERO { at.clone() } else { window.end.clone() };
            let owed = (&window.debt - &self.units).max(BigInt::ZERO).min(self.carry.clone());
            window = Window { debt: owed, ..self.opened(&next) };
        }
        window
    }

    fn opened(&self, at: &BigInt) -> Window {
        let moment = Timestamp::from_nanos(u64::try_from(at).unwrap_or(u64::MAX));
        let civil::Window { start, end } = self.calendar.window_at(moment);
        let [start, end] = [start, end].map(|edge| BigInt::from(edge.as_nanos()));
        // The last moment that there is has a window, too.
        Window { start, end: end.max(at + BigInt::from(1)), debt: BigInt::ZERO }
    }
}

impl Ledger {
    /// The window that is open at `at`, with so much gone.
    pub(super) fn having_used(window: &CalendarWindow, debt: BigInt, at: &BigInt) -> Self {
        let ledger = Self::new(window);
        let latest = Some(Window { debt, ..ledger.opened(at) });
        Self { latest, ..ledger }
    }
}

impl Model for Ledger {
    fn remains(&self, at: &BigInt) -> Remains {
        Remains::Units(BigRational::from_integer(self.window(at).debt))
    }

    fn free(&self, at: &BigInt) -> BigInt {
        (&self.most - self.window(at).debt).max(BigInt::ZERO)
    }

    fn is_new(&self, at: &BigInt) -> bool {
        self.window(at).debt == BigInt::ZERO
    }

    fn take(&mut self, units: &BigInt, _hold: u64, at: &BigInt) -> BigInt {
        let window = self.window(at);
        self.latest = Some(Window { debt: &window.debt + units, ..window });
        units.clone()
    }

    fn give_back(&mut self, units: &BigInt, taken_at: Option<&BigInt>, at: &BigInt) {
        let window = match (&self.latest, taken_at) {
            (Some(latest), Some(_)) => latest.clone(),
            _ => self.window(at),
        };
        let is_earlier = taken_at.is_some_and(|taken_at| *taken_at < window.start);
        // What gives nothing back changes nothing: it opens no window for somebody who comes late.
        if window.debt > BigInt::ZERO && !is_earlier {
            let debt = (&window.debt - units).max(BigInt::ZERO);
            let is_empty = debt == BigInt::ZERO;
            self.latest = Some(Window { debt, ..window });
            // Nothing owed is no state at all: whoever comes late to it is answered as of now.
            if is_empty {
                self.latest = Some(self.window(at));
            }
        }
    }

    fn clear(&mut self, at: &BigInt) {
        // Where nothing is owed there is nothing to forget.
        if self.latest.as_ref().is_some_and(|latest| latest.debt > BigInt::ZERO) {
            self.latest = Some(Window { debt: BigInt::ZERO, ..self.window(at) });
        }
    }

    fn moment(&self, at: &BigInt) -> BigInt {
        let start = self.latest.as_ref().map_or(BigInt::ZERO, |window| window.start.clone());
        start.max(at.clone())
    }
}
