//! What a queue is told: its limits, its leases, its retries, and its bounds.

use std::time::Duration;

use crate::error::Error;
use crate::{Backoff, LeaseToken, Limit, MissedDeadline, Outcome, QueueName};

/// The settings of a queue. Everything may be changed while it runs.
///
/// ```
/// use tollway_queue::QueueSettings;
///
/// // Discord: ten role changes per ten seconds in each server.
/// let settings = QueueSettings::with_limit("slots 10/10s".parse()?);
/// # Ok::<(), tollway_queue::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueSettings {
    /// The limits of every group, each group with a state of its own; all must allow a job.
    pub group_limits: Vec<Limit>,
    /// The limits of the queue as a whole.
    pub queue_limits: Vec<Limit>,
    /// Names of limits shared with other queues; see [`crate::Backend::put_shared`].
    pub shared: Vec<QueueName>,
    /// How long a worker has, unless it prolongs the lease.
    pub lease: Duration,
    /// How often a job may fail before it is dead.
    pub attempts_max: u32,
    /// How long a job waits after a failure.
    pub backoff: Backoff,
    /// By how many percent a backoff is longer at most, 0 to 100: jobs that failed together would
    /// otherwise be tried again together.
    pub backoff_jitter: u8,
    /// What becomes of jobs that could not start before their deadline.
    pub missed_deadline: MissedDeadline,
    /// The response time that [`crate::Estimate::latest`] reckons with until slower ones were seen.
    pub response_max: Duration,
    /// How long an idempotency key is remembered.
    pub key_window: Duration,
    /// How many idempotency keys are remembered; beyond it the oldest is forgotten.
    pub keys_max: u32,
    /// The most bytes in a payload.
    pub payload_max: u32,
    /// The most jobs that wait, are delayed or run; beyond it enqueueing fails.
    pub jobs_max: u64,
    /// The most bytes in the payloads of those jobs and of dead letters together; beyond it
    /// enqueueing fails. Redis and Valkey do not count them: there the server's `maxmemory` is the
    /// bound.
    pub bytes_max: u64,
    /// The most groups that there is something to remember of; beyond it enqueueing fails.
    pub groups_max: u32,
    /// What is kept of jobs that are over.
    pub retention: Retention,
}

/// What is kept of jobs that are over; beyond it the oldest is forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// The most jobs that are done.
    pub done_max: u32,
    /// How long those are kept.
    pub done_age: Duration,
    /// The most dead letters.
    pub dead_max: u32,
    /// How long those are kept.
    pub dead_age: Duration,
}

impl Default for Retention {
    fn default() -> Self {
        Self {
            done_max: 1_000,
            done_age: Duration::from_secs(3_600),
            dead_max: 10_000,
            dead_age: Duration::from_secs(30 * 86_400),
        }
    }
}

impl Default for QueueSettings {
    fn default() -> Self {
        Self {
            group_limits: Vec::new(),
            queue_limits: Vec::new(),
            shared: Vec::new(),
            lease: Duration::from_secs(30),
            attempts_max: 5,
            backoff: Backoff::default(),
            backoff_jitter: 10,
            missed_deadline: MissedDeadline::default(),
            response_max: Duration::from_secs(1),
            key_window: Duration::from_secs(86_400),
            keys_max: 1_000_000,
            payload_max: 256 * 1_024,
            jobs_max: 10_000_000,
            bytes_max: 1 << 30,
            groups_max: 1_000_000,
            retention: Retention::default(),
        }
    }
}

impl QueueSettings {
    /// The most limits of one kind.
    pub const LIMITS_MAX: usize = 8;
    /// The largest payload that any queue may allow.
    pub const PAYLOAD_MAX: u32 = 16 * 1_024 * 1_024;
    /// What a response takes as far as [`crate::Estimate::expected`] is concerned, until the queue
    /// has seen one; `response_max`, if that is less.
    pub const RESPONSE_UNSEEN: Duration = Duration::from_millis(100);
    /// The longest lease.
    pub const LEASE_MAX: Duration = Duration::from_secs(86_400);

    /// The default settings with one limit for every group.
    pub fn with_limit(limit: Limit) -> Self {
        Self { group_limits: vec![limit], ..Self::default() }
    }

    /// Whether every setting is within its bounds.
    ///
    /// # Errors
    ///
    /// Naming the first setting that is not, and what would be right.
    pub fn validate(&self) -> Result<(), Error> {
        check_limits("group_limits", &self.group_limits)?;
        check_limits("queue_limits", &self.queue_limits)?;
        if self.shared.len() > Self::LIMITS_MAX {
            return Err(Error::outside("shared", self.shared.len(), "at most 8 limits"));
        }
        if self.lease < Duration::from_millis(1) || self.lease > Self::LEASE_MAX {
            return Err(Error::outside("lease", format_args!("{:?}", self.lease), "1 ms to 24 h"));
        }
        if self.attempts_max == 0 {
            return Err(Error::outside("attempts_max", 0, "at least 1"));
        }
        if self.backoff_jitter > 100 {
            let found = format_args!("{} %", self.backoff_jitter);
            return Err(Error::outside("backoff_jitter", found, "at most 100 %"));
        }
        if self.payload_max > Self::PAYLOAD_MAX {
            return Err(Error::outside("payload_max", self.payload_max, "at most 16 MiB"));
        }
        if self.response_max > Self::LEASE_MAX {
            let found = format_args!("{:?}", self.response_max);
            return Err(Error::outside("response_max", found, "at most 24 h"));
        }
        Ok(())
    }

    /// Whether the queue takes so long a payload, or result: those have the same bound.
    pub(crate) fn check_bytes(&self, field: &str, found: usize) -> Result<(), Error> {
        if found > self.payload_max as usize {
            let expected = format_args!("at most {} bytes (payload_max)", self.payload_max);
            return Err(Error::outside(field, format_args!("{found} bytes"), expected));
        }
        Ok(())
    }
}

/// How long the longest result among `outcomes` is.
pub(crate) fn longest_result(outcomes: &[(LeaseToken, Outcome)]) -> usize {
    let length = |(_, outcome): &(LeaseToken, Outcome)| match outcome {
        Outcome::Done { result: Some(result) } => result.len(),
        _ => 0,
    };
    outcomes.iter().map(length).max().unwrap_or(0)
}

/// Whether `limits` are not too many for one group or queue, and each is a limit.
pub(crate) fn check_limits(field: &str, limits: &[Limit]) -> Result<(), Error> {
    if limits.len() > QueueSettings::LIMITS_MAX {
        return Err(Error::outside(field, limits.len(), "at most 8 limits"));
    }
    limits.iter().try_for_each(Limit::check)
}
