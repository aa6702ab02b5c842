//! `tollway check`: asks a limit in this process and prints each decision, as of now or as of
//! given times.

mod flags;
mod requests;

use std::collections::HashMap;
use std::io::{BufWriter, Write};
use std::time::Duration;

use anyhow::bail;
use tollway_core::calendar_window::CalendarWindow;
use tollway_core::{
    Algorithm, Charge, Clock as _, Cost, Decision, GivenLimit, Key, Policy, Quota, Retry, State,
    Timestamp, Verdict, decide_all,
};
use tollway_memory::SystemClock;

use crate::amounts::duration;
use crate::misuse::{OrMisuse as _, misuse};
use crate::output::output;
use crate::shell_word::shell_word;
use flags::LimitFlags;
use requests::{Request, Requests};

/// More keys than this are a mistake: the states of all are kept.
const KEYS_MAX: usize = 1_000_000;

/// Try a limit in this process, and print each decision.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    limit: LimitFlags,
    /// What stands without a flag is most likely a quota or a key.
    #[arg(hide = true, value_name = "QUOTA")]
    stray: Vec<String>,
    /// The key to charge.
    #[arg(long, default_value = "alice", value_parser = key)]
    key: String,
    /// Units per request.
    #[arg(long, default_value = "1", value_parser = cost)]
    cost: Cost,
    /// Number of requests.
    #[arg(long, default_value_t = 1, conflicts_with = "at")]
    repeat: u64,
    /// How long to wait between requests, such as 250ms.
    #[arg(long, value_name = "TIME", conflicts_with = "at", value_parser = duration)]
    every: Option<Duration>,
    /// Take the times of requests from a file (- for standard input): one request a line, its time
    /// in milliseconds, then optionally a key and a cost. Nothing waits.
    #[arg(long, value_name = "FILE")]
    at: Option<String>,
    /// Exit with this code if a request was denied; a wrong command line exits with 2, any other
    /// failure with 1.
    #[arg(long, value_name = "CODE", default_value_t = 0)]
    denied_exit: u8,
}

fn key(text: &str) -> Result<String, String> {
    Key::new(text).map(|_| text.to_owned()).map_err(|error| error.to_string())
}

fn cost(text: &str) -> Result<Cost, String> {
    let cost = text.parse().ok().and_then(Cost::new);
    cost.ok_or_else(|| "expected a whole number of at least 1".to_owned())
}

/// What somebody meant who wrote a quota, or a quota and a key, without flags.
fn with_flags(stray: &[String]) -> anyhow::Result<()> {
    let [first, others @ ..] = stray else { return Ok(()) };
    let is_quota = first.parse::<Quota>().is_ok() || CalendarWindow::is_meant_by(first);
    let meant = match (is_quota, others) {
        (true, []) => format!("; write --quota {}", shell_word(first)),
        (true, [key]) => format!("; write --quota {} --key {}", shell_word(first), shell_word(key)),
        _ => "; give the limit by --quota or other flags, and the key by --key".to_owned(),
    };
    Err(misuse(format!("unexpected argument {first:?}{meant}")))
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    with_flags(&args.stray)?;
    let mut check = Check::new(args.limit.read().or_misuse()?)?;
    let mut out = BufWriter::new(output());
    let usual = Request { at: Timestamp::MIN, key: args.key.clone(), cost: args.cost };
    writeln!(out, "policy {}, key {:?}, cost {}", check.shown(), args.key, args.cost.get())?;
    match &args.at {
        Some(file) => check.at_times(Requests::open(file, usual)?, &mut out)?,
        None => check.now(&args, usual, &mut out)?,
    }
    writeln!(out, "{} allowed, {} denied", check.allowed, check.denied)?;
    out.flush()?;
    if check.denied > 0 && args.denied_exit != 0 {
        std::process::exit(args.denied_exit.into());
    }
    Ok(())
}

/// A limit with the states of its keys.
struct Check {
    policies: Vec<Policy>,
    states: HashMap<String, Vec<State>>,
    asked: u128,
    allowed: u64,
    denied: u64,
}

impl Check {
    fn new(limit: GivenLimit) -> anyhow::Result<Self> {
        let mut policies = vec![Policy::new("check", limit.algorithm)?];
        if let Some(spacing) = limit.spacing {
            policies.push(Policy::new("spacing", spacing)?);
        }
        Ok(Self { policies, states: HashMap::new(), asked: 0, allowed: 0, denied: 0 })
    }

    /// The limit in words.
    fn shown(&self) -> String {
        let shown = self.policies.iter().map(|policy| match policy.algorithm() {
            Algorithm::Gcra(gcra) => gcra.to_string(),
            other => format!("{} {other}", other.label()),
        });
        shown.collect::<Vec<_>>().join(" and ")
    }

    fn now(&mut self, args: &Args, usual: Request, out: &mut impl Write) -> anyhow::Result<()> {
        let clock = SystemClock::new();
        for number in 1..=args.repeat {
            if let (Some(every), true) = (args.every, number > 1) {
                out.flush()?;
                std::thread::sleep(every);
            }
            let request = Request { at: clock.now(), ..usual.clone() };
            let verdict = self.decide(&request)?;
            writeln!(out, "{number:>6}  {}", line(&verdict))?;
        }
        Ok(())
    }

    fn at_times(&mut self, mut requests: Requests, out: &mut impl Write) -> anyhow::Result<()> {
        while let Some(request) = requests.next_request()? {
            let verdict = self.decide(&request)?;
            let at_ms = request.at.as_nanos() / 1_000_000;
            writeln!(out, "{at_ms:>14}  {}  {}", request.key, line(&verdict))?;
        }
        Ok(())
    }

    fn decide(&mut self, request: &Request) -> anyhow::Result<Verdict> {
        if self.states.len() == KEYS_MAX && !self.states.contains_key(&request.key) {
            bail!("more than {KEYS_MAX} keys");
        }
        let vacant = || self.policies.iter().map(|it| State::vacant(it.algorithm())).collect();
        let states = self.states.entry(request.key.clone()).or_insert_with(vacant);
        let key = Key::new(&request.key)?;
        // A second bucket counts calls, whatever they cost.
        let costs = std::iter::once(request.cost).chain(std::iter::repeat(Cost::ONE));
        let charges = self.policies.iter().zip(costs);
        let charges: Vec<Charge<'_>> =
            charges.map(|(policy, cost)| Charge::new(policy, key).cost(cost)).collect();
        self.asked += 1;
        let verdict = decide_all(&charges, &[0, 1], states, self.asked, request.at);
        *(if verdict.is_allowed() { &mut self.allowed } else { &mut self.denied }) += 1;
        Ok(verdict)
    }
}

/// The decision that denied; if none did, the one that leaves least.
fn line(verdict: &Verdict) -> String {
    let decisions = verdict.decisions();
    let least = decisions.iter().min_by_key(|decision| decision.snapshot().remaining());
    let denied = verdict.denied_by().and_then(|by| decisions.get(by));
    denied.or(least).map(decision).unwrap_or_default()
}

fn decision(decision: &Decision) -> String {
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
