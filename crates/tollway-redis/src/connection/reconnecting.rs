//! How a client's connection is made, kept, probed and replaced.
//!
//! ```text
//!            ┌────────── lost ──────────┐
//!            v                          │
//!   pause, or somebody wants it ──> dial, subscribe ──> up ──> idle: probe
//!            ^                          │
//!            └──── failed: longer ──────┘
//! ```

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{PushInfo, PushKind};
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::Instant;
use tollway_core::{StoreError, explained};

use super::address::unavailable;
use super::client::{Client, Connected, Probe};
use super::failure::Failure;
use super::outage::Proof;

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) connection: Option<MultiplexedConnection>,
    /// How many connections there were: what failed on an earlier one says nothing about this one.
    pub(super) number: u64,
    /// How many attempts to connect have failed, and why the last one did.
    attempts: u64,
    reason: String,
}

impl Client {
    /// Tells of connections that are lost and made from now on.
    pub fn changes(&self) -> Changes {
        let states = self.state.subscribe();
        let seen = connection_of(&states.borrow());
        Changes { states, seen }
    }

    /// The connection; once there is one, if there is none and callers wait for it.
    pub(super) async fn connected(&self, until: Instant) -> Result<Connected, Failure> {
        let current = self.current();
        if current.is_ok() || !self.settings.waits_for_connection {
            return current;
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
            self.outage().failed_by(Instant::now(), reason);
        }
    }

    pub(super) fn keep_connected(self: &Arc<Self>, runtime: &Handle) {
        let (states, wanted) = (self.state.subscribe(), Arc::clone(&self.wanted));
        runtime.spawn(keep_connected(Arc::downgrade(self), states, wanted));
    }

    /// Connects once, and subscribes.
    pub(super) async fn dial(self: &Arc<Self>) -> Result<(), StoreError> {
        let began = Instant::now();
        let dialled = self.dial_once().await;
        if let Err(error) = &dialled {
            let reason = explained(error);
            self.outage().failed_by(began, &reason);
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
        self.outage().answered(self.settings.connection_proves);
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
                _ => self.outage().answered(Proof::Alive),
            },
            Probe::Write(key) => {
                match self.exchange(connected, redis::cmd("DEL").arg(key), until).await {
                    Ok(_) => self.outage().answered(Proof::Written),
                    Err(failure) => self.outage().note_failure(began, &failure),
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
                    let seen = client.traffic().round_trips.load(Ordering::Relaxed);
                    let is_idle = std::mem::replace(&mut round_trips, seen) == seen;
                    // During an outage whether others ask or not: what they ask may show less.
                    if let Some(probe) = &settings.probe
                        && (is_idle || client.outage().told().is_some())
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
                    && client.outage().told().is_some()
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
