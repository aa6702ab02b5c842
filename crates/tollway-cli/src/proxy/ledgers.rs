//! The ledgers of credentials: in this process, or shared by a fleet.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use tollway_proxy::OpenLedger;
use tollway_upstream::budget::{Ledger, LedgerError, LocalLedger, Settings};
use tollway_upstream::profile::Profile;
use tollway_upstream::shared::{self, Fleet, GlobalRate, Prefix};

/// What opens the ledger of a credential in `store`, and the fleet that shares it, if one does.
pub(super) async fn open(
    store: &str,
    start_without: bool,
    profile: Arc<Profile>,
) -> Result<(OpenLedger, Option<Fleet>)> {
    if store != "memory" {
        let fleet = connect(store, start_without, &profile).await?;
        return Ok((shared(fleet.clone(), profile), Some(fleet)));
    }
    let open: OpenLedger = Arc::new(move |_| {
        let ledger = LocalLedger::new(Arc::clone(&profile), Settings::default());
        let ledger: Arc<dyn Ledger> = Arc::new(ledger);
        Box::pin(std::future::ready(Ok::<_, LedgerError>(ledger)))
    });
    Ok((open, None))
}

async fn connect(url: &str, start_without: bool, profile: &Profile) -> Result<Fleet> {
    let store = tollway_redis::Settings { start_without, ..tollway_redis::Settings::default() };
    let settings = shared::Settings { global: global(profile), store, ..Default::default() };
    // The URL may hold a password: it is not repeated.
    Fleet::connect(url, settings).await.context("--store")
}

fn shared(fleet: Fleet, profile: Arc<Profile>) -> OpenLedger {
    Arc::new(move |id| {
        let (fleet, profile) = (fleet.clone(), Arc::clone(&profile));
        Box::pin(async move {
            // The hash tag keeps a credential's keys on one server of a cluster.
            let prefix = Prefix::named(&format!("{{{id}}}"));
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
