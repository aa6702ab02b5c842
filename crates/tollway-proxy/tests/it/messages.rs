use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{HeaderMap, Request, Response};
use http_body_util::BodyExt as _;
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tollway_proxy::{Admin, Settings, Versions};

use crate::rig::{Frames, PATIENCE, Rig, discord, local, proxy_to};

/// An upstream that keeps the heads of requests and answers with a body and trailers.
async fn upstream() -> (SocketAddr, Arc<Mutex<Vec<(String, HeaderMap)>>>) {
    let listener = TcpListener::bind(local()).await.unwrap();
    let address = listener.local_addr().unwrap();
    let seen: Arc<Mutex<Vec<(String, HeaderMap)>>> = Arc::default();
    let kept = Arc::clone(&seen);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let kept = Arc::clone(&kept);
            let service = service_fn(move |request: Request<Incoming>| {
                kept.lock().unwrap().push((request.uri().to_string(), request.headers().clone()));
                async move { Ok::<_, Infallible>(with_trailers(request).await) }
            });
            let connection = auto::Builder::new(TokioExecutor::new());
            let io = TokioIo::new(stream);
            tokio::spawn(async move { connection.serve_connection(io, service).await });
        }
    });
    (address, seen)
}

async fn with_trailers(request: Request<Incoming>) -> Response<Frames> {
    let got = request.into_body().collect().await.unwrap();
    let trailer = got.trailers().and_then(|map| map.get("x-sum")).cloned();
    let mut trailers = HeaderMap::new();
    trailers.insert("x-sum", trailer.unwrap_or_else(|| "none".parse().unwrap()));
    let frames = [Frame::data(got.to_bytes()), Frame::trailers(trailers)];
    let body = Frames(frames.into());
    Response::builder()
        .header("trailer", "x-sum")
        .header("connection", "x-private")
        .header("x-private", "1")
        .header("keep-alive", "timeout=9")
        .body(body)
        .unwrap()
}

/// Writes bytes and reads until the other side closes.
async fn raw(address: SocketAddr, text: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let read = stream.read_to_end(&mut answer);
    tokio::time::timeout(PATIENCE, read).await.expect("in time").unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn what_belongs_to_one_connection_is_not_passed_on_either_way() {
    let (address, seen) = upstream().await;
    let (_proxy, proxy) =
        proxy_to(&format!("http://{address}/base"), Settings::default(), "9/1m", None).await;
    let answer = raw(
        proxy,
        "POST /x?y=1 HTTP/1.1\r\nhost: localhost\r\nconnection: close, x-secret\r\nx-secret: 1\r\n\
         upgrade: websocket\r\nte: trailers\r\nproxy-authorization: p\r\nx-tollway-client: me\r\n\
         transfer-encoding: chunked\r\ntrailer: x-sum\r\n\r\n3\r\nabc\r\n0\r\nx-sum: 7\r\n\r\n",
    )
    .await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(!answer.contains("x-private") && !answer.contains("timeout=9"), "{answer}");
    assert!(answer.contains("abc") && answer.contains("x-sum: 7"), "trailers both ways: {answer}");
    let (uri, headers) = seen.lock().unwrap()[0].clone();
    assert_eq!(uri, "/base/x?y=1");
    for gone in ["x-secret", "upgrade", "proxy-authorization", "x-tollway-client"] {
        assert!(!headers.contains_key(gone), "{gone}");
    }
    assert_eq!(headers["host"], address.to_string());
    assert_eq!(headers["via"], "1.1 tollway");
}

#[tokio::test]
async fn a_request_with_more_than_one_host_or_none_is_bad() {
    let (address, seen) = upstream().await;
    let (_proxy, proxy) =
        proxy_to(&format!("http://{address}"), Settings::default(), "9/1m", None).await;
    for (fields, status) in [
        ("HTTP/1.1\r\nhost: localhost\r\nhost: localhost:1", 400),
        ("HTTP/1.1\r\nhost: localhost\r\nhost: localhost", 400),
        ("HTTP/1.0\r\nhost: localhost\r\nhost: localhost:1", 400),
        ("HTTP/1.1\r\nx: y", 400),
        // The older version knows no Host.
        ("HTTP/1.0\r\nx: y", 200),
        ("HTTP/1.1\r\nhost: localhost", 200),
    ] {
        let answer = raw(proxy, &format!("GET /x {fields}\r\nconnection: close\r\n\r\n")).await;
        assert_eq!(answer.split(' ').nth(1), Some(&*status.to_string()), "{fields:?}: {answer}");
    }
    assert_eq!(seen.lock().unwrap().len(), 2, "the bad ones reach no upstream");
}

#[tokio::test]
async fn odd_framing_reaches_no_upstream_as_two_requests() {
    let (address, seen) = upstream().await;
    let (_proxy, proxy) =
        proxy_to(&format!("http://{address}"), Settings::default(), "9/1m", None).await;
    for attack in [
        "POST /a HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\ncontent-length: 40\r\n\r\nabcde",
        "POST /a HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: xchunked\r\n\r\n0\r\n\r\nGET /evil HTTP/1.1\r\nhost: localhost\r\n\r\n",
        "POST /a HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding : chunked\r\n\r\n0\r\n\r\n",
        "GET /a HTTP/1.1\r\nhost: localhost\r\nx: y\n z: GET /evil\r\n\r\n",
        "CONNECT evil:443 HTTP/1.1\r\nhost: evil:443\r\n\r\n",
    ] {
        let with_close = attack.replacen("\r\nhost", "\r\nconnection: close\r\nhost", 1);
        let answer = raw(proxy, &with_close).await;
        assert!(answer.starts_with("HTTP/1.1 4") || answer.is_empty(), "{attack:?}: {answer}");
    }
    // Both lengths: chunked counts, the other is not passed on.
    raw(
        proxy,
        "POST /b HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: 4\r\n\
         transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    )
    .await;
    let seen = seen.lock().unwrap();
    assert!(seen.iter().all(|(uri, _)| uri != "/evil"), "{seen:?}");
    for (_, headers) in seen.iter().filter(|(uri, _)| uri == "/b") {
        assert!(
            !(headers.contains_key("content-length") && headers.contains_key("transfer-encoding"))
        );
    }
}

#[tokio::test]
async fn a_client_is_asked_for_its_body_only_when_its_turn_has_come() {
    let rig = Rig::start(discord(""), Settings::default()).await;
    let mut stream = TcpStream::connect(rig.address).await.unwrap();
    let head = "POST /_fake/echo HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\n\
                connection: close\r\ncontent-length: 5\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut told = [0; 25];
    stream.read_exact(&mut told).await.unwrap();
    assert_eq!(&told, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(b"hello").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("hello"), "{answer}");
}

#[tokio::test]
async fn bodies_of_any_size_go_through_without_being_held() {
    let settings = Settings { held_bytes_max: 1 << 20, ..Settings::default() };
    let rig = Rig::start(discord(""), settings).await;
    let size = 64 << 20;
    let uri = format!("http://{}/_fake/big/{size}", rig.address);
    let response = reqwest::get(uri).await.unwrap();
    assert_eq!(response.content_length(), Some(size));
    assert_eq!(rig.metric("tollway_proxy_requests").await, 1.0);
    assert!(rig.metric("tollway_proxy_held_bytes").await < 100_000.0);
    let mut response = response;
    let mut got = 0;
    while let Some(chunk) = response.chunk().await.unwrap() {
        got += chunk.len() as u64;
    }
    assert_eq!(got, size);
    let body = "x".repeat(8 << 20);
    let echoed = rig.send(rig.request_with("POST", "/_fake/echo", &[], &body)).await;
    assert_eq!(echoed.body.len(), body.len());
}

/// Whoever asks and never reads must not keep a place for ever.
#[tokio::test]
async fn a_client_that_does_not_read_is_let_go() {
    let settings = Settings { idle_timeout: Duration::from_millis(300), ..Settings::default() };
    let rig = Rig::start(discord(""), settings).await;
    let mut greedy = TcpStream::connect(rig.address).await.unwrap();
    let ask = "GET /_fake/big/1000000000 HTTP/1.1\r\nhost: localhost\r\nauthorization: Bot greedy\r\n\r\n";
    greedy.write_all(ask.as_bytes()).await.unwrap();
    // Its answer has begun, so its place is taken; and it cannot end unread.
    greedy.readable().await.unwrap();
    rig.until_metric("tollway_proxy_requests", 0.0).await;
}

/// The same on a connection that is alive and well, but for the stream's own window.
#[tokio::test]
async fn a_client_that_keeps_the_window_of_a_stream_shut_is_let_go() {
    let settings = Settings { idle_timeout: Duration::from_millis(300), ..Settings::default() };
    let rig = Rig::start(discord(""), settings).await;
    // With room for one byte the answer has left for the connection, which holds it.
    for window in [0, 1] {
        let client = Client::builder(TokioExecutor::new())
            .http2_only(true)
            .http2_initial_stream_window_size(window)
            .build_http();
        let asked = client.request(rig.request("GET", "/_fake/big/1000"));
        let response = tokio::time::timeout(PATIENCE, asked).await.expect("in time").unwrap();
        rig.until_metric("tollway_proxy_requests", 0.0).await;
        rig.until_metric("tollway_proxy_connections", 1.0).await;
        drop(response);
    }
}

#[tokio::test]
async fn http2_is_spoken_on_both_sides() {
    let settings = Settings { versions: Versions::Http2, ..Settings::default() };
    let rig = Rig::start(discord(""), settings).await.over_http2();
    assert_eq!(rig.post("/api/v10/channels/1/messages").await.status, 200);
    assert_eq!(rig.fake.counters().requests, 1);
}

#[tokio::test]
async fn who_lacks_the_token_may_not_act_and_a_bucket_can_be_unlocked_and_drained() {
    let admin = Admin { token: Some("secret".to_owned()), prefix: None };
    let rig = Rig::start(discord(""), Settings { admin, ..Settings::default() }).await;
    assert_eq!(rig.post("/api/v10/channels/1/messages").await.status, 200);
    for path in ["/admin/buckets", "/metrics"] {
        assert_eq!(rig.get(path).await.status, 403, "{path}");
    }
    assert_eq!(rig.get("/readyz").await.status, 200);
    let token = [("authorization", "Bearer secret")];
    let listed = rig.send(rig.request_with("GET", "/admin/buckets?max=1", &token, "")).await.json();
    let bucket = &listed["buckets"][0];
    assert_eq!(bucket["dimensions"][0]["limit"], 5);
    assert_eq!(bucket["dimensions"][0]["remaining"], 4);
    for field in ["in_flight", "queued", "wait", "divergence"] {
        assert!(bucket[field].is_number(), "{field}: {bucket}");
    }
    let id = bucket["bucket"].as_str().unwrap().replace(' ', "%20");
    let credential = bucket["credential"].as_str().unwrap();
    assert_eq!(credential.len(), 32);
    for (call, done) in [("unlock", "unlocked"), ("drain", "drained")] {
        let path = format!("/admin/{call}?credential={credential}&bucket={id}");
        assert_eq!(rig.send(rig.request("POST", &path)).await.status, 403, "{call}");
        let wrong = [("authorization", "Bearer secreT")];
        assert_eq!(rig.send(rig.request_with("POST", &path, &wrong, "")).await.status, 403);
        let answer = rig.send(rig.request_with("POST", &path, &token, "")).await;
        assert_eq!(answer.status, 200);
        assert!(!answer.json()[done].is_null());
    }
}

#[tokio::test]
async fn no_page_shows_a_credential_or_the_token_of_a_webhook() {
    let rig = Rig::start(discord(""), Settings::default()).await;
    let token = "hush".repeat(17);
    let fields = [("authorization", "Bot hush-hush")];
    for path in ["/api/v10/channels/1/messages", &format!("/api/v10/webhooks/7/{token}")] {
        let answer = rig.send(rig.request_with("POST", path, &fields, "{}")).await;
        assert!((200..300).contains(&answer.status), "{path}: {}", answer.status);
    }
    for page in ["/admin/buckets", "/metrics"] {
        let body = String::from_utf8(rig.get(page).await.body.to_vec()).unwrap();
        assert!(body.len() > 100 && !body.contains("hush"), "{page}: {body}");
    }
}

#[tokio::test]
async fn without_a_token_pages_are_shown_under_a_local_name_only() {
    let rig = Rig::start(discord(""), Settings::default()).await;
    let ask = |host: &str| {
        format!("GET /admin/buckets HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n")
    };
    assert!(raw(rig.admin, &ask("localhost:1")).await.starts_with("HTTP/1.1 200"));
    assert!(raw(rig.admin, &ask("evil.example")).await.starts_with("HTTP/1.1 403"));
    let act = "POST /admin/drain HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
               content-length: 0\r\n\r\n";
    assert!(raw(rig.admin, act).await.starts_with("HTTP/1.1 403"));
}

/// A part of HTTP/2's preface is neither a head, for which there is a deadline, nor a request.
#[tokio::test]
async fn a_connection_that_asks_nothing_is_closed() {
    let settings =
        Settings { slow_client_after: Duration::from_millis(300), ..Settings::default() };
    let (_proxy, proxy) = proxy_to("http://127.0.0.1:9", settings, "9/1m", None).await;
    let whole = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\u{4}\0\0\0\0\0";
    for begun in ["", "PR", "PRI * HTTP/", "GET / HTTP/1.1\r\n", whole] {
        raw(proxy, begun).await;
    }
}
