//! How the store is: which servers answer, and what went over their connections.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::connection::Client;
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
    /// How often a calendar window was found that a process with other rules for its time zone has
    /// opened: by the rules here it ends at another moment. It counts until the end that it has.
    pub windows_by_other_rules: u64,
}

impl Status {
    pub(crate) fn of(router: &Router) -> Self {
        let nodes = router.nodes();
        let status = nodes.iter().fold(Self::default(), |status, node| status.with(&node.client));
        Self { outage: router.outage().map_or(Duration::ZERO, |outage| outage.lasted), ..status }
    }

    pub(crate) fn with(self, client: &Client) -> Self {
        let traffic = client.traffic();
        Self {
            servers: self.servers + 1,
            servers_up: self.servers_up + usize::from(client.is_up()),
            outage: self.outage.max(client.outage().lasted()),
            requests: self.requests + traffic.requests.load(Ordering::Relaxed),
            commands: self.commands + traffic.commands.load(Ordering::Relaxed),
            round_trips: self.round_trips + traffic.round_trips.load(Ordering::Relaxed),
            failures: self.failures + client.failures().load(Ordering::Relaxed),
            ..self
        }
    }
}
