//! What is done in the background for one credential: staying alive, tidying up, mending.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use redis::{FromRedisValue as _, Value};
use tokio::time::MissedTickBehavior;

use super::keys::Keys;
use super::lane::Lane;
use super::parts::Core;
use super::script;

/// Names in one call.
const RENEW_MAX: usize = 500;
/// Keys looked at in one turn: a turn must not keep the server from others.
const SCAN_COUNT: usize = 250;
const SCANS_MAX: usize = 8;

/// Tends a ledger until it is dropped, three times a lease.
pub(super) async fn keep_up(core: Weak<Core>) {
    let Some(beat) = core.upgrade().map(|core| core.settings.beat()) else { return };
    let mut tick = tokio::time::interval(beat);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let Some(mut changes) = core.upgrade().map(|core| core.client.changes()) else { return };
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
        let Some(core) = core.upgrade() else { return };
        if is_changed {
            // A connection was lost or made: messages may have been missed, or never come.
            core.ring_all();
        }
        core.forget_idle();
        if !core.client.is_up() {
            continue;
        }
        count(&core).await;
        renew(&core).await;
        if core.settings.mends {
            cursor = mend(&core, cursor).await;
        }
    }
}

/// Says that this process is alive, and learns how many are.
async fn count(core: &Core) {
    let keys = [core.prefix.key("tollway:processes")];
    let args = [core.settings.lease_ms().to_string(), core.process.to_string()];
    if let Ok(Value::Int(count)) = core.client.run(script::beat(), &keys, &args).await {
        let count = u32::try_from(count).unwrap_or(1).max(core.settings.processes_min).max(1);
        core.processes.store(count, Ordering::Relaxed);
    }
}

/// Says that permits and tickets are alive that have been for a while.
async fn renew(core: &Core) {
    let lanes: Vec<Arc<Lane>> = core.lanes().values().map(Arc::clone).collect();
    for lane in lanes {
        let (permits, tickets) = lane.to_renew(core.settings.beat());
        let mut names: Vec<(bool, String)> = permits.into_iter().map(|name| (true, name)).collect();
        names.extend(tickets.into_iter().map(|name| (false, name)));
        for some in names.chunks(RENEW_MAX) {
            let permits = some.iter().filter(|(is_permit, _)| *is_permit).count();
            let mut args = vec![core.settings.lease_ms().to_string(), permits.to_string()];
            args.extend(some.iter().map(|(_, name)| name.clone()));
            let _ = core.client.run(script::renew(), &lane.keys.0, &args).await;
        }
    }
}

/// Looks for buckets that nobody can leave, a bounded stretch at a time; one process of the fleet.
async fn mend(core: &Core, mut cursor: u64) -> u64 {
    if !is_on_duty(core).await {
        return 0;
    }
    for _ in 0..SCANS_MAX {
        let mut scan = redis::cmd("SCAN");
        scan.arg(cursor).arg("MATCH").arg(core.prefix.counters()).arg("COUNT").arg(SCAN_COUNT);
        let Ok(value) = core.client.send(&scan).await else { return cursor };
        let Ok((next, keys)) = <(u64, Vec<String>)>::from_redis_value(value) else { return 0 };
        mend_these(core, &keys).await;
        cursor = next;
        if cursor == 0 {
            break;
        }
    }
    cursor
}

async fn mend_these(core: &Core, keys: &[String]) {
    if keys.is_empty() {
        return;
    }
    let mut pipe = redis::pipe();
    for key in keys {
        pipe.cmd("PTTL").arg(key);
    }
    let Ok(value) = core.client.send_all(&pipe).await else { return };
    let ttls = Vec::<i64>::from_redis_value(value).unwrap_or_default();
    for (key, _) in keys.iter().zip(ttls).filter(|(_, ttl)| *ttl == -1) {
        let name = key.strip_prefix(core.prefix.as_str()).unwrap_or(key);
        let Some(bucket) = name.strip_suffix(":remaining") else { continue };
        let keys = Keys::new(&core.prefix, bucket, "", false);
        let _ = core.client.run(script::mend(), &keys.0, &core.arguments(bucket)).await;
    }
}

/// Whether this process is the one that mends; the others take over a lease after it is gone.
async fn is_on_duty(core: &Core) -> bool {
    let key = core.prefix.key("tollway:mender");
    let lease_ms = core.settings.lease_ms();
    let mut pipe = redis::pipe();
    let me = &*core.process;
    pipe.cmd("SET").arg(&key).arg(me).arg("NX").arg("PX").arg(lease_ms).ignore();
    pipe.cmd("GET").arg(&key);
    let Ok(value) = core.client.send_all(&pipe).await else { return false };
    let holder = Vec::<Option<String>>::from_redis_value(value).unwrap_or_default();
    if holder.first().and_then(Option::as_deref) != Some(me) {
        return false;
    }
    let mut keep = redis::cmd("PEXPIRE");
    keep.arg(&key).arg(lease_ms);
    core.client.send(&keep).await.is_ok()
}
