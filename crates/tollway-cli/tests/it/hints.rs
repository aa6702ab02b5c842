//! Every command that a starting process prints is run by a shell as it stands there, and works.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use tollway_testkit::servers::Certificate;

use crate::serve::Folder;

const POLICY: &str = "[[policies]]\nname = \"api\"\nquota = \"100/1m\"\n";
const TOKEN: &str = "hint-token-0123456789abcdef";
/// What a printed command may take; curl and redis-cli end by themselves, this is for what hangs.
const BOUND_S: &str = "60";

/// A process and the lines that it printed when it started; killed when dropped.
struct Started {
    process: Child,
    lines: Vec<String>,
    folder: Folder,
    variables: Vec<(&'static str, String)>,
}

impl Started {
    /// Starts the binary and reads lines until one begins with `last`.
    fn new(
        folder: Folder,
        arguments: &[&str],
        variables: Vec<(&'static str, String)>,
        last: &str,
    ) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_tollway"))
            .args(arguments)
            .current_dir(&folder.0)
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the binary starts");
        let mut lines = Vec::new();
        for line in BufReader::new(process.stdout.take().expect("piped")).lines() {
            lines.push(line.expect("text"));
            if lines[lines.len() - 1].starts_with(last) {
                break;
            }
        }
        Self { process, lines, folder, variables }
    }

    /// Runs a printed command in the folder of the process, with its variables.
    fn run(&self, command: &str) -> String {
        let output = Command::new("timeout")
            .args([BOUND_S, "sh", "-c", command])
            .current_dir(&self.folder.0)
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .output()
            .expect("a shell");
        let told = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command}\n{told}{errors}\n{:#?}", self.lines);
        told
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A service on free ports, or on sockets in its folder.
fn serve(name: &str, config: &str, on_sockets: bool, prepare: impl FnOnce(&Folder)) -> Started {
    let folder = Folder::new(name);
    prepare(&folder);
    let config = folder.file("service.toml", config);
    let places = match on_sockets {
        true => ["unix:an http.sock", "unix:grpc.sock", "unix:resp.sock"],
        false => ["127.0.0.1:0"; 3],
    };
    let [http, grpc, resp] = places;
    let variables = vec![
        ("TOLLWAY_CLIENT_CERT", "client.pem".to_owned()),
        ("TOLLWAY_CLIENT_KEY", "client-key.pem".to_owned()),
    ];
    let arguments = ["serve", "--config", &config, "--http", http, "--grpc", grpc, "--resp", resp];
    Started::new(folder, &arguments, variables, "RESP")
}

/// Runs every command that the service has printed. What it answers holds these texts.
fn works(mut started: Started, http: &str, resp: &str) {
    // Not in the environment of the service: that would be a token of its own.
    started.variables.push(("TOLLWAY_TOKEN", TOKEN.to_owned()));
    let (mut pages, mut commands) = (0, 0);
    for line in started.lines.clone() {
        let Some((front, rest)) = line.split_once("  ") else { continue };
        let Some((_, command)) = rest.split_once("   ") else { continue };
        match front {
            "page" => {
                pages += 1;
                assert!(command.starts_with("http"), "{line}");
            }
            "HTTP" => {
                commands += 1;
                let told = started.run(command);
                assert!(told.contains(http), "{line}\n{told}");
            }
            "RESP" => {
                commands += 1;
                let told = started.run(command);
                assert!(
                    told.trim_end() == resp || told.lines().next() == Some(resp),
                    "{line}\n{told}"
                );
            }
            "gRPC" => {
                commands += 1;
                if has_grpcurl() {
                    let told = started.run(command);
                    assert!(told.contains("ShouldRateLimit"), "{line}\n{told}");
                }
            }
            _ => {}
        }
    }
    let on_sockets = started.lines.iter().any(|line| line.contains("unix:"));
    assert_eq!((pages, commands), (usize::from(!on_sockets), 3), "{:#?}", started.lines);
}

/// No package of the system has it; where somebody has installed it, its commands are run, too.
fn has_grpcurl() -> bool {
    let found = Command::new("grpcurl").arg("-version").output().is_ok();
    if !found {
        println!("skipped: grpcurl is not installed");
    }
    found
}

const ALLOWED: &str = "\"allowed\":true";

#[test]
fn the_commands_of_a_plain_service_work() {
    works(serve("hints-plain", POLICY, false, |_| ()), ALLOWED, "1");
    works(serve("hints-sockets", POLICY, true, |_| ()), ALLOWED, "1");
}

#[test]
fn the_commands_work_whatever_the_service_has_to_offer() {
    let queue = "[[queues]]\nname = \"mail\"\n";
    works(serve("hints-queue", queue, false, |_| ()), "\"id\":", "PONG");
    works(serve("hints-nothing", "shadow = false\n", false, |_| ()), "\"ready\":true", "PONG");
    for (number, limit) in [
        "algorithm = \"concurrency\"\nlimit = 3\nlease = \"1m\"",
        "algorithm = \"leaky-bucket\"\nsize = 3\ndrip_interval = \"1s\"",
        "algorithm = \"sliding-window\"\nquota = \"5/1m\"",
        "algorithm = \"fixed-window\"\nquota = \"5/1m\"",
        "algorithm = \"legacy\"\nmax = 5\nduration = \"1m\"\nmin_interval = \"1ms\"",
    ]
    .into_iter()
    .enumerate()
    {
        let config = format!("[[policies]]\nname = \"its-{number}.limit\"\n{limit}\n");
        works(serve(&format!("hints-{number}"), &config, false, |_| ()), ALLOWED, "1");
    }
}

#[test]
fn the_commands_work_with_tokens() {
    let config = format!("{POLICY}[[tokens]]\ntoken = \"{TOKEN}\"\nrole = \"admin\"\n");
    for (name, on_sockets) in [("hints-token", false), ("hints-token-sockets", true)] {
        let started = serve(name, &config, on_sockets, |_| ());
        assert!(started.lines.iter().any(|line| line.starts_with("token   TOLLWAY_TOKEN")));
        works(started, ALLOWED, "1");
    }
}

#[test]
fn the_commands_work_with_certificates() {
    let tls = "[tls]\ncertificate = \"a cert.pem\"\nkey = \"key.pem\"\n";
    let for_loopback = |folder: &Folder| {
        let made = Certificate::for_loopback();
        folder.file("a cert.pem", &made.certificate);
        folder.file("key.pem", &made.key);
    };
    let token = format!("[[tokens]]\ntoken = \"{TOKEN}\"\nrole = \"admin\"\n");
    works(serve("hints-tls", &format!("{POLICY}{tls}"), false, for_loopback), ALLOWED, "1");
    works(
        serve("hints-tls-token", &format!("{POLICY}{token}{tls}"), false, for_loopback),
        ALLOWED,
        "1",
    );
    works(serve("hints-tls-sockets", &format!("{POLICY}{tls}"), true, for_loopback), ALLOWED, "1");
}

#[test]
fn the_commands_work_with_a_certificate_for_another_name() {
    let tls = format!("{POLICY}[tls]\ncertificate = \"cert.pem\"\nkey = \"key.pem\"\n");
    let named = |folder: &Folder| made(&folder.0, "cert.pem", "key.pem", "DNS:*.tollway.example");
    works(serve("hints-tls-name", &tls, false, named), ALLOWED, "1");
    let token = format!("{tls}[[tokens]]\ntoken = \"{TOKEN}\"\nrole = \"admin\"\n");
    works(serve("hints-tls-name-token", &token, false, named), ALLOWED, "1");
}

#[test]
fn the_commands_work_where_clients_need_certificates() {
    let tls =
        "[tls]\ncertificate = \"cert.pem\"\nkey = \"key.pem\"\nclient_authority = \"client.pem\"\n";
    let pairs = |folder: &Folder| {
        made(&folder.0, "cert.pem", "key.pem", "IP:127.0.0.1");
        made(&folder.0, "client.pem", "client-key.pem", "DNS:client.example");
    };
    let started = serve("hints-mutual", &format!("{POLICY}{tls}"), false, pairs);
    assert!(started.lines.iter().any(|line| line.starts_with("client  TOLLWAY_CLIENT_CERT")));
    works(started, ALLOWED, "1");
}

/// Makes a certificate that signs itself.
fn made(folder: &Path, certificate: &str, key: &str, name: &str) {
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"])
        .args(["-nodes", "-days", "2", "-subj", "/CN=made", "-keyout", key, "-out", certificate])
        .args(["-addext", &format!("subjectAltName={name}")])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .current_dir(folder)
        .output()
        .expect("openssl is installed by scripts/install-peers");
    assert!(made.status.success(), "{made:?}");
}

#[test]
fn the_commands_of_every_fake_upstream_work() {
    let profiles =
        "discord, github, gitlab, heroku, ietf, openai, anthropic, shopify, slack, stripe";
    for profile in profiles.split(", ") {
        let folder = Folder::new(&format!("hints-fake-{profile}"));
        let arguments = ["fake-upstream", "--profile", profile];
        let started = Started::new(folder, &arguments, Vec::new(), "  curl http");
        let [_, request, counters] = &started.lines[..] else {
            panic!("{profile}: {:#?}", started.lines);
        };
        let told = started.run(request.trim());
        assert!(told.starts_with("HTTP/1.1 200"), "{profile}: {told}");
        let told = started.run(counters.trim());
        let counters: serde_json::Value = serde_json::from_str(&told).expect("JSON");
        assert_eq!(counters["served"], 1, "{profile}: {told}");
        let buckets = counters["buckets"].as_object().expect("buckets");
        assert_eq!(buckets.len(), 1, "{profile}: a limit counts it: {told}");
    }
}
