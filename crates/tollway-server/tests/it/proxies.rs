use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};

use crate::harness::{Child, Folder, Http, eventually, free_port, start, tool};

/// An upstream that answers everything with 200.
pub(crate) fn upstream() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            std::thread::spawn(move || {
                let mut bytes = [0; 4096];
                while stream.read(&mut bytes).is_ok_and(|read| read > 0) {
                    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi";
                    if stream.write_all(answer).is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

pub(crate) fn spawn(mut command: Command, port: u16) -> Child {
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let child = Child(child);
    eventually("the proxy listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    child
}

/// The file that the book shows, with the addresses of this run.
fn nginx_file(listen: u16, application: SocketAddr, service: SocketAddr) -> String {
    let book = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/how-to/gateways.md");
    let book = std::fs::read_to_string(book).unwrap();
    let (_, rest) = book.split_once("```nginx file=nginx.conf\n").unwrap();
    let (file, _) = rest.split_once("```").unwrap();
    let shown = ["127.0.0.1:8000", "127.0.0.1:9000", "127.0.0.1:8080"];
    let here = [format!("127.0.0.1:{listen}"), application.to_string(), service.to_string()];
    let file = shown.iter().zip(&here).fold(file.to_owned(), |file, (shown, here)| {
        assert!(file.contains(shown), "the book's file does not name {shown}");
        file.replace(shown, here)
    });
    let paths = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
    let paths: String = paths.iter().map(|path| format!("{path}_temp_path {path};")).collect();
    file.replace("access_log off;", &format!("access_log off; {paths}"))
}

#[test]
fn nginx_with_the_books_file_passes_the_limit_on_and_refuses_what_is_not_decided() {
    let Some(nginx) = tool("nginx") else { return };
    let toml = "[[policies]]\nname = \"api\"\nquota = \"2/1m\"\ngate_key = \"header:x-api-key\"\n";
    let running = start(toml);
    let port = free_port();
    let folder = Folder::new("nginx");
    folder.file("nginx.conf", &nginx_file(port, upstream(), running.http));
    let mut command = Command::new(nginx);
    command.arg("-p").arg(&folder.0).args([
        "-e",
        "stderr",
        "-c",
        "nginx.conf",
        "-g",
        "daemon off;",
    ]);
    let _nginx = spawn(command, port);
    let ask = |fields: &str| {
        let mut http = Http::connect(SocketAddr::from(([127, 0, 0, 1], port)));
        http.send("GET", "/", &format!("{fields}connection: keep-alive\r\n"), "")
    };
    let answers = [(); 3].map(|()| ask("x-api-key: ada\r\n"));
    let statuses = answers.each_ref().map(|answer| answer.status);
    assert_eq!(statuses, [200, 200, 429], "{answers:?}");
    assert_eq!(answers[0].field("ratelimit"), Some("\"api\";r=1;t=30"));
    assert_eq!(answers[0].field("ratelimit-policy"), Some("\"api\";q=2;w=60"));
    assert_eq!(answers[0].field("retry-after"), None);
    assert_eq!(answers[2].field("ratelimit"), Some("\"api\";r=0;t=30"));
    assert_eq!(answers[2].field("retry-after"), Some("30"));
    assert_eq!(ask("").status, 400, "a request without the key");
    assert_eq!(ask("x-api-key: a\r\nx-api-key: b\r\n").status, 400, "one with two keys");

    drop(running.server);
    eventually("nobody decides", || ask("x-api-key: bob\r\n").status == 503);
}

const ENVOY_RULES: &str = r#"
[[domains]]
domain = "edge"
[[domains.descriptors]]
key = "generic_key"
value = "demo"
rate_limit = { unit = "minute", requests_per_unit = 2, name = "demo" }
[[domains.descriptors]]
key = "tokens"
value = "ada"
rate_limit = { unit = "hour", requests_per_unit = 2 }
"#;

fn envoy_config(listen: u16, upstream: SocketAddr, grpc: SocketAddr) -> String {
    let cluster = |name: &str, address: SocketAddr, http2: &str| {
        format!(
            "  - {{name: {name}, type: STATIC, connect_timeout: 5s, {http2} load_assignment: \
             {{cluster_name: {name}, endpoints: [{{lb_endpoints: [{{endpoint: {{address: \
             {{socket_address: {{address: 127.0.0.1, port_value: {}}}}}}}}}]}}]}}}}\n",
            address.port()
        )
    };
    let http2 = "typed_extension_protocol_options: \
        {envoy.extensions.upstreams.http.v3.HttpProtocolOptions: {'@type': \
        type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions, \
        explicit_http_config: {http2_protocol_options: {}}}},";
    let limits = "rate_limits: [{actions: [{generic_key: {descriptor_value: demo}}]}]";
    let filter = "{name: envoy.filters.http.ratelimit, typed_config: {'@type': \
        type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit, domain: edge, \
        timeout: 20s, failure_mode_deny: true, enable_x_ratelimit_headers: DRAFT_VERSION_03, \
        rate_limit_service: {transport_api_version: V3, \
        grpc_service: {envoy_grpc: {cluster_name: tollway}, timeout: 20s}}}}";
    let router = "{name: envoy.filters.http.router, typed_config: {'@type': \
        type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}";
    // A look before the request, and a report when its stream is done.
    let tokens = "actions: [{generic_key: {descriptor_key: tokens, descriptor_value: ada}}]";
    let per_route = format!(
        "typed_per_filter_config: {{envoy.filters.http.ratelimit: {{'@type': \
         type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute, \
         rate_limits: [{{{tokens}, hits_addend: {{number: 0}}}}, {{{tokens}, \
         hits_addend: {{number: 1}}, apply_on_stream_done: true}}]}}}}"
    );
    let clusters = cluster("upstream", upstream, "") + &cluster("tollway", grpc, http2);
    format!(
        "static_resources:\n  listeners:\n  - address: {{socket_address: {{address: 127.0.0.1, \
         port_value: {listen}}}}}\n    filter_chains: [{{filters: [{{name: \
         envoy.filters.network.http_connection_manager, typed_config: {{'@type': \
         type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager, \
         stat_prefix: x, route_config: {{virtual_hosts: [{{name: all, domains: ['*'], routes: \
         [{{match: {{prefix: /tokens}}, route: {{cluster: upstream}}, {per_route}}}, \
         {{match: {{prefix: /}}, route: {{cluster: upstream, {limits}}}}}]}}]}}, http_filters: \
         [{filter}, {router}]}}}}]}}]\n  clusters:\n{clusters}"
    )
}

#[test]
fn a_real_envoy_answers_200_200_429_with_our_fields() {
    let Some(envoy) = tool("envoy") else { return };
    let running = start(ENVOY_RULES);
    let port = free_port();
    let folder = Folder::new("envoy");
    let file = folder.file("envoy.yaml", &envoy_config(port, upstream(), running.grpc));
    let mut command = Command::new(envoy);
    command.arg("-c").arg(file).args(["--concurrency", "1", "--use-dynamic-base-id"]);
    let _envoy = spawn(command, port);
    let mut http = Http::connect(SocketAddr::from(([127, 0, 0, 1], port)));
    let answers = [http.get("/"), http.get("/"), http.get("/")];
    let statuses = answers.each_ref().map(|answer| answer.status);
    assert_eq!(statuses, [200, 200, 429], "{answers:?}");
    assert_eq!(answers[0].field("ratelimit-policy"), Some("\"demo\";q=2;w=60"));
    assert!(answers[1].field("ratelimit").unwrap().starts_with("\"demo\";r=0;t="));
    assert!(answers[0].field("x-ratelimit-limit").unwrap().starts_with("2, 2;w=60"));
    assert!(answers[2].field("retry-after").is_some(), "{answers:?}");
    assert!(answers[2].body.contains("quota-exceeded"), "{answers:?}");

    // As `token-quota.sh` of envoyproxy/ratelimit has it: two of two used is not yet over.
    let mut metrics = Http::connect(running.http);
    let statuses = [1, 2, 3, 4].map(|request| {
        let status = http.get("/tokens").status;
        let reported = format!(
            "tollway_descriptor_hits_total{{domain=\"edge\",policy=\"tokens_ada\",\
             outcome=\"total_hits\"}} {}",
            request.min(3)
        );
        // Envoy reports when it has answered, and what it refuses itself is no stream.
        if request <= 3 {
            let is_there = |line: &str| line == reported;
            eventually("the report", || metrics.get("/metrics").body.lines().any(is_there));
        }
        status
    });
    assert_eq!(statuses, [200, 200, 200, 429]);
}
