//! Split keys: one very hot key as several, each with its share of the quota, in slots of its
//! own.
//!
//! ```text
//!   key ──┬─> share 0   26 of 103        round robin; a denial is tried once more
//!         ├─> share 1   26               at the share that seems emptiest
//!         ├─> share 2   26
//!         └─> share 3   25
//! ```
//!
//! **Never more**: the shares are together the quota, to the unit (see
//! [`tollway_core::Algorithm::share`]).
//!
//! **Early denials**: each process goes round robin, so with unit costs the shares are used evenly
//! to within one unit per process. A request may be denied although units are left only when fewer
//! than `shares × processes` of them are.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tollway_core::Policy;

use crate::encoded_policy::EncodedPolicy;
use crate::request::KeyCharge;
use crate::{layout, numbers};

/// The shares of one policy.
pub(crate) struct SplitPolicy {
    shares: Vec<Share>,
    next: AtomicU64,
}

struct Share {
    encoded: Arc<EncodedPolicy>,
    /// Of the shares among as many: those among more or fewer are others.
    family: u64,
    /// Units that this process saw left in it last.
    remaining: AtomicU64,
}

impl SplitPolicy {
    /// The policy in `count` shares; `None` if one of them would be empty.
    pub(crate) fn new(policy: &Policy, count: u16) -> Option<Self> {
        let count = u32::from(count.max(1));
        let one = |index| {
            let algorithm = policy.algorithm().share(count, index)?;
            let share = Policy::new(policy.name(), algorithm).ok()?.on_change(policy.change_rule());
            let share = if policy.is_plan() { share.as_plan() } else { share };
            let remaining = AtomicU64::new(algorithm.limit());
            Some(Share {
                encoded: Arc::new(EncodedPolicy::new(&share)),
                family: numbers::family(policy) ^ u64::from(count),
                remaining,
            })
        };
        let shares = (0..count).map(one).collect::<Option<_>>()?;
        Some(Self { shares, next: AtomicU64::new(0) })
    }

    /// The numbers of the shares, and the family that they are among.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = (u64, &Policy)> {
        self.shares.iter().map(|share| (share.family, &share.encoded.policy))
    }

    pub(crate) fn len(&self) -> usize {
        self.shares.len()
    }

    /// The share whose turn it is.
    pub(crate) fn next(&self) -> usize {
        (self.next.fetch_add(1, Ordering::Relaxed) % self.shares.len() as u64) as usize
    }

    /// Notes what was left in a share.
    pub(crate) fn note(&self, index: usize, remaining: u64) {
        self.shares[index].remaining.store(remaining, Ordering::Relaxed);
    }

    /// The share that seems emptiest, other than this one.
    pub(crate) fn emptiest_but(&self, index: usize) -> Option<usize> {
        let others = (0..self.shares.len()).filter(|other| *other != index);
        others.max_by_key(|other| self.shares[*other].remaining.load(Ordering::Relaxed))
    }

    /// The part of a request in one share.
    pub(crate) fn part(
        &self,
        prefix: &str,
        key: &[u8],
        part: &KeyCharge,
        index: usize,
    ) -> KeyCharge {
        let share = &self.shares[index];
        let key = layout::share_key(prefix, share.family, key, index);
        KeyCharge { key, encoded: Arc::clone(&share.encoded), ..part.clone() }
    }
}
