//! Which bucket a route belongs to: the upstream's own name where it is known, else the route.
//!
//! A name is `hash major` or `METHOD /template major`. Hashes leave the resource out, so the major
//! parameters are added; a hash learned from one channel then serves every channel.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use crate::profile::Route;

/// Routes whose name is remembered; further ones are buckets of their own. The largest API with a
/// profile has about a thousand routes.
const ROUTES_MAX: usize = 16_384;

/// The upstream's names of buckets, by route (the fleet's and this process's alike).
#[derive(Debug, Default)]
pub(crate) struct Names {
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

    /// The upstream's name of the bucket of the route of that shape.
    #[cfg(feature = "redis")]
    pub(crate) fn get(&self, shape: &str) -> Option<&Arc<str>> {
        self.hashes.get(shape)
    }

    /// Remembers the upstream's name of a route's bucket; whether that is news.
    pub(crate) fn learn(&mut self, shape: &str, hash: &str) -> bool {
        let known = self.hashes.get(shape);
        let is_full = known.is_none() && self.hashes.len() >= ROUTES_MAX;
        if is_full || known.is_some_and(|known| **known == *hash) {
            return false;
        }
        self.hashes.insert(shape.into(), hash.into());
        true
    }
}

/// A route's sub-limit within its bucket.
pub(super) fn sub_limit_label(route: &Route) -> Cow<'_, str> {
    match route.lane() {
        Some(sub_limit) => Cow::Owned([route.name(), " ", sub_limit].concat()),
        None => Cow::Borrowed(route.name()),
    }
}

fn with_major<'a>(name: &'a str, route: &Route) -> Cow<'a, str> {
    match route.major() {
        "" => Cow::Borrowed(name),
        major => Cow::Owned([name, " ", major].concat()),
    }
}
