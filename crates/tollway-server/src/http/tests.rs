use std::rc::Rc;

use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{HeardElsewhere, Peer, Reply, Request, answer, decision_paths};
use crate::service::tests::service;
use crate::worker::Worker;

const BODIES: [&str; 5] = [
    r#"{"policy":"api","key":"ada","cost":2}"#,
    r#"{"charges":[{"policy":"api","key":"ada"},{"policy":"api","key":"bob","cost":3}]}"#,
    r#"{"reservation":"00000000000000000000000000000000","costs":[1,2]}"#,
    r#"{"key":"k","max_burst":16,"count_per_period":30,"period":60,"quantity":1}"#,
    r#"{"domain":"edge","descriptors":[{"entries":[{"key":"a","value":"b"}],"hitsAddend":"3"}]}"#,
];

fn post(worker: &Worker, path: &str, body: &[u8]) -> Reply {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let mut fields = http::HeaderMap::new();
    fields.insert("content-type", http::HeaderValue::from_static("application/json"));
    let request = Request {
        method: "POST",
        path,
        query: None,
        host: None,
        fields: &fields,
        body,
        peer: Peer::UNIX,
        client: &HeardElsewhere,
    };
    let mut reply = Reply::default();
    runtime.block_on(answer(worker, &request, &mut reply));
    reply
}

fn left(worker: &Worker) -> u64 {
    let reply = post(worker, "/v1/peek", br#"{"policy":"api","key":"ada"}"#);
    let json: serde_json::Value = serde_json::from_slice(&reply.body).unwrap();
    json["charges"][0]["remaining"].as_u64().unwrap()
}

proptest! {
    #![proptest_config(crate::testing::proptests::cases(1_500))]

    #[test]
    fn mangled_bodies_are_answered_in_json_and_charge_nothing_unless_they_are_valid(
        path in prop::sample::select(decision_paths().collect::<Vec<_>>()),
        body in prop::sample::select(&BODIES[..]),
        at in any::<prop::sample::Index>(),
        noise in prop::collection::vec(any::<u8>(), 0..6),
        cut in 0usize..4,
    ) {
        let worker = Worker::new(service());
        let mut bytes = body.as_bytes().to_vec();
        let at = at.index(bytes.len());
        let end = bytes.len().min(at + cut);
        bytes.splice(at..end, noise);
        let reply = post(&worker, path, &bytes);
        prop_assert!(serde_json::from_slice::<serde_json::Value>(&reply.body).is_ok());
        prop_assert!(matches!(reply.status, 200 | 400 | 404 | 429), "{}", reply.status);
        if reply.status == 400 {
            prop_assert_eq!(left(&worker), 5);
        }
    }
}

/// Requests as they stand in a pipeline: answered, refused alone, long, empty.
const PIPELINED: [(&str, &str, &str); 7] = [
    ("POST", "/v1/check", r#"{"policy":"api","key":"ada"}"#),
    ("POST", "/v1/peek", r#"{"policy":"api","key":"ada"}"#),
    ("POST", "/v1/check", r#"{"policy":"api","key":"bob","cost":2}"#),
    ("POST", "/v1/check", "{"),
    ("GET", "/openapi.json", ""),
    ("GET", "/healthz", ""),
    ("GET", "/nowhere", ""),
];

fn written(index: usize) -> String {
    let (method, path, body) = PIPELINED[index];
    let length = body.len();
    format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\n\r\n{body}"
    )
}

/// What comes back for `parts`, each written when the one before was read.
async fn exchanged(worker: &Rc<Worker>, parts: &[&[u8]]) -> Vec<u8> {
    let (mut client, server) = tokio::io::duplex(1 << 14);
    let (_stopper, stop) = crate::drain::Stopper::new();
    let serving = super::serve(worker, server, Peer::UNIX, stop);
    let asking = async {
        let (mut reader, mut writer) = tokio::io::split(&mut client);
        let writing = async {
            for part in parts {
                writer.write_all(part).await.unwrap();
                tokio::task::yield_now().await;
            }
            writer.shutdown().await.unwrap();
        };
        let mut answers = Vec::new();
        let (_, read) = tokio::join!(writing, reader.read_to_end(&mut answers));
        read.unwrap();
        answers
    };
    let (served, answers) = tokio::join!(serving, asking);
    served.unwrap();
    answers
}

proptest! {
    #![proptest_config(crate::testing::proptests::cases(100))]

    #[test]
    fn a_pipeline_cut_anywhere_is_answered_as_its_requests_one_by_one(
        indices in prop::collection::vec(0..PIPELINED.len(), 1..40),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let requests: Vec<String> = indices.iter().map(|index| written(*index)).collect();
        let whole = requests.concat().into_bytes();
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(whole.len())).collect();
        cuts.extend([0, whole.len()]);
        cuts.sort_unstable();
        let parts: Vec<&[u8]> = cuts.windows(2).map(|cut| &whole[cut[0]..cut[1]]).collect();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let cut = exchanged(&Rc::new(Worker::new(service())), &parts).await;
            let worker = Rc::new(Worker::new(service()));
            let mut one_by_one = Vec::new();
            for request in &requests {
                one_by_one.extend(exchanged(&worker, &[request.as_bytes()]).await);
            }
            prop_assert_eq!(cut.escape_ascii().to_string(), one_by_one.escape_ascii().to_string());
            Ok(())
        })?;
    }
}
