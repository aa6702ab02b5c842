//! `tollway queue …`: jobs of a running service, over its HTTP.

mod watch;

use std::io::BufRead as _;

use anyhow::{Context as _, Result, bail};
use serde_json::{Map, Value, json};
use tollway_queue::QueueName;

use crate::client::{self, Trust};
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

    #[command(flatten)]
    trust: Trust,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Enqueue a job, or with - one job per line of standard input
    Enqueue(EnqueueArgs),
    /// Show progress, rate and expected end until the queue is empty
    Watch(watch::Args),
    /// Put one dead letter, or all, back into their groups
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
    #[arg(long, value_name = "DURATION")]
    delay: Option<String>,
    /// Idempotency key: a repeated call enqueues no second job
    #[arg(long)]
    key: Option<String>,
}

/// The queues of a service.
struct Client(client::Client);

impl Client {
    fn get(&self, path: &str) -> Result<Value> {
        self.0.get(&below(path))
    }

    fn post(&self, path: &str, body: &Value) -> Result<Value> {
        self.0.post(&below(path), body)
    }

    fn delete(&self, path: &str) -> Result<Value> {
        self.0.delete(&below(path))
    }
}

fn below(path: &str) -> String {
    format!("/v1/queues{}{path}", if path.is_empty() { "" } else { "/" })
}

pub(crate) fn run(args: Args) -> Result<()> {
    let client = Client(client::Client::new(&args.at, &args.trust)?);
    match args.command {
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
            say(&format!("job {id}: {}\n", word(&answer, "cancelled")))
        }
    }
}

fn enqueue(client: &Client, args: &EnqueueArgs) -> Result<()> {
    let delay = args.delay.as_deref().map(tollway_core::parse_duration).transpose();
    let delay_ms = delay
        .context("invalid --delay: expected a duration such as 90s or 2h")?
        .map(|delay| delay.as_millis() as u64);
    let job = |payload: &str| {
        let mut job = Map::new();
        job.insert("group".to_owned(), args.group.as_str().into());
        job.insert("payload".to_owned(), payload.into());
        job.insert("priority".to_owned(), args.priority.into());
        job.insert("weight".to_owned(), args.weight.into());
        if let Some(delay_ms) = delay_ms {
            job.insert("delay_ms".to_owned(), delay_ms.into());
        }
        if let Some(key) = &args.key {
            job.insert("key".to_owned(), key.as_str().into());
        }
        Value::Object(job)
    };
    if args.payload != "-" {
        let answer = client.post(&format!("{}/jobs", args.queue), &job(&args.payload))?;
        return say(&(enqueued(&answer) + "\n"));
    }
    if args.key.is_some() {
        bail!("--key names one job: lines of standard input cannot share it");
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
    say(&format!("{count} jobs enqueued\n"))
}

fn send(client: &Client, queue: &QueueName, batch: &mut Vec<Value>) -> Result<usize> {
    let jobs = std::mem::take(batch);
    let count = jobs.len();
    if count > 0 {
        client.post(&format!("{queue}/jobs/batch"), &json!({"jobs": jobs}))?;
    }
    Ok(count)
}

fn enqueued(answer: &Value) -> String {
    let id = &answer["id"];
    let again = if answer["duplicate"] == true { ", as before" } else { "" };
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now_ms = now.map_or(0, |now| now.as_millis() as u64);
    match answer["ready"]["latest_ms"].as_u64() {
        Some(at_ms) if at_ms > now_ms => {
            let seconds = (at_ms - now_ms) as f64 / 1_000.0;
            format!("job {id}{again}, starts within {seconds:.1} s")
        }
        Some(_) => format!("job {id}{again}, may start now"),
        None => format!("job {id}{again}"),
    }
}

fn retry(client: &Client, queue: &QueueName, id: Option<u64>) -> Result<()> {
    if let Some(id) = id {
        client.post(&format!("{queue}/dead/retry"), &json!({"id": id}))?;
        return say(&format!("job {id} waits again\n"));
    }
    let (mut count, mut cursor) = (0, String::new());
    loop {
        // In order of their ids: one that dies again meanwhile is not met twice.
        let page = client.get(&format!("{queue}/dead?max=1000{cursor}"))?;
        let jobs = page["jobs"].as_array().into_iter().flatten();
        let ids: Vec<u64> = jobs.filter_map(|job| job["id"].as_u64()).collect();
        let Some(last) = ids.last() else { return say(&format!("{count} jobs wait again\n")) };
        for id in &ids {
            client.post(&format!("{queue}/dead/retry"), &json!({"id": id}))?;
            count += 1;
        }
        cursor = format!("&after={last}");
    }
}

fn pause(client: &Client, queue: &QueueName, verb: &str, group: Option<String>) -> Result<()> {
    let body = group.as_ref().map_or(json!({}), |group| json!({"group": group}));
    client.post(&format!("{queue}/{verb}"), &body)?;
    let what = group.map_or(format!("queue {queue}"), |group| format!("group {group:?}"));
    say(&format!("{what}: {verb}d\n"))
}

fn stats(client: &Client, queue: &QueueName, groups: u16) -> Result<()> {
    let figures = client.get(queue.as_str())?;
    let mut lines = vec![line(&figures)];
    if groups > 0 {
        let page = client.get(&format!("{queue}/groups?max={groups}"))?;
        let now_ms = page["now_ms"].as_u64().unwrap_or(0);
        for group in page["groups"].as_array().into_iter().flatten() {
            let ready = match group["ready_at_ms"].as_u64() {
                Some(at) if at > now_ms => format!("in {:.1} s", (at - now_ms) as f64 / 1_000.0),
                Some(_) => "now".to_owned(),
                None => "after a response".to_owned(),
            };
            lines.push(format!(
                "  {:<32} {:>8} waiting {:>6} delayed {:>6} running  {}{ready}",
                word(group, "group"),
                group["waiting"],
                group["delayed"],
                group["running"],
                if group["paused"] == true { "paused, " } else { "" },
            ));
        }
        if page["cursor"].is_string() {
            lines.push(format!("  and more: {} groups in all", page["groups_total"]));
        }
    }
    say(&(lines.join("\n") + "\n"))
}

fn list(client: &Client) -> Result<()> {
    let answer = client.get("")?;
    let lines: Vec<String> = answer["queues"].as_array().into_iter().flatten().map(line).collect();
    say(&if lines.is_empty() { "no queues\n".to_owned() } else { lines.join("\n") + "\n" })
}

fn line(figures: &Value) -> String {
    format!(
        "{}: {} waiting, {} delayed, {} running in {} groups; {} done, {} dead{}",
        word(figures, "name"),
        figures["waiting"],
        figures["delayed"],
        figures["running"],
        figures["groups"],
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
