//! `GET|POST /v1/gate/{policy}`: forward authentication for nginx, Traefik and Caddy.
//!
//! The proxy asks before it lets a request through; the key comes from the request's own header
//! fields, as the policy says: a named field, or the client's address behind trusted proxies.

use tollway_core::{Cost, Key};

use super::operations::deny_status;
use super::problem::Trouble;
use super::request::{Call, Request, decoded};
use super::verdict::begin_verdict;
use crate::net::address_key;
use crate::rules::{GateKey, Rule, Source};
use crate::worker::Worker;

/// Answers for the policy named in the path.
pub(super) async fn gate(call: Call<'_>) -> Result<(), Trouble> {
    let status = deny_status(call.request)?;
    let rules = call.service().enforcer.rules();
    let name = decoded(call.parameters[0]).ok_or(Trouble::NotFound)?;
    let rule = rules.rule(&name);
    let rule = rule.ok_or_else(|| Trouble::UnknownPolicy(name.clone().into_owned()))?;
    let key = key(call.worker, rule, call.request)?;
    let key = Key::new(&key).map_err(|error| Trouble::bad(format!("the key: {error}")))?;
    let ask = rules.ask(Source::rule(rule), key, Cost::ONE);
    let asks: Vec<_> = ask.with_spacing().collect();
    let decider = call.worker.decider(&rules);
    let verdict = decider.check(&asks).await?;
    begin_verdict(&decider, &asks, &verdict, status, call.reply);
    call.reply.body.push(b'}');
    Ok(())
}

fn key(worker: &Worker, rule: &Rule, request: &Request<'_>) -> Result<Vec<u8>, Trouble> {
    match &rule.options().gate_key {
        GateKey::Header(name) => match request.fields.lines(name)[..] {
            [value] => Ok(value.to_vec()),
            [] => Err(Trouble::bad(format!("the header field {name} is missing"))),
            // Which of them counts behind us is not known: a made-up one beside the real one would
            // be a new key per request.
            _ => Err(Trouble::bad(format!("the header field {name} is present more than once"))),
        },
        GateKey::Address => {
            let settings = worker.service.settings();
            let (by, trusted) = (settings.forwarded_by, &settings.trusted_proxies);
            let lines = request.fields.lines(by.field());
            Ok(address_key(by.client(request.peer.address, trusted, lines)).into_bytes())
        }
    }
}
