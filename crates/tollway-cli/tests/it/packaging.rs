//! What ships beside the binary: checked by the tools of those who will use it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::face::{command, root, succeed, tools};
use crate::tool;

/// A service on a free port, ended with the test.
struct Serving {
    child: Child,
    url: String,
}

impl Serving {
    fn start(config: &Path) -> Self {
        use std::io::{BufRead as _, BufReader};
        let mut child = Command::new(env!("CARGO_BIN_EXE_tollway"))
            .args(["serve", "--http", "127.0.0.1:0", "--grpc", "off", "--resp", "off", "--config"])
            .arg(config)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the service starts");
        let out = BufReader::new(child.stdout.take().expect("piped"));
        let line = out.lines().map_while(Result::ok).find(|line| line.starts_with("HTTP"));
        let line = line.expect("the service says where it listens");
        let at = line.split_whitespace().nth(1).expect("an address").to_owned();
        Self { child, url: format!("http://{at}") }
    }

    fn get(&self, path: &str) -> String {
        let mut curl = Command::new("curl");
        succeed(curl.args(["--silent", "--fail", &format!("{}{path}", self.url)]))
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn scratch(name: &str) -> PathBuf {
    let path = root().join("target/face").join(format!("{name}-{}", std::process::id()));
    fs::create_dir_all(&path).expect("a folder");
    path
}

#[test]
fn every_sample_configuration_is_valid() {
    for folder in ["config", "packaging/compose"] {
        for entry in fs::read_dir(root().join(folder)).expect("a folder") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().and_then(|name| name.to_str()).expect("a name");
            // Those of other programs beside it.
            let is_ours =
                !["compose.yaml"].contains(&name) && !path.ends_with("compose/envoy.yaml");
            let is_rules = [".toml", ".yaml"].iter().any(|ending| name.ends_with(ending));
            if is_rules && is_ours && !name.contains("proxy") {
                tool::succeed(&["validate", path.to_str().expect("text")]);
            }
        }
    }
}

#[test]
fn prometheus_understands_metrics_rules_and_alerts() {
    let Some(tools) = tools("promtool") else { return };
    let service = Serving::start(&root().join("config/tollway.toml"));
    let metrics = service.get("/metrics");
    let file = scratch("metrics").join("metrics.txt");
    fs::write(&file, &metrics).expect("a file");
    let mut check = command(tools.join("promtool"), &tools);
    check.args(["check", "metrics"]).stdin(fs::File::open(&file).expect("the file"));
    succeed(&mut check);
    let rules = "packaging/prometheus/rules.yaml";
    succeed(command(tools.join("promtool"), &tools).args(["check", "rules", rules]));
    let mut alerts = command(tools.join("promtool"), &tools);
    alerts.current_dir(root().join("packaging/prometheus"));
    succeed(alerts.args(["test", "rules", "rules_test.yaml"]));
    let queues = scratch("queues").join("queues.toml");
    fs::write(&queues, "[[queues]]\nname = \"mails\"\n").expect("a file");
    let metrics = metrics + &Serving::start(&queues).get("/metrics");
    for file in [rules, "packaging/grafana/tollway.json"] {
        let text = fs::read_to_string(root().join(file)).expect("a file");
        // The alert on what a proxy tells is judged by scrapes of one: see the tests of the proxy.
        let names = metric_names(&text).into_iter();
        for name in names.filter(|name| !name.starts_with("tollway_proxy_")) {
            assert!(metrics.contains(&format!("# TYPE {name} ")), "{file}: there is no {name}");
        }
    }
}

/// Names of metrics that a text mentions, without the suffix that a histogram adds.
fn metric_names(text: &str) -> Vec<String> {
    let is_part = |char: char| char.is_ascii_alphanumeric() || char == '_';
    let words = text.split(|char| !is_part(char));
    let named = words.filter(|word| word.starts_with("tollway_") || word.starts_with("process_"));
    named.map(|word| word.trim_end_matches("_bucket").to_owned()).collect()
}

#[test]
fn the_chart_renders_and_what_it_configures_is_valid() {
    let Some(tools) = tools("python/bin/helm") else { return };
    let chart = "packaging/helm/tollway";
    let helm = || command(tools.join("python/bin/helm"), &tools);
    succeed(helm().args(["lint", "--strict", chart]));
    let all = "serviceMonitor.enabled=true,networkPolicy.enabled=true,replicas=3";
    let rendered = succeed(helm().args(["template", "demo", chart, "--set", all]));
    for kind in ["Deployment", "Service", "ConfigMap", "PodDisruptionBudget", "ServiceMonitor"] {
        assert!(rendered.lines().any(|line| line == format!("kind: {kind}")), "{kind}");
    }
    let monitor = rendered.split("\n---").find(|part| part.contains("kind: ServiceMonitor"));
    let monitor = monitor.expect("a monitor");
    assert!(monitor.contains(r#"name: "tollway-read-token""#), "{monitor}");
    assert!(!monitor.contains(r#""tollway-token""#), "Prometheus has no admin token: {monitor}");
    assert!(rendered.contains("- name: TOLLWAY_READ_TOKEN"));
    let rules: String = rendered
        .lines()
        .skip_while(|line| !line.contains("tollway.yaml: |"))
        .skip(1)
        .take_while(|line| line.starts_with("    "))
        .map(|line| format!("{}\n", &line[4..]))
        .collect();
    let file = scratch("chart").join("tollway.yaml");
    fs::write(&file, rules).expect("a file");
    tool::succeed(&["validate", file.to_str().expect("text")]);
    let mut memory = helm();
    memory.args(["template", "demo", chart, "--set", "store=memory"]);
    let refused = memory.output().expect("helm runs");
    let complaint = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(complaint.contains("several replicas need a shared store"), "{complaint}");
}

#[test]
fn the_unit_is_understood_by_systemd_and_hardened() {
    let Some(tools) = tools("promtool") else { return };
    if !Path::new("/usr/bin/systemd-analyze").exists() {
        println!("skipped: no systemd here");
        return;
    }
    let unit = fs::read_to_string(root().join("packaging/systemd/tollway.service")).expect("unit");
    let file = scratch("unit").join("tollway.service");
    fs::write(&file, unit.replace("/usr/bin/tollway", env!("CARGO_BIN_EXE_tollway")))
        .expect("a file");
    let analyze = || command("/usr/bin/systemd-analyze", &tools);
    succeed(analyze().args(["verify", "--man=no"]).arg(&file));
    succeed(analyze().args(["security", "--offline=true", "--threshold=20"]).arg(&file));
}

#[test]
fn the_image_and_the_compose_file_are_clean() {
    let Some(tools) = tools("python/bin/hadolint") else { return };
    let hadolint = tools.join("python/bin/hadolint");
    succeed(command(hadolint, &tools).arg("packaging/docker/Dockerfile"));
    let compose = fs::read_to_string(root().join("packaging/compose/compose.yaml")).expect("file");
    for file in ["tollway.yaml", "envoy.yaml"] {
        assert!(compose.contains(&format!("./{file}:")), "{file} is mounted");
        assert!(root().join("packaging/compose").join(file).exists());
    }
    let envoy = root().join("target/service-tests/envoy");
    if envoy.exists() {
        let mut check = command(envoy, &tools);
        succeed(check.args(["--mode", "validate", "-c", "packaging/compose/envoy.yaml"]));
    }
}

#[test]
fn the_openapi_document_holds_when_it_is_fuzzed() {
    let Some(tools) = tools("python/bin/schemathesis") else { return };
    let service = Serving::start(&root().join("config/tollway.toml"));
    let examples = if std::env::var_os("TOLLWAY_FULL").is_some() { "200" } else { "4" };
    let mut fuzz = command("python3", &tools);
    fuzz.current_dir(scratch("fuzz")).args(["-m", "schemathesis.cli", "run"]);
    fuzz.arg(root().join("crates/tollway-server/openapi.json"));
    // One worker: with two, CPython 3.11 trips over its own parser ("AST constructor recursion
    // depth mismatch") in whichever thread comes second.
    fuzz.args(["--workers", "1", "--url", &service.url, "--max-examples", examples]);
    fuzz.args(["--seed", "1", "--suppress-health-check", "all", "--no-color"]);
    // A well-formed request may name a policy that does not exist: refusing it is right.
    fuzz.args(["--exclude-checks", "positive_data_acceptance"]);
    succeed(&mut fuzz);
    assert_eq!(service.get("/healthz"), "OK");
}

#[test]
fn shells_complete_and_manual_pages_are_written() {
    for (shell, sign) in
        [("bash", "complete -F"), ("zsh", "#compdef tollway"), ("fish", "complete -c")]
    {
        let script = tool::succeed(&["completions", shell]);
        assert!(script.contains(sign) && script.contains("simulate"), "{shell}");
    }
    let folder = scratch("man");
    tool::succeed(&["man", folder.to_str().expect("text")]);
    let page = fs::read_to_string(folder.join("tollway-serve.1")).expect("a page");
    assert!(page.contains(".TH tollway-serve 1") && page.contains("memory"), "{page}");
    assert!(folder.join("tollway.1").exists());
}
