//! Wrong tokens: limited by address, counted, and told once a second.
//!
//! ```text
//!   wrong token --> 10 a minute for the address? -- yes --> 401, WRONGPASS, UNAUTHENTICATED
//!                                                 `- no ---> 429, RESP closed, RESOURCE_EXHAUSTED
//! ```
//!
//! A right token is accepted whatever else came from its address. Rejected: not to look at tokens
//! from an address that has shown too many wrong ones. Behind a balancer, and on loopback, all
//! clients are one address, and one of them with an outdated token would lock out all others. So a
//! token is to be too long to be guessed, and what is limited here is the noise: log lines,
//! connections, answers.

use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tollway_core::{Charge, Key, Policy, Retry, Timestamp};
use tollway_memory::{Capacity, MemoryStore};

use crate::front::Front;
use crate::net::address_key;

/// What one address may get wrong.
const QUOTA: &str = "10/1m";
/// Addresses remembered at once.
const ADDRESSES: usize = 4_096;
const TOLD_EVERY: Duration = Duration::from_secs(1);

/// Who has shown wrong tokens.
pub(crate) struct WrongTokens {
    policy: Policy,
    store: MemoryStore,
    told: Mutex<Told>,
}

#[derive(Default)]
struct Told {
    /// When the next line may be written.
    next: Timestamp,
    untold: u64,
}

/// What a wrong token is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// That it is wrong.
    Wrong,
    /// That its address has shown too many, and when there is room for another.
    TooMany {
        /// Until then.
        wait: Duration,
    },
}

impl Default for WrongTokens {
    fn default() -> Self {
        Self {
            policy: Policy::parse("wrong-tokens", QUOTA).expect("the quota is a constant"),
            store: MemoryStore::new(Capacity::keys(ADDRESSES)),
            told: Mutex::default(),
        }
    }
}

impl WrongTokens {
    /// Notes a wrong token from `peer`.
    pub(crate) fn note(&self, peer: IpAddr, front: Front, now: Timestamp) -> Refused {
        let address = address_key(peer);
        if let Some(count) = self.to_tell(now) {
            tracing::warn!(count, %address, front = front.name(), "wrong tokens");
        }
        let key = Key::new(&address).expect("an address is a short text");
        match self.store.check(&Charge::new(&self.policy, key), now).retry() {
            None => Refused::Wrong,
            Some(Retry::After(wait)) => Refused::TooMany { wait },
            Some(_) => Refused::TooMany { wait: Duration::from_secs(60) },
        }
    }

    /// How many wrong tokens there were since the last line, if it is time for another.
    fn to_tell(&self, now: Timestamp) -> Option<u64> {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.untold += 1;
        // A clock that was set back must not silence the log until it has caught up.
        let is_time = now >= told.next || now.after(TOLD_EVERY) < told.next;
        is_time.then(|| {
            told.next = now.after(TOLD_EVERY);
            std::mem::take(&mut told.untold)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Timestamp {
        Timestamp::from_millis(1_000_000 + ms)
    }

    #[test]
    fn an_address_may_be_wrong_ten_times_a_minute_and_others_are_not_touched() {
        let wrong = WrongTokens::default();
        let note = |peer: &str, ms| wrong.note(peer.parse().unwrap(), Front::Resp, at(ms));
        assert!((0..10).all(|ms| note("192.0.2.1", ms) == Refused::Wrong));
        assert!(matches!(note("::ffff:192.0.2.1", 10), Refused::TooMany { .. }));
        assert_eq!(note("192.0.2.2", 10), Refused::Wrong);
        assert_eq!(note("192.0.2.1", 60_010), Refused::Wrong);
    }

    #[test]
    fn a_line_a_second_tells_how_many_there_were() {
        let wrong = WrongTokens::default();
        assert_eq!(wrong.to_tell(at(0)), Some(1));
        assert!((0..500).all(|ms| wrong.to_tell(at(ms)).is_none()));
        assert_eq!(wrong.to_tell(at(1_000)), Some(501));
        assert_eq!(wrong.to_tell(at(1_001)), None);
        assert_eq!(wrong.to_tell(Timestamp::from_millis(5)), Some(2), "the clock was set back");
    }
}
