//! A real 3+3 cluster: interleaving N.

use std::collections::BTreeSet;
use std::time::Duration;

use tollway_testkit::servers::{Cluster, Engine, tell};
use tollway_upstream::shared::{Fleet, Prefix, RedisLedger};

use super::stage::{World, profile, settings, until};

async fn join(url: &str, prefix: &Prefix) -> RedisLedger {
    let fleet = Fleet::connect(url, settings(Duration::from_secs(10))).await.unwrap();
    fleet.ledger(prefix.clone(), profile()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn n_a_credential_has_one_slot_of_a_cluster_and_its_fleet_works_there() {
    for engine in Engine::available() {
        let cluster = Cluster::shared(engine);
        // Credentials on different servers, each with three processes.
        let mut owners = BTreeSet::new();
        for credential in ["Bot one", "Bot two", "Bot three", "Bot four", "Bot five"] {
            let prefix = Prefix::of_credential(credential.as_bytes());
            let url = cluster.url();
            let ledgers = [(); 3].map(|()| join(&url, &prefix));
            let [a, b, c] = ledgers;
            let ledgers = [a.await, b.await, c.await];
            let world = World::new(r#"limit = 3, per = "200ms""#);
            let calls: Vec<_> = ledgers
                .iter()
                .cycle()
                .take(9)
                .map(|ledger| {
                    let (ledger, world) = (ledger.clone(), world.clone());
                    tokio::spawn(async move { world.call(&ledger).await.status })
                })
                .collect();
            for call in calls {
                assert_eq!(call.await.unwrap(), 200, "{engine:?}");
            }
            let tag = prefix.as_str().trim_matches(|c| "{}:".contains(c));
            let owner = cluster.primary_of(&format!("{{{tag}}}")).port;
            owners.insert(owner);
            until("its keys are there", async || {
                let keys = tell(owner, &["KEYS", &format!("*{tag}*")]).unwrap_or_default();
                keys.contains(":limit")
            })
            .await;
        }
        assert!(owners.len() > 1, "{engine:?}: the credentials are spread");
    }
}
