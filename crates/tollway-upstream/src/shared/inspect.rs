//! What can be seen of a bucket in the store, and how it is unlocked by hand.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use redis::{FromRedisValue, Value};
use tollway_redis::connection::Failure;

use super::bucket_queue::BucketQueue;
use super::costs::main_dimension;
use super::keys::Keys;
use super::ledger_state::LedgerState;
use crate::budget::{BucketView, DimensionView, Knowledge};

/// What the store and this process know of a bucket.
pub(super) async fn view(
    ledger: &LedgerState,
    bucket: &str,
    queues: &[Arc<BucketQueue>],
) -> Result<BucketView, Failure> {
    let keys = Keys::new(&ledger.prefix, bucket, "", false);
    let [remaining, limit, global, leases, window, waiting, _, _, quick, meters, account, ..] =
        &keys.0;
    let mut pipe = redis::pipe();
    pipe.cmd("GET").arg(remaining).cmd("GET").arg(limit).cmd("PTTL").arg(remaining);
    pipe.cmd("PTTL").arg(global).cmd("ZCARD").arg(leases).cmd("ZCARD").arg(waiting);
    pipe.cmd("HGET").arg(window).arg("slides").cmd("HGET").arg(window).arg("diverges");
    pipe.cmd("XLEN").arg(quick).cmd("TIME");
    pipe.cmd("HGETALL").arg(meters).cmd("HGETALL").arg(account);
    for queue in queues {
        pipe.cmd("PTTL").arg(&queue.keys.0[7]);
    }
    let answers = Vec::from_redis_value(ledger.client.send_all(&pipe).await?).unwrap_or_default();
    Ok(Seen(answers).bucket(ledger, bucket, queues))
}

/// The answers to what was asked about a bucket, in order.
struct Seen(Vec<Value>);

impl Seen {
    /// Of the first answers; those about waiters follow.
    const LANES: usize = 12;

    fn bucket(
        &self,
        ledger: &LedgerState,
        bucket: &str,
        queues: &[Arc<BucketQueue>],
    ) -> BucketView {
        let mut view = BucketView { id: bucket.to_owned(), ..BucketView::default() };
        let leases = self.number(4).unwrap_or(0) + self.number(8).unwrap_or(0);
        view.in_flight = u32::try_from(leases).unwrap_or(0);
        view.queued = self.number(5).and_then(|count| usize::try_from(count).ok()).unwrap_or(0);
        view.divergence = self.number(7).unwrap_or(0);
        view.blocked_for = self.millis(3);
        for (index, queue) in queues.iter().enumerate() {
            if let Some(left) = self.millis(Self::LANES + index) {
                let name = queue.keys.0[7].rsplit("tollway:block:").next().unwrap_or_default();
                view.blocked_lanes.push((name.to_owned(), left));
            }
        }
        view.knowledge = match self.number(1) {
            None => return view,
            Some(..=0 | 1_000_000..) => Knowledge::Silent,
            Some(_) => Knowledge::Known,
        };
        view.dimensions.extend(self.counter(ledger).filter(|_| view.knowledge == Knowledge::Known));
        view.dimensions.extend(self.meters(ledger));
        let spent = view.dimensions.iter().filter(|dimension| dimension.remaining == 0);
        view.wait = spent.filter_map(|dimension| dimension.resets_in).max().unwrap_or_default();
        view
    }

    /// The Spectacles counter.
    fn counter(&self, ledger: &LedgerState) -> Option<DimensionView> {
        let limit = u64::try_from(self.number(1)?).ok()?;
        let left = self.number(0).map_or(limit, |left| u64::try_from(left).unwrap_or(0));
        Some(DimensionView {
            name: ledger.profile.dimension_name(main_dimension(&ledger.profile), 0),
            limit,
            remaining: left,
            resets_in: self.millis(2),
            sliding: self.number(6).map(|slides| slides >= 2),
        })
    }

    /// Further limits, as `scripts/meters.lua` writes them.
    fn meters(&self, ledger: &LedgerState) -> Vec<DimensionView> {
        let time: Option<(u64, u64)> = self.read(9);
        let now_ms = time.map_or(0, |(seconds, micros)| seconds * 1_000 + micros / 1_000);
        let fields = [10, 11].into_iter().filter_map(|index| self.read(index));
        let fields = fields.flat_map(|found: BTreeMap<String, String>| found);
        fields.filter_map(|(id, text)| meter(ledger, &id, &text, now_ms)).collect()
    }

    fn read<T: FromRedisValue>(&self, index: usize) -> Option<T> {
        self.0.get(index).and_then(|value| T::from_redis_value_ref(value).ok())
    }

    fn number(&self, index: usize) -> Option<i64> {
        self.read::<Option<i64>>(index).flatten()
    }

    fn millis(&self, index: usize) -> Option<Duration> {
        self.number(index).and_then(|ms| u64::try_from(ms).ok()).map(Duration::from_millis)
    }
}

fn meter(ledger: &LedgerState, id: &str, text: &str, now_ms: u64) -> Option<DimensionView> {
    let (dimension, part) = id.split_once('.')?;
    let words: Vec<Option<u64>> = text.split(' ').map(|word| word.parse().ok()).collect();
    let [limit, left, ends, _, _, interval, ..] = words[..] else { return None };
    let resets_in = ends.and_then(|ends| ends.checked_sub(now_ms)).map(Duration::from_millis);
    Some(DimensionView {
        name: ledger.profile.dimension_name(dimension.parse().ok()?, part.parse().ok()?),
        limit: limit?,
        // What is told of a window that is over says nothing any more.
        remaining: if resets_in.is_some() || ends.is_none() { left? } else { limit? },
        resets_in,
        sliding: Some(interval.is_some()),
    })
}

/// Forgets what blocks a bucket: its counter, its end, its limit and its waiters' blocks.
pub(super) async fn unlock(
    ledger: &LedgerState,
    bucket: &str,
    queues: &[Arc<BucketQueue>],
) -> Result<bool, Failure> {
    let keys = Keys::new(&ledger.prefix, bucket, "", false);
    let mut command = redis::cmd("DEL");
    for index in [0, 1, 4, 9, 12, 13] {
        command.arg(&keys.0[index]);
    }
    for queue in queues {
        command.arg(&queue.keys.0[7]);
    }
    let deleted = ledger.client.send(&command).await?;
    Ok(matches!(deleted, Value::Int(1..)))
}
