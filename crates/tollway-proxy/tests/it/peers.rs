//! Real clients through the proxy: `@discordjs/rest`, `@octokit/core`, `twilight-http`, curl.

use futures_util::future::join_all;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;

use tokio::process::Command;
use tollway_proxy::Settings;
use tollway_sim::fake_api::Spec;
use tollway_sim::fake_api::loopback::Loopback;
use tollway_upstream::profile::Profile;

use crate::rig::{PATIENCE, Rig, discord, local, local_ledgers, plain_proxy};

/// Where `scripts/install-peers` puts them.
fn installed() -> Option<PathBuf> {
    let place = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../target/peers");
    if place.join("installed.json").exists() {
        return Some(place);
    }
    let must = std::env::var_os("TOLLWAY_TOOLS").is_some();
    assert!(!must, "the peers are missing: run scripts/install-peers");
    println!("skipped: the peers are not installed (scripts/install-peers)");
    None
}

/// What a script printed, as JSON.
async fn node(place: &std::path::Path, name: &str, arguments: &[String]) -> serde_json::Value {
    // Modules are found from where the script is.
    let script = place.join(format!("{}-{name}.mjs", std::process::id()));
    let source = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/it/peers");
    std::fs::copy(source.join(format!("{name}.mjs")), &script).unwrap();
    let mut command = Command::new("node");
    command.arg(&script).args(arguments).stdin(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(2 * PATIENCE, command.output()).await;
    let _ = std::fs::remove_file(&script);
    let output = output.expect("in time").unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {errors}"))
}

#[tokio::test]
async fn discordjs_is_served_without_a_429() {
    let Some(place) = installed() else { return };
    let rig = Rig::start(discord("latency = \"2ms\""), Settings::default()).await;
    let url = format!("http://{}", rig.address);
    let said = node(&place, "discordjs", &[url, "60".to_owned(), "6".to_owned()]).await;
    assert_eq!(said["served"], 60, "{said}");
    assert_eq!(said["username"], "judged");
    let counters = rig.fake.counters();
    assert_eq!((counters.requests, counters.limited_all()), (61, 0));
    for channel in 0..6 {
        let lane = format!("messages/{channel}");
        let here = counters.arrivals.iter().filter(|arrival| arrival.bucket == lane);
        let tags: Vec<u32> =
            here.map(|arrival| arrival.tag.as_ref().unwrap().parse().unwrap()).collect();
        assert!(tags.len() == 10 && tags.is_sorted(), "{lane}: {tags:?}");
    }
}

#[tokio::test]
async fn octokit_waits_in_line_instead_of_being_refused() {
    let Some(place) = installed() else { return };
    // Thirty searches a minute: here thirty in three seconds.
    let fake = Loopback::start(Spec::named("github").unwrap().faster(20), local()).await.unwrap();
    let profile = Profile::builtin("github").expect("it is shipped");
    let ledgers = local_ledgers(Arc::clone(&profile));
    let (_proxy, url) = plain_proxy(fake.address(), profile, ledgers).await;
    // Ten searches of code in the same time, counted apart, and a route that the profile takes for
    // another class than the upstream does.
    for (route, count) in [("/search/issues", 40), ("/search/code", 15), ("/audit-log", 12)] {
        let arguments = [url.clone(), count.to_string(), route.to_owned()];
        let said = node(&place, "octokit", &arguments).await;
        assert_eq!(said["served"], count, "{route}: {said}");
    }
    let counters = fake.counters();
    assert_eq!((counters.requests, counters.limited_all()), (40 + 15 + 12, 0));
}

#[tokio::test]
async fn twilight_is_served_without_a_429() {
    let rig = Rig::start(discord("latency = \"2ms\""), Settings::default()).await;
    let client = twilight_http::Client::builder()
        .token("one".to_owned())
        .proxy(rig.address.to_string(), true)
        .ratelimiter(None)
        .build();
    let ask = |number: u64| {
        let (client, channel) = (&client, twilight_id(1 + number % 3));
        Box::pin(async move { client.create_message(channel).content("x").await })
    };
    for answer in join_all((0..36).map(ask)).await {
        assert_eq!(answer.unwrap().status().get(), 200);
    }
    let counters = rig.fake.counters();
    assert_eq!((counters.requests, counters.limited_all()), (36, 0));
    assert!(counters.in_flight_max > 3, "more than one at a time per bucket");
}

fn twilight_id<T>(number: u64) -> twilight_model::id::Id<T> {
    twilight_model::id::Id::new(number)
}

#[tokio::test]
async fn curl_is_served_over_both_versions_with_expectations_and_large_bodies() {
    let Some(_) = installed() else { return };
    let rig = Rig::start(discord(""), Settings::default()).await;
    let body = tempfile(3 << 20);
    for version in ["--http1.1", "--http2-prior-knowledge"] {
        let mut command = Command::new("curl");
        command
            .args(["-sS", version, "-H", "Expect: 100-continue", "-o", "/dev/null", "-w"])
            .args([
                "%{http_code} %{size_download}",
                "--data-binary",
                &format!("@{}", body.0.display()),
            ])
            .arg(format!("http://{}/_fake/echo", rig.address));
        let output = tokio::time::timeout(PATIENCE, command.output()).await.unwrap().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(said, format!("200 {}", 3 << 20), "{version}: {output:?}");
    }
}

/// A file of so many bytes that is removed afterwards.
struct TempFile(PathBuf);

fn tempfile(bytes: usize) -> TempFile {
    let path = std::env::temp_dir().join(format!("tollway-peers-{}", std::process::id()));
    std::fs::write(&path, vec![b'x'; bytes]).unwrap();
    TempFile(path)
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
