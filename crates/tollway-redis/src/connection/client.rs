//! One connection to one server: whether it is up, how it comes back, and what is sent on it.
//!
//! **Circuit breaker.** A server that broke the connection or let the time of a command run out is
//! *down*: calls for it fail in microseconds, and a task of the client's own dials it with growing
//! pauses until it answers. That task outlives every caller: of several sentinels or seeds the
//! first may take longer to not answer than anybody waits, and the next is asked after that.
//!
//! **Idle servers** are asked whether they are there, so that an idle process knows of the
//! beginning and the end of an outage too.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, PushInfo, RedisError, Value};
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::Instant;
use tollway_core::StoreError;

use super::dial::Dialer;
use super::failure::{Failure, FailureKind};
use super::outage::{OutageRecord, Proof};
use super::reconnecting::State;
use super::script::Script;

/// How a client keeps its connection, and what answers say of the server.
#[derive(Clone, Debug)]
pub struct ClientSettings {
    /// How long one answer may take.
    pub timeout: Duration,
    /// The longest pause between two attempts to connect; the first is a hundredth of it. A server
    /// that nobody has asked for so long is probed.
    pub backoff_max: Duration,
    /// Whether commands wait for a connection if there is none; otherwise they fail at once.
    pub waits_for_connection: bool,
    /// How an idle server is probed. `None` connects when somebody asks and not before, and probes
    /// nothing: for connections on which commands block.
    pub probe: Option<Probe>,
    /// What a new connection proves.
    pub connection_proves: Proof,
    /// What the answer to a command proves.
    pub answer_proves: Proof,
    /// Whether a server whose memory is full is well: whoever reads is answered, and whoever writes
    /// is told. A limiter cannot do without writes, a queue goes on with the jobs that it has.
    pub may_be_full: bool,
    /// Channels, by patterns, to which every connection subscribes before anything else is sent on
    /// it, and where their messages go.
    pub subscription: Option<(Vec<String>, mpsc::UnboundedSender<PushInfo>)>,
    /// Counts the commands without an answer; several clients may share it.
    pub failures: Arc<AtomicU64>,
}

/// How an idle server is probed.
#[derive(Clone, Debug)]
pub enum Probe {
    /// Any answer to `PING` shows that it is there.
    Ping,
    /// The removal of this key, which is never there, shows that it takes writes.
    Write(Vec<u8>),
}

/// One connection to one server, made anew whenever it breaks.
#[derive(Debug)]
pub struct Client {
    pub(super) dialer: Dialer,
    pub(super) settings: ClientSettings,
    outage: OutageRecord,
    traffic: Traffic,
    pub(super) state: watch::Sender<State>,
    /// Whether there is a connection: every call looks, and none shall wait for a lock to do so.
    pub(super) is_up: AtomicBool,
    /// Ends the pause before the next attempt to connect.
    pub(super) wanted: Arc<Notify>,
}

/// A connection and its number.
pub(crate) type Connected = (MultiplexedConnection, u64);

/// What went over one connection and those before it.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) requests: AtomicU64,
    pub(crate) commands: AtomicU64,
    pub(crate) round_trips: AtomicU64,
}

impl Traffic {
    /// Notes a round trip that carries so many requests in so many commands.
    pub(crate) fn sent(&self, requests: usize, commands: usize) {
        self.requests.fetch_add(requests as u64, Ordering::Relaxed);
        self.commands.fetch_add(commands as u64, Ordering::Relaxed);
        self.round_trips.fetch_add(1, Ordering::Relaxed);
    }
}

impl ClientSettings {
    /// Times as a store's settings have them; `PING` as the probe, and answers that prove nothing
    /// but that the server decides.
    pub fn new(timeout: Duration, store: &crate::Settings) -> Self {
        Self {
            timeout,
            backoff_max: store.backoff_max,
            waits_for_connection: false,
            probe: Some(Probe::Ping),
            connection_proves: Proof::Alive,
            answer_proves: Proof::Read,
            may_be_full: false,
            subscription: None,
            failures: Arc::default(),
        }
    }
}

impl Client {
    /// Connects; `start_without`, later if the server cannot be reached now.
    ///
    /// # Errors
    ///
    /// If it cannot be reached and that is not allowed, or if waiting does not mend what is wrong.
    pub async fn start(
        dialer: Dialer,
        settings: ClientSettings,
        start_without: bool,
    ) -> Result<Arc<Self>, StoreError> {
        let client = Self::new(dialer, settings);
        match client.dial().await {
            Err(error) if !(start_without && error.is_transient()) => return Err(error),
            _ => {}
        }
        client.keep_connected(&Handle::current());
        Ok(client)
    }

    /// Connects if the server can be reached now, and later otherwise.
    pub(crate) async fn join(dialer: Dialer, settings: ClientSettings) -> Arc<Self> {
        let client = Self::new(dialer, settings);
        // What went wrong is in the record of outages, and tried again.
        let _ = client.dial().await;
        client.keep_connected(&Handle::current());
        client
    }

    /// Connects on `runtime` when the first command is sent, and not before.
    pub fn on_demand(runtime: &Handle, dialer: Dialer, settings: ClientSettings) -> Arc<Self> {
        // A probe would connect though nobody has asked anything.
        let client = Self::new(dialer, ClientSettings { probe: None, ..settings });
        client.keep_connected(runtime);
        client
    }

    fn new(dialer: Dialer, settings: ClientSettings) -> Arc<Self> {
        let (outage, traffic, state) = Default::default();
        let (is_up, wanted) = Default::default();
        Arc::new(Self { dialer, settings, outage, traffic, state, is_up, wanted })
    }

    /// Whether there is a connection.
    pub fn is_up(&self) -> bool {
        self.is_up.load(Ordering::Acquire)
    }

    /// Since when the server has been failing, and why.
    pub const fn outage(&self) -> &OutageRecord {
        &self.outage
    }

    pub(crate) const fn dialer(&self) -> &Dialer {
        &self.dialer
    }

    pub(crate) const fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    /// Commands and requests without an answer.
    pub(crate) fn failures(&self) -> &AtomicU64 {
        &self.settings.failures
    }

    /// Runs a script: by its hash, and with its source where the server does not know the hash.
    ///
    /// # Errors
    ///
    /// If there is no answer within the timeout, or it is an error.
    pub async fn run<K, A>(
        &self,
        script: &Script,
        keys: &[K],
        arguments: &[A],
    ) -> Result<Value, Failure>
    where
        K: AsRef<[u8]>,
        A: AsRef<[u8]>,
    {
        self.run_until(script, keys, arguments, self.deadline()).await
    }

    /// As [`Self::run`], and waits for the answer until then.
    ///
    /// # Errors
    ///
    /// As [`Self::run`].
    pub async fn run_until<K, A>(
        &self,
        script: &Script,
        keys: &[K],
        arguments: &[A],
        until: Instant,
    ) -> Result<Value, Failure>
    where
        K: AsRef<[u8]>,
        A: AsRef<[u8]>,
    {
        match self.send_until(&script.command(false, keys, arguments), until).await {
            // Nothing has run, so nothing runs twice: the server was restarted or told to forget.
            Err(failure) if failure.kind() == FailureKind::NoScript => {
                self.send_until(&script.command(true, keys, arguments), until).await
            }
            answer => answer,
        }
    }

    /// Sends a command.
    ///
    /// # Errors
    ///
    /// If there is no answer within the timeout, or it is an error.
    pub async fn send(&self, command: &Cmd) -> Result<Value, Failure> {
        self.send_until(command, self.deadline()).await
    }

    /// As [`Self::send`], and waits for the answer until then.
    ///
    /// # Errors
    ///
    /// As [`Self::send`].
    ///
    /// # Cancel safety
    ///
    /// Whoever stops waiting does not stop the connecting.
    pub async fn send_until(&self, command: &Cmd, until: Instant) -> Result<Value, Failure> {
        let began = Instant::now();
        self.traffic.sent(1, 1);
        let answer = match self.connected(until).await {
            Ok(connected) => self.exchange(connected, command, until).await,
            Err(failure) => Err(failure),
        };
        self.noted(began, answer)
    }

    /// Sends commands together.
    ///
    /// # Errors
    ///
    /// If there is no answer within the timeout, or one of them is an error.
    pub async fn send_all(&self, pipeline: &Pipeline) -> Result<Value, Failure> {
        let (began, until) = (Instant::now(), self.deadline());
        self.traffic.sent(1, pipeline.len());
        let answer = match self.connected(until).await {
            Ok((mut connection, number)) => {
                self.judged(number, until, pipeline.query_async(&mut connection)).await
            }
            Err(failure) => Err(failure),
        };
        self.noted(began, answer)
    }

    /// Sends commands together, for callers who note by themselves what each answer says of the
    /// server.
    pub(crate) async fn round_trip(
        &self,
        (connection, number): &mut Connected,
        pipeline: &Pipeline,
    ) -> Result<Vec<Value>, Failure> {
        let sent = connection.send_packed_commands(pipeline, 0, pipeline.len());
        self.judged(*number, self.deadline(), sent).await
    }

    /// The connection and its number.
    pub(crate) fn current(&self) -> Result<Connected, Failure> {
        let state = self.state.borrow();
        let connection = state.connection.clone();
        let down = || Failure::away("the store is down; it is being probed");
        connection.map(|connection| (connection, state.number)).ok_or_else(down)
    }

    /// Stops using the connection because of a failure after which it is kept otherwise: the next
    /// one may lead to another server. A server that refuses writes still answers those who read,
    /// but whoever only writes may look for the one that has replaced it.
    pub fn leave(&self, failure: &Failure) {
        let number = self.state.borrow().number;
        self.down(number, &failure.to_string());
    }

    fn deadline(&self) -> Instant {
        Instant::now() + self.settings.timeout
    }

    pub(super) async fn exchange(
        &self,
        (mut connection, number): Connected,
        command: &Cmd,
        until: Instant,
    ) -> Result<Value, Failure> {
        let sent = async { connection.send_packed_command(command).await?.extract_error() };
        self.judged(number, until, sent).await
    }

    /// What came of what was sent. A connection that does not answer, or leads to the wrong server,
    /// is not used again.
    async fn judged<T>(
        &self,
        number: u64,
        until: Instant,
        sent: impl Future<Output = Result<T, RedisError>>,
    ) -> Result<T, Failure> {
        let answer = match tokio::time::timeout_at(until, sent).await {
            Ok(answer) => answer.map_err(Failure::of),
            // Lost and not away: it may have been carried out, and only callers know whether what
            // they sent may be sent again.
            Err(_) => Err(Failure::lost("the store did not answer in time")),
        };
        if let Err(failure) = &answer
            && failure.spoils_connection()
        {
            self.down(number, &failure.to_string());
        }
        answer
    }

    /// Notes what an answer to a command that was sent at `began` says of the server.
    fn noted(&self, began: Instant, answer: Result<Value, Failure>) -> Result<Value, Failure> {
        match &answer {
            Ok(_) => self.outage.answered_to(began, self.settings.answer_proves),
            // It is there, and runs what it is sent.
            Err(failure) if self.is_of_caller(failure) => {
                self.outage.answered_to(began, Proof::Read);
            }
            Err(failure) => {
                self.outage.note_failure(began, failure);
                self.settings.failures.fetch_add(1, Ordering::Relaxed);
            }
        }
        answer
    }

    /// Whether a failure says nothing against the server.
    fn is_of_caller(&self, failure: &Failure) -> bool {
        match failure.kind() {
            FailureKind::NoScript | FailureKind::Rejected => true,
            FailureKind::RefusesWrites => {
                self.settings.may_be_full && failure.code() == Some("OOM")
            }
            FailureKind::Away | FailureKind::Elsewhere | FailureKind::Lost => false,
        }
    }
}
