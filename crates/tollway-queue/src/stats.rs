//! What a queue reports about itself and its groups.

use tollway_core::Timestamp;

use crate::Group;

/// What a queue reports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// The queue as a whole.
    pub queue: Counts,
    /// Whether the queue is paused.
    pub paused: bool,
    /// Groups that there is something to remember of.
    pub groups_total: u64,
    /// Dead letters that are kept.
    pub dead: u64,
    /// Jobs that are done and kept.
    pub done: u64,
    /// What happened since the queue was made.
    pub totals: Totals,
    /// When the oldest job that waits was enqueued. On Redis that is the oldest among the first
    /// jobs of the groups whose turn comes next, [`Stats::OLDEST_AMONG`] at most.
    pub oldest: Option<Timestamp>,
    /// When the next job starts by time alone; see [`crate::Leased::next`].
    pub next: Option<Timestamp>,
    /// A page of groups, in order of their names.
    pub groups: Vec<GroupStats>,
    /// Where the next page starts: pass it as `after`. `None` on the last page.
    pub after: Option<Group>,
}

impl Stats {
    /// Among how many groups Redis looks for the oldest job.
    pub const OLDEST_AMONG: usize = 128;
}

/// How many jobs are where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Jobs that wait for their limit or for a worker.
    pub waiting: u64,
    /// Jobs whose time has not come.
    pub delayed: u64,
    /// Jobs with a worker.
    pub running: u64,
}

/// What happened since the queue was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Jobs enqueued.
    pub enqueued: u64,
    /// Leases granted.
    pub leased: u64,
    /// Jobs done.
    pub done: u64,
    /// Attempts that failed.
    pub failed: u64,
    /// Attempts that the upstream refused for its limit.
    pub limited: u64,
    /// Leases that expired.
    pub expired: u64,
    /// Jobs that failed for good.
    pub dead: u64,
    /// Jobs cancelled.
    pub cancelled: u64,
    /// Jobs that could not start before their deadline.
    pub missed: u64,
}

/// What one group reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupStats {
    /// Which.
    pub group: Group,
    /// Its jobs.
    pub counts: Counts,
    /// Whether it is paused.
    pub paused: bool,
    /// Until when it waits because the upstream said so.
    pub blocked_until: Option<Timestamp>,
    /// When its next job may start; `None` if that is not known.
    pub next: Option<Timestamp>,
}
