//! One client process of the demo: tasks that send as fast as their shared pacer lets them.

use std::io::BufRead as _;
use std::time::Duration;

use anyhow::{Context as _, Result};
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware};
use tollway_core::Quota;
use tollway_upstream::pace::reqwest::PaceMiddleware;
use tollway_upstream::pace::{Gate, Settings};

use super::tally::RequestReport;
use crate::say;

/// What all clients share.
const TOKEN: &str = "the-shared-token";

/// What the parent tells a client process.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Where the server is
    #[arg(long)]
    url: String,
    /// Tasks in this process
    #[arg(long)]
    threads: u32,
    /// The quota, as it is in real time
    #[arg(long)]
    quota: Quota,
    /// How many simulated seconds pass in a real one
    #[arg(long)]
    scale: f64,
    /// Real milliseconds to run for
    #[arg(long)]
    millis: u64,
}

/// Sends until its time is up. Waits for a line on standard input before it begins, so that all
/// processes begin together.
pub(super) fn run(args: &Args) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    say("ready\n")?;
    std::io::stdin().lock().read_line(&mut String::new()).context("the parent is gone")?;
    runtime.block_on(async {
        let seed = u64::from(std::process::id());
        let gate = Gate::new(Settings::of(args.quota).seed(seed));
        let client = ClientBuilder::new(reqwest::Client::new())
            .with(PaceMiddleware::new(gate.clone()))
            .build();
        let tasks: Vec<_> = (0..args.threads)
            .map(|task| {
                let (client, gate) = (client.clone(), gate.clone());
                let (url, scale) = (args.url.clone(), args.scale);
                tokio::spawn(async move { send(task, &client, &gate, &url, scale).await })
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(args.millis)).await;
        for task in tasks {
            task.abort();
        }
        Ok(())
    })
}

async fn send(task: u32, client: &ClientWithMiddleware, gate: &Gate, url: &str, scale: f64) {
    loop {
        let (status, remaining) = match client.get(url).header("x-token", TOKEN).send().await {
            Ok(response) => {
                let remaining = response.headers().get("ratelimit-remaining");
                let remaining = remaining.and_then(|value| value.to_str().ok()?.parse().ok());
                (response.status().as_u16(), remaining)
            }
            Err(_) => (0, None),
        };
        let sleep_for_s = gate.interval().as_secs_f64() * scale;
        let line =
            RequestReport { process: std::process::id(), task, status, remaining, sleep_for_s };
        // One whole line at a time: tasks must not write into each other's lines.
        if say(&format!("{line}\n")).is_err() {
            return;
        }
    }
}
