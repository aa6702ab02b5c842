//! Denials answered in process, for exactly as long as they must remain denials.
//!
//! What is remembered is not the denial but the states that it was made on, and the server's time.
//! A later charge is decided on them by the core at the time that it is now: as long as that is a
//! denial, the store would deny too, since whatever others asked meanwhile can only have taken
//! more. So a charge of another cost is answered rightly, and the waits that are told count down.
//!
//! ```text
//!   asked      answered                          retry             recheck
//!     |------------|--------- denied here ---------|---- store ----
//!     `- time counts from here: the server's clock is no further, so nobody is denied too long
//! ```
//!
//! **Bound.** A refund or a reset by this process is respected at once, one by another process
//! after [`Denials::recheck`] at the latest. [`Denials::keys_max`] bounds the memory, whatever keys
//! an attacker chooses; those that were not denied for longest are forgotten first.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;
use tollway_core::{Charge, State, Timestamp, Verdict, decide_all};

use crate::batch::Outcome;
use crate::numbers::Mark;
use crate::request::{KeyCharge, Request};
use crate::settings::{Denials, KEPT_BYTES_MAX};

/// States on which requests were denied.
pub(crate) struct DenialCache {
    settings: Denials,
    generations: Mutex<Generations>,
}

/// Two maps of half the size: when the younger is full it becomes the elder, which is dropped.
#[derive(Default)]
struct Generations {
    young: HashMap<Vec<u8>, Entry>,
    /// What was ever put into the younger. What was replaced or forgotten counts on: that forgets
    /// earlier, never later.
    young_bytes: usize,
    old: HashMap<Vec<u8>, Entry>,
}

#[derive(Clone)]
struct Entry {
    state: State,
    /// The kind and the mark of the numbers that it is kept under.
    head: (u8, Mark),
    server_time: Timestamp,
    asked_at: Instant,
}

impl DenialCache {
    pub(crate) fn new(settings: Denials) -> Self {
        Self { settings, generations: Mutex::default() }
    }

    /// The denial of a request, if what is known of its keys is enough to deny it.
    pub(crate) fn deny(&self, request: &Request) -> Option<Verdict> {
        // Buckets of a tree deny together only.
        if request.lends() {
            return None;
        }
        let mut keys: Vec<&[u8]> = Vec::with_capacity(request.parts.len());
        let mut states = Vec::with_capacity(request.parts.len());
        let mut slots = Vec::with_capacity(request.parts.len());
        let mut now = Timestamp::MIN;
        let generations = self.generations();
        for part in &request.parts {
            if let Some(slot) = keys.iter().position(|key| *key == part.key) {
                slots.push(slot);
                continue;
            }
            let entry = generations.get(&part.key)?;
            let age = entry.asked_at.elapsed();
            if age >= self.settings.recheck || entry.head != part.encoded.head() {
                return None;
            }
            now = now.max(entry.server_time.after(age));
            slots.push(keys.len());
            keys.push(&part.key);
            states.push(entry.state.clone());
        }
        drop(generations);
        let charges: Vec<Charge<'_>> = request.parts.iter().map(KeyCharge::charge).collect();
        let verdict = decide_all(&charges, &slots, &mut states, request.id, now);
        (!verdict.is_allowed()).then_some(verdict)
    }

    /// Remembers the states on which the store has denied a request that was asked then.
    pub(crate) fn remember(&self, request: &Request, outcome: &Outcome, asked_at: Instant) {
        if request.lends() {
            return;
        }
        let mut generations = self.generations();
        for (part, state) in request.parts.iter().zip(&outcome.states) {
            let head = part.encoded.head();
            let entry = Entry { state: state.clone(), head, server_time: outcome.now, asked_at };
            generations.put(part.key.clone(), entry, self.settings.keys_max);
        }
    }

    /// Forgets what is known of a request's keys: something is given back to them.
    pub(crate) fn forget(&self, parts: &[KeyCharge]) {
        let mut generations = self.generations();
        for part in parts {
            generations.young.remove(&part.key);
            generations.old.remove(&part.key);
        }
    }

    fn generations(&self) -> MutexGuard<'_, Generations> {
        self.generations.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Generations {
    fn get(&self, key: &[u8]) -> Option<&Entry> {
        self.young.get(key).or_else(|| self.old.get(key))
    }

    fn put(&mut self, key: Vec<u8>, entry: Entry, max: usize) {
        let most = (max / 2).max(1);
        let bytes = key.len() + entry.state.heap_bytes();
        if self.young.len() >= most || self.young_bytes + bytes > most * KEPT_BYTES_MAX {
            self.old = std::mem::take(&mut self.young);
            self.young_bytes = 0;
        }
        self.young_bytes += bytes;
        self.young.insert(key, entry);
    }
}

#[cfg(test)]
mod tests {
    use tollway_core::Policy;

    use super::*;

    #[test]
    fn long_keys_are_forgotten_sooner_and_take_no_more_memory() {
        let policy = Policy::parse("api", "1/1m").unwrap();
        let state = State::vacant(policy.algorithm());
        let head = (1, Mark::of(&policy));
        let entry = Entry { state, head, server_time: Timestamp::MIN, asked_at: Instant::now() };
        let mut generations = Generations::default();
        for number in 0..100u8 {
            let key = vec![number; 65_536];
            generations.put(key.clone(), entry.clone(), 64);
            assert!(generations.get(&key).is_some(), "the newest is remembered");
            let keys = generations.young.keys().chain(generations.old.keys());
            let bytes: usize = keys.map(Vec::len).sum();
            assert!(bytes <= 64 * KEPT_BYTES_MAX + 2 * 65_536, "{bytes} bytes");
        }
    }
}
