//! Jobs, dead letters, limits and recurring jobs on the terminal.

use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use serde_json::{Value, json};
use tollway_queue::QueueName;

use super::{Client, escaped, word};
use crate::amounts::duration;
use crate::misuse::misuse;

/// How long one call waits, of those that wait for a job.
const WAIT: Duration = Duration::from_secs(5);

#[derive(Debug, clap::Args)]
pub(super) struct PeekArgs {
    /// The queue
    queue: QueueName,
    /// The group
    #[arg(short, long, default_value = "")]
    group: String,
    /// How many to list
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    max: u16,
}

#[derive(Debug, clap::Args)]
pub(super) struct LimitsArgs {
    /// The queue
    queue: QueueName,
    /// New limits, such as 'slots 10/10s': of every group, or of the one that --group names
    limits: Vec<String>,
    /// Only this group
    #[arg(long)]
    group: Option<String>,
    /// Give the group the limits of the queue again
    #[arg(long, requires = "group", conflicts_with = "limits")]
    reset: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct RecurringArgs {
    /// The queue
    queue: QueueName,
    /// The recurring job to make, replace or end [default: list all]
    name: Option<String>,
    /// When it runs, as the five fields of cron
    #[arg(long, requires = "name", conflicts_with_all = ["every", "remove"])]
    cron: Option<String>,
    /// The IANA time zone of --cron [default: UTC]
    #[arg(long, requires = "cron")]
    zone: Option<String>,
    /// How often it runs, such as 15m
    #[arg(long, value_name = "TIME", requires = "name", conflicts_with = "remove")]
    #[arg(value_parser = duration)]
    every: Option<Duration>,
    /// End the recurring job
    #[arg(long, requires = "name")]
    remove: bool,
    /// The group whose limit applies
    #[arg(short, long, default_value = "")]
    group: String,
    /// The payload
    #[arg(long, default_value = "")]
    payload: String,
}

/// `show QUEUE ID`.
pub(super) fn show(client: &Client, queue: &QueueName, id: u64) -> Result<()> {
    let job = client.get(&format!("{queue}/jobs/{id}"))?;
    client.tell(&job, |job| {
        let mut lines = vec![line(job)];
        let fields = job.as_object().into_iter().flatten();
        let told = fields.filter_map(|(name, value)| Some((name, told_of(name, value)?)));
        lines.extend(told.map(|(name, words)| {
            let name = if name == "at_ms" { "ended" } else { name.trim_end_matches("_at_ms") };
            format!("  {name:<16} {words}")
        }));
        lines.extend(job["history"].as_array().into_iter().flatten().map(past_line));
        lines.join("\n") + "\n"
    })
}

/// What a field of a job says to people; nothing if its line says it, or if it says nothing.
fn told_of(name: &str, value: &Value) -> Option<String> {
    let at = |value: &Value| value.as_i64().map(when);
    match name {
        "id" | "state" | "group" | "attempt" | "reason" | "history" | "worker" | "leased_at_ms"
        | "expires_at_ms" | "cancelled" => None,
        "due_at_ms" => at(value).filter(|told| told.starts_with("in ")),
        "ready" => Some(match at(&value["expected_ms"]).zip(at(&value["latest_ms"])) {
            Some((expected, latest)) => format!("{expected}, at the latest {latest}"),
            None => "nobody can tell: it is paused, or waits for a response".to_owned(),
        }),
        "progress" if value.is_null() => None,
        "progress" => Some(format!("{} of {}", value["done"], value["total"])),
        name if name.ends_with("_at_ms") || name == "at_ms" => at(value),
        _ => Some(shown(value)),
    }
}

/// How far a moment is from now, by this machine's clock.
fn when(at_ms: i64) -> String {
    match at_ms - now_ms() {
        left if left > 50 => format!("in {:.1} s", left as f64 / 1_000.0),
        left if left > -50 => "now".to_owned(),
        left => format!("{:.1} s ago", left as f64 / -1_000.0),
    }
}

fn now_ms() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |now| now.as_millis() as i64)
}

/// An attempt that did not get its job done, in a line.
fn past_line(past: &Value) -> String {
    let moment = |field: &str| past[field].as_u64().unwrap_or(0);
    let took_ms = moment("ended_at_ms").saturating_sub(moment("leased_at_ms"));
    let mut line = format!("  attempt {} {} after ", past["attempt"], word(past, "outcome"));
    line += &format!("{:.1} s", took_ms as f64 / 1_000.0);
    if past["worker"].as_str().is_some_and(|name| !name.is_empty()) {
        line += &format!(" by {}", word(past, "worker"));
    }
    if past["reason"].is_string() {
        line += &format!(": {}", word(past, "reason"));
    }
    if let Some(wait_ms) = past["wait_ms"].as_u64() {
        line += &format!("; its group was to wait {:.1} s", wait_ms as f64 / 1_000.0);
    }
    line
}

/// `wait QUEUE ID`.
pub(super) fn wait(
    client: &Client,
    queue: &QueueName,
    id: u64,
    timeout: Option<Duration>,
) -> Result<()> {
    let end = timeout.map(|timeout| Instant::now() + timeout);
    let job = loop {
        let left = end.map_or(WAIT, |end| end.saturating_duration_since(Instant::now()).min(WAIT));
        let job = client.get(&format!("{queue}/jobs/{id}?wait_ms={}", left.as_millis()))?;
        if matches!(job["state"].as_str(), Some("done" | "dead")) {
            break job;
        }
        if left < WAIT && end.is_some_and(|end| end <= Instant::now()) {
            bail!("{}: not over in time", line(&job));
        }
    };
    if job["state"] == "dead" {
        bail!("{}", line(&job));
    }
    client.tell(&job, |job| match &job["result"] {
        Value::Null => format!("{}\n", line(job)),
        // As it is for a program; a terminal is not for a worker to write on.
        Value::String(result) if !std::io::stdout().is_terminal() => {
            format!("{}\n", result.strip_suffix('\n').unwrap_or(result))
        }
        result => format!("{}\n", shown(result)),
    })
}

/// `peek QUEUE --group GROUP`.
pub(super) fn peek(client: &Client, args: &PeekArgs) -> Result<()> {
    let PeekArgs { queue, group, max } = args;
    let page = client.get(&format!("{queue}/peek?max={max}&group={}", escaped(group)))?;
    client.tell(&page, |page| listed(page, "no job waits"))
}

/// `running QUEUE`.
pub(super) fn running(client: &Client, queue: &QueueName, max: u16) -> Result<()> {
    let page = client.get(&format!("{queue}/running?max={max}"))?;
    client.tell(&page, |page| listed(page, "no job runs"))
}

/// `dead QUEUE`.
pub(super) fn dead(client: &Client, queue: &QueueName, max: u16) -> Result<()> {
    let page = client.get(&format!("{queue}/dead?max={max}"))?;
    client.tell(&page, |page| listed(page, "no dead letters"))
}

fn listed(page: &Value, none: &str) -> String {
    let lines: Vec<String> = page["jobs"].as_array().into_iter().flatten().map(line).collect();
    if lines.is_empty() { format!("{none}\n") } else { lines.join("\n") + "\n" }
}

/// A job in a line.
fn line(job: &Value) -> String {
    let mut line = format!("job {}: {}", job["id"], word(job, "state"));
    if job["group"].is_string() {
        line += &format!(", group {:?}", job["group"].as_str().unwrap_or_default());
    }
    line += &format!(", attempt {}", job["attempt"]);
    if job["state"] == "running" {
        line += &with_worker(job);
    }
    if job["reason"].is_string() {
        line += &format!(": {}", word(job, "reason"));
    }
    line
}

/// Who has a job that runs, since when, and until when nothing need be heard of him.
fn with_worker(job: &Value) -> String {
    let now_ms = now_ms();
    let seconds = |ms: i64| format!("{:.1} s", ms.max(0) as f64 / 1_000.0);
    let moment = |field: &str| job[field].as_i64().unwrap_or(now_ms);
    let mut text = match job["worker"].as_str() {
        None | Some("") => String::new(),
        Some(_) => format!(" at {}", word(job, "worker")),
    };
    text += &format!(" for {}", seconds(now_ms - moment("leased_at_ms")));
    text += &format!(", lease ends in {}", seconds(moment("expires_at_ms") - now_ms));
    if job["cancelled"] == true {
        text += ", to be cancelled";
    }
    text
}

/// A value as the terminal may show it.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.escape_debug().to_string(),
        value => value.to_string(),
    }
}

/// `limits QUEUE [LIMIT ...]`.
pub(super) fn limits(client: &Client, args: &LimitsArgs) -> Result<()> {
    let LimitsArgs { queue, limits, group, reset } = args;
    let answer = match group {
        None if limits.is_empty() => client.get(queue.as_str())?,
        None => client.patch(queue.as_str(), &json!({"group_limits": limits}))?,
        Some(_) if limits.is_empty() && !reset => {
            return Err(misuse("give limits for the group, or --reset"));
        }
        Some(group) => {
            let limits = if *reset { Value::Null } else { json!(limits) };
            let answer = client
                .post(&format!("{queue}/limits"), &json!({"group": group, "limits": limits}))?;
            return client.tell(&answer, |answer| match answer["limits"].as_array() {
                Some(limits) => format!("group {group:?}: {}\n", joined(limits)),
                None => format!("group {group:?}: the limits of the queue\n"),
            });
        }
    };
    client.tell(&answer, |answer| {
        let settings = &answer["settings"];
        let list = |field: &str| joined(settings[field].as_array().map_or(&[][..], Vec::as_slice));
        format!(
            "{queue}: version {}, changed by a {}\n  every group   {}\n  the queue     {}\n  \
             shared        {}\n",
            answer["version"],
            word(answer, "changed_by"),
            list("group_limits"),
            list("queue_limits"),
            list("shared"),
        )
    })
}

fn joined(texts: &[Value]) -> String {
    let texts: Vec<String> = texts.iter().map(shown).collect();
    if texts.is_empty() { "none".to_owned() } else { texts.join(", ") }
}

/// `recurring QUEUE [NAME]`.
pub(super) fn recurring(client: &Client, args: &RecurringArgs) -> Result<()> {
    let (queue, path) = (&args.queue, format!("{}/recurring", args.queue));
    let Some(name) = &args.name else {
        let answer = client.get(&path)?;
        return client.tell(&answer, |answer| {
            let each = answer["recurring"].as_array().into_iter().flatten();
            let lines: Vec<String> = each.map(recurring_line).collect();
            if lines.is_empty() { "no recurring jobs\n".to_owned() } else { lines.concat() }
        });
    };
    if args.remove {
        let answer = client.delete(&format!("{path}/{}", escaped(name)))?;
        return client.tell(&answer, |_| format!("{queue}: {name:?} is ended\n"));
    }
    let mut body = json!({"name": name, "job": {"group": args.group, "payload": args.payload}});
    match (&args.cron, &args.every) {
        (Some(cron), _) => {
            body["cron"] = cron.as_str().into();
            if let Some(zone) = &args.zone {
                body["zone"] = zone.as_str().into();
            }
        }
        (None, Some(every)) => {
            body["every_ms"] = (every.as_millis() as u64).into();
        }
        (None, None) => return Err(misuse("give --cron, --every or --remove")),
    }
    let answer = client.post(&path, &body)?;
    client.tell(&answer, |_| format!("{queue}: {name:?} is set\n"))
}

fn recurring_line(recurring: &Value) -> String {
    let when = match (recurring["cron"].as_str(), recurring["every_ms"].as_u64()) {
        (Some(cron), _) => {
            let zone = recurring["zone"].as_str().unwrap_or("UTC");
            format!("{} ({})", cron.escape_debug(), zone.escape_debug())
        }
        (None, Some(every_ms)) => format!("every {:?}", std::time::Duration::from_millis(every_ms)),
        (None, None) => "never".to_owned(),
    };
    format!("{:<24} {when}\n", word(recurring, "name"))
}
