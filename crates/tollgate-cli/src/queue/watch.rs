//! Watching a queue: how far it is, how fast, and when it will be done.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::Value;

use super::client::Client;
use super::say;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The queue
    queue: String,
    /// Seconds between two looks
    #[arg(long, default_value_t = 0.5, value_name = "SECONDS")]
    every: f64,
    /// Give up after this many seconds
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<f64>,
}

/// What one look shows.
#[derive(Clone, Copy)]
struct Look {
    at: Instant,
    left: u64,
    over: u64,
}

impl Look {
    fn take(client: &Client, queue: &str) -> Result<(Self, Value)> {
        let figures = client.get(queue)?;
        let number = |value: &Value| value.as_u64().unwrap_or(0);
        let left =
            ["waiting", "delayed", "running"].iter().map(|name| number(&figures[*name])).sum();
        let totals = &figures["totals"];
        let over = ["done", "dead", "cancelled"].iter().map(|name| number(&totals[*name])).sum();
        Ok((Self { at: Instant::now(), left, over }, figures))
    }
}

/// Shows a bar until the queue is empty.
pub(super) fn watch(client: &Client, args: &Args) -> Result<()> {
    let (first, _) = Look::take(client, &args.queue)?;
    let bar = ProgressBar::with_draw_target(Some(first.left), ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len}  {msg}") {
        bar.set_style(style);
    }
    follow(client, args, first, |look, figures| {
        let over = look.over - first.over;
        bar.set_length(over + look.left);
        bar.set_position(over);
        bar.set_message(message(first, look, figures));
    })?;
    bar.finish_and_clear();
    let (last, _) = Look::take(client, &args.queue)?;
    say(&format!("{}: {} jobs are over, nothing is left", args.queue, last.over - first.over))
}

/// Waits, without a bar, until the queue is empty.
pub(super) fn drain(client: &Client, args: &Args) -> Result<()> {
    let (first, _) = Look::take(client, &args.queue)?;
    follow(client, args, first, |_, _| {})?;
    say(&format!("{}: nothing is left", args.queue))
}

fn follow(
    client: &Client,
    args: &Args,
    first: Look,
    mut show: impl FnMut(Look, &Value),
) -> Result<()> {
    let every = Duration::try_from_secs_f64(args.every)?;
    let timeout = args.timeout.map(Duration::try_from_secs_f64).transpose()?;
    loop {
        let (look, figures) = Look::take(client, &args.queue)?;
        show(look, &figures);
        if look.left == 0 {
            return Ok(());
        }
        if timeout.is_some_and(|timeout| first.at.elapsed() > timeout) {
            bail!("{} jobs are left", look.left);
        }
        std::thread::sleep(every);
    }
}

/// The rate so far and the end that it makes likely; when the next starts if there is no rate yet.
fn message(first: Look, look: Look, figures: &Value) -> String {
    let seconds = look.at.duration_since(first.at).as_secs_f64();
    let over = look.over - first.over;
    if figures["paused"] == true {
        return "paused".to_owned();
    }
    if over > 0 && seconds > 0.0 {
        let rate = over as f64 / seconds;
        return format!("{rate:.1}/s, done in {}", hours(look.left as f64 / rate));
    }
    let now_ms = figures["now_ms"].as_u64().unwrap_or(0);
    match figures["ready_at_ms"].as_u64() {
        Some(at_ms) if at_ms > now_ms => {
            format!("the next starts in {}", hours((at_ms - now_ms) as f64 / 1_000.0))
        }
        _ => "waiting for a worker".to_owned(),
    }
}

fn hours(seconds: f64) -> String {
    let whole = seconds.ceil() as u64;
    match whole {
        0..=59 => format!("{whole} s"),
        60..=3_599 => format!("{} min {:02} s", whole / 60, whole % 60),
        _ => format!("{} h {:02} min", whole / 3_600, whole / 60 % 60),
    }
}
