//! `GET|POST /v1/gate/{policy}`: forward authentication for nginx, Traefik and Caddy.
//!
//! The proxy asks before it lets a request through; the key comes from the request's own header
//! fields, as the policy says: a named field, or the client's address behind trusted proxies.

use tollway_core::{Cost, Key};

use super::check::{deny_status, write};
use super::problem::Trouble;
use super::reply::Reply;
use super::request::{Request, decoded};
use crate::net::address_key;
use crate::rules::{GateKey, Rule, Source};
use crate::worker::Worker;

/// Answers for the policy named in the path.
pub(super) async fn gate(
    worker: &Worker,
    segment: &str,
    request: &Request<'_>,
    reply: &mut Reply,
) -> Result<(), Trouble> {
    let status = deny_status(request)?;
    let rules = worker.service.enforcer.rules();
    let name = decoded(segment).ok_or(Trouble::NotFound)?;
    let rule = rules.rule(&name);
    let rule = rule.ok_or_else(|| Trouble::UnknownPolicy(name.clone().into_owned()))?;
    let key = key(worker, rule, request)?;
    let key = Key::new(&key).map_err(|error| Trouble::Bad(error.to_string()))?;
    let asks = [rules.ask(Source::Rule(rule), key, Cost::ONE)];
    let decider = worker.decider(&rules);
    let verdict = decider.check(&asks).await?;
    write(&decider, &asks, &verdict, status, reply);
    Ok(())
}

fn key(worker: &Worker, rule: &Rule, request: &Request<'_>) -> Result<Vec<u8>, Trouble> {
    match &rule.options().gate_key {
        GateKey::Header(name) => match request.fields.lines(name)[..] {
            [value] => Ok(value.to_vec()),
            [] => Err(Trouble::Bad(format!("the header field {name} is missing"))),
            // Which of them counts behind us is not known: a made-up one beside the real one would
            // be a new key per request.
            _ => Err(Trouble::Bad(format!("the header field {name} stands more than once"))),
        },
        GateKey::Address => {
            let settings = worker.service.settings();
            let (by, trusted) = (settings.forwarded_by, &settings.trusted_proxies);
            let lines = request.fields.lines(by.field());
            Ok(address_key(by.client(request.peer.address, trusted, lines)).into_bytes())
        }
    }
}
