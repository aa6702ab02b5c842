//! `tollway demo`: the service under load, its page, and 25 clients that share one token fairly.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tollway_core::Quota;
use tollway_memory::{Capacity, MemoryStore, SystemClock};
use tollway_server::config::{Config, Drain, Overrides};
use tollway_server::{Backing, Front, Metrics, Server, Service, until_told};

use super::fleet::{Fleet, Orders};
use super::record::Record;
use super::traffic::{self, Seen};
use crate::amounts::duration;
use crate::misuse::misuse;
use crate::say;
use crate::terminal_size::terminal_size;

const RULES: &str = include_str!("tour.toml");
/// What the rules say of the token.
const QUOTA: &str = "75/1s burst 150";
/// How long it may go on until the chart.
const LENGTH_S: std::ops::RangeInclusive<u16> = 3..=3_600;
const PROCESSES: u32 = 5;
const THREADS: u32 = 5;
/// Room for keys: there are a few dozen.
const MEMORY_BYTES: usize = 16 << 20;

/// Where, how long, and what is left of it.
#[derive(Debug, clap::Args)]
pub(crate) struct Tour {
    /// Where to serve the dashboard; also TOLLWAY_HTTP [default: 127.0.0.1:8080]
    #[arg(long, value_name = "WHERE")]
    http: Option<String>,

    /// How long until the chart
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = length)]
    length: Duration,

    /// The same as a number of seconds, as it was written once
    #[arg(long, hide = true, conflicts_with = "length")]
    seconds: Option<u64>,

    /// Where to write the chart
    #[arg(long, value_name = "FILE", default_value = "tollway-demo.svg")]
    svg: PathBuf,

    /// Exit after the chart, instead of serving the dashboard until Ctrl-C
    #[arg(long)]
    exit: bool,
}

/// Shows a limit enforced, a page in motion and a chart of 25 clients.
pub(super) fn run(args: &Tour) -> Result<()> {
    let seconds = args.seconds.unwrap_or(args.length.as_secs());
    let seconds = u16::try_from(seconds).ok().filter(|seconds| LENGTH_S.contains(seconds));
    let seconds = seconds.ok_or_else(|| misuse("invalid --length: expected 3s to 1h"))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(tour(args, seconds))
}

fn length(text: &str) -> Result<Duration, String> {
    let length = duration(text)?;
    match length.subsec_nanos() {
        0 => Ok(length),
        _ => Err("expected whole seconds".to_owned()),
    }
}

async fn tour(args: &Tour, seconds: u16) -> Result<()> {
    let http = args.http.clone().or_else(|| std::env::var("TOLLWAY_HTTP").ok());
    let server = start(http).await?;
    let endpoint = server.endpoint(Front::Http);
    let endpoint = endpoint.ok_or_else(|| misuse("--http off leaves nothing to see"))?;
    let url = format!("http://{endpoint}");
    try_file(&args.svg).with_context(|| cannot_write(&args.svg))?;
    introduce(&url, seconds)?;
    let seen = Arc::new(Seen::default());
    let traffic = tokio::spawn(traffic::run(url.clone(), Arc::clone(&seen)));
    let record = watch(&url, seconds, &seen).await?;
    let columns = terminal_size().map(|size| size.columns);
    say(&format!("\n{}\n{}", record.bars(columns), record.sentence()))?;
    fs::write(&args.svg, record.svg()).with_context(|| cannot_write(&args.svg))?;
    say(&format!("The same over time: {}\n", args.svg.display()))?;
    if !args.exit {
        say(&format!("The page goes on at {url}/ until Ctrl-C.\n"))?;
        until_told(server, Drain { timeout: Duration::from_secs(1), ..Drain::default() }, None)
            .await?;
    }
    traffic.abort();
    Ok(())
}

/// Whether the file can be written, before anybody has watched for what goes there. Nothing
/// changes.
fn try_file(path: &Path) -> io::Result<()> {
    let is_new = !path.exists();
    fs::OpenOptions::new().append(true).create(true).open(path)?;
    if is_new { fs::remove_file(path) } else { Ok(()) }
}

fn cannot_write(path: &Path) -> String {
    format!("cannot write the chart to {} (--svg)", path.display())
}

/// The service, in memory, on HTTP alone.
async fn start(http: Option<String>) -> Result<Server> {
    let overrides = Overrides {
        http,
        grpc: Some("off".to_owned()),
        resp: Some("off".to_owned()),
        ..Overrides::default()
    };
    let metrics = Metrics::default();
    let texts = [("tour.toml".to_owned(), RULES.to_owned())];
    let config = Config::from_texts(&texts, &overrides, &metrics)?;
    let queues = crate::serve::queues(&config.queues, false).await?;
    let store = Backing::Memory(Arc::new(MemoryStore::new(Capacity::bytes(MEMORY_BYTES))));
    let clock = Arc::new(SystemClock::new());
    let service = Service::new(config.rules, metrics, store, clock, config.settings);
    let service = service.with_queues(queues);
    Ok(Server::start(Arc::new(service), &config.listen, None, config.workers)?)
}

fn introduce(url: &str, seconds: u16) -> Result<()> {
    let clients = PROCESSES * THREADS;
    say(&format!(
        "Open {url}/ and watch:\n\n\
         token  {clients} clients in {PROCESSES} processes share {QUOTA}; none knows of another\n\
         api    nine tenants keep to 40/1s each; crawler.example does not, and is denied\n\
         mail   a queue of 40 groups, each of which may start one job in 5 s\n\n\
         In {seconds} s there is a chart.\n\n"
    ))
}

/// Lets the clients run, telling every second how it goes.
async fn watch(url: &str, seconds: u16, seen: &Seen) -> Result<Record> {
    let quota: Quota = QUOTA.parse().context("the demo's own quota")?;
    let fleet = Fleet::start(&Orders {
        url: format!("{url}/v1/gate/token"),
        processes: PROCESSES,
        threads: THREADS,
        quota,
        scale: 1.0,
        length: Duration::from_secs(seconds.into()),
    })
    .await?;
    let begin = Instant::now();
    let mut record = Record::new(quota, seconds);
    let mut voices = fleet.begin();
    let second = Duration::from_secs(1);
    let mut ticks = interval_at(begin + second, second);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            line = voices.next() => match line {
                Some(line) => record.add(&line, begin.elapsed()),
                None => break,
            },
            _ = ticks.tick() => {
                let (allowed, denied) = seen.take();
                let at = begin.elapsed().as_secs();
                let clients = record.second(at.saturating_sub(1));
                let crawler = format!("{allowed:3} allowed, {denied:3} denied");
                say(&format!("{at:4} s  {clients}  crawler: {crawler}\n"))?;
            }
        }
    }
    voices.end().await?;
    Ok(record)
}
