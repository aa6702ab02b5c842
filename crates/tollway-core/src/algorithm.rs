//! The algorithms behind one enum, and their states behind another.
//!
//! Whatever differs from algorithm to algorithm stands in the algorithm's own file, which
//! implements [`Apply`]. Another one is such a file, a variant of each enum here, and an arm of
//! `each!`; stores treat it as a state of variable size until they know better.

use alloc::format;
use alloc::string::String;
use core::fmt;
use core::time::Duration;

use crate::decision::Snapshot;
use crate::shares::SharedQuota;
use crate::{Factor, Quota};
use crate::{calendar_window, concurrency, fixed_window, gcra, leaky_bucket, sliding_window};

use calendar_window::CalendarWindow;
use concurrency::Concurrency;
use fixed_window::FixedWindow;
use gcra::Gcra;
use leaky_bucket::LeakyBucket;
use sliding_window::SlidingWindow;

/// How a quota is enforced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Algorithm {
    /// A continuously refilling bucket; the default.
    Gcra(Gcra),
    /// A bucket with discrete drips.
    LeakyBucket(LeakyBucket),
    /// The last period, counted in buckets.
    SlidingWindow(SlidingWindow),
    /// One window after another.
    FixedWindow(FixedWindow),
    /// Units in flight.
    Concurrency(Concurrency),
    /// One window of a civil calendar after another.
    CalendarWindow(CalendarWindow),
    /// A tree of owners under one quota; see [`shares`](crate::shares).
    Shares(SharedQuota),
}

/// What is stored for one key under one policy.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum State {
    /// See [`gcra`].
    Gcra(gcra::State),
    /// See [`leaky_bucket`].
    LeakyBucket(leaky_bucket::State),
    /// See [`sliding_window`].
    SlidingWindow(sliding_window::State),
    /// See [`fixed_window`].
    FixedWindow(fixed_window::State),
    /// See [`concurrency`].
    Concurrency(concurrency::State),
    /// See [`calendar_window`].
    CalendarWindow(calendar_window::State),
}

/// Evaluates one expression with whichever algorithm there is: alone, or with its state. A state of
/// another algorithm (its policy changed under it) is what `else` is for.
macro_rules! each {
    ($algorithm:expr, $own:ident => $run:expr) => {
        match $algorithm {
            Algorithm::Gcra($own) => $run,
            Algorithm::LeakyBucket($own) => $run,
            Algorithm::SlidingWindow($own) => $run,
            Algorithm::FixedWindow($own) => $run,
            Algorithm::Concurrency($own) => $run,
            Algorithm::CalendarWindow($own) => $run,
            Algorithm::Shares($own) => $run,
        }
    };
    ($algorithm:expr, $state:expr, ($own:ident, $its:ident) => $run:expr, else $other:expr) => {
        match ($algorithm, $state) {
            (Algorithm::Gcra($own), State::Gcra($its)) => $run,
            (Algorithm::LeakyBucket($own), State::LeakyBucket($its)) => $run,
            (Algorithm::SlidingWindow($own), State::SlidingWindow($its)) => $run,
            (Algorithm::FixedWindow($own), State::FixedWindow($its)) => $run,
            (Algorithm::Concurrency($own), State::Concurrency($its)) => $run,
            (Algorithm::CalendarWindow($own), State::CalendarWindow($its)) => $run,
            (Algorithm::Shares($own), State::Gcra($its)) => $run,
            _ => $other,
        }
    };
}

mod apply;
mod state;

pub(crate) use apply::{Apply, apply_by_value, apply_in_place, peek_and_count_by_window};
pub(crate) use each;

/// Where the parameters of an algorithm come from: a table of a configuration file, a request.
///
/// Each method returns `None` where the parameter is wrong or missing, and keeps what is to be told
/// about it.
pub trait Parameters {
    /// The parameter `quota`.
    fn quota(&self) -> Option<Quota>;

    /// The parameter `quota`, of a calendar window.
    fn calendar_window(&self) -> Option<CalendarWindow>;

    /// Whether the parameter `quota` is meant for a calendar window:
    /// [`CalendarWindow::is_meant_by`].
    fn means_calendar_window(&self) -> bool;

    /// A whole number.
    fn number(&self, name: &'static str) -> Option<u64>;

    /// A length of time.
    fn duration(&self, name: &'static str) -> Option<Duration>;

    /// Whether the parameter is given at all.
    fn has(&self, name: &'static str) -> bool;

    /// A factor by which a caller's limit is stricter or laxer.
    fn factor(&self, name: &'static str) -> Option<Factor>;

    /// The index of the parameter's word among `words`; 0 if it is not given, or wrong.
    fn choice(&self, name: &'static str, words: &[&'static str]) -> usize;

    /// Keeps that a parameter, or all of them together if it has no name, cannot be used.
    fn refuse(&self, name: &'static str, why: String);
}

impl Algorithm {
    /// The names of all algorithms, as configurations spell them.
    pub const NAMES: [&'static str; 6] = [
        Gcra::NAME,
        LeakyBucket::NAME,
        SlidingWindow::NAME,
        FixedWindow::NAME,
        Concurrency::NAME,
        CalendarWindow::NAME,
    ];

    /// The names of the parameters of all of them, and of a limit in the
    /// [legacy](crate::legacy) form.
    pub const PARAMETERS: [&'static str; 12] = [
        "quota",
        "anchor",
        "buckets",
        "size",
        "drip_size",
        "drip_interval",
        "limit",
        "lease",
        "max",
        "duration",
        "min_interval",
        "factor",
    ];

    /// The algorithm of a limit that names none: what its quota needs.
    pub fn default_name(given: &dyn Parameters) -> &'static str {
        if given.means_calendar_window() { CalendarWindow::NAME } else { Gcra::NAME }
    }

    /// The algorithm called `name`, if there is one, made of what is given for it, if that is
    /// right.
    pub fn from_parameters(name: &str, given: &dyn Parameters) -> Option<Option<Self>> {
        Some(match name {
            Gcra::NAME => Gcra::from_parameters(given).map(Self::Gcra),
            LeakyBucket::NAME => LeakyBucket::from_parameters(given).map(Self::LeakyBucket),
            SlidingWindow::NAME => SlidingWindow::from_parameters(given).map(Self::SlidingWindow),
            FixedWindow::NAME => FixedWindow::from_parameters(given).map(Self::FixedWindow),
            Concurrency::NAME => Concurrency::from_parameters(given).map(Self::Concurrency),
            CalendarWindow::NAME => {
                CalendarWindow::from_parameters(given).map(Self::CalendarWindow)
            }
            _ => return None,
        })
    }

    /// The name, with what sets this variant of the algorithm apart.
    pub fn label(&self) -> &'static str {
        each!(self, own => own.label())
    }

    /// The most units that one request can ever take.
    pub fn limit(&self) -> u64 {
        each!(self, own => Apply::limit(own))
    }

    /// How many units of its grace band a key has used of which `snapshot` was reported; `None` if
    /// the limit has no such band.
    pub fn grace_used(&self, snapshot: Snapshot) -> Option<u64> {
        match self {
            Self::CalendarWindow(window) if window.grace() > 0 => Some(window.grace_used(snapshot)),
            _ => None,
        }
    }

    /// Units and the time over which they come back, as header fields report it; `None` where time
    /// alone brings nothing back.
    pub fn window(&self) -> Option<(u64, Duration)> {
        each!(self, own => own.window())
    }

    /// Four numbers that make the algorithm again; see [`Self::from_numbers`]. They are stored in
    /// records of reservations: the kinds never change their meaning. The zone of a
    /// [`CalendarWindow`] is not among them: its name says which one it is.
    pub fn numbers(&self) -> [u64; 4] {
        let kind = match self {
            Self::Gcra(_) => 1,
            Self::LeakyBucket(_) => 2,
            Self::FixedWindow(_) => 3,
            Self::SlidingWindow(_) => 4,
            Self::Concurrency(_) => 5,
            Self::CalendarWindow(_) => 6,
            Self::Shares(_) => 9,
        };
        let [a, b, c] = each!(self, own => own.numbers());
        [kind, a, b, c]
    }

    /// The algorithm that [`Self::numbers`] came from; `None` if they make none. A calendar comes
    /// back in UTC.
    pub fn from_numbers([kind, a, b, c]: [u64; 4]) -> Option<Self> {
        let numbers = [a, b, c];
        Some(match kind {
            1 => Self::Gcra(Gcra::from_numbers(numbers)?),
            2 => Self::LeakyBucket(LeakyBucket::from_numbers(numbers)?),
            3 => Self::FixedWindow(FixedWindow::from_numbers(numbers)?),
            4 => Self::SlidingWindow(SlidingWindow::from_numbers(numbers)?),
            5 => Self::Concurrency(Concurrency::from_numbers(numbers)?),
            6 => Self::CalendarWindow(CalendarWindow::from_numbers(numbers)?),
            _ => return None,
        })
    }

    /// Share `index` of `shares`; `None` if it would be empty, or its time too long.
    ///
    /// | algorithm | share `i` of `n` |
    /// |---|---|
    /// | GCRA | the same units per `n` periods; burst ÷ `n` |
    /// | leaky bucket | the same drips per `n` intervals; size ÷ `n` |
    /// | windows, concurrency | limit ÷ `n`, in the same time |
    ///
    /// A division that leaves a remainder gives one unit more to each of the first shares: together
    /// the shares are the quota, to the unit. Rates are stretched, not divided, so they are exact.
    pub fn share(&self, shares: u32, index: u32) -> Option<Self> {
        self.with_units(shares.max(1), portion(self.limit(), shares.max(1), index))
    }

    /// What each of `shares` processes may grant on its own: the smallest share, but at least one
    /// unit. Together they grant at most the larger of the limit and `shares`.
    pub fn smallest_share(&self, shares: u32) -> Option<Self> {
        let shares = shares.max(1);
        self.with_units(shares, portion(self.limit(), shares, shares - 1).max(1))
    }

    fn with_units(&self, shares: u32, units: u64) -> Option<Self> {
        each!(self, own => own.share(shares, units).map(Self::from))
    }
}

fn portion(limit: u64, shares: u32, index: u32) -> u64 {
    let (shares, index) = (u64::from(shares), u64::from(index));
    limit / shares + u64::from(index < limit % shares)
}

/// `time` for each of `shares`, if that is not longer than a period may be.
pub(crate) fn stretched(time: Duration, shares: u32) -> Option<Duration> {
    time.checked_mul(shares).filter(|time| *time <= Quota::PERIOD_MAX)
}

/// The numbers, as people read them.
impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        each!(self, own => own.fmt(f))
    }
}

/// Units per time, as a quota without a burst is written.
pub(crate) fn per(units: u64, period: Duration) -> String {
    match Quota::new(units, period) {
        Ok(quota) => format!("{quota}"),
        Err(_) => format!("{units} per {period:?}"),
    }
}

macro_rules! algorithm_from {
    ($($name:ident),*) => {$(
        impl From<$name> for Algorithm {
            fn from(algorithm: $name) -> Self {
                Self::$name(algorithm)
            }
        }
    )*};
}

algorithm_from!(Gcra, LeakyBucket, SlidingWindow, FixedWindow, Concurrency, CalendarWindow);

impl From<SharedQuota> for Algorithm {
    fn from(algorithm: SharedQuota) -> Self {
        Self::Shares(algorithm)
    }
}

impl From<Quota> for Algorithm {
    fn from(quota: Quota) -> Self {
        Self::Gcra(Gcra::new(quota))
    }
}

impl State {
    /// The state of a key that was never seen.
    pub fn vacant(algorithm: &Algorithm) -> Self {
        match algorithm {
            Algorithm::Gcra(_) | Algorithm::Shares(_) => Self::Gcra(Default::default()),
            Algorithm::LeakyBucket(_) => Self::LeakyBucket(Default::default()),
            Algorithm::SlidingWindow(_) => Self::SlidingWindow(Default::default()),
            Algorithm::FixedWindow(_) => Self::FixedWindow(Default::default()),
            Algorithm::Concurrency(_) => Self::Concurrency(Default::default()),
            Algorithm::CalendarWindow(_) => Self::CalendarWindow(Default::default()),
        }
    }

    /// Gives memory back that was needed for more than is kept now: at most four times as much as
    /// that stays allocated, and a little.
    pub fn shrink(&mut self) {
        match self {
            Self::SlidingWindow(state) => state.shrink(),
            Self::Concurrency(state) => state.shrink(),
            Self::Gcra(_)
            | Self::LeakyBucket(_)
            | Self::FixedWindow(_)
            | Self::CalendarWindow(_) => {}
        }
    }

    /// Bytes that the state keeps beside itself.
    pub fn heap_bytes(&self) -> usize {
        match self {
            Self::SlidingWindow(state) => state.cells().len() * size_of::<sliding_window::Cell>(),
            Self::Concurrency(state) => size_of_val(state.holds()),
            Self::Gcra(_)
            | Self::LeakyBucket(_)
            | Self::FixedWindow(_)
            | Self::CalendarWindow(_) => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Timestamp;

    fn gcra(text: &str) -> Algorithm {
        text.parse::<Quota>().unwrap().into()
    }

    fn calendar_window(text: &str) -> Algorithm {
        let no_zones = |name: &str| Err(name.into());
        CalendarWindow::parse(text, &no_zones).unwrap().into()
    }

    fn all() -> [Algorithm; 7] {
        let quota = "103/1s".parse::<Quota>().unwrap();
        let second = Duration::from_secs(1);
        [
            gcra("10/1s burst 103"),
            LeakyBucket::new(103, 2, second).unwrap().into(),
            SlidingWindow::new(quota, 10).unwrap().into(),
            SlidingWindow::exact(quota).unwrap().into(),
            FixedWindow::new(quota, fixed_window::Anchor::FirstRequest).into(),
            Concurrency::new(103, second).unwrap().into(),
            calendar_window("98/quarter anchor 02-31 06:30 carry 3 grace 2"),
        ]
    }

    #[test]
    fn an_algorithm_is_made_again_of_its_numbers() {
        for algorithm in all() {
            assert_eq!(Algorithm::from_numbers(algorithm.numbers()), Some(algorithm));
        }
        assert_eq!(Algorithm::from_numbers([7, 1, 1, 1]), None);
        assert_eq!(Algorithm::from_numbers([1, 0, 0, 0]), None);
    }

    #[test]
    fn shares_are_together_the_whole_to_the_unit() {
        for algorithm in all() {
            let limits = (0..4).map(|index| algorithm.share(4, index).unwrap().limit());
            assert_eq!(limits.collect::<alloc::vec::Vec<_>>(), [26, 26, 26, 25]);
        }
    }

    #[test]
    fn rates_are_exact() {
        assert_eq!(gcra("10/1s burst 103").share(4, 0), Some(gcra("10/4s burst 26")));
    }

    #[test]
    fn an_empty_share_is_none_but_a_process_may_always_grant_one() {
        assert_eq!(gcra("3/1s").share(4, 3), None);
        assert_eq!(gcra("3/1s").smallest_share(4).unwrap().limit(), 1);
    }

    #[test]
    fn a_state_of_another_algorithm_counts_as_vacant() {
        let now = Timestamp::from_nanos(5_000_000_000);
        for (index, algorithm) in all().into_iter().enumerate() {
            let mut other = State::vacant(&all()[(index + 4) % 7]);
            assert_eq!(other.peek(&algorithm, now).remaining(), 103);
            other.forget_past(&algorithm, now);
            assert_eq!(other, State::vacant(&algorithm));
        }
    }
}
