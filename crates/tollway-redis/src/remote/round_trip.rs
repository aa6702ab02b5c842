//! Commands to a service and its replies back: one write of all that wait, within the budget.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use redis::{Cmd, Pipeline, ServerError, Value};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tollway_core::{ErrorKind, StoreError};

use super::Inner;
use crate::address::unavailable;
use crate::job::{Ticket, Trouble, unknown};
use crate::line::Line;
use crate::outage::Proof;

/// A command, and who waits for its reply.
pub(super) struct Job {
    command: Cmd,
    began: Instant,
    ticket: Arc<Ticket>,
    answer: oneshot::Sender<Result<Value, Trouble>>,
}

impl Inner {
    /// Asks the service, and waits for the reply no longer than the budget.
    pub(super) async fn ask(&self, command: Cmd) -> Result<Value, Trouble> {
        let (answer, receive) = oneshot::channel();
        let (ticket, began) = (Arc::new(Ticket::default()), Instant::now());
        self.submit(Job { command, began, ticket: Arc::clone(&ticket), answer });
        // Kept by the runtime that the store was made in: whoever waits need not run in one.
        let budget = {
            let _runtime = self.runtime.enter();
            tokio::time::sleep(self.line.settings.timeout)
        };
        tokio::select! {
            biased;
            reply = receive => reply.unwrap_or_else(|_| {
                Err(Trouble::store(unavailable("the store is being shut down")))
            }),
            () = budget => {
                let error = ticket.abandon();
                self.line.outage.failed_by(began, &error.to_string());
                Err(Trouble::store(error))
            }
        }
    }

    /// Hands over a command. It is answered even if it cannot be sent.
    fn submit(&self, job: Job) {
        if !self.line.is_up() {
            return refuse(&self.line, job, "the service is down; it is being probed");
        }
        match self.jobs.try_send(job) {
            Ok(()) => {}
            Err(mpsc::error::TrySendError::Full(job)) => {
                refuse(&self.line, job, "too many requests wait for the service");
            }
            Err(mpsc::error::TrySendError::Closed(job)) => {
                refuse(&self.line, job, "the store is being shut down");
            }
        }
    }
}

/// Sends the commands in one write and answers everyone who waits for one of them.
pub(super) async fn fly(line: &Arc<Line>, jobs: Vec<Job>) {
    let Some((mut connection, number)) = line.current() else {
        return jobs
            .into_iter()
            .for_each(|job| refuse(line, job, "the service has just gone down"));
    };
    let mut pipeline = Pipeline::with_capacity(jobs.len());
    pipeline.ignore_errors();
    let mut waiting = Vec::with_capacity(jobs.len());
    for job in jobs.into_iter().filter(|job| job.ticket.send()) {
        pipeline.add_command(job.command);
        waiting.push(Waiting { began: job.began, answer: job.answer });
    }
    if waiting.is_empty() {
        return;
    }
    line.traffic.sent(waiting.len(), pipeline.len());
    let sent = connection.send_packed_commands(&pipeline, 0, pipeline.len());
    match tokio::time::timeout(line.settings.timeout, sent).await {
        Ok(Ok(replies)) => land(line, waiting, replies),
        Ok(Err(error)) => {
            let reason = format!("the connection to the service broke: {error}");
            line.down(number, &reason);
            lose(line, waiting, &reason);
        }
        Err(_) => {
            let reason = "the service did not answer in time";
            line.down(number, reason);
            lose(line, waiting, reason);
        }
    }
}

/// Who waits for a reply, and since when.
struct Waiting {
    began: Instant,
    answer: oneshot::Sender<Result<Value, Trouble>>,
}

fn land(line: &Line, waiting: Vec<Waiting>, replies: Vec<Value>) {
    let mut replies = replies.into_iter();
    for Waiting { began, answer } in waiting {
        let reply = match replies.next() {
            Some(Value::ServerError(error)) => Err(trouble(&error)),
            Some(reply) => Ok(reply),
            None => Err(Trouble::store(unknown("the service's answer is incomplete"))),
        };
        match &reply {
            Err(trouble) if trouble.degrades => {
                line.outage.failed_by(began, &trouble.error.to_string());
                line.traffic.failures.fetch_add(1, Ordering::Relaxed);
            }
            _ => line.outage.answered(Proof::Written),
        }
        // Nobody waits any more if this fails.
        let _ = answer.send(reply);
    }
}

/// Nobody knows what the service made of these commands.
fn lose(line: &Line, waiting: Vec<Waiting>, message: &str) {
    for Waiting { began, answer } in waiting {
        note_failure(line, began);
        let _ = answer.send(Err(Trouble::store(unknown(message))));
    }
}

fn refuse(line: &Line, job: Job, message: &str) {
    note_failure(line, job.began);
    let _ = job.answer.send(Err(Trouble::store(unavailable(message))));
}

fn note_failure(line: &Line, began: Instant) {
    line.outage.failed(began);
    line.traffic.failures.fetch_add(1, Ordering::Relaxed);
}

/// What an error of the service means: the request's fault, the service's, or its store's.
fn trouble(error: &ServerError) -> Trouble {
    let message = format!("{} {}", error.code(), error.details().unwrap_or_default());
    match error.code() {
        "NOPOLICY" => {
            let message = "the service has no policy of this name; add it there";
            Trouble::request(StoreError::new(ErrorKind::Misuse, message))
        }
        "UNAVAILABLE" => Trouble::store(unavailable(&format!("the service says: {message}"))),
        "NOAUTH" | "NOPERM" | "WRONGPASS" => {
            let message = format!("the service refuses: {message}");
            Trouble::store(StoreError::new(ErrorKind::Refused, message))
        }
        _ => {
            let message = format!("the service refuses: {message}");
            Trouble::request(StoreError::new(ErrorKind::Misuse, message))
        }
    }
}
