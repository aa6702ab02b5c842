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
//! ends; only then is its outcome unknown, which the error says.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisError, ServerErrorKind, Value};
use tollgate_redis::Primary;

use super::script::Script;
use crate::error::{Error, ErrorKind};

/// The connection, and how many there were before it.
#[derive(Default)]
struct Current {
    connection: Option<MultiplexedConnection>,
    number: u64,
}

/// One connection to the server that holds the queue.
pub(super) struct Line {
    primary: Primary,
    current: Mutex<Current>,
    /// Connecting is done by one caller at a time.
    dialling: tokio::sync::Mutex<()>,
    /// How long one answer may take.
    answer_timeout: Duration,
    /// How long a call is repeated.
    patience: Duration,
}

/// Pauses between two attempts grow from the first to the last.
const PAUSES: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(200));

impl Line {
    pub(super) fn new(primary: Primary, answer_timeout: Duration, patience: Duration) -> Self {
        let (current, dialling) = Default::default();
        Self { primary, current, dialling, answer_timeout, patience }
    }

    /// Runs a script, again and again until it is answered or the patience ends.
    pub(super) async fn run(
        &self,
        script: &Script,
        keys: &[&[u8]],
        arguments: &[Vec<u8>],
    ) -> Result<Value, Error> {
        let start = Instant::now();
        let mut pause = PAUSES.0;
        let mut with_source = false;
        loop {
            let command = command(script, keys, arguments, with_source);
            let failure = match self.send(&command, self.answer_timeout).await {
                Ok(value) => return Ok(value),
                Err(failure) => failure,
            };
            match failure {
                Failure::NoScript => {
                    with_source = true;
                    continue;
                }
                Failure::Final(error) => return Err(error),
                Failure::Passing(error) if start.elapsed() + pause > self.patience => {
                    return Err(error);
                }
                Failure::Passing(_) => {}
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    /// Sends a command that may as well run twice, until it is answered or the patience ends.
    pub(super) async fn ask(&self, command: &Cmd) -> Result<Value, Error> {
        let start = Instant::now();
        let mut pause = PAUSES.0;
        loop {
            match self.send(command, self.answer_timeout).await {
                Ok(value) => return Ok(value),
                Err(Failure::Passing(error)) if start.elapsed() + pause > self.patience => {
                    return Err(error);
                }
                Err(Failure::Passing(_) | Failure::NoScript) => {}
                Err(Failure::Final(error)) => return Err(error),
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    /// Sends a command once, connecting first if need be.
    pub(super) async fn send(&self, command: &Cmd, timeout: Duration) -> Result<Value, Failure> {
        let (mut connection, number) = self.connected().await?;
        let sent = connection.send_packed_command(command);
        match tokio::time::timeout(timeout, sent).await {
            Ok(answer) => answer.and_then(Value::extract_error).map_err(|error| {
                let failure = classify(error);
                if matches!(failure, Failure::Passing(_)) {
                    self.drop_connection(number);
                }
                failure
            }),
            Err(_) => {
                self.drop_connection(number);
                Err(Failure::Passing(unavailable("the server did not answer in time")))
            }
        }
    }

    async fn connected(&self) -> Result<(MultiplexedConnection, u64), Failure> {
        if let Some(current) = self.current() {
            return Ok(current);
        }
        let _turn = self.dialling.lock().await;
        // Whoever had the turn before may have connected.
        if let Some(current) = self.current() {
            return Ok(current);
        }
        let connection = self.primary.connect().await.map_err(|error| {
            let is_passing =
                error.is_transient() || error.kind() == tollgate_core::ErrorKind::Refused;
            let error = unavailable("the server cannot be reached").caused_by(error);
            if is_passing { Failure::Passing(error) } else { Failure::Final(error) }
        })?;
        let mut current = self.lock();
        current.number += 1;
        current.connection = Some(connection.clone());
        Ok((connection, current.number))
    }

    fn current(&self) -> Option<(MultiplexedConnection, u64)> {
        let current = self.lock();
        current.connection.clone().map(|connection| (connection, current.number))
    }

    /// Stops using the connection of that number: the next call finds the server anew.
    fn drop_connection(&self, number: u64) {
        let mut current = self.lock();
        if current.number == number {
            current.connection = None;
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why a command has no answer.
pub(super) enum Failure {
    /// The server does not know the script.
    NoScript,
    /// Asking again may help.
    Passing(Error),
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
    if error.kind() == redis::ErrorKind::Extension {
        return Failure::Final(refused(error));
    }
    let redis::ErrorKind::Server(kind) = error.kind() else {
        let text = "the connection to the server broke";
        return Failure::Passing(unavailable(text).caused_by(error));
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
            let text = "the server hands the queue over";
            Failure::Passing(unavailable(text).caused_by(error))
        }
        _ => Failure::Final(refused(error)),
    }
}

fn unavailable(message: &str) -> Error {
    Error::new(ErrorKind::Unknown, message)
}

/// What a script says that cannot do it, by its first word; anything else is the server's own.
fn refused(error: RedisError) -> Error {
    let kind = match error.code() {
        Some("UNKNOWNQUEUE") => ErrorKind::UnknownQueue,
        Some("NOTFOUND") => ErrorKind::NotFound,
        Some("FULL") => ErrorKind::Full,
        Some("INVALID") => ErrorKind::Invalid,
        Some("OOM") => ErrorKind::NoSpace,
        _ => ErrorKind::Misuse,
    };
    let message = match kind {
        ErrorKind::Misuse => "the server refuses".to_owned(),
        ErrorKind::NoSpace => "the server's memory is full".to_owned(),
        _ => error.detail().unwrap_or("the server refuses").to_owned(),
    };
    Error::new(kind, message).caused_by(error)
}
