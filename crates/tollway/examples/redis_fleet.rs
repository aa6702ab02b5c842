//! Shares a limit between processes through Redis or Valkey.
//!
//! Start it several times, with the server's URL as its argument: all copies together are admitted
//! five times a minute.

#![allow(clippy::print_stdout, reason = "an example talks to a person")]

use std::sync::Arc;

use tollway::redis::{RedisStore, Settings};
use tollway::{Policy, StoreLimiter, SystemClock};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "redis://127.0.0.1".to_owned());
    let store = Arc::new(RedisStore::connect(&url, Settings::default()).await?);
    let policy = Policy::parse("login", "5/1m")?;
    let limiter = StoreLimiter::new([policy], store, Arc::new(SystemClock::new()));

    let verdict = limiter.check(&[limiter.charge("login", "alice")?]).await?;
    let snapshot = verdict.decisions()[0].snapshot();
    println!("allowed: {}, {} left", verdict.is_allowed(), snapshot.remaining());
    Ok(())
}
