//! What is done in the background for one credential: staying alive, burying the dead, mending.
//!
//! A process with nothing in any document of the credential says seldom that it is alive. With its
//! next request it says so at once, and often again: who dies then is given up soon.

use std::collections::BTreeSet;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use redis::{FromRedisValue as _, Value};
use tokio::time::{Duration, Instant, MissedTickBehavior};

use super::ledger_state::LedgerState;
use super::script;

/// How long a process takes to tell the store what it let go, and how long the others are waited
/// for.
const TELLING: Duration = Duration::from_millis(300);
const WAITING: Duration = Duration::from_secs(1);
/// How often a process whose requests all are done says that it is alive, and how long that is
/// believed: it has nothing in any document that others could wait for, and there may be
/// thousands of credentials.
const QUIET_BEAT: Duration = Duration::from_secs(10);
const QUIET_ALIVE: Duration = Duration::from_secs(30);
/// Keys looked at in one turn: a turn must not keep the server from others.
const SCAN_COUNT: usize = 250;
const SCANS_MAX: usize = 8;

/// Tends a ledger until it is dropped, four times in the time for which it is believed alive.
pub(super) async fn keep_up(ledger: Weak<LedgerState>) {
    let Some(beat) = ledger.upgrade().map(|ledger| ledger.settings.beat()) else { return };
    let mut tick = tokio::time::interval(beat);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let Some(mut changes) = ledger.upgrade().map(|ledger| ledger.client.changes()) else { return };
    let mut cursor = 0;
    let mut returning = Returning::default();
    let mut said_at: Option<Instant> = None;
    loop {
        tokio::select! {
            _ = tick.tick() => {}
            is_there = changes.next() => {
                if !is_there {
                    return;
                }
            }
        }
        let Some(ledger) = ledger.upgrade() else { return };
        ledger.forget_idle();
        let mends = ledger.has_old_clients() && ledger.settings.mends;
        if ledger.client.is_up() && ledger.is_quiet() {
            // It has nothing to tell, after an outage neither.
            returning.come_home_quietly(&ledger);
            if *said_at.get_or_insert_with(some_time_ago) + QUIET_BEAT <= Instant::now() {
                said_at = Some(Instant::now());
                ledger.rests.store(true, Ordering::Release);
                beat_for(&ledger, QUIET_ALIVE).await;
            }
            // Old clients may be stuck while nobody waits here.
            if mends {
                cursor = mend(&ledger, cursor).await;
            }
            continue;
        }
        said_at = None;
        if !ledger.client.is_up() {
            ledger.home.send_replace(false);
            ledger.dismiss_all();
            returning.leave(&ledger);
            continue;
        }
        bury(&ledger).await;
        returning.come_home(&ledger);
        // Messages may have been lost with a connection; nobody waits for longer than until now.
        ledger.wake_all();
        if mends {
            cursor = mend(&ledger, cursor).await;
        }
    }
}

/// The way back to the store after an outage.
#[derive(Default)]
struct Returning {
    /// How many processes there were before.
    before: u32,
    since: Option<Instant>,
}

impl Returning {
    fn leave(&mut self, ledger: &LedgerState) {
        self.since = None;
        self.before = self.before.max(ledger.processes.load(Ordering::Relaxed));
    }

    /// The same for a process that let nothing go: it waits for the others as long as it takes.
    fn come_home_quietly(&mut self, ledger: &LedgerState) {
        if !ledger.is_home() && self.since.get_or_insert_with(Instant::now).elapsed() >= WAITING {
            (self.before, self.since) = (0, None);
            ledger.home.send_replace(true);
        }
    }

    /// Claims go to the store again when all who shared it have told it what they let go, or a
    /// second later: until then each keeps to its part.
    fn come_home(&mut self, ledger: &LedgerState) {
        if ledger.is_home() {
            return;
        }
        let since = *self.since.get_or_insert_with(Instant::now);
        let all_are_back = ledger.processes.load(Ordering::Relaxed) >= self.before;
        let least = if all_are_back { TELLING } else { WAITING };
        if since.elapsed() >= least {
            (self.before, self.since) = (0, None);
            ledger.home.send_replace(true);
        }
    }
}

/// Thousands of credentials do not say together that they are alive.
fn some_time_ago() -> Instant {
    let share = RandomState::new().hash_one(0) % 1_024;
    let ago = QUIET_BEAT.mul_f64(share as f64 / 1_024.0);
    Instant::now().checked_sub(ago).unwrap_or_else(Instant::now)
}

/// Says that this process is alive; answers those that are.
pub(super) async fn beat(ledger: &LedgerState) -> Option<BTreeSet<u64>> {
    beat_for(ledger, Duration::from_millis(ledger.settings.alive_ms())).await
}

async fn beat_for(ledger: &LedgerState, believed: Duration) -> Option<BTreeSet<u64>> {
    let keys = [ledger.prefix.key("tollway:processes")];
    let args = [believed.as_millis().to_string(), ledger.process.to_string()];
    let value = ledger.client.run(script::beat(), &keys, &args).await.ok()?;
    let alive = Vec::<String>::from_redis_value(value).ok()?;
    let count = u32::try_from(alive.len()).unwrap_or(1).max(ledger.settings.processes_min).max(1);
    ledger.processes.store(count, Ordering::Relaxed);
    Some(alive.iter().filter_map(|name| u64::from_str_radix(name, 16).ok()).collect())
}

/// Gives up what processes that are gone have in the documents in which somebody waits here.
async fn bury(ledger: &Arc<LedgerState>) {
    // Read before it is asked who is alive: every process says so before it writes a document.
    let groups = ledger.groups();
    let seen: Vec<_> = groups.iter().map(|group| group.processes()).collect();
    let Some(alive) = beat(ledger).await else { return };
    for (group, seen) in groups.iter().zip(seen) {
        let gone: BTreeSet<u64> =
            seen.difference(&alive).copied().filter(|process| *process != 0).collect();
        if !gone.is_empty() {
            group.bury(ledger, &gone);
        }
    }
}

/// Looks at buckets that nobody can leave, a bounded stretch at a time; one process of the fleet.
async fn mend(ledger: &Arc<LedgerState>, mut cursor: u64) -> u64 {
    if !is_on_duty(ledger).await {
        return 0;
    }
    for _ in 0..SCANS_MAX {
        let mut scan = redis::cmd("SCAN");
        scan.arg(cursor).arg("MATCH").arg(ledger.prefix.counters()).arg("COUNT").arg(SCAN_COUNT);
        let Ok(value) = ledger.client.send(&scan).await else { return cursor };
        let Ok((next, keys)) = <(u64, Vec<String>)>::from_redis_value(value) else { return 0 };
        mend_these(ledger, &keys).await;
        cursor = next;
        if cursor == 0 {
            break;
        }
    }
    cursor
}

async fn mend_these(ledger: &Arc<LedgerState>, keys: &[String]) {
    if keys.is_empty() {
        return;
    }
    let mut pipe = redis::pipe();
    for key in keys {
        pipe.cmd("PTTL").arg(key);
    }
    let Ok(value) = ledger.client.send_all(&pipe).await else { return };
    let ttls = Vec::<i64>::from_redis_value(value).unwrap_or_default();
    for (key, _) in keys.iter().zip(ttls).filter(|(_, ttl)| *ttl == -1) {
        let name = key.strip_prefix(ledger.prefix.as_str()).unwrap_or(key);
        let Some(bucket) = name.strip_suffix(":remaining") else { continue };
        if let Ok(group) = ledger.group(bucket) {
            group.look(ledger);
        }
    }
}

/// Whether this process is the one that mends; the others take over a lease after it is gone.
async fn is_on_duty(ledger: &LedgerState) -> bool {
    let key = ledger.prefix.key("tollway:mender");
    let lease_ms = ledger.settings.lease_ms();
    let mut pipe = redis::pipe();
    let me = &*ledger.process;
    pipe.cmd("SET").arg(&key).arg(me).arg("NX").arg("PX").arg(lease_ms).ignore();
    pipe.cmd("GET").arg(&key);
    let Ok(value) = ledger.client.send_all(&pipe).await else { return false };
    let holder = Vec::<Option<String>>::from_redis_value(value).unwrap_or_default();
    if holder.first().and_then(Option::as_deref) != Some(me) {
        return false;
    }
    let mut keep = redis::cmd("PEXPIRE");
    keep.arg(&key).arg(lease_ms);
    matches!(ledger.client.send(&keep).await, Ok(Value::Int(1)))
}
