//! Real clients, unmodified, through one proxy in memory, and one and three on a shared store.

use std::path::Path;
use std::time::Duration;

use futures_util::future::{join, join_all, join3};
use serde_json::{Value, json};
use tokio::process::Command;
use tollway_testkit::servers::{Engine, Server, full};

use super::rules::engines;
use super::{Bound, Judge, PATIENCE, pass, source};
use crate::face::peers;

/// What clients do, and against which limits.
pub(super) struct Scene {
    pub(super) api: &'static str,
    /// The client and its call, as `clients.py` and `clients.mjs` name them.
    pub(super) what: &'static str,
    pub(super) calls: usize,
    pub(super) limits: Value,
    pub(super) bound: Bound,
}

impl Scene {
    async fn play(&self) {
        self.play_and(|_, _| {}).await;
    }

    /// The same with three fleets: memory, one proxy on Redis, and three on Valkey whose upstream
    /// answers after 5 to 405 ms; `judge` says what else each has to keep to.
    pub(super) async fn play_and(&self, judge: impl Fn(&str, &super::Record)) {
        let Some(place) = peers() else { return };
        let redis = Server::start(Engine::Redis, &[]);
        let others = Engine::available();
        let three = Server::start(*others.last().expect("Redis at least"), &[]);
        let memory = self.fleet(&place, "memory, 1 proxy", None, 1, [5, 50]);
        let one = self.fleet(&place, "Redis, 1 proxy", Some(&redis), 1, [5, 50]);
        let several = self.fleet(&place, "shared, 3 proxies", Some(&three), 3, [5, 405]);
        for (fleet, record) in <[_; 3]>::from(join3(memory, one, several).await) {
            let what = format!("{}: {fleet}", self.what);
            self.bound.judge(&what, &record);
            judge(&what, &record);
        }
    }

    async fn fleet(
        &self,
        place: &Path,
        name: &'static str,
        store: Option<&Server>,
        proxies: usize,
        latency: [u32; 2],
    ) -> (&'static str, super::Record) {
        let mut options = self.limits.clone();
        options["latency"] = json!(latency);
        let judge = Judge::start(self.api, &options);
        let proxies: Vec<_> = (0..proxies).map(|_| judge.proxy(store)).collect();
        let share = self.calls / proxies.len();
        let clients = proxies.iter().map(|proxy| self.client(place, share, &proxy.url));
        for said in join_all(clients).await {
            assert_eq!(said["served"], share, "{} on {name}: {said}", self.what);
        }
        (name, judge.record().await)
    }

    /// Three proxies, whose store is killed for five seconds when one in so many is served.
    async fn play_through_an_outage(&self, engine: Engine, one_in: usize) {
        let Some(place) = peers() else { return };
        let mut options = self.limits.clone();
        options["latency"] = json!([5, 100]);
        let judge = Judge::start(self.api, &options);
        let mut store = Server::start(engine, &[]);
        let proxies: Vec<_> = (0..3).map(|_| judge.proxy(Some(&store))).collect();
        let share = self.calls / proxies.len();
        let clients = proxies.iter().map(|proxy| self.client(&place, share, &proxy.url));
        let outage = async {
            judge.until_served(self.calls / one_in).await;
            store.kill();
            pass(seconds(5.0)).await;
            store.restart();
        };
        let (said, ()) = join(join_all(clients), outage).await;
        let record = judge.record().await;
        let (what, figures) = (self.what, record.figures());
        println!("| {what}, {engine:?} killed for 5 s after 1 in {one_in} | {figures} | |");
        assert!(said.iter().all(|said| said["served"] == share), "{what}: {said:?}");
        assert!(record.refused_all() <= 2, "{what}: {figures}\n{}", record.around_refusals());
    }

    /// Runs one client to its end; what it printed last.
    async fn client(&self, place: &Path, calls: usize, url: &str) -> Value {
        let mut command = if self.what.starts_with("octokit") {
            // Modules are found from where the script is.
            let script = place.join("judged.mjs");
            std::fs::copy(source("clients.mjs"), &script).expect("a copy");
            let mut node = Command::new("node");
            node.arg(script);
            node
        } else {
            let mut python = Command::new("python3");
            python.arg(source("clients.py")).env("PYTHONPATH", place.join("python"));
            python
        };
        command.args([self.what, &calls.to_string(), url]).kill_on_drop(true);
        let output = tokio::time::timeout(2 * PATIENCE, command.output()).await;
        let output = output.expect("in time").expect("it runs");
        let (out, err) = (String::from_utf8_lossy(&output.stdout), output.stderr);
        let last = out.lines().last().unwrap_or_default();
        let err = String::from_utf8_lossy(&err);
        serde_json::from_str(last).unwrap_or_else(|error| panic!("{error}: {out} {err}"))
    }
}

fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

fn anthropic(calls: usize) -> Scene {
    let bound = Bound { least: seconds(5.5), rounding: seconds(1.0), refused: 0 };
    let wide = [100_000, 5];
    let limits = json!({"requests": [20, 5.0], "input-tokens": wide, "output-tokens": wide});
    Scene { api: "anthropic", what: "anthropic.messages", calls, limits, bound }
}

fn openai(calls: usize) -> Scene {
    let bound = Bound { least: seconds(7.0), rounding: seconds(0.5), refused: 0 };
    let limits = json!({"requests": [20, 5.0], "tokens": [100_000, 5]});
    Scene { api: "openai", what: "openai.chat", calls, limits, bound }
}

fn github(calls: usize) -> Scene {
    let bound = Bound { least: seconds(6.0), rounding: seconds(4.0), refused: 0 };
    let limits = json!({"core": [30, 2.5]});
    Scene { api: "github", what: "octokit.repo", calls, limits, bound }
}

fn discord(calls: usize) -> Scene {
    // Three processes of the library take a window more, through one proxy in memory just as well:
    // each has a limiter of its own, which waits before the proxy is asked.
    let bound = Bound { least: seconds(4.0), rounding: seconds(3.0), refused: 0 };
    let limits = json!({"send": [5, 2.0], "global": [50, 1.0]});
    Scene { api: "discord", what: "discord.send", calls, limits, bound }
}

fn stripe(calls: usize) -> Scene {
    let bound = Bound { least: seconds(3.0), rounding: seconds(0.4), refused: 0 };
    let limits = json!({"global-rate": [100, 1.0], "endpoint-rate": [25, 1.0]});
    Scene { api: "stripe", what: "stripe.customers", calls, limits, bound }
}

#[tokio::test]
async fn anthropic_is_refused_nothing_by_token_buckets() {
    anthropic(42).play().await;
}

#[tokio::test]
async fn openai_is_refused_nothing_by_token_buckets() {
    openai(48).play().await;
}

#[tokio::test]
async fn github_is_refused_nothing_by_its_counted_window() {
    github(75).play().await;
}

#[tokio::test]
async fn discord_is_refused_nothing_by_its_buckets() {
    discord(45).play().await;
}

#[tokio::test]
async fn stripe_is_refused_nothing_by_its_documented_limits() {
    stripe(78).play().await;
}

/// So many calls that half of them are made when the store is back. It is lost in the middle; and
/// at full size just after the first requests, too, which still costs one or two more at times.
#[tokio::test]
async fn an_outage_of_the_store_costs_real_clients_two_refusals_at_most() {
    let every = [openai(75), anthropic(75), github(180), discord(150), stripe(300)];
    for engine in engines() {
        let scenes = &every[..if full() { every.len() } else { 1 }];
        let early = scenes.iter().filter(|_| full());
        let early = early.map(|scene| scene.play_through_an_outage(engine, 10));
        let later = scenes.iter().map(|scene| scene.play_through_an_outage(engine, 3));
        join(join_all(early), join_all(later)).await;
    }
}
