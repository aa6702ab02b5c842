//! Several limits at once on real servers: tokens beside requests, a longer window, the
//! credential's.

use std::sync::Arc;
use std::time::Duration;

use tollway_core::fields::Lines;
use tollway_testkit::servers::Engine;
use tollway_upstream::budget::{Claim, Ledger as _, Permit, Reason, Refusal};
use tollway_upstream::profile::{Observation, Profile, Response};
use tollway_upstream::shared::{Fleet, Naming, Prefix, RedisLedger, Settings};

use super::stage::{Stage, settings, standing, until};

/// So long that nothing in a test happens because it is over.
const LONG: Duration = Duration::from_secs(120);

/// One API, several processes.
struct Api {
    stage: Stage,
    profile: Arc<Profile>,
    ledger: RedisLedger,
    target: &'static str,
}

impl Api {
    async fn of(engine: Engine, name: &str, target: &'static str, lease: Duration) -> Self {
        let mut settings = Settings { naming: Naming::Learned, ..settings(lease) };
        settings.bounds.lease = lease.max(Duration::from_secs(1));
        let stage = Stage::new(engine, settings).await;
        let profile = Profile::builtin(name).expect("it is shipped");
        let ledger = join(&stage, &profile).await;
        Self { stage, profile, ledger, target }
    }

    fn claim(&self, tokens: u32) -> Claim {
        let route = self.profile.route("POST", self.target);
        Claim::new(route).cost(1, tokens).patience(Duration::ZERO)
    }

    async fn ask(&self, tokens: u32) -> Result<Permit, Refusal> {
        self.ledger.claim(self.claim(tokens)).await
    }

    async fn go(&self, tokens: u32) -> Permit {
        self.ask(tokens).await.expect("there is room")
    }

    fn read(&self, status: u16, fields: &[(&str, &str)]) -> Observation {
        let lines: Lines<'_> =
            fields.iter().map(|(name, value)| (*name, value.as_bytes())).collect();
        let now = Duration::from_secs(1_794_758_400);
        self.profile.read(&Response { status, lines: &lines, body: b"", now })
    }

    /// What is left of a dimension: of the bucket, or of the credential as its buckets have it.
    async fn left(&self, name: &str) -> Option<u64> {
        let page = self.ledger.buckets(0, 10).await.unwrap();
        let dimensions = page.buckets.into_iter().flat_map(|view| view.dimensions);
        dimensions.filter(|it| it.name == name).map(|it| it.remaining).min()
    }

    async fn until(&self, name: &str, left: u64) {
        until(&format!("{left} are left of {name}"), async || self.left(name).await == Some(left))
            .await;
    }
}

async fn join(stage: &Stage, profile: &Arc<Profile>) -> RedisLedger {
    let fleet = Fleet::connect(&stage.url, stage.settings.clone()).await.unwrap();
    fleet.ledger(Prefix::named(&stage.name), Arc::clone(profile)).await.unwrap()
}

const CHAT: &str = "/v1/chat/completions";

/// OpenAI with this much left of 500 requests and 1,000 tokens; a token comes back every minute.
fn openai(api: &Api, requests: &str, tokens: &str, reset: &str) -> Observation {
    let fields = [
        ("x-ratelimit-limit-requests", "500"),
        ("x-ratelimit-remaining-requests", requests),
        ("x-ratelimit-reset-requests", "1m0s"),
        ("x-ratelimit-limit-tokens", "1000"),
        ("x-ratelimit-remaining-tokens", tokens),
        ("x-ratelimit-reset-tokens", reset),
    ];
    api.read(200, &fields)
}

/// Has learned that 400 of 1,000 tokens are left.
async fn with_400_tokens(engine: Engine, lease: Duration) -> Api {
    let api = Api::of(engine, "openai", CHAT, lease).await;
    api.go(600).await.complete(&openai(&api, "499", "400", "10h0m0s"));
    api.until("tokens", 400).await;
    api
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_are_counted_beside_requests_all_or_nothing() {
    for engine in Engine::available() {
        let api = with_400_tokens(engine, LONG).await;
        let requests = async || api.left("requests").await;
        let first = api.go(300).await;
        api.until("tokens", 100).await;
        let before = requests().await;
        let refused = api.ask(300).await.expect_err("a hundred tokens are left");
        assert_eq!(refused.reason, Reason::Patience, "{engine:?}");
        let wait = refused.wait.expect("it is known when");
        assert!(
            wait > Duration::from_secs(6_000),
            "{engine:?}: 200 more at one a minute: {wait:?}"
        );
        assert_eq!(requests().await, before, "{engine:?}: no request was taken either");
        let small = api.go(100).await;
        assert!(api.ask(1).await.is_err(), "{engine:?}: nothing is left");
        // Never sent: its tokens come back, and those of the other are settled by its answer.
        first.cancel();
        api.until("tokens", 300).await;
        small.complete(&openai(&api, "497", "250", "12h30m0s"));
        api.until("tokens", 250).await;
        assert!(api.ask(251).await.is_err() && api.ask(250).await.is_ok(), "{engine:?}");
        assert_eq!(api.stage.immortal().await, Vec::<String>::new(), "{engine:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_come_back_one_by_one_and_wake_who_waits_for_them() {
    for engine in Engine::available() {
        let api = Api::of(engine, "openai", CHAT, LONG).await;
        // One token a millisecond.
        api.go(1).await.complete(&openai(&api, "499", "0", "1s"));
        until("the tokens are learned", async || api.left("tokens").await.is_some()).await;
        let claim = api.claim(400).patience(LONG);
        let waited = tokio::time::timeout(super::stage::PATIENCE, api.ledger.claim(claim)).await;
        assert!(waited.expect("it is woken").is_ok(), "{engine:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_of_a_process_that_died_come_back_with_its_lease() {
    for engine in Engine::available() {
        let api = with_400_tokens(engine, Duration::from_millis(400)).await;
        let (stage, profile, claim) = (&api.stage, Arc::clone(&api.profile), api.claim(300));
        let (url, name, settings) = (stage.url.clone(), stage.name.clone(), stage.settings.clone());
        // A process that is gone without a word: nothing of it runs on.
        let process = move || {
            let runtime = tokio::runtime::Runtime::new().unwrap();
            runtime.block_on(async {
                let fleet = Fleet::connect(&url, settings).await.unwrap();
                let ledger = fleet.ledger(Prefix::named(&name), profile).await.unwrap();
                std::mem::forget(ledger.claim(claim).await.expect("there is room"));
            });
            runtime.shutdown_background();
        };
        tokio::task::spawn_blocking(process).await.unwrap();
        api.until("tokens", 100).await;
        // More than is left beside it: whoever waits finds that the process is gone, and the
        // upstream may have counted its request for a while.
        let claim = api.claim(350).patience(10_000 * LONG);
        let waited = tokio::time::timeout(super::stage::PATIENCE, api.ledger.claim(claim)).await;
        assert!(waited.expect("its tokens come back").is_ok(), "{engine:?}");
    }
}

/// Riot with so much used of 20 per second and 100 per two minutes, over all methods.
fn riot(api: &Api, app: &str) -> Observation {
    let fields = [
        ("x-app-rate-limit", "20:1,100:120"),
        ("x-app-rate-limit-count", app),
        ("x-method-rate-limit", "2000:10"),
        ("x-method-rate-limit-count", "1:10"),
    ];
    Observation { bucket: Some("chat".into()), ..api.read(200, &fields) }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_burst_and_a_longer_window_hold_together_over_all_methods_and_processes() {
    for engine in Engine::available() {
        let api = Api::of(engine, "riot", "/lol/match/v5/matches/EUW1_1", LONG).await;
        let go = async |ledger: &RedisLedger, target: &str| {
            let route = api.profile.route("GET", target);
            ledger.claim(Claim::new(route).patience(Duration::ZERO)).await
        };
        let probe = go(&api.ledger, api.target).await.expect("it is the first");
        probe.complete(&riot(&api, "1:1,97:120"));
        api.until("application/1", 3).await;
        let other = join(&api.stage, &api.profile).await;
        // Three of the hundred are left, whoever takes them: this method, another one, another
        // process.
        let status = "/lol/status/v4/platform-data";
        let permits = [
            go(&api.ledger, api.target).await,
            go(&other, status).await,
            go(&other, api.target).await,
        ];
        assert!(permits.iter().all(Result::is_ok), "{engine:?}: {permits:?}");
        for (ledger, target) in [(&api.ledger, api.target), (&other, "/lol/league/v4/entries")] {
            let refused = go(ledger, target).await.expect_err("a hundred are taken");
            let wait = refused.wait.expect("it is known when");
            assert!(wait > Duration::from_secs(60), "{engine:?}: the longer window: {wait:?}");
        }
        let page = other.buckets(0, 10).await.unwrap();
        let view = page.buckets.iter().find(|view| view.id == "chat").expect("it is in use");
        let seen = |name| view.dimensions.iter().find(|it| it.name == name).expect("it is told");
        assert_eq!((seen("method").limit, seen("application").limit), (2_000, 20), "{engine:?}");
        assert_eq!((seen("application/1").limit, seen("application/1").remaining), (100, 0));
        assert!(view.wait > Duration::from_secs(60), "{engine:?}: {view:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_for_the_credential_is_woken_by_any_bucket_in_order_of_arrival() {
    for engine in Engine::available() {
        let api = Api::of(engine, "riot", "/lol/match/v5/matches/EUW1_1", LONG).await;
        let other = join(&api.stage, &api.profile).await;
        let targets = ["/lol/status/v4/platform-data", "/lol/league/v4/entries"];
        // Longer than the longest window, or a slow machine finds that it cannot wait that long.
        let patience = 10 * LONG;
        let claim = |target: &str| Claim::new(api.profile.route("GET", target)).patience(patience);
        // Both buckets have been seen, and a third one holds the last of the hundred.
        for (target, app) in targets.into_iter().zip(["1:1,98:120", "1:1,99:120"]) {
            let mut told = riot(&api, app);
            told.bucket = Some(target.replace('/', "-").into());
            api.ledger.claim(claim(target)).await.expect("there is room").complete(&told);
            api.until("application/1", if app.contains("98") { 2 } else { 1 }).await;
        }
        let last = api.ledger.claim(claim(api.target)).await.expect("one is left");
        let waiting = async |count: usize| {
            until("it stands in the line of the credential", async || {
                standing(&api.ledger).await.0 == count
            })
            .await;
        };
        // One of each bucket waits, the first in another process.
        let first = tokio::spawn({
            let (ledger, claim) = (other.clone(), claim(targets[1]));
            async move { ledger.claim(claim).await }
        });
        waiting(1).await;
        let second = tokio::spawn({
            let (ledger, claim) = (api.ledger.clone(), claim(targets[0]));
            async move { ledger.claim(claim).await }
        });
        waiting(2).await;
        // The last was never sent: its place goes to who came first, although the bucket of the
        // second is as near, and although nothing of either bucket has happened.
        last.cancel();
        let permit = tokio::time::timeout(super::stage::PATIENCE, first).await;
        let permit = permit.expect("it is woken").unwrap().expect("it may go");
        assert!(!second.is_finished(), "{engine:?}: there was one");
        permit.cancel();
        let permit = tokio::time::timeout(super::stage::PATIENCE, second).await;
        drop(permit.expect("it is woken").unwrap().expect("it may go"));
        waiting(0).await;
        let immortal = api.stage.immortal().await;
        assert!(!immortal.iter().any(|key| key.contains("tollway")), "{engine:?}: {immortal:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cost_other_than_one_is_taken_from_the_counter_of_spectacles_too() {
    for engine in Engine::available() {
        let api = Api::of(engine, "twitch", "/helix/streams", LONG).await;
        let fields = [("Ratelimit-Limit", "800"), ("Ratelimit-Remaining", "790")];
        let told = Observation { bucket: Some("chat".into()), ..api.read(200, &fields) };
        let claim = |points: u32| {
            let route = api.profile.route("GET", api.target);
            Claim::new(route).cost(0, points).patience(Duration::ZERO)
        };
        let mut told = told;
        told.readings[0].reset_after = Some(LONG);
        told.readings[0].resets_at = Some(LONG);
        api.ledger.claim(claim(10)).await.unwrap().complete(&told);
        let left = async || api.left("requests").await.or(api.left("points").await);
        until("the points are learned", async || left().await == Some(790)).await;
        let permit = api.ledger.claim(claim(700)).await.unwrap();
        assert_eq!(left().await, Some(90), "{engine:?}");
        assert!(api.ledger.claim(claim(91)).await.is_err(), "{engine:?}");
        assert!(api.ledger.claim(claim(90)).await.is_ok(), "{engine:?}");
        drop(permit);
    }
}
