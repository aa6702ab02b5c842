//! What happens again and again is told once, and then as a count.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use super::Event;

/// What happens again within this time is held back.
const CALM: Duration = Duration::from_secs(5);
/// Kinds that are told apart; beyond it a kind is told without its bucket.
const STORMS_MAX: usize = 64;

/// Whatever is equal here is the same storm.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct StormKey {
    what: &'static str,
    scope: Option<&'static str>,
    credential: Option<String>,
    place: Option<String>,
}

#[derive(Debug)]
struct Storm {
    until: Instant,
    held: Option<Event>,
}

/// The events that were told lately, and those held back since.
#[derive(Debug, Default)]
pub(super) struct Storms(HashMap<StormKey, Storm>);

impl Storms {
    /// The event, if it is to be told now.
    pub(super) fn admit(&mut self, mut event: Event, now: Instant) -> Option<Event> {
        let mut key = StormKey::of(&event);
        if self.0.len() >= STORMS_MAX && !self.0.contains_key(&key) {
            event = Event { credential: None, bucket: None, route: None, ..event };
            key = StormKey { credential: None, place: None, ..key };
        }
        let storm = self.0.get_mut(&key).filter(|storm| now < storm.until);
        let Some(storm) = storm else {
            let held = self.0.insert(key, Storm { until: now + CALM, held: None });
            return Some(event.after(held.and_then(|storm| storm.held)));
        };
        storm.held = Some(event.after(storm.held.take()));
        None
    }

    /// What was held back for long enough; what was not followed by more is forgotten.
    pub(super) fn over(&mut self, now: Instant) -> Vec<Event> {
        let mut told = Vec::new();
        self.0.retain(|_, storm| {
            if now < storm.until {
                return true;
            }
            let held = storm.held.take();
            storm.until = now + CALM;
            let goes_on = held.is_some();
            told.extend(held);
            goes_on
        });
        told
    }
}

impl Event {
    /// It stands for those that were held back as well.
    fn after(self, held: Option<Self>) -> Self {
        let Some(held) = held else { return self };
        let both = self.unanswered.into_iter().chain(held.unanswered);
        Self {
            unanswered: both.reduce(u64::saturating_add),
            count: self.count + held.count,
            ..self
        }
    }
}

impl StormKey {
    /// Buckets of one route are learned together; each is refused for itself.
    fn of(event: &Event) -> Self {
        let place = if event.is_warning { &event.bucket } else { &event.route };
        let (credential, place) = (event.credential.clone(), place.clone());
        Self { what: event.what, scope: event.scope, credential, place }
    }
}
