//! This process among those that share a store: its name, its connections, its messages.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{SystemTime, UNIX_EPOCH};

use redis::{PushInfo, PushKind, Value};
use tokio::sync::mpsc;
use tollway_core::{Outage, StoreError};
use tollway_redis::connection::{Client, ClientSettings, Dialer, Proof};

use super::keys::{Prefix, RENAMED, WAKE};
use super::ledger_state::{LedgerState, read_message};
use super::peers::Peers;
use super::{GlobalRate, RedisLedger, Settings, names, peers, upkeep};
use crate::profile::Profile;

/// This process among those that share a store. One for each store; ledgers of many credentials.
///
/// On one server all credentials share a connection. In a cluster each has its own, to the server
/// that holds its keys.
#[derive(Clone)]
pub struct Fleet(Arc<Inner>);

struct Inner {
    url: String,
    process: Arc<str>,
    settings: Settings,
    permits: Arc<AtomicU64>,
    peers: Peers,
    /// Of what says who is in the fleet.
    prefix: Prefix,
    pushes: mpsc::UnboundedSender<PushInfo>,
    /// By prefix in a cluster, one otherwise.
    clients: tokio::sync::Mutex<HashMap<String, Arc<Client>>>,
    /// The same, to look at without waiting for one that connects.
    known_clients: Mutex<Vec<Weak<Client>>>,
    failures: Arc<AtomicU64>,
    ledgers: Arc<Mutex<HashMap<Prefix, Weak<LedgerState>>>>,
}

impl Fleet {
    /// A process that shares budgets through the store at `url`: `redis://`, `rediss://`,
    /// `redis+unix://`, `redis+sentinel://…/name` or `redis+cluster://…`.
    ///
    /// # Errors
    ///
    /// If the store cannot be reached, unless the settings of the store say to start without.
    pub async fn connect(url: &str, settings: Settings) -> Result<Self, StoreError> {
        let (pushes, inbox) = mpsc::unbounded_channel();
        let ledgers = Arc::new(Mutex::default());
        let process = new_name();
        let prefix = Prefix::named(&settings.fleet);
        let peers = Peers::new(&process, settings.processes_min);
        let of_fleet = (prefix.clone(), peers.clone());
        tokio::spawn(dispatch(inbox, Arc::clone(&ledgers), of_fleet));
        let fleet = Self(Arc::new(Inner {
            url: url.to_owned(),
            peers,
            prefix,
            process: process.into(),
            settings,
            permits: Arc::new(AtomicU64::new(0)),
            pushes,
            clients: tokio::sync::Mutex::default(),
            known_clients: Mutex::default(),
            failures: Arc::default(),
            ledgers,
        }));
        let client = fleet.client(&Prefix::none()).await?;
        fleet.0.count(&client).await;
        tokio::spawn(keep_up(Arc::downgrade(&fleet.0), client));
        Ok(fleet)
    }

    /// The ledger of a credential. All ledgers of one prefix are one.
    ///
    /// # Errors
    ///
    /// As [`Self::connect`]. Once there is a ledger, it outlives the store's absence.
    pub async fn ledger(
        &self,
        prefix: Prefix,
        profile: Arc<Profile>,
    ) -> Result<RedisLedger, StoreError> {
        if let Some(ledger) = self.known(&prefix) {
            return Ok(RedisLedger::new(ledger));
        }
        let inner = &self.0;
        let client = self.client(&prefix).await?;
        let mut settings = inner.settings.clone();
        settings.global = settings.global.or_else(|| profile.global().map(GlobalRate::of));
        let process = Arc::clone(&inner.process);
        let permits = Arc::clone(&inner.permits);
        let peers = inner.peers.of_credential();
        let own_prefix = prefix.clone();
        let ledger =
            LedgerState::new(client, settings, own_prefix, process, permits, profile, peers);
        let ledger = Arc::new(ledger);
        ledger.names.load(&ledger).await;
        // Before it writes anything: whoever is in a document and not among these is gone.
        upkeep::beat(&ledger).await;
        let mut ledgers = inner.ledgers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(first) = ledgers.get(&prefix).and_then(Weak::upgrade) {
            return Ok(RedisLedger::new(first));
        }
        ledgers.retain(|_, ledger| ledger.strong_count() > 0);
        ledgers.insert(prefix, Arc::downgrade(&ledger));
        drop(ledgers);
        tokio::spawn(upkeep::keep_up(Arc::downgrade(&ledger)));
        Ok(RedisLedger::new(ledger))
    }

    /// The name by which the others know this process.
    #[must_use]
    pub fn process(&self) -> &str {
        &self.0.process
    }

    /// The longest outage of a server of the store that is under way, if there is one.
    #[must_use]
    pub fn outage(&self) -> Option<Outage> {
        let clients = self.0.known_clients.lock().unwrap_or_else(PoisonError::into_inner);
        let told = clients.iter().filter_map(|client| client.upgrade()?.outage().told());
        told.max_by_key(|outage| outage.lasted)
    }

    /// Calls since the start that the store did not answer.
    #[must_use]
    pub fn failures(&self) -> u64 {
        self.0.failures.load(Ordering::Relaxed)
    }

    fn known(&self, prefix: &Prefix) -> Option<Arc<LedgerState>> {
        let ledgers = self.0.ledgers.lock().unwrap_or_else(PoisonError::into_inner);
        ledgers.get(prefix).and_then(Weak::upgrade)
    }

    /// The connection for the keys of a prefix.
    async fn client(&self, prefix: &Prefix) -> Result<Arc<Client>, StoreError> {
        let inner = &self.0;
        let is_cluster = inner.url.split("://").next().is_some_and(|s| s.ends_with("+cluster"));
        let name = if is_cluster { prefix.as_str() } else { "" };
        let mut clients = inner.clients.lock().await;
        if let Some(client) = clients.get(name) {
            return Ok(Arc::clone(client));
        }
        let store = &inner.settings.store;
        let dialer = Dialer::new(&inner.url, prefix.key("global").as_bytes(), store)?;
        let channels = vec![format!("*{WAKE}{}", inner.process), format!("*{RENAMED}")];
        let settings = ClientSettings {
            // There is nothing that may be allowed meanwhile, as a limiter does: a server that
            // takes the subscription, or answers anything, is there.
            connection_proves: Proof::Written,
            answer_proves: Proof::Written,
            subscription: Some((channels, inner.pushes.clone())),
            failures: Arc::clone(&inner.failures),
            ..ClientSettings::new(inner.settings.timeout, store)
        };
        let client = Client::start(dialer, settings, store.start_without).await?;
        let mut known = inner.known_clients.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|client| client.strong_count() > 0);
        known.push(Arc::downgrade(&client));
        drop(known);
        clients.retain(|_, client| Arc::strong_count(client) > 1);
        clients.insert(name.to_owned(), Arc::clone(&client));
        Ok(client)
    }
}

impl fmt::Debug for Fleet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The URL may hold a password.
        f.debug_struct("Fleet").field("process", &self.0.process).finish_non_exhaustive()
    }
}

impl Inner {
    /// Counts the fleet.
    async fn count(&self, client: &Client) {
        if client.is_up()
            && let Some(alive) = upkeep::beat_of_fleet(client, &self.prefix, &self.process).await
        {
            self.peers.are_the_fleet(alive);
        }
    }
}

/// Says that the process is there, as long as it is.
async fn keep_up(fleet: Weak<Inner>, client: Arc<Client>) {
    loop {
        tokio::time::sleep(upkeep::FLEET_BEAT).await;
        let Some(fleet) = fleet.upgrade() else { return };
        fleet.count(&client).await;
    }
}

/// A name that no other process has: random by the system's hasher, apart in time.
fn new_name() -> String {
    use std::hash::{BuildHasher as _, Hasher as _};
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut hasher = std::collections::hash_map::RandomState::new().build_hasher();
    hasher.write_u32(std::process::id());
    hasher.write_u128(now.as_nanos());
    format!("{:016x}", hasher.finish())
}

/// Passes messages on to the ledgers and waiters that they are for.
async fn dispatch(
    mut inbox: mpsc::UnboundedReceiver<PushInfo>,
    ledgers: Arc<Mutex<HashMap<Prefix, Weak<LedgerState>>>>,
    (of_fleet, peers): (Prefix, Peers),
) {
    while let Some(push) = inbox.recv().await {
        let (PushKind::PMessage, [_, Value::BulkString(channel), payload]) =
            (push.kind, &push.data[..])
        else {
            continue;
        };
        let Ok(channel) = std::str::from_utf8(channel) else { continue };
        let at = channel.rfind(WAKE).or_else(|| channel.rfind(RENAMED)).unwrap_or(0);
        let prefix = &channel[..at];
        if prefix == of_fleet.as_str() {
            if let Some(all) = text_of(payload).and_then(peers::read_message) {
                peers.are_the_fleet(all);
            }
            continue;
        }
        let found = {
            let ledgers = ledgers.lock().unwrap_or_else(PoisonError::into_inner);
            let mut of_prefix = ledgers.iter().filter(|(known, _)| known.as_str() == prefix);
            of_prefix.next().and_then(|(_, ledger)| ledger.upgrade())
        };
        let Some(ledger) = found else { continue };
        if channel.ends_with(RENAMED) {
            if let Some((template, name)) = names::read_message(payload) {
                ledger.names.learn(&template, &name);
            }
        } else {
            wake(&ledger, payload);
        }
    }
}

/// What another process says about a group.
fn wake(ledger: &Arc<LedgerState>, payload: &Value) {
    let Some(text) = text_of(payload) else { return };
    if let Some(processes) = peers::read_message(text) {
        ledger.peers.share_it(processes);
    } else if let Some((group, message)) = read_message(text)
        && let Ok(group) = ledger.group(group)
    {
        group.hear(ledger, &message);
    }
}

fn text_of(payload: &Value) -> Option<&str> {
    let Value::BulkString(bytes) = payload else { return None };
    std::str::from_utf8(bytes).ok()
}
