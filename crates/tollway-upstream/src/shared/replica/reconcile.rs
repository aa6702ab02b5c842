//! What a process does about documents that are not what it took them for.
//!
//! After every conflict the documents are compared with what this process knows: places and permits
//! that they have lost are put in again, and those that nobody here knows of are given back. So
//! nothing else has to be told after an outage or a restart of the store.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tollway_core::Timestamp;

use super::{BLOCK_NEWS, Counter, Event, Input, Replica};

impl Replica {
    /// Of the calls whose replies were lost, one may have been done: then its inputs are done.
    pub(super) fn drop_what_was_done(&mut self) {
        let last = self.seen.iter().filter_map(|stored| stored.last_call_of(self.me)).max();
        let unsure = std::mem::take(&mut self.unsure);
        if let Some((_, count)) = unsure.into_iter().find(|(number, _)| Some(*number) == last) {
            self.pending.drain(..count.min(self.pending.len()));
        }
    }

    /// Compares the documents with what this process knows.
    pub(super) fn reconcile(
        &mut self,
        blocked: Duration,
        counter: &Counter,
        now: Timestamp,
    ) -> Vec<Event> {
        let documents = self.decoded(now);
        let known = documents.budgets.account_blocked_for(now).unwrap_or_default();
        if blocked > known + BLOCK_NEWS {
            self.pending.push_front(Input::Block { wait: blocked });
        }
        if documents.is_news(counter, now) {
            self.pending.push_front(Input::Beside { counter: *counter });
        }
        let stored: BTreeMap<u64, bool> = documents.of_process(self.me).into_iter().collect();
        self.documents = Some(documents);
        self.is_fresh = true;
        let mentioned = self.mentioned();
        let mut events = Vec::new();
        for (number, flies) in &stored {
            if *flies && self.places.contains_key(number) {
                events.extend(self.open_up(*number, now));
                // What asked for it again has been answered.
                self.pending
                    .retain(|it| !matches!(it, Input::Stand { number: at, .. } if at == number));
            } else if !self.places.contains_key(number)
                && !self.open.contains_key(number)
                && !mentioned.contains(number)
            {
                self.pending.push_back(Input::Leave { number: *number });
            }
        }
        let is_missing = |number: &u64| !stored.contains_key(number) && !mentioned.contains(number);
        let places = self.places.iter().filter(|(number, place)| place.is_in && is_missing(number));
        let lost: Vec<Input> = places.map(|(number, place)| place.input(*number)).collect();
        let open = self.open.iter().filter(|(number, _)| is_missing(number));
        let adopted: Vec<Input> = open
            .map(|(number, (claim, left))| Input::Adopt {
                number: *number,
                claim: claim.clone(),
                left: *left,
            })
            .collect();
        for input in adopted.into_iter().chain(lost) {
            self.pending.push_back(input);
        }
        events
    }

    /// The numbers of requests that the pending inputs are about.
    fn mentioned(&self) -> BTreeSet<u64> {
        let number = |input: &Input| match input {
            Input::Stand { number, .. }
            | Input::Leave { number }
            | Input::Settle { number, .. }
            | Input::Adopt { number, .. } => Some(*number),
            _ => None,
        };
        self.pending.iter().filter_map(number).collect()
    }
}
