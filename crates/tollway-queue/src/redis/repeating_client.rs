//! Calls that are repeated until the server answers them or their patience ends.
//!
//! Every script is safe to run twice under one request id: the second run answers what the first
//! did. So whatever happens to a connection, a call is repeated until it is answered or its
//! patience ends. If it was never sent it has not been done; otherwise its outcome is unknown: the
//! error says which.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis::{Cmd, Value};
use tokio::time::Instant;
use tollway_core::Outage;
use tollway_redis::connection::{Client, Failure, FailureKind, Script};

use crate::error::{Error, ErrorKind};

/// The connection to the server that holds the queues.
pub(super) struct RepeatingClient {
    client: Arc<Client>,
    /// How long one answer may take.
    answer_timeout: Duration,
    /// How long a call is repeated.
    patience: Duration,
    /// Calls that were given up.
    failed_calls: AtomicU64,
}

/// What is sent.
enum Question<'a> {
    Command(&'a Cmd),
    Script { script: &'a Script, keys: &'a [&'a [u8]], arguments: &'a [Vec<u8>] },
}

/// Pauses between two attempts grow from the first to the last.
const PAUSES: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(200));

impl RepeatingClient {
    pub(super) fn new(client: Arc<Client>, settings: &super::RedisSettings) -> Self {
        let super::RedisSettings { answer_timeout, patience, .. } = *settings;
        Self { client, answer_timeout, patience, failed_calls: AtomicU64::new(0) }
    }

    /// Calls that were given up since the start, because the server did not answer.
    pub(super) fn failed_calls(&self) -> u64 {
        self.failed_calls.load(Ordering::Relaxed)
    }

    /// The outage under way, if there is one.
    pub(super) fn outage(&self) -> Option<Outage> {
        self.client.outage().told()
    }

    /// Runs a script, again and again until it is answered or the patience ends.
    pub(super) async fn run(
        &self,
        script: &Script,
        keys: &[&[u8]],
        arguments: &[Vec<u8>],
    ) -> Result<Value, Error> {
        self.repeat(Question::Script { script, keys, arguments }).await
    }

    /// Sends a command that may as well run twice, until it is answered or the patience ends.
    pub(super) async fn ask(&self, command: &Cmd) -> Result<Value, Error> {
        self.repeat(Question::Command(command)).await
    }

    async fn repeat(&self, question: Question<'_>) -> Result<Value, Error> {
        // Of a server that has been away for longer than anybody waits one try is enough: callers
        // in a row would each wait for those before them, too. An answer in time is taken, however
        // short the patience.
        let is_known = self.client.outage().lasted() > self.patience;
        let (patience, mut pause) = match is_known {
            true => (self.answer_timeout, self.answer_timeout),
            false => (self.patience.max(self.answer_timeout), PAUSES.0),
        };
        let end = Instant::now() + patience;
        let mut was_sent = false;
        loop {
            let until = end.min(Instant::now() + self.answer_timeout);
            let failure = match self.try_once(&question, until).await {
                Ok(value) => return Ok(value),
                Err(failure) => failure,
            };
            match failure.kind() {
                FailureKind::Away | FailureKind::Elsewhere => {}
                FailureKind::Lost => was_sent = true,
                // A full memory has a kind of its own, and lets jobs be read.
                FailureKind::RefusesWrites if failure.code() == Some("OOM") => {
                    let message = "the server's memory is full";
                    return Err(Error::new(ErrorKind::NoSpace, message).caused_by(failure));
                }
                // One that lacks replicas may have been replaced: the next is looked for.
                FailureKind::RefusesWrites => self.client.leave(&failure),
                FailureKind::NoScript | FailureKind::Rejected => return Err(rejected(failure)),
            }
            if Instant::now() + pause >= end {
                self.failed_calls.fetch_add(1, Ordering::Relaxed);
                let kind = if was_sent { ErrorKind::Unknown } else { ErrorKind::Unavailable };
                return Err(Error::new(kind, failure.to_string()));
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    async fn try_once(&self, question: &Question<'_>, until: Instant) -> Result<Value, Failure> {
        match question {
            Question::Command(command) => self.client.send_until(command, until).await,
            Question::Script { script, keys, arguments } => {
                self.client.run_until(script, keys, arguments, until).await
            }
        }
    }
}

/// What a script says that cannot do it, by its first word; anything else is the server's own.
fn rejected(failure: Failure) -> Error {
    let kind = match failure.code() {
        Some("UNKNOWNQUEUE") => ErrorKind::UnknownQueue,
        Some("NOTFOUND") => ErrorKind::NotFound,
        Some("CONFLICT") => ErrorKind::Conflict,
        Some("FULL") => ErrorKind::Full,
        Some("INVALID") => ErrorKind::Invalid,
        _ => ErrorKind::Misuse,
    };
    let message = match failure.detail().filter(|_| kind != ErrorKind::Misuse) {
        Some(detail) => detail.to_owned(),
        None => failure.to_string(),
    };
    Error::new(kind, message).caused_by(failure)
}
