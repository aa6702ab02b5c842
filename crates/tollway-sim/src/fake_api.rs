//! A fake upstream: an API that dictates limits, with the vices of the real ones, in virtual time.
//!
//! ```text
//!  (Request, now) ─► banned? ─► fault? ─► 401/403/404 ─► global ─► sub-limit ─► bucket ─► Response
//!                                                            └────── denied ─────┘   fields, body,
//!                                                             counted as invalid     delay, ending
//! ```
//!
//! [`Upstream::answer`] is a pure step: it reads no clock and does no I/O, so a simulation and the
//! loopback server (`loopback`) run the same machine. A denied request takes nothing from any
//! limit. What a real upstream does by chance is done here on demand, by a [`Fault`].
//!
//! Conventions that make faults reachable from any client: a credential that contains `revoked` is
//! answered 401; an id that starts with `403` is forbidden, one that starts with `404` is not
//! there; `?tag=` is written into the log of arrivals.
//!
//! Deliberately absent: any knowledge of how clients behave, and any content but what `bodies`
//! describes: nothing that a client writes can be read again.

mod ban;
mod bodies;
mod counters;
mod fault;
#[cfg(feature = "loopback")]
pub mod loopback;
mod meter;
mod model;
mod route;
mod say;
mod spec;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::time::Duration;

use tollway_core::Timestamp;

use ban::Ban;
pub use bodies::{AnswerSpec, ErrorSpec};
pub use counters::{Arrival, BucketCount, Counters};
pub use fault::{Ending, Fault, Scheduled};
use meter::Meter;
pub use meter::{LimitSpec, Standing, Window};
use model::{Call, Due};
pub use model::{ModelApi, ModelLimitSpec, ModelSpec, Piece, UsageTold};
use route::Match;
use say::Saying;
pub use spec::{BanSpec, BucketSpec, Example, RouteSpec, Scope, Spec, SpecError, SubLimitSpec};

/// Counted buckets; a client that names more is answered 503.
const METERS_MAX: usize = 1_000_000;

/// What a client sent.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// GET, POST and so on.
    pub method: &'a str,
    /// The path with its query.
    pub target: &'a str,
    /// The `Authorization` field, or `X-Api-Key` for the APIs that use it.
    pub credential: Option<&'a str>,
    /// The body, looked at only where a sub-limit or an answer asks for a field of it.
    pub body: &'a [u8],
}

/// What the upstream answers, and how it arrives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// The status.
    pub status: u16,
    /// The header fields.
    pub fields: Vec<(String, String)>,
    /// The body.
    pub body: String,
    /// The parts that the body is sent in; none if it is sent whole.
    pub pieces: Vec<Piece>,
    /// Time before each part.
    pub every: Duration,
    /// Tokens that a model made for it.
    pub tokens: u64,
    /// How long it stays under way.
    pub delay: Duration,
    /// Whether it arrives whole.
    pub ending: Ending,
}

impl Response {
    /// The first field of that name.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&str> {
        let found = self.fields.iter().find(|(found, _)| found.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }
}

/// An upstream at work.
#[derive(Debug)]
pub struct Upstream {
    spec: Spec,
    meters: HashMap<MeterKey, Meter>,
    faults: fault::Faults,
    ban: Ban,
    counters: Counters,
    started: Option<Timestamp>,
}

/// Whose counter it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum MeterKey {
    Global { credential: String },
    Bucket { credential: String, bucket: String, major: String },
    Sub { credential: String, route: usize, major: String },
    Model { credential: String, model: String, dimension: &'static str },
}

/// Why a request was not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    Global,
    Sub,
    Bucket(Scope),
}

impl Upstream {
    /// The upstream that `spec` describes, idle.
    #[must_use]
    pub fn new(spec: Spec) -> Self {
        Self {
            meters: HashMap::new(),
            faults: fault::Faults::new(spec.faults.clone()),
            ban: Ban::new(spec.ban.clone()),
            counters: Counters::default(),
            started: None,
            spec,
        }
    }

    /// Answers one request that arrives at `now`. Times must not decrease.
    pub fn answer(&mut self, request: &Request<'_>, now: Timestamp) -> Response {
        let started = *self.started.get_or_insert(now);
        self.counters.requests += 1;
        self.faults.schedule(self.counters.requests, now.since(started));
        let found = route::find(&self.spec, request);
        let mut response = self.decide(request, &found, now);
        response.delay += self.spec.latency + self.faults.lateness();
        response.ending = self.faults.ending();
        self.note(request, &found, &response, now);
        response
    }

    /// Makes a fault happen from the next request on.
    pub fn inject(&mut self, fault: Fault) {
        self.faults.inject(fault);
    }

    /// What happened so far.
    #[must_use]
    pub fn counters(&mut self, now: Timestamp) -> &Counters {
        self.counters.invalid = self.ban.count(now);
        self.counters.banned = self.ban.is_banned(now);
        &self.counters
    }

    /// Forgets what happened, but not what has been taken from limits.
    pub fn forget_counts(&mut self) {
        self.counters = Counters::default();
    }

    fn decide(&mut self, request: &Request<'_>, found: &Match, now: Timestamp) -> Response {
        if self.ban.is_banned(now) {
            self.counters.while_banned += 1;
            return say::html(self.ban.left(now));
        }
        if self.faults.take_html() {
            self.counters.html += 1;
            self.count_invalid(now);
            return say::html(self.spec.html_retry);
        }
        if let Some(status) = self.faults.take_status() {
            return self.plain(status, "broken for a moment", now);
        }
        if let Some(response) = self.refuse_identity(request, found, now) {
            return response;
        }
        match self.spec.model.as_ref().and_then(|model| Some((model.call(request)?, model))) {
            None => self.charge(request, found, now),
            Some((Ok(call), _)) => self.charge_call(request, &call, now),
            Some((Err(wrong), model)) => {
                let body = model.no_call(&wrong);
                Saying { spec: &self.spec, faults: &self.faults, now }.json(400, &body)
            }
        }
    }

    /// Takes from every limit of the model, or from none.
    fn charge_call(&mut self, request: &Request<'_>, call: &Call, now: Timestamp) -> Response {
        if self.meters.len() >= METERS_MAX {
            return self.plain(503, "too many buckets", now);
        }
        let Some(model) = &self.spec.model else { return self.plain(404, "no model", now) };
        let credential = request.credential.unwrap_or("");
        let mut told = Vec::new();
        let mut refused = None;
        for due in model.due(call) {
            let key = model_key(credential, call, &due);
            let standing = self.meter(&key, due.limit).peek(due.needed, now);
            refused = refused.or_else(|| (!standing.allowed).then_some(told.len()));
            told.push((due, standing));
        }
        if let Some(index) = refused {
            self.counters.limited(Refusal::Bucket(Scope::User));
            self.count_invalid(now);
            let (due, standing) = &told[index];
            let is_ever = due.needed <= standing.limit;
            let saying = Saying { spec: &self.spec, faults: &self.faults, now };
            return saying.model_denial(due.dimension, &told, is_ever.then_some(*standing));
        }
        for (due, standing) in &mut told {
            let key = model_key(credential, call, due);
            *standing = self.meter(&key, due.limit).take(due.taken, now);
        }
        self.counters.served += 1;
        let usage = self.faults.take_usage();
        let Some(model) = &self.spec.model else { return self.plain(404, "no model", now) };
        let answer = model.answer(call, self.counters.requests, now, usage);
        Saying { spec: &self.spec, faults: &self.faults, now }.model_answer(answer, &told)
    }

    /// 401, 403 and 404: an answer before any limit is looked at.
    fn refuse_identity(
        &mut self,
        request: &Request<'_>,
        found: &Match,
        now: Timestamp,
    ) -> Option<Response> {
        if request.credential.is_some_and(|text| text.contains("revoked")) {
            self.counters.unauthorized += 1;
            self.count_invalid(now);
            return Some(self.plain(401, "401: Unauthorized", now));
        }
        if found.names("403") {
            self.counters.forbidden += 1;
            self.count_invalid(now);
            return Some(self.plain(403, "Missing Access", now));
        }
        if found.names("404") {
            self.counters.missing += 1;
            if found.route.is_some_and(|index| self.spec.routes[index].webhook) {
                self.counters.missing_webhook += 1;
                self.count_invalid(now);
            }
            return Some(self.plain(404, "Unknown", now));
        }
        None
    }

    /// Takes from every limit that applies, or from none.
    fn charge(&mut self, request: &Request<'_>, found: &Match, now: Timestamp) -> Response {
        if self.meters.len() >= METERS_MAX {
            return self.plain(503, "too many buckets", now);
        }
        let due = self.due(request, found);
        for (key, limit, refusal) in &due {
            let standing = self.meter(key, *limit).peek(1, now);
            if !standing.allowed {
                return self.deny(found, *refusal, standing, now);
            }
        }
        let mut told = None;
        for (key, limit, refusal) in &due {
            let standing = self.meter(key, *limit).take(1, now);
            if matches!(refusal, Refusal::Bucket(_)) {
                told = Some(standing);
            }
        }
        self.counters.served += 1;
        self.serve(request, found, told, now)
    }

    /// The limits that a request is charged to, the widest first.
    fn due(&self, request: &Request<'_>, found: &Match) -> Vec<(MeterKey, LimitSpec, Refusal)> {
        let credential = request.credential.unwrap_or("").to_owned();
        let route = found.route.map(|index| &self.spec.routes[index]);
        let mut due = Vec::new();
        if let Some(limit) = self.spec.global.filter(|_| route.is_none_or(|route| !route.exempt)) {
            let key = MeterKey::Global { credential: credential.clone() };
            due.push((key, limit, Refusal::Global));
        }
        let Some((index, route)) = found.route.zip(route) else { return due };
        if let Some(sub) = route.sub_limit.as_ref().filter(|sub| sub.applies(request.body)) {
            let (credential, major) = (credential.clone(), found.major.clone());
            let key = MeterKey::Sub { credential, route: index, major };
            due.push((key, sub.limit(), Refusal::Sub));
        }
        if let Some(bucket) = route.bucket.as_ref().and_then(|name| self.spec.buckets.get(name)) {
            let name = route.bucket.clone().unwrap_or_default();
            // What all users of a resource share is not counted by credential.
            let shared = bucket.scope == Scope::Shared;
            let credential = if shared { String::new() } else { credential };
            let key = MeterKey::Bucket { credential, bucket: name, major: found.major.clone() };
            due.push((key, bucket.limit(), Refusal::Bucket(bucket.scope)));
        }
        due
    }

    fn meter(&mut self, key: &MeterKey, limit: LimitSpec) -> &mut Meter {
        if !self.meters.contains_key(key) {
            self.meters.insert(key.clone(), Meter::new());
        }
        let meter = self.meters.get_mut(key).expect("inserted above if it was missing");
        meter.set_limit(self.faults.lowered(key_bucket(key), limit));
        meter
    }

    fn deny(
        &mut self,
        found: &Match,
        refusal: Refusal,
        standing: Standing,
        now: Timestamp,
    ) -> Response {
        self.counters.limited(refusal);
        if refusal != Refusal::Bucket(Scope::Shared) {
            self.count_invalid(now);
        }
        let saying = Saying { spec: &self.spec, faults: &self.faults, now };
        saying.denial(found, refusal, standing)
    }

    fn serve(
        &self,
        request: &Request<'_>,
        found: &Match,
        told: Option<Standing>,
        now: Timestamp,
    ) -> Response {
        let saying = Saying { spec: &self.spec, faults: &self.faults, now };
        let number = self.counters.requests;
        saying.success(request, found, told, number)
    }

    fn plain(&self, status: u16, message: &str, now: Timestamp) -> Response {
        Saying { spec: &self.spec, faults: &self.faults, now }.plain(status, message)
    }

    fn count_invalid(&mut self, now: Timestamp) {
        if self.ban.count_one(now) {
            self.counters.bans += 1;
        }
    }

    fn note(&mut self, request: &Request<'_>, found: &Match, response: &Response, now: Timestamp) {
        let bucket = found.route.and_then(|index| self.spec.routes[index].bucket.clone());
        let lane = format!("{}/{}", bucket.unwrap_or_default(), found.major);
        self.counters.note(Arrival {
            at_us: now.since(self.started.unwrap_or(now)).as_micros() as u64,
            method: request.method.to_owned(),
            bucket: lane,
            status: response.status,
            tag: route::tag(request.target).map(str::to_owned),
        });
    }
}

fn model_key(credential: &str, call: &Call, due: &Due) -> MeterKey {
    let (credential, model) = (credential.to_owned(), call.model.clone());
    MeterKey::Model { credential, model, dimension: due.dimension }
}

fn key_bucket(key: &MeterKey) -> &str {
    match key {
        MeterKey::Bucket { bucket, .. } => bucket,
        MeterKey::Model { dimension, .. } => dimension,
        MeterKey::Global { .. } | MeterKey::Sub { .. } => "",
    }
}
