//! Made-up traffic for the page: tenants that keep to their limit, one that does not, and mail.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{MissedTickBehavior, interval};

const EVERY: Duration = Duration::from_millis(100);
const TENANTS: u64 = 9;
const GROUPS: u64 = 40;

/// What became of the one who asks for too much, since somebody last looked.
#[derive(Debug, Default)]
pub(super) struct Seen {
    allowed: AtomicU64,
    denied: AtomicU64,
}

impl Seen {
    pub(super) fn take(&self) -> (u64, u64) {
        (self.allowed.swap(0, Ordering::Relaxed), self.denied.swap(0, Ordering::Relaxed))
    }
}

/// Sends for as long as it is polled. A request that fails is not repeated: the page shows it.
pub(super) async fn run(url: String, seen: std::sync::Arc<Seen>) {
    let service = Service { client: reqwest::Client::new(), url };
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for step in 0_u64.. {
        ticks.tick().await;
        let (tenants, crawler) = requests(step);
        let _ = service.post("/v1/check-batch", &json!({ "requests": tenants })).await;
        if let Some(answer) = service.post("/v1/check-batch", &json!({ "requests": crawler })).await
        {
            let answers = answer["answers"].as_array().map_or(&[][..], Vec::as_slice);
            let allowed = answers.iter().filter(|one| one["allowed"] == true).count();
            seen.allowed.fetch_add(allowed as u64, Ordering::Relaxed);
            seen.denied.fetch_add((answers.len() - allowed) as u64, Ordering::Relaxed);
        }
        service.mail(step).await;
    }
}

/// What tenants ask for in this step, and what the crawler does.
fn requests(step: u64) -> (Vec<Value>, Vec<Value>) {
    let ask = |policy: &str, key: String| json!({ "policy": policy, "key": key });
    // Waves of half a minute, so that the chart on the page has a shape.
    let wave = 1 + step % 300 / 75 % 2;
    let mut tenants = Vec::new();
    for tenant in 1..=TENANTS {
        let times = wave * (1 + tenant % 2);
        tenants.extend((0..times).map(|_| ask("api", format!("tenant-{tenant}"))));
    }
    tenants.extend((0..3).map(|_| ask("search", "tenant-3".to_owned())));
    if step.is_multiple_of(10) {
        tenants.push(ask("login", format!("203.0.113.{}", step / 10 % 7)));
    }
    let is_rude = step % 150 >= 20 && step % 150 < 110;
    let times = if is_rude { 20 } else { 3 };
    (tenants, (0..times).map(|_| ask("api", "crawler.example".to_owned())).collect())
}

/// As much as may be sent, so that what waits stays the same however long one watches.
fn mails(step: u64) -> Vec<Value> {
    let mail =
        |customer: u64| json!({ "group": format!("customer-{customer:02}"), "payload": "hello" });
    let mut mails = Vec::new();
    if step == 0 {
        mails.extend((0..96).map(|number| mail(number % 8)));
    }
    // Three in 15 s for each group.
    if step % 150 < 3 * GROUPS {
        mails.push(mail(step % GROUPS));
    }
    mails
}

struct Service {
    client: reqwest::Client,
    url: String,
}

impl Service {
    async fn post(&self, path: &str, body: &Value) -> Option<Value> {
        let request = self.client.post(format!("{}{path}", self.url));
        let request = request.header("content-type", "application/json").body(body.to_string());
        let text = request.send().await.ok()?.text().await.ok()?;
        serde_json::from_str(&text).ok()
    }

    /// Mail for customers, and what of it may go is delivered.
    async fn mail(&self, step: u64) {
        let jobs = mails(step);
        if !jobs.is_empty() {
            let _ = self.post("/v1/queues/mail/jobs/batch", &json!({ "jobs": jobs })).await;
        }
        let Some(leased) = self.post("/v1/queues/mail/lease", &json!({ "max": 10 })).await else {
            return;
        };
        let leases: Vec<Value> = leased["leases"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|job| json!({ "token": job["token"] }))
            .collect();
        if !leases.is_empty() {
            let _ = self.post("/v1/queues/mail/ack", &json!({ "leases": leases })).await;
        }
    }
}
