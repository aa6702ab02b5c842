//! The ledgers of credentials: in this process, or shared by a fleet.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use tollway_proxy::OpenLedger;
use tollway_upstream::budget::{BucketRoom, Ledger, LedgerError, LocalLedger, Settings};
use tollway_upstream::pace;
use tollway_upstream::profile::Profile;
use tollway_upstream::shared::{self, Fleet, GlobalRate};

use super::naming::Keys;

/// What opens the ledger of a credential in `store`, and the fleet that shares it, if one does.
pub(super) async fn open(
    store: &str,
    start_without: bool,
    profile: Arc<Profile>,
    keys: Keys,
) -> Result<(OpenLedger, Option<Fleet>)> {
    // Whoever makes credentials up makes ledgers: one bound for all of them together.
    let room = BucketRoom::new(Settings::default().buckets_max);
    if store != "memory" {
        let fleet = connect(store, start_without, &profile, &keys, room).await?;
        return Ok((shared(fleet.clone(), profile, keys), Some(fleet)));
    }
    let open: OpenLedger = Arc::new(move |_| {
        let ledger = LocalLedger::new(Arc::clone(&profile), Settings::default()).within(&room);
        let ledger: Arc<dyn Ledger> = Arc::new(ledger);
        Box::pin(std::future::ready(Ok::<_, LedgerError>(ledger)))
    });
    Ok((open, None))
}

/// What opens the ledger of a credential that is shared with processes that cannot be seen.
pub(super) fn paced(profile: Arc<Profile>) -> Result<OpenLedger> {
    if !profile.can_pace() {
        bail!(
            "the profile {} has no common dimension, which tells what is left for all requests of \
             a credential: choose one that has ({}), or set `common = true` in your own",
            profile.name(),
            with_pace().join(", ")
        );
    }
    let room = BucketRoom::new(Settings::default().buckets_max);
    Ok(Arc::new(move |_| {
        // Proxies that are refused together must not come back together.
        let seed = RandomState::new().build_hasher().finish();
        let pace = pace::Settings::default().seed(seed);
        let ledger = LocalLedger::paced(&profile, Settings::default(), pace);
        let ledger = ledger.map(|ledger| Arc::new(ledger.within(&room)) as Arc<dyn Ledger>);
        let opened = ledger.ok_or_else(|| LedgerError::new("the profile cannot be paced by"));
        Box::pin(std::future::ready(opened))
    }))
}

/// The names of the shipped profiles that can be paced by.
fn with_pace() -> Vec<&'static str> {
    let can_pace = |name: &&str| Profile::builtin(name).is_some_and(|it| it.can_pace());
    Profile::builtins().into_iter().filter(can_pace).collect()
}

async fn connect(
    url: &str,
    start_without: bool,
    profile: &Profile,
    keys: &Keys,
    room: BucketRoom,
) -> Result<Fleet> {
    let store = tollway_redis::Settings { start_without, ..tollway_redis::Settings::default() };
    let settings = shared::Settings {
        global: global(profile),
        room: Some(room),
        store,
        fleet: keys.fleet(profile),
        naming: keys.naming(),
        spectacles_version: keys.spectacles_version(),
        ..Default::default()
    };
    // The URL may hold a password: it is not repeated.
    Fleet::connect(url, settings).await.context("--store")
}

fn shared(fleet: Fleet, profile: Arc<Profile>, keys: Keys) -> OpenLedger {
    Arc::new(move |id| {
        let (fleet, profile, prefix) = (fleet.clone(), Arc::clone(&profile), keys.prefix_of(id));
        Box::pin(async move {
            let opened = fleet.ledger(prefix, profile).await;
            let ledger = opened.map_err(|error| LedgerError::new(error.to_string()))?;
            Ok(Arc::new(ledger) as Arc<dyn Ledger>)
        })
    })
}

fn global(profile: &Profile) -> Option<GlobalRate> {
    let global = profile.global()?;
    let limit = u32::try_from(global.quota.units()).unwrap_or(u32::MAX);
    let period = global.quota.period() + global.jitter;
    Some(GlobalRate { limit, period, ..GlobalRate::per_second(limit) })
}
