//! A limit that jobs wait for: what it allows, and how it is written.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use tollway_core::fixed_window::{Anchor, FixedWindow};
use tollway_core::gcra::Gcra;
use tollway_core::leaky_bucket::LeakyBucket;
use tollway_core::sliding_window::SlidingWindow;
use tollway_core::{Algorithm, Quota, parse_duration};

use crate::error::Error;

/// A limit that jobs wait for.
///
/// | written | means |
/// |---|---|
/// | `slots 10/10s` | ten slots, each free again 10 s after the *response* to the call that used it |
/// | `concurrent 5` | at most five in flight: slots that are free at the response |
/// | `window 10/10s` | a reservoir of ten per window: of the clock, or of the upstream once it told |
/// | `gcra 10/1s burst 5`, `sliding 10/10s`, `fixed 10/10s`, `leaky 10 1/1s` | a policy of the core |
/// | `gcra 10/1s burst 5 answered` and so on | the same, charged at the response |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// `units` slots; one that was used is free again `window` after the response. No window of any
    /// phase, the upstream's least of all, ever sees more than `units` calls.
    Slots {
        /// How many.
        units: u32,
        /// How long after the response; zero for a mere bound on calls in flight.
        window: Duration,
    },
    /// `units` per window. Windows are aligned to the epoch until a refused call was told to wait:
    /// the end of its wait is an edge of the upstream's windows, and of the group's from then on. A
    /// call that is in flight across an edge counts on both sides. For upstreams with fixed
    /// windows.
    Window {
        /// How many.
        units: u32,
        /// The length of a window.
        window: Duration,
    },
    /// A policy of the core, charged when a job starts: a bound on starts, whenever the upstream
    /// counts them.
    Policy(Algorithm),
    /// A policy of the core, charged when the response comes. What is in flight counts as if it
    /// were charged at every moment, so that an upstream of the same policy refuses nothing; no
    /// more units than the policy allows at once are ever in flight. For all but fixed windows.
    Answered(Algorithm),
}

impl Limit {
    /// The most units of slots and windows.
    pub const UNITS_MAX: u32 = 1_000_000;
    /// The longest window of slots and windows.
    pub const WINDOW_MAX: Duration = Duration::from_secs(31 * 86_400);

    /// `units` slots that free `window` after the response.
    ///
    /// # Errors
    ///
    /// If `units` is zero or above [`Self::UNITS_MAX`], or the window longer than 31 days.
    pub fn slots(units: u32, window: Duration) -> Result<Self, Error> {
        let limit = Self::Slots { units, window };
        limit.check().map(|()| limit)
    }

    /// `units` per window aligned to the epoch.
    ///
    /// # Errors
    ///
    /// As [`Self::slots`], or if the window is shorter than a millisecond.
    pub fn window(units: u32, window: Duration) -> Result<Self, Error> {
        let limit = Self::Window { units, window };
        limit.check().map(|()| limit)
    }

    /// What `algorithm` allows. A bound on calls in flight becomes slots: they are released by the
    /// response or by the end of the lease, whatever the algorithm's own lease says.
    ///
    /// # Errors
    ///
    /// If it is a concurrency limit above [`Self::UNITS_MAX`], or a calendar window: no text of a
    /// limit says which.
    pub fn policy(algorithm: Algorithm) -> Result<Self, Error> {
        match algorithm {
            Algorithm::Concurrency(limit) => {
                let units = u32::try_from(limit.limit()).unwrap_or(u32::MAX);
                Self::slots(units, Duration::ZERO)
            }
            algorithm => {
                let limit = Self::Policy(algorithm);
                limit.check().map(|()| limit)
            }
        }
    }

    /// What `algorithm` allows, charged when the response comes.
    ///
    /// # Errors
    ///
    /// As [`Self::policy`], or if it is a fixed window: [`Self::window`] is that.
    pub fn answered(algorithm: Algorithm) -> Result<Self, Error> {
        let limit = match algorithm {
            Algorithm::Concurrency(_) => Self::policy(algorithm)?,
            algorithm => Self::Answered(algorithm),
        };
        limit.check().map(|()| limit)
    }

    /// Whether the limit is within its bounds; its fields are public.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let (units, window, window_min) = match *self {
            Self::Slots { units, window } => (units, window, Duration::ZERO),
            Self::Window { units, window } => (units, window, Duration::from_millis(1)),
            Self::Policy(Algorithm::Concurrency(_)) => {
                return Err(Error::outside("limit", "a concurrency policy", "slots"));
            }
            Self::Answered(Algorithm::FixedWindow(_) | Algorithm::Concurrency(_)) => {
                return Err(Error::outside("answered limit", "this policy", "'window' or 'slots'"));
            }
            Self::Policy(Algorithm::CalendarWindow(_))
            | Self::Answered(Algorithm::CalendarWindow(_)) => {
                return Err(Error::outside("limit", "a calendar window", "another algorithm"));
            }
            Self::Policy(_) | Self::Answered(_) => return Ok(()),
        };
        if units == 0 || units > Self::UNITS_MAX {
            return Err(Error::outside("units of a limit", units, "1 to 1000000"));
        }
        if window < window_min || window > Self::WINDOW_MAX {
            let expected = format_args!("{window_min:?} to 31 days");
            return Err(Error::outside("window of a limit", format_args!("{window:?}"), expected));
        }
        Ok(())
    }
}

impl FromStr for Limit {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = || {
            Error::invalid(format!(
                "no limit: {:?}; write 'slots 10/10s', 'window 10/10s', 'concurrent 5', \
                 'gcra 10/1s burst 5', 'sliding 10/10s', 'fixed 10/10s' or 'leaky 10 1/1s', or \
                 'gcra 10/1s burst 5 answered'",
                text.chars().take(64).collect::<String>()
            ))
        };
        let (word, rest) = text.trim().split_once(' ').ok_or_else(wrong)?;
        let rest = rest.trim();
        match word {
            "concurrent" => Self::slots(rest.parse().map_err(|_| wrong())?, Duration::ZERO),
            "slots" | "window" => {
                let (units, window) = rest.split_once('/').ok_or_else(wrong)?;
                let units = units.trim().parse().map_err(|_| wrong())?;
                let window = parse_duration(window.trim()).map_err(|_| wrong())?;
                if word == "slots" {
                    Self::slots(units, window)
                } else {
                    Self::window(units, window)
                }
            }
            _ => {
                let (rest, is_answered) = match rest.strip_suffix(" answered") {
                    Some(rest) => (rest, true),
                    None => (rest, false),
                };
                let algorithm = algorithm(word, rest).ok_or_else(wrong)?;
                if is_answered { Self::answered(algorithm) } else { Self::policy(algorithm) }
            }
        }
    }
}

fn algorithm(word: &str, rest: &str) -> Option<Algorithm> {
    Some(match word {
        "gcra" => Algorithm::Gcra(Gcra::new(quota(rest)?)),
        "fixed" => match rest.strip_suffix(" first") {
            Some(rest) => FixedWindow::new(quota(rest)?, Anchor::FirstRequest).into(),
            None => FixedWindow::new(quota(rest)?, Anchor::Epoch).into(),
        },
        "sliding" => match rest.split_once(" buckets ") {
            Some((rest, buckets)) => {
                SlidingWindow::new(quota(rest)?, buckets.trim().parse().ok()?).ok()?.into()
            }
            None => SlidingWindow::exact(quota(rest)?).ok()?.into(),
        },
        "leaky" => {
            let (size, drip) = rest.split_once(' ')?;
            let drip = quota(drip)?;
            LeakyBucket::new(size.parse().ok()?, drip.units(), drip.period()).ok()?.into()
        }
        _ => return None,
    })
}

fn quota(text: &str) -> Option<Quota> {
    text.trim().parse().ok()
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Slots { units, window } if window.is_zero() => write!(f, "concurrent {units}"),
            Self::Slots { units, window } => write!(f, "slots {}", Per(u64::from(*units), *window)),
            Self::Window { units, window } => {
                write!(f, "window {}", Per(u64::from(*units), *window))
            }
            Self::Policy(algorithm) => write_policy(algorithm, f),
            Self::Answered(algorithm) => {
                write_policy(algorithm, f)?;
                f.write_str(" answered")
            }
        }
    }
}

fn write_policy(algorithm: &Algorithm, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match algorithm {
        Algorithm::Gcra(gcra) => write!(f, "gcra {}", gcra.quota()),
        Algorithm::FixedWindow(window) => {
            let per = Per(window.quota().units(), window.quota().period());
            let first = if window.anchor() == Anchor::FirstRequest { " first" } else { "" };
            write!(f, "fixed {per}{first}")
        }
        Algorithm::SlidingWindow(window) => {
            let per = Per(window.limit(), window.period());
            if u128::from(window.buckets()) == window.period().as_nanos() {
                return write!(f, "sliding {per}");
            }
            write!(f, "sliding {per} buckets {}", window.buckets())
        }
        Algorithm::LeakyBucket(bucket) => {
            let per = Per(bucket.drip_size(), bucket.interval());
            write!(f, "leaky {} {per}", bucket.size())
        }
        // `Limit::policy` turns these into slots; nothing else makes a `Limit`.
        _ => f.write_str("unwritten"),
    }
}

/// Units per time, as a quota without a burst is written.
struct Per(u64, Duration);

impl fmt::Display for Per {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Quota::new(self.0, self.1) {
            Ok(quota) => quota.fmt(f),
            Err(_) => write!(f, "{}/{}ns", self.0, self.1.as_nanos()),
        }
    }
}

#[cfg(test)]
mod tests {
    use tollway_core::calendar_window::CalendarWindow;

    use super::*;

    #[test]
    fn every_limit_is_read_back_as_it_was_written() {
        for text in [
            "slots 10/10s",
            "concurrent 5",
            "window 3/3s",
            "gcra 10/1s burst 5",
            "sliding 10/10s",
            "sliding 100/10s buckets 50",
            "fixed 10/1m",
            "fixed 10/1m first",
            "leaky 10 1/1s",
            "slots 7/1m30s",
            "gcra 10/1s burst 5 answered",
            "sliding 10/10s answered",
            "leaky 10 1/1s answered",
        ] {
            let limit: Limit = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(limit.to_string().parse::<Limit>().unwrap(), limit, "{text}");
        }
    }

    #[test]
    fn a_calendar_window_is_refused() {
        let no_zones = |name: &str| Err(name.to_owned());
        let month = CalendarWindow::parse("5/month", &no_zones).expect("a calendar window");
        assert!(Limit::policy(month.into()).is_err());
        assert!(Limit::answered(month.into()).is_err());
        assert!(Limit::Policy(month.into()).check().is_err());
    }

    #[test]
    fn what_is_no_limit_is_refused() {
        for text in [
            "",
            "slots",
            "slots 0/1s",
            "slots 10",
            "window 1/0s",
            "gcra",
            "slots 9999999/1s",
            "fixed 10/10s answered",
            "slots 10/10s answered",
        ] {
            assert!(text.parse::<Limit>().is_err(), "{text}");
        }
    }
}
