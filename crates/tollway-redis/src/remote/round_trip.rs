//! Commands to a service and its replies back: one write of all that wait, within the budget.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use redis::{Cmd, Pipeline, ServerError, Value};
use tollway_core::{ErrorKind, StoreError};

use super::Inner;
use crate::call::{Call, CallError};
use crate::connection::{Client, Failure, FailureKind, Proof, unavailable, unknown};

/// A command, and who waits for its reply.
pub(super) type CommandCall = Call<Cmd, Value>;

impl Inner {
    /// Asks the service, and waits for the reply no longer than the budget.
    pub(super) async fn ask(&self, command: Cmd) -> Result<Value, CallError> {
        let submit = |call: CommandCall| {
            if let Err((call, reason)) = call.submit(&self.client, &self.calls) {
                call.fail(&self.client, unavailable(reason));
            }
        };
        let note_late = |began, reason: &str| self.client.outage().failed_by(began, reason);
        Call::ask(command, (&self.runtime, self.timeout), submit, note_late).await
    }
}

/// Sends the commands in one write and answers everyone who waits for one of them.
pub(super) async fn round_trip(client: Arc<Client>, calls: Vec<CommandCall>) {
    let Ok(mut connected) = client.current() else {
        let gone = || unavailable("the store has just gone down");
        return calls.into_iter().for_each(|call| call.fail(&client, gone()));
    };
    let mut pipeline = Pipeline::with_capacity(calls.len());
    pipeline.ignore_errors();
    let mut calls: Vec<CommandCall> =
        calls.into_iter().filter(|call| call.progress.send()).collect();
    for call in &mut calls {
        pipeline.add_command(std::mem::take(&mut call.question));
    }
    if calls.is_empty() {
        return;
    }
    client.traffic().sent(calls.len(), pipeline.len());
    match client.round_trip(&mut connected, &pipeline).await {
        Ok(replies) => hand_out(&client, calls, replies),
        // Nobody knows what the service made of these commands.
        Err(failure) => {
            calls.into_iter().for_each(|call| call.fail(&client, unknown(&failure.to_string())));
        }
    }
}

fn hand_out(client: &Client, calls: Vec<CommandCall>, replies: Vec<Value>) {
    let mut replies = replies.into_iter();
    for call in calls {
        let reply = match replies.next() {
            Some(Value::ServerError(error)) => Err(meaning(error)),
            Some(reply) => Ok(reply),
            None => Err(CallError::store(unknown("the service's answer is incomplete"))),
        };
        match &reply {
            Err(error) if error.degrades => {
                client.outage().failed_by(call.began, &error.error.to_string());
                client.failures().fetch_add(1, Ordering::Relaxed);
            }
            _ => client.outage().answered(Proof::Written),
        }
        call.answer(reply);
    }
}

/// What an error of the service means: the request's fault, the service's, or its store's.
fn meaning(error: ServerError) -> CallError {
    let message = format!("{} {}", error.code(), error.details().unwrap_or_default());
    match error.code() {
        // A service has two codes of its own beside those of a server.
        "NOPOLICY" => CallError::request(StoreError::new(
            ErrorKind::Misuse,
            "the service has no policy of this name; add it there",
        )),
        "UNAVAILABLE" => CallError::store(unavailable(&format!("the service says: {message}"))),
        "WRONGPASS" => CallError::store(Failure::of(error.into())),
        _ => match Failure::of(error.into()) {
            failure if failure.kind() == FailureKind::Rejected => {
                let message = format!("the service refuses: {message}");
                CallError::request(StoreError::new(ErrorKind::Misuse, message))
            }
            failure => CallError::store(failure),
        },
    }
}
