//! One connection to the server that holds the queue, made again whenever it breaks.
//!
//! ```text
//!   run ──> EVALSHA ──> answer
//!            │  ^
//!   NOSCRIPT └──┘ with the source
//!            │
//!   broken, moved, failed over, too slow ──> connect anew ──> the same again, same request id
//! ```
//!
//! Every script is safe to run twice under one request id: the second run answers what the first
//! did. So whatever happens to a connection, a call is repeated until it is answered or its patience
//! ends. If it was never sent it has not been done; otherwise its outcome is unknown: the error says
//! which.
//!
//! Connecting is a task of its own, for which callers wait no longer than they may: of several
//! sentinels or seeds the first may take all of a caller's time to not answer, and the next is asked
//! after that.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisError, ServerErrorKind, Value};
use tokio::sync::watch;
use tokio::time::Instant;
use tollway_core::{StoreError, explained};
use tollway_redis::{OutageRecord, Primary, Proof, refuses_all};

use super::RedisSettings;
use super::script::Script;
use crate::error::{Error, ErrorKind};

/// The connection, and how many there were before it.
#[derive(Default)]
struct Current {
    connection: Option<MultiplexedConnection>,
    number: u64,
    /// How the next one is being made, if it is: at most one at a time.
    dialling: Option<watch::Receiver<Dialled>>,
}

/// What came of connecting; `None` until it is over.
type Dialled = Option<Result<(), Refusal>>;

/// Why there is no connection, for all who wait for one.
#[derive(Clone)]
struct Refusal {
    is_passing: bool,
    reason: String,
}

/// One connection to the server that holds the queue.
pub(super) struct Line {
    primary: Primary,
    /// A key that is never there, beside those of the queues.
    absent: Vec<u8>,
    /// Shared with the task that connects, which may outlive whoever asked for it.
    current: Arc<Mutex<Current>>,
    /// How long one answer may take.
    answer_timeout: Duration,
    /// How long a call is repeated.
    patience: Duration,
    pub(super) outage: OutageRecord,
    /// Commands sent, or that could not be, since the start.
    attempts: AtomicU64,
    /// Calls that were given up.
    failed_calls: AtomicU64,
}

/// Pauses between two attempts grow from the first to the last.
const PAUSES: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(200));

impl Line {
    pub(super) fn new(primary: Primary, base: &str, settings: &RedisSettings) -> Self {
        let RedisSettings { answer_timeout, patience, .. } = *settings;
        let absent = format!("{base}~w").into_bytes();
        let (current, outage) = Default::default();
        let (attempts, failed_calls) = Default::default();
        Self { primary, absent, current, answer_timeout, patience, outage, attempts, failed_calls }
    }

    /// Calls that were given up since the start, because the server did not answer.
    pub(super) fn failed_calls(&self) -> u64 {
        self.failed_calls.load(Ordering::Relaxed)
    }

    /// Connects, unless the server is away and `start_without` says that it may be.
    pub(super) async fn start(&self, start_without: bool) -> Result<(), StoreError> {
        let began = Instant::now();
        match self.primary.connect().await {
            Ok(connection) => self.lock().up(connection),
            Err(error) if start_without && error.is_transient() => {
                self.outage.failed_by(began, &explained(&error));
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Runs a script, again and again until it is answered or the patience ends.
    pub(super) async fn run(
        &self,
        script: &Script,
        keys: &[&[u8]],
        arguments: &[Vec<u8>],
    ) -> Result<Value, Error> {
        let mut tries = Tries::new(self);
        let mut with_source = false;
        loop {
            let command = command(script, keys, arguments, with_source);
            match self.send_until(&command, tries.deadline()).await {
                Ok(value) => return Ok(value),
                Err(Failure::NoScript) => with_source = true,
                Err(Failure::Final(error)) => return Err(error),
                Err(Failure::Passing(error) | Failure::Refused(error)) => {
                    tries.again(error).await?
                }
            }
        }
    }

    /// Sends a command that may as well run twice, until it is answered or the patience ends.
    pub(super) async fn ask(&self, command: &Cmd) -> Result<Value, Error> {
        let mut tries = Tries::new(self);
        loop {
            match self.send_until(command, tries.deadline()).await {
                Ok(value) => return Ok(value),
                Err(Failure::Passing(error) | Failure::Refused(error)) => {
                    tries.again(error).await?
                }
                Err(Failure::NoScript) => {
                    return Err(Error::new(ErrorKind::Misuse, "the server looks for a script"));
                }
                Err(Failure::Final(error)) => return Err(error),
            }
        }
    }

    /// Sends a command once, connecting first if need be, and waits for its answer for so long.
    pub(super) async fn send(&self, command: &Cmd, timeout: Duration) -> Result<Value, Failure> {
        self.send_until(command, Instant::now() + timeout).await
    }

    /// Whether the server is there and takes writes. What comes of it is noted.
    async fn probe(&self) {
        let answer = self.send(redis::cmd("DEL").arg(&self.absent), self.answer_timeout).await;
        if answer.is_ok() {
            self.outage.answered(Proof::Written);
        }
    }

    /// As [`Self::send`], and tells what is known of the server by it.
    async fn send_until(&self, command: &Cmd, until: Instant) -> Result<Value, Failure> {
        let began = Instant::now();
        self.attempts.fetch_add(1, Ordering::Relaxed);
        let answer = self.try_send(command, until).await;
        match &answer {
            Err(Failure::Passing(error)) => self.outage.failed_by(began, &error.to_string()),
            Err(Failure::Refused(error)) => self.outage.refused_by(began, &error.to_string()),
            // Whatever it answers: it is there, and runs what it is sent. Not every script writes, so
            // that a server takes writes again is shown by the probe.
            _ => self.outage.answered(Proof::Read),
        }
        answer
    }

    async fn try_send(&self, command: &Cmd, until: Instant) -> Result<Value, Failure> {
        let late = || Failure::Passing(away("the server cannot be reached in time"));
        let connected = tokio::time::timeout_at(until, self.connected()).await;
        let (mut connection, number) = connected.map_err(|_| late())??;
        let sent = connection.send_packed_command(command);
        match tokio::time::timeout_at(until, sent).await {
            Ok(answer) => answer.and_then(Value::extract_error).map_err(|error| {
                let failure = classify(error);
                // One that lacks replicas may have been replaced: the next is looked for.
                if matches!(failure, Failure::Passing(_) | Failure::Refused(_)) {
                    self.drop_connection(number);
                }
                failure
            }),
            Err(_) => {
                self.drop_connection(number);
                Err(Failure::Passing(lost("the server did not answer in time")))
            }
        }
    }

    /// The connection; once there is one, if there is none.
    ///
    /// # Cancel safety
    ///
    /// Whoever stops waiting does not stop the connecting.
    async fn connected(&self) -> Result<(MultiplexedConnection, u64), Failure> {
        let mut dialling = {
            let mut current = self.lock();
            match current.get() {
                Some(connected) => return Ok(connected),
                None => self.dialling(&mut current),
            }
        };
        let dialled = dialling.wait_for(Option::is_some).await;
        let dialled = dialled.ok().and_then(|dialled| dialled.clone());
        if let Some(Err(Refusal { is_passing, reason })) = dialled {
            let error = away(&reason);
            return Err(if is_passing { Failure::Passing(error) } else { Failure::Final(error) });
        }
        let connected = self.lock().get();
        connected.ok_or_else(|| Failure::Passing(away("the server has just gone down")))
    }

    /// The connecting that is under way, begun now if there is none.
    fn dialling(&self, current: &mut Current) -> watch::Receiver<Dialled> {
        // Of one whose task was dropped with its runtime nothing comes any more.
        let under_way = current.dialling.as_ref().filter(|dialling| dialling.has_changed().is_ok());
        if let Some(dialling) = under_way {
            return dialling.clone();
        }
        let (told, dialling) = watch::channel(None);
        current.dialling = Some(dialling.clone());
        tokio::spawn(dial(self.primary.clone(), Arc::clone(&self.current), told));
        dialling
    }

    /// Stops using the connection of that number: the next call finds the server anew.
    fn drop_connection(&self, number: u64) {
        let mut current = self.lock();
        if current.number == number {
            current.connection = None;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Current> {
        lock(&self.current)
    }
}

impl Current {
    fn get(&self) -> Option<(MultiplexedConnection, u64)> {
        self.connection.clone().map(|connection| (connection, self.number))
    }

    fn up(&mut self, connection: MultiplexedConnection) {
        self.number += 1;
        self.connection = Some(connection);
    }
}

fn lock(current: &Mutex<Current>) -> MutexGuard<'_, Current> {
    current.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Connects, and tells all who wait for it.
async fn dial(primary: Primary, current: Arc<Mutex<Current>>, told: watch::Sender<Dialled>) {
    let connected = primary.connect().await;
    let mut current = lock(&current);
    current.dialling = None;
    let dialled = connected.map(|connection| current.up(connection)).map_err(|error| Refusal {
        is_passing: error.is_transient() || error.kind() == tollway_core::ErrorKind::Refused,
        reason: explained(&error),
    });
    told.send_replace(Some(dialled));
}

/// One call: how long it is repeated, and whether the server may have done it.
struct Tries<'a> {
    line: &'a Line,
    end: Instant,
    pause: Duration,
    was_sent: bool,
}

impl<'a> Tries<'a> {
    fn new(line: &'a Line) -> Self {
        // Of a server that has been away for longer than anybody waits one try is enough: callers in
        // a row would each wait for those before them, too. An answer in time is taken, however
        // short the patience.
        let is_known = line.outage.lasted() > line.patience;
        let patience = if is_known { Duration::ZERO } else { line.patience };
        let (start, pause) =
            (Instant::now(), if is_known { line.answer_timeout } else { PAUSES.0 });
        Self { line, end: start + patience.max(line.answer_timeout), pause, was_sent: false }
    }

    /// Until when the next try waits for its answer.
    fn deadline(&self) -> Instant {
        self.end.min(Instant::now() + self.line.answer_timeout)
    }

    /// Pauses before another try, or says what came of all of them.
    async fn again(&mut self, error: Error) -> Result<(), Error> {
        self.was_sent |= error.kind() == ErrorKind::Unknown;
        if Instant::now() + self.pause >= self.end {
            self.line.failed_calls.fetch_add(1, Ordering::Relaxed);
            let kind = if self.was_sent { ErrorKind::Unknown } else { error.kind() };
            return Err(Error::new(kind, error.to_string()));
        }
        tokio::time::sleep(self.pause).await;
        self.pause = (self.pause * 2).min(PAUSES.1);
        Ok(())
    }
}

/// Asks a server that nobody asks whether it is there and takes writes, until the line is dropped, so
/// that an idle process knows of the beginning and the end of an outage too; during an outage whether
/// others ask or not, since what they ask may show less.
pub(super) async fn watch_idle(line: Weak<Line>, pause: Duration) {
    let mut seen = 0;
    loop {
        tokio::time::sleep(pause.max(Duration::from_millis(10))).await;
        let Some(line) = line.upgrade() else { return };
        let attempts = line.attempts.load(Ordering::Relaxed);
        if attempts == seen || line.outage.told().is_some() {
            line.probe().await;
        }
        seen = line.attempts.load(Ordering::Relaxed);
    }
}

/// Why a command has no answer.
pub(super) enum Failure {
    /// The server does not know the script.
    NoScript,
    /// Asking again may help.
    Passing(Error),
    /// The server answers, and refuses to do anything of the kind: it may be mended.
    Refused(Error),
    /// It will not.
    Final(Error),
}

fn command(script: &Script, keys: &[&[u8]], arguments: &[Vec<u8>], with_source: bool) -> Cmd {
    let mut command = redis::cmd(if with_source { "EVAL" } else { "EVALSHA" });
    command.arg(if with_source { &script.source } else { &script.sha }).arg(keys.len());
    for key in keys {
        command.arg(*key);
    }
    for argument in arguments {
        command.arg(argument.as_slice());
    }
    command
}

fn classify(error: RedisError) -> Failure {
    match refuses_all(&error) {
        None => {}
        // A full memory has a kind of its own, and lets jobs be read.
        Some("OOM") => return Failure::Final(no_space(error)),
        Some(_) => {
            let text = format!("the server refuses: {}", explained(&error));
            return Failure::Refused(away(&text));
        }
    }
    if error.kind() == redis::ErrorKind::Extension {
        return Failure::Final(refused(error));
    }
    let redis::ErrorKind::Server(kind) = error.kind() else {
        let text = format!("the connection to the server broke: {}", explained(&error));
        return Failure::Passing(lost(&text));
    };
    match kind {
        ServerErrorKind::NoScript => Failure::NoScript,
        // The script did not run: another server has the queue now, or soon.
        ServerErrorKind::Moved
        | ServerErrorKind::Ask
        | ServerErrorKind::TryAgain
        | ServerErrorKind::ClusterDown
        | ServerErrorKind::ReadOnly
        | ServerErrorKind::MasterDown
        | ServerErrorKind::BusyLoading => {
            let text = format!("the server hands the queue over: {}", explained(&error));
            Failure::Passing(away(&text))
        }
        _ => Failure::Final(refused(error)),
    }
}

/// The server has not done it.
fn away(message: &str) -> Error {
    Error::new(ErrorKind::Unavailable, message)
}

/// It was sent, and nobody knows what came of it.
fn lost(message: &str) -> Error {
    Error::new(ErrorKind::Unknown, message)
}

fn no_space(error: RedisError) -> Error {
    Error::new(ErrorKind::NoSpace, "the server's memory is full").caused_by(error)
}

/// What a script says that cannot do it, by its first word; anything else is the server's own.
fn refused(error: RedisError) -> Error {
    let kind = match error.code() {
        Some("UNKNOWNQUEUE") => ErrorKind::UnknownQueue,
        Some("NOTFOUND") => ErrorKind::NotFound,
        Some("FULL") => ErrorKind::Full,
        Some("INVALID") => ErrorKind::Invalid,
        _ => ErrorKind::Misuse,
    };
    let message = match kind {
        ErrorKind::Misuse => format!("the server refuses: {}", explained(&error)),
        _ => error.detail().unwrap_or("the server refuses").to_owned(),
    };
    Error::new(kind, message).caused_by(error)
}
