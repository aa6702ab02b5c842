//! `POST /v1/take`, `/v1/refund` and `/v1/reset`: take what there is, give back, forget a key.

use tollgate_core::Verdict;

use super::check::{add_limits, write};
use super::json::{CheckBody, push_number, push_verdict, read};
use super::problem::Trouble;
use super::reply::Reply;
use super::request::Request;
use crate::worker::Worker;

/// `POST /v1/take`: takes as many units as there are, up to the cost, and says how many. A partial
/// grant is an answer, not a denial: the status is 200.
pub(super) async fn take(
    worker: &Worker,
    request: &Request<'_>,
    reply: &mut Reply,
) -> Result<(), Trouble> {
    let body: CheckBody<'_> = read(request.body)?;
    let rules = worker.service.rules();
    let asks = body.asks(&rules, 1)?;
    let grant = worker.take(&asks[0]).await?;
    let verdict = Verdict::one(grant.decision);
    add_limits(worker, &asks, &verdict, reply);
    push_verdict(&mut reply.body, &verdict, &asks);
    push_number(&mut reply.body, ",\"granted\":", grant.granted);
    reply.body.push(b'}');
    Ok(())
}

/// `POST /v1/refund`: gives one charge's units back and says what is left.
pub(super) async fn refund(
    worker: &Worker,
    request: &Request<'_>,
    reply: &mut Reply,
) -> Result<(), Trouble> {
    let body: CheckBody<'_> = read(request.body)?;
    let rules = worker.service.rules();
    let asks = body.asks(&rules, 1)?;
    let snapshot = worker.refund(&asks[0]).await?;
    let verdict = Verdict::one(tollgate_core::Decision::Allow(snapshot));
    write(worker, &asks, &verdict, 200, reply);
    Ok(())
}

/// `POST /v1/reset`: forgets one key under one policy.
pub(super) async fn reset(
    worker: &Worker,
    request: &Request<'_>,
    reply: &mut Reply,
) -> Result<(), Trouble> {
    let body: CheckBody<'_> = read(request.body)?;
    let rules = worker.service.rules();
    let asks = body.asks(&rules, 1)?;
    worker.reset(&asks[0]).await?;
    reply.body.extend_from_slice(b"{\"reset\":true}");
    Ok(())
}
