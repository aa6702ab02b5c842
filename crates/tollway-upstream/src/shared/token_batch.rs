//! Tokens of limits that no answer tells of, taken from the store in batches and spent in this
//! process: of the limit over all routes, and of those that the profile states for a bucket.
//!
//! One call serves everybody who waits at that time. A batch is spent within a short time or lost;
//! `scripts/tokens.lua` draws why no period of any phase then holds more than the limit. While the
//! store is gone, this process keeps to its part of the limit, evenly spaced.
//!
//! Limits of the credential that the profile states because no answer tells them (GitHub's points)
//! are kept in the same way.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex as SyncMutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::Value;
use tokio::sync::Mutex;
use tokio::time::Instant;
use tollway_redis::connection::Failure;

use super::ledger_state::LedgerState;
use super::{GlobalRate, Prefix, script};
use crate::budget::{Claim, Correction};
use crate::profile::{Profile, Reach, Route};

/// The tokens in hand.
#[derive(Debug)]
pub(super) struct TokenBatch {
    /// Where the store keeps what is taken of it.
    key: String,
    rate: GlobalRate,
    /// The dimension that is counted, if it is not requests.
    dimension: Option<usize>,
    /// Held while a batch is asked for; its line is first come, first served.
    asking: Mutex<()>,
    hand: SyncMutex<Hand>,
    /// Tokens that those who wait need together.
    wanted: AtomicU64,
}

#[derive(Debug, Default)]
struct Hand {
    tokens: u32,
    until: Option<Instant>,
    /// How long the next batch has to be good at least, by what the last call took.
    spend: Duration,
    /// When the next request may go while the store is gone.
    alone_at: Option<Instant>,
}

impl TokenBatch {
    /// Those of the credential: of what it may send at all, and of every limit that the profile
    /// states because no answer tells it (GitHub's points).
    pub(super) fn of_credential(
        global: Option<GlobalRate>,
        profile: &Profile,
        prefix: &Prefix,
    ) -> Vec<Self> {
        let global = global.map(|rate| Self::new(prefix.key("tollway:tokens"), rate, None));
        let stated = stated(profile, Reach::Credential).map(|(index, rate)| {
            Self::new(prefix.key(&format!("tollway:tokens:{index}")), rate, Some(index))
        });
        // That of all requests comes last, for it is the one that others wait for most.
        stated.chain(global).collect()
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
            .map(|quota| Self::new(key(""), GlobalRate::stated(quota, Duration::ZERO), None));
        let of_every = stated(profile, Reach::Bucket)
            .map(|(index, rate)| Self::new(key(&format!(":{index}")), rate, Some(index)));
        of_route.into_iter().chain(of_every).collect()
    }

    fn new(key: String, rate: GlobalRate, dimension: Option<usize>) -> Self {
        Self {
            key,
            rate,
            dimension,
            asking: Mutex::new(()),
            hand: SyncMutex::default(),
            wanted: AtomicU64::new(0),
        }
    }

    /// What a claim takes of it.
    fn units(&self, claim: &Claim) -> u32 {
        let units = self.dimension.map_or(1, |index| claim.costs.get(index).copied().unwrap_or(1));
        units.min(self.rate.limit)
    }

    /// Waits for that many tokens, for which one call may ask for all who wait.
    async fn take(
        &self,
        units: u32,
        ledger: &LedgerState,
        deadline: Option<Instant>,
    ) -> Result<(), Duration> {
        if self.spend(units) {
            return Ok(());
        }
        self.wanted.fetch_add(u64::from(units), Ordering::AcqRel);
        let _count = Wanted(&self.wanted, units);
        let _turn = self.asking.lock().await;
        loop {
            if self.spend(units) {
                return Ok(());
            }
            let wait = match self.fetch(ledger, units).await {
                Ok(Some(wait)) => wait,
                Ok(None) => continue,
                Err(_) => alone(&[(self, units)], ledger),
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

    /// A request took something else than what its tokens were taken for. What was too little is
    /// taken now, what was too much is given back. If the store is away, the estimate stands.
    pub(super) fn correct(&self, ledger: &Arc<LedgerState>, correction: &Correction) {
        let Some((estimated, used)) = self.dimension.and_then(|it| correction.units(it)) else {
            return;
        };
        let limit = u64::from(self.rate.limit);
        let (taken, used) = (estimated.min(limit), used.min(limit));
        if taken == used {
            return;
        }
        let args = [
            (i128::from(used) - i128::from(taken)).to_string(),
            self.rate.period.as_millis().to_string(),
            self.rate.spend.as_millis().to_string(),
            format!("{}-{}", ledger.process, ledger.new_number()),
            correction.left_ago.as_millis().to_string(),
        ];
        let (key, client) = (self.key.clone(), Arc::clone(&ledger.client));
        ledger.runtime.spawn(async move {
            let _ = client.run(script::correct(), &[key], &args).await;
        });
    }

    fn hand(&self) -> MutexGuard<'_, Hand> {
        self.hand.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes tokens in hand.
    fn spend(&self, units: u32) -> bool {
        let mut hand = self.hand();
        let is_good = hand.until.is_some_and(|until| Instant::now() < until);
        let left = hand.tokens.checked_sub(units).filter(|_| is_good);
        hand.tokens = left.unwrap_or(hand.tokens);
        left.is_some()
    }

    /// Takes a batch for those who wait, with `units` at least; answers how long there is none.
    async fn fetch(&self, ledger: &LedgerState, units: u32) -> Result<Option<Duration>, Failure> {
        let wanted = self.wanted.load(Ordering::Acquire);
        let wanted = wanted.clamp(u64::from(units), u64::from(self.rate.limit.max(units)));
        let spend = self.hand().spend.max(self.rate.spend);
        // Counted from before the call: the store's clock for the batch starts later.
        let until = Instant::now() + spend;
        let asked = ask(&[(self, units)], wanted, spend, ledger).await?;
        let tokens = u32::try_from(asked.granted).unwrap_or(0);
        *self.hand() =
            Hand { tokens, until: Some(until), alone_at: None, spend: asked.next_spend(ledger) };
        Ok((tokens == 0).then_some(asked.wait))
    }

    /// The time between two units of this process's part.
    fn gap(&self, units: u32, ledger: &LedgerState) -> Duration {
        let processes = ledger.peers.count();
        let whole = self.rate.period.saturating_mul(processes).saturating_mul(units);
        whole / self.rate.limit.max(1)
    }
}

/// Waits for what a claim needs of all of them, and takes it at once: what was taken before the
/// request leaves is free again before the upstream forgets it. Answers the wait that would be
/// needed if that is past the deadline.
pub(super) async fn take(
    batches: &[&TokenBatch],
    ledger: &LedgerState,
    claim: &Claim,
    deadline: Option<Instant>,
) -> Result<(), Duration> {
    let needs = batches.iter().map(|of| (*of, of.units(claim)));
    let needs: Vec<Need<'_>> = needs.filter(|(_, units)| *units > 0).collect();
    match needs[..] {
        [] => Ok(()),
        [(one, units)] => one.take(units, ledger, deadline).await,
        [(first, _), ..] => {
            // Those who need the same stand in one line; the others need not wait for them.
            let _turn = first.asking.lock().await;
            take_together(&needs, first, ledger, deadline).await
        }
    }
}

/// A limit, and how many of its tokens a request takes.
type Need<'a> = (&'a TokenBatch, u32);

async fn take_together(
    needs: &[Need<'_>],
    first: &TokenBatch,
    ledger: &LedgerState,
    deadline: Option<Instant>,
) -> Result<(), Duration> {
    loop {
        let spend = first.hand().spend.max(first.rate.spend);
        let until = Instant::now() + spend;
        let wait = match ask(needs, 1, spend, ledger).await {
            Ok(asked) => {
                first.hand().spend = asked.next_spend(ledger);
                match asked.granted {
                    1.. if Instant::now() < until => return Ok(()),
                    1.. => continue,
                    _ => asked.wait,
                }
            }
            Err(_) => alone(needs, ledger),
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

/// What the store said about tokens.
struct Asked {
    granted: i64,
    wait: Duration,
    took: Duration,
}

impl Asked {
    /// How long the next batch has to be good: from a store so far away that a batch is over when
    /// it arrives, tokens would be taken for ever in vain.
    fn next_spend(&self, ledger: &LedgerState) -> Duration {
        self.took.saturating_mul(2).min(ledger.settings.timeout.saturating_mul(2))
    }
}

/// Asks for all of them, or `wanted` if there is but one.
async fn ask(
    needs: &[Need<'_>],
    wanted: u64,
    spend: Duration,
    ledger: &LedgerState,
) -> Result<Asked, Failure> {
    let name = format!("{}-{}", ledger.process, ledger.new_number());
    let mut args = vec![spend.as_millis().to_string(), name, wanted.to_string()];
    for (of, units) in needs {
        args.extend([of.rate.limit.to_string(), of.rate.period.as_millis().to_string()]);
        args.push(units.to_string());
    }
    let keys: Vec<String> = needs.iter().map(|(of, _)| of.key.clone()).collect();
    let sent = Instant::now();
    let value = ledger.client.run(script::tokens(), &keys, &args).await?;
    let strange = || Failure::rejected(format!("tokens were answered {value:?}"));
    let Value::Array(parts) = &value else { return Err(strange()) };
    let [Value::Int(granted), Value::Int(wait_ms)] = parts[..] else { return Err(strange()) };
    let wait = Duration::from_millis(u64::try_from(wait_ms).unwrap_or(1).max(1));
    Ok(Asked { granted, wait, took: sent.elapsed() })
}

/// The wait for this process's part of each limit, without the store; zero if the request may go.
fn alone(needs: &[Need<'_>], ledger: &LedgerState) -> Duration {
    let now = Instant::now();
    let at = needs.iter().filter_map(|(of, _)| of.hand().alone_at).max();
    if let Some(at) = at.filter(|at| *at > now) {
        return at - now;
    }
    for (of, units) in needs {
        of.hand().alone_at = Some(now + of.gap(*units, ledger));
    }
    Duration::ZERO
}

/// The limits of that reach that are stated and never told.
fn stated(profile: &Profile, reach: Reach) -> impl Iterator<Item = (usize, GlobalRate)> {
    profile.dimensions().iter().enumerate().filter_map(move |(index, of)| {
        let quota = of.stated.filter(|_| of.is_modelled() && of.reach == reach)?;
        Some((index, GlobalRate::stated(quota, of.slack)))
    })
}

struct Wanted<'a>(&'a AtomicU64, u32);

impl Drop for Wanted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(u64::from(self.1), Ordering::AcqRel);
    }
}
