/// Protocol buffers without our own types.
mod protobuf;

/// The server that pushes.
mod control_plane;

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use tokio::runtime::Runtime;
use tollway_core::{Timestamp, VirtualClock};
use tollway_memory::{Capacity, MemoryStore};
use tollway_server::config::{Config, Overrides};
use tollway_server::{Backing, Metrics, Origin, Server, Service, reload};

use crate::harness::{Child, Folder, Http, Running, eventually, running, tool, tools};
use crate::operations::certificates;
use control_plane::{ControlPlane, Heard, response};
use protobuf::{Fields, bytes, number};

const SECOND: u64 = 1;
const HOUR: u64 = 3;
const MONTH: u64 = 5;
const YEAR: u64 = 6;

/// A service that follows a control plane.
struct Follower {
    running: Running,
    _runtime: Runtime,
}

impl Follower {
    /// With the section `[xds]` and what `rest` says.
    fn of(plane: &ControlPlane, more: &str, rest: &str) -> Self {
        let folder = Folder::new(&format!("xds-{}", plane.address.port()));
        let file = folder.file("tollway.toml", &section(plane, more, rest));
        Self::start(vec![file])
    }

    fn start(files: Vec<std::path::PathBuf>) -> Self {
        let any = || Some("127.0.0.1:0".to_owned());
        let overrides = Overrides { http: any(), grpc: any(), resp: any(), ..Overrides::default() };
        let metrics = Metrics::default();
        let config = Config::check(&files, &overrides, &metrics);
        let config = config.unwrap_or_else(|error| panic!("{error}"));
        let clock = Arc::new(VirtualClock::at(Timestamp::from_millis(1_700_000_000_000)));
        let memory = Backing::Memory(Arc::new(MemoryStore::new(Capacity::keys(10_000))));
        let service = Service::new(config.rules, metrics, memory, clock, config.settings);
        let origin = Origin { files, overrides, ..Origin::default() };
        let service = Arc::new(service.with_origin(origin).with_xds(config.xds));
        let server = Server::start(service, &config.listen, None, 1).unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = { runtime }.worker_threads(1).enable_all().build().unwrap();
        runtime.spawn(Arc::clone(server.service()).follow_xds());
        Self { running: running(server), _runtime: runtime }
    }

    fn http(&self) -> Http {
        Http::connect(self.running.http)
    }

    /// 200 or 429.
    fn ask(&self, domain: &str, entries: &[(&str, &str)]) -> u16 {
        let entry = |(key, value): &(&str, &str)| serde_json::json!({"key": key, "value": value});
        let entries: Vec<_> = entries.iter().map(entry).collect();
        let descriptors = serde_json::json!([{ "entries": entries }]);
        let body = serde_json::json!({"domain": domain, "descriptors": descriptors});
        self.http().post("/json", &body.to_string()).status
    }

    /// How many of five requests pass.
    fn passes(&self, domain: &str, entries: &[(&str, &str)]) -> usize {
        (0..5).filter(|_| self.ask(domain, entries) == 200).count()
    }

    fn metric(&self, name: &str) -> u64 {
        let metrics = self.http().get("/metrics").body;
        let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name} in {metrics}")).parse().unwrap()
    }

    fn pushes(&self, result: &str) -> u64 {
        self.metric(&format!("tollway_xds_pushes_total{{result=\"{result}\"}}"))
    }

    fn state(&self) -> serde_json::Value {
        self.http().get("/readyz").json()["xds"].clone()
    }
}

fn section(plane: &ControlPlane, more: &str, rest: &str) -> String {
    let server = plane.address;
    format!(
        "[xds]\nserver = \"http://{server}\"\nnode = \"envoy-ratelimit\"\n\
         reconnect_after = \"10ms\"\nreconnect_max = \"50ms\"\n{more}\n{rest}\n"
    )
}

/// `RateLimitPolicy`.
fn limit(unit: u64, requests: u64) -> Vec<u8> {
    [number(1, unit), number(2, requests)].concat()
}

/// `RateLimitDescriptor`, with its limit if it has one, and what is below it.
fn descriptor(key: &str, value: &str, limit: Option<&[u8]>, below: &[Vec<u8>]) -> Vec<u8> {
    let limit = limit.map_or(Vec::new(), |limit| bytes(3, limit));
    let below: Vec<u8> = below.iter().flat_map(|inner| bytes(4, inner)).collect();
    [bytes(1, key), bytes(2, value), limit, below].concat()
}

/// `RateLimitConfig`.
fn config(domain: &str, descriptors: &[Vec<u8>]) -> Vec<u8> {
    let descriptors: Vec<u8> = descriptors.iter().flat_map(|inner| bytes(3, inner)).collect();
    [bytes(1, format!("of-{domain}")), bytes(2, domain), descriptors].concat()
}

/// A domain in which each user has so many requests an hour.
fn users(domain: &str, requests: u64) -> Vec<u8> {
    config(domain, &[descriptor("user", "", Some(&limit(HOUR, requests)), &[])])
}

fn is_taken(heard: &Heard, version: &str) -> bool {
    heard.error.is_none() && heard.version == version
}

#[test]
fn what_is_pushed_is_in_force_acknowledged_and_gone_with_its_resource() {
    let plane = ControlPlane::start();
    let more = "[xds.metadata]\nzone = \"a\"\n[xds.headers]\nauthorization = \"Bearer s3cret\"";
    let follower = Follower::of(&plane, more, "");
    let first = plane.heard();
    assert_eq!((first.version.as_str(), first.nonce.as_str(), &first.error), ("", "", &None));
    assert_eq!(first.type_url, control_plane::TYPE_URL);
    assert_eq!(first.node.text(1), "envoy-ratelimit");
    let metadata = first.node.message(3).unwrap().message(1).unwrap();
    assert_eq!(
        (metadata.text(1), metadata.message(2).unwrap().text(3)),
        ("zone".into(), "a".into())
    );
    assert_eq!(first.fields["authorization"], "Bearer s3cret");
    let waiting = follower.http().get("/readyz");
    assert_eq!((waiting.status, waiting.json()["xds"]["version"].is_null()), (503, true));
    assert_eq!(follower.passes("edge", &[("user", "ada")]), 5, "no rules yet, no limits");

    let taken = plane.push("v1", "n1", &[users("edge", 2), users("other", 1)]);
    assert!(is_taken(&taken, "v1"), "{taken:?}");
    assert_eq!(follower.passes("edge", &[("user", "ada")]), 2);
    assert_eq!(follower.passes("other", &[("user", "ada")]), 1);
    let ready = follower.http().get("/readyz");
    assert_eq!((ready.status, &ready.json()["xds"]["version"]), (200, &"v1".into()));

    let taken = plane.push("v2", "n2", &[users("other", 3)]);
    assert!(is_taken(&taken, "v2"), "{taken:?}");
    assert_eq!(follower.passes("edge", &[("user", "ada")]), 5, "its resource is gone");
    assert_eq!(follower.passes("other", &[("user", "ada")]), 2, "one was used before");
    let taken = plane.push("v3", "n3", &[]);
    assert!(is_taken(&taken, "v3"), "{taken:?}");
    assert_eq!(follower.passes("other", &[("user", "ada")]), 5, "the world is empty");
    assert_eq!((follower.pushes("ok"), follower.metric("tollway_xds_connected")), (3, 1));
}

#[test]
fn a_wrong_push_is_refused_with_the_reason_and_the_rules_in_force_stay() {
    let plane = ControlPlane::start();
    let follower = Follower::of(&plane, "", "");
    plane.heard();
    assert!(is_taken(&plane.push("v1", "n1", &[users("edge", 1)]), "v1"));
    let bad = descriptor("user", "", Some(&limit(0, 7)), &[]);
    let bad = [users("fine", 1), config("edge", &[descriptor("route", "a", None, &[bad])])];
    let expected = "resource 1 (name \"of-edge\"), domain \"edge\", descriptor \"route_a.user\": \
                    rate_limit: unit is missing";
    // Servers may send what was refused again and again.
    for nonce in ["n2", "n3", "n3b"] {
        let refused = plane.push("v2", nonce, &bad);
        assert_eq!((refused.version.as_str(), refused.error), ("v1", Some((3, expected.into()))));
    }
    let twice = plane.push("v3", "n4", &[users("two", 1), users("two", 2)]);
    assert!(twice.error.is_some_and(|(_, reason)| reason.contains("\"two\" is defined above")));
    assert_eq!(follower.passes("edge", &[("user", "ada")]), 1);
    assert_eq!(follower.passes("fine", &[("user", "ada")]), 5, "all of it or nothing");
    assert_eq!((follower.pushes("refused"), follower.metric("tollway_xds_stale")), (4, 1));
    let state = follower.state();
    assert_eq!((&state["version"], &state["refused"]["version"]), (&"v1".into(), &"v3".into()));
    assert!(is_taken(&plane.push("v4", "n5", &[users("edge", 3)]), "v4"));
    assert_eq!(follower.passes("edge", &[("user", "ada")]), 2, "one was used before");
    assert_eq!(
        (follower.metric("tollway_xds_stale"), follower.state()["refused"].is_null()),
        (0, true)
    );
}

#[test]
fn a_server_that_is_gone_changes_nothing_and_is_followed_again_when_it_is_back() {
    let plane = ControlPlane::start();
    let follower = Follower::of(&plane, "", "");
    assert_eq!(plane.heard().stream, 1);
    assert!(is_taken(&plane.push("7", "n1", &[users("edge", 1)]), "7"));
    plane.set_away(true);
    eventually("the loss is known", || follower.metric("tollway_xds_connected") == 0);
    assert!(follower.state()["last_error"].is_string());
    assert_eq!(follower.passes("edge", &[("user", "ada")]), 1);
    assert_eq!(follower.http().get("/readyz").status, 200);

    plane.set_away(false);
    let again = plane.heard();
    // A server that counts its versions anew would take the number for its own.
    assert_eq!((again.version.as_str(), again.nonce.as_str()), ("", ""));
    assert_eq!(again.node.text(1), "envoy-ratelimit");
    assert!(is_taken(&plane.push("1", "n1", &[users("edge", 1)]), "1"));
    assert_eq!((follower.pushes("ok"), follower.pushes("unchanged")), (1, 1));
    assert_eq!(follower.passes("edge", &[("user", "ada")]), 0, "what was used stays used");
    assert!(is_taken(&plane.push("2", "n2", &[users("edge", 2)]), "2"));

    plane.end("14", "draining");
    let third = plane.heard();
    assert_eq!(third.version, "");
    assert_eq!(follower.passes("edge", &[("user", "eve")]), 2);
}

#[test]
fn responses_that_come_together_are_answered_each_by_its_nonce_and_the_last_holds() {
    let plane = ControlPlane::start();
    let follower = Follower::of(&plane, "", "");
    plane.heard();
    for (version, requests) in [("v1", 1), ("v2", 2), ("v3", 3)] {
        plane.say(&response(version, &format!("of-{version}"), &[users("edge", requests)]));
    }
    // A type that was not asked for is not answered: an answer would ask for it.
    let other = [bytes(1, "v9"), bytes(4, "type.googleapis.com/other"), bytes(5, "n9")].concat();
    plane.say(&other);
    plane.say(&response("v4", "of-v4", &[users("edge", 4)]));
    let heard = [(); 4].map(|()| plane.heard());
    let answers = heard.each_ref().map(|heard| (heard.version.as_str(), heard.nonce.as_str()));
    let expected = [("v1", "of-v1"), ("v2", "of-v2"), ("v3", "of-v3"), ("v4", "of-v4")];
    assert_eq!(answers, expected);
    assert_eq!(follower.passes("edge", &[("user", "ada")]), 4);
    assert_eq!(follower.pushes("ignored"), 1);
}

#[test]
fn a_domain_of_a_file_is_the_files_and_reloads_of_files_keep_what_was_pushed() {
    let plane = ControlPlane::start();
    let folder = Folder::new("xds-files");
    let domain = "[[domains]]\ndomain = \"edge\"\n[[domains.descriptors]]\nkey = \"user\"\n\
                  rate_limit = { unit = \"hour\", requests_per_unit = 1 }\n";
    let more = "start_without = true";
    let file = folder.file("tollway.toml", &section(&plane, more, domain));
    let follower = Follower::start(vec![file]);
    assert_eq!(follower.http().get("/readyz").status, 200, "start_without");
    plane.heard();
    assert!(is_taken(&plane.push("v1", "n1", &[users("edge", 3), users("pushed", 2)]), "v1"));
    assert_eq!(follower.passes("edge", &[("user", "ada")]), 1, "the file's");
    assert_eq!(follower.passes("pushed", &[("user", "ada")]), 2);
    let told = follower.http().get("/admin/rules").json();
    assert_eq!(told["domains"], serde_json::json!(["edge", "pushed"]));
    assert_eq!(told["xds"]["overruled"], serde_json::json!(["edge"]));

    folder.file("tollway.toml", &section(&plane, more, ""));
    reload(follower.running.server.service()).unwrap();
    assert_eq!(follower.passes("edge", &[("user", "ada")]), 2, "pushed, and one was used before");
    assert_eq!(follower.passes("pushed", &[("user", "eve")]), 2);
    let told = follower.http().get("/readyz").json();
    assert_eq!(told["config"], "current", "{told}");

    folder.file("tollway.toml", &section(&plane, "message_bytes = \"1MiB\"", ""));
    reload(follower.running.server.service()).unwrap();
    let told = follower.http().get("/readyz").json();
    assert!(told["config_error"].as_str().unwrap().contains("another [xds] needs a restart"));
}

#[test]
fn a_hostile_server_is_refused_and_counted_and_changes_nothing() {
    let plane = ControlPlane::start();
    let follower = Follower::of(&plane, "message_bytes = \"4MiB\"", "");
    plane.heard();
    assert!(is_taken(&plane.push("v1", "n1", &[users("edge", 1)]), "v1"));

    // What can be answered is refused.
    let empty = bytes(2, []).repeat(120_000);
    let tail = |nonce: &str| [bytes(1, "v2"), bytes(4, control_plane::TYPE_URL), bytes(5, nonce)];
    let many_descriptors = config("edge", &vec![Vec::new(); 200_000]);
    let deep = (0..90).fold(Vec::new(), |inner, _| descriptor("k", "", None, &[inner]));
    let long_key = "x".repeat(1 << 20);
    let leaves: Vec<_> = (0..1_000).map(|n| descriptor("k", &n.to_string(), None, &[])).collect();
    let repeated = config("edge", &[descriptor(&long_key, "", None, &leaves)]);
    for (nonce, message, reason) in [
        ("a", [empty, tail("a").concat()].concat(), "more than 100000 messages"),
        ("b", response("v2", "b", &[many_descriptors]), "more than 100000 messages"),
        ("c", response("v2", "c", &[config("edge", &[deep])]), "more than 16 levels"),
        ("d", response("v2", "d", &[repeated]), "expected at most 33554432"),
        ("e", response("v2", "e", &[vec![0xff; 40]]), "resource 0"),
    ] {
        plane.say(&message);
        let heard = plane.heard();
        let told = heard.error.map(|(_, reason)| reason).unwrap_or_default();
        assert_eq!((heard.nonce.as_str(), heard.version.as_str()), (nonce, "v1"));
        assert!(told.contains(reason), "{nonce}: {told}");
        assert!(told.chars().count() <= 2_000);
    }

    // What cannot be ends the stream.
    let long = [vec![0], 100_000_000_u32.to_be_bytes().to_vec(), vec![0; 70_000]].concat();
    let version = [bytes(1, "v".repeat(5_000)), bytes(5, "n")].concat();
    let version = [&[0][..], &(version.len() as u32).to_be_bytes(), &version].concat();
    let unreadable = [long, vec![1, 0, 0, 0, 1, 0], vec![0, 0, 0, 0, 2, 0xff, 0xff], version];
    for (index, message) in unreadable.into_iter().enumerate() {
        plane.say_bytes(message);
        let again = plane.heard();
        assert_eq!((again.nonce.as_str(), again.stream), ("", index + 2));
        assert_eq!(follower.pushes("unreadable"), index as u64 + 1);
    }
    assert_eq!(follower.passes("edge", &[("user", "ada")]), 1);
    assert!(is_taken(&plane.push("v3", "n9", &[users("edge", 2)]), "v3"));
}

/// A rule in the form in which Envoy Gateway writes it: a chain of descriptors, of which the last
/// one has the limit and the inner ones may be in shadow mode.
fn route(index: u64) -> Vec<u8> {
    let units = [SECOND, HOUR, MONTH, YEAR];
    let leaf = limit(units[index as usize % units.len()], index + 1);
    let leaf = descriptor("masked_remote_address", "0.0.0.0/0", Some(&leaf), &[]);
    let shadow = number(5, index % 2);
    let inner = descriptor("rule-0-match-1", "rule-0-match-1", None, &[leaf]);
    let outer = descriptor("rule-0-match-0", "rule-0-match-0", None, &[[inner, shadow].concat()]);
    let name = format!("httproute/default/backend-{index}/rule/0/match/0/www_example_com");
    descriptor(&name, &name, None, &[outer])
}

#[test]
fn a_thousand_rules_of_a_gateways_shape_are_in_force_with_one_push() {
    let plane = ControlPlane::start();
    let follower = Follower::of(&plane, "", "");
    plane.heard();
    let routes: Vec<Vec<u8>> = (0..1_000).map(route).collect();
    let resources = [config("default/eg/http", &routes)];
    let began = Instant::now();
    let taken = plane.push("1", "n1", &resources);
    println!("1,000 rules: acknowledged after {:?}", began.elapsed());
    assert!(is_taken(&taken, "1"), "{taken:?}");
    let ask = |index: u64| {
        let name = format!("httproute/default/backend-{index}/rule/0/match/0/www_example_com");
        let match_0 = ("rule-0-match-0", "rule-0-match-0");
        let match_1 = ("rule-0-match-1", "rule-0-match-1");
        let address = ("masked_remote_address", "0.0.0.0/0");
        follower.passes("default/eg/http", &[(&name, &name), match_0, match_1, address])
    };
    assert_eq!([0, 1, 2, 3, 999].map(ask), [1, 2, 3, 4, 5]);
}

#[test]
fn a_server_by_grpcio_is_spoken_to_over_tls_with_certificates_of_both_sides() {
    let Some(_) = tool("openssl") else { return };
    if !tools().join("python/grpc").exists() && tool("python/grpc").is_none() {
        return;
    }
    let folder = Folder::new("xds-tls");
    certificates(&folder);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/xds/control_plane.py");
    let mut command = Command::new("python3");
    command.env("PYTHONPATH", tools().join("python")).arg(script).arg(&folder.0);
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut child = Child(child);
    let mut said = BufReader::new(child.0.stdout.take().unwrap()).lines().map(Result::unwrap);
    let port = said.next().unwrap();

    let file = |name: &str| folder.0.join(name).display().to_string();
    let follower = |name: &str, identity: &str| {
        let toml = format!(
            "[xds]\nserver = \"https://127.0.0.1:{port}\"\nnode = \"{name}\"\n{identity}\n\
             authority = \"{}\"\nserver_name = \"localhost\"\n",
            file("ca.pem"),
        );
        Follower::start(vec![folder.file(&format!("{name}.toml"), &toml)])
    };
    let nobody = follower("nobody", "");
    eventually("the server refuses it", || nobody.state()["last_error"].is_string());
    let (certificate, key) = (file("client.pem"), file("client.key"));
    let known = follower("known", &format!("certificate = \"{certificate}\"\nkey = \"{key}\""));
    let mut heard = || {
        let line = said.next().expect("a request");
        let digits = line.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
        Fields::of(&digits.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect::<Vec<_>>())
    };
    assert_eq!(heard().message(2).unwrap().text(1), "known");
    let mut push = |message: Vec<u8>| {
        let digits: String = message.iter().map(|byte| format!("{byte:02x}")).collect();
        writeln!(child.0.stdin.as_mut().unwrap(), "{digits}").unwrap();
    };
    push(response("v1", "n1", &[users("edge", 2)]));
    let taken = heard();
    assert_eq!((taken.text(1), taken.text(5)), ("v1".to_owned(), "n1".to_owned()));
    assert_eq!(known.passes("edge", &[("user", "ada")]), 2);
    // More than the windows of HTTP/2 hold at once.
    let many: Vec<Vec<u8>> = (0..4_000).map(route).collect();
    push(response("v2", "n2", &[config("large", &many), users("edge", 3)]));
    assert_eq!((heard().text(5), known.passes("edge", &[("user", "eve")])), ("n2".to_owned(), 3));
    assert!(nobody.state()["version"].is_null());
}
