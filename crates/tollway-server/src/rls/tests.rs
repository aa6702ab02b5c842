//! A request is answered by the rules and at the time that it came with.

use std::sync::{Arc, OnceLock};

use tollway_core::{
    Answer, Charge, Grant, ReservationId, Reserved, Settlement, Snapshot, Store, Timestamp,
    Verdict, VirtualClock,
};
use tollway_memory::{Capacity, MemoryStore};

use super::*;
use crate::descriptors::{DescriptorValues, Node};
use crate::enforcer::Backing;
use crate::metrics::Metrics;
use crate::rules::Lists;
use crate::service::Service;
use crate::settings::Settings;

/// A store that is asked while an operator reloads the configuration and time goes by.
#[derive(Debug)]
struct Reloaded {
    memory: MemoryStore,
    clock: Arc<VirtualClock>,
    service: OnceLock<Arc<Service>>,
}

impl Reloaded {
    fn reload(&self) {
        let all_on_trial = Rules::new(Vec::new(), Vec::new(), Lists::default(), true);
        self.service.get().unwrap().replace_rules(all_on_trial);
        self.clock.set(Timestamp::from_millis(1_700_000_030_000));
    }
}

impl Store for Reloaded {
    fn check(&self, charges: &[Charge<'_>], now: Timestamp) -> Answer<Verdict> {
        self.reload();
        Store::check(&self.memory, charges, now)
    }

    fn peek(&self, charges: &[Charge<'_>], now: Timestamp) -> Answer<Verdict> {
        self.reload();
        Store::peek(&self.memory, charges, now)
    }

    fn take(&self, charge: &Charge<'_>, now: Timestamp) -> Answer<Grant> {
        Store::take(&self.memory, charge, now)
    }

    fn refund(&self, charge: &Charge<'_>, now: Timestamp) -> Answer<Snapshot> {
        Store::refund(&self.memory, charge, now)
    }

    fn reset(&self, charge: &Charge<'_>, now: Timestamp) -> Answer<()> {
        Store::reset(&self.memory, charge, now)
    }

    fn reserve(&self, charges: &[Charge<'_>], now: Timestamp) -> Answer<Reserved> {
        Store::reserve(&self.memory, charges, now)
    }

    fn commit(&self, id: ReservationId, costs: &[u64], now: Timestamp) -> Answer<Settlement> {
        Store::commit(&self.memory, id, costs, now)
    }

    fn cancel(&self, reservation: ReservationId, now: Timestamp) -> Answer<Settlement> {
        Store::cancel(&self.memory, reservation, now)
    }

    fn release(&self, reservation: ReservationId, now: Timestamp) {
        Store::release(&self.memory, reservation, now);
    }
}

#[tokio::test]
async fn a_reload_in_mid_request_changes_nothing_of_its_answer() {
    let clock = Arc::new(VirtualClock::at(Timestamp::from_millis(1_700_000_000_000)));
    let memory = MemoryStore::new(Capacity::keys(100));
    let store = Arc::new(Reloaded { memory, clock: Arc::clone(&clock), service: OnceLock::new() });
    let (metrics, mut root) = (Metrics::default(), Node::default());
    let policy = limit_policy("login", 5, Unit::Minute).unwrap();
    let limit = Limit::new(Some(policy), metrics.tally("edge", "login"));
    assert!(root.add("user", DescriptorValues::Any, Node::new(Some(limit))));
    let rules =
        Rules::new(Vec::new(), vec![Domain::new("edge".to_owned(), root)], Lists::default(), false);
    let backing = Backing::Shared(Arc::clone(&store) as Arc<dyn Store>);
    let service = Service::new(rules, metrics, backing, clock, Settings::default());
    let service = Arc::new(service);
    store.service.set(Arc::clone(&service)).unwrap();
    let worker = Worker::new(service);
    let descriptor = Descriptor { entries: vec![("user", "ada")], ..Descriptor::default() };
    let request = Request { domain: "edge", descriptors: vec![descriptor], hits_addend: 1 };
    let answer = decide(&worker, &request).await.unwrap();
    // Under the rules that took the unit, which are not on trial, it is told what is left.
    let left = answer.fields.iter().map(|(name, value)| format!("{name}: {value}"));
    let left: Vec<String> = left.collect();
    assert!(left.iter().any(|field| field.contains("r=4")), "{left:?}");
    assert!(left.iter().all(|field| !field.contains("t=-")), "{left:?}");
}
