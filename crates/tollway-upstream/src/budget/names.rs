//! Which bucket a route belongs to: the upstream's own name where it is known, else the route.
//!
//! A name is `hash major` or `METHOD /template major`. Hashes leave the resource out, so the major
//! parameters are added; a hash learned from one channel then serves every channel.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::bucket::Bucket;
use super::room::Share;
use crate::profile::Route;

/// Routes whose name is remembered; further ones are buckets of their own. The largest API with a
/// profile has about a thousand routes.
const ROUTES_MAX: usize = 16_384;

/// The upstream's names of buckets, by route (the fleet's and this process's alike).
#[derive(Debug, Default)]
pub(crate) struct Names {
    hashes: HashMap<Box<str>, Known>,
    share: Share,
}

/// A name, and the event at which it was learned.
#[derive(Debug)]
struct Known {
    hash: Arc<str>,
    since: u64,
}

impl Names {
    /// None known yet; those that come take of a room.
    pub(crate) fn within(share: Share) -> Self {
        Self { share, ..Self::default() }
    }

    /// The name of the bucket that a request to `route` is counted in, as far as is known.
    pub(super) fn bucket<'a>(&'a self, route: &'a Route) -> Cow<'a, str> {
        match (self.hashes.get(route.shape()), route.class()) {
            (Some(known), _) => with_major(&known.hash, route),
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

    /// Whether another name than `hash` was learned after the request of that event had left. Then
    /// nobody knows which of the two is newer, and going back to the old one would forget what the
    /// new one's bucket has counted.
    pub(super) fn is_outdated(&self, route: &Route, hash: &str, event: u64) -> bool {
        let known = self.hashes.get(route.shape());
        known.is_some_and(|known| *known.hash != *hash && event < known.since)
    }

    /// All that are known and when they were learned, in order.
    #[cfg(feature = "redis")]
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &str, u64)> {
        let all = self.hashes.iter().map(|(shape, known)| (&**shape, &*known.hash, known.since));
        let mut all: Vec<_> = all.collect();
        all.sort_unstable();
        all.into_iter()
    }

    /// The upstream's name of the bucket of the route of that shape.
    #[cfg(feature = "redis")]
    pub(crate) fn get(&self, shape: &str) -> Option<&Arc<str>> {
        self.hashes.get(shape).map(|known| &known.hash)
    }

    /// Remembers the upstream's name of a bucket, learned at the event `since`; whether that
    /// is news.
    pub(crate) fn learn(&mut self, shape: &str, hash: &str, since: u64) -> bool {
        let known = self.hashes.get(shape);
        let is_full = known.is_none() && self.hashes.len() >= ROUTES_MAX;
        if is_full || known.is_some_and(|known| *known.hash == *hash) {
            return false;
        }
        if known.is_none() && !self.share.grow() {
            return false;
        }
        self.hashes.insert(shape.into(), Known { hash: hash.into(), since });
        true
    }
}

/// Routes of one bucket that are shown.
const SHOWN_MAX: usize = 8;

/// The routes by the upstream's name of their bucket: made once for a page of buckets.
pub(super) struct RoutesByName<'a>(HashMap<&'a str, BTreeSet<&'a str>>);

impl Names {
    pub(super) fn by_name(&self) -> RoutesByName<'_> {
        let mut routes: HashMap<&str, BTreeSet<&str>> = HashMap::new();
        for (shape, Known { hash, .. }) in &self.hashes {
            let known = routes.entry(&**hash).or_default();
            known.insert(shape);
            if known.len() > SHOWN_MAX {
                known.pop_last();
            }
        }
        RoutesByName(routes)
    }
}

impl RoutesByName<'_> {
    /// Methods and templates of the requests that a bucket counts.
    pub(super) fn of(&self, bucket: &Bucket) -> Vec<String> {
        let name = &*bucket.name;
        // Both the upstream's name and the major parameters after it may have spaces.
        let ends = name.match_indices(' ').map(|(at, _)| at).chain([name.len()]);
        let named = ends.filter_map(|end| self.0.get(&name[..end])).flatten();
        let sub_limits = bucket.busy.iter().flat_map(|busy| &busy.sub_limits);
        let in_use = sub_limits.map(|sub_limit| &*sub_limit.label);
        let routes: BTreeSet<&str> = named.copied().chain(in_use).chain(route_in(name)).collect();
        routes.into_iter().take(SHOWN_MAX).map(str::to_owned).collect()
    }
}

/// The route in the name of a bucket that the upstream did not name: `GET /channels/:major 42`.
fn route_in(name: &str) -> Option<&str> {
    let at = name.find('/')?;
    let is_method = name[..at].trim_end().bytes().all(|byte| byte.is_ascii_alphabetic());
    let end = name[at..].find(' ').map_or(name.len(), |length| at + length);
    is_method.then(|| &name[..end])
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
