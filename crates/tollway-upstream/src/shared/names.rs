//! The upstream's own names of buckets, learned from its answers and shared by the fleet.
//!
//! ```text
//!   [prefix:]tollway:names     hash      <METHOD template> -> the upstream's name
//!   [prefix:]tollway:renamed   channel   <METHOD template> \n <name>
//! ```

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use redis::{FromRedisValue as _, Value};

use super::keys::RENAMED;
use super::ledger_state::LedgerState;
use crate::budget::Names;
use crate::budget::room::Share;

/// Names by method and template.
#[derive(Debug, Default)]
pub(super) struct SharedNames(RwLock<Names>);

const DAY_S: u64 = 86_400;

impl SharedNames {
    /// None known yet; those that come take of a room.
    pub(super) fn within(share: Share) -> Self {
        Self(RwLock::new(Names::within(share)))
    }

    pub(super) fn get(&self, template: &str) -> Option<Arc<str>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(template).map(Arc::clone)
    }

    /// Remembers a name; whether it is news.
    pub(super) fn learn(&self, template: &str, name: &str) -> bool {
        self.0.write().unwrap_or_else(PoisonError::into_inner).learn(template, name, 0)
    }

    /// Tells the others, now and those who come later.
    pub(super) async fn tell(&self, ledger: &LedgerState, template: &str, name: &str) {
        let key = ledger.prefix.key("tollway:names");
        let mut pipe = redis::pipe();
        pipe.cmd("HSET").arg(&key).arg(template).arg(name).ignore();
        pipe.cmd("EXPIRE").arg(&key).arg(DAY_S).ignore();
        pipe.cmd("PUBLISH").arg(ledger.prefix.key(RENAMED)).arg(format!("{template}\n{name}"));
        // Who misses it sends one probe more, and learns the name from its answer.
        let _ = ledger.client.send_all(&pipe).await;
    }

    /// Reads what the others have learned.
    pub(super) async fn load(&self, ledger: &LedgerState) {
        let mut command = redis::cmd("HGETALL");
        command.arg(ledger.prefix.key("tollway:names"));
        let Ok(value) = ledger.client.send(&command).await else { return };
        let known = HashMap::<String, String>::from_redis_value(value).unwrap_or_default();
        for (template, name) in known {
            self.learn(&template, &name);
        }
    }
}

/// The two halves of a message about a name.
pub(super) fn read_message(value: &Value) -> Option<(String, String)> {
    let Value::BulkString(bytes) = value else { return None };
    let text = std::str::from_utf8(bytes).ok()?;
    let (template, name) = text.split_once('\n')?;
    Some((template.to_owned(), name.to_owned()))
}
