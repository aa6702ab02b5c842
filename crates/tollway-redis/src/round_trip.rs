//! One round trip: requests in batches to a server, and its answers back to those who asked.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use redis::{Pipeline, ServerError, Value};
use tollway_core::{ErrorKind, StoreError};

use crate::batch::{Batch, Outcome};
use crate::call::CallError;
use crate::connection::{Failure, FailureKind, Proof, Redirect, unavailable, unknown};
use crate::node::{Node, RequestCall};
use crate::replay::Reply;
use crate::request::{Op, Request};

/// The most times that a request is sent on, or sent again.
const HOPS_MAX: u8 = 8;

/// The most charges in one run of a script: Lua cannot name more than 8000 keys in one call, and
/// the server answers nobody else meanwhile.
const PARTS_MAX: usize = 1_024;

/// Requests that one run of a script answers.
struct Group {
    batch: Batch,
    calls: Vec<RequestCall>,
    asking: bool,
    /// How often the server has not decided it and said so.
    repeats: u8,
}

/// The most times that a server is asked once more: it did not know the script, then needs the
/// whole one, or calendar windows at its own time. A store that says the same again would be asked
/// for ever.
const REPEATS_MAX: u8 = 2;

/// Sends the requests and answers everyone who waits for one of them.
pub(crate) async fn round_trip(node: &Arc<Node>, calls: Vec<RequestCall>) {
    let Ok(mut connected) = node.client.current() else {
        let refuse = |call| node.refuse(call, "the store has just gone down");
        return calls.into_iter().for_each(refuse);
    };
    let mut groups = gather(node, calls);
    let mut with_source = false;
    while !groups.is_empty() {
        let pipeline = pipeline(&groups, with_source);
        note_traffic(node, &groups, &pipeline, with_source);
        match node.client.round_trip(&mut connected, &pipeline).await {
            Ok(answers) => groups = hand_out(node, connected.1, groups, answers),
            Err(failure) => return lose(node, groups, &failure.to_string()),
        }
        // Whatever is left is sent with its source: the server did not know the script, or may not
        // know the one that is needed now.
        with_source = true;
    }
}

/// Requests as batches: those of one slot together, and alone those that must be.
fn gather(node: &Node, calls: Vec<RequestCall>) -> Vec<Group> {
    let mut by_slot: BTreeMap<u16, Vec<RequestCall>> = BTreeMap::new();
    let mut groups = Vec::new();
    for call in calls.into_iter().filter(|call| call.progress.send()) {
        if is_solo(&call) {
            groups.extend(groups_of(node, vec![call]));
            continue;
        }
        let waiting = by_slot.entry(if node.by_slot { call.question.slot } else { 0 }).or_default();
        let parts: usize = requests(waiting).map(|request| request.parts.len()).sum();
        let more = call.question.request.parts.len();
        if parts + more > PARTS_MAX || waiting.len() >= node.settings.batch_max {
            groups.extend(groups_of(node, std::mem::take(waiting)));
        }
        waiting.push(call);
    }
    groups.extend(by_slot.into_values().flat_map(|waiting| groups_of(node, waiting)));
    groups
}

/// What has a time, a memory or a settlement of its own does not share a run with others.
fn is_solo(call: &RequestCall) -> bool {
    let (manner, asking) = (&call.question.manner, call.question.asking);
    let settles = matches!(call.question.request.op, Op::Settle { .. });
    manner.at.is_some() || manner.remember_ms.is_some() || asking || settles
}

/// Calls in as few runs as they can be in: one run asks about a state under one set of numbers.
fn groups_of(node: &Node, mut calls: Vec<RequestCall>) -> Vec<Group> {
    let mut groups = Vec::new();
    while !calls.is_empty() {
        let manner = calls.first().map(|call| call.question.manner).unwrap_or_default();
        let batch = {
            let requests: Vec<_> = requests(&calls).collect();
            Batch::new(&node.settings.prefix, &requests, manner)
        };
        match batch {
            Ok(batch) => {
                let asking = calls.iter().any(|call| call.question.asking);
                groups.push(Group { batch, calls, asking, repeats: 0 });
                break;
            }
            // One request alone names each state once.
            Err(0) => {
                let refused = || StoreError::new(ErrorKind::Refused, "a state is named twice");
                fail(node, calls.remove(0), refused());
            }
            Err(next) => {
                let others = calls.split_off(next);
                groups.extend(groups_of(node, calls));
                calls = others;
            }
        }
    }
    groups
}

fn requests(calls: &[RequestCall]) -> impl Iterator<Item = &Request> {
    calls.iter().map(|call| &*call.question.request)
}

fn pipeline(groups: &[Group], with_source: bool) -> Pipeline {
    let mut pipeline = Pipeline::with_capacity(groups.len());
    pipeline.ignore_errors();
    for group in groups {
        if group.asking {
            pipeline.add_command(redis::cmd("ASKING"));
        }
        pipeline.add_command(group.batch.command(with_source));
    }
    pipeline
}

/// A request that is sent once more, with its script, is still one.
fn note_traffic(node: &Node, groups: &[Group], pipeline: &Pipeline, is_repeated: bool) {
    let requests = groups.iter().map(|group| group.calls.len()).sum();
    node.client.traffic().sent(if is_repeated { 0 } else { requests }, pipeline.len());
}

/// Hands out the answers; what is left are the groups whose script the server did not know, which
/// need the whole script, or which were asked for another time than the server's.
fn hand_out(node: &Node, number: u64, groups: Vec<Group>, answers: Vec<Value>) -> Vec<Group> {
    let mut answers = answers.into_iter();
    let mut left = Vec::new();
    for group in groups {
        if group.asking {
            answers.next();
        }
        let may_repeat = group.repeats < REPEATS_MAX;
        match answers.next() {
            Some(Value::ServerError(error)) => left.extend(reject(node, number, group, error)),
            Some(answer @ (Value::Nil | Value::Int(_))) if may_repeat => {
                let mut group = Group { repeats: group.repeats + 1, ..group };
                let asked: Vec<&Request> = requests(&group.calls).collect();
                match answer {
                    Value::Int(us) => group.batch.ask_about(us.unsigned_abs(), &asked),
                    _ => group.batch.take_whole_script(&asked),
                }
                left.push(group);
            }
            Some(Value::Nil | Value::Int(_)) => {
                let refused = || StoreError::new(ErrorKind::Refused, "the store does not decide");
                group.calls.into_iter().for_each(|call| fail(node, call, refused()));
            }
            Some(answer) => {
                let requests: Vec<_> = requests(&group.calls).collect();
                let outcomes = group.batch.outcomes(&requests, answer);
                answer_all(node, group.calls, outcomes);
            }
            None => lose(node, vec![group], "the store's answer is incomplete"),
        }
    }
    left
}

fn answer_all(node: &Node, calls: Vec<RequestCall>, outcomes: Vec<Result<Outcome, StoreError>>) {
    let is_written = |(request, outcome): (&Request, &Result<Outcome, StoreError>)| {
        let is_read = request.op == Op::Peek;
        outcome.as_ref().is_ok_and(|outcome| {
            let is_decided = !matches!(outcome.reply, Reply::OtherNumbers(_) | Reply::AskAgain);
            is_decided && !is_read && outcome.states.is_empty()
        })
    };
    let is_any_written = requests(&calls).zip(&outcomes).any(is_written);
    // Whoever has a decision in hand must find the outage over.
    node.client.outage().answered(if is_any_written { Proof::Written } else { Proof::Read });
    for (call, outcome) in calls.into_iter().zip(outcomes) {
        call.answer(outcome.map_err(CallError::request));
    }
}

/// The server said no: the script did not run, or stopped before its first write. Answers the group
/// if its script is to be sent again with its source.
fn reject(node: &Node, number: u64, group: Group, error: ServerError) -> Option<Group> {
    let failure = Failure::of(error.into());
    if failure.kind() == FailureKind::NoScript && group.repeats < REPEATS_MAX {
        return Some(Group { repeats: group.repeats + 1, ..group });
    }
    if let Some(to) = failure.redirect() {
        group.calls.into_iter().for_each(|call| redirect(node, call, to.clone()));
        return None;
    }
    let message = failure.to_string();
    if failure.spoils_connection() {
        node.client.down(number, &message);
    }
    let is_of_request = matches!(failure.code(), Some("CROSSSLOT" | "WRONGTYPE"));
    let kind = StoreError::from(failure).kind();
    for call in group.calls {
        let error = StoreError::new(kind, message.clone());
        if is_of_request {
            call.answer(Err(CallError::request(error)));
        } else {
            fail(node, call, error);
        }
    }
    None
}

/// Sends a request on that was certainly not acted upon.
fn redirect(node: &Node, mut call: RequestCall, to: Redirect) {
    call.progress.unsend();
    // Keys on their way arrive; whoever asked gives up when the budget is over, and is not sent.
    call.question.hops += u8::from(to != Redirect::OnceMoved);
    if call.question.hops > HOPS_MAX {
        return fail(node, call, unavailable("the slot moves too often"));
    }
    node.redirect(call, to);
}

/// Nobody knows what the server made of these requests. Those whose answers it remembers are asked
/// again, under the same name; the others are reported as unknown.
fn lose(node: &Node, groups: Vec<Group>, message: &str) {
    for call in groups.into_iter().flat_map(|group| group.calls) {
        if call.question.manner.remember_ms.is_some() && call.question.hops < HOPS_MAX {
            node.client.outage().failed(call.began);
            redirect(node, call, Redirect::Later);
        } else {
            fail(node, call, unknown(message));
        }
    }
}

/// Tells whoever asked that the store is at fault, and why.
fn fail(node: &Node, call: RequestCall, error: StoreError) {
    let (outage, reason) = (node.client.outage(), error.to_string());
    match error.kind() {
        ErrorKind::Refused => outage.refused_by(call.began, &reason),
        _ => outage.failed_by(call.began, &reason),
    }
    node.client.failures().fetch_add(1, Ordering::Relaxed);
    call.answer(Err(CallError::store(error)));
}
