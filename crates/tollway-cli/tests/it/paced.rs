use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;

use crate::proxy::Running;

/// Longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Heroku's API with a shorter hour and a smaller bucket.
const SPEC: &str = r#"
fields = [["RateLimit-Remaining", "remaining"]]
[buckets]
account = { limit = 150, per = "2s", window = "sliding" }
[[routes]]
path = "/*"
bucket = "account"
"#;
const PROFILE: &str = r#"
name = "heroku-fast"
[route]
by = "none"
[[dimensions]]
name = "requests"
window = "sliding"
remaining = "ratelimit-remaining"
stated = "150/2s"
common = true
[retry]
unsaid = "1s"
"#;

#[tokio::test]
async fn three_proxies_share_a_token_without_knowing_of_each_other() {
    let folder = std::env::temp_dir().join(format!("tollway-paced-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (spec, profile) = (write("spec.toml", SPEC), write("profile.toml", PROFILE));
    let fake = Running::fake(&["--spec", &spec]);
    let start = |_| {
        let fixed = ["proxy", "--listen", "127.0.0.1:0", "--pace", "--profile", &*profile];
        Running::start(&[&fixed[..], &["--upstream", &fake.url]].concat(), None)
    };
    let proxies: Vec<Running> = (0..3).map(start).collect();
    let shares = keep_busy(&proxies, 900).await;
    let counters = fake.counters().await;
    let _ = std::fs::remove_dir_all(&folder);
    let limited = counters["limited_bucket"].as_u64().unwrap();
    assert!(limited == 0, "{limited} refused, {shares:?}");
    let (sum, squares) =
        shares.iter().fold((0, 0), |(sum, squares), it| (sum + it, squares + it * it));
    assert!((sum * sum) as f64 / (3 * squares) as f64 >= 0.99, "{shares:?}");
}

/// Four busy clients behind each proxy until `total` requests were served: how many by which.
async fn keep_busy(proxies: &[Running], total: u64) -> Vec<u64> {
    let served: Arc<Vec<AtomicU64>> = Arc::new(proxies.iter().map(|_| AtomicU64::new(0)).collect());
    let client = reqwest::Client::new();
    let mut clients = JoinSet::new();
    for number in 0..4 * proxies.len() {
        let index = number % proxies.len();
        let (client, served) = (client.clone(), Arc::clone(&served));
        let url = format!("{}/apps", proxies[index].url);
        clients.spawn(async move {
            while sums(&served).iter().sum::<u64>() < total {
                let request = client.get(&url).header("authorization", "Bearer one");
                let answer = request.timeout(PATIENCE).send().await.unwrap();
                served[index].fetch_add(u64::from(answer.status() == 200), Ordering::Relaxed);
            }
        });
    }
    tokio::time::timeout(PATIENCE, clients.join_all()).await.expect("in time");
    sums(&served)
}

fn sums(served: &[AtomicU64]) -> Vec<u64> {
    served.iter().map(|served| served.load(Ordering::Relaxed)).collect()
}

#[test]
fn what_cannot_be_paced_is_an_error_that_says_what_can() {
    let slack = ["proxy", "--pace", "--profile", "slack", "--upstream", "http://127.0.0.1:1"];
    let said = crate::tool::fail(&slack);
    assert!(said.contains("the profile slack has no common dimension"), "{said}");
    assert!(said.contains("heroku, twitch"), "{said}");
    let both = ["proxy", "--pace", "--profile", "heroku", "--store", "redis://127.0.0.1:1"];
    let said = crate::tool::fail(&both);
    assert!(said.contains("--pace") && said.contains("--store"), "{said}");
}
