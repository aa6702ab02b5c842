//! What can be seen of a bucket in the store, and how it is unlocked by hand.

use std::time::Duration;

use std::sync::Arc;

use redis::{FromRedisValue as _, Value};

use super::core::Core;
use super::keys::Keys;
use super::lane::Lane;
use super::link::Trouble;
use crate::budget::{BucketView, DimensionView, Knowledge};

/// What the store and this process know of a bucket.
pub(super) async fn view(
    core: &Core,
    bucket: &str,
    lanes: &[Arc<Lane>],
) -> Result<BucketView, Trouble> {
    let keys = Keys::new(&core.prefix, bucket, "", false);
    let [remaining, limit, global, leases, window, waiting, _, _, quick, ..] = &keys.0;
    let mut pipe = redis::pipe();
    pipe.cmd("GET").arg(remaining).cmd("GET").arg(limit).cmd("PTTL").arg(remaining);
    pipe.cmd("PTTL").arg(global).cmd("ZCARD").arg(leases).cmd("ZCARD").arg(waiting);
    pipe.cmd("HGET").arg(window).arg("slides").cmd("XLEN").arg(quick);
    for lane in lanes {
        pipe.cmd("PTTL").arg(&lane.keys.0[7]);
    }
    let value = core.link.send_all(&pipe).await?;
    let values = Vec::<Value>::from_redis_value(value).unwrap_or_default();
    let number = |index: usize| {
        values
            .get(index)
            .and_then(|value| Option::<i64>::from_redis_value_ref(value).ok().flatten())
    };
    let millis = |index: usize| {
        number(index).and_then(|ms| u64::try_from(ms).ok()).map(Duration::from_millis)
    };
    let mut view = BucketView { id: bucket.to_owned(), ..BucketView::default() };
    let leases = number(4).unwrap_or(0) + number(7).unwrap_or(0);
    view.in_flight = u32::try_from(leases).unwrap_or(0);
    view.queued = number(5).and_then(|count| usize::try_from(count).ok()).unwrap_or(0);
    view.blocked_for = millis(3);
    for (index, lane) in lanes.iter().enumerate() {
        if let Some(left) = millis(8 + index) {
            let name = lane.keys.0[7].rsplit("tollgate:block:").next().unwrap_or_default();
            view.blocked_lanes.push((name.to_owned(), left));
        }
    }
    let Some(units) = number(1) else { return Ok(view) };
    if units <= 0 || units >= 1_000_000 {
        view.knowledge = Knowledge::Silent;
        return Ok(view);
    }
    view.knowledge = Knowledge::Known;
    let left = u64::try_from(number(0).unwrap_or(units)).unwrap_or(0);
    let resets_in = millis(2);
    view.wait = if left == 0 { resets_in.unwrap_or_default() } else { Duration::ZERO };
    view.dimensions.push(DimensionView {
        name: "requests".to_owned(),
        limit: units.unsigned_abs(),
        remaining: left,
        resets_in,
        sliding: number(6).map(|slides| slides >= 2),
    });
    Ok(view)
}

/// Forgets what blocks a bucket: its counter, its end, its limit and its lanes' blocks.
pub(super) async fn unlock(
    core: &Core,
    bucket: &str,
    lanes: &[Arc<Lane>],
) -> Result<bool, Trouble> {
    let keys = Keys::new(&core.prefix, bucket, "", false);
    let mut command = redis::cmd("DEL");
    command.arg(&keys.0[0]).arg(&keys.0[1]).arg(&keys.0[4]).arg(&keys.0[9]);
    for lane in lanes {
        command.arg(&lane.keys.0[7]);
    }
    let deleted = core.link.send(&command).await?;
    Ok(matches!(deleted, Value::Int(1..)))
}
