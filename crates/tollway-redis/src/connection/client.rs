//! One connection to one server: whether it is up, how it comes back, and what is sent on it.
//!
//! **Circuit breaker.** A server that broke the connection or let the time of a command run out is
//! *down*: calls for it fail in microseconds, and a task of the client's own dials it with growing
//! pauses until it answers. That task outlives every caller: of several sentinels or seeds the first
//! may take longer to not answer than anybody waits, and the next is asked after that.
//!
//! **Idle servers** are asked whether they are there, so that an idle process knows of the beginning
//! and the end of an outage too.

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, PushInfo, PushKind, RedisError, Value};
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::Instant;
use tollway_core::{StoreError, explained};

use super::address::unavailable;
use super::dial::Dialer;
use super::failure::{Failure, FailureKind};
use super::outage::{OutageRecord, Proof};
use super::script::Script;

/// How a client keeps its connection, and what answers say of the server.
#[derive(Clone, Debug)]
pub struct ClientSettings {
    /// How long one answer may take.
    pub timeout: Duration,
    /// The longest pause between two attempts to connect; the first is a hundredth of it. A server
    /// that nobody has asked for so long is probed.
    pub backoff_max: Duration,
    /// How an idle server is probed. `None` connects when somebody asks and not before, and probes
    /// nothing: for connections on which commands block.
    pub probe: Option<Probe>,
    /// What a new connection proves.
    pub connection_proves: Proof,
    /// What the answer to a command proves.
    pub answer_proves: Proof,
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
    dialer: Dialer,
    settings: ClientSettings,
    outage: OutageRecord,
    traffic: Traffic,
    state: watch::Sender<State>,
    /// Whether there is a connection: every call looks, and none shall wait for a lock to do so.
    is_up: AtomicBool,
    /// Ends the pause before the next attempt to connect.
    wanted: Arc<Notify>,
}

#[derive(Debug, Default)]
struct State {
    connection: Option<MultiplexedConnection>,
    /// How many connections there were: what failed on an earlier one says nothing about this one.
    number: u64,
    /// How many attempts to connect have failed, and why the last one did.
    attempts: u64,
    reason: String,
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
    /// Times as a store's settings have them; `PING` as the probe, and answers that prove nothing but
    /// that the server decides.
    #[must_use]
    pub fn new(timeout: Duration, store: &crate::Settings) -> Self {
        Self {
            timeout,
            backoff_max: store.backoff_max,
            probe: Some(Probe::Ping),
            connection_proves: Proof::Alive,
            answer_proves: Proof::Read,
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
        let client = Self::new(dialer, ClientSettings { probe: None, ..settings });
        client.keep_connected(runtime);
        client
    }

    fn new(dialer: Dialer, settings: ClientSettings) -> Arc<Self> {
        let (outage, traffic, state) = Default::default();
        let (is_up, wanted) = Default::default();
        Arc::new(Self { dialer, settings, outage, traffic, state, is_up, wanted })
    }

    fn keep_connected(self: &Arc<Self>, runtime: &Handle) {
        let (states, wanted) = (self.state.subscribe(), Arc::clone(&self.wanted));
        runtime.spawn(keep_connected(Arc::downgrade(self), states, wanted));
    }

    /// Whether there is a connection.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.is_up.load(Ordering::Acquire)
    }

    /// Since when the server has been failing, and why.
    #[must_use]
    pub const fn outage(&self) -> &OutageRecord {
        &self.outage
    }

    /// Tells of connections that are lost and made from now on.
    #[must_use]
    pub fn changes(&self) -> Changes {
        let states = self.state.subscribe();
        let seen = connection_of(&states.borrow());
        Changes { states, seen }
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

    /// Runs a script; fails at once while there is no connection.
    ///
    /// # Errors
    ///
    /// If there is no answer, or it is an error.
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
        match self.send(&script.command(false, keys, arguments)).await {
            Err(failure) if failure.kind() == FailureKind::NoScript => {
                self.send(&script.command(true, keys, arguments)).await
            }
            answer => answer,
        }
    }

    /// Runs a script; waits until then for a connection and the answer.
    ///
    /// # Errors
    ///
    /// If there is no answer, or it is an error.
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
            Err(failure) if failure.kind() == FailureKind::NoScript => {
                self.send_until(&script.command(true, keys, arguments), until).await
            }
            answer => answer,
        }
    }

    /// Sends a command; fails at once while there is no connection.
    ///
    /// # Errors
    ///
    /// If there is no answer, or it is an error.
    pub async fn send(&self, command: &Cmd) -> Result<Value, Failure> {
        let began = Instant::now();
        let answer = match self.current() {
            Ok(connected) => {
                self.traffic.sent(1, 1);
                self.exchange(connected, command, began + self.settings.timeout).await
            }
            Err(failure) => Err(failure),
        };
        self.noted(began, answer)
    }

    /// Sends a command; waits until then for a connection and the answer.
    ///
    /// # Errors
    ///
    /// If there is no answer, or it is an error.
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

    /// Sends commands together; fails at once while there is no connection.
    ///
    /// # Errors
    ///
    /// If there is no answer, or one of them is an error.
    pub async fn send_all(&self, pipeline: &Pipeline) -> Result<Value, Failure> {
        let began = Instant::now();
        let answer = match self.current() {
            Ok((mut connection, number)) => {
                self.traffic.sent(1, pipeline.len());
                let sent = pipeline.query_async(&mut connection);
                self.judged(number, began + self.settings.timeout, sent).await
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
        let until = Instant::now() + self.settings.timeout;
        let sent = connection.send_packed_commands(pipeline, 0, pipeline.len());
        self.judged(*number, until, sent).await
    }

    /// The connection and its number.
    pub(crate) fn current(&self) -> Result<Connected, Failure> {
        let state = self.state.borrow();
        let connection = state.connection.clone();
        let down = || Failure::away("the store is down; it is being probed");
        connection.map(|connection| (connection, state.number)).ok_or_else(down)
    }

    /// Stops using the connection because of a failure after which it is kept otherwise: the next one
    /// may lead to another server. A server that refuses writes still answers those who read, but
    /// whoever only writes may look for the one that has replaced it.
    pub fn leave(&self, failure: &Failure) {
        let number = self.state.borrow().number;
        self.down(number, &failure.to_string());
    }

    /// Stops using the connection of that number.
    pub(crate) fn down(&self, number: u64, reason: &str) {
        let is_down = self.state.send_if_modified(|state| {
            let is_down = state.number == number && state.connection.take().is_some();
            if is_down {
                self.is_up.store(false, Ordering::Release);
            }
            is_down
        });
        if is_down {
            // Whatever was answered before: from now on calls are refused.
            self.outage.failed_by(Instant::now(), reason);
        }
    }

    async fn exchange(
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
        match answer.as_ref().map_err(Failure::kind) {
            Ok(_) => self.outage.answered(self.settings.answer_proves),
            // It is there, and runs what it is sent.
            Err(FailureKind::NoScript | FailureKind::Rejected) => self.outage.answered(Proof::Read),
            Err(_) => {
                if let Err(failure) = &answer {
                    self.outage.note_failure(began, failure);
                }
                self.settings.failures.fetch_add(1, Ordering::Relaxed);
            }
        }
        answer
    }

    /// The connection; once there is one, if there is none.
    async fn connected(&self, until: Instant) -> Result<Connected, Failure> {
        if let Ok(connected) = self.current() {
            return Ok(connected);
        }
        let mut states = self.state.subscribe();
        let before = states.borrow().attempts;
        self.wanted.notify_one();
        let is_over = |state: &State| state.connection.is_some() || state.attempts > before;
        match tokio::time::timeout_at(until, states.wait_for(is_over)).await {
            Ok(Ok(state)) => match &state.connection {
                Some(connection) => Ok((connection.clone(), state.number)),
                None => Err(Failure::away(state.reason.clone())),
            },
            // The sender lives as long as this.
            Ok(Err(_)) => Err(Failure::away("the store is being shut down")),
            Err(_) => Err(Failure::away("the store cannot be reached in time")),
        }
    }

    /// Connects once, and subscribes.
    async fn dial(self: &Arc<Self>) -> Result<(), StoreError> {
        let began = Instant::now();
        let dialled = self.dial_once().await;
        if let Err(error) = &dialled {
            let reason = explained(error);
            self.outage.failed_by(began, &reason);
            self.state.send_modify(|state| {
                state.attempts += 1;
                state.reason = reason;
            });
        }
        dialled
    }

    async fn dial_once(self: &Arc<Self>) -> Result<(), StoreError> {
        let Some((channels, messages)) = &self.settings.subscription else {
            self.up(self.dialer.connect(None).await?);
            return Ok(());
        };
        let (pushes, inbox) = mpsc::unbounded_channel();
        let mut connection = self.dialer.connect(Some(&pushes)).await?;
        // Before the first command goes out: no message falls between the two.
        let subscribed = connection.psubscribe(channels);
        if !matches!(tokio::time::timeout(self.settings.timeout, subscribed).await, Ok(Ok(()))) {
            return Err(unavailable("the store does not let this process subscribe"));
        }
        let number = self.up(connection);
        tokio::spawn(pass_on(inbox, messages.clone(), Arc::downgrade(self), number));
        Ok(())
    }

    /// Starts to use a connection; its number.
    fn up(&self, connection: MultiplexedConnection) -> u64 {
        self.outage.answered(self.settings.connection_proves);
        let mut number = 0;
        self.state.send_modify(|state| {
            state.number += 1;
            state.connection = Some(connection);
            self.is_up.store(true, Ordering::Release);
            number = state.number;
        });
        number
    }

    async fn probe(&self, probe: &Probe) {
        let Ok(connected) = self.current() else { return };
        let (began, until) = (Instant::now(), Instant::now() + self.settings.timeout);
        match probe {
            Probe::Ping => match self.exchange(connected, &redis::cmd("PING"), until).await {
                Err(failure) if failure.spoils_connection() => {}
                // An error is an answer as well: a user may lack the right to ask.
                _ => self.outage.answered(Proof::Alive),
            },
            Probe::Write(key) => {
                match self.exchange(connected, redis::cmd("DEL").arg(key), until).await {
                    Ok(_) => self.outage.answered(Proof::Written),
                    Err(failure) => self.outage.note_failure(began, &failure),
                }
            }
        }
    }
}

/// Tells of connections that are lost and made.
#[derive(Clone, Debug)]
pub struct Changes {
    states: watch::Receiver<State>,
    /// The number of the connection that was there when this last told of a change.
    seen: Option<u64>,
}

impl Changes {
    /// Waits until the connection is lost, or there is another; `false` if neither will happen any
    /// more, because the client is gone.
    ///
    /// # Cancel safety
    ///
    /// A change that nobody waits for is told by the next call.
    pub async fn next(&mut self) -> bool {
        let seen = self.seen;
        match self.states.wait_for(|state| connection_of(state) != seen).await {
            Ok(state) => {
                self.seen = connection_of(&state);
                true
            }
            Err(_) => false,
        }
    }

    /// Waits until there is a connection; `false` if the client is gone.
    pub async fn up(&mut self) -> bool {
        self.states.wait_for(|state| state.connection.is_some()).await.is_ok()
    }
}

fn connection_of(state: &State) -> Option<u64> {
    state.connection.as_ref().map(|_| state.number)
}

/// Connects whenever there is no connection, and probes a server that nobody asks, until the client
/// is dropped.
async fn keep_connected(
    client: Weak<Client>,
    mut states: watch::Receiver<State>,
    wanted: Arc<Notify>,
) {
    let Some(settings) = client.upgrade().map(|client| client.settings.clone()) else { return };
    let longest = settings.backoff_max;
    let grown = |pause: Duration| (pause * 2).clamp(longest / 100, longest);
    let (mut pause, mut round_trips) = (Duration::ZERO, 0);
    let mut up_since = Instant::now();
    loop {
        let is_up = states.borrow_and_update().connection.is_some();
        if is_up {
            let lost = states.wait_for(|state| state.connection.is_none());
            let idle = settings.probe.as_ref().map_or(Duration::MAX, |_| longest.max(IDLE_MIN));
            match tokio::time::timeout(idle, lost).await.map(|lost| lost.map(drop)) {
                Ok(Err(_)) => return,
                // One that is lost again and again is not made at the rate at which that happens.
                Ok(Ok(())) if up_since.elapsed() < longest => pause = grown(pause),
                Ok(Ok(())) => pause = Duration::ZERO,
                Err(_) => {
                    let Some(client) = client.upgrade() else { return };
                    let seen = client.traffic.round_trips.load(Ordering::Relaxed);
                    let is_idle = std::mem::replace(&mut round_trips, seen) == seen;
                    // During an outage whether others ask or not: what they ask may show less.
                    if let Some(probe) = &settings.probe
                        && (is_idle || client.outage.told().is_some())
                    {
                        client.probe(probe).await;
                    }
                }
            }
            continue;
        }
        let waiting = async {
            match settings.probe {
                Some(_) => drop(tokio::time::timeout(pause, wanted.notified()).await),
                None => wanted.notified().await,
            }
        };
        tokio::select! {
            () = waiting => {}
            changed = states.changed() => if changed.is_err() { return },
        }
        let Some(client) = client.upgrade() else { return };
        match client.dial().await {
            Ok(()) => {
                up_since = Instant::now();
                // The probe may be what shows that the outage is over.
                if let Some(probe) = &settings.probe
                    && client.outage.told().is_some()
                {
                    client.probe(probe).await;
                }
            }
            Err(_) => pause = grown(pause),
        }
    }
}

/// An idle server is not probed more often.
const IDLE_MIN: Duration = Duration::from_millis(10);

/// Passes on the messages of a connection, until it is lost.
async fn pass_on(
    mut inbox: mpsc::UnboundedReceiver<PushInfo>,
    messages: mpsc::UnboundedSender<PushInfo>,
    client: Weak<Client>,
    number: u64,
) {
    while let Some(push) = inbox.recv().await {
        if push.kind == PushKind::Disconnection {
            let Some(client) = client.upgrade() else { return };
            return client.down(number, "the connection to the store broke");
        }
        // Nobody listens any more only when everything is being shut down.
        let _ = messages.send(push);
    }
}
