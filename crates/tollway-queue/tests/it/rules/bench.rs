//! Where the rules are tried: a queue on each backend, driven in virtual time.

use tollway_core::Timestamp;
use tollway_queue::{
    Backend, Lease, LeaseToken, NewJob, Outcome, QueueName, QueueSettings, Settled,
};

#[cfg(feature = "redis")]
use tollway_testkit::servers::Engine;

use crate::model::{self, Subject};
use crate::world::{AtMoment as _, START, get, queue};

/// Where a rule is tried.
#[derive(Clone, Copy)]
pub(super) enum At {
    Memory,
    #[cfg(feature = "redb")]
    File,
    #[cfg(feature = "redis")]
    Redis,
    #[cfg(feature = "redis")]
    Valkey,
}

impl At {
    /// Whether it can be tried on this machine: not every one has Valkey.
    pub(super) fn is_available(self) -> bool {
        match self {
            #[cfg(feature = "redis")]
            Self::Valkey => Engine::available().contains(&Engine::Valkey),
            _ => true,
        }
    }

    pub(super) fn open(self) -> Box<dyn Subject> {
        match self {
            Self::Memory => model::in_memory(),
            #[cfg(feature = "redb")]
            Self::File => model::in_a_file(),
            #[cfg(feature = "redis")]
            Self::Redis => crate::redis::on_a_server(Engine::Redis, "rules"),
            #[cfg(feature = "redis")]
            Self::Valkey => crate::redis::on_a_server(Engine::Valkey, "rules"),
        }
    }
}

/// A queue on such a backend.
pub(super) struct Bench {
    subject: Box<dyn Subject>,
    pub(super) name: QueueName,
}

impl Bench {
    pub(super) fn new(at: At, limit: &str) -> Self {
        Self::with(at, QueueSettings::with_limit(limit.parse().expect("a limit")))
    }

    pub(super) fn with(at: At, settings: QueueSettings) -> Self {
        let (subject, name) = (at.open(), queue("q"));
        get(subject.backend().put_queue(&name, settings, START));
        Self { subject, name }
    }

    pub(super) fn queues(&self) -> &dyn Backend {
        self.subject.backend()
    }

    pub(super) fn put(&self, job: NewJob, now: Timestamp) -> u64 {
        get(self.queues().enqueue(&self.name, vec![job], now))[0].id.0
    }

    pub(super) fn lease(&self, now: Timestamp) -> Vec<Lease> {
        get(self.queues().lease(&self.name, 100, "w", now)).leases
    }

    pub(super) fn ids(&self, now: Timestamp) -> Vec<u64> {
        self.lease(now).iter().map(|lease| lease.id.0).collect()
    }

    pub(super) fn next(&self, now: Timestamp) -> Option<Timestamp> {
        get(self.queues().lease(&self.name, 0, "w", now)).next
    }

    pub(super) fn settle(&self, token: LeaseToken, outcome: Outcome, now: Timestamp) -> Settled {
        get(self.queues().settle(&self.name, vec![(token, outcome)], now))[0]
    }
}
