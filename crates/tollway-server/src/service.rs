//! The service: what decides, and the settings, tokens, queues and pages beside it that every front
//! shares.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use arc_swap::ArcSwap;
use tokio::sync::watch;
use tollway_core::Clock;
use tollway_http::Room;

use crate::auth::{Auth, Refused, WrongTokens};
use crate::config::{Given, Overrides};
use crate::dashboard::{Dashboard, ProxyAdmin};
use crate::descriptors::Domain;
use crate::enforcer::{Backing, Enforcer};
use crate::front::Front;
use crate::metrics::Metrics;
use crate::own_quotas::Keeper;
use crate::queues::Queues;
use crate::quota_streams::QuotaStreams;
use crate::reload::Sighting;
use crate::rules::Rules;
use crate::settings::Settings;
use crate::snapshot_log::SnapshotLog;
use crate::stale::Stale;
use crate::tls::Certificates;
use crate::xds::{Xds, XdsSettings};

/// What every front shares.
pub struct Service {
    pub(crate) enforcer: Enforcer,
    #[cfg(feature = "otlp")]
    traces: Option<crate::traces::Traces>,
    settings: Settings,
    draining: AtomicBool,
    /// Whether those who wait for something to happen must be answered now.
    waits_over: watch::Sender<bool>,
    /// The tokens in force.
    auth: ArcSwap<Auth>,
    pub(crate) stale: Stale,
    pub(crate) snapshots: SnapshotLog,
    /// Held while files are read again, so that what was read last is in force last.
    reloading: Mutex<()>,
    certificates: OnceLock<Arc<Certificates>>,
    pub(crate) origin: Origin,
    queues: Option<Queues>,
    xds: Option<Arc<Xds>>,
    own_quotas: Keeper,
    pub(crate) dashboard: Dashboard,
    /// In how many parts the store splits keys, by policy: it was told when it was opened.
    pub(crate) splits: BTreeMap<String, NonZeroU16>,
    room: Arc<Room>,
    quota_streams: QuotaStreams,
    wrong_tokens: WrongTokens,
}

/// Where the rules come from, to read them again.
#[derive(Clone, Debug, Default)]
pub struct Origin {
    /// The files, in order; a folder stands for the files in it.
    pub files: Vec<PathBuf>,
    /// What was said outside of files, and is read before them.
    pub given: Vec<Given>,
    /// What environment and flags say.
    pub overrides: Overrides,
    /// What the files looked like before they were read: what has changed since is not in force.
    pub seen: Option<Sighting>,
}

impl Service {
    /// A service with these rules, counted in `metrics`; states in `backing`, time by `clock`.
    pub fn new(
        rules: Rules,
        metrics: Metrics,
        backing: Backing,
        clock: Arc<dyn Clock>,
        settings: Settings,
    ) -> Self {
        let room = Room::new(usize::MAX, settings.limits.held_bytes_max as u64);
        let splits = rules.splits().map(|(name, parts)| (name.to_owned(), parts)).collect();
        Self {
            enforcer: Enforcer::new(rules, metrics, backing, clock),
            #[cfg(feature = "otlp")]
            traces: None,
            draining: AtomicBool::new(false),
            waits_over: watch::Sender::new(false),
            auth: ArcSwap::from_pointee(settings.auth.clone()),
            stale: Stale::default(),
            snapshots: SnapshotLog::default(),
            settings,
            reloading: Mutex::default(),
            certificates: OnceLock::new(),
            origin: Origin::default(),
            queues: None,
            xds: None,
            own_quotas: Keeper::default(),
            dashboard: Dashboard::default(),
            splits,
            room: Arc::new(room),
            quota_streams: QuotaStreams::default(),
            wrong_tokens: WrongTokens::default(),
        }
    }

    /// The same service, its store called so in metrics.
    #[must_use]
    pub fn with_store_name(self, store_name: &'static str) -> Self {
        Self { enforcer: self.enforcer.with_store_name(store_name), ..self }
    }

    /// The same service, tracing requests.
    #[cfg(feature = "otlp")]
    #[must_use]
    pub fn with_traces(self, traces: Option<crate::traces::Traces>) -> Self {
        Self { traces, ..self }
    }

    /// Where spans go, if requests are traced.
    #[cfg(feature = "otlp")]
    pub(crate) const fn traces(&self) -> Option<&crate::traces::Traces> {
        self.traces.as_ref()
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

    /// The room for what unfinished requests of all connections hold.
    pub const fn room(&self) -> &Arc<Room> {
        &self.room
    }

    /// The portions of quotas that gateways enforce by themselves.
    pub(crate) const fn quota_streams(&self) -> &QuotaStreams {
        &self.quota_streams
    }

    /// The same service with queues.
    #[must_use]
    pub fn with_queues(self, queues: Queues) -> Self {
        Self { queues: Some(queues), ..self }
    }

    /// The same service, whose quotas for single keys are kept there.
    #[must_use]
    pub fn with_own_quotas(self, own_quotas: Keeper) -> Self {
        Self { own_quotas, ..self }
    }

    /// The same service, whose rules are also pushed by a control plane once it is followed.
    #[must_use]
    pub fn with_xds(self, settings: Option<XdsSettings>) -> Self {
        Self { xds: settings.map(|settings| Arc::new(Xds::new(settings))), ..self }
    }

    /// Takes what a control plane pushes, for as long as this runs; ends at once if there is none.
    pub async fn follow_xds(self: Arc<Self>) {
        if let Some(xds) = self.xds.clone() {
            xds.follow(self).await;
        }
    }

    /// The control plane, if one pushes rules.
    pub(crate) fn xds(&self) -> Option<&Xds> {
        self.xds.as_deref()
    }

    /// Whether new work is wanted: not while it drains, nor before the first rules are there.
    pub(crate) fn is_ready(&self) -> bool {
        !self.is_draining() && self.xds().is_none_or(Xds::is_ready)
    }

    /// Puts the quotas in force that are kept for single keys, and follows what other nodes change.
    /// To be called before the service is asked anything.
    pub async fn start_own_quotas(self: &Arc<Self>) {
        Keeper::start(self).await;
    }

    /// Where quotas for single keys are kept.
    pub(crate) const fn own_quotas(&self) -> &Keeper {
        &self.own_quotas
    }

    /// The queues, if it has any.
    pub(crate) const fn queues(&self) -> Option<&Queues> {
        self.queues.as_ref()
    }

    /// Says which certificates its fronts show, to read them again; the first word counts.
    pub(crate) fn set_certificates(&self, certificates: Arc<Certificates>) {
        let _ = self.certificates.set(certificates);
    }

    /// The certificates that its fronts show, if they speak TLS.
    pub(crate) fn certificates(&self) -> Option<&Certificates> {
        self.certificates.get().map(|certificates| &**certificates)
    }

    /// Waits until nobody else reads files again.
    pub(crate) fn reloading(&self) -> MutexGuard<'_, ()> {
        self.reloading.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts other rules in force. Counts are kept: they are in the store under the policy's name.
    /// What operators have changed stays changed.
    pub(crate) fn replace_rules(&self, rules: Rules) {
        self.enforcer.replace_rules(rules);
        self.stale.set_rules(None);
    }

    /// Puts the domains in force that a control plane has pushed.
    pub(crate) fn replace_pushed(&self, domains: Vec<Domain>) {
        self.enforcer.replace_pushed(domains);
    }

    /// Notes that a reload was refused; the rules in force stay.
    pub(crate) fn refuse_reload(&self, error: String) {
        self.metrics().reloads_failed.add(1);
        self.stale.set_rules(Some(error));
    }

    /// Why the configuration on disk is not in force, or not all of it: a reload that was refused,
    /// certificates that were, or what needs a restart.
    pub(crate) fn reload_error(&self) -> Option<String> {
        let queues = self.queues().and_then(Queues::stale_reason);
        let told: Vec<String> = self.stale.reason().into_iter().chain(queues).collect();
        (!told.is_empty()).then(|| told.join("; "))
    }

    /// The tokens in force. Load them once per request.
    pub fn auth(&self) -> arc_swap::Guard<Arc<Auth>> {
        self.auth.load()
    }

    /// Puts other tokens in force, for every request from now on.
    pub(crate) fn replace_auth(&self, auth: Auth) {
        self.auth.store(Arc::new(auth));
    }

    /// The clock.
    pub(crate) fn clock(&self) -> &dyn Clock {
        self.enforcer.clock()
    }

    /// What is counted.
    pub const fn metrics(&self) -> &Metrics {
        self.enforcer.metrics()
    }

    /// Limits and other settings.
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Notes that somebody has shown a token that nobody knows; what to answer.
    pub(crate) fn wrong_token(&self, peer: IpAddr, front: Front) -> Refused {
        self.metrics().front(front).wrong_tokens.add(1);
        self.wrong_tokens.note(peer, front, self.clock().now())
    }

    /// Looks whether an outage of a store has begun without a call, goes on, or is over.
    pub(crate) fn look_for_outage(&self) {
        self.enforcer.look_for_outage();
        if let Some(queues) = self.queues() {
            queues.look_for_outage();
        }
    }

    /// Says that no new work should come: `/readyz` fails from now on.
    pub(crate) fn drain(&self) {
        self.draining.store(true, Ordering::Release);
    }

    /// Says that whoever waits for something to happen is to be answered that it has not.
    pub(crate) fn end_waits(&self) {
        self.waits_over.send_replace(true);
    }

    /// Waits until no request may wait any more.
    pub(crate) async fn waits_over(&self) {
        // Fails only if the service is gone, and this borrows it.
        let _ = self.waits_over.subscribe().wait_for(|over| *over).await;
    }

    /// Whether the service is about to stop.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// Connections open now, over all fronts.
    pub fn open_connections(&self) -> usize {
        let open = |front| self.metrics().front(front).open.load(Ordering::Relaxed);
        usize::try_from(Front::ALL.into_iter().map(open).sum::<i64>()).unwrap_or(0)
    }
}

impl std::fmt::Debug for Service {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Service").field("settings", &self.settings).finish_non_exhaustive()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use tollway_core::{Policy, Timestamp, VirtualClock};
    use tollway_memory::{Capacity, MemoryStore};

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
