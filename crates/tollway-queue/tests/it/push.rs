//! Push delivery to a real target on loopback.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use tollway_core::{Clock, Timestamp};
use tollway_queue::push::{Keep, Push, PushTarget, method};
use tollway_queue::{Embedded, JobId, JobState, NewJob, Queue, QueueSettings, Worker};
use tollway_testkit::servers::Certificate;

use crate::world::{group, queue};

struct System;

impl Clock for System {
    fn now(&self) -> Timestamp {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        Timestamp::from_nanos(now.as_nanos() as u64)
    }
}

/// A target that gives these answers, one per request, and tells what it was sent; over TLS, if it
/// has a certificate.
fn target(
    answers: Vec<&'static str>,
    tls: Option<Arc<ServerConfig>>,
) -> (String, mpsc::Receiver<String>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let scheme = if tls.is_some() { "https" } else { "http" };
    let url = format!("{scheme}://{}/hook", listener.local_addr().unwrap());
    let (told, heard) = mpsc::channel();
    std::thread::spawn(move || {
        // Connections stay open, so that an answer that says it is longer than it is never ends.
        let mut open: Vec<Box<dyn std::any::Any>> = Vec::new();
        for answer in answers {
            let (mut stream, _) = listener.accept().unwrap();
            let request = match &tls {
                None => {
                    let request = serve(&mut stream, answer);
                    open.push(Box::new(stream));
                    request
                }
                Some(tls) => {
                    let session = ServerConnection::new(Arc::clone(tls)).unwrap();
                    let mut session = StreamOwned::new(session, stream);
                    let request = serve(&mut session, answer);
                    open.push(Box::new(session));
                    request
                }
            };
            told.send(request).unwrap();
        }
        loop {
            std::thread::park();
        }
    });
    (url, heard)
}

fn serve(stream: &mut (impl Read + Write), answer: &str) -> String {
    let mut request = Vec::new();
    let mut chunk = [0; 4_096];
    while !request.ends_with(b"payload") {
        let length = stream.read(&mut chunk).unwrap();
        request.extend_from_slice(&chunk[..length]);
    }
    stream.write_all(answer.as_bytes()).unwrap();
    String::from_utf8_lossy(&request).into_owned()
}

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nhi";

async fn push(answers: Vec<&'static str>) -> (Queue, JobId, Vec<String>) {
    push_to(answers, None, |target| target).await
}

async fn push_to(
    answers: Vec<&'static str>,
    tls: Option<Arc<ServerConfig>>,
    change: impl FnOnce(PushTarget) -> PushTarget,
) -> (Queue, JobId, Vec<String>) {
    push_jobs(1, answers, tls, change).await
}

async fn push_jobs(
    jobs: usize,
    answers: Vec<&'static str>,
    tls: Option<Arc<ServerConfig>>,
    change: impl FnOnce(PushTarget) -> PushTarget,
) -> (Queue, JobId, Vec<String>) {
    let count = answers.len();
    let (url, heard) = target(answers, tls);
    let queue = Queue::new(Arc::new(Embedded::memory()), Arc::new(System), queue("push"));
    let mut settings = QueueSettings::with_limit("concurrent 1".parse().unwrap());
    settings.backoff = tollway_queue::Backoff::fixed(Duration::from_millis(1));
    queue.put(settings).await.unwrap();
    let jobs = vec![NewJob::new(group("g"), "payload"); jobs];
    let id = queue.enqueue_all(jobs).await.unwrap()[0].id;
    let target = change(PushTarget { keep: Keep::Body, ..PushTarget::new(url) });
    let push = Push::new(&target).unwrap();
    let all = tokio::task::spawn_blocking(move || {
        let take = |_| heard.recv_timeout(Duration::from_secs(20)).unwrap();
        (0..count).map(take).collect::<Vec<_>>()
    });
    let (sender, requests) = tokio::sync::oneshot::channel();
    let stop = async move { drop(sender.send(all.await.unwrap())) };
    Worker::new(queue.clone()).run(push, stop).await.unwrap();
    (queue, id, requests.await.unwrap())
}

#[tokio::test]
async fn a_job_is_posted_and_the_answer_kept() {
    let (queue, id, requests) = push(vec![OK]).await;
    let head = requests[0].to_lowercase();
    assert!(head.starts_with("post /hook http/1.1"), "{head}");
    for field in ["tollway-queue: push", "tollway-attempt: 1", "content-type: application/json"] {
        assert!(head.contains(field), "{field}: {head}");
    }
    let state = queue.job(id).await.unwrap().unwrap().state;
    assert!(matches!(state, JobState::Done { result: Some(ref r), .. } if r == "hi"), "{state:?}");
}

#[tokio::test]
async fn a_refusal_makes_the_group_wait_and_is_not_charged() {
    let refusal = "HTTP/1.1 429 Too Many Requests\r\nretry-after: 1\r\ncontent-length: 0\r\n\
                   connection: close\r\n\r\n";
    let begin = std::time::Instant::now();
    let (queue, _, requests) = push(vec![refusal, OK]).await;
    assert!(begin.elapsed() >= Duration::from_secs(1), "the group waited");
    assert!(requests[1].to_lowercase().contains("tollway-attempt: 2"));
    let totals = queue.stats(None, 0).await.unwrap().totals;
    assert_eq!((totals.limited, totals.failed, totals.done), (1, 0, 1));
}

#[tokio::test]
async fn redirects_are_not_followed_and_a_broken_target_is_tried_again() {
    let moved = "HTTP/1.1 307 Temporary Redirect\r\nlocation: http://169.254.169.254/\r\n\
                 content-length: 0\r\nconnection: close\r\n\r\n";
    let (queue, id, _) = push(vec![moved]).await;
    let state = queue.job(id).await.unwrap().unwrap().state;
    assert!(matches!(state, JobState::Dead { .. }), "{state:?}");
    let broken =
        "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
    let (queue, _, _) = push(vec![broken, OK]).await;
    let totals = queue.stats(None, 0).await.unwrap().totals;
    assert_eq!((totals.failed, totals.done), (1, 1));
}

#[tokio::test]
async fn a_profile_reads_what_a_refusal_says_in_its_own_way() {
    // By its fields alone this would be a second; Discord says how long in the body, too.
    let refusal = "HTTP/1.1 429 Too Many Requests\r\nx-ratelimit-remaining: 0\r\n\
                   x-ratelimit-reset-after: 0.25\r\nx-ratelimit-bucket: abcd\r\n\
                   content-length: 0\r\nconnection: close\r\n\r\n";
    let discord =
        |target| PushTarget { profile: Some("discord".to_owned()), keep: Keep::Nothing, ..target };
    let begin = std::time::Instant::now();
    let (queue, _, requests) = push_to(vec![refusal, OK], None, discord).await;
    assert!(begin.elapsed() >= Duration::from_millis(250), "the group waited");
    assert!(requests[1].to_lowercase().contains("tollway-attempt: 2"));
    let totals = queue.stats(None, 0).await.unwrap().totals;
    assert_eq!((totals.limited, totals.failed, totals.done), (1, 0, 1));
}

#[tokio::test]
async fn a_call_has_the_method_and_the_filled_url_of_its_target() {
    let put = |target: PushTarget| PushTarget {
        url: format!("{}/{{group}}/{{id}}", target.url),
        method: method("PUT").unwrap(),
        ..target
    };
    let (_, _, requests) = push_to(vec![OK], None, put).await;
    assert!(requests[0].starts_with("PUT /hook/g/1 HTTP/1.1"), "{}", requests[0]);
}

#[tokio::test]
async fn a_group_waits_after_an_answer_that_says_its_limit_is_spent() {
    let last = "HTTP/1.1 200 OK\r\nratelimit-remaining: 0\r\nratelimit-reset: 1\r\n\
                content-length: 0\r\nconnection: close\r\n\r\n";
    let begin = std::time::Instant::now();
    let (queue, _, _) = push_jobs(2, vec![last, OK], None, |target| target).await;
    assert!(begin.elapsed() >= Duration::from_secs(1), "the group waited");
    let totals = queue.stats(None, 0).await.unwrap().totals;
    assert_eq!((totals.limited, totals.failed, totals.done), (0, 0, 2));
}

/// What such an answer makes of its job.
async fn state_after(answer: &'static str, keep: Keep) -> JobState {
    let change = |target| PushTarget {
        keep,
        keep_fields: vec![http::HeaderName::from_static("x-request-id")],
        timeout: Duration::from_millis(300),
        ..target
    };
    let (queue, id, _) = push_to(vec![answer], None, change).await;
    queue.job(id).await.unwrap().unwrap().state
}

#[tokio::test]
async fn what_is_told_of_an_answer_is_kept_with_the_job() {
    let created = "HTTP/1.1 201 Created\r\nx-request-id: r1\r\ncontent-length: 2\r\n\
                   connection: close\r\n\r\nhi";
    let state = state_after(created, Keep::Answer).await;
    let expected = r#"{"body":"hi","headers":{"x-request-id":"r1"},"status":201}"#;
    assert!(matches!(&state, JobState::Done { result: Some(r), .. } if r == expected), "{state:?}");
    let missing = "HTTP/1.1 404 Not Found\r\nx-request-id: r2\r\ncontent-length: 7\r\n\
                   connection: close\r\n\r\nunknown";
    let state = state_after(missing, Keep::Nothing).await;
    let expected = "the target answered 404 Not Found; x-request-id: r2; unknown";
    assert!(matches!(&state, JobState::Dead { reason, .. } if reason == expected), "{state:?}");
}

#[tokio::test]
async fn an_answer_that_never_ends_counts_by_its_status() {
    // To call again, because the rest does not come, would do twice what was done.
    let endless = "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nbegin";
    let state = state_after(endless, Keep::Body).await;
    assert!(matches!(&state, JobState::Done { result: Some(r), .. } if r == "begin"), "{state:?}");
    let gone = "HTTP/1.1 410 Gone\r\ntransfer-encoding: chunked\r\n\r\n5\r\nbegin\r\n";
    let state = state_after(gone, Keep::Nothing).await;
    let expected = "the target answered 410 Gone; begin";
    assert!(matches!(&state, JobState::Dead { reason, .. } if reason == expected), "{state:?}");
}

#[tokio::test]
async fn a_job_that_cannot_fill_the_url_is_dead_and_nothing_is_called() {
    let (url, heard) = target(vec![OK], None);
    let queue =
        Queue::new(Arc::new(Embedded::memory()), Arc::new(System), crate::world::queue("q"));
    queue.put(QueueSettings::default()).await.unwrap();
    let id = queue.enqueue(NewJob::new(group("../up"), "payload")).await.unwrap().id;
    let push = Push::new(&PushTarget::new(format!("{url}/{{group}}"))).unwrap();
    let stopped = async {
        while !matches!(queue.job(id).await.unwrap().unwrap().state, JobState::Dead { .. }) {
            tokio::task::yield_now().await;
        }
    };
    Worker::new(queue.clone()).run(push, stopped).await.unwrap();
    assert!(heard.try_recv().is_err());
}

#[tokio::test]
async fn a_target_is_called_over_tls_and_must_be_trusted() {
    let Certificate { certificate, key } = Certificate::for_loopback();
    let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    let tls = Arc::new(tls);
    let trusting = |target| PushTarget { roots_pem: Some(certificate.clone()), ..target };
    let (queue, id, _) = push_to(vec![OK], Some(Arc::clone(&tls)), trusting).await;
    let state = queue.job(id).await.unwrap().unwrap().state;
    assert!(matches!(state, JobState::Done { result: Some(ref r), .. } if r == "hi"), "{state:?}");
    // The system does not know this certificate: nothing is sent, and the job is tried again.
    let (url, _heard) = target(vec![], Some(tls));
    let queue =
        Queue::new(Arc::new(Embedded::memory()), Arc::new(System), crate::world::queue("q"));
    queue.put(QueueSettings { attempts_max: 1, ..QueueSettings::default() }).await.unwrap();
    let id = queue.enqueue(NewJob::new(group("g"), "payload")).await.unwrap().id;
    let stopped = async {
        while !matches!(queue.job(id).await.unwrap().unwrap().state, JobState::Dead { .. }) {
            tokio::task::yield_now().await;
        }
    };
    let push = Push::new(&PushTarget::new(url)).unwrap();
    Worker::new(queue.clone()).run(push, stopped).await.unwrap();
    assert_eq!(queue.stats(None, 0).await.unwrap().totals.failed, 1);
}
