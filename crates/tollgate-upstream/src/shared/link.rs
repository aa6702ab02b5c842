//! One connection that carries claims and the messages that wake waiters, made anew when it is lost.
//!
//! The subscription stands before the first claim goes out, on the same connection: no message
//! falls between the two. When the connection is lost both end together, and everybody who waits
//! is told.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{PushInfo, PushKind, RedisError, Value};
use tokio::sync::{mpsc, watch};
use tollgate_core::StoreError;
use tollgate_redis::Primary;

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
        start_without: bool,
    ) -> Result<Arc<Self>, StoreError> {
        let link = Arc::new(Self {
            primary,
            timeout,
            process: process.to_owned(),
            pushes,
            line: Mutex::new(None),
            epoch: watch::channel(0).0,
        });
        match link.dial().await {
            Ok(connection) => link.up(connection),
            Err(error) if start_without && error.is_transient() => {}
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
        let Some((mut connection, epoch)) = self.current() else { return Err(Trouble::Lost) };
        let answer = script.run(&mut connection, keys, args);
        self.judge(epoch, tokio::time::timeout(self.timeout, answer).await)
    }

    /// Sends one command.
    pub(super) async fn send(&self, command: &redis::Cmd) -> Result<Value, Trouble> {
        let Some((mut connection, epoch)) = self.current() else { return Err(Trouble::Lost) };
        let answer = command.query_async(&mut connection);
        self.judge(epoch, tokio::time::timeout(self.timeout, answer).await)
    }

    /// Sends commands together.
    pub(super) async fn send_all(&self, pipe: &redis::Pipeline) -> Result<Value, Trouble> {
        let Some((mut connection, epoch)) = self.current() else { return Err(Trouble::Lost) };
        let answer = pipe.query_async(&mut connection);
        self.judge(epoch, tokio::time::timeout(self.timeout, answer).await)
    }

    fn judge(
        &self,
        epoch: u64,
        answer: Result<Result<Value, RedisError>, tokio::time::error::Elapsed>,
    ) -> Result<Value, Trouble> {
        match answer {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) if !is_elsewhere(&error) => Err(Trouble::Refused(error.to_string())),
            _ => {
                self.down(epoch);
                Err(Trouble::Lost)
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
        self.epoch.send_modify(|epoch| *epoch += 1);
    }

    /// Stops using the connection of that number. What failed on an earlier one says nothing about
    /// this one.
    fn down(&self, epoch: u64) {
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        if *self.epoch.borrow() == epoch && line.take().is_some() {
            self.epoch.send_modify(|epoch| *epoch += 1);
        }
    }

    async fn dial(self: &Arc<Self>) -> Result<MultiplexedConnection, StoreError> {
        let (pushes, inbox) = mpsc::unbounded_channel();
        let mut connection = self.primary.listen(&pushes).await?;
        let channels = [format!("*{WAKE}{}", self.process), format!("*{RENAMED}")];
        let subscribed = tokio::time::timeout(self.timeout, connection.psubscribe(&channels)).await;
        if !matches!(subscribed, Ok(Ok(()))) {
            let kind = tollgate_core::ErrorKind::Unavailable;
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
            return link.down(epoch);
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
        match link.dial().await {
            Ok(connection) => link.up(connection),
            Err(_) => {
                drop(link);
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(PAUSE_MAX);
            }
        }
    }
}
