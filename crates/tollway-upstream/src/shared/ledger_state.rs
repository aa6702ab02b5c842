//! What the parts of one credential's ledger share: the connection, the waiters, the names.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use redis::Value;
use tokio::runtime::Handle;
use tokio::time::Instant;
use tollway_redis::connection::{Client, Failure};

use super::bucket_queue::BucketQueue;
use super::claim_queue::ClaimResult;
use super::encoded_answer::EncodedAnswer;
use super::keys::{Keys, Prefix, bucket_of, sub_limit_of, template_of};
use super::names::SharedNames;
use super::script;
use super::token_batch::TokenBatch;
use super::{Naming, Settings};
use crate::budget::{Claim, LocalLedger, Reason, Refusal};
use crate::profile::{Observation, Profile, Route};

/// The ledger of one credential.
pub(super) struct LedgerState {
    pub(super) client: Arc<Client>,
    pub(super) settings: Settings,
    pub(super) runtime: Handle,
    pub(super) prefix: Prefix,
    pub(super) process: Arc<str>,
    pub(super) profile: Arc<Profile>,
    pub(super) names: SharedNames,
    pub(super) global_tokens: TokenBatch,
    /// What stands in while the store is gone.
    pub(super) local: LocalLedger,
    /// How many processes share the credential, as last counted.
    pub(super) processes: AtomicU32,
    permits: Arc<AtomicU64>,
    queues: Mutex<BTreeMap<QueueName, Arc<BucketQueue>>>,
    waiting: AtomicUsize,
    waiting_bytes: AtomicU64,
}

/// Bucket, sub-limit in it, and whether the global limit counts it.
type QueueName = (Arc<str>, String, bool);

impl LedgerState {
    pub(super) fn new(
        client: Arc<Client>,
        settings: Settings,
        prefix: Prefix,
        process: Arc<str>,
        permits: Arc<AtomicU64>,
        profile: Arc<Profile>,
    ) -> Self {
        let local = LocalLedger::new(Arc::clone(&profile), settings.bounds);
        let global_tokens = TokenBatch::of_credential(settings.global, &profile, &prefix);
        Self {
            client,
            runtime: Handle::current(),
            prefix,
            process,
            profile,
            names: SharedNames::default(),
            global_tokens,
            local,
            processes: AtomicU32::new(settings.processes_min.max(1)),
            permits,
            queues: Mutex::default(),
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

    pub(super) fn queues(&self) -> MutexGuard<'_, BTreeMap<QueueName, Arc<BucketQueue>>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The waiters of a bucket.
    pub(super) fn queues_of(&self, bucket: &str) -> Vec<Arc<BucketQueue>> {
        let first: QueueName = (bucket.into(), String::new(), false);
        let queues = self.queues();
        let of_bucket = queues.range(first..).take_while(|((name, ..), _)| **name == *bucket);
        of_bucket.map(|(_, queue)| Arc::clone(queue)).collect()
    }

    /// The queue of a route, as far as the name of its bucket is known.
    pub(super) fn queue_for(&self, route: &Route) -> Result<Arc<BucketQueue>, Refusal> {
        let learned = self.names.get(&template_of(route));
        let bucket = bucket_of(self.settings.naming, route, learned.as_deref());
        self.queue_in(&bucket, route)
    }

    fn queue_in(&self, bucket: &str, route: &Route) -> Result<Arc<BucketQueue>, Refusal> {
        let exempt = route.is_exempt_from_global();
        let name: QueueName = (bucket.into(), sub_limit_of(route), exempt);
        let mut queues = self.queues();
        if let Some(queue) = queues.get(&name) {
            return Ok(Arc::clone(queue));
        }
        if queues.len() >= self.settings.bounds.buckets_max {
            return Err(Refusal { reason: Reason::BucketsFull, wait: None });
        }
        let keys = Keys::new(&self.prefix, &name.0, &name.1, exempt);
        let naming = self.settings.naming;
        let mut queue = BucketQueue::new(Arc::clone(&name.0), template_of(route), keys, naming);
        queue.token_batches = TokenBatch::of_bucket(bucket, route, &self.profile, &self.prefix);
        let queue = Arc::new(queue);
        queues.insert(name, Arc::clone(&queue));
        Ok(queue)
    }

    /// Counts a request that is about to wait.
    pub(super) fn enter(self: &Arc<Self>, claim: &Claim) -> Result<WaitingCount, Refusal> {
        let count = WaitingCount { ledger: Arc::clone(self), bytes: claim.bytes };
        let waiting = self.waiting.fetch_add(1, Ordering::AcqRel);
        let bytes = self.waiting_bytes.fetch_add(claim.bytes, Ordering::AcqRel);
        self.settings.bounds.room_for(claim, waiting, bytes).map(|()| count)
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
        queue: &BucketQueue,
        granted_ms: u64,
        how: &str,
        names: &[String],
    ) -> i64 {
        let mut answer = 0;
        for some in names.chunks(128) {
            let mut args = self.arguments(&queue.bucket);
            args.push(granted_ms.to_string());
            args.push(how.to_owned());
            args.extend_from_slice(some);
            if let Ok(Value::Int(count)) =
                self.client.run(script::leave(), &queue.keys.0, &args).await
            {
                answer = count;
            }
        }
        answer
    }

    /// Gives back a permit that was not used.
    pub(super) fn cancel(
        self: &Arc<Self>,
        queue: &Arc<BucketQueue>,
        permit: String,
        granted_ms: u64,
    ) {
        self.give_up(queue, permit, granted_ms, "unsent");
    }

    /// Gives up a permit.
    pub(super) fn give_up(
        self: &Arc<Self>,
        queue: &Arc<BucketQueue>,
        permit: String,
        granted_ms: u64,
        how: &'static str,
    ) {
        queue.state().open.remove(&permit);
        let (ledger, queue) = (Arc::clone(self), Arc::clone(queue));
        self.runtime.spawn(async move {
            ledger.leave(&queue, granted_ms, how, &[permit]).await;
        });
    }

    /// Learns from the answer to a permit.
    pub(super) async fn learn(
        self: Arc<Self>,
        queue: Arc<BucketQueue>,
        route: Route,
        permit: String,
        granted_ms: u64,
        observation: Observation,
    ) {
        queue.state().open.remove(&permit);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let encoded = EncodedAnswer::of(&observation, &self.profile, now);
        let home = self.home(&queue, &route, &observation);
        let is_moved = !Arc::ptr_eq(&home, &queue);
        // Requests under way under the other name; none is said if there is no other name.
        let mut elsewhere = -1;
        if is_moved {
            queue.state().moving += 1;
            // A class of the profile stays in use by the other routes in it.
            let how = if route.class().is_some() { "unsent" } else { "moved" };
            let back = self.leave(&queue, granted_ms, how, std::slice::from_ref(&permit)).await;
            elsewhere = if how == "moved" { back } else { 0 };
        }
        home.note(&encoded);
        let mut args = self.arguments(&home.bucket);
        args.extend([permit.clone(), granted_ms.to_string()]);
        args.extend(encoded.arguments(self.settings.spectacles_version.unlimited()));
        args.extend([elsewhere.to_string(), encoded.further]);
        let told = self.client.run(script::observe(), &home.keys.0, &args).await;
        // Told twice it counts once. Lost, the permit's lease runs out and the next one asks again.
        if told.as_ref().is_err_and(Failure::is_transient) && self.is_back_soon().await {
            let _ = self.client.run(script::observe(), &home.keys.0, &args).await;
        }
        // Only now: whoever knew the name earlier would find nothing under it, and send a probe
        // into the window that this answer tells of.
        if let (true, Some(name)) = (is_moved, &observation.bucket) {
            self.rename(&queue, &template_of(&route), name).await;
            queue.state().moving -= 1;
            self.leave(&queue, granted_ms, "sent", &[permit]).await;
        }
    }

    /// The queue of the bucket in which the upstream has counted a request of this one.
    fn home(
        &self,
        queue: &Arc<BucketQueue>,
        route: &Route,
        observation: &Observation,
    ) -> Arc<BucketQueue> {
        let Some(name) = &observation.bucket else { return Arc::clone(queue) };
        if self.settings.naming == Naming::Spectacles {
            return Arc::clone(queue);
        }
        let bucket = bucket_of(self.settings.naming, route, Some(name));
        if *queue.bucket == *bucket {
            return Arc::clone(queue);
        }
        self.queue_in(&bucket, route).unwrap_or_else(|_| Arc::clone(queue))
    }

    /// Learns the name that the upstream has for the bucket of a route, and tells everybody.
    async fn rename(self: &Arc<Self>, queue: &Arc<BucketQueue>, template: &str, name: &str) {
        if self.names.learn(template, name) {
            self.names.tell(self, template, name).await;
            self.dismiss_old(template, name);
        }
        queue.dismiss(self, || ClaimResult::AskAgain);
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
        let is_old = |queue: &&Arc<BucketQueue>| {
            queue.template == template && !queue.bucket.starts_with(&current)
        };
        let old: Vec<_> = self.queues().values().filter(is_old).map(Arc::clone).collect();
        for queue in old {
            queue.dismiss(self, || ClaimResult::AskAgain);
        }
    }

    /// Makes everybody who waits claim again now.
    pub(super) fn wake_all(&self) {
        self.queues().values().for_each(|queue| queue.claim_again());
    }

    /// Forgets waiters that nobody has used for a while.
    pub(super) fn forget_idle(&self) {
        let idle = self.settings.bounds.idle;
        self.queues().retain(|_, queue| {
            let state = queue.state();
            let is_idle = state.used.is_none_or(|at: Instant| at.elapsed() > idle);
            !is_idle || !state.claims.is_empty() || !state.open.is_empty()
        });
    }
}

/// A request that counts as waiting until this is dropped.
pub(super) struct WaitingCount {
    ledger: Arc<LedgerState>,
    bytes: u64,
}

impl Drop for WaitingCount {
    fn drop(&mut self) {
        self.ledger.waiting.fetch_sub(1, Ordering::AcqRel);
        self.ledger.waiting_bytes.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}
