use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};

use crate::harness::{Child, Folder, Http, eventually, free_port, start, tool};

/// An upstream that answers everything with 200.
fn upstream() -> SocketAddr {
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

fn spawn(mut command: Command, port: u16) -> Child {
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let child = Child(child);
    eventually("the proxy listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    child
}

#[test]
fn nginx_lets_through_what_the_gate_allows_and_answers_429_for_the_rest() {
    let Some(nginx) = tool("nginx") else { return };
    let toml = "[[policies]]\nname = \"api\"\nquota = \"2/1m\"\ngate_key = \"header:x-api-key\"\n";
    let running = start(toml);
    let (port, upstream) = (free_port(), upstream());
    let folder = Folder::new("nginx");
    let config = format!(
        "daemon off; pid {folder}/pid; error_log {folder}/error.log; events {{}}\n\
         http {{ access_log off; client_body_temp_path {folder}/a; proxy_temp_path {folder}/b;\n\
         fastcgi_temp_path {folder}/c; uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;\n\
         server {{ listen 127.0.0.1:{port};\n\
         location / {{ auth_request /gate; auth_request_set $limit $upstream_http_ratelimit;\n\
         auth_request_set $retry $upstream_http_retry_after; add_header RateLimit $limit always;\n\
         error_page 403 = @limited; proxy_pass http://{upstream}; }}\n\
         location = /gate {{ internal; proxy_pass_request_body off;\n\
         proxy_set_header Content-Length \"\"; proxy_set_header X-Api-Key $http_x_api_key;\n\
         proxy_pass http://{http}/v1/gate/api?deny_status=403; }}\n\
         location @limited {{ add_header Retry-After $retry always; return 429; }} }} }}\n",
        folder = folder.0.display(),
        http = running.http,
    );
    let file = folder.file("nginx.conf", &config);
    let mut command = Command::new(nginx);
    command.arg("-p").arg(&folder.0).arg("-c").arg(file);
    let _nginx = spawn(command, port);
    let ask = || {
        let mut http = Http::connect(SocketAddr::from(([127, 0, 0, 1], port)));
        http.send("GET", "/", "x-api-key: ada\r\nconnection: keep-alive\r\n", "")
    };
    let answers = [ask(), ask(), ask()];
    let statuses = answers.each_ref().map(|answer| answer.status);
    assert_eq!(statuses, [200, 200, 429], "{answers:?}");
    assert_eq!(answers[0].field("ratelimit"), Some("\"api\";r=1;t=30"));
    assert_eq!(answers[2].field("retry-after"), Some("30"));
}

const ENVOY_RULES: &str = r#"
[[domains]]
domain = "edge"
[[domains.descriptors]]
key = "generic_key"
value = "demo"
rate_limit = { unit = "minute", requests_per_unit = 2, name = "demo" }
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
    let clusters = cluster("upstream", upstream, "") + &cluster("tollway", grpc, http2);
    format!(
        "static_resources:\n  listeners:\n  - address: {{socket_address: {{address: 127.0.0.1, \
         port_value: {listen}}}}}\n    filter_chains: [{{filters: [{{name: \
         envoy.filters.network.http_connection_manager, typed_config: {{'@type': \
         type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager, \
         stat_prefix: x, route_config: {{virtual_hosts: [{{name: all, domains: ['*'], routes: \
         [{{match: {{prefix: /}}, route: {{cluster: upstream, {limits}}}}}]}}]}}, http_filters: \
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
}
