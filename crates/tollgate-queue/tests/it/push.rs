//! Push delivery to a real target on loopback.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use tollgate_core::{Clock, Timestamp};
use tollgate_queue::push::{Push, PushTarget};
use tollgate_queue::{Embedded, JobId, JobState, NewJob, Queue, QueueSettings, Worker};

use crate::world::{group, queue};

struct System;

impl Clock for System {
    fn now(&self) -> Timestamp {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        Timestamp::from_nanos(now.as_nanos() as u64)
    }
}

/// A target that gives these answers, one per request, and tells what it was sent.
fn target(answers: Vec<&'static str>) -> (String, mpsc::Receiver<String>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let url = format!("http://{}/hook", listener.local_addr().unwrap());
    let (told, heard) = mpsc::channel();
    std::thread::spawn(move || {
        for answer in answers {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = Vec::new();
            let mut chunk = [0; 4_096];
            while !request.ends_with(b"payload") {
                let length = stream.read(&mut chunk).unwrap();
                request.extend_from_slice(&chunk[..length]);
            }
            stream.write_all(answer.as_bytes()).unwrap();
            told.send(String::from_utf8_lossy(&request).into_owned()).unwrap();
        }
    });
    (url, heard)
}

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nhi";

async fn push(answers: Vec<&'static str>) -> (Queue, JobId, Vec<String>) {
    let count = answers.len();
    let (url, heard) = target(answers);
    let queue = Queue::new(Arc::new(Embedded::memory()), Arc::new(System), queue("push"));
    let mut settings = QueueSettings::with_limit("concurrent 1".parse().unwrap());
    settings.backoff = tollgate_queue::Backoff::fixed(Duration::from_millis(1));
    queue.put(settings).await.unwrap();
    let id = queue.enqueue(NewJob::new(group("g"), "payload")).await.unwrap().id;
    let push = Push::new(&PushTarget { keep_result: true, ..PushTarget::new(url) }).unwrap();
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
    for field in ["tollgate-queue: push", "tollgate-attempt: 1", "content-type: application/json"] {
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
    assert!(requests[1].to_lowercase().contains("tollgate-attempt: 2"));
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
