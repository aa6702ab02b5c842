//! How one server is found and connected to.

use redis::ConnectionInfo;
use redis::aio::MultiplexedConnection;
use tollway_core::{ErrorKind, StoreError};

use crate::address::{at, classify, connect, unavailable};
use crate::settings::Settings;

/// How one server is found.
#[derive(Clone, Debug)]
pub(crate) enum Dial {
    /// It stands at this address.
    Fixed(ConnectionInfo),
    /// The sentinels know.
    Sentinel { sentinels: Vec<ConnectionInfo>, name: String, primary: ConnectionInfo },
    /// A Tollway service stands at this address.
    Service(ConnectionInfo),
}

impl Dial {
    /// Where the server is.
    pub(crate) async fn find(&self, settings: &Settings) -> Result<ConnectionInfo, StoreError> {
        match self {
            Self::Fixed(info) | Self::Service(info) => Ok(info.clone()),
            Self::Sentinel { sentinels, name, primary } => {
                let (host, port) = ask_sentinels(sentinels, name, settings).await?;
                Ok(at(primary, &host, port))
            }
        }
    }

    /// Finds the server, connects, and makes sure that it may be written to.
    pub(crate) async fn connect(
        &self,
        settings: &Settings,
    ) -> Result<MultiplexedConnection, StoreError> {
        let info = self.find(settings).await?;
        let mut connection = connect(&info, settings).await?;
        let greeting = async {
            match self {
                Self::Service(_) => greet_service(&mut connection).await,
                Self::Fixed(_) | Self::Sentinel { .. } => role(&mut connection).await,
            }
        };
        match tokio::time::timeout(settings.connect_timeout, greeting).await {
            Ok(greeted) => greeted.map(|()| connection),
            Err(_) => Err(unavailable("the store accepts connections and does not answer")),
        }
    }
}

/// Whether the server answers, and knows the commands of a Tollway service.
async fn greet_service(connection: &mut MultiplexedConnection) -> Result<(), StoreError> {
    let mut command = redis::cmd("COMMAND");
    command.arg("INFO").arg("TOLL.CHECK");
    let known: Vec<redis::Value> = command.query_async(connection).await.map_err(classify)?;
    match known.first() {
        Some(redis::Value::Array(_)) => Ok(()),
        _ => Err(StoreError::new(
            ErrorKind::Refused,
            "the server is no Tollway service: it does not know TOLL.CHECK",
        )),
    }
}

/// Whether the server answers, and is not a replica, which would refuse every write.
async fn role(connection: &mut MultiplexedConnection) -> Result<(), StoreError> {
    match redis::cmd("ROLE").query_async::<Vec<redis::Value>>(connection).await {
        Ok(role) => match role.first() {
            // It may be promoted, or the name lead elsewhere, before anybody mends the address.
            Some(redis::Value::BulkString(role)) if role == b"slave" => {
                Err(unavailable("the server is a read-only replica; name its primary"))
            }
            _ => Ok(()),
        },
        // A user who may not ask for the role may still run scripts.
        Err(error) if error.code() == Some("NOPERM") => Ok(()),
        Err(error) => Err(classify(error)),
    }
}

async fn ask_sentinels(
    sentinels: &[ConnectionInfo],
    name: &str,
    settings: &Settings,
) -> Result<(String, u16), StoreError> {
    let mut last = unavailable("no sentinel is named");
    for sentinel in sentinels {
        match ask_sentinel(sentinel, name, settings).await {
            Ok(address) => return Ok(address),
            Err(error) => last = error,
        }
    }
    Err(last)
}

async fn ask_sentinel(
    sentinel: &ConnectionInfo,
    name: &str,
    settings: &Settings,
) -> Result<(String, u16), StoreError> {
    let mut connection = connect(sentinel, settings).await?;
    let mut command = redis::cmd("SENTINEL");
    command.arg("get-master-addr-by-name").arg(name);
    let answer = command.query_async::<Option<(String, u16)>>(&mut connection);
    match tokio::time::timeout(settings.connect_timeout, answer).await {
        Ok(Ok(Some(address))) => Ok(address),
        Ok(Ok(None)) => Err(unavailable("the sentinels know no primary of this name")),
        Ok(Err(error)) => Err(classify(error)),
        Err(_) => Err(unavailable("a sentinel does not answer")),
    }
}
