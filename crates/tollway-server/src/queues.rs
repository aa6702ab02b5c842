//! The service's queues: where they live, which there are, and the pushing of their jobs.
//!
//! ```text
//!   open ──> start ──┬── made ──> calls are answered, jobs are pushed
//!                    └── the store is away ──> calls get 503, retried every second ──> made
//! ```
//!
//! After an outage of the store they are made again: it may have come back without its data. So
//! they are when a call finds one of them missing: an outage may be too short to be seen.
//!
//! What the configuration says is offered to the store as that of a file, which takes what is new
//! ([`tollway_queue::Author`]): a service that starts undoes nothing that was changed by calls, nor
//! by other services. A store that this process has for itself was given every text by this one's
//! files: one that is not the last was edited, also if it was given before.

mod pushing;
mod reloading;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use ring::rand::{SecureRandom as _, SystemRandom};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tollway_core::Clock;
use tollway_core::spelling::likely;
use tollway_queue::push::PushTarget;
use tollway_queue::{
    Author, Backend, Changed, Embedded, Error, ErrorKind, Health, Limit, Queue, QueueName,
    QueueSettings, Recurring, RedisBackend, RedisSettings, TextDigest,
};
use tracing::{info, warn};

use self::pushing::Pushing;
use self::reloading::Reloading;
use crate::lease_token::Signer;
use crate::outage::{OF_QUEUES, OutageLog};
use crate::queue_watch::QueueWatch;

/// What the configuration says about queues.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct QueuePlan {
    /// `memory`, `redb:PATH` or the URL of a Redis or Valkey; `None` for memory.
    pub store: Option<String>,
    /// Limits that queues share.
    pub shared: Vec<PlannedLimit>,
    /// The queues.
    pub queues: Vec<PlannedQueue>,
}

/// A limit that queues share, as configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedLimit {
    /// Its name.
    pub name: QueueName,
    /// The limit.
    pub limit: Limit,
    /// What stands for the text that says so.
    pub digest: TextDigest,
}

/// A queue as configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedQueue {
    /// Its name.
    pub name: QueueName,
    /// Its settings.
    pub settings: QueueSettings,
    /// Where its jobs are pushed to, if they are not leased.
    pub push: Option<PushTarget>,
    /// Jobs that it enqueues itself.
    pub recurring: Vec<Recurring>,
    /// What stands for the text that says so.
    pub digest: TextDigest,
}

impl fmt::Debug for QueuePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The store's URL may hold a password.
        f.debug_struct("QueuePlan").field("queues", &self.queues).finish_non_exhaustive()
    }
}

impl QueuePlan {
    /// Whether the service has queues at all.
    pub fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// The kind of store, for logs.
    fn store_name(&self) -> &'static str {
        match self.store.as_deref().unwrap_or("memory") {
            "memory" => "memory",
            place if place.starts_with("redb:") => "redb",
            _ => "redis",
        }
    }

    /// Whether other services may have the same store.
    fn has_shared_store(&self) -> bool {
        self.store_name() == "redis"
    }

    fn queue(&self, name: &QueueName) -> Option<&PlannedQueue> {
        self.queues.iter().find(|planned| planned.name == *name)
    }
}

/// How long a call may take while the store is away: whoever asks over HTTP asks again, and must
/// not be kept for long.
const PATIENCE: Duration = Duration::from_secs(1);

/// How often queues are tried to be made in a store that was away at the start.
const MAKE_AGAIN: Duration = Duration::from_secs(1);

/// Opens the store that `place` names: `memory`, `redb:PATH`, or the URL of a Redis or Valkey,
/// which may be away if `start_without`.
///
/// # Errors
///
/// If it cannot be opened or reached.
pub async fn open_queue_store(
    place: Option<&str>,
    start_without: bool,
) -> Result<Arc<dyn Backend>, Error> {
    Ok(match place.unwrap_or("memory") {
        "memory" => Arc::new(Embedded::memory()),
        place => match place.strip_prefix("redb:") {
            Some(path) => Arc::new(Embedded::open(path)?),
            None => {
                let connection =
                    tollway_redis::Settings { start_without, ..tollway_redis::Settings::default() };
                let (answer_timeout, patience) = (PATIENCE, PATIENCE);
                let settings = RedisSettings {
                    answer_timeout,
                    patience,
                    connection,
                    ..RedisSettings::default()
                };
                Arc::new(RedisBackend::connect(place, settings).await?)
            }
        },
    })
}

/// The service's queues.
#[derive(Clone)]
pub struct Queues {
    backend: Arc<dyn Backend>,
    clock: Arc<dyn Clock>,
    plan: Arc<ArcSwap<QueuePlan>>,
    /// Where what takes longer than a call is done.
    runtime: Handle,
    /// There once the queues are made.
    made: Arc<watch::Sender<Option<Made>>>,
    /// Whether a task is about to make them.
    is_making: Arc<AtomicBool>,
    outages: Arc<OutageLog>,
    /// Failed calls that were told of.
    failed_calls: Arc<AtomicU64>,
    store_name: &'static str,
    /// Whether there is anything to tell of: a store or a queue that was named.
    is_used: Arc<AtomicBool>,
    reloading: Arc<Reloading>,
    pushing: Arc<Pushing>,
    watch: Arc<QueueWatch>,
}

/// What there is once the queues are made.
struct Made {
    secret: [u8; 32],
    signer: Signer,
}

/// Says that a task makes the queues, until it ends in whatever way.
struct MakingGuard(Arc<AtomicBool>);

impl Drop for MakingGuard {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// Tells what came of what a file says, if that is worth a line.
fn tell(what: &str, name: &QueueName, changed: Changed) {
    let version = changed.version.number;
    if changed.taken {
        info!(what, name = name.as_str(), version, "changed by the file");
    } else if !changed.version.is_from_file {
        let remedy = "to have the file's, change its section, or its `revision`";
        warn!(what, name = name.as_str(), version, remedy, "kept as a call has changed it");
    }
}

fn new_secret() -> Result<[u8; 32], Error> {
    let mut secret = [0; 32];
    let no_randomness = |_| Error::new(ErrorKind::Unavailable, "the system gives no randomness");
    SystemRandom::new().fill(&mut secret).map_err(no_randomness)?;
    Ok(secret)
}

impl Queues {
    /// Makes the queues of `plan` in `backend`, or changes those that are there; later, if the
    /// store is away now.
    ///
    /// # Errors
    ///
    /// If a setting is out of bounds, or the backend fails.
    pub async fn start(
        backend: Arc<dyn Backend>,
        clock: Arc<dyn Clock>,
        plan: &QueuePlan,
    ) -> Result<Self, Error> {
        for planned in &plan.queues {
            planned.settings.validate()?;
        }
        let queues = Self {
            backend,
            clock,
            plan: Arc::new(ArcSwap::from_pointee(plan.clone())),
            runtime: Handle::current(),
            made: Arc::new(watch::Sender::new(None)),
            is_making: Arc::default(),
            outages: Arc::new(OutageLog::new(OF_QUEUES)),
            failed_calls: Arc::default(),
            store_name: plan.store_name(),
            is_used: Arc::new(AtomicBool::new(plan.store.is_some() || !plan.is_empty())),
            reloading: Arc::default(),
            pushing: Arc::default(),
            watch: Arc::default(),
        };
        let is_away = || queues.backend.outage().is_some();
        let made = if is_away() { None } else { Some(queues.make().await) };
        match made {
            Some(Ok(())) => {}
            Some(Err(error)) if !(error.is_transient() && is_away()) => return Err(error),
            _ => {
                queues.look_for_outage();
                queues.make_soon();
            }
        }
        Ok(queues)
    }

    /// Has a task make the queues, unless there is one.
    fn make_soon(&self) {
        if !self.is_making.swap(true, Ordering::AcqRel) {
            let guard = MakingGuard(Arc::clone(&self.is_making));
            self.runtime.spawn(self.clone().make_later(guard));
        }
    }

    /// Makes the queues as soon as their store answers.
    async fn make_later(self, _guard: MakingGuard) {
        let mut last = String::new();
        loop {
            let is_lasting = match self.make().await {
                Ok(()) => return,
                Err(error) if error.is_transient() => false,
                // It may be mended in the store. Logged once, not once a second.
                Err(error) if error.to_string() == last => true,
                Err(error) => {
                    tracing::error!(%error, "the queues cannot be made");
                    last = error.to_string();
                    true
                }
            };
            tokio::time::sleep(MAKE_AGAIN).await;
            // Once made, they are made again when a call misses one. Before, no call comes so far.
            if is_lasting && self.made.borrow().is_some() {
                return;
            }
        }
    }

    /// What a call to the queue `name` is told that failed with `error`. A queue of the plan that
    /// the store does not know was lost with its data: it is made again, and the call may be
    /// repeated. Of any other that is not there it is said which are, or how to get one.
    pub(crate) async fn told(&self, name: &QueueName, error: Error) -> Error {
        if error.kind() != ErrorKind::UnknownQueue {
            return error;
        }
        if self.plan.load().queue(name).is_none() {
            let remedy = self.remedy(name).await;
            return Error::new(
                ErrorKind::UnknownQueue,
                format!("there is no queue {name}; {remedy}"),
            );
        }
        self.make_soon();
        let message = format!("the queue {name} was lost with its store's data, and is made again");
        Error::new(ErrorKind::Unavailable, message).caused_by(error)
    }

    /// What to do if there is no queue of this name.
    async fn remedy(&self, name: &QueueName) -> String {
        /// Nobody reads on.
        const LISTED_MAX: usize = 10;
        let Ok(listed) = self.backend.queues().await else {
            return "which there are is not known, because their store does not answer".to_owned();
        };
        let names: Vec<&str> = listed.iter().map(|(name, _)| name.as_str()).collect();
        if names.is_empty() {
            return format!(
                "this service has no queues. To make it, add [[queues]] and name = \"{name}\" to the \
                 configuration, or send PUT /v1/queues/{name}"
            );
        }
        match likely(names.iter().copied(), name.as_str()) {
            Some(likely) => format!("did you mean {likely}?"),
            None if names.len() > LISTED_MAX => format!("GET /v1/queues lists all {}", names.len()),
            None => format!("expected one of {}", names.join(", ")),
        }
    }

    async fn make(&self) -> Result<(), Error> {
        let known = self.made.borrow().as_ref().map(|made| made.secret);
        // A store that has lost its data is given the secret that it had.
        let proposed = known.map_or_else(new_secret, Ok)?;
        let secret = self.backend.secret(proposed).await?;
        if known == Some(secret) && self.are_there().await? {
            return Ok(());
        }
        let plan = self.plan.load_full();
        self.offer(&plan, |_| !plan.has_shared_store()).await?;
        self.made.send_replace(Some(Made { secret, signer: Signer::new(&secret) }));
        Ok(())
    }

    /// Offers the store what the files say; `is_edited` tells of which sections it is known that
    /// they were edited.
    async fn offer(
        &self,
        plan: &QueuePlan,
        is_edited: impl Fn(&TextDigest) -> bool,
    ) -> Result<(), Error> {
        let author = |digest| Author::File { digest, is_edit: is_edited(&digest) };
        for PlannedLimit { name, limit, digest } in &plan.shared {
            let (author, now) = (author(*digest), self.clock.now());
            let changed = self.backend.change_shared(name, *limit, author, now).await?;
            tell("shared limit", name, changed);
        }
        for planned in &plan.queues {
            let queue = self.queue(planned.name.clone());
            let author = author(planned.digest);
            let changed = queue.change(planned.settings.clone(), author).await?;
            tell("queue", &planned.name, changed);
            if changed.taken {
                for recurring in &planned.recurring {
                    queue.put_recurring(recurring.clone()).await?;
                }
            }
        }
        Ok(())
    }

    /// Whether the store has all of them: to put settings again costs it a look at every group.
    async fn are_there(&self) -> Result<bool, Error> {
        let there = self.backend.queues().await?;
        let is_there = |planned: &PlannedQueue| there.iter().any(|(name, _)| *name == planned.name);
        Ok(self.plan.load().queues.iter().all(is_there))
    }

    /// Where they live, for what concerns no queue alone.
    pub(crate) fn backend(&self) -> &dyn Backend {
        &*self.backend
    }

    /// The clock of the queues.
    pub(crate) fn clock(&self) -> &dyn Clock {
        &*self.clock
    }

    /// What the files of this service say of a queue.
    pub(crate) fn planned(&self, name: &QueueName) -> Option<PlannedQueue> {
        self.plan.load().queue(name).cloned()
    }

    /// Whether the files of this service name a shared limit.
    pub(crate) fn plans_limit(&self, name: &QueueName) -> bool {
        self.plan.load().shared.iter().any(|limit| limit.name == *name)
    }

    /// Whether this is the store that `plan` names.
    pub(crate) fn has_store_of(&self, plan: &QueuePlan) -> bool {
        let named = |plan: &QueuePlan| plan.store.clone().unwrap_or_else(|| "memory".to_owned());
        named(&self.plan.load()) == named(plan)
    }

    /// Notes that a queue or limit was named by a call.
    pub(crate) fn note_use(&self) {
        self.is_used.store(true, Ordering::Relaxed);
    }

    /// Whether there is anything to tell of.
    pub(crate) fn is_used(&self) -> bool {
        self.is_used.load(Ordering::Relaxed)
    }

    /// What they have done of late.
    pub(crate) fn watch(&self) -> &QueueWatch {
        &self.watch
    }

    /// How the place is in which they live.
    pub(crate) fn health(&self) -> Health {
        self.backend.health()
    }

    /// The queue of this name, whether there is one or not.
    pub(crate) fn queue(&self, name: QueueName) -> Queue {
        Queue::new(Arc::clone(&self.backend), Arc::clone(&self.clock), name)
    }

    /// Outages of the place in which they live.
    pub(crate) fn outages(&self) -> &OutageLog {
        &self.outages
    }

    /// Looks whether an outage has begun, goes on, or is over, and how many calls have failed.
    pub(crate) fn look_for_outage(&self) {
        let (told, now) = (self.backend.outage(), self.clock.now());
        let failed = self.health().failed_calls;
        let unanswered = failed - self.failed_calls.swap(failed, Ordering::Relaxed).min(failed);
        if unanswered > 0 {
            self.outages.failed(self.store_name, || told.clone(), unanswered, now);
        }
        let was_up = self.outages.is_up();
        self.outages.look(self.store_name, told.as_ref(), now);
        if !was_up && self.outages.is_up() && self.made.borrow().is_some() {
            self.make_soon();
        }
    }

    /// What signs the tokens of leases; an error until the queues are made.
    pub(crate) fn signer(&self) -> Result<Signer, Error> {
        let signer = self.made.borrow().as_ref().map(|made| made.signer.clone());
        signer.ok_or_else(|| {
            let reason = self.backend.outage().map(|told| told.reason);
            let reason = reason.as_deref().unwrap_or("they are about to be made");
            let message = format!("the queues are not available yet: {reason}");
            Error::new(ErrorKind::Unavailable, message)
        })
    }

    /// Every queue, in order of names.
    ///
    /// # Errors
    ///
    /// If the backend fails.
    pub(crate) async fn all(&self) -> Result<Vec<Queue>, Error> {
        let listed = self.backend.queues().await?;
        Ok(listed.into_iter().map(|(name, _)| self.queue(name)).collect())
    }
}

impl fmt::Debug for Queues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Queues")
    }
}
