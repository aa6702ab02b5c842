//! A store that is away at the start, or lost under load: what the process does, and who is told.

// The store of queues.
mod queues;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tollway_testkit::servers::{Engine, Server, eventually, free_port};

use crate::face::{command, root, succeed, tools};
use crate::serve::{Folder, Served};
use crate::tool::fail;

/// Longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

const POLICIES: &str = "[[policies]]\nname = \"deny\"\nquota = \"1000000/1h\"\n\
    [[policies]]\nname = \"allow\"\nquota = \"1000000/1h\"\non_store_error = \"allow\"\n\
    allow_at_most = \"1h\"\n";

fn check(served: &Served, policy: &str) -> (u16, String) {
    served.ask("POST", "/v1/check", &format!(r#"{{"policy":"{policy}","key":"ada"}}"#))
}

fn metrics(served: &Served) -> String {
    served.ask("GET", "/metrics", "").1
}

fn is_up(served: &Served) -> bool {
    metrics(served).contains("tollway_store_up{store=\"redis\"} 1")
}

#[test]
fn a_node_starts_without_its_store_and_finds_it_later() {
    let mut redis = Server::start(Engine::Redis, &[]);
    redis.kill();
    let folder = Folder::new("without-store");
    let (config, log) = (folder.file("a.toml", POLICIES), folder.0.join("log"));
    let served = Served::start_logging(&log, &["--config", &config, "--store", &redis.url()]);
    assert_eq!(check(&served, "deny").0, 429);
    assert_eq!(check(&served, "allow").0, 200);
    let (ready, detail) = served.ask("GET", "/readyz", "");
    assert!(ready == 200 && detail.contains("\"up\":false"), "{detail}");
    assert!(detail.contains("cannot be reached"), "without tokens everybody may know: {detail}");
    let told = std::fs::read_to_string(&log).expect("a log");
    assert_eq!(told.matches("the store does not answer").count(), 1, "{told}");
    assert!(told.contains("cannot be reached"), "with the reason: {told}");
    redis.restart();
    eventually(PATIENCE, || check(&served, "deny").0 == 200);
    eventually(PATIENCE, || is_up(&served));
}

#[test]
fn what_waiting_does_not_mend_and_a_required_store_end_the_start() {
    let folder = Folder::new("required-store");
    let config = folder.file("a.toml", POLICIES);
    let away = format!("redis://127.0.0.1:{}", free_port());
    let required = ["serve", "--config", &config, "--store", &away, "--store-required"];
    let complaint = fail(&required);
    assert!(complaint.contains("the store: the store cannot be reached"), "{complaint}");
    let locked = Server::start(Engine::Redis, &["--requirepass", "s3cret"]);
    let wrong = format!("redis://:guess@127.0.0.1:{}", locked.port);
    let complaint = fail(&["serve", "--config", &config, "--store", &wrong]);
    assert!(complaint.contains("refuses the user or the password"), "{complaint}");
    assert!(!complaint.contains("guess"), "{complaint}");
}

/// Kills Redis under load, scrapes before, meanwhile and after, and has the alerts that are shipped
/// judge what was scraped.
#[test]
fn an_outage_is_logged_once_and_fires_the_alerts_until_it_is_over() {
    let mut redis = Server::start(Engine::Redis, &[]);
    let folder = Folder::new("outage");
    let (config, log) = (folder.file("a.toml", POLICIES), folder.0.join("log"));
    let served = Served::start_logging(&log, &["--config", &config, "--store", &redis.url()]);
    eventually(PATIENCE, || check(&served, "deny").0 == 200 && is_up(&served));
    let mut scrapes = Vec::new();
    let mut scrape = |times: usize| {
        for _ in 0..times {
            (0..5).for_each(|_| drop(check(&served, "deny")));
            scrapes.push(metrics(&served));
        }
    };
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for policy in ["deny", "allow"] {
            let (served, stop) = (&served, &stop);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    check(served, policy);
                    std::thread::yield_now();
                }
            });
        }
        scrape(3);
        redis.kill();
        eventually(PATIENCE, || !is_up(&served));
        scrape(6);
        redis.restart();
        eventually(PATIENCE, || is_up(&served));
        scrape(10);
        stop.store(true, Ordering::Relaxed);
    });
    let told = std::fs::read_to_string(&log).expect("a log");
    let lines = |text: &str| told.lines().filter(|line| line.contains(text)).collect::<Vec<_>>();
    let (began, ended) = (lines("the store does not answer"), lines("the store answers again"));
    assert_eq!((began.len(), ended.len()), (1, 1), "{told}");
    assert!(began[0].contains("WARN") && began[0].contains("reason="), "{told}");
    assert!(ended[0].contains("INFO") && ended[0].contains("lasted_ms="), "{told}");
    assert!(!ended[0].contains("degraded=0"), "decisions were made without it: {told}");
    judge(&folder.0, &scrapes, &["TollwayStoreDown", "TollwayStoreFails", "TollwayDegraded"]);
}

/// Has promtool evaluate the shipped rules on scrapes, one a minute: the store is well in the first
/// three, gone in the next six, and well again in ten.
pub(crate) fn judge(folder: &Path, scrapes: &[String], alerts: &[&str]) {
    let Some(tools) = tools("promtool") else { return };
    let mut series: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (minute, scrape) in scrapes.iter().enumerate() {
        let told =
            ["tollway_store_", "tollway_degraded_", "tollway_queue_", "tollway_proxy_store_"];
        let samples = scrape.lines().filter(|line| told.iter().any(|name| line.starts_with(name)));
        for (name, value) in samples.filter_map(|line| line.rsplit_once(' ')) {
            let name = match name.strip_suffix('}') {
                Some(labelled) => format!("{labelled},instance=\"a\"}}"),
                None => format!("{name}{{instance=\"a\"}}"),
            };
            // A series that is not there yet has no sample.
            let values = series.entry(name).or_default();
            values.resize(minute, "_".to_owned());
            values.push(value.to_owned());
        }
    }
    let rules = root().join("packaging/prometheus/rules.yaml");
    let mut test = format!("rule_files: [{}]\nevaluation_interval: 1m\n", rules.display());
    test += "tests:\n  - interval: 1m\n    input_series:\n";
    for (name, values) in series {
        let _ = writeln!(test, "      - series: '{name}'\n        values: {}", values.join(" "));
    }
    test += "    promql_expr_test:\n";
    for alert in alerts {
        for (minute, fires) in [(2, false), (8, true), (18, false)] {
            let firing = format!("ALERTS{{alertname=\"{alert}\",alertstate=\"firing\"}}");
            let _ = write!(test, "      - expr: 'count({firing}) > bool 0'\n        eval_time: ");
            let expected = if fires { "[{ labels: '{}', value: 1 }]" } else { "[]" };
            let _ = writeln!(test, "{minute}m\n        exp_samples: {expected}");
        }
    }
    let file = folder.join("scraped.yaml");
    std::fs::write(&file, test).expect("a file");
    succeed(command(tools.join("promtool"), &tools).args(["test", "rules"]).arg(&file));
}
