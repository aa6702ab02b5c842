//! Limits that only the documentation states, kept by all processes together.

use std::sync::Arc;
use std::time::Duration;

use tollway_testkit::servers::Engine;
use tollway_upstream::budget::{Claim, Correction, Ledger as _, Permit, Reason, Refusal};
use tollway_upstream::profile::{Observation, Profile, Usage};
use tollway_upstream::shared::{Fleet, Naming, Prefix, RedisLedger, Settings};

use super::stage::{PATIENCE, Stage, settings, until};

const LONG: Duration = Duration::from_secs(120);

/// How many requests go to each of the targets, by two processes in turns, until one has to wait;
/// and for how long.
async fn go_until_refused(
    engine: Engine,
    name: &str,
    targets: &[(&str, &str)],
) -> Vec<(usize, Duration)> {
    let settings = Settings { naming: Naming::Learned, ..settings(LONG) };
    let stage = Stage::new(engine, settings).await;
    let profile = Profile::builtin(name).expect("it is shipped");
    let mut ledgers: Vec<RedisLedger> = Vec::new();
    for _ in 0..2 {
        let fleet = Fleet::connect(&stage.url, stage.settings.clone()).await.unwrap();
        ledgers.push(fleet.ledger(Prefix::named(&stage.name), profile.clone()).await.unwrap());
    }
    let fine = Observation { status: 200, ..Observation::default() };
    let mut results = Vec::new();
    for (method, target) in targets {
        let mut gone = 0;
        let wait = loop {
            // The second waits for the answer to the first; from then on the bucket is known.
            let patience = if gone < 2 { LONG } else { Duration::ZERO };
            let claim = Claim::new(profile.route(method, target)).patience(patience);
            match ledgers[gone % 2].claim(claim).await {
                Ok(permit) => permit.complete(&fine),
                Err(refusal) => break refusal.wait.expect("it is known when"),
            }
            gone += 1;
            assert!(gone < 1_000, "nothing holds it back");
        };
        results.push((gone, wait));
    }
    assert_eq!(stage.immortal().await, Vec::<String>::new(), "{engine:?}");
    results
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tier_that_a_profile_states_for_a_route_is_shared_by_all_processes() {
    for engine in Engine::available() {
        let targets = [("GET", "/api/users.list"), ("GET", "/api/conversations.history")];
        let results = go_until_refused(engine, "slack", &targets).await;
        for ((gone, wait), limit) in results.into_iter().zip([20, 50]) {
            assert_eq!(gone, limit, "{engine:?}: however many processes there are");
            assert!(wait <= Duration::from_secs(61), "{engine:?}: {wait:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_that_a_profile_states_for_every_bucket_is_shared_by_all_processes() {
    for engine in Engine::available() {
        let stated = Profile::builtin_text("stripe").expect("it is shipped");
        assert!(stated.contains("\"25/1s\""), "what is counted below");
        let results = go_until_refused(engine, "stripe", &[("GET", "/v1/balance")]).await;
        let (gone, wait) = results[0];
        // A slow machine may see the first ones come back before the last have gone.
        assert!(gone >= 25 && wait <= Duration::from_millis(1_200), "{engine:?}: {gone} {wait:?}");
    }
}

/// A model server that tells nothing but what was used, and only in bodies.
const MODEL: &str = "name = 'model'\n[[dimensions]]\nname = 'requests'\nstated = '100/1h'\n\
    [[dimensions]]\nname = 'tokens'\nstated = '1000/1h'\nusage = { body = 'usage.total' }\n\
    [[dimensions]]\nname = 'money'\nreach = 'credential'\nstated = '500/1h'\ncost = 0\n";

/// Two processes that send to a model server.
struct Model {
    _stage: Stage,
    profile: Arc<Profile>,
    ledgers: Vec<RedisLedger>,
}

impl Model {
    async fn new(engine: Engine) -> Self {
        let settings = Settings { naming: Naming::Learned, ..settings(LONG) };
        let stage = Stage::new(engine, settings).await;
        let profile = Arc::new(Profile::parse(MODEL).expect("a valid profile"));
        let mut ledgers = Vec::new();
        for _ in 0..2 {
            let fleet = Fleet::connect(&stage.url, stage.settings.clone()).await.unwrap();
            let prefix = Prefix::named(&stage.name);
            ledgers.push(fleet.ledger(prefix, Arc::clone(&profile)).await.unwrap());
        }
        let model = Self { _stage: stage, profile, ledgers };
        // From the first answer on nobody waits for one.
        model.ask(0, 0, 0).await.unwrap().complete(&Observation::default());
        model
    }

    fn claim(&self, tokens: u32, money: u32) -> Claim {
        let claim = Claim::new(self.profile.route("POST", "/chat"));
        let claim = claim.cost_named(&self.profile, "tokens", tokens).unwrap();
        claim.cost_named(&self.profile, "money", money).unwrap()
    }

    async fn ask(&self, process: usize, tokens: u32, money: u32) -> Result<Permit, Refusal> {
        let claim = self.claim(tokens, money).patience(Duration::from_secs(1));
        self.ledgers[process].claim(claim).await
    }

    /// A request that is served at once.
    async fn serve(&self, process: usize, tokens: u32, money: u32) {
        self.ask(process, tokens, money).await.expect("there is room").complete(&fine());
    }
}

fn fine() -> Observation {
    Observation::default()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_takes_all_its_tokens_at_once_and_of_all_limits_or_of_none() {
    for engine in Engine::available() {
        let model = Model::new(engine).await;
        model.serve(0, 600, 100).await;
        // There is money for it, and not enough tokens: neither is taken.
        let refused = model.ask(1, 401, 300).await.expect_err("400 tokens are left");
        assert_eq!(refused.reason, Reason::Patience, "{engine:?}");
        assert!(refused.wait.unwrap() > Duration::from_secs(3_000), "{engine:?}: {refused:?}");
        model.serve(1, 400, 400).await;
        assert!(model.ask(0, 1, 0).await.is_err(), "{engine:?}: no token is left");
        assert!(model.ask(0, 0, 1).await.is_err(), "{engine:?}: no money is left");
        assert!(model.ask(0, 0, 0).await.is_ok(), "{engine:?}: requests are left");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_request_really_took_counts_in_all_processes() {
    for engine in Engine::available() {
        let model = Model::new(engine).await;
        model.serve(0, 900, 1).await;
        let usage = |total: u32| {
            let body = format!(r#"{{"usage": {{"total": {total}}}}}"#);
            model.profile.usage_in_body(body.as_bytes())
        };
        let correct = |estimate: u32, usage: &Usage| {
            let claim = model.claim(estimate, 1);
            let correction = Correction::of(&claim, &fine(), usage, Duration::ZERO);
            model.ledgers[0].correct(&correction.expect("it differs"));
        };
        correct(900, &usage(150));
        until("850 are left", async || model.ask(1, 850, 1).await.is_ok()).await;
        assert!(model.ask(1, 1, 1).await.is_err(), "{engine:?}: none is left");
        // More than there is, by a request that did not say so.
        correct(1, &usage(700));
        let refused = model.ask(1, 1, 1).await.expect_err("none is left");
        assert!(refused.wait.unwrap() > Duration::from_secs(3_000), "{engine:?}: {refused:?}");
    }
}

/// A store so far away that what it grants is over when it arrives would grant for ever in vain.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_far_away_lets_requests_go_too() {
    let relay = super::far_away::Relay::to(Engine::Redis.shared().port, 70).await;
    let settings = Settings { naming: Naming::Learned, ..settings(LONG) };
    let url = format!("redis://127.0.0.1:{}", relay.port);
    let stage = Stage::at(&url, settings.clone()).await;
    let profile = Profile::builtin("discord").expect("it is shipped");
    let fleet = Fleet::connect(&url, settings).await.unwrap();
    let ledger = fleet.ledger(Prefix::named(&stage.name), profile.clone()).await.unwrap();
    for _ in 0..3 {
        let claim = Claim::new(profile.route("GET", "/users/@me"));
        let permit = tokio::time::timeout(PATIENCE, ledger.claim(claim)).await;
        permit.expect("a limit of fifty a second lets three go").unwrap().complete(&fine());
    }
}
