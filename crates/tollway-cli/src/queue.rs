//! `tollway queue …`: jobs of a running service, over its HTTP.

mod handler;
mod look;
mod watch;
mod work;

use std::io::BufRead as _;
use std::time::Duration;

use anyhow::{Result, bail};
use serde_json::{Map, Value, json};
use tollway_queue::QueueName;

use crate::amounts::duration;
use crate::client::{self, Trust};
use crate::counted::counted;
use crate::misuse::misuse;
use crate::say;

/// Jobs per call of a batch.
const BATCH: usize = 500;
/// Payloads and groups per call: with their escapes and fields, what a service takes in one body.
const BATCH_BYTES_MAX: usize = 256 << 10;
/// A payload on the command line or a line of standard input is at most this long.
const LINE_BYTES_MAX: usize = 1 << 20;

/// Enqueue, watch, retry and drain jobs of a running service.
///
/// If the service needs a token, set TOLLWAY_TOKEN. Enqueueing and listing groups need the role
/// check, other reading needs read, and pause, resume and retry need admin.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The service's HTTP address: host:port, https://host:port or unix:/path
    #[arg(long, global = true, default_value = "127.0.0.1:8080", value_name = "ADDRESS")]
    at: String,

    /// Print the service's answer as JSON
    #[arg(long, global = true)]
    json: bool,

    #[command(flatten)]
    trust: Trust,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Enqueue a job, or one job per line of standard input
    Enqueue(EnqueueArgs),
    /// Show progress, rate and expected end until the queue is empty
    Watch(watch::Args),
    /// Try one dead letter again, or all of them
    Retry {
        /// The queue
        queue: QueueName,
        /// The dead letter [default: all]
        id: Option<u64>,
    },
    /// Wait until no job is waiting, delayed or running
    Drain(watch::Args),
    /// Print the figures of a queue and its groups, or of every queue
    Stats {
        /// The queue
        queue: Option<QueueName>,
        /// How many groups to show (needs the role check); 0 for none
        #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(0..=1_000))]
        groups: u16,
    },
    /// Run a program for each job, with the payload on standard input
    ///
    /// The program also has TOLLWAY_JOB, TOLLWAY_GROUP and TOLLWAY_ATTEMPT in its environment. Its
    /// exit code says what came of the job. 0: it is done. 75: the upstream refuses, and the whole
    /// group waits as long as header fields on standard output say. 65: it must not be tried again.
    /// Any other code: it has failed, and is tried again.
    Work(work::Args),
    /// Show a job
    Show {
        /// The queue
        queue: QueueName,
        /// The job
        id: u64,
    },
    /// Wait for a job to end, and print its result; fails if the job does
    Wait {
        /// The queue
        queue: QueueName,
        /// The job
        id: u64,
        /// How long to wait at most, such as 10m [default: as long as it takes]
        #[arg(long, value_name = "TIME", value_parser = duration)]
        timeout: Option<Duration>,
    },
    /// Change when a waiting job starts
    Reschedule {
        /// The queue
        queue: QueueName,
        /// The job
        id: u64,
        /// How long from now, such as 90s [default: at once]
        #[arg(long, value_name = "TIME", value_parser = duration)]
        delay: Option<Duration>,
    },
    /// List the next jobs of a group, in the order in which they start
    Peek(look::PeekArgs),
    /// List the jobs that run, and at which workers
    Running {
        /// The queue
        queue: QueueName,
        /// How many to list
        #[arg(long, default_value_t = 100)]
        #[arg(value_parser = clap::value_parser!(u16).range(1..=1_000))]
        max: u16,
    },
    /// List dead letters and why they are dead
    Dead {
        /// The queue
        queue: QueueName,
        /// How many to list
        #[arg(long, default_value_t = 100)]
        #[arg(value_parser = clap::value_parser!(u16).range(1..=1_000))]
        max: u16,
    },
    /// Show the limits of a queue, or change them, or those of one group
    Limits(look::LimitsArgs),
    /// List recurring jobs, or create, replace or end one
    Recurring(look::RecurringArgs),
    /// Cancel all waiting and delayed jobs of a group, or of the whole queue
    Purge {
        /// The queue
        queue: QueueName,
        /// Only this group
        #[arg(long, required_unless_present = "all")]
        group: Option<String>,
        /// Every group
        #[arg(long, conflicts_with = "group")]
        all: bool,
    },
    /// Stop starting jobs
    Pause {
        /// The queue
        queue: QueueName,
        /// Only this group
        #[arg(long)]
        group: Option<String>,
    },
    /// Start jobs again
    Resume {
        /// The queue
        queue: QueueName,
        /// Only this group
        #[arg(long)]
        group: Option<String>,
    },
    /// Remove a waiting job, or ask the worker of a running one to stop
    Cancel {
        /// The queue
        queue: QueueName,
        /// The job
        id: u64,
    },
}

#[derive(Debug, clap::Args)]
struct EnqueueArgs {
    /// The queue
    queue: QueueName,
    /// The payload; - for one job per line of standard input
    payload: String,
    /// The group whose limit applies
    #[arg(short, long, default_value = "")]
    group: String,
    /// Higher priorities go first within a group
    #[arg(long, default_value_t = 0)]
    priority: u8,
    /// Units to take from every limit
    #[arg(long, default_value_t = 1)]
    weight: u32,
    /// How long to wait before the job may start, such as 90s
    #[arg(long, value_name = "TIME", value_parser = duration)]
    delay: Option<Duration>,
    /// Start the job within this time from now, such as 10m, or not at all
    #[arg(long, value_name = "TIME", value_parser = duration)]
    start_within: Option<Duration>,
    /// Idempotency key: a repeated call enqueues no second job
    #[arg(long)]
    key: Option<String>,
}

/// The queues of a service, and how answers are told.
struct Client {
    service: client::Client,
    is_json: bool,
}

impl Client {
    fn get(&self, path: &str) -> Result<Value> {
        self.service.get(&below(path))
    }

    fn post(&self, path: &str, body: &Value) -> Result<Value> {
        self.service.post(&below(path), body)
    }

    fn patch(&self, path: &str, body: &Value) -> Result<Value> {
        self.service.patch(&below(path), body)
    }

    fn delete(&self, path: &str) -> Result<Value> {
        self.service.delete(&below(path))
    }

    /// Says `answer` as it is, or else in words.
    fn tell(&self, answer: &Value, words: impl FnOnce(&Value) -> String) -> Result<()> {
        say(&if self.is_json { format!("{answer}\n") } else { words(answer) })
    }
}

/// A name or text in a path or a query.
pub(crate) fn escaped(text: &str) -> String {
    let escape = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' => {
            char::from(byte).to_string()
        }
        byte => format!("%{byte:02X}"),
    };
    text.bytes().map(escape).collect()
}

fn below(path: &str) -> String {
    format!("/v1/queues{}{path}", if path.is_empty() { "" } else { "/" })
}

pub(crate) fn run(args: Args) -> Result<()> {
    let service = client::Client::new(&args.at, &args.trust)?;
    let client = Client { service, is_json: args.json };
    match args.command {
        Command::Work(args) => work::run(client.service, args),
        Command::Show { queue, id } => look::show(&client, &queue, id),
        Command::Wait { queue, id, timeout } => look::wait(&client, &queue, id, timeout),
        Command::Reschedule { queue, id, delay } => {
            let delay_ms = delay.unwrap_or_default().as_millis();
            let path = format!("{queue}/jobs/{id}/reschedule");
            let answer = client.post(&path, &json!({"delay_ms": delay_ms as u64}))?;
            client.tell(&answer, |answer| starts(answer) + "\n")
        }
        Command::Peek(args) => look::peek(&client, &args),
        Command::Running { queue, max } => look::running(&client, &queue, max),
        Command::Dead { queue, max } => look::dead(&client, &queue, max),
        Command::Limits(args) => look::limits(&client, &args),
        Command::Recurring(args) => look::recurring(&client, &args),
        Command::Purge { queue, group, .. } => purge(&client, &queue, group.as_deref()),
        Command::Enqueue(args) => enqueue(&client, &args),
        Command::Watch(args) => watch::watch(&client, &args),
        Command::Drain(args) => watch::drain(&client, &args),
        Command::Retry { queue, id } => retry(&client, &queue, id),
        Command::Stats { queue: Some(queue), groups } => stats(&client, &queue, groups),
        Command::Stats { queue: None, .. } => list(&client),
        Command::Pause { queue, group } => pause(&client, &queue, "pause", group),
        Command::Resume { queue, group } => pause(&client, &queue, "resume", group),
        Command::Cancel { queue, id } => {
            let answer = client.delete(&format!("{queue}/jobs/{id}"))?;
            client.tell(&answer, |answer| format!("job {id}: {}\n", word(answer, "cancelled")))
        }
    }
}

fn enqueue(client: &Client, args: &EnqueueArgs) -> Result<()> {
    let ms = |duration: Option<Duration>| duration.map(|duration| duration.as_millis() as u64);
    let times = [("delay_ms", ms(args.delay)), ("start_within_ms", ms(args.start_within))];
    let job = |payload: &str| {
        let mut job = Map::new();
        job.insert("group".to_owned(), args.group.as_str().into());
        job.insert("payload".to_owned(), payload.into());
        job.insert("priority".to_owned(), args.priority.into());
        job.insert("weight".to_owned(), args.weight.into());
        for (field, ms) in times {
            job.extend(ms.map(|ms| (field.to_owned(), ms.into())));
        }
        if let Some(key) = &args.key {
            job.insert("key".to_owned(), key.as_str().into());
        }
        Value::Object(job)
    };
    if args.payload != "-" {
        let answer = client.post(&format!("{}/jobs", args.queue), &job(&args.payload))?;
        return client.tell(&answer, |answer| starts(answer) + "\n");
    }
    if args.key.is_some() {
        return Err(misuse("--key names one job: lines of standard input cannot share it"));
    }
    let (mut count, mut bytes) = (0, 0);
    let mut batch = Vec::new();
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        if line.len() > LINE_BYTES_MAX {
            bail!("line {} is longer than {LINE_BYTES_MAX} bytes", count + batch.len() + 1);
        }
        if bytes + line.len() > BATCH_BYTES_MAX {
            count += send(client, &args.queue, &mut batch)?;
            bytes = 0;
        }
        bytes += line.len() + args.group.len();
        batch.push(job(&line));
        if batch.len() == BATCH {
            count += send(client, &args.queue, &mut batch)?;
            bytes = 0;
        }
    }
    count += send(client, &args.queue, &mut batch)?;
    client.tell(&json!({"enqueued": count}), |_| jobs(count, "enqueued"))
}

fn send(client: &Client, queue: &QueueName, batch: &mut Vec<Value>) -> Result<usize> {
    let jobs = std::mem::take(batch);
    let count = jobs.len();
    if count > 0 {
        client.post(&format!("{queue}/jobs/batch"), &json!({"jobs": jobs}))?;
    }
    Ok(count)
}

/// What became of so many jobs.
fn jobs(count: usize, what: &str) -> String {
    format!("{} {what}\n", counted(count as u64, "job", "jobs"))
}

/// Which job, and when it starts.
fn starts(answer: &Value) -> String {
    let id = &answer["id"];
    let again = if answer["duplicate"] == true { ", as before" } else { "" };
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now_ms = now.map_or(0, |now| now.as_millis() as u64);
    match answer["ready"]["latest_ms"].as_u64() {
        // Told in tenths of a second.
        Some(at_ms) if at_ms >= now_ms + 50 => {
            let seconds = (at_ms - now_ms) as f64 / 1_000.0;
            format!("job {id}{again}, starts within {seconds:.1} s")
        }
        Some(_) => format!("job {id}{again}, may start now"),
        None => format!("job {id}{again}"),
    }
}

fn retry(client: &Client, queue: &QueueName, id: Option<u64>) -> Result<()> {
    if let Some(id) = id {
        let answer = client.post(&format!("{queue}/dead/retry"), &json!({"id": id}))?;
        return client.tell(&answer, |_| format!("job {id} waits again\n"));
    }
    let (mut count, mut cursor) = (0, String::new());
    loop {
        // In order of their ids: one that dies again meanwhile is not met twice.
        let page = client.get(&format!("{queue}/dead?max=1000{cursor}"))?;
        let jobs = page["jobs"].as_array().into_iter().flatten();
        let ids: Vec<u64> = jobs.filter_map(|job| job["id"].as_u64()).collect();
        let Some(last) = ids.last() else {
            let told = json!({"revived": count});
            let words = counted(count, "job waits", "jobs wait");
            return client.tell(&told, |_| format!("{words} again\n"));
        };
        for id in &ids {
            client.post(&format!("{queue}/dead/retry"), &json!({"id": id}))?;
            count += 1;
        }
        cursor = format!("&after={last}");
    }
}

fn pause(client: &Client, queue: &QueueName, verb: &str, group: Option<String>) -> Result<()> {
    let body = group.as_ref().map_or(json!({}), |group| json!({"group": group}));
    let answer = client.post(&format!("{queue}/{verb}"), &body)?;
    let what = group.map_or(format!("queue {queue}"), |group| format!("group {group:?}"));
    client.tell(&answer, |_| format!("{what}: {verb}d\n"))
}

/// Cancels what has not begun. Jobs that start meanwhile run; those that come meanwhile may stay.
fn purge(client: &Client, queue: &QueueName, group: Option<&str>) -> Result<()> {
    let mut count = 0;
    match group {
        Some(group) => count += purge_group(client, queue, group)?,
        None => {
            let mut cursor = String::new();
            loop {
                let page = client.get(&format!("{queue}/groups?max=1000{cursor}"))?;
                for group in page["groups"].as_array().into_iter().flatten() {
                    let name = group["group"].as_str().unwrap_or_default();
                    count += purge_group(client, queue, name)?;
                }
                let Some(next) = page["cursor"].as_str() else { break };
                cursor = format!("&cursor={}", escaped(next));
            }
        }
    }
    client.tell(&json!({"cancelled": count}), |_| jobs(count, "cancelled"))
}

fn purge_group(client: &Client, queue: &QueueName, group: &str) -> Result<usize> {
    let mut count = 0;
    loop {
        let page = client.get(&format!("{queue}/peek?max=1000&group={}", escaped(group)))?;
        let jobs = page["jobs"].as_array().into_iter().flatten();
        let ids: Vec<u64> = jobs.filter_map(|job| job["id"].as_u64()).collect();
        let before = count;
        for id in ids {
            match client.delete(&format!("{queue}/jobs/{id}")) {
                Ok(_) => count += 1,
                // It has started, or somebody else was faster.
                Err(error) if client::is_missing(&error) => {}
                Err(error) => return Err(error),
            }
        }
        if count == before {
            return Ok(count);
        }
    }
}

fn stats(client: &Client, queue: &QueueName, groups: u16) -> Result<()> {
    let mut figures = client.get(queue.as_str())?;
    let mut lines = vec![line(&figures)];
    if groups > 0 {
        let page = client.get(&format!("{queue}/groups?max={groups}"))?;
        figures["groups_page"] = page["groups"].clone();
        let now_ms = page["now_ms"].as_u64().unwrap_or(0);
        for group in page["groups"].as_array().into_iter().flatten() {
            lines.push(format!(
                "  {:<32} {:>8} waiting {:>6} delayed {:>6} running  {}",
                word(group, "group"),
                group["waiting"],
                group["delayed"],
                group["running"],
                next_start(group, now_ms),
            ));
        }
        if page["cursor"].is_string() {
            lines.push(format!("  and more: {} groups in all", page["groups_total"]));
        }
    }
    client.tell(&figures, |_| lines.join("\n") + "\n")
}

/// When a group starts its next job.
fn next_start(group: &Value, now_ms: u64) -> String {
    if group["paused"] == true {
        return "paused".to_owned();
    }
    match group["ready_at_ms"].as_u64() {
        Some(at) if at > now_ms => format!("in {:.1} s", (at - now_ms) as f64 / 1_000.0),
        Some(_) => "now".to_owned(),
        None if group["waiting"] == 0 && group["delayed"] == 0 => "idle".to_owned(),
        None => "after a response".to_owned(),
    }
}

fn list(client: &Client) -> Result<()> {
    let answer = client.get("")?;
    client.tell(&answer, |answer| {
        let lines: Vec<String> =
            answer["queues"].as_array().into_iter().flatten().map(line).collect();
        if lines.is_empty() { NO_QUEUES.to_owned() } else { lines.join("\n") + "\n" }
    })
}

const NO_QUEUES: &str = "The service has no queues. To make one, add [[queues]] and a name to its \
                         configuration:\n\n[[queues]]\nname = \"mail\"\n";

fn line(figures: &Value) -> String {
    format!(
        "{}: {} waiting, {} delayed, {} running in {}; {} done, {} dead{}",
        word(figures, "name"),
        figures["waiting"],
        figures["delayed"],
        figures["running"],
        counted(figures["groups"].as_u64().unwrap_or(0), "group", "groups"),
        figures["totals"]["done"],
        figures["dead"],
        if figures["paused"] == true { "; paused" } else { "" },
    )
}

/// A name as the terminal may show it: groups are named by whoever enqueues, and a control
/// character would move the cursor, or end the line and begin another.
fn word(value: &Value, field: &str) -> String {
    value[field].as_str().unwrap_or_default().escape_debug().to_string()
}
