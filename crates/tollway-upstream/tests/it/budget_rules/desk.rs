//! Budgets, a clock, and what was let go.

use std::sync::Arc;
use std::time::Duration;

use tollway_core::Timestamp;
use tollway_core::fields::Lines;
use tollway_upstream::budget::{Budgets, Claim, Granted, Refusal, Settings, Ticket, Waiter};
use tollway_upstream::profile::{Observation, Profile, Response};

/// Budgets, a clock, and what was let go.
pub(super) struct Desk {
    pub(super) profile: Arc<Profile>,
    pub(super) budgets: Budgets,
    pub(super) now: Timestamp,
    pub(super) gone: Vec<(Waiter, Ticket)>,
}

pub(super) const EPOCH: Duration = Duration::from_secs(1_794_758_400);

impl Desk {
    pub(super) fn of(profile: Arc<Profile>) -> Self {
        let budgets = Budgets::new(Arc::clone(&profile), Settings::default());
        Self { profile, budgets, now: Timestamp::from_millis(10_000), gone: Vec::new() }
    }

    pub(super) fn discord() -> Self {
        Self::of(Profile::builtin("discord").expect("it is shipped"))
    }

    pub(super) fn claim(&self, method: &str, target: &str) -> Claim {
        Claim::new(self.profile.route(method, target))
    }

    pub(super) fn ask(&mut self, claim: &Claim) -> Result<Granted, Refusal> {
        self.budgets.claim(claim, self.now)
    }

    pub(super) fn get(&mut self, target: &str) -> Granted {
        let claim = self.claim("GET", target);
        self.ask(&claim).expect("there is room")
    }

    /// A request that must be let go at once.
    pub(super) fn go(&mut self, target: &str) -> Ticket {
        let claim = self.claim("GET", target);
        self.go_with(&claim)
    }

    pub(super) fn go_with(&mut self, claim: &Claim) -> Ticket {
        match self.ask(claim) {
            Ok(Granted::Now(ticket)) => ticket,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn wait(&mut self, target: &str) -> Waiter {
        let claim = self.claim("GET", target);
        self.wait_with(&claim)
    }

    pub(super) fn wait_with(&mut self, claim: &Claim) -> Waiter {
        match self.ask(claim) {
            Ok(Granted::Later(waiter)) => waiter,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn answer(&mut self, ticket: Ticket, status: u16, fields: &[(&str, &str)]) {
        let lines: Lines<'_> =
            fields.iter().map(|(name, value)| (*name, value.as_bytes())).collect();
        let response = Response { status, lines: &lines, body: b"", now: EPOCH };
        let observation = self.profile.read(&response);
        self.observe(ticket, &observation);
    }

    pub(super) fn observe(&mut self, ticket: Ticket, observation: &Observation) {
        self.budgets.observe(ticket, observation, self.now);
    }

    /// Those who may go now.
    pub(super) fn look(&mut self) -> Vec<Waiter> {
        let mut gone = Vec::new();
        while let Some((waiter, ticket)) = self.budgets.next(self.now) {
            self.gone.push((waiter, ticket));
            gone.push(waiter);
        }
        gone
    }

    pub(super) fn ticket_of(&self, waiter: Waiter) -> Ticket {
        self.gone.iter().find(|(gone, _)| *gone == waiter).expect("it was let go").1
    }

    pub(super) fn pass(&mut self, millis: u64) {
        self.now = self.now.after(Duration::from_millis(millis));
    }

    /// Milliseconds until it is worthwhile to look again.
    pub(super) fn earliest_ms(&self) -> Option<u128> {
        self.budgets.earliest(self.now).map(|at| at.since(self.now).as_millis())
    }
}

pub(super) fn fields<'a>(
    hash: &'a str,
    limit: &'a str,
    left: &'a str,
    after: &'a str,
) -> [(&'a str, &'a str); 5] {
    [
        ("via", "1.1 google"),
        ("x-ratelimit-bucket", hash),
        ("x-ratelimit-limit", limit),
        ("x-ratelimit-remaining", left),
        ("x-ratelimit-reset-after", after),
    ]
}

pub(super) const MESSAGES: &str = "/api/v10/channels/1/messages";
