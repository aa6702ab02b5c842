//! Bad input: unreachable, wrong password, somebody else's data, strange keys.

use std::process::Command;
use std::time::Duration;

use tollway_core::sliding_window::SlidingWindow;
use tollway_core::{
    Charge, ErrorKind, Key, OnStoreError, Policy, Settlement, Store, Timestamp, Verdict,
};
use tollway_redis::{Certificates, RedisStore, Settings};

use crate::caller::{charge, check, connect, kept_keys, settings};
use crate::faults::until;
use tollway_testkit::servers::{Engine, Server, free_port};

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_not_there_stops_only_those_who_require_it() {
    let url = format!("redis://127.0.0.1:{}", free_port());
    for url in [
        url.clone(),
        url.replace("redis:", "redis+cluster:"),
        format!("{}/main", url.replace("redis:", "redis+sentinel:")),
    ] {
        let required = Settings { start_without: false, ..settings() };
        let error = RedisStore::connect(&url, required).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{url}: {error}");
        let store = RedisStore::connect(&url, settings()).await.unwrap();
        let outage = store.outage().expect("known from the start");
        assert!(outage.reason.contains("cannot be reached"), "{url}: {outage:?}");
        let at_most = Duration::from_secs(3_600);
        let policy = Policy::parse("api", "1/s").unwrap();
        let policy = policy.on_store_error(OnStoreError::Allow { at_most });
        let verdict = check(&store, &policy, "k").await.unwrap();
        assert!(verdict.is_allowed() && verdict.is_degraded(), "{url}: its policies answer");
        assert_eq!(verdict.store_failure(), Some(ErrorKind::Unavailable));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_comes_after_the_start_is_found_and_ends_the_outage() {
    for engine in Engine::available() {
        let mut server = Server::start(engine, &[]);
        server.kill();
        let hasty = Settings { backoff_max: Duration::from_millis(50), ..settings() };
        let store = connect(&server.url(), &hasty).await;
        let policy = Policy::parse("api", "5/30d").unwrap();
        assert!(check(&store, &policy, "k").await.unwrap().is_degraded());
        server.restart();
        let is_degraded = async || check(&store, &policy, "k").await.unwrap().is_degraded();
        until("the store is found", async || !is_degraded().await).await;
        assert_eq!(store.outage(), None, "{engine:?}: failures of before do not count after it");
    }
}

/// Waiting does not mend these, whether or not the store may be away.
#[tokio::test(flavor = "multi_thread")]
async fn what_waiting_does_not_mend_is_an_error_at_the_start() {
    let server = Server::start(Engine::Redis, &["--requirepass", "s3cret"]);
    let (open, port) = (Engine::Redis.shared(), server.port);
    for (url, kind) in [
        ("redis//127.0.0.1".to_owned(), ErrorKind::Misuse),
        (format!("redis://:wrong@127.0.0.1:{port}"), ErrorKind::Refused),
        (format!("redis+cluster://:wrong@127.0.0.1:{port}"), ErrorKind::Refused),
        (open.url().replace("redis:", "redis+cluster:"), ErrorKind::Misuse),
    ] {
        let error = RedisStore::connect(&url, settings()).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{url}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_password_is_refused_and_an_acl_user_with_few_rights_works() {
    for engine in Engine::available() {
        let server = Server::start(engine, &["--requirepass", "s3cret"]);
        let url = |user: &str| format!("redis://{user}@127.0.0.1:{}", server.port);
        for user in [":wrong", ""] {
            let error = RedisStore::connect(&url(user), settings()).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
        }
        let settings = settings();
        let store = connect(&url(":s3cret"), &settings).await;
        let policy = Policy::parse("api", "4/30d").unwrap();
        assert!(check(&store, &policy, "k").await.unwrap().is_allowed());
        let rights = format!("~{}*", settings.prefix);
        let mut client = redis::Client::open(url(":s3cret")).unwrap().get_connection().unwrap();
        redis::cmd("ACL")
            .arg(&["SETUSER", "tollway", "on", ">pw", &rights, "+eval", "+evalsha", "+get"])
            .arg(&["+set", "+setrange", "+mget", "+exists", "+del", "+time"])
            .exec(&mut client)
            .unwrap();
        let limited = connect(&url("tollway:pw"), &settings).await;
        // A new state, one that lingers, and one that is changed in place.
        for _ in 0..3 {
            assert!(check(&limited, &policy, "k").await.unwrap().is_allowed());
        }
        assert!(!check(&limited, &policy, "k").await.unwrap().is_allowed());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_is_spoken_to_servers_that_ask_for_it() {
    let directory = std::env::temp_dir().join(format!("tollway-tls-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let file = |name: &str| directory.join(name).to_str().unwrap().to_owned();
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"])
        .args(["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .args(["-keyout", &file("key.pem"), "-out", &file("cert.pem")])
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    let port = free_port().to_string();
    let server = Server::start(
        Engine::Redis,
        &["--tls-port", &port, "--tls-cert-file", &file("cert.pem"), "--tls-key-file"]
            .iter()
            .copied()
            .chain([&*file("key.pem"), "--tls-ca-cert-file", &file("cert.pem")])
            .chain(["--tls-auth-clients", "no"])
            .collect::<Vec<_>>(),
    );
    let url = format!("rediss://127.0.0.1:{port}");
    let authority = Some(std::fs::read(file("cert.pem")).unwrap());
    let certificates = Certificates { authority, client: None };
    let store = connect(&url, &Settings { certificates, ..settings() }).await;
    let policy = Policy::parse("api", "1/30d").unwrap();
    assert!(check(&store, &policy, "k").await.unwrap().is_allowed());
    assert!(!check(&store, &policy, "k").await.unwrap().is_allowed());
    let stranger = RedisStore::connect(&url, settings()).await.unwrap_err();
    assert_eq!(stranger.kind(), ErrorKind::Refused, "an unknown authority is not trusted");
    drop(server);
    let _ = std::fs::remove_dir_all(&directory);
}

#[tokio::test(flavor = "multi_thread")]
async fn somebody_elses_data_is_refused_and_not_overwritten() {
    for engine in Engine::available() {
        let server = engine.shared();
        let settings = settings();
        let store = connect(&server.url(), &settings).await;
        let policy = Policy::parse("api", "1/30d").unwrap();
        let other = Policy::parse("other", "1/30d").unwrap();
        assert!(check(&store, &policy, "k").await.unwrap().is_allowed());
        let name = kept_keys(server, &settings).remove(0);
        let theirs: [&[&str]; 3] =
            [&["RPUSH", &name, "a", "b"], &["HSET", &name, "f", "v"], &["SET", &name, "text"]];
        for words in theirs {
            server.tell(&["DEL", &name]);
            server.tell(words);
            let before = server.tell(&["DUMP", &name]);
            let error = check(&store, &policy, "k").await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
            for key in ["k", "l"] {
                let both = [charge(&other, key), charge(&policy, "k")];
                let error = store.check(&both, Timestamp::MIN).await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
            }
            assert_eq!(server.tell(&["DUMP", &name]), before, "untouched");
        }
        assert!(check(&store, &other, "l").await.unwrap().is_allowed(), "nothing was taken there");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_of_any_bytes_are_kept_apart() {
    for engine in Engine::available() {
        let store = connect(&engine.shared().url(), &settings()).await;
        let policy = Policy::parse("api", "1/30d").unwrap();
        let long = vec![b'x'; Key::LEN_MAX];
        let keys: [&[u8]; 12] = [
            b"a", b"{a}", b"{a", b"a}", b"{}", b"}{", b" ", b"a b", b"\0", b"a\0", b"a\r\nb", &long,
        ];
        for key in keys {
            let charge = Charge::new(&policy, Key::new(key).unwrap());
            let first = store.check(&[charge], Timestamp::MIN).await.unwrap();
            assert!(first.is_allowed(), "{}: nobody else's", key[..1].escape_ascii());
            let second = store.check(&[charge], Timestamp::MIN).await.unwrap();
            assert!(!second.is_allowed(), "{}: not lost", key[..1].escape_ascii());
        }
    }
}

/// A store that is full answers nobody: strangers must not fill it by the length of their keys.
#[tokio::test(flavor = "multi_thread")]
async fn long_keys_take_no_more_room_than_short_ones() {
    for engine in Engine::available() {
        let limits = ["--maxmemory", "8mb", "--maxmemory-policy", "noeviction"];
        let server = Server::start(engine, &limits);
        let store = connect(&server.url(), &settings()).await;
        let window = SlidingWindow::new("5/1h".parse().unwrap(), 5).unwrap();
        for policy in [Policy::parse("g", "5/1h").unwrap(), Policy::new("w", window).unwrap()] {
            for number in 0..300 {
                let key = format!("{number}{}", "x".repeat(60_000));
                let verdict = check(&store, &policy, &key).await.unwrap();
                assert!(!verdict.is_degraded() && verdict.is_allowed(), "{engine:?}: {number}");
            }
        }
    }
}

/// What this process does not remember of its own reservations is looked up.
#[tokio::test(flavor = "multi_thread")]
async fn a_reservation_on_a_long_key_is_settled_as_any_other() {
    for engine in Engine::available() {
        let store = connect(&engine.shared().url(), &settings()).await;
        let policy = Policy::parse("api", "5/30d").unwrap();
        let long = vec![b'x'; Key::LEN_MAX];
        let charge = Charge::new(&policy, Key::new(&long).unwrap());
        let reserved = store.reserve(&[charge], Timestamp::MIN).await.unwrap();
        let id = reserved.reservation.unwrap().id;
        let settled = store.commit(id, &[3], Timestamp::MIN).await.unwrap();
        let left = store.peek(&[charge], Timestamp::MIN).await.unwrap();
        let left = left.decisions()[0].snapshot().remaining();
        assert_eq!((settled, left), (Settlement::Settled, 2));
    }
}

/// What is counted is never denied, and must not make a value grow without end: as in the core, the
/// newest cells become one.
#[tokio::test(flavor = "multi_thread")]
async fn an_exact_window_that_counts_on_stays_within_its_cells() {
    let window = SlidingWindow::exact("10/1h".parse().unwrap()).unwrap();
    let policy = Policy::new("exact", window).unwrap();
    let cells_max = SlidingWindow::CELLS_MAX as usize + 1;
    for engine in Engine::available() {
        let (server, settings) = (engine.shared(), settings());
        let store = connect(&server.url(), &settings).await;
        let count = [charge(&policy, "k").counted()];
        assert!(store.check(&count, Timestamp::MIN).await.unwrap().is_allowed());
        let name = &kept_keys(server, &settings)[0];
        let mut client = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
        let get = |client: &mut redis::Connection| -> Vec<u8> {
            redis::cmd("GET").arg(name).query(client).unwrap()
        };
        // As many cells before the one that is there as a window may have.
        let value = get(&mut client);
        let newest_us = u64::from_le_bytes([&value[8..15], &[0]].concat().try_into().unwrap());
        let mut full = [&value[..4], &(cells_max as u32).to_le_bytes()].concat();
        for before in (1..cells_max as u64).rev() {
            full.extend_from_slice(&(newest_us - before).to_le_bytes()[..7]);
            full.extend_from_slice(&[0, 0]);
            full.extend_from_slice(&1u64.to_le_bytes()[..7]);
        }
        full.extend_from_slice(&value[8..]);
        redis::cmd("SET").arg(name).arg(&full).arg("KEEPTTL").exec(&mut client).unwrap();
        for _ in 0..2 {
            let verdict = store.check(&count, Timestamp::MIN).await.unwrap();
            assert_eq!((verdict.is_allowed(), verdict.is_degraded()), (true, false));
        }
        assert_eq!(get(&mut client).len(), full.len());
        assert!(!check(&store, &policy, "k").await.unwrap().is_allowed());
    }
}

/// What a key holds is read and written whole by every request: it must not grow without end.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_takes_only_so_many_open_reservations() {
    for engine in Engine::available() {
        let store = connect(&engine.shared().url(), &settings()).await;
        let gcra = Policy::parse("gcra", "100000/1h").unwrap();
        let window = SlidingWindow::new("100000/1h".parse().unwrap(), 10).unwrap();
        for policy in [gcra, Policy::new("window", window).unwrap()] {
            let reserve = || store.reserve(&[charge(&policy, "k")], Timestamp::MIN);
            let mut open = Vec::new();
            for _ in 0..16 {
                // As tasks, so that they share round trips.
                let some: Vec<_> = (0..64).map(|_| tokio::spawn(reserve())).collect();
                for reserved in some {
                    let reserved = reserved.await.unwrap().unwrap();
                    open.push(reserved.reservation.unwrap().id);
                }
            }
            let error = reserve().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
            assert!(check(&store, &policy, "k").await.unwrap().is_allowed(), "others go on");
            store.cancel(open[0], Timestamp::MIN).await.unwrap();
            assert!(reserve().await.unwrap().reservation.is_some(), "there is room again");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_has_states_under_only_so_many_policies() {
    for engine in Engine::available() {
        let store = connect(&engine.shared().url(), &settings()).await;
        let policy = |number: u32| Policy::parse(format!("p{number}"), "5/1h").unwrap();
        for some in 0..16 {
            let policies: Vec<_> = (0..64).map(|number| policy(64 * some + number)).collect();
            let charges: Vec<_> = policies.iter().map(|policy| charge(policy, "k")).collect();
            assert!(store.check(&charges, Timestamp::MIN).await.unwrap().is_allowed());
        }
        // One more finds the last room, and the next none.
        assert!(check(&store, &policy(2_000), "k").await.unwrap().is_allowed());
        let error = check(&store, &policy(2_001), "k").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
        let error = store.take(&charge(&policy(2_001), "k"), Timestamp::MIN).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
        let left = |verdict: Verdict| verdict.decisions()[0].snapshot().remaining();
        assert_eq!(left(check(&store, &policy(7), "k").await.unwrap()), 3, "others go on");
        store.reset(&charge(&policy(7), "k"), Timestamp::MIN).await.unwrap();
        store.reset(&charge(&policy(8), "k"), Timestamp::MIN).await.unwrap();
        assert!(check(&store, &policy(2_001), "k").await.unwrap().is_allowed(), "room again");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_beyond_the_bounds_is_misuse() {
    let store = connect(&Engine::Redis.shared().url(), &settings()).await;
    let policy = Policy::parse("api", "1/s").unwrap();
    let many = vec![charge(&policy, "k"); 257];
    let error = store.check(&many, Timestamp::MIN).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misuse, "{error}");
    let braces = Settings { prefix: "{x}:".to_owned(), ..settings() };
    let error = RedisStore::connect(&Engine::Redis.shared().url(), braces).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misuse, "{error}");
}
