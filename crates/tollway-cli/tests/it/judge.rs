//! An upstream that is not ours judges real proxies: what it refused, and how long all took.
//!
//! `judge/upstream.py` limits as six public APIs do. It is written from their documents and keeps
//! its own record, so that a mistake in our ledgers cannot hide in it. Clients are real ones where
//! a client's behaviour matters, and plain requests where one rule is looked at.
//!
//! With `--nocapture` each run prints its figures as a row of a table.

// Real clients through one proxy in memory, and one and three on a shared store.
mod fleets;
// Limits that nothing tells of before a refusal.
mod hidden;
// One rule each: what real clients found on 2026-11-16.
mod rules;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::{Value, json};
use tollway_testkit::servers::Server;

use crate::face::root;
use crate::proxy::Running;

/// Longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(90);
/// The longest that an answer takes beside what the limits are about.
const LATENCY: Duration = Duration::from_millis(405);

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/judge").join(name)
}

/// The upstream at work.
struct Judge {
    running: Running,
    api: &'static str,
}

impl Judge {
    /// Starts it with these limits by name, each `[size, seconds]`, and other options.
    fn start(api: &'static str, options: &Value) -> Self {
        let bodies = root().join(format!("crates/tollway-sim/src/fake_api/bodies/{api}.toml"));
        let mut command = Command::new("python3");
        command.arg(source("upstream.py")).args([api, &options.to_string()]).arg(bodies);
        let models = source(&format!("models/{api}.toml"));
        command.args(models.exists().then_some(models));
        command.env("PYTHONDONTWRITEBYTECODE", "1").stdin(Stdio::null()).stdout(Stdio::piped());
        Self { running: Running::spawn(&mut command), api }
    }

    /// A proxy in front of it: in memory, or on a store.
    fn proxy(&self, store: Option<&Server>) -> Running {
        let url = self.running.url.as_str();
        let store = store.map_or("memory".to_owned(), Server::url);
        let fixed = ["proxy", "--listen", "127.0.0.1:0", "--profile", self.api, "--upstream", url];
        Running::start(&[&fixed, &["--store", &*store][..]].concat(), None)
    }

    async fn record(&self) -> Record {
        let url = format!("{}/_judge/record", self.running.url);
        let text = reqwest::get(url).await.unwrap().text().await.unwrap();
        serde_json::from_str(&text).unwrap()
    }

    /// Waits until so many calls were served.
    async fn until_served(&self, count: usize) {
        let start = Instant::now();
        while self.record().await.served() < count {
            assert!(start.elapsed() < PATIENCE, "fewer than {count} were ever served");
            pause().await;
        }
    }
}

/// One call as the upstream recorded it, in seconds after the first.
#[derive(Clone, Debug, Deserialize)]
struct Judged {
    at: f64,
    answered: Option<f64>,
    route: String,
    refused: Option<String>,
}

/// All calls in order of arrival.
#[derive(Clone, Debug, Deserialize)]
struct Record {
    calls: Vec<Judged>,
    /// For how many seconds, all in all, the machine let the upstream wait.
    late: f64,
}

impl Record {
    fn served(&self) -> usize {
        self.calls.iter().filter(|call| call.refused.is_none() && call.answered.is_some()).count()
    }

    /// Refusals by the limit that refused.
    fn refused(&self) -> BTreeMap<&str, usize> {
        let mut found = BTreeMap::new();
        for name in self.calls.iter().filter_map(|call| call.refused.as_deref()) {
            *found.entry(name).or_default() += 1;
        }
        found
    }

    fn refused_all(&self) -> usize {
        self.refused().values().sum()
    }

    /// From the first arrival to the last one that was served.
    fn span(&self) -> Duration {
        let served = self.calls.iter().filter(|call| call.refused.is_none());
        Duration::from_secs_f64(served.map(|call| call.at).fold(0.0, f64::max))
    }

    /// The longest time without an arrival.
    fn longest_gap(&self) -> Duration {
        let pairs = self.calls.windows(2).map(|pair| pair[1].at - pair[0].at);
        Duration::from_secs_f64(pairs.fold(0.0, f64::max))
    }

    /// Refusals that came although one of the same route had been answered before: nobody had to
    /// send them. What was on its way within a quarter of a second of that answer is excused.
    fn refused_knowingly(&self) -> usize {
        let mut first: BTreeMap<&str, f64> = BTreeMap::new();
        let refused = || self.calls.iter().filter(|call| call.refused.is_some());
        for call in refused() {
            let at = first.entry(&call.route).or_insert(f64::INFINITY);
            *at = call.answered.map_or(*at, |answered| at.min(answered));
        }
        refused().filter(|call| call.at > first[&*call.route] + 0.25).count()
    }

    /// The most refusals that any route had.
    fn refused_most(&self) -> usize {
        let mut refused: BTreeMap<&str, usize> = BTreeMap::new();
        for call in self.calls.iter().filter(|call| call.refused.is_some()) {
            *refused.entry(&call.route).or_default() += 1;
        }
        refused.into_values().max().unwrap_or(0)
    }

    /// The calls of the routes that were refused, a few seconds around each refusal.
    fn around_refusals(&self) -> String {
        let refused: Vec<_> = self.calls.iter().filter(|call| call.refused.is_some()).collect();
        let is_near = |call: &&Judged| {
            let near = |it: &&Judged| it.route == call.route && (it.at - call.at).abs() < 3.0;
            refused.iter().any(near)
        };
        let line = |call: &Judged| {
            let Judged { at, answered, route, refused } = call;
            format!("{at:.3} to {:.3} {route} {refused:?}\n", answered.unwrap_or(f64::NAN))
        };
        self.calls.iter().filter(is_near).map(line).collect()
    }

    fn figures(&self) -> Value {
        json!({
            "calls": self.calls.len(), "served": self.served(), "refused": self.refused(),
            "refused knowingly": self.refused_knowingly(),
            "of one route at most": self.refused_most(), "seconds": self.span().as_secs_f64(),
            "longest gap": self.longest_gap().as_secs_f64(), "late": self.late,
        })
    }
}

/// What a run must keep to.
struct Bound {
    /// The least time that the limits allow.
    least: Duration,
    /// What the profile adds for what the API rounds, over the whole run.
    rounding: Duration,
    /// Refusals of all limits together.
    refused: usize,
}

impl Bound {
    fn judge(&self, what: &str, record: &Record) {
        let figures = record.figures();
        println!("| {what} | {figures} | least {:?} |", self.least);
        let around = record.around_refusals();
        assert!(record.refused_all() <= self.refused, "{what}: {figures}\n{around}");
        let late = Duration::from_secs_f64(record.late);
        let most = self.least.mul_f64(1.1) + self.rounding + LATENCY + late;
        assert!(record.span() <= most, "{what}: at most {most:?}: {figures}");
    }
}

/// Gives the others a moment.
async fn pause() {
    // Waiting for a condition: whoever calls looks again, within a bound.
    let _ = tokio::time::timeout(Duration::from_millis(20), std::future::pending::<()>()).await;
}

/// Waits until `duration` has passed.
async fn pass(duration: Duration) {
    let start = Instant::now();
    while start.elapsed() < duration {
        pause().await;
    }
}
