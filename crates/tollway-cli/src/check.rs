//! `tollway check`: asks a limit in this process and prints each decision.

use std::io::{BufWriter, Write};
use std::time::Duration;

use anyhow::{Context, anyhow};
use tollway_core::{Cost, Decision, Policy, Quota, Retry, gcra::Gcra, parse_duration};
use tollway_memory::{Capacity, Limiter};

/// Try a quota in this process, and print each decision.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The quota: units per period, such as 100/1m or "10/s burst 50".
    #[arg(long, default_value = "100/1m burst 20")]
    quota: String,
    /// Units that an idle key may take at once; overrides the burst of --quota.
    #[arg(long)]
    burst: Option<u64>,
    /// The key to charge.
    #[arg(long, default_value = "alice")]
    key: String,
    /// Units per request.
    #[arg(long, default_value_t = 1)]
    cost: u64,
    /// Number of requests.
    #[arg(long, default_value_t = 1)]
    repeat: u64,
    /// How long to wait between requests, such as 250ms.
    #[arg(long)]
    every: Option<String>,
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let quota = quota(&args)?;
    let cost = Cost::new(args.cost).context("invalid --cost 0: expected at least 1")?;
    let every = args.every.as_deref().map(parse_duration).transpose();
    let every = every.context("invalid --every: expected a duration such as 500ms or 2s")?;
    tollway_core::Key::new(&args.key).context("invalid --key")?;
    let policy = Policy::new("check", Gcra::new(quota))?;
    let limiter = Limiter::with_policy(policy, Capacity::keys(1_000));
    let mut out = BufWriter::new(std::io::stdout().lock());
    writeln!(out, "policy {quota}, key {:?}, cost {}", args.key, args.cost)?;
    let mut allowed = 0u64;
    for number in 1..=args.repeat {
        if let (Some(every), true) = (every, number > 1) {
            out.flush()?;
            std::thread::sleep(every);
        }
        let decision = limiter.check_cost(&args.key, cost);
        allowed += u64::from(decision.is_allowed());
        writeln!(out, "{number:>6}  {}", line(&decision))?;
    }
    writeln!(out, "{allowed} allowed, {} denied", args.repeat - allowed)?;
    Ok(out.flush()?)
}

fn quota(args: &Args) -> anyhow::Result<Quota> {
    let quota: Quota = args.quota.parse().map_err(|error: tollway_core::ParseQuotaError| {
        anyhow!(
            "invalid --quota: expected UNITS/PERIOD, for example 100/1m\n{}",
            error.pointing_into(&args.quota)
        )
    })?;
    match args.burst {
        None => Ok(quota),
        Some(burst) => {
            Quota::with_burst(quota.units(), quota.period(), burst).context("invalid --burst")
        }
    }
}

fn line(decision: &Decision) -> String {
    let snapshot = decision.snapshot();
    let left = format!("{}/{} left", snapshot.remaining(), snapshot.limit());
    let reset = format!("full again in {}", seconds(snapshot.reset_after()));
    match decision.retry() {
        None => format!("allow  {left:<14}{reset}"),
        Some(Retry::After(wait)) => {
            format!("deny   {left:<14}{reset}, retry in {}", seconds(wait))
        }
        Some(Retry::Never) => format!("deny   {left:<14}{reset}, never: it costs too much"),
    }
}

/// Rounded up to the millisecond, as every wait that is told to somebody.
fn seconds(duration: Duration) -> String {
    let millis = duration.as_nanos().div_ceil(1_000_000);
    format!("{}.{:03} s", millis / 1_000, millis % 1_000)
}
