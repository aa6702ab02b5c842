//! What the proxy counts by route and by credential: bounded, and never by what a client made up.
//!
//! A route is its method and template, a credential the beginning of its hash. Each gets a row
//! once the upstream has served it (a status below 400, or a refusal by a limit): paths and
//! credentials that clients try out share the row `other`, and so does what comes when all rows
//! are taken.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, Hash, RandomState};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tollway_http::metrics::Exposition;
use tollway_upstream::profile::{Observation, Route};

use crate::credential::CredentialId;
use crate::events::shown;
use crate::metrics::{SCOPES, scope_index};

/// Rows of routes, and of credentials.
const ROUTES_MAX: usize = 64;
const CREDENTIALS_MAX: usize = 32;
/// The row of whatever has none of its own.
const OTHER: &str = "other";
/// Nothing was told of what is left.
const UNTOLD: u64 = u64::MAX;

/// Counts by route and by credential.
#[derive(Debug)]
pub(super) struct Labelled {
    routes: Rows,
    credentials: Rows,
}

/// Rows by a hash of what they count, and the one for all others. To make a label costs more than
/// all else that is done here, so it is made once for each row and not for each request.
#[derive(Debug)]
struct Rows {
    known: RwLock<HashMap<u64, Known>>,
    hasher: RandomState,
    other: Arc<Row>,
    rows_max: usize,
}

#[derive(Debug)]
struct Known {
    label: String,
    row: Arc<Row>,
}

/// What is counted of one label.
#[derive(Debug)]
struct Row {
    requests: AtomicU64,
    waited_us: AtomicU64,
    limited: [AtomicU64; SCOPES.len()],
    waiting: AtomicI64,
    /// As the last answer told it, the dimension with the least.
    remaining: AtomicU64,
}

/// The rows of a request: of its route, and of its credential.
#[derive(Clone, Debug)]
pub(super) struct RequestRows([Arc<Row>; 2]);

/// A request that waits for its permit; it no longer does when this is dropped.
#[derive(Debug)]
pub(super) struct Waiting(RequestRows);

impl Default for Labelled {
    fn default() -> Self {
        Self { routes: Rows::new(ROUTES_MAX), credentials: Rows::new(CREDENTIALS_MAX) }
    }
}

impl Labelled {
    /// Counts an answer of the upstream, and what its request had waited. `rows` are those of its
    /// request as they were when it was sent: whoever had none then may have them now.
    pub(super) fn answered(
        &self,
        route: &Route,
        id: CredentialId,
        rows: &RequestRows,
        observation: &Observation,
        waited: Duration,
    ) {
        let is_served = observation.status < 400 || observation.is_limited();
        if is_served && self.have_other(rows) {
            return self.rows_by(route, id, true).answered(observation, waited);
        }
        rows.answered(observation, waited);
    }

    /// The rows of a request, as far as they have been made.
    pub(super) fn rows(&self, route: &Route, id: CredentialId) -> RequestRows {
        self.rows_by(route, id, false)
    }

    fn have_other(&self, RequestRows([route, credential]): &RequestRows) -> bool {
        Arc::ptr_eq(route, &self.routes.other) || Arc::ptr_eq(credential, &self.credentials.other)
    }

    fn rows_by(&self, route: &Route, id: CredentialId, may_be_made: bool) -> RequestRows {
        let named = (route.method(), route.template());
        // Where a route has a name, its class is no part of its label.
        let class = route.class().filter(|_| named == ("", ""));
        RequestRows([
            self.routes.row(&(named, class), || label_of(route), may_be_made),
            self.credentials.row(&id, || id.short(), may_be_made),
        ])
    }

    /// Requests that wait for their permits.
    pub(super) fn waiting(&self) -> i64 {
        self.credentials.all().iter().map(|(_, row)| row.waiting.load(Ordering::Relaxed)).sum()
    }

    pub(super) fn write(&self, text: &mut Exposition) {
        self.routes.write("route", text);
        self.credentials.write("credential", text);
    }
}

impl RequestRows {
    /// Counts the request as waiting for as long as what is returned lives.
    pub(super) fn wait(&self) -> Waiting {
        for row in &self.0 {
            row.waiting.fetch_add(1, Ordering::Relaxed);
        }
        Waiting(self.clone())
    }

    fn answered(&self, observation: &Observation, waited: Duration) {
        self.0.iter().for_each(|row| row.answered(observation, waited));
    }
}

impl Rows {
    fn new(rows_max: usize) -> Self {
        let (known, hasher, other) = (RwLock::default(), RandomState::new(), Arc::default());
        Self { known, hasher, other, rows_max }
    }

    /// The row of `counted`, made if it may be and there is room.
    fn row(
        &self,
        counted: &impl Hash,
        label: impl FnOnce() -> String,
        may_be_made: bool,
    ) -> Arc<Row> {
        let hash = self.hasher.hash_one(counted);
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = known.get(&hash) {
            return Arc::clone(&known.row);
        }
        let has_room = known.len() < self.rows_max;
        drop(known);
        if !may_be_made || !has_room {
            return Arc::clone(&self.other);
        }
        let label = label();
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= self.rows_max && !known.contains_key(&hash) {
            return Arc::clone(&self.other);
        }
        // Labels are cut: what has one label is counted in one row, or it would be told twice.
        let same = known.values().find(|known| known.label == label);
        let row = same.map(|known| Arc::clone(&known.row)).unwrap_or_default();
        Arc::clone(&known.entry(hash).or_insert(Known { label, row }).row)
    }

    /// All rows by label, that of the others last.
    fn all(&self) -> Vec<(String, Arc<Row>)> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let mut rows: Vec<(String, Arc<Row>)> =
            known.values().map(|known| (known.label.clone(), Arc::clone(&known.row))).collect();
        drop(known);
        rows.sort_by(|(one, _), (two, _)| one.cmp(two));
        rows.dedup_by(|(one, _), (two, _)| one == two);
        rows.push((OTHER.to_owned(), Arc::clone(&self.other)));
        rows
    }

    fn write(&self, label: &str, text: &mut Exposition) {
        let rows = self.all();
        let mut family = |name: &str, kind: &str, help: &str, value: fn(&Row) -> Option<f64>| {
            text.family(&format!("tollway_proxy_{label}_{name}"), kind, help);
            for (of, row) in &rows {
                if let Some(value) = value(row) {
                    text.sample(&[(label, of)], value);
                }
            }
        };
        family("requests_total", "counter", "Answers of the upstream.", |row| {
            Some(row.requests.load(Ordering::Relaxed) as f64)
        });
        family("waited_seconds_total", "counter", "Time in line of what was answered.", |row| {
            Some(row.waited_us.load(Ordering::Relaxed) as f64 / 1e6)
        });
        family("waiting", "gauge", "Requests that wait for a permit.", |row| {
            Some(row.waiting.load(Ordering::Relaxed) as f64)
        });
        family("remaining", "gauge", "Units left, as the last answer told.", |row| {
            let told = row.remaining.load(Ordering::Relaxed);
            (told != UNTOLD).then_some(told as f64)
        });
        let help = "Refusals of the upstream by a limit.";
        text.family(&format!("tollway_proxy_{label}_limited_total"), "counter", help);
        for (of, row) in &rows {
            for (scope, count) in SCOPES.iter().zip(&row.limited) {
                let count = count.load(Ordering::Relaxed);
                if count > 0 {
                    text.sample(&[(label, of), ("scope", scope)], count as f64);
                }
            }
        }
    }
}

impl Row {
    fn answered(&self, observation: &Observation, waited: Duration) {
        let waited_us = u64::try_from(waited.as_micros()).unwrap_or(u64::MAX);
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.waited_us.fetch_add(waited_us, Ordering::Relaxed);
        if observation.is_limited() {
            self.limited[scope_index(observation.scope)].fetch_add(1, Ordering::Relaxed);
        }
        if let Some(least) = observation.readings.iter().filter_map(|it| it.remaining).min() {
            self.remaining.store(least, Ordering::Relaxed);
        }
    }
}

impl Default for Row {
    fn default() -> Self {
        Self {
            requests: AtomicU64::new(0),
            waited_us: AtomicU64::new(0),
            limited: Default::default(),
            waiting: AtomicI64::new(0),
            remaining: AtomicU64::new(UNTOLD),
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        for row in &self.0.0 {
            row.waiting.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Method and template; the class where the profile puts all routes together.
fn label_of(route: &Route) -> String {
    match (route.method(), route.template()) {
        ("", "") => route.class().unwrap_or("all").to_owned(),
        ("", template) => shown(template),
        (method, template) => shown(&format!("{method} {template}")),
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;

    use super::*;

    fn id(credential: &str) -> CredentialId {
        let mut headers = HeaderMap::new();
        headers.insert("authorization", credential.parse().unwrap());
        CredentialId::of(&headers, &[http::header::AUTHORIZATION]).unwrap()
    }

    fn answered(
        labelled: &Labelled,
        route: &Route,
        id: CredentialId,
        answer: &Observation,
        waited: Duration,
    ) {
        labelled.answered(route, id, &labelled.rows(route, id), answer, waited);
    }

    fn answer(status: u16) -> Observation {
        Observation { status, ..Observation::default() }
    }

    fn text(labelled: &Labelled) -> String {
        let mut text = Exposition::default();
        labelled.write(&mut text);
        text.finish()
    }

    #[test]
    fn what_the_upstream_does_not_serve_gets_no_row_of_its_own() {
        let labelled = Labelled::default();
        let (known, made_up) = (Route::new("GET", "/a", ""), Route::new("GET", "/made-up", ""));
        answered(&labelled, &known, id("Bot one"), &answer(200), Duration::from_millis(1_500));
        answered(&labelled, &made_up, id("Bot two"), &answer(404), Duration::ZERO);
        let text = text(&labelled);
        assert!(text.contains("route_requests_total{route=\"GET /a\"} 1\n"), "{text}");
        assert!(text.contains("route_waited_seconds_total{route=\"GET /a\"} 1.5\n"), "{text}");
        assert!(text.contains("route_requests_total{route=\"other\"} 1\n"), "{text}");
        assert!(!text.contains("made-up"), "{text}");
        assert_eq!(text.matches("credential_requests_total{").count(), 2, "one, and others");
    }

    #[test]
    fn rows_are_bounded_and_nothing_is_lost() {
        let labelled = Labelled::default();
        for number in 0..1_000 {
            let route = Route::new("GET", &format!("/{number}/x"), "");
            answered(&labelled, &route, id(&number.to_string()), &answer(200), Duration::ZERO);
        }
        let text = text(&labelled);
        for (label, rows) in [("route", ROUTES_MAX), ("credential", CREDENTIALS_MAX)] {
            let family = format!("tollway_proxy_{label}_requests_total{{");
            let lines: Vec<&str> = text.lines().filter(|line| line.starts_with(&family)).collect();
            assert_eq!(lines.len(), rows + 1, "{text}");
            let count = |line: &str| line.rsplit(' ').next().unwrap().parse::<usize>().unwrap();
            assert_eq!(lines.into_iter().map(count).sum::<usize>(), 1_000);
        }
    }

    #[test]
    fn routes_with_one_label_are_told_once() {
        let labelled = Labelled::default();
        for end in ["one", "two"] {
            let route = Route::new("GET", &format!("/{}/{end}", "a".repeat(200)), "");
            answered(&labelled, &route, id("Bot one"), &answer(200), Duration::ZERO);
        }
        let text = text(&labelled);
        let rows = text.lines().filter(|line| line.starts_with("tollway_proxy_route_requests"));
        let counts: Vec<_> = rows.map(|row| row.rsplit(' ').next().unwrap()).collect();
        assert_eq!(counts, ["2", "0"], "{text}");
    }

    #[test]
    fn who_waits_is_counted_until_he_does_not() {
        let labelled = Labelled::default();
        let route = Route::new("GET", "/a", "");
        answered(&labelled, &route, id("Bot one"), &answer(200), Duration::ZERO);
        let waiting = labelled.rows(&route, id("Bot one")).wait();
        let line = "tollway_proxy_route_waiting{route=\"GET /a\"} ";
        assert!(text(&labelled).contains(&format!("{line}1\n")));
        assert_eq!(labelled.waiting(), 1);
        drop(waiting);
        assert!(text(&labelled).contains(&format!("{line}0\n")));
    }
}
