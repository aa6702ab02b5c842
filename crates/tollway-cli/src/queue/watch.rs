//! Watching a queue: how far it is, how fast, and when it will be done.
//!
//! On a terminal a bar; elsewhere a line whenever another percent is over, so that a log says how
//! far it came and stays short. Both go to standard error: standard output has the end alone.

use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::Value;
use tollway_queue::QueueName;

use super::Client;
use crate::amounts::{duration, interval};
use crate::counted::counted;
use crate::output::marked;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The queue
    queue: QueueName,
    /// The time between updates
    #[arg(long, default_value = "500ms", value_name = "TIME", value_parser = interval)]
    every: Duration,
    /// Give up after this time, such as 10m
    #[arg(long, value_name = "TIME", value_parser = duration)]
    timeout: Option<Duration>,
}

/// Shows how far the queue is until it is empty.
pub(super) fn watch(client: &Client, args: &Args) -> Result<()> {
    let mut screen = Screen::new(&args.queue);
    let followed = follow(client, args, |course, figures| screen.show(course, figures));
    // Whatever is said next begins on a line of its own.
    screen.clear();
    let over = followed?.over;
    let told = serde_json::json!({"queue": args.queue.as_str(), "over": over, "left": 0});
    let ended = counted(over, "job has ended", "jobs have ended");
    client.tell(&told, |_| format!("{}: {ended}, nothing is left\n", args.queue))
}

/// Waits, silently, until the queue is empty.
pub(super) fn drain(client: &Client, args: &Args) -> Result<()> {
    follow(client, args, |_, _| Ok(()))?;
    let told = serde_json::json!({"queue": args.queue.as_str(), "left": 0});
    client.tell(&told, |_| format!("{}: nothing is left\n", args.queue))
}

fn follow(
    client: &Client,
    args: &Args,
    mut show: impl FnMut(&Course, &Value) -> Result<()>,
) -> Result<Course> {
    let begun = Instant::now();
    let mut course = None;
    loop {
        let (look, figures) = Look::take(client, &args.queue)?;
        let course = course.get_or_insert_with(|| Course::from(look));
        course.note(look);
        show(course, &figures)?;
        if course.left == 0 {
            return Ok(*course);
        }
        let patience = args.timeout.map(|timeout| timeout.saturating_sub(begun.elapsed()));
        if patience == Some(Duration::ZERO) {
            bail!("{}: {} left", args.queue, counted(course.left, "job is", "jobs are"));
        }
        std::thread::sleep(patience.map_or(args.every, |patience| patience.min(args.every)));
    }
}

/// What one look shows.
#[derive(Clone, Copy)]
struct Look {
    at: Instant,
    left: u64,
    /// Jobs that ended, as the queue counts them.
    ended: u64,
}

impl Look {
    fn take(client: &Client, queue: &QueueName) -> Result<(Self, Value)> {
        let figures = client.get(queue.as_str())?;
        // A figure that is not there is no zero: nobody must be told that nothing is left.
        let sum = |of: &Value, names: [&str; 3]| -> Option<u64> {
            let add = |sum: u64, name: &&str| Some(sum.saturating_add(of[*name].as_u64()?));
            names.iter().try_fold(0, add)
        };
        let left = sum(&figures, ["waiting", "delayed", "running"]);
        let ended = sum(&figures["totals"], ["done", "dead", "cancelled"]);
        let (left, ended) = left.zip(ended).context("the answer is not that of a queue")?;
        Ok((Self { at: Instant::now(), left, ended }, figures))
    }
}

/// How far a queue has come since the first look.
#[derive(Clone, Copy)]
struct Course {
    begun: Instant,
    last: Look,
    over: u64,
    left: u64,
}

impl From<Look> for Course {
    fn from(first: Look) -> Self {
        Self { begun: first.at, last: first, over: 0, left: first.left }
    }
}

impl Course {
    fn note(&mut self, look: Look) {
        // A store may count from the start of its process: fewer than before, and it has restarted.
        let ended = look.ended.checked_sub(self.last.ended).unwrap_or(look.ended);
        self.over = self.over.saturating_add(ended);
        self.left = look.left;
        self.last = look;
    }

    const fn all(&self) -> u64 {
        self.over.saturating_add(self.left)
    }

    /// The rate so far and the end that it makes likely; when the next starts if there is none yet.
    fn message(&self, figures: &Value) -> String {
        if figures["paused"] == true {
            return "paused".to_owned();
        }
        let seconds = self.last.at.duration_since(self.begun).as_secs_f64();
        if self.over > 0 && seconds > 0.0 {
            let rate = self.over as f64 / seconds;
            return format!("{rate:.1}/s, done in {}", hours(self.left as f64 / rate));
        }
        let now_ms = figures["now_ms"].as_u64().unwrap_or(0);
        match figures["ready_at_ms"].as_u64() {
            Some(at_ms) if at_ms > now_ms => {
                format!("the next starts in {}", hours((at_ms - now_ms) as f64 / 1_000.0))
            }
            _ => "waiting for a worker".to_owned(),
        }
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

/// Where the course is shown.
enum Screen {
    Bar(ProgressBar),
    Lines { queue: QueueName, percent: Option<u64> },
}

impl Screen {
    fn new(queue: &QueueName) -> Self {
        if !std::io::stderr().is_terminal() {
            return Self::Lines { queue: queue.clone(), percent: None };
        }
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        // The bar takes what room there is: on a narrow terminal the figures come first.
        let style = ProgressStyle::with_template("{prefix} {wide_bar} {pos}/{len}  {msg}");
        let style = style.expect("the template is well-formed");
        Self::Bar(bar.with_style(style).with_prefix(queue.to_string()))
    }

    fn show(&mut self, course: &Course, figures: &Value) -> Result<()> {
        let (over, all) = (course.over, course.all());
        match self {
            Self::Bar(bar) => {
                bar.set_length(all);
                bar.set_position(over);
                bar.set_message(course.message(figures));
            }
            Self::Lines { queue, percent } => {
                let reached = over.saturating_mul(100).checked_div(all);
                if reached.is_some() && reached != *percent {
                    let message = course.message(figures);
                    writeln!(std::io::stderr(), "{queue}: {over}/{all}  {message}")
                        .map_err(marked)?;
                    *percent = reached;
                }
            }
        }
        Ok(())
    }

    fn clear(&self) {
        if let Self::Bar(bar) = self {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_that_was_restarted_counts_anew_and_nothing_is_lost_of_the_course() {
        let at = Instant::now();
        let look = |left, ended| Look { at, left, ended };
        let mut course = Course::from(look(10, 1_000));
        for (left, ended, over) in [(8, 1_002, 2), (7, 1, 3), (0, 8, 10)] {
            course.note(look(left, ended));
            assert_eq!((course.over, course.all()), (over, over + left));
        }
    }
}
