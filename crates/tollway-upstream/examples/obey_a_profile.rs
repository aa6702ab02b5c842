//! A reqwest client that obeys Discord's limits, in front of a fake Discord on a loopback port.
//!
//! Twenty messages into a bucket of five per window: the client waits, the upstream never says 429.

#![allow(clippy::print_stdout, reason = "an example talks to a person")]

use std::sync::Arc;

use futures_util::future::try_join_all;
use reqwest_middleware::ClientBuilder;
use tollway_sim::fake_api::{Spec, loopback::Loopback};
use tollway_upstream::budget::{LocalLedger, Settings};
use tollway_upstream::client::{ClientSettings, reqwest::BudgetMiddleware};
use tollway_upstream::profile::Profile;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let discord = Spec::named("discord").ok_or("the simulator knows Discord")?;
    let fake = Loopback::start(discord, ([127, 0, 0, 1], 0).into()).await?;

    let profile = Profile::builtin("discord").ok_or("a profile is shipped")?;
    let ledger = Arc::new(LocalLedger::new(profile.clone(), Settings::default()));
    let middleware = BudgetMiddleware::new(ClientSettings::new(ledger, profile));
    let client = ClientBuilder::new(reqwest::Client::new()).with(middleware).build();

    let url = format!("http://{}/api/v10/channels/42/messages", fake.address());
    let start = std::time::Instant::now();
    try_join_all((0..20).map(|_| client.post(&url).body("{}").send())).await?;

    let counters = fake.counters();
    let (sent, refused) = (counters.requests, counters.limited_all());
    println!("{sent} requests in {:.1?}, {refused} refused", start.elapsed());
    Ok(())
}
