//! The store: turns charges into requests, and answers into verdicts.

mod answers;
mod ask;
mod carry;
mod check;
mod crossing;
mod renew;
mod shares;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tollway_core::shares::Expanded;
use tollway_core::{Charge, OnExpiry, Policy, StoreError, Timestamp};

use crate::connection::{Dialer, misuse};
use crate::denial::DenialCache;
use crate::encoded_policy::EncodedPolicies;
use crate::lease::Leases;
use crate::local_shares::LocalShares;
use crate::numbers::Mark;
use crate::open_reservations::OpenReservations;
use crate::persistence::{Persistence, persistence};
use crate::random_ids::RandomIds;
use crate::request::{KeyCharge, Op, Request};
use crate::router::Router;
use crate::settings::{PolicySettings, Settings};
use crate::split_policy::SplitPolicy;
use crate::status::Status;
use crate::{layout, numbers};

/// Limits shared through Redis or Valkey. Clones share everything.
///
/// ```no_run
/// use std::sync::Arc;
/// use tollway_core::{Charge, Key, Policy, Store, Timestamp};
/// use tollway_redis::{RedisStore, Settings};
///
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let store = RedisStore::connect("redis://127.0.0.1", Settings::default()).await?;
/// let policy = Policy::parse("api", "100/1m")?;
/// // The time is the server's own; the one given is not looked at.
/// let verdict = store.check(&[Charge::new(&policy, Key::new("alice")?)], Timestamp::MIN).await?;
/// assert!(verdict.is_allowed());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct RedisStore {
    inner: Arc<Inner>,
}

struct Inner {
    router: Arc<Router>,
    settings: Arc<Settings>,
    encoded_policies: EncodedPolicies,
    ids: RandomIds,
    reservations: OpenReservations,
    local: LocalShares,
    denials: Option<DenialCache>,
    leases: Leases,
    splits: Mutex<HashMap<u64, Arc<SplitPolicy>>>,
    in_force: Mutex<HashMap<u64, Vec<Mark>>>,
    runtime: Handle,
    /// Whether to decide at the caller's time instead of the server's; only tests do.
    obeys_caller: bool,
}

/// The most charges in one request.
const CHARGES_MAX: usize = 256;

impl RedisStore {
    /// Connects to the store at `url`: `redis://`, `rediss://`, `redis+unix://`,
    /// `redis+sentinel://host:port,…/name` or `redis+cluster://host:port,…`.
    ///
    /// # Errors
    ///
    /// If the URL or the settings do not make sense, the store refuses the credentials or is a
    /// replica, or cannot be reached (unless [`Settings::start_without`]), or there is no tokio
    /// runtime.
    pub async fn connect(url: &str, settings: Settings) -> Result<Self, StoreError> {
        Self::start(url, settings, false).await
    }

    /// A store that decides at the time it is given, for comparing it with others.
    #[doc(hidden)]
    pub async fn connect_with_callers_time(
        url: &str,
        settings: Settings,
    ) -> Result<Self, StoreError> {
        Self::start(url, settings, true).await
    }

    /// How the store is.
    pub fn status(&self) -> Status {
        let windows_by_other_rules = self.inner.encoded_policies.windows_by_other_rules();
        Status { windows_by_other_rules, ..Status::of(&self.inner.router) }
    }

    /// What the weakest of its servers keeps when its power goes, of those that say so.
    pub async fn persistence(&self) -> Option<Persistence> {
        let mut weakest = None;
        for node in self.inner.router.nodes() {
            let kept = persistence(&node.client).await;
            weakest = weakest.into_iter().chain(kept).min();
        }
        weakest
    }

    async fn start(url: &str, settings: Settings, obeys_caller: bool) -> Result<Self, StoreError> {
        let runtime = Handle::try_current()
            .map_err(|error| misuse("the store needs a tokio runtime").caused_by(error))?;
        if settings.prefix.contains(['{', '}']) {
            return Err(misuse("the prefix must not contain braces: they would choose the slot"));
        }
        let settings = Arc::new(settings);
        // The slot of the dialer does not matter: a cluster is asked for all of them.
        let dialer = Dialer::new(url, b"", &settings)?;
        let router = Router::start(dialer, Arc::clone(&settings)).await?;
        let inner = Inner {
            router,
            encoded_policies: EncodedPolicies::default(),
            ids: RandomIds::new(),
            reservations: OpenReservations::new(settings.local_keys_max),
            local: LocalShares::new(settings.local_keys_max),
            denials: settings.denials.map(DenialCache::new),
            leases: Leases::new(settings.local_keys_max),
            splits: Mutex::default(),
            in_force: Mutex::default(),
            runtime,
            obeys_caller,
            settings,
        };
        let inner = Arc::new(inner);
        if let Some(time) = inner.shortest_lease() {
            inner.runtime.spawn(return_unused(Arc::downgrade(&inner), time));
        }
        Ok(Self { inner })
    }
}

/// Gives back what leases have left when their time is over, until the store is dropped.
async fn return_unused(inner: Weak<Inner>, time: Duration) {
    let mut tick = tokio::time::interval((time / 4).max(Duration::from_millis(1)));
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        let Some(inner) = inner.upgrade() else { return };
        for lease in inner.leases.ended(false) {
            inner.give_back(&lease, Timestamp::MIN).await;
        }
    }
}

impl Inner {
    /// The request that charges make.
    fn request(&self, op: Op, charges: &[Charge<'_>]) -> Result<Request, StoreError> {
        if charges.len() > CHARGES_MAX {
            return Err(misuse("a request has at most 256 charges"));
        }
        let parts = match Expanded::is_needed(charges) {
            true => self.parts_of_trees(charges),
            false => {
                charges.iter().zip(0..).map(|(charge, place)| self.part(charge, place)).collect()
            }
        };
        Ok(Request { op, id: self.ids.next(), parts: self.apart(parts) })
    }

    /// A key cannot be kept under two sets of numbers at once: where a request names it twice in
    /// one family, with different numbers, the later ones count for themselves.
    pub(super) fn apart(&self, mut parts: Vec<KeyCharge>) -> Vec<KeyCharge> {
        for later in 1..parts.len() {
            let (before, rest) = parts.split_at_mut(later);
            let part = &mut rest[0];
            let is_other = |other: &KeyCharge| {
                other.encoded.head() != part.encoded.head() && other.key == part.key
            };
            if before.iter().any(is_other) {
                let policy = &part.encoded.policy;
                let family = policy.id() ^ policy.numbers_mark();
                let key = std::mem::take(&mut part.key);
                part.key = layout::in_family(&self.settings.prefix, key, family);
            }
        }
        parts
    }

    /// The parts of charges of which some are to trees of owners: to each bucket on the way to the
    /// root. All buckets of a tree are under one key, so they are in one slot.
    fn parts_of_trees(&self, charges: &[Charge<'_>]) -> Vec<KeyCharge> {
        let expanded = Expanded::of(charges);
        let part = |(number, charge): (usize, &Charge<'_>)| {
            let place = expanded.charge_of(number);
            let whole = charges[place].policy;
            KeyCharge {
                on_store_error: whole.store_error(),
                returns: whole.reservation_terms().on_expiry == OnExpiry::Return,
                shared: expanded.shared_part(number),
                ..self.part(charge, place as u16)
            }
        };
        expanded.charges().iter().enumerate().map(part).collect()
    }

    fn part(&self, charge: &Charge<'_>, place: u16) -> KeyCharge {
        let (policy, settings) = (charge.policy, &self.settings);
        let (family, key) = (numbers::family(policy), charge.key.as_bytes());
        KeyCharge {
            key: layout::state_key(&settings.prefix, family, key, settings.key_tags),
            encoded: self.encoded_policies.of(policy),
            units: charge.cost.get(),
            mode: charge.mode,
            on_store_error: policy.store_error(),
            returns: policy.reservation_terms().on_expiry == OnExpiry::Return,
            place,
            carried: None,
            shared: None,
        }
    }

    fn policy_settings(&self, policy: &Policy) -> PolicySettings {
        self.settings.policies.get(policy.name()).copied().unwrap_or_default()
    }

    fn shortest_lease(&self) -> Option<Duration> {
        let leases = self.settings.policies.values().filter_map(|settings| settings.lease);
        leases.map(|lease| lease.time).min()
    }

    /// In a cluster all charges must share a slot.
    fn one_slot(&self, request: &Request) -> Result<(), StoreError> {
        let slot = request.slot();
        let is_astray = |part: &KeyCharge| layout::slot(&part.key) != slot;
        if self.router.is_cluster() && request.parts.iter().any(is_astray) {
            return Err(misuse(
                "the charges are in different slots of the cluster and cannot be decided together; \
                 let the policies go across slots, or give the keys one hash tag, as in {tenant}, \
                 and the store the setting key_tags",
            ));
        }
        Ok(())
    }
}

impl std::fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisStore").field("status", &self.status()).finish_non_exhaustive()
    }
}
