//! Keeping web pages out of a service that asks for no token.
//!
//! Whoever runs a browser on this machine runs strangers' pages there, and those reach loopback. A
//! request is refused if it names a host that is not known (a stranger's name that was made to
//! resolve to this machine), if its browser says that another site's page sent it, or if its body
//! is not said to be JSON (a page can send any other body without being asked).
//!
//! Where tokens are known none of this is looked at: a page cannot add an `Authorization` field to
//! a request for another site unless that site permits it, which this one never does, and there are
//! no cookies that a browser would add by itself.
//!
//! | path | host | site | JSON |
//! |---|---|---|---|
//! | probes | any | any | – |
//! | `/v1/gate/…` | any | any | – |
//! | `/` | known | any: a link may lead there, and it holds no data | – |
//! | everything else | known | this one, or no page | if there is a body |
//!
//! A proxy that asks `/v1/gate` passes on what it was sent, `Host` and `Origin` of its own site
//! included, so nothing there tells a page from a proxy. What a page can do there is to use up
//! units of this machine's address, or of a key that it can put into a field; a token ends that
//! too.

use tollway_core::fields::is_foreign_page;

use super::ops::is_probe;
use super::problem::Trouble;
use super::request::Request;
use crate::worker::Worker;

/// Refuses what a page may have sent, unless a token will be asked for.
pub(super) fn keep_out(
    worker: &Worker,
    request: &Request<'_>,
    has_body: bool,
) -> Result<(), Trouble> {
    let settings = worker.service.settings();
    let path = request.path;
    if !worker.service.auth().is_open() || path.starts_with("/v1/gate/") || is_probe(path) {
        return Ok(());
    }
    let field = |name| request.fields.field(name);
    if !request.peer.is_unix && !request.host.is_some_and(|host| settings.hosts.has(host)) {
        return Err(Trouble::UnknownHost(shown(request.host.unwrap_or_default())));
    }
    if path != "/" && is_foreign_page(request.host, field("origin"), field("sec-fetch-site")) {
        return Err(Trouble::ForeignPage);
    }
    match field("content-type") {
        None if !has_body => Ok(()),
        Some(media_type) if is_json(media_type) => Ok(()),
        _ if request.method == "GET" || request.method == "HEAD" => Ok(()),
        _ => Err(Trouble::MediaType),
    }
}

fn is_json(media_type: &[u8]) -> bool {
    let end = media_type.iter().position(|&byte| byte == b';').unwrap_or(media_type.len());
    media_type[..end].trim_ascii().eq_ignore_ascii_case(b"application/json")
}

/// A host as a refusal may repeat it.
fn shown(host: &[u8]) -> String {
    String::from_utf8_lossy(&host[..host.len().min(64)]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_json_with_parameters_and_in_any_case() {
        for json in ["application/json", "Application/JSON; charset=utf-8", "application/json ;a=b"]
        {
            assert!(is_json(json.as_bytes()), "{json}");
        }
        for other in ["text/plain", "application/json-seq", "text/plain; x=application/json", ""] {
            assert!(!is_json(other.as_bytes()), "{other}");
        }
    }
}
