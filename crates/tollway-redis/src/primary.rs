//! The one server that holds a key, wherever the store is: found anew on every connection.
//!
//! For those who keep something else than limits under one hash tag (the queue), and so need the
//! store's URLs, certificates, sentinels and cluster maps, but neither its scripts nor its router.

use redis::aio::MultiplexedConnection;
use redis::{ConnectionInfo, PushInfo};
use tokio::sync::mpsc::UnboundedSender;
use tollway_core::StoreError;

use crate::address::{Address, at, connect, listen, unavailable};
use crate::dial::Dial;
use crate::layout::slot;
use crate::router::slots;
use crate::settings::Settings;

/// The server that holds one key.
///
/// After a failover or a move of the slot it is another one: connect again.
#[derive(Clone)]
pub struct Primary {
    address: Address,
    settings: Settings,
    slot: u16,
}

impl Primary {
    /// The server that holds `key` in the store at `url`, not yet asked for.
    ///
    /// # Errors
    ///
    /// If the URL does not read.
    pub fn of(url: &str, key: &[u8], settings: Settings) -> Result<Self, StoreError> {
        Ok(Self { address: Address::parse(url)?, settings, slot: slot(key) })
    }

    /// Finds the server and connects to it. Commands on the connection have no time limit: whoever
    /// sends one sets it.
    ///
    /// # Errors
    ///
    /// If it cannot be found, reached or written to.
    pub async fn connect(&self) -> Result<MultiplexedConnection, StoreError> {
        self.dial().await?.connect(&self.settings).await
    }

    /// As [`Self::connect`]; what is published to the channels that the connection subscribes to
    /// arrives at `pushes`, and so does the news that the connection is lost.
    ///
    /// # Errors
    ///
    /// As [`Self::connect`], and if the server does not speak RESP3 (before Redis 6).
    pub async fn listen(
        &self,
        pushes: &UnboundedSender<PushInfo>,
    ) -> Result<MultiplexedConnection, StoreError> {
        let info = self.dial().await?.find(&self.settings).await?;
        listen(&info, &self.settings, pushes).await
    }

    async fn dial(&self) -> Result<Dial, StoreError> {
        Ok(match &self.address {
            Address::One(info) => Dial::Fixed(info.clone()),
            Address::Sentinel { sentinels, name, primary } => Dial::Sentinel {
                sentinels: sentinels.clone(),
                name: name.clone(),
                primary: primary.clone(),
            },
            Address::Cluster(seeds) => Dial::Fixed(self.holder(seeds).await?),
        })
    }

    /// The primary of the slot, as the first node that answers tells it.
    async fn holder(&self, seeds: &[ConnectionInfo]) -> Result<ConnectionInfo, StoreError> {
        let mut last = unavailable("no node of the cluster is named");
        for seed in seeds {
            let read = async {
                let mut connection = connect(seed, &self.settings).await?;
                slots(&mut connection, seed).await
            };
            match tokio::time::timeout(self.settings.connect_timeout, read).await {
                Ok(Ok(ranges)) => {
                    let mut holders = ranges.iter().filter(|range| range.holds(self.slot));
                    match holders.next() {
                        Some(range) => return Ok(at(seed, &range.host, range.port)),
                        None => last = unavailable("no server of the cluster holds the slot"),
                    }
                }
                Ok(Err(error)) => last = error,
                Err(_) => last = unavailable("a node of the cluster does not answer"),
            }
        }
        Err(last)
    }
}

impl std::fmt::Debug for Primary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The address may hold a password.
        f.debug_struct("Primary").field("slot", &self.slot).finish_non_exhaustive()
    }
}
