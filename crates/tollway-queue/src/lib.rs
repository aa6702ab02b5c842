//! Jobs that wait for their group's limit, and not one millisecond longer.
//!
//! A job belongs to a group ("this server", "this customer"). Every group runs at its upstream's
//! limit, exactly, whatever the others do. The queue loses no job, never exceeds a limit, and
//! reports for every job when it will start.

#![forbid(unsafe_code)]

pub mod feedback;

mod backend;
mod call;
mod command;
mod cron;
mod embedded;
mod end_watch;
mod ended;
mod error;
mod job;
mod limit;
mod name;
mod past_attempt;
#[cfg(feature = "push")]
pub mod push;
mod queue;
mod recurring;
#[cfg(feature = "redis")]
mod redis;
mod schedule;
mod settings;
mod stats;
mod versions;
mod waiting_line;
mod worker;
#[cfg(feature = "zones")]
mod zone;

pub use backend::{BATCH_MAX, Backend, Health, PAGE_BYTES, Wake};
pub use call::Call;
pub use command::{Command, Operation, Reply};
pub use cron::Cron;
pub use embedded::Embedded;
#[cfg(feature = "redb")]
pub use embedded::{FileOptions, Reserve};
pub use end_watch::EndWatch;
pub use ended::{EndMark, Ended};
pub use error::{Error, ErrorKind};
pub use job::{
    Backoff, Beat, Cancelled, Deadline, Enqueued, Estimate, Job, JobState, Lease, LeaseToken,
    Leased, MissedDeadline, NewJob, Outcome, Progress, Settled, Start,
};
pub use limit::Limit;
pub use name::{Group, JobId, QueueName};
pub use past_attempt::{AttemptEnd, PastAttempt};
pub use queue::Queue;
pub use recurring::{Recurring, Rhythm};
#[cfg(feature = "redis")]
pub use redis::{RedisBackend, RedisSettings};
pub use settings::{QueueSettings, Retention};
pub use stats::{Counts, GroupStats, Stats, Totals};
pub use versions::{Author, Changed, Described, SharedLimit, SharedLimits, TextDigest, Version};
pub use waiting_line::WaitingLine;
pub use worker::{HandlerFn, HandlerFuture, Summary, Task, Worker, handler_fn};

/// The program of the README is compiled and run with the tests.
#[cfg(all(doctest, feature = "redb"))]
#[doc = include_str!("../README.md")]
struct Readme;
