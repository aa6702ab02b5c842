use std::time::Duration;

use futures_util::StreamExt as _;
use tollway_testkit::servers::Engine;

use super::stage::{PATIENCE, Stage, settings};

/// As `upkeep` runs it, for a process of that name.
async fn beat(stage: &Stage, process: &str, least: u32) -> (i64, usize) {
    let script = redis::Script::new(include_str!("../../../src/shared/scripts/beat.lua"));
    let client = redis::Client::open(&*stage.url).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let key = |name: &str| format!("{}:{name}", stage.name);
    let mut call = script.prepare_invoke();
    call.key(key("beat-processes")).key(key("beat-return"));
    call.arg(60_000).arg(process).arg(key("beat:")).arg(least).arg(300);
    let told: Vec<String> = call.invoke_async(&mut connection).await.unwrap();
    (told[0].parse().unwrap(), told.len() - 1)
}

/// A store that is lost right after would let everybody take the whole limit.
#[tokio::test]
async fn who_is_new_is_told_to_the_others_at_once() {
    for engine in Engine::available() {
        let stage = Stage::new(engine, settings(Duration::from_secs(10))).await;
        assert_eq!(beat(&stage, "0a", 0).await, (-1, 1));
        let client = redis::Client::open(&*stage.url).unwrap();
        let mut inbox = client.get_async_pubsub().await.unwrap();
        inbox.subscribe(format!("{}:beat:0a", stage.name)).await.unwrap();
        assert_eq!(beat(&stage, "0b", 0).await, (-1, 2));
        // Nothing new.
        assert_eq!(beat(&stage, "0b", 0).await, (-1, 2));
        assert_eq!(beat(&stage, "0c", 0).await, (-1, 3));
        let mut messages = inbox.on_message();
        for told in ["\np\n0a 0b", "\np\n0a 0b 0c"] {
            let message = tokio::time::timeout(PATIENCE, messages.next()).await.unwrap().unwrap();
            assert_eq!(message.get_payload::<String>().unwrap(), told, "{engine:?}");
        }
    }
}

/// Whoever went back sooner would take from the documents what is the part of another.
#[tokio::test]
async fn after_an_outage_all_go_back_to_the_store_at_one_time() {
    for engine in Engine::available() {
        let stage = Stage::new(engine, settings(Duration::from_secs(10))).await;
        assert_eq!(beat(&stage, "0a", 3).await, (-1, 1), "two are missing");
        assert_eq!(beat(&stage, "0b", 3).await, (-1, 2), "one is missing");
        assert_eq!(beat(&stage, "0c", 3).await, (300, 3), "all are there");
        let (wait, _) = beat(&stage, "0a", 3).await;
        assert!((0..=300).contains(&wait), "no later than who was told first: {wait}");
        // One that has waited for long enough goes without the others.
        let late = Stage::new(engine, settings(Duration::from_secs(10))).await;
        assert_eq!(beat(&late, "0a", 1).await, (300, 1), "{engine:?}");
    }
}
