//! A primary found through sentinels, also after it was killed.

use std::time::Duration;

use tollway_core::ErrorKind;
use tollway_redis::RedisStore;

use crate::caller::connect;
use crate::faults::{fail_over, hasty};
use tollway_testkit::servers::{Engine, Server, eventually, tell};

/// A primary, a replica and a sentinel that watches them.
struct Watched {
    primary: Server,
    _replica: Server,
    sentinel: Server,
}

fn start(engine: Engine) -> Watched {
    let primary = Server::start(engine, &["--repl-diskless-sync-delay", "0"]);
    let port = primary.port.to_string();
    let replica = Server::start(
        engine,
        &["--repl-diskless-sync-delay", "0", "--replicaof", "127.0.0.1", &port],
    );
    let linked = || {
        let info = tell(replica.port, &["INFO", "replication"]).unwrap_or_default();
        info.contains("master_link_status:up")
    };
    eventually(Duration::from_secs(30), linked);
    let watch = format!(
        "sentinel monitor main 127.0.0.1 {port} 1\n\
         sentinel down-after-milliseconds main 500\n\
         sentinel failover-timeout main 2000\n"
    );
    let sentinel = Server::start(engine, &[&watch, "--sentinel"]);
    let knows_replica = || {
        let answer = tell(sentinel.port, &["SENTINEL", "replicas", "main"]).unwrap_or_default();
        answer.contains(&replica.port.to_string())
    };
    eventually(Duration::from_secs(30), knows_replica);
    Watched { primary, _replica: replica, sentinel }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_primary_is_found_again_and_at_most_its_limit_is_admitted_again() {
    for engine in Engine::available() {
        let watched = start(engine);
        let url = format!("redis+sentinel://127.0.0.1:{}/main", watched.sentinel.port);
        let store = connect(&url, &hasty()).await;
        fail_over(engine, "sentinel", &store, || watched.primary.kill()).await;
    }
}

/// The servers want one password, the sentinel another user with another.
#[tokio::test(flavor = "multi_thread")]
async fn sentinels_are_asked_with_credentials_of_their_own() {
    for engine in Engine::available() {
        let server = Server::start(engine, &["--requirepass", "data", "--masterauth", "data"]);
        let watch = format!(
            "sentinel monitor main 127.0.0.1 {} 1\n\
             sentinel auth-pass main data\n\
             requirepass other\n\
             user asker on >watch ~* &* +@all\n",
            server.port
        );
        let sentinel = Server::start(engine, &[&watch, "--sentinel"]);
        let url = |credentials: &str| {
            format!("redis+sentinel://:data@127.0.0.1:{}/main{credentials}", sentinel.port)
        };
        for wrong in ["", "?sentinel_user=asker&sentinel_password=data"] {
            let error = RedisStore::connect(&url(wrong), hasty()).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Refused, "{engine:?}, {wrong}: {error}");
        }
        let policy = tollway_core::Policy::parse("api", "10/1m").unwrap();
        for right in ["?sentinel_user=asker&sentinel_password=watch", "?sentinel_password=other"] {
            let store = connect(&url(right), &hasty()).await;
            let verdict = crate::caller::check(&store, &policy, right).await.unwrap();
            assert!(verdict.is_allowed() && !verdict.is_degraded(), "{engine:?}, {right}");
        }
    }
}
