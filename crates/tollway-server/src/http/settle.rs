//! `POST /v1/reserve`, `/v1/commit` and `/v1/cancel`: take now, settle later.

use tollway_core::{ReservationId, Settlement};

use super::check::{begin, deny_status};
use super::json::{CheckBody, SettleBody, push_number, read};
use super::problem::Trouble;
use super::reply::Reply;
use super::request::Request;
use crate::reservation_name;
use crate::wait::millis_up;
use crate::worker::Worker;

/// `POST /v1/reserve`: as a check, with `reservation` and `expires_after_ms` if allowed.
pub(super) async fn reserve(
    worker: &Worker,
    request: &Request<'_>,
    reply: &mut Reply,
) -> Result<(), Trouble> {
    let status = deny_status(request)?;
    let body: CheckBody<'_> = read(request.body)?;
    let rules = worker.service.enforcer.rules();
    let asks = body.asks(&rules, worker.service.settings().limits.charges_max)?;
    let decider = worker.decider(&rules);
    let reserved = decider.reserve(&asks).await?;
    begin(&decider, &asks, &reserved.verdict, status, reply);
    if let Some(reservation) = reserved.reservation {
        reply.body.extend_from_slice(b",\"reservation\":\"");
        let name = reservation_name::text(reservation.id);
        reply.body.extend_from_slice(name.as_bytes());
        let expires_ms = millis_up(reservation.expires_after);
        push_number(&mut reply.body, "\",\"expires_after_ms\":", expires_ms);
    }
    reply.body.push(b'}');
    Ok(())
}

/// `POST /v1/commit`: settles at the real costs.
pub(super) async fn commit(
    worker: &Worker,
    request: &Request<'_>,
    reply: &mut Reply,
) -> Result<(), Trouble> {
    let body: SettleBody<'_> = read(request.body)?;
    let rules = worker.service.enforcer.rules();
    settled(worker.decider(&rules).commit(id(&body)?, &body.costs).await?, reply);
    Ok(())
}

/// `POST /v1/cancel`: settles by giving everything back.
pub(super) async fn cancel(
    worker: &Worker,
    request: &Request<'_>,
    reply: &mut Reply,
) -> Result<(), Trouble> {
    let body: SettleBody<'_> = read(request.body)?;
    if !body.costs.is_empty() {
        return Err(Trouble::Bad("a cancelled reservation has no costs".to_owned()));
    }
    let rules = worker.service.enforcer.rules();
    settled(worker.decider(&rules).cancel(id(&body)?).await?, reply);
    Ok(())
}

fn id(body: &SettleBody<'_>) -> Result<ReservationId, Trouble> {
    let wrong = || Trouble::Bad("a reservation is named by 32 hexadecimal digits".to_owned());
    reservation_name::parse(&body.reservation).ok_or_else(wrong)
}

fn settled(settlement: Settlement, reply: &mut Reply) {
    let known = settlement == Settlement::Settled;
    reply.status = if known { 200 } else { 404 };
    let body: &[u8] = if known { b"{\"settled\":true}" } else { b"{\"settled\":false}" };
    reply.body.extend_from_slice(body);
}
