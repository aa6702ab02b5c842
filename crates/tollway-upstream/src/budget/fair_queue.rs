//! Who goes next: by priority, then clients in turn by weight, then in order of arrival.
//!
//! Start-time fair queueing: what a client asks for is stamped with the virtual time at which its
//! turn would come if every client had its share, and the lowest stamp goes. One client alone is
//! served in order of arrival. A lower priority is overtaken by at most [`OVERTAKEN_MAX`] in a row.

use std::collections::{BTreeMap, HashMap};

use super::Priority;

/// Requests of higher priority that may go in a row while a lower one waits.
const OVERTAKEN_MAX: u32 = 15;
/// Virtual time of one unit at weight 1.
const UNIT: u64 = 1 << 20;
/// Clients remembered; the stamps of further ones begin at the present.
const CLIENTS_MAX: usize = 4_096;

/// A place in a line: priority, stamp, arrival.
pub(super) type Place = (Priority, u64, u64);

/// Stamps what is asked for.
#[derive(Clone, Debug, Default)]
pub(super) struct Turns {
    now: u64,
    ends: HashMap<u64, u64>,
    overtaken: u32,
}

impl Turns {
    /// The place of a client's next request, the `arrival`th of all.
    pub(super) fn place(&mut self, who: &Asker, arrival: u64) -> Place {
        if self.ends.len() >= CLIENTS_MAX {
            let now = self.now;
            self.ends.retain(|_, end| *end > now);
        }
        let start = self.ends.get(&who.client).map_or(self.now, |end| self.now.max(*end));
        if self.ends.len() < CLIENTS_MAX {
            self.ends.insert(who.client, start + UNIT / u64::from(who.weight.max(1)).min(UNIT));
        }
        (who.priority, start, arrival)
    }

    /// The place to serve next of those in `lines`, by the index of the line.
    pub(super) fn choose<T>(&self, lines: &[(usize, &Line<T>)]) -> Option<(usize, Place)> {
        let first = |priority| {
            let places = lines.iter().filter_map(move |(index, line)| {
                line.first_of(priority).map(|place| (*index, place))
            });
            places.min_by_key(|(_, place)| *place)
        };
        let mut order = [Priority::High, Priority::Normal, Priority::Low];
        if self.overtaken >= OVERTAKEN_MAX {
            order.reverse();
        }
        order.into_iter().find_map(first)
    }

    /// A place was served; `lower` says whether one of lower priority waits on.
    pub(super) fn served(&mut self, place: Place, lower: bool) {
        self.now = self.now.max(place.1);
        self.overtaken = if lower { self.overtaken.saturating_add(1) } else { 0 };
    }
}

/// Who asks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asker {
    pub(super) client: u64,
    pub(super) weight: u32,
    pub(super) priority: Priority,
}

/// Those who wait, by place.
#[derive(Clone, Debug)]
pub(super) struct Line<T> {
    places: BTreeMap<Place, T>,
}

impl<T> Default for Line<T> {
    fn default() -> Self {
        Self { places: BTreeMap::new() }
    }
}

impl<T> Line<T> {
    pub(super) fn insert(&mut self, place: Place, value: T) {
        self.places.insert(place, value);
    }

    pub(super) fn remove(&mut self, place: &Place) -> Option<T> {
        self.places.remove(place)
    }

    pub(super) fn get(&self, place: &Place) -> Option<&T> {
        self.places.get(place)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    /// How many have that priority or a higher one.
    pub(super) fn len_to(&self, priority: Priority) -> usize {
        self.places.range(..=(priority, u64::MAX, u64::MAX)).count()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Place, &T)> {
        self.places.iter()
    }

    /// Whether one of lower priority than `than` is in line.
    pub(super) fn has_below(&self, than: Priority) -> bool {
        self.places.last_key_value().is_some_and(|((priority, ..), _)| *priority > than)
    }

    fn first_of(&self, priority: Priority) -> Option<Place> {
        let range = (priority, 0, 0)..=(priority, u64::MAX, u64::MAX);
        self.places.range(range).next().map(|(place, _)| *place)
    }
}
