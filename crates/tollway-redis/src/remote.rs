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
use tollway_core::{
    Answer, Charge, Grant, Mode, OnExpiry, Outage, Reservation, ReservationId, Reserved,
    Settlement, Snapshot, Store, StoreError, Timestamp, Verdict,
};

use self::round_trip::{CommandCall, round_trip};
use crate::call::CallError;
use crate::connection::{BatchBounds, Batcher, Client, ClientSettings, Dialer, misuse, unknown};
use crate::degraded::{degraded_grant, degraded_verdict};
use crate::encoded_policy::EncodedPolicies;
use crate::local_shares::LocalShares;
use crate::random_ids::RandomIds;
use crate::request::{KeyCharge, Op, Request};
use crate::settings::Settings;
use crate::status::Status;
use crate::{layout, numbers};

/// A Tollway service as the store. Clones share everything.
///
/// ```no_run
/// use std::sync::Arc;
/// use tollway_core::{Charge, Key, Policy, Store, Timestamp};
/// use tollway_redis::{RemoteStore, Settings};
///
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let store = RemoteStore::connect("tollway://127.0.0.1", Settings::default()).await?;
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

struct Inner {
    client: Arc<Client>,
    calls: Batcher<CommandCall>,
    timeout: Duration,
    encoded_policies: EncodedPolicies,
    ids: RandomIds,
    local: LocalShares,
    runtime: Handle,
}

/// The most charges in one request; the service may allow fewer.
const CHARGES_MAX: usize = 256;

impl RemoteStore {
    /// Connects to the service at `url`: `tollway://[:token@]host[:port]`, `tollways://` with
    /// TLS, or `tollway+unix:///path`. The token needs the role `check`, and `admin` for resets.
    ///
    /// Of the settings those count that are about connections, waiting and the service's absence.
    /// One write carries up to eight times [`Settings::batch_max`] requests.
    ///
    /// # Errors
    ///
    /// If the URL does not make sense, the server is no Tollway service, refuses the token or
    /// cannot be reached (unless [`Settings::start_without`]), or there is no tokio runtime.
    pub async fn connect(url: &str, settings: Settings) -> Result<Self, StoreError> {
        let runtime = Handle::try_current()
            .map_err(|error| misuse("the store needs a tokio runtime").caused_by(error))?;
        let timeout = settings.timeout;
        let dialer = Dialer::to_service(url, &settings)?;
        let client_settings = ClientSettings::new(timeout, &settings);
        let client = Client::start(dialer, client_settings, settings.start_without).await?;
        // 512 by default: the service decides one write as one batch, whatever its size.
        let calls_max = settings.batch_max.saturating_mul(8);
        let bounds = BatchBounds::within(timeout, calls_max, &settings);
        let weak = Arc::downgrade(&client);
        let run = move |calls| weak.upgrade().map(|client| round_trip(client, calls));
        let calls = Batcher::start(&runtime, bounds, |_| 0, run);
        let (encoded_policies, ids) = (EncodedPolicies::default(), RandomIds::new());
        let local = LocalShares::new(settings.local_keys_max);
        let inner = Inner { client, calls, timeout, encoded_policies, ids, local, runtime };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// How the store is.
    pub fn status(&self) -> Status {
        Status::default().with(&self.inner.client)
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
            let reply = inner.ask(command).await.map_err(|failure| failure.error)?;
            reply::snapshot(&reply).ok_or_else(strange_reply)
        })
    }

    fn reset(&self, charge: &Charge<'_>, _now: Timestamp) -> Answer<()> {
        let mut command = redis::cmd("TOLL.RESET");
        command.arg(charge.policy.name()).arg(charge.key.as_bytes());
        self.later(|inner| async move {
            inner.ask(command).await.map(|_| ()).map_err(|failure| failure.error)
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
        self.inner.client.outage().told()
    }
}

impl Inner {
    /// What the policies need to answer in place of the service.
    fn request(&self, op: Op, charges: &[Charge<'_>]) -> Request {
        let part = |charge: &Charge<'_>| KeyCharge {
            key: layout::state_key(
                "",
                numbers::family(charge.policy),
                charge.key.as_bytes(),
                false,
            ),
            encoded: self.encoded_policies.of(charge.policy),
            units: charge.cost.get(),
            mode: charge.mode,
            on_store_error: charge.policy.store_error(),
            returns: charge.policy.reservation_terms().on_expiry == OnExpiry::Return,
            place: 0,
            carried: None,
            shared: None,
        };
        Request { op, id: self.ids.next(), parts: charges.iter().map(part).collect() }
    }

    async fn verdict(
        self: Arc<Self>,
        request: Request,
        command: Cmd,
    ) -> Result<Verdict, StoreError> {
        match self.ask(command).await {
            Ok(reply) => reply::verdict(&reply, &request.policies()).ok_or_else(strange_reply),
            Err(failure) => self.degrade(&request, failure),
        }
    }

    async fn take(self: Arc<Self>, request: Request, command: Cmd) -> Result<Grant, StoreError> {
        match self.ask(command).await {
            Ok(reply) => reply::grant(&reply).ok_or_else(strange_reply),
            Err(failure) => {
                degraded_grant(&request, &self.local, failure, self.client.outage().lasted())
            }
        }
    }

    async fn reserve(
        self: Arc<Self>,
        request: Request,
        command: Cmd,
    ) -> Result<Reserved, StoreError> {
        let verdict = match self.ask(command).await {
            Ok(reply) => {
                return reply::reserved(&reply, &request.policies()).ok_or_else(strange_reply);
            }
            Err(failure) => self.degrade(&request, failure)?,
        };
        let Op::Reserve { expires_after, .. } = request.op else { return Err(strange_reply()) };
        // Whoever settles it learns that the service does not know it.
        let id = ReservationId(request.id);
        let reservation = verdict.is_allowed().then_some(Reservation { id, expires_after });
        Ok(Reserved { verdict, reservation })
    }

    async fn settle(&self, command: Cmd) -> Result<Settlement, StoreError> {
        let reply = self.ask(command).await.map_err(|failure| failure.error)?;
        reply::settlement(&reply).ok_or_else(strange_reply)
    }

    fn degrade(&self, request: &Request, failure: CallError) -> Result<Verdict, StoreError> {
        degraded_verdict(request, &self.local, failure, self.client.outage().lasted())
    }
}

fn strange_reply() -> StoreError {
    unknown("the service gave an answer that does not fit the question")
}

impl std::fmt::Debug for RemoteStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RemoteStore").field("status", &self.status()).finish_non_exhaustive()
    }
}
