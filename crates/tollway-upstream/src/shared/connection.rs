//! One connection that carries claims and the messages that wake waiters, made anew when it is lost.
//!
//! The subscription stands before the first claim goes out, on the same connection: no message
//! falls between the two. When the connection is lost both end together, and everybody who waits
//! is told.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{PushInfo, PushKind, RedisError, Value};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tollway_core::{StoreError, explained};
use tollway_redis::{OutageRecord, Primary, Proof, refuses_all};

use super::keys::{RENAMED, WAKE};
use super::script::Script;

/// A connection that is renewed.
pub(super) struct Link {
    primary: Primary,
    timeout: Duration,
    process: String,
    pushes: mpsc::UnboundedSender<PushInfo>,
    line: Mutex<Option<MultiplexedConnection>>,
    /// How many connections there were; odd while there is one.
    epoch: watch::Sender<u64>,
    pub(super) outage: OutageRecord,
    /// Calls without an answer, over all connections of the process.
    failures: Arc<AtomicU64>,
}

/// Why a call has no answer.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The store cannot be reached; whether it ran the script is not known.
    Lost,
    /// The store answered with an error: somebody else's data at a key, or no memory.
    Refused(String),
}

impl Link {
    /// Connects and subscribes; `start_without`, later if it cannot be now.
    pub(super) async fn connect(
        primary: Primary,
        timeout: Duration,
        process: &str,
        pushes: mpsc::UnboundedSender<PushInfo>,
        failures: Arc<AtomicU64>,
        start_without: bool,
    ) -> Result<Arc<Self>, StoreError> {
        let link = Arc::new(Self {
            primary,
            timeout,
            process: process.to_owned(),
            pushes,
            line: Mutex::new(None),
            epoch: watch::channel(0).0,
            outage: OutageRecord::default(),
            failures,
        });
        let began = Instant::now();
        match link.dial().await {
            Ok(connection) => link.up(connection),
            Err(error) if start_without && error.is_transient() => {
                link.outage.failed_by(began, &explained(&error));
            }
            Err(error) => return Err(error),
        }
        tokio::spawn(revive(Arc::downgrade(&link), link.epoch.subscribe()));
        Ok(link)
    }

    pub(super) fn is_up(&self) -> bool {
        *self.epoch.borrow() % 2 == 1
    }

    /// A receiver that changes whenever the connection is lost or made.
    pub(super) fn epochs(&self) -> watch::Receiver<u64> {
        self.epoch.subscribe()
    }

    /// Runs a script.
    pub(super) async fn run(
        &self,
        script: &Script,
        keys: &[String],
        args: &[String],
    ) -> Result<Value, Trouble> {
        let began = Instant::now();
        let Some((mut connection, epoch)) = self.current() else { return Err(self.lost(began)) };
        let answer = script.run(&mut connection, keys, args);
        self.judge(epoch, began, tokio::time::timeout(self.timeout, answer).await)
    }

    /// Sends one command.
    pub(super) async fn send(&self, command: &redis::Cmd) -> Result<Value, Trouble> {
        let began = Instant::now();
        let Some((mut connection, epoch)) = self.current() else { return Err(self.lost(began)) };
        let answer = command.query_async(&mut connection);
        self.judge(epoch, began, tokio::time::timeout(self.timeout, answer).await)
    }

    /// Sends commands together.
    pub(super) async fn send_all(&self, pipe: &redis::Pipeline) -> Result<Value, Trouble> {
        let began = Instant::now();
        let Some((mut connection, epoch)) = self.current() else { return Err(self.lost(began)) };
        let answer = pipe.query_async(&mut connection);
        self.judge(epoch, began, tokio::time::timeout(self.timeout, answer).await)
    }

    /// Notes a call, begun then, that has no answer.
    fn lost(&self, began: Instant) -> Trouble {
        self.outage.failed(began);
        self.failures.fetch_add(1, Ordering::Relaxed);
        Trouble::Lost
    }

    fn judge(
        &self,
        epoch: u64,
        began: Instant,
        answer: Result<Result<Value, RedisError>, tokio::time::error::Elapsed>,
    ) -> Result<Value, Trouble> {
        match answer {
            Ok(Ok(value)) => {
                self.outage.answered(Proof::Written);
                Ok(value)
            }
            Ok(Err(error)) if !is_elsewhere(&error) => {
                // Somebody else's data at a key is one bucket's trouble, not an outage.
                if refuses_all(&error).is_some() {
                    self.outage.refused_by(began, &error.to_string());
                    self.failures.fetch_add(1, Ordering::Relaxed);
                }
                Err(Trouble::Refused(error.to_string()))
            }
            Ok(Err(error)) => {
                self.down(epoch, &explained(&error));
                Err(self.lost(began))
            }
            Err(_) => {
                self.down(epoch, "the store did not answer in time");
                Err(self.lost(began))
            }
        }
    }

    fn current(&self) -> Option<(MultiplexedConnection, u64)> {
        let line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        line.clone().map(|connection| (connection, *self.epoch.borrow()))
    }

    fn up(&self, connection: MultiplexedConnection) {
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        *line = Some(connection);
        // It took the subscription: there is nothing that it may allow meanwhile, as a limiter does.
        self.outage.answered(Proof::Written);
        self.epoch.send_modify(|epoch| *epoch += 1);
    }

    /// Stops using the connection of that number. What failed on an earlier one says nothing about
    /// this one.
    fn down(&self, epoch: u64, reason: &str) {
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        if *self.epoch.borrow() == epoch && line.take().is_some() {
            self.outage.failed_by(Instant::now(), reason);
            self.epoch.send_modify(|epoch| *epoch += 1);
        }
    }

    async fn dial(self: &Arc<Self>) -> Result<MultiplexedConnection, StoreError> {
        let (pushes, inbox) = mpsc::unbounded_channel();
        let mut connection = self.primary.listen(&pushes).await?;
        let channels = [format!("*{WAKE}{}", self.process), format!("*{RENAMED}")];
        let subscribed = tokio::time::timeout(self.timeout, connection.psubscribe(&channels)).await;
        if !matches!(subscribed, Ok(Ok(()))) {
            let kind = tollway_core::ErrorKind::Unavailable;
            return Err(StoreError::new(kind, "the store does not let this process subscribe"));
        }
        let next = *self.epoch.borrow() + 1;
        tokio::spawn(pass_on(inbox, Arc::downgrade(self), next));
        Ok(connection)
    }
}

/// Passes on what a connection brings, until it is lost.
async fn pass_on(mut inbox: mpsc::UnboundedReceiver<PushInfo>, link: Weak<Link>, epoch: u64) {
    while let Some(push) = inbox.recv().await {
        let Some(link) = link.upgrade() else { return };
        if push.kind == PushKind::Disconnection {
            return link.down(epoch, "the connection to the store broke");
        }
        // Nobody listens any more only when everything is being shut down.
        let _ = link.pushes.send(push);
    }
}

/// Whether another server, or this one later, may answer.
fn is_elsewhere(error: &RedisError) -> bool {
    error.is_io_error()
        || error.is_timeout()
        || error.is_connection_dropped()
        || matches!(
            error.code(),
            Some(
                "MOVED"
                    | "ASK"
                    | "TRYAGAIN"
                    | "CLUSTERDOWN"
                    | "READONLY"
                    | "LOADING"
                    | "MASTERDOWN"
            )
        )
}

/// Connects again whenever the connection is lost, with growing pauses.
async fn revive(link: Weak<Link>, mut epochs: watch::Receiver<u64>) {
    const PAUSE_MIN: Duration = Duration::from_millis(20);
    const PAUSE_MAX: Duration = Duration::from_secs(1);
    let mut pause = PAUSE_MIN;
    loop {
        let is_up = *epochs.borrow_and_update() % 2 == 1;
        if is_up {
            pause = PAUSE_MIN;
            if epochs.changed().await.is_err() {
                return;
            }
            continue;
        }
        let Some(link) = link.upgrade() else { return };
        let began = Instant::now();
        match link.dial().await {
            Ok(connection) => link.up(connection),
            Err(error) => {
                link.outage.failed_by(began, &explained(&error));
                drop(link);
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(PAUSE_MAX);
            }
        }
    }
}
