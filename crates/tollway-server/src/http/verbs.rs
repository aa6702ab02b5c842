//! `POST /v1/take`, `/v1/refund` and `/v1/reset`: take what there is, give back, forget a key.

use tollway_core::{Decision, Verdict};

use super::check::{add_limits, write};
use super::json::{CheckBody, push_number, push_verdict, read};
use super::problem::Trouble;
use super::reply::Reply;
use super::request::Request;
use crate::worker::Worker;

/// What becomes of one charge.
#[derive(Clone, Copy, Debug)]
pub(super) enum Change {
    /// Takes as many units as there are, up to the cost, and says how many. A partial grant is an
    /// answer, not a denial: the status is 200.
    Take,
    /// Gives the units back and says what is left.
    Refund,
    /// Forgets the key under the policy.
    Reset,
}

/// Changes the state of the one charge that the body names.
pub(super) async fn amend(
    change: Change,
    worker: &Worker,
    request: &Request<'_>,
    reply: &mut Reply,
) -> Result<(), Trouble> {
    let body: CheckBody<'_> = read(request.body)?;
    let rules = worker.service.enforcer.rules();
    let asks = body.asks(&rules, 1)?;
    let decider = worker.decider(&rules);
    match change {
        Change::Take => {
            let grant = decider.take(&asks[0]).await?;
            let verdict = Verdict::one(grant.decision);
            add_limits(&decider, &asks, &verdict, reply);
            push_verdict(&mut reply.body, &verdict, &asks);
            push_number(&mut reply.body, ",\"granted\":", grant.granted);
            reply.body.push(b'}');
        }
        Change::Refund => {
            let snapshot = decider.refund(&asks[0]).await?;
            write(&decider, &asks, &Verdict::one(Decision::Allow(snapshot)), 200, reply);
        }
        Change::Reset => {
            decider.reset(&asks[0]).await?;
            reply.body.extend_from_slice(b"{\"reset\":true}");
        }
    }
    Ok(())
}
