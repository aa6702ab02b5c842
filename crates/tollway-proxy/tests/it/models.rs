//! Budgets of models: what clients get through a proxy, whatever they state and whenever they
//! leave.
//!
//! The clock of the budgets stands still unless a test moves it, so every unit is accounted for.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};
use tollway_core::{Clock, StoreLimiter, VirtualClock};
use tollway_memory::{Capacity, MemoryStore};
use tollway_proxy::{ModelBudgets, ModelRules, Parts, Proxy, Settings, Upstream};
use tollway_sim::fake_api::loopback::Loopback;
use tollway_sim::fake_api::{Fault, Spec, UsageTold};
use tollway_upstream::profile::Profile;

use crate::rig::{admin_of, listening, local, local_ledgers, metric, until_metric};

/// A provider without limits of its own, a proxy with budgets, and a client.
struct Models {
    fake: Loopback,
    clock: Arc<VirtualClock>,
    limiter: StoreLimiter,
    url: String,
    admin: SocketAddr,
    client: reqwest::Client,
    _proxy: Proxy,
}

impl Models {
    async fn start(api: &str, budgets: &str) -> Self {
        let mut spec = Spec::named(api).unwrap();
        let model = spec.model.as_mut().unwrap();
        model.limits.clear();
        model.every = Duration::ZERO;
        let fake = Loopback::start(spec, local()).await.unwrap();
        let rules = ModelRules::parse(budgets).unwrap();
        let clock = Arc::new(VirtualClock::default());
        let store = Arc::new(MemoryStore::new(Capacity::keys(1_000)));
        let shared: Arc<dyn Clock> = Arc::clone(&clock) as _;
        let limiter = StoreLimiter::new(rules.policies(), store, shared);
        let profile = Profile::builtin("generic").unwrap();
        let (mut proxy, address) = listening(Parts {
            upstream: Upstream::parse(&format!("http://{}", fake.address())).unwrap(),
            ledgers: local_ledgers(Arc::clone(&profile)),
            profile,
            guard: None,
            models: Some(ModelBudgets::new(rules, limiter.clone())),
            roots_pem: None,
            settings: Settings::default(),
        })
        .await;
        let admin = admin_of(&mut proxy).await;
        let url = format!("http://{address}");
        let client = reqwest::Client::new();
        Self { fake, clock, limiter, url, admin, client, _proxy: proxy }
    }

    async fn post(&self, path: &str, body: &Value) -> reqwest::Response {
        let request = self.client.post(format!("{}{path}", self.url));
        request.header("x-team", "a").body(body.to_string()).send().await.unwrap()
    }

    async fn chat(&self, text: &str, more: Value) -> reqwest::Response {
        let mut body = json!({"model": "m", "messages": [{"role": "user", "content": text}]});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.post("/v1/chat/completions", &body).await
    }

    /// Tokens of a streamed chat that arrived, and how it ended, if it came to an end before
    /// `leave_after` tokens had arrived.
    async fn stream(&self, text: &str, leave_after: usize) -> (usize, Option<String>) {
        let mut response = self.chat(text, json!({"stream": true})).await;
        if response.status() != 200 {
            return (0, None);
        }
        let mut read = String::new();
        let tokens = |read: &str| read.matches("\"delta\":{\"content\":\"").count() - 1;
        while let Some(chunk) = response.chunk().await.unwrap() {
            read.push_str(std::str::from_utf8(&chunk).unwrap());
            if read.contains("\"role\":") && tokens(&read) >= leave_after {
                return (tokens(&read), None);
            }
        }
        assert!(read.ends_with("data: [DONE]\n\n"), "{read}");
        let reason = read.split("\"finish_reason\":\"").nth(1).unwrap();
        (tokens(&read), Some(reason.split('"').next().unwrap().to_owned()))
    }

    /// What is left of the first budget of the team.
    async fn left(&self, policy: &str) -> u64 {
        let charge = self.limiter.charge(policy, "1:a").unwrap();
        let verdict = self.limiter.peek(&[charge]).await.unwrap();
        verdict.decisions()[0].snapshot().remaining()
    }

    async fn outcome(&self, word: &str) -> f64 {
        metric(self.admin, &format!("tollway_proxy_model_calls_total{{outcome=\"{word}\"}}")).await
    }
}

/// One budget of the team, with this limit on what `counts` says.
fn budget(counts: &str, limit: &str) -> String {
    format!(
        "unknown-output = 500\n[[budgets]]\nname = 'team'\nowner = 'header:x-team'\n\
         counts = '{counts}'\nlimit = '{limit}'\n"
    )
}

#[tokio::test]
async fn concurrent_streams_never_deliver_more_than_the_budget_and_use_nearly_all_of_it() {
    let models = Models::start("openai", &budget("output", "20000/1d")).await;
    let streams = (0..200).map(|number| {
        // Three of ten leave in the middle.
        let leave_after = if number % 10 < 3 { 40 + number } else { usize::MAX };
        models.stream("Write 300 tokens", leave_after)
    });
    let ended = join_all(streams).await;
    let delivered: usize = ended.iter().map(|(tokens, _)| tokens).sum();
    assert!(delivered <= 20_000, "{delivered} tokens were delivered");
    let cut = ended.iter().filter(|(_, end)| end.as_deref() == Some("length")).count();
    assert!(cut > 20, "{cut} streams were ended");
    // Whoever left has paid what was under way to him, and nothing more.
    let word = "tollway_proxy_model_calls_total{outcome=\"abandoned\"}";
    let left = ended.iter().filter(|(tokens, end)| *tokens > 0 && end.is_none()).count();
    until_metric(models.admin, word, left as f64).await;
    let (unused, paid) = (models.left("team").await, 20_000);
    assert!(unused <= paid / 20, "{unused} of {paid} tokens were left over");
}

#[tokio::test]
async fn what_a_call_does_not_use_comes_back_and_what_it_uses_is_paid() {
    for (api, path) in [("openai", "/v1/chat/completions"), ("anthropic", "/v1/messages")] {
        let models = Models::start(api, &budget("total", "10000/1d")).await;
        let mut paid = 0;
        for (is_stream, used) in [(false, 30), (true, 30), (false, 700), (true, 700)] {
            let text = format!("Write {used} tokens, 2 cached.");
            let body = json!({"model": "m", "max_tokens": 900, "stream": is_stream,
                "stream_options": {"include_usage": true},
                "messages": [{"role": "user", "content": text}]});
            let answer = models.post(path, &body).await;
            assert_eq!(answer.status(), 200);
            answer.bytes().await.unwrap();
            paid += used + text.len().div_ceil(4) as u64;
            until_left(&models, 10_000 - paid).await;
        }
    }
}

/// Waits until so much is left: an answer is settled when its end has gone by.
async fn until_left(models: &Models, wanted: u64) {
    let deadline = std::time::Instant::now() + crate::rig::PATIENCE;
    loop {
        let left = models.left("team").await;
        if left == wanted {
            return;
        }
        assert!(std::time::Instant::now() < deadline, "{left} left and never {wanted}");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_cap_that_is_far_above_what_is_used_denies_nobody() {
    let models = Models::start("openai", &budget("output", "1000/1d")).await;
    let mut served = 0;
    loop {
        let answer = models.chat("Write 30 tokens", json!({"max_tokens": 400})).await;
        if answer.status() != 200 {
            break;
        }
        answer.bytes().await.unwrap();
        served += 30;
        until_left(&models, 1_000 - served).await;
    }
    assert!((950..=1_000).contains(&served), "{served} of 1,000");
}

#[tokio::test]
async fn answers_of_unknown_length_do_not_exceed_the_budget_however_many_ask_at_once() {
    let rules = budget("output", "10000/1d").replace("= 500", "= 4096");
    let models = Models::start("openai", &rules).await;
    let ask = async || {
        let answer = models.chat("Write 2000 tokens", json!({})).await;
        let is_served = answer.status() == 200;
        answer.bytes().await.unwrap();
        u64::from(is_served)
    };
    let mut served = 0;
    for _ in 0..10 {
        served += join_all((0..50).map(|_| ask())).await.iter().sum::<u64>();
        // Everything is settled before the next burst.
        until_left(&models, 10_000 - 2_000 * served).await;
    }
    assert_eq!(served, 4, "the fifth is expected to be up to half longer than it is");
}

#[tokio::test]
async fn a_guess_refuses_nobody_for_good() {
    let rules = budget("total", "1000/1d").replace("= 500", "= 4096");
    let models = Models::start("openai", &rules).await;
    assert_eq!(models.chat("30 tokens", json!({})).await.status(), 200);
    assert_eq!(models.chat("30 tokens", json!({"model": "other"})).await.status(), 200);
}

#[tokio::test]
async fn a_refusal_is_in_the_words_of_the_api_and_its_wait_is_true() {
    for (api, path) in [("openai", "/v1/chat/completions"), ("anthropic", "/v1/messages")] {
        let models = Models::start(api, &budget("output", "600/1m")).await;
        let body = json!({"model": "m", "max_tokens": 500,
            "messages": [{"role": "user", "content": "500 tokens"}]});
        let answer = models.post(path, &body).await;
        answer.bytes().await.unwrap();
        until_left(&models, 100).await;
        let denied = models.post(path, &body).await;
        assert_eq!(denied.status(), 429);
        assert_eq!(denied.headers()["x-tollway-budget"], "team");
        let millis: u64 = denied.headers()["retry-after-ms"].to_str().unwrap().parse().unwrap();
        assert_eq!(millis, 40_000, "400 tokens at ten a second");
        let told: Value = serde_json::from_slice(&denied.bytes().await.unwrap()).unwrap();
        let kind = if api == "openai" { "tokens" } else { "rate_limit_error" };
        assert_eq!(told["error"]["type"], kind);
        models.clock.advance(Duration::from_millis(millis - 1));
        assert_eq!(models.post(path, &body).await.status(), 429);
        models.clock.advance(Duration::from_millis(1));
        assert_eq!(models.post(path, &body).await.status(), 200);
        // What can never be served is told so.
        let mut never = body.clone();
        never["max_tokens"] = json!(700);
        never["model"] = json!("other");
        let denied = models.post(path, &never).await;
        assert_eq!(denied.headers()["x-should-retry"], "false");
        assert!(!denied.headers().contains_key("retry-after"));
    }
}

#[tokio::test]
async fn what_the_provider_refuses_costs_no_tokens() {
    let models = Models::start("openai", &budget("total", "1000/1d")).await;
    models.fake.inject(Fault::Status { count: 1, status: 500 });
    assert_eq!(models.chat("9 tokens", json!({})).await.status(), 500);
    until_left(&models, 1_000).await;
    assert_eq!(models.outcome("failed").await, 1.0);
}

#[tokio::test]
async fn usage_that_is_told_twice_counts_once_and_without_it_tokens_are_counted() {
    let models = Models::start("openai", &budget("output", "1000/1d")).await;
    let told = json!({"stream": true, "stream_options": {"include_usage": true}});
    models.fake.inject(Fault::Usage { count: 1, told: UsageTold::Twice });
    models.chat("100 tokens", told.clone()).await.bytes().await.unwrap();
    until_left(&models, 900).await;
    models.fake.inject(Fault::Usage { count: 1, told: UsageTold::Never });
    models.chat("100 tokens", told).await.bytes().await.unwrap();
    // A word of five characters is counted as two.
    let deadline = std::time::Instant::now() + crate::rig::PATIENCE;
    while models.outcome("served").await < 2.0 {
        assert!(std::time::Instant::now() < deadline);
        tokio::task::yield_now().await;
    }
    let left = models.left("team").await;
    assert!((700..=800).contains(&left), "{left}");
}

#[tokio::test]
async fn a_budget_may_go_into_debt_instead_of_ending_a_stream() {
    let rules = format!("{}when-spent = 'debt'\n", budget("output", "100/1d"));
    let models = Models::start("openai", &rules).await;
    assert_eq!(models.stream("300 tokens", usize::MAX).await, (300, Some("stop".to_owned())));
    until_left(&models, 0).await;
    assert_eq!(models.chat("1 token", json!({})).await.status(), 429);
    models.clock.advance(Duration::from_secs(86_400));
    assert_eq!(models.chat("1 token", json!({})).await.status(), 429, "the debt is paid first");
}

#[tokio::test]
async fn bodies_that_are_no_calls_and_calls_that_nobody_pays_are_refused() {
    let rules = format!("body-max = 5000\n{}", budget("total", "1000/1d"));
    let models = Models::start("openai", &rules).await;
    let chat = format!("{}/v1/chat/completions", models.url);
    let send = async |body: String| {
        let request = models.client.post(&chat).header("x-team", "a").body(body);
        request.send().await.unwrap().status().as_u16()
    };
    let deep = format!("{{\"model\":\"m\",\"messages\":{}", "[".repeat(4_000));
    for (body, status) in [
        ("{".to_owned(), 400),
        (deep, 400),
        (r#"{"messages":[]}"#.to_owned(), 400),
        (r#"{"model":"m","max_tokens":9223372036854775807}"#.to_owned(), 429),
        (format!(r#"{{"model":"m","messages":"{}"}}"#, "x".repeat(6_000)), 413),
    ] {
        assert_eq!(send(body.clone()).await, status, "{}", &body[..body.len().min(60)]);
    }
    let body = r#"{"model":"m","messages":"1 token"}"#;
    let nobody = models.client.post(&chat).body(body).send().await.unwrap();
    assert_eq!(nobody.status(), 403);
    // What is no call of a model is not looked at.
    let other = models.client.post(format!("{}/v1/files", models.url)).body("{").send().await;
    assert_eq!(other.unwrap().status(), 200);
    assert_eq!(models.left("team").await, 1_000);
}

#[tokio::test]
async fn several_budgets_are_all_or_nothing_and_the_page_says_who_spent_what() {
    let rules = format!(
        "[prices]\n'*' = {{ input = '1', output = '2' }}\n{}\n[[budgets]]\nname = 'money'\n\
         owner = ['header:x-team', 'model']\ncounts = 'money'\nlimit = '0.000500/1d'\n",
        budget("output", "10000/1d").replace("unknown-output = 500\n", "")
    );
    let rules = format!("unknown-output = 100\n{rules}");
    let models = Models::start("openai", &rules).await;
    models.chat("100 tokens", json!({})).await.bytes().await.unwrap();
    until_left(&models, 9_900).await;
    models.chat("100 tokens", json!({})).await.bytes().await.unwrap();
    until_left(&models, 9_800).await;
    let denied = models.chat("100 tokens", json!({})).await;
    assert_eq!(denied.headers()["x-tollway-budget"], "money");
    assert_eq!(models.left("team").await, 9_800);
    let seen = reqwest::get(format!("http://{}/admin/models", models.admin)).await.unwrap();
    let seen: Value = serde_json::from_slice(&seen.bytes().await.unwrap()).unwrap();
    let row = &seen["spenders"][0];
    assert_eq!(
        (&row["calls"], &row["output"], &row["money_millionths"]),
        (&2.into(), &200.into(), &406.into())
    );
}
