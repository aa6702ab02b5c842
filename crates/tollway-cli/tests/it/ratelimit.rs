use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tollway_testkit::servers::{Certificate, Engine, Server, free_port};

use crate::face::root;
use crate::serve::{Folder, PATIENCE};

const RULES: &str = "domain: edge\ndescriptors:\n  - key: generic_key\n    value: demo\n    \
    rate_limit: {unit: hour, requests_per_unit: 2}\n";

/// A process that is killed with its test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The service by the name `ratelimit`, with nothing but ratelimit's environment.
struct Ratelimit {
    _process: Process,
    http: u16,
    debug: u16,
    metrics: u16,
    grpc: u16,
    log: PathBuf,
}

impl Ratelimit {
    fn start(folder: &Folder, variables: &[(&str, &str)]) -> Self {
        let name = folder.0.join("ratelimit");
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_tollway"), &name).expect("a link");
        let [http, debug, metrics, grpc] = [(); 4].map(|()| free_port());
        let log = folder.0.join("log");
        let mut command = Command::new(name);
        command.env_clear().env("HOST", "127.0.0.1").env("GRPC_HOST", "127.0.0.1");
        command.env("DEBUG_HOST", "127.0.0.1").env("PORT", http.to_string());
        command.env("GRPC_PORT", grpc.to_string()).env("DEBUG_PORT", debug.to_string());
        command
            .env("PROMETHEUS_ADDR", format!("127.0.0.1:{metrics}"))
            .env("USE_PROMETHEUS", "true");
        command.envs(variables.iter().copied()).stdin(Stdio::null()).stdout(Stdio::null());
        let process = command.stderr(std::fs::File::create(&log).expect("a file")).spawn();
        let process = Process(process.expect("the binary starts"));
        let started = Self { _process: process, http, debug, metrics, grpc, log };
        let answers = || TcpStream::connect(("127.0.0.1", started.http)).is_ok();
        assert!(eventually_so(answers), "{}", started.told());
        started
    }

    fn told(&self) -> String {
        std::fs::read_to_string(&self.log).expect("a log")
    }

    /// Status and body of `/json` for one descriptor.
    fn json(&self, key: &str, value: &str) -> (u16, String) {
        let body = format!(
            r#"{{"domain":"edge","descriptors":[{{"entries":[{{"key":"{key}","value":"{value}"}}]}}]}}"#
        );
        ask(self.http, "POST", "/json", &body)
    }
}

/// Whether it becomes so within the bound.
fn eventually_so(mut condition: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        if condition() {
            return true;
        }
        std::thread::park_timeout(Duration::from_millis(5));
    }
    false
}

fn ask(port: u16, method: &str, path: &str, body: &str) -> (u16, String) {
    let mut stream =
        TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port))).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: ratelimit.example\r\ncontent-length: {length}\r\n\
         connection: close\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("answered");
    let status = answer.get(9..12).and_then(|status| status.parse().ok()).expect("a status");
    (status, answer.split_once("\r\n\r\n").map_or("", |(_, body)| body).to_owned())
}

fn rules(folder: &Folder) -> PathBuf {
    let rules = folder.0.join("runtime/ratelimit/config");
    std::fs::create_dir_all(&rules).expect("a folder");
    std::fs::write(rules.join("edge.yaml"), RULES).expect("a file");
    rules
}

fn write(path: &Path, text: &str) {
    // As whoever deploys does it: never half a file.
    let draft = path.with_extension("draft");
    std::fs::write(&draft, text).expect("a file");
    std::fs::rename(draft, path).expect("in place");
}

#[test]
fn by_the_name_ratelimit_it_answers_on_its_ports_as_that_does() {
    let folder = Folder::new("ratelimit-ports");
    rules(&folder);
    let root = folder.0.join("runtime").display().to_string();
    let variables = [
        ("RUNTIME_ROOT", &*root),
        ("RUNTIME_SUBDIRECTORY", "ratelimit"),
        ("RUNTIME_WATCH_ROOT", "false"),
        ("LOG_LEVEL", "info"),
    ];
    let service = Ratelimit::start(&folder, &variables);
    assert_eq!(ask(service.http, "GET", "/healthcheck", ""), (200, "OK".to_owned()));
    let statuses = [(); 3].map(|()| service.json("generic_key", "demo").0);
    assert_eq!(statuses, [200, 200, 429], "{}", service.told());
    let dumped = ask(service.debug, "GET", "/rlconfig", "").1;
    let line = "edge.generic_key_demo: unit=HOUR requests_per_unit=2, \
                shadow_mode: false, quota_mode: false\n";
    assert_eq!(dumped, line);
    let stats = ask(service.debug, "GET", "/stats", "").1;
    let over = "ratelimit.service.rate_limit.edge.generic_key_demo.over_limit: 1";
    assert!(stats.lines().any(|found| found == over), "{stats}");
    let metrics = ask(service.metrics, "GET", "/metrics", "").1;
    let hits =
        r#"ratelimit_service_rate_limit_total_hits{domain="edge",key1="generic_key_demo"} 3"#;
    assert!(metrics.lines().any(|found| found == hits), "{metrics}");
    // Whoever shows no token may ask, and nothing else.
    assert_eq!(ask(service.http, "POST", "/v1/reset", "{}").0, 403);
    let said = service.told().matches("RUNTIME_WATCH_ROOT has no effect").count();
    assert_eq!(said, 1, "{}", service.told());
}

#[test]
fn a_folder_of_rules_is_followed_and_a_bad_file_changes_nothing() {
    let folder = Folder::new("ratelimit-folder");
    let rules = rules(&folder);
    let root = folder.0.join("runtime/ratelimit").display().to_string();
    let variables = [("RUNTIME_ROOT", &*root), ("MERGE_DOMAIN_CONFIG", "true")];
    let service = Ratelimit::start(&folder, &variables);
    let dumped = || ask(service.debug, "GET", "/rlconfig", "").1;
    assert_eq!(dumped().lines().count(), 1);

    let more = "domain: edge\ndescriptors:\n  - key: more\n    \
                rate_limit: {unit: day, requests_per_unit: 7}\n";
    write(&rules.join("more.yaml"), more);
    assert!(eventually_so(|| dumped().contains("edge.more: unit=DAY")), "{}", service.told());
    assert_eq!(dumped().lines().count(), 2, "merged");

    write(&rules.join("more.yaml"), &more.replace("day", "fortnight"));
    let is_refused = || service.told().contains("more.yaml:4: descriptors[0].rate_limit.unit");
    assert!(eventually_so(is_refused), "{}", service.told());
    assert!(dumped().contains("edge.more: unit=DAY"), "the old rules stay");

    std::fs::remove_file(rules.join("more.yaml")).expect("removed");
    assert!(eventually_so(|| dumped().lines().count() == 1), "{}", service.told());
}

/// What Envoy Gateway sets, but for the rules, which no control plane pushes here.
#[test]
fn redis_over_tls_counts_and_a_real_envoy_with_mtls_is_limited() {
    let envoy = root().join("target/service-tests/envoy");
    if !envoy.exists() {
        assert!(std::env::var_os("TOLLWAY_TOOLS").is_none(), "run scripts/install-service-tests");
        println!("skipped: envoy is not installed (scripts/install-service-tests)");
        return;
    }
    let folder = Folder::new("ratelimit-envoy");
    rules(&folder);
    let made = Certificate::for_loopback();
    let [certificate, key] = [("tls.crt", &made.certificate), ("tls.key", &made.key)]
        .map(|(name, text)| folder.file(name, text));
    let port = free_port().to_string();
    let options = ["--tls-port", &port, "--tls-cert-file", &certificate, "--tls-key-file", &key];
    let clients = ["--tls-ca-cert-file", &certificate, "--tls-auth-clients", "yes"];
    let redis = Server::start(Engine::Redis, &[options.as_slice(), &clients].concat());
    let (root, url) = (folder.0.join("runtime").display().to_string(), format!("127.0.0.1:{port}"));
    let variables = [
        ("RUNTIME_ROOT", &*root),
        ("RUNTIME_SUBDIRECTORY", "ratelimit"),
        ("RUNTIME_IGNOREDOTFILES", "true"),
        ("RUNTIME_WATCH_ROOT", "false"),
        ("LOG_LEVEL", "info"),
        ("USE_STATSD", "false"),
        ("GRPC_SERVER_USE_TLS", "true"),
        ("GRPC_SERVER_TLS_CERT", &certificate),
        ("GRPC_SERVER_TLS_KEY", &key),
        ("GRPC_SERVER_TLS_CA_CERT", &certificate),
        ("GRPC_CLIENT_TLS_CACERT", &certificate),
        ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true"),
        ("REDIS_SOCKET_TYPE", "tcp"),
        ("REDIS_URL", &url),
        ("REDIS_TLS", "true"),
        ("REDIS_TLS_CLIENT_CERT", &certificate),
        ("REDIS_TLS_CLIENT_KEY", &key),
        ("REDIS_TLS_CACERT", &certificate),
        ("CACHE_KEY_PREFIX", "shop:"),
    ];
    let service = Ratelimit::start(&folder, &variables);
    let listen = free_port();
    let config = folder.file("envoy.yaml", &envoy_file(listen, &service, [&certificate, &key]));
    let mut command = Command::new(envoy);
    command.arg("-c").arg(config).args(["--concurrency", "1", "--use-dynamic-base-id"]);
    let log = std::fs::File::create(folder.0.join("envoy.log")).expect("a file");
    let envoy = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn();
    let _envoy = Process(envoy.expect("Envoy starts"));
    let is_up = || TcpStream::connect(("127.0.0.1", listen)).is_ok();
    assert!(eventually_so(is_up), "{:?}", std::fs::read_to_string(folder.0.join("envoy.log")));
    let statuses = [(); 3].map(|()| ask(listen, "GET", "/", "").0);
    assert_eq!(statuses, [200, 200, 429], "{}", service.told());
    let keys = redis.tell(&["KEYS", "shop:tw:*"]);
    assert!(keys.contains("shop:tw:"), "{keys}");
    // Without a certificate nobody asks.
    let mut stranger = TcpStream::connect(("127.0.0.1", service.grpc)).expect("it listens");
    stranger.set_read_timeout(Some(Duration::from_secs(60))).expect("a socket");
    stranger.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").expect("sent");
    let mut heard = Vec::new();
    let _ = stranger.read_to_end(&mut heard);
    assert!(!heard.starts_with(&[0, 0]), "plain HTTP/2 is not answered: {heard:?}");
}

/// The file that the document shows, with the addresses of this run and certificates.
fn envoy_file(listen: u16, service: &Ratelimit, [certificate, key]: [&str; 2]) -> String {
    let book = std::fs::read_to_string(root().join("docs/how-to/envoy.md")).expect("the document");
    let (_, rest) = book.split_once("```yaml file=envoy.yaml\n").expect("Envoy's file");
    let (file, _) = rest.split_once("```").expect("its end");
    let socket = format!(
        "    - name: ratelimit\n      transport_socket:\n        name: envoy.transport_sockets.tls\n        \
         typed_config:\n          \"@type\": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext\n          \
         common_tls_context:\n            tls_certificates:\n              \
         - {{certificate_chain: {{filename: {certificate}}}, private_key: {{filename: {key}}}}}\n            \
         validation_context: {{trusted_ca: {{filename: {certificate}}}}}\n"
    );
    let actions = "[{ actions: [{ generic_key: { descriptor_value: demo } }] }]";
    for shown in
        ["port_value: 9003", "port_value: 8081", "port_value: 8080", "    - name: ratelimit\n"]
    {
        assert!(file.contains(shown), "{shown}");
    }
    file.replace("port_value: 9003", &format!("port_value: {listen}"))
        .replace("port_value: 8080", &format!("port_value: {}", service.http))
        .replace("port_value: 8081", &format!("port_value: {}", service.grpc))
        .replace("[{ actions: [{ remote_address: {} }] }]", actions)
        .replace("    - name: ratelimit\n", &socket)
}
