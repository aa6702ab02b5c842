//! The service: rules, store, clock, counts and settings that every front shares.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use arc_swap::ArcSwap;
use tokio::sync::watch;
use tollgate_core::{Clock, Store, Timestamp};
use tollgate_http::Room;
use tollgate_memory::MemoryStore;

use crate::adhoc::AdHoc;
use crate::amendments::{Amendments, NoRoom};
use crate::auth::{Auth, Refused, WrongTokens};
use crate::config::Overrides;
use crate::dashboard::{Dashboard, ProxyAdmin};
use crate::metrics::{Front, Metrics, Tally};
use crate::outage::{OF_POLICIES, OutageLog};
use crate::queues::Queues;
use crate::rules::Rules;
use crate::settings::Settings;
use crate::stale::Stale;
use crate::tls::Certificates;
use crate::top::{Ranking, Top, ranking};

/// Where states live.
#[derive(Clone)]
pub enum Backing {
    /// In this process.
    Memory(Arc<MemoryStore>),
    /// Elsewhere, shared with other processes.
    Shared(Arc<dyn Store>),
}

/// What every front shares.
pub struct Service {
    rules: ArcSwap<Rules>,
    /// Held while rules are replaced or amended, so that neither loses the other's change.
    changing: Mutex<()>,
    store: Arc<dyn Store>,
    memory: Option<Arc<MemoryStore>>,
    store_name: &'static str,
    outages: OutageLog,
    #[cfg(feature = "otlp")]
    traces: Option<crate::traces::Traces>,
    clock: Arc<dyn Clock>,
    metrics: Metrics,
    adhoc_tally: Arc<Tally>,
    settings: Settings,
    draining: AtomicBool,
    /// Whether those who wait for something to happen must be answered now.
    waits_over: watch::Sender<bool>,
    /// The tokens in force.
    auth: ArcSwap<Auth>,
    stale: Stale,
    /// Held while files are read again, so that what was read last is in force last.
    reloading: Mutex<()>,
    certificates: OnceLock<Arc<Certificates>>,
    tops: Mutex<Vec<Arc<Mutex<Tops>>>>,
    origin: Origin,
    queues: Option<Queues>,
    dashboard: Dashboard,
    room: Arc<Room>,
    wrong_tokens: WrongTokens,
}

/// Where the rules come from, to read them again.
#[derive(Clone, Debug, Default)]
pub struct Origin {
    /// The files, in order.
    pub files: Vec<PathBuf>,
    /// What environment and flags say.
    pub overrides: Overrides,
}

/// The most frequent keys of one worker.
#[derive(Debug, Default)]
pub struct Tops {
    allowed: Top,
    denied: Top,
}

impl Tops {
    /// Counts a decision on `key`.
    #[inline]
    pub fn see(&mut self, is_allowed: bool, key: &[u8], now: Timestamp) {
        if is_allowed { self.allowed.see(key, now) } else { self.denied.see(key, now) }
    }
}

impl Service {
    /// A service with these rules, counted in `metrics`; states in `backing`, time by `clock`.
    #[must_use]
    pub fn new(
        rules: Rules,
        metrics: Metrics,
        backing: Backing,
        clock: Arc<dyn Clock>,
        settings: Settings,
    ) -> Self {
        let (store, memory): (Arc<dyn Store>, _) = match backing {
            Backing::Memory(memory) => (Arc::clone(&memory) as _, Some(memory)),
            Backing::Shared(store) => (store, None),
        };
        metrics.reloaded(clock.now());
        let room = Room::new(usize::MAX, settings.limits.held_bytes_max as u64);
        Self {
            rules: ArcSwap::from_pointee(rules),
            changing: Mutex::default(),
            store,
            store_name: if memory.is_some() { "memory" } else { "shared" },
            outages: OutageLog::new(OF_POLICIES),
            #[cfg(feature = "otlp")]
            traces: None,
            memory,
            adhoc_tally: metrics.tally("", AdHoc::NAME),
            metrics,
            clock,
            draining: AtomicBool::new(false),
            waits_over: watch::Sender::new(false),
            auth: ArcSwap::from_pointee(settings.auth.clone()),
            stale: Stale::default(),
            settings,
            reloading: Mutex::default(),
            certificates: OnceLock::new(),
            tops: Mutex::default(),
            origin: Origin::default(),
            queues: None,
            dashboard: Dashboard::default(),
            room: Arc::new(room),
            wrong_tokens: WrongTokens::default(),
        }
    }

    /// The same service, its store called so in metrics.
    #[must_use]
    pub fn with_store_name(self, store_name: &'static str) -> Self {
        Self { store_name, ..self }
    }

    /// The same service, tracing requests.
    #[cfg(feature = "otlp")]
    #[must_use]
    pub fn with_traces(self, traces: Option<crate::traces::Traces>) -> Self {
        Self { traces, ..self }
    }

    /// Where spans go, if requests are traced.
    #[cfg(feature = "otlp")]
    #[must_use]
    pub const fn traces(&self) -> Option<&crate::traces::Traces> {
        self.traces.as_ref()
    }

    /// What the store is called in metrics.
    #[must_use]
    pub const fn store_name(&self) -> &'static str {
        self.store_name
    }

    /// The same service, whose rules can be read again from `origin`.
    #[must_use]
    pub fn with_origin(self, origin: Origin) -> Self {
        Self { origin, ..self }
    }

    /// The same service, whose dashboard shows the buckets of a proxy too.
    #[must_use]
    pub fn with_proxy_admin(self, proxy: Option<ProxyAdmin>) -> Self {
        Self { dashboard: Dashboard::new(proxy), ..self }
    }

    /// What the dashboard knows.
    #[must_use]
    pub const fn dashboard(&self) -> &Dashboard {
        &self.dashboard
    }

    /// The room for what unfinished requests of all connections hold.
    #[must_use]
    pub const fn room(&self) -> &Arc<Room> {
        &self.room
    }

    /// The same service with queues.
    #[must_use]
    pub fn with_queues(self, queues: Queues) -> Self {
        Self { queues: Some(queues), ..self }
    }

    /// The queues, if it has any.
    #[must_use]
    pub const fn queues(&self) -> Option<&Queues> {
        self.queues.as_ref()
    }

    /// Where the rules come from.
    #[must_use]
    pub const fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Says which certificates its fronts show, to read them again; the first word counts.
    pub(crate) fn set_certificates(&self, certificates: Arc<Certificates>) {
        let _ = self.certificates.set(certificates);
    }

    /// The certificates that its fronts show, if they speak TLS.
    #[must_use]
    pub fn certificates(&self) -> Option<&Certificates> {
        self.certificates.get().map(|certificates| &**certificates)
    }

    /// Waits until nobody else reads files again.
    pub(crate) fn reloading(&self) -> MutexGuard<'_, ()> {
        self.reloading.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The rules in force. Load them once per request, or once per batch.
    #[must_use]
    pub fn rules(&self) -> Arc<Rules> {
        self.rules.load_full()
    }

    /// The rules in force, for as long as one request or one batch: without touching the count of
    /// their owners, which all workers share.
    #[must_use]
    pub(crate) fn rules_at_hand(&self) -> arc_swap::Guard<Arc<Rules>> {
        self.rules.load()
    }

    /// Puts other rules in force. Counts of policies that stay the same are kept: they are in the
    /// store under the policy's own identity. What operators have changed stays changed.
    pub fn replace_rules(&self, rules: Rules) {
        let changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let amendments = Arc::clone(self.rules().amendments());
        self.rules.store(Arc::new(rules.amended(amendments)));
        drop(changing);
        self.metrics.reloaded(self.clock.now());
        self.stale.set_rules(None);
    }

    /// Changes what operators have changed, for every request from now on.
    ///
    /// # Errors
    ///
    /// If there is no room for the change; then nothing is changed.
    pub fn amend(
        &self,
        change: impl FnOnce(&mut Amendments) -> Result<(), NoRoom>,
    ) -> Result<(), NoRoom> {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let rules = self.rules();
        let mut amendments = Amendments::clone(rules.amendments());
        change(&mut amendments)?;
        self.rules.store(Arc::new(rules.amended(Arc::new(amendments))));
        Ok(())
    }

    /// Notes that a reload was refused; the rules in force stay.
    pub fn refuse_reload(&self, error: String) {
        self.metrics.reloads_failed.add(1);
        self.stale.set_rules(Some(error));
    }

    /// Why the configuration on disk is not in force, or not all of it: a reload that was refused,
    /// certificates that were, or what needs a restart.
    #[must_use]
    pub fn reload_error(&self) -> Option<String> {
        self.stale.reason()
    }

    /// What of the configuration on disk is not in force.
    pub(crate) const fn stale(&self) -> &Stale {
        &self.stale
    }

    /// The tokens in force. Load them once per request.
    #[must_use]
    pub fn auth(&self) -> arc_swap::Guard<Arc<Auth>> {
        self.auth.load()
    }

    /// Puts other tokens in force, for every request from now on.
    pub fn replace_auth(&self, auth: Auth) {
        self.auth.store(Arc::new(auth));
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Whether the store answers, and since when it does not.
    #[must_use]
    pub const fn outages(&self) -> &OutageLog {
        &self.outages
    }

    /// The store, if it is in this process.
    #[must_use]
    pub fn memory(&self) -> Option<&MemoryStore> {
        self.memory.as_deref()
    }

    /// The clock.
    #[must_use]
    pub fn clock(&self) -> &dyn Clock {
        &*self.clock
    }

    /// What is counted.
    #[must_use]
    pub const fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Where decisions on policies that come with requests are counted.
    pub(crate) fn adhoc_tally(&self) -> &Tally {
        &self.adhoc_tally
    }

    /// Limits and other settings.
    #[must_use]
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Notes that somebody has shown a token that nobody knows; what to answer.
    pub(crate) fn wrong_token(&self, peer: IpAddr, front: Front) -> Refused {
        self.metrics.front(front).wrong_tokens.add(1);
        self.wrong_tokens.note(peer, front, self.clock.now())
    }

    /// Says that no new work should come: `/readyz` fails from now on.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Release);
    }

    /// Says that whoever waits for something to happen is to be answered that it has not.
    pub fn end_waits(&self) {
        self.waits_over.send_replace(true);
    }

    /// Waits until no request may wait any more.
    pub(crate) async fn waits_over(&self) {
        // Fails only if the service is gone, and this borrows it.
        let _ = self.waits_over.subscribe().wait_for(|over| *over).await;
    }

    /// Whether the service is about to stop.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// Connections open now, over all fronts.
    #[must_use]
    pub fn open_connections(&self) -> usize {
        let open = |front| self.metrics.front(front).open.load(Ordering::Relaxed);
        usize::try_from(Front::ALL.into_iter().map(open).sum::<i64>()).unwrap_or(0)
    }

    /// The most frequent keys of the last minutes: allowed, denied.
    #[must_use]
    pub fn top(&self, most: usize) -> (Ranking, Ranking) {
        let now = self.clock.now();
        let workers = self.tops.lock().unwrap_or_else(PoisonError::into_inner);
        let locked: Vec<_> = workers
            .iter()
            .map(|tops| tops.lock().unwrap_or_else(PoisonError::into_inner))
            .collect();
        let allowed = ranking(locked.iter().map(|tops| &tops.allowed), most, now);
        let denied = ranking(locked.iter().map(|tops| &tops.denied), most, now);
        (allowed, denied)
    }

    /// A top list for one more worker.
    pub(crate) fn new_tops(&self) -> Arc<Mutex<Tops>> {
        let tops = Arc::default();
        self.tops.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&tops));
        tops
    }
}

impl std::fmt::Debug for Service {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Service").field("settings", &self.settings).finish_non_exhaustive()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use tollgate_core::{Policy, VirtualClock};
    use tollgate_memory::Capacity;

    use super::*;
    use crate::rules::{Lists, Rule, RuleOptions};

    /// A service in memory with the policy `api`, five per second, at a time that stands still.
    pub(crate) fn service() -> Arc<Service> {
        service_at(Arc::new(VirtualClock::at(Timestamp::from_millis(1_000_000))))
    }

    /// The same with a clock of the caller's.
    pub(crate) fn service_at(clock: Arc<VirtualClock>) -> Arc<Service> {
        let metrics = Metrics::default();
        let policy = Policy::parse("api", "5/s").unwrap();
        let rule = Rule::new(policy, metrics.tally("", "api"), RuleOptions::default());
        let rules = Rules::new(vec![rule], Vec::new(), Lists::default(), false);
        service_with(rules, metrics, Settings::default(), clock)
    }

    /// A service in memory with rules and settings of the caller's.
    pub(crate) fn service_with(
        rules: Rules,
        metrics: Metrics,
        settings: Settings,
        clock: Arc<VirtualClock>,
    ) -> Arc<Service> {
        let memory = Backing::Memory(Arc::new(MemoryStore::new(Capacity::keys(1_000))));
        Arc::new(Service::new(rules, metrics, memory, clock, settings))
    }
}
