use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::{Arc, mpsc};

use serde_json::Value;
use tollway_core::{Timestamp, VirtualClock};
use tollway_memory::{Capacity, MemoryStore};
use tollway_server::config::{Config, Overrides};
use tollway_server::{Backing, Metrics, Server, Service};
use tollway_server::{Collector, Traces};

use crate::harness::{Http, PATIENCE, Running, running};

/// A collector on loopback: the JSON messages that are posted to it.
fn collector() -> (String, mpsc::Receiver<Value>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (sender, messages) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.unwrap());
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") {
                assert!(stream.read_line(&mut head).unwrap() > 0);
            }
            assert!(head.starts_with("POST /v1/traces HTTP/1.1\r\n"), "{head}");
            assert!(head.contains("content-type: application/json\r\n"), "{head}");
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            let mut body = vec![0; length.unwrap().parse().unwrap()];
            stream.read_exact(&mut body).unwrap();
            stream.get_mut().write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").unwrap();
            if sender.send(serde_json::from_slice(&body).unwrap()).is_err() {
                return;
            }
        }
    });
    (url, messages)
}

fn traced(traces: Traces) -> Running {
    let any = || Some("127.0.0.1:0".to_owned());
    let overrides = Overrides { http: any(), grpc: any(), resp: any(), ..Overrides::default() };
    let metrics = Metrics::default();
    let toml = "[[policies]]\nname = \"api\"\nquota = \"2/1m\"\n";
    let texts = [("test.toml".to_owned(), toml.to_owned())];
    let config = Config::from_texts(&texts, &overrides, &metrics).unwrap();
    let memory = Backing::Memory(Arc::new(MemoryStore::new(Capacity::keys(100))));
    let clock = Arc::new(VirtualClock::at(Timestamp::from_millis(1)));
    let service = Service::new(config.rules, metrics, memory, clock, config.settings);
    let service = Arc::new(service.with_traces(Some(traces)));
    running(Server::start(service, &config.listen, None, 1).unwrap())
}

#[test]
fn spans_arrive_at_a_collector_without_keys_and_join_their_callers_trace() {
    let (url, messages) = collector();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let traces = {
        let _inside = runtime.enter();
        Traces::start(Collector::parse(&url).unwrap(), 1)
    };
    let running = traced(traces);
    let mut http = Http::connect(running.http);
    let parent = "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n";
    let body = r#"{"policy":"api","key":"secret-ada"}"#;
    assert_eq!(http.send("POST", "/v1/check", parent, body).status, 200);
    assert_eq!(http.get("/secret/path").status, 404);
    let client = redis::Client::open(format!("redis://{}", running.resp)).unwrap();
    let mut resp = client.get_connection().unwrap();
    redis::cmd("TOLL.CHECK").arg("api").arg("secret-bob").exec(&mut resp).unwrap();

    let mut spans = Vec::new();
    while !spans.iter().any(|span: &Value| span["name"] == "RESP batch")
        || !spans.iter().any(|span: &Value| span["name"] == "/v1/check")
    {
        let message = messages.recv_timeout(PATIENCE).unwrap();
        assert!(!message.to_string().contains("secret"), "{message}");
        let resource = &message["resourceSpans"][0];
        assert_eq!(resource["resource"]["attributes"][0]["value"]["stringValue"], "tollway");
        spans.extend(resource["scopeSpans"][0]["spans"].as_array().unwrap().clone());
    }
    let check = spans.iter().find(|span| span["name"] == "/v1/check").unwrap();
    assert_eq!(check["traceId"], "0af7651916cd43dd8448eb211c80319c");
    assert_eq!(check["parentSpanId"], "b7ad6b7169203331");
    let nanos = |name: &str| check[name].as_str().unwrap().parse::<u128>().unwrap();
    assert!(nanos("startTimeUnixNano") <= nanos("endTimeUnixNano"));
    let other = spans.iter().find(|span| span["name"] == "other").unwrap();
    assert_ne!(other["traceId"], check["traceId"]);
}
