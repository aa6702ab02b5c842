//! A Tollway service as the store: light here, decided there.
//!
//! ```text
//!   charges ─> TOLL.* commands ─> queue ─> one write of all that wait ─> service
//!                                                                          │
//!   verdict <── policies, if the service fails <────────── replies, in order
//! ```
//!
//! Many callers share one connection; what is asked while answers are on their way goes together
//! in the next write, which the service decides as one batch. Timeouts, reconnecting, the circuit
//! breaker and what policies answer without their store are those of
//! [`RedisStore`](crate::RedisStore).
//!
//! **Policies are named on both sides, and the service's count.** A charge goes by the name of its
//! policy; limits, lists, shadow mode and keys with quotas of their own are the service's, so that
//! they change in one place. Of the caller's policy only `on_store_error` is looked at, and its
//! quota for a `Local` share. A name that the service does not know is a mistake, not an outage:
//! the answer is an error of kind `Misuse`, whatever `on_store_error` says, and nothing is taken.
//!
//! Deliberately absent: the caller's clock (the service has one); several addresses (a name or a
//! balancer stands for a fleet); sending again after a lost connection, which could charge twice.

mod reply;
mod round_trip;

use std::sync::Arc;
use std::time::Duration;

use redis::Cmd;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tollway_core::{
    Answer, Charge, Grant, Mode, OnExpiry, Outage, Reservation, ReservationId, Reserved,
    Settlement, Snapshot, Store, StoreError, Timestamp, Verdict, explained,
};

use self::round_trip::{Job, fly};
use crate::address::{misuse, service};
use crate::dial::Dial;
use crate::encoded_policy::KnownTerms;
use crate::failure::{Absence, degraded_grant, degraded_verdict};
use crate::job::{Trouble, unknown};
use crate::layout;
use crate::line::{Bounds, Line, drive};
use crate::local::LocalShares;
use crate::names::Names;
use crate::request::{Op, Part, Request};
use crate::settings::{Certificates, Settings};
use crate::status::Status;

/// A Tollway service as the store. Clones share everything.
///
/// ```no_run
/// use std::sync::Arc;
/// use tollway_core::{Charge, Key, Policy, Store, Timestamp};
/// use tollway_redis::{RemoteSettings, RemoteStore};
///
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let store = RemoteStore::connect("tollway://127.0.0.1", RemoteSettings::default()).await?;
/// let policy = Policy::parse("example", "100/1m")?;
/// // The time and the numbers are the service's own.
/// let verdict = store.check(&[Charge::new(&policy, Key::new("alice")?)], Timestamp::MIN).await?;
/// assert!(verdict.is_allowed());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct RemoteStore {
    inner: Arc<Inner>,
}

/// Bounds and times of a [`RemoteStore`]. Everything has a default; all of it is a hard bound.
#[derive(Clone, Debug)]
pub struct RemoteSettings {
    /// How long a call may take, from the question to the answer.
    pub timeout: Duration,
    /// How long connecting may take, and a probe of a service that did not answer.
    pub connect_timeout: Duration,
    /// The longest pause between two attempts to reconnect; the first is a hundredth of it.
    pub backoff_max: Duration,
    /// The most writes under way at once. What is asked meanwhile goes with the next.
    pub in_flight_max: usize,
    /// The most requests in one write.
    pub pipeline_max: usize,
    /// The most requests that wait; more are answered as if the service were gone.
    pub queue_max: usize,
    /// The most keys for which a policy with `Local` shares keeps a state while the service is
    /// gone.
    pub local_keys_max: usize,
    /// Whether to start although the service cannot be reached: its policies answer until it can.
    /// What waiting does not mend is an error all the same; see [`Settings::start_without`].
    pub start_without: bool,
    /// Certificates for `tollways://`; by default those of the system and no client certificate.
    pub certificates: Certificates,
}

impl Default for RemoteSettings {
    fn default() -> Self {
        let Settings {
            timeout,
            connect_timeout,
            backoff_max,
            in_flight_max,
            queue_max,
            local_keys_max,
            start_without,
            certificates,
            ..
        } = Settings::default();
        Self {
            timeout,
            connect_timeout,
            backoff_max,
            in_flight_max,
            pipeline_max: 512,
            queue_max,
            local_keys_max,
            start_without,
            certificates,
        }
    }
}

struct Inner {
    line: Arc<Line>,
    jobs: mpsc::Sender<Job>,
    terms: KnownTerms,
    names: Names,
    local: LocalShares,
    runtime: Handle,
}

/// The most charges in one request; the service may allow fewer.
const CHARGES_MAX: usize = 256;

impl RemoteStore {
    /// Connects to the service at `url`: `tollway://[:token@]host[:port]`, `tollways://` with
    /// TLS, or `tollway+unix:///path`. The token needs the role `check`, and `admin` for resets.
    ///
    /// # Errors
    ///
    /// If the URL does not make sense, the server is no Tollway service, refuses the token or
    /// cannot be reached (unless [`RemoteSettings::start_without`]), or there is no tokio runtime.
    pub async fn connect(url: &str, settings: RemoteSettings) -> Result<Self, StoreError> {
        let runtime = Handle::try_current()
            .map_err(|error| misuse("the store needs a tokio runtime").caused_by(error))?;
        let dial = Dial::Service(service(url)?);
        let (local, pipeline_max) = (settings.local_keys_max, settings.pipeline_max);
        let settings = Arc::new(shared_settings(settings));
        let connection = dial.connect(&settings).await;
        let line = Line::new(dial, Arc::clone(&settings));
        match connection {
            Ok(connection) => line.up(connection),
            Err(error) if settings.start_without && error.is_transient() => {
                line.probe(&explained(&error));
            }
            Err(error) => return Err(error),
        }
        let (jobs, queue) = mpsc::channel(settings.queue_max.max(1));
        let weak = Arc::downgrade(&line);
        let board = move |jobs| weak.upgrade().map(|line| async move { fly(&line, jobs).await });
        let (in_flight_max, timeout) = (settings.in_flight_max, settings.timeout);
        let bounds = Bounds { in_flight_max, gather_max: pipeline_max, timeout };
        tokio::spawn(drive(bounds, queue, board));
        let (terms, names) = (KnownTerms::default(), Names::new());
        let local = LocalShares::new(local);
        Ok(Self { inner: Arc::new(Inner { line, jobs, terms, names, local, runtime }) })
    }

    /// How the store is.
    #[must_use]
    pub fn status(&self) -> Status {
        Status::default().with(&self.inner.line)
    }

    /// The answer that `ask` will give.
    fn later<T, F>(&self, ask: impl FnOnce(Arc<Inner>) -> F) -> Answer<T>
    where
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        Answer::pending(ask(Arc::clone(&self.inner)))
    }

    /// The answer that `ask` will give to a request of charges, or why there is no request.
    fn pending<T, F>(
        &self,
        (op, command): (Op, &str),
        charges: &[Charge<'_>],
        ask: impl FnOnce(Arc<Inner>, Request, Cmd) -> F,
    ) -> Answer<T>
    where
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        if charges.len() > CHARGES_MAX {
            return Answer::Ready(Err(misuse("a request has at most 256 charges")));
        }
        let request = self.inner.request(op, charges);
        let command = command_of(command, charges);
        self.later(|inner| ask(inner, request, command))
    }
}

fn shared_settings(settings: RemoteSettings) -> Settings {
    Settings {
        timeout: settings.timeout,
        connect_timeout: settings.connect_timeout,
        backoff_max: settings.backoff_max,
        in_flight_max: settings.in_flight_max,
        queue_max: settings.queue_max,
        local_keys_max: settings.local_keys_max,
        start_without: settings.start_without,
        certificates: settings.certificates,
        ..Settings::default()
    }
}

/// `name policy key COST n [COUNT] … NANOS`.
fn command_of(name: &str, charges: &[Charge<'_>]) -> Cmd {
    let mut command = redis::cmd(name);
    for charge in charges {
        command.arg(charge.policy.name()).arg(charge.key.as_bytes());
        command.arg("COST").arg(charge.cost.get());
        if charge.mode == Mode::Count {
            command.arg("COUNT");
        }
    }
    command.arg("NANOS");
    command
}

fn settle_command(name: &str, id: ReservationId, costs: &[u64]) -> Cmd {
    let mut command = redis::cmd(name);
    command.arg(format!("{:032x}", id.0));
    costs.iter().for_each(|cost| {
        command.arg(*cost);
    });
    command
}

impl Store for RemoteStore {
    fn check(&self, charges: &[Charge<'_>], _now: Timestamp) -> Answer<Verdict> {
        if charges.is_empty() {
            return Answer::Ready(Ok(Verdict::new(Vec::new())));
        }
        self.pending((Op::Check, "TOLL.CHECK"), charges, Inner::verdict)
    }

    fn peek(&self, charges: &[Charge<'_>], _now: Timestamp) -> Answer<Verdict> {
        if charges.is_empty() {
            return Answer::Ready(Ok(Verdict::new(Vec::new())));
        }
        self.pending((Op::Peek, "TOLL.PEEK"), charges, Inner::verdict)
    }

    fn take(&self, charge: &Charge<'_>, _now: Timestamp) -> Answer<Grant> {
        self.pending((Op::Take, "TOLL.TAKE"), std::slice::from_ref(charge), Inner::take)
    }

    fn refund(&self, charge: &Charge<'_>, _now: Timestamp) -> Answer<Snapshot> {
        let charge = Charge { mode: Mode::Enforce, ..*charge };
        let command = command_of("TOLL.REFUND", &[charge]);
        self.later(|inner| async move {
            let reply = inner.ask(command).await.map_err(|trouble| trouble.error)?;
            reply::snapshot(&reply).ok_or_else(strange_reply)
        })
    }

    fn reset(&self, charge: &Charge<'_>, _now: Timestamp) -> Answer<()> {
        let mut command = redis::cmd("TOLL.RESET");
        command.arg(charge.policy.name()).arg(charge.key.as_bytes());
        self.later(|inner| async move {
            inner.ask(command).await.map(|_| ()).map_err(|trouble| trouble.error)
        })
    }

    fn reserve(&self, charges: &[Charge<'_>], _now: Timestamp) -> Answer<Reserved> {
        if charges.is_empty() {
            let verdict = Verdict::new(Vec::new());
            return Answer::Ready(Ok(Reserved { verdict, reservation: None }));
        }
        let ttl = charges.iter().map(|charge| charge.policy.reservation_terms().ttl).min();
        let op = Op::Reserve { expires_after: ttl.unwrap_or_default(), slots: Vec::new() };
        self.pending((op, "TOLL.RESERVE"), charges, Inner::reserve)
    }

    fn commit(
        &self,
        reservation: ReservationId,
        costs: &[u64],
        _now: Timestamp,
    ) -> Answer<Settlement> {
        let command = settle_command("TOLL.COMMIT", reservation, costs);
        self.later(|inner| async move { inner.settle(command).await })
    }

    fn cancel(&self, reservation: ReservationId, _now: Timestamp) -> Answer<Settlement> {
        let command = settle_command("TOLL.CANCEL", reservation, &[]);
        self.later(|inner| async move { inner.settle(command).await })
    }

    fn release(&self, reservation: ReservationId, _now: Timestamp) {
        let (inner, runtime) = (Arc::clone(&self.inner), self.inner.runtime.clone());
        runtime.spawn(async move {
            // A release that is lost is made good when the reservation expires.
            let _ = inner.settle(settle_command("TOLL.CANCEL", reservation, &[])).await;
        });
    }

    fn outage(&self) -> Option<Outage> {
        self.inner.line.outage.told()
    }
}

impl Inner {
    /// What the policies need to answer in place of the service.
    fn request(&self, op: Op, charges: &[Charge<'_>]) -> Request {
        let part = |charge: &Charge<'_>| Part {
            key: layout::state_key("", charge.policy.id(), charge.key.as_bytes(), false),
            terms: self.terms.of(charge.policy),
            units: charge.cost.get(),
            mode: charge.mode,
            on_store_error: charge.policy.store_error(),
            returns: charge.policy.reservation_terms().on_expiry == OnExpiry::Return,
            place: 0,
        };
        Request { op, id: self.names.next(), parts: charges.iter().map(part).collect() }
    }

    async fn verdict(
        self: Arc<Self>,
        request: Request,
        command: Cmd,
    ) -> Result<Verdict, StoreError> {
        match self.ask(command).await {
            Ok(reply) => reply::verdict(&reply, request.parts.len()).ok_or_else(strange_reply),
            Err(trouble) => self.degrade(&request, trouble),
        }
    }

    async fn take(self: Arc<Self>, request: Request, command: Cmd) -> Result<Grant, StoreError> {
        match self.ask(command).await {
            Ok(reply) => reply::grant(&reply).ok_or_else(strange_reply),
            Err(trouble) if trouble.degrades => {
                Ok(degraded_grant(&request, &self.local, self.absence(&trouble)))
            }
            Err(trouble) => Err(trouble.error),
        }
    }

    async fn reserve(
        self: Arc<Self>,
        request: Request,
        command: Cmd,
    ) -> Result<Reserved, StoreError> {
        let verdict = match self.ask(command).await {
            Ok(reply) => {
                return reply::reserved(&reply, request.parts.len()).ok_or_else(strange_reply);
            }
            Err(trouble) => self.degrade(&request, trouble)?,
        };
        let Op::Reserve { expires_after, .. } = request.op else { return Err(strange_reply()) };
        // Whoever settles it learns that the service does not know it.
        let id = ReservationId(request.id);
        let reservation = verdict.is_allowed().then_some(Reservation { id, expires_after });
        Ok(Reserved { verdict, reservation })
    }

    async fn settle(&self, command: Cmd) -> Result<Settlement, StoreError> {
        let reply = self.ask(command).await.map_err(|trouble| trouble.error)?;
        reply::settlement(&reply).ok_or_else(strange_reply)
    }

    fn degrade(&self, request: &Request, trouble: Trouble) -> Result<Verdict, StoreError> {
        if !trouble.degrades {
            return Err(trouble.error);
        }
        Ok(degraded_verdict(request, &self.local, self.absence(&trouble)))
    }

    fn absence(&self, trouble: &Trouble) -> Absence {
        Absence { kind: trouble.error.kind(), lasted: self.line.outage.lasted() }
    }
}

fn strange_reply() -> StoreError {
    unknown("the service answered something else than was asked")
}

impl std::fmt::Debug for RemoteStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RemoteStore").field("status", &self.status()).finish_non_exhaustive()
    }
}
