use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::{Request, Response, StatusCode};
use reqwest_middleware::ClientBuilder;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tollway_core::{Cost, Quota};
use tollway_upstream::pace::reqwest::PaceMiddleware;
use tollway_upstream::pace::tower::PaceLayer;
use tollway_upstream::pace::{Feedback, Gate, Law, Outcome, Settings};
use tower::{Layer as _, Service as _, service_fn};

fn hourly() -> Gate {
    let quota = Quota::new(4_500, Duration::from_secs(3_600)).expect("a valid quota");
    Gate::new(Settings::of(quota))
}

fn left(remaining: f64) -> Feedback {
    Feedback::bare(Outcome::Accepted).with_remaining(remaining)
}

/// A gate that has learned that `remaining` units are left.
async fn told(remaining: f64) -> Gate {
    let gate = hourly();
    gate.enter(Cost::ONE).await.complete(&left(remaining));
    gate
}

#[tokio::test(start_paused = true)]
async fn tasks_go_in_the_order_in_which_they_came() {
    let gate = told(60.0).await;
    let (sender, mut entered) = mpsc::unbounded_channel();
    for task in 0..10 {
        let (gate, sender) = (gate.clone(), sender.clone());
        tokio::spawn(async move {
            gate.enter(Cost::ONE).await.complete(&left(60.0));
            let _ = sender.send(task);
        });
        // Lets the task reach the line before the next one is started.
        tokio::task::yield_now().await;
    }
    drop(sender);
    let mut order = Vec::new();
    while let Some(task) = entered.recv().await {
        order.push(task);
    }
    assert_eq!(order, (0..10).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn the_first_in_line_waits_for_its_slot() {
    let gate = told(60.0).await;
    let start = Instant::now();
    let _pass = gate.enter(Cost::ONE).await;
    let waited = start.elapsed();
    assert!((Duration::from_millis(3_200)..Duration::from_millis(3_210)).contains(&waited));
}

#[tokio::test(start_paused = true)]
async fn an_answer_lets_the_first_in_line_look_again() {
    let gate = told(100.0).await;
    let under_way = gate.enter(Cost::ONE).await;
    let burst: Vec<_> = futures(&gate, 40).await;
    let waiting = tokio::spawn({
        let gate = gate.clone();
        async move { gate.enter(Cost::ONE).await }
    });
    tokio::task::yield_now().await;
    let start = Instant::now();
    under_way.complete(&left(4_000.0));
    drop(waiting.await.unwrap());
    assert!(start.elapsed() < Duration::from_millis(5), "waited for a slot all the same");
    drop(burst);
}

/// As many passes as may leave at once, up to `most`.
async fn futures(gate: &Gate, most: usize) -> Vec<tollway_upstream::pace::Pass> {
    let mut passes = Vec::new();
    while passes.len() < most {
        match timeout(Duration::from_millis(1), gate.enter(Cost::ONE)).await {
            Ok(pass) => passes.push(pass),
            Err(_) => break,
        }
    }
    passes
}

#[tokio::test(start_paused = true)]
async fn whoever_gives_up_leaves_the_line_to_the_next() {
    let gate = told(0.0).await;
    let given_up = timeout(Duration::from_secs(1), gate.enter(Cost::ONE)).await;
    assert!(given_up.is_err());
    let next = timeout(Duration::from_secs(120), gate.enter(Cost::ONE)).await;
    assert!(next.is_ok(), "the line is blocked by somebody who left");
}

#[tokio::test(start_paused = true)]
async fn a_dropped_pass_does_not_close_the_gate() {
    let gate = hourly();
    drop(gate.enter(Cost::ONE).await);
    let next = timeout(Duration::from_secs(60), gate.enter(Cost::ONE)).await;
    assert!(next.is_ok(), "a lost probe stopped everything");
}

#[tokio::test(start_paused = true)]
async fn a_tower_client_learns_the_policy_and_keeps_to_it() {
    let left = Arc::new(AtomicU64::new(30));
    let server = service_fn(move |_request: Request<()>| {
        let left = Arc::clone(&left);
        async move {
            let remaining = left.fetch_sub(1, Ordering::Relaxed) - 1;
            let response = Response::builder()
                .header("ratelimit-policy", "\"minute\";q=60;w=60")
                .header("ratelimit", format!("\"minute\";r={remaining};t=1"))
                .body(());
            Ok::<_, Infallible>(response.unwrap())
        }
    });
    let gate = Gate::new(Settings::default());
    let mut client = PaceLayer::new(gate.clone()).layer(server);
    let start = Instant::now();
    for _ in 0..20 {
        let response = client.call(Request::new(())).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
    }
    assert_eq!(gate.law(), Law::Ticket);
    // 14 units above the reserve of 16 go at once; below it the level falls and each request
    // waits one second more than the last.
    let waited = start.elapsed().as_secs();
    assert!((6..=21).contains(&waited), "{waited} s");
}

#[tokio::test]
async fn a_reqwest_client_learns_over_real_http() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    tokio::spawn(serve(listener));
    let gate = Gate::new(Settings::default());
    let client =
        ClientBuilder::new(reqwest::Client::new()).with(PaceMiddleware::new(gate.clone())).build();
    let bounded = timeout(Duration::from_secs(20), client.get(url).send()).await;
    assert_eq!(bounded.expect("answered").unwrap().status(), StatusCode::OK);
    assert_eq!(gate.law(), Law::Ticket);
    assert_eq!(gate.interval(), Duration::from_secs(6), "16 in reserve, 10 left, 60 per minute");
}

/// Answers every request with the same fields.
async fn serve(listener: TcpListener) {
    while let Ok((mut stream, _)) = listener.accept().await {
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            if stream.read_exact(&mut byte).await.is_err() {
                return;
            }
            request.push(byte[0]);
        }
        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\
            ratelimit-limit: 60, 60;w=60\r\nratelimit-remaining: 10\r\nratelimit-reset: 50\r\n\r\n";
        if stream.write_all(answer).await.is_err() {
            return;
        }
    }
}
