//! `tollway demo gcra`: the parent that starts the server and the client processes.

use std::io::Write as _;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use tokio::net::TcpListener;
use tollway_core::Quota;

use super::fleet::{Fleet, Orders};
use super::server::Server;
use super::tally::Tally;

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
    /// Simulated minutes to run
    #[arg(long, default_value_t = 30.0)]
    minutes: f64,
    /// Simulated seconds per real second: at 60 the quota is 4,500 per minute
    #[arg(long, default_value_t = 60.0)]
    scale: f64,
    /// Units in the bucket at the start
    #[arg(long, default_value_t = 0)]
    start: u64,
    /// Real milliseconds that the server takes to answer
    #[arg(long, default_value_t = 5)]
    delay_ms: u64,
    /// Print only the summary
    #[arg(long)]
    quiet: bool,
    /// Print only the summary, as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the demo and prints what came of it.
pub(super) fn run(args: Args) -> Result<()> {
    let plan = Plan::new(&args)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let tally = runtime.block_on(demo(&plan, !args.quiet && !args.json))?;
    let summary =
        tally.summary(args.start as f64 + plan.simulated_s() / PERIOD.as_secs_f64() * UNITS as f64);
    let text =
        if args.json { serde_json::to_string(&summary)? + "\n" } else { format!("\n{summary}") };
    std::io::stdout().write_all(text.as_bytes()).context("cannot write to standard output")
}

/// The arguments, checked.
struct Plan {
    processes: u32,
    threads: u32,
    quota: Quota,
    scale: f64,
    length: Duration,
    start: u64,
    delay: Duration,
}

impl Plan {
    fn new(args: &Args) -> Result<Self> {
        let processes = count(args.processes, "TOLLWAY_PROCESSES", 2, PROCESSES_MAX)?;
        let threads = count(args.threads, "TOLLWAY_THREADS", 5, THREADS_MAX)?;
        if !(1.0..=10_000.0).contains(&args.scale) {
            bail!("--scale must be between 1 and 10000");
        }
        if args.start > UNITS {
            bail!("--start must be at most {UNITS}");
        }
        let length = Duration::try_from_secs_f64(args.minutes * 60.0 / args.scale)
            .ok()
            .filter(|length| (1..=86_400_000).contains(&length.as_millis()))
            .context("--minutes must be above 0, and at most a real day")?;
        Ok(Self {
            processes,
            threads,
            quota: Quota::new(UNITS, PERIOD.div_f64(args.scale))?,
            scale: args.scale,
            length,
            start: args.start,
            delay: Duration::from_millis(args.delay_ms),
        })
    }

    fn simulated_s(&self) -> f64 {
        self.length.as_secs_f64() * self.scale
    }

    fn orders(&self, url: String) -> Orders {
        let Self { processes, threads, quota, scale, length, .. } = *self;
        Orders { url, processes, threads, quota, scale, length }
    }
}

/// The number from the command line, else from the environment, else the usual one.
fn count(given: Option<u32>, variable: &str, usual: u32, most: u32) -> Result<u32> {
    let number = match (given, std::env::var(variable)) {
        (Some(number), _) => number,
        (None, Ok(text)) => {
            text.parse().with_context(|| format!("{variable}={text} is not a number"))?
        }
        (None, Err(_)) => usual,
    };
    if number == 0 || number > most {
        bail!("processes must be 1 to {PROCESSES_MAX}, threads 1 to {THREADS_MAX}; got {number}");
    }
    Ok(number)
}

async fn demo(plan: &Plan, live: bool) -> Result<Tally> {
    let listener = TcpListener::bind("127.0.0.1:0").await.context("no free loopback port")?;
    let url = format!("http://{}/", listener.local_addr()?);
    let fleet = Fleet::start(&plan.orders(url)).await?;
    // The bucket starts to fill when the clients are ready, not while they are being started.
    tokio::spawn(Server::new(plan.quota, plan.start, plan.delay).serve(listener));
    let mut voices = fleet.begin();
    let mut tally = Tally::default();
    while let Some(line) = voices.next().await {
        tally.add(&line);
        if live {
            writeln!(std::io::stdout(), "{line}").context("cannot write to standard output")?;
        }
    }
    voices.end().await?;
    Ok(tally)
}
