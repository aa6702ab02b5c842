//! Which server answers which slot, and how that is found out.
//!
//! One server answers all slots unless the store is a cluster. A cluster's map is read when the
//! store is made, whenever a server says that a slot has moved, and again and again while a server
//! is down or a slot has none.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, Weak};
use std::time::Duration;

use redis::ConnectionInfo;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tollway_core::{StoreError, explained};

use crate::call::CallError;
use crate::connection::{Dialer, OutageRecord, Proof, Range, Redirect, at, slots, unavailable};
use crate::layout::SLOTS;
use crate::node::{Node, Redirected, RequestCall};
use crate::settings::Settings;

/// Which server answers which slot.
pub(crate) struct Router {
    settings: Arc<Settings>,
    dialer: Dialer,
    map: RwLock<Arc<SlotMap>>,
    redirected: mpsc::UnboundedSender<Redirected>,
    /// Of slots that no server is known to hold.
    outage: OutageRecord,
    is_refreshing: AtomicBool,
}

/// The servers, and for each slot which of them.
#[derive(Clone, Default)]
struct SlotMap {
    nodes: HashMap<String, Arc<Node>>,
    slots: Vec<Option<Arc<Node>>>,
}

/// How often at most a cluster's map is read while something is amiss.
const REFRESH_PAUSE: Duration = Duration::from_millis(100);

impl Router {
    /// Connects to the store, or starts to try if the settings allow for it.
    pub(crate) async fn start(
        dialer: Dialer,
        settings: Arc<Settings>,
    ) -> Result<Arc<Self>, StoreError> {
        let (redirected, redirections) = mpsc::unbounded_channel();
        let (map, outage, is_refreshing) = Default::default();
        let router = Arc::new(Self { settings, dialer, map, redirected, outage, is_refreshing });
        if !router.is_cluster() {
            let (dialer, settings) = (router.dialer.clone(), Arc::clone(&router.settings));
            let node = Node::start(dialer, settings, router.redirected.clone()).await?;
            let nodes = HashMap::from([(String::new(), Arc::clone(&node))]);
            router.set_map(SlotMap { nodes, slots: vec![Some(node)] });
        } else if let Err(error) = router.refresh().await
            && !(router.settings.start_without && error.is_transient())
        {
            return Err(error);
        }
        tokio::spawn(maintain(Arc::downgrade(&router), redirections));
        Ok(router)
    }

    /// Whether charges must share a slot to be decided together.
    pub(crate) fn is_cluster(&self) -> bool {
        !self.dialer.seeds().is_empty()
    }

    /// Hands a request to the server of its slot.
    pub(crate) fn submit(&self, call: RequestCall) {
        match self.node(call.question.slot) {
            Some(node) => node.submit(call),
            None => {
                self.outage.failed(call.began);
                let error = unavailable("no server of the cluster holds the slot");
                call.answer(Err(CallError::store(error)));
            }
        }
    }

    /// The server of a slot.
    pub(crate) fn node(&self, slot: u16) -> Option<Arc<Node>> {
        let map = self.map();
        match &map.slots[..] {
            [only] => only.clone(),
            slots => slots.get(usize::from(slot))?.clone(),
        }
    }

    /// Every server.
    pub(crate) fn nodes(&self) -> Vec<Arc<Node>> {
        self.map().nodes.values().cloned().collect()
    }

    fn map(&self) -> Arc<SlotMap> {
        Arc::clone(&self.map.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn set_map(&self, map: SlotMap) {
        *self.map.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(map);
    }

    /// What `look` says of the outage of the server of a slot, or of not knowing that server.
    pub(crate) fn with_outage<T>(&self, slot: u16, look: impl FnOnce(&OutageRecord) -> T) -> T {
        match self.node(slot) {
            Some(node) => look(node.client.outage()),
            None => look(&self.outage),
        }
    }

    /// The longest outage under way.
    pub(crate) fn outage(&self) -> Option<tollway_core::Outage> {
        let nodes = self.nodes();
        let outages = nodes.iter().filter_map(|node| node.client.outage().told());
        outages.chain(self.outage.told()).max_by_key(|outage| outage.lasted)
    }

    /// Reads the cluster's map from the first node that tells it.
    async fn refresh(&self) -> Result<(), StoreError> {
        let began = Instant::now();
        let refreshed = self.read_map().await;
        match &refreshed {
            Err(error) if self.map().slots.is_empty() => {
                self.outage.failed_by(began, &explained(error));
            }
            Ok(()) if self.map().slots.iter().all(Option::is_some) => {
                self.outage.answered(Proof::Written);
            }
            _ => {}
        }
        refreshed
    }

    /// From a connection that is there, or else from a node that was named.
    async fn read_map(&self) -> Result<(), StoreError> {
        for node in self.nodes() {
            let (Some(info), Ok((mut connection, _))) =
                (node.client.dialer().address(), node.client.current())
            else {
                continue;
            };
            let read = slots(&mut connection, info);
            if let Ok(Ok(ranges)) = tokio::time::timeout(self.settings.connect_timeout, read).await
            {
                return self.adopt(info, ranges).await;
            }
        }
        let told = |seed: &ConnectionInfo, ranges| Ok((seed.clone(), ranges));
        let (seed, ranges) = self.dialer.ask_nodes(self.dialer.seeds(), told).await?;
        self.adopt(&seed, ranges).await
    }

    /// Uses a map that was read; servers that are known already keep their connections.
    async fn adopt(&self, info: &ConnectionInfo, ranges: Vec<Range>) -> Result<(), StoreError> {
        let known = self.map();
        let mut map = SlotMap { slots: vec![None; usize::from(SLOTS)], ..SlotMap::default() };
        for Range { first, last, host, port } in ranges {
            let name = format!("{host}:{port}");
            let node = match map.nodes.get(&name).or_else(|| known.nodes.get(&name)) {
                Some(node) => Arc::clone(node),
                None => self.join(at(info, &host, port)).await,
            };
            let range = usize::from(first)..=usize::from(last.min(SLOTS - 1));
            if let Some(slots) = map.slots.get_mut(range) {
                slots.fill(Some(Arc::clone(&node)));
            }
            map.nodes.insert(name, node);
        }
        self.set_map(map);
        Ok(())
    }

    async fn join(&self, info: ConnectionInfo) -> Arc<Node> {
        let (dialer, settings) = (self.dialer.to_node(info), Arc::clone(&self.settings));
        Node::join(dialer, settings, self.redirected.clone()).await
    }

    /// The node that another one named.
    async fn node_at(&self, host: &str, port: u16) -> Option<Arc<Node>> {
        let name = format!("{host}:{port}");
        if let Some(node) = self.map().nodes.get(&name) {
            return Some(Arc::clone(node));
        }
        let node = self.join(at(self.dialer.seeds().first()?, host, port)).await;
        let mut map = SlotMap::clone(&self.map());
        map.nodes.insert(name, Arc::clone(&node));
        self.set_map(map);
        Some(node)
    }

    async fn resubmit(&self, Redirected { mut call, to }: Redirected) {
        call.question.asking = matches!(to, Redirect::Ask { .. });
        match to {
            Redirect::Later | Redirect::OnceMoved => {
                tokio::time::sleep(Duration::from_millis(10)).await;
                self.submit(call);
            }
            Redirect::Moved { host, port } | Redirect::Ask { host, port } => {
                match self.node_at(&host, port).await {
                    Some(node) => node.submit(call),
                    None => self.submit(call),
                }
            }
        }
    }

    fn is_amiss(&self) -> bool {
        let map = self.map();
        let is_unmapped = map.slots.is_empty() || map.slots.iter().any(Option::is_none);
        is_unmapped || map.nodes.values().any(|node| !node.client.is_up())
    }
}

/// Sends requests on, and reads the map again while a slot has moved or a server is missing.
async fn maintain(router: Weak<Router>, mut redirections: mpsc::UnboundedReceiver<Redirected>) {
    let Some(is_cluster) = router.upgrade().map(|router| router.is_cluster()) else { return };
    let mut tick = tokio::time::interval(REFRESH_PAUSE);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut moved = false;
    loop {
        let redirected = tokio::select! {
            redirected = redirections.recv() => redirected,
            _ = tick.tick(), if is_cluster => None,
        };
        let Some(router) = router.upgrade() else { return };
        match redirected {
            Some(redirected) => {
                moved = true;
                tokio::spawn(async move { router.resubmit(redirected).await });
            }
            None if moved || router.is_amiss() => {
                moved = false;
                if !router.is_refreshing.swap(true, Ordering::AcqRel) {
                    tokio::spawn(refresh_once(router));
                }
            }
            None => {}
        }
    }
}

async fn refresh_once(router: Arc<Router>) {
    // What could not be read is read at the next tick: a server is missing then.
    let _ = router.refresh().await;
    router.is_refreshing.store(false, Ordering::Release);
}
