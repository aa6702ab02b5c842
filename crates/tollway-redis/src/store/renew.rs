//! Numbers that come into force together.
//!
//! At its start a process does not make its numbers the newest, if all of them are known: it may
//! have started again with old rules, while others have newer ones already. When its own rules
//! change, somebody wants them to, and what they say is the newest from then on.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tollway_core::{OnChange, Policy};

use super::Inner;
use crate::numbers::{Mark, family};

/// How often it is tried to note numbers while the store is away, once a second; whoever uses them
/// then notes them himself, as his own.
const TRIES: usize = 60;

impl Inner {
    /// Notes the numbers of these policies, those of one family together.
    pub(super) fn renew(self: &Arc<Self>, policies: &[&Policy]) {
        let mut families: BTreeMap<u64, Vec<Policy>> = BTreeMap::new();
        let mut add = |family: u64, policy: &Policy| {
            let known = families.entry(family).or_default();
            if known.iter().all(|other| Mark::of(other) != Mark::of(policy)) {
                known.push(policy.clone());
            }
        };
        for policy in policies.iter().filter(|policy| policy.change_rule() != OnChange::Reset) {
            match self.parts_of(policy) {
                None => add(family(policy), policy),
                // What is split goes by the numbers of its shares. One that cannot be split is
                // refused when it is asked.
                Some(count) => {
                    let split = self.split(policy, count.get());
                    split.iter().flat_map(|split| split.numbers()).for_each(|(of, it)| add(of, it));
                }
            }
        }
        let mut in_force = self.in_force.lock().unwrap_or_else(PoisonError::into_inner);
        for (family, policies) in families {
            let mut marks: Vec<Mark> = policies.iter().map(Mark::of).collect();
            marks.sort_unstable();
            let before = in_force.insert(family, marks.clone());
            if before.as_ref() != Some(&marks) {
                let inner = Arc::clone(self);
                let is_changed = before.is_some();
                self.runtime
                    .spawn(async move { inner.note_family(family, policies, is_changed).await });
            }
        }
    }

    async fn note_family(self: Arc<Self>, family: u64, policies: Vec<Policy>, in_force_now: bool) {
        let policies: Vec<&Policy> = policies.iter().collect();
        for _ in 0..TRIES {
            let noting = self.note_all(family, &policies, in_force_now, self.settings.timeout);
            if noting.await.is_some() {
                return;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
}
