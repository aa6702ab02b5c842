//! What is done in the background for one credential: staying alive, tidying up, mending.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use redis::{FromRedisValue as _, Value};
use tokio::time::MissedTickBehavior;

use super::bucket_queue::BucketQueue;
use super::keys::Keys;
use super::ledger_state::LedgerState;
use super::script;

/// Names in one call.
const RENEW_MAX: usize = 500;
/// Keys looked at in one turn: a turn must not keep the server from others.
const SCAN_COUNT: usize = 250;
const SCANS_MAX: usize = 8;

/// Tends a ledger until it is dropped, three times a lease.
pub(super) async fn keep_up(ledger: Weak<LedgerState>) {
    let Some(beat) = ledger.upgrade().map(|ledger| ledger.settings.beat()) else { return };
    let mut tick = tokio::time::interval(beat);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let Some(mut changes) = ledger.upgrade().map(|ledger| ledger.client.changes()) else { return };
    let mut cursor = 0;
    loop {
        let is_changed = tokio::select! {
            _ = tick.tick() => false,
            is_changed = changes.next() => {
                if !is_changed {
                    return;
                }
                true
            }
        };
        let Some(ledger) = ledger.upgrade() else { return };
        if is_changed {
            // A connection was lost or made: messages may have been missed, or never come.
            ledger.wake_all();
        }
        ledger.forget_idle();
        if !ledger.client.is_up() {
            continue;
        }
        count(&ledger).await;
        renew(&ledger).await;
        if ledger.settings.mends {
            cursor = mend(&ledger, cursor).await;
        }
    }
}

/// Says that this process is alive, and learns how many are.
async fn count(ledger: &LedgerState) {
    let keys = [ledger.prefix.key("tollway:processes")];
    let args = [ledger.settings.lease_ms().to_string(), ledger.process.to_string()];
    if let Ok(Value::Int(count)) = ledger.client.run(script::beat(), &keys, &args).await {
        let count = u32::try_from(count).unwrap_or(1).max(ledger.settings.processes_min).max(1);
        ledger.processes.store(count, Ordering::Relaxed);
    }
}

/// Says that permits and tickets are alive that have been for a while.
async fn renew(ledger: &LedgerState) {
    let queues: Vec<Arc<BucketQueue>> = ledger.queues().values().map(Arc::clone).collect();
    for queue in queues {
        let (permits, tickets) = queue.to_renew(ledger.settings.beat());
        let mut names: Vec<(bool, String)> = permits.into_iter().map(|name| (true, name)).collect();
        names.extend(tickets.into_iter().map(|name| (false, name)));
        for some in names.chunks(RENEW_MAX) {
            let permits = some.iter().filter(|(is_permit, _)| *is_permit).count();
            let mut args = vec![ledger.settings.lease_ms().to_string(), permits.to_string()];
            args.extend(some.iter().map(|(_, name)| name.clone()));
            let _ = ledger.client.run(script::renew(), &queue.keys.0, &args).await;
        }
    }
}

/// Looks for buckets that nobody can leave, a bounded stretch at a time; one process of the fleet.
async fn mend(ledger: &LedgerState, mut cursor: u64) -> u64 {
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

async fn mend_these(ledger: &LedgerState, keys: &[String]) {
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
        let keys = Keys::new(&ledger.prefix, bucket, "", false);
        let _ = ledger.client.run(script::mend(), &keys.0, &ledger.arguments(bucket)).await;
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
    ledger.client.send(&keep).await.is_ok()
}
