//! Which bucket a route belongs to: the upstream's own name where it is known, else the route.
//!
//! A name is `hash major` or `METHOD /template major`. Hashes leave the resource out, so the major
//! parameters are added; a hash learned from one channel then serves every channel.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use crate::profile::Route;

/// Routes whose hash is remembered; further ones are buckets of their own.
const ROUTES_MAX: usize = 8_192;

/// The hashes of routes.
#[derive(Debug, Default)]
pub(super) struct Names {
    hashes: HashMap<Box<str>, Arc<str>>,
}

impl Names {
    /// The name of the bucket that a request to `route` is counted in, as far as is known.
    pub(super) fn bucket<'a>(&'a self, route: &'a Route) -> Cow<'a, str> {
        match (self.hashes.get(route.shape()), route.class()) {
            (Some(hash), _) => with_major(hash, route),
            (None, Some(class)) => with_major(class, route),
            (None, None) => with_major(route.name(), route),
        }
    }

    /// The name of the bucket that the upstream calls `hash`.
    pub(super) fn hashed<'a>(hash: &'a str, route: &Route) -> Cow<'a, str> {
        with_major(hash, route)
    }

    /// Whether the upstream has named the route's bucket before.
    pub(super) fn knows(&self, route: &Route) -> bool {
        self.hashes.contains_key(route.shape())
    }

    /// Remembers the upstream's name of a route's bucket.
    pub(super) fn learn(&mut self, route: &Route, hash: &Arc<str>) {
        let own = route.shape();
        if let Some(known) = self.hashes.get_mut(own) {
            if **known != **hash {
                *known = Arc::clone(hash);
            }
        } else if self.hashes.len() < ROUTES_MAX {
            self.hashes.insert(own.into(), Arc::clone(hash));
        }
    }
}

/// A route's lane within its bucket.
pub(super) fn lane_label(route: &Route) -> Cow<'_, str> {
    match route.lane() {
        Some(lane) => Cow::Owned([route.name(), " ", lane].concat()),
        None => Cow::Borrowed(route.name()),
    }
}

fn with_major<'a>(name: &'a str, route: &Route) -> Cow<'a, str> {
    match route.major() {
        "" => Cow::Borrowed(name),
        major => Cow::Owned([name, " ", major].concat()),
    }
}
