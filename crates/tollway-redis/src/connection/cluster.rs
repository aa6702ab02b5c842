//! Which primary of a cluster holds which slots, as its nodes tell it.

use redis::aio::MultiplexedConnection;
use redis::{ConnectionAddr, ConnectionInfo, RedisError, Value};
use tollway_core::StoreError;

use super::address::{at, misuse, unavailable};
use super::dial::{Dialer, Target};
use super::failure::while_connecting;

/// Slots in a row that one primary holds.
pub(crate) struct Range {
    pub(crate) first: u16,
    pub(crate) last: u16,
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl Dialer {
    /// Nodes of the cluster that were named; none unless it leads to a cluster.
    pub(crate) fn seeds(&self) -> &[ConnectionInfo] {
        match &self.target {
            Target::Slot { seeds, .. } => seeds,
            _ => &[],
        }
    }

    /// What `pick` takes from the map of the first node of these that tells one it can use.
    pub(crate) async fn ask_nodes<T>(
        &self,
        nodes: &[ConnectionInfo],
        pick: impl Fn(&ConnectionInfo, Vec<Range>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut last = unavailable("no node of the cluster is named");
        for node in nodes {
            let read = async {
                let mut connection = self.open(node, None).await?;
                slots(&mut connection, node).await
            };
            let read = tokio::time::timeout(self.connect_timeout, read).await;
            let read = read.map_err(|_| unavailable("a node of the cluster does not answer"));
            match read.flatten().and_then(|ranges| pick(node, ranges)) {
                Ok(picked) => return Ok(picked),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// The primary of a slot.
    pub(super) async fn holder(
        &self,
        seeds: &[ConnectionInfo],
        slot: u16,
    ) -> Result<ConnectionInfo, StoreError> {
        let holder = |seed: &ConnectionInfo, ranges: Vec<Range>| {
            let range = ranges.iter().find(|range| (range.first..=range.last).contains(&slot));
            let range =
                range.ok_or_else(|| unavailable("no server of the cluster holds the slot"))?;
            Ok(at(seed, &range.host, range.port))
        };
        self.ask_nodes(seeds, holder).await
    }
}

/// Which primary holds which slots, as the node that was asked tells it.
pub(crate) async fn slots(
    connection: &mut MultiplexedConnection,
    asked: &ConnectionInfo,
) -> Result<Vec<Range>, StoreError> {
    let answer = redis::cmd("CLUSTER").arg("SLOTS").query_async(connection).await;
    let answer: Vec<Vec<Value>> = answer.map_err(|error: RedisError| match error.code() {
        Some("ERR") => {
            misuse("the server is not a cluster; use redis:// in its URL").caused_by(error)
        }
        _ => while_connecting(error),
    })?;
    let own_host = match asked.addr() {
        ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => host.as_str(),
        _ => "",
    };
    let ranges: Vec<Range> = answer.iter().filter_map(|entry| range(entry, own_host)).collect();
    if ranges.is_empty() {
        return Err(unavailable("the cluster has no slots"));
    }
    Ok(ranges)
}

fn range(entry: &[Value], own_host: &str) -> Option<Range> {
    let [Value::Int(first), Value::Int(last), Value::Array(primary), ..] = entry else {
        return None;
    };
    let [host, Value::Int(port), ..] = &primary[..] else { return None };
    let host = match host {
        Value::BulkString(host) if !host.is_empty() => String::from_utf8(host.clone()).ok()?,
        // A node that does not know its own address means the one by which it was asked.
        _ => own_host.to_owned(),
    };
    let [first, last, port] = [first, last, port].map(|number| u16::try_from(*number).ok());
    Some(Range { first: first?, last: last?, host, port: port? })
}
