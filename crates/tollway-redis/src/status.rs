//! How the store is: which servers answer, and what went over their connections.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::line::Line;
use crate::router::Router;

/// How the store is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Servers that requests go to.
    pub servers: usize,
    /// Those of them that answer.
    pub servers_up: usize,
    /// How long the longest outage of a server has lasted; zero if there is none.
    pub outage: Duration,
    /// Requests sent since the store was made.
    pub requests: u64,
    /// Commands sent for them.
    pub commands: u64,
    /// Round trips in which they were sent.
    pub round_trips: u64,
    /// Requests that failed and were answered by their policies.
    pub failures: u64,
}

impl Status {
    pub(crate) fn of(router: &Router) -> Self {
        let links = router.links();
        let status = links.iter().fold(Self::default(), |status, link| status.with(link));
        Self { outage: router.outage().map_or(Duration::ZERO, |outage| outage.lasted), ..status }
    }

    pub(crate) fn with(self, link: &Line) -> Self {
        let traffic = &link.traffic;
        Self {
            servers: self.servers + 1,
            servers_up: self.servers_up + usize::from(link.is_up()),
            outage: self.outage.max(link.outage.lasted()),
            requests: self.requests + traffic.requests.load(Ordering::Relaxed),
            commands: self.commands + traffic.commands.load(Ordering::Relaxed),
            round_trips: self.round_trips + traffic.round_trips.load(Ordering::Relaxed),
            failures: self.failures + traffic.failures.load(Ordering::Relaxed),
        }
    }
}
