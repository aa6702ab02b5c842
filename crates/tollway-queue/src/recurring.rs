//! A job that is enqueued again and again: by a calendar or at an interval.

use std::time::Duration;

use tollway_core::Timestamp;

use crate::cron::Cron;
use crate::error::Error;
use crate::{Group, NewJob};

/// A job that the queue enqueues itself, whenever its time comes. Of several times that passed
/// unseen (nobody was there) one job is enqueued, not all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recurring {
    /// Its name in the queue: 1 to 128 bytes.
    pub name: String,
    /// When.
    pub rhythm: Rhythm,
    /// What; its start and key play no part.
    pub job: NewJob,
}

/// When a recurring job is enqueued.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rhythm {
    /// At the times of a calendar, in UTC or in its time zone.
    Cron(Cron),
    /// At whole multiples of this since the epoch.
    Every(Duration),
}

impl Rhythm {
    /// The first time after `moment`; `None` if there is none within eight years.
    pub fn next_after(&self, moment: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Cron(cron) => cron.next_after(moment),
            Self::Every(interval) => {
                let interval_ns = u64::try_from(interval.as_nanos()).ok()?;
                let passed = moment.as_nanos().checked_div(interval_ns)?;
                Some(Timestamp::from_nanos((passed + 1).checked_mul(interval_ns)?))
            }
        }
    }
}

impl Recurring {
    /// The longest name, in bytes.
    pub const NAME_LEN_MAX: usize = 128;
    /// The most recurring jobs of a queue.
    pub const COUNT_MAX: usize = 10_000;

    /// A job of the group `group` at the times of `cron`.
    ///
    /// # Errors
    ///
    /// If `cron` is no calendar; see [`Cron`].
    pub fn cron(name: &str, cron: &str, group: Group, payload: &str) -> Result<Self, Error> {
        let job = NewJob::new(group, payload.to_owned());
        Ok(Self { name: name.to_owned(), rhythm: Rhythm::Cron(cron.parse()?), job })
    }

    /// Whether the name and the rhythm are within their bounds.
    ///
    /// # Errors
    ///
    /// Saying which is not.
    pub fn validate(&self) -> Result<(), Error> {
        if self.name.is_empty() || self.name.len() > Self::NAME_LEN_MAX {
            let found = format_args!("{} bytes", self.name.len());
            return Err(Error::outside("name of a recurring job", found, "1 to 128 bytes"));
        }
        if let Rhythm::Every(interval) = self.rhythm
            && !(Duration::from_secs(1)..=NewJob::DELAY_MAX).contains(&interval)
        {
            let found = format_args!("{interval:?}");
            return Err(Error::outside("interval", found, "1 s to ten years"));
        }
        Ok(())
    }

    /// When it comes next after `now`.
    pub(crate) fn next_after(&self, now: Timestamp) -> Result<Timestamp, Error> {
        let never =
            || Error::outside("rhythm", "a time that never comes", "one within eight years");
        self.rhythm.next_after(now).ok_or_else(never)
    }
}
