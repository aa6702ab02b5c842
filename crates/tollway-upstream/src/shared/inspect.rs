//! What can be seen of the buckets in the store.

use redis::FromRedisValue as _;
use tollway_redis::connection::Failure;

use super::documents::Documents;
use super::group::Group;
use super::ledger_state::LedgerState;
use super::stored::Stored;

/// The documents of a group as the store has them now.
pub(super) async fn read(ledger: &LedgerState, group: &Group) -> Result<Documents, Failure> {
    let mut pipe = redis::pipe();
    pipe.cmd("GET").arg(&group.keys.0[0]).cmd("GET").arg(&group.keys.0[1]);
    let value = ledger.client.send_all(&pipe).await?;
    let found = Vec::<Option<Vec<u8>>>::from_redis_value(value).unwrap_or_default();
    let body = |index: usize| {
        let bytes = found.get(index).cloned().flatten().unwrap_or_default();
        Stored::read(&bytes).unwrap_or_default().body
    };
    let bodies = [body(0), body(1)];
    let [account, group] = &bodies;
    Ok(Documents::read(&ledger.terms, None, [account, group], ledger.clock.earliest()))
}
