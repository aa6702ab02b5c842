//! One round trip: requests in batches to a server, and its answers back to those who asked.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use redis::{Pipeline, ServerError, ServerErrorKind, Value};
use tollway_core::{ErrorKind, StoreError};

use crate::address::unavailable;
use crate::batch::{Batch, Outcome};
use crate::job::{Job, Trouble, unknown};
use crate::link::{Bounce, Destination, Link};
use crate::outage::Proof;
use crate::request::{Op, Request};

/// The most times that a request is sent on, or sent again.
const HOPS_MAX: u8 = 8;

/// The most charges in one run of a script: Lua cannot name more than 8000 keys in one call, and
/// the server answers nobody else meanwhile.
const PARTS_MAX: usize = 1_024;

/// Requests that one run of a script answers.
struct Group {
    batch: Batch,
    jobs: Vec<Job>,
    asking: bool,
    /// How often the server has not decided it and said so.
    repeats: u8,
}

/// The most times that a server is asked once more: it did not know the script, and then needs the
/// whole one. A store that says the same again would be asked for ever.
const REPEATS_MAX: u8 = 2;

/// Sends the requests and answers everyone who waits for one of them.
pub(crate) async fn fly(link: &Arc<Link>, jobs: Vec<Job>) {
    let Some((mut connection, number)) = link.current() else {
        return jobs.into_iter().for_each(|job| link.refuse(job, "the store has just gone down"));
    };
    let mut groups = gather(link, jobs);
    let mut with_source = false;
    while !groups.is_empty() {
        let pipeline = pipeline(&groups, with_source);
        note_traffic(link, &groups, &pipeline, with_source);
        let sent = connection.send_packed_commands(&pipeline, 0, pipeline.len());
        match tokio::time::timeout(link.settings.timeout, sent).await {
            Ok(Ok(answers)) => groups = land(link, number, groups, answers),
            Ok(Err(error)) => {
                let reason = format!("the connection to the store broke: {error}");
                link.down(number, &reason);
                return lose(link, groups, &reason);
            }
            Err(_) => {
                let reason = "the store did not answer in time";
                link.down(number, reason);
                return lose(link, groups, reason);
            }
        }
        // Whatever is left is sent with its source: the server did not know the script, or may not
        // know the one that is needed now.
        with_source = true;
    }
}

/// Requests as batches: those of one slot together, and alone those that must be.
fn gather(link: &Link, jobs: Vec<Job>) -> Vec<Group> {
    let mut by_slot: BTreeMap<u16, Vec<Job>> = BTreeMap::new();
    let mut groups = Vec::new();
    for job in jobs.into_iter().filter(|job| job.ticket.send()) {
        if is_solo(&job) {
            groups.push(group(link, vec![job]));
            continue;
        }
        let waiting = by_slot.entry(if link.by_slot { job.slot } else { 0 }).or_default();
        let parts: usize = waiting.iter().map(|job| job.request.parts.len()).sum();
        if parts + job.request.parts.len() > PARTS_MAX || waiting.len() >= link.settings.batch_max {
            groups.push(group(link, std::mem::take(waiting)));
        }
        waiting.push(job);
    }
    groups.extend(by_slot.into_values().map(|waiting| group(link, waiting)));
    groups
}

/// What has a time, a memory or a settlement of its own does not share a run with others.
fn is_solo(job: &Job) -> bool {
    let manner = &job.manner;
    let settles = matches!(job.request.op, Op::Settle { .. });
    manner.at.is_some() || manner.remember_ms.is_some() || job.asking || settles
}

fn group(link: &Link, jobs: Vec<Job>) -> Group {
    let manner = jobs.first().map(|job| job.manner).unwrap_or_default();
    let asking = jobs.iter().any(|job| job.asking);
    let batch = Batch::new(&link.settings.prefix, &requests(&jobs), manner);
    Group { batch, jobs, asking, repeats: 0 }
}

fn requests(jobs: &[Job]) -> Vec<&Request> {
    jobs.iter().map(|job| &job.request).collect()
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
fn note_traffic(link: &Link, groups: &[Group], pipeline: &Pipeline, is_repeated: bool) {
    let requests = groups.iter().map(|group| group.jobs.len()).sum();
    link.traffic.sent(if is_repeated { 0 } else { requests }, pipeline.len());
}

/// Hands out the answers; what is left are the groups whose script the server did not know, or
/// which need the whole script.
fn land(link: &Arc<Link>, number: u64, groups: Vec<Group>, answers: Vec<Value>) -> Vec<Group> {
    let mut answers = answers.into_iter();
    let mut left = Vec::new();
    for group in groups {
        if group.asking {
            answers.next();
        }
        match answers.next() {
            Some(Value::ServerError(error))
                if is(&error, ServerErrorKind::NoScript) && group.repeats < REPEATS_MAX =>
            {
                left.push(Group { repeats: group.repeats + 1, ..group });
            }
            Some(Value::ServerError(error)) => reject(link, number, group, &error),
            Some(Value::Nil) if group.repeats < REPEATS_MAX => {
                let mut group = Group { repeats: group.repeats + 1, ..group };
                group.batch.take_whole_script(&requests(&group.jobs));
                left.push(group);
            }
            Some(Value::Nil) => {
                let refused = || StoreError::new(ErrorKind::Refused, "the store does not decide");
                group.jobs.into_iter().for_each(|job| fail(link, job, Trouble::store(refused())));
            }
            Some(answer) => {
                let outcomes = group.batch.outcomes(&requests(&group.jobs), answer);
                answer_all(link, group.jobs, outcomes);
            }
            None => lose(link, vec![group], "the store's answer is incomplete"),
        }
    }
    left
}

fn answer_all(link: &Link, jobs: Vec<Job>, outcomes: Vec<Result<Outcome, StoreError>>) {
    let is_written = |(job, outcome): (&Job, &Result<Outcome, StoreError>)| {
        let is_read = job.request.op == Op::Peek;
        outcome.as_ref().is_ok_and(|outcome| !is_read && outcome.states.is_empty())
    };
    let is_any_written = jobs.iter().zip(&outcomes).any(is_written);
    // Whoever has a decision in hand must find the outage over.
    link.outage.answered(if is_any_written { Proof::Written } else { Proof::Read });
    for (job, outcome) in jobs.into_iter().zip(outcomes) {
        // Nobody waits any more if this fails.
        let _ = job.answer.send(outcome.map_err(Trouble::request));
    }
}

/// The server said no: the script did not run, or stopped before its first write.
fn reject(link: &Arc<Link>, number: u64, group: Group, error: &ServerError) {
    let destination = match error.kind() {
        Some(ServerErrorKind::Moved) => {
            redirect(error).map(|(host, port)| Destination::Moved { host, port })
        }
        Some(ServerErrorKind::Ask) => {
            redirect(error).map(|(host, port)| Destination::Ask { host, port })
        }
        Some(ServerErrorKind::TryAgain) => Some(Destination::OnceMoved),
        Some(ServerErrorKind::ClusterDown) => Some(Destination::Later),
        _ => None,
    };
    if let Some(to) = destination {
        return group.jobs.into_iter().for_each(|job| bounce(link, job, &to));
    }
    let useless = [ServerErrorKind::ReadOnly, ServerErrorKind::MasterDown];
    if error.kind().is_some_and(|kind| useless.contains(&kind)) {
        link.down(number, &trouble(error).error.to_string());
    }
    for job in group.jobs {
        fail(link, job, trouble(error));
    }
}

fn trouble(error: &ServerError) -> Trouble {
    let details = error.details().unwrap_or_default();
    let message = format!("the store refuses: {} {details}", error.code());
    let transient = [
        ServerErrorKind::ReadOnly,
        ServerErrorKind::MasterDown,
        ServerErrorKind::BusyLoading,
        ServerErrorKind::ClusterDown,
        ServerErrorKind::TryAgain,
    ];
    if error.kind().is_some_and(|kind| transient.contains(&kind)) || error.code() == "BUSY" {
        return Trouble::store(unavailable(&message));
    }
    let refused = StoreError::new(ErrorKind::Refused, message);
    match error.code() {
        "CROSSSLOT" | "WRONGTYPE" => Trouble::request(refused),
        _ => Trouble::store(refused),
    }
}

/// Sends a request on that was certainly not acted upon.
fn bounce(link: &Link, mut job: Job, to: &Destination) {
    job.ticket.unsend();
    // Keys on their way arrive; whoever asked gives up when the budget is over, and is not sent.
    job.hops += u8::from(!matches!(to, Destination::OnceMoved));
    if job.hops > HOPS_MAX {
        return fail(link, job, Trouble::store(unavailable("the slot moves too often")));
    }
    let to = match to {
        Destination::Moved { host, port } => Destination::Moved { host: host.clone(), port: *port },
        Destination::Ask { host, port } => Destination::Ask { host: host.clone(), port: *port },
        Destination::Later => Destination::Later,
        Destination::OnceMoved => Destination::OnceMoved,
    };
    if let Err(lost) = link.bounced.send(Bounce { job, to }) {
        fail(link, lost.0.job, Trouble::store(unavailable("the store is being shut down")));
    }
}

/// Nobody knows what the server made of these requests. Those whose answers it remembers are asked
/// again, under the same name; the others are reported as unknown.
fn lose(link: &Link, groups: Vec<Group>, message: &str) {
    for job in groups.into_iter().flat_map(|group| group.jobs) {
        if job.manner.remember_ms.is_some() && job.hops < HOPS_MAX {
            link.outage.failed(job.began);
            bounce(link, job, &Destination::Later);
        } else {
            fail(link, job, Trouble::store(unknown(message)));
        }
    }
}

fn fail(link: &Link, job: Job, trouble: Trouble) {
    if trouble.degrades {
        match trouble.error.kind() {
            ErrorKind::Refused => link.outage.refused_by(job.began, &trouble.error.to_string()),
            _ => link.outage.failed_by(job.began, &trouble.error.to_string()),
        }
        link.traffic.failures.fetch_add(1, Ordering::Relaxed);
    }
    // Nobody waits any more if this fails.
    let _ = job.answer.send(Err(trouble));
}

fn is(error: &ServerError, kind: ServerErrorKind) -> bool {
    error.kind() == Some(kind)
}

/// The host and port that a server names: `MOVED 3999 127.0.0.1:6381`.
fn redirect(error: &ServerError) -> Option<(String, u16)> {
    let address = error.details()?.split_whitespace().nth(1)?;
    let (host, port) = address.rsplit_once(':')?;
    Some((host.to_owned(), port.parse().ok()?))
}
