//! What changed in a credential's budgets, for whoever tells people of it.
//!
//! Plain data in a bounded queue. Whoever drives the budgets takes it out when it suits: nothing
//! here waits or logs, and an answer that changes nothing costs a comparison. Refusals of one
//! bucket that nobody has taken yet are one change with a count, so a storm of them neither fills
//! the queue nor hides the rest.

use std::collections::VecDeque;
use std::time::Duration;

use tollway_core::Timestamp;

use super::Knowledge;
use super::budgets::{Budgets, InFlight};
use super::meter::Meter;
use crate::pace::Outcome;
use crate::profile::{Observation, Route, Scope};

/// Changes that wait to be taken; further ones are counted and dropped.
const CHANGES_MAX: usize = 64;

/// The name of what concerns every request of the credential.
const CREDENTIAL: &str = "*";

/// Something that changed in a credential's budgets.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// When, by the clock of the budgets; the last time, if it happened several times.
    pub at: Timestamp,
    /// The bucket, as [`super::BucketView::id`] names it; `*` is every request of the credential.
    pub bucket: Box<str>,
    /// Method and template of the request whose answer showed it.
    pub route: Box<str>,
    /// What changed.
    pub what: ChangeKind,
    /// How many times it happened since changes were last taken.
    pub count: u32,
}

/// What changed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChangeKind {
    /// A limit is known that was not.
    Learned {
        /// The profile's name of the dimension, or which hidden limit.
        dimension: String,
        /// Units per window.
        limit: u64,
        /// The window, as far as it was seen.
        window: Duration,
    },
    /// The upstream tells no limit: requests go until one is refused.
    Silent,
    /// A limit is another than before.
    LimitChanged {
        /// The profile's name of the dimension, or which hidden limit.
        dimension: String,
        /// Units per window before.
        before: u64,
        /// Units per window now.
        limit: u64,
    },
    /// The upstream refused a request.
    Refused {
        /// Whom the upstream said that it concerns, if it did.
        scope: Option<Scope>,
        /// How long to wait.
        wait: Duration,
    },
    /// No request of the credential goes for so long.
    Blocked {
        /// How long.
        wait: Duration,
    },
    /// A request of the credential was served again.
    Freed {
        /// How long it was blocked.
        after: Duration,
    },
    /// So many changes ([`Change::count`]) were dropped because nobody took them.
    Dropped,
}

/// Changes that nobody has taken yet.
#[derive(Debug, Default)]
pub(super) struct Changes {
    queue: VecDeque<Change>,
    dropped: u32,
    /// Since when the credential is blocked, if that was told.
    blocked_since: Option<Timestamp>,
}

impl Changes {
    fn push(&mut self, change: Change) {
        if let ChangeKind::Refused { scope, wait } = change.what
            && let Some(known) = self.refusal_of(&change.bucket, scope)
        {
            known.at = change.at;
            known.count = known.count.saturating_add(1);
            known.what = ChangeKind::Refused { scope, wait };
        } else if self.queue.len() < CHANGES_MAX {
            self.queue.push_back(change);
        } else {
            self.dropped = self.dropped.saturating_add(1);
        }
    }

    fn refusal_of(&mut self, bucket: &str, of: Option<Scope>) -> Option<&mut Change> {
        let is_it = |change: &&mut Change| {
            let is_refusal =
                matches!(change.what, ChangeKind::Refused { scope, .. } if scope == of);
            is_refusal && *change.bucket == *bucket
        };
        self.queue.iter_mut().rev().find(is_it)
    }

    fn take(&mut self, now: Timestamp) -> Vec<Change> {
        let mut taken: Vec<Change> = self.queue.drain(..).collect();
        let count = std::mem::take(&mut self.dropped);
        if count > 0 {
            let (bucket, route) = (CREDENTIAL.into(), "".into());
            taken.push(Change { at: now, bucket, route, what: ChangeKind::Dropped, count });
        }
        taken
    }
}

impl Budgets {
    /// What changed since this was last called, oldest first; at most a few dozen.
    pub fn take_changes(&mut self, now: Timestamp) -> Vec<Change> {
        self.changes.take(now)
    }

    /// Notes what an answer changed; `knew` is what was known of the bucket before.
    pub(super) fn note_answer(
        &mut self,
        slot: u32,
        knew: Knowledge,
        flight: &InFlight,
        observation: &Observation,
        now: Timestamp,
    ) {
        self.note_limits(slot, knew, &flight.route, now);
        if observation.is_limited() {
            self.note_refusal(slot, &flight.route, observation, now);
        } else if observation.outcome == Outcome::Accepted {
            self.note_freed(flight, now);
        }
    }

    /// What is known of the limit of a bucket.
    pub(super) fn knowledge(&self, slot: u32) -> Knowledge {
        self.table.get(slot).map(|bucket| bucket.knowledge).unwrap_or_default()
    }

    fn note_limits(&mut self, slot: u32, knew: Knowledge, route: &Route, now: Timestamp) {
        let Self { table, account, changes, profile, .. } = self;
        let mut note = |name: &str, what| {
            let (bucket, route) = (name.into(), route.name().into());
            changes.push(Change { at: now, bucket, route, what, count: 1 });
        };
        for bucket in [Some(account), table.get_mut(slot)].into_iter().flatten() {
            let Some(busy) = bucket.busy.as_deref_mut() else { continue };
            for meter in busy.meters.iter_mut().filter(|meter| meter.is_news()) {
                let name = profile.dimension_name(usize::from(meter.dimension), meter.part);
                note(&bucket.name, meter.take_news(name));
            }
            for sub_limit in &mut busy.sub_limits {
                let Some((limit, window, before)) = sub_limit.take_news() else { continue };
                let dimension = format!("hidden limit of {}", sub_limit.label);
                note(
                    &bucket.name,
                    match before {
                        0 => ChangeKind::Learned { dimension, limit, window },
                        before => ChangeKind::LimitChanged { dimension, before, limit },
                    },
                );
            }
        }
        let bucket = table.get(slot);
        let is_silent = |now_known| now_known == Knowledge::Silent && knew == Knowledge::Unknown;
        if let Some(bucket) = bucket.filter(|bucket| is_silent(bucket.knowledge)) {
            note(&bucket.name, ChangeKind::Silent);
        }
    }

    fn note_refusal(&mut self, slot: u32, route: &Route, told: &Observation, now: Timestamp) {
        let Some(bucket) = self.table.get(slot) else { return };
        let is_global = told.concerns() == Scope::Global;
        let of = if is_global { &self.account } else { bucket };
        let wait = of.refusal.as_deref().map_or(Duration::ZERO, |refused| refused.wait);
        let (name, route): (Box<str>, Box<str>) = (bucket.name.clone(), route.name().into());
        let what = ChangeKind::Refused { scope: told.scope, wait };
        self.changes.push(Change { at: now, bucket: name, route: route.clone(), what, count: 1 });
        if is_global && self.changes.blocked_since.is_none() {
            self.changes.blocked_since = Some(now);
            let what = ChangeKind::Blocked { wait };
            self.changes.push(Change { at: now, bucket: CREDENTIAL.into(), route, what, count: 1 });
        }
    }

    /// The credential is free again when a request was served that left after the wait.
    fn note_freed(&mut self, flight: &InFlight, now: Timestamp) {
        let Some(since) = self.changes.blocked_since else { return };
        let until = self.account.refusal.as_deref().map(|refused| refused.blocked_until);
        if until.is_some_and(|until| flight.at < until) {
            return;
        }
        self.changes.blocked_since = None;
        let (bucket, route) = (CREDENTIAL.into(), flight.route.name().into());
        let what = ChangeKind::Freed { after: now.since(since) };
        self.changes.push(Change { at: now, bucket, route, what, count: 1 });
    }
}

impl Meter {
    /// Whether its limit is another than the one that was told of.
    fn is_news(&self) -> bool {
        self.limit != self.noted_limit && !self.is_modelled()
    }

    /// What is to be told of its limit, which then was told.
    fn take_news(&mut self, dimension: String) -> ChangeKind {
        let limit = self.limit;
        match std::mem::replace(&mut self.noted_limit, limit) {
            0 => {
                let window = Duration::from_nanos(self.window_ns);
                ChangeKind::Learned { dimension, limit, window }
            }
            before => ChangeKind::LimitChanged { dimension, before, limit },
        }
    }
}
