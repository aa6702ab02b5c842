//! How a server is found, connected to, and greeted.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, ClientTlsConfig, ConnectionAddr, ConnectionInfo, ProtocolVersion,
    PushInfo, RedisError, TlsCertificates, Value,
};
use tokio::sync::mpsc::UnboundedSender;
use tollway_core::{ErrorKind, StoreError};

use super::address::{Address, at, service, unavailable};
use super::failure::while_connecting;
use crate::layout::slot;
use crate::settings::{Certificates, Settings};

/// How one server is found, and what it takes to connect to it.
///
/// After a failover or a move of the slot it is another server: every connection looks for it anew.
#[derive(Clone)]
pub struct Dialer {
    pub(super) target: Target,
    pub(super) connect_timeout: Duration,
    certificates: Certificates,
}

#[derive(Clone)]
pub(super) enum Target {
    /// A server at this address.
    Fixed(ConnectionInfo),
    /// The primary that the sentinels know by this name.
    Sentinel { sentinels: Vec<ConnectionInfo>, name: String, primary: ConnectionInfo },
    /// The primary that holds the slot, as the first of these nodes that answers says.
    Slot { seeds: Vec<ConnectionInfo>, slot: u16 },
    /// A Tollway service at this address.
    Service(ConnectionInfo),
}

impl Dialer {
    /// To the server that holds `key` in the store at `url`.
    ///
    /// # Errors
    ///
    /// If the URL is not valid.
    pub fn new(url: &str, key: &[u8], settings: &Settings) -> Result<Self, StoreError> {
        let target = match Address::parse(url)? {
            Address::One(info) => Target::Fixed(info),
            Address::Sentinel { sentinels, name, primary } => {
                Target::Sentinel { sentinels, name, primary }
            }
            Address::Cluster(seeds) => Target::Slot { seeds, slot: slot(key) },
        };
        Ok(Self::to(target, settings))
    }

    /// To the Tollway service at `url`.
    pub(crate) fn to_service(url: &str, settings: &Settings) -> Result<Self, StoreError> {
        Ok(Self::to(Target::Service(service(url)?), settings))
    }

    /// To the server at this address, with the same certificates and times.
    pub(crate) fn to_node(&self, info: ConnectionInfo) -> Self {
        Self { target: Target::Fixed(info), ..self.clone() }
    }

    fn to(target: Target, settings: &Settings) -> Self {
        let (connect_timeout, certificates) =
            (settings.connect_timeout, settings.certificates.clone());
        Self { target, connect_timeout, certificates }
    }

    /// The address of the server, if it is always the same.
    pub(crate) fn address(&self) -> Option<&ConnectionInfo> {
        match &self.target {
            Target::Fixed(info) | Target::Service(info) => Some(info),
            Target::Sentinel { .. } | Target::Slot { .. } => None,
        }
    }

    /// Finds the server, connects, and makes sure that it may be written to. Commands on the
    /// connection have no time limit: whoever sends one sets it. What is published to channels that
    /// the connection subscribes to arrives at `pushes`, and so does the news that it is lost.
    pub(super) async fn connect(
        &self,
        pushes: Option<&UnboundedSender<PushInfo>>,
    ) -> Result<MultiplexedConnection, StoreError> {
        let info = match &self.target {
            Target::Fixed(info) | Target::Service(info) => info.clone(),
            Target::Sentinel { sentinels, name, primary } => {
                let (host, port) = self.ask_sentinels(sentinels, name).await?;
                at(primary, &host, port)
            }
            Target::Slot { seeds, slot } => self.holder(seeds, *slot).await?,
        };
        let mut connection = self.open(&info, pushes).await?;
        let greeting = async {
            match self.target {
                Target::Service(_) => greet_service(&mut connection).await,
                _ => greet_primary(&mut connection).await,
            }
        };
        match tokio::time::timeout(self.connect_timeout, greeting).await {
            Ok(greeted) => greeted.map(|()| connection),
            Err(_) => Err(unavailable("the store accepts connections and does not answer")),
        }
    }

    /// Connects once.
    pub(super) async fn open(
        &self,
        info: &ConnectionInfo,
        pushes: Option<&UnboundedSender<PushInfo>>,
    ) -> Result<MultiplexedConnection, StoreError> {
        let mut config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.connect_timeout))
            // Round trips carry their own deadline.
            .set_response_timeout(None);
        let mut info = info.clone();
        if let Some(pushes) = pushes {
            // Only the newer protocol carries messages beside answers.
            let redis = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
            info = info.set_redis_settings(redis);
            config = config.set_push_sender(pushes.clone());
        }
        let client = self.client(info).map_err(while_connecting)?;
        let connected = client.get_multiplexed_async_connection_with_config(&config);
        match tokio::time::timeout(self.connect_timeout, connected).await {
            Ok(connection) => connection.map_err(while_connecting),
            Err(_) => Err(unavailable("the store did not answer while connecting")),
        }
    }

    fn client(&self, info: ConnectionInfo) -> Result<redis::Client, RedisError> {
        if !matches!(info.addr(), ConnectionAddr::TcpTls { .. }) {
            return redis::Client::open(info);
        }
        // rustls uses what the process has chosen; without a choice it would refuse to connect.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = self.certificates.client.clone();
        let client_tls =
            client.map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key });
        let root_cert = self.certificates.authority.clone();
        redis::Client::build_with_tls(info, TlsCertificates { client_tls, root_cert })
    }

    async fn ask_sentinels(
        &self,
        sentinels: &[ConnectionInfo],
        name: &str,
    ) -> Result<(String, u16), StoreError> {
        let mut last = unavailable("no sentinel is named");
        for sentinel in sentinels {
            match self.ask_sentinel(sentinel, name).await {
                Ok(address) => return Ok(address),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    async fn ask_sentinel(
        &self,
        sentinel: &ConnectionInfo,
        name: &str,
    ) -> Result<(String, u16), StoreError> {
        let mut connection = self.open(sentinel, None).await?;
        let mut command = redis::cmd("SENTINEL");
        command.arg("get-master-addr-by-name").arg(name);
        let answer = command.query_async::<Option<(String, u16)>>(&mut connection);
        match tokio::time::timeout(self.connect_timeout, answer).await {
            Ok(Ok(Some(address))) => Ok(address),
            Ok(Ok(None)) => Err(unavailable("the sentinels know no primary of this name")),
            Ok(Err(error)) => Err(while_connecting(error)),
            Err(_) => Err(unavailable("a sentinel does not answer")),
        }
    }
}

/// Whether the server answers, and knows the commands of a Tollway service.
async fn greet_service(connection: &mut MultiplexedConnection) -> Result<(), StoreError> {
    let mut command = redis::cmd("COMMAND");
    command.arg("INFO").arg("TOLL.CHECK");
    let known: Vec<Value> = command.query_async(connection).await.map_err(while_connecting)?;
    match known.first() {
        Some(Value::Array(_)) => Ok(()),
        _ => Err(StoreError::new(
            ErrorKind::Refused,
            "the server is not a Tollway service: it does not know TOLL.CHECK",
        )),
    }
}

/// Whether the server answers, and is not a replica, which would refuse every write.
async fn greet_primary(connection: &mut MultiplexedConnection) -> Result<(), StoreError> {
    match redis::cmd("ROLE").query_async::<Vec<Value>>(connection).await {
        Ok(role) => match role.first() {
            // It may be promoted, or the name lead elsewhere, before anybody mends the address.
            Some(Value::BulkString(role)) if role == b"slave" => {
                Err(unavailable("the server is a read-only replica; name its primary"))
            }
            _ => Ok(()),
        },
        // A user who may not ask for the role may still run scripts.
        Err(error) if error.code() == Some("NOPERM") => Ok(()),
        Err(error) => Err(while_connecting(error)),
    }
}

impl std::fmt::Debug for Dialer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The address may hold a password.
        f.debug_struct("Dialer").finish_non_exhaustive()
    }
}
