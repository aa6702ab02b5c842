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
    /// At the times of a calendar, in UTC.
    Cron(Cron),
    /// At whole multiples of this since the epoch.
    Every(Duration),
}

impl Rhythm {
    /// The first time after `moment`; `None` if there is none within eight years.
    #[must_use]
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
            return Err(Error::invalid("a recurring job's name is 1 to 128 bytes"));
        }
        match self.rhythm {
            Rhythm::Every(interval) if interval < Duration::from_secs(1) => {
                Err(Error::invalid("a recurring job's interval is at least a second"))
            }
            Rhythm::Every(interval) if interval > NewJob::DELAY_MAX => {
                Err(Error::invalid("a recurring job's interval is at most ten years"))
            }
            _ => Ok(()),
        }
    }
}
