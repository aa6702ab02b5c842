//! Which path is answered by what, and who may ask: one table for routing, permissions, the names
//! of spans and the test of the OpenAPI document.

use super::operations::{check_batch, operate};
use super::problem::Trouble;
use super::queues::leases::{self, Report, settle};
use super::queues::{
    self, control, jobs, list_queues, look, on_queue, on_queue_with, operate as operate_queue,
    settings,
};
use super::reply::Reply;
use super::request::{Call, Request};
use super::{compat, gate, ops, own_quotas, pages, usage};
use crate::auth::{Refused, Role};
use crate::channel_body::ChannelBody;
use crate::dashboard::{self, EVENTS, assets, changes, keys, policies, proxy};
use crate::front::Front;
use crate::operation::Verb;
use crate::worker::Worker;

/// A method of a path.
#[derive(Debug)]
pub(crate) struct Route {
    page: Page,
    pub method: &'static str,
    /// As the OpenAPI document writes it: `{name}` stands for a segment, `{policy}` for all of
    /// them.
    pub path: &'static str,
    has_parameters: bool,
    /// The role that it needs; `None` if nobody has to show a token.
    pub role: Option<Role>,
}

const READ: Option<Role> = Some(Role::Read);
const CHECK: Option<Role> = Some(Role::Check);
const ADMIN: Option<Role> = Some(Role::Admin);

/// Writes the table and what answers each of its rows. Methods of one path stand together.
macro_rules! routes {
    ($call:ident: $($page:ident $method:literal $path:expr, $role:expr => $answer:expr;)*) => {
        #[derive(Clone, Copy, Debug)]
        enum Page { $($page),* }

        /// Every route. The likeliest comes first: paths are compared one by one.
        pub(crate) const ROUTES: &[Route] = &[$(Route {
            page: Page::$page,
            method: $method,
            path: $path,
            has_parameters: has_parameters($path),
            role: $role,
        }),*];

        async fn answer_page(page: Page, $call: Call<'_>) -> Result<(), Trouble> {
            match page { $(Page::$page => $answer),* }
        }
    };
}

routes! { call:
    Check       "POST" "/v1/check", CHECK => operate(call, Verb::Check).await;
    Throttle    "POST" "/throttle", CHECK => compat::throttle(call).await;
    GateGet     "GET"  "/v1/gate/{policy}", CHECK => gate::gate(call).await;
    GatePost    "POST" "/v1/gate/{policy}", CHECK => gate::gate(call).await;
    CheckBatch  "POST" "/v1/check-batch", CHECK => check_batch(call).await;
    Peek        "POST" "/v1/peek", READ => operate(call, Verb::Peek).await;
    Take        "POST" "/v1/take", CHECK => operate(call, Verb::Take).await;
    Refund      "POST" "/v1/refund", CHECK => operate(call, Verb::Refund).await;
    Reset       "POST" "/v1/reset", ADMIN => operate(call, Verb::Reset).await;
    Reserve     "POST" "/v1/reserve", CHECK => operate(call, Verb::Reserve).await;
    Commit      "POST" "/v1/commit", CHECK => operate(call, Verb::Commit).await;
    Cancel      "POST" "/v1/cancel", CHECK => operate(call, Verb::Cancel).await;
    // Usage is by key: a list of it is one of keys.
    Usage       "GET"  "/v1/usage/{policy}", CHECK => usage::usage(call).await;
    Envoy       "POST" "/json", CHECK => compat::json(call).await;

    Health      "GET"  "/healthz", None => ops::health(call);
    HealthToo   "GET"  "/health", None => ops::health(call);
    Healthcheck "GET"  "/healthcheck", None => ops::healthcheck(call);
    Readiness   "GET"  "/readyz", None => ops::readiness(call);
    OpenApi     "GET"  "/openapi.json", None => ops::openapi(call);
    Metrics     "GET"  "/metrics", READ => ops::metrics(call);
    RlConfig    "GET"  "/rlconfig", READ => ops::rlconfig(call);
    Stats       "GET"  "/stats", READ => ops::stats(call);
    Top         "GET"  "/admin/top", ADMIN => ops::top(call);
    Rules       "GET"  "/admin/rules", ADMIN => ops::rules(call);
    Reload      "POST" "/admin/reload", ADMIN => ops::reload(call).await;

    QuotaLog    "GET"  "/admin/quota-changes", ADMIN => own_quotas::changes(call);

    OwnQuotas   "GET"  "/v1/policies/{policy}/keys", ADMIN => own_quotas::list(call);
    OwnQuota    "GET"  "/v1/policies/{policy}/keys/{key}", ADMIN => own_quotas::get(call);
    PutOwn      "PUT"  "/v1/policies/{policy}/keys/{key}", ADMIN => own_quotas::put(call).await;
    DropOwn     "DELETE" "/v1/policies/{policy}/keys/{key}", ADMIN =>
        own_quotas::remove(call).await;
    Grant       "POST" "/v1/policies/{policy}/keys/{key}/grant", ADMIN =>
        own_quotas::grant(call).await;

    Queues      "GET"  "/v1/queues", READ => list_queues(call).await;
    Queue       "GET"  "/v1/queues/{queue}", READ => on_queue(call, look::queue).await;
    PutQueue    "PUT"  "/v1/queues/{queue}", ADMIN =>
        operate_queue(call, "settings", settings::put).await;
    PatchQueue  "PATCH" "/v1/queues/{queue}", ADMIN =>
        operate_queue(call, "settings", settings::patch).await;
    DropQueue   "DELETE" "/v1/queues/{queue}", ADMIN =>
        operate_queue(call, "remove", settings::remove).await;
    Enqueue     "POST" "/v1/queues/{queue}/jobs", CHECK => on_queue(call, jobs::enqueue).await;
    EnqueueAll  "POST" "/v1/queues/{queue}/jobs/batch", CHECK =>
        on_queue(call, jobs::enqueue_batch).await;
    Job         "GET"  "/v1/queues/{queue}/jobs/{id}", READ =>
        on_queue_with(call, &["wait_ms"], look::job).await;
    CancelJob   "DELETE" "/v1/queues/{queue}/jobs/{id}", CHECK =>
        operate_queue(call, "cancel", jobs::cancel).await;
    Reschedule  "POST" "/v1/queues/{queue}/jobs/{id}/reschedule", CHECK =>
        operate_queue(call, "reschedule", jobs::reschedule).await;
    // Answered by a stream, in `fallback`, before it comes here.
    QueueEvents "GET"  "/v1/queues/{queue}/events", READ => Err(Trouble::NotFound);
    // Groups are named after customers: a list of them is one of keys.
    Groups      "GET"  "/v1/queues/{queue}/groups", CHECK =>
        on_queue_with(call, &["cursor", "max"], look::groups).await;
    PeekJobs    "GET"  "/v1/queues/{queue}/peek", READ =>
        on_queue_with(call, &["group", "max"], look::peek).await;
    Dead        "GET"  "/v1/queues/{queue}/dead", READ =>
        on_queue_with(call, &["after", "max"], look::dead).await;
    RunningJobs "GET"  "/v1/queues/{queue}/running", READ =>
        on_queue_with(call, &["after", "max"], look::running).await;
    Revive      "POST" "/v1/queues/{queue}/dead/retry", ADMIN =>
        operate_queue(call, "retry", control::revive).await;
    Lease       "POST" "/v1/queues/{queue}/lease", CHECK => on_queue(call, leases::lease).await;
    Heartbeat   "POST" "/v1/queues/{queue}/heartbeat", CHECK =>
        on_queue(call, leases::heartbeat).await;
    Progress    "POST" "/v1/queues/{queue}/progress", CHECK =>
        on_queue(call, leases::progress).await;
    Ack         "POST" "/v1/queues/{queue}/ack", CHECK =>
        on_queue(call, async |call, queue| settle(call, queue, Report::Ack).await).await;
    Fail        "POST" "/v1/queues/{queue}/fail", CHECK =>
        on_queue(call, async |call, queue| settle(call, queue, Report::Fail).await).await;
    RetryLater  "POST" "/v1/queues/{queue}/retry-later", CHECK =>
        on_queue(call, async |call, queue| settle(call, queue, Report::RetryLater).await).await;
    Release     "POST" "/v1/queues/{queue}/release", CHECK =>
        on_queue(call, async |call, queue| settle(call, queue, Report::Release).await).await;
    Pause       "POST" "/v1/queues/{queue}/pause", ADMIN =>
        operate_queue(call, "pause", async |call, queue| {
            control::set_paused(call, queue, true).await
        })
        .await;
    Resume      "POST" "/v1/queues/{queue}/resume", ADMIN =>
        operate_queue(call, "resume", async |call, queue| {
            control::set_paused(call, queue, false).await
        })
        .await;
    SetLimits   "POST" "/v1/queues/{queue}/limits", ADMIN =>
        operate_queue(call, "limits", control::limits).await;
    Recurring   "GET"  "/v1/queues/{queue}/recurring", READ => on_queue(call, look::recurring).await;
    Recur       "POST" "/v1/queues/{queue}/recurring", ADMIN =>
        operate_queue(call, "recurring", control::put_recurring).await;
    StopRecur   "DELETE" "/v1/queues/{queue}/recurring/{name}", ADMIN =>
        operate_queue(call, "end recurring", control::remove_recurring).await;

    Shared      "GET"  "/v1/shared-limits", READ => settings::list_shared(call).await;
    PutShared   "PUT"  "/v1/shared-limits/{limit}", ADMIN => settings::put_shared(call).await;
    DropShared  "DELETE" "/v1/shared-limits/{limit}", ADMIN =>
        settings::remove_shared(call).await;

    // The page needs no role: it holds no data.
    Dashboard   "GET"  "/", None => assets::answer(call);
    Script      "GET"  "/dashboard/app.js", None => assets::answer(call);
    Style       "GET"  "/dashboard/app.css", None => assets::answer(call);
    Icon        "GET"  "/dashboard/icon.svg", None => assets::answer(call);
    Session     "GET"  "/dashboard/session", READ => dashboard::session(call);
    History     "GET"  "/dashboard/history", READ => dashboard::history(call);
    QueuePast   "GET"  "/dashboard/queue", READ => dashboard::queue(call);
    Policies    "GET"  "/dashboard/policies", READ => policies::list(call);
    Upstream    "GET"  "/dashboard/upstream", READ => proxy::buckets(call).await;
    ProxyState  "GET"  "/dashboard/upstream/status", READ => proxy::status(call).await;
    Key         "POST" "/dashboard/key", READ => keys::look_up(call).await;
    Changes     "GET"  "/dashboard/changes", ADMIN => changes::list(call);
    ResetKey    "POST" "/dashboard/reset", ADMIN => changes::reset(call).await;
    Ban         "POST" "/dashboard/ban", ADMIN => changes::ban(call).await;
    Quota       "POST" "/dashboard/quota", ADMIN => changes::own_quota(call).await;
    // Answered by a stream, in `fallback`, before it comes here.
    Events      "GET"  EVENTS, READ => Err(Trouble::NotFound);
}

const fn has_parameters(path: &str) -> bool {
    let (bytes, mut at) = (path.as_bytes(), 0);
    while at < bytes.len() {
        if bytes[at] == b'{' {
            return true;
        }
        at += 1;
    }
    false
}

impl Route {
    /// What stands in `path` in place of the parameters, if it is a path of this route.
    fn matched<'a>(&self, path: &'a str) -> Option<[&'a str; 2]> {
        if !self.has_parameters {
            return (self.path == path).then_some([""; 2]);
        }
        if let Some(start) = self.path.strip_suffix("{policy}") {
            return path.strip_prefix(start).map(|policy| [policy, ""]);
        }
        let (mut found, mut count) = ([""; 2], 0);
        let (mut names, mut segments) = (self.path.split('/'), path.split('/'));
        loop {
            match (names.next(), segments.next()) {
                (None, None) => return Some(found),
                (Some(name), Some(segment)) if name.starts_with('{') => {
                    found[count] = segment;
                    count += 1;
                }
                (Some(name), Some(segment)) if name == segment => {}
                _ => return None,
            }
        }
    }
}

/// The routes of a path, one for each method, and what stands in place of its parameters.
fn find(path: &str) -> Option<(&'static [Route], [&str; 2])> {
    let matched = |(at, route): (usize, &Route)| Some((at, route.matched(path)?));
    let (first, parameters) = ROUTES.iter().enumerate().find_map(matched)?;
    let is_same = |route: &&Route| route.path == ROUTES[first].path;
    let count = ROUTES[first..].iter().take_while(is_same).count();
    Some((&ROUTES[first..first + count], parameters))
}

/// The paths that decide, each asked by `POST` with a JSON body.
pub(crate) fn decision_paths() -> impl Iterator<Item = &'static str> {
    let is_other = |path: &str| path.starts_with("/admin/") || path.starts_with("/dashboard/");
    let posts = ROUTES.iter().filter(|route| route.method == "POST" && !route.has_parameters);
    posts.map(|route| route.path).filter(move |path| !is_other(path))
}

/// Answers a request.
pub(crate) async fn answer(worker: &Worker, request: &Request<'_>, reply: &mut Reply) {
    reply.clear();
    #[cfg(feature = "otlp")]
    let span = worker
        .service
        .traces()
        .and_then(|traces| Some((traces, traces.begin(request.fields.field("traceparent"))?)));
    let found = find(request.path);
    let outcome = match pages::keep_out(worker, request, !request.body.is_empty()) {
        Ok(()) => route(found, worker, request, reply).await,
        Err(trouble) => Err(trouble),
    };
    if let Err(trouble) = outcome {
        worker.service.metrics().front(Front::Http).rejected.add(1);
        trouble.write(reply);
    }
    #[cfg(feature = "otlp")]
    if let Some((traces, begun)) = span {
        // The route, never the path: that is what a stranger wrote.
        let name = found.map_or("other", |(routes, _)| routes[0].path);
        traces.end(begun, (Front::Http, name), 1, reply.status);
    }
}

async fn route(
    found: Option<(&'static [Route], [&str; 2])>,
    worker: &Worker,
    request: &Request<'_>,
    reply: &mut Reply,
) -> Result<(), Trouble> {
    let (routes, parameters) = found.ok_or(Trouble::NotFound)?;
    let page = permit(worker, request, routes)?.page;
    answer_page(page, Call { worker, request, reply, parameters }).await
}

/// Whether a request of which only the head is there may go on: its body is not worth holding if it
/// comes from a page, or without a token where one is needed.
pub(super) fn admit(worker: &Worker, request: &Request<'_>, has_body: bool) -> Result<(), Trouble> {
    pages::keep_out(worker, request, has_body)?;
    let auth = worker.service.auth();
    if find(request.path).is_some_and(|(routes, _)| routes[0].role.is_none()) {
        // Who needs no token is a stranger: a body that nothing here reads is not held for one.
        let unread = || Trouble::bad("no body is expected at this path");
        return if has_body && !auth.is_open() { Err(unread()) } else { Ok(()) };
    }
    match auth.role_of_field(request.fields.field("authorization")) {
        Some(_) => Ok(()),
        None => Err(unauthorized(worker, request)),
    }
}

/// Whether a path is answered by events, without an end.
pub(super) fn is_stream(path: &str) -> bool {
    path == EVENTS || path.starts_with("/v1/queues/") && path.ends_with("/events")
}

/// Events for whoever may read them.
pub(super) async fn events(worker: &Worker, request: &Request<'_>) -> Result<ChannelBody, Trouble> {
    pages::keep_out(worker, request, false)?;
    let (routes, [queue, _]) = find(request.path).ok_or(Trouble::NotFound)?;
    let page = permit(worker, request, routes)?.page;
    let role = worker.service.auth().role_of_field(request.fields.field("authorization"));
    let role = role.unwrap_or(Role::Read);
    match page {
        Page::Events => dashboard::events(worker, role),
        Page::QueueEvents => queues::events(worker, request, queue, role).await,
        _ => Err(Trouble::NotFound),
    }
}

/// The one of the routes that has the request's method, if its token has the role that is needed.
fn permit(
    worker: &Worker,
    request: &Request<'_>,
    routes: &'static [Route],
) -> Result<&'static Route, Trouble> {
    let is_head = |route: &Route| request.method == "HEAD" && route.method == "GET";
    let asked = routes.iter().find(|route| request.method == route.method || is_head(route));
    // Whoever may not ask is told that first, and not which methods there are.
    if let Some(role) = asked.unwrap_or(&routes[0]).role {
        let auth = worker.service.auth();
        if !auth.is_open() {
            match auth.role_of_field(request.fields.field("authorization")) {
                None => return Err(unauthorized(worker, request)),
                Some(has) if has < role => return Err(Trouble::Forbidden),
                Some(_) => {}
            }
        }
    }
    asked.ok_or_else(|| {
        let methods: Vec<&str> = routes.iter().map(|route| route.method).collect();
        Trouble::Method(methods.join(", "))
    })
}

/// Whether the caller may change what the service is told, by its page or over HTTP.
pub(crate) fn permit_change(call: &Call<'_>) -> Result<(), Trouble> {
    // Open to everybody on this machine is open to every page in a browser on it.
    let auth = call.service().auth();
    if auth.is_open() {
        return Err(Trouble::NoToken);
    }
    // Again, by these tokens: since the request was permitted the service may have ceased to be
    // open.
    match auth.role_of_field(call.request.fields.field("authorization")) {
        Some(Role::Admin) => Ok(()),
        _ => Err(Trouble::Forbidden),
    }
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// A route that is added needs an entry in `openapi.json`, and one that is removed none.
    #[test]
    fn the_openapi_document_names_every_route_and_no_other() {
        let document: serde_json::Value = serde_json::from_str(ops::OPENAPI).unwrap();
        let mut documented = BTreeSet::new();
        for (path, methods) in document["paths"].as_object().unwrap() {
            for method in methods.as_object().unwrap().keys() {
                documented.insert((path.clone(), method.to_uppercase()));
            }
        }
        // The dashboard's paths are its page's own, and no interface.
        let is_own = |path: &str| path == "/" || path.starts_with("/dashboard/");
        let routes = ROUTES.iter().filter(|route| !is_own(route.path));
        let routed = routes.map(|route| (route.path.to_owned(), route.method.to_owned())).collect();
        assert_eq!(documented, routed);
    }

    #[test]
    fn every_verb_has_a_route_with_its_role() {
        for (_, name, role) in Verb::TABLE {
            let (routes, _) = find(&format!("/v1/{name}")).unwrap();
            assert_eq!((routes[0].method, routes[0].role), ("POST", Some(role)), "{name}");
        }
    }

    #[test]
    fn a_path_is_found_with_its_parameters() {
        let found = |path| find(path).map(|(routes, at)| (routes[0].path, routes.len(), at));
        assert_eq!(found("/v1/check"), Some(("/v1/check", 1, ["", ""])));
        assert_eq!(found("/v1/gate/a/b"), Some(("/v1/gate/{policy}", 2, ["a/b", ""])));
        let job = "/v1/queues/{queue}/jobs/{id}";
        assert_eq!(found("/v1/queues/q/jobs/7"), Some((job, 2, ["q", "7"])));
        let batch = "/v1/queues/{queue}/jobs/batch";
        assert_eq!(found("/v1/queues/q/jobs/batch"), Some((batch, 1, ["q", ""])));
        for unknown in ["", "/v1", "/v1/CHECK", "/v1/check/", "/v1/queues/q/jobs/7/x", "/v1/gate"] {
            assert_eq!(found(unknown), None, "{unknown}");
        }
    }
}
