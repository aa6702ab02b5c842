//! Real SDKs, unmodified, read what the fake upstream answers: bodies, errors, uploads of any size.

use std::process::Command;

use crate::face::{peers, root, succeed};
use crate::proxy::Running;

/// Runs the everyday calls of one SDK through a proxy to the fake upstream of that name.
fn everyday(profile: &str) {
    let Some(place) = peers() else { return };
    let source = root().join("crates/tollway-cli/tests/it/sdks");
    let fake = Running::fake(&["--profile", profile, "--faster", "4"]);
    let fixed = ["proxy", "--listen", "127.0.0.1:0", "--profile", profile];
    let proxy = Running::start(&[&fixed, &["--upstream", &*fake.url][..]].concat(), None);
    let mut command = if profile == "github" {
        // Modules are found from where the script is.
        let script = place.join("everyday.mjs");
        std::fs::copy(source.join("everyday.mjs"), &script).expect("a copy");
        let mut node = Command::new("node");
        node.arg(script);
        node
    } else {
        let mut python = Command::new("python3");
        python.arg(source.join("everyday.py")).arg(profile);
        python.env("PYTHONPATH", place.join("python"));
        python
    };
    let told = succeed(command.args([&proxy.url, &fake.url]));
    assert!(told.contains("read everything"), "{told}");
}

/// Plays the calls of models of one SDK at the fake upstream and through a proxy: what the SDK
/// reads must be the same.
fn models(script: &str, profile: &str) {
    let Some(place) = peers() else { return };
    let source = root().join("crates/tollway-cli/tests/it/sdks").join(script);
    let fake = Running::fake(&["--profile", profile, "--token-time", "1ms"]);
    let fixed = ["proxy", "--listen", "127.0.0.1:0", "--profile", profile];
    let proxy = Running::start(&[&fixed, &["--upstream", &*fake.url][..]].concat(), None);
    let read = |address: &str| {
        let mut command = if script.ends_with(".py") {
            let mut python = Command::new("python3");
            python.arg(&source).env("PYTHONPATH", place.join("python"));
            python
        } else {
            // Modules are found from where the script is.
            let copy = place.join(format!("{profile}-{script}"));
            std::fs::copy(&source, &copy).expect("a copy");
            let mut node = Command::new("node");
            node.arg(copy);
            node
        };
        succeed(command.args([profile, address]))
    };
    let alone = read(&fake.url);
    assert!(alone.lines().count() >= 1, "{alone}");
    assert_eq!(read(&proxy.url), alone);
}

#[test]
fn calls_of_models_by_the_openai_sdk_read_the_same_through_the_proxy() {
    models("models.py", "openai");
}

#[test]
fn calls_of_models_by_the_anthropic_sdk_read_the_same_through_the_proxy() {
    models("models.py", "anthropic");
}

#[test]
fn calls_of_models_by_the_sdks_for_node_read_the_same_through_the_proxy() {
    models("models.mjs", "openai");
    models("models.mjs", "anthropic");
}

#[test]
fn the_openai_sdk_believes_it() {
    everyday("openai");
}

#[test]
fn the_anthropic_sdk_believes_it() {
    everyday("anthropic");
}

#[test]
fn slack_sdk_believes_it() {
    everyday("slack");
}

#[test]
fn the_stripe_sdk_believes_it() {
    everyday("stripe");
}

#[test]
fn discord_py_believes_it() {
    everyday("discord");
}

#[test]
fn octokit_believes_it() {
    everyday("github");
}
