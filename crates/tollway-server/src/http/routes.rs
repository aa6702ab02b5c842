//! Which path is answered by what, and who may ask.

use super::problem::Trouble;
use super::reply::Reply;
use super::request::Request;
use super::verbs::{Change, amend};
use super::{check, compat, gate, ops, pages, queues, settle};
use crate::auth::{Refused, Role};
use crate::dashboard;
use crate::metrics::Front;
use crate::worker::Worker;

/// Answers a request.
pub(crate) async fn answer(worker: &Worker, request: &Request<'_>, reply: &mut Reply) {
    reply.clear();
    #[cfg(feature = "otlp")]
    let span = worker
        .service
        .traces()
        .and_then(|traces| Some((traces, traces.begin(request.fields.field("traceparent"))?)));
    let outcome = match pages::keep_out(worker, request, !request.body.is_empty()) {
        Ok(()) => route(worker, request, reply).await,
        Err(trouble) => Err(trouble),
    };
    if let Err(trouble) = outcome {
        worker.service.metrics().front(Front::Http).rejected.add(1);
        trouble.write(reply);
    }
    #[cfg(feature = "otlp")]
    if let Some((traces, begun)) = span {
        traces.end(begun, (Front::Http, route_name(request.path)), 1, reply.status);
    }
}

/// Whether a request of which only the head is there may go on: its body is not worth holding if it
/// comes from a page, or without a token where one is needed.
pub(super) fn admit(worker: &Worker, request: &Request<'_>, has_body: bool) -> Result<(), Trouble> {
    pages::keep_out(worker, request, has_body)?;
    let auth = worker.service.auth();
    if !needs_token(request.path) {
        // Who needs no token is a stranger: a body that nothing here reads is not held for one.
        let unread = || Trouble::Bad("no body is expected at this path".to_owned());
        return if has_body && !auth.is_open() { Err(unread()) } else { Ok(()) };
    }
    match auth.role_of_field(request.fields.field("authorization")) {
        Some(_) => Ok(()),
        None => Err(unauthorized(worker, request)),
    }
}

/// Whether a path is answered only to those who show a token, where tokens are known.
fn needs_token(path: &str) -> bool {
    match ops::needs(path).or_else(|| dashboard::needs(path)) {
        Some((_, role)) => role.is_some(),
        None => true,
    }
}

/// The paths that decide, each asked by `POST` with a JSON body.
pub(crate) const DECISION_PATHS: [&str; 11] = [
    "/v1/check",
    "/v1/check-batch",
    "/v1/peek",
    "/v1/take",
    "/v1/refund",
    "/v1/reset",
    "/v1/reserve",
    "/v1/commit",
    "/v1/cancel",
    "/throttle",
    "/json",
];

/// A path as a span may be called: never what a stranger wrote.
#[cfg(feature = "otlp")]
fn route_name(path: &str) -> &'static str {
    let known = DECISION_PATHS.into_iter().chain(["/metrics", "/readyz"]);
    match known.into_iter().find(|known| *known == path) {
        Some(known) => known,
        None if path.starts_with("/v1/gate/") => "/v1/gate/{policy}",
        None => "other",
    }
}

async fn route(worker: &Worker, request: &Request<'_>, reply: &mut Reply) -> Result<(), Trouble> {
    // The likeliest first: the paths are compared one by one.
    match request.path {
        "/v1/check" => {
            permit(worker, request, "POST", Role::Check)?;
            check::check(worker, request, reply).await
        }
        "/throttle" => {
            permit(worker, request, "POST", Role::Check)?;
            compat::throttle(worker, request, reply).await
        }
        path if path.starts_with("/v1/") => route_v1(worker, path, request, reply).await,
        "/json" => {
            permit(worker, request, "POST", Role::Check)?;
            compat::json(worker, request, reply).await
        }
        path if path == "/" || path.starts_with("/dashboard/") => {
            let (method, role) = dashboard::needs(path).ok_or(Trouble::NotFound)?;
            match role {
                Some(role) => permit(worker, request, method, role)?,
                None => has_method(request, method)?,
            }
            dashboard::answer(worker, path, request, reply).await
        }
        path => {
            let (method, role) = ops::needs(path).ok_or(Trouble::NotFound)?;
            match role {
                Some(role) => permit(worker, request, method, role)?,
                None => has_method(request, method)?,
            }
            ops::answer(worker, path, request, reply).await
        }
    }
}

async fn route_v1(
    worker: &Worker,
    path: &str,
    request: &Request<'_>,
    reply: &mut Reply,
) -> Result<(), Trouble> {
    if let Some(policy) = path.strip_prefix("/v1/gate/") {
        let method = match request.method {
            "POST" => "POST",
            "GET" | "HEAD" => "GET",
            _ => return Err(Trouble::Method("GET, POST")),
        };
        permit(worker, request, method, Role::Check)?;
        return gate::gate(worker, policy, request, reply).await;
    }
    if let Some(rest) = path.strip_prefix("/v1/queues") {
        return queues::route(worker, rest, request, reply).await;
    }
    let role = match path {
        "/v1/peek" => Role::Read,
        "/v1/reset" => Role::Admin,
        "/v1/check-batch" | "/v1/take" | "/v1/refund" | "/v1/reserve" | "/v1/commit"
        | "/v1/cancel" => Role::Check,
        // Before the method is looked at: "right would be POST" would be a lie.
        _ => return Err(Trouble::NotFound),
    };
    permit(worker, request, "POST", role)?;
    match path {
        "/v1/peek" => check::peek(worker, request, reply).await,
        "/v1/check-batch" => check::check_batch(worker, request, reply).await,
        "/v1/take" => amend(Change::Take, worker, request, reply).await,
        "/v1/refund" => amend(Change::Refund, worker, request, reply).await,
        "/v1/reset" => amend(Change::Reset, worker, request, reply).await,
        "/v1/reserve" => settle::reserve(worker, request, reply).await,
        "/v1/commit" => settle::commit(worker, request, reply).await,
        "/v1/cancel" => settle::cancel(worker, request, reply).await,
        _ => Err(Trouble::NotFound),
    }
}

/// Events for whoever may read them.
pub(super) fn events(worker: &Worker, request: &Request<'_>) -> Result<dashboard::Events, Trouble> {
    pages::keep_out(worker, request, false)?;
    permit(worker, request, "GET", Role::Read)?;
    let auth = worker.service.auth();
    let role = auth.role_of_field(request.fields.field("authorization"));
    dashboard::Events::open(worker, role.unwrap_or(Role::Read))
}

/// Whether the request has the method, and its token the role, that the path needs.
pub(super) fn permit(
    worker: &Worker,
    request: &Request<'_>,
    method: &'static str,
    role: Role,
) -> Result<(), Trouble> {
    let auth = worker.service.auth();
    if !auth.is_open() {
        match auth.role_of_field(request.fields.field("authorization")) {
            None => return Err(unauthorized(worker, request)),
            Some(has) if has < role => return Err(Trouble::Forbidden),
            Some(_) => {}
        }
    }
    has_method(request, method)
}

/// That no token was shown, or a wrong one.
fn unauthorized(worker: &Worker, request: &Request<'_>) -> Trouble {
    if request.fields.field("authorization").is_none() {
        return Trouble::Unauthorized;
    }
    match worker.service.wrong_token(request.peer.address, Front::Http) {
        Refused::Wrong => Trouble::Unauthorized,
        Refused::TooMany { wait } => Trouble::WrongTokens { wait },
    }
}

fn has_method(request: &Request<'_>, method: &'static str) -> Result<(), Trouble> {
    let is_head = request.method == "HEAD" && method == "GET";
    if request.method == method || is_head { Ok(()) } else { Err(Trouble::Method(method)) }
}
