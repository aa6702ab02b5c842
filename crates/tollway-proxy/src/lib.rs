//! Budgets in front of an upstream: a streaming reverse proxy for clients in any language.
//!
//! ```text
//!  client ─► listener ─► forward ─► Ledger of the credential ─► pool ─► upstream
//!                │           └─ guard, caches of 401 and 404, room
//!  operator ─► listener of their own, or a prefix ─► admin: health, metrics, buckets
//! ```
//!
//! **Invariants.** Bodies are never whole in memory. A request leaves only with a permit and within
//! its deadline; one that cannot is refused at once, with the wait that would help. Credentials are
//! hashed on arrival, and neither logged nor shown. Every table, queue and wait is bounded. hyper
//! frames messages on both sides, so a client's unusual framing is never passed on.
//!
//! Deliberately absent: tunnels by CONNECT, upgrades to anything but WebSocket (the field ends
//! here, as RFC 9110 lets it), caching, rewriting of bodies, and `X-Forwarded-For`: the upstream
//! sees one client, the proxy.

#![forbid(unsafe_code)]

/// The program of the README is compiled and run with the tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

mod access;
mod admin;
mod body;
mod credential;
mod events;
mod exchange;
mod fields;
mod forward;
mod guard;
mod labelled;
mod listen;
mod metrics;
mod models;
mod not_found_cache;
mod page;
mod reachability;
mod refusal;
mod settings;
mod store;
mod tunnel;
mod upload;
mod usage;

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;

pub use credential::{CredentialId, OpenLedger};
pub use guard::Guard;
pub use models::{ModelBudgets, ModelRules, ModelRulesError};
pub use settings::{Admin, Settings, Upstream, UpstreamError};
pub use store::SharedStore;
pub use tollway_http::connect::Versions;

use credential::Accounts;
use events::Events;
use labelled::Labelled;
use metrics::Metrics;
use not_found_cache::NotFoundCache;
use reachability::Reachability;
use store::Watched;
use tollway_core::outages::OutageEvent;
use tollway_http::Room;
use tollway_http::connect::{self, Pool};
use tollway_upstream::profile::Profile;

/// Idle connections that are kept to the upstream.
const IDLE_MAX: usize = 256;

/// How often a guard looks what other processes have counted.
const GUARD_EVERY: Duration = Duration::from_secs(2);

/// What a proxy is made of.
pub struct Parts {
    /// Where requests go.
    pub upstream: Upstream,
    /// How the upstream speaks of its limits.
    pub profile: Arc<Profile>,
    /// Opens the ledger of each credential.
    pub ledgers: OpenLedger,
    /// The budget of invalid requests, if the upstream bans for them.
    pub guard: Option<Guard>,
    /// Budgets of language models, if there are any.
    pub models: Option<ModelBudgets>,
    /// Roots to trust instead of the system's, in PEM.
    pub roots_pem: Option<Vec<u8>>,
    /// Bounds and times.
    pub settings: Settings,
}

/// A proxy that listens until it is drained, or dropped.
pub struct Proxy {
    state: Arc<State>,
    stop: watch::Sender<bool>,
    tasks: Vec<JoinHandle<()>>,
    /// Tasks that look at the store and at the guard; they end with the proxy.
    background: Vec<JoinHandle<()>>,
}

/// What all requests share.
struct State {
    settings: Settings,
    upstream: Upstream,
    profile: Arc<Profile>,
    pool: Pool<upload::LentBody>,
    /// Connections that can go on with another protocol: HTTP/1.1 alone.
    upgrade_pool: Pool<upload::LentBody>,
    reachability: Arc<Reachability>,
    accounts: Accounts,
    guard: Option<Arc<Guard>>,
    models: Option<Arc<ModelBudgets>>,
    missing: NotFoundCache,
    room: Arc<Room>,
    /// Places for tunnels.
    tunnels: Arc<Semaphore>,
    /// Places for uploads that nobody wants.
    discards: Arc<Semaphore>,
    metrics: Metrics,
    labelled: Labelled,
    events: Events,
    /// The store that is shared, if one is and is watched.
    store: OnceLock<Arc<Watched>>,
    connections: AtomicUsize,
    stopping: watch::Receiver<bool>,
}

impl Proxy {
    /// A proxy that does not listen yet. Needs a tokio runtime around it.
    ///
    /// # Errors
    ///
    /// If the roots to trust cannot be read.
    pub fn new(parts: Parts) -> io::Result<Self> {
        let Parts { upstream, profile, ledgers, guard, models, roots_pem, settings } = parts;
        let options = connect::Options {
            versions: settings.versions,
            roots_pem: roots_pem.as_deref(),
            unix: None,
            timeout: settings.connect_timeout,
            idle_max: IDLE_MAX,
            identity: None,
            server_name: None,
        };
        let connector = connect::connector(&options)?;
        let upgrades = connect::Options { versions: Versions::Http1, ..options };
        let (stop, stopping) = watch::channel(false);
        let guard = guard.map(Arc::new);
        let background = guard.iter().map(|guard| tokio::spawn(keep_fresh(Arc::clone(guard))));
        let mut background: Vec<JoinHandle<()>> = background.collect();
        let state = State {
            pool: connect::pool_of(connector.clone(), &options),
            upgrade_pool: connect::pool(&upgrades)?,
            tunnels: Arc::new(Semaphore::new(settings.tunnels_max)),
            reachability: Arc::new(Reachability::new(connector, upstream.root())),
            discards: Arc::new(Semaphore::new(upload::DISCARDS_MAX)),
            accounts: Accounts::new(ledgers, settings.credentials_max),
            missing: NotFoundCache::default(),
            room: Arc::new(Room::new(settings.requests_max, settings.held_bytes_max)),
            metrics: Metrics::default(),
            labelled: Labelled::default(),
            events: Events::default(),
            store: OnceLock::new(),
            connections: AtomicUsize::new(0),
            settings,
            upstream,
            profile,
            guard,
            models: models.map(Arc::new),
            stopping,
        };
        let state = Arc::new(state);
        background.push(tokio::spawn(events::watch(Arc::clone(&state))));
        Ok(Self { state, stop, tasks: Vec::new(), background })
    }

    /// Looks at the store that proxies share, once a second, to show in the log, in metrics, on the
    /// page and in `/readyz` whether it answers. Does nothing if a store is watched already.
    pub fn watch_store(&mut self, store: Arc<dyn SharedStore>) {
        let watched = Arc::new(Watched::new(store));
        if self.state.store.set(Arc::clone(&watched)).is_ok() {
            let state = Arc::clone(&self.state);
            let tell = move |turn: &OutageEvent| state.events.store(turn);
            self.background.push(tokio::spawn(store::watch(watched, tell)));
        }
    }

    /// Forwards what comes to `listener`, except for the proxy's own pages if they have a prefix:
    /// every other path is the upstream's.
    pub fn listen(&mut self, listener: TcpListener) {
        let serves = listen::Serves::Proxy;
        self.tasks.push(tokio::spawn(listen::accept(listener, Arc::clone(&self.state), serves)));
    }

    /// Serves the proxy's own pages, and nothing else, on `listener`.
    pub fn listen_admin(&mut self, listener: TcpListener) {
        let serves = listen::Serves::Admin;
        self.tasks.push(tokio::spawn(listen::accept(listener, Arc::clone(&self.state), serves)));
    }

    /// Stops in order: no new connections, requests at work or waiting are finished. Whether all
    /// were in time.
    pub async fn drain(mut self, timeout: Duration) -> bool {
        // Nobody listens only if nobody ever listened.
        let _ = self.stop.send(true);
        let tasks = std::mem::take(&mut self.tasks);
        let aborts: Vec<_> = tasks.iter().map(JoinHandle::abort_handle).collect();
        let all = async {
            for task in tasks {
                let _ = task.await;
            }
        };
        let in_time = tokio::time::timeout(timeout, all).await.is_ok();
        aborts.iter().for_each(tokio::task::AbortHandle::abort);
        in_time
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.tasks.iter().chain(&self.background).for_each(JoinHandle::abort);
    }
}

impl State {
    fn is_stopping(&self) -> bool {
        *self.stopping.borrow()
    }

    fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }
}

async fn keep_fresh(guard: Arc<Guard>) {
    let mut every = tokio::time::interval(GUARD_EVERY);
    every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        every.tick().await;
        // A store that fails says nothing new; the count here goes on.
        let _ = guard.refresh().await;
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy").field("settings", &self.state.settings).finish_non_exhaustive()
    }
}

impl fmt::Debug for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parts").field("upstream", &self.upstream).finish_non_exhaustive()
    }
}
