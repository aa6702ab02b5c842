use std::convert::Infallible;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use bytes::Bytes;
use http::Request;
use http_body_util::StreamBody;
use hyper::body::Frame;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tollway_server::Service;

use crate::harness::{Http, PATIENCE, eventually, start};

const POLICY: &str = "[[policies]]\nname = \"api\"\nquota = \"10/1h\"\n";
const TOKEN: &str = "[[tokens]]\ntoken = \"t\"\nrole = \"admin\"\n";
const BODY_BYTES: usize = 900_000;

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn held(service: &Service) -> u64 {
    service.room().bytes()
}

type Upload = StreamBody<ReceiverStream<Result<Frame<Bytes>, Infallible>>>;

async fn http2_client(address: SocketAddr) -> http2::SendRequest<Upload> {
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let (client, connection) =
        http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    client
}

const CHECK: (&str, &str) = ("/v1/check", "application/json");

/// `count` requests at once over one connection, each with most of a long body and no end; the
/// status of each that was answered while `until` did not hold.
async fn uploads(
    address: SocketAddr,
    (path, kind): (&str, &str),
    count: usize,
    until: impl Fn(usize) -> bool,
) -> Vec<u16> {
    let mut client = http2_client(address).await;
    let (told, mut answers) = mpsc::channel(count);
    let mut open = Vec::new();
    for _ in 0..count {
        let (body, parts) = mpsc::channel(1);
        let request = Request::post(format!("http://localhost{path}"))
            .header("content-type", kind)
            .body(StreamBody::new(ReceiverStream::new(parts)))
            .unwrap();
        client.ready().await.unwrap();
        let (answer, told) = (client.send_request(request), told.clone());
        tokio::spawn(async move {
            if let Ok(answer) = answer.await {
                let _ = told.send(answer.status().as_u16()).await;
            }
        });
        let (sender, chunk) = (body.clone(), Bytes::from(vec![b' '; BODY_BYTES]));
        tokio::spawn(async move {
            let _ = sender.send(Ok(Frame::data(chunk))).await;
        });
        open.push(body);
    }
    let mut statuses = Vec::new();
    while !until(statuses.len()) {
        match tokio::time::timeout(std::time::Duration::from_millis(5), answers.recv()).await {
            Ok(Some(status)) => statuses.push(status),
            Ok(None) => break,
            Err(_) => {}
        }
    }
    statuses
}

#[test]
fn whoever_shows_no_token_is_refused_by_the_head_and_holds_nothing() {
    let running = start(&format!("{TOKEN}{POLICY}"));
    let service = Arc::clone(running.server.service());
    for head in [
        "POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n{",
        "POST /v1/check HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n1\r\n{\r\n",
        "POST /v1/queues/q/jobs HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n{",
        "POST /v1/check HTTP/1.1\r\nhost: x\r\nauthorization: Bearer no\r\ncontent-length: 9\r\n\r\n",
    ] {
        let mut stream = connect(running.http);
        stream.write_all(head.as_bytes()).unwrap();
        assert_eq!(Http::over(stream).answer().status, 401, "{head:?}");
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let done = |answered| answered == 200;
    let statuses = runtime.block_on(uploads(running.http, CHECK, 200, done));
    assert!(statuses.iter().all(|status| *status == 401), "{statuses:?}");
    assert_eq!(held(&service), 0);
}

#[test]
fn a_body_that_nothing_reads_is_not_held_for_strangers() {
    let running = start(&format!("{TOKEN}{POLICY}"));
    let mut stream = connect(running.http);
    let head = "POST /healthz HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n{";
    stream.write_all(head.as_bytes()).unwrap();
    assert_eq!(Http::over(stream).answer().status, 400);
    assert_eq!(held(running.server.service()), 0);
}

/// Health is asked without a token, so strangers may begin calls; what they leave unfinished
/// counts.
#[test]
fn unfinished_calls_for_health_are_held_within_the_bounds() {
    let running = start(&format!("{TOKEN}[limits]\nslow_client = \"10m\"\n{POLICY}"));
    let service = Arc::clone(running.server.service());
    let bound = service.settings().limits.connection_bytes_max() as u64;
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let health = ("/grpc.health.v1.Health/Check", "application/grpc");
    let answered = runtime.block_on(uploads(running.grpc, health, 40, |answered| answered == 36));
    assert_eq!(answered.len(), 36, "the others are refused");
    assert!((1..=bound).contains(&held(&service)), "{} are held", held(&service));
    drop(runtime);
    eventually("all is given back", || held(&service) == 0);
}

#[test]
fn what_one_connection_makes_the_service_hold_is_bounded() {
    let running = start(&format!("[limits]\nslow_client = \"10m\"\n{POLICY}"));
    let service = Arc::clone(running.server.service());
    let bound = service.settings().limits.connection_bytes_max() as u64;
    let runtime = tokio::runtime::Runtime::new().unwrap();
    // Four bodies fit; the others are refused while those are held.
    let statuses = runtime.block_on(uploads(running.http, CHECK, 40, |answered| answered == 36));
    assert!(statuses.iter().all(|status| *status == 503), "{statuses:?}");
    assert!(held(&service) <= bound, "{} are held", held(&service));
    drop(runtime);
    eventually("all is given back", || held(&service) == 0);
    assert_eq!(Http::connect(running.http).get("/healthz").status, 200);
}

#[test]
fn what_all_connections_make_the_service_hold_is_bounded() {
    let limits = "[limits]\nheld_bytes = 600000\nslow_client = \"10m\"\n";
    let running = start(&format!("{limits}{POLICY}"));
    let service = Arc::clone(running.server.service());
    let mut held_by = Vec::new();
    let body = "x".repeat(190_000);
    let http = format!(
        "POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: 500000\r\n\r\n{body}"
    );
    let resp = format!("*2\r\n$4\r\nPING\r\n$500000\r\n{body}");
    for (address, bytes) in [(running.http, &http), (running.resp, &resp)] {
        let before = held(&service);
        let mut stream = connect(address);
        stream.write_all(bytes.as_bytes()).unwrap();
        eventually("it is held", || held(&service) > before);
        held_by.push(stream);
    }
    assert!(held(&service) <= 600_000);
    let mut stream = connect(running.http);
    stream.write_all(http.as_bytes()).unwrap();
    assert_eq!(Http::over(stream).answer().status, 503);
    let mut stream = connect(running.resp);
    stream.write_all(resp.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("-ERR too much is held"), "{answer}");
    // Those who send what they have to say at once are not concerned.
    let asked = r#"{"policy":"api","key":"ada"}"#;
    assert_eq!(Http::connect(running.http).post("/v1/check", asked).status, 200);
    drop(held_by);
    eventually("all is given back", || held(&service) == 0);
}

#[test]
fn before_auth_a_command_is_short() {
    let running = start(&format!("{TOKEN}{POLICY}"));
    for long in ["*1\r\n$20000\r\n".to_owned(), "*11\r\n".to_owned(), "x".repeat(17_000)] {
        let mut stream = connect(running.resp);
        stream.write_all(long.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("-ERR Protocol error"), "{answer}");
    }
    let mut stream = connect(running.resp);
    let message = "m".repeat(20_000);
    let pipeline = format!("AUTH t\r\n*2\r\n$4\r\nPING\r\n$20000\r\n{message}\r\nQUIT\r\n");
    stream.write_all(pipeline.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, format!("+OK\r\n$20000\r\n{message}\r\n+OK\r\n"));
}

/// Its pings are answered, its windows stay shut: the answers would be held for ever.
#[test]
fn an_http2_client_that_takes_no_answer_is_let_go() {
    let running = start(&format!("[limits]\nslow_client = \"300ms\"\n{POLICY}"));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let stream = tokio::net::TcpStream::connect(running.http).await.unwrap();
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder.initial_stream_window_size(0);
        let (mut client, connection) = builder.handshake(TokioIo::new(stream)).await.unwrap();
        let connection = tokio::spawn(connection);
        let mut kept = Vec::new();
        for _ in 0..20 {
            let (_, parts) = mpsc::channel(1);
            let body: Upload = StreamBody::new(ReceiverStream::new(parts));
            let request = Request::get("http://localhost/openapi.json").body(body).unwrap();
            client.ready().await.unwrap();
            kept.push(client.send_request(request).await.unwrap());
        }
        assert!(kept.iter().all(|answer| answer.status() == 200));
        let ended = tokio::time::timeout(PATIENCE, connection).await;
        assert!(ended.is_ok(), "it is held for ever");
    });
    let service = running.server.service();
    eventually("it is gone", || service.open_connections() == 0);
}
