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
use redis::aio::MultiplexedConnection;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tollway_core::{StoreError, explained};

use crate::address::{Address, at, classify, connect, misuse, unavailable};
use crate::dial::Dial;
use crate::job::{Job, Trouble};
use crate::layout::SLOTS;
use crate::link::{Bounce, Destination, Link};
use crate::outage::{OutageRecord, Proof};
use crate::settings::Settings;

/// Which server answers which slot.
pub(crate) struct Router {
    settings: Arc<Settings>,
    map: RwLock<Arc<Map>>,
    bounced: mpsc::UnboundedSender<Bounce>,
    /// Of slots that no server is known to hold.
    outage: OutageRecord,
    /// Nodes to ask for the map; none unless the store is a cluster.
    seeds: Vec<ConnectionInfo>,
    is_refreshing: AtomicBool,
}

/// The servers, and for each slot which of them.
#[derive(Clone, Default)]
struct Map {
    links: HashMap<String, Arc<Link>>,
    slots: Vec<Option<Arc<Link>>>,
}

/// How often at most a cluster's map is read while something is amiss.
const REFRESH_PAUSE: Duration = Duration::from_millis(100);

impl Router {
    /// Connects to the store, or starts to try if the settings allow for it.
    pub(crate) async fn start(
        address: Address,
        settings: Arc<Settings>,
    ) -> Result<Arc<Self>, StoreError> {
        let (bounced, bounces) = mpsc::unbounded_channel();
        let seeds = match &address {
            Address::Cluster(seeds) => seeds.clone(),
            Address::One(_) | Address::Sentinel { .. } => Vec::new(),
        };
        let map = RwLock::new(Arc::new(Map::default()));
        let is_refreshing = AtomicBool::new(false);
        let outage = OutageRecord::default();
        let router = Arc::new(Self { settings, map, bounced, outage, seeds, is_refreshing });
        match address {
            Address::One(info) => router.start_one(Dial::Fixed(info)).await?,
            Address::Sentinel { sentinels, name, primary } => {
                router.start_one(Dial::Sentinel { sentinels, name, primary }).await?;
            }
            Address::Cluster(_) => match router.refresh().await {
                Err(error) if router.settings.start_without && error.is_transient() => {}
                mapped => mapped?,
            },
        }
        tokio::spawn(maintain(Arc::downgrade(&router), bounces));
        Ok(router)
    }

    /// Whether charges must share a slot to be decided together.
    pub(crate) fn is_cluster(&self) -> bool {
        !self.seeds.is_empty()
    }

    /// Hands a request to the server of its slot.
    pub(crate) fn submit(&self, job: Job) {
        match self.link(job.slot) {
            Some(link) => link.submit(job),
            None => {
                self.outage.failed(job.began);
                let error = unavailable("no server of the cluster holds the slot");
                // Nobody waits any more if this fails.
                let _ = job.answer.send(Err(Trouble::store(error)));
            }
        }
    }

    /// The server of a slot.
    pub(crate) fn link(&self, slot: u16) -> Option<Arc<Link>> {
        let map = self.map();
        match &map.slots[..] {
            [only] => only.clone(),
            slots => slots.get(usize::from(slot))?.clone(),
        }
    }

    /// Every server.
    pub(crate) fn links(&self) -> Vec<Arc<Link>> {
        self.map().links.values().cloned().collect()
    }

    fn map(&self) -> Arc<Map> {
        Arc::clone(&self.map.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn set_map(&self, map: Map) {
        *self.map.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(map);
    }

    async fn start_one(&self, dial: Dial) -> Result<(), StoreError> {
        let connection = dial.connect(&self.settings).await;
        let link = self.new_link(dial, false);
        match connection {
            Ok(connection) => link.up(connection),
            Err(error) if self.settings.start_without && error.is_transient() => {
                link.probe(&explained(&error));
            }
            Err(error) => return Err(error),
        }
        let links = HashMap::from([(String::new(), Arc::clone(&link))]);
        self.set_map(Map { links, slots: vec![Some(link)] });
        Ok(())
    }

    fn new_link(&self, dial: Dial, by_slot: bool) -> Arc<Link> {
        Link::new(dial, Arc::clone(&self.settings), self.bounced.clone(), by_slot)
    }

    /// What `look` says of the outage of the server of a slot, or of not knowing that server.
    pub(crate) fn with_outage<T>(&self, slot: u16, look: impl FnOnce(&OutageRecord) -> T) -> T {
        match self.link(slot) {
            Some(link) => look(&link.outage),
            None => look(&self.outage),
        }
    }

    /// The longest outage under way.
    pub(crate) fn outage(&self) -> Option<tollway_core::Outage> {
        let links = self.links();
        let outages = links.iter().filter_map(|link| link.outage.told());
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

    async fn read_map(&self) -> Result<(), StoreError> {
        let mut last = unavailable("no node of the cluster is named");
        for (mut connection, info) in self.up_nodes() {
            let read = slots(&mut connection, &info);
            match tokio::time::timeout(self.settings.connect_timeout, read).await {
                Ok(Ok(ranges)) => return self.adopt(&info, ranges).await,
                Ok(Err(error)) => last = error,
                Err(_) => last = unavailable("a node of the cluster does not answer"),
            }
        }
        for seed in &self.seeds {
            let read = async {
                let mut connection = connect(seed, &self.settings).await?;
                slots(&mut connection, seed).await
            };
            match tokio::time::timeout(self.settings.connect_timeout, read).await {
                Ok(Ok(ranges)) => return self.adopt(seed, ranges).await,
                Ok(Err(error)) => last = error,
                Err(_) => last = unavailable("a node of the cluster does not answer"),
            }
        }
        Err(last)
    }

    fn up_nodes(&self) -> Vec<(MultiplexedConnection, ConnectionInfo)> {
        let up = self.links().into_iter().filter_map(|link| {
            let Dial::Fixed(info) = &link.dial else { return None };
            Some((link.current()?.0, info.clone()))
        });
        up.collect()
    }

    /// Uses a map that was read; servers that are known already keep their connections.
    async fn adopt(&self, info: &ConnectionInfo, ranges: Vec<Range>) -> Result<(), StoreError> {
        let known = self.map();
        let mut map = Map { slots: vec![None; usize::from(SLOTS)], ..Map::default() };
        for Range { first, last, host, port } in ranges {
            let name = format!("{host}:{port}");
            let link = match map.links.get(&name).or_else(|| known.links.get(&name)) {
                Some(link) => Arc::clone(link),
                None => self.join(Dial::Fixed(at(info, &host, port))).await,
            };
            let range = usize::from(first)..=usize::from(last.min(SLOTS - 1));
            if let Some(slots) = map.slots.get_mut(range) {
                slots.fill(Some(Arc::clone(&link)));
            }
            map.links.insert(name, link);
        }
        self.set_map(map);
        Ok(())
    }

    /// A link to a node, up if it can be.
    async fn join(&self, dial: Dial) -> Arc<Link> {
        let connection = dial.connect(&self.settings).await;
        let link = self.new_link(dial, true);
        match connection {
            Ok(connection) => link.up(connection),
            Err(error) => link.probe(&explained(&error)),
        }
        link
    }

    /// A link to the node that another one named.
    async fn link_at(&self, host: &str, port: u16) -> Option<Arc<Link>> {
        let map = self.map();
        if let Some(link) = map.links.get(&format!("{host}:{port}")) {
            return Some(Arc::clone(link));
        }
        let link = self.join(Dial::Fixed(at(self.seeds.first()?, host, port))).await;
        let mut map = Map::clone(&self.map());
        map.links.insert(format!("{host}:{port}"), Arc::clone(&link));
        self.set_map(map);
        Some(link)
    }

    async fn resubmit(&self, bounce: Bounce) {
        let Bounce { mut job, to } = bounce;
        match to {
            Destination::Later | Destination::OnceMoved => {
                job.asking = false;
                tokio::time::sleep(Duration::from_millis(10)).await;
                self.submit(job);
            }
            Destination::Moved { host, port } => {
                job.asking = false;
                match self.link_at(&host, port).await {
                    Some(link) => link.submit(job),
                    None => self.submit(job),
                }
            }
            Destination::Ask { host, port } => {
                job.asking = true;
                match self.link_at(&host, port).await {
                    Some(link) => link.submit(job),
                    None => self.submit(job),
                }
            }
        }
    }

    fn is_amiss(&self) -> bool {
        let map = self.map();
        let is_unmapped = map.slots.is_empty() || map.slots.iter().any(Option::is_none);
        is_unmapped || map.links.values().any(|link| !link.is_up())
    }
}

/// Sends requests on, and reads the map again while a slot has moved or a server is missing.
async fn maintain(router: Weak<Router>, mut bounces: mpsc::UnboundedReceiver<Bounce>) {
    let Some(is_cluster) = router.upgrade().map(|router| router.is_cluster()) else { return };
    let mut tick = tokio::time::interval(REFRESH_PAUSE);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut moved = false;
    loop {
        let bounce = tokio::select! {
            bounce = bounces.recv() => bounce,
            _ = tick.tick(), if is_cluster => None,
        };
        let Some(router) = router.upgrade() else { return };
        match bounce {
            Some(bounce) => {
                moved = true;
                tokio::spawn(async move { router.resubmit(bounce).await });
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

/// Slots in a row that one primary holds.
pub(crate) struct Range {
    first: u16,
    last: u16,
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl Range {
    pub(crate) fn holds(&self, slot: u16) -> bool {
        (self.first..=self.last).contains(&slot)
    }
}

/// Which primary holds which slots, as a node of the cluster tells it.
pub(crate) async fn slots(
    connection: &mut MultiplexedConnection,
    asked: &ConnectionInfo,
) -> Result<Vec<Range>, StoreError> {
    use redis::Value;
    let answer = redis::cmd("CLUSTER").arg("SLOTS").query_async(connection).await;
    let answer: Vec<Vec<Value>> =
        answer.map_err(|error: redis::RedisError| match error.code() {
            Some("ERR") => misuse("the server is no cluster; name it redis://").caused_by(error),
            _ => classify(error),
        })?;
    let own_host = match asked.addr() {
        redis::ConnectionAddr::Tcp(host, _) | redis::ConnectionAddr::TcpTls { host, .. } => {
            host.clone()
        }
        _ => String::new(),
    };
    let range = |entry: Vec<Value>| {
        let [Value::Int(first), Value::Int(last), Value::Array(primary), ..] = &entry[..] else {
            return None;
        };
        let [host, Value::Int(port), ..] = &primary[..] else { return None };
        let host = match host {
            Value::BulkString(host) if !host.is_empty() => String::from_utf8(host.clone()).ok()?,
            // A node that does not know its own address means the one by which it was asked.
            _ => own_host.clone(),
        };
        let [first, last, port] = [first, last, port].map(|number| u16::try_from(*number).ok());
        Some(Range { first: first?, last: last?, host, port: port? })
    };
    let ranges: Vec<Range> = answer.into_iter().filter_map(range).collect();
    if ranges.is_empty() {
        return Err(unavailable("the cluster has no slots"));
    }
    Ok(ranges)
}
