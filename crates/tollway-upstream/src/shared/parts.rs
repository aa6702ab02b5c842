//! What the parts of one credential's ledger share: the connection, the lanes, the names.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redis::Value;
use tokio::runtime::Handle;
use tokio::time::Instant;
use tollway_redis::connection::{Client, Failure};

use super::encoded_answer::Lesson;
use super::keys::{Keys, Prefix, bucket_of, lane_of, template_of};
use super::lane::Lane;
use super::names::Names;
use super::script;
use super::token_batch::TokenBatch;
use super::waiters::Turn;
use super::{Naming, Settings};
use crate::budget::{Claim, LocalLedger, Reason, Refusal};
use crate::profile::{Observation, Profile, Route};

/// The ledger of one credential.
pub(super) struct Core {
    pub(super) client: Arc<Client>,
    pub(super) settings: Settings,
    pub(super) runtime: Handle,
    pub(super) prefix: Prefix,
    pub(super) process: Arc<str>,
    pub(super) profile: Arc<Profile>,
    pub(super) names: Names,
    pub(super) purse: TokenBatch,
    /// What stands in while the store is gone.
    pub(super) local: LocalLedger,
    /// How many processes share the credential, as last counted.
    pub(super) processes: AtomicU32,
    permits: Arc<AtomicU64>,
    lanes: Mutex<BTreeMap<LaneName, Arc<Lane>>>,
    waiting: AtomicUsize,
    waiting_bytes: AtomicU64,
}

/// Bucket, lane in it, and whether the global limit counts it.
type LaneName = (Arc<str>, String, bool);

impl Core {
    pub(super) fn new(
        client: Arc<Client>,
        settings: Settings,
        prefix: Prefix,
        process: Arc<str>,
        permits: Arc<AtomicU64>,
        profile: Arc<Profile>,
    ) -> Self {
        let local = LocalLedger::new(Arc::clone(&profile), settings.bounds);
        let purse = TokenBatch::of_credential(settings.global, &profile, &prefix);
        Self {
            client,
            runtime: Handle::current(),
            prefix,
            process,
            profile,
            names: Names::default(),
            purse,
            local,
            processes: AtomicU32::new(settings.processes_min.max(1)),
            permits,
            lanes: Mutex::default(),
            waiting: AtomicUsize::new(0),
            waiting_bytes: AtomicU64::new(0),
            settings,
        }
    }

    /// A permit that nobody had before, for what it takes (see [`costs`](super::costs)).
    pub(super) fn new_permit(&self, rank: u8, costs: &str) -> String {
        let number = self.permits.fetch_add(1, Ordering::Relaxed);
        format!("{}.{rank}{number}{costs}", self.process)
    }

    /// The first three arguments of every script of a bucket.
    pub(super) fn arguments(&self, bucket: &str) -> Vec<String> {
        vec![self.settings.lease_ms().to_string(), self.prefix.wake_channel(), bucket.to_owned()]
    }

    pub(super) fn lanes(&self) -> MutexGuard<'_, BTreeMap<LaneName, Arc<Lane>>> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lanes of a bucket.
    pub(super) fn lanes_of(&self, bucket: &str) -> Vec<Arc<Lane>> {
        let first: LaneName = (bucket.into(), String::new(), false);
        let lanes = self.lanes();
        let of_bucket = lanes.range(first..).take_while(|((name, ..), _)| **name == *bucket);
        of_bucket.map(|(_, lane)| Arc::clone(lane)).collect()
    }

    /// The lane of a route, as far as the name of its bucket is known.
    pub(super) fn lane(&self, route: &Route) -> Result<Arc<Lane>, Refusal> {
        let learned = self.names.get(&template_of(route));
        let bucket = bucket_of(self.settings.naming, route, learned.as_deref());
        self.lane_in(&bucket, route)
    }

    fn lane_in(&self, bucket: &str, route: &Route) -> Result<Arc<Lane>, Refusal> {
        let exempt = route.is_exempt_from_global();
        let name: LaneName = (bucket.into(), lane_of(route), exempt);
        let mut lanes = self.lanes();
        if let Some(lane) = lanes.get(&name) {
            return Ok(Arc::clone(lane));
        }
        if lanes.len() >= self.settings.bounds.buckets_max {
            return Err(Refusal { reason: Reason::BucketsFull, wait: None });
        }
        let keys = Keys::new(&self.prefix, &name.0, &name.1, exempt);
        let naming = self.settings.naming;
        let mut lane = Lane::new(Arc::clone(&name.0), template_of(route), keys, naming);
        lane.purses = TokenBatch::of_bucket(bucket, route, &self.profile, &self.prefix);
        let lane = Arc::new(lane);
        lanes.insert(name, Arc::clone(&lane));
        Ok(lane)
    }

    /// Counts a request that is about to wait.
    pub(super) fn enter(self: &Arc<Self>, claim: &Claim) -> Result<Room, Refusal> {
        let bounds = &self.settings.bounds;
        let room = Room { core: Arc::clone(self), bytes: claim.bytes_held() };
        let waiting = self.waiting.fetch_add(1, Ordering::AcqRel);
        let bytes = self.waiting_bytes.fetch_add(room.bytes, Ordering::AcqRel);
        let wait = Some(Duration::from_secs(1));
        if waiting >= bounds.queue_max {
            return Err(Refusal { reason: Reason::QueueFull, wait });
        }
        if bytes.saturating_add(room.bytes) > bounds.queue_bytes_max {
            return Err(Refusal { reason: Reason::BytesFull, wait });
        }
        Ok(room)
    }

    /// Whether the store answers again within the time that a call may take.
    pub(super) async fn is_back_soon(&self) -> bool {
        let mut changes = self.client.changes();
        tokio::time::timeout(self.settings.timeout, changes.up()).await.unwrap_or(false)
    }

    /// Gives up permits or tickets. If the store does not answer, their leases run out.
    /// Answers what the script does.
    pub(super) async fn leave(
        &self,
        lane: &Lane,
        granted_ms: u64,
        how: &str,
        names: &[String],
    ) -> i64 {
        let mut answer = 0;
        for some in names.chunks(128) {
            let mut args = self.arguments(&lane.bucket);
            args.push(granted_ms.to_string());
            args.push(how.to_owned());
            args.extend_from_slice(some);
            let left = self.client.run(script::leave(), &lane.keys.0, &args).await;
            if let Ok(Value::Int(count)) = left {
                answer = count;
            }
        }
        answer
    }

    /// Gives back a permit that was not used.
    pub(super) fn cancel(self: &Arc<Self>, lane: &Arc<Lane>, permit: String, granted_ms: u64) {
        self.give_up(lane, permit, granted_ms, "unsent");
    }

    /// Gives up a permit.
    pub(super) fn give_up(
        self: &Arc<Self>,
        lane: &Arc<Lane>,
        permit: String,
        granted_ms: u64,
        how: &'static str,
    ) {
        lane.state().open.remove(&permit);
        let (core, lane) = (Arc::clone(self), Arc::clone(lane));
        self.runtime.spawn(async move {
            core.leave(&lane, granted_ms, how, &[permit]).await;
        });
    }

    /// Learns from the answer to a permit.
    pub(super) async fn learn(
        self: Arc<Self>,
        lane: Arc<Lane>,
        route: Route,
        permit: String,
        granted_ms: u64,
        observation: Observation,
    ) {
        lane.state().open.remove(&permit);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let lesson = Lesson::of(&observation, &route, &self.profile, now);
        let home = self.home(&lane, &route, &observation);
        let is_moved = !Arc::ptr_eq(&home, &lane);
        // Requests under way under the other name; none is said if there is no other name.
        let mut elsewhere = -1;
        if is_moved {
            lane.state().moving += 1;
            // A class of the profile stays in use by the other routes in it.
            let how = if route.class().is_some() { "unsent" } else { "moved" };
            let back = self.leave(&lane, granted_ms, how, std::slice::from_ref(&permit)).await;
            elsewhere = if how == "moved" { back } else { 0 };
        }
        home.note(&lesson);
        let mut args = self.arguments(&home.bucket);
        args.extend([permit.clone(), granted_ms.to_string()]);
        args.extend(lesson.arguments(self.settings.dialect.unlimited()));
        args.extend([elsewhere.to_string(), lesson.further]);
        let told = self.client.run(script::observe(), &home.keys.0, &args).await;
        // Told twice it counts once. Lost, the permit's lease runs out and the next one asks again.
        if told.as_ref().is_err_and(Failure::is_transient) && self.is_back_soon().await {
            let _ = self.client.run(script::observe(), &home.keys.0, &args).await;
        }
        // Only now: whoever knew the name earlier would find nothing under it, and send a probe into
        // the window that this answer tells of.
        if let (true, Some(name)) = (is_moved, &observation.bucket) {
            self.rename(&lane, &template_of(&route), name).await;
            lane.state().moving -= 1;
            self.leave(&lane, granted_ms, "sent", &[permit]).await;
        }
    }

    /// The lane in which the upstream has counted a request of this one.
    fn home(&self, lane: &Arc<Lane>, route: &Route, observation: &Observation) -> Arc<Lane> {
        let Some(name) = &observation.bucket else { return Arc::clone(lane) };
        if self.settings.naming == Naming::Spectacles {
            return Arc::clone(lane);
        }
        let bucket = bucket_of(self.settings.naming, route, Some(name));
        if *lane.bucket == *bucket {
            return Arc::clone(lane);
        }
        self.lane_in(&bucket, route).unwrap_or_else(|_| Arc::clone(lane))
    }

    /// Learns the name that the upstream has for the bucket of a route, and tells everybody.
    async fn rename(self: &Arc<Self>, lane: &Arc<Lane>, template: &str, name: &str) {
        if self.names.learn(template, name) {
            self.names.tell(self, template, name).await;
            self.dismiss_old(template, name);
        }
        lane.dismiss(self, || Turn::AskAgain);
    }

    /// A route's bucket has another name: whoever waits under the old one asks again.
    pub(super) fn renamed(self: &Arc<Self>, template: &str, name: &str) {
        if self.names.learn(template, name) {
            self.dismiss_old(template, name);
        }
    }

    /// Whoever waits for a route under another name asks again.
    fn dismiss_old(self: &Arc<Self>, template: &str, name: &str) {
        let current = format!("{name}:");
        let is_old =
            |lane: &&Arc<Lane>| lane.template == template && !lane.bucket.starts_with(&current);
        let old: Vec<_> = self.lanes().values().filter(is_old).map(Arc::clone).collect();
        for lane in old {
            lane.dismiss(self, || Turn::AskAgain);
        }
    }

    /// Makes everybody who waits claim again now.
    pub(super) fn ring_all(&self) {
        self.lanes().values().for_each(|lane| lane.ring());
    }

    /// Forgets lanes that nobody has used for a while.
    pub(super) fn forget_idle(&self) {
        let idle = self.settings.bounds.idle;
        self.lanes().retain(|_, lane| {
            let state = lane.state();
            let is_idle = state.used.is_none_or(|at: Instant| at.elapsed() > idle);
            !is_idle || state.line.len() > 0 || !state.open.is_empty()
        });
    }
}

/// A request that counts as waiting until this is dropped.
pub(super) struct Room {
    core: Arc<Core>,
    bytes: u64,
}

impl Drop for Room {
    fn drop(&mut self) {
        self.core.waiting.fetch_sub(1, Ordering::AcqRel);
        self.core.waiting_bytes.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}
