//! Keeps to the limits of an API: requests wait until the API's answers say that they may go.
//!
//! Needs the internet. A request that would have to wait longer than 30 s fails instead.

#![allow(clippy::print_stdout, reason = "an example talks to a person")]

use std::sync::Arc;
use std::time::Duration;

use reqwest_middleware::ClientBuilder;
use tollway::upstream::budget::{LocalLedger, Settings};
use tollway::upstream::client::{ClientSettings, reqwest::BudgetMiddleware};
use tollway::upstream::profile::Profile;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let profile = Profile::builtin("github").ok_or("no such profile")?;
    // One ledger per credential: it learns from every answer what is left.
    let ledger = Arc::new(LocalLedger::new(Arc::clone(&profile), Settings::default()));
    let conduct = ClientSettings::new(ledger, profile).patience(Duration::from_secs(30));
    let client =
        ClientBuilder::new(reqwest::Client::new()).with(BudgetMiddleware::new(conduct)).build();

    let url = std::env::args().nth(1).unwrap_or_else(|| "https://api.github.com/zen".to_owned());
    let response = client.get(url).header("user-agent", "tollway-example").send().await?;
    println!("{}: {}", response.status(), response.text().await?);
    Ok(())
}
