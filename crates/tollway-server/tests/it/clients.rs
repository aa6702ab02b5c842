use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::sync::Arc;

use prost_types::value::Kind;
use tokio::runtime::Runtime;
use tollway_redis::{RedisStore, Settings};
use tollway_server::testing::messages::{
    Entry, RateLimitDescriptor, RateLimitOverride, RateLimitRequest, RateLimitResponse,
    ThrottleRequest, ThrottleResponse, UInt64Value,
};
use tollway_testkit::servers::{Engine, Server};
use tonic::client::Grpc as TonicGrpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

use crate::failures::on;
use crate::harness::{Http, PATIENCE, output, start, tool, tools};

const POLICY: &str = "[[policies]]\nname = \"api\"\nquota = \"2/1m\"\n";

const ENVOY: &str = r#"
[[domains]]
domain = "edge"
[[domains.descriptors]]
key = "user"
rate_limit = { unit = "minute", requests_per_unit = 2, name = "per_user" }
[[domains.descriptors]]
key = "path"
value = "/free/*"
rate_limit = { unlimited = true }
[[domains.descriptors]]
key = "trial"
shadow_mode = true
rate_limit = { unit = "hour", requests_per_unit = 1 }
[[domains.descriptors]]
key = "none"
rate_limit = { unit = "hour", requests_per_unit = 0 }
[[domains.descriptors]]
key = "mine"
quota = "5/10s"
metadata = { tier = "own", shares = [1, true] }
[[domains.descriptors]]
key = "vip"
rate_limit = { unit = "minute", requests_per_unit = 9, replaces = [{ name = "per_user" }] }
[[domains.descriptors]]
key = "q1"
quota_mode = true
rate_limit = { unit = "hour", requests_per_unit = 1 }
[[domains.descriptors]]
key = "q2"
quota_mode = true
rate_limit = { unit = "hour", requests_per_unit = 2 }
"#;

/// Calls by tonic, as grpcurl would make them.
pub(crate) struct Grpc {
    runtime: tokio::runtime::Runtime,
    client: TonicGrpc<Channel>,
}

impl Grpc {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let endpoint = Endpoint::try_from(format!("http://{address}")).unwrap();
        let channel = runtime.block_on(endpoint.connect()).unwrap();
        Self { runtime, client: TonicGrpc::new(channel) }
    }

    pub(crate) fn should_rate_limit(
        &mut self,
        request: RateLimitRequest,
    ) -> Result<RateLimitResponse, tonic::Status> {
        self.call("/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit", request)
    }

    /// An empty call with this `authorization`.
    pub(crate) fn should_rate_limit_with(
        &mut self,
        authorization: &'static str,
    ) -> Result<RateLimitResponse, tonic::Status> {
        let codec = ProstCodec::<RateLimitRequest, RateLimitResponse>::default();
        let path = PathAndQuery::from_static(
            "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
        );
        let mut request = tonic::Request::new(RateLimitRequest::default());
        request.metadata_mut().insert("authorization", authorization.parse().unwrap());
        let client = &mut self.client;
        self.runtime.block_on(async {
            client.ready().await.map_err(|error| tonic::Status::unknown(error.to_string()))?;
            Ok(client.unary(request, path, codec).await?.into_inner())
        })
    }

    pub(crate) fn call<Q, A>(&mut self, path: &'static str, request: Q) -> Result<A, tonic::Status>
    where
        Q: prost::Message + Send + Sync + 'static,
        A: prost::Message + Default + Send + Sync + 'static,
    {
        let codec = ProstCodec::<Q, A>::default();
        let client = &mut self.client;
        self.runtime.block_on(async {
            client.ready().await.map_err(|error| tonic::Status::unknown(error.to_string()))?;
            let path = PathAndQuery::from_static(path);
            let response = client.unary(tonic::Request::new(request), path, codec).await?;
            Ok(response.into_inner())
        })
    }

    fn ask(&mut self, entries: &[(&str, &str)]) -> RateLimitResponse {
        self.should_rate_limit(request(entries.iter().map(|entry| descriptor(&[*entry])))).unwrap()
    }
}

fn descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
    let entry = |(key, value): &(&str, &str)| Entry { key: (*key).into(), value: (*value).into() };
    RateLimitDescriptor {
        entries: entries.iter().map(entry).collect(),
        ..RateLimitDescriptor::default()
    }
}

fn request(descriptors: impl IntoIterator<Item = RateLimitDescriptor>) -> RateLimitRequest {
    RateLimitRequest {
        domain: "edge".to_owned(),
        descriptors: descriptors.into_iter().collect(),
        hits_addend: 0,
    }
}

fn codes(response: &RateLimitResponse) -> (i32, Vec<i32>) {
    (response.overall_code, response.statuses.iter().map(|status| status.code).collect())
}

#[test]
fn envoys_protocol_answers_one_status_per_descriptor_in_order() {
    let running = start(ENVOY);
    let mut grpc = Grpc::connect(running.grpc);
    let first = grpc.ask(&[("user", "ada"), ("path", "/free/1"), ("unknown", "x")]);
    assert_eq!(codes(&first), (1, vec![1, 1, 1]));
    let limit = first.statuses[0].current_limit.clone().unwrap();
    assert_eq!((limit.requests_per_unit, limit.unit, &*limit.name), (2, 2, "per_user"));
    assert_eq!(first.statuses[0].limit_remaining, 1);
    assert_eq!(first.statuses[1].limit_remaining, u32::MAX);
    let names: Vec<&str> = first.response_headers_to_add.iter().map(|field| &*field.key).collect();
    assert_eq!(names, ["ratelimit-policy", "ratelimit"]);
    grpc.ask(&[("user", "ada")]);
    let denied = grpc.ask(&[("user", "ada"), ("mine", "x")]);
    assert_eq!(codes(&denied), (2, vec![2, 1]));
    assert!(denied.response_headers_to_add.iter().any(|field| field.key == "retry-after"));
    let body = String::from_utf8(denied.raw_body).unwrap();
    assert!(body.contains("quota-exceeded") && body.contains("\"per_user\""), "{body}");
    // Nothing was taken from the limit that would have allowed it.
    assert_eq!(grpc.ask(&[("mine", "x")]).statuses[0].limit_remaining, 4);
}

/// What a stream has used is told when it is done: refused and forgotten, it would never count.
#[test]
fn what_a_descriptor_reports_is_counted_whatever_was_left() {
    let running = start(
        "[[domains]]\ndomain = \"edge\"\n[[domains.descriptors]]\nkey = \"tokens\"\n\
         rate_limit = { unit = \"hour\", requests_per_unit = 1000 }\n\
         [[domains.descriptors]]\nkey = \"requests\"\n\
         rate_limit = { unit = \"hour\", requests_per_unit = 5 }\n",
    );
    let mut grpc = Grpc::connect(running.grpc);
    let mut hit = |hits: Option<u64>, addend: u32| {
        let hits_addend = hits.map(|value| UInt64Value { value });
        let tokens = RateLimitDescriptor { hits_addend, ..descriptor(&[("tokens", "ada")]) };
        let plain = descriptor(&[("requests", "ada")]);
        let descriptors = match hits {
            Some(1..) => vec![tokens],
            _ => vec![tokens, plain],
        };
        let request = RateLimitRequest { hits_addend: addend, ..request(descriptors) };
        let answer = grpc.should_rate_limit(request).unwrap();
        (answer.overall_code, answer.statuses[0].limit_remaining)
    };
    // As Envoy does it: a look before the stream, a report after it.
    assert_eq!((hit(Some(0), 0), hit(Some(600), 0)), ((1, 1_000), (1, 400)));
    assert_eq!((hit(Some(0), 0), hit(Some(600), 0)), ((1, 400), (2, 400)));
    assert_eq!(hit(Some(0), 0), (2, 0), "1,200 of 1,000 are used");
    // A request's own hits are asked for, all or nothing: what is refused is not taken.
    assert_eq!(hit(None, 3), (2, 0));
    let requests = grpc.ask(&[("requests", "ada")]);
    assert_eq!(requests.statuses[0].limit_remaining, 2, "the two looks before, and this one");
}

/// As `token-quota.sh` of envoyproxy/ratelimit has it.
#[test]
fn a_look_is_over_only_if_more_than_the_limit_is_used() {
    let rule =
        |key: &str, limit: &str| format!("[[domains.descriptors]]\nkey = \"{key}\"\n{limit}\n");
    let rules = [
        rule("window", "rate_limit = { unit = \"minute\", requests_per_unit = 2 }"),
        rule("sliding", "quota = \"2/1m\"\nalgorithm = \"sliding-window\""),
        rule("calendar", "quota = \"2/day\"\nalgorithm = \"calendar-window\""),
        rule("bucket", "quota = \"2/1h\""),
        rule("q1", "quota_mode = true\nrate_limit = { unit = \"hour\", requests_per_unit = 2 }"),
    ];
    let rules = "[[domains]]\ndomain = \"edge\"\n".to_owned() + &rules.concat();
    looks_and_reports(start(&rules).grpc);
    let server = Server::start(Engine::Redis, &[]);
    let runtime = Runtime::new().unwrap();
    let store = runtime.block_on(RedisStore::connect(&server.url(), Settings::default())).unwrap();
    looks_and_reports(on(Arc::new(store), "redis", &rules).grpc);
}

/// Looks at each rule and reports one unit, in turn.
fn looks_and_reports(address: SocketAddr) {
    let mut grpc = Grpc::connect(address);
    let mut hit = |key: &str, hits: u64| {
        let hits_addend = Some(UInt64Value { value: hits });
        let asked = RateLimitDescriptor { hits_addend, ..descriptor(&[(key, "ada")]) };
        codes(&grpc.should_rate_limit(request([asked])).unwrap()).0
    };
    for key in ["window", "sliding", "calendar", "q1"] {
        let requests = [(); 4].map(|()| (hit(key, 0), hit(key, 1)));
        assert_eq!(requests, [(1, 1), (1, 1), (1, 2), (2, 2)], "{key}");
    }
    // A bucket holds no more than its limit, so nobody knows of more: it is over when it is empty.
    let requests = [(); 3].map(|()| (hit("bucket", 0), hit("bucket", 1)));
    assert_eq!(requests, [(1, 1), (1, 1), (2, 2)]);
}

#[test]
fn metadata_of_a_rule_is_told_when_a_request_matches_and_passes() {
    let running = start(ENVOY);
    let mut grpc = Grpc::connect(running.grpc);
    let told = grpc.ask(&[("user", "ada"), ("mine", "x")]).dynamic_metadata.unwrap();
    assert_eq!(told.fields["domain"].kind, Some(Kind::StringValue("edge".to_owned())));
    let Some(Kind::ListValue(asked)) = &told.fields["descriptors"].kind else { panic!("no list") };
    assert_eq!(asked.values.len(), 2, "all of the request's");
    let Some(Kind::StructValue(told)) = &told.fields["metadata"].kind else { panic!("no table") };
    assert_eq!(told.fields["tier"].kind, Some(Kind::StringValue("own".to_owned())));
    let Some(Kind::ListValue(shares)) = &told.fields["shares"].kind else { panic!("no list") };
    assert_eq!(shares.values[1].kind, Some(Kind::BoolValue(true)));
    assert_eq!(grpc.ask(&[("user", "eve")]).dynamic_metadata, None, "that rule has none");
    let all = RateLimitRequest { hits_addend: 6, ..request([descriptor(&[("mine", "x")])]) };
    assert_eq!(grpc.should_rate_limit(all).unwrap().dynamic_metadata, None, "over its limit");
    let body = r#"{"domain":"edge","descriptors":[{"entries":[{"key":"mine","value":"y"}]}]}"#;
    let answer = Http::connect(running.http).post("/json", body).json();
    let told = serde_json::json!({
        "domain": "edge",
        "descriptors": [{"entries": ["mine=y"]}],
        "metadata": {"shares": [1.0, true], "tier": "own"},
    });
    assert_eq!(answer["dynamicMetadata"], told);
}

#[test]
fn hits_limits_and_modes_of_a_descriptor_are_respected() {
    let running = start(ENVOY);
    let mut grpc = Grpc::connect(running.grpc);
    let hits = |value, is_negative_hits| {
        let hits_addend = Some(UInt64Value { value });
        request([RateLimitDescriptor {
            hits_addend,
            is_negative_hits,
            ..descriptor(&[("mine", "x")])
        }])
    };
    let asked =
        |hits_addend| RateLimitRequest { hits_addend, ..request([descriptor(&[("mine", "x")])]) };
    let mut remaining = |request| {
        let response = grpc.should_rate_limit(request).unwrap();
        (response.overall_code, response.statuses[0].limit_remaining)
    };
    assert_eq!(remaining(hits(3, false)), (1, 2));
    assert_eq!(remaining(hits(0, false)), (1, 2));
    assert_eq!(remaining(asked(3)), (2, 2));
    assert_eq!(remaining(hits(2, true)), (1, 4));
    let limit = Some(RateLimitOverride { requests_per_unit: 1, unit: 3 });
    let own = || request([RateLimitDescriptor { limit, ..descriptor(&[("mine", "y")]) }]);
    assert_eq!(remaining(own()), (1, 0));
    assert_eq!(remaining(own()), (2, 0));
    let by_request = RateLimitRequest { hits_addend: 4, ..request([descriptor(&[("mine", "z")])]) };
    assert_eq!(remaining(by_request), (1, 1));
    assert_eq!(codes(&grpc.ask(&[("none", "x")])), (2, vec![2]));
    for _ in 0..3 {
        assert_eq!(codes(&grpc.ask(&[("trial", "x")])), (1, vec![1]));
    }
    // A limit that another replaces in the same request is not asked.
    for _ in 0..3 {
        assert_eq!(codes(&grpc.ask(&[("vip", "x"), ("user", "eve")])), (1, vec![1, 1]));
    }
    // Over only when every limit in quota mode is.
    assert_eq!(codes(&grpc.ask(&[("q1", "x"), ("q2", "x")])).0, 1);
    assert_eq!(codes(&grpc.ask(&[("q1", "x"), ("q2", "x")])), (1, vec![2, 1]));
    assert_eq!(codes(&grpc.ask(&[("q1", "x"), ("q2", "x")])), (2, vec![2, 2]));
}

#[test]
fn malformed_calls_get_a_status_and_the_connection_goes_on() {
    let running = start(ENVOY);
    let mut grpc = Grpc::connect(running.grpc);
    let mut code = |request| grpc.should_rate_limit(request).unwrap_err().code();
    assert_eq!(code(RateLimitRequest::default()), tonic::Code::InvalidArgument);
    assert_eq!(code(request([])), tonic::Code::InvalidArgument);
    assert_eq!(code(request([descriptor(&[])])), tonic::Code::InvalidArgument);
    let unknown: Result<RateLimitResponse, _> = grpc.call("/x.Y/Z", RateLimitRequest::default());
    assert_eq!(unknown.unwrap_err().code(), tonic::Code::Unimplemented);
    assert_eq!(codes(&grpc.ask(&[("user", "bob")])).0, 1);
}

#[test]
fn throttlecrabs_grpc_clients_are_answered() {
    let running = start("");
    let mut grpc = Grpc::connect(running.grpc);
    let request = ThrottleRequest {
        key: "k".to_owned(),
        max_burst: 2,
        count_per_period: 1,
        period: 60,
        quantity: 2,
    };
    let mut throttle = || -> ThrottleResponse {
        grpc.call("/throttlecrab.RateLimiter/Throttle", request.clone()).unwrap()
    };
    let (allowed, denied) = (throttle(), throttle());
    assert!(allowed.allowed && allowed.limit == 2 && allowed.remaining == 0);
    assert!(!denied.allowed && denied.retry_after == 120);
}

#[test]
fn health_is_reported_and_reflection_describes_the_service() {
    let running = start("");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let endpoint = Endpoint::try_from(format!("http://{}", running.grpc)).unwrap();
        let channel = endpoint.connect().await.unwrap();
        let mut health = tonic_health::pb::health_client::HealthClient::new(channel.clone());
        let request = tonic_health::pb::HealthCheckRequest {
            service: "envoy.service.ratelimit.v3.RateLimitService".to_owned(),
        };
        let status = health.check(request).await.unwrap().into_inner().status;
        assert_eq!(status, 1);
        let expected = [
            "envoy.service.ratelimit.v3.RateLimitService",
            "grpc.health.v1.Health",
            "throttlecrab.RateLimiter",
        ];
        for names in [listed_v1(channel.clone()).await, listed_v1alpha(channel).await] {
            for name in expected {
                assert!(names.iter().any(|found| found == name), "{name} in {names:?}");
            }
        }
    });
}

/// The services that reflection of a version lists.
macro_rules! lists_services {
    ($name:ident $version:ident) => {
        async fn $name(channel: Channel) -> Vec<String> {
            use pb::server_reflection_request::MessageRequest;
            use pb::server_reflection_response::MessageResponse;
            use tonic_reflection::pb::$version as pb;
            let request = pb::ServerReflectionRequest {
                host: String::new(),
                message_request: Some(MessageRequest::ListServices(String::new())),
            };
            let mut client = pb::server_reflection_client::ServerReflectionClient::new(channel);
            let stream = client.server_reflection_info(tokio_stream::once(request)).await.unwrap();
            let answer = stream.into_inner().message().await.unwrap().unwrap();
            let Some(MessageResponse::ListServicesResponse(list)) = answer.message_response else {
                panic!("{answer:?}");
            };
            list.service.into_iter().map(|service| service.name).collect()
        }
    };
}

lists_services! { listed_v1 v1 }
lists_services! { listed_v1alpha v1alpha }

/// Envoys that never leave would never meet the nodes that are added.
#[test]
fn a_grpc_connection_of_age_is_told_to_leave_and_closed_after_its_grace() {
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00";
    const GO_AWAY: u8 = 7;
    let running = start("[limits]\ngrpc_age = \"50ms\"\ngrpc_age_grace = \"50ms\"\n");
    let mut stream = TcpStream::connect(running.grpc).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(PREFACE).unwrap();
    // Nothing here answers the ping behind the farewell, so only the grace ends it.
    let mut heard = Vec::new();
    stream.read_to_end(&mut heard).unwrap();
    let (mut frames, mut rest) = (Vec::new(), &heard[..]);
    while let [a, b, c, kind, _, _, _, _, _, ..] = *rest {
        frames.push(kind);
        rest = &rest[9 + u32::from_be_bytes([0, a, b, c]) as usize..];
    }
    assert!(frames.contains(&GO_AWAY), "{frames:?}");
}

/// The examples of envoyproxy/ratelimit's README.
#[test]
fn limits_that_say_so_are_counted_by_value() {
    let yaml = r#"
[[domains]]
domain = "example8"
[[domains.descriptors]]
key = "key1"
detailed_metric = true
rate_limit = { unit = "minute", requests_per_unit = 10 }
[[domains]]
domain = "example10"
[[domains.descriptors]]
key = "route"
value_to_metric = true
[[domains.descriptors.descriptors]]
key = "action"
value = "read*"
value_to_metric = true
[[domains.descriptors.descriptors.descriptors]]
key = "subject"
rate_limit = { unit = "minute", requests_per_unit = 10 }
[[domains]]
domain = "example11"
[[domains.descriptors]]
key = "route"
value = "api/*"
share_threshold = true
value_to_metric = true
[[domains.descriptors.descriptors]]
key = "method"
shadow_mode = true
rate_limit = { unit = "minute", requests_per_unit = 1 }
"#;
    let running = start(yaml);
    let mut grpc = Grpc::connect(running.grpc);
    let mut ask = |domain: &str, entries: &[(&str, &str)]| {
        let asked = request([descriptor(entries)]);
        grpc.should_rate_limit(RateLimitRequest { domain: domain.to_owned(), ..asked }).unwrap()
    };
    ask("example8", &[("key1", "any")]);
    ask("example10", &[("route", "api"), ("action", "readfile"), ("subject", "1")]);
    for route in ["api/v1", "api/v2"] {
        ask("example11", &[("route", route), ("method", "GET")]);
    }
    let metrics = Http::connect(running.http).get("/metrics").body;
    for (domain, policy, outcome, count) in [
        ("example8", "key1_any", "total_hits", 1),
        ("example8", "key1", "total_hits", 0),
        ("example10", "route_api.action_readfile.subject", "within_limit", 1),
        ("example11", "route_api/*.method", "total_hits", 2),
        ("example11", "route_api/*.method", "over_limit", 1),
        ("example11", "route_api/*.method", "shadow_mode", 1),
    ] {
        let line = format!(
            "tollway_descriptor_hits_total{{domain=\"{domain}\",policy=\"{policy}\",\
             outcome=\"{outcome}\"}} {count}"
        );
        assert!(metrics.lines().any(|found| found == line), "{line} in\n{metrics}");
    }
}

#[test]
fn redis_cli_connects_and_asks() {
    let Some(cli) = tool("redis-cli") else { return };
    let running = start(POLICY);
    let port = running.resp.port().to_string();
    let ask = |arguments: &[&str]| output(Command::new(&cli).args(["-p", &port]).args(arguments));
    assert_eq!(ask(&["PING"]), "PONG\n");
    assert_eq!(ask(&["CL.THROTTLE", "user123", "15", "30", "60"]), "0\n16\n15\n-1\n2\n");
    assert_eq!(ask(&["-3", "TOLL.CHECK", "api", "ada"]).lines().next(), Some("1"));
    assert!(ask(&["INFO"]).contains("tollway_version"));
    assert_eq!(ask(&["TOLL.CHECK", "nope", "x"]).trim(), "NOPOLICY no policy has this name");
}

#[test]
fn the_redis_crate_speaks_both_protocols_and_pipelines() {
    let running = start(POLICY);
    for suffix in ["", "/?protocol=resp3"] {
        let client = redis::Client::open(format!("redis://{}{suffix}", running.resp)).unwrap();
        let mut connection = client.get_connection().unwrap();
        let mut pipeline = redis::pipe();
        for _ in 0..3 {
            pipeline.cmd("THROTTLE").arg(format!("k{suffix}")).arg(2).arg(1).arg(60);
        }
        let answers: Vec<[i64; 5]> = pipeline.query(&mut connection).unwrap();
        assert_eq!(answers.iter().map(|answer| answer[0]).collect::<Vec<_>>(), [1, 1, 0]);
    }
}

#[test]
fn redis_py_connects_and_asks() {
    if !tools().join("python/redis").exists() && tool("python/redis").is_none() {
        return;
    }
    let Some(python) = tool("python3").or_else(|| Some("python3".into())) else { return };
    let running = start(POLICY);
    let script = format!(
        "import redis\n\
         for protocol in (2, 3):\n\
         \x20   r = redis.Redis(port={}, protocol=protocol, socket_timeout=30)\n\
         \x20   assert r.ping()\n\
         \x20   key = b'\\x00any\\xff' + str(protocol).encode()\n\
         \x20   with r.pipeline(transaction=False) as p:\n\
         \x20       for _ in range(3): p.execute_command('CL.THROTTLE', key, 1, 1, 60)\n\
         \x20       print([answer[0] for answer in p.execute()])\n\
         \x20   with r.pipeline() as p:\n\
         \x20       for _ in range(3): p.execute_command('TOLL.CHECK', 'api', key)\n\
         \x20       print([answer[0] for answer in p.execute()])\n\
         \x20   with r.pipeline() as p:\n\
         \x20       p.execute_command('TOLL.CHECK', 'api', key + b'2').execute_command('NOPE')\n\
         \x20       try: p.execute()\n\
         \x20       except redis.ResponseError as error: print(error)\n\
         \x20   print(r.execute_command('TOLL.PEEK', 'api', key + b'2')[3][0][3])\n",
        running.resp.port()
    );
    let mut command = Command::new(python);
    command.env("PYTHONPATH", tools().join("python")).args(["-c", &script]);
    // A pipeline with a mistake takes nothing: both units are still there.
    let mistake = "Command # 2 (NOPE) of pipeline caused error: unknown command 'NOPE'";
    let each = format!("[0, 0, 1]\n[1, 1, 0]\n{mistake}\n2\n");
    assert_eq!(output(&mut command), each.repeat(2));
}

#[test]
fn ioredis_and_node_redis_connect_and_ask() {
    let Some(node) = tool("node") else { return };
    if !tools().join("node_modules/redis").exists() && tool("node_modules/redis").is_none() {
        return;
    }
    let running = start(POLICY);
    let script = format!(
        "const Redis = require('ioredis'); const {{ createClient }} = require('redis');\n\
         (async () => {{\n\
         const io = new Redis({{ port: {port}, host: '127.0.0.1' }});\n\
         const p = io.pipeline();\n\
         for (let i = 0; i < 3; i++) p.call('THROTTLE', 'io', 2, 1, 60);\n\
         console.log(JSON.stringify((await p.exec()).map(([e, a]) => a[0])));\n\
         const m = await io.multi().call('TOLL.CHECK', 'api', 'io').call('TOLL.CHECK', 'api', 'io').exec();\n\
         const t = [...m.map(([e, a]) => a), await io.call('TOLL.CHECK', 'api', 'io')];\n\
         console.log(JSON.stringify(t.map((a) => (a[0] ? 'go' : 'stop'))));\n\
         io.disconnect();\n\
         for (const RESP of [2, 3]) {{\n\
         const c = createClient({{ url: 'redis://127.0.0.1:{port}', RESP }});\n\
         await c.connect();\n\
         const a = await Promise.all([1, 2, 3].map(() => c.sendCommand(['THROTTLE', 'n' + RESP, '2', '1', '60'])));\n\
         console.log(JSON.stringify(a.map((x) => x[0])));\n\
         const t = [];\n\
         for (let i = 0; i < 3; i++) t.push(await c.sendCommand(['TOLL.CHECK', 'api', 'n' + RESP]));\n\
         console.log(JSON.stringify(t.map((x) => (x[0] ? 'go' : 'stop'))));\n\
         await c.close();\n\
         }}\n\
         }})();",
        port = running.resp.port()
    );
    let mut command = Command::new(node);
    command.env("NODE_PATH", tools().join("node_modules")).args(["-e", &script]);
    let each = "[1,1,0]\n[\"go\",\"go\",\"stop\"]\n";
    assert_eq!(output(&mut command), each.repeat(3));
}

#[test]
fn curl_asks_over_http1_and_http2_and_chunked() {
    let Some(curl) = tool("curl") else { return };
    let running = start(POLICY);
    let url = format!("http://{}/v1/check", running.http);
    let body = r#"{"policy":"api","key":"ada"}"#;
    let ask = |arguments: &[&str]| {
        let format = ["-s", "-o", "/dev/null", "-w", "%{http_code} %{http_version}"];
        output(Command::new(&curl).args(format).args(arguments).args(["--json", body, &url]))
    };
    assert_eq!(ask(&[]), "200 1.1");
    assert_eq!(ask(&["--http2-prior-knowledge"]), "200 2");
    assert_eq!(ask(&["-H", "Transfer-Encoding: chunked"]), "429 1.1");
    assert_eq!(ask(&["-H", "Expect: 100-continue"]), "429 1.1");
    assert!(ask(&["--http1.0"]).starts_with("429 1"));
}

#[test]
fn throttlecrabs_and_envoys_http_clients_are_answered() {
    let running = start(ENVOY);
    let mut http = Http::connect(running.http);
    let throttle = r#"{"key":"k","max_burst":1,"count_per_period":1,"period":60}"#;
    let allowed = http.post("/throttle", throttle);
    assert_eq!(
        (allowed.status, &*allowed.body),
        (200, r#"{"allowed":true,"limit":1,"remaining":0,"reset_after":60,"retry_after":0}"#)
    );
    let denied = http.post("/throttle", throttle);
    assert_eq!((denied.status, denied.json()["retry_after"].as_u64()), (200, Some(60)));
    let body = r#"{"domain":"edge","descriptors":[{"entries":[{"key":"user","value":"ada"}]}]}"#;
    let answer = http.post("/json", body);
    assert_eq!((answer.status, &answer.json()["overallCode"]), (200, &"OK".into()));
    let status = &answer.json()["statuses"][0];
    assert_eq!(status["currentLimit"]["unit"], "MINUTE");
    assert_eq!(status["limitRemaining"], 1);
    http.post("/json", body);
    let answer = http.post("/json", body);
    assert_eq!((answer.status, &answer.json()["overallCode"]), (429, &"OVER_LIMIT".into()));
}
