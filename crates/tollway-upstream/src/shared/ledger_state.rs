//! What the parts of one credential's ledger share: the connection, the groups, the names.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::{FromRedisValue as _, Value};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::Instant;
use tollway_core::Timestamp;
use tollway_redis::connection::{Client, Failure};

use super::claim_queue::ClaimResult;
use super::counter::Counter;
use super::group::Group;
use super::keys::{Keys, Prefix, group_of, stated_name, stored_route};
use super::names::SharedNames;
use super::peers::Peers;
use super::replica::{Call, Message, Replica, Reply};
use super::server_clock::ServerClock;
use super::token_batch::TokenBatch;
use super::token_waits::TokenWaits;
use super::{Naming, Settings, script};
use crate::budget::document::Terms;
use crate::budget::room::Share;
use crate::budget::{BucketRoom, Change, Claim, LocalLedger, Reason, Refusal};
use crate::profile::{Profile, Route};

/// The ledger of one credential.
pub(super) struct LedgerState {
    pub(super) client: Arc<Client>,
    pub(super) settings: Settings,
    pub(super) runtime: Handle,
    pub(super) prefix: Prefix,
    pub(super) process: Arc<str>,
    pub(super) profile: Arc<Profile>,
    pub(super) terms: Arc<Terms>,
    pub(super) clock: ServerClock,
    pub(super) names: SharedNames,
    /// Of the limits of the credential that no answer tells.
    pub(super) credential_tokens: Vec<TokenBatch>,
    pub(super) token_waits: TokenWaits,
    /// What stands in while the store is gone.
    pub(super) local: LocalLedger,
    /// Who shares the credential.
    pub(super) peers: Peers,
    /// Where claims are served.
    pub(super) served: watch::Sender<Served>,
    /// Whether this process says only seldom that it is alive.
    pub(super) rests: AtomicBool,
    numbers: Arc<AtomicU64>,
    groups: Mutex<BTreeMap<Arc<str>, Arc<Group>>>,
    stated: Mutex<HashMap<String, Stated>>,
    waiting: AtomicUsize,
    waiting_bytes: AtomicU64,
    changes: Mutex<VecDeque<Change>>,
}

/// Where claims are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Served {
    /// By the documents.
    Store,
    /// In this process, which keeps to its part: the store is gone, or the others have not told it
    /// yet what they let go.
    Here,
    /// Nowhere for a moment: what was let go here last is being told.
    Nowhere,
}

/// What changed and nobody has asked for yet; older changes give way.
const CHANGES_MAX: usize = 256;

/// Tokens of limits that the profile states for a bucket, and when they were last asked for.
struct Stated {
    batches: Arc<Vec<TokenBatch>>,
    used: Instant,
    _share: Share,
}

impl LedgerState {
    pub(super) fn new(
        client: Arc<Client>,
        settings: Settings,
        prefix: Prefix,
        process: Arc<str>,
        numbers: Arc<AtomicU64>,
        profile: Arc<Profile>,
        peers: Peers,
    ) -> Self {
        let local = LocalLedger::new(Arc::clone(&profile), settings.bounds);
        let local = settings.room.iter().fold(local, LocalLedger::within);
        let names = settings.room.as_ref().map(BucketRoom::of_names).unwrap_or_default();
        let credential_tokens = TokenBatch::of_credential(settings.global, &profile, &prefix);
        let lease = Duration::from_millis(settings.lease_ms());
        Self {
            client,
            runtime: Handle::current(),
            prefix,
            process,
            terms: Arc::new(Terms::new(Arc::clone(&profile), settings.bounds, lease)),
            profile,
            clock: ServerClock::new(),
            names: SharedNames::within(names),
            credential_tokens,
            token_waits: TokenWaits::default(),
            local,
            peers,
            served: watch::Sender::new(Served::Store),
            rests: AtomicBool::new(false),
            numbers,
            groups: Mutex::default(),
            stated: Mutex::default(),
            waiting: AtomicUsize::new(0),
            waiting_bytes: AtomicU64::new(0),
            changes: Mutex::default(),
            settings,
        }
    }

    /// A number that no request and no call of this process had before.
    pub(super) fn new_number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn lock_groups(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, Arc<Group>>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The groups in use here, in order of their names.
    pub(super) fn groups(&self) -> Vec<Arc<Group>> {
        self.lock_groups().values().map(Arc::clone).collect()
    }

    /// The claim as the documents name its route, and its group.
    pub(super) fn stored(&self, claim: &Claim) -> Result<(Claim, Arc<Group>), Refusal> {
        let naming = self.settings.naming;
        let route = stored_route(naming, &claim.route);
        let group = self.group(group_of(naming, self.terms.is_one_group, &route))?;
        let mut costs = claim.costs;
        for (cost, of) in costs.iter_mut().zip(self.profile.dimensions()) {
            if of.is_modelled() {
                *cost = 0;
            }
        }
        Ok((Claim { route, costs, ..claim.clone() }, group))
    }

    pub(super) fn group(&self, name: &str) -> Result<Arc<Group>, Refusal> {
        let mut groups = self.lock_groups();
        if let Some(group) = groups.get(name) {
            return Ok(Arc::clone(group));
        }
        let mut share = self.share();
        if groups.len() >= self.settings.bounds.buckets_max || !share.grow() {
            let wait = Some(self.settings.bounds.lease);
            return Err(Refusal { reason: Reason::BucketsFull, wait });
        }
        let name: Arc<str> = name.into();
        let keys = Keys::new(&self.prefix, &name, self.has_old_clients());
        let me = u64::from_str_radix(&self.process, 16).unwrap_or_default();
        let unlimited = i64::from(self.settings.spectacles_version.unlimited());
        let beside = self.has_old_clients().then(|| (Arc::clone(&name), unlimited));
        let replica = Replica::new(Arc::clone(&self.terms), me, beside);
        let group = Arc::new(Group::new(Arc::clone(&name), keys, replica, share));
        groups.insert(name, Arc::clone(&group));
        Ok(group)
    }

    /// Nothing yet of what all ledgers may remember together.
    fn share(&self) -> Share {
        self.settings.room.as_ref().map(BucketRoom::of_buckets).unwrap_or_default()
    }

    /// Whether clients of the specification write the same keys.
    pub(super) fn has_old_clients(&self) -> bool {
        self.settings.naming == Naming::Spectacles && !self.terms.is_one_group
    }

    /// Tokens of the limits that the profile states for a route.
    pub(super) fn stated(&self, stored: &Route, route: &Route) -> Arc<Vec<TokenBatch>> {
        let name = stated_name(stored);
        let mut stated = self.stated.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if let Some(known) = stated.get_mut(&name) {
            known.used = now;
            return Arc::clone(&known.batches);
        }
        let of_bucket = TokenBatch::of_bucket(&name, route, &self.profile, &self.prefix);
        let batches = Arc::new(of_bucket);
        let mut share = self.share();
        let is_full = stated.len() >= self.settings.bounds.buckets_max;
        if !batches.is_empty() && !is_full && share.grow() {
            stated.insert(name, Stated { batches: Arc::clone(&batches), used: now, _share: share });
        }
        batches
    }

    /// Counts a request that is about to wait.
    pub(super) fn enter(self: &Arc<Self>, claim: &Claim) -> Result<WaitingCount, Refusal> {
        let count = WaitingCount { ledger: Arc::clone(self), bytes: claim.bytes };
        let waiting = self.waiting.fetch_add(1, Ordering::AcqRel);
        let bytes = self.waiting_bytes.fetch_add(claim.bytes, Ordering::AcqRel);
        self.settings.bounds.room_for(claim, waiting, bytes).map(|()| count)
    }

    /// Whether claims go to the store.
    pub(super) fn is_home(&self) -> bool {
        let is_home = *self.served.borrow() == Served::Store;
        if is_home && !self.client.is_up() {
            self.served.send_replace(Served::Here);
        }
        is_home && self.client.is_up()
    }

    /// Whether no request waits or is under way.
    pub(super) fn is_quiet(&self) -> bool {
        self.groups().iter().all(|group| group.is_quiet())
    }

    /// Requests come again: from now on the others are to notice soon if this process dies.
    pub(super) fn rouse(self: &Arc<Self>) {
        if self.rests.swap(false, Ordering::AcqRel) {
            let ledger = Arc::clone(self);
            self.runtime.spawn(async move { super::upkeep::beat(&ledger).await });
        }
    }

    /// Whether the store answers again within the time that a call may take.
    pub(super) async fn is_back_soon(&self) -> bool {
        let mut changes = self.client.changes();
        tokio::time::timeout(self.settings.timeout, changes.up()).await.unwrap_or(false)
    }

    /// Asks the store to put a call's documents in the place of those that it was computed from.
    pub(super) async fn commit(&self, group: &Group, call: Call) -> Result<Reply, Failure> {
        let mut args: Vec<Vec<u8>> = Vec::with_capacity(16);
        let number = |number: u128| number.to_string().into_bytes();
        let [account, group_version] = call.expected;
        args.extend([account, group_version]);
        args.push(number(u128::from(call.now.as_nanos() / 1_000)));
        args.push(number(call.blocked.as_nanos().div_ceil(1_000_000)));
        args.extend(call.written.into_iter().map(Option::unwrap_or_default));
        args.push(number(call.kept.as_millis().max(1)));
        args.push(number(u128::from(self.settings.lease_ms())));
        args.push(self.prefix.wake_channel().into_bytes());
        args.push(number(call.messages.len() as u128));
        for (process, message) in &call.messages {
            args.push(format!("{process:016x}").into_bytes());
            args.push(text_of(&group.name, message).into_bytes());
        }
        if self.has_old_clients() {
            args.extend(call.counter.arguments(call.now));
        }
        let sent = Instant::now();
        let value = self.client.run(script::commit(), &group.keys.0, &args).await?;
        let got = Instant::now();
        let (server_us, reply) = read_reply(&value)
            .ok_or_else(|| Failure::rejected(format!("a commit was answered {value:?}")))?;
        self.clock.note(server_us, sent, got);
        Ok(reply)
    }

    /// The upstream's name for the bucket of a route was told.
    pub(super) fn named(self: &Arc<Self>, route: &Route, name: &str) {
        let is_first = self.names.get(route.shape()).is_none();
        // A name that alternates is not worth a message each time: the documents have it.
        if self.names.learn(route.shape(), name) && is_first {
            let (ledger, shape, name) =
                (Arc::clone(self), route.shape().to_owned(), name.to_owned());
            self.runtime.spawn(async move { ledger.names.tell(&ledger, &shape, &name).await });
        }
    }

    /// What changed by answers to this process, and nobody has asked for yet.
    pub(super) fn changes(&self) -> MutexGuard<'_, VecDeque<Change>> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes what changed by an answer to this process.
    pub(super) fn note_changes(&self, new: Vec<Change>) {
        let mut changes = self.changes();
        changes.extend(new);
        let over = changes.len().saturating_sub(CHANGES_MAX);
        changes.drain(..over);
    }

    /// Makes everybody who waits look again now.
    pub(super) fn wake_all(self: &Arc<Self>) {
        self.groups().iter().for_each(|group| group.refresh(self));
    }

    /// Sends everybody away who waits: the store is gone.
    pub(super) fn dismiss_all(self: &Arc<Self>) {
        for group in self.groups() {
            group.dismiss(self, |_| true, || ClaimResult::StoreGone);
        }
    }

    /// Forgets what nobody has used for a while.
    pub(super) fn forget_idle(&self) {
        let idle = self.share().idle(self.settings.bounds.idle);
        self.local.tend();
        self.lock_groups()
            .retain(|_, group| Arc::strong_count(group) > 1 || !group.is_forgettable(idle));
        let mut stated = self.stated.lock().unwrap_or_else(PoisonError::into_inner);
        stated.retain(|_, it| Arc::strong_count(&it.batches) > 1 || it.used.elapsed() < idle);
    }
}

/// `{ 1, microseconds }`, or `{ 0, microseconds, blocked, documents, counter, its end, limit }`.
fn read_reply(value: &Value) -> Option<(u64, Reply)> {
    let Value::Array(parts) = value else { return None };
    let [Value::Int(done), Value::Int(server_us), rest @ ..] = &parts[..] else { return None };
    let server_us = u64::try_from(*server_us).ok()?;
    if *done == 1 {
        return Some((server_us, Reply::Done));
    }
    let [Value::Int(blocked_ms), account, group, counter, Value::Int(ends_ms), limit] = rest else {
        return None;
    };
    let bytes = |value: &Value| match value {
        Value::BulkString(bytes) => bytes.clone(),
        _ => Vec::new(),
    };
    let whole = |value: &Value| Option::<i64>::from_redis_value_ref(value).ok().flatten();
    let millis = |ms: i64| Duration::from_millis(u64::try_from(ms).unwrap_or(0));
    let reply = Reply::Conflict {
        account: bytes(account),
        group: bytes(group),
        blocked: millis(*blocked_ms),
        counter: Counter {
            left: whole(counter),
            // From when the script ran: a reply that is slow makes no window longer.
            until: (*ends_ms >= 0)
                .then(|| Timestamp::from_millis(server_us / 1_000).after(millis(*ends_ms))),
            limit: whole(limit),
        },
    };
    Some((server_us, reply))
}

/// `<group> \n g \n <numbers, by spaces>`, or `<group> \n l \n <milliseconds>`.
fn text_of(group: &str, message: &Message) -> String {
    match message {
        Message::Granted(numbers) => {
            let numbers: Vec<String> = numbers.iter().map(u64::to_string).collect();
            format!("{group}\ng\n{}", numbers.join(" "))
        }
        Message::Look(wait) => format!("{group}\nl\n{}", wait.as_micros()),
    }
}

/// The group and what is said about it.
pub(super) fn read_message(text: &str) -> Option<(&str, Message)> {
    let mut parts = text.rsplitn(3, '\n');
    let (said, what, group) = (parts.next()?, parts.next()?, parts.next()?);
    let message = match what {
        "g" => Message::Granted(said.split(' ').filter_map(|it| it.parse().ok()).collect()),
        "l" => Message::Look(Duration::from_micros(said.parse().ok()?)),
        _ => return None,
    };
    Some((group, message))
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
