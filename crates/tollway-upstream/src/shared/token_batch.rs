//! Tokens of limits that no answer tells of, taken from the store in batches and spent in this
//! process: of the limit over all routes, and of those that the profile states for a bucket.
//!
//! One call serves everybody who waits at that time. A batch is spent within a short time or lost;
//! `scripts/tokens.lua` draws why no period of any phase then holds more than the limit. While the
//! store is gone, this process keeps to its part of the limit, evenly spaced.
//!
//! Where there is none, a limit of the credential that the profile states because no answer tells
//! it (GitHub's points) is kept in the same way.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex as SyncMutex, PoisonError};
use std::time::Duration;

use redis::Value;
use tokio::sync::Mutex;
use tokio::time::Instant;
use tollway_redis::connection::Failure;

use super::ledger_state::LedgerState;
use super::{GlobalRate, Prefix, script};
use crate::budget::Claim;
use crate::profile::{Profile, Reach, Route};

/// The tokens in hand.
#[derive(Debug)]
pub(super) struct TokenBatch {
    /// Where the store keeps what is taken of it.
    key: String,
    rate: Option<GlobalRate>,
    /// The dimension that is counted, if it is not requests.
    dimension: Option<usize>,
    /// Held while a batch is asked for; its line is first come, first served.
    asking: Mutex<()>,
    hand: SyncMutex<Hand>,
    waiting: AtomicU32,
}

#[derive(Debug, Default)]
struct Hand {
    tokens: u32,
    until: Option<Instant>,
    /// When the next request may go while the store is gone.
    alone_at: Option<Instant>,
}

impl TokenBatch {
    /// That of the credential.
    pub(super) fn of_credential(
        global: Option<GlobalRate>,
        profile: &Profile,
        prefix: &Prefix,
    ) -> Self {
        let stated = stated(profile, Reach::Credential).next();
        let dimension = stated.filter(|_| global.is_none()).map(|(index, _)| index);
        let rate = global.or(stated.map(|(_, rate)| rate));
        Self::new(prefix.key("tollway:tokens"), rate, dimension)
    }

    /// Those of a bucket: a limit of its route (a tier at Slack), and of every route (Stripe's).
    pub(super) fn of_bucket(
        bucket: &str,
        route: &Route,
        profile: &Profile,
        prefix: &Prefix,
    ) -> Vec<Self> {
        let key = |which: &str| prefix.key(&format!("{bucket}:tollway:tokens{which}"));
        let of_route = route
            .stated()
            .map(|quota| Self::new(key(""), Some(GlobalRate::stated(quota, Duration::ZERO)), None));
        let of_every = stated(profile, Reach::Bucket)
            .map(|(index, rate)| Self::new(key(&format!(":{index}")), Some(rate), Some(index)));
        of_route.into_iter().chain(of_every).collect()
    }

    fn new(key: String, rate: Option<GlobalRate>, dimension: Option<usize>) -> Self {
        Self {
            key,
            rate,
            dimension,
            asking: Mutex::new(()),
            hand: SyncMutex::default(),
            waiting: AtomicU32::new(0),
        }
    }

    /// Waits for the tokens that a claim needs; answers the wait that would be needed if that is
    /// past the deadline.
    pub(super) async fn take(
        &self,
        ledger: &LedgerState,
        claim: &Claim,
        deadline: Option<Instant>,
    ) -> Result<(), Duration> {
        let Some(rate) = self.rate else { return Ok(()) };
        let units = self.dimension.map_or(1, |index| claim.costs.get(index).copied().unwrap_or(1));
        for _ in 0..units.min(rate.limit) {
            self.take_one(ledger, rate, deadline).await?;
        }
        Ok(())
    }

    async fn take_one(
        &self,
        ledger: &LedgerState,
        rate: GlobalRate,
        deadline: Option<Instant>,
    ) -> Result<(), Duration> {
        if self.spend() {
            return Ok(());
        }
        self.waiting.fetch_add(1, Ordering::AcqRel);
        let _count = Waiting(&self.waiting);
        let _turn = self.asking.lock().await;
        loop {
            if self.spend() {
                return Ok(());
            }
            let wait = match self.fetch(ledger, rate).await {
                Ok(Some(wait)) => wait,
                Ok(None) => continue,
                Err(_) => self.alone(ledger, rate),
            };
            if wait.is_zero() {
                return Ok(());
            }
            if deadline.is_some_and(|deadline| Instant::now() + wait > deadline) {
                return Err(wait);
            }
            tokio::time::sleep(wait).await;
        }
    }

    fn spend(&self) -> bool {
        let mut hand = self.hand.lock().unwrap_or_else(PoisonError::into_inner);
        let is_good = hand.until.is_some_and(|until| Instant::now() < until) && hand.tokens > 0;
        if is_good {
            hand.tokens -= 1;
        }
        is_good
    }

    /// Takes a batch for those who wait; answers how long there is none.
    async fn fetch(
        &self,
        ledger: &LedgerState,
        rate: GlobalRate,
    ) -> Result<Option<Duration>, Failure> {
        let wanted = self.waiting.load(Ordering::Acquire).clamp(1, rate.limit.max(1));
        let args = [
            rate.limit.to_string(),
            rate.period.as_millis().to_string(),
            rate.spend.as_millis().to_string(),
            wanted.to_string(),
            format!("{}-{}", ledger.process, ledger.new_number()),
        ];
        // Counted from before the call: the store's clock for the batch starts later.
        let until = Instant::now() + rate.spend;
        let keys = std::slice::from_ref(&self.key);
        let value = ledger.client.run(script::tokens(), keys, &args).await?;
        let strange = || Failure::rejected(format!("tokens were answered {value:?}"));
        let Value::Array(parts) = &value else { return Err(strange()) };
        let [Value::Int(tokens), Value::Int(wait_ms)] = parts[..] else { return Err(strange()) };
        let tokens = u32::try_from(tokens).unwrap_or(0);
        let mut hand = self.hand.lock().unwrap_or_else(PoisonError::into_inner);
        *hand = Hand { tokens, until: Some(until), alone_at: None };
        let wait = Duration::from_millis(u64::try_from(wait_ms).unwrap_or(1));
        Ok((tokens == 0).then_some(wait.max(Duration::from_millis(1))))
    }

    /// The wait for this process's part of the limit; zero if the request may go.
    fn alone(&self, ledger: &LedgerState, rate: GlobalRate) -> Duration {
        let processes = ledger.processes.load(Ordering::Relaxed).max(1);
        let gap = rate.period * processes / rate.limit.max(1);
        let now = Instant::now();
        let mut hand = self.hand.lock().unwrap_or_else(PoisonError::into_inner);
        let at = hand.alone_at.unwrap_or(now);
        if at > now {
            return at - now;
        }
        hand.alone_at = Some(now + gap);
        Duration::ZERO
    }
}

/// The limits of that reach that are stated and never told.
fn stated(profile: &Profile, reach: Reach) -> impl Iterator<Item = (usize, GlobalRate)> {
    profile.dimensions().iter().enumerate().filter_map(move |(index, of)| {
        let quota = of.stated.filter(|_| of.is_modelled() && of.reach == reach)?;
        Some((index, GlobalRate::stated(quota, of.slack)))
    })
}

struct Waiting<'a>(&'a AtomicU32);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
