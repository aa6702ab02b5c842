//! What is done in the background for one credential: staying alive, burying the dead, mending.
//!
//! A process with nothing in any document of the credential says seldom that it is alive. With its
//! next request it says so at once, and often again: who dies then is given up soon.

use std::collections::BTreeSet;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use redis::{FromRedisValue as _, Value};
use tokio::time::{Duration, Instant};
use tollway_redis::connection::Client;

use super::ledger_state::{LedgerState, Served};
use super::{Prefix, peers, script};

/// How long the others are waited for after an outage: they try to connect once a second.
const WAITING: Duration = Duration::from_secs(2);
/// How long before claims go to the store again all are told when, and how often it is asked for.
const NOTICE: Duration = Duration::from_millis(300);
const ASKED_EVERY: Duration = Duration::from_millis(50);
/// For so long before that nobody lets anything go: what was let go last reaches the store.
const TELLING: Duration = Duration::from_millis(100);
/// How often a process whose requests all are done says that it is alive, and how long that is
/// believed: it has nothing in any document that others could wait for, and there may be
/// thousands of credentials.
const QUIET_BEAT: Duration = Duration::from_secs(10);
const QUIET_ALIVE: Duration = Duration::from_secs(30);
/// The same of a process in its fleet, whatever credentials it has.
pub(super) const FLEET_BEAT: Duration = Duration::from_secs(2);
const FLEET_ALIVE: Duration = Duration::from_secs(7);
/// Keys looked at in one turn: a turn must not keep the server from others.
const SCAN_COUNT: usize = 250;
const SCANS_MAX: usize = 8;

/// Tends a ledger until it is dropped, four times in the time for which it is believed alive.
pub(super) async fn keep_up(ledger: Weak<LedgerState>) {
    let Some(beat) = ledger.upgrade().map(|ledger| ledger.settings.beat()) else { return };
    if let Some(ledger) = ledger.upgrade() {
        // Whoever came while this ledger could not be told yet counts, too.
        self::beat(&ledger).await;
    }
    let Some(mut changes) = ledger.upgrade().map(|ledger| ledger.client.changes()) else { return };
    let mut cursor = 0;
    let mut returning = Returning::default();
    let mut said_at: Option<Instant> = None;
    let mut next = Instant::now();
    loop {
        tokio::select! {
            () = tokio::time::sleep_until(next) => {}
            is_there = changes.next() => {
                if !is_there {
                    return;
                }
            }
        }
        let Some(ledger) = ledger.upgrade() else { return };
        next = Instant::now() + beat;
        ledger.forget_idle();
        let mends = ledger.has_old_clients() && ledger.settings.mends;
        if ledger.client.is_up() && ledger.is_quiet() {
            // It has nothing to tell, after an outage neither.
            returning.come_home_quietly(&ledger);
            if *said_at.get_or_insert_with(some_time_ago) + QUIET_BEAT <= Instant::now() {
                said_at = Some(Instant::now());
                ledger.rests.store(true, Ordering::Release);
                beat_for(&ledger, QUIET_ALIVE, 0).await;
            }
            // Old clients may be stuck while nobody waits here.
            if mends {
                cursor = mend(&ledger, cursor).await;
            }
            continue;
        }
        said_at = None;
        if !ledger.client.is_up() {
            ledger.served.send_replace(Served::Here);
            ledger.dismiss_all();
            returning.leave(&ledger);
            continue;
        }
        if ledger.is_home() {
            bury(&ledger).await;
        } else if let Some(at) = returning.come_home(&ledger).await {
            next = at;
            continue;
        }
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
    /// When claims go to the store again, as all were told.
    at: Option<Instant>,
}

impl Returning {
    fn leave(&mut self, ledger: &LedgerState) {
        (self.since, self.at) = (None, None);
        self.before = self.before.max(ledger.peers.count());
    }

    /// The same for a process that let nothing go: it waits until the others must be back.
    fn come_home_quietly(&mut self, ledger: &LedgerState) {
        let since = *self.since.get_or_insert_with(Instant::now);
        if !ledger.is_home() && since.elapsed() >= WAITING + 2 * NOTICE {
            self.arrive(ledger);
        }
    }

    /// Claims go to the store again when all who shared it are back, or have been waited for long
    /// enough, and have been told when: until then each keeps to its part. When to look again; none
    /// if they do now.
    async fn come_home(&mut self, ledger: &LedgerState) -> Option<Instant> {
        let since = *self.since.get_or_insert_with(Instant::now);
        if self.at.is_none() {
            let least = if since.elapsed() < WAITING { self.before.max(1) } else { 1 };
            let alive = Duration::from_millis(ledger.settings.alive_ms());
            let wait = beat_for(ledger, alive, least).await.and_then(|beat| beat.wait);
            self.at = wait.map(|wait| Instant::now() + wait);
        }
        let now = Instant::now();
        match self.at {
            // A store that is there and says nothing keeps nobody for ever.
            None if since.elapsed() < 3 * WAITING => Some(now + ASKED_EVERY),
            Some(at) if now + TELLING < at => Some(at - TELLING),
            Some(at) if now < at => {
                ledger.served.send_replace(Served::Nowhere);
                Some(at)
            }
            _ => {
                self.arrive(ledger);
                None
            }
        }
    }

    fn arrive(&mut self, ledger: &LedgerState) {
        *self = Self::default();
        ledger.served.send_replace(Served::Store);
    }
}

/// Thousands of credentials do not say together that they are alive.
fn some_time_ago() -> Instant {
    let share = RandomState::new().hash_one(0) % 1_024;
    let ago = QUIET_BEAT.mul_f64(share as f64 / 1_024.0);
    Instant::now().checked_sub(ago).unwrap_or_else(Instant::now)
}

/// What the store says to whoever says that he is alive.
pub(super) struct Beat {
    alive: BTreeSet<u64>,
    /// How long until claims go to the store, if it is decided.
    wait: Option<Duration>,
}

/// Says that this process is alive; answers those that are.
pub(super) async fn beat(ledger: &LedgerState) -> Option<Beat> {
    beat_for(ledger, Duration::from_millis(ledger.settings.alive_ms()), 0).await
}

/// The same, `believed` for so long; `least` processes have to be there before claims go to the
/// store again.
async fn beat_for(ledger: &LedgerState, believed: Duration, least: u32) -> Option<Beat> {
    let beat = ask(&ledger.client, &ledger.prefix, &ledger.process, believed, least).await?;
    ledger.peers.share_it(beat.alive.clone());
    Some(beat)
}

/// Says that a process of a fleet is alive; those that are.
pub(super) async fn beat_of_fleet(
    client: &Client,
    prefix: &Prefix,
    process: &str,
) -> Option<BTreeSet<u64>> {
    ask(client, prefix, process, FLEET_ALIVE, 0).await.map(|beat| beat.alive)
}

async fn ask(
    client: &Client,
    prefix: &Prefix,
    process: &str,
    believed: Duration,
    least: u32,
) -> Option<Beat> {
    let keys = ["tollway:processes", "tollway:return"].map(|key| prefix.key(key));
    let args = [
        believed.as_millis().to_string(),
        process.to_owned(),
        prefix.wake_channel(),
        least.to_string(),
        NOTICE.as_millis().to_string(),
    ];
    let value = client.run(script::beat(), &keys, &args).await.ok()?;
    let mut told = Vec::<String>::from_redis_value(value).ok()?.into_iter();
    let wait = told.next()?.parse().ok().map(Duration::from_millis);
    let alive = told.filter_map(|name| peers::number(&name)).collect();
    Some(Beat { alive, wait })
}

/// Gives up what processes that are gone have in the documents in which somebody waits here.
async fn bury(ledger: &Arc<LedgerState>) {
    // Read before it is asked who is alive: every process says so before it writes a document.
    let groups = ledger.groups();
    let seen: Vec<_> = groups.iter().map(|group| group.processes()).collect();
    let Some(Beat { alive, .. }) = beat(ledger).await else { return };
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
