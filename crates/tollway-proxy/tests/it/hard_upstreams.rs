use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use http::{Request, Response};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tollway_proxy::{Proxy, Settings};

use crate::rig::{
    Outgoing, PATIENCE, admin_of, answer_on, local, proxy_to, until_metric, upstream_of,
};

/// A proxy in front of `upstream`, where clients find it, and where its own pages are.
async fn proxy(upstream: &str, settings: Settings) -> (Proxy, SocketAddr, SocketAddr) {
    let (mut proxy, address) = proxy_to(upstream, settings, "10000/10m", None).await;
    let admin = admin_of(&mut proxy).await;
    (proxy, address, admin)
}

fn said(status: u16) -> Response<Outgoing> {
    let fields = Response::builder().status(status).header("via", "1.1 them");
    let body = if status == 429 { r#"{"retry_after":0.05}"# } else { "fine" };
    fields.body(Outgoing::from(body)).unwrap()
}

async fn served(_: Request<Incoming>) -> Response<Outgoing> {
    said(200)
}

#[tokio::test]
async fn what_waits_for_an_upstream_that_is_away_is_served_when_it_comes() {
    let listener = TcpListener::bind(local()).await.unwrap();
    let upstream = listener.local_addr().unwrap();
    drop(listener);
    let (_proxy, address, admin) = proxy(&format!("http://{upstream}"), Settings::default()).await;
    let client = reqwest::Client::new();
    let send = async |number: usize| {
        let url = format!("http://{address}/api/v10/channels/{number}/messages");
        client.post(url).body("{}").send().await.unwrap().status().as_u16()
    };
    let all = join_all((0..20).map(send));
    let comes = async {
        until_metric(admin, "tollway_proxy_requests", 20.0).await;
        answer_on(TcpListener::bind(upstream).await.unwrap(), served).await;
    };
    tokio::select! {
        statuses = all => assert_eq!(statuses, [200; 20]),
        () = comes => unreachable!("it answers for as long as it is asked"),
    }
}

/// Over TLS, so that each try can be counted before it fails.
#[tokio::test]
async fn while_no_connection_can_be_made_one_tries_and_the_others_wait() {
    let listener = TcpListener::bind(local()).await.unwrap();
    let upstream = listener.local_addr().unwrap();
    let tries = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&tries);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            counted.fetch_add(1, Ordering::SeqCst);
            drop(stream);
        }
    });
    let settings = Settings { patience: Duration::from_secs(1), ..Settings::default() };
    let (_proxy, address, _) = proxy(&format!("https://{upstream}"), settings).await;
    let client = reqwest::Client::new();
    let send = async |number: usize| {
        let url = format!("http://{address}/api/v10/channels/{}/messages", number % 4);
        let answer = client.get(url).send().await.unwrap();
        assert_eq!((answer.status().as_u16()), 502);
        assert_eq!(answer.headers()["x-tollway-answer"], "no-connection");
    };
    join_all((0..100).map(send)).await;
    // At most those that left before the first had failed, one for each channel, and a few more.
    let tries = tries.load(Ordering::SeqCst);
    assert!(tries <= 16, "{tries} tries for 100 requests within a second");
}

#[tokio::test]
async fn a_connection_that_was_closed_meanwhile_costs_no_request() {
    let listener = TcpListener::bind(local()).await.unwrap();
    let upstream = listener.local_addr().unwrap();
    tokio::spawn(async move {
        // Each connection serves one request, promises more, and is closed.
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = vec![0; 4_096];
            let _ = stream.read(&mut head).await;
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
        }
    });
    let (_proxy, address, admin) = proxy(&format!("http://{upstream}"), Settings::default()).await;
    for number in 0..20 {
        let url = format!("http://{address}/api/v10/channels/{number}/messages");
        let answer = reqwest::Client::new().post(url).body("{}").send().await.unwrap();
        assert_eq!(answer.status(), 200, "{number}");
    }
    let status = reqwest::get(format!("http://{admin}/admin/status")).await.unwrap();
    let status = status.text().await.unwrap();
    assert!(!status.contains("upstream down"), "it was there all the time: {status}");
}

/// Refuses what is too large as soon as it sees the head, and closes with the upload under way.
#[tokio::test]
async fn an_answer_that_comes_before_the_upload_is_over_reaches_the_client() {
    let listener = TcpListener::bind(local()).await.unwrap();
    let upstream = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let _ = stream.read(&mut [0; 8_192]).await;
                let head =
                    b"HTTP/1.1 413 Too Large\r\ncontent-length: 5\r\nconnection: close\r\n\r\n";
                let _ = stream.write_all(head).await;
                let _ = stream.write_all(b"large").await;
            });
        }
    });
    let (_proxy, address, _) = proxy(&format!("http://{upstream}"), Settings::default()).await;
    for number in 0..25 {
        let url = format!("http://{address}/api/v10/channels/{number}/messages");
        let body = vec![b'x'; 4 << 20];
        let answer = reqwest::Client::new().post(url).body(body).send().await.unwrap();
        assert_eq!(answer.status(), 413, "{number}");
        assert_eq!(answer.text().await.unwrap(), "large", "{number}");
    }
}

/// An upstream that refuses the first `refusals` requests, and keeps the length of each body.
async fn refusing(refusals: usize) -> (SocketAddr, Arc<std::sync::Mutex<Vec<usize>>>) {
    let seen: Arc<std::sync::Mutex<Vec<usize>>> = Arc::default();
    let kept = Arc::clone(&seen);
    let answer = move |request: Request<Incoming>| {
        let kept = Arc::clone(&kept);
        async move {
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let mut kept = kept.lock().unwrap();
            kept.push(body.len());
            said(if kept.len() <= refusals { 429 } else { 200 })
        }
    };
    (upstream_of(answer).await, seen)
}

#[tokio::test]
async fn a_refused_request_is_sent_again_for_as_long_as_it_can_wait() {
    let (upstream, seen) = refusing(8).await;
    let (_proxy, address, _) = proxy(&format!("http://{upstream}"), Settings::default()).await;
    let url = format!("http://{address}/api/v10/channels/1/messages");
    let post = async |url: &str| reqwest::Client::new().post(url).body("{}").send().await.unwrap();
    assert_eq!(post(&url).await.status(), 200);
    assert_eq!(*seen.lock().unwrap(), [2; 9]);
    // Waits that are absurdly short do not go on for ever.
    let (upstream, seen) = refusing(usize::MAX).await;
    let settings = Settings { retries_max: 4, ..Settings::default() };
    let (_proxy, address, _) = proxy(&format!("http://{upstream}"), settings).await;
    let url = format!("http://{address}/api/v10/channels/1/messages");
    assert_eq!(post(&url).await.status(), 429);
    assert!(seen.lock().unwrap().len() >= 5);
}

#[tokio::test]
async fn a_body_is_sent_again_if_it_fits_and_passed_through_once_if_not() {
    let (upstream, seen) = refusing(1).await;
    let (_proxy, address, _) = proxy(&format!("http://{upstream}"), Settings::default()).await;
    let url = format!("http://{address}/api/v10/channels/1/messages");
    let post = async |bytes: usize| {
        let body = vec![b'x'; bytes];
        reqwest::Client::new().post(&url).body(body).send().await.unwrap().status().as_u16()
    };
    assert_eq!(post(900 << 10).await, 200);
    assert_eq!(*seen.lock().unwrap(), [900 << 10; 2]);
    let (upstream, seen) = refusing(1).await;
    let (_proxy, address, _) = proxy(&format!("http://{upstream}"), Settings::default()).await;
    let url = format!("http://{address}/api/v10/channels/1/messages");
    let body = vec![b'x'; 2 << 20];
    let answer = reqwest::Client::new().post(&url).body(body).send().await.unwrap();
    assert_eq!(answer.status(), 429);
    assert_eq!(*seen.lock().unwrap(), [2 << 20]);
}

#[tokio::test]
async fn who_leaves_while_waiting_is_counted() {
    let listener = TcpListener::bind(local()).await.unwrap();
    let upstream = listener.local_addr().unwrap();
    let (_proxy, address, admin) = proxy(&format!("http://{upstream}"), Settings::default()).await;
    let mut clients = Vec::new();
    for _ in 0..20 {
        let mut client = TcpStream::connect(address).await.unwrap();
        let request = "POST /api/v10/channels/1/messages HTTP/1.1\r\nhost: localhost\r\n\
                       content-length: 2\r\n\r\n{}";
        client.write_all(request.as_bytes()).await.unwrap();
        clients.push(client);
    }
    until_metric(admin, "tollway_proxy_requests", 20.0).await;
    // The upstream never answers: one is under way, the others wait.
    drop(clients);
    let gone = "tollway_proxy_not_forwarded_total{cause=\"client-gone\"}";
    until_metric(admin, gone, 20.0).await;
    drop(listener);
}

/// An upstream that goes on with whatever is asked for, and echoes; it keeps the head it was sent.
async fn echo() -> (SocketAddr, Arc<std::sync::Mutex<String>>) {
    let listener = TcpListener::bind(local()).await.unwrap();
    let address = listener.local_addr().unwrap();
    let seen: Arc<std::sync::Mutex<String>> = Arc::default();
    let kept = Arc::clone(&seen);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let kept = Arc::clone(&kept);
            tokio::spawn(async move {
                *kept.lock().unwrap() = head_of(&mut stream).await;
                let head = "HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\n\
                            upgrade: websocket\r\nsec-websocket-accept: x\r\n\r\n";
                stream.write_all(head.as_bytes()).await.unwrap();
                let (mut from, mut to) = stream.split();
                let _ = tokio::io::copy(&mut from, &mut to).await;
            });
        }
    });
    (address, seen)
}

/// Reads up to the empty line.
async fn head_of(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n")
        && tokio::io::AsyncReadExt::read_buf(&mut (&mut *stream).take(1), &mut head).await.unwrap()
            > 0
    {}
    String::from_utf8(head).unwrap()
}

const WISH: &str = "GET /gateway HTTP/1.1\r\nhost: localhost\r\nconnection: keep-alive, Upgrade\r\n\
                    upgrade: WebSocket\r\nsec-websocket-key: k\r\n\r\n";

#[tokio::test]
async fn a_websocket_is_one_request_and_then_bytes_both_ways() {
    let (upstream, seen) = echo().await;
    let settings = Settings { tunnels_max: 1, ..Settings::default() };
    let (running, address, admin) = proxy(&format!("http://{upstream}"), settings).await;
    let mut client = TcpStream::connect(address).await.unwrap();
    client.write_all(WISH.as_bytes()).await.unwrap();
    let head = head_of(&mut client).await.to_lowercase();
    assert!(head.starts_with("http/1.1 101"), "{head}");
    for field in ["upgrade: websocket", "connection: upgrade", "sec-websocket-accept: x"] {
        assert!(head.contains(field), "{field} in {head}");
    }
    let sent = seen.lock().unwrap().to_lowercase();
    assert!(sent.contains("upgrade: websocket") && sent.contains("sec-websocket-key: k"), "{sent}");
    for text in ["hello", "again"] {
        client.write_all(text.as_bytes()).await.unwrap();
        let mut back = [0; 5];
        client.read_exact(&mut back).await.unwrap();
        assert_eq!(back, text.as_bytes());
    }
    until_metric(admin, "tollway_proxy_responses_total{class=\"1xx\"}", 1.0).await;
    until_metric(admin, "tollway_proxy_requests", 1.0).await;
    // There is room for one.
    let mut second = TcpStream::connect(address).await.unwrap();
    second.write_all(WISH.as_bytes()).await.unwrap();
    assert!(head_of(&mut second).await.starts_with("HTTP/1.1 503"));
    drop(client);
    until_metric(admin, "tollway_proxy_requests", 0.0).await;
    // A stop does not wait for one that is open.
    let mut third = TcpStream::connect(address).await.unwrap();
    third.write_all(WISH.as_bytes()).await.unwrap();
    assert!(head_of(&mut third).await.starts_with("HTTP/1.1 101"));
    drop(second);
    assert!(running.drain(PATIENCE).await);
    assert_eq!(third.read(&mut [0; 1]).await.unwrap_or(0), 0, "it is closed");
}

#[tokio::test]
async fn a_websocket_that_stands_still_is_closed_and_other_protocols_are_not_begun() {
    let (upstream, seen) = echo().await;
    let settings = Settings { tunnel_idle: Duration::from_millis(200), ..Settings::default() };
    let (_proxy, address, _) = proxy(&format!("http://{upstream}"), settings).await;
    let mut client = TcpStream::connect(address).await.unwrap();
    client.write_all(WISH.as_bytes()).await.unwrap();
    assert!(head_of(&mut client).await.starts_with("HTTP/1.1 101"));
    let closed = tokio::time::timeout(PATIENCE, client.read(&mut [0; 1])).await.expect("in time");
    assert_eq!(closed.unwrap_or(0), 0);
    // There could be requests behind it that nobody counts; and who was not asked to switch and
    // does is broken.
    let mut client = TcpStream::connect(address).await.unwrap();
    client.write_all(WISH.replace("WebSocket", "h2c").as_bytes()).await.unwrap();
    assert!(head_of(&mut client).await.starts_with("HTTP/1.1 502"));
    assert!(!seen.lock().unwrap().to_lowercase().contains("upgrade:"), "{seen:?}");
}
