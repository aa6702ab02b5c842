//! A quota: how many units, per how long, and how many at once. Numbers only.

pub(crate) mod text;

use core::fmt;
use core::time::Duration;

pub use text::{ParseQuotaError, parse_duration};

/// Units per period with a burst: `100/1m burst 20`.
///
/// `units` per `period` is the rate that holds in the long run; `burst` is how many units an idle
/// key may take at once. Without a burst of its own a quota may be spent at once: burst = units.
///
/// ```
/// use tollway_core::Quota;
///
/// let quota: Quota = "10/s burst 50".parse()?;
/// assert_eq!((quota.units(), quota.burst()), (10, 50));
/// assert_eq!(quota.to_string(), "10/1s burst 50");
/// # Ok::<(), tollway_core::ParseQuotaError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Quota {
    units: u64,
    period_ns: u64,
    burst: u64,
}

impl Quota {
    /// The most units a quota may name: the largest integer of an HTTP structured field.
    pub const UNITS_MAX: u64 = 999_999_999_999_999;
    /// The longest period, and the longest time an empty quota may take to fill: 100 years.
    pub const PERIOD_MAX: Duration = Duration::from_secs(100 * 365 * 86_400);

    /// `units` per `period`, all of which may be taken at once.
    ///
    /// # Errors
    ///
    /// If `units` is zero or above [`Self::UNITS_MAX`], or `period` zero or above
    /// [`Self::PERIOD_MAX`].
    pub const fn new(units: u64, period: Duration) -> Result<Self, QuotaError> {
        Self::with_burst(units, period, units)
    }

    /// `units` per `period`, of which `burst` may be taken at once.
    ///
    /// # Errors
    ///
    /// As [`Self::new`]; the same bounds hold for `burst`, and a quota that would take longer than
    /// [`Self::PERIOD_MAX`] to fill from empty is refused.
    pub const fn with_burst(units: u64, period: Duration, burst: u64) -> Result<Self, QuotaError> {
        if units == 0 || units > Self::UNITS_MAX {
            return Err(QuotaError::Units);
        }
        if burst == 0 || burst > Self::UNITS_MAX {
            return Err(QuotaError::Burst);
        }
        if period.is_zero() || period.as_nanos() > Self::PERIOD_MAX.as_nanos() {
            return Err(QuotaError::Period);
        }
        let fill = burst as u128 * period.as_nanos();
        if fill > units as u128 * Self::PERIOD_MAX.as_nanos() {
            return Err(QuotaError::FillTime);
        }
        Ok(Self { units, period_ns: period.as_nanos() as u64, burst })
    }

    /// Units per period.
    pub const fn units(self) -> u64 {
        self.units
    }

    /// The period.
    pub const fn period(self) -> Duration {
        Duration::from_nanos(self.period_ns)
    }

    /// Units that an idle key may take at once.
    pub const fn burst(self) -> u64 {
        self.burst
    }

    pub(crate) const fn period_ns(self) -> u64 {
        self.period_ns
    }
}

impl fmt::Debug for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Quota({self})")
    }
}

crate::plain_error! {
    /// Why numbers do not make a quota.
    #[non_exhaustive]
    pub enum QuotaError {
        /// Zero units, or more than [`Quota::UNITS_MAX`].
        Units = "units must be between 1 and 999999999999999",
        /// A burst of zero, or more than [`Quota::UNITS_MAX`].
        Burst = "burst must be between 1 and 999999999999999",
        /// A period of zero, or longer than [`Quota::PERIOD_MAX`].
        Period = "the period must be between 1 nanosecond and 100 years",
        /// The burst would take longer than [`Quota::PERIOD_MAX`] to fill.
        FillTime = "the burst would take more than 100 years to fill",
    }
}
