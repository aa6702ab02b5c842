//! Which bucket a route belongs to: the upstream's own name where it is known, else the route.
//!
//! A name is `hash major` or `METHOD /template major`. Hashes leave the resource out, so the major
//! parameters are added; a hash learned from one channel then serves every channel.

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
    pub(super) fn bucket(&self, route: &Route) -> String {
        let own = route_name(route);
        match route.class() {
            Some(class) => with_major(class, route),
            None => with_major(self.hashes.get(own.as_str()).map_or(&own, |hash| hash), route),
        }
    }

    /// The name of the bucket that the upstream calls `hash`.
    pub(super) fn hashed(hash: &str, route: &Route) -> String {
        with_major(hash, route)
    }

    /// Whether the upstream has named the route's bucket before.
    pub(super) fn knows(&self, route: &Route) -> bool {
        self.hashes.contains_key(route_name(route).as_str())
    }

    /// Remembers the upstream's name of a route's bucket.
    pub(super) fn learn(&mut self, route: &Route, hash: &Arc<str>) {
        let own = route_name(route);
        if let Some(known) = self.hashes.get_mut(own.as_str()) {
            if **known != **hash {
                *known = Arc::clone(hash);
            }
        } else if self.hashes.len() < ROUTES_MAX {
            self.hashes.insert(own.into(), Arc::clone(hash));
        }
    }
}

/// A route without its major parameters: `GET /channels/:major`; `all` where there is but one.
pub(super) fn route_name(route: &Route) -> String {
    match (route.method(), route.template()) {
        ("", "") => "all".to_owned(),
        ("", template) => template.to_owned(),
        (method, template) => [method, " ", template].concat(),
    }
}

/// A route's lane within its bucket.
pub(super) fn lane_label(route: &Route) -> String {
    match route.lane() {
        Some(lane) => [&route_name(route), " ", lane].concat(),
        None => route_name(route),
    }
}

fn with_major(name: &str, route: &Route) -> String {
    match route.major() {
        "" => name.to_owned(),
        major => [name, " ", major].concat(),
    }
}
