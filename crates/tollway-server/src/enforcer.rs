//! What decides, shared by all workers: the rules in force, the store, the clock, the counts.
//!
//! ```text
//!   front --rules()--> Rules --ask--> Ask --+
//!         --decider(rules), reads the clock --> Decider --check(asks)--> Store
//!                                                  `--> metrics, top keys
//! ```
//!
//! Rules are never changed, only replaced: a reload or an operator's change makes new ones, and a
//! request that began under the old ones ends under them. A [`Decider`] is the enforcer for one
//! request: the rules were loaded once and the clock was read once, and both are used for the
//! answer.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use tollway_core::{Clock, Store, Timestamp};
use tollway_memory::MemoryStore;

use crate::adhoc::AdHoc;
use crate::decide::Decider;
use crate::descriptors::Domain;
use crate::durable::DurableStore;
use crate::metrics::{Exposition, Metrics, Tally};
use crate::outage::{OF_POLICIES, OutageLog};
use crate::own_quotas::{OwnQuotas, millis};
use crate::rules::Rules;
use crate::settings::Settings;
use crate::shared_usage::UsageStore;
use crate::top::{Ranking, Record, Seen, Tops, rankings};

/// Where states live.
#[derive(Clone)]
pub enum Backing {
    /// In this process.
    Memory(Arc<MemoryStore>),
    /// In this process; those of durable policies in a file, too.
    Durable(Arc<DurableStore>),
    /// Elsewhere, shared with other processes.
    Shared(Arc<dyn Store>),
    /// Elsewhere; with what keys of durable policies used.
    SharedWithUsage(Arc<UsageStore>),
}

/// The rules in force and everything that decisions under them need.
pub(crate) struct Enforcer {
    rules: ArcSwap<Rules>,
    /// Held while rules are replaced or an operator changes something, so that neither loses what
    /// the other did.
    changing: Mutex<()>,
    store: Arc<dyn Store>,
    memory: Option<Arc<MemoryStore>>,
    durable: Option<Arc<DurableStore>>,
    shared_usage: Option<Arc<UsageStore>>,
    store_name: &'static str,
    outages: OutageLog,
    clock: Arc<dyn Clock>,
    metrics: Metrics,
    adhoc_tally: Arc<Tally>,
    tops: Mutex<Vec<Arc<Mutex<Tops>>>>,
}

/// Before the rules are in force: whoever is still asked under those before must not be taken for
/// the newer ones.
fn renew(store: &dyn Store, rules: &Rules, now: Timestamp) {
    store.renew(&rules.policies().collect::<Vec<_>>(), now);
}

impl Enforcer {
    /// Rules, counted in `metrics`; states in `backing`, time by `clock`.
    pub(crate) fn new(
        rules: Rules,
        metrics: Metrics,
        backing: Backing,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let shared_usage = match &backing {
            Backing::SharedWithUsage(store) => Some(Arc::clone(store)),
            _ => None,
        };
        let (store, memory, durable): (Arc<dyn Store>, _, _) = match backing {
            Backing::Memory(memory) => (Arc::clone(&memory) as _, Some(memory), None),
            Backing::Durable(durable) => {
                let memory = Arc::clone(durable.memory());
                (Arc::clone(&durable) as _, Some(memory), Some(durable))
            }
            Backing::Shared(store) => (store, None, None),
            Backing::SharedWithUsage(store) => (store, None, None),
        };
        metrics.reloaded(clock.now());
        renew(&*store, &rules, clock.now());
        Self {
            rules: ArcSwap::from_pointee(rules),
            changing: Mutex::default(),
            store,
            store_name: if memory.is_some() { "memory" } else { "shared" },
            outages: OutageLog::new(OF_POLICIES),
            memory,
            durable,
            shared_usage,
            adhoc_tally: metrics.tally("", AdHoc::NAME),
            metrics,
            clock,
            tops: Mutex::default(),
        }
    }

    /// The same, its store called so in metrics.
    pub(crate) fn with_store_name(self, store_name: &'static str) -> Self {
        Self { store_name, ..self }
    }

    /// What the store is called in metrics.
    pub(crate) const fn store_name(&self) -> &'static str {
        self.store_name
    }

    /// The rules in force. Load them once per request, or once per batch.
    pub(crate) fn rules(&self) -> Arc<Rules> {
        self.rules.load_full()
    }

    /// The rules in force, for as long as one request or one batch: without touching the count of
    /// their owners, which all workers share.
    pub(crate) fn rules_at_hand(&self) -> arc_swap::Guard<Arc<Rules>> {
        self.rules.load()
    }

    /// Puts other rules in force. What operators have changed stays changed.
    pub(crate) fn replace_rules(&self, rules: Rules) {
        let changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.rules();
        self.put_anew(&before, &rules.with_pushed_of(&before));
        drop(changing);
        self.metrics.reloaded(self.clock.now());
    }

    /// Puts the domains in force that a control plane has pushed, in place of those before.
    pub(crate) fn replace_pushed(&self, domains: Vec<Domain>) {
        let changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.rules();
        self.put_anew(&before, &before.with_pushed(domains));
        drop(changing);
        drop(before);
        self.metrics.forget_unused();
    }

    /// Puts rules in force with the quotas of one's own that were in force before.
    fn put_anew(&self, before: &Rules, rules: &Rules) {
        let own = before.own_quotas().anew(rules, millis(self.clock.now()));
        self.put_in_force(rules.with_own_quotas(Arc::new(own)));
    }

    fn put_in_force(&self, rules: Rules) {
        renew(&*self.store, &rules, self.clock.now());
        self.rules.store(Arc::new(rules));
    }

    /// Changes the quotas that single keys and patterns have, for every request from now on, as
    /// `change` says of those in force, the rules and the time in milliseconds.
    pub(crate) fn change_own_quotas(
        &self,
        change: impl FnOnce(&OwnQuotas, &Rules, u64) -> OwnQuotas,
    ) {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let rules = self.rules();
        let own = change(rules.own_quotas(), &rules, millis(self.clock.now()));
        self.put_in_force(rules.with_own_quotas(Arc::new(own)));
    }

    /// The store.
    pub(crate) fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Whether the store answers, and since when it does not.
    pub(crate) const fn outages(&self) -> &OutageLog {
        &self.outages
    }

    /// The store, if it is in this process.
    pub(crate) fn memory(&self) -> Option<&MemoryStore> {
        self.memory.as_deref()
    }

    /// The counts that are kept in a file, if there are any.
    pub(crate) fn durable(&self) -> Option<&DurableStore> {
        self.durable.as_deref()
    }

    /// The store elsewhere that keeps what keys used, if there is one.
    pub(crate) fn shared_usage(&self) -> Option<&UsageStore> {
        self.shared_usage.as_deref()
    }

    /// The clock.
    pub(crate) fn clock(&self) -> &dyn Clock {
        &*self.clock
    }

    /// What is counted.
    pub(crate) const fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Where decisions on policies that come with requests are counted.
    pub(crate) const fn adhoc_tally(&self) -> &Arc<Tally> {
        &self.adhoc_tally
    }

    /// Notes that the store did not answer for so many charges.
    pub(crate) fn note_outage(&self, charges: u64) {
        let told = || self.store.outage();
        self.outages.failed(self.store_name, told, charges, self.clock.now());
    }

    /// Writes what is known of the store.
    pub(crate) fn write_store(&self, text: &mut Exposition) {
        let help = "Whether the store answers; without it each policy's on_store_error does.";
        self.outages.write(("tollway_store_up", help), &[("store", self.store_name)], text);
        let help = "Calendar windows found that a process with other time zone data has opened.";
        let windows = self.store.windows_by_other_rules();
        text.counter("tollway_windows_by_other_zone_data_total", help, windows);
    }

    /// Looks whether an outage has begun without a call, goes on, or is over.
    pub(crate) fn look_for_outage(&self) {
        if self.memory.is_none() || self.durable.is_some() {
            self.outages.look(self.store_name, self.store.outage().as_ref(), self.clock.now());
        }
    }

    /// Decides one request, or one batch, under these rules as of now. What is decided is counted
    /// for the worker that has `tops`.
    pub(crate) fn decider<'a>(
        &'a self,
        rules: &'a Rules,
        settings: &'a Settings,
        tops: &'a Mutex<Tops>,
    ) -> Decider<'a> {
        Decider { enforcer: self, settings, tops, rules, now: self.clock.now() }
    }

    /// The most frequent keys of the last minutes: allowed, denied.
    pub(crate) fn top(&self, most: usize) -> [Ranking; 2] {
        let now = self.clock.now();
        self.with_tops(|tops| rankings(tops.iter().map(|tops| &**tops), most, now))
    }

    /// How often `key` was allowed and denied in the last minutes, and its last denials, the latest
    /// first.
    pub(crate) fn seen(&self, key: &[u8]) -> ([Seen; 2], Vec<Record>) {
        let now = self.clock.now();
        self.with_tops(|workers| {
            let seen = workers.iter().map(|tops| tops.seen(key, now));
            let seen = seen.fold(Default::default(), |[a, d]: [Seen; 2], [allowed, denied]| {
                [a.plus(allowed), d.plus(denied)]
            });
            let mut denials: Vec<Record> =
                workers.iter().flat_map(|tops| tops.denials(key)).collect();
            denials.sort_by_key(|denial| std::cmp::Reverse(denial.at));
            (seen, denials)
        })
    }

    /// Looks at what all workers have counted by key.
    fn with_tops<T>(&self, look: impl FnOnce(&[MutexGuard<'_, Tops>]) -> T) -> T {
        let workers = self.tops.lock().unwrap_or_else(PoisonError::into_inner);
        let locked: Vec<_> = workers
            .iter()
            .map(|tops| tops.lock().unwrap_or_else(PoisonError::into_inner))
            .collect();
        look(&locked)
    }

    /// A top list for one more worker.
    pub(crate) fn new_tops(&self) -> Arc<Mutex<Tops>> {
        let tops = Arc::default();
        self.tops.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&tops));
        tops
    }
}
