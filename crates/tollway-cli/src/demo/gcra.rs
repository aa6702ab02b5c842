//! `tollway demo gcra`: the parent that starts the server and the client processes.

use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::net::TcpListener;
use tollway_core::Quota;

use super::fleet::{Fleet, Orders};
use super::server::Server;
use super::tally::Tally;
use crate::amounts::duration;
use crate::misuse::{OrMisuse as _, misuse};
use crate::say;

/// The quota of the Heroku API: 4,500 per hour.
const UNITS: u64 = 4_500;
const PERIOD: Duration = Duration::from_secs(3_600);
const PROCESSES_MAX: u32 = 100;
const THREADS_MAX: u32 = 1_000;

/// How many clients, how fast, how long.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Client processes; also TOLLWAY_PROCESSES
    #[arg(long)]
    processes: Option<u32>,
    /// Threads in each; also TOLLWAY_THREADS
    #[arg(long)]
    threads: Option<u32>,
    /// Simulated time to run
    #[arg(long, value_name = "TIME", default_value = "30m", value_parser = duration)]
    length: Duration,
    /// The same as a number of minutes, as it was written once
    #[arg(long, hide = true, conflicts_with = "length", value_parser = minutes)]
    minutes: Option<Duration>,
    /// Simulated seconds per real second: at 60 the quota is 4,500 per minute
    #[arg(long, default_value_t = 60.0)]
    scale: f64,
    /// Units in the bucket at the start
    #[arg(long, default_value_t = 0)]
    start: u64,
    /// How long the server takes to answer, in real time
    #[arg(long, value_name = "TIME", default_value = "5ms", value_parser = duration)]
    delay: Duration,
    /// The same as a number of milliseconds, as it was written once
    #[arg(long, hide = true, conflicts_with = "delay")]
    delay_ms: Option<u64>,
    /// Print only the summary
    #[arg(long)]
    quiet: bool,
    /// Print only the summary, as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the demo and prints what came of it.
pub(super) fn run(args: Args) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let (orders, tally) = runtime.block_on(demo(&args))?;
    let periods = orders.length.as_secs_f64() * orders.scale / PERIOD.as_secs_f64();
    let summary = tally.summary(args.start as f64 + periods * UNITS as f64);
    let text =
        if args.json { serde_json::to_string(&summary)? + "\n" } else { format!("\n{summary}") };
    say(&text)
}

/// What the clients of the server at `url` are to do, if the arguments are within their bounds.
fn orders(args: &Args, url: String) -> Result<Orders> {
    let Args { scale, start, .. } = *args;
    let simulated = args.minutes.unwrap_or(args.length);
    let processes = count(args.processes, "--processes", "TOLLWAY_PROCESSES", 2, PROCESSES_MAX)?;
    let threads = count(args.threads, "--threads", "TOLLWAY_THREADS", 5, THREADS_MAX)?;
    if !(1.0..=10_000.0).contains(&scale) {
        return Err(misuse(format_args!("invalid --scale {scale}: expected 1 to 10000")));
    }
    if start > UNITS {
        return Err(misuse(format_args!("invalid --start {start}: expected at most {UNITS}")));
    }
    let length = simulated.div_f64(scale);
    if !(1..=86_400_000).contains(&length.as_millis()) {
        let told = "expected more than 0s and at most a day of real time";
        return Err(misuse(format_args!("invalid --length {simulated:?}: {told}")));
    }
    let quota = Quota::new(UNITS, PERIOD.div_f64(scale))?;
    Ok(Orders { url, processes, threads, quota, scale, length })
}

fn minutes(text: &str) -> Result<Duration, String> {
    let minutes: Option<f64> = text.parse().ok();
    let length = minutes.and_then(|minutes| Duration::try_from_secs_f64(minutes * 60.0).ok());
    length.ok_or_else(|| "expected a number of minutes; better write --length 30m".to_owned())
}

/// The number from the command line, else from the environment, else the usual one.
fn count(given: Option<u32>, flag: &str, variable: &str, usual: u32, most: u32) -> Result<u32> {
    let (number, source) = match (given, std::env::var(variable)) {
        (Some(number), _) => (number, flag),
        (None, Ok(text)) => {
            let invalid = || format!("invalid {variable}={text:?}: expected 1 to {most}");
            (text.parse().with_context(invalid).or_misuse()?, variable)
        }
        (None, Err(_)) => (usual, flag),
    };
    if number == 0 || number > most {
        return Err(misuse(format_args!("invalid {source} {number}: expected 1 to {most}")));
    }
    Ok(number)
}

async fn demo(args: &Args) -> Result<(Orders, Tally)> {
    let listener = TcpListener::bind("127.0.0.1:0").await.context("no free loopback port")?;
    let orders = orders(args, format!("http://{}/", listener.local_addr()?))?;
    let fleet = Fleet::start(&orders).await?;
    // The bucket starts to fill when the clients are ready, not while they are being started.
    let delay = args.delay_ms.map_or(args.delay, Duration::from_millis);
    tokio::spawn(Server::new(orders.quota, args.start, delay)?.serve(listener));
    let mut voices = fleet.begin();
    let mut tally = Tally::default();
    while let Some(report) = voices.next().await {
        tally.add(&report);
        if !args.quiet && !args.json {
            say(&format!("{report}\n"))?;
        }
    }
    voices.end().await?;
    Ok((orders, tally))
}
