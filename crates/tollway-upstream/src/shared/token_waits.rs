//! Who waits for tokens of a limit that no answer tells of, for people.
//!
//! Such a request has left the line of its bucket: the documents count it as in flight. It was not
//! sent, so whoever looks is told that it waits, and for what.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::documents::Documents;
use crate::budget::{BucketView, WaitCause, Why};
use crate::profile::Route;

/// Requests that wait for tokens, by route and by what they wait for.
#[derive(Clone, Debug, Default)]
pub(super) struct TokenWaits(Arc<Mutex<HashMap<Key, (Route, usize)>>>);

type Key = (String, WaitCause);

/// One that waits, until this is dropped.
pub(super) struct TokenWait {
    waits: TokenWaits,
    key: Key,
}

impl TokenWaits {
    /// A request of a route, as the documents name it, waits.
    pub(super) fn enter(&self, route: &Route, cause: WaitCause) -> TokenWait {
        let key = (format!("{}\n{}", route.name(), route.major()), cause);
        let mut waits = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        waits.entry(key.clone()).or_insert_with(|| (route.clone(), 0)).1 += 1;
        drop(waits);
        TokenWait { waits: self.clone(), key }
    }

    /// Tells of those of a bucket in what is shown of it.
    pub(super) fn show(&self, documents: &Documents, view: &mut BucketView) {
        let waits = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for ((_, cause), (route, count)) in waits.iter() {
            if documents.budgets.bucket_name(route) != view.id {
                continue;
            }
            let of_them = u32::try_from(*count).unwrap_or(u32::MAX);
            view.in_flight = view.in_flight.saturating_sub(of_them);
            view.queued += count;
            view.why.push(Why { cause: *cause, what: None, left: None });
        }
    }
}

impl Drop for TokenWait {
    fn drop(&mut self) {
        let mut waits = self.waits.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, count)) = waits.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                waits.remove(&self.key);
            }
        }
    }
}
