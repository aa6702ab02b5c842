//! The proxy's own pages: health, metrics, buckets, and the calls that unlock and drain.
//!
//! | request | needs | answer |
//! |---|---|---|
//! | `GET /healthz`, `GET /readyz` | nothing | 200, or 503 when stopping; whether the store that is shared answers |
//! | `GET /metrics` | to look | Prometheus's text |
//! | `GET /admin/` and its script and style | see `page` | a page that shows the two below |
//! | `GET /admin/status` | to look | upstream, store, who waits, refusals, the last changes |
//! | `GET /admin/buckets?cursor=&max=` | to look | buckets of all credentials, a page at a time |
//! | `GET /admin/models` | to look | who used most of the budgets of models |
//! | `POST /admin/unlock?credential=[&bucket=]` | to act | forgets what blocks |
//! | `POST /admin/drain?credential=&bucket=` | to act | refuses what waits |
//!
//! Who has the token may look and act. Without a token nobody may act, and only this machine may
//! look, under a name of this machine: a page in a browser can reach the port by another name.

use std::net::IpAddr;

use http::header::{AUTHORIZATION, HOST, HeaderMap};
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use serde_json::{Value, json};
use subtle::ConstantTimeEq as _;

use crate::State;
use crate::body::Body;
use crate::credential::{Account, CredentialId};
use crate::events::shown;
use crate::fields::percent_decoded;
use crate::page;
use crate::refusal::{json_response, text_response};
use tollway_upstream::budget::{BucketView, Knowledge, Why};

/// Buckets in one page.
const PAGE_MAX: usize = 1_000;

/// Whether the path is one that load balancers and supervisors ask for.
pub(super) fn is_probe(path: &str) -> bool {
    matches!(path, "/healthz" | "/readyz")
}

/// Answers a request for one of the proxy's own pages.
pub(super) async fn answer(
    state: &State,
    peer: IpAddr,
    request: &Request<Incoming>,
) -> Response<Body> {
    let (path, query) = (request.uri().path(), request.uri().query().unwrap_or_default());
    match (request.method(), path) {
        (&Method::GET, "/healthz") => text_response(StatusCode::OK, "alive\n"),
        (&Method::GET, "/readyz") if state.is_stopping() => {
            text_response(StatusCode::SERVICE_UNAVAILABLE, "stopping\n")
        }
        (&Method::GET, "/readyz") => ready(state, may_look(state, peer, request.headers())),
        (&Method::GET, _) if page::has(path) && state.settings.admin.token.is_some() => {
            page::file(path)
        }
        (&Method::GET, _) if !may_look(state, peer, request.headers()) => forbidden(),
        (&Method::GET, _) if page::has(path) => page::file(path),
        (&Method::GET, "/admin/status") => page::status(state),
        (&Method::GET, "/metrics") => text_response(StatusCode::OK, state.metrics.text(state)),
        (&Method::GET, "/admin/buckets") => buckets(state, query).await,
        (&Method::GET, "/admin/models") => models(state),
        (&Method::POST, _) if !may_act(state, request.headers()) => forbidden(),
        (&Method::POST, "/admin/unlock") => unlock(state, query).await,
        (&Method::POST, "/admin/drain") => drain(state, query).await,
        _ => text_response(StatusCode::NOT_FOUND, "no such page\n"),
    }
}

/// A proxy without its store is ready: it keeps its part of the budgets by itself, and a store that
/// all proxies share would take all of them from a balancer at once.
fn ready(state: &State, tells_why: bool) -> Response<Body> {
    let store = state.store.get().map(|store| store.readiness(tells_why));
    text_response(StatusCode::OK, format!("ready\n{}", store.unwrap_or_default()))
}

fn may_act(state: &State, headers: &HeaderMap) -> bool {
    let Some(token) = &state.settings.admin.token else { return false };
    let shown = headers.get(AUTHORIZATION).map(|value| value.as_bytes()).unwrap_or_default();
    let shown = shown.strip_prefix(b"Bearer ").unwrap_or_default();
    shown.ct_eq(token.as_bytes()).into()
}

fn may_look(state: &State, peer: IpAddr, headers: &HeaderMap) -> bool {
    if state.settings.admin.token.is_some() {
        return may_act(state, headers);
    }
    let host = headers.get(HOST).map(|host| host.as_bytes()).unwrap_or_default();
    peer.is_loopback() && state.settings.hosts.has(host)
}

fn forbidden() -> Response<Body> {
    text_response(StatusCode::FORBIDDEN, "needs the admin token as a bearer token\n")
}

/// A page of buckets. The cursor is the credential and the place within its buckets.
async fn buckets(state: &State, query: &str) -> Response<Body> {
    let max = parameter(query, "max").and_then(|text| text.parse().ok()).unwrap_or(100);
    let max = usize::clamp(max, 1, PAGE_MAX);
    let start = parameter(query, "cursor").unwrap_or_default();
    let (id, place) = match start.split_once('.') {
        Some((id, place)) => (CredentialId::parse(id), place.parse().unwrap_or(0)),
        None => (None, 0),
    };
    let mut account = state.accounts.first(|other| id.is_none_or(|id| other >= id));
    let mut views = Vec::new();
    while let Some(current) = account.take() {
        // The credential of the cursor may be gone; then the next one starts at its beginning.
        let from = if Some(current.id) == id { place } else { 0 };
        let page = match current.ledger.buckets(from, max - views.len()).await {
            Ok(page) => page,
            Err(error) => return unavailable(&error.to_string()),
        };
        views.extend(page.buckets.iter().map(|bucket| view(&current, bucket)));
        account = match page.next {
            Some(next) => return page_of(views, Some(format!("{}.{next}", current.id))),
            None => state.accounts.first(|other| other > current.id),
        };
        if let Some(next) = account.as_ref().filter(|_| views.len() >= max) {
            return page_of(views, Some(format!("{}.0", next.id)));
        }
    }
    page_of(views, None)
}

fn page_of(views: Vec<Value>, next: Option<String>) -> Response<Body> {
    json_response(StatusCode::OK, &json!({ "buckets": views, "next": next }))
}

fn view(account: &Account, bucket: &BucketView) -> Value {
    let seconds = |duration: std::time::Duration| duration.as_secs_f64();
    let dimensions: Vec<Value> = bucket
        .dimensions
        .iter()
        .map(|dimension| {
            json!({
                "name": dimension.name,
                "limit": dimension.limit,
                "remaining": dimension.remaining,
                "resets_in": dimension.resets_in.map(seconds),
                "window": dimension.sliding.map(|it| if it { "sliding" } else { "fixed" }),
            })
        })
        .collect();
    let lanes: Vec<Value> = bucket
        .blocked_lanes
        .iter()
        .map(|(lane, left)| json!({ "lane": lane, "for": seconds(*left) }))
        .collect();
    json!({
        "credential": account.id.to_string(),
        "bucket": bucket.id,
        "known": match bucket.knowledge {
            Knowledge::Unknown => "nothing",
            Knowledge::Known => "limit",
            Knowledge::Silent => "silent",
        },
        "dimensions": dimensions,
        "in_flight": bucket.in_flight,
        "queued": bucket.queued,
        "wait": seconds(bucket.wait),
        "divergence": bucket.divergence,
        "blocked_for": bucket.blocked_for.map(seconds),
        "blocked_lanes": lanes,
        "routes": bucket.routes.iter().map(|route| shown(route)).collect::<Vec<_>>(),
        "why": bucket.why.iter().map(why).collect::<Vec<_>>(),
        "last_refusal": bucket.last_refusal.map(|refusal| json!({
            "ago": seconds(refusal.ago),
            "scope": format!("{:?}", refusal.scope).to_lowercase(),
            "retry_after": seconds(refusal.retry_after),
        })),
    })
}

fn why(why: &Why) -> Value {
    json!({
        "cause": why.cause.word(),
        "what": why.what.as_deref().map(shown),
        "for": why.left.map(|left| left.as_secs_f64()),
    })
}

fn models(state: &State) -> Response<Body> {
    let Some(models) = &state.models else {
        return text_response(StatusCode::NOT_FOUND, "there are no budgets of models\n");
    };
    let view = models.spending().view(|rule| models.name(rule));
    json_response(StatusCode::OK, &view)
}

async fn unlock(state: &State, query: &str) -> Response<Body> {
    let Some(account) = account(state, query) else { return unknown() };
    state.events.verdict(account.id, account.judge(false, &state.settings));
    let Some(bucket) = parameter(query, "bucket") else {
        return json_response(StatusCode::OK, &json!({ "unlocked": true }));
    };
    match account.ledger.unlock(&bucket).await {
        Ok(unlocked) => json_response(StatusCode::OK, &json!({ "unlocked": unlocked })),
        Err(error) => unavailable(&error.to_string()),
    }
}

async fn drain(state: &State, query: &str) -> Response<Body> {
    let (Some(account), Some(bucket)) = (account(state, query), parameter(query, "bucket")) else {
        return unknown();
    };
    match account.ledger.drain(&bucket).await {
        Ok(drained) => json_response(StatusCode::OK, &json!({ "drained": drained })),
        Err(error) => unavailable(&error.to_string()),
    }
}

fn account(state: &State, query: &str) -> Option<std::sync::Arc<Account>> {
    state.accounts.known(CredentialId::parse(&parameter(query, "credential")?)?)
}

fn unknown() -> Response<Body> {
    text_response(StatusCode::NOT_FOUND, "no such credential or bucket\n")
}

fn unavailable(message: &str) -> Response<Body> {
    json_response(StatusCode::SERVICE_UNAVAILABLE, &json!({ "message": message }))
}

/// A parameter of a query, percent-decoded.
fn parameter(query: &str, name: &str) -> Option<String> {
    let pair = query.split('&').filter_map(|pair| pair.split_once('='));
    let (_, value) = pair.into_iter().find(|(found, _)| *found == name)?;
    String::from_utf8(percent_decoded(value.replace('+', " ").as_bytes())).ok()
}
